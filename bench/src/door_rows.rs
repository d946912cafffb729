//! The rows of the front doors: lists of many layers, stacks that are asked for, webhooks that start the tool, and a log that is
//! followed. All of `terrane up` as a person has it, through its HTTP service.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use http::Method;
use serde_json::{Value, json};
use testkit::deliveries::Delivery;
use tokio::task::JoinSet;

use crate::client::{Body, Connection, Target};
use crate::measures::{self, finish, quantile};
use crate::objects;
use crate::product::{
    Code, Finishing, LAYERS, LIMIT, Product, RUNS, Remediation, follow, json_body, layer, layer_path, text,
};
use crate::report::{Outcome, Row};

/// How much is done.
#[derive(Debug, Clone)]
pub struct Scale {
    /// Layers that are listed from.
    pub layers: usize,
    /// Pages that are asked for.
    pub pages: usize,
    /// Callers that ask for stacks, and for how long.
    pub clients: usize,
    pub asking: Duration,
    /// Repositories that are pushed to at once.
    pub pushed: usize,
    /// Lines of the log that is followed.
    pub lines: usize,
}

impl Scale {
    pub fn whole() -> Self {
        Self {
            layers: 10_000,
            pages: 200,
            clients: 64,
            asking: Duration::from_secs(5),
            pushed: 100,
            lines: 200,
        }
    }

    /// A look at the whole in a fraction of the time; its figures are rough.
    pub fn quick() -> Self {
        Self {
            layers: 1_000,
            pages: 50,
            asking: Duration::from_secs(2),
            pushed: 10,
            lines: 50,
            ..Self::whole()
        }
    }
}

/// Rows that are measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Pages of a list of layers.
    Lists,
    /// Stacks that are accepted.
    Stacks,
    /// Webhooks that start the tool.
    Webhooks,
    /// A log that is followed.
    Log,
}

/// Measures these parts, or all of them, each with a `terrane up` of its own. `say` is told what is done next.
pub async fn take(program: &Path, scale: &Scale, only: &[Part], say: impl Fn(&str)) -> Result<Vec<Row>> {
    let wanted = |part: Part| only.is_empty() || only.contains(&part);
    let mut rows = Vec::new();
    if wanted(Part::Lists) {
        say("pages of layers");
        rows.push(lists(program, scale).await?);
    }
    if wanted(Part::Stacks) {
        say("stacks");
        rows.push(stacks(program, scale).await?);
    }
    if wanted(Part::Webhooks) {
        say("webhooks");
        rows.extend(webhooks(program, scale).await?);
    }
    if wanted(Part::Log) {
        say("a live log");
        rows.push(live_log(program, scale).await?);
    }
    Ok(rows)
}

