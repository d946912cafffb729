//! One step of a field's path, and how steps are ordered, printed and written in `fieldsV1`. Sets of paths live in `set`.

use std::cmp::Ordering;
use std::fmt;

use serde_json::{Number, Value};

use super::wording;

/// One step from a value to a value within it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathElement {
    /// A field of an object.
    Field(String),
    /// The item of a list-map with these key fields, sorted by name.
    Key(Vec<(String, Json)>),
    /// The item of a set with this value.
    Value(Json),
    /// The item of an atomic list at this index.
    Index(i64),
}

/// A path from the root of an object to a field.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(pub Vec<PathElement>);

/// A JSON value with the total order that `fieldsV1` is sorted by, in which `1` and `1.0` are the same number.
#[derive(Debug, Clone)]
pub struct Json(pub Value);

/// Why a key of `fieldsV1` is not a path element.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("key must be 2 characters long:")]
    Short,
    #[error("missing colon: {0}")]
    MissingColon(String),
    #[error("{0}: {1}")]
    Content(String, String),
    #[error("expected an object of fields, got {0}")]
    NotAnObject(String),
    #[error("fields are nested more than {0} levels deep")]
    TooDeep(usize),
}

impl PathElement {
    pub fn field(name: impl Into<String>) -> Self {
        PathElement::Field(name.into())
    }

    /// The key of a list-map's item, from its key fields in any order.
    pub fn key(mut fields: Vec<(String, Value)>) -> Self {
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        PathElement::Key(fields.into_iter().map(|(name, value)| (name, Json(value))).collect())
    }

    /// As `fieldsV1` spells it: `f:name`, `k:{"name":"x"}`, `v:"x"` or `i:0`.
    pub(super) fn to_wire(&self) -> String {
        match self {
            PathElement::Field(name) => format!("f:{name}"),
            PathElement::Key(fields) => {
                let fields: Vec<String> = fields
                    .iter()
                    .map(|(name, value)| {
                        format!("{}:{}", Value::from(name.as_str()), wording::wire(&value.0))
                    })
                    .collect();
                format!("k:{{{}}}", fields.join(","))
            }
            PathElement::Value(value) => format!("v:{}", wording::wire(&value.0)),
            PathElement::Index(index) => format!("i:{index}"),
        }
    }

    /// `None` for a kind of element that is not known: a later server may write some, and they are dropped.
    pub(super) fn from_wire(text: &str) -> Result<Option<Self>, Malformed> {
        if text.len() < 2 {
            return Err(Malformed::Short);
        }
        let Some((kind, content)) = text.split_once(':').filter(|(kind, _)| kind.len() == 1) else {
            return Err(Malformed::MissingColon(text.to_owned()));
        };
        let invalid = |cause: String| Malformed::Content(text.to_owned(), cause);
        let json = || serde_json::from_str::<Value>(content).map_err(|cause| invalid(cause.to_string()));
        match kind {
            "f" => Ok(Some(PathElement::field(content))),
            "v" => Ok(Some(PathElement::Value(Json(json()?)))),
            "k" => match json()? {
                Value::Object(fields) => Ok(Some(PathElement::key(fields.into_iter().collect()))),
                other => Err(invalid(format!("expected an object, got {}", wording::plain(&other)))),
            },
            "i" => {
                let index =
                    content.parse().map_err(|cause: std::num::ParseIntError| invalid(cause.to_string()));
                Ok(Some(PathElement::Index(index?)))
            }
            _ => Ok(None),
        }
    }
}

impl fmt::Display for PathElement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathElement::Field(name) => write!(out, ".{name}"),
            PathElement::Key(fields) => {
                out.write_str("[")?;
                for (index, (name, value)) in fields.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    write!(out, "{comma}{name}={}", wording::readable(&value.0))?;
                }
                out.write_str("]")
            }
            PathElement::Value(value) => write!(out, "[={}]", wording::readable(&value.0)),
            PathElement::Index(index) => write!(out, "[{index}]"),
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|element| element.fmt(out))
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Json {}

impl PartialOrd for Json {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Json {
    fn cmp(&self, other: &Self) -> Ordering {
        order(&self.0, &other.0)
    }
}

/// Whether two values mean the same: the order of an object's fields does not count, nor does `1` against `1.0`.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    order(a, b) == Ordering::Equal
}

/// Numbers before strings, booleans, lists, objects and null.
fn order(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => order_numbers(a, b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let first = a.iter().zip(b).map(|(a, b)| order(a, b)).find(|order| order.is_ne());
            first.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => {
            let mut a: Vec<_> = a.iter().collect();
            let mut b: Vec<_> = b.iter().collect();
            a.sort_by_key(|(name, _)| *name);
            b.sort_by_key(|(name, _)| *name);
            let each = a.iter().zip(&b).map(|(a, b)| a.0.cmp(b.0).then_with(|| order(a.1, b.1)));
            each.into_iter().find(|order| order.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (a, b) => rank(a).cmp(&rank(b)),
    }
}

fn order_numbers(a: &Number, b: &Number) -> Ordering {
    match (integer(a), integer(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) | (None, Some(_)) | (None, None) => {
            a.as_f64().unwrap_or(f64::MAX).total_cmp(&b.as_f64().unwrap_or(f64::MAX))
        }
    }
}

fn integer(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn elements_are_written_read_and_printed() {
        #[track_caller]
        fn check(wire: &str, printed: &str) {
            let element = PathElement::from_wire(wire).unwrap().unwrap();
            assert_eq!(element.to_wire(), wire);
            assert_eq!(element.to_string(), printed);
        }
        check("f:spec", ".spec");
        check("f:kubectl.kubernetes.io/x", ".kubectl.kubernetes.io/x");
        check("f:", ".");
        check("f:a:b", ".a:b");
        check(r#"k:{"containerPort":80,"protocol":"TCP"}"#, r#"[containerPort=80,protocol="TCP"]"#);
        check(r#"v:"a\"b""#, r#"[="a\"b"]"#);
        check(r#"v:"a\u003cb""#, r#"[="a<b"]"#);
        check("v:true", "[=true]");
        check("v:1.5", "[=1.5]");
        check("i:3", "[3]");
    }

    #[test]
    fn malformed_elements_are_refused_and_unknown_ones_dropped() {
        assert_eq!(PathElement::from_wire("x:future"), Ok(None));
        assert_eq!(PathElement::from_wire("f"), Err(Malformed::Short));
        assert_eq!(PathElement::from_wire("foo"), Err(Malformed::MissingColon("foo".into())));
        for wire in ["v:{", "k:[]", "k:1", "i:x", "é:", "k:", "v:"] {
            assert!(PathElement::from_wire(wire).is_err(), "{wire}");
        }
    }

    #[test]
    fn numbers_are_the_same_however_they_are_written() {
        assert!(same(&json!({"a": 1, "b": [1.0]}), &json!({"b": [1], "a": 1.0})));
        assert!(!same(&json!(9_007_199_254_740_993_u64), &json!(9_007_199_254_740_992_u64)));
        assert!(!same(&json!({"a": null}), &json!({})));
        assert!(!same(&json!("1"), &json!(1)));
    }
}
