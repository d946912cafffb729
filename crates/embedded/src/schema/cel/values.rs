//! From the values of an object to those that rules see, guided by the schema: what it does not specify, rules do not see.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use kube_cel::cel::Value as CelValue;
use kube_cel::cel::objects::{Key, Map, OptionalValue};
use serde_json::{Map as JsonMap, Value};

use crate::schema::node::{Node, Type};
use crate::schema::wording::MAX_DEPTH;

use super::functions;

/// The value of `self` or `oldSelf` at a place.
pub(super) fn convert(node: &Node, value: &Value, place: Place) -> CelValue {
    typed(node, value, place, 0)
}

/// A resource shows its version, kind and name to its rules even if its schema does not mention them.
#[derive(Clone, Copy, PartialEq)]
pub(in crate::schema) enum Place {
    Resource,
    Inside,
}

impl Place {
    pub(in crate::schema) fn of(node: &Node) -> Self {
        if node.embedded_resource { Place::Resource } else { Place::Inside }
    }
}

fn typed(node: &Node, value: &Value, place: Place, depth: usize) -> CelValue {
    if depth > MAX_DEPTH {
        return CelValue::Null;
    }
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(flag) => CelValue::Bool(*flag),
        Value::Number(number) if node.kind == Some(Type::Number) => {
            CelValue::Float(number.as_f64().unwrap_or_default())
        }
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => CelValue::Int(integer),
            (None, Some(float)) if node.kind == Some(Type::Integer) => CelValue::Int(float as i64),
            (None, float) => CelValue::Float(float.unwrap_or_default()),
        },
        Value::String(text) => formatted(node, text),
        Value::Array(items) => {
            let item = |item: &Value| match &node.items {
                Some(item_node) => typed(item_node, item, Place::of(item_node), depth + 1),
                None => CelValue::Null,
            };
            CelValue::List(Arc::new(items.iter().map(item).collect()))
        }
        Value::Object(fields) => object(node, fields, place, depth),
    }
}

fn object(node: &Node, fields: &JsonMap<String, Value>, place: Place, depth: usize) -> CelValue {
    let mut map = HashMap::with_capacity(fields.len());
    for (name, field) in fields {
        if let (Place::Resource, "apiVersion" | "kind" | "metadata") = (place, name.as_str()) {
            map.insert(text_key(name), resource_field(name, field));
        } else if let Some(property) = node.properties.get(name) {
            if let Some(escaped) = escape(name) {
                map.insert(text_key(&escaped), typed(property, field, Place::of(property), depth + 1));
            }
        } else if let Some(additional) = node.additional.as_ref().filter(|_| node.properties.is_empty()) {
            // The keys of a map are data, not names, and stay as they are.
            map.insert(text_key(name), typed(additional, field, Place::of(additional), depth + 1));
        }
    }
    CelValue::Map(Map { map: Arc::new(map) })
}

fn resource_field(name: &str, field: &Value) -> CelValue {
    if name != "metadata" {
        return text(field.as_str().unwrap_or_default());
    }
    let named = ["name", "generateName"].into_iter().filter_map(|name| {
        let value = field.get(name)?.as_str()?;
        Some((text_key(name), text(value)))
    });
    CelValue::Map(Map { map: Arc::new(named.collect()) })
}

fn formatted(node: &Node, value: &str) -> CelValue {
    let string_typed = node.kind == Some(Type::String) && !node.int_or_string;
    let converted = match node.format.as_deref().filter(|_| string_typed) {
        Some("date-time") => functions::timestamp(value),
        Some("date") => functions::timestamp(&format!("{value}T00:00:00Z")),
        Some("duration") => functions::duration(value),
        Some("byte") => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(value).ok();
            bytes.map(|bytes| CelValue::Bytes(Arc::new(bytes)))
        }
        _ => None,
    };
    converted.unwrap_or_else(|| text(value))
}

pub(super) fn text(value: &str) -> CelValue {
    CelValue::String(Arc::new(value.to_owned()))
}

pub(super) fn text_key(name: &str) -> Key {
    Key::String(Arc::new(name.to_owned()))
}

pub(super) fn optional(value: Option<CelValue>) -> CelValue {
    CelValue::Opaque(Arc::new(match value {
        Some(value) => OptionalValue::of(value),
        None => OptionalValue::none(),
    }))
}

/// What an optional holds; `None` if the value is no optional.
pub(super) fn as_optional(value: &CelValue) -> Option<Option<&CelValue>> {
    match value {
        CelValue::Opaque(opaque) => opaque.downcast_ref::<OptionalValue>().map(OptionalValue::value),
        _ => None,
    }
}

const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The name under which rules know a field; none if there is no way to write it.
pub(super) fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c)) {
        return None;
    }
    Some(
        name.replace("__", "__underscores__")
            .replace('.', "__dot__")
            .replace('-', "__dash__")
            .replace('/', "__slash__"),
    )
}
