//! What a pod needs next, from its spec and what is known of its containers. Pure: no clock, no disk, no API.
//!
//! The answers are repeatable: after its actions are done, `decide` on the new observation wants nothing more until
//! something happens or the time it named has come.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use crate::records::{Attempt, Cause, Exit, How, Stop};

/// Everything that the decision rests on.
#[derive(Debug, Clone)]
pub struct Observed<'a> {
    pub now: Timestamp,
    pub pod: &'a Pod,
    pub presence: Presence,
    pub place: Place,
    pub stop: Option<&'a Stop>,
    /// By name, init containers and others alike; a container that was never tried has an entry all the same.
    pub containers: &'a BTreeMap<String, View>,
}

/// Whether the API still has the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    Present,
    /// It was removed without waiting for this node.
    Gone,
}

/// How far the pod's directory and volumes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// This node does not run such pods.
    Refused {
        reason: &'static str,
        message: String,
    },
    /// The node runs as many pods as it may.
    NoRoom {
        message: String,
    },
    Unprepared,
    /// The last try failed; there is another at that time.
    Blocked {
        message: String,
        retry_at: Timestamp,
    },
    Ready,
    /// Given back: the pod has ended.
    Released,
}

/// What is known of one container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    pub current: Option<Numbered>,
    pub previous: Option<Exit>,
    /// Why it could not be started the last time.
    pub blocked: Option<Blocked>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered {
    pub number: u32,
    pub backoff: u32,
    pub attempt: Attempt,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    pub reason: &'static str,
    pub message: String,
    pub retry_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Make the directory and the volumes.
    Prepare,
    /// Write the attempt down and launch it.
    Start {
        container: String,
        number: u32,
        backoff: u32,
    },
    /// Launch what was written down before a crash.
    Launch {
        container: String,
        number: u32,
    },
    /// Make sure that nothing is left of an attempt without a shim, and write down that it is over.
    Settle {
        container: String,
        number: u32,
    },
    /// Write the order to stop down, before the first signal.
    Order(Stop),
    Terminate {
        container: String,
        number: u32,
    },
    Kill {
        container: String,
        number: u32,
    },
    /// Give back directory, user and room.
    Release,
    /// Tell the API that the pod may go.
    Delete,
    /// Forget the pod: the API no longer has it.
    Forget,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    pub actions: Vec<Action>,
    /// Only once the API has the pod's last status.
    pub last: Vec<Action>,
    pub wake: Option<Timestamp>,
}

/// While a shim has not said that its child runs.
const STARTING_PAUSE: SignedDuration = SignedDuration::from_millis(20);
/// Between two looks at a container that should be dying.
const KILL_PAUSE: SignedDuration = SignedDuration::from_millis(200);
const FIRST_BACKOFF_SECONDS: i64 = 10;
const LONGEST_BACKOFF_SECONDS: i64 = 300;
/// A container that ran this long starts over with the shortest back-off.
const FORGIVEN_AFTER_SECONDS: i64 = 600;
const DEFAULT_GRACE_SECONDS: i64 = 30;

