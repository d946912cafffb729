//! The row of a pod: how many containers are ready, and the one word for how it is.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{age, items, or_none, text};
use crate::kinds::meta;

pub(super) fn row_condition(pod: &Value) -> Option<Value> {
    let (reason, message) = match text(pod, "/status/phase") {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!({"type": "Completed", "status": "True", "reason": reason, "message": message}))
}

pub(super) fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = summary(pod);
    let restarts = match (summary.restarts, summary.last_restart) {
        (count, Some(last)) if count != 0 => format!("{count} ({} ago)", age(&last.to_string(), now)),
        (count, _) => count.to_string(),
    };
    let gates = items(pod, "/spec/readinessGates");
    let open =
        gates.iter().filter(|gate| condition(pod, text(gate, "/conditionType")) == Some("True")).count();
    let gates = if gates.is_empty() { "<none>".to_owned() } else { format!("{open}/{}", gates.len()) };
    let ip = items(pod, "/status/podIPs").first().map(|ip| text(ip, "/ip")).unwrap_or_default();
    vec![
        meta::name(pod).into(),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.reason.into(),
        restarts.into(),
        age(text(pod, "/metadata/creationTimestamp"), now).into(),
        or_none(ip),
        or_none(text(pod, "/spec/nodeName")),
        or_none(text(pod, "/status/nominatedNodeName")),
        gates.into(),
    ]
}

struct Summary {
    ready: usize,
    total: usize,
    reason: String,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a str> {
    items(pod, "/status/conditions").iter().find(|c| text(c, "/type") == kind).map(|c| text(c, "/status"))
}

fn number(value: &Value, pointer: &str) -> i64 {
    value.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

fn last_end(container: &Value) -> Option<Timestamp> {
    text(container, "/lastState/terminated/finishedAt").parse().ok()
}

/// Why a container ended: its reason, else the signal, else the exit code.
fn ending(container: &Value) -> String {
    let reason = text(container, "/state/terminated/reason");
    match number(container, "/state/terminated/signal") {
        _ if !reason.is_empty() => reason.to_owned(),
        0 => format!("ExitCode:{}", number(container, "/state/terminated/exitCode")),
        signal => format!("Signal:{signal}"),
    }
}

fn has(container: &Value, state: &str) -> bool {
    container.pointer(&format!("/state/{state}")).is_some_and(Value::is_object)
}

fn summary(pod: &Value) -> Summary {
    let phase = text(pod, "/status/phase");
    let own_reason = text(pod, "/status/reason");
    let mut reason = if own_reason.is_empty() { phase.to_owned() } else { own_reason.to_owned() };
    let gated = items(pod, "/status/conditions")
        .iter()
        .any(|c| text(c, "/type") == "PodScheduled" && text(c, "/reason") == "SchedulingGated");
    if gated {
        reason = "SchedulingGated".to_owned();
    }
    let init_containers = items(pod, "/spec/initContainers");
    let sidecar = |name: &str| {
        init_containers.iter().any(|c| text(c, "/name") == name && text(c, "/restartPolicy") == "Always")
    };
    let sidecars = init_containers.iter().filter(|c| text(c, "/restartPolicy") == "Always").count();
    let mut found = Summary {
        ready: 0,
        total: items(pod, "/spec/containers").len() + sidecars,
        reason,
        restarts: 0,
        last_restart: None,
    };
    let mut sidecar_restarts = (0, None);
    let mut initializing = false;
    for (index, container) in items(pod, "/status/initContainerStatuses").iter().enumerate() {
        let restarts = number(container, "/restartCount");
        found.restarts += restarts;
        found.last_restart = found.last_restart.max(last_end(container));
        let is_sidecar = sidecar(text(container, "/name"));
        if is_sidecar {
            sidecar_restarts = (sidecar_restarts.0 + restarts, sidecar_restarts.1.max(last_end(container)));
        }
        if has(container, "terminated") && number(container, "/state/terminated/exitCode") == 0 {
            continue;
        }
        if is_sidecar && container.get("started") == Some(&Value::Bool(true)) {
            found.ready += usize::from(container.get("ready") == Some(&Value::Bool(true)));
            continue;
        }
        let waiting = text(container, "/state/waiting/reason");
        found.reason = if has(container, "terminated") {
            format!("Init:{}", ending(container))
        } else if !waiting.is_empty() && waiting != "PodInitializing" {
            format!("Init:{waiting}")
        } else {
            format!("Init:{index}/{}", init_containers.len())
        };
        initializing = true;
        break;
    }
    if !initializing || condition(pod, "Initialized") == Some("True") {
        (found.restarts, found.last_restart) = sidecar_restarts;
        containers(pod, &mut found);
    }
    if meta::is_deleting(pod) {
        if own_reason == "NodeLost" {
            found.reason = "Unknown".to_owned();
        } else if !["Succeeded", "Failed"].contains(&phase) {
            found.reason = "Terminating".to_owned();
        }
    }
    found
}

fn containers(pod: &Value, found: &mut Summary) {
    let (mut running, mut error) = (false, None);
    for container in items(pod, "/status/containerStatuses").iter().rev() {
        found.restarts += number(container, "/restartCount");
        found.last_restart = found.last_restart.max(last_end(container));
        let waiting = text(container, "/state/waiting/reason");
        if !waiting.is_empty() {
            found.reason = waiting.to_owned();
        } else if has(container, "terminated") {
            found.reason = ending(container);
            if number(container, "/state/terminated/exitCode") != 0 {
                error = Some(found.reason.clone());
            }
        } else if container.get("ready") == Some(&Value::Bool(true)) && has(container, "running") {
            running = true;
            found.ready += 1;
        }
    }
    // One container has completed, others may still run.
    if found.reason == "Completed" {
        found.reason = match (running, error) {
            (true, _) if condition(pod, "Ready") == Some("True") => "Running".to_owned(),
            (_, Some(error)) => error,
            (true, None) => "NotReady".to_owned(),
            (false, None) => "Completed".to_owned(),
        };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::*;

    fn check(status: Value, ready: &str, word: &str) {
        let pod =
            json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}]}, "status": status});
        let cells = cells(&pod, Timestamp::UNIX_EPOCH);
        assert_eq!((&cells[1], &cells[2]), (&json!(ready), &json!(word)), "{pod}");
    }

    #[test]
    fn one_word_for_how_a_pod_is() {
        check(json!({"phase": "Pending"}), "0/1", "Pending");
        let running = json!({"name": "a", "ready": true, "restartCount": 0, "state": {"running": {}}});
        check(json!({"phase": "Running", "containerStatuses": [running]}), "1/1", "Running");
        let ended = |code: i64, reason: &str| json!({"name": "a", "state": {"terminated": {"exitCode": code, "reason": reason}}});
        check(
            json!({"phase": "Succeeded", "containerStatuses": [ended(0, "Completed")]}),
            "0/1",
            "Completed",
        );
        check(json!({"phase": "Failed", "containerStatuses": [ended(3, "")]}), "0/1", "ExitCode:3");
        let waiting = json!({"name": "a", "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
        check(json!({"phase": "Running", "containerStatuses": [waiting]}), "0/1", "CrashLoopBackOff");
        check(
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}),
            "0/1",
            "Init:0/0",
        );
    }
}
