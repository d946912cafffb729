//! Runs every case against one server, a few at once, and says how each went.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};

use crate::gaps::Gap;
use crate::scope::Scope;
use crate::target::Target;

/// How many cases run at the same time. More would only wait for each other on a small machine.
const AT_ONCE: usize = 8;
/// No case takes this long: it ends one that hangs, so that the others are still reported.
const CASE_LIMIT: Duration = Duration::from_secs(300);
/// Fewer would mean that a subject was lost.
const LEAST: usize = 120;

/// One thing that is true of a Kubernetes API.
#[derive(Clone, Copy)]
pub struct Case {
    /// `subject/what_holds`.
    pub name: &'static str,
    /// Ends with an error that says what did not hold.
    pub run: fn(Scope) -> BoxFuture<'static, Result<()>>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name)
    }
}

/// Runs all cases; an error names each that failed, and each gap that is none any more.
pub async fn run(target: &Target, cases: &[Case], gaps: &[Gap]) -> Result<()> {
    let only = only();
    ensure!(cases.len() >= LEAST, "{} cases are registered, fewer than {LEAST}", cases.len());
    for gap in gaps {
        ensure!(cases.iter().any(|case| case.name == gap.case), "{} is a gap of no case", gap.case);
    }
    let chosen: Vec<Case> = cases.iter().filter(|case| case.name.contains(&only)).copied().collect();
    let outcomes: Vec<(&'static str, Result<()>)> = stream::iter(chosen)
        .map(|case| timed(case.name, run_case(target, case)))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    verdict(&outcomes, gaps)
}

/// Runs one case and tells how it ended.
pub async fn timed(name: &'static str, case: impl Future<Output = Result<()>>) -> (&'static str, Result<()>) {
    let started = Instant::now();
    let outcome = case.await;
    let took = started.elapsed().as_secs_f32();
    match &outcome {
        Ok(()) => println!("ok      {name} ({took:.2} s)"),
        Err(error) => println!("FAILED  {name} ({took:.2} s)\n    {error:#}"),
    }
    (name, outcome)
}

/// Whether just the known gaps fail; an error names each case that failed, and each gap that is none any more. O(cases · gaps).
pub fn verdict(outcomes: &[(&'static str, Result<()>)], gaps: &[Gap]) -> Result<()> {
    let mut wrong = Vec::new();
    for (name, outcome) in outcomes {
        match (outcome, gaps.iter().find(|gap| gap.case == *name)) {
            (Ok(()), None) | (Err(_), Some(_)) => {}
            (Err(error), None) => wrong.push(format!("{name}: {error:#}")),
            (Ok(()), Some(gap)) => wrong.push(format!("{name}: passes, so this is over: {}", gap.why)),
        }
    }
    let passed = outcomes.iter().filter(|(_, outcome)| outcome.is_ok()).count();
    println!("{passed} of {} cases pass, {} gaps are known", outcomes.len(), gaps.len());
    if wrong.is_empty() {
        return Ok(());
    }
    wrong.sort();
    bail!("{} of {} cases are not as they should be:\n{}", wrong.len(), outcomes.len(), wrong.join("\n"))
}

async fn run_case(target: &Target, case: Case) -> Result<()> {
    let scope = Scope::new(target.clone(), case.name)?;
    match tokio::time::timeout(CASE_LIMIT, (case.run)(scope)).await {
        Ok(outcome) => outcome,
        Err(_) => bail!("it did not end within {} s", CASE_LIMIT.as_secs()),
    }
}

/// While working on one subject: only cases whose name contains this.
#[expect(clippy::disallowed_methods, reason = "a test has no command line of ours to be told on")]
fn only() -> String {
    std::env::var("CONFORMANCE_ONLY").unwrap_or_default()
}
