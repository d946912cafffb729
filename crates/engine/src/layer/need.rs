//! What is to be done, and what a person is told about it.

use api::TerraformRun;
use api::layer::LayerState;
use api::run::{Action, Mode, PlanSummary, RunState};
use jiff::Timestamp;

use super::history::ready_message;
use crate::Wake;

pub(super) struct Need {
    pub(super) state: LayerState,
    pub(super) reason: &'static str,
    pub(super) why: String,
    pub(super) standing: Standing,
    pub(super) step: Step,
    pub(super) wake: Wake,
}

pub(super) enum Step {
    Start(Box<TerraformRun>),
    Hold,
}

/// What kstatus says of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    InSync,
    /// Terrane works, or will by itself.
    Working,
    /// A person is waited for.
    Waiting,
    /// Nothing will happen before something changes.
    Stuck,
    /// Not known yet.
    Unknown,
}

pub(super) fn hold(
    state: LayerState,
    reason: &'static str,
    why: impl Into<String>,
    standing: Standing,
    wake: Wake,
) -> Need {
    Need { state, reason, why: why.into(), standing, step: Step::Hold, wake }
}

/// The reason of [`unknown`].
pub(super) const NOT_KNOWN: &str = "Unknown";

pub(super) fn unknown(why: &str) -> Need {
    hold(LayerState::PlanNeeded, NOT_KNOWN, why, Standing::Unknown, Wake::OnChange)
}

/// A run is under way: nothing else is started.
pub(super) fn at_work(run: &TerraformRun) -> Need {
    let short = run.spec.layer.revision.short();
    let (state, doing) = match (run.spec.action, run.spec.mode) {
        (Action::Plan, Mode::Normal) => (LayerState::PlanNeeded, "planning"),
        (Action::Plan, Mode::RefreshOnly) => (LayerState::PlanNeeded, "looking for drift from"),
        (Action::Plan, Mode::Destroy) => (LayerState::PlanNeeded, "planning to destroy"),
        (Action::Apply, Mode::Normal) => (LayerState::ApplyNeeded, "applying"),
        (Action::Apply, Mode::RefreshOnly) => (LayerState::ApplyNeeded, "accepting drift from"),
        (Action::Apply, Mode::Destroy) => (LayerState::ApplyNeeded, "destroying"),
    };
    let run_state = run.status.as_ref().and_then(|s| s.state);
    let (reason, why) = match run_state {
        Some(RunState::FailureGracePeriod) => ("Retrying", format!("{doing} {short} {}", ready_message(run))),
        Some(
            RunState::Initial
            | RunState::Running
            | RunState::Retrying
            | RunState::Succeeded
            | RunState::Failed,
        )
        | None => ("Running", format!("{doing} {short}")),
    };
    hold(state, reason, why, Standing::Working, Wake::OnChange)
}

pub(super) fn words_of(summary: PlanSummary) -> String {
    if summary.add + summary.change + summary.destroy == 0 {
        return "only outputs change".to_owned();
    }
    format!("{} to add, {} to change, {} to destroy", summary.add, summary.change, summary.destroy)
}

pub(super) fn clock(at: Timestamp) -> String {
    at.strftime("%H:%M:%S UTC").to_string()
}
