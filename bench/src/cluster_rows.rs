//! The rows of the controllers on a real kube-apiserver: a fleet of many layers planned and then at rest, and one layer beside the tool.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::client::{Body, Connection, Lines};
use crate::engine_rows::{median, seconds};
use crate::fleet::{Asked, Fleet, RUNNERS, make_namespace};
use crate::product::{Code, GROUP, LIMIT, follow, json_body, layer_path, text};
use crate::report::{Outcome, Row};

/// How much is done.
#[derive(Debug, Clone)]
pub struct Scale {
    pub layers: usize,
    /// Namespaces that share what is not in the large one.
    pub small: usize,
    /// How long the fleet rests.
    pub rest: Duration,
    /// Plans of one layer, of which the middle one counts.
    pub plans: usize,
}

impl Scale {
    pub fn whole() -> Self {
        Self { layers: 2_000, small: 10, rest: Duration::from_secs(600), plans: 7 }
    }

    /// A look at the whole in a fraction of the time; its figures are rough.
    pub fn quick() -> Self {
        Self { layers: 200, small: 5, rest: Duration::from_secs(60), plans: 3 }
    }

    /// 19 of 20 layers.
    fn large(&self) -> usize {
        self.layers - self.layers / 20
    }

    /// Where each layer is: the large namespace first, the others in turn.
    fn namespace_of(&self, layer: usize) -> String {
        match layer.checked_sub(self.large()) {
            None => LARGE.to_owned(),
            Some(beyond) => format!("small-{}", beyond % self.small),
        }
    }
}

const LARGE: &str = "large";
const ALONE: &str = "alone";
/// Root modules of the fleet's repository: layers beyond share them, each with a workspace of its own. Every run unpacks all of them.
const MODULES: usize = 100;
/// Callers that make layers.
const MAKERS: usize = 8;
/// Much longer than the whole takes, so that no layer is looked at for drift.
const DRIFT: &str = "24h";

/// Measures the controllers on a cluster of their own. `say` is told what is done next.
pub async fn take(
    program: &Path,
    images: Option<&Path>,
    scale: &Scale,
    say: impl Fn(&str),
) -> Result<Vec<Row>> {
    let tool = testkit::tools::tool("terraform").or_else(|_| testkit::tools::tool("tofu"))?;
    say("starting");
    let (small, code) = (Code::new(2)?, Code::new(scale.layers.min(MODULES))?);
    let mut fleet = Fleet::start(program, &tool).await?;
    let mut rows = Vec::new();
    say("one layer: plans beside the tool");
    let mut connection = fleet.connect().await?;
    open(&mut connection, ALONE, &small).await?;
    rows.push(one_plan(&fleet, &small, &tool, scale).await?);
    say("one layer: a plan and an apply");
    rows.push(writes(&fleet).await?);
    say("many layers");
    rows.extend(many(&mut fleet, &code, scale).await?);
    say("many layers at rest");
    rows.extend(at_rest(&mut fleet, scale).await?);
    rows.extend(images.map(image_size).transpose()?);
    Ok(rows)
}

/// A namespace with the repository.
async fn open(connection: &mut Connection, namespace: &str, code: &Code) -> Result<()> {
    make_namespace(connection, namespace).await?;
    let repository = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRepository", "metadata": { "name": "code" },
        "spec": {
            "repository": { "url": format!("file://{}", code.path().display()) }, "pollInterval": "1h",
        },
    });
    connection
        .must(Method::POST, &place(namespace, "terraformrepositories"), json_body(&repository))
        .await
        .map(drop)
}

fn place(namespace: &str, kind: &str) -> String {
    format!("{GROUP}/namespaces/{namespace}/{kind}")
}

fn manifest(name: &str, layer: usize, more: Value) -> Value {
    let mut spec = json!({
        "repository": { "name": "code" }, "branch": "main", "path": layer_path(layer % MODULES),
        "drift": { "interval": DRIFT },
    });
    if let Some(spec) = spec.as_object_mut() {
        if layer >= MODULES {
            spec.insert("workspace".to_owned(), json!(format!("layer-{layer}")));
        }
        if let Some(more) = more.as_object() {
            spec.extend(more.clone());
        }
    }
    json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": name }, "spec": spec,
    })
}

