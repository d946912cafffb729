//! A layer that is being deleted: its runs end first, then its infrastructure goes where the layer says so, then it is let go.
//!
//! What a destroy needs comes from the last apply, not from the repository, which may be deleted in the same breath. A destroy that
//! fails keeps the layer, says why, and is tried again; setting `deletionPolicy` to `Orphan` lets the layer go without it.

use api::TerraformRun;
use api::annotation;
use api::layer::{DeletionPolicy, LayerState, OVERRIDE_REFUSED};
use api::run::{Action, Mode, Trigger, TriggerKind};
use api::text::CommitId;

use super::expiry::apply_or_renew;
use super::history::{History, Plan, bundle_of, has_begun, has_succeeded};
use super::need::{self, Need, Standing, brief, hold};
use super::refused::{self, Heeded, WAY_OUT};
use super::remedy::{PlanWish, after_failed_apply, plan_or_pause, rejection};
use super::runs::{self, Files, Wanted, start_plan};
use super::{
    Decision, Effect, Observed, Read, answers, holds_finalizer, moved, policy, retention, status, undone,
};
use crate::Wake;

pub(super) fn decide(seen: &Observed<'_>, history: &History<'_>) -> Decision {
    if !holds_finalizer(seen.layer) {
        // Nothing was ever started under it, or it was let go already; others may still hold it.
        let status = seen.layer.status.clone().unwrap_or_default();
        return Decision { effects: Vec::new(), status, wake: Wake::OnChange };
    }
    if let Some(run) = history.active {
        return while_running(seen, history, run);
    }
    let need = match policy::deletion(seen) {
        DeletionPolicy::Orphan => None,
        DeletionPolicy::Destroy => destroy(seen, history),
    };
    match need {
        None => release(seen, history),
        Some(need) => {
            let Heeded { effect, told, wake } = refused::heed(seen, need);
            let mut effects: Vec<Effect> = effect.into_iter().collect();
            effects.extend(answers::answers(seen, history, &effects));
            Decision { effects, status: status::status(seen, history, &told, &[]), wake }
        }
    }
}

/// The layer's runs and what they left go with it, oldest first, and the layer last. O(runs kept).
fn release(seen: &Observed<'_>, history: &History<'_>) -> Decision {
    let runs = history.newest_first.iter().rev().copied().filter_map(retention::gone);
    let effects = runs.map(Effect::DeleteRun).chain([Effect::RemoveFinalizer]).collect();
    let status = seen.layer.status.clone().unwrap_or_default();
    Decision { effects, status, wake: Wake::OnChange }
}

fn while_running(seen: &Observed<'_>, history: &History<'_>, run: &TerraformRun) -> Decision {
    let is_wanted = run.spec.mode == Mode::Destroy && policy::deletion(seen) == DeletionPolicy::Destroy;
    let need = if is_wanted {
        need::at_work(run, history.applied_by(run).as_ref())
    } else {
        let state = match run.spec.action {
            Action::Plan | Action::Build => LayerState::PlanNeeded,
            Action::Apply => LayerState::ApplyNeeded,
        };
        let action = run.spec.action.as_str();
        let why = match need::obstacle(run) {
            None => format!("being deleted; waiting for the running {action} to end"),
            Some((_, _, why)) => format!(
                "being deleted; waiting for the {action} under way, which cannot go on and can be canceled: {}",
                brief(why)
            ),
        };
        hold(state, "Deleting", why, Standing::Working, Wake::OnChange)
    };
    // A plan that waits for its turn has done nothing and holds nothing. An apply may already hold the state's lock.
    let is_idle = !has_begun(run) && !run.spec.action.mutates() && !is_wanted;
    let effects = is_idle.then(|| retention::gone(run)).flatten().map(Effect::DeleteRun);
    Decision {
        effects: effects.into_iter().collect(),
        status: status::status(seen, history, &need, &[]),
        wake: need.wake,
    }
}

