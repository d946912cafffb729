//! `metadata.managedFields`: who owns which fields, as entries of the object and as sets to reckon with.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::set::FieldSet;
use super::wording;

/// Past this many entries of updates the oldest are taken together, so that an object written by ever new clients stays small.
const MAX_UPDATE_MANAGERS: usize = 10;

const ANCIENT: &str = "ancient-changes";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Apply,
    Update,
}

/// What tells entries apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    pub(super) manager: String,
    pub(super) operation: Operation,
    /// Empty for appliers: one who applies with another version is still the same.
    api_version: String,
    pub(super) subresource: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) set: FieldSet,
    pub(super) api_version: String,
    pub(super) time: Option<Timestamp>,
}

/// All entries of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Managed(pub(super) BTreeMap<Id, Entry>);

impl Id {
    pub(super) fn new(manager: &str, operation: Operation, api_version: &str, subresource: &str) -> Self {
        let api_version = match operation {
            Operation::Apply => String::new(),
            Operation::Update => api_version.to_owned(),
        };
        Id { manager: manager.to_owned(), operation, api_version, subresource: subresource.to_owned() }
    }

    /// As conflicts name a manager.
    pub(super) fn describe(&self) -> String {
        let mut out = wording::quoted(&self.manager);
        if !self.subresource.is_empty() {
            out.push_str(&format!(" with subresource {}", wording::quoted(&self.subresource)));
        }
        match self.operation {
            Operation::Apply => {}
            Operation::Update => out.push_str(&format!(" using {}", self.api_version)),
        }
        out
    }
}

impl Managed {
    /// Reads `metadata.managedFields`. A message says what is wrong with them.
    pub(super) fn decode(entries: Option<&Value>) -> Result<Managed, String> {
        let entries = match entries {
            None | Some(Value::Null) => return Ok(Managed::default()),
            Some(Value::Array(entries)) => entries,
            Some(other) => return Err(format!("expected a list of entries, got {}", wording::plain(other))),
        };
        let mut out = Managed::default();
        for (index, entry) in entries.iter().enumerate() {
            let (id, entry) = decode_entry(index, entry)?;
            out.0.insert(id, entry);
        }
        Ok(out)
    }

    /// As `metadata.managedFields`, `None` without any entry.
    pub(super) fn encode(&self) -> Option<Value> {
        let mut entries: Vec<(&Id, &Entry)> = self.0.iter().collect();
        let seconds = |entry: &Entry| entry.time.map_or(0, Timestamp::as_second);
        entries.sort_by(|(a, x), (b, y)| {
            let a = (a.operation, seconds(x), &a.manager, &x.api_version, &a.subresource);
            a.cmp(&(b.operation, seconds(y), &b.manager, &y.api_version, &b.subresource))
        });
        let entries: Vec<Value> = entries.into_iter().map(|(id, entry)| encode_entry(id, entry)).collect();
        (!entries.is_empty()).then_some(Value::Array(entries))
    }

    /// Adds to what a manager owns.
    pub(super) fn grant(&mut self, id: Id, set: &FieldSet, api_version: &str, now: Timestamp) {
        let previous = self.0.get(&id).map(|entry| entry.set.union(set));
        let set = previous.unwrap_or_else(|| set.clone());
        self.0.insert(id, Entry { set, api_version: api_version.to_owned(), time: Some(now) });
    }

