//! A log as server-sent events of whole lines: what a page follows while a run works, and takes up again where it broke off.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response, Sse, sse};
use futures::Stream;

use super::artefacts::{Part, Reading};
use crate::answers::Asked;
use crate::may::{GetLog, May};
use crate::{Refusal, Service};

/// An event is cut here, so that a log without lines is not held in memory.
const LONGEST: usize = 64 * 1024;
/// What keeps proxies from taking a quiet run for a dead connection.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The log of an attempt as server-sent events of whole lines, with the byte after them as their id; `end` says that it is whole
///
/// `Last-Event-ID` goes on after that byte, as browsers ask by themselves; it wins over `offset`.
#[utoipa::path(
    get, operation_id = "followLog", tag = "runs",
    path = "/api/v1/namespaces/{namespace}/runs/{name}/log/events",
    params(("namespace" = String, Path), ("name" = String, Path), Part, ("Last-Event-ID" = Option<u64>, Header)),
    responses((status = 200, body = String, content_type = "text/event-stream")),
)]
pub(crate) async fn log_events(
    may: May<GetLog>,
    State(service): State<Arc<Service>>,
    Asked(part): Asked<Part>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    told(service, may, part, &headers).await
}

/// The same, of a run that was found in another way.
pub(crate) async fn told(
    service: Arc<Service>,
    may: May<GetLog>,
    mut part: Part,
    headers: &HeaderMap,
) -> Result<Response, Refusal> {
    if let Some(id) = headers.get("last-event-id") {
        part.offset = id.to_str().ok().and_then(|text| text.trim().parse().ok()).ok_or_else(|| {
            Refusal::BadRequest("Last-Event-ID must be the id of an event of this log".to_owned())
        })?;
    }
    let offset = part.offset;
    let reading = Reading::begin(service, may, &part).await?;
    let keep = sse::KeepAlive::new().interval(HEARTBEAT);
    let mut response = Sse::new(events(reading, offset)).keep_alive(keep).into_response();
    // A proxy that collects an answer before it passes it on would make it useless.
    response.headers_mut().insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
    Ok(response)
}

fn events(reading: Reading, offset: u64) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let telling =
        Telling { reading: Some(reading), lines: Lines { kept: Vec::new(), at: offset }, last: None };
    futures::stream::unfold(telling, async |mut telling| {
        loop {
            if let Some((line, at)) = telling.lines.next() {
                return Some((Ok(event(&line, at)), telling));
            }
            let Some(reading) = telling.reading.take() else {
                // What had no line end, and then how it ended.
                let rest = telling.lines.rest().map(|(line, at)| event(&line, at));
                let told = rest.or_else(|| telling.last.take())?;
                return Some((Ok(told), telling));
            };
            match reading.next().await {
                Ok(Some((bytes, reading))) => {
                    telling.lines.kept.extend_from_slice(&bytes);
                    telling.reading = Some(reading);
                }
                Ok(None) => telling.last = Some(sse::Event::default().event("end").data("the log is whole")),
                // The reader comes back with the last id; half a line is told whole then.
                Err(refusal) => {
                    telling.lines.kept.clear();
                    telling.last = Some(sse::Event::default().event("problem").data(refusal.to_string()));
                }
            }
        }
    })
}

fn event(line: &[u8], at: u64) -> sse::Event {
    // Carriage returns would end the event's line.
    let text = String::from_utf8_lossy(line).replace('\r', "");
    sse::Event::default().id(at.to_string()).data(text)
}

struct Telling {
    reading: Option<Reading>,
    lines: Lines,
    /// What the stream ends with.
    last: Option<sse::Event>,
}

/// Bytes that came, cut into lines.
struct Lines {
    kept: Vec<u8>,
    /// The byte of the log that `kept` begins with.
    at: u64,
}

impl Lines {
    /// The whole lines that came, without their last end, and the byte after them. Empty ones wait for others: browsers leave out an
    /// event that says nothing.
    fn next(&mut self) -> Option<(Vec<u8>, u64)> {
        let within = self.kept.get(..LONGEST).unwrap_or(&self.kept);
        match within.iter().rposition(|byte| *byte == b'\n') {
            Some(end) if within.iter().take(end).any(|byte| !b"\r\n".contains(byte)) => self.take(end, 1),
            Some(_) | None if self.kept.len() > LONGEST => self.take(LONGEST, 0),
            Some(_) | None => None,
        }
    }

    /// What is left without a line end.
    fn rest(&mut self) -> Option<(Vec<u8>, u64)> {
        if self.kept.is_empty() { None } else { self.take(self.kept.len(), 0) }
    }

    fn take(&mut self, length: usize, skipped: usize) -> Option<(Vec<u8>, u64)> {
        let after = self.kept.split_off(length.checked_add(skipped)?);
        let mut line = std::mem::replace(&mut self.kept, after);
        self.at = self.at.saturating_add(u64::try_from(line.len()).ok()?);
        line.truncate(length);
        Some((line, self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(pieces: &[&str]) -> Vec<(String, u64)> {
        let mut lines = Lines { kept: Vec::new(), at: 10 };
        let mut told = Vec::new();
        for piece in pieces {
            lines.kept.extend_from_slice(piece.as_bytes());
            told.extend(std::iter::from_fn(|| lines.next()));
        }
        told.extend(lines.rest());
        told.into_iter().map(|(line, at)| (String::from_utf8_lossy(&line).into_owned(), at)).collect()
    }

    #[test]
    fn lines_carry_the_byte_after_them_wherever_the_pieces_break() {
        for (pieces, expected) in [
            (&["one\ntwo\nthr", "ee"][..], &[("one\ntwo", 18), ("three", 23)][..]),
            (&["o", "ne", "\n", "two\n", "three"], &[("one", 14), ("two", 18), ("three", 23)]),
            (&["one\n", "\n", "\n", "two\n"], &[("one", 14), ("\n\ntwo", 20)]),
            (&["one\n\n"], &[("one\n", 15)]),
        ] {
            let expected: Vec<(String, u64)> =
                expected.iter().map(|(text, at)| ((*text).to_owned(), *at)).collect();
            assert_eq!(told(pieces), expected, "{pieces:?}");
        }
    }

    #[test]
    fn a_log_without_lines_is_told_in_pieces() {
        let mut lines = Lines { kept: vec![b'x'; LONGEST + 5], at: 0 };
        let first = lines.next().map(|(line, at)| (line.len(), at));
        assert_eq!(first, Some((LONGEST, LONGEST as u64)));
        assert!(lines.next().is_none());
        assert_eq!(lines.rest().map(|(line, at)| (line.len(), at)), Some((5, LONGEST as u64 + 5)));
    }
}
