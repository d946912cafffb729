//! Every verb of the command line as people use it: the real binary, the real tool, one `terrane up`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod asked;
mod described;
mod drifting;
#[path = "../harness/mod.rs"]
mod harness;
mod killed;
mod people;
mod readme;
mod rest;
mod roles;
mod seeds;
mod shapes;
mod stacks;
mod webhooks;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use harness::{BINARY, git, until};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use people::{Doors, finished, run_as};
use serde_json::{Value, json};

/// Long enough on a busy machine.
pub const PATIENTLY: &str = "--timeout=180s";

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_does_what_it_says() {
    let doors = Doors::open().await;
    doors.run(&["wait", "network", "--for=condition=Ready", PATIENTLY]).with_code(0).says("condition met");
    planning(&doors);
    logs(&doors);
    suspending(&doors);
    deciding(&doors);
    following(&doors).await;
    telling(&doors).await;
    outputs(&doors).await;
    state(&doors).await;
    drifting::reverted(&doors).await;
    drifting::accepted(&doors).await;
    rights(&doors).await;
    shapes::every_verb(&doors).await;
    gone(&doors).await;
    roles::server(&doors).await;
    doors.close().await;
}

fn planning(doors: &Doors) {
    doors.run(&["wait", "database", "--for=condition=IsLastRelevantCommitPlanned", PATIENTLY]).with_code(0);
    let diff = doors.run(&["diff", "database"]).with_code(2);
    let diff = diff.says("+ terraform_data.db[0]   create").says("3 to add, 0 to change, 0 to destroy");
    diff.says("Approve: terrane approve database");
    let plan = doors.run(&["diff", "database", "-o", "json"]).with_code(2).json();
    assert_eq!(plan["resource_changes"].as_array().unwrap().len(), 3, "{plan}");
    let tool = plan["terrane"]["tool"].as_str().unwrap();
    let version = plan["terraform_version"].as_str().unwrap();
    assert!([format!("terraform {version}"), format!("tofu {version}")].contains(&tool.to_owned()), "{tool}");
    doors.run(&["diff", "database"]).with_code(2).says(&format!(" ago by {tool}\n"));
    doors.run(&["describe", "database"]).with_code(0).says(&format!(" ago by {tool}\n"));
    let run = format!("run/{}", plan["terrane"]["run"].as_str().unwrap());
    doors.run(&["describe", &run]).with_code(0).says("TOOL").says(tool);
    doors.run(&["diff", "database", "-o", "wide"]).with_code(2).says("Plan: 3 to add");
    doors.run(&["diff", "network"]).with_code(0).says("is applied. No changes.");

    doors.run(&["plan", "network", PATIENTLY]).with_code(0).says("No changes.");
    doors.run(&["plan", "database", PATIENTLY]).with_code(2).says("3 to add");
    let failed = doors.run(&["plan", "broken", "--follow", PATIENTLY]).with_code(1);
    let failed =
        failed.complains("the plan of default/broken failed").complains("terrane logs run/broken-plan-");
    let told = failed.out.matches("Missing required argument").count();
    assert!(told >= 2, "the logs of both attempts: {failed:#?}");

    doors.run(&["sync", "app", "-o", "name"]).with_code(0).says("terraformlayers/app");
    doors.run(&["reconcile", "app"]).with_code(0).says("app will be planned now");
    doors.run(&["reconcile", "--help"]).with_code(0).says("with autoApply it is applied");
    doors
        .run(&["plan", "nework"])
        .with_code(1)
        .complains("layer default/nework not found; did you mean network?");
    doors.run(&["drift", "network"]).with_code(0).says("no drift");
}

fn logs(doors: &Doors) {
    doors.run(&["logs", "network"]).with_code(0).says("No changes.");
    doors.run(&["logs", "-f", "database"]).with_code(0).says("Plan: 3 to add");
    let runs = doors.run(&["get", "runs", "-o", "json"]).with_code(0).json();
    let broken = runs
        .as_array()
        .unwrap()
        .iter()
        .find(|run| {
            run["spec"]["layer"]["name"] == "broken"
                && run["status"]["attempts"].as_array().is_some_and(|a| a.len() > 1)
        })
        .unwrap();
    let name = format!("run/{}", broken["metadata"]["name"].as_str().unwrap());
    let first = broken["status"]["attempts"][0]["number"].to_string();
    doors.run(&["logs", &name, "--attempt", &first]).with_code(0).says("Missing required argument");
    doors.run(&["logs", &name, "--attempt", "77"]).with_code(1).complains("has no attempt 77");
    doors.run(&["logs", "run/none"]).with_code(1).complains("`terrane get runs -n default` lists them");
    doors.run(&["describe", &name]).with_code(0).says("Attempts:").says("Missing required argument");
}

