//! Schemas that kube-apiserver refuses, and why.

use serde_json::{Value, json};

use super::super::{Node, SCHEMA_PATH, Subresource};
use super::{spec, texts};

/// `at` stands for the path of the schema in the expected messages.
fn check(schema: Value, want: &[&str]) {
    let got = match Node::parse(&schema) {
        Ok(_) => Vec::new(),
        Err(errors) => texts(&errors),
    };
    let want: Vec<String> = want.iter().map(|text| text.replace("at.", &format!("{SCHEMA_PATH}."))).collect();
    assert_eq!(got, want, "for {schema}");
}

#[test]
fn sound_schemas() {
    check(spec(json!({"a": {"type": "string"}})), &[]);
    check(
        spec(
            json!({"a": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}}),
        ),
        &[],
    );
    check(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}), &[]);
    check(
        json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}}}}}),
        &[],
    );
}

#[test]
fn types_are_required() {
    check(json!({}), &["at.type: Required value: must not be empty at the root"]);
    check(json!({"type": "string"}), &[r#"at.type: Invalid value: "string": must be object at the root"#]);
    check(
        json!({"type": "object", "properties": {"spec": {}}}),
        &["at.properties[spec].type: Required value: must not be empty for specified object fields"],
    );
    check(
        json!({"type": "object", "properties": {"spec": {"type": "array"}}}),
        &["at.properties[spec].items: Required value: must be specified"],
    );
    check(
        json!({"type": "object", "properties": {"spec": {"type": "array", "items": {}}}}),
        &["at.properties[spec].items.type: Required value: must not be empty for specified array items"],
    );
    check(
        spec(json!({"a": {"type": "text"}})),
        &[
            r#"at.properties[spec].properties[a].type: Unsupported value: "text": supported values: "array", "boolean", "integer", "number", "object", "string""#,
        ],
    );
    check(
        json!({"type": "object", "nullable": true}),
        &["at.nullable: Forbidden: nullable cannot be true at the root"],
    );
}

#[test]
fn junctors_only_narrow() {
    check(
        json!({"type": "object", "properties": {"a": {"type": "string", "anyOf": [{"type": "string", "description": "x", "default": "d"}]}}}),
        &[
            "at.properties[a].anyOf[0].default: Forbidden: must be undefined to be structural",
            "at.properties[a].anyOf[0].description: Forbidden: must be empty to be structural",
            "at.properties[a].anyOf[0].type: Forbidden: must be empty to be structural",
        ],
    );
    check(
        json!({"type": "object", "oneOf": [{"properties": {"b": {"minimum": 1}}}]}),
        &[
            "at.properties[b]: Required value: because it is defined in spec.validation.openAPIV3Schema.oneOf[0].properties[b]",
        ],
    );
}

#[test]
fn forbidden_constructs() {
    check(
        spec(json!({"a": {"type": "array", "uniqueItems": true, "items": {"type": "string"}}})),
        &[
            "at.properties[spec].properties[a].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ],
    );
    check(
        spec(
            json!({"a": {"type": "object", "additionalProperties": {"type": "string"}, "properties": {"b": {"type": "string"}}}}),
        ),
        &[
            "at.properties[spec].properties[a].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ],
    );
    check(
        spec(json!({"a": {"type": "object", "$ref": "#/x"}})),
        &["at.properties[spec].properties[a].$ref: Forbidden: $ref is not supported"],
    );
    check(
        json!({"type": "object", "additionalProperties": {"type": "string"}}),
        &["at.additionalProperties: Forbidden: must not be used at the root"],
    );
    check(
        json!({"type": "object", "properties": {"metadata": {"type": "object", "description": "x"}}}),
        &[
            "at.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
        ],
    );
    check(
        spec(json!({"a": {"type": "string", "pattern": "(?=x)"}})),
        &[
            r#"at.properties[spec].properties[a].pattern: Invalid value: "(?=x)": must be a valid regular expression, but isn't: error parsing regexp: invalid or unsupported Perl syntax: `(?=`"#,
        ],
    );
    check(
        spec(json!({"a": {"type": "object", "x-kubernetes-preserve-unknown-fields": false}})),
        &[
            "at.properties[spec].properties[a].x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined",
        ],
    );
}

#[test]
fn list_types() {
    let list = |extra: Value| {
        let mut schema = json!({"type": "array", "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "o": {"type": "object"}}}});
        for (name, value) in extra.as_object().unwrap() {
            schema[name] = value.clone();
        }
        spec(json!({"l": schema}))
    };
    check(list(json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]})), &[]);
    check(
        list(json!({"x-kubernetes-list-type": "map"})),
        &[
            "at.properties[spec].properties[l].x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
        ],
    );
    check(
        list(json!({"x-kubernetes-list-map-keys": ["name"]})),
        &[
            "at.properties[spec].properties[l].x-kubernetes-list-type: Required value: must be map if x-kubernetes-list-map-keys is non-empty",
        ],
    );
    check(
        list(
            json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["nope", "name", "name"]}),
        ),
        &[
            r#"at.properties[spec].properties[l].x-kubernetes-list-map-keys: Invalid value: ["nope","name","name"]: entries must all be names of item properties"#,
            r#"at.properties[spec].properties[l].x-kubernetes-list-map-keys: Invalid value: ["nope","name","name"]: must not contain duplicate entries"#,
        ],
    );
    check(
        list(json!({"x-kubernetes-list-type": "bag"})),
        &[
            r#"at.properties[spec].properties[l].x-kubernetes-list-type: Unsupported value: "bag": supported values: "atomic", "set", "map""#,
        ],
    );
    check(
        spec(
            json!({"l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "properties": {"k": {"type": "string"}}}}}),
        ),
        &[
            "at.properties[spec].properties[l].items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
        ],
    );
}

#[test]
fn defaults_must_be_acceptable() {
    check(
        spec(json!({"a": {"type": "integer", "default": "x"}})),
        &[
            r#"at.properties[spec].properties[a].default: Invalid value: "string":  in body must be of type integer: "string""#,
        ],
    );
    check(
        spec(json!({"a": {"type": "object", "default": {"b": 1}, "properties": {"c": {"type": "integer"}}}})),
        &[
            r#"at.properties[spec].properties[a].default: Invalid value: {"b":1}: must not have unknown fields"#,
        ],
    );
    check(
        json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "default": "x"}}}}}),
        &[
            "at.properties[metadata].properties[name].default: Forbidden: must not be set in top-level metadata",
        ],
    );
}

#[test]
fn the_root_beside_a_status() {
    let schema = json!({"type": "object", "anyOf": [{"required": ["spec"]}], "properties": {"spec": {"type": "object"}}});
    let errors = Node::parse_at(&schema, SCHEMA_PATH, Subresource::Status).unwrap_err();
    assert_eq!(errors.len(), 1);
    assert!(texts(&errors)[0].ends_with(
        "only [Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations] fields are allowed at the root of the schema if the status subresource is enabled"
    ));
}
