//! What is written to which Secret and ConfigMap, and what is refused: one table, and the promise that a second look finds nothing to do.

use std::collections::{BTreeMap, BTreeSet};

use crate::world::world;
use api::TerraformLayer;
use api::inputs::{Data, Kind, Object};
use api::outputs::{OutputPlace, Outputs};
use engine::outputs::{Change, Found, Standing, asked, decide, key_list, labels, recorded, without_looking};
use kube::Resource;
use kube::core::ObjectMeta;
use serde_json::{Value, json};

fn secret(name: &str) -> Object {
    Object { kind: Kind::Secret, name: name.parse().unwrap() }
}

fn config_map(name: &str) -> Object {
    Object { kind: Kind::ConfigMap, name: name.parse().unwrap() }
}

/// A layer that asks for this, and whose status says so.
fn layer(targets: Value) -> TerraformLayer {
    let mut layer = world().layer;
    layer.spec.write_outputs_to = serde_json::from_value(targets).unwrap();
    let mut places: Vec<OutputPlace> = asked(&layer).iter().map(OutputPlace::from).collect();
    places.sort_by_key(|place| format!("{place:?}"));
    layer.status.get_or_insert_default().output_targets = places;
    layer
}

fn outputs() -> Outputs {
    Outputs::new()
}

/// As the tools print them.
fn given() -> Outputs {
    let text = r#"{
        "url": { "sensitive": false, "type": "string", "value": "https://db" },
        "ports": { "sensitive": false, "type": ["list", "number"], "value": [ 1,
            12345678901234567890123 ] },
        "password": { "sensitive": true, "type": "string", "value": "hunter2 \u003c\n" },
        "nothing": { "sensitive": false, "type": "string", "value": null }
    }"#;
    serde_json::from_str(text).unwrap()
}

fn data(entries: &[(&str, &str)]) -> Data {
    entries.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect()
}

/// An object of the layer that wrote these keys there.
fn owned(layer: &TerraformLayer, written: &[&str], data: Data) -> Found {
    let keys: BTreeSet<String> = written.iter().map(|key| (*key).to_owned()).collect();
    let metadata = ObjectMeta {
        uid: Some("object-1".to_owned()),
        resource_version: Some("7".to_owned()),
        labels: Some(labels(layer)),
        annotations: Some([("terrane.dev/output-keys".to_owned(), key_list(&keys))].into()),
        owner_references: layer.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    };
    Found { metadata, data, immutable: false }
}

fn foreign(data: Data) -> Found {
    let metadata = ObjectMeta { resource_version: Some("3".to_owned()), ..ObjectMeta::default() };
    Found { metadata, data, immutable: false }
}

fn refusal(layer: &TerraformLayer, outputs: &Outputs, found: &BTreeMap<Object, Found>) -> (String, String) {
    let decision = decide(layer, Ok(outputs), found);
    assert_eq!(decision.changes, [], "nothing is written where something is refused");
    match decision.outcome.standing {
        Standing::Refused(refusal) => (refusal.reason.to_owned(), refusal.why),
        other => panic!("not refused: {other:?}"),
    }
}

/// What the objects hold once the change is made.
fn after(layer: &TerraformLayer, change: &Change, found: &mut BTreeMap<Object, Found>) {
    match change.clone() {
        Change::Create { object, data } => {
            let keys: Vec<String> = data.keys().cloned().collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            assert!(found.insert(object, owned(layer, &keys, data)).is_none(), "it was not there");
        }
        Change::Update { object, set, remove, keys, version } => {
            let there = found.get_mut(&object).expect("it was there");
            assert_eq!(there.metadata.resource_version.as_deref(), Some(version.as_str()));
            there.data.extend(set);
            there.data.retain(|key, _| !remove.contains(key));
            let keys = [("terrane.dev/output-keys".to_owned(), key_list(&keys))].into();
            (there.metadata.annotations, there.metadata.labels) = (Some(keys), Some(labels(layer)));
        }
        Change::Delete { object, .. } => drop(found.remove(&object).expect("it was there")),
        Change::Release { object, remove, owners, .. } => {
            let there = found.get_mut(&object).expect("it was there");
            there.data.retain(|key, _| !remove.contains(key));
            there.metadata.owner_references = Some(owners);
            there.metadata.annotations = None;
        }
    }
}

