//! Resources embedded in an object: each must say its version and kind, and its metadata must be acceptable.
//!
//! kube-apiserver looks at them twice. What has the wrong type cannot be read at all; what is read is then validated.

use serde_json::{Map, Value};

use crate::schema::error::{FieldError, child, index, key};
use crate::schema::meta;
use crate::schema::node::Node;
use crate::schema::wording::MAX_DEPTH;

type Look = fn(&str, &Map<String, Value>) -> Vec<FieldError>;

pub(super) fn check(node: &Node, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(node, object, "", meta::validate_resource, &mut errors, 0);
    errors
}

/// The first embedded resource whose version, kind or metadata has the wrong type: a request with it is a bad request.
pub fn malformed(node: &Node, object: &Value) -> Option<FieldError> {
    let mut errors = Vec::new();
    walk(node, object, "", meta::misread_resource, &mut errors, 0);
    errors.into_iter().next()
}

fn walk(node: &Node, value: &Value, path: &str, look: Look, errors: &mut Vec<FieldError>, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(fields) => {
            if node.embedded_resource {
                errors.extend(look(path, fields));
            }
            for (name, field) in fields {
                if let Some(property) = node.properties.get(name) {
                    walk(property, field, &child(path, name), look, errors, depth + 1);
                } else if let Some(additional) = &node.additional {
                    walk(additional, field, &key(path, name), look, errors, depth + 1);
                }
            }
        }
        Value::Array(items) => {
            if let Some(item_node) = &node.items {
                for (position, item) in items.iter().enumerate() {
                    walk(item_node, item, &index(path, position), look, errors, depth + 1);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
