//! From a plan to an apply, and what follows a failure of either.

use api::annotation;
use api::approval::Decision as Word;
use api::layer::{LayerState, OnDrift};
use api::run::{Mode, Trigger, TriggerKind};
use api::text::{CommitId, Sha256};
use api::{TerraformApproval, TerraformRun};

use super::expiry::{apply_or_renew, wait_for_word};
use super::history::{History, Plan, after, finished_at, has_succeeded, result_message, result_reason};
use super::need::{Need, Standing, brief, clock, hold, words_of};
use super::runs::{self, Files, Wanted, start_plan};
use super::{Observed, Source, annotated, drift, moved, name_of, policy, undone};
use crate::run::SUPERSEDED;
use crate::{Wake, later};

/// Why a plan is wished for, and of what.
pub(super) struct PlanWish<'a> {
    pub(super) kind: TriggerKind,
    pub(super) mode: Mode,
    pub(super) revision: &'a CommitId,
    /// The run that the wish comes from: the same wish after another run is another wish.
    pub(super) after: Option<&'a TerraformRun>,
    pub(super) reason: String,
    pub(super) preceding: u32,
    /// The files, where they are known from an earlier run.
    pub(super) files: Option<Files>,
}

impl<'a> PlanWish<'a> {
    pub(super) fn new(kind: TriggerKind, revision: &'a CommitId, reason: String) -> Self {
        Self { kind, mode: Mode::Normal, revision, after: None, reason, preceding: 0, files: None }
    }
}

/// The plan that is wished for. One that failed for good is tried again at the next drift check: each such check is a wish of
/// its own, named after the failure before it. O(runs kept).
pub(super) fn plan_or_pause(seen: &Observed<'_>, history: &History<'_>, wish: PlanWish<'_>) -> Need {
    let mut failed = history.newest_failed_plan(wish.mode, wish.revision, wish.after);
    let mut token = failed.or(wish.after).map(after).unwrap_or_default();
    for _ in 0..=history.newest_first.len() {
        match history.named(&runs::plan_name(seen, wish.mode, wish.revision, &token)) {
            Some(run) => {
                failed = Some(run);
                token = after(run);
            }
            None => break,
        }
    }
    // A plan that a newer commit overtook in the queue has not failed: its commit may come back, and is then planned at once.
    let again = failed
        .filter(|run| result_reason(run) != SUPERSEDED)
        .map(|run| (run, later(finished_at(run).unwrap_or(seen.now), policy::drift_interval(seen))));
    match again {
        Some((run, again)) if seen.now < again => {
            let why = format!(
                "{}; a new commit or terrane sync {} tries again: {}",
                gave_up(run),
                name_of(seen.layer),
                brief(result_message(run))
            );
            hold(LayerState::PlanNeeded, "GaveUp", why, Standing::Stuck, Wake::At(again))
        }
        Some(_) | None => {
            let trigger = Trigger { kind: wish.kind, by: None, reason: wish.reason };
            let wanted = Wanted {
                mode: wish.mode,
                preceding: wish.preceding,
                files: wish.files,
                undoes: match wish.mode {
                    Mode::Destroy => undone::of(seen),
                    Mode::Normal | Mode::RefreshOnly => None,
                },
                ..Wanted::new(seen, wish.revision, &token, trigger)
            };
            start_plan(seen, wanted)
        }
    }
}

fn gave_up(run: &TerraformRun) -> String {
    match run.status.as_ref().map_or(0, |s| s.attempts.len()) {
        0 | 1 => "the plan failed".to_owned(),
        tries => format!("gave up after {tries} failed plans"),
    }
}

/// The relevant commit is planned: is there something to apply, and may it be?
pub(super) fn after_plan(
    seen: &Observed<'_>,
    source: &Source,
    history: &History<'_>,
    plan: &Plan<'_>,
) -> Need {
    if !plan.summary.has_changes() {
        return drift::settled(seen, source, history, plan.run);
    }
    match history.apply {
        Some(apply) if has_succeeded(apply) => drift::settled(seen, source, history, apply),
        Some(apply) => after_failed_apply(seen, history, apply),
        None => drift::accepting(seen, source, history, plan)
            .unwrap_or_else(|| apply_or_wait(seen, source, history, plan)),
    }
}

fn apply_or_wait(seen: &Observed<'_>, source: &Source, history: &History<'_>, plan: &Plan<'_>) -> Need {
    match permit(seen, history, plan) {
        Permit::Now(trigger) => apply_or_renew(seen, history, plan, trigger),
        Permit::Wait { reason, why } => {
            let due = later(plan.made_at, policy::drift_interval(seen));
            if seen.now >= due {
                return drift::look(seen, history, source, plan.run, Mode::Normal);
            }
            wait_for_word(seen, plan, LayerState::ApplyNeeded, reason, why, due)
        }
    }
}

