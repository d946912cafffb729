//! Whether a plan was made on another state than the one that the layer last changed. Where a state is kept can be changed with a word in
//! a layer or in its code, and the state does not come along by itself: a plan on an empty one would make everything a second time, and a
//! destroy would leave everything behind.

use api::run::{Action, Mode};
use api::text::Sha256;

use super::history::{History, Plan, has_begun, is_in_place};
use super::name_of;
use super::{Observed, TerraformRun};

/// A state that a run worked with.
struct Known<'a> {
    state: &'a Sha256,
    lineage: Option<&'a str>,
    words: Option<&'a str>,
}

/// How the plan's state differs from the one that was last changed, or last found to be in sync. O(runs kept).
pub(super) fn away(history: &History<'_>, plan: &Plan<'_>) -> Option<String> {
    let state = plan.state?;
    let before = history.newest_first.iter().find_map(|run| settled(history, run))?;
    if before.state == state {
        return None;
    }
    let place = |words: Option<&str>| words.unwrap_or("another place").to_owned();
    let (old, new) = (place(before.words), place(plan.place));
    match (before.lineage, plan.lineage) {
        (_, None) => {
            Some(format!("its state was kept by {old}, and is now looked for in {new}, where there is none"))
        }
        (Some(before), Some(now)) if before != now => {
            Some(format!("its state was kept by {old}, and in {new} there is another one"))
        }
        // It was moved along.
        (Some(_) | None, Some(_)) => None,
    }
}

fn settled<'a>(history: &History<'a>, run: &'a TerraformRun) -> Option<Known<'a>> {
    let is_settled = match (run.spec.action, run.spec.mode) {
        (_, Mode::Destroy) | (Action::Build, _) => false,
        (Action::Apply, Mode::Normal | Mode::RefreshOnly) => has_begun(run),
        (Action::Plan, Mode::Normal | Mode::RefreshOnly) => is_in_place(run),
    };
    if !is_settled {
        return None;
    }
    let made = history.applied_by(run).or_else(|| Plan::of(run));
    let state = match run.spec.action {
        Action::Apply => &run.spec.state,
        Action::Plan | Action::Build => made.as_ref()?.state?,
    };
    let lineage = made.as_ref().and_then(|plan| plan.lineage);
    Some(Known { state, lineage, words: made.and_then(|plan| plan.place) })
}

/// What a person can do about it.
pub(super) fn way_on(seen: &Observed<'_>, how: &str) -> String {
    let name = name_of(seen.layer);
    format!("{how}; move the state there and run terrane sync {name}, or begin anew: terrane approve {name}")
}
