//! Lists of type set and map: no two items alike, or with the same keys.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::schema::error::{FieldError, child, index, key};
use crate::schema::node::{ListType, Node};
use crate::schema::wording::{self, MAX_DEPTH};

pub(super) fn check(node: &Node, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Value::Object(fields) = object {
        check_fields(node, fields, "", &mut errors, 0);
    }
    errors
}

fn check_fields(
    node: &Node,
    fields: &Map<String, Value>,
    path: &str,
    errors: &mut Vec<FieldError>,
    depth: usize,
) {
    for (name, value) in fields {
        if let Some(additional) = &node.additional {
            check_value(additional, value, &key(path, name), errors, depth + 1);
        }
        if let Some(property) = node.properties.get(name) {
            check_value(property, value, &child(path, name), errors, depth + 1);
        }
    }
}

fn check_value(node: &Node, value: &Value, path: &str, errors: &mut Vec<FieldError>, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(fields) => check_fields(node, fields, path, errors, depth),
        Value::Array(items) => {
            match node.list_type {
                ListType::Atomic => {}
                ListType::Set => {
                    for (position, item) in repeated(items) {
                        errors.push(FieldError::duplicate(index(path, position), item.clone()));
                    }
                }
                ListType::Map => check_keys(node, items, path, errors),
            }
            if let Some(item_node) = &node.items {
                for (position, item) in items.iter().enumerate() {
                    check_value(item_node, item, &index(path, position), errors, depth + 1);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn check_keys(node: &Node, items: &[Value], path: &str, errors: &mut Vec<FieldError>) {
    if let Some((position, item)) =
        items.iter().enumerate().find(|(_, item)| !(item.is_null() || item.is_object()))
    {
        errors.push(FieldError::invalid(
            index(path, position),
            item.clone(),
            "must be an object for an array of list-type map",
        ));
        return;
    }
    let keys: Vec<Value> = items
        .iter()
        .map(|item| {
            let present = |key: &String| item.get(key).map(|value| (key.clone(), value.clone()));
            Value::Object(node.list_map_keys.iter().filter_map(present).collect())
        })
        .collect();
    for (position, key) in repeated(&keys) {
        errors.push(FieldError::duplicate(index(path, position), key.clone()));
    }
}

/// The second of every group of equal items. Linear in the list.
fn repeated(items: &[Value]) -> Vec<(usize, &Value)> {
    let mut times: HashMap<String, usize> = HashMap::with_capacity(items.len());
    items
        .iter()
        .enumerate()
        .filter(|(_, item)| {
            let count = times.entry(wording::json(item)).or_default();
            *count += 1;
            *count == 2
        })
        .collect()
}
