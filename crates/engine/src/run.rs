//! What a run needs next: a lock, an attempt, its pod, the recording of its result.
//!
//! The order of effects is the proof of safety. Intent comes first: the attempt stands in the status, as running, before its pod
//! exists, and the pod's name follows from it. No second pod is ever made for an attempt that may have run:
//!
//! * An apply's pod carries a finalizer until its result is recorded, so one that is absent was never made; unless it reported, which is
//!   looked at first.
//! * A plan's pod does not, which saves a write: one that is absent has run as far as anybody knows. What it reported is recorded, and
//!   else the attempt ends here and another one follows. Only where the API refused the pod, and the status says so, was it never made.
//!
//! The lock of a state is never given back. It is free for the next one as soon as the attempt that it was taken for has its end on
//! record, see [`is_done_with`].

mod builder;
mod conditions;
mod described;
mod description;
mod ended;
mod inside;
mod lock;
mod pod;

use std::collections::BTreeMap;

pub use builder::{LoginCopy, home, is_leftover, pod_namespace};
pub(crate) use inside::is_inside;
pub use lock::{Lock, is_done_with};
pub use pod::{Obstacle, can_still_work, is_ours, obstacle};

use api::attempt::{Description, Outcome, Reason};
use api::audit::Entry;
use api::inputs::{DigestKey, Inputs};
use api::overrides::RunnerOverride;
use api::run::{Action, Attempt, Mode, RunResult, RunState, TriggerKind};
use api::text::Sha256;
use api::{TerraformLayer, TerraformRepository, TerraformRun, TerraformRunStatus, annotation, condition};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use self::conditions::progress;
use self::description::describe;
use self::ended::{Ended, Next};
use self::inside::Stay;
use self::lock::{Permit, holds_lock, lease_name, lock};
use self::pod::{has_ended, is_being_deleted, never_ran};
use crate::layer::moment;
use crate::queue::{Holds, Slot, Waiting};
use crate::{Read, Settings, Wake, later, manifests};

#[derive(Debug, Clone)]
pub struct Observed<'a> {
    pub now: Timestamp,
    pub run: &'a TerraformRun,
    pub layer: Read<&'a TerraformLayer>,
    /// Looked at for runs that may make a pod, or whose pod cannot start.
    pub repository: Read<&'a TerraformRepository>,
    /// The files of the run's revision, or why they cannot be had.
    pub bundle: Read<Result<Sha256, String>>,
    /// The pod of the newest attempt.
    pub pod: Read<&'a Pod>,
    /// The result that the newest attempt reported.
    pub outcome: Read<&'a Outcome>,
    /// Who holds the state's lock; looked at for mutating runs that may begin an attempt.
    pub lock: Read<Lock>,
    /// What digests of this layer's inputs are made with; looked at for runs that are given any.
    pub digest_key: Option<&'a DigestKey>,
    /// Whether one more runner may work; looked at for runs that would start one.
    pub slot: Read<Slot>,
    /// What the attempt that is to begin was told already; looked at only when the datastore refuses another description.
    pub described: Read<&'a Description>,
    /// Why the API would not have the pod of the attempt that is under way; known in the round that tried to make it.
    pub refused: Option<&'a str>,
    /// Why the datastore does not take what an attempt needs to begin; known in the round that tried to store it.
    pub lack: Option<&'a Lack>,
    pub settings: &'a Settings,
}

