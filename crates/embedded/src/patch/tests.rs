//! Tables and properties of the three patch types.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::error::Error as _;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::apply::Schema;
use crate::schema::{Node, Type};

fn cause(error: &Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

#[test]
fn json_patches_apply() {
    #[track_caller]
    fn check(document: Value, patch: Value, expected: Value) {
        assert_eq!(json(document, &patch).unwrap(), expected, "{patch}");
    }
    let one = |op: Value| json!([op]);
    let document = || json!({"a": {"b": [1, 2]}, "c/d": 1, "e~f": null});
    check(document(), Value::Null, document());
    check(json!({}), one(json!({"op": "add", "path": "/x", "value": 1})), json!({"x": 1}));
    check(json!({"a": [1]}), one(json!({"op": "add", "path": "/a/-", "value": 2})), json!({"a": [1, 2]}));
    check(json!({"a": [1]}), one(json!({"op": "add", "path": "/a/0", "value": 2})), json!({"a": [2, 1]}));
    check(
        json!({"a": [1, 2]}),
        one(json!({"op": "replace", "path": "/a/-1", "value": 3})),
        json!({"a": [1, 3]}),
    );
    check(json!({"a": [1, 2]}), one(json!({"op": "remove", "path": "/a/0"})), json!({"a": [2]}));
    check(
        json!({"c/d": 1, "e~f": 2}),
        json!([{"op": "remove", "path": "/c~1d"}, {"op": "remove", "path": "/e~0f"}]),
        json!({}),
    );
    check(
        json!({"a": {"b": 1}}),
        one(json!({"op": "move", "from": "/a/b", "path": "/c"})),
        json!({"a": {}, "c": 1}),
    );
    check(json!({"a": 1}), one(json!({"op": "copy", "from": "/a", "path": "/b"})), json!({"a": 1, "b": 1}));
    check(json!({"a": 1}), one(json!({"op": "replace", "path": "", "value": {"b": 2}})), json!({"b": 2}));
    check(json!({"a": 1}), one(json!({"op": "test", "path": "/b", "value": null})), json!({"a": 1}));
    check(json!({"a": 1}), one(json!({"op": "replace", "path": "/b", "value": 1})), json!({"a": 1, "b": 1}));
    check(json!({"a": 1}), one(json!({"op": "add", "path": "/a"})), json!({"a": null}));
}

#[test]
fn json_patches_that_do_not_apply_are_refused() {
    #[track_caller]
    fn check(patch: Value, code: u16, expected: &str) {
        let error = json(json!({"a": [1], "b": {"c": 1}}), &patch).unwrap_err();
        assert_eq!((error.code(), cause(&error).as_str()), (code, expected), "{patch}");
    }
    check(json!([{"op": "test", "path": "/b/c", "value": 2}]), 422, "testing value /b/c failed: test failed");
    check(
        json!([{"op": "remove", "path": "/b/d"}]),
        422,
        "error in remove for path: '/b/d': Unable to remove nonexistent key: d: missing value",
    );
    for path in ["/x/y", "/a/1/z", "/b/c/d", "", "b"] {
        let error = json(json!({"a": [1], "b": {"c": 1}}), &json!([{"op": "add", "path": path, "value": 1}]))
            .unwrap_err();
        assert_eq!((error.code(), error.reason()), (422, "Invalid"), "{path}");
        assert_eq!(error.to_string(), "the server rejected our request due to an error in our request");
    }
    for (op, path) in [
        ("remove", "/a/1"),
        ("add", "/a/3"),
        ("add", "/a/-3"),
        ("replace", "/a/x"),
        ("remove", "/a/-"),
        ("remove", ""),
    ] {
        assert_eq!(
            json(json!({"a": [1]}), &json!([{"op": op, "path": path}])).unwrap_err().code(),
            422,
            "{op} {path}"
        );
    }
    check(
        json!([{"op": "move", "from": "/b", "path": "/b/c/x"}]),
        422,
        "operation does not apply: doc is missing path: \"/b/c/x\": missing value",
    );
    check(json!([{"op": "eat", "path": "/a"}]), 422, "Unexpected kind: eat");
    check(json!([{"op": "copy", "path": "/a"}]), 422, "copy operation failed to decode from: missing value");
    check(
        json!({}),
        400,
        "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
    );
    check(
        json!(["x"]),
        400,
        "error decoding patch: json: cannot unmarshal string into Go value of type handlers.jsonPatchOp",
    );
    check(
        json!([{"op": "add", "path": 1}]),
        400,
        "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.path of type string",
    );
    check(
        Value::Array(vec![json!({"op": "test", "path": "/x", "value": null}); 10_001]),
        413,
        "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001",
    );
}

#[test]
fn hostile_json_patches_stay_small() {
    let doubling: Vec<Value> =
        (0..64).map(|index| json!({"op": "copy", "from": "/a", "path": format!("/a/{index}")})).collect();
    let error = json(json!({"a": {"x": "y"}}), &Value::Array(doubling)).unwrap_err();
    assert!(cause(&error).contains("exceeding the limit"), "{}", cause(&error));
    assert_eq!(error.code(), 422);

    let nesting: Vec<Value> =
        (1..=300).map(|depth| json!({"op": "add", "path": "/a".repeat(depth), "value": {}})).collect();
    assert_eq!(json(json!({}), &Value::Array(nesting)).unwrap_err().code(), 422);
}

#[test]
fn merge_patches_apply() {
    #[track_caller]
    fn check(document: Value, patch: Value, expected: Value) {
        assert_eq!(merge(document, &patch).unwrap(), expected);
    }
    check(
        json!({"a": 1, "b": {"c": 1, "d": 2}}),
        json!({"a": null, "b": {"c": null}}),
        json!({"b": {"d": 2}}),
    );
    check(json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]}));
    check(json!({"a": 1}), json!({"a": {"b": null, "c": {"d": null}}}), json!({"a": {"c": {}}}));
    check(json!({}), json!({"a": [{"b": null}, null]}), json!({"a": [{}, null]}));
    for (patch, message) in [
        (
            json!([]),
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}",
        ),
        (Value::Null, "Invalid JSON Patch"),
    ] {
        let error = merge(json!({}), &patch).unwrap_err();
        assert_eq!((error.code(), error.reason(), error.to_string().as_str()), (400, "BadRequest", message));
    }
    let mut deep = json!({});
    for _ in 0..200 {
        deep = json!({"a": deep});
    }
    assert_eq!(merge(json!({}), &deep).unwrap_err().code(), 422);
}

