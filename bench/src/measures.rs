//! The measures of the API, each taken in the same way of either server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::client::{Body, Target};
use crate::objects;
use crate::subject::{Side, Subject};

/// How much is done.
#[derive(Debug, Clone)]
pub struct Scale {
    /// Layers that are stored.
    pub layers: usize,
    /// Clients that create at the same time.
    pub clients: usize,
    /// How long they create.
    pub creating: Duration,
    /// How often everything is listed.
    pub lists: usize,
    /// How many watches are open while memory is read.
    pub watches: usize,
    /// Writes a second, and how many, while a watch is timed.
    pub writes_per_second: u32,
    pub watched_writes: usize,
    /// Starts, of which the middle one counts.
    pub starts: usize,
}

impl Scale {
    pub fn whole() -> Self {
        Self {
            layers: 10_000,
            clients: 64,
            creating: Duration::from_secs(10),
            lists: 10,
            watches: 10,
            writes_per_second: 500,
            watched_writes: 5_000,
            starts: 3,
        }
    }

    /// A look at the whole in a fraction of the time; its figures are rough.
    pub fn quick() -> Self {
        Self {
            layers: 2_000,
            creating: Duration::from_secs(3),
            lists: 3,
            watched_writes: 1_000,
            starts: 1,
            ..Self::whole()
        }
    }

    /// Just enough to see that every measure can be taken.
    pub fn tiny() -> Self {
        Self {
            layers: 30,
            clients: 4,
            creating: Duration::from_millis(200),
            lists: 1,
            watches: 2,
            writes_per_second: 100,
            watched_writes: 20,
            starts: 1,
        }
    }
}

/// What was found of one server.
#[derive(Debug, Clone)]
pub struct Figures {
    pub creates_per_second: f64,
    pub start: Duration,
    pub resident_bytes: u64,
    pub page_p95: Duration,
    pub event_p99: Duration,
}

/// Objects on a page of a list.
const PAGE: usize = 500;
/// Callers that fill the server, which is not measured.
const FILLERS: usize = 32;
/// Connections that share the writes of which a watch is timed.
const WRITERS: usize = 16;
/// Much longer than anything takes: it only ends a wait for something broken.
const LIMIT: Duration = Duration::from_secs(120);

/// Takes every measure of one server, from its first start on. `say` is told what is done next.
pub async fn take(
    side: Side,
    program: &std::path::Path,
    scale: &Scale,
    say: impl Fn(&str),
) -> Result<Figures> {
    say("starting");
    let mut subject = Subject::start(side, program).await?;
    say("storing layers");
    fill(&subject.target().await?, scale.layers).await?;
    say("restarting");
    let mut starts = Vec::new();
    for _ in 0..scale.starts {
        let (again, took) = subject.restart().await?;
        subject = again;
        starts.push(took);
    }
    let target = subject.target().await?;
    say("listing by pages");
    let page_p95 = list_pages(&target, scale).await?;
    say("opening watches");
    let resident_bytes = memory(&subject, &target, scale.watches).await?;
    say("timing a watch");
    let event_p99 = write_to_watch(&target, scale).await?;
    say("creating");
    let creates_per_second = creates(&target, scale).await?;
    Ok(Figures {
        creates_per_second,
        start: quantile(&mut starts, 0.5).context("the server was never started")?,
        resident_bytes,
        page_p95,
        event_p99,
    })
}

/// Stores layers with their status. O(layers).
pub async fn fill(target: &Target, layers: usize) -> Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut fillers = JoinSet::new();
    for _ in 0..FILLERS.min(layers) {
        let (target, next) = (target.clone(), Arc::clone(&next));
        fillers.spawn(async move {
            let mut connection = target.connect().await?;
            let path = objects::layers();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= layers {
                    return anyhow::Ok(());
                }
                connection.must(Method::POST, &path, Body::Json(objects::layer(index))).await?;
                let status = format!("{path}/{}/status", objects::layer_name(index));
                let patch = Body::MergePatch(objects::layer_status(index));
                connection.must(Method::PATCH, &status, patch).await?;
            }
        });
    }
    finish(fillers).await
}

/// Lists everything again and again, and gives the time of a page that 95 of 100 stay below. O(lists × layers).
async fn list_pages(target: &Target, scale: &Scale) -> Result<Duration> {
    let mut connection = target.connect().await?;
    let mut pages = Vec::new();
    for _ in 0..scale.lists {
        let mut token = String::new();
        let mut listed = 0;
        loop {
            let path = format!("{}?limit={PAGE}&continue={token}", objects::layers());
            let start = Instant::now();
            let page = connection.must(Method::GET, &path, Body::None).await?;
            pages.push(start.elapsed());
            let page = std::str::from_utf8(&page).context("a page is not text")?;
            listed += page.matches("\"state\":\"Idle\"").count();
            match continue_token(page) {
                Some(next) => token = next.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D"),
                None => break,
            }
        }
        ensure!(listed == scale.layers, "{listed} of {} layers were listed", scale.layers);
    }
    quantile(&mut pages, 0.95).context("no page was listed")
}

fn continue_token(page: &str) -> Option<&str> {
    let (_, rest) = page.split_once("\"continue\":\"")?;
    let (token, _) = rest.split_once('"')?;
    Some(token).filter(|token| !token.is_empty())
}

