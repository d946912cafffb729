//! The layer's runs, sorted into the questions asked of them, and what one run says about itself.

use api::condition;
use api::difference::Differences;
use api::run::{Action, Mode, PlanSummary, RunState, TerraformRun};
use api::setup::Setup;
use api::text::{CommitId, Sha256};
use jiff::Timestamp;

use super::{Observed, known_inputs, known_setup};
use crate::Read;

/// O(runs kept for the layer · log).
pub(super) struct History<'a> {
    /// What the layer gives to its code now.
    inputs: Option<Sha256>,
    /// Where and by which tool that is planned now.
    setup: Option<Setup>,
    pub(super) newest_first: Vec<&'a TerraformRun>,
    pub(super) active: Option<&'a TerraformRun>,
    /// The newest plan towards the code.
    pub(super) plan: Option<Plan<'a>>,
    /// The apply of that plan, if it was started.
    pub(super) apply: Option<&'a TerraformRun>,
    /// The newest plan that only refreshed, if nothing was planned towards the code or applied since.
    pub(super) look: Option<Plan<'a>>,
    /// The newest acceptance of drift, if code and infrastructure were not made equal since. What it wrote into the state is no
    /// drift any more, as long as the commit is the same.
    pub(super) accepted: Option<&'a TerraformRun>,
    /// The newest run after which infrastructure and code were equal: an apply that succeeded, or a plan without changes.
    pub(super) in_place: Option<&'a TerraformRun>,
}

/// A plan that succeeded.
pub(super) struct Plan<'a> {
    pub(super) run: &'a TerraformRun,
    pub(super) attempt: u32,
    pub(super) sha256: &'a Sha256,
    pub(super) summary: PlanSummary,
    /// The state that it was made on; unknown of a plan from before that was reported.
    pub(super) state: Option<&'a Sha256>,
    /// Where that is, in words.
    pub(super) place: Option<&'a str>,
    /// The lineage of that state; none where there was none yet.
    pub(super) lineage: Option<&'a str>,
    pub(super) differences: &'a Differences,
    pub(super) made_at: Timestamp,
    /// When the attempt that made it began.
    pub(super) begun_at: Timestamp,
}

impl<'a> History<'a> {
    pub(super) fn of(seen: &Observed<'a>) -> Self {
        let relevant = match &seen.source {
            Read::Present(Ok(source)) => Some(&source.relevant),
            Read::Present(Err(_)) | Read::Absent | Read::Unknown => None,
        };
        let (inputs, setup) = (known_inputs(seen).cloned(), Some(known_setup(seen)));
        Self { inputs, setup, ..Self::of_runs(seen.runs, relevant) }
    }

    /// What the runs themselves say, where nothing is known of what the layer gives to its code now.
    pub(super) fn of_runs(runs: &'a [TerraformRun], relevant: Option<&CommitId>) -> Self {
        let mut newest_first: Vec<&TerraformRun> = runs.iter().collect();
        newest_first.sort_by_cached_key(|run| {
            let created = run.metadata.creation_timestamp.as_ref().map(|t| t.0);
            std::cmp::Reverse((
                finished_at(run).unwrap_or(Timestamp::MAX),
                created,
                // Times of the API are whole seconds. Of what is equal, what was written last came last: nobody writes a run that
                // has ended.
                written(run),
                // Where versions are no numbers, the runs of the relevant commit came last, and an apply after its plan.
                Some(&run.spec.layer.revision) == relevant,
                run.spec.action == Action::Apply,
                run.metadata.name.clone(),
            ))
        });
        let active = newest_first.iter().copied().find(|run| !is_terminal(run));
        let plan = newest_plan(&newest_first, Mode::Normal);
        let apply = plan.as_ref().and_then(|plan| apply_of(&newest_first, plan.sha256));
        let since = apply.filter(|run| is_terminal(run)).or(plan.as_ref().map(|plan| plan.run));
        // Of what ended in the same second, what was wished for last counts; a plan is often the answer to a look.
        let look = newest_plan(&newest_first, Mode::RefreshOnly)
            .filter(|look| since.is_none_or(|since| ended(look.run) > ended(since)));
        let in_place = newest_first.iter().copied().find(|run| is_in_place(run));
        let accepted = newest_first
            .iter()
            .copied()
            .find(|run| is_acceptance(run))
            .filter(|run| in_place.is_none_or(|in_place| ended(run) >= ended(in_place)));
        Self { inputs: None, setup: None, newest_first, active, plan, apply, look, accepted, in_place }
    }