fn keyed(key: &str, item: Node) -> Arc<Node> {
    Arc::new(Node {
        kind: Some(Type::Array),
        items: Some(Arc::new(item)),
        patch_merge_key: Some(key.to_owned()),
        patch_strategies: vec!["merge".to_owned()],
        ..Node::default()
    })
}

fn pod() -> Node {
    let object = |fields: Vec<(&str, Arc<Node>)>| Node {
        kind: Some(Type::Object),
        properties: fields.into_iter().map(|(name, node)| (name.to_owned(), node)).collect(),
        ..Node::default()
    };
    let strategies = |strategies: &[&str]| strategies.iter().map(|strategy| (*strategy).to_owned()).collect();
    let primitive = Arc::new(Node {
        kind: Some(Type::Array),
        patch_strategies: strategies(&["merge"]),
        ..Node::default()
    });
    let container = object(vec![("env", keyed("name", object(vec![]))), ("args", Arc::new(Node::default()))]);
    let volumes = Node {
        patch_strategies: strategies(&["merge", "retainKeys"]),
        ..(*keyed("name", object(vec![]))).clone()
    };
    let replaced = Node { patch_strategies: strategies(&["replace"]), ..object(vec![]) };
    object(vec![
        ("containers", keyed("name", Node { reference: Some("Container".into()), ..Node::default() })),
        ("container", Arc::new(container)),
        ("finalizers", primitive),
        ("volumes", Arc::new(volumes)),
        ("replaced", Arc::new(replaced)),
        ("tolerations", Arc::new(Node { kind: Some(Type::Array), ..Node::default() })),
        ("labels", Arc::new(object(vec![]))),
    ])
}

fn patched(document: Value, patch: &Value) -> Result<Value, Error> {
    let node = pod();
    let resolve = |name: &str| (name == "Container").then(|| node.properties["container"].clone());
    strategic(document, patch, &Schema::built_in(&node, &resolve))
}