fn suspending(doors: &Doors) {
    doors.run(&["suspend", "app"]).with_code(0).says("`terrane resume app` lets it go on");
    doors.run(&["sync", "app"]).with_code(1).complains("layer default/app is suspended");
    doors.run(&["describe", "layer", "app"]).with_code(0).says("Suspended:");
    let resumed = doors.run(&["resume", "app", "-o", "json"]).with_code(0).json();
    assert!(resumed["spec"].get("suspend").is_none_or(|suspend| suspend == false), "{resumed}");
    doors.run(&["suspend"]).with_code(2).complains("OBJECTS");
}

fn deciding(doors: &Doors) {
    doors.run(&["apply", "network"]).with_code(0).says("nothing to apply");
    doors.run(&["reject", "database", "--reason", "not today"]).with_code(0).says("rejected plan");
    doors.run(&["apply", "database"]).with_code(1).complains("was rejected by");
    doors.run(&["approve", "database"]).with_code(1).complains("you have already decided on plan");
    doors.run(&["plan", "database", PATIENTLY]).with_code(2);
    doors.run(&["apply", "database", "--plan", "none"]).with_code(1).complains("look at it again");
    let applied = doors.run(&["apply", "database", "--timeout=180s"]).with_code(0);
    let applied = applied.says("Apply complete! Resources: 3 added").says("database: applied at ");
    assert_eq!(applied.out.matches("Apply complete!").count(), 1, "{}", applied.out);
    doors.run(&["wait", "database", "--for=condition=Ready", PATIENTLY]).with_code(0);
    doors
        .run(&["wait", "database", "--for=condition=Nope", "--timeout=1s"])
        .with_code(1)
        .complains("no condition Nope");
}

/// Whoever approves and then follows the layer sees the apply, not the plan before it.
async fn following(doors: &Doors) {
    let demo = doors.data().join("demo");
    let file = demo.join("database/main.tf");
    fs::write(&file, fs::read_to_string(&file).unwrap() + "\nresource \"terraform_data\" \"more\" {}\n")
        .unwrap();
    git(&demo, &["commit", "--quiet", "--all", "--message=Ask for more"]);
    until("the commit is planned", || {
        std::future::ready(
            doors.run(&["diff", "database"]).out.contains("1 to add, 0 to change").then_some(()),
        )
    })
    .await;
    doors.run(&["approve", "database"]).with_code(0).says("approved plan");
    doors.run(&["logs", "-f", "database"]).with_code(0).says("Apply complete! Resources: 1 added");
    doors.run(&["wait", "database", "--for=condition=Ready", PATIENTLY]).with_code(0);
}

