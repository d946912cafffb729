//! What a run needs next: a lock, an attempt, its pod, the recording of its result.
//!
//! The order of effects is the proof of safety. Intent comes first: the attempt stands in the status before its pod exists, and
//! the pod's name follows from it. A pod carries a finalizer until its result is recorded, so an absent pod was never made.
//! The lock of a state is given back only after the result of its holder is recorded.

use api::attempt::{Description, Outcome, PlanSource, Reason};
use api::condition::{self, Truth};
use api::difference::Differences;
use api::run::{Action, Attempt, RunResult, RunState};
use api::text::Sha256;
use api::tool::{Choice, Tool};
use api::{TerraformLayer, TerraformRepository, TerraformRun, TerraformRunStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{Note, Read, Settings, Severity, Wake, later, manifests, names};

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
    pub settings: &'a Settings,
}

/// The Lease of a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// The uid of the run that holds it.
    pub holder: Option<String>,
    pub fence: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// In this order; the first that fails ends the round.
    pub effects: Vec<Effect>,
    pub notes: Vec<Note>,
    pub wake: Wake,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Take the lock if it is free, under the next higher fence.
    TakeLock {
        lease: String,
    },
    /// Give the lock back if this run holds it.
    ReleaseLock {
        lease: String,
    },
    PutDescription(Box<Description>),
    SetStatus(Box<TerraformRunStatus>),
    CreatePod(Box<Pod>),
    /// Let the pod go: its result is recorded.
    DeletePod {
        name: String,
    },
}

/// How soon a read that failed is tried again.
const READ_AGAIN: std::time::Duration = std::time::Duration::from_secs(2);
/// How soon a lock that someone else holds is looked at again, should the news of its release be lost.
const LOCK_AGAIN: std::time::Duration = std::time::Duration::from_secs(10);

pub fn decide(seen: &Observed<'_>) -> Decision {
    let status = seen.run.status.clone().unwrap_or_default();
    if status.state.is_some_and(RunState::is_terminal) {
        return tidy(seen);
    }
    match status.attempts.last() {
        Some(attempt) if attempt.finished_at.is_none() => follow(seen, &status, attempt),
        Some(attempt) => between(seen, &status, attempt),
        None => start(seen, &status, 0),
    }
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
    Decision {
        effects,
        notes: Vec::new(),
        wake: if unread { wait(seen, READ_AGAIN) } else { Wake::OnChange },
    }
}

