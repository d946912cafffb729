//! Handlers for states: the tools' `http` protocol (GET, POST, DELETE, LOCK, UNLOCK), and beside it what people need
//! to see: versions and locks.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use jiff::Timestamp;
use serde::Deserialize;

use super::access::Operation;
use super::artefacts::answer;
use super::identity::Caller;
use super::journal::{Head, Lock, Situation};
use super::state_scan::StateScan;
use super::store::Writing;
use super::{Error, Service, announced_digest};
use crate::key::{Key, StateId};

const LOCK_LIMIT: usize = 64 * 1024;

type Shared = State<Arc<Service>>;

#[derive(Debug, Default, Deserialize)]
pub(super) struct Parameters {
    /// The id of the lock under which a state is written; the tools send it so.
    #[serde(rename = "ID")]
    lock_id: Option<String>,
    /// Whose state a person creates.
    namespace: Option<String>,
}

pub(super) async fn dispatch(
    State(service): Shared,
    Path(id): Path<String>,
    Query(parameters): Query<Parameters>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Error> {
    let id = StateId::new(id)?;
    match request.method().as_str() {
        "GET" | "HEAD" => read(&service, &id, &headers).await,
        "POST" | "PUT" => write(&service, &id, parameters, &headers, request).await,
        "DELETE" => delete(&service, &id, &headers).await,
        "LOCK" => lock(&service, &id, parameters, &headers, request).await,
        "UNLOCK" => unlock(&service, &id, &headers, request).await,
        other => Err(Error::Method(format!(
            "a state is read and changed by GET, POST, DELETE, LOCK and UNLOCK, not by {other}"
        ))),
    }
}

/// Who changes a state: for the history, and with which fence.
struct Writer {
    tenant: String,
    by: String,
    fence: Option<u64>,
}

impl Service {
    async fn state_writer(
        &self,
        id: &StateId,
        headers: &HeaderMap,
        namespace: Option<String>,
    ) -> Result<Writer, Error> {
        let (caller, description) = self.authorise(headers, &Operation::StateChange(id.clone())).await?;
        match (caller, description) {
            (Caller::Runner(runner), Some(description)) => {
                let sent = headers
                    .get(crate::header::FENCE)
                    .and_then(|value| value.to_str().ok())
                    .and_then(|value| value.parse::<u64>().ok());
                if sent != Some(description.fence) {
                    return Err(Error::Forbidden(format!(
                        "the header {} must hold the fence of this attempt",
                        crate::header::FENCE
                    )));
                }
                Ok(Writer {
                    tenant: runner.namespace,
                    by: format!("run {} (attempt {})", description.run, description.attempt),
                    fence: Some(description.fence),
                })
            }
            (Caller::Runner(_), None) => {
                Err(Error::Forbidden("the attempt of this runner has no description".to_owned()))
            }
            (Caller::Controller | Caller::Server, _) => {
                let owner = self.journal.last(id).await?.map(|(tenant, _)| tenant);
                let tenant = owner.or(namespace).ok_or_else(|| {
                    Error::BadRequest(format!(
                        "state {id} does not exist; say for which namespace it is (?namespace=)"
                    ))
                })?;
                crate::key::check_namespace(&tenant)?;
                let person = headers
                    .get(crate::header::FOR_USER)
                    .and_then(|value| value.to_str().ok())
                    .filter(|name| !name.is_empty());
                Ok(Writer { tenant, by: person.unwrap_or("controller").to_owned(), fence: None })
            }
        }
    }
}

async fn read(service: &Service, id: &StateId, headers: &HeaderMap) -> Result<Response, Error> {
    let (caller, _) = service.authorise(headers, &Operation::StateRead(id.clone())).await?;
    let Some((tenant, step)) = service.journal.last(id).await? else { return Ok(no_state()) };
    match &caller {
        Caller::Runner(runner) if runner.namespace != tenant => {
            return Err(Error::Forbidden("the state belongs to another namespace".to_owned()));
        }
        Caller::Runner(_) | Caller::Controller | Caller::Server => {}
    }
    match step.head {
        Some(head) => content(service, id, &head).await,
        None => Ok(no_state()),
    }
}

/// "There is none", which the tools tell from "not found" by a mistaken address only so.
fn no_state() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

async fn content(service: &Service, id: &StateId, head: &Head) -> Result<Response, Error> {
    let key = Key::StateContent(id.clone(), head.sha256.clone());
    let opened = match service.store.open(&key).await {
        Ok(opened) => opened,
        // Never as "not found": to the tools that means that nothing exists yet, and they would make everything again.
        Err(super::store::Error::NotFound(path)) => {
            return Err(Error::Internal(format!(
                "version {} of state {id} was stored and is gone ({path}): the object store was rolled back or damaged; restore it",
                head.version
            )));
        }
        Err(other) => return Err(other.into()),
    };
    let version = [(crate::header::STATE_VERSION, head.version.to_string())];
    Ok((version, answer(opened)).into_response())
}

async fn write(
    service: &Service,
    id: &StateId,
    parameters: Parameters,
    headers: &HeaderMap,
    request: Request,
) -> Result<Response, Error> {
    let writer = service.state_writer(id, headers, parameters.namespace).await?;
    let sha256 = announced_digest(headers)?;
    let mut scan = StateScan::new();
    let body = request.into_body().into_data_stream().inspect(|piece| {
        if let Ok(piece) = piece {
            scan.push(piece);
        }
    });
    // The content goes first, under its own digest: the step that makes it current comes only when it is whole.
    let key = Key::StateContent(id.clone(), sha256.clone());
    let writing = Writing { key: &key, tenant: &writer.tenant, sha256: &sha256, after: None };
    service.store.put(writing, body).await?;
    let facts = scan.finish().unwrap_or_default();
    let head = Head { version: 0, sha256, lineage: facts.lineage, serial: facts.serial };
    let after = change(service, id, &writer, |situation| {
        situation.write(&head, parameters.lock_id.as_deref(), writer.fence)
    })
    .await?;
    let version = after.head.map_or(0, |head| head.version);
    Ok((StatusCode::OK, [(crate::header::STATE_VERSION, version.to_string())]).into_response())
}

async fn delete(service: &Service, id: &StateId, headers: &HeaderMap) -> Result<Response, Error> {
    service.authorise(headers, &Operation::StateAdminister).await?;
    if service.journal.last(id).await?.is_none() {
        return Ok(StatusCode::OK.into_response());
    }
    let writer = service.state_writer(id, headers, None).await?;
    change(service, id, &writer, Situation::delete).await?;
    Ok(StatusCode::OK.into_response())
}

async fn lock(
    service: &Service,
    id: &StateId,
    parameters: Parameters,
    headers: &HeaderMap,
    request: Request,
) -> Result<Response, Error> {
    let writer = service.state_writer(id, headers, parameters.namespace).await?;
    let info = lock_info(request.into_body()).await?;
    let lock_id = lock_id(&info)
        .ok_or_else(|| Error::BadRequest("a lock needs the field ID, as the tools send it".to_owned()))?;
    let wish =
        Lock { id: lock_id, info, fence: writer.fence, by: writer.by.clone(), since: Timestamp::now() };
    change(service, id, &writer, |situation| situation.lock(&wish)).await?;
    Ok(StatusCode::OK.into_response())
}

async fn unlock(
    service: &Service,
    id: &StateId,
    headers: &HeaderMap,
    request: Request,
) -> Result<Response, Error> {
    let (caller, _) = service.authorise(headers, &Operation::StateChange(id.clone())).await?;
    match &caller {
        // To a runner a state that does not exist is one that is not locked. For a person it would have no namespace.
        Caller::Runner(_) => {}
        Caller::Controller | Caller::Server if service.journal.last(id).await?.is_some() => {}
        Caller::Controller | Caller::Server => return Ok(StatusCode::OK.into_response()),
    }
    let writer = service.state_writer(id, headers, None).await?;
    let lock_id = lock_id(&lock_info(request.into_body()).await?);
    match (&caller, &lock_id) {
        (Caller::Runner(_), None) => {
            return Err(Error::BadRequest("an unlock needs the field ID of the lock".to_owned()));
        }
        (Caller::Runner(_), Some(_)) | (Caller::Controller | Caller::Server, _) => {}
    }
    change(service, id, &writer, |situation| situation.unlock(lock_id.as_deref(), writer.fence)).await?;
    Ok(StatusCode::OK.into_response())
}

async fn change(
    service: &Service,
    id: &StateId,
    writer: &Writer,
    decide: impl FnMut(&Situation) -> Result<super::journal::Change, super::journal::Refused>,
) -> Result<Situation, Error> {
    Ok(service.journal.change(id, &writer.tenant, &writer.by, Timestamp::now(), decide).await?)
}

async fn lock_info(body: Body) -> Result<serde_json::Value, Error> {
    let bytes = axum::body::to_bytes(body, LOCK_LIMIT)
        .await
        .map_err(|error| Error::BadRequest(format!("the lock could not be received: {error}")))?;
    if bytes.is_empty() {
        return Ok(serde_json::Value::Null);
    }
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::BadRequest(format!("the lock is not JSON: {error}")))
}

