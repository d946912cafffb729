//! Tables of apply and update. Every object is a `Thing` with a schema that has one field of each kind.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::schema::{ListType, MapType, Node, Type};

fn scalar(kind: Type) -> Node {
    Node { kind: Some(kind), ..Node::default() }
}

fn object(fields: Vec<(&str, Node)>) -> Node {
    let properties = fields.into_iter().map(|(name, node)| (name.to_owned(), Arc::new(node))).collect();
    Node { properties, ..scalar(Type::Object) }
}

fn list(list_type: ListType, keys: &[&str], items: Node) -> Node {
    let list_map_keys = keys.iter().map(|key| (*key).to_owned()).collect();
    Node { list_type, list_map_keys, items: Some(Arc::new(items)), ..scalar(Type::Array) }
}

fn texts() -> Node {
    Node { additional: Some(Arc::new(scalar(Type::String))), ..scalar(Type::Object) }
}

pub(super) fn thing() -> Node {
    let text = || scalar(Type::String);
    let number = || scalar(Type::Integer);
    let protocol = Node { default: Some(json!("TCP")), ..text() };
    let port = object(vec![("port", number()), ("protocol", protocol), ("label", text())]);
    let item = object(vec![
        ("name", text()),
        ("value", text()),
        ("inner", object(vec![("x", number()), ("y", number())])),
    ]);
    let spec = object(vec![
        ("size", number()),
        ("title", text()),
        ("texts", texts()),
        ("tags", list(ListType::Set, &[], text())),
        ("items", list(ListType::Map, &["name"], item)),
        ("ports", list(ListType::Map, &["port", "protocol"], port)),
        ("atoms", list(ListType::Atomic, &[], text())),
        ("whole", Node { map_type: MapType::Atomic, ..object(vec![("p", text()), ("q", number())]) }),
        ("free", Node { preserve_unknown: true, ..scalar(Type::Object) }),
    ]);
    let condition = object(vec![("type", text()), ("status", text())]);
    let status = object(vec![("phase", text()), ("conditions", list(ListType::Map, &["type"], condition))]);
    object(vec![("spec", spec), ("status", status)])
}

pub(super) const EARLY: &str = "2026-01-01T00:00:00Z";
pub(super) const LATE: &str = "2026-01-02T00:00:00Z";

/// One write: by whom, how, and of what spec.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Apply(&'static str, Value),
    Force(&'static str, Value),
    Update(&'static str, Value),
}
pub(super) use Step::{Apply, Force, Update};

pub(super) fn of_spec(spec: &Value) -> Value {
    json!({"apiVersion": "example.dev/v1", "kind": "Thing", "metadata": {"name": "t", "namespace": "n"}, "spec": spec})
}

fn writer<'a>(node: &'a Node, manager: &'a str, reset: &'a FieldSet, now: &str) -> Writer<'a> {
    Writer {
        schema: Schema::custom(node),
        api_version: "example.dev/v1",
        kind: "Thing",
        manager,
        subresource: "",
        reset,
        now: now.parse().unwrap(),
    }
}

pub(super) fn run(live: Option<&Value>, step: &Step, now: &str) -> Result<Value, Error> {
    let (node, reset) = (thing(), FieldSet::new());
    match step {
        Apply(manager, spec) => {
            apply(live, &of_spec(spec), &writer(&node, manager, &reset, now), OnConflict::Refuse)
        }
        Force(manager, spec) => {
            apply(live, &of_spec(spec), &writer(&node, manager, &reset, now), OnConflict::TakeOver)
        }
        Update(manager, spec) => Ok(track_update(live, of_spec(spec), &writer(&node, manager, &reset, now))),
    }
}

pub(super) fn run_all(steps: &[Step]) -> Value {
    let mut live = None;
    for step in steps {
        live = Some(run(live.as_ref(), step, EARLY).unwrap());
    }
    live.unwrap()
}

