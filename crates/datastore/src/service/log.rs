//! Logs: appended in segments by the runner, read from any offset, followed until the attempt's result is there. A
//! segment that arrives twice is stored once.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::TryStreamExt;
use serde::Deserialize;
use tokio::sync::Notify;

use super::access::Operation;
use super::{Error, Service, store};
use crate::key::{Artefact, Attempt, Key, RunUid};

/// A log that grows past this is refused; the runner says so in the log before it comes to that.
const LOG_LIMIT: u64 = 1024 * 1024 * 1024;
/// How long a follower waits before it looks by itself: another replica may have taken the segment.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const KNOWN_LOGS: usize = 1024;

/// What is known of logs in this process; everything can be learned again from the store.
#[derive(Default)]
pub(crate) struct Logs {
    known: Mutex<HashMap<Attempt, Arc<Known>>>,
}

#[derive(Default)]
struct Known {
    grown: Notify,
    /// Segments by offset; appends take turns.
    segments: tokio::sync::Mutex<BTreeMap<u64, u64>>,
}

impl Logs {
    fn of(&self, attempt: &Attempt) -> Arc<Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_LOGS && !known.contains_key(attempt) {
            // Those somebody is using stay: a second `Known` of the same log would miss its wake-ups.
            known.retain(|_, log| Arc::strong_count(log) > 1);
        }
        Arc::clone(known.entry(attempt.clone()).or_default())
    }

    pub(super) fn forget(&self, run: &RunUid) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|attempt, _| attempt.run_uid() != run.as_str());
    }

    pub(super) fn wake(&self, attempt: &Attempt) {
        self.of(attempt).grown.notify_waiters();
    }
}

fn end_of(segments: &BTreeMap<u64, u64>) -> u64 {
    segments.last_key_value().map_or(0, |(offset, size)| offset.saturating_add(*size))
}

impl Service {
    /// Learns the segments that are stored. O(segments of this log), once for each log and process.
    async fn log_learn(&self, attempt: &Attempt, segments: &mut BTreeMap<u64, u64>) -> Result<(), Error> {
        for (name, size) in self.store.list(&Key::log_prefix(attempt)).await? {
            if let Ok(offset) = name.parse() {
                segments.insert(offset, size);
            }
        }
        Ok(())
    }

