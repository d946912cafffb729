//! What kube-apiserver demands of the schema of a CustomResourceDefinition beside its being structural.

use std::collections::BTreeSet;

use serde_json::Value;

use super::cel;
use super::error::{FieldError, child, index, key};
use super::parse;
use super::props::{Additional, Items, Props};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// What holds for everything below a place.
#[derive(Clone, Default)]
struct Inherited {
    /// Why no default may be given here.
    defaults_forbidden: Option<String>,
    inside_metadata: bool,
}

pub(super) fn check(schema: Props<'_>, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    visit(schema, path, true, &Inherited::default(), &mut errors);
    errors
}

fn visit(schema: Props<'_>, path: &str, root: bool, inherited: &Inherited, errors: &mut Vec<FieldError>) {
    unsupported(schema, path, inherited, errors);
    if schema.flag("uniqueItems") {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.push(FieldError::forbidden(child(path, "uniqueItems"), detail));
    }
    children(schema, path, root, inherited, errors);
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        let place = child(path, "x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(place, false, "must be true or undefined"));
    }
    map_type(schema, path, errors);
    list_type(schema, path, errors);
    if schema.optional_text("x-kubernetes-list-type") == Some("map") {
        list_of_type_map(schema, path, errors);
    }
    keyed_items(schema, path, errors);
    rules(schema, path, errors);
}

fn unsupported(schema: Props<'_>, path: &str, inherited: &Inherited, errors: &mut Vec<FieldError>) {
    let kind = schema.kind();
    if !kind.is_empty() && !TYPES.contains(&kind) {
        errors.push(FieldError::not_supported(child(path, "type"), kind, &TYPES));
    }
    if let (Some(_), Some(reason)) = (schema.default(), &inherited.defaults_forbidden) {
        errors.push(FieldError::forbidden(child(path, "default"), format!("must not be set {reason}")));
    }
    for name in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        if schema.set_fields().any(|field| field == name) {
            errors.push(FieldError::forbidden(child(path, name), format!("{name} is not supported")));
        }
    }
    if kind == "null" {
        let detail = "type cannot be set to null, use nullable as an alternative";
        errors.push(FieldError::forbidden(child(path, "type"), detail));
    }
    if let Some(Items::Several(_)) = schema.items() {
        let detail = "items must be a schema object and not an array";
        errors.push(FieldError::forbidden(child(path, "items"), detail));
    }
    if inherited.inside_metadata && schema.flag("x-kubernetes-embedded-resource") {
        let place = child(path, "x-kubernetes-embedded-resource");
        errors.push(FieldError::forbidden(place, "must not be used inside of resource meta"));
    }
}

fn children(schema: Props<'_>, path: &str, root: bool, inherited: &Inherited, errors: &mut Vec<FieldError>) {
    let properties = schema.properties();
    let additional = schema.additional();
    if !properties.is_empty() && matches!(additional, Some(Additional::Schema(_) | Additional::Forbidden)) {
        let detail = "additionalProperties and properties are mutual exclusive";
        errors.push(FieldError::forbidden(child(path, "additionalProperties"), detail));
    }
    if let Some(Additional::Schema(values)) = additional {
        let mut below = inherited.clone();
        if inherited.inside_metadata {
            below.defaults_forbidden =
                Some("inside additionalProperties applying to object metadata".to_owned());
        }
        visit(values, &child(path, "additionalProperties"), false, &below, errors);
    }
    let resource = root || schema.flag("x-kubernetes-embedded-resource");
    for (name, property) in properties {
        let mut below = inherited.clone();
        if resource && matches!(name, "metadata" | "kind" | "apiVersion") {
            below.inside_metadata = true;
            if root {
                below.defaults_forbidden = Some(format!("in top-level {name}"));
            }
        }
        visit(property, &key(&child(path, "properties"), name), false, &below, errors);
    }
    if let Some(not) = schema.schema("not") {
        visit(not, &child(path, "not"), false, inherited, errors);
    }
    for junctor in ["allOf", "oneOf", "anyOf"] {
        for (position, branch) in schema.schemas(junctor).into_iter().enumerate() {
            visit(branch, &index(&child(path, junctor), position), false, inherited, errors);
        }
    }
    for (name, definition) in schema.named("definitions") {
        visit(definition, &key(&child(path, "definitions"), name), false, inherited, errors);
    }
    let items = child(path, "items");
    match schema.items() {
        None => {}
        Some(Items::One(item)) => visit(item, &items, false, inherited, errors),
        Some(Items::Several(several)) => {
            for (position, item) in several.into_iter().enumerate() {
                visit(item, &index(&items, position), false, inherited, errors);
            }
        }
    }
}

