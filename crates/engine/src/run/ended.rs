//! How an attempt ended: as its runner reported it, or as its pod lets us conclude.

use api::attempt::{Outcome, PlanOutcome, Reason};
use api::backend::{Backend, StateIdentity};
use api::run::{Action, Attempt, RunResult};
use api::text::Sha256;
use api::{TerraformRun, TerraformRunStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::CANCELED;
use super::inside::IMAGE_NOT_PULLED;
use super::pod::{exit_code, exit_words};

/// The reason of an apply that ended without a word.
const OUTCOME_UNKNOWN: &str = "OutcomeUnknown";
/// The reason of a plan that ended without a word.
const RUNNER_DIED: &str = "RunnerDied";
/// The reason of a plan that was written down and has neither pod nor result.
const POD_GONE: &str = "PodGone";

/// How an attempt ended, whoever says so.
pub(super) struct Ended {
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) exit_code: Option<i32>,
    pub(super) finished_at: Timestamp,
    pub(super) tool: Option<String>,
    pub(super) log: Option<Sha256>,
    pub(super) result: RunResult,
    pub(super) next: Next,
}

pub(super) enum Next {
    Succeed,
    MayRetry,
    Fail,
}

impl Ended {
    pub(super) fn reported(run: &TerraformRun, outcome: &Outcome) -> Self {
        let next = match (outcome.reason, outcome.action) {
            (Reason::Succeeded, _) => Next::Succeed,
            // An apply that was refused the lock, never found its tool or was given other inputs changed nothing. One that started is
            // never repeated.
            (
                Reason::StateLocked | Reason::ToolMissing | Reason::ToolUntrusted | Reason::InputsChanged,
                Action::Apply,
            ) => Next::MayRetry,
            (
                Reason::ToolFailed
                | Reason::Stale
                | Reason::StateMoved
                | Reason::BadInput
                | Reason::HookFailed
                | Reason::ScriptFailed
                | Reason::BuildFailed
                | Reason::Interrupted
                | Reason::TimedOut
                | Reason::DatastoreFull,
                Action::Apply,
            ) => Next::Fail,
            (
                Reason::ToolFailed
                | Reason::Stale
                | Reason::StateMoved
                | Reason::BadInput
                | Reason::InputsChanged
                | Reason::HookFailed
                | Reason::ScriptFailed
                | Reason::BuildFailed
                | Reason::Interrupted
                | Reason::TimedOut
                | Reason::StateLocked
                | Reason::ToolMissing
                | Reason::ToolUntrusted
                | Reason::DatastoreFull,
                Action::Plan | Action::Build,
            ) => Next::MayRetry,
        };
        let plan = outcome.plan.as_ref();
        Self {
            reason: outcome.reason.as_str().to_owned(),
            message: outcome.message.clone(),
            exit_code: Some(outcome.exit_code),
            finished_at: outcome.finished_at,
            tool: outcome.tool.clone(),
            log: Some(outcome.log_sha256.clone()),
            result: RunResult {
                reason: outcome.reason.as_str().to_owned(),
                message: outcome.message.clone(),
                summary: plan.map(|p| p.summary),
                plan_sha256: plan.map(|p| p.sha256.clone()),
                state_identity: plan.map(|p| identity(run, p)),
                lineage: plan.and_then(|p| p.lineage.clone()).filter(|lineage| lineage.len() <= 256),
                script: outcome.script.clone(),
                image: outcome.image.clone(),
                hook_outputs: outcome.hook_outputs.clone(),
                differences: plan.map(|p| p.differences.clone()).unwrap_or_default(),
            },
            next,
        }
    }

    /// It never began.
    fn nothing_done(reason: &str, message: &str, now: Timestamp, next: Next) -> Self {
        let (reason, message) = (reason.to_owned(), message.to_owned());
        let result = RunResult { reason: reason.clone(), message: message.clone(), ..RunResult::default() };
        Self { reason, message, exit_code: None, finished_at: now, tool: None, log: None, result, next }
    }

