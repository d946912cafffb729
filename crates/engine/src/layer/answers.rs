//! What became of people's words on plans. Each is answered by one write: when it has had its effect, or can have none.
//!
//! A word that has had its effect is never answered otherwise, however long ago the runs that show it were deleted.

use api::approval::Decision as Word;
use api::condition::{self, Truth};
use api::run::Mode;
use api::text::Sha256;
use api::{TerraformApproval, TerraformRun};

use super::history::{History, Plan};
use super::remedy::rejected_by;
use super::{Effect, Observed, expiry, name_of};

/// There is another plan by now, or none.
const GONE: &str = "PlanGone";
/// The plan grew too old before it was applied.
const EXPIRED: &str = "PlanExpired";

struct Answer {
    truth: Truth,
    reason: &'static str,
    message: String,
}

/// `effects` are those that are decided on. O(approvals of the layer · runs kept).
pub(super) fn answers(seen: &Observed<'_>, history: &History<'_>, effects: &[Effect]) -> Vec<Effect> {
    let starting = effects.iter().find_map(|effect| match effect {
        Effect::CreateRun(run) => Some(run.as_ref()),
        Effect::AddFinalizer
        | Effect::LookAtImage { .. }
        | Effect::AnswerApproval(_)
        | Effect::DeleteRun(_)
        | Effect::RemoveFinalizer => None,
    });
    seen.approvals.iter().filter_map(|approval| answered(seen, history, starting, approval)).collect()
}

fn answered(
    seen: &Observed<'_>,
    history: &History<'_>,
    starting: Option<&TerraformRun>,
    approval: &TerraformApproval,
) -> Option<Effect> {
    let status = approval.status.clone().unwrap_or_default();
    if condition::is_true(&status.conditions, "Ready") {
        return None;
    }
    let Answer { truth, reason, message } = answer(seen, history, starting, approval)?;
    // It says why there is another plan by now.
    let has_expired = condition::find(&status.conditions, "Ready").is_some_and(|told| told.reason == EXPIRED);
    if has_expired && reason == GONE {
        return None;
    }
    let mut next = status.clone();
    let generation = approval.metadata.generation;
    condition::set(&mut next.conditions, "Ready", truth, reason, message.as_str(), generation, seen.now);
    match truth {
        // Nothing more comes of it.
        Truth::False => {
            condition::set(
                &mut next.conditions,
                "Stalled",
                Truth::True,
                reason,
                message,
                generation,
                seen.now,
            );
        }
        Truth::True | Truth::Unknown => condition::clear(&mut next.conditions, "Stalled"),
    }
    if next == status {
        return None;
    }
    Some(Effect::AnswerApproval(Box::new(TerraformApproval { status: Some(next), ..approval.clone() })))
}

/// Nothing as long as the word may yet have its effect: a suspended layer goes on some day.
fn answer(
    seen: &Observed<'_>,
    history: &History<'_>,
    starting: Option<&TerraformRun>,
    approval: &TerraformApproval,
) -> Option<Answer> {
    let plan = &approval.spec.plan_sha256;
    let applies =
        |run: &&TerraformRun| run.spec.artifact.as_ref().is_some_and(|artifact| &artifact.sha256 == plan);
    let apply = starting.filter(applies).or_else(|| history.apply_of(plan));
    let no = |reason, message| Some(Answer { truth: Truth::False, reason, message });
    let yes = |reason, message| Some(Answer { truth: Truth::True, reason, message });
    match (approval.spec.decision, apply) {
        (Word::Approve, Some(run)) => yes("Applied", format!("the plan is applied by run {}", name(run))),
        (Word::Reject, Some(run)) => no(
            "TooLate",
            format!("the plan was handed to run {} before; `terrane cancel` ends one", name(run)),
        ),
        (Word::Approve | Word::Reject, None) if !is_current(history, plan) => {
            let layer = name_of(seen.layer);
            no(
                GONE,
                format!(
                    "layer {layer} has another plan by now, or none; its newest is shown by: terrane diff {layer}"
                ),
            )
        }
        (Word::Approve, None) if has_expired(seen, history, plan) => {
            let layer = name_of(seen.layer);
            let message = format!(
                "the plan expired before it was applied; layer {layer} makes another, which is shown by: terrane diff {layer}"
            );
            no(EXPIRED, message)
        }
        (Word::Reject, None) => yes("Rejected", "the plan is not applied".to_owned()),
        (Word::Approve, None) => {
            no("Rejected", format!("the plan was rejected by {}", rejected_by(seen, plan)?))
        }
    }
}

/// Whether it is the newest plan of its kind. What came after it is never taken back. O(runs kept).
fn is_current(history: &History<'_>, plan: &Sha256) -> bool {
    of_newest(history, plan, |_| true)
}

/// Whether it is that, and too old to be applied.
fn has_expired(seen: &Observed<'_>, history: &History<'_>, plan: &Sha256) -> bool {
    of_newest(history, plan, |newest| expiry::has_expired(seen, newest))
}

fn of_newest(history: &History<'_>, plan: &Sha256, is_so: impl Fn(&Plan<'_>) -> bool) -> bool {
    let destroy = history.newest_plan(Mode::Destroy);
    let newest = [history.plan.as_ref(), history.look.as_ref(), destroy.as_ref()];
    newest.into_iter().flatten().any(|newest| newest.sha256 == plan && is_so(newest))
}

fn name(run: &TerraformRun) -> &str {
    run.metadata.name.as_deref().unwrap_or_default()
}
