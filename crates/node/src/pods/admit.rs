//! Which pods this node runs at all. What would make another pod of it is refused in words; what only asks to be kept apart is replaced
//! by the node's own isolation, and some fields mean nothing here. `docs/operating.md` lists all three.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::decide::every_container;

/// As an admission of a kubelet fails: the pod ends as Failed with this reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// A directory name that two pods of a namespace can share, one after the other, so that both see the same paths.
pub const DIRECTORY_ANNOTATION: &str = "node.terrane.dev/directory";

pub(super) fn admit(pod: &Pod) -> Result<(), Refusal> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let refuse = |message: String| Err(Refusal { reason: "UnsupportedPod", message });
    if spec.os.as_ref().is_some_and(|os| os.name != "linux") {
        return Err(Refusal {
            reason: "PodOSNotSupported",
            message: "Failed to admit pod as the OS field doesn't match node OS".to_owned(),
        });
    }
    if let Some(feature) = unsupported_of_pod(spec) {
        return refuse(format!("the pod has {feature}, which a process node does not honour"));
    }
    for volume in spec.volumes.iter().flatten() {
        let known = volume.empty_dir.is_some()
            || volume.secret.is_some()
            || volume.config_map.is_some()
            || volume.downward_api.is_some()
            || volume.projected.is_some();
        if !known {
            return refuse(format!(
                "volume {:?} is of a kind that a process node does not have; it has emptyDir, secret, configMap, downwardAPI and projected",
                volume.name
            ));
        }
    }
    for container in every_container(spec) {
        if let Some(feature) = unsupported(container) {
            return refuse(format!(
                "container {:?} has {feature}, which a process node does not honour",
                container.name
            ));
        }
    }
    match pod.metadata.annotations.as_ref().and_then(|all| all.get(DIRECTORY_ANNOTATION)) {
        Some(name) if !is_label(name) => refuse(format!(
            "the annotation {DIRECTORY_ANNOTATION} is {name:?}; it must be lower case letters, digits and dashes, 63 at most"
        )),
        Some(_) | None => Ok(()),
    }
}

fn unsupported_of_pod(spec: &PodSpec) -> Option<&'static str> {
    let security = spec.security_context.as_ref();
    let sysctls = security.and_then(|security| security.sysctls.as_ref());
    [
        // The processes of other pods, and of the machine, are kept from it.
        (spec.host_pid == Some(true), "hostPID"),
        (spec.host_ipc == Some(true), "hostIPC"),
        (spec.host_users == Some(false), "hostUsers: false"),
        (spec.host_aliases.as_ref().is_some_and(|aliases| !aliases.is_empty()), "hostAliases"),
        (sysctls.is_some_and(|sysctls| !sysctls.is_empty()), "sysctls"),
        (
            spec.ephemeral_containers.as_ref().is_some_and(|containers| !containers.is_empty()),
            "ephemeralContainers",
        ),
        (spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()), "resourceClaims"),
    ]
    .into_iter()
    .find_map(|(present, feature)| present.then_some(feature))
}

fn unsupported(container: &Container) -> Option<&'static str> {
    let hooks = container.lifecycle.as_ref();
    let security = container.security_context.as_ref();
    let added = security.and_then(|security| security.capabilities.as_ref()?.add.as_ref());
    [
        (security.is_some_and(|security| security.privileged == Some(true)), "a privileged securityContext"),
        // Every process loses all capabilities, so those that a pod drops are gone and none can be added.
        (added.is_some_and(|added| !added.is_empty()), "added capabilities"),
        (container.liveness_probe.is_some(), "a livenessProbe"),
        (container.readiness_probe.is_some(), "a readinessProbe"),
        (container.startup_probe.is_some(), "a startupProbe"),
        (
            hooks.is_some_and(|hooks| hooks.post_start.is_some() || hooks.pre_stop.is_some()),
            "lifecycle hooks",
        ),
        (container.volume_devices.as_ref().is_some_and(|devices| !devices.is_empty()), "volumeDevices"),
        (container.restart_policy.is_some(), "a restartPolicy of its own"),
        (container.stdin == Some(true) || container.tty == Some(true), "stdin or a tty"),
    ]
    .into_iter()
    .find_map(|(present, feature)| present.then_some(feature))
}

fn is_label(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty()
        && name.len() <= 63
        && name.chars().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::{Value, json};

    fn refused(spec: Value, annotations: Value) -> Option<String> {
        let pod = json!({"metadata": {"name": "p", "annotations": annotations}, "spec": spec});
        admit(&serde_json::from_value(pod).unwrap()).err().map(|refusal| refusal.message)
    }

    #[test]
    fn what_is_not_honoured_is_refused_by_name() {
        let none = json!({});
        let with = |container: Value| json!({"containers": [container]});
        assert_eq!(refused(with(json!({"name": "a"})), none.clone()), None);
        assert_eq!(refused(with(json!({"name": "a"})), json!({DIRECTORY_ANNOTATION: "layer-1"})), None);
        let careful = json!({"privileged": false, "capabilities": {"drop": ["ALL"]}});
        assert_eq!(refused(with(json!({"name": "a", "securityContext": careful})), none.clone()), None);
        // What the pods of runners have.
        let runner = json!({"automountServiceAccountToken": false, "enableServiceLinks": false,
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "a", "securityContext": {"allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}}}]});
        assert_eq!(refused(runner, none.clone()), None);
        for (spec, word) in [
            (
                with(json!({"name": "a", "readinessProbe": {"exec": {"command": ["true"]}}})),
                "a readinessProbe",
            ),
            (
                with(json!({"name": "a", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}})),
                "lifecycle hooks",
            ),
            (with(json!({"name": "a", "tty": true})), "stdin or a tty"),
            (
                with(json!({"name": "a", "securityContext": {"privileged": true}})),
                "a privileged securityContext",
            ),
            (
                with(json!({"name": "a", "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}})),
                "added capabilities",
            ),
            (
                json!({"containers": [], "initContainers": [{"name": "i", "restartPolicy": "Always"}]}),
                "restartPolicy",
            ),
            (
                json!({"containers": [], "volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
                "volume \"v\"",
            ),
            (json!({"containers": [], "os": {"name": "windows"}}), "OS field"),
            (json!({"containers": [], "hostPID": true}), "hostPID"),
            (json!({"containers": [], "hostIPC": true}), "hostIPC"),
            (json!({"containers": [], "hostUsers": false}), "hostUsers: false"),
            (
                json!({"containers": [], "hostAliases": [{"ip": "192.0.2.1", "hostnames": ["a"]}]}),
                "hostAliases",
            ),
            (
                json!({"containers": [], "securityContext": {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}}),
                "sysctls",
            ),
        ] {
            let message = refused(spec, none.clone()).unwrap();
            assert!(message.contains(word), "{message}");
        }
        let bad = refused(with(json!({"name": "a"})), json!({DIRECTORY_ANNOTATION: "../x"})).unwrap();
        assert!(bad.contains("lower case letters"), "{bad}");
    }
}
