//! From the schema of a CustomResourceDefinition to a [`Node`], if kube-apiserver would accept it.

use std::sync::Arc;

use serde_json::Value;

use super::cel;
use super::error::{FieldError, child, key};
use super::meta;
use super::node::{ListType, MapType, Node, Rule, Type};
use super::props::{Additional, Items, Props};
use super::prune;
use super::validate;
use super::wording::MAX_DEPTH;
use super::{openapi, structural};

/// Where kube-apiserver places the schema that all versions of a definition share.
pub const SCHEMA_PATH: &str = "spec.validation.openAPIV3Schema";

/// Whether the version of the definition has the `status` subresource, which narrows what its root may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subresource {
    Status,
    None,
}

impl Node {
    /// Reads the `openAPIV3Schema` of a definition, or says what is wrong with it as kube-apiserver says it.
    pub fn parse(schema: &Value) -> Result<Arc<Node>, Vec<FieldError>> {
        Self::parse_at(schema, SCHEMA_PATH, Subresource::None)
    }

    /// The same for a schema that stands elsewhere, such as at `spec.versions[1].schema.openAPIV3Schema`.
    pub fn parse_at(
        schema: &Value,
        path: &str,
        subresource: Subresource,
    ) -> Result<Arc<Node>, Vec<FieldError>> {
        if depth_exceeds(schema, MAX_DEPTH) {
            return Err(vec![FieldError::invalid(path, "", "the schema is nested too deeply")]);
        }
        let Some(props) = Props::of(schema) else {
            return Err(vec![FieldError::invalid(path, schema.clone(), "must be an object")]);
        };
        let mut errors = root_faults(props, schema, path, subresource);
        let structural_faults = structural::check(props, path);
        let sound = structural_faults.is_empty() && is_convertible(props);
        errors.extend(structural_faults);
        let node = build(props);
        if sound {
            default_faults(props, &node, path, DefaultPlace::Root, &mut errors);
        }
        errors.extend(openapi::check(props, path));
        if errors.is_empty() {
            errors.extend(cel::compile_faults(&node, path));
        }
        if errors.is_empty() { Ok(Arc::new(node)) } else { Err(errors) }
    }
}