/// The HTTP service of the product, as its administrator.
async fn service(product: &Product) -> Result<Target> {
    const PLACE: &str = "/api/v1/namespaces/terrane-system/configmaps/terrane-service";
    let mut connection = product.connect().await?;
    let limit = Instant::now() + LIMIT;
    loop {
        let (status, answer) = connection.ask(Method::GET, PLACE, Body::None).await?;
        if status.is_success() {
            let place: Value = serde_json::from_slice(&answer).context("reading where the service is")?;
            return product.target().plain(text(&place, "/data/url").trim_end_matches('/'));
        }
        ensure!(Instant::now() < limit, "the HTTP service did not start");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn lists(program: &Path, scale: &Scale) -> Result<Row> {
    const PAGE: usize = 100;
    let product = Product::start(program).await?;
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": objects::NAMESPACE}});
    product.connect().await?.must(Method::POST, "/api/v1/namespaces", json_body(&namespace)).await?;
    measures::fill(product.target(), scale.layers).await?;
    product.wait_until_idle().await?;
    let mut connection = service(&product).await?.connect().await?;
    // Most layers match, and the order is another than they are kept in.
    let questions = ["suspended=true&text=production&sort=-lastRun", "label=team%21%3Dteam-7&sort=createdAt"];
    let mut times = Vec::new();
    for (number, question) in (0..scale.pages).zip(questions.into_iter().cycle()) {
        let path = format!("/api/v1/layers?limit={PAGE}&{question}");
        let start = Instant::now();
        let page = connection.must(Method::GET, &path, Body::None).await?;
        times.push(start.elapsed());
        let page: Value = serde_json::from_slice(&page).context("reading a page")?;
        let shown = page.pointer("/items").and_then(Value::as_array).map_or(0, Vec::len);
        ensure!(shown == PAGE, "page {number} shows {shown} layers");
    }
    let p95 = quantile(&mut times, 0.95).context("nothing was asked")?;
    Ok(Row {
        measure: format!("a page of {PAGE} of {} layers, filtered and sorted, p95", scale.layers),
        ours: milliseconds(p95),
        theirs: String::new(),
        ratio: None,
        must_reach: "≤ 20 ms".into(),
        outcome: Outcome::from(p95 <= Duration::from_millis(20)),
    })
}

async fn stacks(program: &Path, scale: &Scale) -> Result<Row> {
    let product = Product::start(program).await?;
    let code = Code::new(1)?;
    let mut connection = product.connect().await?;
    code.declare(&mut connection, "code", "1h").await?;
    let mut template = layer("machine", "code", &layer_path(0), Remediation::Dry);
    if let Some(spec) = template.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("template".to_owned(), json!({}));
    }
    connection.must(Method::POST, LAYERS, json_body(&template)).await?;
    let service = service(&product).await?;
    let stack = || Body::Json(json!({"template": "machine"}).to_string().into());
    // Which variables its code has is known a moment after it was made.
    let mut connection = service.connect().await?;
    let limit = Instant::now() + LIMIT;
    while !connection.ask(Method::POST, "/tfstacks", stack()).await?.0.is_success() {
        ensure!(Instant::now() < limit, "no stack was accepted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let accepted = Arc::new(AtomicUsize::new(0));
    let times = Arc::new(Mutex::new(Vec::new()));
    let mut callers = JoinSet::new();
    let begin = Instant::now();
    for _ in 0..scale.clients {
        let (service, accepted, times) = (service.clone(), Arc::clone(&accepted), Arc::clone(&times));
        let end = begin + scale.asking;
        callers.spawn(async move {
            let mut connection = service.connect().await?;
            let mut own = Vec::new();
            while Instant::now() < end {
                let start = Instant::now();
                connection.must(Method::POST, "/tfstacks", stack()).await?;
                own.push(start.elapsed());
                accepted.fetch_add(1, Ordering::Relaxed);
            }
            times.lock().unwrap_or_else(PoisonError::into_inner).extend(own);
            Ok(())
        });
    }
    finish(callers).await?;
    #[expect(clippy::cast_precision_loss, reason = "no machine makes 2^52 stacks in seconds")]
    let rate = accepted.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
    let p99 = quantile(&mut times.lock().unwrap_or_else(PoisonError::into_inner), 0.99);
    let p99 = p99.context("no stack was accepted")?;
    Ok(Row {
        measure: format!("POST /tfstacks accepted, {} clients, while stacks are applied", scale.clients),
        ours: format!("{rate:.0}/s, p99 {}", milliseconds(p99)),
        theirs: String::new(),
        ratio: None,
        must_reach: "≥ 1,000/s, p99 ≤ 100 ms".into(),
        outcome: Outcome::from(rate >= 1_000.0 && p99 <= Duration::from_millis(100)),
    })
}

/// Says in the log when the tool is about to start.
const CLOCK: &str = "echo \"clock $(date +%s%N)\"";

/// What a watch told about a run: when it was there, and when its pod was.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    run: Option<SystemTime>,
    pod: Option<SystemTime>,
}

/// What `engine::webhook` leaves between two fetches of a repository.
const SPACING: Duration = Duration::from_secs(10);
/// Deliveries that wait for nothing: the machine comes to rest before each.
const IN_TURN: usize = 20;
const SECRET: &str = "a secret that the host and Terrane know";

async fn webhooks(program: &Path, scale: &Scale) -> Result<Vec<Row>> {
    let product = Product::start(program).await?;
    let service = service(&product).await?;
    let mut connection = product.connect().await?;
    let mut runs = Finishing::follow(product.connect().await?).await?;
    let name = |number: usize| format!("pushed-{number}");
    let mut codes = Vec::new();
    let mut secrets = BTreeMap::new();
    for number in 0..scale.pushed {
        let code = Code::new(1)?;
        code.declare(&mut connection, &name(number), "1h").await?;
        secrets.insert(name(number), SECRET);
        let mut manifest = layer(&name(number), &name(number), &layer_path(0), Remediation::Dry);
        if let Some(spec) = manifest.get_mut("spec").and_then(Value::as_object_mut) {
            spec.insert("hooks".to_owned(), json!({"beforeInit": [{"inline": CLOCK}]}));
        }
        connection.must(Method::POST, LAYERS, json_body(&manifest)).await?;
        codes.push(code);
    }
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "terrane-webhooks"}, "stringData": secrets});
    connection.must(Method::POST, "/api/v1/namespaces/default/secrets", json_body(&secret)).await?;
    runs.wait(scale.pushed).await?;
    product.wait_until_idle().await?;

    let deliveries = codes.iter().map(|code| push(code, 2)).collect::<Result<Vec<_>>>()?;
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let _watches = watch(&product, &seen).await?;
    let callers = try_join_all(deliveries.iter().map(|_| service.connect())).await?;
    let sent = SystemTime::now();
    try_join_all(callers.into_iter().zip(&deliveries).enumerate().map(|(number, (mut caller, delivery))| {
        let path = format!("/webhooks/gitea/default/{}", name(number));
        async move { caller.deliver(&path, &delivery.headers, delivery.body.clone()).await }
    }))
    .await?;
    runs.wait(2 * scale.pushed).await?;
    let mut known = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
    ensure!(known.len() == scale.pushed, "{} runs for {} deliveries", known.len(), scale.pushed);
    let mut connection = service.connect().await?;
    let (mut all, mut beyond) = (Vec::new(), Vec::new());
    for (run, seen) in &known {
        let started = clock_of(&mut connection, run).await?;
        let until_started = started.duration_since(sent).unwrap_or_default();
        let (made, pod) = (seen.run.context("a run was not seen")?, seen.pod.context("no pod was seen")?);
        all.push(until_started);
        beyond.push(until_started.saturating_sub(pod.duration_since(made).unwrap_or_default()));
    }
    let p95 = quantile(&mut beyond, 0.95).context("nothing was delivered")?;
    let whole = quantile(&mut all, 0.95).context("nothing was delivered")?;
    let at_once = Row {
        measure: format!(
            "webhook to tool started, {} repositories at once, without the queue, p95",
            scale.pushed
        ),
        ours: format!("{} ({} with it)", milliseconds(p95), milliseconds(whole)),
        theirs: String::new(),
        ratio: None,
        must_reach: "≤ 250 ms".into(),
        outcome: Outcome::from(p95 <= Duration::from_millis(250)),
    };

    // A repository is not fetched again for a webhook so soon after the last one.
    tokio::time::sleep(SPACING).await;
    let mut in_turn = Vec::new();
    for (number, code) in codes.iter().enumerate().take(IN_TURN) {
        product.wait_until_idle().await?;
        let delivery = push(code, 3)?;
        let mut caller = service.connect().await?;
        let path = format!("/webhooks/gitea/default/{}", name(number));
        let sent = SystemTime::now();
        caller.deliver(&path, &delivery.headers, delivery.body).await?;
        runs.wait(2 * scale.pushed + number + 1).await?;
        let now_known = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let run = now_known.keys().find(|run| !known.contains_key(*run)).context("no run was seen")?;
        in_turn.push(clock_of(&mut connection, run).await?.duration_since(sent).unwrap_or_default());
        known = now_known;
    }
    let count = in_turn.len();
    let p95 = quantile(&mut in_turn, 0.95).context("nothing was delivered")?;
    let in_turn = Row {
        measure: format!("webhook to tool started, {count} repositories in turn, a core free for each, p95"),
        ours: milliseconds(p95),
        theirs: String::new(),
        ratio: None,
        must_reach: "≤ 250 ms".into(),
        outcome: Outcome::from(p95 <= Duration::from_millis(250)),
    };
    Ok(vec![at_once, in_turn])
}

