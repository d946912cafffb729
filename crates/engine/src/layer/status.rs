//! What people read of a decision: the status and its conditions. Nothing here decides, and nothing that merely moves with time
//! is written.

use std::collections::BTreeMap;

use api::backend::StateIdentity;
use api::condition::{self, Truth};
use api::layer::{DriftStatus, LayerState, PlanRef, Revisions, RunRef};
use api::run::{PlanSummary, RunResult, RunState};
use api::{TerraformLayerStatus, TerraformRun};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::history::{History, Plan, has_failed, has_succeeded, ready_message};
use super::need::{Need, Standing, Step, brief_pause};
use super::runs::Asked;
use super::{Gone, Observed, Read, branch_words, build, drift, expiry, image_words, outputs, template};
use crate::Wake;

/// Runs that the status names.
const NAMED: usize = 5;

/// Runs that go with the same decision are not told of any more. O(runs kept · runs that go, which are few).
pub(super) fn status(
    seen: &Observed<'_>,
    history: &History<'_>,
    need: &Need,
    going: &[Gone],
) -> TerraformLayerStatus {
    let before = seen.layer.status.clone().unwrap_or_default();
    let branch_before = before.revision.branch.clone();
    let source = match &seen.source {
        Read::Present(Ok(source)) => Some(source),
        Read::Present(Err(_)) | Read::Absent | Read::Unknown => None,
    };
    let planned = history.plan.as_ref();
    let in_place = history.in_place.map(|run| run.spec.layer.revision.clone());
    let starting = match &need.step {
        Step::Start(run) => Some(run.as_ref()),
        Step::Hold => None,
    };
    let stays = |run: &&TerraformRun| !going.iter().any(|gone| run.metadata.uid.as_ref() == Some(&gone.uid));
    let newest = starting.into_iter().chain(history.newest_first.iter().copied().filter(stays));
    let runs: Vec<RunRef> = newest.take(NAMED).filter_map(|run| run_ref(run, &before, seen.now)).collect();
    let mut status = TerraformLayerStatus {
        observed_generation: seen.layer.metadata.generation,
        state: Some(need.state),
        why: Some(need.why.clone()),
        last_result: planned.map(|plan| result_words(history, plan)).or(before.last_result),
        next_check: match need.wake {
            Wake::At(at) => Some(Time(whole_second(at))),
            Wake::OnChange => None,
        },
        revision: Revisions {
            branch: source.map(|s| s.head.clone()).or(before.revision.branch),
            relevant: source.map(|s| s.relevant.clone()).or(before.revision.relevant),
            short: source.map(|s| image_words::short(seen, s)).or(before.revision.short),
            planned: planned.map(|plan| plan.run.spec.layer.revision.clone()).or(before.revision.planned),
            applied: in_place.or(before.revision.applied),
        },
        image: match seen.image {
            Some(image) => image.status.clone().or(before.image),
            None => build::told(seen, history),
        },
        inputs: match &seen.inputs {
            Read::Present(Ok(inputs)) => inputs.clone(),
            Read::Present(Err(_)) | Read::Absent | Read::Unknown => before.inputs,
        },
        script: match history.in_place {
            Some(run) => result(run).and_then(|result| result.script.clone()),
            None => before.script,
        },
        declared: template::declared(seen, before.declared),
        hook_outputs: hook_outputs(seen, history, before.hook_outputs),
        output_targets: before.output_targets,
        plan: planned.map(|plan| PlanRef {
            run: plan.run.metadata.name.clone().unwrap_or_default(),
            attempt: plan.attempt,
            sha256: plan.sha256.clone(),
            summary: plan.summary,
            made_at: Time(plan.made_at),
            expires: awaits_apply(history, plan, starting)
                .then(|| Time(whole_second(expiry::expires(seen, plan)))),
        }),
        state_identity: planned_on(history).cloned().or(before.state_identity),
        last_run: runs.first().cloned(),
        latest_runs: runs,
        last_sync: Asked::Sync.answered(seen, history).or(before.last_sync),
        last_look: Asked::Look.answered(seen, history).or(before.last_look),
        drift: drift::known(seen, history).map(drift_status),
        consecutive_failures: history
            .apply
            .filter(|run| has_failed(run))
            .map_or(0, |run| run.spec.preceding_failures + 1),
        conditions: before.conditions,
    };
    conditions(seen, history, need, &mut status);
    branch_words::tell(seen, branch_before.as_ref(), &mut status.conditions);
    outputs::tell(seen, &mut status);
    status
}

/// Whether the plan has something to apply, and no run has that to do.
fn awaits_apply(history: &History<'_>, plan: &Plan<'_>, starting: Option<&TerraformRun>) -> bool {
    let artifact = starting.and_then(|run| run.spec.artifact.as_ref());
    let is_starting = artifact.is_some_and(|artifact| &artifact.sha256 == plan.sha256);
    plan.summary.has_changes() && history.apply.is_none() && !is_starting
}

fn result(run: &TerraformRun) -> Option<&RunResult> {
    run.status.as_ref()?.result.as_ref()
}

/// The state that the newest plan of any kind was made on. O(runs kept).
fn planned_on<'a>(history: &History<'a>) -> Option<&'a StateIdentity> {
    history.newest_first.iter().find_map(|run| result(run)?.state_identity.as_ref())
}

