//! Conditions as the Kubernetes API conventions and kstatus mean them.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::{Schema, SchemaGenerator, json_schema};

/// The value of a condition, so that no one writes `"true"` by mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    True,
    False,
    Unknown,
}

impl Truth {
    pub const fn as_str(self) -> &'static str {
        match self {
            Truth::True => "True",
            Truth::False => "False",
            Truth::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Truth {
    fn from(value: bool) -> Self {
        if value { Truth::True } else { Truth::False }
    }
}

/// The schema of a list of conditions: one entry per type, so that two writers never overwrite each other's.
pub(crate) fn list_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "description": "What is known about the object, one entry a question. Ready, Reconciling and Stalled mean what kstatus says.",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": { "type": "string", "maxLength": 316, "description": "The question." },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"], "description": "The answer." },
                "reason": { "type": "string", "minLength": 1, "maxLength": 1024, "description": "The answer's cause in one word, for programs." },
                "message": { "type": "string", "maxLength": 32768, "description": "The answer's cause in a sentence, for people." },
                "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0, "description": "The generation of the spec that was looked at." },
                "lastTransitionTime": { "type": "string", "format": "date-time", "description": "Since when the status is what it is." }
            }
        }
    })
}

/// The schema of a moment.
pub(crate) fn time_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// Sets one condition. `lastTransitionTime` moves only when the value does (S19); a condition that says the same stays untouched.
pub fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    truth: Truth,
    reason: &str,
    message: impl Into<String>,
    generation: Option<i64>,
    now: Timestamp,
) {
    let next = Condition {
        type_: kind.to_owned(),
        status: truth.as_str().to_owned(),
        reason: reason.to_owned(),
        message: message.into(),
        observed_generation: generation,
        last_transition_time: Time(now),
    };
    match conditions.iter_mut().find(|c| c.type_ == kind) {
        None => conditions.push(next),
        Some(present) => {
            let since = if present.status == next.status {
                present.last_transition_time.clone()
            } else {
                next.last_transition_time
            };
            *present = Condition { last_transition_time: since, ..next };
        }
    }
}

/// Removes a condition that exists only while it is true (`Reconciling`, `Stalled`).
pub fn clear(conditions: &mut Vec<Condition>, kind: &str) {
    conditions.retain(|c| c.type_ != kind);
}

pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == kind)
}

pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    find(conditions, kind).is_some_and(|c| c.status == Truth::True.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_moves_with_the_value_only() {
        let mut all = Vec::new();
        let at = |s| Timestamp::from_second(s).unwrap_or_default();
        set(&mut all, "Ready", Truth::False, "Waiting", "first", Some(1), at(10));
        set(&mut all, "Ready", Truth::False, "Waiting", "second", Some(2), at(20));
        assert_eq!(
            all.first().map(|c| (c.message.as_str(), c.last_transition_time.0)),
            Some(("second", at(10)))
        );
        set(&mut all, "Ready", Truth::True, "InSync", "third", Some(2), at(30));
        assert_eq!(all.first().map(|c| c.last_transition_time.0), Some(at(30)));
    }
}
