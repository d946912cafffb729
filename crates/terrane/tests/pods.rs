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
}
