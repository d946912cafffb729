//! A pod of a real `terrane up` reads nothing of it and nothing of another pod: with a user for each pod, and with Landlock.
//!
//! Each file is first read by the same script outside a pod, as the user that `terrane up` has. So the test fails when the script
//! finds nothing, and when the isolation does nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod harness;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Terrane, until};
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use kube::api::{LogParams, PostParams};
use kube::{Api, Client};
use node::isolation::Isolation;
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::needs::{Need, found};

/// Prints the name of each file of which it gets a byte, and of each directory that it can list.
const LOOK: &str = "for f in \"$@\"; do if [ -d \"$f\" ]; then ls \"$f\" >/dev/null 2>&1 && echo \"$f\"; \
                    else head -c1 \"$f\" >/dev/null 2>&1 && echo \"$f\"; fi; done; echo finished";

fn pod(name: &str, command: &[&str]) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "restartPolicy": "Never", "automountServiceAccountToken": false,
        "containers": [{"name": "main", "image": "terrane.dev/local", "command": command,
            "volumeMounts": [{"name": "work", "mountPath": "/work"}, {"name": "secret", "mountPath": "/secret"}]}],
        "volumes": [{"name": "work", "emptyDir": {}}, {"name": "secret", "secret": {"secretName": "password"}}]}})
}

async fn create(client: &Client, pod: Value) {
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
}

async fn until_phase(client: &Client, name: &str, wanted: &str) {
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    until(&format!("{name} is {wanted}"), || async {
        let phase = pods.get(name).await.unwrap().status?.phase?;
        assert!(phase == wanted || (phase != "Failed" && phase != "Succeeded"), "{name} is {phase}");
        (phase == wanted).then_some(())
    })
    .await;
}

/// Everything below a directory, itself included. What goes away meanwhile is left out.
fn walk(path: &Path, found: &mut Vec<PathBuf>) {
    let Ok(kind) = fs::symlink_metadata(path) else { return };
    if kind.is_dir() {
        found.push(path.to_owned());
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            walk(&entry.path(), found);
        }
    } else if kind.is_file() && kind.len() > 0 {
        found.push(path.to_owned());
    }
}

fn named<'a>(paths: &'a [PathBuf], end: &str) -> &'a PathBuf {
    paths.iter().find(|path| path.ends_with(end)).unwrap_or_else(|| panic!("there is no {end}: {paths:?}"))
}

async fn pods_read_nothing_but_their_own(mut terrane: Terrane, user: Option<u32>) {
    let client = terrane.start(&[]).await;
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "default");
    until("the account of pods is there", || async { accounts.get_opt("default").await.unwrap() }).await;
    let secret = json!({"metadata": {"name": "password"}, "stringData": {"word": "swordfish"}});
    let secrets = Api::<Secret>::namespaced(client.clone(), "default");
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();

    // A careless victim: it opens what it can to everybody.
    let careless = "umask 0; for d in /work \"$HOME\" \"$TMPDIR\"; do echo mine >\"$d/file\"; chmod 777 \"$d\"; done; \
                    echo logged; echo ready >/work/ready; while :; do sleep 1; done";
    create(&client, pod("victim", &["sh", "-c", careless])).await;
    until_phase(&client, "victim", "Running").await;
    let (data, pods) = (terrane.data(), terrane.pods());
    let ready = until("the victim has written its files", || {
        let mut found = Vec::new();
        walk(&pods, &mut found);
        std::future::ready(found.into_iter().find(|path| path.ends_with("work/ready")))
    })
    .await;
    // The directory of the victim, without the copy of our own program that pods may have to execute.
    let victim = ready.ancestors().find(|path| path.parent() == Some(pods.as_path())).unwrap();

    let mut paths = Vec::new();
    walk(&data, &mut paths);
    // Every pod may execute these; that none may change them is shown where tools are installed.
    paths.retain(|path| !path.starts_with(data.join("tools")));
    walk(victim, &mut paths);
    for kept in ["kubeconfig", "controller-token", "home/file", "tmp/file", "work/file", "word"] {
        named(&paths, kept);
    }
    let below = |name: &str| paths.iter().any(|path| path.starts_with(data.join(name)) && path.is_file());
    assert!(below("keys"), "the keys of the artefacts are among them: {paths:?}");
    assert!(
        paths.iter().any(|path| path.extension().is_some_and(|end| end == "db" || end == "sqlite")),
        "{paths:?}"
    );

    let arguments: Vec<&str> = paths.iter().map(|path| path.to_str().unwrap()).collect();
    let mut control = Command::new("sh");
    control.args(["-c", LOOK, "sh"]).args(&arguments);
    if let Some(user) = user {
        control.uid(user).gid(user);
    }
    let control = String::from_utf8(control.output().unwrap().stdout).unwrap();
    let missed: Vec<&&str> = arguments
        .iter()
        .filter(|path| Path::new(path).exists() && !control.lines().any(|line| line == **path))
        .collect();
    assert!(missed.is_empty(), "outside a pod the script reads all of them, but not {missed:?}");

    let own = "cat /secret/word; echo; echo x >/work/mine; head -c1 /work/mine >/dev/null && echo own; sh -c \"$0\" sh \"$@\"";
    let process = format!("/proc/{}", terrane.pid());
    let through_proc = [format!("{process}/environ"), format!("{process}/root{}/kubeconfig", data.display())];
    let command: Vec<&str> = ["sh", "-c", own, LOOK]
        .into_iter()
        .chain(arguments.iter().copied())
        .chain(through_proc.iter().map(String::as_str))
        .collect();
    create(&client, pod("thief", &command)).await;
    until_phase(&client, "thief", "Succeeded").await;
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    let log = pods.logs("thief", &LogParams::default()).await.unwrap();
    assert_eq!(log, "swordfish\nown\nfinished\n", "it reads its own files and nothing else");

    pods.delete("victim", &kube::api::DeleteParams::default().grace_period(1)).await.unwrap();
    until("the victim is gone", || async { pods.get_opt("victim").await.unwrap().is_none().then_some(()) })
        .await;
    terrane.signal(Signal::TERM);
    assert_eq!(terrane.ended().await.code(), Some(0));
}

#[tokio::test]
async fn a_pod_with_a_user_of_its_own_reads_nothing_of_terrane_or_of_other_pods() {
    let users = matches!(Isolation::detect(Path::new("/isolation")), Isolation::Users(_)).then_some(());
    let Some(()) = found(Need::Root, users).unwrap() else { return };
    pods_read_nothing_but_their_own(Terrane::new(), None).await;
}

#[tokio::test]
async fn a_pod_of_an_ordinary_user_reads_nothing_of_terrane_or_of_other_pods() {
    let landlock = (Isolation::detect_without_root() == Isolation::Landlock).then_some(());
    let Some(()) = found(Need::Landlock, landlock).unwrap() else { return };
    if rustix::process::geteuid().is_root() {
        let user = 1_999_000_000;
        pods_read_nothing_but_their_own(Terrane::as_user(user), Some(user)).await;
    } else {
        pods_read_nothing_but_their_own(Terrane::new(), None).await;
    }
}