#[test]
fn all_or_chosen_outputs_are_written_text_as_it_is_and_the_rest_as_json() {
    let all =
        data(&[("url", "https://db"), ("ports", "[1,12345678901234567890123]"), ("password", "hunter2 <\n")]);
    let public = data(&[("url", "https://db"), ("ports", "[1,12345678901234567890123]")]);
    let renamed = data(&[("DB_URL", "https://db"), ("password", "hunter2 <\n")]);
    for (target, object, expected) in [
        (json!({ "secret": "db" }), secret("db"), &all),
        (json!({ "configMap": "db" }), config_map("db"), &public),
        (
            json!({ "secret": "db", "keys": [{ "output": "url", "as": "DB_URL" }, { "output": "password" }] }),
            secret("db"),
            &renamed,
        ),
    ] {
        let layer = layer(json!([target]));
        let decision = decide(&layer, Ok(&given()), &BTreeMap::new());
        let made = Change::Create { object: object.clone(), data: expected.clone() };
        assert!(decision.changes == [made], "{target}");
        assert_eq!(decision.outcome.places, [object.clone()].into());
        assert_eq!(
            decision.outcome.standing,
            Standing::Written(format!("{} outputs in {object}", expected.len()))
        );
    }
}

#[test]
fn one_object_may_be_named_more_than_once() {
    let layer = layer(json!([
        { "secret": "db", "keys": [{ "output": "url" }] }, { "secret": "db", "keys": [{ "output": "password" }] },
    ]));
    let decision = decide(&layer, Ok(&given()), &BTreeMap::new());
    let both = data(&[("url", "https://db"), ("password", "hunter2 <\n")]);
    assert!(decision.changes == [Change::Create { object: secret("db"), data: both }]);
}

#[test]
fn what_differs_is_put_right_and_what_others_added_stays() {
    let layer = layer(json!([{ "secret": "db", "keys": [{ "output": "url" }] }]));
    let right = data(&[("url", "https://db")]);
    let with_theirs = data(&[("url", "https://db"), ("theirs", "x")]);
    let edited = data(&[("url", "edited")]);
    let with_former = data(&[("url", "https://db"), ("former", "x"), ("theirs", "x")]);
    for (written, there, set, remove) in [
        (&["url"][..], &edited, data(&[("url", "https://db")]), &[][..]),
        (&["url"], &Data::new(), data(&[("url", "https://db")]), &[]),
        (&["url", "former"], &with_former, Data::new(), &["former"]),
        // The list names a key that somebody removed, which is no longer asked for.
        (&["url", "former"], &right, Data::new(), &[]),
        (&[], &Data::new(), data(&[("url", "https://db")]), &[]),
    ] {
        let mut found: BTreeMap<_, _> = [(secret("db"), owned(&layer, written, there.clone()))].into();
        let decision = decide(&layer, Ok(&given()), &found);
        let expected = Change::Update {
            object: secret("db"),
            version: "7".to_owned(),
            set,
            remove: remove.iter().map(|key| (*key).to_owned()).collect(),
            keys: ["url".to_owned()].into(),
        };
        assert!(decision.changes == [expected], "{written:?}");
        after(&layer, &decision.changes[0], &mut found);
        assert_eq!(decide(&layer, Ok(&given()), &found).changes, [], "settled: nothing to write");
    }
    for there in [right, with_theirs] {
        let found = [(secret("db"), owned(&layer, &["url"], there))].into();
        assert_eq!(decide(&layer, Ok(&given()), &found).changes, []);
    }
    // A label that somebody took away comes back.
    let mut bare = owned(&layer, &["url"], data(&[("url", "https://db")]));
    bare.metadata.labels = None;
    assert_eq!(decide(&layer, Ok(&given()), &[(secret("db"), bare)].into()).changes.len(), 1);
}

