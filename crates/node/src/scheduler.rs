//! Gives unscheduled pods to this node, for an API that has no scheduler of its own.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{Binding, Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, Time};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::events::Events;
use crate::pods::Room;
use crate::tolerations;

/// The scheduler whose pods are taken, and the name under which Events tell of it.
pub(crate) const DEFAULT_SCHEDULER: &str = "default-scheduler";
const RETRY: Duration = Duration::from_secs(1);
const RECHECK: Duration = Duration::from_secs(30);

/// What is to be done about an unscheduled pod.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Bind,
    /// Somebody else's, or not to be scheduled yet.
    Leave,
    Unschedulable(String),
}

/// Pure: whether this node can have the pod. The checks come in the order of a cluster's scheduler, whose words they use.
fn decide(pod: &Pod, node: &Node, has_space: bool) -> Verdict {
    let Some(spec) = &pod.spec else { return Verdict::Leave };
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let another = spec.scheduler_name.as_deref().is_some_and(|name| name != DEFAULT_SCHEDULER);
    let gated = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
    let bound = spec.node_name.as_deref().is_some_and(|name| !name.is_empty());
    if bound || another || gated || pod.metadata.deletion_timestamp.is_some() || phase == Some("Failed") {
        return Verdict::Leave;
    }
    let unschedulable = |why: &str| Verdict::Unschedulable(format!("0/1 nodes are available: 1 {why}."));
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let node_spec = node.spec.clone().unwrap_or_default();
    if node_spec.unschedulable == Some(true) && !tolerations::tolerate_cordon(tolerations) {
        return unschedulable("node(s) were unschedulable");
    }
    if tolerations::first_untolerated(&node_spec.taints.unwrap_or_default(), tolerations).is_some() {
        return unschedulable("node(s) had untolerated taint(s)");
    }
    let labels = node.metadata.labels.clone().unwrap_or_default();
    if spec.node_selector.iter().flatten().any(|(key, value)| labels.get(key) != Some(value)) {
        return unschedulable("node(s) didn't match Pod's node affinity/selector");
    }
    if !has_space {
        return unschedulable("Too many pods");
    }
    Verdict::Bind
}

/// Runs until it is dropped. O(waiting pods) whenever one comes, room is given back or the node changes.
pub(crate) async fn run(client: Client, node: String, room: Arc<Room>, told: Events) {
    let pods: Api<Pod> = Api::all(client.clone());
    let mut events = Box::pin(watcher(pods, watcher::Config::default().fields("spec.nodeName=")));
    let nodes: Api<Node> = Api::all(client.clone());
    let itself = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let mut node_events: Pin<Box<NodeEvents>> = Box::pin(watcher(nodes.clone(), itself));
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
            () = changed(&mut node_events) => {}
            _ = changes.changed() => {}
            () = tokio::time::sleep(RETRY), if failed => {}
            // A place that was promised to a pod that never came is free after a while, and nothing else tells.
            () = tokio::time::sleep(RECHECK), if !waiting.is_empty() => {}
        }
        failed = false;
        if waiting.is_empty() {
            continue;
        }
        // The watch only says when to look: what is decided rests on the node as it is now.
        let found = match nodes.get_opt(&node).await {
            Ok(Some(found)) => found,
            // Not registered yet, or removed: its own heartbeat brings it, and the watch tells.
            Ok(None) => continue,
            Err(error) => {
                tracing::warn!(node, %error, "could not read the node that pods wait for; trying again");
                failed = true;
                continue;
            }
        };
        let keys: Vec<_> = waiting.keys().cloned().collect();
        for key in keys {
            let Some(pod) = waiting.get(&key).cloned() else { continue };
            let outcome = match decide(&pod, &found, room.has_space()) {
                Verdict::Leave => Ok(()),
                Verdict::Bind => bind(&client, &pod, &node).await.map(|bound| {
                    if bound == Bound::Now {
                        let name = format!("{}/{}", key.0, key.1);
                        told.note(&pod, "Scheduled", &format!("Successfully assigned {name} to {node}"));
                    }
                    room.promise(&pod.uid().unwrap_or_default());
                    waiting.remove(&key);
                }),
                Verdict::Unschedulable(message) => {
                    mark_unschedulable(&client, &pod, &message).await.map(|marked| {
                        if let Some(marked) = marked {
                            told.warn(&marked, "FailedScheduling", &message);
                            // Until the watch brings it, so that the same is not told twice.
                            waiting.insert(key.clone(), marked);
                        }
                    })
                }
            };
            if let Err(error) = outcome {
                tracing::warn!(pod = key.1, namespace = key.0, %error, "could not schedule; trying again");
                failed = true;
            }
        }
    }
}

