//! What the pod of an attempt says about it.

use api::{BUILDER_ACCOUNT, TerraformRun, label};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};

/// Whether the pod is the run's: by its owner, which nobody else can name, or in the namespace of builds, where an owner cannot be named, by
/// labels, which an admission policy lets the controller alone set.
pub fn is_ours(pod: &Pod, run: &TerraformRun) -> bool {
    let uid = run.metadata.uid.as_ref();
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let is_owned = owners.any(|owner| owner.kind == "TerraformRun" && Some(&owner.uid) == uid);
    is_owned || is_builder_of(pod, run)
}

fn is_builder_of(pod: &Pod, run: &TerraformRun) -> bool {
    let label = |key: &str| pod.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
    let namespace = pod.metadata.namespace.as_deref();
    run.metadata.uid.is_some()
        && namespace != run.metadata.namespace.as_deref()
        && namespace == Some(super::pod_namespace(run))
        && account == Some(BUILDER_ACCOUNT)
        && label(label::RUN_UID) == run.metadata.uid.as_ref()
        && label(label::RUN_NAMESPACE) == run.metadata.namespace.as_ref()
}

pub(super) fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// What keeps a pod that is there from starting. In words that stay the same while the cause does: a kubelet and a scheduler say it
/// anew with each try, and each would be a write.
#[derive(Debug, PartialEq, Eq, Hash)]
pub enum Obstacle {
    /// It does not go away by itself.
    NotStarting(String),
    /// It goes when a node has room, or when there is another node.
    Unschedulable(String),
}

/// O(containers of a pod, which are few).
pub fn obstacle(pod: &Pod) -> Option<Obstacle> {
    let status = pod.status.as_ref().filter(|status| status.phase.as_deref() == Some("Pending"))?;
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    if let Some((_, why)) = obstructed(pod).next() {
        return Some(Obstacle::NotStarting(why));
    }
    let is_unschedulable = status.conditions.iter().flatten().any(|condition| {
        condition.type_ == "PodScheduled" && condition.reason.as_deref() == Some("Unschedulable")
    });
    is_unschedulable.then(|| {
        Obstacle::Unschedulable(format!("no node takes pod {name}; `kubectl describe pod {name}` says why"))
    })
}

/// The containers that cannot start, and why.
fn obstructed(pod: &Pod) -> impl Iterator<Item = (&str, String)> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let statuses = pod.status.iter().flat_map(|status| {
        let before = status.init_container_statuses.iter().flatten();
        before.chain(status.container_statuses.iter().flatten())
    });
    statuses.filter_map(move |status| {
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
        let why = match waiting.reason.as_deref()? {
            reason if is_about_image(reason) => format!(
                "image {} cannot be pulled for pod {name}; put it where the node can pull it, or name another as the runners' image",
                image(pod, &status.name).unwrap_or_default(),
            ),
            "CreateContainerConfigError" | "CreateContainerError" => {
                let why = waiting.message.as_deref().unwrap_or("the node does not say why");
                format!("the container of pod {name} cannot be made: {why}")
            }
            _ => return None,
        };
        Some((status.name.as_str(), why))
    })
}

/// Whether one of its containers cannot start.
pub(super) fn is_obstructed(pod: &Pod, container: &str) -> bool {
    obstructed(pod).any(|(name, _)| name == container)
}

fn is_about_image(reason: &str) -> bool {
    matches!(
        reason,
        "ErrImagePull"
            | "ImagePullBackOff"
            | "InvalidImageName"
            | "ErrImageNeverPull"
            | "ImageInspectError"
            | "RegistryUnavailable"
    )
}

/// Whether a container cannot start for want of its image.
pub(super) fn lacks_image(pod: &Pod, container: &str) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let mut reasons = statuses
        .filter(|status| status.name == container)
        .filter_map(|status| status.state.as_ref()?.waiting.as_ref()?.reason.as_deref());
    reasons.any(is_about_image)
}

/// When what comes before the runner's container was done.
pub(super) fn brought_at(pod: &Pod) -> Option<Timestamp> {
    let before = pod.status.as_ref()?.init_container_statuses.as_ref()?;
    let ended =
        before.iter().filter_map(|status| status.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref());
    ended.map(|at| at.0).max()
}

/// Why an ended pod never came to the runner, in words: what comes before it failed, and a pod of a run starts nothing again.
pub(super) fn never_began(pod: &Pod) -> Option<String> {
    let before = pod.status.as_ref()?.init_container_statuses.as_ref()?;
    before.iter().find_map(|status| {
        let ended = status.state.as_ref()?.terminated.as_ref().filter(|ended| ended.exit_code != 0)?;
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        Some(format!(
            "container {} of pod {name} failed before the runner began (exit code {}); `kubectl logs {name} --container {}` says why",
            status.name, ended.exit_code, status.name
        ))
    })
}

