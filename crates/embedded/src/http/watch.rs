//! Watches: newline-separated events, first the state where that is asked for, then what changes. A watch that falls behind is told so and
//! ended; it holds nobody up.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use futures::Stream;
use futures::stream;
use http::{HeaderValue, header};
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::Api;
use super::negotiate::{Encoding, Shape};
use super::request::{ListOptions, Verb};
use super::selector::Selector;
use super::serve::Call;
use super::status::{Result, Status};
use super::{table, view};
use crate::kinds::Kind;
use crate::store::{Change, Event, Expired, Stored, Watch};

/// Events are sent together up to about this many bytes.
const CHUNK: usize = 64 * 1024;
/// A last bookmark goes out this long before the end, so that the next watch starts close by.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

pub fn serve(api: &Arc<Api>, call: Call) -> Result<Response> {
    let mut options = ListOptions::parse(&call.params, Verb::Watch)?;
    if !call.path.name.is_empty() {
        // A path below `/watch/` that names one object.
        options.fields = format!("metadata.name={}", call.path.name);
    }
    let selector = Selector::parse(&call.kind, &options.labels, &options.fields)?;
    let asked = options.revision_number(Verb::Watch)?;
    let Ok(permit) = Arc::clone(&api.watches).try_acquire_owned() else {
        return Err(Status::too_many_requests("too many watches are open, please try again later", 1));
    };
    let current = call.snapshot.revision();
    if options.initial_events == Some(true) && asked > current {
        return Err(Status::revision_too_large(asked, current));
    }
    let initial = match options.initial_events {
        Some(wanted) => wanted,
        None => asked == 0,
    };
    let from = if initial || asked == 0 { current } else { asked };
    let timeout =
        options.timeout.map(Duration::from_secs).unwrap_or_else(|| spread(api.options.watch_timeout));
    let accept = call.accept;
    let scope = Scope {
        namespace: call.namespace().map(str::to_owned),
        kind: Arc::clone(&call.kind),
        selector,
        shape: accept.shape,
    };
    let body = match api.store.watch(&call.kind.collection, from) {
        Err(expired) => Body::from(error_event(&expired_status(&expired))),
        Ok(watch) => {
            let start: Vec<Arc<Stored>> = if initial { scope.state(&call) } else { Vec::new() };
            let mut ticks = tokio::time::interval_at(
                Instant::now() + api.options.bookmark_interval,
                api.options.bookmark_interval,
            );
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let feed = Feed {
                scope,
                watch,
                pending: start.into_iter(),
                initial_end: (initial && options.bookmarks).then_some(from),
                bookmarks: options.bookmarks.then_some(ticks),
                last_bookmark: options.bookmarks && timeout > LAST_BOOKMARK,
                start: Instant::now(),
                end: Instant::now() + timeout,
                rows_sent: false,
                _permit: permit,
            };
            Body::from_stream(feed.stream())
        }
    };
    let mut response = Response::new(body);
    let content_type = match accept.encoding {
        Encoding::Json | Encoding::Pretty => "application/json",
        Encoding::Yaml => {
            return Err(Status::not_acceptable(&["application/json", "application/json;stream=watch"]));
        }
    };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(response)
}

/// Between once and twice as long, so that watches opened together do not all come back together.
fn spread(least: Duration) -> Duration {
    least.mul_f64(1.0 + rand::random::<f64>())
}

fn expired_status(expired: &Expired) -> Status {
    Status::expired(expired.to_string())
}

fn error_event(status: &Status) -> Bytes {
    let mut line = json!({"type": "ERROR", "object": status.value()}).to_string();
    line.push('\n');
    line.into()
}

/// What a watch is about.
struct Scope {
    namespace: Option<String>,
    kind: Arc<Kind>,
    selector: Selector,
    shape: Shape,
}

impl Scope {
    fn state(&self, call: &Call) -> Vec<Arc<Stored>> {
        let all = call.snapshot.list(&self.kind.collection, self.namespace.as_deref(), None);
        all.filter(|object| self.selector.is_empty() || self.selector.matches(object)).collect()
    }

    fn matches(&self, object: &Stored) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| *object.key.namespace == *namespace)
            && (self.selector.is_empty() || self.selector.matches(object))
    }

    /// How an event looks from here: objects come into sight and go out of it as they change.
    fn seen(&self, event: &Event) -> Option<&'static str> {
        match event.change {
            Change::Added => self.matches(&event.object).then_some("ADDED"),
            Change::Deleted => {
                let before = event.previous.as_deref().unwrap_or(&event.object);
                self.matches(before).then_some("DELETED")
            }
            Change::Modified => {
                let before = event.previous.as_deref().is_some_and(|previous| self.matches(previous));
                match (before, self.matches(&event.object)) {
                    (true, true) => Some("MODIFIED"),
                    (false, true) => Some("ADDED"),
                    (true, false) => Some("DELETED"),
                    (false, false) => None,
                }
            }
        }
    }
}

struct Feed {
    scope: Scope,
    watch: Watch,
    /// What is left of the state to tell.
    pending: std::vec::IntoIter<Arc<Stored>>,
    /// The revision of the bookmark that says that the state has been told.
    initial_end: Option<u64>,
    bookmarks: Option<Interval>,
    last_bookmark: bool,
    start: Instant,
    end: Instant,
    /// Whether a Table with column definitions has gone out: only the first has them.
    rows_sent: bool,
    _permit: OwnedSemaphorePermit,
}

