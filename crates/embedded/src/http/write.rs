//! What all writes share: reading an object of the kind from a body, making a new object, and changing a stored one under optimistic
//! concurrency.

use std::sync::{Arc, LazyLock};

use http::StatusCode;
use jiff::Timestamp;
use serde_json::Value;

use super::Api;
use super::decode::{self, Decoded};
use super::negotiate::BodyFormat;
use super::request::{FieldValidation, Mode, Verb, WriteOptions};
use super::serve::Call;
use super::status::{Result, Status};
use super::view::{self, Shown};
use crate::apply::{self, FieldSet, Schema, Writer};
use crate::auth::admission::{self, Change};
use crate::auth::{Resource, accounts};
use crate::kinds::strategy::{self, Part};
use crate::kinds::{Builtin, BuiltinSchemas, Cause, Kind, Origin, meta, typed};
use crate::schema::{self, wording::json_kind};
use crate::store::{Key, Op, Snapshot, Stored, WriteError};

/// How often a write that lost a race is tried again before the client is told.
const ATTEMPTS: usize = 32;
/// How often a new random name is tried.
const NAME_ATTEMPTS: usize = 8;

/// An object as it was sent, checked against its type.
#[derive(Debug)]
pub struct Incoming {
    pub object: Value,
    pub warnings: Vec<String>,
}

/// Reads an object of the call's kind from a body.
pub fn read(call: &Call, bytes: &[u8], format: BodyFormat, validation: FieldValidation) -> Result<Incoming> {
    let kind = &call.kind;
    let decoded =
        decode::decode(bytes, format, kind.definition).map_err(|why| unrecognized(kind, &why, bytes))?;
    if !decoded.value.is_object() {
        let why = format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
            json_kind(&decoded.value)
        );
        return Err(unrecognized_plain(kind, &why, bytes));
    }
    // A custom resource says itself what it is; a built-in kind may leave that to the path.
    for (field, shown) in [("kind", "Kind"), ("apiVersion", "apiVersion")] {
        let given = decoded.value.get(field).and_then(Value::as_str).unwrap_or_default();
        if kind.builtin().is_none() && given.is_empty() {
            let why = format!("Object '{shown}' is missing in '{}'", String::from_utf8_lossy(bytes));
            return Err(unrecognized_plain(kind, &why, bytes));
        }
    }
    check(call, decoded, validation)
}

fn unrecognized(kind: &Kind, why: &str, bytes: &[u8]) -> Status {
    let why = if let Some(why) = why.strip_prefix("error converting YAML to JSON: ") {
        why.to_owned()
    } else {
        format!("couldn't get version/kind; json parse error: {why}")
    };
    unrecognized_plain(kind, &why, bytes)
}

fn unrecognized_plain(kind: &Kind, why: &str, bytes: &[u8]) -> Status {
    Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): {why} ({})",
        kind.kind,
        summary(bytes)
    ))
}

/// The beginning of a body, as the real server shows it.
fn summary(bytes: &[u8]) -> String {
    const SHOWN: usize = 30;
    let head = bytes.get(..SHOWN.min(bytes.len())).unwrap_or_default();
    let shown = match bytes.first() {
        None => return "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(head).into_owned(),
        Some(_) => hex::encode(head),
    };
    if bytes.len() > SHOWN { format!("{shown} ...") } else { shown }
}