    /// Takes the oldest entries of updates together, version by version, until there are few enough. O(n log n) in the entries.
    pub(super) fn cap_updates(&mut self) {
        let mut updates: Vec<(i64, Id)> = Vec::new();
        for (id, entry) in &self.0 {
            match id.operation {
                Operation::Apply => {}
                Operation::Update => updates.push((entry.time.map_or(0, Timestamp::as_second), id.clone())),
            }
        }
        let mut excess = updates.len().saturating_sub(MAX_UPDATE_MANAGERS);
        updates.sort();
        // The first entry of a version is only moved once there is a second to join it.
        let mut first_of_version: BTreeMap<String, Id> = BTreeMap::new();
        for (_, id) in updates {
            if excess == 0 {
                return;
            }
            let Some(version) = self.0.get(&id).map(|entry| entry.api_version.clone()) else { continue };
            let Some(first) = first_of_version.get(&version) else {
                first_of_version.insert(version, id);
                continue;
            };
            let bucket = Id::new(ANCIENT, Operation::Update, &version, "");
            if !self.0.contains_key(&bucket)
                && let Some(entry) = self.0.remove(first)
            {
                self.0.insert(bucket.clone(), entry);
            }
            if bucket == id {
                continue;
            }
            if let Some(joining) = self.0.remove(&id)
                && let Some(bucket) = self.0.get_mut(&bucket)
            {
                bucket.set = bucket.set.union(&joining.set);
                bucket.time = joining.time;
                excess -= 1;
            }
        }
    }
}

/// A client asks to forget all ownership by sending an empty list, or a list of one empty entry.
pub(super) fn is_reset(entries: Option<&Value>) -> bool {
    match entries.and_then(Value::as_array).map(Vec::as_slice) {
        Some([]) => true,
        Some([Value::Object(only)]) => only.values().all(Value::is_null),
        Some(_) | None => false,
    }
}

pub(super) fn of(object: &Value) -> Option<&Value> {
    object.get("metadata")?.get("managedFields")
}

pub(super) fn take_from(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        // Shifting keeps the order in which the client wrote the other fields.
        metadata.shift_remove("managedFields");
    }
}

pub(super) fn put_into(object: &mut Value, managed: &Managed) {
    take_from(object);
    let (Some(entries), Some(fields)) = (managed.encode(), object.as_object_mut()) else { return };
    let metadata = fields.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.insert("managedFields".to_owned(), entries);
    }
}

fn decode_entry(index: usize, entry: &Value) -> Result<(Id, Entry), String> {
    let text = |name: &str| match entry.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(other) => Err(format!(
            "{name} in managed fields entry {index} must be a string, not {}",
            wording::plain(other)
        )),
    };
    let operation = match text("operation")? {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return Err("operation must be `Apply` or `Update`".to_owned()),
    };
    let api_version = text("apiVersion")?;
    if api_version.is_empty() {
        return Err("apiVersion must not be empty".to_owned());
    }
    match text("fieldsType")? {
        "FieldsV1" => {}
        "" => return Err(format!("missing fieldsType in managed fields entry {index}")),
        other => {
            return Err(format!(
                "invalid fieldsType {} in managed fields entry {index}",
                wording::quoted(other)
            ));
        }
    }
    let time = match text("time")? {
        "" => None,
        time => Some(
            time.parse().map_err(|cause| format!("invalid time in managed fields entry {index}: {cause}"))?,
        ),
    };
    let empty = Value::Object(Map::new());
    let fields = entry.get("fieldsV1").filter(|fields| !fields.is_null()).unwrap_or(&empty);
    let set = FieldSet::from_value(fields).map_err(|cause| {
        format!("error decoding versioned set from managed fields entry {index}: error decoding set: {cause}")
    })?;
    let id = Id::new(text("manager")?, operation, api_version, text("subresource")?);
    Ok((id, Entry { set, api_version: api_version.to_owned(), time }))
}

fn encode_entry(id: &Id, entry: &Entry) -> Value {
    let operation = match id.operation {
        Operation::Apply => "Apply",
        Operation::Update => "Update",
    };
    let mut out = Map::new();
    out.insert("apiVersion".to_owned(), entry.api_version.as_str().into());
    out.insert("fieldsType".to_owned(), "FieldsV1".into());
    out.insert("fieldsV1".to_owned(), entry.set.to_value());
    if !id.manager.is_empty() {
        out.insert("manager".to_owned(), id.manager.as_str().into());
    }
    out.insert("operation".to_owned(), operation.into());
    if !id.subresource.is_empty() {
        out.insert("subresource".to_owned(), id.subresource.as_str().into());
    }
    if let Some(time) = entry.time {
        out.insert("time".to_owned(), time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into());
    }
    Value::Object(out)
}
