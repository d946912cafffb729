//! The metadata that every resource carries, where a resource is embedded in another: its known fields, and whether they are
//! acceptable. The metadata of stored objects is the business of `http`.

use std::sync::{Arc, LazyLock};

use regex::Regex;
use serde_json::{Map, Value};

use super::error::{FieldError, child};
use super::node::{Node, Type};
use super::prune::prune_below;
use super::wording;

static OBJECT_META: LazyLock<Node> = LazyLock::new(|| {
    let text = || of(Type::String);
    let texts = || Node { kind: Some(Type::Object), additional: Some(Arc::new(text())), ..Node::default() };
    let owner = object([
        ("apiVersion", text()),
        ("blockOwnerDeletion", of(Type::Boolean)),
        ("controller", of(Type::Boolean)),
        ("kind", text()),
        ("name", text()),
        ("uid", text()),
    ]);
    let manager = object([
        ("apiVersion", text()),
        ("fieldsType", text()),
        ("fieldsV1", Node { preserve_unknown: true, ..of(Type::Object) }),
        ("manager", text()),
        ("operation", text()),
        ("subresource", text()),
        ("time", text()),
    ]);
    object([
        ("annotations", texts()),
        ("creationTimestamp", text()),
        ("deletionGracePeriodSeconds", of(Type::Integer)),
        ("deletionTimestamp", text()),
        ("finalizers", list(text())),
        ("generateName", text()),
        ("generation", of(Type::Integer)),
        ("labels", texts()),
        ("managedFields", list(manager)),
        ("name", text()),
        ("namespace", text()),
        ("ownerReferences", list(owner)),
        ("resourceVersion", text()),
        ("selfLink", text()),
        ("uid", text()),
    ])
});

fn of(kind: Type) -> Node {
    Node { kind: Some(kind), ..Node::default() }
}

fn list(items: Node) -> Node {
    Node { items: Some(Arc::new(items)), ..of(Type::Array) }
}

fn object<const N: usize>(fields: [(&str, Node); N]) -> Node {
    let properties = fields.into_iter().map(|(name, node)| (name.to_owned(), Arc::new(node))).collect();
    Node { properties, ..of(Type::Object) }
}

/// Removes what no metadata has, and says what that was.
pub(super) fn prune(metadata: &mut Value, path: &str) -> Vec<String> {
    prune_below(&OBJECT_META, metadata, path)
}

/// What of an embedded resource cannot be read, because its type is another.
pub(super) fn misread_resource(path: &str, fields: &Map<String, Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for name in ["apiVersion", "kind"] {
        if let Some(value) = fields.get(name).filter(|value| !value.is_string()) {
            errors.push(FieldError::invalid(child(path, name), value.clone(), "must be a string"));
        }
    }
    if let Some(metadata) = fields.get("metadata")
        && let Some(detail) = mistyped(&OBJECT_META, metadata, "", "ObjectMeta")
    {
        errors.push(FieldError::invalid(child(path, "metadata"), metadata.clone(), detail));
    }
    errors
}

/// Whether an embedded resource has a version, a kind and acceptable metadata.
pub(super) fn validate_resource(path: &str, fields: &Map<String, Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let api_version = child(path, "apiVersion");
    match fields.get("apiVersion") {
        None => errors.push(FieldError::required(api_version, "")),
        Some(Value::String(text)) if text.is_empty() => {
            errors.push(FieldError::invalid(api_version, "", "must not be empty"));
        }
        Some(Value::String(text)) if text.matches('/').count() > 1 => {
            let detail = format!("unexpected GroupVersion string: {text}");
            errors.push(FieldError::invalid(api_version, text.as_str(), detail));
        }
        Some(Value::String(_)) => {}
        Some(other) => errors.push(FieldError::invalid(api_version, other.clone(), "must be a string")),
    }
    let kind = child(path, "kind");
    match fields.get("kind") {
        None => errors.push(FieldError::required(kind, "")),
        Some(Value::String(text)) if text.is_empty() => {
            errors.push(FieldError::invalid(kind, "", "must not be empty"));
        }
        Some(Value::String(text)) => {
            let faults = dns_1035_label(&text.to_lowercase());
            if !faults.is_empty() {
                let detail = format!("may have mixed case, but should otherwise match: {}", faults.join(","));
                errors.push(FieldError::invalid(kind, text.as_str(), detail));
            }
        }
        Some(other) => errors.push(FieldError::invalid(kind, other.clone(), "must be a string")),
    }
    if let Some(metadata) = fields.get("metadata") {
        errors.extend(validate_metadata(&child(path, "metadata"), metadata));
    }
    errors
}