#[test]
fn strategic_patches_apply() {
    #[track_caller]
    fn check(document: Value, patch: Value, expected: Value) {
        assert_eq!(patched(document, &patch).unwrap(), expected, "{patch}");
    }
    let two = || json!({"containers": [{"name": "a", "image": "x"}, {"name": "b"}]});
    check(
        two(),
        json!({"containers": [{"name": "b", "image": "y", "env": [{"name": "E", "value": null}]}]}),
        json!({"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y", "env": [{"name": "E"}]}]}),
    );
    check(
        two(),
        json!({"containers": [{"name": "a", "$patch": "delete"}]}),
        json!({"containers": [{"name": "b"}]}),
    );
    check(
        two(),
        json!({"containers": [{"$patch": "replace"}, {"name": "c"}]}),
        json!({"containers": [{"name": "c"}]}),
    );
    check(
        two(),
        json!({"containers": [{"name": "c"}, {"name": "b", "image": "y"}]}),
        json!({"containers": [{"name": "c"}, {"name": "a", "image": "x"}, {"name": "b", "image": "y"}]}),
    );
    check(
        two(),
        json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}),
        json!({"containers": [{"name": "b"}, {"name": "a", "image": "x"}]}),
    );
    check(
        two(),
        json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "c"}], "containers": [{"name": "c"}]}),
        json!({"containers": [{"name": "a", "image": "x"}, {"name": "b"}, {"name": "c"}]}),
    );
    check(
        json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}]}),
        json!({"containers": [{"name": "a", "env": [{"name": "Y", "value": "3"}], "$setElementOrder/env": [{"name": "Y"}, {"name": "X"}]}]}),
        json!({"containers": [{"name": "a", "env": [{"name": "Y", "value": "3"}, {"name": "X", "value": "1"}]}]}),
    );
    check(
        json!({"finalizers": ["a", "b"]}),
        json!({"finalizers": ["c", "a"]}),
        json!({"finalizers": ["c", "a", "b"]}),
    );
    check(
        json!({"finalizers": ["a", "b"]}),
        json!({"$deleteFromPrimitiveList/finalizers": ["a", "x"]}),
        json!({"finalizers": ["b"]}),
    );
    check(json!({}), json!({"$deleteFromPrimitiveList/finalizers": ["a"]}), json!({}));
    check(
        json!({"tolerations": [{"key": "a"}]}),
        json!({"tolerations": [{"key": "b"}]}),
        json!({"tolerations": [{"key": "b"}]}),
    );
    check(
        json!({"labels": {"a": "1", "b": "2"}}),
        json!({"labels": {"a": null, "c": "3"}}),
        json!({"labels": {"b": "2", "c": "3"}}),
    );
    check(
        json!({"labels": {"a": "1"}}),
        json!({"labels": {"$patch": "replace", "c": "3"}}),
        json!({"labels": {"c": "3"}}),
    );
    check(json!({"labels": {"a": "1"}}), json!({"labels": {"$patch": "delete"}}), json!({"labels": {}}));
    check(
        json!({"labels": {"a": "1", "b": "2"}}),
        json!({"labels": {"$retainKeys": ["b"], "b": "3"}}),
        json!({"labels": {"b": "3"}}),
    );
    check(json!({"replaced": {"a": 1}}), json!({"replaced": {"b": 2}}), json!({"replaced": {"b": 2}}));
    check(
        json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
        json!({"volumes": [{"name": "v", "$retainKeys": ["name", "secret"], "secret": {"secretName": "s"}}]}),
        json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}),
    );
    check(
        json!({}),
        json!({"labels": {"$retainKeys": ["a"], "a": "1", "b": null}}),
        json!({"labels": {"a": "1"}}),
    );
}

