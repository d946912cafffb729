//! Handlers for what attempts leave. An upload that repeats what is stored is answered like the first.

use std::sync::Arc;

use api::attempt::Description;
use api::text::Sha256;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::access::Operation;
use super::identity::Caller;
use super::store::{Opened, Put, Writing};
use super::{Error, Service, announced_digest, journal::Refused};
use crate::key::{Artefact, Attempt, Key, RunUid, StateId};

type Shared = State<Arc<Service>>;

pub(super) async fn get(
    State(service): Shared,
    Path((run, number, artefact)): Path<(String, u32, String)>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let (attempt, artefact) = (Attempt::new(run, number)?, artefact.parse::<Artefact>()?);
    let (caller, _) =
        service.authorise(&headers, &Operation::ArtefactRead(attempt.clone(), artefact)).await?;
    let opened = service.store.open(&Key::Artefact(attempt, artefact)).await?;
    match &caller {
        Caller::Runner(runner) if runner.namespace != opened.tenant => {
            Err(Error::Forbidden("the artefact belongs to another namespace".to_owned()))
        }
        Caller::Runner(_) | Caller::Controller | Caller::Server => Ok(answer(opened)),
    }
}

pub(super) async fn put(
    State(service): Shared,
    Path((run, number, artefact)): Path<(String, u32, String)>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Error> {
    let (attempt, artefact) = (Attempt::new(run, number)?, artefact.parse::<Artefact>()?);
    let operation = Operation::ArtefactWrite(attempt.clone(), artefact);
    let (caller, description) = service.authorise(&headers, &operation).await?;
    let sha256 = announced_digest(&headers)?;
    let put = match artefact {
        Artefact::Spec => put_description(&service, &attempt, &sha256, request).await?,
        Artefact::Plan
        | Artefact::PlanJson
        | Artefact::PlanText
        | Artefact::Outputs
        | Artefact::Result
        | Artefact::Inputs => {
            let description = match (description, &caller) {
                (Some(description), _) => description,
                (None, _) => service.description(&attempt).await?.ok_or_else(|| {
                    Error::Conflict(format!("attempt {attempt} has no description yet; write its spec first"))
                })?,
            };
            match (&caller, artefact) {
                (Caller::Runner(_), Artefact::Result) => check_fence(&service, &description).await?,
                (Caller::Runner(_) | Caller::Controller | Caller::Server, _) => {}
            }
            let key = Key::Artefact(attempt.clone(), artefact);
            let writing = Writing { key: &key, tenant: &description.namespace, sha256: &sha256, after: None };
            let put = service.store.put(writing, request.into_body().into_data_stream()).await?;
            if artefact == Artefact::Result {
                // Whoever follows the log learns that it is complete.
                service.logs.wake(&attempt);
            }
            put
        }
    };
    Ok(stored(put))
}

/// How many bytes a run left: descriptions, plans, results, logs. 0 for a run that left nothing. O(objects of the run).
pub(super) async fn run_size(
    State(service): Shared,
    Path(run): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let run = RunUid::new(run)?;
    service.authorise(&headers, &Operation::RunMeasure).await?;
    let found = service.store.list(&Key::run_prefix(&run)).await?;
    let bytes: u64 = found.iter().map(|(_, size)| size).sum();
    Ok(([(header::CONTENT_TYPE, "text/plain")], bytes.to_string()).into_response())
}

/// Forgets what a run left: descriptions, plans, results, logs. Repeating it changes nothing.
pub(super) async fn run_delete(
    State(service): Shared,
    Path(run): Path<String>,
    headers: HeaderMap,
) -> Result<StatusCode, Error> {
    let run = RunUid::new(run)?;
    service.authorise(&headers, &Operation::RunDelete).await?;
    service.store.delete_under(&Key::run_prefix(&run)).await?;
    service.forget(&run);
    Ok(StatusCode::NO_CONTENT)
}

/// A description decides what its runner may touch, so it must be about the attempt it is stored for.
async fn put_description(
    service: &Service,
    attempt: &Attempt,
    sha256: &Sha256,
    request: Request,
) -> Result<Put, Error> {
    let key = Key::Artefact(attempt.clone(), Artefact::Spec);
    let limit = usize::try_from(key.limit()).unwrap_or(usize::MAX);
    let content = axum::body::to_bytes(request.into_body(), limit)
        .await
        .map_err(|error| Error::BadRequest(format!("the description could not be received: {error}")))?;
    let description: Description = serde_json::from_slice(&content)
        .map_err(|error| Error::BadRequest(format!("the spec is not a description: {error}")))?;
    if description.run_uid != attempt.run_uid() || description.attempt != attempt.number() {
        return Err(Error::BadRequest(format!("the description is not about {attempt}")));
    }
    let writing = Writing { key: &key, tenant: &description.namespace, sha256, after: None };
    let body = futures::stream::iter([Ok::<_, std::convert::Infallible>(content)]);
    Ok(service.store.put(writing, body).await?)
}

/// A mutating run that was overtaken cannot report any more: its successor's word counts.
async fn check_fence(service: &Service, description: &Description) -> Result<(), Error> {
    if !description.action.mutates() {
        return Ok(());
    }
    let id = StateId::new(description.state.as_str())?;
    if let Some((_, step)) = service.journal.last(&id).await?
        && step.fence > description.fence
    {
        let refused = Refused::Fenced { own: description.fence, seen: step.fence };
        return Err(Error::Conflict(refused.to_string()));
    }
    Ok(())
}

pub(super) fn answer(opened: Opened) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, opened.size.to_string()),
        (HeaderName::from_static(crate::header::SHA256), opened.sha256.to_string()),
    ];
    (headers, Body::from_stream(opened.content)).into_response()
}

pub(super) fn stored(put: Put) -> Response {
    match put {
        Put::Created => StatusCode::CREATED.into_response(),
        Put::Same => StatusCode::OK.into_response(),
    }
}