/// Checks a decoded object against the type of the call's kind, taking out what the type does not have.
pub fn check(call: &Call, decoded: Decoded, validation: FieldValidation) -> Result<Incoming> {
    let kind = &call.kind;
    let Decoded { value: mut object, duplicates } = decoded;
    check_type(call, &object)?;
    let cannot = |why: &str| {
        Status::bad_request(format!(
            "{0} in version {1:?} cannot be handled as a {0}: {why}",
            kind.kind, kind.version
        ))
    };
    let unknown = if kind.builtin().is_some() {
        typed::read_as(kind.definition, &mut object).map_err(|why| cannot(&why))?
    } else {
        let unknown = schema::prune(&kind.schema, &mut object);
        if let Some(error) = schema::malformed(&kind.schema, &object) {
            return Err(cannot(&error.to_string()));
        }
        typed::read_metadata(&mut object).map_err(|why| cannot(&why))?;
        unknown
    };
    if let Some(fields) = object.as_object_mut() {
        kind.stamp(fields);
    }
    tidy_metadata(&mut object);
    let mut remarks = duplicates;
    remarks.extend(unknown.iter().map(|path| format!("unknown field {path:?}")));
    let warnings = match validation {
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn => remarks,
        FieldValidation::Strict if remarks.is_empty() => remarks,
        FieldValidation::Strict => {
            return Err(cannot(&format!("strict decoding error: {}", remarks.join(", "))));
        }
    };
    Ok(Incoming { object, warnings })
}

/// Whether the object says that it is of another kind or version.
fn check_type(call: &Call, object: &Value) -> Result<()> {
    let kind = &call.kind;
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    for key in ["apiVersion", "kind"] {
        if let Some(other) = object.get(key).filter(|v| !v.is_string() && !v.is_null()) {
            let why = format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go struct field .{key} of type string",
                json_kind(other)
            );
            return Err(unrecognized_plain(kind, &why, object.to_string().as_bytes()));
        }
    }
    let (api_version, name) = (text("apiVersion"), text("kind"));
    let other = |found: &str, expected: &str| !found.is_empty() && found != expected;
    if kind.builtin().is_some() && (other(name, &kind.kind) || other(api_version, &kind.api_version)) {
        let name = if name.is_empty() { &*kind.kind } else { name };
        let version = if api_version.is_empty() { &*kind.api_version } else { api_version };
        let short = version.rsplit('/').next().unwrap_or(version);
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let registered = call.kinds.by_kind(group, short, name).is_some_and(|k| k.builtin().is_some());
        let why = if registered && *name == *kind.kind {
            let (found, expected) = (api_version, &kind.api_version);
            return Err(Status::bad_request(format!(
                "the API version in the data ({found}) does not match the expected API version ({expected})"
            )));
        } else if registered {
            format!("converting ({short}.{name}) to ({}.{}): unknown conversion", package(kind), kind.kind)
        } else {
            format!(
                "no kind {name:?} is registered for version {version:?} in scheme \"pkg/runtime/scheme.go:111\""
            )
        };
        return Err(Status::bad_request(format!(
            "{name} in version {short:?} cannot be handled as a {}: {why}",
            kind.kind
        )));
    }
    if !api_version.is_empty() && *api_version != *kind.api_version {
        let message = format!(
            "the API version in the data ({api_version}) does not match the expected API version ({})",
            kind.api_version
        );
        return Err(Status::bad_request(message));
    }
    // Of a custom resource the kind is validated with the rest, so that all faults are told together.
    if !name.is_empty() && *name != *kind.kind {
        let cause = Cause::invalid("kind", &name.into(), &format!("must be {}", kind.kind));
        return Err(Status::invalid_named(&kind.group, name, meta::name(object), vec![cause]));
    }
    Ok(())
}

/// The Go package of a built-in kind's internal type.
fn package(kind: &Kind) -> &str {
    match &*kind.group {
        "" | "events.k8s.io" => "core",
        group => group.split('.').next().unwrap_or_default(),
    }
}

/// Empty maps and lists in metadata are the same as none.
fn tidy_metadata(object: &mut Value) {
    let Some(metadata) = meta::of_mut(object) else { return };
    metadata.remove("selfLink");
    metadata.retain(|key, value| {
        let empty = match value {
            Value::Object(fields) => fields.is_empty(),
            Value::Array(items) => items.is_empty() && key != "managedFields",
            Value::String(text) => text.is_empty(),
            Value::Null => true,
            Value::Bool(_) | Value::Number(_) => false,
        };
        !empty
    });
}