    pub(super) fn named(&self, name: &str) -> Option<&'a TerraformRun> {
        self.newest_first.iter().copied().find(|run| run.metadata.name.as_deref() == Some(name))
    }

    pub(super) fn newest_plan(&self, mode: Mode) -> Option<Plan<'a>> {
        newest_plan(&self.newest_first, mode)
    }

    pub(super) fn apply_of(&self, plan: &Sha256) -> Option<&'a TerraformRun> {
        apply_of(&self.newest_first, plan)
    }

    /// The plan that a run applies, if it is still kept. O(runs kept).
    pub(super) fn applied_by(&self, run: &TerraformRun) -> Option<Plan<'a>> {
        let artifact = run.spec.artifact.as_ref()?;
        let made_it = |plan: &&'a TerraformRun| plan.metadata.uid.as_ref() == Some(&artifact.run_uid);
        self.newest_first.iter().copied().find(made_it).and_then(Plan::of)
    }

    /// The last apply that ran the script which a plan found done, if it is still kept; retention keeps the last of all. O(runs kept).
    pub(super) fn script_run(&self, plan: &TerraformRun) -> Option<&'a TerraformRun> {
        let script = script_of(plan).filter(|_| plan.spec.action == Action::Plan)?;
        let ran = |run: &&'a TerraformRun| {
            run.spec.action == Action::Apply && is_in_place(run) && script_of(run) == Some(script)
        };
        self.newest_first.iter().copied().find(ran)
    }

    /// Whether the run worked with the variables and the environment that the layer has now, in the same place and with the same tool.
    pub(super) fn is_given_the_same(&self, run: &TerraformRun) -> bool {
        run.spec.inputs == self.inputs && is_set_up_alike(run.spec.setup.as_ref(), self.setup.as_ref())
    }

    /// The acceptance of drift from this commit that still holds.
    pub(super) fn accepted_from(&self, revision: &CommitId) -> Option<&'a TerraformRun> {
        self.accepted.filter(|run| &run.spec.layer.revision == revision && self.is_given_the_same(run))
    }

    /// The same, if it came after the plan: what the plan would change has been accepted.
    pub(super) fn accepted_since(&self, plan: &Plan<'_>) -> Option<&'a TerraformRun> {
        self.accepted_from(&plan.run.spec.layer.revision).filter(|run| ended(run) >= ended(plan.run))
    }

    /// Whether this commit was in place before that plan looked: what the plan would change then moved in the world.
    pub(super) fn was_in_place(&self, seen: &Observed<'_>, plan: &Plan<'_>) -> bool {
        let revision = &plan.run.spec.layer.revision;
        match self.in_place {
            // With other variables the code asks for something else.
            Some(run) => {
                &run.spec.layer.revision == revision
                    && run.spec.inputs == plan.run.spec.inputs
                    && is_set_up_alike(run.spec.setup.as_ref(), plan.run.spec.setup.as_ref())
                    && finished_at(run) <= Some(plan.made_at)
            }
            // Runs can be deleted by hand; then the status remembers.
            None => {
                seen.layer.status.as_ref().and_then(|s| s.revision.applied.as_ref()) == Some(revision)
                    && plan.summary.has_changes()
            }
        }
    }

    /// The newest plan for this commit that failed for good, not before the run that the wish for it comes from.
    pub(super) fn newest_failed_plan(
        &self,
        mode: Mode,
        revision: &CommitId,
        after: Option<&TerraformRun>,
    ) -> Option<&'a TerraformRun> {
        let since = after.and_then(finished_at);
        self.newest_first.iter().copied().find(|run| {
            run.spec.action == Action::Plan
                && run.spec.mode == mode
                && &run.spec.layer.revision == revision
                && self.is_given_the_same(run)
                && has_failed(run)
                && finished_at(run) >= since
        })
    }
}

/// As far as both are known.
fn is_set_up_alike(before: Option<&Setup>, now: Option<&Setup>) -> bool {
    before.zip(now).is_none_or(|(before, now)| now.changes_since(before).is_none())
}

