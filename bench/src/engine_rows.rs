//! The rows of the engine: what Terrane adds to the tool's own time, what it writes and fetches, and what idle layers cost.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::client::{Body, Target};
use crate::product::{
    Code, Finishing, GROUP, LAYERS, Product, RUNS, Remediation, follow, json_body, layer, layer_path, text,
};
use crate::report::{Outcome, Row};
use crate::{relevance_row, state_rows};

/// How much is done.
#[derive(Debug, Clone)]
pub struct Scale {
    /// Plans of one layer, of which the middle one counts.
    pub plans: usize,
    /// Layers planned at once.
    pub layers: usize,
    pub commits: usize,
    /// Layers that rest while the repository is polled.
    pub settled: usize,
    /// Layers whose memory is read.
    pub idle: usize,
    /// Layers that follow the branch of a commit.
    pub followers: usize,
    /// Changes of a state, of which the middle one counts.
    pub writes: usize,
}

impl Scale {
    pub fn whole() -> Self {
        Self {
            plans: 7,
            layers: 100,
            commits: 10_000,
            settled: 1_000,
            idle: 10_000,
            followers: 5_000,
            writes: 51,
        }
    }

    /// A look at the whole in a fraction of the time; its figures are rough.
    pub fn quick() -> Self {
        Self { plans: 3, layers: 10, commits: 2_000, settled: 100, idle: 500, followers: 500, writes: 11 }
    }
}

/// Rows that are measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// One plan, many layers, writes, bytes.
    Plans,
    /// A poll of layers that rest.
    Settled,
    /// Memory of layers that rest.
    Idle,
    /// Relevant layers of a commit.
    Relevance,
    /// The state backend.
    State,
}

/// Runs kept of every layer that rests.
const HISTORY: usize = 5;
/// Callers that fill the API.
const FILLERS: usize = 32;

/// What a person would write instead: `$1` is the repository, `$2` the root module, `$3` the tool.
const SCRIPT: &str = r#"
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet --depth 1 "file://$1" "$work/code"
cd "$work/code/$2"
"$3" init -input=false -no-color >/dev/null
"$3" plan -input=false -no-color -out=plan >/dev/null
"$3" show -json plan >plan.json
"#;

/// Measures these parts of the product, or all of it, and gives the rows. `say` is told what is done next.
pub async fn take(program: &Path, scale: &Scale, only: &[Part], say: impl Fn(&str)) -> Result<Vec<Row>> {
    let wanted = |part: Part| only.is_empty() || only.contains(&part);
    let tool = testkit::tools::tool("terraform").or_else(|_| testkit::tools::tool("tofu"))?;
    let mut rows = Vec::new();
    if wanted(Part::Plans) {
        say("starting");
        let product = Product::start(program).await?;
        let code = Code::new(scale.layers + 2)?;
        code.declare(&mut product.connect().await?, "code", "2s").await?;
        say("one plan, against a script");
        rows.push(one_plan(&product, &code, &tool, scale).await?);
        say("one plan with a provider, against a script");
        rows.push(one_plan_with_provider(&product, &tool, scale).await?);
        say("many layers, against a script");
        rows.push(many_layers(&product, &code, &tool, scale).await?);
        say("writes of a plan and an apply");
        rows.push(writes(&product, scale).await?);
        say("bytes of a run");
        rows.push(bytes(&product, scale).await?);
    }
    if wanted(Part::Settled) {
        say("settled layers");
        rows.push(settled(program, scale).await?);
    }
    if wanted(Part::Idle) {
        say("memory of idle layers");
        rows.push(idle(program, scale).await?);
    }
    if wanted(Part::Relevance) {
        say("relevant layers of a commit");
        rows.push(relevance_row::take(scale.followers, scale.plans).await?);
    }
    if wanted(Part::State) {
        say("state backend");
        rows.extend(state_rows::take(scale.writes).await?);
    }
    Ok(rows)
}

async fn one_plan(product: &Product, code: &Code, tool: &Path, scale: &Scale) -> Result<Row> {
    let module = Module { code, repository: "code", name: "one", resource: "terraform_data" };
    plans_of(product, &module, tool, scale).await
}

/// The same with a provider, which script and product both find in the same mirror.
async fn one_plan_with_provider(product: &Product, tool: &Path, scale: &Scale) -> Result<Row> {
    let code = Code::with_provider()?;
    code.declare(&mut product.connect().await?, "provided", "2s").await?;
    let module = Module {
        code: &code,
        repository: "provided",
        name: "provided",
        resource: "local_file, by a provider",
    };
    plans_of(product, &module, tool, scale).await
}

