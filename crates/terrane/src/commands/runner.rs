//! The runner's role: one attempt, told by the environment of its pod.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use api::attempt::INPUT_VARIABLE;
use runner::{Echo, RunnerOptions};

use crate::arguments::Runner;
use crate::environment;

/// Variables that are ours and none of the tool's business.
const OURS: &str = "TERRANE_";
/// How long an absent datastore is waited for: an apply's result is worth a long outage.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Far beyond any plan; one that hangs must not keep a runner for ever.
const PLAN_LIMIT: Duration = Duration::from_secs(3600);

pub(crate) async fn run(options: Runner) -> anyhow::Result<ExitCode> {
    let path = environment::search_path();
    let environment =
        environment::all().filter(|(name, _)| !name.to_string_lossy().starts_with(OURS)).collect();
    let code = runner::run(RunnerOptions {
        datastore_url: options.datastore_url,
        datastore_authority: options.datastore_authority,
        token_file: options.token_file,
        run_uid: options.run_uid,
        attempt: options.attempt,
        work_dir: options.work_dir,
        search_path: std::env::split_paths(&path).collect(),
        tools: options.tools_dir,
        provider_mirror: options.provider_mirror,
        kaniko: options.kaniko,
        inputs: inputs(),
        environment,
        secrets: Vec::new(),
        grace: Duration::from_secs(options.grace_seconds),
        patience: PATIENCE,
        plan_limit: PLAN_LIMIT,
        echo: Echo::Stdout,
    });
    Ok(code.await)
}

/// Where the pod mounted what the layer's variables come from: numbered from 0.
fn inputs() -> Vec<PathBuf> {
    (0..).map_while(|index| environment::path(&format!("{INPUT_VARIABLE}{index}"))).collect()
}
