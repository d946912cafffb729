//! OpenAPI v2, which kubectl reads where v3 does not help it: to check the items of a `List`, and for a kind that v3 does not know. One
//! document for everything, made from the schemas of v3 by leaving out what v2 cannot say.

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use serde_json::{Map, Value, json};

use super::super::negotiate;
use super::super::status::{Result, json_response};
use super::{META, custom_schemas, paths, protobuf};
use crate::kinds::openapi as schemas;
use crate::kinds::{Kinds, Origin};

const COMPONENTS: &str = "#/components/schemas/";
const DEFINITIONS: &str = "#/definitions/";
/// What a schema of v3 can say and one of v2 cannot.
const ONLY_V3: [&str; 6] = ["oneOf", "anyOf", "allOf", "not", "nullable", "x-kubernetes-validations"];

pub fn serve(kinds: &Kinds, headers: &HeaderMap) -> Result<Response> {
    let document = document(kinds);
    Ok(match negotiate::openapi_v2(headers)? {
        negotiate::OpenApiV2::Json => json_response(StatusCode::OK, document.to_string().into()),
        negotiate::OpenApiV2::Protobuf => {
            let headers = [(header::CONTENT_TYPE, negotiate::OPENAPI_V2_PROTOBUF)];
            (StatusCode::OK, headers, protobuf::document(&document)).into_response()
        }
    })
}

/// O(definitions): made when asked for, which kubectl does rarely.
fn document(kinds: &Kinds) -> Value {
    let meta = ["DeleteOptions", "Status", "ObjectMeta", "ListMeta"].map(|name| format!("{META}.{name}"));
    let mut roots: Vec<String> = meta.to_vec();
    let mut definitions = Map::new();
    let mut all_paths = Map::new();
    for kind in kinds.all() {
        all_paths.extend(paths(kind).into_iter().map(|(path, item)| (path, path_item(item))));
        match &kind.origin {
            Origin::Builtin(_) => {
                roots.extend([kind.definition.to_owned(), format!("{}List", kind.definition)]);
            }
            Origin::Custom(definition) => {
                let raw = definition.versions.iter().find(|(name, _)| *name == kind.version);
                let raw = raw.map(|(_, raw)| raw.clone()).unwrap_or_default();
                definitions
                    .extend(custom_schemas(kind, raw).into_iter().map(|(name, raw)| (name, schema(raw))));
            }
        }
    }
    let roots: Vec<&str> = roots.iter().map(String::as_str).collect();
    for name in schemas::closure(&roots) {
        let parsed = schemas::document(name).and_then(|text| serde_json::from_str(text).ok());
        definitions.insert(name.to_owned(), schema(parsed.unwrap_or_default()));
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": schemas::KUBERNETES},
        "paths": all_paths,
        "definitions": definitions,
    })
}

/// A parameter of v2 says its type itself.
fn path_item(mut item: Value) -> Value {
    for operation in item.as_object_mut().into_iter().flat_map(Map::values_mut) {
        let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
        for parameter in parameters.into_iter().flatten().filter_map(Value::as_object_mut) {
            if let Some(Value::Object(said)) = parameter.remove("schema") {
                parameter.extend(said);
            }
        }
    }
    item
}

/// A schema of v3 as v2 has it. Where kubectl could only misread a part, the part is left out and anything goes there.
fn schema(raw: Value) -> Value {
    let Value::Object(mut raw) = raw else { return json!({}) };
    if let Some(target) = reference(&raw) {
        raw.retain(|key, _| key == "description" || key.starts_with("x-kubernetes-"));
        raw.insert("$ref".to_owned(), target.into());
        return Value::Object(raw);
    }
    let flag = |key: &str| raw.get(key) == Some(&Value::Bool(true));
    let (nullable, preserves) = (flag("nullable"), flag("x-kubernetes-preserve-unknown-fields"));
    let either = raw.contains_key("oneOf") && !raw.contains_key("type");
    raw.retain(|key, _| !ONLY_V3.contains(&key.as_str()));
    if either {
        // A quantity, or a number that may be a name: v2 has no better word for both.
        raw.insert("type".to_owned(), "string".into());
    }
    if nullable || preserves {
        raw.remove("items");
        raw.remove("properties");
    }
    let array_of_anything = raw.get("type") == Some(&json!("array")) && !raw.contains_key("items");
    let object_of_anything = preserves && raw.get("type") == Some(&json!("object"));
    if nullable || array_of_anything || object_of_anything {
        raw.remove("type");
    }
    if let Some(Value::Object(properties)) = raw.remove("properties") {
        let can_be_null = |name: &str| {
            properties.get(name).and_then(|property| property.get("nullable")) == Some(&Value::Bool(true))
        };
        if let Some(required) = raw.get_mut("required").and_then(Value::as_array_mut) {
            required.retain(|name| !name.as_str().is_some_and(can_be_null));
        }
        let properties: Map<String, Value> =
            properties.into_iter().map(|(name, property)| (name, schema(property))).collect();
        raw.insert("properties".to_owned(), properties.into());
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner @ Value::Object(_)) = raw.get_mut(key) {
            *inner = schema(inner.take());
        }
    }
    Value::Object(raw)
}

/// What a schema that only refers to another refers to; v3 wraps it where there is more to say.
fn reference(raw: &Map<String, Value>) -> Option<String> {
    let wrapped = match raw.get("allOf").and_then(Value::as_array).map(Vec::as_slice) {
        Some([only]) => only.get("$ref"),
        _ => None,
    };
    let target = raw.get("$ref").or(wrapped)?.as_str()?.strip_prefix(COMPONENTS)?;
    Some(format!("{DEFINITIONS}{target}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(v3: Value, v2: Value) {
        assert_eq!(schema(v3.clone()), v2, "{v3}");
    }

    #[test]
    fn what_v2_cannot_say_is_left_out() {
        check(
            json!({"allOf": [{"$ref": "#/components/schemas/a.B"}], "default": {}, "description": "d"}),
            json!({"$ref": "#/definitions/a.B", "description": "d"}),
        );
        check(
            json!({"type": "array", "items": {"$ref": "#/components/schemas/a.B"}}),
            json!({"type": "array", "items": {"$ref": "#/definitions/a.B"}}),
        );
        check(
            json!({"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"}),
            json!({"type": "string", "format": "int-or-string"}),
        );
        check(
            json!({"type": "object", "required": ["a", "b"], "properties": {
                "a": {"type": "array", "nullable": true, "items": {"type": "string"}},
                "b": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"c": {}}},
            }, "x-kubernetes-validations": [{"rule": "true"}]}),
            json!({"type": "object", "required": ["b"], "properties": {
                "a": {}, "b": {"x-kubernetes-preserve-unknown-fields": true},
            }}),
        );
    }

    #[test]
    fn every_reference_leads_to_a_definition() {
        let document = document(&crate::kinds::Registry::new().builtin_kinds()).to_string();
        let all = document.match_indices("\"#/definitions/").filter_map(|(at, start)| {
            document.get(at + start.len()..)?.split_once('"').map(|(name, _)| name)
        });
        let mut count = 0;
        for name in all {
            count += 1;
            assert!(document.contains(&format!("\"{name}\":{{")), "{name}");
        }
        assert!(count > 300, "{count}");
        assert!(!document.contains(COMPONENTS));
    }
}
