//! Makes this machine known to the API as a Node, and keeps saying that it is alive.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{
    Namespace, Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference, Time};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::config::Admission;
use crate::fields::Facts;

const LEASE_NAMESPACE: &str = "kube-node-lease";
const LEASE_SECONDS: i32 = 40;
const RENEW: Duration = Duration::from_secs(10);
/// The status carries a time of its own, and is written this seldom while nothing else in it changes.
const STATUS_EVERY: Duration = Duration::from_secs(300);
const MANAGER: &str = "terrane-node";
const ADDRESS: &str = "127.0.0.1";

/// What this machine has, for the Node's status and for pods that ask.
pub(crate) fn facts(pods: &Path) -> Facts {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kibibytes = memory.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    let storage = rustix::fs::statvfs(pods).map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize));
    Facts {
        address: ADDRESS.to_owned(),
        cpus: std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
        memory_bytes: kibibytes.unwrap_or(0).saturating_mul(1024),
        storage_bytes: storage,
    }
}

/// Registers and then renews until it is dropped. A failure is tried again: the API may not be there yet.
pub(crate) async fn run(client: Client, name: &str, facts: &Facts, max_pods: usize, admission: &Admission) {
    let mut node: Option<Node> = None;
    let mut status_written: Option<tokio::time::Instant> = None;
    loop {
        let due = status_written.is_none_or(|at| at.elapsed() >= STATUS_EVERY);
        let outcome = async {
            let registered = match (&node, due) {
                (Some(node), false) => node.clone(),
                (None, _) | (Some(_), true) => register(&client, name, facts, max_pods, admission).await?,
            };
            renew_lease(&client, &registered).await?;
            Ok::<Node, kube::Error>(registered)
        }
        .await;
        let wait = match outcome {
            Ok(registered) => {
                if due {
                    status_written = Some(tokio::time::Instant::now());
                }
                node = Some(registered);
                RENEW
            }
            Err(error) => {
                tracing::warn!(node = name, %error, "could not say that the node is alive; trying again");
                // Whatever is amiss, the object may be gone: begin with it again.
                node = None;
                status_written = None;
                Duration::from_secs(1)
            }
        };
        tokio::time::sleep(wait).await;
    }
}

