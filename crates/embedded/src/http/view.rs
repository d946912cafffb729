//! Stored objects as a kind shows them: the versions of a custom resource differ in a word, the two sorts of events in their fields.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use serde_json::{Map, Value, json};

use crate::kinds::{Builtin, Kind, Origin};
use crate::schema;
use crate::store::Stored;

const HEAD: &[u8] = b"{\"apiVersion\":\"";

/// The bytes of an object as `kind` shows it. The stored bytes themselves, wherever that is right.
pub fn bytes(kind: &Kind, object: &Stored) -> Bytes {
    match &kind.origin {
        Origin::Builtin(Builtin::EventV1) => to_vec(&event_v1(object.value())),
        Origin::Builtin(_) => object.bytes(),
        // The schema changed after the object was written: what it fills in and what it drops shows from then on.
        Origin::Custom(definition) if object.revision < definition.schema_revision => {
            to_vec(&value(kind, object))
        }
        Origin::Custom(_) => with_version(kind, &object.bytes()),
    }
}

/// The same, as a value.
pub fn value(kind: &Kind, object: &Stored) -> Value {
    let mut value = object.value();
    match &kind.origin {
        Origin::Builtin(Builtin::EventV1) => event_v1(value),
        Origin::Builtin(_) => value,
        Origin::Custom(definition) => {
            if object.revision < definition.schema_revision {
                schema::prune(&kind.schema, &mut value);
                schema::default(&kind.schema, &mut value);
            }
            if let Some(fields) = value.as_object_mut() {
                fields.insert("apiVersion".to_owned(), (&*kind.api_version).into());
            }
            value
        }
    }
}

/// An object in the form that is stored, ready to be: the words that say what it is come first, which `bytes` and lists rely on.
pub fn stored(kind: &Kind, object: Value) -> Value {
    let object = match kind.builtin() {
        Some(Builtin::EventV1) => event_core(object),
        _ => object,
    };
    let Value::Object(mut fields) = object else { return object };
    let mut ordered = Map::with_capacity(fields.len());
    ordered.insert("apiVersion".to_owned(), (&*kind.storage_version).into());
    ordered.insert("kind".to_owned(), (&*kind.kind).into());
    ordered.insert("metadata".to_owned(), fields.swap_remove("metadata").unwrap_or_else(|| json!({})));
    for (key, value) in fields {
        if key != "apiVersion" && key != "kind" {
            ordered.insert(key, value);
        }
    }
    Value::Object(ordered)
}

/// The part of an object that a list of built-in objects shows: all but the first two words.
pub fn without_type<'a>(kind: &Kind, bytes: &'a Bytes) -> Option<&'a [u8]> {
    let head = [HEAD, kind.api_version.as_bytes(), b"\",\"kind\":\"", kind.kind.as_bytes(), b"\","].concat();
    bytes.strip_prefix(head.as_slice())
}

fn with_version(kind: &Kind, bytes: &Bytes) -> Bytes {
    let Some(rest) = bytes.strip_prefix(HEAD) else { return bytes.clone() };
    let wanted = kind.api_version.as_bytes();
    if rest.starts_with(wanted) && rest.get(wanted.len()) == Some(&b'"') {
        return bytes.clone();
    }
    let Some(end) = rest.iter().position(|b| *b == b'"') else { return bytes.clone() };
    let mut changed = BytesMut::with_capacity(bytes.len() + wanted.len());
    changed.extend_from_slice(HEAD);
    changed.extend_from_slice(wanted);
    changed.extend_from_slice(rest.get(end..).unwrap_or_default());
    changed.freeze()
}

pub fn to_vec(value: &Value) -> Bytes {
    value.to_string().into()
}

/// Fields of an event: core/v1 first, events.k8s.io/v1 second.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

fn event_v1(object: Value) -> Value {
    renamed(object, "events.k8s.io/v1", |field| {
        EVENT_FIELDS.iter().find(|(core, _)| *core == field).map(|(_, v1)| *v1)
    })
}

/// Back to the form that is stored.
pub fn event_core(object: Value) -> Value {
    renamed(object, "v1", |field| EVENT_FIELDS.iter().find(|(_, v1)| *v1 == field).map(|(core, _)| *core))
}

fn renamed(object: Value, api_version: &str, other_name: impl Fn(&str) -> Option<&'static str>) -> Value {
    let Value::Object(fields) = object else { return object };
    let to_v1 = api_version != "v1";
    let omitted = |key: &str, value: &Value| {
        to_v1 && ["reportingComponent", "reportingInstance"].contains(&key) && *value == ""
    };
    let mut changed: Map<String, Value> = fields
        .into_iter()
        .filter(|(key, value)| !omitted(key, value))
        .map(|(key, value)| (other_name(&key).map_or(key, str::to_owned), value))
        .collect();
    changed.insert("apiVersion".to_owned(), api_version.into());
    Value::Object(changed)
}

/// `PartialObjectMetadata` of an object.
pub fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

/// An object of a write that may not have been stored.
#[derive(Debug, Clone)]
pub enum Shown {
    Stored(Arc<Stored>),
    /// What would have been stored, had it not been a dry run; or what was there last.
    Value(Value),
}

impl Shown {
    pub fn bytes(&self, kind: &Kind) -> Bytes {
        match self {
            Shown::Stored(object) => bytes(kind, object),
            Shown::Value(value) => to_vec(value),
        }
    }

    pub fn value(&self, kind: &Kind) -> Value {
        match self {
            Shown::Stored(object) => value(kind, object),
            Shown::Value(value) => value.clone(),
        }
    }
}
