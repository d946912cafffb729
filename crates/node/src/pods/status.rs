//! The status of a pod as a kubelet reports it: phase, conditions, container statuses. Pure.
//!
//! Only fields that a kubelet owns are written, only when they differ, and a condition's time changes only with the
//! condition.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value, json};

use super::decide::{self, Numbered, Observed, Place, RestartPolicy, View};
use crate::quantity::Quantity;
use crate::records::{Attempt, Cause, Exit, How};

const CONTAINER_ID_SCHEME: &str = "terrane";

/// The whole status as this node sees it, on top of what the API has.
pub fn build(observed: &Observed<'_>, address: &str) -> PodStatus {
    let Some(spec) = &observed.pod.spec else { return PodStatus::default() };
    let before = observed.pod.status.clone().unwrap_or_default();
    if decide::is_terminal(observed.pod) {
        // An ended pod stays as it ended.
        return before;
    }
    let mut status = PodStatus {
        start_time: Some(before.start_time.clone().unwrap_or(Time(whole_seconds(observed.now)))),
        qos_class: Some(before.qos_class.clone().unwrap_or_else(|| qos_class(spec).to_owned())),
        ..PodStatus::default()
    };
    if let Place::Refused { reason, message } = &observed.place {
        status.phase = Some("Failed".to_owned());
        status.reason = Some((*reason).to_owned());
        status.message = Some(format!("Pod was rejected: {message}"));
        return status;
    }
    let over = over(observed, spec);
    let statuses = |containers: &[Container]| -> Vec<ContainerStatus> {
        containers.iter().map(|container| container_status(observed, spec, container, over)).collect()
    };
    let init = statuses(spec.init_containers.as_deref().unwrap_or_default());
    let mut main = statuses(&spec.containers);
    main.sort_by(|a, b| a.name.cmp(&b.name));
    let phase = phase(spec, &init, &main, over);
    status.phase = Some(phase.name().to_owned());
    if let Place::NoRoom { message } = &observed.place {
        status.reason = Some("OutOfpods".to_owned());
        status.message = Some(message.clone());
    }
    if over == Over::Yes && observed.stop.is_some_and(|stop| stop.cause == Cause::DeadlineExceeded) {
        status.phase = Some("Failed".to_owned());
        status.reason = Some("DeadlineExceeded".to_owned());
        status.message = Some("Pod was active on the node longer than the specified deadline".to_owned());
    }
    status.host_ip = Some(address.to_owned());
    status.host_ips = Some(vec![HostIP { ip: address.to_owned() }]);
    if observed.place == Place::Ready || before.pod_ip.is_some() {
        status.pod_ip = Some(address.to_owned());
        status.pod_ips = Some(vec![PodIP { ip: address.to_owned() }]);
    }
    status.conditions = Some(conditions(observed, spec, &before, phase, &init, &main));
    status.init_container_statuses = (!init.is_empty()).then_some(init);
    status.container_statuses = Some(main);
    status
}

/// The patch that makes the API's status this one, or `None` when it is already.
pub fn patch(pod: &Pod, status: &PodStatus) -> Option<Value> {
    let as_object = |status: &PodStatus| match serde_json::to_value(status) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) | Err(_) => Map::new(),
    };
    let old = as_object(&pod.status.clone().unwrap_or_default());
    let new = as_object(status);
    let mut changes = Map::new();
    for (name, value) in &new {
        let same = if name == "conditions" {
            // Conditions of others stay; ours are merged by type.
            let empty = Vec::new();
            let old = old.get(name).and_then(Value::as_array).unwrap_or(&empty);
            value.as_array().into_iter().flatten().all(|condition| old.contains(condition))
        } else {
            old.get(name) == Some(value)
        };
        if !same {
            changes.insert(name.clone(), value.clone());
        }
    }
    for name in ["reason", "message"] {
        if old.contains_key(name) && !new.contains_key(name) {
            changes.insert(name.to_owned(), Value::Null);
        }
    }
    (!changes.is_empty()).then(|| json!({"metadata": {"uid": pod.metadata.uid}, "status": changes}))
}

/// Whether the pod will not do anything any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Yes,
    No,
}

