//! What a run needs next: a lock, an attempt, its pod, the recording of its result.
//!
//! The order of effects is the proof of safety. Intent comes first: the attempt stands in the status before its pod exists, and
//! the pod's name follows from it. A pod carries a finalizer until its result is recorded, so an absent pod was never made.
//! The lock of a state is given back only after the result of its holder is recorded.

mod conditions;
mod described;
mod description;
mod pod;

pub use pod::can_still_work;

use api::attempt::{Description, Outcome, PlanOutcome, Reason};
use api::audit::Entry;
use api::backend::{Backend, StateIdentity};
use api::difference::Differences;
use api::run::{Action, Attempt, RunResult, RunState, TriggerKind};
use api::text::Sha256;
use api::{TerraformLayer, TerraformRepository, TerraformRun, TerraformRunStatus, annotation};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use self::conditions::progress;
use self::description::describe;
use self::pod::{exit_code, exit_words, has_ended, is_being_deleted, is_ours, never_ran};
use crate::queue::{Holds, Slot, Waiting};
use crate::{Read, Settings, Wake, later, manifests, names};

#[derive(Debug, Clone)]
pub struct Observed<'a> {
    pub now: Timestamp,
    pub run: &'a TerraformRun,
    pub layer: Read<&'a TerraformLayer>,
    pub repository: Read<&'a TerraformRepository>,
    /// The files of the run's revision, or why they cannot be had.
    pub bundle: Read<Result<Sha256, String>>,
    /// The pod of the newest attempt.
    pub pod: Read<&'a Pod>,
    /// The result that the newest attempt reported.
    pub outcome: Read<&'a Outcome>,
    /// Who holds the state's lock; looked at for mutating runs only.
    pub lock: Read<Lock>,
    /// Whether one more runner may work; looked at for runs that would start one.
    pub slot: Read<Slot>,
    /// What the attempt that is to begin was told already; looked at only when the datastore refuses another description.
    pub described: Read<&'a Description>,
    pub settings: &'a Settings,
}

/// The Lease of a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// The uid of the run that holds it.
    pub holder: Option<String>,
    pub fence: u64,
    /// Proved, not guessed: the holder's run exists no more, and none of its pods can still work.
    pub holder_is_gone: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// In this order; the first that fails ends the round.
    pub effects: Vec<Effect>,
    pub wake: Wake,
}

impl Decision {
    /// Whether it leads to one more runner at work, now or with the next step.
    pub fn wants_runner(&self) -> bool {
        self.effects.iter().any(|effect| match effect {
            Effect::TakeLock { .. } | Effect::CreatePod(_) => true,
            Effect::ReleaseLock { .. }
            | Effect::PutDescription(_)
            | Effect::Audit(_)
            | Effect::SetStatus(_)
            | Effect::StopPod { .. }
            | Effect::DeletePod { .. } => false,
        })
    }