fn key(pod: &Pod) -> (String, String) {
    (pod.namespace().unwrap_or_default(), pod.name_any())
}

type NodeEvents = dyn Stream<Item = Result<watcher::Event<Node>, watcher::Error>> + Send;

/// When the node is not what it was. A failing watch is begun again, and lists the node when it is.
async fn changed(events: &mut Pin<Box<NodeEvents>>) {
    let mut backoff = watcher::DefaultBackoff::default();
    loop {
        match events.next().await {
            Some(Ok(_)) => return,
            Some(Err(error)) => {
                tracing::warn!(%error, "the watch of the node failed; trying again");
                tokio::time::sleep(backoff.next().unwrap_or(RETRY)).await;
            }
            // The stream of a watcher does not end.
            None => std::future::pending().await,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    Now,
    /// Gone, or bound by somebody else meanwhile.
    Settled,
}

async fn bind(client: &Client, pod: &Pod, node: &str) -> Result<Bound, kube::Error> {
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
        Ok(_) => Ok(Bound::Now),
        Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => Ok(Bound::Settled),
        Err(error) => Err(error),
    }
}

/// The pod with the reason in its status, or nothing if it has been there or the pod is gone.
async fn mark_unschedulable(client: &Client, pod: &Pod, message: &str) -> Result<Option<Pod>, kube::Error> {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let old = conditions.into_iter().flatten().find(|condition| condition.type_ == "PodScheduled");
    if old.is_some_and(|old| old.status == "False" && old.message.as_deref() == Some(message)) {
        return Ok(None);
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
        Ok(marked) => Ok(Some(marked)),
        Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::Value;

    fn node(spec: Value) -> Node {
        let labels = json!({"kubernetes.io/os": "linux"});
        serde_json::from_value(json!({"metadata": {"name": "n", "labels": labels}, "spec": spec})).unwrap()
    }

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    #[test]
    fn a_pod_is_bound_only_when_it_is_this_nodes_to_have() {
        let node = node(json!({}));
        let verdict = |spec: Value, has_space| decide(&pod(spec), &node, has_space);
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

    #[test]
    fn a_cordoned_or_tainted_node_takes_only_pods_that_tolerate_it() {
        let cordoned = json!({"unschedulable": true});
        let tainted = json!({"taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]});
        let leaving = json!({"taints": [{"key": "down", "effect": "NoExecute"}]});
        let disliked = json!({"taints": [{"key": "busy", "effect": "PreferNoSchedule"}]});
        let plain = json!([]);
        let everything = json!([{"operator": "Exists"}]);
        let this = json!([{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]);
        let (was_cordoned, was_tainted) =
            (Some("node(s) were unschedulable"), Some("node(s) had untolerated taint(s)"));
        for (spec, tolerations, refused) in [
            (&cordoned, &plain, was_cordoned),
            (&cordoned, &this, was_cordoned),
            (&cordoned, &everything, None),
            (&tainted, &plain, was_tainted),
            (&tainted, &this, None),
            (&leaving, &plain, was_tainted),
            (&leaving, &this, was_tainted),
            (&leaving, &everything, None),
            (&disliked, &plain, None),
        ] {
            let pod = pod(json!({"containers": [], "tolerations": tolerations}));
            let expected = refused.map_or(Verdict::Bind, |why| {
                Verdict::Unschedulable(format!("0/1 nodes are available: 1 {why}."))
            });
            assert_eq!(decide(&pod, &node(spec.clone()), true), expected, "{spec} {tolerations}");
        }
    }
}
