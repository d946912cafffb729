//! Events are forgotten an hour after they were last seen.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::time::Instant;

use super::Error;
use super::api::{Api, Propagation};
use super::catalog::Catalog;
use super::queue::{Outcome, Queue};
use super::reactor::Reactor;
use crate::store::{Change, Collection, Event, Key, Snapshot, Store, Stored};

const KEPT: SignedDuration = SignedDuration::from_hours(1);

pub(super) struct Events {
    store: Store,
    api: Api,
    catalog: Arc<dyn Catalog>,
}

pub(super) fn collection() -> Collection {
    Collection::new("", "events")
}

impl Events {
    pub(super) fn new(store: Store, api: Api, catalog: Arc<dyn Catalog>) -> Self {
        Events { store, api, catalog }
    }
}

impl Reactor for Events {
    const NAME: &'static str = "event expiry";

    fn start_over(&mut self, snapshot: &Snapshot, queue: &mut Queue<Key>) {
        for event in snapshot.list(&collection(), None, None) {
            schedule(&event, queue);
        }
    }

    fn hear(&mut self, event: &Event, queue: &mut Queue<Key>) {
        match event.change {
            Change::Added | Change::Modified => schedule(&event.object, queue),
            Change::Deleted => {}
        }
    }

    fn look(&self, key: Key) -> impl Future<Output = Result<Outcome, Error>> + Send + 'static {
        let (stored, api) = (self.store.snapshot().get(&key), self.api.clone());
        let served = self.catalog.served(&key.collection);
        async move {
            let Some(stored) = stored else { return Ok(Outcome::Done) };
            let left = time_left(&stored.value(), Timestamp::now());
            if !left.is_zero() {
                return Ok(Outcome::After(left));
            }
            let path = served.map(|served| served.object_path(&key)).ok_or(Error::NotServed(key))?;
            api.delete(&path, &stored, Propagation::Background).await?;
            Ok(Outcome::Done)
        }
    }
}

fn schedule(event: &Stored, queue: &mut Queue<Key>) {
    let left = time_left(&event.value(), Timestamp::now());
    queue.add_at(event.key.clone(), Instant::now() + left);
}

/// How long the event stays: an hour from when it was made or last counted, whichever is later.
fn time_left(event: &Value, now: Timestamp) -> Duration {
    let time = |field: &str| {
        event.pointer(field).and_then(Value::as_str).and_then(|text| text.parse::<Timestamp>().ok())
    };
    let fields = ["/metadata/creationTimestamp", "/lastTimestamp", "/series/lastObservedTime", "/eventTime"];
    // A time in the future is somebody's wrong clock; it must not keep the event for ever.
    let seen = fields.iter().filter_map(|field| time(field)).filter(|time| *time <= now).max();
    let age = seen.map_or(SignedDuration::ZERO, |seen| now.duration_since(seen));
    Duration::try_from(KEPT - age).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_stays_an_hour_after_it_was_last_seen() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let check = |event: Value, minutes: u64| {
            assert_eq!(time_left(&event, now), Duration::from_secs(minutes * 60), "{event}");
        };
        check(json!({"metadata": {"creationTimestamp": "2026-01-01T11:30:00Z"}}), 30);
        check(json!({"metadata": {"creationTimestamp": "2026-01-01T10:30:00Z"}}), 0);
        check(
            json!({"metadata": {"creationTimestamp": "2026-01-01T10:30:00Z"}, "lastTimestamp": "2026-01-01T11:50:00Z"}),
            50,
        );
        check(
            json!({"metadata": {"creationTimestamp": "2026-01-01T11:30:00Z"}, "lastTimestamp": null,
                   "series": {"lastObservedTime": "2026-01-01T11:59:00.000000Z"}}),
            59,
        );
        check(
            json!({"metadata": {"creationTimestamp": "2026-01-01T11:30:00Z"}, "eventTime": "2099-01-01T00:00:00Z"}),
            30,
        );
    }
}