/// A root module that is planned again and again.
struct Module<'a> {
    code: &'a Code,
    repository: &'a str,
    name: &'a str,
    resource: &'a str,
}

async fn plans_of(product: &Product, module: &Module<'_>, tool: &Path, scale: &Scale) -> Result<Row> {
    let mut connection = product.connect().await?;
    let mut runs = Finishing::follow(product.connect().await?).await?;
    let manifest = layer(module.name, module.repository, &layer_path(0), Remediation::Dry);
    connection.must(Method::POST, LAYERS, json_body(&manifest)).await?;
    runs.wait(1).await?;
    let (mut managed, mut script) = (Vec::new(), Vec::new());
    for plan in 0..scale.plans {
        let wish = json!({"metadata": {"annotations": {api::annotation::SYNC: format!("bench {plan}")}}});
        let start = Instant::now();
        connection
            .must(
                Method::PATCH,
                &format!("{LAYERS}/{}", module.name),
                Body::MergePatch(wish.to_string().into()),
            )
            .await?;
        runs.wait(plan + 2).await?;
        managed.push(start.elapsed());
        let start = Instant::now();
        run_script(
            script_command("sh", product)
                .args(["-c", SCRIPT, "sh"])
                .arg(module.code.path())
                .arg(layer_path(0))
                .arg(tool),
        )
        .await?;
        script.push(start.elapsed());
    }
    let (ours, theirs) = (median(managed)?, median(script)?);
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    Ok(Row {
        measure: format!("one managed plan, sync to recorded result ({})", module.resource),
        ours: seconds(ours),
        theirs: format!(
            "{} ({:+.0} ms)",
            seconds(theirs),
            (ours.as_secs_f64() - theirs.as_secs_f64()) * 1000.0
        ),
        ratio: Some(ratio),
        must_reach: "≤ 1.25, aim 1.10".into(),
        outcome: Outcome::from(ratio <= 1.25),
    })
}

async fn many_layers(product: &Product, code: &Code, tool: &Path, scale: &Scale) -> Result<Row> {
    let mut connection = product.connect().await?;
    let mut runs = Finishing::follow(product.connect().await?).await?;
    let start = Instant::now();
    for number in 1..=scale.layers {
        let manifest = layer(&format!("many-{number}"), "code", &layer_path(number), Remediation::Dry);
        connection.must(Method::POST, LAYERS, json_body(&manifest)).await?;
    }
    runs.wait(scale.layers).await?;
    let ours = start.elapsed();
    ensure!(runs.count() == scale.layers, "{} runs for {} layers", runs.count(), scale.layers);

    let layers: String = (1..=scale.layers).map(|number| layer_path(number) + "\n").collect();
    let list = product.data().join("layers.txt");
    fs::write(&list, layers).context("writing the names of the layers")?;
    let start = Instant::now();
    let mut xargs = script_command("xargs", product);
    xargs.arg("--arg-file").arg(&list).args(["-P", "2", "-I", "{}", "sh", "-c", SCRIPT, "sh"]);
    run_script(xargs.arg(code.path()).arg("{}").arg(tool)).await?;
    let theirs = start.elapsed();
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    Ok(Row {
        measure: format!("{} layers planned, against xargs -P 2", scale.layers),
        ours: seconds(ours),
        theirs: seconds(theirs),
        ratio: Some(ratio),
        must_reach: "≤ 1.15".into(),
        outcome: Outcome::from(ratio <= 1.15),
    })
}

/// What a person starts, with the mirror of providers that runs are given too.
fn script_command(program: &str, product: &Product) -> Command {
    let mut command = Command::new(program);
    command.env("TF_CLI_CONFIG_FILE", product.tool_config());
    command
}

/// Runs a command to its end on a thread that may block.
async fn run_script(command: &mut Command) -> Result<()> {
    let mut child = command.spawn().context("starting the script")?;
    let status = tokio::task::spawn_blocking(move || child.wait()).await.context("waiting for the script")?;
    let status = status.context("waiting for the script")?;
    ensure!(status.success(), "the script ended with {status}");
    Ok(())
}

