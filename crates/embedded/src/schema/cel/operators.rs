//! Arithmetic, comparison and equality of the values that rules see, with the faults that kube-apiserver names.

use std::cmp::Ordering;
use std::sync::Arc;

use kube_cel::cel::Value;
use kube_cel::cel::common::ast::operators as names;
use kube_cel::cel::objects::Key;

use crate::schema::node::{ListType, Node};

use super::eval::Fault;

/// Numbers are the same whatever their kind; everything else must be of one kind.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::List(a), Value::List(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| equal(a, b))
        }
        (Value::Map(a), Value::Map(b)) => {
            a.map.len() == b.map.len()
                && a.map.iter().all(|(key, value)| b.map.get(key).is_some_and(|other| equal(value, other)))
        }
        (
            Value::Int(_) | Value::UInt(_) | Value::Float(_),
            Value::Int(_) | Value::UInt(_) | Value::Float(_),
        ) => compare(a, b) == Some(Ordering::Equal),
        (a, b) => a == b,
    }
}

/// Equality where the schema is known: the order of sets, and of lists whose items have keys, does not count.
pub(super) fn equal_in(node: &Node, a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::List(a), Value::List(b)) if a.len() == b.len() => match (node.list_type, &node.items) {
            (ListType::Atomic, Some(items)) => a.iter().zip(b.iter()).all(|(a, b)| equal_in(items, a, b)),
            (ListType::Set | ListType::Map, Some(items)) => {
                let mut left: Vec<(String, &Value)> =
                    a.iter().map(|item| (sort_key(node, item), item)).collect();
                let mut right: Vec<(String, &Value)> =
                    b.iter().map(|item| (sort_key(node, item), item)).collect();
                left.sort_by(|a, b| a.0.cmp(&b.0));
                right.sort_by(|a, b| a.0.cmp(&b.0));
                left.iter()
                    .zip(&right)
                    .all(|((a_key, a), (b_key, b))| a_key == b_key && equal_in(items, a, b))
            }
            (_, None) => a.iter().zip(b.iter()).all(|(a, b)| equal(a, b)),
        },
        (Value::List(_), Value::List(_)) => false,
        (Value::Map(a), Value::Map(b)) => {
            a.map.len() == b.map.len()
                && a.map.iter().all(|(key, value)| {
                    let field = match key {
                        Key::String(name) => node.properties.get(name.as_str()).or(node.additional.as_ref()),
                        Key::Int(_) | Key::Uint(_) | Key::Bool(_) => None,
                    };
                    b.map.get(key).is_some_and(|other| match field {
                        Some(field) => equal_in(field, value, other),
                        None => equal(value, other),
                    })
                })
        }
        (a, b) => equal(a, b),
    }
}

/// By what an item of a set or a map is told apart.
fn sort_key(node: &Node, item: &Value) -> String {
    match (node.list_type, item) {
        (ListType::Map, Value::Map(fields)) => node
            .list_map_keys
            .iter()
            .filter_map(|key| super::values::escape(key))
            .map(|key| format!("{:?}", fields.map.get(&super::values::text_key(&key))))
            .collect(),
        (_, item) => format!("{item:?}"),
    }
}

pub(super) fn compare(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::UInt(a), Value::UInt(b)) => Some(a.cmp(b)),
        (Value::Float(a), Value::Float(b)) => a.partial_cmp(b),
        (Value::Int(a), Value::UInt(b)) => Some(u64::try_from(*a).map_or(Ordering::Less, |a| a.cmp(b))),
        (Value::UInt(a), Value::Int(b)) => Some(u64::try_from(*b).map_or(Ordering::Greater, |b| a.cmp(&b))),
        (Value::Int(a), Value::Float(b)) => (*a as f64).partial_cmp(b),
        (Value::Float(a), Value::Int(b)) => a.partial_cmp(&(*b as f64)),
        (Value::UInt(a), Value::Float(b)) => (*a as f64).partial_cmp(b),
        (Value::Float(a), Value::UInt(b)) => a.partial_cmp(&(*b as f64)),
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Bytes(a), Value::Bytes(b)) => Some(a.cmp(b)),
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        (Value::Timestamp(a), Value::Timestamp(b)) => Some(a.cmp(b)),
        (Value::Duration(a), Value::Duration(b)) => Some(a.cmp(b)),
        _ => None,
    }
}

