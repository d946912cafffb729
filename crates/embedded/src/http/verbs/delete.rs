//! DELETE of one object and of a collection: preconditions, grace, finalizers and what becomes of dependents.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::http::negotiate::BodyFormat;
use crate::http::request::{self, ListOptions, Mode, Params, Verb};
use crate::http::selector::Selector;
use crate::http::serve::Call;
use crate::http::status::{self, Result, Status};
use crate::http::view::{self, Shown};
use crate::http::{Api, decode, list, negotiate, respond, write};
use crate::kinds::{Builtin, Cause, Kind, meta, strategy};
use crate::store::{Key, Op, Stored, WriteError};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
const ATTEMPTS: usize = 32;

#[derive(Debug, Clone)]
pub struct DeleteOptions {
    grace: Option<i64>,
    uid: Option<String>,
    revision: Option<String>,
    propagation: Option<Propagation>,
    /// The deprecated `orphanDependents`.
    orphan: Option<bool>,
    mode: Mode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Propagation {
    Orphan,
    Background,
    Foreground,
}

impl DeleteOptions {
    async fn read(api: &Api, call: &Call, body: Body) -> Result<DeleteOptions> {
        let bytes = decode::body(body, api.options.max_body_bytes).await?;
        let given = if bytes.is_empty() {
            from_query(&call.params)?
        } else {
            let format = negotiate::body_format(&call.headers).unwrap_or(BodyFormat::Json);
            let decoded =
                decode::decode(&bytes, format, "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions")
                    .map_err(|why| {
                        Status::bad_request(format!("couldn't get version/kind; json parse error: {why}"))
                    })?;
            if decoded
                .value
                .get("kind")
                .and_then(Value::as_str)
                .is_some_and(|kind| !kind.is_empty() && kind != "DeleteOptions")
            {
                return Err(Status::bad_request("decoded object cannot be converted to DeleteOptions"));
            }
            decoded.value
        };
        Self::check(&given)
    }

