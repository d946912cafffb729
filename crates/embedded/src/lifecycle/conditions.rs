//! Conditions in a status: one of each type, and a time that moves only when the answer does.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) kind: &'static str,
    pub(super) status: &'static str,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// The object's status, made if there is none; `None` for what is no object at all.
pub(super) fn status_of(object: &mut Value) -> Option<&mut Map<String, Value>> {
    let status = object.as_object_mut()?.entry("status").or_insert_with(|| json!({}));
    if status.is_null() {
        *status = json!({});
    }
    status.as_object_mut()
}

/// Puts the condition into the status, in the place of the one of its type.
pub(super) fn set(status: &mut Map<String, Value>, condition: &Condition, now: Timestamp) {
    let Condition { kind, status: value, reason, message } = condition;
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return };
    let old = conditions.iter_mut().find(|old| old.get("type").and_then(Value::as_str) == Some(kind));
    let since = old
        .as_ref()
        .filter(|old| old.get("status").and_then(Value::as_str) == Some(value))
        .and_then(|old| old.get("lastTransitionTime").cloned())
        .unwrap_or_else(|| now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into());
    let new = json!({"type": kind, "status": value, "lastTransitionTime": since, "reason": reason, "message": message});
    match old {
        Some(old) => *old = new,
        None => conditions.push(new),
    }
}

/// Status and message of the condition of this type.
pub(super) fn get<'a>(object: &'a Value, kind: &str) -> Option<(&'a str, &'a str)> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    let condition =
        conditions.iter().find(|condition| condition.get("type").and_then(Value::as_str) == Some(kind))?;
    Some((
        condition.get("status")?.as_str()?,
        condition.get("message").and_then(Value::as_str).unwrap_or_default(),
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_condition_keeps_its_time_until_its_status_changes() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let condition =
            |status, message: &str| Condition { kind: "Ready", status, reason: "R", message: message.into() };
        let mut object = json!({"status": null});
        let mut check = |now, condition: &Condition, since: &str| {
            set(status_of(&mut object).unwrap(), condition, at(now));
            let time = object.pointer("/status/conditions/0/lastTransitionTime").unwrap();
            assert_eq!(time, since);
            assert_eq!(get(&object, "Ready"), Some((condition.status, condition.message.as_str())));
            assert_eq!(object.pointer("/status/conditions/1"), None);
        };
        check(0, &condition("False", "one"), "1970-01-01T00:00:00Z");
        check(9, &condition("False", "two"), "1970-01-01T00:00:00Z");
        check(9, &condition("True", "three"), "1970-01-01T00:00:09Z");
    }
}
