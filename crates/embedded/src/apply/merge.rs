//! Lays an applied object over the live one, and takes fields out of an object again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value};

use super::path::PathElement;
use super::place::{Items, Place, Shape};
use super::set::FieldSet;
use super::validate::{Fault, Faults};

/// Nothing is removed; where both speak, the applied object wins. O(n log n) in the size of the two.
pub(super) fn merge(place: &Place<'_>, live: &Value, applied: &Value) -> Result<Value, Faults> {
    let mut walk = Walk { path: Vec::new(), faults: Vec::new() };
    let merged = walk.value(place, Some(live), Some(applied));
    if walk.faults.is_empty() { Ok(merged.unwrap_or(Value::Null)) } else { Err(Faults(walk.faults)) }
}

struct Walk {
    path: Vec<PathElement>,
    faults: Vec<Fault>,
}

/// One side of a list: its items in order, and each item by its element. Items that share an element are `None` there: they
/// cannot be merged with anything.
struct Indexed<'v> {
    order: Vec<(PathElement, &'v Value)>,
    by_element: BTreeMap<PathElement, Option<&'v Value>>,
}

impl Walk {
    fn value(&mut self, place: &Place<'_>, live: Option<&Value>, applied: Option<&Value>) -> Option<Value> {
        // The applied value decides the shape: one of another shape is replaced.
        let shape = place.shape(applied.or(live)?);
        match shape {
            Shape::Scalar => applied.or(live).cloned(),
            Shape::Map => self.map(place, live, applied),
            Shape::List => self.list(place, live, applied),
        }
    }

    fn map(&mut self, place: &Place<'_>, live: Option<&Value>, applied: Option<&Value>) -> Option<Value> {
        let none = Map::new();
        let before = live.and_then(Value::as_object).unwrap_or(&none);
        let over = applied.and_then(Value::as_object).unwrap_or(&none);
        if place.is_atomic_map() || (before.is_empty() && over.is_empty()) {
            return applied.or(live).cloned();
        }
        let mut out = Map::new();
        let fresh = over.keys().filter(|name| !before.contains_key(*name));
        for name in before.keys().chain(fresh) {
            self.path.push(PathElement::field(name));
            let merged = self.value(&place.field(name).place, before.get(name), over.get(name));
            self.path.pop();
            if let Some(merged) = merged {
                out.insert(name.clone(), merged);
            }
        }
        Some(Value::Object(out))
    }

    fn list(&mut self, place: &Place<'_>, live: Option<&Value>, applied: Option<&Value>) -> Option<Value> {
        let before = live.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let over = applied.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if matches!(place.items(), Items::Atomic) || (before.is_empty() && over.is_empty()) {
            return applied.or(live).cloned();
        }
        let before = self.index(place, before);
        let over = self.index(place, over);
        let kind = place.item();
        let mut out = Vec::new();
        for (element, item) in interleave(&before, &over) {
            // An item only the live object has is taken from its own position, since others may share its element.
            let (live, applied) = match over.by_element.get(&element) {
                None => (Some(item), None),
                Some(applied) => {
                    let live = before.by_element.get(&element).map(|live| live.unwrap_or(&Value::Null));
                    (live, Some(applied.unwrap_or(&Value::Null)))
                }
            };
            self.path.push(element);
            out.extend(self.value(&kind, live, applied));
            self.path.pop();
        }
        Some(Value::Array(out))
    }

    fn index<'v>(&mut self, place: &Place<'_>, items: &'v [Value]) -> Indexed<'v> {
        let mut out = Indexed { order: Vec::new(), by_element: BTreeMap::new() };
        for (index, item) in items.iter().enumerate() {
            match place.element_of(item) {
                Ok(element) => {
                    out.by_element
                        .entry(element.clone())
                        .and_modify(|seen| *seen = None)
                        .or_insert(Some(item));
                    out.order.push((element, item));
                }
                Err(message) => {
                    self.faults.push(Fault::at(&self.path, format!("element {index}: {message}")))
                }
            }
        }
        out
    }
}