/// Complains if an extension stands on a schema of another type than it is for.
fn wrong_type(schema: Props<'_>, path: &str, wanted: &str, extension: &str) -> FieldError {
    let detail = format!("must be {wanted} if {extension} is specified");
    match schema.kind() {
        "" => FieldError::required(child(path, "type"), detail),
        kind => FieldError::invalid(child(path, "type"), kind, detail),
    }
}

fn map_type(schema: Props<'_>, path: &str, errors: &mut Vec<FieldError>) {
    let name = "x-kubernetes-map-type";
    let Some(map_type) = schema.optional_text(name) else { return };
    if schema.kind() != "object" {
        errors.push(wrong_type(schema, path, "object", name));
    }
    if !matches!(map_type, "atomic" | "granular") {
        errors.push(FieldError::not_supported(child(path, name), map_type, &["atomic", "granular"]));
    }
}

fn list_type(schema: Props<'_>, path: &str, errors: &mut Vec<FieldError>) {
    let name = "x-kubernetes-list-type";
    let keys = !schema.list("x-kubernetes-list-map-keys").is_empty();
    let must_be_map = "must be map if x-kubernetes-list-map-keys is non-empty";
    let Some(list_type) = schema.optional_text(name) else {
        if keys {
            errors.push(FieldError::required(child(path, name), must_be_map));
        }
        return;
    };
    if schema.kind() != "array" {
        errors.push(wrong_type(schema, path, "array", name));
    } else if let (Some(item), "set") = (schema.item(), list_type) {
        let must_be_atomic = "must be atomic as item of a list with x-kubernetes-list-type=set";
        let item_list_type = item.get(name).cloned().unwrap_or_default();
        let items = child(path, "items");
        if item.kind() == "array" && item.optional_text(name).is_some_and(|inner| inner != "atomic") {
            errors.push(FieldError::invalid(child(&items, name), item_list_type, must_be_atomic));
        } else if item.kind() == "object" && item.optional_text("x-kubernetes-map-type") != Some("atomic") {
            // kube-apiserver shows the list type here, although the map type is at fault.
            let place = child(&items, "x-kubernetes-map-type");
            errors.push(FieldError::invalid(place, item_list_type, must_be_atomic));
        }
    }
    if !matches!(list_type, "atomic" | "set" | "map") {
        errors.push(FieldError::not_supported(child(path, name), list_type, &["atomic", "set", "map"]));
    }
    if keys && list_type != "map" {
        errors.push(FieldError::invalid(child(path, name), list_type, must_be_map));
    }
}