    fn check(given: &Value) -> Result<DeleteOptions> {
        let mut causes = Vec::new();
        let text = |pointer: &str| {
            given.pointer(pointer).and_then(Value::as_str).filter(|t| !t.is_empty()).map(str::to_owned)
        };
        let orphan = given.get("orphanDependents").and_then(Value::as_bool);
        let policy = given.get("propagationPolicy").and_then(Value::as_str);
        if let (Some(_), Some(policy)) = (orphan, policy) {
            causes.push(Cause::invalid(
                "propagationPolicy",
                &policy.into(),
                "orphanDependents and deletionPropagation cannot be both set",
            ));
        }
        let propagation = match policy {
            None => None,
            Some("Orphan") => Some(Propagation::Orphan),
            Some("Background") => Some(Propagation::Background),
            Some("Foreground") => Some(Propagation::Foreground),
            Some(other) => {
                causes.push(Cause::not_supported(
                    "propagationPolicy",
                    &other.into(),
                    &["Foreground", "Background", "Orphan", "nil"],
                ));
                None
            }
        };
        let dry: Vec<&str> = given
            .get("dryRun")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let mode = request::dry_run(&dry, &mut causes);
        if !causes.is_empty() {
            return Err(Status::invalid_named("meta.k8s.io", "DeleteOptions", "", causes));
        }
        let grace = given
            .get("gracePeriodSeconds")
            .and_then(Value::as_i64)
            .map(|seconds| if seconds < 0 { 1 } else { seconds });
        Ok(DeleteOptions {
            grace,
            uid: text("/preconditions/uid"),
            revision: text("/preconditions/resourceVersion"),
            propagation,
            orphan,
            mode,
        })
    }
}

fn from_query(params: &Params) -> Result<Value> {
    let mut given = Map::new();
    if let Some(seconds) = params.integer("gracePeriodSeconds")? {
        given.insert("gracePeriodSeconds".to_owned(), seconds.into());
    }
    if let Some(policy) = params.get("propagationPolicy") {
        given.insert("propagationPolicy".to_owned(), policy.into());
    }
    if let Some(orphan) = params.flag_if_given("orphanDependents") {
        given.insert("orphanDependents".to_owned(), orphan.into());
    }
    let dry: Vec<Value> = params.all("dryRun").into_iter().map(Value::from).collect();
    given.insert("dryRun".to_owned(), dry.into());
    Ok(Value::Object(given))
}

pub async fn serve(api: &Api, call: Call, body: Body) -> Result<Response> {
    let options = DeleteOptions::read(api, &call, body).await?;
    let removal = remove(api, &call, &call.key(), &options).await?;
    let code = match removal.stage {
        Stage::Marked if options.orphan == Some(false) => StatusCode::ACCEPTED,
        Stage::Marked | Stage::Gone => StatusCode::OK,
    };
    let response = match removal.answer {
        Answer::Object(shown) => respond::object(&call, code, &shown)?,
        Answer::Status(status) => respond::plain(&call, code, &status)?,
    };
    Ok(respond::warn(response, &warnings(&call.kind, &options)))
}

/// Deletes what a list would show, one after the other.
pub async fn serve_collection(api: &Api, call: Call, body: Body) -> Result<Response> {
    let list_options = ListOptions::parse(&call.params, Verb::List)?;
    let selector = Selector::parse(&call.kind, &list_options.labels, &list_options.fields)?;
    let options = DeleteOptions::read(api, &call, body).await?;
    let page = list::page(api, &call, &list_options, &selector)?;
    for object in &page.objects {
        match remove(api, &call, &object.key, &options).await {
            Ok(_) => {}
            // Gone already is as good.
            Err(status) if status.code() == StatusCode::NOT_FOUND => {}
            Err(status) => return Err(status),
        }
    }
    let response = list::answer(&call, &page)?;
    Ok(respond::warn(response, &warnings(&call.kind, &options)))
}

fn warnings(kind: &Kind, options: &DeleteOptions) -> Vec<String> {
    if kind.builtin() == Some(Builtin::Job) && options.propagation.is_none() && options.orphan.is_none() {
        return vec!["child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning".to_owned()];
    }
    Vec::new()
}

struct Removal {
    stage: Stage,
    answer: Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Marked,
    Gone,
}

enum Answer {
    Object(Shown),
    Status(Value),
}

/// What a deletion does next.
enum Step {
    /// Nothing: the deletion asked for is under way.
    UnderWay,
    /// The object stays, marked.
    Mark(Value),
    /// The object goes. Where it had to be marked first, watches see that.
    Remove { marked: Option<Value> },
}

async fn remove(api: &Api, call: &Call, key: &Key, options: &DeleteOptions) -> Result<Removal> {
    let mut marked_by_us: Option<Arc<Stored>> = None;
    for _ in 0..ATTEMPTS {
        let snapshot = api.store.snapshot();
        let Some(stored) = snapshot.get(key) else {
            // A node that saw the mark may be quicker than this request: the pod is gone as was asked for.
            let Some(marked) = marked_by_us else { return Err(Status::not_found(&call.kind, &key.name)) };
            let object = view::value(&call.kind, &marked);
            return Ok(Removal { stage: Stage::Gone, answer: answer(&call.kind, &marked, &object) });
        };
        write::admit_deletion(api, call, &snapshot)?;
        let old = view::value(&call.kind, &stored);
        check_preconditions(&call.kind, &old, options)?;
        let outcome = match step(&call.kind, &old, options, write::now()) {
            Step::UnderWay => Ok(Removal { stage: Stage::Marked, answer: answer(&call.kind, &stored, &old) }),
            Step::Mark(object) if object == old => Ok(Removal {
                stage: Stage::Marked,
                answer: Answer::Object(Shown::Stored(Arc::clone(&stored))),
            }),
            Step::Mark(object) if options.mode == Mode::DryRun => {
                Ok(Removal { stage: Stage::Marked, answer: Answer::Object(Shown::Value(object)) })
            }
            Step::Mark(object) => mark(api, call, &stored, object).await.map(|marked| Removal {
                stage: Stage::Marked,
                answer: Answer::Object(Shown::Stored(marked)),
            }),
            Step::Remove { marked } if options.mode == Mode::DryRun => Ok(Removal {
                stage: Stage::Gone,
                answer: answer(&call.kind, &stored, &marked.unwrap_or(old)),
            }),
            Step::Remove { marked: None } => erase(api, call, &stored, old).await,
            Step::Remove { marked: Some(object) } => match mark(api, call, &stored, object).await {
                Ok(marked) => {
                    let object = view::value(&call.kind, &marked);
                    marked_by_us = Some(Arc::clone(&marked));
                    erase(api, call, &marked, object).await
                }
                Err(error) => Err(error),
            },
        };
        match outcome {
            Err(WriteError::Conflict { .. } | WriteError::Missing { .. }) => {}
            Err(error) => return Err(write::store_error(error)),
            Ok(removal) => return Ok(removal),
        }
    }
    Err(Status::modified(&call.kind, &key.name))
}

async fn mark(
    api: &Api,
    call: &Call,
    stored: &Stored,
    object: Value,
) -> std::result::Result<Arc<Stored>, WriteError> {
    let op = Op::Update {
        key: stored.key.clone(),
        expected: stored.revision,
        object: view::stored(&call.kind, object),
    };
    let written = api.store.write(vec![op]).await?;
    written.into_iter().next().ok_or_else(|| WriteError::Missing { key: stored.key.clone() })
}

async fn erase(
    api: &Api,
    call: &Call,
    stored: &Stored,
    object: Value,
) -> std::result::Result<Removal, WriteError> {
    let op = Op::Delete {
        key: stored.key.clone(),
        expected: stored.revision,
        object: view::stored(&call.kind, object.clone()),
    };
    api.store.write(vec![op]).await?;
    Ok(Removal { stage: Stage::Gone, answer: answer(&call.kind, stored, &object) })
}

fn answer(kind: &Kind, stored: &Stored, object: &Value) -> Answer {
    if strategy::returns_deleted(kind) {
        return Answer::Object(Shown::Value(object.clone()));
    }
    Answer::Status(status::deleted(kind, &stored.key.name, meta::uid(object)))
}

fn check_preconditions(kind: &Kind, old: &Value, options: &DeleteOptions) -> Result<()> {
    let (uid, revision) = (meta::uid(old), meta::text(meta::of(old), "resourceVersion"));
    let namespace = kind.builtin() == Some(Builtin::Namespace);
    let conflict = |why: String| {
        if namespace {
            Status::conflict(kind, meta::name(old), &why)
        } else {
            Status::conflict_named(&kind.group, &kind.kind, meta::name(old), &why)
        }
    };
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
        return Err(conflict(if namespace {
            format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}")
        } else {
            format!(
                "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
            )
        }));
    }
    if let Some(wanted) = options.revision.as_deref().filter(|wanted| *wanted != revision) {
        return Err(conflict(if namespace {
            format!(
                "Precondition failed: ResourceVersion in precondition: {wanted}, ResourceVersion in object meta: {revision}"
            )
        } else {
            format!(
                "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({revision}). The object might have been modified"
            )
        }));
    }
    Ok(())
}