    /// Whether it makes room for another runner.
    pub fn frees_runner(&self) -> bool {
        self.effects.iter().any(|effect| matches!(effect, Effect::DeletePod { .. }))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Take the lock under the next higher fence, if it is free or still held by the dead run that is named.
    TakeLock {
        lease: String,
        from: Option<String>,
    },
    /// Give the lock back if this run holds it.
    ReleaseLock {
        lease: String,
    },
    PutDescription(Box<Description>),
    /// Write down that infrastructure is about to be changed, and who let it be.
    Audit(Box<Entry>),
    SetStatus(Box<TerraformRunStatus>),
    CreatePod(Box<Pod>),
    /// Ask the pod to end, with all the time it has for that. It stays in the API until its result is recorded.
    StopPod {
        name: String,
    },
    /// Let the pod go: its result is recorded.
    DeletePod {
        name: String,
    },
}

/// How soon a read that failed is tried again.
const READ_AGAIN: std::time::Duration = std::time::Duration::from_secs(2);
/// How soon a lock that someone else holds is looked at again, should the news of its release be lost.
const LOCK_AGAIN: std::time::Duration = std::time::Duration::from_secs(10);
/// How soon a run in the queue looks again, should the news of a free runner be lost.
const QUEUE_AGAIN: std::time::Duration = std::time::Duration::from_secs(60);

pub fn decide(seen: &Observed<'_>) -> Decision {
    let status = seen.run.status.clone().unwrap_or_default();
    if status.state.is_some_and(RunState::is_terminal) {
        return tidy(seen);
    }
    let under_way = status.attempts.last().filter(|attempt| attempt.finished_at.is_none());
    if under_way.is_none() && is_canceled(seen) {
        return give_up(seen, &status, CANCELED, "canceled by hand before it started");
    }
    match status.attempts.last() {
        Some(attempt) if attempt.finished_at.is_none() => follow(seen, &status, attempt),
        Some(attempt) => between(seen, &status, attempt),
        None => start(seen, &status, 0),
    }
}

/// The reason of a run that a person stopped.
const CANCELED: &str = "Canceled";
/// The reason of an apply that ended without a word.
const OUTCOME_UNKNOWN: &str = "OutcomeUnknown";
/// The layer moved on to another commit before the run started.
pub(crate) const SUPERSEDED: &str = "Superseded";

/// A wish on the run itself is seen by every write of its status, which is refused when the run has changed: a run that was
/// canceled before it started never starts. One on the layer, for those who may only annotate layers, is seen at the next look.
fn is_canceled(seen: &Observed<'_>) -> bool {
    let wish = |annotations: &Option<std::collections::BTreeMap<String, String>>| {
        annotations.as_ref().and_then(|all| all.get(annotation::CANCEL)).cloned().filter(|v| !v.is_empty())
    };
    let on_layer = match seen.layer {
        Read::Present(layer) => wish(&layer.metadata.annotations),
        Read::Absent | Read::Unknown => None,
    };
    wish(&seen.run.metadata.annotations).is_some()
        || (on_layer.is_some() && on_layer == seen.run.metadata.name)
}

/// The run as one of those that queue for a runner, once its repository is known.
pub fn waiting(seen: &Observed<'_>) -> Option<Waiting> {
    let Read::Present(repository) = seen.repository else { return None };
    let is_written_down =
        seen.run.status.as_ref().is_some_and(|status| {
            status.attempts.last().is_some_and(|attempt| attempt.finished_at.is_none())
        });
    let holds = if holds_lock(seen) || is_written_down { Holds::Something } else { Holds::Nothing };
    let name = repository.metadata.name.as_deref().unwrap_or_default();
    Some(Waiting::new(seen.run, name, repository.spec.max_concurrent_runner_pods, holds))
}

/// A terminal state never changes; what may be left is a pod to let go and a lock to give back.
fn tidy(seen: &Observed<'_>) -> Decision {
    let mut effects = Vec::new();
    if holds_lock(seen) {
        effects.push(Effect::ReleaseLock { lease: lease_name(seen) });
    }
    if let Read::Present(pod) = seen.pod {
        effects.extend(pod.metadata.name.clone().map(|name| Effect::DeletePod { name }));
    }
    let unread = matches!(seen.pod, Read::Unknown)
        || (seen.run.spec.action.mutates() && matches!(seen.lock, Read::Unknown));
    Decision { effects, wake: if unread { wait(seen, READ_AGAIN) } else { Wake::OnChange } }
}

/// The last attempt failed and may be followed by another.
fn between(seen: &Observed<'_>, status: &TerraformRunStatus, last: &Attempt) -> Decision {
    match seen.pod {
        Read::Unknown => return idle(wait(seen, READ_AGAIN)),
        Read::Present(pod) => {
            let name = pod.metadata.name.clone().unwrap_or_default();
            return Decision { effects: vec![Effect::DeletePod { name }], wake: Wake::OnChange };
        }
        Read::Absent => {}
    }
    let finished = last.finished_at.as_ref().map_or(seen.now, |t| t.0);
    let due = later(finished, seen.settings.retry.pause(status.retries + 1));
    if seen.now < due { idle(Wake::At(due)) } else { start(seen, status, last.number + 1) }
}

/// Begins attempt `number`: lock, description, intent, pod.
fn start(seen: &Observed<'_>, status: &TerraformRunStatus, number: u32) -> Decision {
    let run = seen.run;
    let (layer, repository) = match (&seen.layer, &seen.repository) {
        (Read::Unknown, _) | (_, Read::Unknown) => return idle(wait(seen, READ_AGAIN)),
        (Read::Present(layer), _) if layer.metadata.uid.as_deref() != Some(run.spec.layer.uid.as_str()) => {
            return give_up(
                seen,
                status,
                "LayerGone",
                "the layer was deleted and made again; its new incarnation has runs of its own",
            );
        }
        (Read::Absent, _) => {
            return give_up(seen, status, "LayerGone", "the layer was deleted before the run started");
        }
        (Read::Present(layer), Read::Absent) if run.spec.bundle.is_some() => (*layer, None),
        (_, Read::Absent) => {
            return give_up(
                seen,
                status,
                "RepositoryGone",
                "the layer's repository was deleted before the run started",
            );
        }
        (Read::Present(layer), Read::Present(repository)) => (*layer, Some(*repository)),
    };
    if let Some(newer) = superseded_by(run, layer, number) {
        let message = format!("commit {newer} came before it started; the layer goes on with that");
        return give_up(seen, status, SUPERSEDED, &message);
    }
    let bundle = match &seen.bundle {
        Read::Present(Ok(bundle)) => bundle,
        Read::Present(Err(why)) => {
            let waiting =
                progress(seen, status, status.state.unwrap_or(RunState::Initial), "SourceUnavailable", why);
            return Decision { effects: vec![set(waiting)], wake: wait(seen, LOCK_AGAIN) };
        }
        // The source step wakes us when the files are there.
        Read::Absent | Read::Unknown => return idle(wait(seen, LOCK_AGAIN)),
    };
    match &seen.slot {
        Read::Present(Slot::Free) => {}
        Read::Present(Slot::Full(limit)) => {
            let state = status.state.unwrap_or(RunState::Initial);
            let queued = progress(seen, status, state, "Queued", &limit.to_string());
            return Decision { effects: vec![set(queued)], wake: wait(seen, QUEUE_AGAIN) };
        }
        Read::Absent | Read::Unknown => return idle(wait(seen, READ_AGAIN)),
    }
    let fence = match lock(seen) {
        Permit::Granted(fence) => fence,
        Permit::Take { from } => {
            return Decision {
                effects: vec![Effect::TakeLock { lease: lease_name(seen), from }],
                // Taking it needs its answer: the fence. The write comes back to us as a change.
                wake: wait(seen, READ_AGAIN),
            };
        }
        Permit::Wait(why) => {
            let waiting =
                progress(seen, status, status.state.unwrap_or(RunState::Initial), "StateLocked", &why);
            return Decision { effects: vec![set(waiting)], wake: wait(seen, LOCK_AGAIN) };
        }
    };
    let Some(wanted) = describe(seen, layer, repository, bundle, number, fence) else {
        return idle(Wake::OnChange);
    };
    let (description, put) = match seen.described {
        Read::Absent | Read::Unknown => (wanted.clone(), Some(Effect::PutDescription(Box::new(wanted)))),
        Read::Present(stored) if described::is_of(stored, &wanted) => (stored.clone(), None),
        Read::Present(_) => {
            let message = "its attempt was described for another lock or plan before it could start; nothing was changed";
            return give_up(seen, status, "DescribedOtherwise", message);
        }
    };
    let Some(pod) =
        manifests::runner_pod(run, layer.spec.repository.name.as_str(), number, &seen.settings.runner)
    else {
        return idle(Wake::OnChange);
    };
    let audit = run.spec.action.mutates().then(|| Effect::Audit(Box::new(entry(run, &description))));
    let pod_name = pod.metadata.name.clone().unwrap_or_default();

    let mut next = status.clone();
    next.retries = number;
    next.runner_pod = Some(pod_name.clone());
    next.attempts.push(Attempt {
        number,
        pod_name,
        description: description.digest(),
        fence,
        bundle: Some(description.bundle.clone()),
        started_at: Time(seen.now),
        finished_at: None,
        exit_code: None,
        reason: None,
        message: None,
        log_digest: None,
    });
    let state = if number == 0 { RunState::Initial } else { RunState::Retrying };
    let next = progress(seen, &next, state, "Starting", &format!("attempt {} is about to start", number + 1));
    let mut effects: Vec<Effect> = put.into_iter().chain(audit).collect();
    effects.extend([set(next), Effect::CreatePod(Box::new(pod))]);
    Decision { effects, wake: Wake::OnChange }
}

/// A run that waited while the layer moved on to another commit is about code that nobody wants any more.
fn superseded_by<'a>(run: &TerraformRun, layer: &'a TerraformLayer, number: u32) -> Option<&'a str> {
    let follows_commits = match run.spec.trigger.kind {
        TriggerKind::Commit
        | TriggerKind::Drift
        | TriggerKind::Manual
        | TriggerKind::Failure
        | TriggerKind::Auto
        | TriggerKind::Approval => true,
        // A deletion works on what was applied last, whatever was committed since.
        TriggerKind::Deletion => false,
    };
    let relevant = layer.status.as_ref()?.revision.relevant.as_ref()?;
    (follows_commits && number == 0 && relevant != &run.spec.layer.revision).then(|| relevant.short())
}