/// The last attempt failed and may be followed by another.
fn between(seen: &Observed<'_>, status: &TerraformRunStatus, last: &Attempt) -> Decision {
    match seen.pod {
        Read::Unknown => return idle(wait(seen, READ_AGAIN)),
        Read::Present(pod) => {
            let name = pod.metadata.name.clone().unwrap_or_default();
            return Decision {
                effects: vec![Effect::DeletePod { name }],
                notes: Vec::new(),
                wake: Wake::OnChange,
            };
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
    let bundle = match &seen.bundle {
        Read::Present(Ok(bundle)) => bundle,
        Read::Present(Err(why)) => {
            let waiting =
                progress(seen, status, status.state.unwrap_or(RunState::Initial), "SourceUnavailable", why);
            return Decision { effects: vec![set(waiting)], notes: Vec::new(), wake: wait(seen, LOCK_AGAIN) };
        }
        // The source step wakes us when the files are there.
        Read::Absent | Read::Unknown => return idle(wait(seen, LOCK_AGAIN)),
    };
    let fence = match lock(seen) {
        Permit::Granted(fence) => fence,
        Permit::Take => {
            return Decision {
                effects: vec![Effect::TakeLock { lease: lease_name(seen) }],
                notes: Vec::new(),
                // Taking it needs its answer: the fence. The write comes back to us as a change.
                wake: wait(seen, READ_AGAIN),
            };
        }
        Permit::Wait(why) => {
            let waiting =
                progress(seen, status, status.state.unwrap_or(RunState::Initial), "StateLocked", &why);
            return Decision { effects: vec![set(waiting)], notes: Vec::new(), wake: wait(seen, LOCK_AGAIN) };
        }
    };
    let Some(description) = describe(seen, layer, repository, bundle, number, fence) else {
        return idle(Wake::OnChange);
    };
    let Some(pod) = manifests::runner_pod(run, number, &seen.settings.runner) else {
        return idle(Wake::OnChange);
    };
    let pod_name = pod.metadata.name.clone().unwrap_or_default();

    let mut next = status.clone();
    next.retries = number;
    next.runner_pod = Some(pod_name.clone());
    next.attempts.push(Attempt {
        number,
        pod_name,
        description: description.digest(),
        fence,
        bundle: Some(bundle.clone()),
        started_at: Time(seen.now),
        finished_at: None,
        exit_code: None,
        reason: None,
        message: None,
        log_digest: None,
    });
    let state = if number == 0 { RunState::Initial } else { RunState::Retrying };
    let next = progress(seen, &next, state, "Starting", &format!("attempt {} is about to start", number + 1));
    Decision {
        effects: vec![
            Effect::PutDescription(Box::new(description)),
            set(next),
            Effect::CreatePod(Box::new(pod)),
        ],
        notes: Vec::new(),
        wake: Wake::OnChange,
    }
}

/// An attempt is under way: make its pod if the crash came between intent and effect, else wait for the pod's end.
fn follow(seen: &Observed<'_>, status: &TerraformRunStatus, attempt: &Attempt) -> Decision {
    let pod = match seen.pod {
        Read::Unknown => return idle(wait(seen, READ_AGAIN)),
        Read::Absent => {
            let pod = manifests::runner_pod(seen.run, attempt.number, &seen.settings.runner);
            let effects = pod.map(|pod| Effect::CreatePod(Box::new(pod))).into_iter().collect();
            return Decision { effects, notes: Vec::new(), wake: Wake::OnChange };
        }
        Read::Present(pod) => pod,
    };
    if !is_ours(pod, seen.run) {
        let message = format!("a pod named {} exists that is not of this run", attempt.pod_name);
        return give_up(seen, status, "PodNameTaken", &message);
    }
    if !has_ended(pod) {
        let running = progress(
            seen,
            status,
            RunState::Running,
            "Running",
            &format!("pod {} is at work", attempt.pod_name),
        );
        return Decision { effects: vec![set(running)], notes: Vec::new(), wake: Wake::OnChange };
    }
    match seen.outcome {
        Read::Unknown => idle(wait(seen, READ_AGAIN)),
        Read::Present(outcome) => record(seen, status, Ended::reported(outcome)),
        Read::Absent => record(seen, status, Ended::silent(seen.run.spec.action, pod, seen.now)),
    }
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
    fn reported(outcome: &Outcome) -> Self {
        let next = match (outcome.reason, outcome.action) {
            (Reason::Succeeded, _) => Next::Succeed,
            // An apply that was refused the lock or never found its tool changed nothing. One that started is never repeated.
            (Reason::StateLocked | Reason::ToolMissing, Action::Apply) => Next::MayRetry,
            (Reason::ToolFailed | Reason::Stale | Reason::BadInput | Reason::Interrupted, Action::Apply) => {
                Next::Fail
            }
            (
                Reason::ToolFailed
                | Reason::Stale
                | Reason::BadInput
                | Reason::Interrupted
                | Reason::StateLocked
                | Reason::ToolMissing,
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
                differences: plan.map(|p| p.differences.clone()).unwrap_or_default(),
            },
            next,
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
                "OutcomeUnknown",
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
                differences: Differences::default(),
            },
            next,
        }
    }
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
    let (next, notes) = match ended.next {
        Next::Succeed => {
            next.finished_at = Some(Time(ended.finished_at));
            next.result = Some(ended.result);
            (progress(seen, &next, RunState::Succeeded, &ended.reason, &ended.message), Vec::new())
        }
        Next::MayRetry if may_retry => {
            let again = later(ended.finished_at, seen.settings.retry.pause(next.retries + 1));
            let message =
                format!("failed {}, trying again at {}: {}", times(tried), clock(again), ended.message);
            let notes = vec![warning(&ended.reason, &message)];
            (progress(seen, &next, RunState::FailureGracePeriod, &ended.reason, &message), notes)
        }
        Next::MayRetry | Next::Fail => {
            next.finished_at = Some(Time(ended.finished_at));
            next.result = Some(ended.result);
            let notes = vec![warning(&ended.reason, &ended.message)];
            (progress(seen, &next, RunState::Failed, &ended.reason, &ended.message), notes)
        }
    };
    let mut effects = vec![set(next)];
    if holds_lock(seen) {
        effects.push(Effect::ReleaseLock { lease: lease_name(seen) });
    }
    effects
        .extend(status.attempts.last().map(|attempt| Effect::DeletePod { name: attempt.pod_name.clone() }));
    Decision { effects, notes, wake: Wake::OnChange }
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
        differences: Differences::default(),
    });
    let next = progress(seen, &next, RunState::Failed, reason, message);
    let mut effects = vec![set(next)];
    if holds_lock(seen) {
        effects.push(Effect::ReleaseLock { lease: lease_name(seen) });
    }
    Decision { effects, notes: vec![warning(reason, message)], wake: Wake::OnChange }
}