fn over(observed: &Observed<'_>, spec: &PodSpec) -> Over {
    let quiet = decide::every_container(spec).all(|container| {
        match observed.containers.get(&container.name).and_then(|view| view.current.as_ref()) {
            None => true,
            Some(current) => matches!(current.attempt, Attempt::Exited(_)),
        }
    });
    if quiet && observed.stop.is_some() { Over::Yes } else { Over::No }
}

fn container_status(
    observed: &Observed<'_>,
    spec: &PodSpec,
    container: &Container,
    over: Over,
) -> ContainerStatus {
    let empty = View::default();
    let view = observed.containers.get(&container.name).unwrap_or(&empty);
    let is_init = !spec.containers.iter().any(|other| other.name == container.name);
    let uid = observed.pod.metadata.uid.as_deref().unwrap_or_default();
    let id = |number: u32| format!("{CONTAINER_ID_SCHEME}://{uid}.{}.{number}", container.name);
    let image = container.image.clone().unwrap_or_default();
    let mut status = ContainerStatus {
        name: container.name.clone(),
        image: image.clone(),
        ready: false,
        started: Some(false),
        // The API always has it; leaving it out would look like a difference for ever.
        last_state: Some(ContainerState::default()),
        ..ContainerStatus::default()
    };
    let Some(current) = &view.current else {
        status.state = Some(match over {
            Over::Yes => never_started(),
            Over::No => waiting(view, observed, is_init, spec),
        });
        return status;
    };
    status.restart_count = i32::try_from(current.number).unwrap_or(i32::MAX);
    status.image_id = image;
    status.container_id = Some(id(current.number));
    let previous = view.previous.as_ref().zip(current.number.checked_sub(1));
    if let Some((exit, number)) = previous {
        status.last_state = Some(terminated(exit, id(number)));
    }
    match &current.attempt {
        Attempt::Intended | Attempt::Starting { .. } => {
            status.container_id = None;
            status.image_id = String::new();
            status.state = Some(match over {
                Over::Yes => never_started(),
                Over::No => waiting(view, observed, is_init, spec),
            });
        }
        Attempt::Running { started_at, .. } => {
            status.state = Some(running(*started_at));
            status.started = Some(true);
            status.ready = !is_init && observed.stop.is_none();
        }
        // It may still run; until that is settled it is what it was.
        Attempt::Lost { state } => {
            status.state = Some(match &state.main {
                Some(main) => running(main.at),
                None => waiting(view, observed, is_init, spec),
            });
        }
        Attempt::Exited(exit) => {
            let policy = RestartPolicy::of(spec);
            let done = is_init && exit.how == How::Code(0);
            let restarts = !done
                && over == Over::No
                && match policy {
                    RestartPolicy::Always => true,
                    RestartPolicy::OnFailure => exit.how != How::Code(0),
                    RestartPolicy::Never => false,
                };
            let delay = decide::backoff(current, exit);
            let state = terminated(exit, id(current.number));
            if let (true, Some(blocked)) = (restarts, &view.blocked) {
                status.last_state = Some(state);
                status.state = Some(waiting_because(blocked.reason, &blocked.message));
            } else if restarts && !delay.is_zero() {
                status.last_state = Some(state);
                status.state = Some(crash_loop(observed.pod, container, current, exit));
            } else {
                status.state = Some(state);
            }
            status.ready = done;
        }
    }
    status
}

fn running(started_at: Timestamp) -> ContainerState {
    ContainerState {
        running: Some(ContainerStateRunning { started_at: Some(Time(whole_seconds(started_at))) }),
        ..ContainerState::default()
    }
}

fn waiting_because(reason: &str, message: &str) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message: (!message.is_empty()).then(|| message.to_owned()),
        }),
        ..ContainerState::default()
    }
}

fn waiting(view: &View, observed: &Observed<'_>, is_init: bool, spec: &PodSpec) -> ContainerState {
    if let Some(blocked) = &view.blocked {
        return waiting_because(blocked.reason, &blocked.message);
    }
    if !is_init && spec.init_containers.as_ref().is_some_and(|init| !init.is_empty()) {
        return waiting_because("PodInitializing", "");
    }
    match &observed.place {
        Place::Blocked { message, .. } => waiting_because("ContainerCreating", message),
        Place::Refused { .. } | Place::NoRoom { .. } | Place::Unprepared | Place::Ready | Place::Released => {
            waiting_because("ContainerCreating", "")
        }
    }
}

