//! The objects that a door makes: whose they are, how they are made, and how the fields that the door sets are put right.

use std::collections::BTreeMap;

use api::label;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Map, Value, json};

/// Whether it belongs to the object behind the door.
pub(super) fn is_ours(door: &ObjectMeta, found: &ObjectMeta) -> bool {
    found.owner_references.iter().flatten().any(|owner| Some(&owner.uid) == door.uid.as_ref())
}

pub(super) fn may_change(door: &ObjectMeta, found: &ObjectMeta) -> bool {
    is_ours(door, found) && found.deletion_timestamp.is_none()
}

/// By which metacontroller knows the objects that it keeps for another one.
const OF_CONTROLLER: &str = "controller-uid";

/// What every object that a door makes is labelled with. It says whose it is also to metacontroller, which lets go of what does not: so
/// that it may take over what Terrane has made.
pub(super) fn labels(door: &ObjectMeta) -> Value {
    json!({ label::MANAGED_BY: "terrane", OF_CONTROLLER: door.uid })
}

/// A new object of the same name, with these fields of its spec and no others.
pub(super) fn build_child(door: &ObjectMeta, owner: &OwnerReference, kind: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": format!("{}/{}", api::GROUP, api::VERSION),
        "kind": kind,
        "metadata": {
            "name": door.name,
            "namespace": door.namespace,
            "labels": labels(door),
            "ownerReferences": [owner],
        },
        "spec": spec,
    })
}

/// Against the version that was seen.
pub(super) fn build_patch(found: &ObjectMeta, spec: &Value) -> Value {
    json!({ "metadata": { "resourceVersion": found.resource_version }, "spec": spec })
}

/// What to merge into `found` so that it holds `wanted` in the fields that `wanted` names, and there nothing else. Null is a field that
/// is not to be there. Nothing where it is so already. O(both).
pub(super) fn difference(found: &Value, wanted: &Value) -> Option<Value> {
    let (Value::Object(found), Value::Object(wanted)) = (found, wanted) else { return None };
    let mut patch = Map::new();
    for (name, wanted) in wanted {
        match (found.get(name), wanted) {
            (None, Value::Null) => {}
            (Some(found), wanted) if is_same(found, wanted) => {}
            (Some(Value::Object(found)), Value::Object(wanted)) => {
                let gone = found.keys().filter(|name| !wanted.contains_key(*name));
                let whole: Map<String, Value> =
                    gone.map(|name| (name.clone(), Value::Null)).chain(wanted.clone()).collect();
                let below = difference(&Value::Object(found.clone()), &Value::Object(whole));
                patch.extend(below.map(|below| (name.clone(), below)));
            }
            (None | Some(_), wanted) => drop(patch.insert(name.clone(), wanted.clone())),
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Whether they mean the same: entries that have names may stand in any order, and whoever merges them keeps the one it found.
fn is_same(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Array(found), Value::Array(wanted)) if found.len() == wanted.len() => {
            match (by_name(found), by_name(wanted)) {
                (Some(by_name), Some(wanted_by_name)) if by_name.len() == found.len() => {
                    by_name == wanted_by_name
                }
                _ => found == wanted,
            }
        }
        _ => found == wanted,
    }
}

fn by_name(entries: &[Value]) -> Option<BTreeMap<&str, &Value>> {
    entries.iter().map(|entry| Some((entry.get("name")?.as_str()?, entry))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_names_what_differs_and_takes_away_what_is_not_wanted() {
        let found = json!({ "a": 1, "gone": 2, "theirs": 3, "deep": { "x": { "old": 1 }, "y": [1] }, "same": { "z": 1 } });
        let wanted = json!({ "a": 1, "gone": null, "never": null, "deep": { "x": { "new": 2 }, "y": [1, 2] }, "same": { "z": 1 } });
        let patch = json!({ "gone": null, "deep": { "x": { "old": null, "new": 2 }, "y": [1, 2] } });
        assert_eq!(difference(&found, &wanted), Some(patch));
        assert_eq!(difference(&found, &json!({ "a": 1, "same": { "z": 1 } })), None);
    }

    #[test]
    fn entries_with_names_may_stand_in_any_order() {
        let entry = |name: &str, value: u8| json!({ "name": name, "value": value });
        let found = json!({ "all": [entry("b", 2), entry("a", 1)] });
        assert_eq!(difference(&found, &json!({ "all": [entry("a", 1), entry("b", 2)] })), None);
        for other in [
            json!([entry("a", 1), entry("b", 3)]),
            json!([entry("a", 1)]),
            json!([entry("a", 1), entry("a", 1)]),
            json!([entry("a", 1), { "value": 2 }]),
        ] {
            assert!(difference(&found, &json!({ "all": other })).is_some(), "{other}");
        }
        assert!(difference(&json!({ "all": [2, 1] }), &json!({ "all": [1, 2] })).is_some());
    }
}