fn entry(run: &TerraformRun, description: &Description) -> Entry {
    Entry {
        namespace: description.namespace.clone(),
        layer: description.layer.clone(),
        layer_uid: description.layer_uid.clone(),
        run: description.run.clone(),
        run_uid: description.run_uid.clone(),
        attempt: description.attempt,
        action: description.action,
        state: description.state.clone(),
        fence: description.fence,
        revision: description.revision.clone(),
        plan_sha256: description.plan.as_ref().map(|plan| plan.sha256.clone()),
        trigger: run.spec.trigger.kind,
        by: run.spec.trigger.by.clone(),
        reason: run.spec.trigger.reason.clone(),
    }
}

/// An attempt is under way: make its pod if the crash came between intent and effect, else wait for the pod's end.
fn follow(seen: &Observed<'_>, status: &TerraformRunStatus, attempt: &Attempt) -> Decision {
    let pod = match seen.pod {
        Read::Unknown => return idle(wait(seen, READ_AGAIN)),
        // An absent pod was never made: nothing was changed, and nothing will be.
        Read::Absent if is_canceled(seen) => return record(seen, status, Ended::unmade(seen.now)),
        Read::Absent => return make_pod(seen, status, attempt),
        Read::Present(pod) => pod,
    };
    // Of a run of the same name that was deleted: its pod goes as soon as it has ended.
    if !is_ours(pod, seen.run) && is_being_deleted(pod) {
        return idle(wait(seen, READ_AGAIN));
    }
    if !is_ours(pod, seen.run) {
        let message = format!("a pod named {} exists that is not of this run", attempt.pod_name);
        return give_up(seen, status, "PodNameTaken", &message);
    }
    if !has_ended(pod) && !never_ran(pod) {
        return at_work(seen, status, attempt, pod);
    }
    let ended = match seen.outcome {
        Read::Unknown => return idle(wait(seen, READ_AGAIN)),
        Read::Present(outcome) => Ended::reported(seen.run, outcome),
        Read::Absent if never_ran(pod) => Ended::never_ran(seen.now),
        Read::Absent => Ended::silent(seen.run.spec.action, pod, seen.now),
    };
    record(seen, status, if is_canceled(seen) { ended.canceled() } else { ended })
}