/// Who owns what, by manager and operation: `{"ann Apply": {"f:size": {}}}`. Only fields below spec.
fn owners(object: &Value) -> Value {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let owner = |entry: &Value| {
        let name = format!("{} {}", entry["manager"].as_str().unwrap(), entry["operation"].as_str().unwrap());
        (name, entry["fieldsV1"]["f:spec"].clone())
    };
    Value::Object(entries.iter().map(owner).collect())
}

#[test]
fn writes_move_ownership() {
    #[track_caller]
    fn check(why: &str, steps: &[Step], spec: Value, owned: Value) {
        let object = run_all(steps);
        assert_eq!(object["spec"], spec, "{why}");
        assert_eq!(owners(&object), owned, "{why}");
    }
    check(
        "an applier owns what it says",
        &[Apply(
            "ann",
            json!({"size": 1, "texts": {"a": "x"}, "whole": {"p": "x"}, "free": {"z": {"y": 1}}}),
        )],
        json!({"size": 1, "texts": {"a": "x"}, "whole": {"p": "x"}, "free": {"z": {"y": 1}}}),
        json!({"ann Apply": {"f:free": {"f:z": {".": {}, "f:y": {}}}, "f:size": {}, "f:texts": {"f:a": {}}, "f:whole": {}}}),
    );
    check(
        "an updater also owns the objects it makes",
        &[Update("ann", json!({"size": 1, "texts": {"a": "x"}}))],
        json!({"size": 1, "texts": {"a": "x"}}),
        json!({"ann Update": {".": {}, "f:size": {}, "f:texts": {".": {}, "f:a": {}}}}),
    );
    check(
        "what is no longer applied goes",
        &[
            Apply("ann", json!({"size": 1, "texts": {"a": "x", "b": "y"}})),
            Apply("ann", json!({"texts": {"b": "y"}})),
        ],
        json!({"texts": {"b": "y"}}),
        json!({"ann Apply": {"f:texts": {"f:b": {}}}}),
    );
    check(
        "unless another applies it too",
        &[
            Apply("ann", json!({"size": 1, "title": "t"})),
            Apply("bob", json!({"size": 1})),
            Apply("ann", json!({"title": "t"})),
        ],
        json!({"size": 1, "title": "t"}),
        json!({"ann Apply": {"f:title": {}}, "bob Apply": {"f:size": {}}}),
    );
    check(
        "an update takes what it changes, and it stays when the applier lets go",
        &[
            Apply("ann", json!({"size": 1, "title": "t"})),
            Update("ctl", json!({"size": 2, "title": "t"})),
            Apply("ann", json!({"title": "t"})),
        ],
        json!({"size": 2, "title": "t"}),
        json!({"ann Apply": {"f:title": {}}, "ctl Update": {"f:size": {}}}),
    );
    check(
        "what an update removes is nobody's",
        &[Apply("ann", json!({"size": 1, "title": "t"})), Update("ctl", json!({"title": "t"}))],
        json!({"title": "t"}),
        json!({"ann Apply": {"f:title": {}}}),
    );
    check(
        "force takes over",
        &[Apply("ann", json!({"size": 1, "title": "t"})), Force("bob", json!({"size": 2}))],
        json!({"size": 2, "title": "t"}),
        json!({"ann Apply": {"f:title": {}}, "bob Apply": {"f:size": {}}}),
    );
    check(
        "the same value is shared",
        &[Apply("ann", json!({"size": 1})), Apply("bob", json!({"size": 1}))],
        json!({"size": 1}),
        json!({"ann Apply": {"f:size": {}}, "bob Apply": {"f:size": {}}}),
    );
    check(
        "items of a keyed list are owned one by one",
        &[
            Apply("ann", json!({"items": [{"name": "a", "value": "x"}]})),
            Apply("bob", json!({"items": [{"name": "b"}, {"name": "a", "inner": {"x": 1}}]})),
        ],
        json!({"items": [{"name": "b"}, {"name": "a", "value": "x", "inner": {"x": 1}}]}),
        json!({
            "ann Apply": {"f:items": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}, "f:value": {}}}},
            "bob Apply": {"f:items": {
                "k:{\"name\":\"a\"}": {".": {}, "f:inner": {"f:x": {}}, "f:name": {}},
                "k:{\"name\":\"b\"}": {".": {}, "f:name": {}},
            }},
        }),
    );
    check(
        "an absent key counts with its default",
        &[
            Apply("ann", json!({"ports": [{"port": 80, "label": "x"}, {"port": 80, "protocol": "UDP"}]})),
            Apply("bob", json!({"ports": [{"port": 80, "protocol": "TCP"}]})),
            Apply("ann", json!({"ports": [{"port": 80, "protocol": "UDP"}]})),
        ],
        json!({"ports": [{"port": 80, "protocol": "TCP"}, {"port": 80, "protocol": "UDP"}]}),
        json!({
            "ann Apply": {"f:ports": {"k:{\"port\":80,\"protocol\":\"UDP\"}": {".": {}, "f:port": {}, "f:protocol": {}}}},
            "bob Apply": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:protocol": {}}}},
        }),
    );
    check(
        "a set is the union of what its appliers say, in the order of the last one where it matters",
        &[
            Apply("ann", json!({"tags": ["a", "b"]})),
            Apply("bob", json!({"tags": ["c", "b"]})),
            Apply("ann", json!({"tags": ["d"]})),
        ],
        json!({"tags": ["c", "b", "d"]}),
        json!({"ann Apply": {"f:tags": {"v:\"d\"": {}}}, "bob Apply": {"f:tags": {"v:\"b\"": {}, "v:\"c\"": {}}}}),
    );
    check(
        "atomic values are owned and replaced as one",
        &[
            Apply("ann", json!({"atoms": ["a", "b"], "whole": {"p": "x"}})),
            Apply("ann", json!({"atoms": ["c"], "whole": {"q": 1}})),
        ],
        json!({"atoms": ["c"], "whole": {"q": 1}}),
        json!({"ann Apply": {"f:atoms": {}, "f:whole": {}}}),
    );
    check(
        "what is owned by another as an object is left empty, not null",
        &[
            Update("ctl", json!({"texts": {}, "size": 1})),
            Apply("ann", json!({"texts": {"a": "x"}})),
            Apply("ann", json!({"size": 1})),
        ],
        json!({"texts": {}, "size": 1}),
        json!({"ann Apply": {"f:size": {}}, "ctl Update": {".": {}, "f:size": {}, "f:texts": {}}}),
    );
    check(
        "an update may put a second item under a key; the two are one thing to own",
        &[Update("ctl", json!({"items": [{"name": "a", "value": "x"}, {"name": "a", "value": "y"}]}))],
        json!({"items": [{"name": "a", "value": "x"}, {"name": "a", "value": "y"}]}),
        json!({"ctl Update": {".": {}, "f:items": {".": {}, "k:{\"name\":\"a\"}": {}}}}),
    );
    check(
        "changing part of what one updated keeps the rest",
        &[Update("ctl", json!({"size": 1, "title": "t"})), Update("ctl", json!({"size": 2, "title": "t"}))],
        json!({"size": 2, "title": "t"}),
        json!({"ctl Update": {".": {}, "f:size": {}, "f:title": {}}}),
    );
}