async fn register(
    client: &Client,
    name: &str,
    facts: &Facts,
    max_pods: usize,
    admission: &Admission,
) -> Result<Node, kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let labels = labels(name);
    let found = match nodes.get_opt(name).await? {
        Some(found) => found,
        None => {
            let node = Node {
                metadata: ObjectMeta {
                    name: Some(name.to_owned()),
                    labels: Some(labels.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(NodeSpec { taints: taints(admission), ..NodeSpec::default() }),
                ..Node::default()
            };
            match nodes.create(&PostParams::default(), &node).await {
                Ok(created) => created,
                Err(kube::Error::Api(error)) if error.code == 409 => nodes.get(name).await?,
                Err(error) => return Err(error),
            }
        }
    };
    let has = found.metadata.labels.clone().unwrap_or_default();
    if labels.iter().any(|(key, value)| has.get(key) != Some(value)) {
        let patch = json!({"metadata": {"uid": found.metadata.uid, "labels": labels}});
        nodes.patch(name, &params(), &Patch::Merge(patch)).await?;
    }
    let status = build_status(facts, max_pods, &found, Timestamp::now());
    let patch = json!({"metadata": {"uid": found.metadata.uid}, "status": status});
    nodes.patch_status(name, &params(), &Patch::Strategic(patch)).await
}

/// The Node is made with them; afterwards they are the administrator's.
fn taints(admission: &Admission) -> Option<Vec<Taint>> {
    match admission {
        Admission::Everything => None,
        Admission::Tolerating { taint } => {
            Some(vec![Taint { key: taint.clone(), effect: "NoSchedule".to_owned(), ..Taint::default() }])
        }
    }
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

fn labels(name: &str) -> BTreeMap<String, String> {
    let os = "linux".to_owned();
    let arch = architecture().to_owned();
    [
        ("kubernetes.io/hostname", name.to_owned()),
        ("kubernetes.io/os", os.clone()),
        ("kubernetes.io/arch", arch.clone()),
        ("beta.kubernetes.io/os", os),
        ("beta.kubernetes.io/arch", arch),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

/// Go's names, which Kubernetes uses.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

fn build_status(facts: &Facts, max_pods: usize, node: &Node, now: Timestamp) -> NodeStatus {
    let second = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    let old = node.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let condition = |type_: &str, status: &str, reason: &str, message: &str| NodeCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(second.clone()),
        last_transition_time: old
            .iter()
            .find(|old| old.type_ == type_ && old.status == status)
            .and_then(|old| old.last_transition_time.clone())
            .or_else(|| Some(second.clone())),
    };
    let capacity: BTreeMap<String, Quantity> = [
        ("cpu", facts.cpus.to_string()),
        ("memory", format!("{}Ki", facts.memory_bytes / 1024)),
        ("ephemeral-storage", format!("{}Ki", facts.storage_bytes / 1024)),
        ("pods", max_pods.to_string()),
    ]
    .into_iter()
    .map(|(name, amount)| (name.to_owned(), Quantity(amount)))
    .collect();
    NodeStatus {
        addresses: Some(vec![
            NodeAddress { type_: "InternalIP".to_owned(), address: facts.address.clone() },
            NodeAddress {
                type_: "Hostname".to_owned(),
                address: node.metadata.name.clone().unwrap_or_default(),
            },
        ]),
        allocatable: Some(capacity.clone()),
        capacity: Some(capacity),
        conditions: Some(vec![
            condition(
                "MemoryPressure",
                "False",
                "KubeletHasSufficientMemory",
                "kubelet has sufficient memory available",
            ),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            condition(
                "PIDPressure",
                "False",
                "KubeletHasSufficientPID",
                "kubelet has sufficient PID available",
            ),
            condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ]),
        node_info: Some(system_info()),
        ..NodeStatus::default()
    }
}

fn system_info() -> NodeSystemInfo {
    let read =
        |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    let release = read("/etc/os-release");
    let os_image = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let version = env!("CARGO_PKG_VERSION");
    NodeSystemInfo {
        architecture: architecture().to_owned(),
        boot_id: read("/proc/sys/kernel/random/boot_id"),
        container_runtime_version: format!("terrane://{version}"),
        kernel_version: read("/proc/sys/kernel/osrelease"),
        kube_proxy_version: String::new(),
        kubelet_version: format!("v{version}+terrane"),
        machine_id: read("/etc/machine-id"),
        operating_system: "linux".to_owned(),
        os_image: os_image.unwrap_or("Linux").trim_matches('"').to_owned(),
        system_uuid: read("/etc/machine-id"),
        ..NodeSystemInfo::default()
    }
}

async fn renew_lease(client: &Client, node: &Node) -> Result<(), kube::Error> {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
    let now = MicroTime(Timestamp::now());
    let renewal =
        json!({"spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}});
    match leases.patch(name, &params(), &Patch::Merge(renewal)).await {
        Ok(_) => return Ok(()),
        Err(kube::Error::Api(error)) if error.code == 404 => {}
        Err(error) => return Err(error),
    }
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(LEASE_NAMESPACE.to_owned()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: name.to_owned(),
                uid: node.metadata.uid.clone().unwrap_or_default(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(name.to_owned()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }),
    };
    match leases.create(&PostParams::default(), &lease).await {
        Ok(_) => Ok(()),
        // An API without the namespace gets it; the next round brings the lease.
        Err(kube::Error::Api(error)) if error.code == 404 => {
            let namespaces: Api<Namespace> = Api::all(client.clone());
            let namespace = Namespace {
                metadata: ObjectMeta { name: Some(LEASE_NAMESPACE.to_owned()), ..ObjectMeta::default() },
                ..Namespace::default()
            };
            match namespaces.create(&PostParams::default(), &namespace).await {
                Ok(_) => {}
                Err(kube::Error::Api(error)) if error.code == 409 => {}
                Err(error) => return Err(error),
            }
            leases.create(&PostParams::default(), &lease).await.map(drop)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_condition_keeps_its_time_while_it_stays_the_same() {
        let node = |status: Option<NodeStatus>| Node { status, ..Node::default() };
        let facts = Facts { address: ADDRESS.into(), cpus: 2, memory_bytes: 2048, storage_bytes: 4096 };
        let first = build_status(&facts, 5, &node(None), Timestamp::from_second(100).unwrap());
        let second =
            build_status(&facts, 5, &node(Some(first.clone())), Timestamp::from_second(200).unwrap());
        let ready = |status: &NodeStatus| status.conditions.clone().unwrap().last().unwrap().clone();
        assert_eq!(ready(&second).last_transition_time, ready(&first).last_transition_time);
        assert_ne!(ready(&second).last_heartbeat_time, ready(&first).last_heartbeat_time);
        assert_eq!(second.capacity.unwrap().get("pods").unwrap().0, "5");
    }
}
