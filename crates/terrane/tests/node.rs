//! `terrane node` on its own: the real binary against a real kube-apiserver.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod harness;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use harness::{BINARY, until};
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use testkit::cluster::RealCluster;
use testkit::process::{Guarded, Scratch};

const NODE: &str = "terrane-node-alone";

/// The machine's part: a data directory, and an image that is a directory.
struct Machine {
    process: Option<Guarded>,
    root: Scratch,
    image: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        // Pods have users of their own: an image lies where everybody may look.
        let image = tempfile::tempdir().unwrap();
        let program = image.path().join("usr/bin/greet");
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        fs::write(&program, "#!/bin/sh\necho \"hello $1\"\ntest \"$1\" = you\n").unwrap();
        for path in [image.path(), &program] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { process: None, root: Scratch::new("terrane-node-").unwrap(), image }
    }

    fn start(&mut self, kubeconfig: &Path) {
        let log = self.root.path().join("node.log");
        let image = format!("example.org/tool={}", self.image.path().display());
        let (kubeconfig, data) =
            (format!("KUBECONFIG={}", kubeconfig.display()), self.root.path().join("data"));
        let line = [&kubeconfig, BINARY, "node", "--name", NODE, "--bind-unscheduled", "--image", &image];
        let line = line.into_iter().chain(["--data-dir", data.to_str().unwrap()]).collect::<Vec<_>>();
        self.process = Some(Guarded::start(Path::new("env"), &line, log).unwrap());
    }

    async fn stop(&mut self) {
        let mut process = self.process.take().unwrap();
        let pid = Pid::from_raw(i32::try_from(process.pid()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let status = until("the node has ended", || std::future::ready(process.exited().unwrap())).await;
        assert_eq!(status.code(), Some(0));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.process = None;
        let state = self.root.path().join("data/node");
        let isolation = node::isolation::Isolation::detect(&state);
        let _ = fs::remove_dir_all(node::config::pods_directory(&state, &isolation));
    }
}

async fn phase(client: &Client, name: &str) -> Option<String> {
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    pods.get(name).await.unwrap().status?.phase
}

async fn create(client: &Client, name: &str, argument: &str) {
    let pod = json!({"metadata": {"name": name}, "spec": {"restartPolicy": "Never", "automountServiceAccountToken": false,
        "containers": [{"name": "main", "image": "example.org/tool:1.2", "command": ["greet", argument]}]}});
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_serves_a_real_cluster_with_images_that_are_directories() {
    let cluster = RealCluster::shared().await;
    let client = cluster.client().unwrap();
    let mut machine = Machine::new();
    machine.start(cluster.kubeconfig());
    let nodes = Api::<Node>::all(client.clone());
    until("the node is registered", || async { nodes.get_opt(NODE).await.unwrap() }).await;
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "default");
    until("the account of pods is there", || async { accounts.get_opt("default").await.unwrap() }).await;

    create(&client, "good", "you").await;
    create(&client, "bad", "nobody").await;
    until("good has succeeded", || async {
        phase(&client, "good").await.filter(|phase| phase == "Succeeded")
    })
    .await;
    until("bad has failed", || async { phase(&client, "bad").await.filter(|phase| phase == "Failed") }).await;

    machine.stop().await;
    create(&client, "later", "you").await;
    machine.start(cluster.kubeconfig());
    until("what came meanwhile is run", || async {
        phase(&client, "later").await.filter(|phase| phase == "Succeeded")
    })
    .await;
    machine.stop().await;
}

#[test]
fn what_cannot_work_is_refused_in_one_sentence() {
    let root = Scratch::new("terrane-node-").unwrap();
    let refused = |kubeconfig: &str, image: &str| {
        let output = Command::new(BINARY)
            .args(["node", "--image", image, "--data-dir"])
            .arg(root.path().join("data"))
            .env("KUBECONFIG", kubeconfig)
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let kubeconfig = root.path().join("kubeconfig");
    let text = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n\
                users: [{name: u, user: {}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n";
    fs::write(&kubeconfig, text).unwrap();
    let kubeconfig = kubeconfig.to_str().unwrap();
    for (kubeconfig, image, word) in [
        ("/nowhere/kubeconfig", "tool=/", "set KUBECONFIG"),
        (kubeconfig, "tool", "NAME=DIR"),
        (kubeconfig, "tool=/no/such/place", "there is no such directory"),
        (kubeconfig, "tool=/etc/passwd", "it is not a directory"),
    ] {
        let error = refused(kubeconfig, image);
        assert!(error.contains(word), "{word}: {error}");
    }
}
