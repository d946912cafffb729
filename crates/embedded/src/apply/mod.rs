//! Server-side apply: who owns which field. Pure functions on objects: given the stored object and what a client sent, they
//! answer the object to store, with `metadata.managedFields` as Kubernetes would have written them. Defaults, validation,
//! pruning and storage are not done here.

mod collect;
mod compare;
mod error;
mod last_applied;
mod managed;
mod merge;
mod ownership;
mod path;
mod place;
#[cfg(test)]
mod properties;
mod set;
#[cfg(test)]
mod tests;
mod validate;
pub(crate) mod wording;

use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Value, json};

pub use error::{Cause, Conflict, Conflicts, Error};
use managed::{Id, Managed, Operation};
use ownership::{Act, Owned, Refused};
use path::same;
pub use path::{Json, Malformed, Path, PathElement};
pub(crate) use place::Place;
pub use place::{Resolve, Schema};
pub use set::FieldSet;

/// Objects nested deeper than this are not merged. Far beyond any real one, and few enough that the fields of an object, which
/// nest as deep as it does, can be stored within it and read again.
pub const MAX_DEPTH: usize = 100;

/// Who writes what kind of object, where and when.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    pub schema: Schema<'a>,
    /// Group and version of the endpoint: `v1`, `apps/v1`.
    pub api_version: &'a str,
    pub kind: &'a str,
    /// `fieldManager` of the request, or what the server derives from its user agent.
    pub manager: &'a str,
    /// `""` for the object itself.
    pub subresource: &'a str,
    /// Fields that the endpoint resets whatever the client sends: `status` for a kind with a status subresource; `metadata` and
    /// `spec` for that subresource. Sending them makes nobody their owner.
    pub reset: &'a FieldSet,
    pub now: Timestamp,
}

/// What happens when an applied object changes fields that others own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnConflict {
    Refuse,
    /// `force=true`: the applier becomes their only owner.
    TakeOver,
}

/// Fields that identify an object or that only the server sets: nobody owns them.
static STRIPPED: LazyLock<FieldSet> = LazyLock::new(|| {
    FieldSet::of_fields(&[
        &["apiVersion"],
        &["kind"],
        &["metadata"],
        &["metadata", "name"],
        &["metadata", "namespace"],
        &["metadata", "creationTimestamp"],
        &["metadata", "selfLink"],
        &["metadata", "uid"],
        &["metadata", "clusterName"],
        &["metadata", "generation"],
        &["metadata", "managedFields"],
        &["metadata", "resourceVersion"],
    ])
});

/// The manager of what an object already held when it was first applied to.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Applies a configuration: what it says is merged into the live object (or makes a new one), what the same manager applied
/// before and now leaves out is removed if nobody else owns it, and the manager owns what it said. The result is as yet
/// without defaults; once it has them, [`settle_times`] tells whether anything changed.
pub fn apply(
    live: Option<&Value>,
    config: &Value,
    writer: &Writer<'_>,
    on_conflict: OnConflict,
) -> Result<Value, Error> {
    if writer.manager.is_empty() {
        return Err(Error::ManagerRequired);
    }
    check_config(config, writer)?;
    if live.is_some_and(|live| deeper_than(live, MAX_DEPTH)) {
        return Err(Error::BadRequest(format!(
            "the live object is nested more than {MAX_DEPTH} levels deep"
        )));
    }
    let place = writer.schema.root();
    validate::validate(&place, config).map_err(|faults| {
        Error::Unmergeable(format!("failed to create typed patch object ({}): {faults}", describe(config)))
    })?;

    let mut managed = Managed::decode(live.and_then(managed::of))
        .map_err(|cause| Error::Unmergeable(format!("failed to decode managed fields: {cause}")))?;
    let mut base =
        live.cloned().unwrap_or_else(|| json!({"apiVersion": writer.api_version, "kind": writer.kind}));
    managed::take_from(&mut base);
    let live_fault = |faults: validate::Faults| {
        Error::Unmergeable(format!("failed to create typed live object ({}): {faults}", describe(&base)))
    };

    let act = writer.act(&place);
    if managed.0.is_empty() && live.is_some() {
        let blank = writer.schema.blank(writer.api_version, writer.kind);
        let before = writer.id(BEFORE_FIRST_APPLY, Operation::Update);
        act.update(&blank, &base, &mut managed, before).map_err(|faults| {
            let object = describe(&base);
            Error::Unmergeable(format!(
                "failed to create manager for existing fields: failed to convert new object ({object}) to smd typed: {faults}"
            ))
        })?;
    }
    let applier = writer.id(writer.manager, Operation::Apply);
    let mut outcome = act.apply(&base, config, managed.clone(), &applier, on_conflict);
    if let Err(Refused::Conflicts(owned)) = &outcome {
        match conflicts_that_count(owned, &place, &base, writer) {
            Some(conflicts) => return Err(Error::Conflict(conflicts)),
            None => outcome = act.apply(&base, config, managed, &applier, OnConflict::TakeOver),
        }
    }
    let (changed, managed) = outcome.map_err(|refused| match refused {
        Refused::Conflicts(owned) => Error::Conflict(owned.conflicts()),
        Refused::Faults(faults) => live_fault(faults),
    })?;
    let mut object = changed.unwrap_or(base);
    if writer.manager == last_applied::MANAGER {
        last_applied::refresh(&mut object, config);
    }
    managed::put_into(&mut object, &managed);
    Ok(object)
}

