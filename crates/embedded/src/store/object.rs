//! Keys, stored objects and the operations on them. JSON is read here once per write, to take out what is looked up
//! often; nothing here knows about files or other objects.

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::WriteError;
use super::fields::{IndexedFields, Values};
use super::packed::Body;

/// Which collection: `("", "pods")`, `("terrane.dev", "terraformlayers")`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Collection {
    pub group: Arc<str>,
    pub plural: Arc<str>,
}

impl Collection {
    pub fn new(group: &str, plural: &str) -> Self {
        Self { group: group.into(), plural: plural.into() }
    }
}

impl fmt::Display for Collection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.plural)?;
        if self.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.group) }
    }
}

/// Which object; an empty namespace means cluster-scoped.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub collection: Collection,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl Key {
    pub fn new(collection: Collection, namespace: &str, name: &str) -> Self {
        Self { collection, namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.collection)?;
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// The labels of an object, sorted by key, in one piece of memory: each word behind its length. Most objects have a few, and there are
/// many objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels(Box<[u8]>);

impl Labels {
    fn new(labels: &BTreeMap<Cow<'_, str>, Cow<'_, str>>) -> Self {
        let mut words =
            Vec::with_capacity(labels.iter().map(|(key, value)| key.len() + value.len() + 16).sum());
        for word in labels.iter().flat_map(|(key, value)| [key, value]) {
            words.extend_from_slice(&word.len().to_ne_bytes());
            words.extend_from_slice(word.as_bytes());
        }
        Self(words.into())
    }

    /// O(labels of the object).
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(found, _)| *found == key).map(|(_, value)| value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || Some((word(&mut rest)?, word(&mut rest)?)))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Takes the first word off.
fn word<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let (length, behind) = rest.split_first_chunk()?;
    let (word, behind) = behind.split_at_checked(usize::from_ne_bytes(*length))?;
    *rest = behind;
    std::str::from_utf8(word).ok()
}

/// One object at one revision.
#[derive(Clone, PartialEq, Eq)]
pub struct Stored {
    pub key: Key,
    pub revision: u64,
    pub(super) body: Body,
    pub labels: Labels,
    /// Of the fields that have an index.
    pub(super) fields: Values,
}

impl Stored {
    /// Compact JSON, `metadata.resourceVersion` included.
    pub fn bytes(&self) -> Bytes {
        self.body.bytes()
    }

    /// How many bytes that is.
    pub fn size(&self) -> usize {
        self.body.len()
    }

    /// The object as a tree. Parsing cannot fail: what is stored was written from one, no deeper than can be read.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.bytes()).unwrap_or_default()
    }

    /// Read from the bytes: it is asked for seldom, and there are many objects to keep it of.
    pub fn uid(&self) -> Option<Box<str>> {
        #[derive(Deserialize)]
        struct Object {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        struct Metadata {
            uid: Option<Box<str>>,
        }
        serde_json::from_slice::<Object>(&self.bytes()).ok()?.metadata.uid
    }

    /// Takes an object back from the bytes that [`Prepared::stored_at`] made of it.
    pub(super) fn from_bytes(
        key: Key,
        revision: u64,
        bytes: &[u8],
        fields: &IndexedFields,
    ) -> Result<Self, serde_json::Error> {
        let labels = read_labels(bytes)?;
        let fields = fields.read(&key.collection, bytes)?;
        let body = Body::new(Bytes::copy_from_slice(bytes));
        Ok(Self { key, revision, body, labels, fields })
    }
}

/// Leaves out the bytes: they may be a Secret's, and are long.
impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stored({} at {}, {} bytes)", self.key, self.revision, self.size())
    }
}

/// One change, with what must be true for it to happen.
#[derive(Debug, Clone)]
pub enum Op {
    /// Fails with `Exists` if there is one.
    Create { key: Key, object: Value },
    /// Fails with `Missing`, or with `Conflict` unless the object is at revision `expected`.
    Update { key: Key, expected: u64, object: Value },
    /// As `Update`; `object` is the last state, which watches are shown.
    Delete { key: Key, expected: u64, object: Value },
}

/// What a change asks of the object that is there.
#[derive(Debug, Clone, Copy)]
pub(super) enum Demand {
    Create,
    Update { expected: u64 },
    Delete { expected: u64 },
}