fn validate_metadata(path: &str, metadata: &Value) -> Vec<FieldError> {
    if metadata.is_null() {
        return Vec::new();
    }
    if let Some(detail) = mistyped(&OBJECT_META, metadata, "", "ObjectMeta") {
        return vec![FieldError::invalid(path, metadata.clone(), detail)];
    }
    let mut errors = Vec::new();
    let text = |name: &str| metadata.get(name).and_then(Value::as_str).unwrap_or_default();
    let mut report = |field: &str, value: &str, faults: Vec<String>| {
        for fault in faults {
            errors.push(FieldError::invalid(child(path, field), value, fault));
        }
    };
    report("generateName", text("generateName"), path_segment_prefix(text("generateName")));
    report("name", text("name"), path_segment(text("name")));
    if !text("namespace").is_empty() {
        report("namespace", text("namespace"), dns_1123_label(text("namespace")));
    }
    for (name, value) in entries(metadata, "labels") {
        report("labels", name, qualified_name(name));
        report("labels", value, label_value(value));
    }
    let mut size = 0;
    for (name, value) in entries(metadata, "annotations") {
        report("annotations", name, qualified_name(&name.to_lowercase()));
        size += name.len() + value.len();
    }
    for finalizer in metadata.get("finalizers").and_then(Value::as_array).into_iter().flatten() {
        let finalizer = finalizer.as_str().unwrap_or_default();
        report("finalizers", finalizer, qualified_name(finalizer));
    }
    if size > ANNOTATIONS_LIMIT {
        errors.push(FieldError::too_long(child(path, "annotations"), ANNOTATIONS_LIMIT as u64));
    }
    for owner in metadata.get("ownerReferences").and_then(Value::as_array).into_iter().flatten() {
        for (field, detail) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            let value = owner.get(field).and_then(Value::as_str).unwrap_or_default();
            if value.is_empty() {
                errors.push(FieldError::invalid(
                    child(&child(path, "ownerReferences"), field),
                    value,
                    detail,
                ));
            }
        }
    }
    errors
}

const ANNOTATIONS_LIMIT: usize = 256 << 10;

fn entries<'a>(metadata: &'a Value, field: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let entries = metadata.get(field).and_then(Value::as_object);
    entries.into_iter().flatten().map(|(name, value)| (name.as_str(), value.as_str().unwrap_or_default()))
}

/// The first field whose type does not fit, in the words of Go's JSON reader. The metadata's schema is four levels deep.
fn mistyped(node: &Node, value: &Value, path: &str, owner: &str) -> Option<String> {
    let complain = |go_type: &str| {
        let place =
            if path.is_empty() { String::new() } else { format!("Go struct field {owner}.{path} of type ") };
        let place = if place.is_empty() { "Go value of type ".to_owned() } else { place };
        Some(format!("json: cannot unmarshal {} into {place}{go_type}", wording::json_kind(value)))
    };
    match (node.kind, value) {
        (_, Value::Null) | (None, _) => None,
        (Some(Type::Object), Value::Object(fields)) => fields.iter().find_map(|(name, field)| {
            let inner = node.properties.get(name).or(node.additional.as_ref())?;
            mistyped(inner, field, &child(path, name), owner)
        }),
        (Some(Type::Array), Value::Array(items)) => {
            let inner = node.items.as_ref()?;
            items.iter().find_map(|item| mistyped(inner, item, path, owner))
        }
        (Some(Type::String), Value::String(_)) | (Some(Type::Boolean), Value::Bool(_)) => None,
        (Some(Type::Integer), Value::Number(number)) if number.is_i64() => None,
        (Some(Type::Object), _) if node.additional.is_some() => complain("map[string]string"),
        (Some(Type::Object), _) => complain("v1.ObjectMeta"),
        (Some(Type::Array), _) => complain("[]string"),
        (Some(Type::String), _) => complain("string"),
        (Some(Type::Integer | Type::Number), _) => complain("int64"),
        (Some(Type::Boolean), _) => complain("bool"),
    }
}

