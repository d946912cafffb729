//! The rows of the state backend: what a tool waits for between lock and unlock, and what a large state costs in memory.
//!
//! The service runs in a process of its own on a disk, encrypted as always. Tokens are believed by name: the review of a token is the
//! Kubernetes API's time, asked once for many requests, and would be measured instead.

use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::attempt::Description;
use api::run::Action;
use api::text::{CommitId, Sha256};
use datastore::client::{Client, LockChange, TokenSource};
use datastore::service::{Keyring, Options, Place, router};
use datastore::{Artefact, Attempt, StateId};
use testkit::callers::ByName;
use testkit::process::{Guarded, Scratch};

use crate::product::LIMIT;
use crate::report::{Outcome, Row};

const FENCE: u64 = 1;
const MEGABYTE: usize = 1_000_000;

/// Serves a datastore until it is killed. The address is printed when it answers.
pub async fn serve(data: PathBuf) -> Result<()> {
    let objects = Place::Directory(data.join("objects")).open([]).await?;
    let keys = Keyring::load_or_create(&data.join("keys"))?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.context("listening")?;
    println!("{}", listener.local_addr().context("reading the address")?);
    axum::serve(listener, router(Options { objects, keys, reviewer: Arc::new(ByName) }))
        .await
        .context("serving")
}

/// A datastore at work, and the runner that uses it.
struct Backend {
    process: Guarded,
    runner: Client,
    state: StateId,
    scratch: Scratch,
}