/// Follows runs, or pods, and says when something was first so.
struct Sights {
    lines: Lines,
    seen: BTreeMap<String, Instant>,
    _connection: Connection,
}

impl Sights {
    async fn follow(fleet: &Fleet, path: &str) -> Result<Self> {
        let mut connection = fleet.connect().await?;
        let lines = follow(&mut connection, path).await?;
        Ok(Self { lines, seen: BTreeMap::new(), _connection: connection })
    }

    /// Waits until that many different objects have been what `is` names; it gives the key that an object is known by.
    async fn wait(&mut self, wanted: usize, is: impl Fn(&Value) -> Option<String>) -> Result<()> {
        let Self { lines, seen, .. } = self;
        let waiting = async {
            while seen.len() < wanted {
                let mut failed = None;
                let goes_on = lines.next(|line| {
                    let event: Value = serde_json::from_slice(line).unwrap_or_default();
                    if text(&event, "/object/status/state") == "Failed" {
                        failed = Some(text(&event, "/object/status/result/message").to_owned());
                    }
                    if let Some(key) = is(&event) {
                        seen.entry(key).or_insert_with(Instant::now);
                    }
                });
                ensure!(goes_on.await?, "a watch ended");
                if let Some(failed) = failed {
                    anyhow::bail!("a run failed: {failed}");
                }
            }
            Ok(())
        };
        tokio::time::timeout(LIMIT * 4, waiting).await.context("what was waited for did not come")?
    }
}

/// The run that an event tells has succeeded.
fn succeeded(event: &Value) -> Option<String> {
    let namespace = text(event, "/object/metadata/namespace");
    let name = text(event, "/object/metadata/name");
    (text(event, "/object/status/state") == "Succeeded").then(|| format!("{namespace}/{name}"))
}

/// The run whose pod an event tells is running.
fn running(event: &Value) -> Option<String> {
    let owner = text(event, "/object/metadata/ownerReferences/0/name");
    let namespace = text(event, "/object/metadata/namespace");
    (text(event, "/object/status/phase") == "Running").then(|| format!("{namespace}/{owner}"))
}

/// The bare tool: `$1` is the root module, `$2` the tool.
const SCRIPT: &str = r#"
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$1" "$work/code"
cd "$work/code"
"$2" init -input=false -no-color >/dev/null
"$2" plan -input=false -no-color -out=plan >/dev/null
"$2" show -json plan >plan.json
"#;

async fn one_plan(fleet: &Fleet, code: &Code, tool: &Path, scale: &Scale) -> Result<Row> {
    let mut connection = fleet.connect().await?;
    let layers = place(ALONE, "terraformlayers");
    let mut pods = Sights::follow(fleet, &format!("/api/v1/namespaces/{ALONE}/pods")).await?;
    let mut runs = Sights::follow(fleet, &place(ALONE, "terraformruns")).await?;
    connection.must(Method::POST, &layers, json_body(&manifest("planned", 0, json!({})))).await?;
    // The first one also finds the repository, and is not counted.
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for plan in 0..=scale.plans {
        if plan > 0 {
            let wish = json!({"metadata": {"annotations": {api::annotation::SYNC: format!("bench {plan}")}}});
            let path = format!("{layers}/planned");
            connection.must(Method::PATCH, &path, Body::MergePatch(wish.to_string().into())).await?;
        }
        // Both are read as they come: whichever is waited for second has been told of in between.
        let (began, ended) = tokio::join!(pods.wait(plan + 1, running), runs.wait(plan + 1, succeeded));
        began.and(ended)?;
        if plan == 0 {
            continue;
        }
        let start = Instant::now();
        let mut script = Command::new("sh");
        script.args(["-c", SCRIPT, "sh"]).arg(code.path().join(layer_path(0))).arg(tool);
        let status =
            tokio::task::spawn_blocking(move || script.status()).await.context("waiting for the tool")?;
        ensure!(status.context("starting the tool")?.success(), "the bare tool failed");
        theirs.push(start.elapsed());
    }
    for (run, ended) in &runs.seen {
        let began = pods.seen.get(run).with_context(|| format!("no pod of {run} was seen at work"))?;
        ours.push((*ended, ended.saturating_duration_since(*began)));
    }
    ours.sort_unstable();
    let (ours, theirs) = (median(ours.into_iter().skip(1).map(|(_, took)| took).collect())?, median(theirs)?);
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    Ok(Row {
        measure: "one plan, from its pod at work to its result on record".into(),
        ours: seconds(ours),
        theirs: format!(
            "{} ({:+.0} ms)",
            seconds(theirs),
            (ours.as_secs_f64() - theirs.as_secs_f64()) * 1000.0
        ),
        ratio: Some(ratio),
        must_reach: "≤ 1.25".into(),
        outcome: Outcome::from(ratio <= 1.25),
    })
}

