//! A layer's runs as people see them who only push commits: a plan and the apply that follows it are one attempt at one commit.

use api::repo::RepoRunState;
use api::run::{Action, Mode, RunState, TriggerKind};
use api::text::CommitId;
use api::{Repo, TerraformRun};
use jiff::Timestamp;

use crate::names;

#[derive(Debug, Clone)]
pub(super) struct Round<'a> {
    pub(super) plan: &'a TerraformRun,
    pub(super) apply: Option<&'a TerraformRun>,
    pub(super) standing: Standing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing of it has begun.
    Pending,
    Running,
    Succeeded {
        message: String,
    },
    Failed {
        reason: String,
        message: String,
    },
    /// Planned, and never applied: a newer plan has taken its place.
    Superseded,
}

impl<'a> Round<'a> {
    pub(super) fn revision(&self) -> &'a CommitId {
        &self.plan.spec.layer.revision
    }

    pub(super) fn plan_name(&self) -> &'a str {
        self.plan.metadata.name.as_deref().unwrap_or_default()
    }

    pub(super) fn job_name(&self, repo: &Repo) -> String {
        let repo = repo.metadata.name.as_deref().unwrap_or_default();
        names::job(repo, self.revision(), self.plan_name())
    }

    pub(super) fn state(&self) -> RepoRunState {
        match &self.standing {
            Standing::Pending => RepoRunState::Pending,
            Standing::Running => RepoRunState::Running,
            Standing::Succeeded { .. } => RepoRunState::Succeeded,
            Standing::Failed { .. } | Standing::Superseded => RepoRunState::Failed,
        }
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = &'a TerraformRun> + use<'a> {
        std::iter::once(self.plan).chain(self.apply)
    }

    /// When its last run ended, or else when it was last heard of.
    pub(super) fn ended_at(&self) -> Option<Timestamp> {
        let ends = self.runs().filter_map(|run| run.status.as_ref()?.finished_at.as_ref());
        ends.map(|end| end.0).max().or_else(|| created(self.plan))
    }
}

/// Oldest first. A look for drift that found nothing is no attempt at anything. O(runs kept²), which are few.
pub(super) fn rounds<'a>(runs: &'a [TerraformRun], newest: Option<&CommitId>) -> Vec<Round<'a>> {
    let is_plan = |run: &&TerraformRun| run.spec.action == Action::Plan && run.spec.mode == Mode::Normal;
    let mut plans: Vec<&TerraformRun> = runs.iter().filter(is_plan).collect();
    plans.sort_by_cached_key(|plan| {
        let end = plan.status.as_ref().and_then(|status| status.finished_at.as_ref());
        // Times of the API are whole seconds. Of what is equal, the plan of the newest commit came last.
        let is_newest = Some(&plan.spec.layer.revision) == newest;
        (end.map_or(Timestamp::MAX, |end| end.0), created(plan), is_newest, plan.metadata.name.clone())
    });
    let mut rounds = Vec::new();
    for (at, plan) in plans.iter().copied().enumerate() {
        let is_its_apply = |run: &&TerraformRun| {
            let artifact = run.spec.artifact.as_ref();
            artifact.is_some_and(|artifact| Some(&artifact.run_uid) == plan.metadata.uid.as_ref())
        };
        let apply = runs.iter().find(is_its_apply);
        if plan.spec.trigger.kind == TriggerKind::Drift && apply.is_none() && !has_changes(plan) {
            continue;
        }
        let newer = plans.get(at + 1..).unwrap_or_default();
        rounds.push(Round { plan, apply, standing: standing(plan, apply, newer) });
    }
    rounds
}

fn standing(plan: &TerraformRun, apply: Option<&TerraformRun>, newer: &[&TerraformRun]) -> Standing {
    let (state, message) = (state_of(plan), message(plan));
    match (apply.map(state_of), state) {
        (Some(RunState::Succeeded), _) => {
            Standing::Succeeded { message: apply.map(self::message).unwrap_or_default() }
        }
        (Some(RunState::Failed), _) => failed(apply.unwrap_or(plan)),
        (Some(_), _) => Standing::Running,
        (None, RunState::Failed) => failed(plan),
        (None, RunState::Succeeded) if !has_changes(plan) => Standing::Succeeded { message },
        (None, RunState::Succeeded) => {
            let replaces = |other: &&TerraformRun| {
                state_of(other) == RunState::Succeeded
                    || other.spec.layer.revision != plan.spec.layer.revision
            };
            if newer.iter().any(replaces) { Standing::Superseded } else { Standing::Running }
        }
        (None, RunState::Initial) => Standing::Pending,
        (None, RunState::Running | RunState::FailureGracePeriod | RunState::Retrying) => Standing::Running,
    }
}

fn failed(run: &TerraformRun) -> Standing {
    let result = run.status.as_ref().and_then(|status| status.result.as_ref());
    let reason = result.map(|result| result.reason.clone()).filter(|reason| !reason.is_empty());
    Standing::Failed { reason: reason.unwrap_or_else(|| "Failed".to_owned()), message: message(run) }
}

pub(super) fn state_of(run: &TerraformRun) -> RunState {
    run.status.as_ref().and_then(|status| status.state).unwrap_or(RunState::Initial)
}

fn message(run: &TerraformRun) -> String {
    let result = run.status.as_ref().and_then(|status| status.result.as_ref());
    result.map(|result| result.message.clone()).unwrap_or_default()
}

fn has_changes(plan: &TerraformRun) -> bool {
    let result = plan.status.as_ref().and_then(|status| status.result.as_ref());
    state_of(plan) == RunState::Succeeded
        && result.and_then(|result| result.summary).is_some_and(|summary| summary.has_changes())
}

fn created(run: &TerraformRun) -> Option<Timestamp> {
    run.metadata.creation_timestamp.as_ref().map(|time| time.0)
}