/// What is wrong with the datastore, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lack {
    /// It has no room.
    Room(String),
    /// It does not answer, or not as it should.
    Answer(String),
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
            Effect::PutDescription(_)
            | Effect::Audit(_)
            | Effect::SetStatus(_)
            | Effect::CopyLogin(_)
            | Effect::StopPod { .. }
            | Effect::DeletePod { .. } => false,
        })
    }

    /// Whether it makes a runner's pod at once.
    pub fn makes_pod(&self) -> bool {
        self.effects.iter().any(|effect| matches!(effect, Effect::CreatePod(_)))
    }

    /// Whether it makes room for another runner.
    pub fn frees_runner(&self) -> bool {
        self.effects.iter().any(|effect| matches!(effect, Effect::DeletePod { .. }))
    }

    /// Whether it records the end of an attempt or of the run: whoever waits for a lock that the run held may take it.
    pub fn records_end(&self) -> bool {
        self.status().is_some_and(|status| {
            let is_open = status.attempts.last().is_some_and(|attempt| attempt.finished_at.is_none());
            status.state.is_some_and(RunState::is_terminal) || (!status.attempts.is_empty() && !is_open)
        })
    }

    /// Whether the run waits until another one is done with the state.
    pub fn waits_for_lock(&self) -> bool {
        let ready = self.status().and_then(|status| condition::find(&status.conditions, "Ready"));
        ready.is_some_and(|ready| ready.reason == STATE_LOCKED)
            && !self.status().and_then(|status| status.state).is_some_and(RunState::is_terminal)
    }

    fn status(&self) -> Option<&TerraformRunStatus> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::SetStatus(status) => Some(status.as_ref()),
            Effect::TakeLock { .. }
            | Effect::PutDescription(_)
            | Effect::Audit(_)
            | Effect::CopyLogin(_)
            | Effect::CreatePod(_)
            | Effect::StopPod { .. }
            | Effect::DeletePod { .. } => None,
        })
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Take the lock under the next higher fence, if it is still as it was seen: held by nobody or by the one that is done with it,
    /// under this fence.
    TakeLock {
        lease: String,
        from: Option<String>,
        fence: u64,
    },
    PutDescription(Box<Description>),
    /// Write down that infrastructure is about to be changed, and who let it be.
    Audit(Box<Entry>),
    SetStatus(Box<TerraformRunStatus>),
    /// Put what logs in to a registry where the pod that is made next finds it.
    CopyLogin(Box<LoginCopy>),
    CreatePod(Box<Pod>),
    /// Ask the pod to end, with all the time it has for that.
    StopPod {
        name: String,
    },
    /// Let the pod go, and before it what was copied for it: its result is recorded.
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
/// How long the creation of a plan's pod may be under way, by a request of a controller that has just ended.
const UNMADE_FOR: std::time::Duration = std::time::Duration::from_secs(10);
/// How soon a pod that the API refuses is made again: a quota may have room, an administrator may have changed a policy.
const REFUSED_AGAIN: std::time::Duration = std::time::Duration::from_secs(30);

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
/// The reason of a run whose state another one changes.
const STATE_LOCKED: &str = "StateLocked";
/// The reason of a run that waits for a free runner.
const QUEUED: &str = "Queued";
/// The reason of a run that waits for room in the datastore.
pub(crate) const DATASTORE_FULL: &str = "DatastoreFull";
/// The reason of a run that waits for the datastore to answer.
pub(crate) const DATASTORE_UNAVAILABLE: &str = "DatastoreUnavailable";
/// The reason of a run whose pod the API would not have.
pub(crate) const POD_REFUSED: &str = "PodRefused";
/// The reason of a run whose pod is there and cannot start.
pub(crate) const POD_NOT_STARTING: &str = "PodNotStarting";
/// The reason of a run whose pod no node has room for.
pub(crate) const POD_UNSCHEDULABLE: &str = "PodUnschedulable";
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

/// The run as one of those that queue for a runner, once its repository is known. An image belongs to none.
pub fn waiting(seen: &Observed<'_>) -> Option<Waiting> {
    let (name, most) = match (seen.repository, &seen.run.spec.image) {
        (Read::Present(repository), _) => {
            let name = repository.metadata.name.as_deref().unwrap_or_default();
            (name, repository.spec.max_concurrent_runner_pods)
        }
        (Read::Absent, Some(_)) => ("", 0),
        (Read::Absent, None) | (Read::Unknown, _) => return None,
    };
    let is_written_down =
        seen.run.status.as_ref().is_some_and(|status| {
            status.attempts.last().is_some_and(|attempt| attempt.finished_at.is_none())
        });
    let holds = if holds_lock(seen) || is_written_down { Holds::Something } else { Holds::Nothing };
    Some(Waiting::new(seen.run, name, most, holds))
}