/// Commits a change, and gives what the host would say of it.
fn push(code: &Code, value: u32) -> Result<Delivery> {
    std::fs::write(
        code.path().join(layer_path(0)).join("main.tf"),
        format!("output \"number\" {{ value = {value} }}\n"),
    )
    .context("changing a root module")?;
    code.git(&["commit", "--quiet", "--all", "--message=Change"])?;
    let body = json!({
        "ref": "refs/heads/main", "before": "0".repeat(40), "after": code.git(&["rev-parse", "HEAD"])?,
        "repository": {"clone_url": format!("file://{}", code.path().display())},
    });
    let plain = Delivery::named("gitea-push").map_err(anyhow::Error::msg)?;
    let delivery = Delivery { body: body.to_string().into_bytes(), ..plain };
    delivery.proved(SECRET).context("a delivery cannot be signed")
}

/// Notes when runs and their pods are first told of, by the run's name.
async fn watch(product: &Product, seen: &Arc<Mutex<BTreeMap<String, Seen>>>) -> Result<JoinSet<Result<()>>> {
    let mut tasks = JoinSet::new();
    for path in [RUNS, "/api/v1/namespaces/default/pods"] {
        let mut connection = product.connect().await?;
        let mut lines = follow(&mut connection, path).await?;
        let seen = Arc::clone(seen);
        tasks.spawn(async move {
            let _connection = connection;
            let note = |line: &[u8]| {
                let event: Value = serde_json::from_slice(line).unwrap_or_default();
                if text(&event, "/type") != "ADDED" {
                    return;
                }
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                match text(&event, "/object/metadata/labels/terrane.dev~1run") {
                    "" => {
                        let name = text(&event, "/object/metadata/name").to_owned();
                        seen.entry(name).or_default().run = Some(SystemTime::now());
                    }
                    run => seen.entry(run.to_owned()).or_default().pod = Some(SystemTime::now()),
                }
            };
            while lines.next(note).await? {}
            Ok(())
        });
    }
    Ok(tasks)
}