#[test]
fn what_is_refused_says_what_to_do() {
    let other = {
        let mut other = world().layer;
        other.metadata.uid = Some("another".to_owned());
        other.metadata.name = Some("web".to_owned());
        owned(&other, &["url"], data(&[("url", "x")]))
    };
    let one_url = json!([{ "secret": "db", "keys": [{ "output": "url" }] }]);
    let of = |target: &Value| layer(target.clone());
    let taken = owned(&of(&one_url), &[], data(&[("url", "by hand")]));
    let mut fixed = owned(&of(&one_url), &["url"], data(&[("url", "old")]));
    fixed.immutable = true;
    let large: Outputs = {
        let text = "x".repeat(1024 * 1024 + 1);
        serde_json::from_str(&format!(r#"{{"url":{{"value":"{text}"}}}}"#)).unwrap()
    };
    let almost = "y".repeat(1024 * 1024);
    let full = owned(&of(&one_url), &["url"], data(&[("url", "old"), ("theirs", &almost)]));
    let strange: Outputs = serde_json::from_str(r#"{"größe":{"value":1}}"#).unwrap();
    let none = Found::clone(&foreign(Data::new()));
    type Case<'a> = (Value, Outputs, Option<Found>, &'a str, &'a [&'a str]);
    let cases: [Case<'_>; 12] = [
        (
            json!([{ "configMap": "db", "keys": [{ "output": "password" }] }]),
            given(),
            None,
            "OutputSensitive",
            &["output password is sensitive", "ConfigMap db", "write it to a Secret"],
        ),
        (
            json!([{ "secret": "db", "keys": [{ "output": "nope" }] }]),
            given(),
            None,
            "OutputMissing",
            &["no output nope", "it gives: nothing, password, ports, url", "correct spec.writeOutputsTo"],
        ),
        (
            json!([{ "secret": "db", "keys": [{ "output": "nothing" }] }]),
            given(),
            None,
            "OutputMissing",
            &["no output nothing"],
        ),
        (one_url.clone(), outputs(), None, "OutputMissing", &["it gives: none"]),
        (
            json!([{ "secret": "db", "keys": [{ "output": "url", "as": "k" }, { "output": "ports", "as": "k" }] }]),
            given(),
            None,
            "KeyTwice",
            &["outputs url and ports would both be key k of Secret db", "`as`"],
        ),
        (
            json!([{ "secret": "db" }, { "secret": "db", "keys": [{ "output": "ports", "as": "url" }] }]),
            given(),
            None,
            "KeyTwice",
            &["outputs url and ports"],
        ),
        (json!([{ "secret": "db" }]), strange, None, "KeyInvalid", &["output größe cannot be a key", "`as`"]),
        (one_url.clone(), given(), Some(none), "NotOurs", &["Secret db is there already", "delete it"]),
        (one_url.clone(), given(), Some(other), "NotOurs", &["of TerraformLayer web", "name another"]),
        (one_url.clone(), given(), Some(taken), "KeyTaken", &["key url of Secret db was not written"]),
        (one_url.clone(), given(), Some(fixed), "Immutable", &["delete it, and it is made anew"]),
        (one_url.clone(), given(), Some(full), "TooLarge", &["and 1048576 fit", "several objects"]),
    ];
    for (target, given, there, reason, words) in cases {
        let found = there.into_iter().map(|found| (secret("db"), found)).collect();
        let (told, why) = refusal(&layer(target.clone()), &given, &found);
        assert_eq!(told, reason, "{target}: {why}");
        assert!(words.iter().all(|word| why.contains(word)), "{target}: {why}");
        assert!(!why.contains("hunter2"), "a value was told");
    }
    let (reason, why) = refusal(&layer(one_url), &large, &BTreeMap::new());
    assert_eq!((reason.as_str(), why.contains("1048577 bytes")), ("TooLarge", true), "{why}");
}

#[test]
fn one_object_that_is_refused_keeps_no_other_from_being_written() {
    let layer = layer(json!([{ "secret": "a" }, { "secret": "b" }]));
    let found = [(secret("a"), foreign(Data::new()))].into();
    let decision = decide(&layer, Ok(&given()), &found);
    assert_eq!(format!("{:?}", decision.changes), "[create Secret b]", "and no value is in the words");
    assert!(matches!(decision.outcome.standing, Standing::Refused(_)));
}

#[test]
fn what_is_no_longer_asked_for_is_cleared_but_for_what_others_wrote() {
    let mut layer = layer(json!([{ "secret": "gone" }, { "configMap": "shared" }, { "secret": "theirs" }]));
    layer.spec.write_outputs_to = Vec::new();
    assert_eq!(without_looking(&layer), None, "there is something to look at");
    let mut found: BTreeMap<_, _> = [
        (secret("gone"), owned(&layer, &["url"], data(&[("url", "x")]))),
        (config_map("shared"), owned(&layer, &["url"], data(&[("url", "x"), ("more", "y")]))),
        (secret("theirs"), foreign(data(&[("url", "x")]))),
    ]
    .into();
    let decision = decide(&layer, Err(Standing::NotAsked), &found);
    assert_eq!(decision.outcome.standing, Standing::NotAsked);
    assert!(decision.outcome.places.is_empty());
    assert_eq!(format!("{:?}", decision.changes), "[delete Secret gone, release ConfigMap shared]");
    for change in &decision.changes {
        after(&layer, change, &mut found);
    }
    assert_eq!(found.len(), 2);
    assert_eq!(found[&config_map("shared")].data, data(&[("more", "y")]));
    assert!(found[&config_map("shared")].metadata.owner_references.as_ref().unwrap().is_empty());
    assert_eq!(decide(&layer, Err(Standing::NotAsked), &found).changes, [], "settled: nothing to write");
}

#[test]
fn an_object_stands_in_the_status_before_it_is_written() {
    let mut layer = layer(json!([{ "secret": "db" }]));
    assert_eq!(without_looking(&layer), None);
    layer.spec.write_outputs_to.push(serde_json::from_value(json!({ "configMap": "web" })).unwrap());
    let outcome = without_looking(&layer).unwrap();
    assert_eq!(outcome.standing, Standing::Recording);
    assert_eq!(outcome.places, [secret("db"), config_map("web")].into());
    assert_eq!(recorded(&layer), [secret("db")].into());
    layer.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(world().now));
    assert_eq!(without_looking(&layer).unwrap().standing, Standing::Unknown, "the collector takes them");
}