fn crash_loop(pod: &Pod, container: &Container, current: &Numbered, exit: &Exit) -> ContainerState {
    let metadata = &pod.metadata;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let seconds = decide::backoff(current, exit).as_secs();
    let delay = match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    };
    let message = format!(
        "back-off {delay} restarting failed container={} pod={}_{}({})",
        container.name,
        text(&metadata.name),
        text(&metadata.namespace),
        text(&metadata.uid)
    );
    waiting_because("CrashLoopBackOff", &message)
}

fn never_started() -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: 137,
            reason: Some("ContainerStatusUnknown".to_owned()),
            message: Some("The container could not be located when the pod was terminated".to_owned()),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

/// Signals as every runtime reports them: 128 and the signal's number.
fn terminated(exit: &Exit, id: String) -> ContainerState {
    let (exit_code, signal, reason) = match exit.how {
        How::Code(0) => (0, None, "Completed"),
        How::Code(code) => (code, None, "Error"),
        How::Signal(signal) => (128 + signal, Some(signal), "Error"),
        How::NotStarted => (128, None, "StartError"),
        How::Unknown => (255, None, "Unknown"),
    };
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            container_id: Some(id),
            exit_code,
            signal,
            reason: Some(reason.to_owned()),
            message: (!exit.message.is_empty()).then(|| exit.message.clone()),
            started_at: Some(Time(whole_seconds(exit.started_at.unwrap_or(Timestamp::UNIX_EPOCH)))),
            finished_at: Some(Time(whole_seconds(exit.finished_at))),
        }),
        ..ContainerState::default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Phase::Pending => "Pending",
            Phase::Running => "Running",
            Phase::Succeeded => "Succeeded",
            Phase::Failed => "Failed",
        }
    }
}

fn ended(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    let of =
        |state: &Option<ContainerState>| state.as_ref().map(|state| state.terminated.is_some()) == Some(true);
    if of(&status.state) {
        status.state.as_ref()?.terminated.as_ref()
    } else if status.state.as_ref().is_some_and(|state| state.waiting.is_some()) && of(&status.last_state) {
        status.last_state.as_ref()?.terminated.as_ref()
    } else {
        None
    }
}

fn phase(spec: &PodSpec, init: &[ContainerStatus], main: &[ContainerStatus], over: Over) -> Phase {
    let policy = RestartPolicy::of(spec);
    let is_running =
        |status: &&ContainerStatus| status.state.as_ref().is_some_and(|state| state.running.is_some());
    let main_ended: Vec<_> = main.iter().filter_map(ended).collect();
    let succeeded = main_ended.iter().all(|end| end.exit_code == 0);
    if over == Over::Yes {
        let init_done = init.iter().all(|status| ended(status).is_some_and(|end| end.exit_code == 0));
        return if init_done && succeeded && main_ended.len() == main.len() {
            Phase::Succeeded
        } else {
            Phase::Failed
        };
    }
    let begun = main.iter().any(|status| is_running(&status)) || !main_ended.is_empty();
    if !begun {
        let failed = init.iter().any(|status| ended(status).is_some_and(|end| end.exit_code != 0));
        return if failed && policy == RestartPolicy::Never { Phase::Failed } else { Phase::Pending };
    }
    if main.iter().any(|status| !is_running(&status) && ended(status).is_none()) {
        // One of them has never run: a kubelet calls the pod pending until all have.
        return Phase::Pending;
    }
    match policy {
        _ if main.iter().any(|status| is_running(&status)) => Phase::Running,
        RestartPolicy::Always => Phase::Running,
        RestartPolicy::OnFailure if !succeeded => Phase::Running,
        RestartPolicy::OnFailure => Phase::Succeeded,
        RestartPolicy::Never if succeeded => Phase::Succeeded,
        RestartPolicy::Never => Phase::Failed,
    }
}

