//! Which old value a new value replaces, and whether the two are the same: what validation ratcheting rests upon.

use std::cell::OnceCell;
use std::collections::HashMap;

use serde_json::Value;

use super::node::{ListType, Node};
use super::wording::{self, MAX_DEPTH};

/// A value and the one it replaces, at the same place of an object.
pub(super) struct Correlated<'a> {
    node: &'a Node,
    new: &'a Value,
    old: &'a Value,
    old_items: OnceCell<KeyedItems<'a>>,
    same: OnceCell<bool>,
}

impl<'a> Correlated<'a> {
    pub(super) fn new(node: &'a Node, new: &'a Value, old: &'a Value) -> Self {
        Self { node, new, old, old_items: OnceCell::new(), same: OnceCell::new() }
    }

    /// The field in both, if both have it and the schema knows it.
    pub(super) fn field(&self, name: &str) -> Option<Correlated<'a>> {
        let new = self.new.as_object()?.get(name)?;
        let old = self.old.as_object()?.get(name)?;
        let node = self.node.properties.get(name).or(self.node.additional.as_ref())?;
        Some(Correlated::new(node, new, old))
    }

    /// The item in both: only a list of type map tells which old item a new one replaces.
    pub(super) fn item(&self, index: usize) -> Option<Correlated<'a>> {
        if self.node.list_type != ListType::Map {
            return None;
        }
        let new = self.new.as_array()?.get(index)?;
        let old_list = self.old.as_array()?;
        let old = self.old_items.get_or_init(|| KeyedItems::new(self.node, old_list)).find(new)?;
        Some(Correlated::new(self.node.items.as_deref()?, new, old))
    }

    /// Deep equality, blind to the order of lists whose items have keys. Found out once, however many faults ask.
    pub(super) fn same(&self) -> bool {
        *self.same.get_or_init(|| same(Some(self.node), self.new, self.old, 0))
    }
}

/// The items of a list of type map by their keys; the first of several with the same keys.
pub(super) struct KeyedItems<'a> {
    keys: &'a [String],
    items: HashMap<String, &'a Value>,
}

impl<'a> KeyedItems<'a> {
    /// Linear in the list.
    pub(super) fn new(node: &'a Node, items: &'a [Value]) -> Self {
        let keys = node.list_map_keys.as_slice();
        let mut by_key = HashMap::with_capacity(items.len());
        for item in items {
            if let Some(key) = composite_key(keys, item) {
                by_key.entry(key).or_insert(item);
            }
        }
        Self { keys, items: by_key }
    }

    pub(super) fn find(&self, item: &Value) -> Option<&'a Value> {
        self.items.get(&composite_key(self.keys, item)?).copied()
    }
}

/// The keys of an item as one text; none if one is missing or is no scalar.
fn composite_key(keys: &[String], item: &Value) -> Option<String> {
    if keys.is_empty() {
        return None;
    }
    let mut composite = String::new();
    for key in keys {
        match item.get(key)? {
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
            scalar @ (Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
                composite.push_str(&wording::json(scalar));
                composite.push('\0');
            }
        }
    }
    Some(composite)
}

fn same(node: Option<&Node>, new: &Value, old: &Value, depth: usize) -> bool {
    if depth > MAX_DEPTH {
        return false;
    }
    match (new, old) {
        (Value::Array(new), Value::Array(old)) => {
            let keyed = node.filter(|node| node.list_type == ListType::Map);
            match keyed {
                _ if new.len() != old.len() => false,
                Some(node) => {
                    let old_items = KeyedItems::new(node, old);
                    new.iter().all(|item| {
                        old_items
                            .find(item)
                            .is_some_and(|other| same(node.items.as_deref(), item, other, depth + 1))
                    })
                }
                None => new == old,
            }
        }
        (Value::Object(new), Value::Object(old)) => {
            new.len() == old.len()
                && new.iter().all(|(name, value)| {
                    let field = node.and_then(|node| node.properties.get(name).or(node.additional.as_ref()));
                    old.get(name).is_some_and(|other| same(field.map(|f| &**f), value, other, depth + 1))
                })
        }
        (new, old) => new == old,
    }
}
