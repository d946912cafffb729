//! Gives unscheduled pods to this node, for an API that has no scheduler of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Binding, Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, Time};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::pods::Room;

const DEFAULT_SCHEDULER: &str = "default-scheduler";
const RETRY: Duration = Duration::from_secs(1);

/// What is to be done about an unscheduled pod.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Bind,
    /// Somebody else's, or not to be scheduled yet.
    Leave,
    Unschedulable(String),
}

/// Pure: whether this node can have the pod.
fn decide(pod: &Pod, labels: &BTreeMap<String, String>, has_space: bool) -> Verdict {
    let Some(spec) = &pod.spec else { return Verdict::Leave };
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let another = spec.scheduler_name.as_deref().is_some_and(|name| name != DEFAULT_SCHEDULER);
    let gated = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
    let bound = spec.node_name.as_deref().is_some_and(|name| !name.is_empty());
    if bound || another || gated || pod.metadata.deletion_timestamp.is_some() || phase == Some("Failed") {
        return Verdict::Leave;
    }
    let selected = spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    if !selected {
        return Verdict::Unschedulable(
            "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.".to_owned(),
        );
    }
    if !has_space {
        return Verdict::Unschedulable("0/1 nodes are available: 1 Too many pods.".to_owned());
    }
    Verdict::Bind
}

/// Runs until it is dropped. O(waiting pods) whenever one comes or room is given back.
pub(crate) async fn run(client: Client, node: String, room: Arc<Room>) {
    let pods: Api<Pod> = Api::all(client.clone());
    let mut events = Box::pin(watcher(pods, watcher::Config::default().fields("spec.nodeName=")));
    let mut waiting: BTreeMap<(String, String), Pod> = BTreeMap::new();
    let mut changes = room.changes();
    let mut backoff = watcher::DefaultBackoff::default();
    let mut failed = false;
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => {
                    backoff = watcher::DefaultBackoff::default();
                    match event {
                        watcher::Event::Init => waiting.clear(),
                        watcher::Event::InitDone => {}
                        watcher::Event::InitApply(pod) | watcher::Event::Apply(pod) => {
                            waiting.insert(key(&pod), pod);
                        }
                        watcher::Event::Delete(pod) => {
                            waiting.remove(&key(&pod));
                        }
                    }
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "the watch of unscheduled pods failed; trying again");
                    if let Some(wait) = backoff.next() {
                        tokio::time::sleep(wait).await;
                    }
                    continue;
                }
                None => return,
            },
            _ = changes.changed() => {}
            () = tokio::time::sleep(RETRY), if failed => {}
        }
        failed = false;
        if waiting.is_empty() {
            continue;
        }
        let labels = node_labels(&client, &node).await;
        let mut taken = Vec::new();
        for (key, pod) in &waiting {
            let outcome = match decide(pod, &labels, room.has_space()) {
                Verdict::Leave => Ok(()),
                Verdict::Bind => bind(&client, pod, &node).await.inspect(|()| {
                    room.promise(&pod.uid().unwrap_or_default());
                    taken.push(key.clone());
                }),
                Verdict::Unschedulable(message) => mark_unschedulable(&client, pod, &message).await,
            };
            if let Err(error) = outcome {
                tracing::warn!(pod = key.1, namespace = key.0, %error, "could not schedule; trying again");
                failed = true;
            }
        }
        for key in taken {
            waiting.remove(&key);
        }
    }
}

fn key(pod: &Pod) -> (String, String) {
    (pod.namespace().unwrap_or_default(), pod.name_any())
}

async fn node_labels(client: &Client, node: &str) -> BTreeMap<String, String> {
    let nodes: Api<Node> = Api::all(client.clone());
    match nodes.get_opt(node).await {
        Ok(found) => found.and_then(|node| node.metadata.labels).unwrap_or_default(),
        Err(_) => BTreeMap::new(),
    }
}

async fn bind(client: &Client, pod: &Pod, node: &str) -> Result<(), kube::Error> {
    let binding = Binding {
        metadata: ObjectMeta {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            // Another pod of the same name must not be bound in its place.
            uid: pod.metadata.uid.clone(),
            ..ObjectMeta::default()
        },
        target: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            ..ObjectReference::default()
        },
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let answer: Result<Status, kube::Error> =
        pods.create_subresource("binding", &pod.name_any(), &PostParams::default(), &binding).await;
    match answer {
        Ok(_) => Ok(()),
        // Gone, or bound meanwhile: either way there is nothing left to do.
        Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn mark_unschedulable(client: &Client, pod: &Pod, message: &str) -> Result<(), kube::Error> {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let old = conditions.into_iter().flatten().find(|condition| condition.type_ == "PodScheduled");
    if old.is_some_and(|old| old.status == "False" && old.message.as_deref() == Some(message)) {
        return Ok(());
    }
    let since = old
        .filter(|old| old.status == "False")
        .and_then(|old| old.last_transition_time.clone())
        .unwrap_or_else(|| Time(jiff::Timestamp::now()));
    let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
        "lastTransitionTime": since,
    }]}});
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let params = PatchParams { field_manager: Some("terrane-node".to_owned()), ..PatchParams::default() };
    match pods.patch_status(&pod.name_any(), &params, &Patch::Strategic(patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::Value;

    #[test]
    fn a_pod_is_bound_only_when_it_is_this_nodes_to_have() {
        let labels = BTreeMap::from([("kubernetes.io/os".to_owned(), "linux".to_owned())]);
        let verdict = |spec: Value, has_space| {
            let pod = json!({"metadata": {"name": "p"}, "spec": spec});
            decide(&serde_json::from_value(pod).unwrap(), &labels, has_space)
        };
        let plain = json!({"containers": []});
        assert_eq!(verdict(plain.clone(), true), Verdict::Bind);
        assert_eq!(
            verdict(plain, false),
            Verdict::Unschedulable("0/1 nodes are available: 1 Too many pods.".into())
        );
        let selecting = |os: &str| json!({"containers": [], "nodeSelector": {"kubernetes.io/os": os}});
        assert_eq!(verdict(selecting("linux"), true), Verdict::Bind);
        assert!(matches!(verdict(selecting("plan9"), true), Verdict::Unschedulable(_)));
        for other in [
            json!({"containers": [], "schedulerName": "mine"}),
            json!({"containers": [], "schedulingGates": [{"name": "wait"}]}),
            json!({"containers": [], "nodeName": "there"}),
        ] {
            assert_eq!(verdict(other.clone(), true), Verdict::Leave, "{other}");
        }
    }
}