/// Opens watches that are told of every layer, waits until each has been, and reads the memory while they are open.
async fn memory(subject: &Subject, target: &Target, watches: usize) -> Result<u64> {
    let path = format!(
        "{}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
        objects::layers()
    );
    let mut open = Vec::new();
    for _ in 0..watches {
        let mut connection = target.connect().await?;
        let mut lines = connection.stream(&path).await?;
        let mut told = false;
        let synced = async {
            while !told {
                let goes_on = lines.next(|line| told |= contains(line, b"k8s.io/initial-events-end")).await?;
                ensure!(goes_on, "a watch ended before it had told of every layer");
            }
            Ok(())
        };
        timeout(LIMIT, synced).await.context("a watch told too little")??;
        open.push((connection, lines));
    }
    subject.resident_bytes()
}

/// Writes at an even pace and gives the time from a write's start to its event that 99 of 100 stay below.
async fn write_to_watch(target: &Target, scale: &Scale) -> Result<Duration> {
    const NAME: &[u8] = b"\"name\":\"watched-";
    let writes = scale.watched_writes;
    let mut connection = target.connect().await?;
    let mut lines = connection.stream(&format!("{}?watch=true", objects::config_maps())).await?;

    let mut connections = Vec::new();
    for _ in 0..WRITERS {
        connections.push(target.connect().await?);
    }
    let begin = Instant::now();
    let gap = Duration::from_secs(1) / scale.writes_per_second;
    let mut writers = JoinSet::new();
    for (writer, mut connection) in connections.into_iter().enumerate() {
        writers.spawn(async move {
            let mut starts = Vec::new();
            for index in (writer..writes).step_by(WRITERS) {
                let due = begin + gap * u32::try_from(index).unwrap_or(u32::MAX);
                // A writer that is held up counts from when it should have written: the wait is the server's.
                let start = if Instant::now() < due {
                    sleep_until(due).await;
                    Instant::now()
                } else {
                    due
                };
                let body = Body::Json(objects::config_map(&format!("watched-{index}")));
                connection.must(Method::POST, &objects::config_maps(), body).await?;
                starts.push((index, start));
            }
            anyhow::Ok(starts)
        });
    }

    let mut seen: Vec<Option<Instant>> = vec![None; writes];
    let mut missing = writes;
    let watching = async {
        while missing > 0 {
            let goes_on = lines.next(|line| {
                let now = Instant::now();
                let index =
                    after(line, NAME).map(|rest| rest.split(|byte| *byte == b'"').next().unwrap_or(rest));
                let index = index.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<usize>().ok());
                if let Some(slot @ None) = index.and_then(|index| seen.get_mut(index)) {
                    *slot = Some(now);
                    missing -= 1;
                }
            });
            ensure!(goes_on.await?, "the watch ended before it had told of every write");
        }
        Ok(())
    };
    timeout(LIMIT, watching).await.context("the watch told of too few writes")??;

    let mut delays = Vec::with_capacity(writes);
    while let Some(starts) = writers.join_next().await {
        for (index, start) in starts.context("a writer failed")?? {
            let told = seen.get(index).copied().flatten().context("a write was not told")?;
            delays.push(told.saturating_duration_since(start));
        }
    }
    quantile(&mut delays, 0.99).context("nothing was written")
}

/// Durable creates a second by many clients, each with a connection of its own that waits for every answer.
async fn creates(target: &Target, scale: &Scale) -> Result<f64> {
    let mut connections = Vec::new();
    for _ in 0..scale.clients {
        connections.push(target.connect().await?);
    }
    let begin = Instant::now();
    let end = begin + scale.creating;
    let mut clients = JoinSet::new();
    for (client, mut connection) in connections.into_iter().enumerate() {
        clients.spawn(async move {
            let path = objects::config_maps();
            let mut created = 0_usize;
            while Instant::now() < end {
                let body = Body::Json(objects::config_map(&format!("created-{client}-{created}")));
                connection.must(Method::POST, &path, body).await?;
                created += 1;
            }
            anyhow::Ok(created)
        });
    }
    let mut created = 0;
    while let Some(done) = clients.join_next().await {
        created += done.context("a client failed")??;
    }
    // Until the last answer: creates that were under way at the end count in both.
    #[expect(clippy::cast_precision_loss, reason = "no machine creates 2^52 objects in seconds")]
    Ok(created as f64 / begin.elapsed().as_secs_f64())
}

pub async fn finish(mut tasks: JoinSet<Result<()>>) -> Result<()> {
    while let Some(done) = tasks.join_next().await {
        done.context("a caller failed")??;
    }
    Ok(())
}

/// The value that `share` of all stay at or below.
pub fn quantile(values: &mut [Duration], share: f64) -> Option<Duration> {
    values.sort_unstable();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a share of a length is one"
    )]
    let rank = (values.len() as f64 * share).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied()
}

fn contains(line: &[u8], part: &[u8]) -> bool {
    after(line, part).is_some()
}

/// What follows the first `part` of a line.
fn after<'a>(line: &'a [u8], part: &[u8]) -> Option<&'a [u8]> {
    let at = line.windows(part.len()).position(|window| window == part)?;
    line.get(at + part.len()..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let mut values: Vec<_> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(quantile(&mut values, 0.5), Some(Duration::from_millis(50)));
        assert_eq!(quantile(&mut values, 0.99), Some(Duration::from_millis(99)));
        assert_eq!(quantile(&mut values[..1], 0.99), Some(Duration::from_millis(1)));
        assert_eq!(quantile(&mut [], 0.5), None);
    }

    #[test]
    fn a_page_tells_where_the_next_begins() {
        assert_eq!(continue_token(r#"{"metadata":{"continue":"abc","resourceVersion":"1"}}"#), Some("abc"));
        assert_eq!(continue_token(r#"{"metadata":{"continue":"","resourceVersion":"1"}}"#), None);
        assert_eq!(continue_token(r#"{"metadata":{"resourceVersion":"1"}}"#), None);
    }
}