/// Measures without recursion, because the measured may be deeper than the stack.
fn depth_exceeds(value: &Value, limit: usize) -> bool {
    let mut pending = vec![(value, 0)];
    while let Some((value, depth)) = pending.pop() {
        if depth > limit {
            return true;
        }
        match value {
            Value::Array(items) => pending.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(fields) => pending.extend(fields.values().map(|field| (field, depth + 1))),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    false
}

/// The fields that the root may have beside a status subresource, under Kubernetes' own names for them.
const ROOT_FIELDS: [(&str, &str); 22] = [
    ("Description", "description"),
    ("Type", "type"),
    ("Format", "format"),
    ("Title", "title"),
    ("Maximum", "maximum"),
    ("ExclusiveMaximum", "exclusiveMaximum"),
    ("Minimum", "minimum"),
    ("ExclusiveMinimum", "exclusiveMinimum"),
    ("MaxLength", "maxLength"),
    ("MinLength", "minLength"),
    ("Pattern", "pattern"),
    ("MaxItems", "maxItems"),
    ("MinItems", "minItems"),
    ("UniqueItems", "uniqueItems"),
    ("MultipleOf", "multipleOf"),
    ("Required", "required"),
    ("Items", "items"),
    ("Properties", "properties"),
    ("ExternalDocs", "externalDocs"),
    ("Example", "example"),
    ("XPreserveUnknownFields", "x-kubernetes-preserve-unknown-fields"),
    ("XValidations", "x-kubernetes-validations"),
];

fn root_faults(props: Props<'_>, schema: &Value, path: &str, subresource: Subresource) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if subresource == Subresource::Status {
        let kind = props.kind();
        let other = props.set_fields().any(|field| ROOT_FIELDS.iter().all(|(_, allowed)| *allowed != field));
        if !kind.is_empty() && kind != "object" {
            errors.push(FieldError::invalid(
                child(path, "type"),
                kind,
                "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled",
            ));
        } else if other {
            let names: Vec<&str> = ROOT_FIELDS.iter().map(|(name, _)| *name).collect();
            let detail = format!(
                "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
                names.join(" ")
            );
            errors.push(FieldError::invalid(path, schema.clone(), detail));
        }
    }
    if props.flag("nullable") {
        errors.push(FieldError::forbidden(child(path, "nullable"), "nullable cannot be true at the root"));
    }
    errors
}

/// Constructs that have no structural form; the check of the whole reports each of them by name.
fn is_convertible(props: Props<'_>) -> bool {
    let unsupported =
        ["id", "$schema", "$ref", "patternProperties", "dependencies", "additionalItems", "definitions"];
    let here = !props.set_fields().any(|field| unsupported.contains(&field))
        && !matches!(props.items(), Some(Items::Several(_)));
    here && props.properties().into_iter().all(|(_, property)| is_convertible(property))
        && props.item().is_none_or(is_convertible)
        && props.additional_schema().is_none_or(is_convertible)
}

/// The depth of a schema was measured before.
pub(super) fn build(props: Props<'_>) -> Node {
    let branches =
        |name: &str| props.schemas(name).into_iter().map(|branch| Arc::new(build(branch))).collect();
    Node {
        properties: props
            .properties()
            .into_iter()
            .map(|(name, property)| (name.to_owned(), Arc::new(build(property))))
            .collect(),
        additional: match props.additional() {
            Some(Additional::Schema(values)) => Some(Arc::new(build(values))),
            // Anything goes, null too.
            Some(Additional::Allowed | Additional::Forbidden) => {
                Some(Arc::new(Node { nullable: true, ..Node::default() }))
            }
            None => None,
        },
        additional_forbidden: matches!(props.additional(), Some(Additional::Forbidden)),
        items: props.item().map(|item| Arc::new(build(item))),
        all_of: branches("allOf"),
        any_of: branches("anyOf"),
        one_of: branches("oneOf"),
        not: props.schema("not").map(|not| Arc::new(build(not))),
        validations: props.schemas("x-kubernetes-validations").into_iter().map(rule).collect(),
        ..scalars(props)
    }
}

/// Everything of a schema but the schemas within it.
pub(super) fn scalars(props: Props<'_>) -> Node {
    let text = |name: &str| Some(props.text(name)).filter(|text| !text.is_empty()).map(str::to_owned);
    let texts = |name: &str| props.texts(name).into_iter().map(str::to_owned).collect();
    Node {
        kind: Type::named(props.kind()),
        description: text("description"),
        required: texts("required"),
        default: props.default().cloned(),
        nullable: props.flag("nullable"),
        format: text("format"),
        pattern: text("pattern"),
        enumeration: props.list("enum").to_vec(),
        minimum: props.number("minimum"),
        maximum: props.number("maximum"),
        exclusive_minimum: props.flag("exclusiveMinimum"),
        exclusive_maximum: props.flag("exclusiveMaximum"),
        multiple_of: props.number("multipleOf"),
        min_length: props.count("minLength"),
        max_length: props.count("maxLength"),
        min_items: props.count("minItems"),
        max_items: props.count("maxItems"),
        unique_items: props.flag("uniqueItems"),
        min_properties: props.count("minProperties"),
        max_properties: props.count("maxProperties"),
        int_or_string: props.flag("x-kubernetes-int-or-string"),
        preserve_unknown: props.flag("x-kubernetes-preserve-unknown-fields"),
        embedded_resource: props.flag("x-kubernetes-embedded-resource"),
        list_type: match props.text("x-kubernetes-list-type") {
            "set" => ListType::Set,
            "map" => ListType::Map,
            _ => ListType::Atomic,
        },
        list_map_keys: texts("x-kubernetes-list-map-keys"),
        map_type: match props.text("x-kubernetes-map-type") {
            "atomic" => MapType::Atomic,
            _ => MapType::Granular,
        },
        ..Node::default()
    }
}

fn rule(props: Props<'_>) -> Rule {
    let text = |name: &str| Some(props.text(name)).filter(|text| !text.is_empty()).map(str::to_owned);
    Rule {
        rule: props.text("rule").to_owned(),
        message: text("message"),
        message_expression: text("messageExpression"),
        reason: text("reason"),
        field_path: text("fieldPath"),
        optional_old_self: props.flag("optionalOldSelf"),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum DefaultPlace {
    Root,
    Inside,
    /// Within the metadata of a resource, where what is not known is pruned by the server's own schema.
    Metadata,
}

/// A default must be acceptable itself, and must survive pruning.
fn default_faults(
    props: Props<'_>,
    node: &Node,
    path: &str,
    place: DefaultPlace,
    errors: &mut Vec<FieldError>,
) {
    if let Some(default) = &node.default {
        let at = child(path, "default");
        let before = errors.len();
        if place != DefaultPlace::Metadata {
            let mut pruned = default.clone();
            prune::prune_default(node, &mut pruned);
            if pruned != *default {
                errors.push(FieldError::invalid(
                    at.as_str(),
                    default.clone(),
                    "must not have unknown fields",
                ));
            }
            if let (true, Some(fields)) = (node.embedded_resource, default.as_object()) {
                errors.extend(meta::validate_resource(&at, fields));
            }
        }
        if errors.len() == before {
            errors.extend(validate::check_values(node, default, None, &at));
        }
        if errors.len() == before {
            errors.extend(cel::check_default(node, default, &at));
        }
    }
    if let (Some(item), Some(item_node)) = (props.item(), &node.items) {
        let below = if place == DefaultPlace::Metadata { place } else { DefaultPlace::Inside };
        default_faults(item, item_node, &child(path, "items"), below, errors);
    }
    let resource = place == DefaultPlace::Root || node.embedded_resource;
    for (name, property) in props.properties() {
        let Some(property_node) = node.properties.get(name) else { continue };
        let below = match (resource && matches!(name, "metadata" | "apiVersion" | "kind"), place) {
            (true, _) | (false, DefaultPlace::Metadata) => DefaultPlace::Metadata,
            (false, DefaultPlace::Root | DefaultPlace::Inside) => DefaultPlace::Inside,
        };
        default_faults(property, property_node, &key(&child(path, "properties"), name), below, errors);
    }
}
