//! What is to be done, and what a person is told about it.

use api::layer::LayerState;
use api::run::{Action, Mode, PlanSummary, RunState};
use api::{TerraformRun, condition};
use jiff::Timestamp;

use super::history::{Plan, ready_message};
use crate::Wake;
use crate::run::{DATASTORE_FULL, DATASTORE_UNAVAILABLE, POD_NOT_STARTING, POD_REFUSED, POD_UNSCHEDULABLE};

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

/// A run is to be made. What is said of it is what will be said once it is there, so that its creation is told by one write.
pub(super) fn start(run: TerraformRun, plan: Option<&Plan<'_>>) -> Need {
    Need { step: Step::Start(Box::new(run.clone())), ..at_work(&run, plan) }
}

/// A run is under way: nothing else is started. `plan` is what it applies, as far as that is still known.
pub(super) fn at_work(run: &TerraformRun, plan: Option<&Plan<'_>>) -> Need {
    let short = run.spec.layer.revision.short();
    let (state, doing) = match (run.spec.action, run.spec.mode) {
        (Action::Plan, Mode::Normal) => (LayerState::PlanNeeded, "planning"),
        (Action::Plan, Mode::RefreshOnly) => (LayerState::PlanNeeded, "looking for drift from"),
        (Action::Plan, Mode::Destroy) => (LayerState::PlanNeeded, "planning to destroy"),
        (Action::Apply, Mode::Normal) => (LayerState::ApplyNeeded, "applying"),
        (Action::Apply, Mode::RefreshOnly) => (LayerState::ApplyNeeded, "accepting drift from"),
        (Action::Apply, Mode::Destroy) => (LayerState::ApplyNeeded, "destroying"),
        (Action::Build, _) => (LayerState::PlanNeeded, "building the image of"),
    };
    let run_state = run.status.as_ref().and_then(|s| s.state);
    if let Some((reason, standing, message)) = obstacle(run) {
        return hold(
            state,
            reason,
            format!("{doing} {short} has to wait: {}", brief(message)),
            standing,
            Wake::OnChange,
        );
    }
    let (reason, why) = match run_state {
        Some(RunState::FailureGracePeriod) => {
            ("Retrying", format!("{doing} {short} {}", brief_pause(ready_message(run))))
        }
        Some(
            RunState::Initial
            | RunState::Running
            | RunState::Retrying
            | RunState::Succeeded
            | RunState::Failed,
        )
        | None => {
            let what = match (plan, run.spec.mode) {
                (Some(plan), Mode::Normal | Mode::Destroy) => format!("applying {}", words_of(plan.summary)),
                (Some(plan), Mode::RefreshOnly) => format!("{doing} {short}, {}", plan.differences.words()),
                (None, _) => format!("{doing} {short}"),
            };
            let reason = match run.spec.action {
                Action::Plan => PLANNING,
                Action::Apply => APPLYING,
                Action::Build => BUILDING,
            };
            (reason, format!("{what}: {}", run.spec.trigger.reason))
        }
    };
    hold(state, reason, why, Standing::Working, Wake::OnChange)
}

/// The reasons of a layer that a run works for, in the queue or with a pod.
pub const PLANNING: &str = "Planning";
pub const APPLYING: &str = "Applying";
pub const BUILDING: &str = "Building";

/// What keeps a run from starting, or its pod, beside the queue, which moves by itself.
pub(super) fn obstacle(run: &TerraformRun) -> Option<(&'static str, Standing, &str)> {
    let status = run.status.as_ref().filter(|status| !status.state.is_some_and(RunState::is_terminal))?;
    let ready = condition::find(&status.conditions, "Ready")?;
    let is_paused = status.state == Some(RunState::FailureGracePeriod);
    let (reason, standing) = match ready.reason.as_str() {
        "SourceUnavailable" if !is_paused => ("SourceUnavailable", Standing::Stuck),
        "StateLocked" if !is_paused => ("StateLocked", Standing::Working),
        DATASTORE_FULL if !is_paused => (DATASTORE_FULL, Standing::Stuck),
        DATASTORE_UNAVAILABLE if !is_paused => (DATASTORE_UNAVAILABLE, Standing::Stuck),
        POD_REFUSED => (POD_REFUSED, Standing::Stuck),
        POD_NOT_STARTING => (POD_NOT_STARTING, Standing::Stuck),
        POD_UNSCHEDULABLE => (POD_UNSCHEDULABLE, Standing::Working),
        _ => return None,
    };
    Some((reason, standing, &ready.message))
}

pub(super) fn words_of(summary: PlanSummary) -> String {
    if summary.scripts > 0 {
        let tools = PlanSummary { scripts: 0, ..summary };
        return match tools.has_changes() {
            true => format!("a script to run, by the tool's plan {}", words_of(tools)),
            false => "a script to run".to_owned(),
        };
    }
    if summary.add + summary.change + summary.destroy == 0 {
        return "only outputs change".to_owned();
    }
    format!("{} to add, {} to change, {} to destroy", summary.add, summary.change, summary.destroy)
}

/// What fits into a sentence of an error that may be pages long: its first line, and of a long one the beginning and the end, where the
/// cause stands. The whole of it is told by the run or the repository that it comes from.
pub(super) fn brief(error: &str) -> String {
    const START: usize = 120;
    const END: usize = 120;
    let line = error.trim().lines().next().unwrap_or_default().trim_end();
    let length = line.chars().count();
    if length <= START + END {
        return line.to_owned();
    }
    let start: String = line.chars().take(START).collect();
    let end: String = line.chars().skip(length - END).collect();
    format!("{} … {}", start.trim_end(), end.trim_start())
}

/// The same of a run's own words on a pause: when it goes on stays whole.
pub(super) fn brief_pause(message: &str) -> String {
    match message.split_once(" UTC: ") {
        Some((pause, error)) => format!("{pause} UTC: {}", brief(error)),
        None => brief(message),
    }
}

pub(super) fn clock(at: Timestamp) -> String {
    at.strftime("%H:%M:%S UTC").to_string()
}