/// An op, serialized but for its revision, which only the writer knows.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) demand: Demand,
    pub(super) key: Key,
    json: Vec<u8>,
    /// Where in `json` the digits of the revision belong.
    revision_at: usize,
    labels: Labels,
    fields: Values,
}

/// The depth that `serde_json` reads; anything deeper could be written but never read again.
const MAX_DEPTH: usize = 127;

impl Prepared {
    pub(super) fn new(op: Op, fields: &IndexedFields) -> Result<Self, WriteError> {
        let (demand, key, object) = match op {
            Op::Create { key, object } => (Demand::Create, key, object),
            Op::Update { key, expected, object } => (Demand::Update { expected }, key, object),
            Op::Delete { key, expected, object } => (Demand::Delete { expected }, key, object),
        };
        match serialize(&object) {
            Ok((json, revision_at, labels)) => {
                let fields = fields.values(&key.collection, &object);
                Ok(Self { demand, key, json, revision_at, labels, fields })
            }
            Err(reason) => Err(WriteError::Malformed { key, reason }),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.json.len()
    }

    /// `key` takes the place of the prepared one, so that a new revision shares the strings of the former.
    pub(super) fn stored_at(self, key: Key, revision: u64) -> Stored {
        let digits = revision.to_string();
        let (head, tail) = self.json.split_at_checked(self.revision_at).unwrap_or((&self.json, &[]));
        let mut bytes = Vec::with_capacity(self.json.len() + digits.len());
        bytes.extend_from_slice(head);
        bytes.extend_from_slice(digits.as_bytes());
        bytes.extend_from_slice(tail);
        Stored { key, revision, body: Body::new(bytes.into()), labels: self.labels, fields: self.fields }
    }
}

/// The JSON of `object` with an empty `metadata.resourceVersion`, where that is, and its labels, which are looked up often.
fn serialize(object: &Value) -> Result<(Vec<u8>, usize, Labels), String> {
    if deeper_than(object, MAX_DEPTH) {
        return Err(format!("it is nested more than {MAX_DEPTH} levels deep"));
    }
    let Value::Object(fields) = object else { return Err("it is not a JSON object".into()) };
    let mut json = Vec::with_capacity(1024);
    let revision_at = write_fields(&mut json, fields).map_err(|error| error.to_string())?;
    // Reading back what will be read at the next start makes sure that it can be read then.
    let labels = read_labels(&json).map_err(|error| format!("its metadata is not valid: {error}"))?;
    json.shrink_to_fit();
    Ok((json, revision_at, labels))
}

fn write_fields(json: &mut Vec<u8>, fields: &Map<String, Value>) -> Result<usize, serde_json::Error> {
    let mut revision_at = None;
    for (name, value) in fields {
        json.push(if json.is_empty() { b'{' } else { b',' });
        serde_json::to_writer(&mut *json, name)?;
        json.push(b':');
        match value {
            Value::Object(metadata) if name == "metadata" => {
                revision_at = Some(write_metadata(json, metadata)?);
            }
            _ => serde_json::to_writer(&mut *json, value)?,
        }
    }
    let revision_at = match revision_at {
        Some(at) => at,
        None => {
            json.extend_from_slice(if json.is_empty() { b"{\"metadata\":" } else { b",\"metadata\":" });
            write_metadata(json, &Map::new())?
        }
    };
    json.push(b'}');
    Ok(revision_at)
}

fn write_metadata(json: &mut Vec<u8>, fields: &Map<String, Value>) -> Result<usize, serde_json::Error> {
    // A revision that is there already is replaced; the new one goes last.
    json.push(b'{');
    for (name, value) in fields.iter().filter(|(name, _)| *name != "resourceVersion") {
        serde_json::to_writer(&mut *json, name)?;
        json.push(b':');
        serde_json::to_writer(&mut *json, value)?;
        json.push(b',');
    }
    json.extend_from_slice(b"\"resourceVersion\":\"");
    let revision_at = json.len();
    json.extend_from_slice(b"\"}");
    Ok(revision_at)
}

fn deeper_than(value: &Value, levels: usize) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        Value::Array(items) => levels == 0 || items.iter().any(|item| deeper_than(item, levels - 1)),
        Value::Object(fields) => levels == 0 || fields.values().any(|field| deeper_than(field, levels - 1)),
    }
}