#[test]
fn merged_lists_keep_their_order() {
    #[track_caller]
    fn check(live: &[&str], applied: &[&str], merged: &[&str]) {
        let object = run_all(&[Update("ctl", json!({"tags": live})), Apply("ann", json!({"tags": applied}))]);
        assert_eq!(object["spec"]["tags"], json!(merged), "{live:?} {applied:?}");
    }
    check(&[], &["a"], &["a"]);
    check(&["a", "b"], &[], &["a", "b"]);
    check(&["a", "b", "c"], &["b"], &["a", "b", "c"]);
    check(&["a", "b", "c"], &["c", "a"], &["b", "c", "a"]);
    check(&["a", "b", "c"], &["x", "b", "y"], &["a", "x", "b", "c", "y"]);
    check(&["a", "b"], &["b", "a"], &["b", "a"]);
    check(&["a", "x", "b"], &["b", "a"], &["x", "b", "a"]);
}

#[test]
fn conflicts_are_worded_as_kubernetes_words_them() {
    #[track_caller]
    fn check(steps: &[Step], message: &str, causes: &[(&str, &str)]) {
        let (last, first) = steps.split_last().unwrap();
        let error = run(Some(&run_all(first)), last, LATE).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert_eq!((error.code(), error.reason()), (409, "Conflict"));
        let found = error.causes();
        assert!(found.iter().all(|cause| cause.reason == "FieldManagerConflict"));
        let found: Vec<_> =
            found.iter().map(|cause| (cause.message.as_str(), cause.field.as_str())).collect();
        assert_eq!(found, causes);
    }
    check(
        &[Update("kubectl-client-side-apply", json!({"size": 1})), Apply("ann", json!({"size": 2}))],
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using example.dev/v1: .spec.size",
        &[("conflict with \"kubectl-client-side-apply\" using example.dev/v1", ".spec.size")],
    );
    check(
        &[Apply("bob", json!({"atoms": ["a"]})), Apply("ann", json!({"atoms": ["b"]}))],
        "Apply failed with 1 conflict: conflict with \"bob\": .spec.atoms",
        &[("conflict with \"bob\"", ".spec.atoms")],
    );
    check(
        &[
            Apply("bob", json!({"size": 1, "items": [{"name": "a", "value": "x"}]})),
            Update("ctl", json!({"size": 1, "items": [{"name": "a", "value": "x"}], "title": "t"})),
            Apply("ann", json!({"size": 2, "title": "u", "items": [{"name": "a", "value": "y"}]})),
        ],
        "Apply failed with 3 conflicts: conflicts with \"bob\":\n- .spec.size\n- .spec.items[name=\"a\"].value\nconflicts with \"ctl\" using example.dev/v1:\n- .spec.title",
        &[
            ("conflict with \"bob\"", ".spec.size"),
            ("conflict with \"bob\"", ".spec.items[name=\"a\"].value"),
            ("conflict with \"ctl\" using example.dev/v1", ".spec.title"),
        ],
    );
}

