//! Speed and memory of the store alone, printed as a table. Run by hand: `cargo bench -p embedded --bench store`.

use std::{
    env, fs,
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use embedded::store::{Collection, Key, Op, Options, Store};
use serde_json::{Value, json};

const CALLERS: usize = 64;

/// Opening is measured in a process of its own, whose memory holds nothing else yet.
const OPEN: &str = "--open";

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    if arguments.next().as_deref() == Some(OPEN) {
        return open(Path::new(&arguments.next().context("no path to open")?));
    }
    let directory = tempfile::TempDir::new()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    println!("{:<44} {:>14}", "measure", "value");
    let creates = runtime.block_on(creates_per_second(&directory.path().join("creates.db"), 40_000))?;
    row("durable creates of 0.5 kB, 64 callers", format!("{creates:.0}/s"));
    let (half, most) = runtime.block_on(latency_alone(&directory.path().join("alone.db"), 2_000))?;
    row("durable create of 0.5 kB, one caller, p50", format!("{:.2} ms", millis(half)));
    row("durable create of 0.5 kB, one caller, p99", format!("{:.2} ms", millis(most)));
    let layers = directory.path().join("layers.db");
    runtime.block_on(write_layers(&layers, 10_000))?;
    let status = Command::new(env::current_exe()?).arg(OPEN).arg(&layers).status()?;
    anyhow::ensure!(status.success(), "opening failed");
    Ok(())
}

fn open(path: &Path) -> Result<()> {
    let before = resident_kib()?;
    let start = Instant::now();
    let store = Store::open(path, Options::default())?;
    row("open with 10,000 objects of 3 kB", format!("{:.0} ms", millis(start.elapsed())));
    row("memory they take", format!("{:.1} MiB", (resident_kib()?.saturating_sub(before)) as f64 / 1024.0));
    let snapshot = store.snapshot();
    let start = Instant::now();
    let matching =
        snapshot.list(&layers(), None, None).filter(|o| o.labels.get("shard") == Some("7")).count();
    row(&format!("list 10,000 by label ({matching} match)"), format!("{:.2} ms", millis(start.elapsed())));
    store.close();
    Ok(())
}

fn row(measure: &str, value: String) {
    println!("{measure:<44} {value:>14}");
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn layers() -> Collection {
    Collection::new("terrane.dev", "terraformlayers")
}

fn create(name: &str, bytes: usize) -> Op {
    let key = Key::new(layers(), "infra", name);
    let object: Value = json!({
        "apiVersion": "terrane.dev/v1alpha1",
        "kind": "TerraformLayer",
        "metadata": {
            "name": name,
            "namespace": "infra",
            "uid": format!("00000000-0000-4000-8000-{name:0>12}"),
            "labels": {"terrane.dev/repository": "main", "shard": name.chars().last().map(String::from)},
        },
        "spec": {"path": "x".repeat(bytes.saturating_sub(280))},
    });
    Op::Create { key, object }
}

async fn creates_per_second(path: &Path, count: usize) -> Result<f64> {
    let store = Arc::new(Store::open(path, Options::default())?);
    let start = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let store = Arc::clone(&store);
        callers.spawn(async move {
            for n in (caller..count).step_by(CALLERS) {
                store.write(vec![create(&n.to_string(), 500)]).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller??;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

async fn latency_alone(path: &Path, count: usize) -> Result<(Duration, Duration)> {
    let store = Store::open(path, Options::default())?;
    let mut took = Vec::with_capacity(count);
    for n in 0..count {
        let start = Instant::now();
        store.write(vec![create(&n.to_string(), 500)]).await?;
        took.push(start.elapsed());
    }
    took.sort();
    let at = |percent: usize| took.get(count * percent / 100).copied().context("nothing was measured");
    Ok((at(50)?, at(99)?))
}

async fn write_layers(path: &Path, count: usize) -> Result<()> {
    let store = Store::open(path, Options::default())?;
    for first in (0..count).step_by(500) {
        store.write((first..first + 500).map(|n| create(&n.to_string(), 3000)).collect()).await?;
    }
    store.close();
    Ok(())
}

fn resident_kib() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    line.split_whitespace().nth(1).context("no value")?.parse().context("not a number")
}