impl Backend {
    async fn start() -> Result<Self> {
        let scratch = Scratch::new("terrane-bench-")?;
        let program = std::env::current_exe().context("finding this program")?;
        let log = scratch.path().join("log");
        let data = scratch.path().join("data");
        fs::create_dir(&data).context("making a directory")?;
        let arguments = ["serve-datastore".to_owned(), format!("--data-dir={}", data.display())];
        let mut process = Guarded::start(&program, &arguments, log.clone())?;
        let limit = Instant::now() + LIMIT;
        let address: SocketAddr = loop {
            process.ensure_running()?;
            let said = fs::read_to_string(&log).unwrap_or_default();
            if let Some(Ok(address)) = said.lines().next().map(str::parse) {
                break address;
            }
            ensure!(Instant::now() < limit, "the datastore did not start");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let base = format!("http://{address}");
        let token = |token: &str| TokenSource::Fixed(token.to_owned().into());
        let identity = Sha256::of(b"state");
        let description = describe(&identity)?;
        let attempt = Attempt::new(description.run_uid.as_str(), description.attempt)?;
        let controller = Client::new(&base, token("controller"))?;
        controller.artefact_put(&attempt, Artefact::Spec, description.to_bytes().into()).await?;
        let runner = Client::new(&base, token("team/run/1"))?;
        Ok(Self { process, runner, state: StateId::new(identity.as_str())?, scratch })
    }

    /// What a tool does around a change: lock, write, unlock.
    async fn change(&self, file: &Path, lock: &str) -> Result<()> {
        let info = format!("{{\"ID\":\"{lock}\",\"Operation\":\"apply\",\"Who\":\"bench\"}}");
        self.runner.state_lock(&self.state, LockChange::Take, info.clone().into(), Some(FENCE)).await?;
        self.runner.state_put(&self.state, file, Some(lock), Some(FENCE)).await?;
        self.runner.state_lock(&self.state, LockChange::Release, info.into(), Some(FENCE)).await?;
        Ok(())
    }
}

fn describe(state: &Sha256) -> Result<Description> {
    Ok(Description {
        namespace: "team".to_owned(),
        layer: "layer".to_owned(),
        layer_uid: "layer-uid".to_owned(),
        run: "run".to_owned(),
        run_uid: "run".to_owned(),
        attempt: 1,
        fence: FENCE,
        action: Action::Apply,
        mode: Default::default(),
        revision: CommitId::new("a".repeat(40))?,
        bundle: Sha256::of(b"bundle"),
        image: None,
        build: None,
        path: ".".parse()?,
        workspace: Default::default(),
        tool: None,
        tool_version: None,
        terragrunt: None,
        state: state.clone(),
        backend: None,
        plan: None,
        inputs: None,
        outputs: false,
        script: None,
        kept: None,
        delete_workspace: false,
        timeout: None,
    })
}

/// A state of about so many bytes, as the tools write them: many small resources.
fn state_text(bytes: usize, serial: usize) -> String {
    let mut text = format!("{{\"version\":4,\"serial\":{serial},\"lineage\":\"bench\",\"resources\":[");
    let mut number = 0;
    while text.len() < bytes {
        let comma = if number == 0 { "" } else { "," };
        text.push_str(&format!(
            "{comma}{{\"mode\":\"managed\",\"type\":\"terraform_data\",\"name\":\"r{number}\",\"instances\":[{{\"schema_version\":0,\"attributes\":{{\"id\":\"{serial}-{number}\"}}}}]}}"
        ));
        number += 1;
    }
    text.push_str("]}");
    text
}

/// Measures the backend and gives its rows.
pub async fn take(writes: usize) -> Result<Vec<Row>> {
    let backend = Backend::start().await?;
    let file = backend.scratch.path().join("state.json");
    let plain = backend.scratch.path().join("plain");
    fs::create_dir(&plain).context("making a directory")?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for serial in 0..writes {
        let text = state_text(MEGABYTE, serial);
        fs::write(&file, &text).context("writing a state")?;
        let start = Instant::now();
        backend.change(&file, &format!("lock-{serial}")).await?;
        ours.push(start.elapsed());
        let start = Instant::now();
        change_file(&plain, text.as_bytes()).context("changing a state in a file")?;
        theirs.push(start.elapsed());
    }
    let (ours, theirs) = (median(ours)?, median(theirs)?);
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    let change = Row {
        measure: "state backend: lock, write, unlock of a 1 MB state, against durable local files".into(),
        ours: milliseconds(ours),
        theirs: milliseconds(theirs),
        ratio: Some(ratio),
        must_reach: "≤ 1.50".into(),
        outcome: Outcome::from(ratio <= 1.5),
    };
    Ok(vec![change, large(&backend, &file, writes).await?])
}

/// The most memory that a state of 20 MB adds, written and read.
async fn large(backend: &Backend, file: &Path, serial: usize) -> Result<Row> {
    const SIZE: usize = 20 * MEGABYTE;
    let before = peak_bytes(backend.process.pid())?;
    fs::write(file, state_text(SIZE, serial)).context("writing a state")?;
    for turn in 0..3 {
        fs::write(file, state_text(SIZE, serial + turn)).context("writing a state")?;
        backend.change(file, &format!("large-{turn}")).await?;
        let mut out =
            tokio::fs::File::create(backend.scratch.path().join("read")).await.context("making a file")?;
        backend.runner.state_get(&backend.state, &mut out).await?;
    }
    let grown = peak_bytes(backend.process.pid())?.saturating_sub(before);
    #[expect(clippy::cast_precision_loss, reason = "no process has 2^52 bytes")]
    let grown = grown as f64 / MEGABYTE as f64;
    Ok(Row {
        measure: "state backend: memory that a 20 MB state adds, written and read 3 times".into(),
        ours: format!("{grown:.1} MB"),
        theirs: String::new(),
        ratio: None,
        must_reach: "not held: < 20 MB".into(),
        outcome: Outcome::from(grown < 20.0),
    })
}

/// The same promises with plain files: a lock that is on disk before the state changes, a state that is whole or the old one, a lock
/// that is gone for good.
fn change_file(directory: &Path, content: &[u8]) -> std::io::Result<()> {
    let (lock, state, new) = (directory.join("lock"), directory.join("state"), directory.join("state.new"));
    let durable = |path: &Path, content: &[u8]| {
        let mut file = File::options().write(true).create_new(true).open(path)?;
        file.write_all(content)?;
        file.sync_all()
    };
    let directory = File::open(directory)?;
    durable(&lock, b"{\"ID\":\"1\",\"Who\":\"bench\"}")?;
    directory.sync_all()?;
    durable(&new, content)?;
    fs::rename(&new, &state)?;
    directory.sync_all()?;
    fs::remove_file(&lock)?;
    directory.sync_all()
}

fn peak_bytes(pid: u32) -> Result<u64> {
    crate::subject::status_bytes(pid, "VmHWM:")
}

fn median(mut values: Vec<Duration>) -> Result<Duration> {
    values.sort_unstable();
    values.get(values.len() / 2).copied().context("nothing was measured")
}

fn milliseconds(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
}
