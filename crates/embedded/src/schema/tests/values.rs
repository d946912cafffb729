//! One value against one schema, on creation and on update.

use serde_json::{Value, json};

use super::super::{validate, validate_status};
use super::{node, spec, texts};

/// Validates `{"spec": {"v": value}}` where `v` has the given schema.
fn check(schema: Value, value: Value, want: &[&str]) {
    let schema = node(spec(json!({"v": schema})));
    let errors = validate(&schema, &json!({"spec": {"v": value}}), None);
    assert_eq!(texts(&errors), want, "for {value}");
}

#[test]
fn types() {
    let table: [(Value, Value, &[&str]); 12] = [
        (json!({"type": "integer"}), json!(1), &[]),
        (json!({"type": "integer"}), json!(1.0), &[]),
        (
            json!({"type": "integer"}),
            json!("x"),
            &[r#"spec.v: Invalid value: "string": spec.v in body must be of type integer: "string""#],
        ),
        (
            json!({"type": "integer"}),
            json!(1.5),
            &[
                r#"spec.v: Invalid value: "number": spec.v in body must be of type integer: "number""#,
                r#"<nil>: Invalid value: "": Checked value must be of type integer (default format) in spec.v"#,
            ],
        ),
        (json!({"type": "number"}), json!(1), &[]),
        (
            json!({"type": "string"}),
            json!(null),
            &[r#"spec.v: Invalid value: "null": spec.v in body must be of type string: "null""#],
        ),
        (json!({"type": "string", "nullable": true}), json!(null), &[]),
        (
            json!({"type": "object"}),
            json!([]),
            &[r#"spec.v: Invalid value: "array": spec.v in body must be of type object: "array""#],
        ),
        (json!({"x-kubernetes-int-or-string": true}), json!("50%"), &[]),
        (json!({"x-kubernetes-int-or-string": true}), json!(3), &[]),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!(true),
            &[
                r#"spec.v: Invalid value: "boolean": spec.v in body must be of type integer,string: "boolean""#,
            ],
        ),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(true),
            &[r#"spec.v: Invalid value: "": spec.v in body must be of type int32: """#],
        ),
    ];
    for (schema, value, want) in table {
        check(schema, value, want);
    }
}

#[test]
fn bounds() {
    let table: [(Value, Value, &[&str]); 15] = [
        (
            json!({"type": "integer", "minimum": 1}),
            json!(0),
            &["spec.v: Invalid value: 0: spec.v in body should be greater than or equal to 1"],
        ),
        (
            json!({"type": "integer", "maximum": 5, "exclusiveMaximum": true}),
            json!(5),
            &["spec.v: Invalid value: 5: spec.v in body should be less than 5"],
        ),
        (
            json!({"type": "number", "minimum": 0.5}),
            json!(0.25),
            &["spec.v: Invalid value: 0.25: spec.v in body should be greater than or equal to 0.5"],
        ),
        (
            json!({"type": "integer", "multipleOf": 3}),
            json!(4),
            &["spec.v: Invalid value: 4: spec.v in body should be a multiple of 3"],
        ),
        (json!({"type": "number", "multipleOf": 0.1}), json!(0.3), &[]),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(3_000_000_000_i64),
            &[
                r#"<nil>: Invalid value: "": Checked value must be of type integer with format int32 in spec.v"#,
            ],
        ),
        (
            json!({"type": "string", "maxLength": 2}),
            json!("abc"),
            &["spec.v: Too long: may not be more than 2 bytes"],
        ),
        (
            json!({"type": "string", "minLength": 1}),
            json!(""),
            &[r#"spec.v: Invalid value: "": spec.v in body should be at least 1 chars long"#],
        ),
        (
            json!({"type": "string", "pattern": "^a$"}),
            json!("b"),
            &[r#"spec.v: Invalid value: "b": spec.v in body should match '^a$'"#],
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 1}),
            json!([]),
            &["spec.v: Invalid value: 0: spec.v in body should have at least 1 items"],
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}, "maxItems": 1}),
            json!([1, "x"]),
            &[
                r#"spec.v[1]: Invalid value: "string": spec.v[1] in body must be of type integer: "string""#,
                "spec.v: Too many: 2: must have at most 1 item",
            ],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 1}),
            json!({"a": 1, "b": "x"}),
            &[
                "spec.v: Too many: 2: must have at most 1 item",
                r#"spec.v.b: Invalid value: "string": spec.v.b in body must be of type integer: "string""#,
            ],
        ),
        (
            json!({"type": "object", "minProperties": 1, "x-kubernetes-preserve-unknown-fields": true}),
            json!({}),
            &["spec.v: Invalid value: 0: spec.v in body should have at least 1 properties"],
        ),
        (
            json!({"type": "string", "enum": ["a", "b"]}),
            json!("z"),
            &[r#"spec.v: Unsupported value: "z": supported values: "a", "b""#],
        ),
        (
            json!({"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}),
            json!({"a": ""}),
            &["spec.v.b: Required value"],
        ),
    ];
    for (schema, value, want) in table {
        check(schema, value, want);
    }
}

#[test]
fn formats() {
    let table: [(Value, Value, &[&str]); 4] = [
        (
            json!({"type": "string", "format": "date-time"}),
            json!("tomorrow"),
            &[r#"spec.v: Invalid value: "tomorrow": spec.v in body must be of type date-time: "tomorrow""#],
        ),
        (json!({"type": "string", "format": "made-up"}), json!("x"), &[]),
        (json!({"type": "string", "format": "uuid"}), json!("123e4567-e89b-12d3-a456-426614174000"), &[]),
        (
            json!({"type": "string", "format": "date-time"}),
            json!({}),
            &[r#"spec.v: Invalid value: "": spec.v in body must be of type date-time: """#],
        ),
    ];
    for (schema, value, want) in table {
        check(schema, value, want);
    }
}

#[test]
fn junctors() {
    let object = |extra: Value| {
        let mut schema =
            json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}});
        for (name, value) in extra.as_object().unwrap() {
            schema[name] = value.clone();
        }
        schema
    };
    let one_of = object(json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}));
    check(one_of.clone(), json!({"a": 1}), &[]);
    check(
        one_of.clone(),
        json!({}),
        &[
            r#"<nil>: Invalid value: "": "spec.v" must validate one and only one schema (oneOf). Found none valid"#,
            "spec.v.a: Required value",
        ],
    );
    check(
        one_of,
        json!({"a": 1, "b": 2}),
        &[
            r#"<nil>: Invalid value: "": "spec.v" must validate one and only one schema (oneOf). Found 2 valid alternatives"#,
        ],
    );
    check(
        object(json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]})),
        json!({}),
        &[
            r#"<nil>: Invalid value: "": "spec.v" must validate at least one schema (anyOf)"#,
            "spec.v.a: Required value",
        ],
    );
    check(
        object(json!({"allOf": [{"required": ["a"]}, {"properties": {"b": {"minimum": 3}}}]})),
        json!({"a": 1, "b": 2}),
        &[
            "spec.v.b: Invalid value: 2: spec.v.b in body should be greater than or equal to 3",
            r#"<nil>: Invalid value: "": "spec.v" must validate all the schemas (allOf)"#,
        ],
    );
    check(
        object(json!({"not": {"required": ["a"]}})),
        json!({"a": 1}),
        &[r#"<nil>: Invalid value: "": "spec.v" must not validate the schema (not)"#],
    );
}

