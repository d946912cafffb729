//! Input that nobody means well: nothing of it may panic, overflow the stack, or run for long.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::parse::build;
use super::super::props::Props;
use super::super::{Definitions, Node, default, malformed, prune, validate, validate_status};
use super::{node, spec, texts};

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-c.\\[\\]'\\PC]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((field_name(), inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Names that schemas and resources use, so that random values often hit them.
fn field_name() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "a",
            "b",
            "metadata",
            "name",
            "labels",
            "apiVersion",
            "kind",
            "spec",
            "status",
            "type",
            "properties",
            "items",
            "additionalProperties",
            "default",
            "pattern",
            "format",
            "enum",
            "required",
            "anyOf",
            "oneOf",
            "allOf",
            "not",
            "nullable",
            "minimum",
            "maxLength",
            "x-kubernetes-list-type",
            "x-kubernetes-list-map-keys",
            "x-kubernetes-validations",
            "rule",
            "messageExpression",
            "fieldPath",
            "x-kubernetes-embedded-resource",
            "x-kubernetes-int-or-string",
            "x-kubernetes-preserve-unknown-fields",
            "$ref",
        ])
        .prop_map(str::to_owned),
        "\\PC{0,4}",
    ]
}

fn schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        ("[a-z()\\[\\]*+?{}\\\\^$.|\\-0-9]{0,8}", prop::option::of(0u64..4)).prop_map(|(pattern, length)| {
            json!({"type": "string", "pattern": pattern, "maxLength": length})
        }),
        (any::<f64>(), any::<f64>()).prop_map(|(low, step)| {
            json!({"type": "number", "minimum": low, "multipleOf": step, "exclusiveMinimum": true})
        }),
        any::<i64>().prop_map(
            |high| json!({"type": "integer", "format": "int32", "maximum": high, "nullable": true})
        ),
        prop::sample::select(vec![
            "date-time",
            "duration",
            "email",
            "uri",
            "hostname",
            "uuid",
            "byte",
            "ipv6",
            "isbn"
        ])
        .prop_map(|format| json!({"type": "string", "format": format})),
        Just(json!({"x-kubernetes-int-or-string": true})),
        Just(json!({"type": "boolean", "default": true})),
        Just(
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true})
        ),
        value().prop_map(|default| json!({"type": "string", "default": default})),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec((field_name(), inner.clone()), 0..4).prop_map(|properties| {
                json!({"type": "object", "properties": Value::Object(properties.into_iter().collect())})
            }),
            (inner.clone(), prop::sample::select(vec!["atomic", "set"])).prop_map(
                |(items, list)| json!({"type": "array", "items": items, "x-kubernetes-list-type": list})
            ),
            inner.prop_map(
                |values| json!({"type": "object", "additionalProperties": values, "maxProperties": 2})
            ),
        ]
    })
}

/// Everything that is done with a schema, done to it.
fn use_schema(schema: &Value, mut new: Value, old: &Value) {
    let Ok(node) = Node::parse(schema) else { return };
    malformed(&node, &new);
    validate(&node, &new, None);
    prune(&node, &mut new);
    assert_eq!(prune(&node, &mut new), Vec::<String>::new(), "what was pruned once has nothing unknown left");
    default(&node, &mut new);
    let defaulted = new.clone();
    default(&node, &mut new);
    assert_eq!(new, defaulted, "defaults are filled in once");
    validate(&node, &new, Some(old));
    validate_status(&node, &new, old);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_schemas_never_panic(schema in value(), new in value(), old in value()) {
        use_schema(&schema, new, &old);
        let _ = Definitions::parse(&schema);
    }

    #[test]
    fn random_objects_never_panic(inner in schema(), new in value(), old in value()) {
        let schema = json!({"type": "object", "properties": {"spec": inner}});
        use_schema(&schema, json!({"spec": new}), &json!({"spec": old}));
    }

    #[test]
    fn random_rules_never_panic(words in prop::collection::vec(prop::sample::select(vec![
        "self", "oldSelf", ".a", ".l", ".m", ".?a", "(", ")", "[", "]", "{", "}", "'x'", "1", "2u", "1.5", "-", "!", "+", "*", "/",
        "%", "==", "<", "&&", "||", "?", ":", ",", " in ", "x", "has(", ".all(x, ", ".map(x, ", ".exists(i, x, ", ".size()",
        ".matches(", "type(", "duration(", "quantity(", ".orValue(", "true", "null", "ip(", ".format(", ".split(",
    ]), 0..12), new in value()) {
        let schema = spec(json!({"v": {
            "type": "object",
            "properties": {
                "a": {"type": "integer"}, "m": {"type": "object", "additionalProperties": {"type": "string"}},
                "l": {"type": "array", "items": {"x-kubernetes-int-or-string": true}},
            },
            "x-kubernetes-validations": [{"rule": words.concat(), "message": "m"}],
        }}));
        use_schema(&schema, json!({"spec": {"v": new}}), &json!({"spec": {"v": {"a": 1, "l": [1, "x"], "m": {"k": "v"}}}}));
    }
}