fn comparable(a: &Value, b: &Value) -> bool {
    let number = |value: &Value| matches!(value, Value::Int(_) | Value::UInt(_) | Value::Float(_));
    (number(a) && number(b)) || compare(a, b).is_some()
}

/// A binary operator on two values. `None` if there is no such operator.
pub(super) fn binary(operator: &str, a: &Value, b: &Value) -> Option<Result<Value, Fault>> {
    Some(match operator {
        names::LESS | names::LESS_EQUALS | names::GREATER | names::GREATER_EQUALS => relation(operator, a, b),
        names::ADD => add(a, b),
        names::SUBSTRACT => subtract(a, b),
        names::MULTIPLY | names::DIVIDE | names::MODULO => scale(operator, a, b),
        names::IN => contains(b, a),
        _ => return None,
    })
}

fn relation(operator: &str, a: &Value, b: &Value) -> Result<Value, Fault> {
    if !comparable(a, b) {
        return Err(Fault::overload());
    }
    let order = compare(a, b);
    Ok(Value::Bool(match operator {
        names::LESS => order == Some(Ordering::Less),
        names::LESS_EQUALS => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        names::GREATER => order == Some(Ordering::Greater),
        _ => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    }))
}

fn integer(result: Option<i64>) -> Result<Value, Fault> {
    result.map(Value::Int).ok_or_else(|| Fault::text("integer overflow"))
}

fn unsigned(result: Option<u64>) -> Result<Value, Fault> {
    result.map(Value::UInt).ok_or_else(|| Fault::text("unsigned integer overflow"))
}

fn add(a: &Value, b: &Value) -> Result<Value, Fault> {
    let time_overflow = || Fault::text("timestamp overflow");
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => integer(a.checked_add(*b)),
        (Value::UInt(a), Value::UInt(b)) => unsigned(a.checked_add(*b)),
        (Value::Float(a), Value::Float(b)) => Ok(Value::Float(a + b)),
        (Value::String(a), Value::String(b)) => Ok(Value::String(Arc::new(format!("{a}{b}")))),
        (Value::Bytes(a), Value::Bytes(b)) => {
            Ok(Value::Bytes(Arc::new([a.as_slice(), b.as_slice()].concat())))
        }
        (Value::List(a), Value::List(b)) => Ok(Value::List(Arc::new([a.as_slice(), b.as_slice()].concat()))),
        (Value::Timestamp(at), Value::Duration(by)) | (Value::Duration(by), Value::Timestamp(at)) => {
            at.checked_add_signed(*by).map(Value::Timestamp).ok_or_else(time_overflow)
        }
        (Value::Duration(a), Value::Duration(b)) => {
            a.checked_add(b).map(Value::Duration).ok_or_else(|| Fault::text("duration overflow"))
        }
        _ => Err(Fault::overload()),
    }
}

fn subtract(a: &Value, b: &Value) -> Result<Value, Fault> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => integer(a.checked_sub(*b)),
        (Value::UInt(a), Value::UInt(b)) => unsigned(a.checked_sub(*b)),
        (Value::Float(a), Value::Float(b)) => Ok(Value::Float(a - b)),
        (Value::Timestamp(a), Value::Timestamp(b)) => Ok(Value::Duration(a.signed_duration_since(*b))),
        (Value::Timestamp(at), Value::Duration(by)) => {
            at.checked_sub_signed(*by).map(Value::Timestamp).ok_or_else(|| Fault::text("timestamp overflow"))
        }
        (Value::Duration(a), Value::Duration(b)) => {
            a.checked_sub(b).map(Value::Duration).ok_or_else(|| Fault::text("duration overflow"))
        }
        _ => Err(Fault::overload()),
    }
}