async fn writes(fleet: &Fleet) -> Result<Row> {
    let mut connection = fleet.connect().await?;
    let mut runs = Sights::follow(fleet, &place(ALONE, "terraformruns")).await?;
    wait_until_quiet(fleet).await?;
    let from = fleet.mark()?;
    let applied = manifest("applied", 1, json!({ "remediationStrategy": { "autoApply": true } }));
    connection.must(Method::POST, &place(ALONE, "terraformlayers"), json_body(&applied)).await?;
    runs.wait(2, succeeded).await?;
    wait_until_quiet(fleet).await?;
    let asked = fleet.requests(from, fleet.mark()?)?;
    let (events, written): (Vec<&Asked>, Vec<&Asked>) = asked
        .iter()
        .filter(|asked| asked.is_write() && !asked.is_of_election())
        .partition(|asked| asked.resource == "events");
    let total = written.len();
    Ok(Row {
        measure: format!("controllers' writes for one plan and apply, by the audit log ({})", told(&written)),
        ours: format!("{total}, and {} Events", events.len()),
        theirs: String::new(),
        ratio: None,
        must_reach: "≤ 10".into(),
        outcome: Outcome::from(total <= 10),
    })
}

/// Such as `2 create pods, 6 update terraformruns/status`.
fn told(asked: &[&Asked]) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for one in asked {
        *counts.entry(format!("{} {}", one.verb, one.resource)).or_default() += 1;
    }
    counts.iter().map(|(what, count)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
}

/// Waits until the controllers have written nothing for a while but that they are there.
async fn wait_until_quiet(fleet: &Fleet) -> Result<()> {
    const SPELL: Duration = Duration::from_secs(3);
    let limit = Instant::now() + LIMIT;
    loop {
        let from = fleet.mark()?;
        tokio::time::sleep(SPELL).await;
        let asked = fleet.requests(from, fleet.mark()?)?;
        if !asked.iter().any(|asked| asked.is_write() && !asked.is_of_election()) {
            return Ok(());
        }
        ensure!(Instant::now() < limit, "the controllers did not come to rest within {} s", LIMIT.as_secs());
    }
}