/// What is left to do before the layer may go; nothing once its infrastructure is gone.
fn destroy(seen: &Observed<'_>, history: &History<'_>) -> Option<Need> {
    if seen.layer.spec.suspend {
        let why = "being deleted, but suspended; set spec.suspend to false to destroy the infrastructure";
        return Some(hold(LayerState::ApplyNeeded, "Suspended", why, Standing::Waiting, Wake::OnChange));
    }
    let Some((revision, files)) = last_known(seen, history) else {
        let why = "being deleted, but no commit of it was ever seen to destroy it by";
        return Some(with_way_out(hold(
            LayerState::PlanNeeded,
            "SourceUnseen",
            why,
            Standing::Stuck,
            Wake::OnChange,
        )));
    };
    // What undoes an apply needs a runner too, and what that one was given is no pod.
    match (seen.repository, seen.layer.runner(super::repository(seen), &seen.settings.overrides)) {
        (Read::Unknown, _) => return Some(need::unknown("the repository could not be read")),
        (Read::Present(_) | Read::Absent, Ok(_)) => {}
        (Read::Present(_) | Read::Absent, Err(refusal)) => {
            let why = refusal.to_string();
            let (state, standing) = (LayerState::PlanNeeded, Standing::Stuck);
            return Some(with_way_out(hold(state, OVERRIDE_REFUSED, why, standing, Wake::OnChange)));
        }
    }
    let now = super::inputs(seen);
    // What was never applied has nothing kept to undo it by.
    let now = match (now, undone::apply(seen)) {
        (Ok(now), _) => Some(now.cloned()),
        (Err(_), Some(_)) => None,
        (Err(need), None) => return Some(with_way_out(*need)),
    };
    let reason = "the layer is being deleted and its deletionPolicy is Destroy".to_owned();
    let wish = || PlanWish {
        mode: Mode::Destroy,
        files: files.clone(),
        ..PlanWish::new(TriggerKind::Deletion, &revision, reason.clone())
    };
    if let Some(token) = runs::Asked::Sync.unanswered(seen, history) {
        let reason = "asked for by hand, to destroy the infrastructure".to_owned();
        let trigger = Trigger { kind: TriggerKind::Manual, by: None, reason };
        let wanted = Wanted {
            mode: Mode::Destroy,
            files: files.clone(),
            ..Wanted::new(seen, &revision, &token, trigger)
        };
        // Whoever asks by hand may have put right what the layer says, so that counts as far as it can be had.
        let wanted = match now {
            Some(inputs) => {
                let setup = Some(seen.layer.setup(super::repository(seen)));
                Wanted { inputs, setup, ..wanted }
            }
            None => Wanted { undoes: undone::of(seen), ..wanted },
        };
        return Some(start_plan(seen, wanted));
    }
    let need = match history.newest_plan(Mode::Destroy) {
        None => plan_or_pause(seen, history, wish()),
        Some(plan) => after_plan(seen, history, &plan, &reason)?,
    };
    Some(with_way_out(need))
}

fn after_plan(seen: &Observed<'_>, history: &History<'_>, plan: &Plan<'_>, reason: &str) -> Option<Need> {
    if let Some(how) = moved::away(history, plan) {
        let why = format!(
            "being deleted, but {how}; set the backend back, or move the state there, and the annotation {} plans anew",
            annotation::SYNC
        );
        return Some(hold(LayerState::PlanNeeded, "StateMoved", why, Standing::Stuck, Wake::OnChange));
    }
    if !plan.summary.has_changes() {
        return None;
    }
    match history.apply_of(plan.sha256) {
        Some(apply) if has_succeeded(apply) => None,
        Some(apply) => Some(after_failed_apply(seen, history, apply)),
        None => Some(match rejection(seen, plan) {
            Some(why) => {
                let why = format!("{why}; the annotation {} plans anew", annotation::SYNC);
                hold(LayerState::ApplyNeeded, "Rejected", why, Standing::Waiting, Wake::OnChange)
            }
            None => {
                let trigger = Trigger { kind: TriggerKind::Deletion, by: None, reason: reason.to_owned() };
                apply_or_renew(seen, history, plan, trigger)
            }
        }),
    }
}

/// The commit that the infrastructure was last changed by, and its files; else whatever commit of the layer is known.
fn last_known(seen: &Observed<'_>, history: &History<'_>) -> Option<(CommitId, Option<Files>)> {
    let newest = |action: Action| {
        let run = history
            .newest_first
            .iter()
            .find(|run| run.spec.action == action && run.spec.mode == Mode::Normal && has_begun(run))?;
        let files = Files { bundle: bundle_of(run).cloned(), ..Files::of(run) };
        Some((run.spec.layer.revision.clone(), Some(files)))
    };
    let remembered = || {
        let known = &seen.layer.status.as_ref()?.revision;
        let commit = known.applied.as_ref().or(known.planned.as_ref()).or(known.relevant.as_ref())?;
        Some((commit.clone(), None))
    };
    let source = || match &seen.source {
        Read::Present(Ok(source)) => Some((source.relevant.clone(), None)),
        Read::Present(Err(_)) | Read::Absent | Read::Unknown => None,
    };
    newest(Action::Apply).or_else(|| newest(Action::Plan)).or_else(remembered).or_else(source)
}

/// Whoever is stuck is told how to get out.
fn with_way_out(need: Need) -> Need {
    match need.standing {
        Standing::Stuck => Need { why: format!("{}; {WAY_OUT}", need.why), ..need },
        Standing::InSync | Standing::Working | Standing::Waiting | Standing::Unknown => need,
    }
}
