//! What happened, read from what layers and runs say of themselves. The same thing has the same name whenever it is read, also by another
//! process after a crash.

use api::notification::Event;
use api::run::{Action, Mode, RunState};
use api::{TerraformLayer, TerraformLayerStatus, TerraformRun, condition};
use jiff::Timestamp;
use serde_json::json;

use crate::names;

/// Something that happened to a layer. There is no place in it for what a plan or a state holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Of the layer's uid, the event and what it is about.
    pub id: String,
    pub event: Event,
    pub namespace: String,
    pub layer: String,
    pub run: Option<String>,
    pub revision: Option<String>,
    /// When it happened; of something that goes on, when it was last seen.
    pub at: Timestamp,
    /// In the words of the layer or run, which everybody reads who may see its status.
    pub message: String,
}

/// What a layer says of itself now.
pub fn of_layer(layer: &TerraformLayer) -> Vec<Fact> {
    let (Some(status), Some(uid)) = (&layer.status, &layer.metadata.uid) else { return Vec::new() };
    let fact = |event: Event, about: String, run: Option<&str>, at: Timestamp, message: &str| Fact {
        id: names::delivery(uid, event.as_str(), &about),
        event,
        namespace: layer.metadata.namespace.clone().unwrap_or_default(),
        layer: layer.metadata.name.clone().unwrap_or_default(),
        run: run.map(str::to_owned),
        revision: status.revision.relevant.as_ref().map(ToString::to_string),
        at,
        message: message.to_owned(),
    };
    let mut facts = Vec::new();
    let ready = condition::find(&status.conditions, "Ready");
    if let (Some(ready), Some(plan)) = (ready, &status.plan)
        && ready.reason == "WaitingForApproval"
    {
        // Planned once more with the same outcome, it is the same question.
        let about = json!([status.revision.planned, plan.summary, last_apply(status)]).to_string();
        facts.push(fact(Event::ApprovalNeeded, about, Some(&plan.run), plan.made_at.0, &ready.message));
    }
    if let (Some(drifted), Some(drift)) = (condition::find(&status.conditions, "Drifted"), &status.drift)
        && condition::is_true(&status.conditions, "Drifted")
    {
        // Found once more, it is the same drift.
        let about = json!([drift.total, drift.resources, last_apply(status)]).to_string();
        facts.push(fact(Event::Drifted, about, Some(&drift.run), drift.found_at.0, &drifted.message));
    }
    if let Some(stalled) = condition::find(&status.conditions, "Stalled")
        && condition::is_true(&status.conditions, "Stalled")
    {
        let since = stalled.last_transition_time.0;
        facts.push(fact(Event::Stalled, since.to_string(), None, since, &stalled.message));
    }
    facts
}

fn last_apply(status: &TerraformLayerStatus) -> Option<&str> {
    status.latest_runs.iter().find(|run| run.action == Action::Apply).map(|run| run.name.as_str())
}

/// What came of a run, once it is over.
pub fn of_run(run: &TerraformRun) -> Option<Fact> {
    let status = run.status.as_ref()?;
    let (at, result) = (status.finished_at.as_ref()?, status.result.as_ref()?);
    let event = match (status.state?, run.spec.action) {
        (RunState::Succeeded, Action::Apply) if run.spec.mode == Mode::Destroy => Event::Destroyed,
        (RunState::Succeeded, Action::Apply) => Event::Applied,
        // What a person or a newer commit ended is nobody's failure.
        (RunState::Failed, _) if matches!(result.reason.as_str(), "Canceled" | "Superseded" | "Stale") => {
            return None;
        }
        (RunState::Failed, Action::Apply) => Event::ApplyFailed,
        (RunState::Failed, Action::Plan) => Event::PlanFailed,
        // A layer whose image cannot be built is stalled, and that is told.
        (RunState::Failed, Action::Build)
        | (RunState::Succeeded, Action::Plan | Action::Build)
        | (
            RunState::Initial | RunState::Running | RunState::FailureGracePeriod | RunState::Retrying,
            Action::Plan | Action::Apply | Action::Build,
        ) => return None,
    };
    let name = run.metadata.name.clone()?;
    Some(Fact {
        id: names::delivery(&run.spec.layer.uid, event.as_str(), &name),
        event,
        namespace: run.metadata.namespace.clone().unwrap_or_default(),
        layer: run.spec.layer.name.to_string(),
        run: Some(name),
        revision: Some(run.spec.layer.revision.to_string()),
        at: at.0,
        message: result.message.clone(),
    })
}