/// Whether nothing is left to do about a run for good: it is over, and its pod is gone.
pub fn is_at_rest(run: &TerraformRun, decision: &Decision) -> bool {
    let is_over = run.status.as_ref().and_then(|status| status.state).is_some_and(RunState::is_terminal);
    is_over && decision.effects.is_empty() && decision.wake == Wake::OnChange
}

/// A terminal state never changes; what may be left is a pod to let go.
fn tidy(seen: &Observed<'_>) -> Decision {
    match seen.pod {
        Read::Unknown => idle(wait(seen, READ_AGAIN)),
        Read::Absent => idle(Wake::OnChange),
        Read::Present(pod) => {
            let effects = pod.metadata.name.clone().map(|name| Effect::DeletePod { name });
            Decision { effects: effects.into_iter().collect(), wake: Wake::OnChange }
        }
    }
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
        (Read::Present(layer), Read::Absent) if run.spec.bundle.is_some() || run.spec.image.is_some() => {
            (*layer, None)
        }
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
        let what = if layer.spec.image.is_some() { "image" } else { "commit" };
        let message = format!("{what} {newer} came before it started; the layer goes on with that");
        return give_up(seen, status, SUPERSEDED, &message);
    }
    let is_build = run.spec.action == Action::Build;
    if is_build && (layer.spec.build.is_none() || seen.settings.builds.is_none()) {
        let message = "the layer's code is not to be built into an image any more";
        return give_up(seen, status, SUPERSEDED, message);
    }
    if is_build && let Err(why) = builder::kaniko(seen) {
        return give_up(seen, status, SUPERSEDED, &why);
    }
    // A build is given nothing of what the layer gives to its code.
    let is_given = run.spec.undoes.is_none() && !is_build;
    let given_now = layer.status.as_ref().and_then(|status| status.inputs.clone());
    if is_given && run.spec.inputs != given_now {
        let message = "the layer's variables, environment, backend or arguments changed before it started; the layer goes on with the new ones";
        return give_up(seen, status, SUPERSEDED, message);
    }
    let planned_with = run.spec.setup.as_ref().filter(|_| is_given);
    if let Some(changed) = planned_with.and_then(|setup| layer.setup(repository).changes_since(setup)) {
        let message = format!("the layer changed before it started: {changed}; the layer goes on with that");
        return give_up(seen, status, SUPERSEDED, &message);
    }
    if let Some(at) = expired(seen) {
        let message =
            format!("the plan expired at {} before it could be applied; nothing was changed", moment(at));
        return give_up(seen, status, Reason::Stale.as_str(), &message);
    }
    let settings = seen.settings;
    if is_given && let Err(unusable) = layer.inputs(repository, &settings.backends, &settings.overrides) {
        return give_up(seen, status, SUPERSEDED, &unusable.to_string());
    }
    // The layer tells it, and goes on when it is put right.
    if let Err(refusal) = layer.runner(repository, &settings.overrides) {
        return give_up(seen, status, SUPERSEDED, &refusal.to_string());
    }
    let bundle = match &seen.bundle {
        Read::Present(Ok(bundle)) => bundle,
        Read::Present(Err(why)) => {
            let waiting = progress(seen, status, before_attempt(status), "SourceUnavailable", why);
            return Decision { effects: vec![set(waiting)], wake: wait(seen, LOCK_AGAIN) };
        }
        // The source step wakes us when the files are there.
        Read::Absent | Read::Unknown => return idle(wait(seen, LOCK_AGAIN)),
    };
    match &seen.slot {
        Read::Present(Slot::Free) => {}
        Read::Present(Slot::Full(limit)) => {
            let queued = progress(seen, status, before_attempt(status), QUEUED, &limit.to_string());
            return Decision { effects: vec![set(queued)], wake: wait(seen, QUEUE_AGAIN) };
        }
        Read::Absent | Read::Unknown => return idle(wait(seen, READ_AGAIN)),
    }
    let fence = match lock(seen) {
        Permit::Granted(fence) => fence,
        Permit::Take { from, fence } => {
            return Decision {
                effects: vec![Effect::TakeLock { lease: lease_name(seen), from, fence }],
                // Taking it needs its answer: the fence. The write comes back to us as a change.
                wake: wait(seen, READ_AGAIN),
            };
        }
        Permit::Wait(why) => {
            let waiting = progress(seen, status, before_attempt(status), STATE_LOCKED, &why);
            return Decision { effects: vec![set(waiting)], wake: wait(seen, LOCK_AGAIN) };
        }
    };
    if let Some(lack) = seen.lack {
        let (reason, why) = match lack {
            Lack::Room(why) => (DATASTORE_FULL, why),
            Lack::Answer(why) => (DATASTORE_UNAVAILABLE, why),
        };
        let waiting = progress(seen, status, before_attempt(status), reason, why);
        return Decision { effects: vec![set(waiting)], wake: wait(seen, LOCK_AGAIN) };
    }
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
    let Ok(Some(pod)) = runner_pod(seen, number) else {
        return idle(Wake::OnChange);
    };
    let audit = run.spec.action.mutates().then(|| Effect::Audit(Box::new(entry(run, &description))));
    let pod_name = pod.metadata.name.clone().unwrap_or_default();
    let pod_namespace =
        pod.metadata.namespace.clone().filter(|at| Some(at) != run.metadata.namespace.as_ref());

    let mut next = status.clone();
    next.retries = number;
    next.runner_pod = Some(pod_name.clone());
    next.attempts.push(Attempt {
        number,
        pod_name,
        pod_namespace,
        description: description.digest(),
        fence,
        bundle: Some(description.bundle.clone()),
        started_at: Time(seen.now),
        finished_at: None,
        exit_code: None,
        reason: None,
        message: None,
        tool: None,
        log_digest: None,
    });
    let next = under_way(seen, &next);
    let mut effects: Vec<Effect> = put.into_iter().chain(audit).collect();
    effects.push(set(next));
    effects.extend(copy_login(seen, number, &pod));
    effects.push(Effect::CreatePod(Box::new(pod)));
    Decision { effects, wake: Wake::OnChange }
}