/// The namespace in the object follows the one in the path.
pub fn set_namespace(call: &Call, object: &mut Value) -> Result<()> {
    let expected = call.namespace().unwrap_or_default();
    let Some(metadata) = meta::of_mut(object) else { return Ok(()) };
    let given = meta::text(metadata, "namespace");
    if given == expected {
        return Ok(());
    }
    if expected.is_empty() {
        metadata.remove("namespace");
    } else if given.is_empty() {
        metadata.insert("namespace".to_owned(), expected.into());
    } else {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

static NO_FIELDS: LazyLock<FieldSet> = LazyLock::new(FieldSet::new);
static STATUS_ONLY: LazyLock<FieldSet> = LazyLock::new(|| FieldSet::of_fields(&[&["status"]]));
static SPEC_ONLY: LazyLock<FieldSet> = LazyLock::new(|| FieldSet::of_fields(&[&["spec"]]));
static SPEC_AND_METADATA: LazyLock<FieldSet> =
    LazyLock::new(|| FieldSet::of_fields(&[&["spec"], &["metadata"]]));
static POD_STATUS: LazyLock<FieldSet> = LazyLock::new(|| {
    FieldSet::of_fields(&[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]])
});

/// Who writes, for `managedFields`.
pub fn writer<'a>(call: &'a Call, part: Part, manager: &'a str, now: Timestamp) -> Writer<'a> {
    let kind = &call.kind;
    let reset: &FieldSet = match (part, kind.builtin()) {
        (Part::Main, _) if kind.has_status() => &STATUS_ONLY,
        (Part::Status, Some(Builtin::Pod)) => &POD_STATUS,
        (Part::Status, Some(_)) => &SPEC_ONLY,
        (Part::Status, None) => &SPEC_AND_METADATA,
        (Part::Main | Part::Finalize, _) => &NO_FIELDS,
    };
    let resolve: &apply::Resolve<'static> = &builtin_definition;
    Writer {
        schema: if kind.builtin().is_some() {
            Schema::built_in(&kind.schema, resolve)
        } else {
            Schema::custom(&kind.schema)
        },
        api_version: &kind.api_version,
        kind: &kind.kind,
        manager,
        subresource: &call.path.subresource,
        reset,
        now,
    }
}

pub fn builtin_definition(name: &str) -> Option<Arc<schema::Node>> {
    BuiltinSchemas::shared().get(name).cloned()
}

/// Now, as objects tell it: in whole seconds.
pub fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

fn admit(api: &Api, call: &Call, snapshot: &Snapshot, change: Change<'_>) -> Result<()> {
    let write = admission::Write { identity: &call.identity, resource: resource(call), change };
    Ok(admission::admit(&api.options.authorizer, snapshot, &write)?)
}

fn resource(call: &Call) -> Resource<'_> {
    Resource {
        group: &call.path.group,
        version: &call.path.version,
        resource: &call.path.resource,
        subresource: &call.path.subresource,
        name: &call.path.name,
        namespace: call.namespace().unwrap_or_default(),
    }
}

pub fn admit_deletion(api: &Api, call: &Call, snapshot: &Snapshot) -> Result<()> {
    admit(api, call, snapshot, Change::Delete)
}

/// A store that cannot write is a server that is not available, except that a full disk is told as a cluster tells it: clients
/// are not asked to try again, since only a person can make room. Whose fault a conflict is depends on the verb.
pub fn store_error(error: WriteError) -> Status {
    match error {
        WriteError::Malformed { .. } => Status::bad_request(error.to_string()),
        WriteError::Disk { .. } | WriteError::Stopped { .. } => Status::unavailable(error),
        WriteError::Full { .. }
        | WriteError::Exists { .. }
        | WriteError::Conflict { .. }
        | WriteError::Missing { .. } => Status::internal(error),
    }
}