#[test]
fn lists() {
    let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
    check(set, json!(["a", "b", "a", "a"]), &[r#"spec.v[2]: Duplicate value: "a""#]);
    let map = json!({
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
    });
    check(map, json!([{"name": "x"}, {"name": "x"}]), &[r#"spec.v[1]: Duplicate value: {"name":"x"}"#]);
}

#[test]
fn embedded_resources() {
    let schema = json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true});
    check(schema.clone(), json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "x": 1}), &[]);
    check(
        schema.clone(),
        json!({"kind": "po d", "metadata": {"name": "a/b", "namespace": "x"}}),
        &[
            "spec.v.apiVersion: Required value",
            r#"spec.v.kind: Invalid value: "po d": may have mixed case, but should otherwise match: a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"#,
            r#"spec.v.metadata.name: Invalid value: "a/b": may not contain '/'"#,
        ],
    );
    check(
        schema,
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": 3}}),
        &[
            r#"spec.v.metadata: Invalid value: {"name":3}: json: cannot unmarshal number into Go struct field ObjectMeta.name of type string"#,
        ],
    );
}

#[test]
fn unchanged_values_are_forgiven() {
    let schema = node(json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "n": {"type": "integer", "minimum": 5},
            "s": {"type": "string", "enum": ["a"]},
            "l": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "required": ["k"], "properties": {
                    "k": {"type": "string"}, "n": {"type": "integer", "minimum": 5},
                }},
            },
            "atomic": {"type": "array", "items": {"type": "integer", "minimum": 5}},
        }},
        "status": {"type": "object", "properties": {"phase": {"type": "string", "maxLength": 1}}},
    }}));
    let check = |new: Value, old: Value, want: &[&str]| {
        assert_eq!(texts(&validate(&schema, &new, Some(&old))), want, "{old} -> {new}");
    };
    let old =
        json!({"spec": {"n": 1, "s": "z", "l": [{"k": "a", "n": 1}, {"k": "b", "n": 1}], "atomic": [1, 6]}});
    check(old.clone(), old.clone(), &[]);
    let mut new = old.clone();
    new["spec"]["n"] = json!(2);
    check(
        new,
        old.clone(),
        &["spec.n: Invalid value: 2: spec.n in body should be greater than or equal to 5"],
    );
    // Items with keys are found again although their order changed.
    let mut new = old.clone();
    new["spec"]["l"] = json!([{"k": "b", "n": 1}, {"k": "a", "n": 2}]);
    check(
        new,
        old.clone(),
        &["spec.l[1].n: Invalid value: 2: spec.l[1].n in body should be greater than or equal to 5"],
    );
    // The items of an atomic list are not compared one by one.
    let mut new = old.clone();
    new["spec"]["atomic"] = json!([1, 7]);
    check(
        new,
        old,
        &["spec.atomic[0]: Invalid value: 1: spec.atomic[0] in body should be greater than or equal to 5"],
    );
    assert_eq!(
        texts(&validate_status(
            &schema,
            &json!({"spec": {"n": 1}, "status": {"phase": "xyz"}}),
            &json!({"spec": {"n": 1}})
        )),
        ["status.phase: Too long: may not be more than 1 byte"],
    );
}