impl Feed {
    fn stream(self) -> impl Stream<Item = std::result::Result<Bytes, std::convert::Infallible>> {
        stream::unfold(Some(self), |feed| async move {
            let mut feed = feed?;
            let (bytes, goes_on) = feed.chunk().await?;
            Some((Ok(bytes), goes_on.then_some(feed)))
        })
    }

    /// The next bytes, and whether more can follow. `None` at the end.
    async fn chunk(&mut self) -> Option<(Bytes, bool)> {
        let mut out = BytesMut::new();
        while out.len() < CHUNK {
            let Some(object) = self.pending.next() else { break };
            self.put(&mut out, "ADDED", &object);
        }
        if !out.is_empty() {
            return Some((out.freeze(), true));
        }
        if let Some(revision) = self.initial_end.take() {
            return Some((self.bookmark(revision, BookmarkKind::InitialEventsEnd), true));
        }
        loop {
            let last = self
                .end
                .checked_sub(LAST_BOOKMARK)
                .filter(|_| self.last_bookmark)
                .unwrap_or(self.end)
                .max(self.start);
            let tick = async {
                match &mut self.bookmarks {
                    Some(ticks) => ticks.tick().await,
                    None => std::future::pending().await,
                }
            };
            // What is due by the clock comes first: a watch that always has events would never come to it.
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(last) => {
                    if !self.last_bookmark {
                        return None;
                    }
                    self.last_bookmark = false;
                    let revision = self.watch.revision();
                    return Some((self.bookmark(revision, BookmarkKind::Progress), true));
                }
                _ = tick => {
                    let revision = self.watch.revision();
                    return Some((self.bookmark(revision, BookmarkKind::Progress), true));
                }
                events = self.watch.next() => match events {
                    Ok(events) => {
                        for event in &events {
                            if let Some(how) = self.scope.seen(event) {
                                self.put_event(&mut out, how, event);
                            }
                        }
                        if !out.is_empty() {
                            return Some((out.freeze(), true));
                        }
                    }
                    // The store is closed, or this watch read too slowly.
                    Err(expired) => return Some((error_event(&expired_status(&expired)), false)),
                },
            }
        }
    }

    fn put_event(&mut self, out: &mut BytesMut, how: &str, event: &Event) {
        // An object that goes out of sight is told as it was, at the revision at which it went.
        let gone = how == "DELETED" && event.change == Change::Modified;
        match event.previous.as_ref().filter(|_| gone) {
            Some(previous) => {
                let mut value = view::value(&self.scope.kind, previous);
                if let Some(metadata) = crate::kinds::meta::of_mut(&mut value) {
                    metadata.insert("resourceVersion".to_owned(), event.revision.to_string().into());
                }
                self.put_value(out, how, &value);
            }
            None => self.put(out, how, &event.object),
        }
    }

    fn put(&mut self, out: &mut BytesMut, how: &str, object: &Stored) {
        match self.scope.shape {
            Shape::Whole => put_line(out, how, &view::bytes(&self.scope.kind, object)),
            Shape::Metadata | Shape::Table(_) => {
                self.put_value(out, how, &view::value(&self.scope.kind, object))
            }
        }
    }

    fn put_value(&mut self, out: &mut BytesMut, how: &str, value: &Value) {
        match self.scope.shape {
            Shape::Whole => put_line(out, how, value.to_string().as_bytes()),
            Shape::Metadata => put_line(out, how, view::partial(value).to_string().as_bytes()),
            Shape::Table(include) => {
                let row = table::row(&self.scope.kind, value, include, jiff::Timestamp::now());
                let revision = crate::kinds::meta::text(crate::kinds::meta::of(value), "resourceVersion");
                let mut whole =
                    table::whole(&self.scope.kind, vec![row], json!({"resourceVersion": revision}));
                if let (true, Some(fields)) = (self.rows_sent, whole.as_object_mut()) {
                    fields.insert("columnDefinitions".to_owned(), Value::Null);
                }
                self.rows_sent = true;
                put_line(out, how, whole.to_string().as_bytes());
            }
        }
    }

    fn bookmark(&mut self, revision: u64, kind: BookmarkKind) -> Bytes {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if let (BookmarkKind::InitialEventsEnd, Some(fields)) = (kind, metadata.as_object_mut()) {
            fields.insert("annotations".to_owned(), json!({"k8s.io/initial-events-end": "true"}));
        }
        let object = json!({"kind": &*self.scope.kind.kind, "apiVersion": &*self.scope.kind.api_version, "metadata": metadata});
        let object = match self.scope.shape {
            Shape::Whole => object,
            Shape::Metadata => view::partial(&object),
            Shape::Table(_) => {
                let mut whole = table::whole(
                    &self.scope.kind,
                    vec![table::row(
                        &self.scope.kind,
                        &object,
                        super::negotiate::Include::Metadata,
                        jiff::Timestamp::now(),
                    )],
                    json!({"resourceVersion": revision.to_string()}),
                );
                if let (true, Some(fields)) = (self.rows_sent, whole.as_object_mut()) {
                    fields.insert("columnDefinitions".to_owned(), Value::Null);
                }
                self.rows_sent = true;
                whole
            }
        };
        let mut line = json!({"type": "BOOKMARK", "object": object}).to_string();
        line.push('\n');
        line.into()
    }
}

#[derive(Clone, Copy)]
enum BookmarkKind {
    Progress,
    InitialEventsEnd,
}

fn put_line(out: &mut BytesMut, how: &str, object: &[u8]) {
    out.reserve(object.len() + 32);
    out.put_slice(b"{\"type\":\"");
    out.put_slice(how.as_bytes());
    out.put_slice(b"\",\"object\":");
    out.put_slice(object);
    out.put_slice(b"}\n");
}