/// Stores a new object, or tells what would have been stored.
pub async fn create(api: &Api, call: &Call, object: Value, options: &WriteOptions) -> Result<Shown> {
    let prefix = meta::text(meta::of(&object), "generateName").to_owned();
    if !meta::name(&object).is_empty() || prefix.is_empty() {
        return create_named(api, call, object, options).await;
    }
    let mut last = None;
    for _ in 0..NAME_ATTEMPTS {
        let mut named = object.clone();
        let name = meta::generated_name(&prefix);
        if let Some(metadata) = meta::of_mut(&mut named) {
            metadata.insert("name".to_owned(), name.as_str().into());
        }
        match create_named(api, call, named, options).await {
            Err(status) if status.reason() == "AlreadyExists" => {
                let message = format!(
                    "{} {name:?} already exists, the server was not able to generate a unique name for the object",
                    call.kind.qualified()
                );
                last = Some(status.reworded(message));
            }
            outcome => return outcome,
        }
    }
    Err(last.unwrap_or_else(|| Status::internal("no name could be generated")))
}

async fn create_named(api: &Api, call: &Call, mut object: Value, options: &WriteOptions) -> Result<Shown> {
    let kind = &call.kind;
    if let Origin::Custom(definition) = &kind.origin
        && definition.terminating
    {
        let message = "create not allowed while custom resource definition is terminating".to_owned();
        return Err(Status::method_not_supported(&kind.group, &kind.plural, "create").reworded(message));
    }
    // The real server minds a revision only where an object is sent to be created.
    let revision = meta::text(meta::of(&object), "resourceVersion");
    if !revision.is_empty() && revision != "0" && call.verb == Verb::Create {
        return Err(Status::bare("resourceVersion should not be set on objects to be created"));
    }
    let now = now();
    if let Some(metadata) = meta::of_mut(&mut object) {
        for server_set in ["resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds"] {
            metadata.remove(server_set);
        }
        metadata.insert("uid".to_owned(), uuid::Uuid::new_v4().to_string().into());
        metadata.insert("creationTimestamp".to_owned(), now.to_string().into());
    }
    strategy::default(kind, &mut object);
    // Who owns what is told by what was sent and defaulted, not by what the server sets. What an apply has put together names its owners.
    let mut object = if options.is_apply() {
        object
    } else {
        apply::track_update(None, object, &writer(call, Part::Main, &options.manager, now))
    };
    let snapshot = api.store.snapshot();
    accounts::complete(&snapshot, resource(call), &mut object)?;
    admit(api, call, &snapshot, Change::Create { object: &object })?;
    strategy::prepare_create(kind, &mut object);
    let causes = strategy::validate_create(kind, &object);
    if !causes.is_empty() {
        return Err(Status::invalid(kind, meta::name(&object), causes));
    }
    let key = Key::new(kind.collection.clone(), meta::namespace(&object), meta::name(&object));
    if options.mode == Mode::DryRun {
        return match snapshot.get(&key) {
            Some(current) => Err(exists(kind, &current)),
            None => Ok(Shown::Value(object)),
        };
    }
    match api.store.write(vec![Op::Create { key, object: view::stored(kind, object) }]).await {
        Ok(stored) => stored
            .into_iter()
            .next()
            .map(Shown::Stored)
            .ok_or_else(|| Status::internal("the store answered without an object")),
        Err(WriteError::Exists { current }) => Err(exists(kind, &current)),
        Err(error) => Err(store_error(error)),
    }
}

fn exists(kind: &Kind, current: &Stored) -> Status {
    let status = Status::already_exists(kind, &current.key.name);
    if meta::is_deleting(&current.value()) {
        let message = format!("object is being deleted: {}", status.message());
        return status.reworded(message);
    }
    status
}

/// Whether a write to a name that is not there makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfMissing {
    Create,
    Refuse,
}

/// A change to one object: `make` is given what is stored, and is asked again when somebody else was faster.
pub struct Update<'a> {
    pub api: &'a Api,
    pub call: &'a Call,
    pub part: Part,
    pub options: &'a WriteOptions,
    pub if_missing: IfMissing,
}

