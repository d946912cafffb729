//! The plan in JSON: what would change, and the same document without what must not be stored readable. Pure.
//!
//! `show -json` prints the values of variables and the constants of the configuration in clear, sensitive or not, and
//! the whole prior state. What people need is in the changes; the rest is dropped rather than guarded.

use api::run::PlanSummary;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

const MASK: &str = "(sensitive value)";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the plan in JSON cannot be understood: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the plan in JSON is not an object with resource changes")]
    Shape,
}

/// What a plan would do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    pub summary: PlanSummary,
    pub changes: Vec<Change>,
    /// What is different in the world from what the state says.
    pub drift: Vec<Change>,
    pub outputs: Vec<OutputChange>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    pub address: String,
    /// In the tool's own words: `create`, `update`, `delete`, or two of them for a replacement.
    pub actions: Vec<String>,
    pub attributes: Vec<AttributeChange>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttributeChange {
    pub name: String,
    /// `null` when there was none.
    pub before: Value,
    /// `null` when there will be none, or when it is known only after the apply.
    pub after: Value,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub known_after_apply: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OutputChange {
    pub name: String,
    pub actions: Vec<String>,
}

/// A plan and its redacted document.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    pub plan: Plan,
    pub redacted: Value,
}

/// Reads the output of `show -json`.
pub fn read(document: &[u8]) -> Result<Shown, Error> {
    let Value::Object(mut document) = serde_json::from_slice(document)? else { return Err(Error::Shape) };
    if !document.contains_key("format_version") {
        return Err(Error::Shape);
    }
    for name in ["configuration", "prior_state", "planned_values", "proposed_unknown"] {
        document.remove(name);
    }
    if let Some(Value::Object(variables)) = document.get_mut("variables") {
        variables.values_mut().for_each(|value| *value = Value::Object(Map::new()));
    }
    let plan = summarise(&document);
    for list in ["resource_changes", "resource_drift"] {
        if let Some(Value::Array(changes)) = document.get_mut(list) {
            changes.iter_mut().filter_map(|entry| entry.get_mut("change")).for_each(redact_change);
        }
    }
    if let Some(Value::Object(outputs)) = document.get_mut("output_changes") {
        outputs.values_mut().for_each(redact_change);
    }
    Ok(Shown { plan, redacted: Value::Object(document) })
}

fn redact_change(change: &mut Value) {
    let Value::Object(change) = change else { return };
    for (side, marks) in [("before", "before_sensitive"), ("after", "after_sensitive")] {
        let marks = change.get(marks).cloned().unwrap_or(Value::Bool(false));
        if let Some(value) = change.get_mut(side) {
            mask(value, &marks);
        }
    }
    // Only for imports; it can hold an identifier that is a secret.
    change.remove("generated_config");
}

/// Replaces what the marks call sensitive. A shape that does not fit the marks is masked whole. The depth is bounded
/// by the JSON parser's own limit.
fn mask(value: &mut Value, marks: &Value) {
    match (marks, value) {
        (Value::Bool(false) | Value::Null, _) | (_, Value::Null) => {}
        (Value::Object(marks), Value::Object(fields)) => {
            for (name, mark) in marks {
                if let Some(field) = fields.get_mut(name) {
                    mask(field, mark);
                }
            }
        }
        (Value::Array(marks), Value::Array(items)) => {
            items.iter_mut().zip(marks).for_each(|(item, mark)| mask(item, mark));
        }
        // Empty marks mean that nothing below is sensitive, whatever the shape.
        (Value::Object(marks), _) if marks.is_empty() => {}
        (Value::Array(marks), _) if marks.is_empty() => {}
        (_, value) => *value = Value::String(MASK.to_owned()),
    }
}