/// The newest of each that some hook is still asked for. O(runs kept and their outputs).
fn hook_outputs(
    seen: &Observed<'_>,
    history: &History<'_>,
    mut known: BTreeMap<String, Value>,
) -> BTreeMap<String, Value> {
    for outputs in history.newest_first.iter().rev().filter_map(|run| Some(&result(run)?.hook_outputs)) {
        known.extend(outputs.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
    let hooks = &seen.layer.spec.hooks;
    let is_asked_for =
        |name: &str| hooks.all().any(|hook| hook.output_to.as_ref().is_some_and(|to| to.as_str() == name));
    known.retain(|name, _| is_asked_for(name));
    known
}

fn drift_status(plan: &Plan<'_>) -> DriftStatus {
    let summary = plan.summary;
    DriftStatus {
        run: plan.run.metadata.name.clone().unwrap_or_default(),
        found_at: Time(plan.made_at),
        total: if plan.differences.is_empty() {
            summary.add + summary.change + summary.destroy
        } else {
            plan.differences.total
        },
        resources: plan.differences.resources.clone(),
    }
}

fn conditions(seen: &Observed<'_>, history: &History<'_>, need: &Need, status: &mut TerraformLayerStatus) {
    let generation = seen.layer.metadata.generation;
    let relevant = status.revision.relevant.clone();
    let planned_relevant = relevant.is_some() && status.revision.planned == relevant;
    let plan_fresh = planned_relevant && need.state != LayerState::PlanNeeded;
    let apply_done = history.plan.as_ref().is_some_and(|plan| {
        !plan.summary.has_changes()
            || history.apply.is_some_and(has_succeeded)
            || drift::is_accepted(seen, history, plan)
    });
    let drift_message = drift::known(seen, history)
        .map(|plan| format!("the infrastructure differs from the code: {}", drift::words(plan)));
    let mut set = |kind, truth, reason: &str, message: &str| {
        condition::set(&mut status.conditions, kind, truth, reason, message, generation, seen.now);
    };
    set(
        "IsPlanArtifactUpToDate",
        plan_fresh.into(),
        if plan_fresh { "UpToDate" } else { need.reason },
        if plan_fresh { "the newest plan is within the drift interval" } else { &need.why },
    );
    set(
        "IsApplyUpToDate",
        apply_done.into(),
        if apply_done { "UpToDate" } else { "NotApplied" },
        if apply_done { "nothing is left to apply" } else { &need.why },
    );
    set(
        "IsLastRelevantCommitPlanned",
        planned_relevant.into(),
        if planned_relevant { "Planned" } else { "NotPlanned" },
        if planned_relevant { "the relevant commit is planned" } else { &need.why },
    );
    match &drift_message {
        Some(message) => set("Drifted", Truth::True, "Drifted", message),
        None => {
            set("Drifted", Truth::False, "NoDrift", "no difference is known that the code does not explain")
        }
    }
    image_words::tell(seen, &mut status.conditions);
    let mut set = |kind, truth, reason: &str, message: &str| {
        condition::set(&mut status.conditions, kind, truth, reason, message, generation, seen.now);
    };
    let ready = match need.standing {
        Standing::InSync => Truth::True,
        Standing::Working | Standing::Waiting | Standing::Stuck => Truth::False,
        Standing::Unknown => Truth::Unknown,
    };
    set("Ready", ready, need.reason, &need.why);
    for (kind, standing) in [("Reconciling", Standing::Working), ("Stalled", Standing::Stuck)] {
        if need.standing == standing {
            let why = need.why.as_str();
            condition::set(&mut status.conditions, kind, Truth::True, need.reason, why, generation, seen.now);
        } else {
            condition::clear(&mut status.conditions, kind);
        }
    }
}

/// A run is told of before it is there, so the time that was told first stays until it ends.
fn run_ref(run: &TerraformRun, before: &TerraformLayerStatus, now: Timestamp) -> Option<RunRef> {
    let status = run.status.as_ref();
    let name = run.metadata.name.clone()?;
    let told = before.latest_runs.iter().find(|told| told.name == name).map(|told| told.date.clone());
    Some(RunRef {
        name,
        action: run.spec.action,
        mode: run.spec.mode,
        commit: run.spec.layer.revision.clone(),
        date: status
            .and_then(|s| s.finished_at.clone())
            .or(told)
            .or_else(|| run.metadata.creation_timestamp.clone())
            .unwrap_or(Time(whole_second(now))),
        result: match status.and_then(|s| s.result.as_ref()) {
            Some(result) => result.message.clone(),
            None if status.and_then(|s| s.state) == Some(RunState::FailureGracePeriod) => {
                brief_pause(ready_message(run))
            }
            None => "running".to_owned(),
        },
    })
}

/// In Burrito's words as long as the plan is one.
fn result_words(history: &History<'_>, plan: &Plan<'_>) -> String {
    let PlanSummary { add, change, destroy, scripts, .. } = plan.summary;
    if scripts > 0 {
        let is_done = history.apply.is_some_and(has_succeeded);
        return if is_done { "Applied by a script" } else { "Plan: a script to run" }.to_owned();
    }
    if plan.summary.has_changes() && history.apply.is_some_and(has_succeeded) {
        return format!("Applied: {add} created, {change} updated, {destroy} deleted");
    }
    format!("Plan: {add} to create, {change} to update, {destroy} to delete")
}

/// Status holds whole seconds; a rounded value compares equal to what the API gives back.
fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