enum Permit {
    Granted(u64),
    Take,
    Wait(String),
}

fn lock(seen: &Observed<'_>) -> Permit {
    if !seen.run.spec.action.mutates() {
        return Permit::Granted(0);
    }
    match &seen.lock {
        Read::Absent => Permit::Take,
        Read::Present(Lock { holder: None, .. }) => Permit::Take,
        Read::Present(Lock { holder: Some(holder), fence })
            if Some(holder) == seen.run.metadata.uid.as_ref() =>
        {
            Permit::Granted(*fence)
        }
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

fn describe(
    seen: &Observed<'_>,
    layer: &TerraformLayer,
    repository: Option<&TerraformRepository>,
    bundle: &Sha256,
    attempt: u32,
    fence: u64,
) -> Option<Description> {
    let run = seen.run;
    let (tool, tool_version) = tool_choice(layer, repository);
    Some(Description {
        namespace: run.metadata.namespace.clone()?,
        layer: run.spec.layer.name.to_string(),
        layer_uid: run.spec.layer.uid.clone(),
        run: run.metadata.name.clone()?,
        run_uid: run.metadata.uid.clone()?,
        attempt,
        fence,
        action: run.spec.action,
        mode: run.spec.mode,
        revision: run.spec.layer.revision.clone(),
        bundle: bundle.clone(),
        path: layer.spec.path.clone(),
        workspace: layer.spec.workspace.clone().unwrap_or_default(),
        tool,
        tool_version,
        state: run.spec.state.clone(),
        plan: run.spec.artifact.as_ref().map(|artifact| PlanSource {
            run_uid: artifact.run_uid.clone(),
            attempt: artifact.attempt,
            sha256: artifact.sha256.clone(),
        }),
    })
}

/// The layer's choice, then the repository's; a version without a choice of tool is a constraint on whichever is used.
fn tool_choice(
    layer: &TerraformLayer,
    repository: Option<&TerraformRepository>,
) -> (Option<Tool>, Option<String>) {
    let enabled = |choice: &Option<Choice>| choice.as_ref().is_some_and(|c| c.enabled == Some(true));
    let unsaid = (&None, &None);
    let sides = [
        (&layer.spec.terraform, &layer.spec.opentofu),
        repository.map_or(unsaid, |repository| (&repository.spec.terraform, &repository.spec.opentofu)),
    ];
    let tool = sides.iter().find_map(|(terraform, opentofu)| match (enabled(terraform), enabled(opentofu)) {
        (true, _) => Some(Tool::Terraform),
        (false, true) => Some(Tool::Opentofu),
        (false, false) => None,
    });
    let version_of = |choice: &Option<Choice>| choice.as_ref().and_then(|c| c.version.clone());
    let version = sides.iter().find_map(|(terraform, opentofu)| match tool {
        Some(Tool::Terraform) => version_of(terraform),
        Some(Tool::Opentofu) => version_of(opentofu),
        None => version_of(terraform).or_else(|| version_of(opentofu)),
    });
    (tool, version)
}

fn is_ours(pod: &Pod, run: &TerraformRun) -> bool {
    pod.metadata
        .owner_references
        .iter()
        .flatten()
        .any(|owner| owner.kind == "TerraformRun" && Some(&owner.uid) == run.metadata.uid.as_ref())
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn terminated(pod: &Pod) -> Option<&k8s_openapi::api::core::v1::ContainerStateTerminated> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()?.state.as_ref()?.terminated.as_ref()
}

fn exit_code(pod: &Pod) -> Option<i32> {
    terminated(pod).map(|t| t.exit_code)
}

fn exit_words(pod: &Pod) -> String {
    let message = pod.status.as_ref().and_then(|s| s.message.clone().or_else(|| s.reason.clone()));
    match (terminated(pod), message) {
        (Some(t), _) if t.signal.is_some_and(|s| s != 0) => {
            format!("killed by signal {}", t.signal.unwrap_or_default())
        }
        (Some(t), _) => format!("exit code {}", t.exit_code),
        (None, Some(message)) => message,
        (None, None) => "its container never ran".to_owned(),
    }
}

/// The status with its state and every condition that follows from it.
fn progress(
    seen: &Observed<'_>,
    status: &TerraformRunStatus,
    state: RunState,
    reason: &str,
    message: &str,
) -> TerraformRunStatus {
    let mut next = status.clone();
    let generation = seen.run.metadata.generation;
    next.state = Some(state);
    next.observed_generation = generation;
    let tried = u32::try_from(next.attempts.len()).unwrap_or(u32::MAX);
    let exhausted = state == RunState::Failed && tried > seen.run.spec.max_retries;
    let running = matches!(state, RunState::Running);
    let mut set = |kind, truth, reason: &str, message: &str| {
        condition::set(&mut next.conditions, kind, truth, reason, message, generation, seen.now);
    };
    set("HasStatus", Truth::True, "Reconciled", "the run has been looked at");
    set(
        "HasReachedRetryLimit",
        exhausted.into(),
        if exhausted { "LimitReached" } else { "BelowLimit" },
        &format!("at most {} retries", seen.run.spec.max_retries),
    );
    set("HasSucceeded", (state == RunState::Succeeded).into(), reason, message);
    set(
        "IsRunning",
        running.into(),
        if running { "PodRunning" } else { "NoPodRunning" },
        if running { message } else { "" },
    );
    let grace = state == RunState::FailureGracePeriod;
    set(
        "IsInFailureGracePeriod",
        grace.into(),
        if grace { "Failed" } else { "NoPause" },
        if grace { message } else { "" },
    );
    set("Ready", (state == RunState::Succeeded).into(), reason, message);
    if state.is_terminal() {
        condition::clear(&mut next.conditions, "Reconciling");
    } else {
        condition::set(
            &mut next.conditions,
            "Reconciling",
            Truth::True,
            reason,
            message,
            generation,
            seen.now,
        );
    }
    if state == RunState::Failed {
        condition::set(&mut next.conditions, "Stalled", Truth::True, reason, message, generation, seen.now);
    }
    next
}

fn set(status: TerraformRunStatus) -> Effect {
    Effect::SetStatus(Box::new(status))
}

fn idle(wake: Wake) -> Decision {
    Decision { effects: Vec::new(), notes: Vec::new(), wake }
}

fn wait(seen: &Observed<'_>, span: std::time::Duration) -> Wake {
    Wake::At(later(seen.now, span))
}

fn warning(reason: &str, message: &str) -> Note {
    Note { severity: Severity::Warning, reason: reason.to_owned(), message: message.to_owned() }
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