async fn many(fleet: &mut Fleet, code: &Code, scale: &Scale) -> Result<Vec<Row>> {
    let mut connection = fleet.connect().await?;
    let namespaces: Vec<String> =
        std::iter::once(LARGE.to_owned()).chain((0..scale.small).map(|at| format!("small-{at}"))).collect();
    for namespace in &namespaces {
        open(&mut connection, namespace, code).await?;
    }
    wait_until_quiet(fleet).await?;
    let mut runs = Sights::follow(fleet, &format!("{GROUP}/terraformruns")).await?;
    let (from, cpu) = (fleet.mark()?, fleet.cpu_time()?);
    let (told, sizes) = watched(fleet).await?;
    let begin = Instant::now();
    // Those of the large namespace are all there before the first of another.
    make_layers(fleet, scale, 0..scale.large()).await?;
    make_layers(fleet, scale, scale.large()..scale.layers).await?;
    runs.wait(scale.layers, succeeded).await?;
    wait_until_quiet(fleet).await?;
    fleet.ensure_running()?;
    let cpu = fleet.cpu_time()?.saturating_sub(cpu);
    let asked = fleet.requests(from, fleet.mark()?)?;
    let (told_after, sizes_after) = watched(fleet).await?;

    let mut last: BTreeMap<&str, Instant> = BTreeMap::new();
    for (run, at) in &runs.seen {
        let namespace = run.split_once('/').map_or("", |(namespace, _)| namespace);
        let known = last.entry(namespace).or_insert(*at);
        *known = (*known).max(*at);
    }
    let took = |namespace: &str| {
        let at = last.get(namespace).with_context(|| format!("nothing was planned in {namespace}"))?;
        anyhow::Ok(at.saturating_duration_since(begin))
    };
    let large = took(LARGE)?;
    let small: Vec<Duration> =
        namespaces.iter().skip(1).map(|namespace| took(namespace)).collect::<Result<_>>()?;
    let slowest = small.iter().max().copied().context("there is no small namespace")?;
    let share = slowest.as_secs_f64() / large.as_secs_f64();
    let writes = asked.iter().filter(|asked| asked.is_write() && !asked.is_of_election());
    let events = writes.clone().filter(|asked| asked.resource == "events").count();
    #[expect(clippy::cast_precision_loss, reason = "no bench has 2^52 of anything")]
    let per_run = |count: usize| count as f64 / scale.layers as f64;
    let note = |measure: String, ours: String| Row {
        measure,
        ours,
        theirs: String::new(),
        ratio: None,
        must_reach: "recorded".into(),
        outcome: Outcome::Reached,
    };
    Ok(vec![
        Row {
            measure: format!("{} layers planned by a tool of 50 ms, {RUNNERS} at a time", scale.layers),
            ours: format!("{} in {}", runs.seen.len(), seconds(large.max(slowest))),
            theirs: String::new(),
            ratio: None,
            must_reach: "all".into(),
            outcome: Outcome::from(runs.seen.len() >= scale.layers),
        },
        Row {
            measure: format!(
                "the last of {} namespaces with {} layers each is done, beside one with {}",
                scale.small,
                (scale.layers - scale.large()) / scale.small,
                scale.large()
            ),
            ours: seconds(slowest),
            theirs: format!("{} (the large one)", seconds(large)),
            ratio: Some(share),
            must_reach: "≤ 0.50".into(),
            outcome: Outcome::from(share <= 0.5),
        },
        note(
            "controllers' requests to the API for a plan, watches apart".into(),
            format!(
                "{:.1}, of which {:.1} writes and {:.1} Events",
                per_run(asked.iter().filter(|asked| asked.verb != "watch").count()),
                per_run(writes.count() - events),
                per_run(events)
            ),
        ),
        note(
            "what the API told all watchers of Terrane's kinds meanwhile, for a plan".into(),
            format!(
                "{:.1} changes, {:.0} kB",
                (told_after - told) / per_run_base(scale),
                (sizes_after - sizes) / per_run_base(scale) / 1000.0
            ),
        ),
        note(
            "controller's processor time for a plan".into(),
            format!("{:.0} ms", cpu.as_secs_f64() * 1000.0 / per_run_base(scale)),
        ),
    ])
}

#[expect(clippy::cast_precision_loss, reason = "no bench has 2^52 layers")]
fn per_run_base(scale: &Scale) -> f64 {
    scale.layers as f64
}

/// How many changes of Terrane's kinds watchers were told, and their bytes.
async fn watched(fleet: &Fleet) -> Result<(f64, f64)> {
    Ok((
        fleet.metric("apiserver_watch_events_total").await?,
        fleet.metric("apiserver_watch_events_sizes_sum").await?,
    ))
}

async fn make_layers(fleet: &Fleet, scale: &Scale, range: std::ops::Range<usize>) -> Result<()> {
    let next = Arc::new(AtomicUsize::new(range.start));
    let mut makers = JoinSet::new();
    for _ in 0..MAKERS {
        let (target, next, scale, end) =
            (fleet.target().clone(), Arc::clone(&next), scale.clone(), range.end);
        makers.spawn(async move {
            let mut connection = target.connect().await?;
            loop {
                let layer = next.fetch_add(1, Ordering::Relaxed);
                if layer >= end {
                    return anyhow::Ok(());
                }
                let path = place(&scale.namespace_of(layer), "terraformlayers");
                let body = manifest(&layer_path(layer), layer, json!({ "opentofu": { "enabled": true } }));
                connection.must(Method::POST, &path, json_body(&body)).await?;
            }
        });
    }
    while let Some(done) = makers.join_next().await {
        done.context("a caller failed")??;
    }
    Ok(())
}

