//! Waiting for one object to become what is waited for, by a watch that survives interruptions.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::progress::{Progress, TICK};

/// What an observation leads to.
pub(super) enum Seen<T> {
    Enough(T),
    /// Go on, and tell the person this.
    Waiting(String),
}

/// Watches an object until `judge` has seen enough. `None` means that there is no such object.
pub(super) async fn until<K, T>(
    api: Api<K>,
    name: &str,
    progress: &mut Progress,
    mut judge: impl FnMut(Option<K>) -> anyhow::Result<Seen<T>>,
) -> anyhow::Result<T>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let stream = kube::runtime::watcher::watch_object(api, name).default_backoff();
    let mut stream = std::pin::pin!(stream);
    let mut ticks = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            _ = ticks.tick() => progress.draw(),
            seen = stream.next() => match seen {
                Some(Ok(object)) => match judge(object)? {
                    Seen::Enough(value) => return Ok(value),
                    Seen::Waiting(text) => progress.say(text),
                },
                Some(Err(error)) if is_final(&error) => {
                    return Err(error).with_context(|| format!("watch {name}"));
                }
                // The watch is opened again by itself.
                Some(Err(error)) => tracing::debug!(%error, name, "the watch was interrupted"),
                None => bail!("the watch of {name} ended"),
            },
        }
    }
}

/// The first object of a watch that is the one meant, there already or still to come.
pub(super) async fn first<K>(
    api: Api<K>,
    config: watcher::Config,
    progress: &mut Progress,
    is_meant: impl Fn(&K) -> bool,
) -> anyhow::Result<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let stream = watcher(api, config).default_backoff().applied_objects();
    let mut stream = std::pin::pin!(stream);
    let mut ticks = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            _ = ticks.tick() => progress.draw(),
            seen = stream.next() => match seen {
                Some(Ok(object)) if is_meant(&object) => return Ok(object),
                Some(Ok(_)) => {}
                Some(Err(error)) if is_final(&error) => return Err(error).context("watch what is to come"),
                Some(Err(error)) => tracing::debug!(%error, "the watch was interrupted"),
                None => bail!("the watch ended"),
            },
        }
    }
}

/// Refusals that waiting does not cure.
pub(super) fn is_final(error: &watcher::Error) -> bool {
    let cause = match error {
        watcher::Error::InitialListFailed(cause)
        | watcher::Error::WatchStartFailed(cause)
        | watcher::Error::WatchFailed(cause) => cause,
        watcher::Error::WatchError(status) => return matches!(status.code, 401 | 403 | 404),
        watcher::Error::NoResourceVersion => return false,
    };
    matches!(cause, kube::Error::Api(status) if matches!(status.code, 401 | 403 | 404))
}

/// `30s`, `5m`, `1h30m`: as people and kubectl write it.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let span: jiff::SignedDuration =
        text.parse().map_err(|_| format!("{text:?} is not a duration; write it as 30s, 5m or 1h30m"))?;
    Duration::try_from(span).map_err(|_| format!("{text:?} lies in the past"))
}

/// Ends a wait that lasts too long; `advice` says what to do then.
pub(super) async fn within<T>(
    limit: Duration,
    what: &str,
    advice: &str,
    wait: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    match tokio::time::timeout(limit, wait).await {
        Ok(result) => result,
        Err(_) => bail!("{what} did not happen within {} s; {advice}", limit.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, secs) in [("30s", 30), ("5m", 300), ("1h30m", 5400)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(secs)), "{text}");
        }
        for text in ["", "soon", "-5s", "5"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
