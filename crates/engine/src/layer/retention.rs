//! Which finished runs are forgotten. A run that anything still rests on is never among them.

use std::time::Duration;

use api::TerraformRun;
use api::run::{Action, Mode};
use jiff::Timestamp;

use super::history::{History, finished_at, has_succeeded, is_terminal};
use super::{Gone, Observed, Read, build, policy};
use crate::{Wake, later};

/// The run controller lets a run's pod go right after its result is recorded, and needs the run for that.
const SETTLED: Duration = Duration::from_secs(10);
/// Runs deleted in one round; the next comes with the news of these.
const AT_ONCE: usize = 20;

pub(super) struct Expired {
    /// Oldest first.
    pub(super) gone: Vec<Gone>,
    /// When the next one expires.
    pub(super) wake: Wake,
}

/// O(runs kept for the layer · protected runs, which are a handful).
pub(super) fn expired<'a>(seen: &Observed<'a>, history: &History<'a>) -> Expired {
    let protected = protected(seen, history);
    let max_age = policy::run_age(seen);
    let max_bytes = policy::run_bytes(seen);
    let mut bytes = 0_u64;
    let mut gone = Vec::new();
    let mut wake = Wake::OnChange;
    let finished = history.newest_first.iter().copied().filter(|run| is_terminal(run));
    for (place, run) in finished.enumerate() {
        let size = run.metadata.uid.as_ref().and_then(|uid| seen.sizes.get(uid)).copied();
        bytes = bytes.saturating_add(size.unwrap_or_default());
        let Some(finished_at) = finished_at(run).filter(|_| !is_among(run, &protected)) else { continue };
        let by_count = (place >= policy::runs_kept(seen)).then(|| later(finished_at, SETTLED));
        let by_age = max_age.map(|age| later(finished_at, age.max(SETTLED)));
        // Newer runs are counted first, those that stay in any case among them.
        let by_size =
            max_bytes.filter(|max| size.is_some() && bytes > *max).map(|_| later(finished_at, SETTLED));
        let due: Option<Timestamp> = by_count.into_iter().chain(by_age).chain(by_size).min();
        match due {
            Some(due) if due <= seen.now => gone.extend(self::gone(run)),
            Some(due) => wake = wake.sooner(Wake::At(due)),
            None => {}
        }
    }
    gone.reverse();
    gone.truncate(AT_ONCE);
    Expired { gone, wake }
}

/// What decisions, people and running work refer to: the newest plans and their applies, the run that left the layer in sync, the
/// acceptance of drift that holds, the last apply, the last failures to plan the relevant commit, the build of its image, the newest run of all, and what is under way with its plan.
fn protected<'a>(seen: &Observed<'a>, history: &History<'a>) -> Vec<&'a TerraformRun> {
    let newest =
        |wanted: &dyn Fn(&TerraformRun) -> bool| history.newest_first.iter().copied().find(|run| wanted(run));
    let plans = [history.plan.as_ref(), history.look.as_ref()].into_iter().flatten();
    let planned = plans.flat_map(|plan| [Some(plan.run), history.apply_of(plan.sha256)]);
    let applied_plan = history.active.and_then(|run| {
        let artifact = run.spec.artifact.as_ref()?;
        newest(&|run| run.metadata.uid.as_ref() == Some(&artifact.run_uid))
    });
    let others = [
        newest(&|run| is_terminal(run)),
        newest(&|run| {
            run.spec.action == Action::Apply && run.spec.mode == Mode::Normal && has_succeeded(run)
        }),
        history.in_place,
        history.accepted,
        history.active,
        applied_plan,
    ];
    let relevant = match &seen.source {
        Read::Present(Ok(source)) => Some(&source.relevant),
        Read::Present(Err(_)) | Read::Absent | Read::Unknown => {
            seen.layer.status.as_ref().and_then(|status| status.revision.relevant.as_ref())
        }
    };
    let failures = relevant.into_iter().flat_map(|revision| {
        [Mode::Normal, Mode::RefreshOnly].map(|mode| history.newest_failed_plan(mode, revision, None))
    });
    let builds = relevant.into_iter().flat_map(|revision| build::kept(seen, history, revision));
    planned.chain(others).chain(failures).chain(builds).flatten().collect()
}

fn is_among(run: &TerraformRun, runs: &[&TerraformRun]) -> bool {
    runs.iter().any(|other| std::ptr::eq(*other, run))
}

/// The run as it was seen; only that one is deleted.
pub(super) fn gone(run: &TerraformRun) -> Option<Gone> {
    Some(Gone {
        name: run.metadata.name.clone()?,
        uid: run.metadata.uid.clone()?,
        resource_version: run.metadata.resource_version.clone(),
    })
}