/// Makes the pod of an attempt that is written down, as soon as there is room for it.
fn make_pod(seen: &Observed<'_>, status: &TerraformRunStatus, attempt: &Attempt) -> Decision {
    match &seen.slot {
        Read::Present(Slot::Free) => {}
        Read::Present(Slot::Full(limit)) => {
            let state = status.state.unwrap_or(RunState::Initial);
            let queued = progress(seen, status, state, "Queued", &limit.to_string());
            return Decision { effects: vec![set(queued)], wake: wait(seen, QUEUE_AGAIN) };
        }
        Read::Absent | Read::Unknown => return idle(wait(seen, READ_AGAIN)),
    }
    let repository = match seen.layer {
        Read::Present(layer) => layer.spec.repository.name.as_str(),
        Read::Absent | Read::Unknown => "",
    };
    let pod = manifests::runner_pod(seen.run, repository, attempt.number, &seen.settings.runner);
    let effects = pod.map(|pod| Effect::CreatePod(Box::new(pod))).into_iter().collect();
    Decision { effects, wake: Wake::OnChange }
}

/// The pod has not ended. A canceled one is told to once; how long it takes is the tool's business and the pod's grace.
fn at_work(seen: &Observed<'_>, status: &TerraformRunStatus, attempt: &Attempt, pod: &Pod) -> Decision {
    let name = &attempt.pod_name;
    if !is_canceled(seen) {
        let message = format!("pod {name} is at work");
        let running = progress(seen, status, RunState::Running, "Running", &message);
        return Decision { effects: vec![set(running)], wake: Wake::OnChange };
    }
    let message = format!("canceled by hand; pod {name} was asked to stop and may first save its state");
    let mut effects = vec![set(progress(seen, status, RunState::Running, "Canceling", &message))];
    if !is_being_deleted(pod) {
        effects.push(Effect::StopPod { name: name.clone() });
    }
    Decision { effects, wake: Wake::OnChange }
}

