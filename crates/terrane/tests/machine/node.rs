//! `terrane node` as a process of its own, on a real kube-apiserver.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use testkit::cluster::RealCluster;

use crate::harness::{BINARY, Place, stop, until};

/// A pod with one container, and no node: whoever schedules finds one.
fn pod(name: &str, image: &str, command: &[&str]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "containers": [{ "name": "main", "image": image, "command": command }],
        },
    })
}

async fn until_phase(client: &Client, name: &str, phase: &str) -> Pod {
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    until(&format!("the pod {name} is {phase}"), async || {
        let pod = pods.get_opt(name).await.ok().flatten()?;
        let now = pod.status.as_ref()?.phase.as_deref();
        assert!(now == Some(phase) || now != Some("Failed"), "{:?}", pod.status);
        (now == Some(phase)).then_some(pod)
    })
    .await
}

#[tokio::test]
async fn pods_of_a_real_cluster_run_on_it_and_are_taken_up_after_a_restart() {
    let cluster = RealCluster::shared().await;
    let client = cluster.client().unwrap();
    let place = Place::new();
    // Pods have users of their own, who must be able to get there.
    let tool = tempfile::tempdir().unwrap();
    fs::create_dir(tool.path().join("bin")).unwrap();
    let program = tool.path().join("bin/hello");
    fs::write(&program, "#!/bin/sh\nexit 0\n").unwrap();
    for path in [tool.path(), &program] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let gate = tempfile::tempdir().unwrap();
    fs::set_permissions(gate.path(), fs::Permissions::from_mode(0o755)).unwrap();

    let data = place.path("node");
    let image = format!("example.org/hello={}", tool.path().display());
    let arguments = [
        ["node", "--bind-unscheduled"],
        ["--kubeconfig", cluster.kubeconfig().to_str().unwrap()],
        ["--name", "machine.example"],
        ["--data-dir", data.to_str().unwrap()],
        ["--image", &image],
    ]
    .concat();
    let first = place.start(BINARY, &arguments);
    let nodes = Api::<Node>::all(client.clone());
    until("the node is ready", async || {
        let node = nodes.get_opt("machine.example").await.ok().flatten()?;
        let conditions = node.status?.conditions?;
        conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True").then_some(())
    })
    .await;
    let introduction = place.log();
    assert!(introduction.starts_with("node machine.example of https://127.0.0.1:"), "{introduction}");

    let said = place.refused(BINARY, &arguments).await;
    let lock = data.join("node/lock");
    let why =
        format!("is in use by another process (pid {}); two nodes must not share a directory", first.pid());
    assert_eq!(said, format!("error: {} {why}\n", lock.display()));

    let wait = format!("until [ -e {}/open ]; do sleep 0.1; done", gate.path().display());
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    for pod in [
        pod("mapped", "example.org/hello:v1", &["hello"]),
        pod("local", "terrane.dev/local", &["terrane", "version"]),
        pod("patient", "terrane.dev/local", &["sh", "-c", &wait]),
    ] {
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }
    until_phase(&client, "mapped", "Succeeded").await;
    until_phase(&client, "local", "Succeeded").await;
    until_phase(&client, "patient", "Running").await;

    // The cluster's own controller makes the pods of Jobs.
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": { "name": "job" },
        "spec": { "template": { "spec": pod("", "terrane.dev/local", &["true"])["spec"] } },
    });
    let jobs = Api::<Job>::namespaced(client.clone(), "default");
    jobs.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
    until("the job is complete", async || {
        let job = jobs.get("job").await.ok()?;
        (job.status?.succeeded == Some(1)).then_some(())
    })
    .await;

    stop(first).await;
    fs::write(gate.path().join("open"), "").unwrap();
    let second = place.start(BINARY, &arguments);
    let patient = until_phase(&client, "patient", "Succeeded").await;
    let statuses = patient.status.unwrap().container_statuses.unwrap();
    assert_eq!(statuses[0].restart_count, 0, "it was taken up, not started again");
    jobs.delete("job", &DeleteParams::background()).await.unwrap();
    stop(second).await;
}

#[tokio::test]
async fn a_node_that_a_scheduler_knows_keeps_away_pods_that_are_meant_for_containers() {
    let cluster = RealCluster::shared().await;
    let nodes = Api::<Node>::all(cluster.client().unwrap());
    let place = Place::new();
    for (name, flags, expected) in
        [("kept.example", &[][..], Some("terrane.dev/process-node")), ("open.example", &["--no-taint"], None)]
    {
        let (data, kubeconfig) = (place.path(name), cluster.kubeconfig());
        let arguments = ["node", "--name", name, "--data-dir", data.to_str().unwrap(), "--kubeconfig"];
        let arguments = [&arguments[..], &[kubeconfig.to_str().unwrap()], flags].concat();
        let process = place.start(BINARY, &arguments);
        let node = until("the node is registered", async || nodes.get_opt(name).await.ok().flatten()).await;
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        // The API adds taints of its own to a node that has not said yet that it is ready.
        let ours = taints.iter().find(|taint| taint.key.starts_with("terrane.dev/"));
        assert_eq!(ours.map(|taint| taint.key.as_str()), expected);
        assert!(ours.is_none_or(|taint| taint.effect == "NoSchedule"), "{ours:?}");
        stop(process).await;
        nodes.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

#[tokio::test]
async fn what_cannot_work_is_refused_in_one_sentence() {
    let place = Place::new();
    let (data, absent) = (place.path("node"), place.path("absent.yaml"));
    let (data, absent) = (data.to_str().unwrap(), absent.to_str().unwrap());
    let said = place.refused(BINARY, &["node", "--data-dir", data, "--kubeconfig", absent]).await;
    assert!(said.starts_with(&format!("error: use the kubeconfig {absent}: ")), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");

    let ups = place.path("ups");
    fs::create_dir(&ups).unwrap();
    fs::write(ups.join("store.db"), "").unwrap();
    let ups = ups.to_str().unwrap();
    let said = place.refused(BINARY, &["node", "--data-dir", ups, "--kubeconfig", absent]).await;
    let why =
        "belongs to `terrane up`, which runs a node of its own; choose another directory with --data-dir";
    assert_eq!(said, format!("error: {ups} {why}\n"));
}