#[test]
fn strategic_patches_that_make_no_sense_are_refused() {
    #[track_caller]
    fn check(patch: Value, code: u16, expected: &str) {
        let live = json!({"containers": [{"name": "a"}], "labels": {"a": "1"}, "finalizers": ["f"]});
        let error = patched(live, &patch).unwrap_err();
        assert_eq!((error.code(), cause(&error).as_str()), (code, expected));
    }
    check(json!([]), 400, "json: cannot unmarshal array into Go value of type map[string]interface {}");
    check(
        json!({"containers": [{"image": "x"}]}),
        500,
        "map: map[image:x] does not contain declared merge key: name",
    );
    check(
        json!({"containers": [{"name": "a", "$patch": "merge"}]}),
        500,
        "merging lists cannot yet be specified in the patch",
    );
    check(
        json!({"containers": [{"name": "a", "$patch": "eat"}]}),
        500,
        "unknown patch type: eat in map: map[$patch:eat name:a]",
    );
    check(json!({"labels": {"$patch": "merge"}}), 500, "unknown patch type: merge in map: map[$patch:merge]");
    check(json!({"labels": {"$retainKeys": ["a"], "b": "1"}}), 400, "invalid patch format of retainKeys");
    check(json!({"labels": {"$retainKeys": 1}}), 400, "invalid patch format of retainKeys");
    check(json!({"$deleteFromPrimitiveListfinalizers": []}), 400, "invalid patch format of primitive list");
    check(json!({"$setElementOrder": []}), 400, "invalid patch format of setElementOrder list");
    check(json!({"finalizers": [["f"]]}), 500, "list element types are not identical: [[f] [[f]]]");
    check(
        json!({"$setElementOrder/finalizers": "f"}),
        500,
        "expected a []interface {}, but received a string",
    );
    check(
        json!({"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a"}]}),
        500,
        "The order in patch list:\n[map[name:a]]\n doesn't match $setElementOrder list:\n[map[name:b]]\n",
    );
    assert_eq!(patched(json!({"finalizers": []}), &json!({"finalizers": [["f"]]})).unwrap_err().code(), 422);
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        (0..3).prop_map(Value::from),
        "[a-c]".prop_map(Value::from)
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-d]", inner, 0..4).prop_map(|fields| json!(fields)),
        ]
    })
}

fn document() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-d]", value(), 0..4).prop_map(|fields| json!(fields))
}

fn difference(from: &Value, to: &Value) -> Value {
    let (Value::Object(from), Value::Object(to)) = (from, to) else { return to.clone() };
    let gone = from.keys().filter(|name| !to.contains_key(*name)).map(|name| (name.clone(), Value::Null));
    let changed = to.iter().filter(|(name, value)| from.get(*name) != Some(value));
    let changed = changed
        .map(|(name, value)| (name.clone(), difference(from.get(name).unwrap_or(&Value::Null), value)));
    Value::Object(gone.chain(changed).collect::<Map<_, _>>())
}

fn operation() -> impl Strategy<Value = Value> {
    let path = || prop::collection::vec("[a-d0-2-]", 1..4).prop_map(|steps| format!("/{}", steps.join("/")));
    prop_oneof![
        (path(), value()).prop_map(|(path, value)| json!({"op": "add", "path": path, "value": value})),
        (path(), value()).prop_map(|(path, value)| json!({"op": "test", "path": path, "value": value})),
        path().prop_map(|path| json!({"op": "remove", "path": path})),
        (path(), path()).prop_map(|(from, path)| json!({"op": "move", "from": from, "path": path})),
        (path(), path()).prop_map(|(from, path)| json!({"op": "copy", "from": from, "path": path})),
        (path(), value()).prop_map(|(path, value)| json!({"op": "replace", "path": path, "value": value})),
    ]
}

proptest! {
    #[test]
    fn the_difference_patched_in_gives_the_target(from in document(), to in document()) {
        let patch = difference(&from, &to);
        prop_assert_eq!(&merge(from.clone(), &patch).unwrap(), &to);
        // Without merge keys a strategic patch is a merge patch.
        prop_assert_eq!(&strategic(from, &patch, &Schema::deduced()).unwrap(), &to);
    }

    #[test]
    fn what_the_standard_allows_gives_what_the_standard_says(document in document(), patch in prop::collection::vec(operation(), 0..4)) {
        let operations: json_patch::Patch = serde_json::from_value(Value::from(patch.clone())).unwrap();
        let mut expected = document.clone();
        // Without the library's undo, which cannot undo every patch that it applied.
        if json_patch::patch_unsafe(&mut expected, &operations).is_ok() {
            prop_assert_eq!(json(document, &Value::from(patch)).unwrap(), expected);
        } else if let Err(error) = json(document, &Value::from(patch)) {
            prop_assert_eq!(error.code(), 422);
        }
    }

    #[test]
    fn a_patch_that_is_nonsense_is_the_clients_mistake(document in document(), patch in value()) {
        for outcome in [json(document.clone(), &patch), patched(document.clone(), &patch)] {
            if let Err(error) = outcome {
                prop_assert!([400, 422].contains(&error.code()), "{}: {error}", error.code());
            }
        }
        // A merge patch says what shall be, so that it says the same the second time.
        if let Ok(once) = merge(document, &patch) {
            prop_assert_eq!(&merge(once.clone(), &patch).unwrap(), &once);
        }
    }
}