/// The order of a merged list: the applied items in the order they were applied, and each live item that was not applied
/// after the one it followed, as far as that can be had.
fn interleave<'v>(live: &Indexed<'v>, applied: &Indexed<'v>) -> Vec<(PathElement, &'v Value)> {
    let is_live = |element: &PathElement| live.by_element.contains_key(element);
    let mut shared: VecDeque<&PathElement> =
        applied.order.iter().map(|(element, _)| element).filter(|element| is_live(element)).collect();
    let mut left: VecDeque<&(PathElement, &Value)> = live.order.iter().collect();
    let mut right: VecDeque<&(PathElement, &Value)> = applied.order.iter().collect();
    let mut taken: BTreeSet<&PathElement> = BTreeSet::new();
    let mut out = Vec::new();
    loop {
        match (left.front().copied(), right.front().copied()) {
            (None, None) => return out,
            (Some(l), Some(r)) if l.0 == r.0 => {
                taken.insert(&r.0);
                out.push(r.clone());
                left.pop_front();
                right.pop_front();
                shared.pop_front();
                continue;
            }
            (Some(l), Some(_))
                if applied.by_element.contains_key(&l.0)
                    && shared.front().is_some_and(|next| **next != l.0) =>
            {
                // It is applied too, but its turn has not come or is over.
                left.pop_front();
                continue;
            }
            (Some(l), _) if !applied.by_element.contains_key(&l.0) => {
                out.push(l.clone());
                left.pop_front();
                continue;
            }
            (Some(l), _) if taken.contains(&l.0) => {
                left.pop_front();
            }
            (Some(_), _) | (None, Some(_)) => {}
        }
        if let Some(r) = right.pop_front() {
            taken.insert(&r.0);
            out.push(r.clone());
            if shared.front().is_some_and(|next| **next == r.0) {
                shared.pop_front();
            }
        }
    }
}

/// What is left where every part of a value was removed, but not the value itself.
#[derive(Clone, Copy)]
pub(super) enum Leftover {
    /// Nothing, to reckon with.
    Null,
    /// The value, empty. Somebody still owns it, and null would not be valid in its place.
    Empty,
}

/// The value without the paths of a set. O(n log n).
pub(super) fn remove(place: &Place<'_>, value: &Value, paths: &FieldSet, leftover: Leftover) -> Value {
    let kept = match (place.shape(value), value) {
        (Shape::Scalar, value) => return value.clone(),
        (Shape::Map, Value::Object(fields)) if !place.is_atomic_map() => {
            let mut out = Map::new();
            for (name, value) in fields {
                let element = PathElement::field(name);
                if paths.has_element(&element) {
                    continue;
                }
                let kept = match paths.below(&element) {
                    Some(below) => remove(&place.field(name).place, value, below, leftover),
                    None => value.clone(),
                };
                out.insert(name.clone(), kept);
            }
            Some(Value::Object(out)).filter(|out| *out != Value::Object(Map::new()))
        }
        (Shape::List, Value::Array(items)) if !matches!(place.items(), Items::Atomic) => {
            let mut out = Vec::new();
            for item in items {
                let element = place.element_of(item).ok();
                if element.as_ref().is_some_and(|element| paths.has_element(element)) {
                    continue;
                }
                out.push(match element.as_ref().and_then(|element| paths.below(element)) {
                    Some(below) => remove(&place.item(), item, below, leftover),
                    None => item.clone(),
                });
            }
            Some(Value::Array(out)).filter(|out| *out != Value::Array(Vec::new()))
        }
        // An atomic value is nothing without a part of it, and so is an empty one.
        (Shape::Map | Shape::List, _) => None,
    };
    kept.unwrap_or_else(|| match (leftover, value) {
        (Leftover::Empty, Value::Object(_)) => Value::Object(Map::new()),
        (Leftover::Empty, Value::Array(_)) => Value::Array(Vec::new()),
        (Leftover::Empty | Leftover::Null, _) => Value::Null,
    })
}