/// How an attempt ended, whoever says so.
struct Ended {
    reason: String,
    message: String,
    exit_code: Option<i32>,
    finished_at: Timestamp,
    log: Option<Sha256>,
    result: RunResult,
    next: Next,
}

enum Next {
    Succeed,
    MayRetry,
    Fail,
}

impl Ended {
    fn reported(run: &TerraformRun, outcome: &Outcome) -> Self {
        let next = match (outcome.reason, outcome.action) {
            (Reason::Succeeded, _) => Next::Succeed,
            // An apply that was refused the lock or never found its tool changed nothing. One that started is never repeated.
            (Reason::StateLocked | Reason::ToolMissing | Reason::ToolUntrusted, Action::Apply) => {
                Next::MayRetry
            }
            (
                Reason::ToolFailed
                | Reason::Stale
                | Reason::StateMoved
                | Reason::BadInput
                | Reason::Interrupted,
                Action::Apply,
            ) => Next::Fail,
            (
                Reason::ToolFailed
                | Reason::Stale
                | Reason::StateMoved
                | Reason::BadInput
                | Reason::Interrupted
                | Reason::StateLocked
                | Reason::ToolMissing
                | Reason::ToolUntrusted,
                Action::Plan,
            ) => Next::MayRetry,
        };
        let plan = outcome.plan.as_ref();
        Self {
            reason: outcome.reason.as_str().to_owned(),
            message: outcome.message.clone(),
            exit_code: Some(outcome.exit_code),
            finished_at: outcome.finished_at,
            log: Some(outcome.log_sha256.clone()),
            result: RunResult {
                reason: outcome.reason.as_str().to_owned(),
                message: outcome.message.clone(),
                summary: plan.map(|p| p.summary),
                plan_sha256: plan.map(|p| p.sha256.clone()),
                state_identity: plan.map(|p| identity(run, p)),
                differences: plan.map(|p| p.differences.clone()).unwrap_or_default(),
            },
            next,
        }
    }

    /// It never began.
    fn nothing_done(reason: &str, message: &str, now: Timestamp, next: Next) -> Self {
        let (reason, message) = (reason.to_owned(), message.to_owned());
        let result = RunResult {
            reason: reason.clone(),
            message: message.clone(),
            summary: None,
            plan_sha256: None,
            state_identity: None,
            differences: Differences::default(),
        };
        Self { reason, message, exit_code: None, finished_at: now, log: None, result, next }
    }

    fn unmade(now: Timestamp) -> Self {
        Self::nothing_done(CANCELED, "canceled by hand before its pod was made", now, Next::Fail)
    }

    fn never_ran(now: Timestamp) -> Self {
        let message = "the runner's pod was deleted before it ran on a node";
        Self::nothing_done("PodDeleted", message, now, Next::MayRetry)
    }