async fn at_rest(fleet: &mut Fleet, scale: &Scale) -> Result<Vec<Row>> {
    wait_until_quiet(fleet).await?;
    let (from, cpu) = (fleet.mark()?, fleet.cpu_time()?);
    tokio::time::sleep(scale.rest).await;
    fleet.ensure_running()?;
    let asked = fleet.requests(from, fleet.mark()?)?;
    let cpu = fleet.cpu_time()?.saturating_sub(cpu);
    let written: Vec<&Asked> =
        asked.iter().filter(|asked| asked.is_write() && asked.resource != "leases").collect();
    let (resident, most) = fleet.memory()?;
    let mib = |bytes: u64| bytes / (1024 * 1024);
    Ok(vec![
        Row {
            measure: format!(
                "{} layers at rest for {} s: writes except leases",
                scale.layers,
                scale.rest.as_secs()
            ),
            ours: match written.as_slice() {
                [] => format!("none ({:.1} s of a processor)", cpu.as_secs_f64()),
                written => told(written),
            },
            theirs: String::new(),
            ratio: None,
            must_reach: "none".into(),
            outcome: Outcome::from(written.is_empty()),
        },
        Row {
            measure: format!("controller's memory with {} layers", scale.layers),
            ours: format!("{} MiB (at most {} MiB)", mib(resident), mib(most)),
            theirs: String::new(),
            ratio: None,
            must_reach: "≤ 120 MiB".into(),
            outcome: Outcome::from(mib(resident) <= 120),
        },
    ])
}

/// Its layers are compressed in the archive, and the rest is a few kilobytes.
fn image_size(images: &Path) -> Result<Row> {
    let archive = images.join(controllers_archive(std::env::consts::ARCH));
    let size = fs::metadata(&archive).with_context(|| format!("reading {}", archive.display()))?.len();
    let megabytes = size / 1_000_000;
    Ok(Row {
        measure: "controller's image, compressed".into(),
        ours: format!("{megabytes} MB"),
        theirs: String::new(),
        ratio: None,
        must_reach: "≤ 60 MB".into(),
        outcome: Outcome::from(megabytes <= 60),
    })
}

/// As `cargo xtask image` names it; those of the runner and the builder lie beside it, and may be of other versions too.
fn controllers_archive(machine: &str) -> String {
    let machine = match machine {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("terrane-{}-{machine}.tar", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controllers_image_is_found_among_those_of_others() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let own = controllers_archive(std::env::consts::ARCH);
        for (part, size) in [("terrane-builder-", 90), ("terrane-", 40), ("terrane-runner-", 70)] {
            let archive = directory.path().join(own.replace("terrane-", part));
            fs::File::create(archive)?.set_len(size * 1_000_000)?;
        }
        assert_eq!(image_size(directory.path())?.ours, "40 MB");
        Ok(())
    }

    #[test]
    fn nineteen_of_twenty_layers_share_a_namespace_and_the_others_take_turns() {
        let scale = Scale::whole();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for layer in 0..scale.layers {
            *counts.entry(scale.namespace_of(layer)).or_default() += 1;
        }
        assert_eq!(counts.remove(LARGE), Some(1_900));
        assert_eq!(counts.len(), 10);
        assert!(counts.values().all(|count| *count == 10), "{counts:?}");
    }

    #[test]
    fn requests_are_told_by_what_they_do() {
        let asked = |verb: &str, resource: &str| Asked {
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            name: String::new(),
        };
        let all = [
            asked("update", "terraformruns/status"),
            asked("create", "pods"),
            asked("update", "terraformruns/status"),
        ];
        assert_eq!(told(&all.iter().collect::<Vec<_>>()), "1 create pods, 2 update terraformruns/status");
    }
}