/// Since when the plan is too old to be applied, if it is.
fn expired(seen: &Observed<'_>) -> Option<Timestamp> {
    let expires = seen.run.spec.artifact.as_ref()?.expires.as_ref()?.0;
    (seen.now >= expires).then_some(expires)
}

/// The state of a run that waits for an attempt to begin.
fn before_attempt(status: &TerraformRunStatus) -> RunState {
    if status.attempts.is_empty() { RunState::Initial } else { RunState::Retrying }
}

/// The intent, and all that is said until the attempt ends: that a pod starts to work is its own news, not worth a write of ours.
fn under_way(seen: &Observed<'_>, status: &TerraformRunStatus) -> TerraformRunStatus {
    let message = status.attempts.last().map_or_else(String::new, |attempt| {
        let place =
            attempt.pod_namespace.as_ref().map(|at| format!(" of namespace {at}")).unwrap_or_default();
        format!("attempt {} is under way in pod {}{place}", attempt.number + 1, attempt.pod_name)
    });
    progress(seen, status, RunState::Running, "Running", &message)
}

/// A run that waited while the layer moved on to another commit is about code that nobody wants any more.
fn superseded_by<'a>(run: &TerraformRun, layer: &'a TerraformLayer, number: u32) -> Option<&'a str> {
    let follows_commits = match run.spec.trigger.kind {
        TriggerKind::Commit
        | TriggerKind::Inputs
        | TriggerKind::Outputs
        | TriggerKind::Drift
        | TriggerKind::Manual
        | TriggerKind::Failure
        | TriggerKind::Auto
        | TriggerKind::Approval => true,
        // A deletion works on what was applied last, whatever was committed since.
        TriggerKind::Deletion => false,
    };
    // Also where an attempt at it failed, or a person asked.
    let follows_commits = follows_commits && run.spec.mode != Mode::Destroy;
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