fn list_of_type_map(schema: Props<'_>, path: &str, errors: &mut Vec<FieldError>) {
    let name = "x-kubernetes-list-map-keys";
    let place = child(path, name);
    let items = child(path, "items");
    if schema.list(name).is_empty() {
        errors
            .push(FieldError::required(place.as_str(), "must not be empty if x-kubernetes-list-type is map"));
    }
    if schema.items().is_none() {
        errors.push(FieldError::required(
            items.as_str(),
            "must have a schema if x-kubernetes-list-type is map",
        ));
    }
    let Some(item) = schema.item() else { return };
    if item.kind() != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(child(&items, "type"), item.kind(), detail));
        return;
    }
    let all_keys = schema.get(name).cloned().unwrap_or_default();
    let mut seen = BTreeSet::new();
    for key_name in schema.texts(name) {
        match item.property(key_name) {
            Some(property) if matches!(property.kind(), "array" | "object") => {
                let place = child(&key(&child(&items, "properties"), key_name), "type");
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.push(FieldError::invalid(place, item.kind(), detail));
            }
            Some(_) => {}
            None => {
                let detail = "entries must all be names of item properties";
                errors.push(FieldError::invalid(place.as_str(), all_keys.clone(), detail));
            }
        }
        if !seen.insert(key_name) {
            let detail = "must not contain duplicate entries";
            errors.push(FieldError::invalid(place.as_str(), all_keys.clone(), detail));
        }
    }
}

/// Items that are told apart by themselves or by their keys must have both.
fn keyed_items(schema: Props<'_>, path: &str, errors: &mut Vec<FieldError>) {
    let Some(list_type) = schema.optional_text("x-kubernetes-list-type") else { return };
    let Some(item) = schema.item().filter(|_| matches!(list_type, "set" | "map")) else { return };
    let items = child(path, "items");
    if item.flag("nullable") {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.push(FieldError::forbidden(child(&items, "nullable"), detail));
    }
    if list_type != "map" {
        return;
    }
    let required = item.texts("required");
    for key_name in schema.texts("x-kubernetes-list-map-keys") {
        let Some(property) = item.property(key_name) else { continue };
        let place = key(&child(&items, "properties"), key_name);
        if !required.contains(&key_name) && property.default().is_none() {
            errors.push(FieldError::required(
                child(&place, "default"),
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            ));
        }
        if property.flag("nullable") {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(FieldError::forbidden(child(&place, "nullable"), detail));
        }
    }
}

/// The form of the rules; whether they compile is asked once the schema is sound.
fn rules(schema: Props<'_>, path: &str, errors: &mut Vec<FieldError>) {
    for (position, rule) in schema.schemas("x-kubernetes-validations").into_iter().enumerate() {
        let place = index(&child(path, "x-kubernetes-validations"), position);
        let at = |name: &str| child(&place, name);
        let breaks = |text: &str| text.contains(['\n', '\r']);
        let (text, message) = (rule.text("rule").trim(), rule.text("message"));
        if text.is_empty() {
            errors.push(FieldError::required(at("rule"), "rule is not specified"));
        } else if !message.is_empty() && message.trim().is_empty() {
            errors.push(FieldError::invalid(at("message"), message, "must be non-empty if specified"));
        } else if breaks(message.trim()) {
            errors.push(FieldError::invalid(at("message"), message, "must not contain line breaks"));
        } else if breaks(text) && message.is_empty() {
            let detail = "message must be specified if rule contains line breaks";
            errors.push(FieldError::required(at("message"), detail));
        }
        let expression = rule.text("messageExpression");
        if !expression.is_empty() && expression.trim().is_empty() {
            let detail = "messageExpression must be non-empty if specified";
            errors.push(FieldError::required(at("messageExpression"), detail));
        }
        if let Some(reason) = rule.optional_text("reason").filter(|reason| !REASONS.contains(reason)) {
            errors.push(FieldError::not_supported(at("reason"), reason, &REASONS));
        }
        let field_path = rule.text("fieldPath");
        if field_path.is_empty() {
            continue;
        }
        if field_path.trim().is_empty() {
            errors.push(FieldError::invalid(at("fieldPath"), field_path, "must be non-empty if specified"));
        }
        if breaks(field_path) {
            errors.push(FieldError::invalid(at("fieldPath"), field_path, "must not contain line breaks"));
        }
        if cel::field_path(&parse::build(schema), field_path).is_none() {
            errors.push(FieldError::invalid(at("fieldPath"), field_path, "must be a valid path"));
        }
    }
}
