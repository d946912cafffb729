//! Whole objects: pruned, and with their defaults.

use serde_json::{Value, json};

use super::super::{Definitions, Node, default, prune, validate};
use super::{node, spec};

fn check_prune(schema: Value, mut object: Value, want: Value, unknown: &[&str]) {
    let paths = prune(&node(schema), &mut object);
    assert_eq!(object, want);
    assert_eq!(paths, unknown);
}

#[test]
fn unknown_fields_are_removed() {
    check_prune(
        spec(
            json!({"a": {"type": "string"}, "items": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer"}}}}}),
        ),
        json!({"apiVersion": "v", "kind": "K", "metadata": {"name": "n", "odd": 1}, "foo": 1,
               "spec": {"a": "", "b": 1, "items": [{"x": 1, "foo": 2}]}}),
        json!({"apiVersion": "v", "kind": "K", "metadata": {"name": "n"}, "spec": {"a": "", "items": [{"x": 1}]}}),
        &["metadata.odd", "foo", "spec.b", "spec.items[0].foo"],
    );
    // Below a place that keeps unknown fields, what is specified is pruned again.
    check_prune(
        spec(json!({"keep": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"known": {"type": "object", "properties": {"a": {"type": "string"}}}}}})),
        json!({"spec": {"keep": {"x": {"y": 1}, "known": {"a": "", "b": 1}}}}),
        json!({"spec": {"keep": {"x": {"y": 1}, "known": {"a": ""}}}}),
        &["spec.keep.known.b"],
    );
    check_prune(
        spec(json!({"template": {"type": "object", "x-kubernetes-embedded-resource": true,
                    "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}})),
        json!({"spec": {"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "odd": 1}, "spec": {"x": 1}, "y": 1}}}),
        json!({"spec": {"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"x": 1}}}}),
        &["spec.template.y", "spec.template.metadata.odd"],
    );
    check_prune(
        spec(
            json!({"m": {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"type": "string"}}}}}),
        ),
        json!({"spec": {"m": {"k": {"a": "", "b": 1}}}}),
        json!({"spec": {"m": {"k": {"a": ""}}}}),
        &["spec.m.k.b"],
    );
}

#[test]
fn nulls_and_defaults() {
    let schema = node(spec(json!({
        "plain": {"type": "string"},
        "nullable": {"type": "string", "nullable": true, "default": "d"},
        "defaulted": {"type": "string", "default": "d"},
        "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer", "default": 7}}}},
        "object": {"type": "object", "default": {}, "properties": {"a": {"type": "integer", "default": 7}}},
        "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"type": "integer", "default": 7}}}},
    })));
    let check = |mut object: Value, want: Value| {
        prune(&schema, &mut object);
        default(&schema, &mut object);
        assert_eq!(object, want);
    };
    check(
        json!({"spec": {"plain": null, "nullable": null, "defaulted": null, "list": [{}], "map": {"k": {}}}}),
        json!({"spec": {"nullable": null, "defaulted": "d", "list": [{"a": 7}], "map": {"k": {"a": 7}}, "object": {"a": 7}}}),
    );
    check(json!({"spec": {}}), json!({"spec": {"nullable": "d", "defaulted": "d", "object": {"a": 7}}}));
    // Without a spec there is nothing to default within it.
    check(json!({}), json!({}));
}

#[test]
fn built_in_types_refer_to_one_another() {
    let definitions = Definitions::parse(&json!({
        "v1.Pod": {"type": "object", "properties": {
            "metadata": {"allOf": [{"$ref": "#/components/schemas/v1.Meta"}], "default": {}, "description": "its metadata"},
            "ports": {"type": "array", "items": {"$ref": "#/components/schemas/v1.Port"}, "x-kubernetes-list-type": "map",
                      "x-kubernetes-list-map-keys": ["port", "protocol"], "x-kubernetes-patch-merge-key": "port",
                      "x-kubernetes-patch-strategy": "merge,retainKeys"},
            "tree": {"$ref": "#/components/schemas/v1.Tree"},
        }},
        "v1.Meta": {"type": "object", "properties": {"name": {"type": "string", "default": ""}}},
        "v1.Port": {"type": "object", "properties": {
            "port": {"$ref": "#/components/schemas/IntOrString"}, "protocol": {"type": "string", "default": "TCP"}}},
        "IntOrString": {"type": "string", "format": "int-or-string"},
        "v1.Tree": {"type": "object", "properties": {
            "leaf": {"type": "string"}, "any": {"$ref": "#/components/schemas/JSON"},
            "branches": {"type": "array", "items": {"allOf": [{"$ref": "#/components/schemas/v1.Tree"}], "default": {}}}}},
        "JSON": {"description": "anything"},
    }))
    .unwrap();
    let pod = Node::parse_builtin("v1.Pod", &definitions).unwrap();
    assert_eq!(pod.properties["metadata"].description.as_deref(), Some("its metadata"));
    let ports = &pod.properties["ports"];
    assert_eq!(ports.patch_strategies, ["merge", "retainKeys"]);
    assert_eq!(ports.patch_merge_key.as_deref(), Some("port"));
    assert_eq!(ports.list_map_keys, ["port", "protocol"]);
    assert!(ports.items.as_ref().unwrap().properties["port"].int_or_string);
    let inner = &pod.properties["tree"].properties["branches"].items.as_ref().unwrap();
    assert_eq!(inner.reference.as_deref(), Some("v1.Tree"));
    assert!(inner.follow().unwrap().properties.contains_key("leaf"));

    let mut object = json!({"ports": [{"port": 1, "odd": 1}], "tree": {"branches": [{"branches": [{"leaf": "l", "odd": 1}], "any": {"x": 1}}]}});
    assert_eq!(prune(&pod, &mut object), ["ports[0].odd", "tree.branches[0].branches[0].odd"]);
    default(&pod, &mut object);
    assert_eq!(
        object,
        json!({"ports": [{"port": 1, "protocol": "TCP"}], "tree": {"branches": [{"branches": [{"leaf": "l"}], "any": {"x": 1}}]}})
    );
    assert!(validate(&pod, &object, None).is_empty());
    let missing = Node::parse_builtin("v1.None", &definitions).unwrap_err();
    assert_eq!(missing.to_string(), "the definition v1.None is not among the definitions of built-in types");
}

/// A value nested deeper than anything the JSON reader lets through neither overflows the stack nor gets away unseen.
#[test]
fn depth_is_bounded() {
    let schema = node(
        json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}),
    );
    let mut deep = json!(1);
    for _ in 0..1000 {
        deep = json!([deep]);
    }
    let mut object = json!({"spec": {"a": deep}});
    default(&schema, &mut object);
    validate(&schema, &object, Some(&object.clone()));
    prune(&schema, &mut object);
}
