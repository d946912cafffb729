//! Commands of a layer's own, by the real binary and the real tool: hooks around plan, apply and destroy, and scripts in the place of the
//! tool's apply and destroy.

use std::time::Duration;

use api::run::{Action, Mode, RunState, TriggerKind};
use api::{TerraformLayer, TerraformRun};
use futures::FutureExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{DEADLINE, Terrane, declare_repository, is, layer_until, run_until, until, why};
use crate::{end, told};

const CODE: &str = "resource \"terraform_data\" \"it\" { input = \"made\" }\noutput \"it\" { value = terraform_data.it.output }\n";
/// A file of the repository that nobody made executable.
const CHECK: &str = "#!/bin/bash\n[[ -s $TERRANE_PLAN_FILE ]] && echo \"checked $TERRANE_STEP of $TERRANE_LAYER in $(basename \"$PWD\")\"\n";
/// Says by its exit code whether it may be applied, and by what it prints where things are.
const DEPLOY: &str = "#!/bin/bash
set -euo pipefail
echo \"deploying to $1 by $(basename \"$(command -v terraform || command -v tofu)\")\"
\"$TERRANE_TOOL\" apply -input=false -no-color -auto-approve
";

async fn create_layer(client: &Client, name: &str, more: Value) {
    let mut layer = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": name },
        "spec": { "repository": { "name": "code" }, "branch": "main", "path": name, "deletionPolicy": "Destroy" },
    });
    for (field, value) in more.as_object().unwrap() {
        layer["spec"][field] = value.clone();
    }
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    layers.create(&PostParams::default(), &serde_json::from_value(layer).unwrap()).await.unwrap();
}

fn echo(words: &str) -> Value {
    json!([{ "inline": format!("echo at-{words} $TERRANE_STEP $TERRANE_ACTION $TERRANE_MODE") }])
}

fn log_of(terrane: &Terrane, run: &TerraformRun) -> String {
    told(terrane.command(&["logs", &format!("run/{}", run.name_any())]))
}

fn has_ended(run: &TerraformRun) -> bool {
    run.status.as_ref().and_then(|status| status.state).is_some_and(RunState::is_terminal)
}

async fn gone(client: &Client, name: &str) {
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    until("the layer is gone", || async { layers.get_opt(name).await.ok()?.is_none().then_some(()) }).await;
}

/// Where a command that runs in a pod can be heard: a pod may be confined, and can always connect to loopback.
async fn ear() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let call = format!("exec 3<>/dev/tcp/{}/{}", address.ip(), address.port());
    (listener, call)
}

async fn hears(listener: &TcpListener) -> TcpStream {
    let (visitor, _) = tokio::time::timeout(DEADLINE, listener.accept()).await.expect("it called").unwrap();
    visitor
}

/// A script that says which hook it is of, and waits for a word of the test.
fn reporting(call: &str) -> Value {
    let inline = format!(
        "#!/bin/bash\n{call}\necho \"$TERRANE_STEP $TERRANE_ACTION $TERRANE_MODE\" >&3\nread -r word <&3\n[[ $word == go ]]\n"
    );
    json!([{ "inline": inline, "timeout": "3m" }])
}

/// What such a script says; it waits then.
async fn report(listener: &TcpListener) -> (String, BufReader<TcpStream>) {
    let mut visitor = BufReader::new(hears(listener).await);
    let mut line = String::new();
    visitor.read_line(&mut line).await.unwrap();
    (line.trim().to_owned(), visitor)
}

#[tokio::test]
async fn hooks_run_where_they_should_and_scripts_take_the_tools_place_once_for_each_plan() {
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    let files = [
        ("hooked/main.tf", CODE),
        ("scripted/main.tf", CODE),
        ("hooks/check.sh", CHECK),
        ("scripts/deploy.sh", DEPLOY),
    ];
    let _source = declare_repository(&client, "code", &files).await;
    let (destroyed, called) = ear().await;
    tokio::join!(hooked(&terrane, &client), scripted(&terrane, &client, &destroyed, &called));
    end(terrane).await;
}

