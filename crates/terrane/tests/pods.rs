//! Pods on one machine as a person has them: the real `terrane up`, the real kubectl, a process for each container.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod harness;

use std::fs;
use std::future::ready;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use harness::{Terrane, until};
use testkit::process::{Guarded, Scratch};
use testkit::tools::tool;

struct Kubectl<'a> {
    terrane: &'a Terrane,
    home: Scratch,
}

impl Kubectl<'_> {
    fn words(&self, words: &[&str]) -> Vec<String> {
        let flags = [
            ("--kubeconfig", self.terrane.data().join("kubeconfig")),
            ("--cache-dir", self.home.path().join("cache")),
        ]
        .map(|(flag, path)| format!("{flag}={}", path.display()));
        flags.into_iter().chain(words.iter().map(|word| (*word).to_owned())).collect()
    }

    fn run(&self, words: &[&str]) -> Output {
        Command::new(tool("kubectl").unwrap())
            .args(self.words(words))
            .env("HOME", self.home.path())
            .output()
            .unwrap()
    }

    fn printed(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

#[tokio::test]
async fn kubectl_follows_the_log_of_a_pod_that_has_its_accounts_token() {
    let mut terrane = Terrane::new();
    terrane.start(&[]).await;
    let kubectl = Kubectl { terrane: &terrane, home: Scratch::new("terrane-kubectl-").unwrap() };
    // Pods have users of their own: what tells them to go on lies where everybody may look.
    let world = tempfile::tempdir().unwrap();
    fs::set_permissions(world.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let gate = world.path().join("gate");
    let place = "/var/run/secrets/kubernetes.io/serviceaccount";
    let script = format!(
        "echo first; while [ ! -e {} ]; do sleep 0.1; done; cat {place}/namespace; echo; head -n 1 {place}/ca.crt; cut -c 1-3 {place}/token; echo last",
        gate.display()
    );
    let run =
        ["run", "p", "--image=terrane.dev/local", "--restart=Never", "--command", "--", "sh", "-c", &script];
    assert_eq!(kubectl.printed(&run), "pod/p created\n");
    let met = kubectl.printed(&["wait", "pod/p", "--for=condition=Ready", "--timeout=120s"]);
    assert_eq!(met, "pod/p condition met\n");

    let log = kubectl.home.path().join("followed.log");
    let words = kubectl.words(&["logs", "-f", "p"]);
    let mut following = Guarded::start(&tool("kubectl").unwrap(), &words, log.clone()).unwrap();
    let so_far = || fs::read_to_string(&log).unwrap_or_default();
    until("the first line is followed", || ready((so_far() == "first\n").then_some(()))).await;
    following.ensure_running().unwrap();

    fs::write(&gate, "").unwrap();
    let status = until("the log ends with the pod", || ready(following.exited().unwrap())).await;
    assert!(status.success(), "{status}: {}", so_far());
    // A token is three parts of base64, the first of them an object of JSON.
    assert_eq!(so_far(), "first\ndefault\n-----BEGIN CERTIFICATE-----\neyJ\nlast\n");

    kubectl.printed(&["wait", "pod/p", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s"]);
    assert_eq!(kubectl.printed(&["logs", "p", "--tail=1"]), "last\n");
    let stamped = kubectl.printed(&["logs", "p", "--timestamps", "--tail=1"]);
    assert!(stamped.contains('T') && stamped.ends_with("Z last\n"), "{stamped}");
    let missing = String::from_utf8(kubectl.run(&["logs", "nobody"]).stderr).unwrap();
    assert!(missing.contains("pods \"nobody\" not found"), "{missing}");

    the_log_since_a_time(&kubectl).await;
    a_log_that_is_not_there(&kubectl);
    a_cordoned_node(&kubectl).await;
    let exec = String::from_utf8(kubectl.run(&["exec", "waits", "--", "true"]).stderr).unwrap();
    assert!(exec.contains("pods/exec is not served"), "{exec}");
}

/// Of the pod `p`, which has ended.
async fn the_log_since_a_time(kubectl: &Kubectl<'_>) {
    let stamped = kubectl.printed(&["logs", "p", "--timestamps", "--tail=1"]);
    let (stamp, _) = stamped.split_once(' ').unwrap();
    let of = |query: &str| {
        kubectl.printed(&["get", "--raw", &format!("/api/v1/namespaces/default/pods/p/log?{query}")])
    };
    assert_eq!(of(&format!("sinceTime={stamp}")), "last\n");
    assert_eq!(of(&format!("sinceTime={stamp}&timestamps=true")), stamped);
    let whole = of("");
    assert_eq!(of("sinceSeconds=86400"), whole);
    assert_eq!(of("sinceSeconds=86400&tailLines=2"), "eyJ\nlast\n");
    assert_eq!(kubectl.printed(&["logs", "p", "--since=24h"]), whole);
    until("the last line is older than a second", || ready(of("sinceSeconds=1").is_empty().then_some(())))
        .await;
}

fn a_log_that_is_not_there(kubectl: &Kubectl<'_>) {
    let previous = String::from_utf8(kubectl.run(&["logs", "p", "--previous"]).stderr).unwrap();
    assert_eq!(
        previous,
        "Error from server (BadRequest): previous terminated container \"p\" in pod \"p\" not found\n"
    );
    // It waits for a Secret that nobody makes.
    let overrides = r#"{"spec": {"containers": [{"name": "waits", "image": "terrane.dev/local", "command": ["true"],
        "envFrom": [{"secretRef": {"name": "nobody"}}]}]}}"#;
    let image = "--image=terrane.dev/local";
    kubectl.printed(&["run", "waits", image, "--restart=Never", "--overrides", overrides]);
    let reason = "{.status.containerStatuses[0].state.waiting.reason}";
    let wait = format!("--for=jsonpath={reason}=CreateContainerConfigError");
    kubectl.printed(&["wait", "pod/waits", &wait, "--timeout=120s"]);
    let waiting = String::from_utf8(kubectl.run(&["logs", "waits"]).stderr).unwrap();
    assert_eq!(
        waiting,
        "Error from server (BadRequest): container \"waits\" in pod \"waits\" is waiting to start: CreateContainerConfigError\n"
    );
}

async fn a_cordoned_node(kubectl: &Kubectl<'_>) {
    let node = kubectl.printed(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    assert_eq!(kubectl.printed(&["cordon", &node]), format!("node/{node} cordoned\n"));
    let image = "--image=terrane.dev/local";
    kubectl.printed(&["run", "later", image, "--restart=Never", "--command", "--", "true"]);
    kubectl.printed(&["wait", "pod/later", "--for=condition=PodScheduled=False", "--timeout=120s"]);
    // The Event follows the condition.
    let told = "0/1 nodes are available: 1 node(s) were unschedulable.";
    until("describe shows why the pod waits", || {
        let described = kubectl.printed(&["describe", "pod", "later"]);
        let line = described.lines().find(|line| line.contains("FailedScheduling"));
        ready(line.filter(|line| line.contains("default-scheduler") && line.ends_with(told)).map(drop))
    })
    .await;
    assert_eq!(kubectl.printed(&["uncordon", &node]), format!("node/{node} uncordoned\n"));
    kubectl.printed(&["wait", "pod/later", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s"]);
}
