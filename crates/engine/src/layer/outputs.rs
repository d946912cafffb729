//! What the layer's outputs mean to the layer: which run has them, whether one is needed that keeps them, and what is said about them.

use std::time::Duration;

use api::condition::{self, Truth};
use api::outputs::OutputPlace;
use api::run::TriggerKind;
use api::{TerraformLayerStatus, TerraformRun};

use super::history::History;
use super::need::{Need, Standing, brief};
use super::remedy::{PlanWish, plan_or_pause};
use super::{Observed, Source};
use crate::outputs::{self, Giver, Standing as Outputs};
use crate::{Wake, later};

/// The condition that tells of them.
const WRITTEN: &str = "OutputsWritten";

/// The run whose outputs are those of what is in place: the last that made code and infrastructure equal, or accepted drift since. Of a
/// script it is the run of the script itself: a plan that finds nothing to do does not know what the script has printed.
pub fn gives_outputs(seen: &Observed<'_>) -> Giver {
    giver(&History::of(seen))
}

/// The same for whoever knows no more than the runs of this incarnation of the layer. O(runs · log).
pub fn kept_outputs(runs: &[TerraformRun]) -> Giver {
    giver(&History::of_runs(runs, None))
}

fn giver(history: &History<'_>) -> Giver {
    let in_place = history.in_place.map(|run| history.script_run(run).unwrap_or(run));
    let Some(run) = history.accepted.or(in_place) else { return Giver::Nobody };
    if !run.spec.outputs {
        return Giver::Forgetful;
    }
    let attempt = run.status.as_ref().and_then(|status| status.attempts.last());
    let (name, uid) = (run.metadata.name.clone(), run.metadata.uid.clone());
    match (name, uid, attempt) {
        (Some(name), Some(uid), Some(attempt)) => Giver::Run { name, uid, attempt: attempt.number },
        _ => Giver::Nobody,
    }
}

/// Everything is in place since a run that kept no outputs, and now somebody asks for them: a plan without changes keeps them too. One
/// that was asked for them is not followed by another, whatever came of it.
pub(super) fn plan_for_outputs(
    seen: &Observed<'_>,
    source: &Source,
    history: &History<'_>,
    in_place: &TerraformRun,
) -> Option<Need> {
    let is_needed = asks(seen) && !in_place.spec.outputs;
    is_needed.then(|| {
        let reason = "the outputs are to be written, and no run has kept them yet".to_owned();
        let wish = PlanWish::new(TriggerKind::Outputs, &source.relevant, reason);
        plan_or_pause(seen, history, PlanWish { after: Some(in_place), ..wish })
    })
}

/// Whether runs keep the outputs.
pub(super) fn asks(seen: &Observed<'_>) -> bool {
    !seen.layer.spec.write_outputs_to.is_empty()
}

/// A layer whose outputs are not where they were asked for is not ready, however equal code and infrastructure are.
pub(super) fn with_outputs(seen: &Observed<'_>, need: Need) -> Need {
    if need.standing != Standing::InSync {
        return need;
    }
    match &seen.outputs.standing {
        Outputs::NotAsked | Outputs::Written(_) => need,
        Outputs::Refused(refusal) => Need {
            reason: "OutputsNotWritten",
            why: format!("{}; the outputs are not written: {}", need.why, brief(&refusal.why)),
            standing: Standing::Stuck,
            ..need
        },
        Outputs::Unknown if is_written(seen) => need,
        Outputs::Recording | Outputs::Unknown | Outputs::Waiting => Need {
            reason: "WritingOutputs",
            why: format!("{}; the outputs are being written", need.why),
            standing: Standing::Working,
            ..need
        },
    }
}

/// Nobody tells when a right was given.
const PERMITTED_AGAIN: Duration = Duration::from_secs(60);

/// When they are looked at again though nothing changes.
pub(super) fn wake(seen: &Observed<'_>, history: &History<'_>) -> Wake {
    let is_due = history.in_place.is_some() || !seen.outputs.places.is_subset(&outputs::asked(seen.layer));
    match &seen.outputs.standing {
        // The objects stand in the status now: they are written at once, if there is something to write.
        Outputs::Recording if is_due => Wake::At(seen.now),
        Outputs::Refused(refusal) if refusal.reason == outputs::NOT_PERMITTED => {
            Wake::At(later(seen.now, PERMITTED_AGAIN))
        }
        Outputs::NotAsked
        | Outputs::Unknown
        | Outputs::Recording
        | Outputs::Waiting
        | Outputs::Written(_)
        | Outputs::Refused(_) => Wake::OnChange,
    }
}

fn is_written(seen: &Observed<'_>) -> bool {
    seen.layer.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, WRITTEN))
}

pub(super) fn tell(seen: &Observed<'_>, status: &mut TerraformLayerStatus) {
    status.output_targets = seen.outputs.places.iter().map(OutputPlace::from).collect();
    let (truth, reason, message) = match &seen.outputs.standing {
        Outputs::NotAsked => return condition::clear(&mut status.conditions, WRITTEN),
        Outputs::Unknown => return,
        Outputs::Recording | Outputs::Waiting => {
            (Truth::False, "Waiting", "they are written once the code is in place")
        }
        Outputs::Written(what) => (Truth::True, "Written", what.as_str()),
        Outputs::Refused(refusal) => (Truth::False, refusal.reason, refusal.why.as_str()),
    };
    let generation = seen.layer.metadata.generation;
    condition::set(&mut status.conditions, WRITTEN, truth, reason, message, generation, seen.now);
}