/// The same apply is never started again: the world is planned anew, after a pause that grows, so plan, apply, fail cannot spin.
pub(super) fn after_failed_apply(seen: &Observed<'_>, history: &History<'_>, apply: &TerraformRun) -> Need {
    let failures = apply.spec.preceding_failures.saturating_add(1);
    let finished = finished_at(apply).unwrap_or(seen.now);
    let exhausted = failures > policy::max_retries(seen);
    let pause = if exhausted { policy::drift_interval(seen) } else { seen.settings.retry.pause(failures) };
    let again = later(finished, pause);
    if seen.now >= again {
        let reason = format!("the apply before failed ({})", result_reason(apply));
        let wish = PlanWish {
            mode: apply.spec.mode,
            after: Some(apply),
            preceding: if exhausted { 0 } else { failures },
            files: Some(Files::of(apply)),
            ..PlanWish::new(TriggerKind::Failure, &apply.spec.layer.revision, reason)
        };
        return plan_or_pause(seen, history, wish);
    }
    let (reason, why, standing) = if exhausted {
        let why = format!(
            "gave up after {failures} failed applies; a new commit or terrane sync {} tries again: {}",
            name_of(seen.layer),
            brief(result_message(apply))
        );
        ("GaveUp", why, Standing::Stuck)
    } else {
        let why =
            format!("apply failed, planning anew at {}: {}", clock(again), brief(result_message(apply)));
        ("ApplyFailed", why, Standing::Working)
    };
    hold(LayerState::PlanNeeded, reason, why, standing, Wake::At(again))
}

pub(super) enum Permit {
    Now(Trigger),
    Wait { reason: &'static str, why: String },
}

/// Who said that this plan, by its bytes, must not be applied.
pub(super) fn rejection(seen: &Observed<'_>, plan: &Plan<'_>) -> Option<String> {
    Some(format!("the plan was rejected by {}", rejected_by(seen, plan.sha256)?))
}

pub(super) fn rejected_by<'a>(seen: &Observed<'a>, plan: &Sha256) -> Option<&'a str> {
    let is_rejection =
        |word: &&TerraformApproval| &word.spec.plan_sha256 == plan && word.spec.decision == Word::Reject;
    Some(seen.approvals.iter().find(is_rejection)?.spec.user.as_str())
}

/// The person who said that this plan, by its bytes, may be applied.
pub(super) fn approval(seen: &Observed<'_>, plan: &Plan<'_>) -> Option<Trigger> {
    let word = seen
        .approvals
        .iter()
        .find(|word| &word.spec.plan_sha256 == plan.sha256 && word.spec.decision == Word::Approve);
    if let Some(word) = word {
        let by = word.spec.user.clone();
        let reason = format!("approved by {by}");
        return Some(Trigger { kind: TriggerKind::Approval, by: Some(by), reason });
    }
    let annotated = annotated(seen.layer, annotation::APPROVE)?;
    (annotated == plan.sha256.as_str()).then(|| Trigger {
        kind: TriggerKind::Approval,
        by: None,
        reason: "approved by annotation, author not proved".to_owned(),
    })
}

/// Who says that this plan, by its bytes, may be applied: a person, or the layer's own standing order, which is another one for
/// new code than for a world that moved.
fn permit(seen: &Observed<'_>, history: &History<'_>, plan: &Plan<'_>) -> Permit {
    if let Some(why) = rejection(seen, plan) {
        return Permit::Wait { reason: "Rejected", why };
    }
    if let Some(how) = moved::away(history, plan) {
        // Whatever stands as an order was meant for the state that there was.
        return approval(seen, plan).map_or_else(
            || Permit::Wait { reason: "StateMoved", why: moved::way_on(seen, &how) },
            Permit::Now,
        );
    }
    let drifted = history.was_in_place(seen, plan).then(|| policy::on_drift(seen));
    let order = match drifted {
        // What a person accepted is not taken back without a person.
        Some(OnDrift::Revert) if history.accepted_from(&plan.run.spec.layer.revision).is_some() => None,
        Some(OnDrift::Revert) => Some("drift is reverted"),
        Some(OnDrift::Report | OnDrift::Accept) => None,
        None => policy::auto_apply(seen).then_some("autoApply is on"),
    };
    if let Some(order) = order {
        return Permit::Now(Trigger { kind: TriggerKind::Auto, by: None, reason: order.to_owned() });
    }
    if let Some(trigger) = approval(seen, plan) {
        return Permit::Now(trigger);
    }
    let name = name_of(seen.layer);
    match drifted {
        Some(_) => Permit::Wait {
            reason: "DriftReported",
            why: format!(
                "drifted, {}; to decide: terrane drift {name} --revert or --accept",
                drift::words(plan)
            ),
        },
        None => Permit::Wait {
            reason: "WaitingForApproval",
            why: format!("autoApply is off; {}: terrane approve {name}", words_of(plan.summary)),
        },
    }
}