#[test]
fn objects_that_cannot_be_applied_are_refused() {
    #[track_caller]
    fn check(config: &Value, code: u16, message: &str) {
        let (node, reset) = (thing(), FieldSet::new());
        let error =
            apply(None, config, &writer(&node, "ann", &reset, EARLY), OnConflict::TakeOver).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert_eq!(error.code(), code);
    }
    let typed = |fault: &str| {
        format!("failed to create typed patch object (n/t; example.dev/v1, Kind=Thing): {fault}")
    };
    let spec = |spec: Value| of_spec(&spec);
    check(&spec(json!({"bogus": 1})), 500, &typed(".spec.bogus: field not declared in schema"));
    check(
        &spec(json!({"size": "x"})),
        500,
        &typed(".spec.size: expected numeric (int or float), got string"),
    );
    check(
        &spec(json!({"title": 1})),
        500,
        &typed(".spec.title: expected string, got &value.valueUnstructured{Value:1}"),
    );
    check(&spec(json!({"tags": {"a": 1}})), 500, &typed(".spec.tags: expected list, got &{map[a:1]}"));
    check(&spec(json!({"texts": ["a"]})), 500, &typed(".spec.texts: expected map, got &{[a]}"));
    check(&spec(json!({"tags": ["a", "a"]})), 500, &typed(".spec.tags: duplicate entries for key [=\"a\"]"));
    check(
        &spec(json!({"ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]})),
        500,
        &typed(".spec.ports: duplicate entries for key [port=1,protocol=\"TCP\"]"),
    );
    check(
        &spec(json!({"items": [{"value": "x"}]})),
        500,
        &typed(
            ".spec.items: element 0: associative list with keys has an element that omits all key fields [\"name\"] (and doesn't have default values for any key fields)",
        ),
    );
    check(
        &spec(json!({"size": true, "title": 1})),
        500,
        &typed(
            "errors:\n  .spec.size: expected numeric (int or float), got bool\n  .spec.title: expected string, got &value.valueUnstructured{Value:1}",
        ),
    );
    let mut managed = spec(json!({}));
    managed["metadata"]["managedFields"] = json!([]);
    check(&managed, 400, "metadata.managedFields must be nil");
    check(&json!({"apiVersion": "v1", "kind": "Pod"}), 400, "invalid object type: /v1, Kind=Pod");
    check(&json!([]), 400, "invalid object type: /, Kind=");
    let mut deep = json!({});
    for _ in 0..200 {
        deep = json!({"z": deep});
    }
    check(&spec(json!({"free": deep})), 400, "the applied object is nested more than 100 levels deep");

    let (node, reset) = (thing(), FieldSet::new());
    let nobody = writer(&node, "", &reset, EARLY);
    let error = apply(None, &of_spec(&json!({})), &nobody, OnConflict::Refuse).unwrap_err();
    let message =
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch";
    assert_eq!((error.to_string().as_str(), error.code(), error.reason()), (message, 422, "Invalid"));
}

#[test]
fn times_change_only_with_what_they_date() {
    let time = |object: &Value, manager: &str| {
        let entries = object["metadata"]["managedFields"].as_array().unwrap().clone();
        entries.iter().find(|entry| entry["manager"] == manager).map(|entry| entry["time"].clone())
    };
    let live = run_all(&[Apply("ann", json!({"size": 1})), Update("ctl", json!({"size": 1, "title": "t"}))]);
    // Nothing changes, so the object is the same to the letter.
    assert_eq!(run(Some(&live), &Apply("ann", json!({"size": 1})), LATE).unwrap(), live);
    assert_eq!(run(Some(&live), &Update("ctl", json!({"size": 1, "title": "t"})), LATE).unwrap(), live);
    // Another's change leaves the times of those who lose nothing.
    let changed = run(Some(&live), &Update("ctl", json!({"size": 1, "title": "u"})), LATE).unwrap();
    assert_eq!((time(&changed, "ann"), time(&changed, "ctl")), (Some(json!(EARLY)), Some(json!(LATE))));
    // To apply what is already so is recorded, but has no time: the object did not change.
    let joined = run(Some(&live), &Apply("bob", json!({"size": 1})), LATE).unwrap();
    assert_eq!(time(&joined, "bob"), Some(Value::Null));

    assert_eq!(settle_times(&live, changed.clone()), changed);
    let mut only_times = live.clone();
    only_times["metadata"]["managedFields"][0]["time"] = json!(LATE);
    assert_eq!(settle_times(&live, only_times), live);
}

#[test]
fn entries_are_ordered_and_bounded() {
    let mut live = run_all(&[Apply("zoe", json!({"size": 1})), Apply("ann", json!({"title": "t"}))]);
    for index in 0..12 {
        let (node, reset) = (thing(), FieldSet::new());
        let manager = format!("m{index}");
        let mut object = live.clone();
        object["spec"]["texts"][&manager] = json!("x");
        let now = format!("2026-02-{:02}T00:00:00Z", index + 1);
        live = track_update(Some(&live), object, &writer(&node, &manager, &reset, &now));
    }
    let entries = live["metadata"]["managedFields"].as_array().unwrap();
    let names: Vec<&str> = entries.iter().map(|entry| entry["manager"].as_str().unwrap()).collect();
    let mut expected = vec!["ann", "zoe", "ancient-changes"];
    expected.extend(["m3", "m4", "m5", "m6", "m7", "m8", "m9", "m10", "m11"]);
    assert_eq!(names, expected);
    let ancient = &entries[2];
    assert_eq!(
        ancient["fieldsV1"],
        json!({"f:spec": {"f:texts": {".": {}, "f:m0": {}, "f:m1": {}, "f:m2": {}}}})
    );
    assert_eq!(ancient["time"], "2026-02-03T00:00:00Z");
}

#[test]
fn clients_may_set_and_reset_managed_fields() {
    let live = run_all(&[Apply("ann", json!({"size": 1}))]);
    let (node, reset) = (thing(), FieldSet::new());
    let update = |managed: Value| {
        let mut object = of_spec(&json!({"size": 1}));
        object["metadata"]["managedFields"] = managed;
        track_update(Some(&live), object, &writer(&node, "ctl", &reset, LATE))
    };
    for forget in [json!([]), json!([{}])] {
        let object = update(forget);
        assert!(object["metadata"].get("managedFields").is_none());
        // Once forgotten, updates are not tracked until the object is applied to again.
        let updated = run(Some(&object), &Update("ctl", json!({"size": 3})), LATE).unwrap();
        assert!(updated["metadata"].get("managedFields").is_none());
        let applied = run(Some(&updated), &Force("ann", json!({"title": "t"})), LATE).unwrap();
        assert_eq!(
            owners(&applied),
            json!({"ann Apply": {"f:title": {}}, "before-first-apply Update": {".": {}, "f:size": {}}})
        );
    }
    let ignored = [Value::Null, json!("x"), json!([{"operation": "Eat"}]), json!([{"manager": 1}])];
    for managed in ignored {
        assert_eq!(owners(&update(managed)), json!({"ann Apply": {"f:size": {}}}));
    }
    let entry = json!([{"manager": "eve", "operation": "Update", "apiVersion": "example.dev/v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:size": {}}}}]);
    assert_eq!(owners(&update(entry)), json!({"eve Update": {"f:size": {}}}));
}

#[test]
fn subresources_have_their_own_entries() {
    let node = thing();
    let (spec_only, status_only) =
        (FieldSet::of_fields(&[&["status"]]), FieldSet::of_fields(&[&["metadata"], &["spec"]]));
    let mut object = of_spec(&json!({"size": 1}));
    object["status"] = json!({"phase": "sent in vain"});
    let live = track_update(None, object, &writer(&node, "ann", &spec_only, EARLY));
    let entries = live["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(entries[0]["fieldsV1"], json!({"f:spec": {".": {}, "f:size": {}}}));

    let mut reported = live.clone();
    reported["status"] = json!({"phase": "Ready"});
    reported["metadata"]["labels"] = json!({"a": "b"});
    reported["metadata"]["managedFields"] = json!([]);
    let status = Writer { subresource: "status", ..writer(&node, "ann", &status_only, LATE) };
    let reported = track_update(Some(&live), reported, &status);
    let entries = reported["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[1]["subresource"], "status");
    assert_eq!(entries[1]["fieldsV1"], json!({"f:status": {"f:phase": {}}}));

    let mut config = of_spec(&json!({}));
    config["status"] = json!({"phase": "Failed"});
    let bob = Writer { subresource: "status", ..writer(&node, "bob", &status_only, LATE) };
    let error = apply(Some(&reported), &config, &bob, OnConflict::Refuse).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"ann\" with subresource \"status\" using example.dev/v1: .status.phase"
    );
}

#[test]
fn kubectl_moves_from_client_side_to_server_side_apply() {
    const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let (node, reset) = (thing(), FieldSet::new());
    let mut object = of_spec(&json!({"size": 1, "title": "t"}));
    object["metadata"]["annotations"] =
        json!({ANNOTATION: of_spec(&json!({"size": 1, "title": "old"})).to_string()});
    let live = track_update(None, object, &writer(&node, "kubectl-client-side-apply", &reset, EARLY));

    // What was applied and is unchanged is the user's own; what someone changed since is not.
    let kubectl = writer(&node, "kubectl", &reset, LATE);
    let both = of_spec(&json!({"size": 2, "title": "u"}));
    let error = apply(Some(&live), &both, &kubectl, OnConflict::Refuse).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using example.dev/v1: .spec.title"
    );
    let object = apply(Some(&live), &of_spec(&json!({"size": 2})), &kubectl, OnConflict::Refuse).unwrap();
    assert_eq!(object["spec"], json!({"size": 2, "title": "t"}));
    assert_eq!(
        object["metadata"]["annotations"][ANNOTATION],
        "{\"apiVersion\":\"example.dev/v1\",\"kind\":\"Thing\",\"metadata\":{\"name\":\"t\",\"namespace\":\"n\"},\"spec\":{\"size\":2}}\n"
    );
    // Under another name the annotation means nothing.
    let other = writer(&node, "flux", &reset, LATE);
    assert!(apply(Some(&live), &of_spec(&json!({"size": 2})), &other, OnConflict::Refuse).is_err());
}

#[test]
fn metadata_is_owned_as_its_own_schema_says() {
    let (node, reset) = (thing(), FieldSet::new());
    let mut object = of_spec(&json!({}));
    object["metadata"] = json!({
        "name": "t", "namespace": "n", "uid": "1", "resourceVersion": "5", "generation": 1, "creationTimestamp": EARLY,
        "labels": {"a": "b"}, "finalizers": ["x/y"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "2"}],
    });
    let live = track_update(None, object, &writer(&node, "ann", &reset, EARLY));
    assert_eq!(
        live["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"],
        json!({
            "f:finalizers": {".": {}, "v:\"x/y\"": {}},
            "f:labels": {".": {}, "f:a": {}},
            "f:ownerReferences": {".": {}, "k:{\"uid\":\"2\"}": {}},
        })
    );
}