/// Rules that work on a list, and what they say of it.
/// Some of these rules would be refused with their definition; here they run all the same, as they would if an estimate were wrong.
fn check_rule(rule: &str, list: Value, want: &str) {
    let started = Instant::now();
    let schema = spec(json!({"l": {
        "type": "array", "items": {"type": "integer"}, "x-kubernetes-validations": [{"rule": rule, "message": "m"}],
    }}));
    let schema = build(Props::of(&schema).unwrap());
    let errors = texts(&validate(&schema, &json!({"spec": {"l": list}}), None));
    assert_eq!(errors, [want], "{rule}");
    // Without a budget it would take hours.
    assert!(started.elapsed() < Duration::from_secs(300), "{rule} took {:?}", started.elapsed());
}

#[test]
fn rules_have_a_budget() {
    let many: Value = (0..3000).collect::<Vec<i64>>().into();
    check_rule(
        "self.all(a, self.all(b, self.all(c, a + b + c >= 0)))",
        many.clone(),
        "spec.l: Invalid value: \"array\": 'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost exceeds limit for rule: m",
    );
    // Growing lists is counted by what is copied.
    check_rule(
        "self.map(a, self + self).size() == 0",
        many.clone(),
        "spec.l: Invalid value: \"array\": 'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost exceeds limit for rule: m",
    );
    // So are patterns that differ each time.
    check_rule(
        "self.all(a, 'x'.matches('(x{1,1000}){1,5}' + string(a)) || true)",
        many.clone(),
        "spec.l: Invalid value: \"array\": 'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost exceeds limit for rule: m",
    );
    // Loops that end early cost what they did, not what they might have done.
    check_rule("!self.all(a, self.exists(b, b == 0))", many, "spec.l: Invalid value: m");
}

#[test]
fn rules_have_a_depth_and_a_length() {
    let check = |rule: String| {
        let schema = spec(
            json!({"n": {"type": "integer", "x-kubernetes-validations": [{"rule": rule, "message": "m"}]}}),
        );
        assert!(Node::parse(&schema).is_err());
    };
    check(format!("self{} > 0", " + self".repeat(1000)));
    check(format!("{}self{} > 0", "(".repeat(2000), ")".repeat(2000)));
    check(format!("self > 0{}", " || self > 0".repeat(2000)));
    // What is just accepted can be evaluated, too.
    let rule = format!("self{} > 1000", " + self".repeat(90));
    let schema = node(spec(
        json!({"n": {"type": "integer", "x-kubernetes-validations": [{"rule": rule, "message": "m"}]}}),
    ));
    assert_eq!(texts(&validate(&schema, &json!({"spec": {"n": 1}}), None)), ["spec.n: Invalid value: 1: m"]);
}

#[test]
fn schemas_have_a_depth() {
    let mut schema = json!({"type": "string"});
    for _ in 0..400 {
        schema = json!({"type": "array", "items": schema});
    }
    let schema = json!({"type": "object", "properties": {"a": schema}});
    assert_eq!(
        texts(&Node::parse(&schema).unwrap_err()),
        [r#"spec.validation.openAPIV3Schema: Invalid value: "": the schema is nested too deeply"#]
    );
}