impl Update<'_> {
    pub async fn run(
        &self,
        mut make: impl FnMut(Option<&Value>) -> Result<Value>,
    ) -> Result<(StatusCode, Shown)> {
        let (api, call) = (self.api, self.call);
        let key = call.key();
        for _ in 0..ATTEMPTS {
            let snapshot = api.store.snapshot();
            let Some(stored) = snapshot.get(&key) else {
                if self.if_missing == IfMissing::Refuse {
                    return Err(Status::not_found(&call.kind, &call.path.name));
                }
                let object = make(None)?;
                self.check_new(&object)?;
                match create_named(api, call, object, self.options).await {
                    // Somebody made it in the meantime: then it is a change after all.
                    Err(status) if status.reason() == "AlreadyExists" => continue,
                    outcome => return outcome.map(|shown| (StatusCode::CREATED, shown)),
                }
            };
            let old = view::value(&call.kind, &stored);
            let object = make(Some(&old))?;
            match self.change(&snapshot, &stored, &old, object).await {
                Ok(shown) => return Ok((StatusCode::OK, shown)),
                Err(Lost::Race) => {}
                Err(Lost::Refused(status)) => return Err(status),
            }
        }
        Err(Status::modified(&call.kind, &call.path.name))
    }

    /// An object that is to be changed by its uid cannot be made instead.
    fn check_new(&self, object: &Value) -> Result<()> {
        let uid = meta::uid(object);
        if !uid.is_empty() {
            let why = if self.options.is_apply() {
                format!(
                    "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                )
            } else {
                stale_uid(&self.call.kind, &self.call.key(), uid, "")
            };
            return Err(Status::conflict(&self.call.kind, &self.call.path.name, &why));
        }
        Ok(())
    }

    async fn change(
        &self,
        snapshot: &Snapshot,
        stored: &Arc<Stored>,
        old: &Value,
        mut object: Value,
    ) -> std::result::Result<Shown, Lost> {
        let (api, call, kind) = (self.api, self.call, &self.call.kind);
        self.check_preconditions(&mut object, stored, old)?;
        strategy::default(kind, &mut object);
        let mut object = if self.options.is_apply() {
            object
        } else {
            apply::track_update(Some(old), object, &writer(call, self.part, &self.options.manager, now()))
        };
        strategy::prepare_update(kind, self.part, &mut object, old);
        carry_over(&mut object, old);
        let causes = strategy::validate_update(kind, self.part, &object, old);
        if !causes.is_empty() {
            return Err(Status::invalid(kind, &call.path.name, causes).into());
        }
        admit(api, call, snapshot, Change::Update { object: &object, old })?;
        let object = apply::settle_times(old, object);
        if object == *old {
            return Ok(Shown::Stored(Arc::clone(stored)));
        }
        if goes_now(kind, &object, old) {
            return self.remove(stored, object).await;
        }
        if self.options.mode == Mode::DryRun {
            return Ok(Shown::Value(object));
        }
        let op = Op::Update {
            key: stored.key.clone(),
            expected: stored.revision,
            object: view::stored(kind, object),
        };
        match api.store.write(vec![op]).await {
            Ok(written) => written
                .into_iter()
                .next()
                .map(Shown::Stored)
                .ok_or_else(|| Status::internal("the store answered without an object").into()),
            Err(WriteError::Conflict { .. } | WriteError::Missing { .. }) => Err(Lost::Race),
            Err(error) => Err(store_error(error).into()),
        }
    }

    fn check_preconditions(&self, object: &mut Value, stored: &Stored, old: &Value) -> Result<()> {
        let (kind, name) = (&self.call.kind, &self.call.path.name);
        let uid = meta::uid(object);
        // Whoever sends a whole object means the one of its uid; of a patched one the uid is a field that never changes.
        if self.call.verb != Verb::Patch && !uid.is_empty() && uid != meta::uid(old) {
            let why = stale_uid(kind, &stored.key, uid, meta::uid(old));
            return Err(Status::conflict(kind, name, &why));
        }
        let given = meta::text(meta::of(object), "resourceVersion");
        match given.parse::<u64>() {
            Ok(0) | Err(_) if given.is_empty() || given == "0" => {
                if !strategy::updates_unconditionally(kind) {
                    let cause = Cause::invalid(
                        "metadata.resourceVersion",
                        &0.into(),
                        "must be specified for an update",
                    );
                    return Err(Status::invalid_named(&kind.group, &kind.plural, name, vec![cause]));
                }
            }
            Ok(revision) if revision == stored.revision => {}
            Ok(_) => return Err(Status::modified(kind, name)),
            Err(_) => {
                return Err(Status::bare(format!("strconv.ParseUint: parsing {given:?}: invalid syntax")));
            }
        }
        if let Some(metadata) = meta::of_mut(object) {
            metadata.insert("resourceVersion".to_owned(), stored.revision.to_string().into());
        }
        Ok(())
    }

    /// The last finalizer is gone from an object that was to be deleted.
    async fn remove(&self, stored: &Arc<Stored>, object: Value) -> std::result::Result<Shown, Lost> {
        if self.options.mode == Mode::Write {
            let op = Op::Delete {
                key: stored.key.clone(),
                expected: stored.revision,
                object: view::stored(&self.call.kind, object.clone()),
            };
            match self.api.store.write(vec![op]).await {
                Ok(_) => {}
                Err(WriteError::Conflict { .. } | WriteError::Missing { .. }) => return Err(Lost::Race),
                Err(error) => return Err(store_error(error).into()),
            }
        }
        Ok(Shown::Value(object))
    }
}

