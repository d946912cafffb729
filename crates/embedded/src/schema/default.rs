//! Filling in defaults. A default is put where a field is missing, or null though it may not be.

use serde_json::Value;

use super::node::Node;
use super::prune::field_node;
use super::wording::MAX_DEPTH;

/// Fills in the defaults of a schema, everywhere below a value that is present. Visits each value once.
pub fn default(node: &Node, value: &mut Value) {
    fill(node, value, 0);
}

fn fill(node: &Node, value: &mut Value, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    let held;
    let node = match node.follow() {
        Some(target) => {
            held = target;
            &*held
        }
        None => node,
    };
    match value {
        Value::Object(fields) => {
            for (name, property) in &node.properties {
                let Some(default) = &property.default else { continue };
                match fields.get_mut(name) {
                    None => {
                        fields.insert(name.clone(), default.clone());
                    }
                    Some(present) if present.is_null() && !property.nullable => *present = default.clone(),
                    Some(_) => {}
                }
            }
            for (name, field) in fields.iter_mut() {
                let Some(field_node) = field_node(node, name) else { continue };
                replace_null(&field_node, field);
                fill(&field_node, field, depth + 1);
            }
        }
        Value::Array(items) => {
            let Some(item_node) = &node.items else { return };
            for item in items {
                replace_null(item_node, item);
                fill(item_node, item, depth + 1);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn replace_null(node: &Node, value: &mut Value) {
    if let (true, false, Some(default)) = (value.is_null(), node.nullable, &node.default) {
        *value = default.clone();
    }
}
