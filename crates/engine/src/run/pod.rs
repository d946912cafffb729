//! What the pod of an attempt says about it.

use api::TerraformRun;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};

pub(super) fn is_ours(pod: &Pod, run: &TerraformRun) -> bool {
    pod.metadata
        .owner_references
        .iter()
        .flatten()
        .any(|owner| owner.kind == "TerraformRun" && Some(&owner.uid) == run.metadata.uid.as_ref())
}

pub(super) fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
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
        (None, None) => "its container never ran".to_owned(),
    }
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
