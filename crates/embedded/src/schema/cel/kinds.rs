//! The types of a rule's parts, as far as they are known before it runs, and which operators take them.

use std::fmt;

use kube_cel::cel::common::ast::operators as names;

use crate::schema::node::{Node, Type};

use super::values::Place;

#[derive(Clone)]
pub(super) enum Kind<'n> {
    /// A place in the schema that is an object with fields of its own.
    Object(&'n Node, Place),
    /// The metadata of a resource, of which rules see the names.
    Metadata,
    List(Box<Kind<'n>>),
    Map(Box<Kind<'n>>),
    Scalar(&'static str),
    /// Nothing is known, or everything is possible.
    Dyn,
}

pub(super) const BOOL: Kind<'static> = Kind::Scalar("bool");
pub(super) const INT: Kind<'static> = Kind::Scalar("int");
pub(super) const STRING: Kind<'static> = Kind::Scalar("string");

impl<'n> Kind<'n> {
    /// The type of a place in the schema; none if rules do not see it.
    pub(super) fn of(node: &'n Node, place: Place) -> Option<Self> {
        if node.int_or_string {
            return Some(Kind::Dyn);
        }
        Some(match node.kind? {
            Type::Array => {
                let items = node.items.as_deref()?;
                Kind::List(Box::new(Kind::of(items, Place::of(items))?))
            }
            Type::Object => match node.additional.as_deref().filter(|_| node.properties.is_empty()) {
                Some(values) => Kind::Map(Box::new(Kind::of(values, Place::of(values)).unwrap_or(Kind::Dyn))),
                None => Kind::Object(node, place),
            },
            Type::String => Kind::Scalar(match node.format.as_deref() {
                Some("byte") => "bytes",
                Some("duration") => "duration",
                Some("date" | "date-time") => "timestamp",
                Some(_) | None => "string",
            }),
            Type::Integer => INT,
            Type::Number => Kind::Scalar("double"),
            Type::Boolean => BOOL,
        })
    }

    /// Whether this may turn out to be that.
    pub(super) fn may_be(&self, other: &Kind<'_>) -> bool {
        match (self, other) {
            (Kind::Dyn, _) | (_, Kind::Dyn) => true,
            (Kind::Scalar(a), Kind::Scalar(b)) => a == b,
            (Kind::List(a), Kind::List(b)) | (Kind::Map(a), Kind::Map(b)) => a.may_be(b),
            // What kinds of objects there are is not told apart.
            (Kind::Object(..) | Kind::Metadata, Kind::Object(..) | Kind::Metadata | Kind::Map(_))
            | (Kind::Map(_), Kind::Object(..) | Kind::Metadata)
            | (Kind::Object(..) | Kind::Metadata, Kind::Scalar("null"))
            | (Kind::Scalar("null"), Kind::Object(..) | Kind::Metadata) => true,
            (_, _) => false,
        }
    }

    /// What a macro with one variable binds to it.
    pub(super) fn element(&self) -> Kind<'n> {
        match self {
            Kind::List(item) => (**item).clone(),
            Kind::Map(_) => STRING,
            Kind::Object(..) | Kind::Metadata | Kind::Scalar(_) | Kind::Dyn => Kind::Dyn,
        }
    }

    /// What a macro with two variables binds to the second.
    pub(super) fn value(&self) -> Kind<'n> {
        match self {
            Kind::List(inner) | Kind::Map(inner) => (**inner).clone(),
            Kind::Object(..) | Kind::Metadata | Kind::Scalar(_) | Kind::Dyn => Kind::Dyn,
        }
    }

    fn is_open(&self) -> bool {
        match self {
            Kind::Dyn | Kind::Object(..) | Kind::Metadata => true,
            Kind::List(inner) | Kind::Map(inner) => inner.is_open(),
            Kind::Scalar(_) => false,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Kind::Scalar(name) => name,
            Kind::List(_) => "list",
            Kind::Map(_) => "map",
            Kind::Object(..) | Kind::Metadata => "object",
            Kind::Dyn => "dyn",
        }
    }
}

impl fmt::Display for Kind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::List(item) => write!(f, "list({item})"),
            Kind::Map(value) => write!(f, "map(string, {value})"),
            Kind::Object(..) | Kind::Metadata | Kind::Scalar(_) | Kind::Dyn => f.write_str(self.name()),
        }
    }
}

