//! The loop that every part of the lifecycle runs in: hear of changes, queue what to look at, look at several at a time.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;

use futures::future::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;

use super::Error;
use super::feed::{Feed, Heard};
use super::queue::{Outcome, Queue};
use crate::store::{Event, Key, Snapshot};

/// Writes that one reactor has under way at a time.
const AT_A_TIME: usize = 16;

pub(super) trait Reactor {
    const NAME: &'static str;

    /// Everything as it is: at start, and after events were missed. O(objects of the followed collections).
    fn start_over(&mut self, snapshot: &Snapshot, queue: &mut Queue<Key>);

    /// One change. Must not wait.
    fn hear(&mut self, event: &Event, queue: &mut Queue<Key>);

    /// Looks at one key and does what there is to do.
    fn look(&self, key: Key) -> impl Future<Output = Result<Outcome, Error>> + Send + 'static;
}

/// Runs for ever. A key whose look fails or panics is tried again later; the others go on.
pub(super) async fn run<R: Reactor>(mut reactor: R, mut feed: Feed) -> Result<(), Error> {
    let mut queue: Queue<Key> = Queue::default();
    let mut looking = FuturesUnordered::new();
    loop {
        while looking.len() < AT_A_TIME {
            let Some(key) = queue.take(Instant::now()) else { break };
            let look = AssertUnwindSafe(reactor.look(key.clone())).catch_unwind();
            looking.push(look.map(|result| (key, result)));
        }
        let due = queue.next_due().filter(|_| looking.len() < AT_A_TIME);
        let mut pause = pin!(async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        });
        tokio::select! {
            heard = feed.next() => match heard {
                Heard::Events(events) => events.iter().for_each(|event| reactor.hear(event, &mut queue)),
                Heard::StartOver(snapshot) => reactor.start_over(&snapshot, &mut queue),
            },
            Some((key, result)) = looking.next() => {
                let outcome = match result {
                    Ok(Ok(outcome)) => outcome,
                    Ok(Err(error)) if error.is_conflict() => Outcome::Failed,
                    Ok(Err(error)) => {
                        tracing::warn!(part = R::NAME, %key, %error, "will be tried again");
                        Outcome::Failed
                    }
                    Err(_panic) => {
                        tracing::error!(part = R::NAME, %key, "looking at this object panicked; it will be tried again");
                        Outcome::Failed
                    }
                };
                queue.finish(key, outcome, Instant::now());
            },
            () = &mut pause => {}
        }
    }
}