async fn hooked(terrane: &Terrane, client: &Client) {
    let gate = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "gate" },
        "data": { "gate.sh": "echo not today; exit 7" } });
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "default");
    maps.create(&PostParams::default(), &serde_json::from_value(gate).unwrap()).await.unwrap();
    let (beginning, before) = ear().await;
    let (ended, after) = ear().await;
    let hooks = json!({
        "beforeInit": echo("one"), "afterInit": echo("two"), "beforePlan": echo("three"),
        "afterPlan": [{ "path": "hooks/check.sh" }],
        "beforeApply": [{ "configMapRef": { "name": "gate", "key": "gate.sh" } }],
        "afterApply": [
            { "inline": "echo working\necho '{\"url\": \"https://it\", \"count\": 2}'", "outputTo": "deployed" },
            { "inline": "echo nothing to keep", "outputTo": "nothing" },
        ],
        "beforeDestroy": reporting(&before),
        "afterDestroy": reporting(&after),
    });
    let more = json!({ "hooks": hooks, "remediationStrategy": { "autoApply": true, "onError": { "maxRetries": 0 } } });
    create_layer(client, "hooked", more).await;

    // A hook that says no: nothing is applied, and the layer says which one and why.
    let says = "hook beforeApply failed with exit code 7";
    layer_until(client, "hooked", says, |layer| why(layer).contains(says)).await;
    assert!(!told(terrane.command(&["outputs", "hooked"])).contains("made"));
    let plan = run_until(client, "hooked", "its plan", |run| run.spec.action == Action::Plan).await;
    let log = log_of(terrane, &plan);
    let said = [
        "at-one beforeInit plan normal",
        "at-two afterInit",
        "at-three beforePlan",
        "checked afterPlan of hooked in hooked",
    ];
    let places: Vec<Option<usize>> = said.iter().map(|words| log.find(words)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} in {log}");

    // Another text in the ConfigMap is another input: planned anew, and applied.
    let text = json!({ "data": { "gate.sh": "echo today" } });
    maps.patch("gate", &PatchParams::default(), &Patch::Merge(text)).await.unwrap();
    let by_inputs = |run: &TerraformRun| run.spec.trigger.kind == TriggerKind::Inputs;
    run_until(client, "hooked", "a plan with the new hook", by_inputs).await;
    let layer = layer_until(client, "hooked", "applied", is("Ready")).await;
    let outputs = layer.status.unwrap().hook_outputs;
    assert_eq!(json!(outputs), json!({ "deployed": { "url": "https://it", "count": 2 } }));
    let succeeded = |run: &TerraformRun| {
        run.spec.action == Action::Apply
            && run.status.as_ref().and_then(|s| s.state) == Some(RunState::Succeeded)
    };
    let apply = run_until(client, "hooked", "its apply", succeeded).await;
    let log = log_of(terrane, &apply);
    assert!(log.contains("What hook afterApply 2 printed is not kept as nothing"), "{log}");
    assert!(log.find("today").unwrap() < log.find("Apply complete!").unwrap(), "{log}");
    let described = told(terrane.command(&["describe", "hooked"]));
    assert!(described.contains("Hooks:") && described.contains("beforeApply"), "{described}");

    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    // What runs before a destroy sees everything, and what runs after it nothing any more.
    layers.delete("hooked", &DeleteParams::default()).await.unwrap();
    let (told_before, mut visitor) = report(&beginning).await;
    assert_eq!(told_before, "beforeDestroy apply destroy");
    assert!(told(terrane.command(&["outputs", "hooked"])).contains("made"), "nothing is destroyed yet");
    assert!(ended.accept().now_or_never().is_none(), "afterDestroy does not run before");
    visitor.write_all(b"go\n").await.unwrap();
    let (told_after, mut visitor) = report(&ended).await;
    assert_eq!(told_after, "afterDestroy apply destroy");
    assert!(!told(terrane.command(&["outputs", "hooked"])).contains("made"), "all is destroyed");
    assert!(beginning.accept().now_or_never().is_none(), "beforeDestroy ran once");
    visitor.write_all(b"go\n").await.unwrap();
    gone(client, "hooked").await;
}

async fn scripted(terrane: &Terrane, client: &Client, destroyed: &TcpListener, call: &str) {
    let destroy = format!(
        "#!/bin/bash\nset -e\n\"$TERRANE_TOOL\" destroy -input=false -no-color -auto-approve\n{call}\n"
    );
    let scripts = json!({
        "apply": { "path": "scripts/deploy.sh", "args": ["production"], "timeout": "10m" },
        "destroy": { "inline": destroy },
    });
    create_layer(client, "scripted", json!({ "scripts": scripts })).await;
    layer_until(client, "scripted", "waits for a person", |layer| why(layer).contains("a script to run"))
        .await;
    assert!(!told(terrane.command(&["outputs", "scripted"])).contains("made"), "nothing runs before that");
    told(terrane.command(&["approve", "scripted"]));
    layer_until(client, "scripted", "applied by the script", is("Ready")).await;
    assert!(told(terrane.command(&["outputs", "scripted"])).contains("made"));
    let applies = |run: &TerraformRun| run.spec.action == Action::Apply && has_ended(run);
    let apply = run_until(client, "scripted", "its apply", applies).await;
    let log = log_of(terrane, &apply);
    assert!(log.contains("deploying to production by t") && log.contains("scripts.apply is done."), "{log}");

    // Looked at again: the script was run for this code and these inputs, and nothing has moved.
    let sync = PatchParams::default();
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    let again = json!({ "metadata": { "annotations": { "terrane.dev/sync": "again" } } });
    layers.patch("scripted", &sync, &Patch::Merge(again)).await.unwrap();
    let manual = |run: &TerraformRun| run.spec.trigger.kind == TriggerKind::Manual && has_ended(run);
    let looked = run_until(client, "scripted", "a look by hand", manual).await;
    let result = looked.status.unwrap().result.unwrap();
    assert_eq!((result.message.as_str(), result.summary.unwrap().scripts), ("No changes.", 0));

    // Another argument is another script, which needs another word of a person.
    let args = json!({ "spec": { "scripts": { "apply": { "args": ["staging"] } } } });
    layers.patch("scripted", &sync, &Patch::Merge(args)).await.unwrap();
    layer_until(client, "scripted", "waits again", |layer| why(layer).contains("a script to run")).await;

    layers.delete("scripted", &DeleteParams::default()).await.unwrap();
    hears(destroyed).await;
    let by_script = |run: &TerraformRun| run.spec.mode == Mode::Destroy && run.spec.action == Action::Apply;
    // It may be gone with its layer already.
    let runs = Api::<TerraformRun>::namespaced(client.clone(), "default");
    let seen = runs.list(&Default::default()).await.unwrap().items;
    assert!(
        seen.iter()
            .filter(|run| run.spec.layer.name.as_str() == "scripted")
            .all(|run| by_script(run) || has_ended(run))
    );
    gone(client, "scripted").await;
    let nobody = tokio::time::timeout(Duration::from_millis(1), destroyed.accept()).await;
    assert!(nobody.is_err(), "the destroy script was run once");
}