/// When the tool of a run was about to start.
async fn clock_of(connection: &mut Connection, run: &str) -> Result<SystemTime> {
    let path = format!("/api/v1/namespaces/default/runs/{run}/log");
    let log = connection.must(Method::GET, &path, Body::None).await?;
    let log = String::from_utf8_lossy(&log).into_owned();
    moments(&log).next().with_context(|| format!("the log of {run} has no clock:\n{log}"))
}

/// What [`CLOCK`] has written.
fn moments(log: &str) -> impl Iterator<Item = SystemTime> {
    let digits = log.split("clock ").skip(1).filter_map(|rest| rest.split_whitespace().next());
    digits.filter_map(|digits| Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(digits.parse().ok()?)))
}

async fn live_log(program: &Path, scale: &Scale) -> Result<Row> {
    let product = Product::start(program).await?;
    let code = Code::new(1)?;
    let mut connection = product.connect().await?;
    code.declare(&mut connection, "code", "1h").await?;
    let mut manifest = layer("talking", "code", &layer_path(0), Remediation::Dry);
    let script = format!("for line in $(seq {}); do {CLOCK}; sleep 0.05; done", scale.lines);
    if let Some(spec) = manifest.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("hooks".to_owned(), json!({"beforeInit": [{"inline": script}]}));
    }
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let _watches = watch(&product, &seen).await?;
    connection.must(Method::POST, LAYERS, json_body(&manifest)).await?;
    let service = service(&product).await?;
    let limit = Instant::now() + LIMIT;
    let run = loop {
        let run = seen.lock().unwrap_or_else(PoisonError::into_inner).keys().next().cloned();
        if let Some(run) = run {
            break run;
        }
        ensure!(Instant::now() < limit, "there is no run");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let log = format!("/api/v1/namespaces/default/runs/{run}/log");
    // There is no log before the first attempt.
    let mut connection = loop {
        let mut connection = service.connect().await?;
        let (status, _) = connection.ask(Method::GET, &log, Body::None).await?;
        if status.is_success() {
            break service.connect().await?;
        }
        ensure!(Instant::now() < limit, "the log of {run} was answered with {status} for too long");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let mut lines = connection.stream(&format!("{log}/events?follow=true")).await?;
    let mut delays = Vec::new();
    let note = |line: &[u8]| {
        let now = SystemTime::now();
        let line = String::from_utf8_lossy(line).into_owned();
        delays.extend(moments(&line).map(|printed| now.duration_since(printed).unwrap_or_default()));
    };
    let following = async {
        let mut note = note;
        while lines.next(&mut note).await? {}
        anyhow::Ok(())
    };
    tokio::time::timeout(LIMIT, following).await.context("the log did not end")??;
    ensure!(delays.len() == scale.lines, "{} of {} lines came", delays.len(), scale.lines);
    let p95 = quantile(&mut delays, 0.95).context("no line came")?;
    Ok(Row {
        measure: "a line of a live log, printed to read by the client, p95".into(),
        ours: milliseconds(p95),
        theirs: String::new(),
        ratio: None,
        must_reach: "≤ 100 ms".into(),
        outcome: Outcome::from(p95 <= Duration::from_millis(100)),
    })
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_from_a_log() {
        let log = "Hook beforeInit:\nclock 1500000000\nother\ndata: clock 2500000000\n";
        let expected = [1_500, 2_500].map(|time| SystemTime::UNIX_EPOCH + Duration::from_millis(time));
        assert!(moments(log).eq(expected));
    }
}
