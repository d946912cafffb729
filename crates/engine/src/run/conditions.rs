//! The conditions of a run: each follows from its state and from why it is in it.

use api::TerraformRunStatus;
use api::condition::{self, Truth};
use api::run::RunState;

use super::Observed;
use super::ended::may_retry;

/// The status with its state and every condition that follows from it.
pub(super) fn progress(
    seen: &Observed<'_>,
    status: &TerraformRunStatus,
    state: RunState,
    reason: &str,
    message: &str,
) -> TerraformRunStatus {
    let mut next = status.clone();
    let generation = seen.run.metadata.generation;
    next.state = Some(state);
    next.observed_generation = generation;
    let exhausted = state == RunState::Failed && !may_retry(&next, seen.run.spec.max_retries);
    let running = matches!(state, RunState::Running);
    let mut set = |kind, truth, reason: &str, message: &str| {
        condition::set(&mut next.conditions, kind, truth, reason, message, generation, seen.now);
    };
    set("HasStatus", Truth::True, "Reconciled", "the run has been looked at");
    set(
        "HasReachedRetryLimit",
        exhausted.into(),
        if exhausted { "LimitReached" } else { "BelowLimit" },
        &format!("at most {} retries", seen.run.spec.max_retries),
    );
    set("HasSucceeded", (state == RunState::Succeeded).into(), reason, message);
    set(
        "IsRunning",
        running.into(),
        if running { "UnderWay" } else { "NothingUnderWay" },
        if running { message } else { "" },
    );
    let grace = state == RunState::FailureGracePeriod;
    set(
        "IsInFailureGracePeriod",
        grace.into(),
        if grace { "Failed" } else { "NoPause" },
        if grace { message } else { "" },
    );
    set("Ready", (state == RunState::Succeeded).into(), reason, message);
    if state.is_terminal() {
        condition::clear(&mut next.conditions, "Reconciling");
    } else {
        condition::set(
            &mut next.conditions,
            "Reconciling",
            Truth::True,
            reason,
            message,
            generation,
            seen.now,
        );
    }
    if state == RunState::Failed {
        condition::set(&mut next.conditions, "Stalled", Truth::True, reason, message, generation, seen.now);
    }
    next
}
