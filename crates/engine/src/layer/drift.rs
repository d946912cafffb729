//! Code and infrastructure were equal: when the world is looked at again, and what is done when it has moved.

use api::TerraformRun;
use api::layer::{LayerState, OnDrift};
use api::run::{Mode, Trigger, TriggerKind};

use super::expiry::{apply_or_renew, wait_for_word};
use super::history::{History, Plan, finished_at, has_succeeded};
use super::need::{Need, Standing, hold, words_of};
use super::outputs::plan_for_outputs;
use super::remedy::{PlanWish, after_failed_apply, approval, plan_or_pause, rejection};
use super::{Observed, Source, name_of, policy};
use crate::{Wake, later};

/// The relevant commit is in place since `run` ended, as far as is known.
pub(super) fn settled(
    seen: &Observed<'_>,
    source: &Source,
    history: &History<'_>,
    run: &TerraformRun,
) -> Need {
    if let Some(need) = plan_for_outputs(seen, source, history, run) {
        return need;
    }
    let of_this = |look: &&Plan<'_>| {
        look.run.spec.layer.revision == source.relevant && history.is_given_the_same(look.run)
    };
    match history.look.as_ref().filter(of_this) {
        Some(look) if !look.differences.is_empty() => moved(seen, source, history, look),
        Some(look) => in_sync(seen, source, history, look.run),
        None => in_sync(seen, source, history, run),
    }
}

/// A look that only refreshed found differences.
fn moved(seen: &Observed<'_>, source: &Source, history: &History<'_>, found: &Plan<'_>) -> Need {
    if let Some(apply) = history.apply_of(found.sha256).filter(|apply| has_succeeded(apply)) {
        return in_sync(seen, source, history, apply);
    }
    if let Some(need) = acceptance(seen, history, found) {
        return need;
    }
    let to_decide = format!("to decide: terrane drift {} --revert or --accept", name_of(seen.layer));
    match policy::on_drift(seen) {
        OnDrift::Report => waiting(seen, source, history, found, "DriftReported", &to_decide),
        OnDrift::Revert if history.accepted_from(&source.relevant).is_some() => {
            // A plan that reverts this would take back what was accepted before.
            waiting(seen, source, history, found, "DriftReported", &to_decide)
        }
        OnDrift::Revert => {
            let wish = PlanWish {
                after: Some(found.run),
                ..PlanWish::new(
                    TriggerKind::Drift,
                    &source.relevant,
                    format!("{}, which is to be reverted", found.differences.words()),
                )
            };
            plan_or_pause(seen, history, wish)
        }
        OnDrift::Accept => match rejection(seen, found) {
            Some(why) => waiting(seen, source, history, found, "Rejected", &why),
            None => {
                let reason = "drift is accepted".to_owned();
                let allowed = Trigger { kind: TriggerKind::Auto, by: None, reason };
                apply_or_renew(seen, history, found, allowed)
            }
        },
    }
}

/// What was found goes into the state where a person said so about these bytes, whatever the layer's standing order is.
fn acceptance(seen: &Observed<'_>, history: &History<'_>, found: &Plan<'_>) -> Option<Need> {
    match history.apply_of(found.sha256) {
        Some(apply) if has_succeeded(apply) => None,
        Some(apply) => Some(after_failed_apply(seen, history, apply)),
        None if rejection(seen, found).is_some() => None,
        None => approval(seen, found).map(|trigger| apply_or_renew(seen, history, found, trigger)),
    }
}

/// A plan towards the code found drift, and a person accepts what was looked at since, or has accepted it.
pub(super) fn accepting(
    seen: &Observed<'_>,
    source: &Source,
    history: &History<'_>,
    plan: &Plan<'_>,
) -> Option<Need> {
    if !history.was_in_place(seen, plan) {
        return None;
    }
    let Some(accepted) = history.accepted_since(plan) else {
        let look = history.look.as_ref().filter(|look| !look.differences.is_empty())?;
        return (look.run.spec.layer.revision == source.relevant && history.is_given_the_same(look.run))
            .then(|| acceptance(seen, history, look))
            .flatten();
    };
    let need = settled(seen, source, history, accepted);
    Some(match need.standing {
        Standing::InSync => Need { why: format!("{}, but for drift that was accepted", need.why), ..need },
        Standing::Working | Standing::Waiting | Standing::Stuck | Standing::Unknown => need,
    })
}

/// Whether what a plan would change was found as drift and accepted.
pub(super) fn is_accepted(seen: &Observed<'_>, history: &History<'_>, plan: &Plan<'_>) -> bool {
    history.was_in_place(seen, plan) && history.accepted_since(plan).is_some()
}

fn waiting(
    seen: &Observed<'_>,
    source: &Source,
    history: &History<'_>,
    found: &Plan<'_>,
    reason: &'static str,
    because: &str,
) -> Need {
    let due = later(found.made_at, policy::drift_interval(seen));
    if seen.now >= due {
        return look(seen, history, source, found.run, mode(seen, source, history));
    }
    let why = format!("drifted, {}; {because}", found.differences.words());
    wait_for_word(seen, found, LayerState::Idle, reason, why, due)
}

fn in_sync(seen: &Observed<'_>, source: &Source, history: &History<'_>, run: &TerraformRun) -> Need {
    let due = later(finished_at(run).unwrap_or(seen.now), policy::drift_interval(seen));
    if seen.now >= due {
        return look(seen, history, source, run, mode(seen, source, history));
    }
    let why = format!("in sync with {}", source.relevant.short());
    hold(LayerState::Idle, "InSync", why, Standing::InSync, Wake::At(due))
}

/// Drift that was accepted stays different from the code: until new code comes, only what moves after it is looked for.
fn mode(seen: &Observed<'_>, source: &Source, history: &History<'_>) -> Mode {
    match history.accepted_from(&source.relevant) {
        Some(_) => Mode::RefreshOnly,
        None => policy::drift_mode(seen),
    }
}

/// The world is compared with the code again, after the run that last did so.
pub(super) fn look(
    seen: &Observed<'_>,
    history: &History<'_>,
    source: &Source,
    after: &TerraformRun,
    mode: Mode,
) -> Need {
    let reason = "the last look at the infrastructure is older than the drift interval".to_owned();
    let wish =
        PlanWish { mode, after: Some(after), ..PlanWish::new(TriggerKind::Drift, &source.relevant, reason) };
    plan_or_pause(seen, history, wish)
}

/// The drift that is known and neither reverted nor accepted.
pub(super) fn known<'h, 'a>(seen: &Observed<'_>, history: &'h History<'a>) -> Option<&'h Plan<'a>> {
    let open = |plan: &&Plan<'_>| !history.apply_of(plan.sha256).is_some_and(has_succeeded);
    let looked = history.look.as_ref().filter(|look| !look.differences.is_empty()).filter(open);
    looked.or_else(|| {
        let plan = history.plan.as_ref().filter(|plan| plan.summary.has_changes()).filter(open)?;
        (history.was_in_place(seen, plan) && !is_accepted(seen, history, plan)).then_some(plan)
    })
}

/// What drifted, in one line. A tool too old to say so still counts.
pub(super) fn words(plan: &Plan<'_>) -> String {
    if plan.differences.is_empty() { words_of(plan.summary) } else { plan.differences.words() }
}