fn newest_plan<'a>(newest_first: &[&'a TerraformRun], mode: Mode) -> Option<Plan<'a>> {
    newest_first.iter().copied().filter(|run| run.spec.mode == mode).find_map(Plan::of)
}

fn apply_of<'a>(newest_first: &[&'a TerraformRun], plan: &Sha256) -> Option<&'a TerraformRun> {
    newest_first
        .iter()
        .copied()
        .find(|run| run.spec.artifact.as_ref().is_some_and(|artifact| &artifact.sha256 == plan))
}

fn is_acceptance(run: &TerraformRun) -> bool {
    run.spec.action == Action::Apply && run.spec.mode == Mode::RefreshOnly && has_succeeded(run)
}

/// When a run ended and when it was wished for; both are whole seconds in the API.
fn ended(run: &TerraformRun) -> (Option<Timestamp>, Option<Timestamp>) {
    (finished_at(run), run.metadata.creation_timestamp.as_ref().map(|time| time.0))
}

/// Versions of objects are numbers that grow in every API server there is. Where one is not, nothing is concluded.
fn written(run: &TerraformRun) -> Option<u64> {
    run.metadata.resource_version.as_ref()?.parse().ok()
}

fn script_of(run: &TerraformRun) -> Option<&Sha256> {
    run.status.as_ref()?.result.as_ref()?.script.as_ref()
}

pub(super) fn is_in_place(run: &TerraformRun) -> bool {
    if run.spec.mode != Mode::Normal || !has_succeeded(run) {
        return false;
    }
    match run.spec.action {
        Action::Apply => true,
        Action::Plan => Plan::of(run).is_some_and(|plan| !plan.summary.has_changes()),
        Action::Build => false,
    }
}

impl<'a> Plan<'a> {
    pub(super) fn of(run: &'a TerraformRun) -> Option<Self> {
        let status = run.status.as_ref()?;
        if run.spec.action != Action::Plan || status.state != Some(RunState::Succeeded) {
            return None;
        }
        let result = status.result.as_ref()?;
        let attempt = status.attempts.last()?;
        Some(Self {
            run,
            attempt: attempt.number,
            sha256: result.plan_sha256.as_ref()?,
            summary: result.summary?,
            state: result.state_identity.as_ref().map(|identity| &identity.sha256),
            place: result.state_identity.as_ref().map(|identity| identity.backend.as_str()),
            lineage: result.lineage.as_deref(),
            differences: &result.differences,
            made_at: status.finished_at.as_ref()?.0,
            begun_at: attempt.started_at.0,
        })
    }
}

pub(super) fn after(run: &TerraformRun) -> String {
    format!("after:{}", run.metadata.name.as_deref().unwrap_or_default())
}

/// Whether the run has ended.
pub fn is_terminal(run: &TerraformRun) -> bool {
    run.status.as_ref().and_then(|s| s.state).is_some_and(RunState::is_terminal)
}

pub(super) fn has_succeeded(run: &TerraformRun) -> bool {
    run.status.as_ref().and_then(|s| s.state) == Some(RunState::Succeeded)
}

pub(super) fn has_failed(run: &TerraformRun) -> bool {
    run.status.as_ref().and_then(|s| s.state) == Some(RunState::Failed)
}

pub(super) fn has_begun(run: &TerraformRun) -> bool {
    run.status.as_ref().is_some_and(|status| !status.attempts.is_empty())
}

pub(super) fn finished_at(run: &TerraformRun) -> Option<Timestamp> {
    run.status.as_ref()?.finished_at.as_ref().map(|t| t.0)
}

pub(super) fn result_message(run: &TerraformRun) -> &str {
    run.status.as_ref().and_then(|s| s.result.as_ref()).map_or("", |r| r.message.as_str())
}

pub(super) fn result_reason(run: &TerraformRun) -> &str {
    run.status.as_ref().and_then(|s| s.result.as_ref()).map_or("", |r| r.reason.as_str())
}

pub(super) fn ready_message(run: &TerraformRun) -> &str {
    let conditions = run.status.as_ref().map_or(&[][..], |s| s.conditions.as_slice());
    condition::find(conditions, "Ready").map_or("", |c| c.message.as_str())
}

/// The files that a run worked on.
pub(super) fn bundle_of(run: &TerraformRun) -> Option<&Sha256> {
    run.status.as_ref()?.attempts.iter().rev().find_map(|attempt| attempt.bundle.as_ref())
}