fn summarise(document: &Map<String, Value>) -> Plan {
    let mut plan = Plan {
        changes: changes(document.get("resource_changes"), is_planned),
        drift: changes(document.get("resource_drift"), is_effective),
        ..Plan::default()
    };
    for change in &plan.changes {
        for action in &change.actions {
            match action.as_str() {
                "create" => plan.summary.add += 1,
                "update" => plan.summary.change += 1,
                "delete" => plan.summary.destroy += 1,
                _ => {}
            }
        }
        // What is only moved, imported or forgotten changes the state: as long as it is not applied, the code is not in place.
        if !change.actions.iter().any(|action| matches!(action.as_str(), "create" | "update" | "delete")) {
            plan.summary.change += 1;
        }
    }
    if let Some(Value::Object(outputs)) = document.get("output_changes") {
        for (name, change) in outputs {
            let actions = actions(Some(change));
            if acts(&actions) {
                plan.outputs.push(OutputChange { name: name.clone(), actions });
            }
        }
    }
    plan.summary.outputs = u32::try_from(plan.outputs.len()).unwrap_or(u32::MAX);
    plan
}

fn changes(list: Option<&Value>, counts: fn(&Value) -> bool) -> Vec<Change> {
    let Some(Value::Array(entries)) = list else { return Vec::new() };
    entries
        .iter()
        .filter_map(|entry| {
            let change = entry.get("change");
            counts(entry).then(|| Change {
                address: entry.get("address").and_then(Value::as_str).unwrap_or_default().to_owned(),
                attributes: attributes(change),
                actions: actions(change),
            })
        })
        .collect()
}

/// Neither "nothing" nor a data source that is read.
fn is_effective(entry: &Value) -> bool {
    acts(&actions(entry.get("change")))
}

/// The same, or something that is done to the state alone.
fn is_planned(entry: &Value) -> bool {
    let imports =
        entry.get("change").is_some_and(|change| change.get("importing").is_some_and(|id| !id.is_null()));
    is_effective(entry) || imports || entry.get("previous_address").is_some()
}

fn acts(actions: &[String]) -> bool {
    actions.iter().any(|action| action != "no-op" && action != "read")
}

fn actions(change: Option<&Value>) -> Vec<String> {
    let list = change.and_then(|change| change.get("actions")).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The top-level attributes that differ. They are compared as they are and given out masked: a secret that stays the same is no
/// change.
fn attributes(change: Option<&Value>) -> Vec<AttributeChange> {
    let Some(change) = change else { return Vec::new() };
    let mut masked = change.clone();
    redact_change(&mut masked);
    let empty = Map::new();
    let side = |name: &str| change.get(name).and_then(Value::as_object).unwrap_or(&empty);
    let (before, after, unknown) = (side("before"), side("after"), side("after_unknown"));
    let mut names: Vec<&String> = before.keys().chain(after.keys()).chain(unknown.keys()).collect();
    names.sort();
    names.dedup();
    names
        .into_iter()
        .filter_map(|name| {
            let known_after_apply = unknown.get(name).is_some_and(|mark| mark == &Value::Bool(true));
            let raw = |side: &Map<String, Value>| side.get(name).cloned().unwrap_or(Value::Null);
            (known_after_apply || raw(before) != raw(after)).then(|| AttributeChange {
                name: name.clone(),
                before: masked_attribute(masked.get("before"), name),
                after: masked_attribute(masked.get("after"), name),
                known_after_apply,
            })
        })
        .collect()
}

/// One attribute of a masked side, which is a single mask when all of it is sensitive.
fn masked_attribute(side: Option<&Value>, name: &str) -> Value {
    match side {
        None | Some(Value::Null) => Value::Null,
        Some(Value::Object(fields)) => fields.get(name).cloned().unwrap_or(Value::Null),
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
            Value::String(MASK.to_owned())
        }
    }
}