    pub(super) fn unmade(now: Timestamp) -> Self {
        Self::nothing_done(CANCELED, "canceled by hand before its pod was made", now, Next::Fail)
    }

    pub(super) fn never_ran(now: Timestamp) -> Self {
        let message = "the runner's pod was deleted before it ran on a node";
        Self::nothing_done("PodDeleted", message, now, Next::MayRetry)
    }

    /// What comes before the runner in its pod failed.
    pub(super) fn never_began(why: &str, now: Timestamp) -> Self {
        Self::nothing_done("RunnerNotStarted", why, now, Next::MayRetry)
    }

    /// No node could pull the image that the pod was to be a container of.
    pub(super) fn not_pulled(why: &str, now: Timestamp) -> Self {
        Self::nothing_done(IMAGE_NOT_PULLED, why, now, Next::MayRetry)
    }

    /// The pod of a plan is not there any more, and left no result.
    pub(super) fn vanished(pod: &str, now: Timestamp) -> Self {
        let message = format!("pod {pod} is gone and left no result");
        Self::nothing_done(POD_GONE, &message, now, Next::MayRetry)
    }

    /// The same end, of a run that a person wanted to end. What succeeded all the same has succeeded, and what is not known
    /// is not known.
    pub(super) fn canceled(self) -> Self {
        match self.next {
            Next::Succeed => self,
            Next::Fail if self.reason == OUTCOME_UNKNOWN => self,
            Next::MayRetry | Next::Fail => {
                let message = format!("canceled by hand: {}", self.message);
                let reason = CANCELED.to_owned();
                let result = RunResult { reason: reason.clone(), message: message.clone(), ..self.result };
                Self { reason, message, result, next: Next::Fail, ..self }
            }
        }
    }

    /// The pod ended without a result.
    pub(super) fn silent(action: Action, pod: &Pod, now: Timestamp) -> Self {
        let how = exit_words(pod);
        let (reason, message, next) = match action {
            Action::Plan | Action::Build if exit_code(pod) == Some(api::attempt::EXIT_DATASTORE_FULL) => (
                Reason::DatastoreFull.as_str(),
                "the datastore is full: not even the result could be stored; free some space where it keeps its artefacts".to_owned(),
                Next::MayRetry,
            ),
            Action::Plan | Action::Build => {
                (RUNNER_DIED, format!("the runner ended without a result ({how})"), Next::MayRetry)
            }
            Action::Apply => (
                OUTCOME_UNKNOWN,
                format!(
                    "the runner ended in mid-apply without a result ({how}); a new plan will show what it did"
                ),
                Next::Fail,
            ),
        };
        Self {
            reason: reason.to_owned(),
            message: message.clone(),
            exit_code: exit_code(pod),
            finished_at: now,
            tool: None,
            log: None,
            result: RunResult { reason: reason.to_owned(), message, ..RunResult::default() },
            next,
        }
    }
}

/// Whether one more attempt is allowed. A pod that is gone says nothing about the plan, it may be that a controller ended before it
/// made it: such attempts are limited too, but by themselves. One that never had its image is followed by one without it. O(attempts of one
/// run).
pub(super) fn may_retry(status: &TerraformRunStatus, max_retries: u32) -> bool {
    let ended_by = |reason: &str| {
        let ended = |attempt: &&Attempt| attempt.reason.as_deref() == Some(reason);
        status.attempts.iter().filter(ended).count()
    };
    let count = |attempts: usize| u32::try_from(attempts).unwrap_or(u32::MAX);
    let gone = count(ended_by(POD_GONE));
    let tried = count(status.attempts.len() - ended_by(IMAGE_NOT_PULLED)).saturating_sub(gone);
    tried <= max_retries && gone <= max_retries.max(1)
}

/// The state that a plan was made on: the backend that its runner found in the code, else the one that the datastore keeps.
fn identity(run: &TerraformRun, plan: &PlanOutcome) -> StateIdentity {
    plan.backend.as_ref().map_or_else(|| StateIdentity::kept_here(run.spec.state.clone()), Backend::identity)
}