/// Takes the labels out of an object's JSON, so that selecting by them does not parse.
fn read_labels(json: &[u8]) -> Result<Labels, serde_json::Error> {
    #[derive(Deserialize)]
    struct Object<'a> {
        #[serde(borrow)]
        metadata: Metadata<'a>,
    }
    #[derive(Deserialize)]
    struct Metadata<'a> {
        #[serde(borrow)]
        labels: Option<BTreeMap<Cow<'a, str>, Cow<'a, str>>>,
    }
    let Object { metadata } = serde_json::from_slice(json)?;
    Ok(metadata.labels.as_ref().map(Labels::new).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use serde_json::json;

    use super::*;

    fn key() -> Key {
        Key::new(Collection::new("terrane.dev", "terraformlayers"), "infra", "vpc")
    }

    fn stored(object: Value, revision: u64) -> Stored {
        Prepared::new(Op::Create { key: key(), object }, &IndexedFields::default())
            .unwrap()
            .stored_at(key(), revision)
    }

    fn reason(object: Value) -> String {
        match Prepared::new(Op::Create { key: key(), object }, &IndexedFields::default()) {
            Err(WriteError::Malformed { reason, .. }) => reason,
            other => panic!("expected a malformed object, got {other:?}"),
        }
    }

    #[test]
    fn the_revision_is_written_wherever_metadata_stands() {
        let table = [
            (json!({}), json!({"metadata": {"resourceVersion": "42"}})),
            (json!({"a": 1}), json!({"a": 1, "metadata": {"resourceVersion": "42"}})),
            (
                json!({"metadata": {"resourceVersion": "7", "name": "x"}, "spec": {"metadata": {}}}),
                json!({"metadata": {"name": "x", "resourceVersion": "42"}, "spec": {"metadata": {}}}),
            ),
            (
                json!({"kind": "\"Odd\u{e9}\n", "metadata": {"annotations": {"a\"b": "c,}"}}}),
                json!({"kind": "\"Odd\u{e9}\n", "metadata": {"annotations": {"a\"b": "c,}"}, "resourceVersion": "42"}}),
            ),
        ];
        for (object, expected) in table {
            let stored = stored(object, 42);
            assert_eq!(stored.value(), expected);
            assert_eq!(
                stored.bytes(),
                serde_json::to_vec(&expected).unwrap(),
                "the JSON is compact and in order"
            );
        }
    }

    #[test]
    fn labels_are_taken_out_and_found_again_in_the_bytes() {
        let object = json!({"metadata": {
            "labels": {"b": "2", "a": "", "\u{e9}\n": "\"x"},
            "managedFields": [{"fieldsV1": {"f:metadata": {}}}],
        }});
        let stored = stored(object, 3);
        assert_eq!(stored.labels.iter().collect::<Vec<_>>(), [("a", ""), ("b", "2"), ("\u{e9}\n", "\"x")]);
        assert_eq!((stored.labels.get("b"), stored.labels.get("c")), (Some("2"), None));
        assert_eq!(Stored::from_bytes(key(), 3, &stored.bytes(), &IndexedFields::default()).unwrap(), stored);
    }

    #[test]
    fn what_could_not_be_read_again_is_refused() {
        assert_eq!(reason(json!([1])), "it is not a JSON object");
        assert!(reason(json!({"metadata": "x"})).starts_with("its metadata is not valid"));
        assert!(reason(json!({"metadata": {"labels": {"a": 1}}})).starts_with("its metadata is not valid"));
        let nested = |levels: usize| (1..levels).fold(json!({}), |inner, _| json!({ "a": inner }));
        assert_eq!(stored(nested(MAX_DEPTH), 1).value()["metadata"]["resourceVersion"], "1");
        assert_eq!(reason(nested(MAX_DEPTH + 1)), "it is nested more than 127 levels deep");
    }

    #[test]
    fn a_key_reads_as_people_write_it() {
        assert_eq!(key().to_string(), "terraformlayers.terrane.dev infra/vpc");
        assert_eq!(Key::new(Collection::new("", "nodes"), "", "n1").to_string(), "nodes n1");
    }
}