/// Everything that was written to some collections, in the order of each, but for the Lease of the controllers' election.
#[derive(Debug, Default)]
struct Journal(Arc<Mutex<Vec<(&'static str, Value)>>>);

impl Journal {
    /// Notes every change from now on, for as long as the tasks live.
    async fn keep(product: &Product) -> Result<(Self, JoinSet<Result<()>>)> {
        let journal = Self::default();
        let mut tasks = JoinSet::new();
        for (kind, path) in [
            ("layer", format!("{GROUP}/terraformlayers")),
            ("run", format!("{GROUP}/terraformruns")),
            ("repository", format!("{GROUP}/terraformrepositories")),
            ("lease", format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", api::SYSTEM_NAMESPACE)),
            ("pod", "/api/v1/pods".to_owned()),
        ] {
            let mut connection = product.connect().await?;
            let mut lines = follow(&mut connection, &path).await?;
            let entries = Arc::clone(&journal.0);
            tasks.spawn(async move {
                let _connection = connection;
                let note = |line: &[u8]| {
                    let event: Value = serde_json::from_slice(line).unwrap_or_default();
                    // That the controllers are there is said on a clock of its own, whatever there is to do.
                    if kind == "lease" && text(&event, "/object/metadata/name") == engine::leader::LEASE {
                        return;
                    }
                    entries.lock().unwrap_or_else(PoisonError::into_inner).push((kind, event));
                };
                while lines.next(note).await? {}
                Ok(())
            });
        }
        Ok((journal, tasks))
    }

    fn entries(&self) -> Vec<(&'static str, Value)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn writes(product: &Product, scale: &Scale) -> Result<Row> {
    let mut connection = product.connect().await?;
    product.wait_until_idle().await?;
    let (journal, _tasks) = Journal::keep(product).await?;
    let mut runs = Finishing::follow(product.connect().await?).await?;
    let manifest = layer("written", "code", &layer_path(scale.layers + 1), Remediation::Apply);
    connection.must(Method::POST, LAYERS, json_body(&manifest)).await?;
    runs.wait(2).await?;
    product.wait_until_idle().await?;
    let written = controllers_writes(&journal.entries());
    let total: usize = written.values().sum();
    Ok(Row {
        measure: format!("controllers' writes for one plan and apply ({})", told(&written)),
        ours: total.to_string(),
        theirs: String::new(),
        ratio: None,
        must_reach: "≤ 10".into(),
        outcome: Outcome::from(total <= 10),
    })
}

/// Such as `4 layer, 6 run`.
fn told(written: &BTreeMap<&'static str, usize>) -> String {
    let parts: Vec<String> = written.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    parts.join(", ")
}

/// What the controllers wrote. Of pods, only what they do to them: make them, delete them, let them go; the rest is the node's.
fn controllers_writes(entries: &[(&'static str, Value)]) -> BTreeMap<&'static str, usize> {
    let mut written = BTreeMap::new();
    let mut pods: BTreeMap<String, (bool, bool)> = BTreeMap::new();
    for (kind, event) in entries {
        let how = text(event, "/type");
        let counts = match *kind {
            // Made by the bench itself.
            "layer" => how == "MODIFIED",
            "pod" => {
                let now = (
                    event.pointer("/object/metadata/finalizers").is_some(),
                    event.pointer("/object/metadata/deletionTimestamp").is_some(),
                );
                let name = text(event, "/object/metadata/name").to_owned();
                let before = pods.insert(name, now);
                how == "ADDED" || before.is_some_and(|before| before != now)
            }
            _ => true,
        };
        if counts {
            *written.entry(*kind).or_default() += 1;
        }
    }
    written
}

async fn bytes(product: &Product, scale: &Scale) -> Result<Row> {
    let code = Code::new(1)?;
    code.add_history(scale.commits)?;
    let bundles = || size_below(&product.data().join("artefacts"), "bundles");
    let before = bundles()?;
    let mut connection = product.connect().await?;
    code.declare(&mut connection, "long", "2s").await?;
    let mut runs = Finishing::follow(product.connect().await?).await?;
    let manifest = layer("long", "long", &layer_path(0), Remediation::Dry);
    connection.must(Method::POST, LAYERS, json_body(&manifest)).await?;
    runs.wait(1).await?;
    let fetched = bundles()?.saturating_sub(before);
    ensure!(fetched > 0, "no bundle was stored");
    let clone = product.data().join("clone");
    code.git(&[
        "clone",
        "--quiet",
        "--bare",
        &format!("file://{}", code.path().display()),
        &clone.display().to_string(),
    ])?;
    let whole = size_below(&clone.join("objects"), "pack")?;
    #[expect(clippy::cast_precision_loss, reason = "no repository here has 2^52 bytes")]
    let ratio = fetched as f64 / whole as f64;
    Ok(Row {
        measure: format!("bytes a run fetches, repository of {} commits", scale.commits),
        ours: format!("{} kB", fetched / 1000),
        theirs: format!("{} kB (full clone)", whole / 1000),
        ratio: Some(ratio),
        must_reach: "≤ 0.05".into(),
        outcome: Outcome::from(ratio <= 0.05),
    })
}

/// Bytes of the files in directories called `name` below `root`. O(files below it).
fn size_below(root: &Path, name: &str) -> Result<u64> {
    let mut open: Vec<(PathBuf, bool)> = vec![(root.to_owned(), false)];
    let mut size = 0;
    while let Some((directory, counts)) = open.pop() {
        for entry in fs::read_dir(&directory).with_context(|| format!("reading {}", directory.display()))? {
            let entry = entry.context("reading a directory")?;
            let metadata = entry.metadata().context("reading a file's size")?;
            if metadata.is_dir() {
                open.push((entry.path(), counts || entry.file_name() == name));
            } else if counts {
                size += metadata.len();
            }
        }
    }
    Ok(size)
}

async fn settled(program: &Path, scale: &Scale) -> Result<Row> {
    const POLLS: u32 = 3;
    const INTERVAL: Duration = Duration::from_secs(5);
    let product = Product::start(program).await?;
    let _code = settle(&product, scale.settled, "5s").await?;
    // How the layers are doing is told at the first poll after they changed: only then nothing is left to say.
    tokio::time::sleep(INTERVAL * 2).await;
    product.wait_until_idle().await?;
    let (journal, _tasks) = Journal::keep(&product).await?;
    let before = product.cpu_time()?;
    tokio::time::sleep(INTERVAL * POLLS).await;
    let cpu = (product.cpu_time()? - before) / POLLS;
    let mut written = BTreeMap::new();
    for (kind, _) in journal.entries() {
        *written.entry(kind).or_default() += 1;
    }
    let words =
        if written.is_empty() { "no write".to_owned() } else { format!("written: {}", told(&written)) };
    Ok(Row {
        measure: format!(
            "{} settled layers, {HISTORY} runs each: processor time and writes of a poll",
            scale.settled
        ),
        ours: format!("{:.2} s, {words}", cpu.as_secs_f64()),
        theirs: String::new(),
        ratio: None,
        must_reach: "≤ 10 s, no write".into(),
        outcome: Outcome::from(cpu <= Duration::from_secs(10) && written.is_empty()),
    })
}

async fn idle(program: &Path, scale: &Scale) -> Result<Row> {
    let product = Product::start(program).await?;
    let _code = settle(&product, scale.idle, "1h").await?;
    #[expect(clippy::cast_precision_loss, reason = "no process has 2^52 bytes")]
    let memory = product.resident_bytes()? as f64 / f64::from(1 << 20);
    Ok(Row {
        measure: format!("memory of terrane up, {} idle layers, {HISTORY} runs each", scale.idle),
        ours: format!("{memory:.0} MiB"),
        theirs: String::new(),
        ratio: None,
        must_reach: "≤ 250 MiB".into(),
        outcome: Outcome::from(memory <= 250.0),
    })
}

/// Layers that follow a branch and want nothing, each with a root module of its own. O(layers × runs).
async fn settle(product: &Product, layers: usize, poll: &str) -> Result<Code> {
    let code = Code::new(layers)?;
    fill(product.target(), layers, &code.git(&["rev-parse", "HEAD"])?).await?;
    let mut connection = product.connect().await?;
    code.declare(&mut connection, "code", poll).await?;
    // Only now: with their runs there, the layers need nothing more.
    for number in 0..layers {
        let go = Body::MergePatch(json!({"spec": {"suspend": false}}).to_string().into());
        connection.must(Method::PATCH, &format!("{LAYERS}/{}", idle_name(number)), go).await?;
    }
    product.wait_until_idle().await?;
    Ok(code)
}

fn idle_name(number: usize) -> String {
    format!("idle-{number:05}")
}

/// Stores suspended layers, each with runs that have ended, the newest at `commit`. O(layers × runs).
async fn fill(target: &Target, layers: usize, commit: &str) -> Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut fillers = JoinSet::new();
    for _ in 0..FILLERS.min(layers) {
        let (target, next, commit) = (target.clone(), Arc::clone(&next), commit.to_owned());
        fillers.spawn(async move {
            let mut connection = target.connect().await?;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= layers {
                    return anyhow::Ok(());
                }
                let name = idle_name(number);
                let mut manifest = layer(&name, "code", &layer_path(number), Remediation::Dry);
                if let Some(spec) = manifest.get_mut("spec").and_then(Value::as_object_mut) {
                    spec.insert("suspend".to_owned(), true.into());
                }
                let made = connection.must(Method::POST, LAYERS, json_body(&manifest)).await?;
                let made: Value = serde_json::from_slice(&made).context("reading a layer")?;
                let uid = text(&made, "/metadata/uid");
                for run in 0..HISTORY {
                    let (spec, status) = ended_run(&name, uid, &commit, run);
                    let path = format!("{RUNS}/{}/status", text(&spec, "/metadata/name"));
                    connection.must(Method::POST, RUNS, json_body(&spec)).await?;
                    let status = Body::MergePatch(json!({"status": status}).to_string().into());
                    connection.must(Method::PATCH, &path, status).await?;
                }
            }
        });
    }
    while let Some(done) = fillers.join_next().await {
        done.context("a caller failed")??;
    }
    Ok(())
}

/// A plan that found nothing to change, as the run controller leaves it.
fn ended_run(layer: &str, uid: &str, commit: &str, number: usize) -> (Value, Value) {
    let name = format!("{layer}-plan-{number}");
    let digest = format!("{number:064x}");
    // Recent, so that no drift check is due while it is measured; the last one is the newest.
    let time = k8s_openapi::jiff::Timestamp::now().to_string();
    let condition = |kind: &str, truth: &str| {
        json!({
            "type": kind, "status": truth, "reason": "Planned", "message": "the plan found nothing to change",
            "lastTransitionTime": time, "observedGeneration": 1,
        })
    };
    let spec = json!({
        "apiVersion": "terrane.dev/v1alpha1",
        "kind": "TerraformRun",
        "metadata": {"name": name, "labels": {api::label::LAYER: layer, api::label::ACTION: "plan"}},
        "spec": {
            "layer": {"name": layer, "uid": uid, "revision": commit},
            "action": "plan",
            "state": digest,
            "trigger": {"kind": "drift", "reason": "the last look at the infrastructure is older than the drift interval"},
            "maxRetries": 5,
        },
    });
    let status = json!({
        "observedGeneration": 1,
        "state": "Succeeded",
        "retries": 0,
        "attempts": [{
            "number": 0, "podName": format!("{name}-0"), "description": digest, "fence": 0,
            "startedAt": time, "finishedAt": time, "exitCode": 0, "reason": "Completed",
        }],
        "runnerPod": format!("{name}-0"),
        "finishedAt": time,
        "result": {
            "reason": "Planned", "message": "no changes", "planSha256": digest,
            "summary": {"add": 0, "change": 0, "destroy": 0, "outputs": 0},
        },
        "conditions": [
            condition("HasStatus", "True"), condition("HasSucceeded", "True"), condition("IsRunning", "False"),
            condition("HasReachedRetryLimit", "False"), condition("IsInFailureGracePeriod", "False"),
        ],
    });
    (spec, status)
}

pub fn median(mut values: Vec<Duration>) -> Result<Duration> {
    values.sort_unstable();
    values.get(values.len() / 2).copied().context("nothing was measured")
}

pub fn seconds(duration: Duration) -> String {
    format!("{:.2} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(how: &str, metadata: Value) -> Value {
        json!({"type": how, "object": {"metadata": metadata}})
    }

    #[test]
    fn only_what_controllers_do_to_pods_is_theirs() {
        let held = json!({"name": "p", "finalizers": ["terrane.dev/result"]});
        let going = json!({"name": "p", "finalizers": ["terrane.dev/result"], "deletionTimestamp": "2026-01-01T00:00:00Z"});
        let free = json!({"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        let entries = [
            ("layer", event("ADDED", json!({"name": "l"}))),
            ("layer", event("MODIFIED", json!({"name": "l"}))),
            ("run", event("ADDED", json!({"name": "r"}))),
            ("pod", event("ADDED", held.clone())),
            ("pod", event("MODIFIED", held)),
            ("pod", event("MODIFIED", going)),
            ("pod", event("MODIFIED", free.clone())),
            ("pod", event("DELETED", free)),
        ];
        assert_eq!(controllers_writes(&entries), BTreeMap::from([("layer", 1), ("pod", 3), ("run", 1)]));
    }
}