impl Decision {
    fn wake_at(&mut self, time: Timestamp) {
        self.wake = Some(self.wake.map_or(time, |wake| wake.min(time)));
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    pub fn of(spec: &PodSpec) -> RestartPolicy {
        match spec.restart_policy.as_deref() {
            Some("Never") => RestartPolicy::Never,
            Some("OnFailure") => RestartPolicy::OnFailure,
            Some(_) | None => RestartPolicy::Always,
        }
    }

    fn restarts(self, exit: &Exit) -> bool {
        match self {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => exit.how != How::Code(0),
            RestartPolicy::Never => false,
        }
    }

    /// An init container that has done its work is never run again.
    fn for_init(self) -> RestartPolicy {
        match self {
            RestartPolicy::Always | RestartPolicy::OnFailure => RestartPolicy::OnFailure,
            RestartPolicy::Never => RestartPolicy::Never,
        }
    }
}

/// Whether the API says that the pod has ended; then it never runs again, whatever is or is not written down here.
pub fn is_terminal(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

pub fn decide(observed: &Observed<'_>) -> Decision {
    let mut decision = Decision::default();
    let Some(spec) = &observed.pod.spec else { return decision };
    if let Some(order) = decide_stop(observed, spec, &mut decision) {
        decision.actions.push(Action::Order(order));
        return decision;
    }
    if observed.stop.is_some() || is_terminal(observed.pod) {
        if decide_ending(observed, spec, &mut decision) == Ended::Yes {
            finish(observed, &mut decision);
        }
        return decision;
    }
    match &observed.place {
        Place::Refused { .. } => finish(observed, &mut decision),
        Place::NoRoom { .. } => {}
        Place::Unprepared => decision.actions.push(Action::Prepare),
        Place::Blocked { retry_at, .. } => {
            if *retry_at <= observed.now {
                decision.actions.push(Action::Prepare);
            } else {
                decision.wake_at(*retry_at);
            }
        }
        Place::Ready => {
            if decide_containers(observed, spec, &mut decision) == Ended::Yes {
                finish(observed, &mut decision);
            }
        }
        Place::Released => finish(observed, &mut decision),
    }
    decision
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Yes,
    No,
}

fn finish(observed: &Observed<'_>, decision: &mut Decision) {
    if observed.place != Place::Released {
        decision.last.push(Action::Release);
    }
    match observed.presence {
        Presence::Gone => decision.last.push(Action::Forget),
        Presence::Present if observed.pod.metadata.deletion_timestamp.is_some() => {
            decision.last.push(Action::Delete);
        }
        Presence::Present => {}
    }
}

/// A new or a shorter order to stop.
fn decide_stop(observed: &Observed<'_>, spec: &PodSpec, decision: &mut Decision) -> Option<Stop> {
    let metadata = &observed.pod.metadata;
    let own_grace = spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS);
    let deleted = metadata.deletion_timestamp.is_some() || observed.presence == Presence::Gone;
    if deleted {
        let grace = metadata.deletion_grace_period_seconds.unwrap_or(own_grace).max(1);
        return match observed.stop {
            Some(stop) if stop.grace_seconds <= grace => None,
            // The clock of an earlier order keeps running: a second order only ever shortens the wait.
            Some(stop) => Some(Stop { grace_seconds: grace, ..stop.clone() }),
            None if is_terminal(observed.pod) => None,
            None => Some(Stop::new(Cause::Deleted, observed.now, grace)),
        };
    }
    if observed.stop.is_some() || is_terminal(observed.pod) {
        return None;
    }
    let started = observed.pod.status.as_ref().and_then(|status| status.start_time.as_ref())?;
    let seconds = spec.active_deadline_seconds?;
    let deadline = started.0.checked_add(SignedDuration::from_secs(seconds)).ok()?;
    if deadline > observed.now {
        decision.wake_at(deadline);
        return None;
    }
    Some(Stop::new(Cause::DeadlineExceeded, observed.now, own_grace))
}

/// Brings every container to its end: one signal to the main process, patience, then everything at once.
fn decide_ending(observed: &Observed<'_>, spec: &PodSpec, decision: &mut Decision) -> Ended {
    let kill_at = observed.stop.map_or(observed.now, |stop| {
        stop.at.checked_add(SignedDuration::from_secs(stop.grace_seconds)).unwrap_or(observed.now)
    });
    let mut ended = Ended::Yes;
    for container in every_container(spec) {
        let Some(current) = observed.containers.get(&container.name).and_then(|view| view.current.as_ref())
        else {
            continue;
        };
        let (name, number) = (container.name.clone(), current.number);
        match &current.attempt {
            Attempt::Exited(_) => continue,
            Attempt::Intended | Attempt::Lost { .. } => {
                decision.actions.push(Action::Settle { container: name, number });
            }
            Attempt::Starting { .. } => decision.wake_at(soon(observed.now, STARTING_PAUSE)),
            Attempt::Running { .. } => {
                let signalled = observed.stop.is_some_and(|stop| stop.signalled.contains(&name));
                if kill_at <= observed.now {
                    decision.actions.push(Action::Kill { container: name, number });
                    decision.wake_at(soon(observed.now, KILL_PAUSE));
                } else {
                    if !signalled {
                        decision.actions.push(Action::Terminate { container: name, number });
                    }
                    decision.wake_at(kill_at);
                }
            }
        }
        ended = Ended::No;
    }
    ended
}

/// Init containers one after the other, then all others together.
fn decide_containers(observed: &Observed<'_>, spec: &PodSpec, decision: &mut Decision) -> Ended {
    let policy = RestartPolicy::of(spec);
    let begun = spec.containers.iter().any(|container| current(observed, container).is_some());
    if !begun {
        for container in spec.init_containers.iter().flatten() {
            match decide_container(observed, container, policy.for_init(), decision) {
                Next::Done(exit) if exit.how == How::Code(0) => {}
                // A failed init container that is not tried again ends the pod; nothing else is running.
                Next::Done(_) => return Ended::Yes,
                Next::Busy => return Ended::No,
            }
        }
    }
    let mut ended = Ended::Yes;
    for container in &spec.containers {
        match decide_container(observed, container, policy, decision) {
            Next::Done(_) => {}
            Next::Busy => ended = Ended::No,
        }
    }
    ended
}

enum Next {
    Busy,
    Done(Exit),
}

fn decide_container(
    observed: &Observed<'_>,
    container: &Container,
    policy: RestartPolicy,
    decision: &mut Decision,
) -> Next {
    let name = container.name.clone();
    let view = observed.containers.get(&name);
    let start = |decision: &mut Decision, number, backoff| {
        let blocked = view.and_then(|view| view.blocked.as_ref());
        match blocked.filter(|blocked| blocked.retry_at > observed.now) {
            Some(blocked) => decision.wake_at(blocked.retry_at),
            None => decision.actions.push(Action::Start { container: name.clone(), number, backoff }),
        }
    };
    let Some(current) = view.and_then(|view| view.current.as_ref()) else {
        start(decision, 0, 0);
        return Next::Busy;
    };
    let number = current.number;
    match &current.attempt {
        Attempt::Intended => decision.actions.push(Action::Launch { container: name, number }),
        Attempt::Starting { .. } => decision.wake_at(soon(observed.now, STARTING_PAUSE)),
        Attempt::Running { .. } => {}
        Attempt::Lost { .. } => decision.actions.push(Action::Settle { container: name, number }),
        Attempt::Exited(exit) if policy.restarts(exit) => {
            let ready_at = restart_at(current, exit);
            if ready_at <= observed.now {
                let next = number.saturating_add(1);
                start(decision, next, next_backoff(current, exit));
            } else {
                decision.wake_at(ready_at);
            }
        }
        Attempt::Exited(exit) => return Next::Done(exit.clone()),
    }
    Next::Busy
}

fn next_backoff(current: &Numbered, exit: &Exit) -> u32 {
    if was_long(exit) { 1 } else { current.backoff.saturating_add(1) }
}

fn was_long(exit: &Exit) -> bool {
    exit.started_at
        .is_some_and(|start| start.duration_until(exit.finished_at).as_secs() >= FORGIVEN_AFTER_SECONDS)
}

/// How long a container waits after this exit. The first restart is at once, as a kubelet's is.
pub fn backoff(current: &Numbered, exit: &Exit) -> SignedDuration {
    let doubled = if was_long(exit) { 0 } else { current.backoff };
    match doubled.checked_sub(1) {
        None => SignedDuration::ZERO,
        Some(times) => {
            let seconds = FIRST_BACKOFF_SECONDS.saturating_mul(2_i64.saturating_pow(times));
            SignedDuration::from_secs(seconds.min(LONGEST_BACKOFF_SECONDS))
        }
    }
}

fn restart_at(current: &Numbered, exit: &Exit) -> Timestamp {
    soon(exit.finished_at, backoff(current, exit))
}

fn soon(now: Timestamp, after: SignedDuration) -> Timestamp {
    now.checked_add(after).unwrap_or(now)
}

fn current<'a>(observed: &'a Observed<'_>, container: &Container) -> Option<&'a Numbered> {
    observed.containers.get(&container.name).and_then(|view| view.current.as_ref())
}

pub fn every_container(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

#[cfg(test)]
mod tests;