fn scale(operator: &str, a: &Value, b: &Value) -> Result<Value, Fault> {
    let by_zero = matches!(b, Value::Int(0) | Value::UInt(0));
    match (operator, a, b) {
        (names::DIVIDE, Value::Int(_) | Value::UInt(_), _) if by_zero => Err(Fault::text("division by zero")),
        (names::MODULO, Value::Int(_) | Value::UInt(_), _) if by_zero => Err(Fault::text("modulus by zero")),
        (names::MULTIPLY, Value::Int(a), Value::Int(b)) => integer(a.checked_mul(*b)),
        (names::DIVIDE, Value::Int(a), Value::Int(b)) => integer(a.checked_div(*b)),
        (names::MODULO, Value::Int(a), Value::Int(b)) => integer(a.checked_rem(*b)),
        (names::MULTIPLY, Value::UInt(a), Value::UInt(b)) => unsigned(a.checked_mul(*b)),
        (names::DIVIDE, Value::UInt(a), Value::UInt(b)) => unsigned(a.checked_div(*b)),
        (names::MODULO, Value::UInt(a), Value::UInt(b)) => unsigned(a.checked_rem(*b)),
        (names::MULTIPLY, Value::Float(a), Value::Float(b)) => Ok(Value::Float(a * b)),
        (names::DIVIDE, Value::Float(a), Value::Float(b)) => Ok(Value::Float(a / b)),
        _ => Err(Fault::overload()),
    }
}

pub(super) fn contains(container: &Value, wanted: &Value) -> Result<Value, Fault> {
    match container {
        Value::List(items) => Ok(Value::Bool(items.iter().any(|item| equal(item, wanted)))),
        Value::Map(map) => Ok(Value::Bool(key_of(wanted).is_some_and(|key| map.get(&key).is_some()))),
        _ => Err(Fault::overload()),
    }
}

pub(super) fn negate(value: &Value) -> Result<Value, Fault> {
    match value {
        Value::Int(number) => integer(number.checked_neg()),
        Value::Float(number) => Ok(Value::Float(-number)),
        Value::Duration(duration) => Ok(Value::Duration(-*duration)),
        _ => Err(Fault::overload()),
    }
}

pub(super) fn key_of(value: &Value) -> Option<Key> {
    match value {
        Value::Int(number) => Some(Key::Int(*number)),
        Value::UInt(number) => Some(Key::Uint(*number)),
        Value::Bool(flag) => Some(Key::Bool(*flag)),
        Value::String(text) => Some(Key::String(text.clone())),
        Value::Float(number) if number.fract() == 0.0 && number.abs() < 9e15 => {
            Some(Key::Int(*number as i64))
        }
        _ => None,
    }
}

pub(super) fn value_of_key(key: &Key) -> Value {
    match key {
        Key::Int(number) => Value::Int(*number),
        Key::Uint(number) => Value::UInt(*number),
        Key::Bool(flag) => Value::Bool(*flag),
        Key::String(text) => Value::String(text.clone()),
    }
}

pub(super) fn index(container: &Value, at: &Value) -> Result<Value, Fault> {
    match (container, at) {
        (Value::List(items), at) => {
            let position = match at {
                Value::Int(number) => usize::try_from(*number).ok(),
                Value::UInt(number) => usize::try_from(*number).ok(),
                Value::Float(number) if number.fract() == 0.0 && *number >= 0.0 => Some(*number as usize),
                Value::Float(_) => None,
                _ => return Err(Fault::overload()),
            };
            let found = position.and_then(|position| items.get(position)).cloned();
            found.ok_or_else(|| Fault::text(format!("index out of bounds: {}", shown(at))))
        }
        (Value::Map(map), at) => {
            let key = key_of(at).ok_or_else(Fault::overload)?;
            map.get(&key).cloned().ok_or_else(|| Fault::text(format!("no such key: {}", shown(at))))
        }
        _ => Err(Fault::overload()),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        Value::UInt(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Bool(flag) => flag.to_string(),
        Value::String(text) => text.to_string(),
        other => format!("{other:?}"),
    }
}