/// An attempt is under way: wait for its pod's end, and find out what an absent one means.
fn follow(seen: &Observed<'_>, status: &TerraformRunStatus, attempt: &Attempt) -> Decision {
    let pod = match seen.pod {
        Read::Unknown => return idle(wait(seen, READ_AGAIN)),
        Read::Absent => return without_pod(seen, status, attempt),
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
        Read::Absent if let Some(why) = pod::never_began(pod) => Ended::never_began(&why, seen.now),
        Read::Absent if let Some(why) = inside::why_left(status) => Ended::not_pulled(why, seen.now),
        Read::Absent => Ended::silent(seen.run.spec.action, pod, seen.now),
    };
    record(seen, status, if is_canceled(seen) { ended.canceled() } else { ended })
}

/// The attempt is written down and its pod is not there.
fn without_pod(seen: &Observed<'_>, status: &TerraformRunStatus, attempt: &Attempt) -> Decision {
    if let Some(why) = seen.refused {
        let message = format!("the API would not have pod {}: {why}", attempt.pod_name);
        let refused = progress(seen, status, RunState::Running, POD_REFUSED, &message);
        return Decision { effects: vec![set(refused)], wake: wait(seen, REFUSED_AGAIN) };
    }
    if seen.run.spec.action.mutates() || is_unmade(status) {
        match seen.outcome {
            Read::Unknown => return idle(wait(seen, READ_AGAIN)),
            // An API that was set back to an earlier day has lost a pod that ran. Its report says so, and it is not run again.
            Read::Present(outcome) => return record(seen, status, Ended::reported(seen.run, outcome)),
            Read::Absent => {}
        }
        // Nothing was changed, and nothing will be.
        return if is_canceled(seen) {
            record(seen, status, Ended::unmade(seen.now))
        } else {
            make_pod(seen, status, attempt)
        };
    }
    // A plan whose pod is gone may have run to its end, or may never have begun: an outcome counts, and a plan may be repeated. Its
    // artefacts are written once an attempt, so the next one is another attempt.
    let made_by = later(attempt.started_at.0, UNMADE_FOR);
    let ended = match seen.outcome {
        Read::Unknown => return idle(wait(seen, READ_AGAIN)),
        Read::Present(outcome) => Ended::reported(seen.run, outcome),
        Read::Absent if let Some(why) = inside::why_left(status) => Ended::not_pulled(why, seen.now),
        Read::Absent if seen.now < made_by => return idle(Wake::At(made_by)),
        Read::Absent => Ended::vanished(&attempt.pod_name, seen.now),
    };
    record(seen, status, if is_canceled(seen) { ended.canceled() } else { ended })
}

/// The status itself says that the pod of the attempt under way has not been made. It says otherwise before the pod is tried again.
fn is_unmade(status: &TerraformRunStatus) -> bool {
    condition::find(&status.conditions, "Ready")
        .is_some_and(|ready| [QUEUED, POD_REFUSED].contains(&ready.reason.as_str()))
}

