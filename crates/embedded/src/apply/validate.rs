//! Checks that an applied object fits its schema well enough to be merged. This is not validation of values: that comes later,
//! on the merged object.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use super::path::{Path, PathElement};
use super::place::{Items, Place, Shape};

/// What does not fit, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    path: String,
    message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) struct Faults(pub(super) Vec<Fault>);

impl Fault {
    pub(super) fn at(path: &[PathElement], message: String) -> Self {
        Fault { path: Path(path.to_vec()).to_string(), message }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => out.write_str(&self.message),
            path => write!(out, "{path}: {}", self.message),
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [only] => only.fmt(out),
            faults => {
                out.write_str("errors:")?;
                faults.iter().try_for_each(|fault| write!(out, "\n  {fault}"))
            }
        }
    }
}

/// O(n log n) in the size of the value.
pub(super) fn validate(place: &Place<'_>, value: &Value) -> Result<(), Faults> {
    let mut walk = Walk { path: Vec::new(), faults: Vec::new() };
    walk.value(place, value);
    if walk.faults.is_empty() { Ok(()) } else { Err(Faults(walk.faults)) }
}

struct Walk {
    path: Vec<PathElement>,
    faults: Vec<Fault>,
}

impl Walk {
    fn fault(&mut self, message: String) {
        self.faults.push(Fault::at(&self.path, message));
    }

    fn value(&mut self, place: &Place<'_>, value: &Value) {
        match (place.shape(value), value) {
            (Shape::Scalar, value) => {
                if let Some(message) = place.scalar_fault(value) {
                    self.fault(message);
                }
            }
            (Shape::Map, Value::Object(fields)) => {
                for (name, value) in fields {
                    let allowed = place.allows(name);
                    self.path.push(PathElement::field(name));
                    if allowed {
                        self.value(&place.field(name).place, value);
                    } else {
                        self.fault("field not declared in schema".to_owned());
                    }
                    self.path.pop();
                    // One such field of an object is enough to say.
                    if !allowed {
                        break;
                    }
                }
            }
            (Shape::List, Value::Array(items)) => self.list(place, items),
            (Shape::Map | Shape::List, Value::Null) => {}
            (Shape::Map, other) => {
                self.fault(format!("expected map, got &{{{}}}", super::wording::plain(other)))
            }
            (Shape::List, other) => {
                self.fault(format!("expected list, got &{{{}}}", super::wording::plain(other)))
            }
        }
    }

    fn list(&mut self, place: &Place<'_>, items: &[Value]) {
        let mut seen = BTreeSet::new();
        let kind = place.item();
        for (index, item) in items.iter().enumerate() {
            let element = match place.items() {
                Items::Atomic => PathElement::Index(i64::try_from(index).unwrap_or(i64::MAX)),
                Items::Set | Items::Keyed(_) => match place.element_of(item) {
                    Ok(element) => {
                        if !seen.insert(element.clone()) {
                            self.fault(format!("duplicate entries for key {element}"));
                        }
                        element
                    }
                    // Without a path there is no way to speak of what lies within.
                    Err(message) => return self.fault(format!("element {index}: {message}")),
                },
            };
            self.path.push(element);
            self.value(&kind, item);
            self.path.pop();
        }
    }
}