async fn telling(doors: &Doors) {
    let history = doors.run(&["history", "database", "-o", "json"]).with_code(0).json();
    let done = |what: &str| history.as_array().unwrap().iter().filter(|entry| entry["what"] == what).count();
    assert_eq!((done("reject"), done("approve"), done("apply")), (1, 2, 2), "{history}");
    doors.run(&["history", "database"]).with_code(0).says("not today");
    for entry in history.as_array().unwrap().iter().filter(|entry| entry["what"] == "apply") {
        let written = &entry["audit"][0];
        assert!(
            written["planSha256"].as_str().unwrap().starts_with(entry["plan"].as_str().unwrap()),
            "{entry}"
        );
        assert_eq!((&written["trigger"], &written["by"]), (&json!("approval"), &entry["by"]), "{entry}");
        assert!(written["at"].is_string() && written["fence"].as_u64() > Some(0), "{entry}");
    }
    doors.run(&["history", "database", "-o", "wide"]).with_code(0).says("ALLOWED").says("approved by ");

    doors
        .run(&["describe", "database"])
        .with_code(0)
        .says("Why:")
        .says("in sync with")
        .says("Conditions:")
        .says("Runs:");
    doors.run(&["describe", "repository/demo"]).with_code(0).says("file://").says("Conditions:");
    doors.run(&["describe", "pod/x"]).with_code(1).complains("no kind of Terrane");
    let layer = doors.run(&["describe", "database", "-o", "json"]).with_code(0).json();
    assert_eq!(layer["kind"], "TerraformLayer");

    let event = json!({
        "metadata": { "name": "database.told" }, "reason": "Told", "message": "something to see", "type": "Normal",
        "involvedObject": { "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "name": "database", "namespace": "default" },
    });
    let events = Api::<Event>::namespaced(doors.client.clone(), "default");
    events.create(&PostParams::default(), &serde_json::from_value(event).unwrap()).await.unwrap();
    doors.run(&["events", "database"]).with_code(0).says("something to see").says("layer/database");
    doors.run(&["events", "network"]).with_code(0).keeps_quiet_about("something to see");
    doors.run(&["events", "-A", "-o", "name"]).with_code(0).says("events/database.told");

    let mut watching = Command::new(BINARY)
        .args(["get", "layers", "-w", "-o", "name"])
        .env("KUBECONFIG", doors.kubeconfig())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let seen = lines.any(|line| line.unwrap() == "terraformlayers/network");
    watching.kill().unwrap();
    watching.wait().unwrap();
    assert!(seen, "the watch ended without the layer");

    let printed = doors.printed();
    let about_a_run = ["layer=database", "run=\"database-apply-", "attempt=1"];
    let told = printed.lines().any(|line| about_a_run.iter().all(|field| line.contains(field)));
    assert!(told, "no line carries layer, run and attempt: {printed}");

    doors.run(&["version", "-o", "json"]).with_code(0).says("\"version\"");
    doors.run(&["completion", "bash"]).with_code(0).says("terrane");
    let plugin = doors.scratch().join("kubectl-terrane");
    std::os::unix::fs::symlink(BINARY, &plugin).unwrap();
    finished(Command::new(&plugin).args(["get", "--help"]).output().unwrap())
        .with_code(0)
        .says("kubectl terrane get");
    // As kubectl itself finds and starts it.
    let kubectl = testkit::tools::tool("kubectl").unwrap();
    let path = format!("{}:/usr/bin:/bin", doors.scratch().display());
    let by_kubectl = |arguments: &[&str]| {
        let mut command = Command::new(&kubectl);
        command.args(arguments).env("PATH", &path).env("KUBECONFIG", doors.kubeconfig());
        finished(command.output().unwrap())
    };
    by_kubectl(&["plugin", "list"]).with_code(0).says("kubectl-terrane");
    by_kubectl(&["terrane", "get", "layers", "-o", "name"]).with_code(0).says("terraformlayers/network");
    let refused = by_kubectl(&["terrane", "get", "layers", "nework"]).with_code(1);
    refused.complains("did you mean network?");
    let completer = doors.scratch().join("kubectl_complete-terrane");
    std::os::unix::fs::symlink(BINARY, &completer).unwrap();
    let kubeconfig = doors.kubeconfig();
    // An API that is busy for long is not waited for, so it may take another Tab.
    until("Tab offers the layer", || {
        let tab = Command::new(&completer).args(["plan", "net"]).env("KUBECONFIG", &kubeconfig).output();
        let offered = finished(tab.unwrap()).with_code(0).out;
        assert!(offered.ends_with(":4\n"), "{offered}");
        std::future::ready((offered == "network\n:4\n").then_some(()))
    })
    .await;
    let elsewhere = finished(
        Command::new(&plugin)
            .args([
                "get",
                "layers",
                "-o",
                "name",
                "--kubeconfig",
                kubeconfig.to_str().unwrap(),
                "--context",
                "terrane",
            ])
            .env_remove("KUBECONFIG")
            .output()
            .unwrap(),
    );
    elsewhere.with_code(0).says("terraformlayers/network");
    doors.run(&["get", "layers", "--context", "none"]).with_code(1).complains("none");
}

async fn outputs(doors: &Doors) {
    doors.run(&["outputs", "network", "cidr"]).with_code(0).says("10.0.1.0/24");
    doors.run(&["outputs", "network", "nope"]).with_code(1).complains("has no output nope; it has: cidr");
    let demo = doors.data().join("demo");
    let file = demo.join("network/main.tf");
    let more = "\noutput \"password\" {\n  value     = \"hunter2\"\n  sensitive = true\n}\n";
    fs::write(&file, fs::read_to_string(&file).unwrap() + more).unwrap();
    git(&demo, &["commit", "--quiet", "--all", "--message=Give out a secret"]);
    until("the new output is applied", || {
        let names = doors.run(&["outputs", "network", "-o", "name"]);
        std::future::ready(names.out.contains("password").then_some(()))
    })
    .await;
    doors.run(&["outputs", "network"]).with_code(0).says("(sensitive value)").keeps_quiet_about("hunter2");
    doors.run(&["outputs", "network", "--sensitive", "-o", "json"]).with_code(0).says("hunter2");
    doors.run(&["outputs", "broken"]).with_code(0).complains("layer default/broken has no outputs");
}

async fn state(doors: &Doors) {
    let list = doors.run(&["state", "list", "network"]).with_code(0);
    assert_eq!(list.out, "terraform_data.subnet\nterraform_data.vpc\n");
    doors.run(&["state", "show", "network", "terraform_data.vpc"]).with_code(0).says("10.0.0.0/16");
    doors
        .run(&["state", "show", "network", "a.b"])
        .with_code(1)
        .complains("`terrane state list network` lists them");
    doors.run(&["state", "pull", "broken"]).with_code(1).complains("keeps no state of layer default/broken");
    doors.run(&["state", "locks", "network"]).with_code(0).says("is not locked");
    doors.run(&["state", "unlock", "network", "x"]).with_code(1).complains("is not locked");

    doors.run(&["wait", "network", "--for=condition=Ready", PATIENTLY]).with_code(0);
    let mut content = doors.run(&["state", "pull", "network"]).with_code(0).json();
    let before = doors
        .run(&["state", "versions", "network", "-o", "json"])
        .with_code(0)
        .json()
        .as_array()
        .unwrap()
        .len();
    let file = doors.scratch().join("pushed.tfstate");
    content["terraform_version"] = json!("1.0.0");
    fs::write(&file, content.to_string()).unwrap();
    let push = ["state", "push", "network", file.to_str().unwrap()];
    doors.run(&push).with_code(1).complains("does not follow the stored serial");
    content["serial"] = json!(content["serial"].as_u64().unwrap() + 1);
    fs::write(&file, content.to_string()).unwrap();

    hold(doors, "network", "held-1").await;
    doors.run(&["state", "locks", "network"]).with_code(0).says("held-1").says("OperationTypeApply");
    doors.run(&push).with_code(1).complains("is locked by");
    doors.run(&["state", "unlock", "network", "other"]).with_code(1).complains("the one held has another");
    doors.run(&["state", "unlock", "network", "held-1"]).with_code(0).says("released");

    doors.run(&push).with_code(0).says("the state of network is version");
    let versions = doors.run(&["state", "versions", "network", "-o", "json"]).with_code(0).json();
    assert_eq!(versions.as_array().unwrap().len(), before + 1);
    assert!(versions[0]["by"].as_str().unwrap().contains("admin"), "who pushed: {versions}");
    doors.run(&["state", "rollback", "network", "1"]).with_code(0).says("holds what version 1 held");
    let back = doors.run(&["state", "pull", "network"]).with_code(0).json();
    assert_eq!(back["serial"].as_u64(), content["serial"].as_u64().map(|serial| serial + 1));
    doors.run(&["state", "pull", "network", "--number", "1"]).with_code(0).says("lineage");
    doors.run(&["state", "rollback", "network", "99"]).with_code(1).complains("has no version 99");
}

/// Takes the lock of a layer's state, as somebody does by hand.
async fn hold(doors: &Doors, layer: &str, id: &str) {
    let runs = doors.run(&["get", "runs", "-o", "json"]).json();
    let run = runs.as_array().unwrap().iter().find(|run| run["spec"]["layer"]["name"] == layer).unwrap();
    let url = format!("{}/v1/state/{}/lock", doors.service, run["spec"]["state"].as_str().unwrap());
    let token = fs::read_to_string(doors.data().join("controller-token")).unwrap();
    let lock = json!({ "ID": id, "Operation": "OperationTypeApply" }).to_string();
    let taken = reqwest::Client::new().post(url).bearer_auth(token).body(lock).send().await.unwrap();
    assert!(taken.status().is_success(), "{taken:?}");
}

/// What was written down about a layer outlives it.
async fn gone(doors: &Doors) {
    let layers = Api::<api::TerraformLayer>::namespaced(doors.client.clone(), "default");
    layers.delete("app", &DeleteParams::default()).await.unwrap();
    doors.run(&["wait", "app", "--for=delete", PATIENTLY]).with_code(0);
    // Its runs go a moment after it.
    until("the audit speaks for the runs", || {
        let told =
            doors.run(&["history", "app", "-o", "wide"]).with_code(0).complains("layer default/app is gone");
        std::future::ready(told.out.contains("autoApply is on; its run is no longer kept").then_some(()))
    })
    .await;
    doors.run(&["history", "ap"]).with_code(1).complains("layer default/ap not found");
}

/// Who may do what: a viewer, an operator, somebody without rights, and tokens that prove nobody.
async fn rights(doors: &Doors) {
    let (viewer, _) = doors.account("viewer", &["terrane-viewer"]).await;
    let (keeper, _) = doors.account("keeper", &["terrane-state-keeper"]).await;
    let (nobody, nobodys_token) = doors.account("nobody", &[]).await;
    for verb in [
        &["logs", "network"][..],
        &["history", "network"],
        &["drift", "network"],
        &["outputs", "network"],
        &["state", "versions", "network"],
        &["state", "locks", "network"],
    ] {
        run_as(&viewer, verb).with_code(0);
        let refused = run_as(&nobody, verb).with_code(1);
        assert!(refused.err.contains("forbidden"), "{refused:#?}");
    }
    run_as(&viewer, &["diff", "database", "-o", "wide"]).with_code(0).says("Plan: 1 to add");
    run_as(&viewer, &["outputs", "network"]).with_code(0).keeps_quiet_about("hunter2");
    let user = "system:serviceaccount:default:viewer";
    run_as(&viewer, &["outputs", "network", "--sensitive"])
        .with_code(1)
        .complains(&format!("{user} may not get terraformlayers/state of network in namespace default"));
    run_as(&viewer, &["state", "pull", "network"])
        .with_code(1)
        .complains("verb get on terraformlayers/state");
    let pushed = doors.scratch().join("pushed.tfstate");
    run_as(&viewer, &["state", "push", "network", pushed.to_str().unwrap()])
        .with_code(1)
        .complains("may not update terraformlayers/state");
    run_as(&viewer, &["state", "unlock", "network", "x"]).with_code(1);
    run_as(&viewer, &["sync", "network"]).with_code(1).complains("forbidden");
    run_as(&viewer, &["approve", "database"]).with_code(1).complains("forbidden");
    run_as(&keeper, &["state", "pull", "network"]).with_code(0).says("lineage");
    run_as(&keeper, &["outputs", "network", "--sensitive"]).with_code(0);
    // As another, by a token that one may ask for: the way of a kubeconfig with a client certificate.
    let as_viewer = ["--service-account", "viewer"];
    doors.run(&[&["outputs", "network"], &as_viewer[..]].concat()).with_code(0);
    doors
        .run(&[&["outputs", "network", "--sensitive"], &as_viewer[..]].concat())
        .with_code(1)
        .complains(&format!("{user} may not get terraformlayers/state"));
    let refused =
        run_as(&viewer, &["outputs", "network", "--service-account", "default/keeper"]).with_code(1);
    refused.complains("ask for a token of ServiceAccount default/keeper");

    let runs = doors.run(&["get", "runs", "-o", "json"]).with_code(0).json();
    let run = runs[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let http = reqwest::Client::new();
    let foreign = doors.token("viewer", vec![api::DATASTORE_AUDIENCE.to_owned()]).await;
    for path in [
        format!("runs/{run}/log"),
        format!("runs/{run}/plan"),
        format!("runs/{run}/plan.json"),
        "runs/no-such-run/log".to_owned(),
        "layers/network/history".to_owned(),
        "layers/network/outputs".to_owned(),
        "layers/network/state".to_owned(),
        "layers/network/state/versions".to_owned(),
        "layers/network/state/versions/1".to_owned(),
        "layers/network/state/lock".to_owned(),
    ] {
        let url = format!("{}/api/v1/namespaces/default/{path}", doors.service);
        for (token, expected) in
            [(None, 401), (Some("made-up"), 401), (Some(foreign.as_str()), 401), (Some(&*nobodys_token), 403)]
        {
            let request = http.get(&url);
            let request = match token {
                Some(token) => request.bearer_auth(token),
                None => request,
            };
            let answer = request.send().await.unwrap();
            assert_eq!(answer.status().as_u16(), expected, "{path}");
            let refusal: Value = answer.json().await.unwrap();
            assert!(refusal["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{refusal}");
        }
    }
}