#[test]
fn built_in_objects_are_owned_without_what_they_always_carry() {
    let always = |node: Node| Node { default: Some(json!({})), ..node };
    let template = always(Node { reference: Some("Template".into()), ..Node::default() });
    let node = object(vec![
        ("metadata", always(object(vec![("labels", texts()), ("name", scalar(Type::String))]))),
        ("spec", always(object(vec![("template", template), ("selector", texts())]))),
    ]);
    let found = Arc::new(object(vec![("image", scalar(Type::String))]));
    let resolve = move |name: &str| (name == "Template").then(|| found.clone());
    let reset = FieldSet::new();
    let writer = Writer {
        schema: Schema::built_in(&node, &resolve),
        api_version: "apps/v1",
        kind: "Deployment",
        ..writer(&node, "ann", &reset, EARLY)
    };
    let new = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": {"image": "x"}, "selector": {"a": "b"}}});
    let live = track_update(None, new, &writer);
    assert_eq!(
        live["metadata"]["managedFields"][0]["fieldsV1"],
        json!({"f:spec": {"f:selector": {".": {}, "f:a": {}}, "f:template": {"f:image": {}}}})
    );
}

#[test]
fn ownership_follows_a_schema_that_became_atomic() {
    let live = run_all(&[Apply("ann", json!({"texts": {"a": "x"}, "items": [{"name": "a"}]}))]);
    let mut node = thing();
    let mut spec = (*node.properties["spec"]).clone();
    let atomic = Node { map_type: MapType::Atomic, ..texts() };
    spec.properties.insert("texts".to_owned(), Arc::new(atomic));
    let mut items = (*spec.properties["items"]).clone();
    items.list_type = ListType::Atomic;
    spec.properties.insert("items".to_owned(), Arc::new(items));
    node.properties.insert("spec".to_owned(), Arc::new(spec));
    let reset = FieldSet::new();
    let mut object = live.clone();
    object["spec"]["size"] = json!(1);
    let updated = track_update(Some(&live), object, &writer(&node, "ctl", &reset, LATE));
    assert_eq!(
        owners(&updated),
        json!({"ann Apply": {"f:items": {}, "f:texts": {}}, "ctl Update": {"f:size": {}}})
    );
}

#[test]
fn an_object_that_cannot_be_tracked_is_stored_without_owners() {
    let mut deep = json!({});
    for _ in 0..200 {
        deep = json!({"z": deep});
    }
    for spec in [json!({"free": deep}), json!({"items": [1]})] {
        let object = run(None, &Update("ctl", spec.clone()), EARLY).unwrap();
        assert_eq!(object["spec"], spec);
        assert!(object["metadata"].get("managedFields").is_none());
    }
}
