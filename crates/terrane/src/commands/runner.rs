//! The runner's role: one attempt, told by the environment of its pod.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use api::attempt::INPUT_VARIABLE;
use api::text::Span;
use runner::{Echo, RunnerOptions};

use crate::arguments::Runner;
use crate::commands::carry;
use crate::environment;

/// Variables that are ours and none of the tool's business.
const OURS: &str = "TERRANE_";
/// Where programs are told which authorities to believe.
const AUTHORITIES: &str = "SSL_CERT_FILE";
/// How long an absent datastore is waited for: an apply's result is worth a long outage.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Far beyond most plans; one that hangs must not keep a runner for ever. Layers and repositories can say otherwise.
const PLAN_LIMIT: Span = Span::from_secs(3600);

pub(crate) async fn run(options: Runner) -> anyhow::Result<ExitCode> {
    let mut search_path: Vec<PathBuf> = std::env::split_paths(&environment::search_path()).collect();
    let mut environment: Vec<_> =
        environment::all().filter(|(name, _)| !name.to_string_lossy().starts_with(OURS)).collect();
    if let Some(carried) = &options.carried {
        // What the image has itself comes first.
        search_path.push(carry::tools(carried));
        // That of the tool is the image's, and so is what the runner itself must not load.
        environment.retain(|(name, _)| name != "PATH" && name != "LD_PRELOAD");
        let authorities = carry::authorities(carried).filter(|_| !is_set(&environment, AUTHORITIES));
        environment.extend(authorities.map(|file| (AUTHORITIES.into(), file.into())));
    }
    let code = runner::run(RunnerOptions {
        datastore_url: options.datastore_url,
        datastore_authority: options.datastore_authority,
        token_file: options.token_file,
        run_uid: options.run_uid,
        attempt: options.attempt,
        work_dir: options.work_dir,
        search_path,
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

fn is_set(environment: &[(OsString, OsString)], name: &str) -> bool {
    environment.iter().any(|(known, _)| known == name)
}

/// Where the pod mounted what the layer's variables come from: numbered from 0.
fn inputs() -> Vec<PathBuf> {
    (0..).map_while(|index| environment::path(&format!("{INPUT_VARIABLE}{index}"))).collect()
}
