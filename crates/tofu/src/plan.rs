//! The plan as `show -json` tells it, reduced to what people may see: sensitive values and the values of variables never leave here.

use api::run::PlanSummary;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Debug, thiserror::Error)]
#[error("the tool's description of the plan is not understood: {0}")]
pub struct Error(#[from] serde_json::Error);

/// What a plan would change, safe to store and show.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    pub summary: PlanSummary,
    pub resources: Vec<ResourceChange>,
    pub outputs: Vec<OutputChange>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceChange {
    pub address: String,
    pub action: Action,
    pub attributes: Vec<AttributeChange>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OutputChange {
    pub name: String,
    pub action: Action,
}

/// `None` is "not there"; what is sensitive or not known yet is said in words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttributeChange {
    pub name: String,
    pub before: Option<Value>,
    pub after: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    Create,
    Update,
    Delete,
    Replace,
    Read,
    Forget,
}

pub const SENSITIVE: &str = "(sensitive)";
pub const UNKNOWN: &str = "(known after apply)";

#[derive(Deserialize, Default)]
struct Raw {
    #[serde(default)]
    resource_changes: Vec<RawResource>,
    #[serde(default)]
    output_changes: Map<String, Value>,
}

#[derive(Deserialize)]
struct RawResource {
    address: String,
    change: RawChange,
}

#[derive(Deserialize, Default)]
struct RawChange {
    #[serde(default)]
    actions: Vec<String>,
    #[serde(default)]
    before: Value,
    #[serde(default)]
    after: Value,
    #[serde(default)]
    after_unknown: Value,
    #[serde(default)]
    before_sensitive: Value,
    #[serde(default)]
    after_sensitive: Value,
}

impl View {
    /// O(size of the plan).
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        let raw: Raw = serde_json::from_slice(json)?;
        let mut view = View::default();
        for resource in raw.resource_changes {
            let Some(action) = action(&resource.change.actions) else { continue };
            count(&mut view.summary, action);
            view.resources.push(ResourceChange {
                address: resource.address,
                action,
                attributes: attributes(&resource.change),
            });
        }
        for (name, change) in raw.output_changes {
            let change: RawChange = serde_json::from_value(change)?;
            let Some(action) = action(&change.actions) else { continue };
            view.summary.outputs += 1;
            view.outputs.push(OutputChange { name, action });
        }
        Ok(view)
    }
}

fn action(actions: &[String]) -> Option<Action> {
    let words: Vec<&str> = actions.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["create"] => Some(Action::Create),
        ["update"] => Some(Action::Update),
        ["delete"] => Some(Action::Delete),
        ["delete", "create"] | ["create", "delete"] => Some(Action::Replace),
        ["read"] => Some(Action::Read),
        ["forget"] => Some(Action::Forget),
        _ => None,
    }
}

fn count(summary: &mut PlanSummary, action: Action) {
    match action {
        Action::Create => summary.add += 1,
        Action::Update | Action::Forget => summary.change += 1,
        Action::Delete => summary.destroy += 1,
        Action::Replace => {
            summary.add += 1;
            summary.destroy += 1;
        }
        Action::Read => {}
    }
}

/// The attributes that differ, each masked as a whole when anything inside it is sensitive.
fn attributes(change: &RawChange) -> Vec<AttributeChange> {
    let names =
        |value: &Value| value.as_object().map(|o| o.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    let mut all = names(&change.before);
    all.extend(names(&change.after));
    all.extend(names(&change.after_unknown));
    all.sort();
    all.dedup();
    all.into_iter()
        .filter_map(|name| {
            let unknown = change.after_unknown.get(&name).is_some_and(any_true);
            let (before, after) = (change.before.get(&name), change.after.get(&name));
            if before == after && !unknown {
                return None;
            }
            let sensitive =
                |marks: &Value| marks == &Value::Bool(true) || marks.get(&name).is_some_and(any_true);
            let mask = |value: Option<&Value>, hide: bool| match value {
                None | Some(Value::Null) => None,
                Some(_) if hide => Some(Value::from(SENSITIVE)),
                Some(value) => Some(value.clone()),
            };
            // A value that is sensitive on one side would be given away by the other.
            let hide = sensitive(&change.before_sensitive) || sensitive(&change.after_sensitive);
            let after = if unknown { Some(Value::from(UNKNOWN)) } else { mask(after, hide) };
            Some(AttributeChange { before: mask(before, hide), after, name })
        })
        .collect()
}

/// Whether a tree of marks marks anything. Depth is bounded by serde_json's own limit on nesting.
fn any_true(marks: &Value) -> bool {
    match marks {
        Value::Bool(mark) => *mark,
        Value::Array(items) => items.iter().any(any_true),
        Value::Object(fields) => fields.values().any(any_true),
        Value::Null | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn view(value: Value) -> View {
        View::parse(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn counts_as_the_tools_do() {
        let change = |actions: &[&str]| json!({ "address": "a.b", "change": { "actions": actions } });
        let view = view(json!({ "resource_changes": [
            change(&["create"]), change(&["update"]), change(&["delete"]), change(&["delete", "create"]), change(&["no-op"]), change(&["read"]),
        ], "output_changes": { "x": { "actions": ["update"] }, "y": { "actions": ["no-op"] } } }));
        assert_eq!(view.summary, PlanSummary { add: 2, change: 1, destroy: 2, outputs: 1 });
    }

    #[test]
    fn sensitive_values_and_variables_do_not_leave() {
        let view = view(json!({
            "variables": { "password": { "value": "canary" } },
            "resource_changes": [{ "address": "a.b", "change": {
                "actions": ["update"],
                "before": { "secret": "canary-old", "list": ["canary"], "plain": 1 },
                "after": { "secret": "canary-new", "list": ["canary", "canary"], "plain": 2 },
                "after_unknown": { "id": true },
                "before_sensitive": { "list": [true] },
                "after_sensitive": { "secret": true },
            } }],
        }));
        let text = serde_json::to_string(&view).unwrap();
        assert!(!text.contains("canary"), "{text}");
        let names: Vec<&str> = view.resources[0].attributes.iter().map(|a| a.name.as_str()).collect();
        assert_eq!(names, ["id", "list", "plain", "secret"]);
        assert_eq!(view.resources[0].attributes[0].after, Some(json!(UNKNOWN)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = View::parse(&bytes);
        }
    }
}
