//! How long a plan may be applied. Whoever allowed it looked at the world of that day, so one that has grown old is made anew, and never
//! applied, whatever stands as an order and whoever approved it.

use api::layer::LayerState;
use api::run::{Trigger, TriggerKind};
use jiff::Timestamp;

use super::history::{History, Plan};
use super::need::{Need, Standing, hold};
use super::remedy::{PlanWish, plan_or_pause, rejection};
use super::runs::{Files, start_apply};
use super::{Observed, name_of};
use crate::{Wake, later};

/// From when on the plan is not applied any more. By the controllers' clock it was not made before it was begun: of a runner whose clock
/// is late, every plan would be too old at once, and be made for ever.
pub(super) fn expires(seen: &Observed<'_>, plan: &Plan<'_>) -> Timestamp {
    later(plan.made_at.max(plan.begun_at), seen.settings.plan_expiry)
}

pub(super) fn has_expired(seen: &Observed<'_>, plan: &Plan<'_>) -> bool {
    seen.now >= expires(seen, plan)
}

/// What somebody or something allows to be applied is applied, or made anew where it has expired.
pub(super) fn apply_or_renew(
    seen: &Observed<'_>,
    history: &History<'_>,
    plan: &Plan<'_>,
    allowed: Trigger,
) -> Need {
    if !has_expired(seen, plan) {
        return start_apply(seen, plan, allowed);
    }
    let spec = &plan.run.spec;
    let at = moment(expires(seen, plan));
    let reason = format!("the plan before expired at {at} and was not applied ({})", allowed.reason);
    let wish = PlanWish {
        mode: spec.mode,
        after: Some(plan.run),
        preceding: spec.preceding_failures,
        files: Some(Files::of(plan.run)),
        ..PlanWish::new(TriggerKind::Drift, &spec.layer.revision, reason)
    };
    plan_or_pause(seen, history, wish)
}

/// A person's word on the plan is waited for, until it is made anew at `due`. Until when the word counts is said where that is sooner.
pub(super) fn wait_for_word(
    seen: &Observed<'_>,
    plan: &Plan<'_>,
    state: LayerState,
    reason: &'static str,
    why: String,
    due: Timestamp,
) -> Need {
    let expires = expires(seen, plan);
    if expires >= due || rejection(seen, plan).is_some() {
        return hold(state, reason, why, Standing::Waiting, Wake::At(due));
    }
    if seen.now < expires {
        let why = format!("{why}, before {}", moment(expires));
        return hold(state, reason, why, Standing::Waiting, Wake::At(expires));
    }
    let why = format!(
        "the plan expired at {} and is not applied any more; terrane sync {} makes another, or the next look does, at {}",
        moment(expires),
        name_of(seen.layer),
        moment(due)
    );
    hold(state, "PlanExpired", why, Standing::Waiting, Wake::At(due))
}

pub(crate) fn moment(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M UTC").to_string()
}