/// What an operator or a function yields for its operands; `Err` if it does not take them.
pub(super) fn result<'n>(operator: &str, operands: &[Kind<'n>]) -> Result<Kind<'n>, ()> {
    let number = |kind: &Kind<'_>| matches!(kind.name(), "int" | "uint" | "double" | "dyn");
    let refuse = |takes: bool, yields: Kind<'n>| if takes { Ok(yields) } else { Err(()) };
    match (operator, operands) {
        (names::EQUALS | names::NOT_EQUALS, [a, b]) => refuse(a.may_be(b) || unknowable(a, b), BOOL),
        (names::LESS | names::LESS_EQUALS | names::GREATER | names::GREATER_EQUALS, [a, b]) => {
            let ordered =
                |kind: &Kind<'_>| !matches!(kind.name(), "list" | "map" | "object" | "null" | "type");
            refuse((number(a) && number(b)) || (a.may_be(b) && ordered(a) && ordered(b)), BOOL)
        }
        (names::ADD, [a, b]) => match (a.name(), b.name()) {
            ("dyn", _) | (_, "dyn") => Ok(Kind::Dyn),
            ("timestamp", "duration") | ("duration", "timestamp") => Ok(Kind::Scalar("timestamp")),
            ("int" | "uint" | "double" | "string" | "bytes" | "duration" | "list", _) if a.may_be(b) => {
                Ok(a.clone())
            }
            _ => Err(()),
        },
        (names::SUBSTRACT, [a, b]) => match (a.name(), b.name()) {
            ("dyn", _) | (_, "dyn") => Ok(Kind::Dyn),
            ("timestamp", "timestamp") => Ok(Kind::Scalar("duration")),
            ("timestamp", "duration") => Ok(Kind::Scalar("timestamp")),
            ("int" | "uint" | "double" | "duration", _) if a.may_be(b) => Ok(a.clone()),
            _ => Err(()),
        },
        (names::MULTIPLY | names::DIVIDE | names::MODULO, [a, b]) => match (a.name(), b.name()) {
            ("dyn", _) | (_, "dyn") => Ok(Kind::Dyn),
            ("int" | "uint", _) if a.may_be(b) => Ok(a.clone()),
            ("double", "double") if operator != names::MODULO => Ok(a.clone()),
            _ => Err(()),
        },
        (names::IN, [item, Kind::List(of)]) => refuse(item.may_be(of), BOOL),
        (names::IN, [item, Kind::Map(_)]) => refuse(item.may_be(&STRING), BOOL),
        (names::IN, [_, container]) => refuse(container.is_open(), BOOL),
        (names::INDEX, [Kind::List(item), at]) => refuse(number(at), (**item).clone()),
        (names::INDEX, [Kind::Map(value), at]) => refuse(at.may_be(&STRING), (**value).clone()),
        (names::INDEX, [container, _]) => refuse(container.is_open(), Kind::Dyn),
        (names::LOGICAL_NOT, [a]) => refuse(a.may_be(&BOOL), BOOL),
        (names::NEGATE, [a]) => refuse(matches!(a.name(), "int" | "double" | "dyn"), a.clone()),
        (names::CONDITIONAL, [condition, yes, no]) => {
            refuse(condition.may_be(&BOOL) && (yes.may_be(no) || unknowable(yes, no)), yes.clone())
        }
        ("size", [value]) => refuse(matches!(value.name(), "string" | "bytes" | "list" | "map" | "dyn"), INT),
        ("startsWith" | "endsWith" | "contains" | "matches", [value, part]) => {
            refuse(value.may_be(&STRING) && part.may_be(&STRING), BOOL)
        }
        ("string" | "lowerAscii" | "upperAscii" | "trim" | "join" | "format", _) => Ok(STRING),
        ("int", _) => Ok(INT),
        ("duration", _) => Ok(Kind::Scalar("duration")),
        ("timestamp", _) => Ok(Kind::Scalar("timestamp")),
        ("type", _) => Ok(Kind::Scalar("type")),
        (
            "isURL" | "isIP" | "isCIDR" | "isQuantity" | "isSemver" | "isSorted" | "hasValue" | "isLessThan"
            | "isGreaterThan" | "containsIP" | "containsCIDR",
            _,
        ) => Ok(BOOL),
        (_, _) => Ok(Kind::Dyn),
    }
}

/// A mismatch that involves objects is not named, because their types have no names of their own.
fn unknowable(a: &Kind<'_>, b: &Kind<'_>) -> bool {
    a.is_open() || b.is_open()
}