fn lock_id(info: &serde_json::Value) -> Option<String> {
    info.get("ID").and_then(serde_json::Value::as_str).filter(|id| !id.is_empty()).map(str::to_owned)
}

pub(super) async fn lock_show(
    State(service): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    service.authorise(&headers, &Operation::StateAdminister).await?;
    let id = StateId::new(id)?;
    match service.journal.last(&id).await?.and_then(|(_, step)| step.lock) {
        Some(lock) => Ok(axum::Json(lock).into_response()),
        None => Ok(no_state()),
    }
}

pub(super) async fn lock_take(
    State(service): Shared,
    Path(id): Path<String>,
    Query(parameters): Query<Parameters>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Error> {
    lock(&service, &StateId::new(id)?, parameters, &headers, request).await
}

pub(super) async fn lock_release(
    State(service): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Error> {
    unlock(&service, &StateId::new(id)?, &headers, request).await
}

/// Every version there has been, oldest first. O(steps of this state).
pub(super) async fn versions(
    State(service): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    service.authorise(&headers, &Operation::StateAdminister).await?;
    let steps = service.journal.writes(&StateId::new(id)?).await?;
    Ok(axum::Json(steps).into_response())
}

pub(super) async fn version_get(
    State(service): Shared,
    Path((id, version)): Path<(String, u64)>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    service.authorise(&headers, &Operation::StateAdminister).await?;
    let id = StateId::new(id)?;
    match service.journal.version(&id, version).await? {
        Some(head) => content(&service, &id, &head).await,
        None => Err(Error::NotFound(format!("state {id} has no version {version}"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::journal::{Change, Refused};
    use super::*;
    use api::text::Sha256;

    fn head(lineage: &str, serial: u64) -> Head {
        Head {
            version: 1,
            sha256: Sha256::of(format!("{lineage}{serial}").as_bytes()),
            lineage: Some(lineage.to_owned()),
            serial: Some(serial),
        }
    }

    fn lock_of(id: &str, fence: Option<u64>) -> Lock {
        Lock {
            id: id.to_owned(),
            info: serde_json::json!({"ID": id}),
            fence,
            by: "someone".to_owned(),
            since: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_higher_fence_takes_the_lock_of_a_dead_run_and_a_lower_one_never_writes_again() {
        let held = Situation { fence: 4, lock: Some(lock_of("a", Some(4))), ..Situation::default() };
        assert!(matches!(held.lock(&lock_of("b", Some(5))), Ok(Change::To(next)) if next.fence == 5));
        assert!(matches!(held.lock(&lock_of("b", Some(4))), Err(Refused::Locked(_))));
        assert!(matches!(held.lock(&lock_of("b", Some(3))), Err(Refused::Fenced { own: 3, seen: 4 })));
        assert!(matches!(held.lock(&lock_of("a", Some(4))), Ok(Change::Nothing)));
        let by_hand = Situation { fence: 4, lock: Some(lock_of("p", None)), ..Situation::default() };
        assert!(matches!(by_hand.lock(&lock_of("b", Some(9))), Err(Refused::Locked(_))));
        assert!(matches!(held.write(&head("l", 1), Some("a"), Some(3)), Err(Refused::Fenced { .. })));
        assert!(matches!(held.unlock(Some("a"), Some(3)), Err(Refused::Fenced { .. })));
    }

    #[test]
    fn writes_follow_lineage_serial_and_lock() {
        let locked = Situation {
            lock: Some(lock_of("a", Some(1))),
            head: Some(head("l", 3)),
            fence: 1,
            ..Situation::default()
        };
        assert!(matches!(locked.write(&head("l", 4), Some("a"), Some(1)), Ok(Change::To(_))));
        assert!(
            matches!(locked.write(&head("l", 3), Some("a"), Some(1)), Ok(Change::Nothing)),
            "the same again"
        );
        let other = Head { sha256: Sha256::of(b"other"), ..head("l", 3) };
        assert!(matches!(
            locked.write(&other, Some("a"), Some(1)),
            Err(Refused::Serial { new: 3, stored: 3 })
        ));
        assert!(matches!(locked.write(&head("m", 4), Some("a"), Some(1)), Err(Refused::Lineage { .. })));
        assert!(matches!(locked.write(&head("l", 4), Some("b"), Some(1)), Err(Refused::Locked(_))));
        assert!(matches!(locked.write(&head("l", 4), None, None), Err(Refused::Locked(_))));
        let free = Situation { fence: 1, ..Situation::default() };
        assert!(matches!(free.write(&head("l", 1), None, Some(1)), Err(Refused::NotLocked)));
        assert!(matches!(free.write(&head("l", 1), None, None), Ok(Change::To(_))));
        assert!(matches!(
            free.write(&Head { serial: None, ..head("l", 1) }, None, None),
            Err(Refused::NoState)
        ));
    }
}