    /// The segment that holds a byte: its offset and size. Looks into the store only for bytes not known of.
    async fn log_segment_at(&self, attempt: &Attempt, offset: u64) -> Result<Option<(u64, u64)>, Error> {
        let find = |segments: &BTreeMap<u64, u64>| {
            let (start, size) = segments.range(..=offset).next_back()?;
            (offset - start < *size).then_some((*start, *size))
        };
        let known = self.logs.of(attempt);
        let mut segments = known.segments.lock().await;
        if let Some(found) = find(&segments) {
            return Ok(Some(found));
        }
        self.log_learn(attempt, &mut segments).await?;
        Ok(find(&segments))
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct AppendAt {
    offset: u64,
}

pub(super) async fn append(
    State(service): State<Arc<Service>>,
    Path((run, number)): Path<(String, u32)>,
    Query(AppendAt { offset }): Query<AppendAt>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Error> {
    let attempt = Attempt::new(run, number)?;
    service.authorise(&headers, &Operation::LogAppend(attempt.clone())).await?;
    let description = service.description(&attempt).await?.ok_or_else(|| {
        Error::Conflict(format!("attempt {attempt} has no description yet; write its spec first"))
    })?;
    let announced = super::announced_digest(&headers)?;
    let key = Key::LogSegment(attempt.clone(), offset);
    let limit = usize::try_from(key.limit()).unwrap_or(usize::MAX);
    let content = axum::body::to_bytes(request.into_body(), limit)
        .await
        .map_err(|error| Error::TooLarge(format!("the log segment could not be received: {error}")))?;
    if api::text::Sha256::of(&content) != announced {
        return Err(Error::BadRequest(
            "the log segment is not what its sha256 announces; send it again".to_owned(),
        ));
    }
    if content.is_empty() {
        return Err(Error::BadRequest("a log segment cannot be empty".to_owned()));
    }
    let size = u64::try_from(content.len()).unwrap_or(u64::MAX);
    if offset.saturating_add(size) > LOG_LIMIT {
        return Err(Error::TooLarge(format!("a log may have {LOG_LIMIT} bytes")));
    }
    let known = service.logs.of(&attempt);
    let mut segments = known.segments.lock().await;
    if end_of(&segments) < offset || segments.is_empty() {
        service.log_learn(&attempt, &mut segments).await?;
    }
    let end = end_of(&segments);
    let fits = offset == end || segments.get(&offset) == Some(&size);
    if !fits {
        return Err(does_not_fit(&attempt, offset, end));
    }
    match service.store.put_bytes(&key, &description.namespace, content).await {
        Ok(_) => {}
        Err(conflict @ store::Error::Conflict(_)) => {
            // Another replica stored a piece there, or a request that was given up in its middle did. Its answer was lost, and the runner has
            // gathered more lines since: it goes on behind that piece. Other bytes of the same length are another log.
            service.log_learn(&attempt, &mut segments).await?;
            return Err(match segments.get(&offset) {
                Some(stored) if *stored != size => does_not_fit(&attempt, offset, end_of(&segments)),
                Some(_) | None => conflict.into(),
            });
        }
        Err(other) => return Err(other.into()),
    }
    segments.insert(offset, size);
    let end = end_of(&segments);
    drop(segments);
    known.grown.notify_waiters();
    Ok((StatusCode::OK, [(crate::header::LOG_END, end.to_string())]).into_response())
}

fn does_not_fit(attempt: &Attempt, offset: u64, end: u64) -> Error {
    let message =
        format!("the log of {attempt} ends at byte {end}; a segment for byte {offset} does not fit");
    Error::LogEnd { end, message }
}

#[derive(Debug, Deserialize)]
pub(super) struct ReadFrom {
    #[serde(default)]
    offset: u64,
    #[serde(default)]
    follow: bool,
}

pub(super) async fn read(
    State(service): State<Arc<Service>>,
    Path((run, number)): Path<(String, u32)>,
    Query(from): Query<ReadFrom>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let attempt = Attempt::new(run, number)?;
    service.authorise(&headers, &Operation::LogRead).await?;
    let reading = Reading { service, attempt, offset: from.offset, follow: from.follow };
    let stream = futures::stream::try_unfold(reading, Reading::next);
    // An error in mid-stream ends the connection without its last chunk, which the client notices.
    let stream = stream.map_err(|error| std::io::Error::other(format!("{error:?}")));
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    Ok((headers, Body::from_stream(stream)).into_response())
}

struct Reading {
    service: Arc<Service>,
    attempt: Attempt,
    offset: u64,
    follow: bool,
}

impl Reading {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, Error> {
        loop {
            // Registered before looking, so that nothing that happens in between is missed.
            let known = self.service.logs.of(&self.attempt);
            let mut grown = std::pin::pin!(known.grown.notified());
            grown.as_mut().enable();
            let complete = !self.follow
                || self.service.store.exists(&Key::Artefact(self.attempt.clone(), Artefact::Result)).await?;
            if let Some(bytes) = self.segment().await? {
                return Ok(Some((bytes, self)));
            }
            if complete {
                return Ok(None);
            }
            // Either is a reason to look again.
            let _ = tokio::time::timeout(LOOK_AGAIN, grown).await;
        }
    }

    /// The rest of the segment that holds the current offset.
    async fn segment(&mut self) -> Result<Option<Bytes>, Error> {
        let Some((start, _)) = self.service.log_segment_at(&self.attempt, self.offset).await? else {
            return Ok(None);
        };
        let skip = self.offset - start;
        let (_, content) = self.service.store.bytes(&Key::LogSegment(self.attempt.clone(), start)).await?;
        let rest = Bytes::from(content).split_off(usize::try_from(skip).unwrap_or(usize::MAX));
        self.offset += u64::try_from(rest.len()).unwrap_or(0);
        Ok(Some(rest))
    }
}