fn conditions(
    observed: &Observed<'_>,
    spec: &PodSpec,
    before: &PodStatus,
    phase: Phase,
    init: &[ContainerStatus],
    main: &[ContainerStatus],
) -> Vec<PodCondition> {
    let old: BTreeMap<&str, &PodCondition> =
        before.conditions.iter().flatten().map(|condition| (condition.type_.as_str(), condition)).collect();
    let make = |kind: &str, holds: Holds| {
        let (status, reason, message) = match holds {
            Holds::Yes => ("True", None, None),
            Holds::YesBecause(reason) => ("True", Some(reason), None),
            Holds::No => ("False", None, None),
            Holds::NoBecause(reason, message) => ("False", Some(reason), message),
        };
        let old = old.get(kind).copied();
        let since = old
            .filter(|old| old.status == status)
            .and_then(|old| old.last_transition_time.clone())
            .unwrap_or(Time(whole_seconds(observed.now)));
        PodCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.map(str::to_owned),
            message,
            last_transition_time: Some(since),
            observed_generation: old.and_then(|old| old.observed_generation),
            ..PodCondition::default()
        }
    };
    let unready = |statuses: &[ContainerStatus]| {
        let names: Vec<&str> = statuses.iter().filter(|s| !s.ready).map(|s| s.name.as_str()).collect();
        (!names.is_empty()).then(|| names.join(" "))
    };
    let initialized = match (phase, unready(init)) {
        (Phase::Succeeded, _) => Holds::YesBecause("PodCompleted"),
        (_, None) => Holds::Yes,
        (_, Some(names)) => Holds::NoBecause(
            "ContainersNotInitialized",
            Some(format!("containers with incomplete status: [{names}]")),
        ),
    };
    let containers_ready = match (phase, unready(main)) {
        (Phase::Succeeded, _) => Holds::NoBecause("PodCompleted", None),
        (Phase::Failed, _) => Holds::NoBecause("PodFailed", None),
        (Phase::Pending | Phase::Running, None) => Holds::Yes,
        (Phase::Pending | Phase::Running, Some(names)) => {
            Holds::NoBecause("ContainersNotReady", Some(format!("containers with unready status: [{names}]")))
        }
    };
    let closed_gate = spec.readiness_gates.iter().flatten().find(|gate| {
        old.get(gate.condition_type.as_str()).is_none_or(|condition| condition.status != "True")
    });
    let ready = match (&containers_ready, closed_gate) {
        (Holds::Yes, Some(gate)) => Holds::NoBecause(
            "ReadinessGatesNotReady",
            Some(format!("the status of pod readiness gate \"{}\" is not \"True\"", gate.condition_type)),
        ),
        _ => containers_ready.clone(),
    };
    let can_start = match observed.place {
        Place::Ready => Holds::Yes,
        Place::Refused { .. }
        | Place::NoRoom { .. }
        | Place::Unprepared
        | Place::Blocked { .. }
        | Place::Released => Holds::No,
    };
    vec![
        make("PodReadyToStartContainers", can_start),
        make("Initialized", initialized),
        make("Ready", ready),
        make("ContainersReady", containers_ready),
        make("PodScheduled", Holds::Yes),
    ]
}

#[derive(Debug, Clone)]
enum Holds {
    Yes,
    YesBecause(&'static str),
    No,
    NoBecause(&'static str, Option<String>),
}

/// Guaranteed: every container limits cpu and memory and requests no other amount. BestEffort: none names either.
pub fn qos_class(spec: &PodSpec) -> &'static str {
    let mut any = false;
    let mut guaranteed = true;
    for container in decide::every_container(spec) {
        for resource in ["cpu", "memory"] {
            let get = |map: Option<&BTreeMap<String, _>>| -> Option<Quantity> {
                let quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity =
                    map?.get(resource)?;
                Quantity::parse(&quantity.0).filter(|quantity| *quantity > Quantity::ZERO)
            };
            let resources = container.resources.as_ref();
            let limit = get(resources.and_then(|r| r.limits.as_ref()));
            let request = get(resources.and_then(|r| r.requests.as_ref())).or(limit);
            any |= limit.is_some() || request.is_some();
            guaranteed &= limit.is_some() && request == limit;
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// The API keeps whole seconds; anything finer would look like a change for ever.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
