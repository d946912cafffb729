//! What changed between two objects, as sets of fields: who owned a changed field loses it, who changed it gains it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::path::{PathElement, same};
use super::place::{Items, Place, Shape};
use super::set::FieldSet;
use super::validate::{Fault, Faults};

/// The three sets have no path in common.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    pub(super) removed: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) added: FieldSet,
}

impl Comparison {
    pub(super) fn without(self, ignored: &FieldSet) -> Self {
        if ignored.is_empty() {
            return self;
        }
        Comparison {
            removed: self.removed.difference_below(ignored),
            modified: self.modified.difference_below(ignored),
            added: self.added.difference_below(ignored),
        }
    }
}

/// O(n log n) in the size of the two objects.
pub(super) fn compare(place: &Place<'_>, old: &Value, new: &Value) -> Result<Comparison, Faults> {
    let mut walk = Walk { out: Comparison::default(), path: Vec::new(), faults: Vec::new() };
    walk.value(place, Some(old), Some(new));
    if walk.faults.is_empty() { Ok(walk.out) } else { Err(Faults(walk.faults)) }
}

struct Walk {
    out: Comparison,
    path: Vec<PathElement>,
    faults: Vec<Fault>,
}

/// Whether a value was taken as one, so that what holds it does not mention it again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    AsOne,
    ByParts,
}

impl Walk {
    fn value(&mut self, place: &Place<'_>, old: Option<&Value>, new: Option<&Value>) {
        let (before, after) = (old.map(|old| place.shape(old)), new.map(|new| place.shape(new)));
        // A place without a type may change its shape: what the old value held in its shape is gone, what the new one holds in
        // its own is added.
        let shapes = match (before, after) {
            (Some(before), Some(after)) if before != after => [Some(before), Some(after)],
            (_, Some(shape)) | (Some(shape), None) => [None, Some(shape)],
            (None, None) => return,
        };
        let mut taken = Taken::ByParts;
        for shape in shapes.into_iter().flatten() {
            taken = match shape {
                Shape::Scalar => self.leaf(old, new),
                Shape::List => self.list(place, old, new),
                Shape::Map => self.map(place, old, new),
            };
        }
        match (taken, old, new) {
            (Taken::ByParts, None, Some(_)) => self.out.added.insert(&self.path),
            (Taken::ByParts, Some(_), None) => self.out.removed.insert(&self.path),
            (Taken::ByParts, _, _) | (Taken::AsOne, _, _) => {}
        }
    }

    fn leaf(&mut self, old: Option<&Value>, new: Option<&Value>) -> Taken {
        match (old, new) {
            (None, _) => self.out.added.insert(&self.path),
            (_, None) => self.out.removed.insert(&self.path),
            (Some(old), Some(new)) if !same(old, new) => self.out.modified.insert(&self.path),
            (Some(_), Some(_)) => {}
        }
        Taken::AsOne
    }

    fn map(&mut self, place: &Place<'_>, old: Option<&Value>, new: Option<&Value>) -> Taken {
        let none = Map::new();
        let (before, after) = (fields(old).unwrap_or(&none), fields(new).unwrap_or(&none));
        // Empty and null are told apart only if the value is taken as one.
        if place.is_atomic_map() || (before.is_empty() && after.is_empty()) {
            return self.leaf(old, new);
        }
        let fresh = after.keys().filter(|name| !before.contains_key(*name));
        for name in before.keys().chain(fresh) {
            let field = place.field(name);
            self.path.push(PathElement::field(name));
            self.value(&field.place, before.get(name), after.get(name));
            self.path.pop();
        }
        Taken::ByParts
    }

    fn list(&mut self, place: &Place<'_>, old: Option<&Value>, new: Option<&Value>) -> Taken {
        let (before, after) = (items(old), items(new));
        if matches!(place.items(), Items::Atomic) || (before.is_empty() && after.is_empty()) {
            return self.leaf(old, new);
        }
        let mut elements: BTreeMap<PathElement, [Vec<&Value>; 2]> = BTreeMap::new();
        for (side, list) in [before, after].into_iter().enumerate() {
            for (index, item) in list.iter().enumerate() {
                match place.element_of(item) {
                    Ok(element) => {
                        let sides = elements.entry(element).or_default();
                        sides.iter_mut().skip(side).take(1).for_each(|side| side.push(item));
                    }
                    Err(message) => {
                        self.faults.push(Fault::at(&self.path, format!("element {index}: {message}")))
                    }
                }
            }
        }
        let item = place.item();
        for (element, [before, after]) in elements {
            self.path.push(element);
            self.item(&item, &before, &after);
            self.path.pop();
        }
        Taken::ByParts
    }

    /// Items that share a key are one thing that cannot be looked into.
    fn item(&mut self, place: &Place<'_>, before: &[&Value], after: &[&Value]) {
        match (before, after) {
            ([] | [_], [] | [_]) => self.value(place, before.first().copied(), after.first().copied()),
            ([_, _, ..], [_, _, ..]) => {
                let equal = before.len() == after.len() && before.iter().zip(after).all(|(a, b)| same(a, b));
                if !equal {
                    self.out.modified.insert(&self.path);
                }
            }
            ([_, _, ..], [] | [_]) => {
                if let [single] = after {
                    self.value(place, None, Some(single));
                }
                self.out.removed.insert(&self.path);
            }
            ([] | [_], [_, _, ..]) => {
                if let [single] = before {
                    self.value(place, Some(single), None);
                }
                self.out.added.insert(&self.path);
            }
        }
    }
}

fn fields(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}

fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
