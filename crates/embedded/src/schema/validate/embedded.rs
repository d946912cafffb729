//! Resources embedded in an object: each must say its version and kind, and its metadata must be acceptable.

use serde_json::Value;

use crate::schema::error::{FieldError, child, index, key};
use crate::schema::meta;
use crate::schema::node::Node;
use crate::schema::wording::MAX_DEPTH;

pub(super) fn check(node: &Node, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(node, object, "", &mut errors, 0);
    errors
}

fn walk(node: &Node, value: &Value, path: &str, errors: &mut Vec<FieldError>, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(fields) => {
            if node.embedded_resource {
                errors.extend(meta::validate_resource(path, fields));
            }
            for (name, field) in fields {
                if let Some(property) = node.properties.get(name) {
                    walk(property, field, &child(path, name), errors, depth + 1);
                } else if let Some(additional) = &node.additional {
                    walk(additional, field, &key(path, name), errors, depth + 1);
                }
            }
        }
        Value::Array(items) => {
            if let Some(item_node) = &node.items {
                for (position, item) in items.iter().enumerate() {
                    walk(item_node, item, &index(path, position), errors, depth + 1);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