/// Makes the pod of an attempt that is written down, as soon as there is room for it.
fn make_pod(seen: &Observed<'_>, status: &TerraformRunStatus, attempt: &Attempt) -> Decision {
    // It was never made, and never will be: what follows finds out that nobody wants it.
    if builder::kaniko(seen).is_err() {
        return record(seen, status, Ended::vanished(&attempt.pod_name, seen.now));
    }
    match &seen.slot {
        Read::Present(Slot::Free) => {}
        Read::Present(Slot::Full(limit)) => {
            let queued = progress(seen, status, RunState::Running, QUEUED, &limit.to_string());
            return Decision { effects: vec![set(queued)], wake: wait(seen, QUEUE_AGAIN) };
        }
        Read::Absent | Read::Unknown => return idle(wait(seen, READ_AGAIN)),
    }
    let pod = match runner_pod(seen, attempt.number) {
        Ok(Some(pod)) => pod,
        Ok(None) => return idle(Wake::OnChange),
        // It was allowed when the attempt began. Half of it would be another pod than anybody asked for.
        Err(refusal) => {
            let message = format!("pod {} is not made: {refusal}", attempt.pod_name);
            let refused = progress(seen, status, RunState::Running, POD_REFUSED, &message);
            return Decision { effects: vec![set(refused)], wake: wait(seen, REFUSED_AGAIN) };
        }
    };
    let mut effects = vec![set(under_way(seen, status))];
    effects.extend(copy_login(seen, attempt.number, &pod));
    effects.push(Effect::CreatePod(Box::new(pod)));
    Decision { effects, wake: Wake::OnChange }
}

/// The pod of an attempt, with what the layer refers to. Should the layer refer to something else than it did when the attempt was
/// described, the runner finds out and does not begin.
fn runner_pod(seen: &Observed<'_>, attempt: u32) -> Result<Option<Pod>, String> {
    let settings = seen.settings;
    if let Some(kaniko) = builder::kaniko(seen)? {
        let repository = match seen.layer {
            Read::Present(layer) => layer.spec.repository_name().map_or("", |name| name.as_str()),
            Read::Absent | Read::Unknown => "",
        };
        return Ok(manifests::builder_pod(seen.run, repository, attempt, kaniko, &settings.runner));
    }
    let known = match seen.layer {
        Read::Present(layer) => Some(layer),
        Read::Absent | Read::Unknown => None,
    };
    let (repository, objects, asked) = match known {
        Some(layer) => {
            let inputs = match &seen.run.spec.inputs {
                Some(_) => layer.inputs(known_repository(seen), &settings.backends, &settings.overrides),
                None => Ok(Inputs::default()),
            };
            let asked = layer.runner(known_repository(seen), &settings.overrides);
            let asked = asked.map_err(|refusal| refusal.to_string())?;
            let repository = layer.spec.repository_name().map_or("", |name| name.as_str());
            let objects = match seen.run.spec.action {
                Action::Build => builder::login(layer).into_iter().collect(),
                Action::Plan | Action::Apply => inputs.unwrap_or_default().objects(),
            };
            (repository, objects, asked)
        }
        None => ("", BTreeMap::new(), RunnerOverride::default()),
    };
    let inside = inside::image_of(seen, known, &asked, attempt);
    let pod = manifests::runner_pod(
        seen.run,
        repository,
        attempt,
        &objects,
        &asked,
        inside.as_ref(),
        &settings.runner,
    );
    Ok(pod)
}

/// What the pod, or its node, logs in with to a registry, where it cannot have it from where the layer does.
fn copy_login(seen: &Observed<'_>, attempt: u32, pod: &Pod) -> Option<Effect> {
    builder::copy_login(seen, attempt).or_else(|| inside::copy_login(seen, attempt, pod))
}

fn known_repository<'a>(seen: &Observed<'a>) -> Option<&'a TerraformRepository> {
    match seen.repository {
        Read::Present(repository) => Some(repository),
        Read::Absent | Read::Unknown => None,
    }
}