fn step(kind: &Kind, old: &Value, options: &DeleteOptions, now: Timestamp) -> Step {
    match kind.builtin() {
        Some(Builtin::Namespace) if !meta::is_deleting(old) => {
            return Step::Mark(terminating_namespace(kind, old, options, now));
        }
        Some(Builtin::Namespace)
            if old.pointer("/spec/finalizers").and_then(Value::as_array).is_some_and(|f| !f.is_empty()) =>
        {
            return Step::UnderWay;
        }
        Some(Builtin::CustomResourceDefinition) if !meta::is_deleting(old) => {
            return Step::Mark(terminating_definition(old, now));
        }
        _ => {}
    }
    let mut object = old.clone();
    let graceful = match grace(kind, &mut object, options, now) {
        Grace::UnderWay => return Step::UnderWay,
        Grace::None => None,
        Grace::Given(seconds) => Some(seconds),
    };
    let finalizers = finalizers_after(kind, &object, options);
    set_finalizers(&mut object, &finalizers);
    match (graceful, finalizers.is_empty()) {
        (None, true) => Step::Remove { marked: None },
        (None, false) => {
            mark_deleting(&mut object, now);
            Step::Mark(object)
        }
        (Some(0), true) => Step::Remove { marked: Some(object) },
        (Some(_), _) => Step::Mark(object),
    }
}

enum Grace {
    /// The kind knows no grace, or it is over.
    None,
    UnderWay,
    /// The object now says so.
    Given(i64),
}

fn grace(kind: &Kind, object: &mut Value, options: &DeleteOptions, now: Timestamp) -> Grace {
    let Some(period) = strategy::grace(kind, object, options.grace) else { return Grace::None };
    if !meta::is_deleting(object) {
        set_deletion(object, later(now, period), period);
        count_generation(object);
        return Grace::Given(period);
    }
    let Some(left) = meta::grace(object).filter(|left| *left != 0) else { return Grace::None };
    let Some(mut period) = options.grace.filter(|period| *period < left) else { return Grace::UnderWay };
    let before: Option<Timestamp> = meta::text(meta::of(object), "deletionTimestamp").parse().ok();
    let mut when = later(before.unwrap_or(now), period - left);
    if when < now {
        when = now;
        period = period.min(1);
    }
    set_deletion(object, when, period);
    Grace::Given(period)
}

