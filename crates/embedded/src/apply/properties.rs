//! What holds for every history of writes. The kind of object is that of the tables.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::tests::Step::{Apply, Force, Update};
use super::tests::{EARLY, LATE, Step, of_spec, run, run_all, thing};
use super::*;

/// Specs without empty lists and objects: an empty set or keyed list is nobody's, whoever applies it.
fn spec() -> impl Strategy<Value = Value> {
    let word = || prop::sample::select(vec!["a", "b", "c"]);
    let words = || prop::collection::btree_set(word(), 1..3);
    let texts = prop::collection::btree_map(word(), word(), 1..3);
    let items = prop::collection::btree_map(word(), prop::option::of(word()), 1..3).prop_map(|items| {
        let item = |(name, value): (&str, Option<&str>)| match value {
            Some(value) => json!({"name": name, "value": value}),
            None => json!({"name": name}),
        };
        items.into_iter().map(item).collect::<Vec<_>>()
    });
    let ports = prop::collection::btree_map((1..3, prop::sample::select(vec!["TCP", "UDP"])), word(), 1..3)
        .prop_map(|ports| {
            ports
                .into_iter()
                .map(|((port, protocol), label)| json!({"port": port, "protocol": protocol, "label": label}))
                .collect::<Vec<_>>()
        });
    let fields = (
        prop::option::of(1..3),
        prop::option::of(texts),
        prop::option::of(words()),
        prop::option::of(items),
        prop::option::of(ports),
        prop::option::of(words()),
    );
    fields.prop_map(|(size, texts, tags, items, ports, atoms)| {
        let mut spec = serde_json::Map::new();
        let mut put =
            |name: &str, value: Option<Value>| spec.extend(value.map(|value| (name.to_owned(), value)));
        put("size", size.map(|size| json!(size)));
        put("texts", texts.map(|texts| json!(texts)));
        put("tags", tags.map(|tags| json!(tags)));
        put("items", items.map(|items| json!(items)));
        put("ports", ports.map(|ports| json!(ports)));
        put("atoms", atoms.map(|atoms| json!(atoms)));
        put("title", Some(json!("t")));
        Value::Object(spec)
    })
}

fn step() -> impl Strategy<Value = Step> {
    let manager = || prop::sample::select(vec!["ann", "bob", "ctl"]);
    prop_oneof![
        (manager(), spec()).prop_map(|(manager, spec)| Force(manager, spec)),
        (manager(), spec()).prop_map(|(manager, spec)| Update(manager, spec)),
    ]
}

fn set_of(object: &Value, manager: &str, operation: &str) -> FieldSet {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let entry = entries.iter().find(|entry| entry["manager"] == manager && entry["operation"] == operation);
    entry.map(|entry| FieldSet::from_value(&entry["fieldsV1"]).unwrap()).unwrap_or_default()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn applying_twice_changes_nothing(history in prop::collection::vec(step(), 0..4), spec in spec()) {
        let mut live = None;
        for step in &history {
            live = Some(run(live.as_ref(), step, EARLY).unwrap());
        }
        let once = run(live.as_ref(), &Force("ann", spec.clone()), EARLY).unwrap();
        let twice = run(Some(&once), &Force("ann", spec), LATE).unwrap();
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn whatever_is_applied_is_there_and_owned(history in prop::collection::vec(step(), 0..4), spec in spec()) {
        let mut live = None;
        for step in &history {
            live = Some(run(live.as_ref(), step, EARLY).unwrap());
        }
        let object = run(live.as_ref(), &Force("ann", spec.clone()), LATE).unwrap();
        let node = thing();
        let schema = Schema::custom(&node);
        let fields = super::collect::fields_of(&schema.root(), &of_spec(&spec)).difference(&STRIPPED);
        prop_assert_eq!(set_of(&object, "ann", "Apply"), fields);
        // Laying it over once more has no effect: every value is the applied one.
        let again = super::merge::merge(&schema.root(), &object, &of_spec(&spec)).unwrap();
        prop_assert!(same(&again, &object));
    }

    #[test]
    fn those_who_apply_different_fields_own_their_own(mine in spec(), theirs in spec()) {
        let theirs: serde_json::Map<String, Value> =
            theirs.as_object().unwrap().clone().into_iter().filter(|(name, _)| mine.get(name).is_none()).collect();
        let alone = [Apply("ann", mine.clone()), Apply("bob", Value::Object(theirs))];
        let object = run_all(&alone);
        for (step, manager) in alone.iter().zip(["ann", "bob"]) {
            let by_itself = run(None, step, EARLY).unwrap();
            prop_assert_eq!(set_of(&object, manager, "Apply"), set_of(&by_itself, manager, "Apply"));
        }
        let left = run(Some(&object), &Apply("bob", json!({})), LATE).unwrap();
        prop_assert_eq!(&left["spec"], &mine);
    }

    #[test]
    fn no_update_is_lost(history in prop::collection::vec(step(), 0..4), spec in spec()) {
        let mut live = None;
        for step in &history {
            live = Some(run(live.as_ref(), step, EARLY).unwrap());
        }
        let object = run(live.as_ref(), &Update("ctl", spec.clone()), LATE).unwrap();
        prop_assert_eq!(&object["spec"], &spec);
        // Everything that is there belongs to someone, and nothing that is not there does.
        let node = thing();
        let schema = Schema::custom(&node);
        let entries = object["metadata"]["managedFields"].as_array().unwrap();
        let owned = entries.iter().fold(FieldSet::new(), |owned, entry| owned.union(&FieldSet::from_value(&entry["fieldsV1"]).unwrap()));
        let present = super::collect::fields_of(&schema.root(), &of_spec(&spec)).difference(&STRIPPED);
        prop_assert!(present.difference(&owned).is_empty(), "{:?}", present.difference(&owned).paths());
        let parents = present.with_declared_parents(&schema.root());
        prop_assert!(owned.difference(&parents).is_empty());
    }
}
