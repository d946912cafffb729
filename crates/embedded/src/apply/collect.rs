//! The fields that an applied object mentions: the set that its manager owns from then on.

use std::collections::BTreeMap;

use serde_json::Value;

use super::path::PathElement;
use super::place::{Items, Place, Shape};
use super::set::FieldSet;

/// O(n log n) in the size of the value. Items without a key, which validation refuses, are left out.
pub(super) fn fields_of(place: &Place<'_>, value: &Value) -> FieldSet {
    let mut walk = Walk { set: FieldSet::new(), path: Vec::new() };
    walk.value(place, value);
    walk.set
}

struct Walk {
    set: FieldSet,
    path: Vec<PathElement>,
}

impl Walk {
    fn value(&mut self, place: &Place<'_>, value: &Value) {
        match (place.shape(value), value) {
            (Shape::Scalar, _) => self.set.insert(&self.path),
            (Shape::Map, _) if place.is_atomic_map() => self.set.insert(&self.path),
            (Shape::Map, Value::Object(fields)) => {
                for (name, value) in fields {
                    let field = place.field(name);
                    self.path.push(PathElement::field(name));
                    self.value(&field.place, value);
                    // An entry of a map exists because someone put it there; a declared field exists by what is in it.
                    let empty = value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
                    if empty || !field.declared {
                        self.set.insert(&self.path);
                    }
                    self.path.pop();
                }
            }
            (Shape::List, _) if matches!(place.items(), Items::Atomic) => self.set.insert(&self.path),
            (Shape::List, Value::Array(items)) => self.list(place, items),
            (Shape::Map | Shape::List, _) => {}
        }
    }

    fn list(&mut self, place: &Place<'_>, items: &[Value]) {
        let mut elements: BTreeMap<PathElement, Vec<&Value>> = BTreeMap::new();
        for item in items {
            if let Ok(element) = place.element_of(item) {
                elements.entry(element).or_default().push(item);
            }
        }
        let kind = place.item();
        for (element, items) in elements {
            self.path.push(element);
            if let [single] = items.as_slice() {
                self.value(&kind, single);
            }
            self.set.insert(&self.path);
            self.path.pop();
        }
    }
}