/// For tools that cannot show a plan in JSON: the line they end with.
pub fn summary_from_text(output: &str) -> Option<PlanSummary> {
    let line = output.lines().map(str::trim).find_map(|line| line.strip_prefix("Plan: "))?;
    let mut summary = PlanSummary::default();
    for part in line.trim_end_matches('.').split(',') {
        let mut words = part.split_ascii_whitespace();
        let count: u32 = words.next()?.parse().ok()?;
        match words.nth(1)? {
            "add" => summary.add = count,
            "change" | "import" | "forget" => summary.change += count,
            "destroy" => summary.destroy = count,
            _ => {}
        }
    }
    Some(summary)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn counts_changes_and_keeps_no_secret() {
        let document = json!({
            "format_version": "1.2",
            "variables": {"password": {"value": "CANARY-var"}},
            "configuration": {"root_module": {"resources": [{"expressions": {"x": {"constant_value": "CANARY-conf"}}}]}},
            "prior_state": {"values": "CANARY-state"},
            "planned_values": {"outputs": {"o": {"value": "CANARY-planned"}}},
            "resource_changes": [
                {"address": "a.b", "change": {
                    "actions": ["update"],
                    "before": {"name": "old", "secret": "CANARY-1", "kept": "CANARY-7", "list": [{"k": "CANARY-2", "n": 1}], "same": 1},
                    "after": {"name": "new", "secret": "CANARY-3", "kept": "CANARY-7", "list": [{"k": "CANARY-4", "n": 2}], "same": 1},
                    "after_unknown": {"id": true},
                    "before_sensitive": {"secret": true, "kept": true, "list": [{"k": true}]},
                    "after_sensitive": {"secret": true, "kept": true, "list": [{"k": true}]}}},
                {"address": "a.c", "change": {"actions": ["delete", "create"], "before": {"x": "CANARY-5"}, "after": null,
                    "before_sensitive": true, "after_sensitive": false}},
                {"address": "a.d", "change": {"actions": ["no-op"]}},
                {"address": "data.e", "change": {"actions": ["read"]}},
                {"address": "a.g", "previous_address": "a.h", "change": {"actions": ["no-op"]}},
                {"address": "a.i", "change": {"actions": ["no-op"], "importing": {"id": "i"}}},
                {"address": "a.j", "change": {"actions": ["forget"]}}
            ],
            "resource_drift": [{"address": "a.f", "change": {"actions": ["update"], "before": {"m": "1"}, "after": {"m": "2"}}}],
            "output_changes": {
                "o": {"actions": ["create"], "before": null, "after": "CANARY-6", "before_sensitive": false, "after_sensitive": true},
                "p": {"actions": ["no-op"]}}
        });
        let shown = read(&serde_json::to_vec(&document).unwrap()).unwrap();
        assert_eq!(shown.plan.summary, PlanSummary { add: 1, change: 4, destroy: 1, outputs: 1, scripts: 0 });
        let text = format!("{} {}", shown.redacted, serde_json::to_string(&shown.plan).unwrap());
        assert!(!text.contains("CANARY"), "{text}");
        let [update, ..] = shown.plan.changes.as_slice() else { panic!("{:?}", shown.plan) };
        let names: Vec<_> = update.attributes.iter().map(|attribute| attribute.name.as_str()).collect();
        assert_eq!(names, ["id", "list", "name", "secret"]);
        assert_eq!(shown.plan.drift.first().unwrap().address, "a.f");
    }

    #[test]
    fn what_is_no_plan_is_refused() {
        for bad in ["", "[]", "{}", "null", "{\"format_version\""] {
            assert!(read(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn old_tools_are_understood_by_their_last_line() {
        assert_eq!(
            summary_from_text("x\nPlan: 2 to add, 1 to change, 30 to destroy.\n"),
            Some(PlanSummary { add: 2, change: 1, destroy: 30, outputs: 0, scripts: 0 })
        );
        assert_eq!(summary_from_text("No changes."), None);
        let state_alone =
            summary_from_text("Plan: 1 to import, 0 to add, 0 to change, 0 to destroy, 2 to forget.\n");
        assert_eq!(state_alone, Some(PlanSummary { change: 3, ..PlanSummary::default() }));
    }
}