fn later(from: Timestamp, seconds: i64) -> Timestamp {
    from.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(from)
}

fn set_deletion(object: &mut Value, when: Timestamp, grace: i64) {
    if let Some(metadata) = meta::of_mut(object) {
        metadata.insert("deletionTimestamp".to_owned(), when.to_string().into());
        metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
    }
}

fn count_generation(object: &mut Value) {
    if let Some(metadata) = meta::of_mut(object)
        && let Some(generation) = metadata.get("generation").and_then(Value::as_i64).filter(|g| *g > 0)
    {
        metadata.insert("generation".to_owned(), (generation + 1).into());
    }
}

fn mark_deleting(object: &mut Value, now: Timestamp) {
    if !meta::is_deleting(object) {
        count_generation(object);
    }
    let when = meta::text(meta::of(object), "deletionTimestamp")
        .parse::<Timestamp>()
        .ok()
        .filter(|when| *when <= now)
        .unwrap_or(now);
    set_deletion(object, when, 0);
}

/// The finalizers that the object keeps, and the one by which the garbage collector learns what to do with dependents.
fn finalizers_after(kind: &Kind, object: &Value, options: &DeleteOptions) -> Vec<String> {
    let present = meta::finalizers(object);
    let supported = !matches!(kind.builtin(), Some(Builtin::Event | Builtin::EventV1));
    let orphans = kind.builtin() == Some(Builtin::Job);
    let (orphan, foreground) = match (options.orphan, options.propagation) {
        _ if !supported => (false, false),
        (Some(orphan), _) => (orphan, false),
        (None, Some(Propagation::Orphan)) => (true, false),
        (None, Some(Propagation::Background)) => (false, false),
        (None, Some(Propagation::Foreground)) => (false, true),
        (None, None) => match present.iter().find(|f| [ORPHAN, FOREGROUND].contains(f)) {
            Some(&ORPHAN) => (true, false),
            Some(_) => (false, true),
            None => (orphans, false),
        },
    };
    let mut kept: Vec<String> =
        present.iter().filter(|f| ![ORPHAN, FOREGROUND].contains(f)).map(|f| (*f).to_owned()).collect();
    if orphan {
        kept.push(ORPHAN.to_owned());
    }
    if foreground {
        kept.push(FOREGROUND.to_owned());
    }
    kept
}

fn set_finalizers(object: &mut Value, finalizers: &[String]) {
    if let Some(metadata) = meta::of_mut(object) {
        if finalizers.is_empty() {
            metadata.remove("finalizers");
        } else {
            metadata.insert("finalizers".to_owned(), json!(finalizers));
        }
    }
}

fn terminating_namespace(kind: &Kind, old: &Value, options: &DeleteOptions, now: Timestamp) -> Value {
    let mut object = old.clone();
    set_finalizers(&mut object, &finalizers_after(kind, old, options));
    if let Some(metadata) = meta::of_mut(&mut object) {
        metadata.insert("deletionTimestamp".to_owned(), now.to_string().into());
    }
    if let Some(fields) = object.as_object_mut() {
        let status = fields.entry("status").or_insert_with(|| json!({}));
        if let Some(status) = status.as_object_mut() {
            status.insert("phase".to_owned(), "Terminating".into());
        }
    }
    object
}

/// A definition goes after its objects: who removes them takes the finalizer away.
fn terminating_definition(old: &Value, now: Timestamp) -> Value {
    let mut object = old.clone();
    let mut finalizers: Vec<String> = meta::finalizers(old).into_iter().map(str::to_owned).collect();
    if !finalizers.iter().any(|f| f == CLEANUP) {
        finalizers.push(CLEANUP.to_owned());
    }
    set_finalizers(&mut object, &finalizers);
    if let Some(metadata) = meta::of_mut(&mut object) {
        metadata.insert("deletionTimestamp".to_owned(), now.to_string().into());
    }
    let condition = json!({
        "type": "Terminating", "status": "True", "lastTransitionTime": now.to_string(), "reason": "InstanceDeletionPending",
        "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
    });
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        let conditions = status.entry("conditions").or_insert_with(|| json!([]));
        if conditions.is_null() {
            *conditions = json!([]);
        }
        if let Some(list) = conditions.as_array_mut() {
            list.retain(|c| c.get("type").and_then(Value::as_str) != Some("Terminating"));
            list.push(condition);
        }
    }
    object
}