fn path_segment(name: &str) -> Vec<String> {
    match name {
        "." | ".." => vec![format!("may not be '{name}'")],
        _ => path_segment_prefix(name),
    }
}

fn path_segment_prefix(name: &str) -> Vec<String> {
    ["/", "%"]
        .iter()
        .filter(|part| name.contains(**part))
        .map(|part| format!("may not contain '{part}'"))
        .collect()
}

struct Rule {
    text: &'static str,
    regex: LazyLock<Option<Regex>>,
    wording: &'static str,
}

impl Rule {
    fn holds(&self, value: &str) -> bool {
        self.regex.as_ref().is_some_and(|regex| regex.is_match(value))
    }

    fn complaint(&self, examples: &[&str]) -> String {
        let examples: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
        let (text, shown) = (self.text, examples.join(" or "));
        format!("{} (e.g. {shown}regex used for validation is '{text}')", self.wording)
    }
}

macro_rules! rule {
    ($name:ident, $text:literal, $wording:literal) => {
        static $name: Rule = Rule {
            text: $text,
            regex: LazyLock::new(|| Regex::new(concat!("^", $text, "$")).ok()),
            wording: $wording,
        };
    };
}

rule!(
    LABEL_KEY,
    "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]",
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
);
rule!(
    LABEL_VALUE,
    "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
);
rule!(
    DNS_1123_LABEL,
    "[a-z0-9]([-a-z0-9]*[a-z0-9])?",
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character"
);
rule!(
    DNS_1123_SUBDOMAIN,
    "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"
);
rule!(
    DNS_1035_LABEL,
    "[a-z]([-a-z0-9]*[a-z0-9])?",
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character"
);

/// What a length is said to be counted in: names of objects in characters, labels in bytes. Both are ASCII where they are valid.
#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    Characters,
}

fn too_long(limit: usize, unit: Unit) -> String {
    let unit = match unit {
        Unit::Bytes => "bytes",
        Unit::Characters => "characters",
    };
    format!("must be no more than {limit} {unit}")
}

fn bounded(value: &str, limit: usize, unit: Unit, rule: &Rule, examples: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    if value.len() > limit {
        faults.push(too_long(limit, unit));
    }
    if !rule.holds(value) {
        faults.push(rule.complaint(examples));
    }
    faults
}

fn dns_1123_label(value: &str) -> Vec<String> {
    bounded(value, 63, Unit::Characters, &DNS_1123_LABEL, &["my-name", "123-abc"])
}

fn dns_1035_label(value: &str) -> Vec<String> {
    bounded(value, 63, Unit::Characters, &DNS_1035_LABEL, &["my-name", "abc-123"])
}

fn label_value(value: &str) -> Vec<String> {
    bounded(value, 63, Unit::Bytes, &LABEL_VALUE, &["MyValue", "my_value", "12345"])
}

fn qualified_name(value: &str) -> Vec<String> {
    let examples = ["MyName", "my.name", "123-abc"];
    let parts: Vec<&str> = value.split('/').collect();
    let (prefix, name) = match parts.as_slice() {
        [name] => (None, *name),
        [prefix, name] => (Some(*prefix), *name),
        _ => {
            let complaint = LABEL_KEY.complaint(&examples);
            return vec![format!(
                "a valid label key {complaint} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    let mut faults = Vec::new();
    match prefix {
        None => {}
        Some("") => faults.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => faults.extend(
            bounded(prefix, 253, Unit::Bytes, &DNS_1123_SUBDOMAIN, &["example.com"])
                .into_iter()
                .map(|f| format!("prefix part {f}")),
        ),
    }
    if name.is_empty() {
        faults.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        faults.push(format!("name part {}", too_long(63, Unit::Bytes)));
    }
    if !LABEL_KEY.holds(name) {
        faults.push(format!("name part {}", LABEL_KEY.complaint(&examples)));
    }
    faults
}