    /// The same end, of a run that a person wanted to end. What succeeded all the same has succeeded, and what is not known
    /// is not known.
    fn canceled(self) -> Self {
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
    fn silent(action: Action, pod: &Pod, now: Timestamp) -> Self {
        let how = exit_words(pod);
        let (reason, message, next) = match action {
            Action::Plan => {
                ("RunnerDied", format!("the runner ended without a result ({how})"), Next::MayRetry)
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
            log: None,
            result: RunResult {
                reason: reason.to_owned(),
                message,
                summary: None,
                plan_sha256: None,
                state_identity: None,
                differences: Differences::default(),
            },
            next,
        }
    }
}

/// The state that a plan was made on: the backend that its runner found in the code, else the one that the datastore keeps.
fn identity(run: &TerraformRun, plan: &PlanOutcome) -> StateIdentity {
    plan.backend.as_ref().map_or_else(|| StateIdentity::kept_here(run.spec.state.clone()), Backend::identity)
}

/// Writes down how the attempt ended; only then may its pod and its lock go.
fn record(seen: &Observed<'_>, status: &TerraformRunStatus, ended: Ended) -> Decision {
    let mut next = status.clone();
    if let Some(attempt) = next.attempts.last_mut() {
        attempt.finished_at = Some(Time(ended.finished_at));
        attempt.exit_code = ended.exit_code;
        attempt.reason = Some(ended.reason.clone());
        attempt.message = Some(ended.message.clone());
        attempt.log_digest = ended.log;
    }
    let tried = u32::try_from(next.attempts.len()).unwrap_or(u32::MAX);
    let may_retry = tried <= seen.run.spec.max_retries;
    let next = match ended.next {
        Next::Succeed => {
            next.finished_at = Some(Time(ended.finished_at));
            next.result = Some(ended.result);
            progress(seen, &next, RunState::Succeeded, &ended.reason, &ended.message)
        }
        Next::MayRetry if may_retry => {
            let again = later(ended.finished_at, seen.settings.retry.pause(next.retries + 1));
            let message =
                format!("failed {}, trying again at {}: {}", times(tried), clock(again), ended.message);
            progress(seen, &next, RunState::FailureGracePeriod, &ended.reason, &message)
        }
        Next::MayRetry | Next::Fail => {
            next.finished_at = Some(Time(ended.finished_at));
            next.result = Some(ended.result);
            progress(seen, &next, RunState::Failed, &ended.reason, &ended.message)
        }
    };
    let mut effects = vec![set(next)];
    if holds_lock(seen) {
        effects.push(Effect::ReleaseLock { lease: lease_name(seen) });
    }
    effects
        .extend(status.attempts.last().map(|attempt| Effect::DeletePod { name: attempt.pod_name.clone() }));
    Decision { effects, wake: Wake::OnChange }
}

/// Ends the run without an attempt.
fn give_up(seen: &Observed<'_>, status: &TerraformRunStatus, reason: &str, message: &str) -> Decision {
    let mut next = status.clone();
    next.finished_at = Some(Time(seen.now));
    next.result = Some(RunResult {
        reason: reason.to_owned(),
        message: message.to_owned(),
        summary: None,
        plan_sha256: None,
        state_identity: None,
        differences: Differences::default(),
    });
    let next = progress(seen, &next, RunState::Failed, reason, message);
    let mut effects = vec![set(next)];
    if holds_lock(seen) {
        effects.push(Effect::ReleaseLock { lease: lease_name(seen) });
    }
    Decision { effects, wake: Wake::OnChange }
}

enum Permit {
    Granted(u64),
    Take { from: Option<String> },
    Wait(String),
}

fn lock(seen: &Observed<'_>) -> Permit {
    if !seen.run.spec.action.mutates() {
        return Permit::Granted(0);
    }
    match &seen.lock {
        Read::Absent => Permit::Take { from: None },
        Read::Present(Lock { holder: None, .. }) => Permit::Take { from: None },
        Read::Present(Lock { holder: Some(holder), fence, .. })
            if Some(holder) == seen.run.metadata.uid.as_ref() =>
        {
            Permit::Granted(*fence)
        }
        Read::Present(Lock { holder, holder_is_gone: true, .. }) => Permit::Take { from: holder.clone() },
        Read::Present(Lock { holder: Some(_), .. }) => {
            Permit::Wait("another run changes the same state".to_owned())
        }
        Read::Unknown => Permit::Wait("who holds the state's lock could not be read".to_owned()),
    }
}

fn holds_lock(seen: &Observed<'_>) -> bool {
    match &seen.lock {
        Read::Present(lock) => {
            seen.run.spec.action.mutates() && lock.holder == seen.run.metadata.uid && lock.holder.is_some()
        }
        Read::Absent | Read::Unknown => false,
    }
}

fn lease_name(seen: &Observed<'_>) -> String {
    names::lease(&seen.run.spec.state)
}

fn set(status: TerraformRunStatus) -> Effect {
    Effect::SetStatus(Box::new(status))
}

fn idle(wake: Wake) -> Decision {
    Decision { effects: Vec::new(), wake }
}

fn wait(seen: &Observed<'_>, span: std::time::Duration) -> Wake {
    Wake::At(later(seen.now, span))
}

fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        n => format!("{n} times"),
    }
}

fn clock(at: Timestamp) -> String {
    at.strftime("%H:%M:%S UTC").to_string()
}
