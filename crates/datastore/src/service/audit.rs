//! Handlers for the audit: records of what was about to change infrastructure. They are appended and read, never changed or
//! removed, and no runner sees them.

use std::sync::Arc;

use api::audit::{Entry, Record};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;

use super::access::Operation;
use super::{Error, Service, store};
use crate::key::{Attempt, Key, Subject};

/// Records read at the same time.
const READS: usize = 16;

/// Writes an entry down, stamped with the service's own time. One that repeats what is written is answered like the first.
pub(super) async fn put(
    State(service): State<Arc<Service>>,
    Path((namespace, layer, run, number)): Path<(String, String, String, u32)>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Error> {
    let subject = Subject::new(namespace, layer)?;
    let key = Key::Audit(subject.clone(), Attempt::new(run, number)?);
    service.authorise(&headers, &Operation::AuditAppend).await?;
    let limit = usize::try_from(key.limit()).unwrap_or(usize::MAX);
    let content = axum::body::to_bytes(request.into_body(), limit)
        .await
        .map_err(|error| Error::BadRequest(format!("the audit entry could not be received: {error}")))?;
    let entry: Entry = serde_json::from_slice(&content)
        .map_err(|error| Error::BadRequest(format!("the body is not an audit entry: {error}")))?;
    if key != key_of(&entry)? {
        return Err(Error::BadRequest(
            "the audit entry is about another attempt than its address".to_owned(),
        ));
    }
    let record = Record { at: Timestamp::now(), entry };
    let bytes = serde_json::to_vec(&record)
        .map_err(|error| Error::Internal(format!("the audit record cannot be written: {error}")))?;
    match service.store.put_bytes(&key, subject.namespace(), bytes.into()).await {
        Ok(_) => Ok(StatusCode::CREATED.into_response()),
        Err(store::Error::Conflict(path)) => {
            if read(&service, &key).await?.entry == record.entry {
                Ok(StatusCode::OK.into_response())
            } else {
                Err(store::Error::Conflict(path).into())
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// All records of a layer, oldest first. O(records of the layer).
pub(super) async fn list(
    State(service): State<Arc<Service>>,
    Path((namespace, layer)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let subject = Subject::new(namespace, layer)?;
    service.authorise(&headers, &Operation::AuditRead).await?;
    let names = service.store.list(&Key::audit_prefix(&subject)).await?;
    let keys = names.into_iter().filter_map(|(name, _)| {
        let (run, number) = name.rsplit_once('.')?;
        Some(Key::Audit(subject.clone(), Attempt::new(run, number.parse().ok()?).ok()?))
    });
    let mut records: Vec<Record> = futures::stream::iter(keys)
        .map(|key| {
            let service = Arc::clone(&service);
            async move { read(&service, &key).await }
        })
        .buffer_unordered(READS)
        .try_collect()
        .await?;
    records.sort_by(|a, b| {
        (a.at, &a.entry.run_uid, a.entry.attempt).cmp(&(b.at, &b.entry.run_uid, b.entry.attempt))
    });
    Ok(axum::Json(records).into_response())
}

async fn read(service: &Service, key: &Key) -> Result<Record, Error> {
    let (_, content) = service.store.bytes(key).await?;
    serde_json::from_slice(&content)
        .map_err(|error| Error::Internal(format!("the audit record {} cannot be read: {error}", key.path())))
}

fn key_of(entry: &Entry) -> Result<Key, Error> {
    let subject = Subject::new(&*entry.namespace, &*entry.layer)?;
    Ok(Key::Audit(subject, Attempt::new(&*entry.run_uid, entry.attempt)?))
}