/// The image that a container of the pod was made for.
pub(super) fn image<'a>(pod: &'a Pod, container: &str) -> Option<&'a str> {
    let spec = pod.spec.as_ref()?;
    let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.find(|known| known.name == container)?.image.as_deref()
}

fn terminated(pod: &Pod) -> Option<&ContainerStateTerminated> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()?.state.as_ref()?.terminated.as_ref()
}

pub(super) fn exit_code(pod: &Pod) -> Option<i32> {
    terminated(pod).map(|t| t.exit_code)
}

pub(super) fn exit_words(pod: &Pod) -> String {
    let message = pod.status.as_ref().and_then(|s| s.message.clone().or_else(|| s.reason.clone()));
    match (terminated(pod), message) {
        (Some(t), _) if t.signal.is_some_and(|s| s != 0) => {
            format!("killed by signal {}", t.signal.unwrap_or_default())
        }
        (Some(t), _) => format!("exit code {}", t.exit_code),
        (None, Some(message)) => message,
        (None, None) => disruption(pod).unwrap_or_else(|| "its container never ran".to_owned()),
    }
}

/// What Kubernetes took the pod from its node for, in its words: its node was deleted, which is an administrator's word that nothing of it
/// runs any more.
fn disruption(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let told = conditions.iter().find(|one| one.type_ == "DisruptionTarget" && one.status == "True")?;
    let words = told.message.as_deref().or(told.reason.as_deref())?;
    let node = pod.spec.as_ref()?.node_name.as_deref().unwrap_or_default();
    Some(format!("taken from node {node}: {words}"))
}

/// Whether anything of it runs or may yet run.
pub fn can_still_work(pod: &Pod) -> bool {
    !has_ended(pod) && !never_ran(pod)
}

/// It was deleted before a node had it: the API binds no pod that is being deleted, so none of its containers ever ran or will.
pub(super) fn never_ran(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
        && pod.spec.as_ref().is_none_or(|spec| spec.node_name.as_deref().unwrap_or_default().is_empty())
}

pub(super) fn is_being_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::{Value, json};

    fn pod(status: Value) -> Pod {
        let spec = json!({ "containers": [{ "name": "runner", "image": "example.org/runner:1" }] });
        serde_json::from_value(json!({ "metadata": { "name": "db" }, "spec": spec, "status": status }))
            .unwrap()
    }

    fn waiting(reason: &str, message: &str) -> Value {
        let state = json!({ "waiting": { "reason": reason, "message": message } });
        let container = json!({ "name": "runner", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state });
        json!({ "phase": "Pending", "containerStatuses": [container] })
    }

    #[test]
    fn a_pod_of_a_deleted_node_is_not_said_to_have_never_run() {
        let mut lost = pod(json!({
            "phase": "Failed",
            "conditions": [{ "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "PodGC: node no longer exists" }],
            "containerStatuses": [{ "name": "runner", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": { "running": {} } }],
        }));
        lost.spec.as_mut().unwrap().node_name = Some("rack-7".to_owned());
        assert_eq!(exit_words(&lost), "taken from node rack-7: PodGC: node no longer exists");
        assert!(!can_still_work(&lost));
        assert_eq!(exit_words(&pod(json!({ "phase": "Failed" }))), "its container never ran");
    }

    #[test]
    fn what_keeps_a_pod_from_starting_is_said_in_the_same_words_at_each_try() {
        let first = obstacle(&pod(waiting("ErrImagePull", "not found, try 1")));
        let words = "image example.org/runner:1 cannot be pulled for pod db; put it where the node can pull it, or name another as \
                     the runners' image";
        assert_eq!(first, Some(Obstacle::NotStarting(words.into())));
        assert_eq!(obstacle(&pod(waiting("ImagePullBackOff", "Back-off 20s"))), first);
        let missing = obstacle(&pod(waiting("CreateContainerConfigError", "secret \"a\" not found")));
        let words = "the container of pod db cannot be made: secret \"a\" not found";
        assert_eq!(missing, Some(Obstacle::NotStarting(words.into())));
        let nowhere = json!({ "phase": "Pending", "conditions": [
            { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/7 nodes" },
        ] });
        let words = "no node takes pod db; `kubectl describe pod db` says why";
        assert_eq!(obstacle(&pod(nowhere)), Some(Obstacle::Unschedulable(words.into())));
        assert_eq!(obstacle(&pod(waiting("ContainerCreating", ""))), None);
        assert_eq!(obstacle(&pod(json!({ "phase": "Running" }))), None);
    }
}
