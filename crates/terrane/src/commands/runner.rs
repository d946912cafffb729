//! The runner's role: one attempt, told by the environment of its pod.

use std::process::ExitCode;

use crate::arguments::Runner;

pub(crate) async fn run(options: Runner) -> anyhow::Result<ExitCode> {
    let _ = options;
    anyhow::bail!("not yet")
}