/// Whether a pod made now would have the images of this one, as far as it is them that it waits for. Containers that others added to it do
/// not count.
fn has_images(seen: &Observed<'_>, pod: &Pod, attempt: u32) -> bool {
    let Ok(Some(wanted)) = runner_pod(seen, attempt) else { return true };
    let Some(spec) = wanted.spec else { return true };
    let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    containers.all(|wanted| {
        !pod::is_obstructed(pod, &wanted.name) || pod::image(pod, &wanted.name) == wanted.image.as_deref()
    })
}

/// The pod has not ended. A canceled one is told to once; how long it takes is the tool's business and the pod's grace.
fn at_work(seen: &Observed<'_>, status: &TerraformRunStatus, attempt: &Attempt, pod: &Pod) -> Decision {
    let name = &attempt.pod_name;
    if !is_canceled(seen) {
        let wake = match inside::stay(seen, status, attempt, pod) {
            Stay::AsLongAsItTakes => Wake::OnChange,
            Stay::Until(at) => Wake::At(at),
            Stay::Leave(next) => {
                let stop = (!is_being_deleted(pod)).then(|| Effect::StopPod { name: name.clone() });
                let effects = std::iter::once(Effect::SetStatus(next)).chain(stop).collect();
                return Decision { effects, wake: Wake::OnChange };
            }
        };
        // Without an obstacle the same words as the intent's, so that this writes only what was said otherwise in between.
        let next = match obstacle(pod) {
            None => under_way(seen, status),
            Some(Obstacle::NotStarting(why)) => {
                progress(seen, status, RunState::Running, POD_NOT_STARTING, &why)
            }
            Some(Obstacle::Unschedulable(why)) => {
                progress(seen, status, RunState::Running, POD_UNSCHEDULABLE, &why)
            }
        };
        let mut effects = vec![set(next)];
        // Whoever named another image did it for this pod: it was made for one that cannot be had.
        if matches!(obstacle(pod), Some(Obstacle::NotStarting(_)))
            && !has_images(seen, pod, attempt.number)
            && !is_being_deleted(pod)
        {
            effects.push(Effect::StopPod { name: name.clone() });
        }
        return Decision { effects, wake };
    }
    let message = format!("canceled by hand; pod {name} was asked to stop and may first save its state");
    let mut effects = vec![set(progress(seen, status, RunState::Running, "Canceling", &message))];
    if !is_being_deleted(pod) {
        effects.push(Effect::StopPod { name: name.clone() });
    }
    Decision { effects, wake: Wake::OnChange }
}

/// Writes down how the attempt ended; only then may its pod go, and is the lock free for the next one.
fn record(seen: &Observed<'_>, status: &TerraformRunStatus, ended: Ended) -> Decision {
    let mut next = status.clone();
    if let Some(attempt) = next.attempts.last_mut() {
        attempt.finished_at = Some(Time(ended.finished_at));
        attempt.exit_code = ended.exit_code;
        attempt.reason = Some(ended.reason.clone());
        attempt.message = Some(ended.message.clone());
        attempt.tool = ended.tool;
        attempt.log_digest = ended.log;
    }
    let tried = u32::try_from(next.attempts.len()).unwrap_or(u32::MAX);
    let may_retry = ended::may_retry(&next, seen.run.spec.max_retries);
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
    effects
        .extend(status.attempts.last().map(|attempt| Effect::DeletePod { name: attempt.pod_name.clone() }));
    Decision { effects, wake: Wake::OnChange }
}

/// Ends the run without an attempt.
fn give_up(seen: &Observed<'_>, status: &TerraformRunStatus, reason: &str, message: &str) -> Decision {
    let mut next = status.clone();
    next.finished_at = Some(Time(seen.now));
    next.result =
        Some(RunResult { reason: reason.to_owned(), message: message.to_owned(), ..RunResult::default() });
    let next = progress(seen, &next, RunState::Failed, reason, message);
    Decision { effects: vec![set(next)], wake: Wake::OnChange }
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