/// Records who owns what after a create, update or patch. `old` is the stored object, `new` the one to store, with defaults.
/// A client may set `managedFields` itself, or send `[]` or `[{}]` to forget them.
pub fn track_update(old: Option<&Value>, new: Value, writer: &Writer<'_>) -> Value {
    let mut object = new;
    let mut managed = managed_of_update(old, &object, writer);
    managed::take_from(&mut object);
    // An object that is not tracked stays so until it is applied to.
    if managed.0.is_empty() && old.is_some() {
        return object;
    }
    let mut base = old.cloned().unwrap_or_else(|| writer.schema.blank(writer.api_version, writer.kind));
    managed::take_from(&mut base);
    if deeper_than(&base, MAX_DEPTH) || deeper_than(&object, MAX_DEPTH) {
        return object;
    }
    let place = writer.schema.root();
    let manager = if writer.manager.is_empty() { "unknown" } else { writer.manager };
    let updater = writer.id(manager, Operation::Update);
    // What cannot be compared cannot be tracked: better nothing than wrong owners.
    if writer.act(&place).update(&base, &object, &mut managed, updater).is_ok() {
        managed::put_into(&mut object, &managed);
    }
    object
}

/// Gives the entries of `managedFields` their old times if nothing but times differs between the objects, so that a write
/// without effect is seen to be one. To be called with the object as it would be stored.
pub fn settle_times(old: &Value, new: Value) -> Value {
    if same(&without_times(old), &without_times(&new)) { old.clone() } else { new }
}

fn without_times(object: &Value) -> Value {
    let mut object = object.clone();
    let entries = object.get_mut("metadata").and_then(|metadata| metadata.get_mut("managedFields"));
    for entry in entries.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(entry) = entry.as_object_mut() {
            entry.shift_remove("time");
        }
    }
    object
}

/// Whether a value is nested deeper than this many levels. Stops looking at that depth.
pub fn deeper_than(value: &Value, levels: usize) -> bool {
    match value {
        Value::Object(_) | Value::Array(_) if levels == 0 => true,
        Value::Object(fields) => fields.values().any(|value| deeper_than(value, levels - 1)),
        Value::Array(items) => items.iter().any(|value| deeper_than(value, levels - 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

impl Writer<'_> {
    fn act<'s>(&'s self, place: &'s Place<'s>) -> Act<'s> {
        Act { place, api_version: self.api_version, reset: self.reset, now: self.now }
    }

    fn id(&self, manager: &str, operation: Operation) -> Id {
        Id::new(manager, operation, self.api_version, self.subresource)
    }
}

fn check_config(config: &Value, writer: &Writer<'_>) -> Result<(), Error> {
    let text = |name: &str| config.get(name).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if api_version != writer.api_version || kind != writer.kind {
        return Err(Error::BadRequest(format!(
            "invalid object type: {}",
            group_version_kind(api_version, kind)
        )));
    }
    if managed::of(config).is_some_and(|entries| !entries.is_null()) {
        return Err(Error::BadRequest("metadata.managedFields must be nil".to_owned()));
    }
    if deeper_than(config, MAX_DEPTH) {
        return Err(Error::BadRequest(format!(
            "the applied object is nested more than {MAX_DEPTH} levels deep"
        )));
    }
    Ok(())
}

/// Conflicts, less those with one's own earlier client-side apply. `None` if none are left.
fn conflicts_that_count(
    owned: &Owned,
    place: &Place<'_>,
    live: &Value,
    writer: &Writer<'_>,
) -> Option<Conflicts> {
    if writer.manager != last_applied::MANAGER {
        return Some(owned.conflicts());
    }
    match last_applied::unchanged_fields(place, live, writer.api_version) {
        Some(allowed) => {
            Some(owned.except(&allowed)).filter(|rest| !rest.0.is_empty()).map(|rest| rest.conflicts())
        }
        None => Some(owned.conflicts()),
    }
}

/// The entries an update starts from: those the client sent if they can be used, else the stored ones.
fn managed_of_update(old: Option<&Value>, new: &Value, writer: &Writer<'_>) -> Managed {
    let stored = || Managed::decode(old.and_then(managed::of)).unwrap_or_default();
    if !writer.subresource.is_empty() {
        return stored();
    }
    let sent = managed::of(new);
    if managed::is_reset(sent) {
        return Managed::default();
    }
    Managed::decode(sent).ok().filter(|managed| !managed.0.is_empty()).unwrap_or_else(stored)
}

fn describe(object: &Value) -> String {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let metadata = |name: &str| text(object.get("metadata").and_then(|metadata| metadata.get(name)));
    let kind = group_version_kind(&text(object.get("apiVersion")), &text(object.get("kind")));
    format!("{}/{}; {kind}", metadata("namespace"), metadata("name"))
}

/// `apps/v1, Kind=Deployment`; `/v1, Kind=Pod` for the core group.
fn group_version_kind(api_version: &str, kind: &str) -> String {
    let slash = if api_version.contains('/') { "" } else { "/" };
    format!("{slash}{api_version}, Kind={kind}")
}