enum Lost {
    /// Somebody else wrote first.
    Race,
    Refused(Status),
}

impl From<Status> for Lost {
    fn from(status: Status) -> Self {
        Lost::Refused(status)
    }
}

/// A uid that is not the object's, in the words of the real server's storage.
fn stale_uid(kind: &Kind, key: &Key, wanted: &str, found: &str) -> String {
    let place = match (kind.builtin(), &*kind.plural) {
        (None, plural) => format!("{}/{plural}", kind.group),
        (Some(Builtin::CustomResourceDefinition), plural) => {
            format!("apiextensions.k8s.io/{plural}")
        }
        (Some(Builtin::Node), _) => "minions".to_owned(),
        (Some(Builtin::Ingress), _) => "ingress".to_owned(),
        (Some(_), plural) => plural.to_owned(),
    };
    let slash = if key.namespace.is_empty() { "" } else { "/" };
    let path = format!("/registry/{place}/{}{slash}{}", key.namespace, key.name);
    let detail = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}");
    format!(
        "StorageError: invalid object, Code: 4, Key: {path}, ResourceVersion: 0, AdditionalErrorMsg: {detail}"
    )
}

/// What an update can neither set nor take away.
fn carry_over(object: &mut Value, old: &Value) {
    let old = meta::of(old);
    let Some(metadata) = meta::of_mut(object) else { return };
    for (field, always) in [
        ("uid", false),
        ("creationTimestamp", true),
        ("deletionTimestamp", true),
        ("deletionGracePeriodSeconds", false),
        ("generateName", false),
    ] {
        match old.get(field) {
            Some(value) if always || !metadata.contains_key(field) => {
                metadata.insert(field.to_owned(), value.clone());
            }
            _ => {}
        }
    }
}

/// Whether a changed object is gone: it was to be deleted, nothing holds it any more, and its grace is over.
fn goes_now(kind: &Kind, object: &Value, old: &Value) -> bool {
    let held_by_spec = kind.builtin() == Some(Builtin::Namespace)
        && object.pointer("/spec/finalizers").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    meta::finalizers(object).is_empty()
        && meta::is_deleting(old)
        && meta::grace(old).unwrap_or_default() == 0
        && !held_by_spec
}
