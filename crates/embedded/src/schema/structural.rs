//! Whether a schema is structural: every place has a type of its own, and junctors only narrow what is specified outside them.

use super::error::{FieldError, child, index, key};
use super::pattern;
use super::props::{Additional, Props};

/// The faults of a schema, in the order of their messages.
pub(super) fn check(schema: Props<'_>, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    invariants(schema, Level::Root, path, &mut errors);
    completeness(schema, Some(schema), path, path, &mut errors);
    errors.sort_by_cached_key(ToString::to_string);
    errors
}

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

fn invariants(schema: Props<'_>, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    let at = |name: &str| child(path, name);
    let kind = schema.kind();
    if kind == "array" && schema.items().is_none() {
        errors.push(FieldError::required(at("items"), "must be specified"));
    }
    if let Some(items) = schema.item() {
        invariants(items, Level::Item, &at("items"), errors);
    }
    for (name, property) in schema.properties() {
        invariants(property, Level::Field, &key(&at("properties"), name), errors);
    }
    let additional = schema.additional();
    if additional.is_some() && level == Level::Root {
        errors.push(FieldError::forbidden(at("additionalProperties"), "must not be used at the root"));
    }
    if let Some(Additional::Schema(values)) = &additional {
        invariants(*values, Level::Field, &at("additionalProperties"), errors);
    }
    extensions(schema, path, errors);
    value_validations(schema, SkipIntOrString::of(schema), path, errors);

    let embedded = schema.flag("x-kubernetes-embedded-resource");
    let preserve = schema.flag("x-kubernetes-preserve-unknown-fields");
    if embedded && kind != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(match kind.is_empty() {
            true => FieldError::required(at("type"), detail),
            false => FieldError::invalid(at("type"), kind, detail),
        });
    } else if kind.is_empty() && !schema.flag("x-kubernetes-int-or-string") && !preserve {
        errors.push(FieldError::required(
            at("type"),
            match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            },
        ));
    }
    if embedded && additional.is_some() {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(FieldError::forbidden(at("additionalProperties"), detail));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid(at("type"), kind, "must be object at the root"));
    }
    resource_fields(schema, level, path, errors);
    if embedded && !preserve && schema.properties().is_empty() {
        errors.push(FieldError::required(
            at("properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ));
    }
}

/// `kind`, `apiVersion` and `metadata` are the server's where a resource begins: a schema may say little about them.
fn resource_fields(schema: Props<'_>, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    let resource = level == Level::Root || schema.flag("x-kubernetes-embedded-resource");
    let property_path = |name: &str| key(&child(path, "properties"), name);
    for name in ["kind", "apiVersion"] {
        if let Some(property) =
            schema.property(name).filter(|property| resource && property.kind() != "string")
        {
            let place = child(&property_path(name), "type");
            errors.push(FieldError::invalid(place, property.kind(), "must be string"));
        }
    }
    let Some(metadata) = schema.property("metadata") else { return };
    if resource && metadata.kind() != "object" {
        let place = child(&property_path("metadata"), "type");
        errors.push(FieldError::invalid(place, metadata.kind(), "must be object"));
    }
    let narrows_names =
        metadata.properties().iter().all(|(name, _)| matches!(*name, "name" | "generateName"));
    let other = metadata
        .set_fields()
        .any(|field| !(matches!(field, "type" | "default") || (field == "properties" && narrows_names)));
    if level == Level::Root && other {
        errors.push(FieldError::forbidden(
            property_path("metadata"),
            "must not specify anything other than name and generateName, but metadata is implicitly specified",
        ));
    }
}

fn extensions(schema: Props<'_>, path: &str, errors: &mut Vec<FieldError>) {
    if !schema.flag("x-kubernetes-int-or-string") {
        return;
    }
    for name in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
        if schema.flag(name) {
            let detail = "must be false if x-kubernetes-int-or-string is true";
            errors.push(FieldError::invalid(child(path, name), true, detail));
        }
    }
}

/// The two ways in which int-or-string may be spelled out with junctors, where types are forbidden otherwise.
#[derive(Clone, Copy, Default)]
struct SkipIntOrString {
    any_of: bool,
    first_all_of: bool,
}

impl SkipIntOrString {
    fn of(schema: Props<'_>) -> Self {
        let first_all_of = schema.schemas("allOf").first().is_some_and(|first| is_int_or_string(*first));
        Self { any_of: is_int_or_string(schema), first_all_of }
    }
}

fn is_int_or_string(schema: Props<'_>) -> bool {
    let only_type =
        |branch: &Props<'_>, kind: &str| branch.kind() == kind && branch.set_fields().count() == 1;
    match schema.schemas("anyOf").as_slice() {
        [integer, string] => only_type(integer, "integer") && only_type(string, "string"),
        _ => false,
    }
}

fn value_validations(schema: Props<'_>, skip: SkipIntOrString, path: &str, errors: &mut Vec<FieldError>) {
    if !skip.any_of {
        for (position, branch) in schema.schemas("anyOf").into_iter().enumerate() {
            nested(branch, SkipIntOrString::default(), &index(&child(path, "anyOf"), position), errors);
        }
    }
    for (position, branch) in schema.schemas("allOf").into_iter().enumerate() {
        let skip = SkipIntOrString { any_of: skip.first_all_of && position == 0, first_all_of: false };
        nested(branch, skip, &index(&child(path, "allOf"), position), errors);
    }
    for (position, branch) in schema.schemas("oneOf").into_iter().enumerate() {
        nested(branch, SkipIntOrString::default(), &index(&child(path, "oneOf"), position), errors);
    }
    if let Some(branch) = schema.schema("not") {
        nested(branch, SkipIntOrString::default(), &child(path, "not"), errors);
    }
    let text = schema.text("pattern");
    if let (false, Err(error)) = (text.is_empty(), pattern::compile(text)) {
        let detail = format!("must be a valid regular expression, but isn't: {error}");
        errors.push(FieldError::invalid(child(path, "pattern"), text, detail));
    }
}

fn nested(schema: Props<'_>, skip: SkipIntOrString, path: &str, errors: &mut Vec<FieldError>) {
    let at = |name: &str| child(path, name);
    value_validations(schema, skip, path, errors);
    if let Some(items) = schema.item() {
        nested(items, SkipIntOrString::default(), &at("items"), errors);
    }
    for (name, property) in schema.properties() {
        nested(property, SkipIntOrString::default(), &key(&at("properties"), name), errors);
    }
    let mut forbid = |name: &str, set: bool, detail: &str| {
        if set {
            errors.push(FieldError::forbidden(child(path, name), detail));
        }
    };
    forbid("type", !schema.kind().is_empty(), "must be empty to be structural");
    let additional = matches!(schema.additional(), Some(Additional::Schema(_) | Additional::Allowed));
    forbid("additionalProperties", additional, "must be undefined to be structural");
    forbid("default", schema.default().is_some(), "must be undefined to be structural");
    forbid("title", !schema.text("title").is_empty(), "must be empty to be structural");
    forbid("description", !schema.text("description").is_empty(), "must be empty to be structural");
    for name in [
        "nullable",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
    ] {
        forbid(name, schema.flag(name), "must be false to be structural");
    }
    let keys = "x-kubernetes-list-map-keys";
    forbid(keys, !schema.list(keys).is_empty(), "must be empty to be structural");
    for name in ["x-kubernetes-list-type", "x-kubernetes-map-type"] {
        forbid(name, schema.get(name).is_some(), "must be undefined to be structural");
    }
    let rules = "x-kubernetes-validations";
    forbid(rules, !schema.list(rules).is_empty(), "must be empty to be structural");
    if schema.property("metadata").is_some() {
        let place = key(&at("properties"), "metadata");
        errors.push(FieldError::forbidden(place, "must not be specified in a nested context"));
    }
}

/// What a junctor speaks of must be specified outside it.
fn completeness(
    narrowing: Props<'_>,
    schema: Option<Props<'_>>,
    schema_path: &str,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let mut branch =
        |branch: Props<'_>, path: String| nested_completeness(branch, schema, schema_path, &path, errors);
    if let Some(not) = narrowing.schema("not") {
        branch(not, child(path, "not"));
    }
    for junctor in ["allOf", "anyOf", "oneOf"] {
        for (position, alternative) in narrowing.schemas(junctor).into_iter().enumerate() {
            branch(alternative, index(&child(path, junctor), position));
        }
    }
}

fn nested_completeness(
    narrowing: Props<'_>,
    schema: Option<Props<'_>>,
    schema_path: &str,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let Some(outside) = schema else {
        errors.push(FieldError::required(schema_path, format!("because it is defined in {path}")));
        return;
    };
    completeness(narrowing, schema, schema_path, path, errors);
    if let Some(items) = narrowing.item() {
        nested_completeness(
            items,
            outside.item(),
            &child(schema_path, "items"),
            &child(path, "items"),
            errors,
        );
    }
    for (name, property) in narrowing.properties() {
        let schema_path = key(&child(schema_path, "properties"), name);
        let path = key(&child(path, "properties"), name);
        nested_completeness(property, outside.property(name), &schema_path, &path, errors);
    }
}
