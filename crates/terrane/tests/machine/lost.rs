//! A node that is lost in mid-apply: nothing else is applied while it may still be at work, and an administrator who deletes the node lets
//! go on.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use api::run::{Action, RunState};
use api::{TerraformLayer, TerraformRepository, TerraformRun, condition};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use node::process::{Entry, descendants, table};
use rustix::process::Signal;
use serde_json::json;
use testkit::cluster::Controllers;

use crate::harness::until;
use crate::namespaced::{Ground, TENANT, Work, git};

/// Its apply says that it began, and waits.
fn code(place: &Path) -> String {
    let place = place.display();
    format!(
        "resource \"terraform_data\" \"slow\" {{\n  provisioner \"local-exec\" {{ command = \"touch {place}/began; while [ ! -e {place}/go ]; do sleep 0.1; done\" }}\n}}\n"
    )
}

/// As if the machine were switched off: all that works for the run ends in one moment, and says nothing.
fn switch_off(run: &TerraformRun) {
    let mark = format!("TERRANE_RUN_UID={}", run.uid().unwrap());
    let all = table().unwrap();
    let is_runner = |entry: &&Entry| {
        let read = |what: &str| fs::read(format!("/proc/{}/{what}", entry.process.pid)).unwrap_or_default();
        read("cmdline").split(|byte| *byte == 0).nth(1) == Some(b"runner")
            && read("environ").split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    let runner = all.iter().find(is_runner).expect("the runner of the run");
    // Its shim first, which would tell how it ended.
    let shim = all.iter().find(|entry| entry.process.pid == runner.parent).expect("its shim");
    for entry in [shim.clone()].iter().chain(&descendants(&all, runner.parent)) {
        entry.process.signal(Signal::KILL).unwrap();
    }
}

#[tokio::test]
async fn a_lost_node_keeps_its_state_until_an_administrator_lets_it_go() {
    let ground = Ground::with(Controllers::Running).await;
    let world = ground.place.path("world");
    fs::create_dir(&world).unwrap();
    // Pods have users of their own.
    fs::set_permissions(&world, fs::Permissions::from_mode(0o777)).unwrap();
    let source = ground.place.path("code");
    fs::create_dir_all(source.join("slow")).unwrap();
    fs::write(source.join("slow/main.tf"), code(&world)).unwrap();
    git(&source, &["init", "--quiet"]);
    git(&source, &["add", "--all"]);
    git(&source, &["commit", "--quiet", "--message=Start"]);
    let Work { datastore, controller, node, .. } = ground.work(&[]).await;
    let repository = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRepository", "metadata": { "name": "code" },
        "spec": { "repository": { "url": format!("file://{}", source.display()) }, "pollInterval": "1s" },
    });
    ground.create::<TerraformRepository>(Some(TENANT), repository).await;
    let layer = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": "slow" },
        "spec": {
            "repository": { "name": "code" }, "branch": "main", "path": "slow",
            "remediationStrategy": { "autoApply": true },
        },
    });
    ground.create::<TerraformLayer>(Some(TENANT), layer).await;
    let runs = Api::<TerraformRun>::namespaced(ground.client.clone(), TENANT);
    let applies = async || -> Vec<TerraformRun> {
        let all = runs.list(&ListParams::default()).await.unwrap().items;
        all.into_iter().filter(|run| run.spec.action == Action::Apply).collect()
    };
    until("the apply is at work", async || world.join("began").exists().then_some(())).await;
    let lost = applies().await.remove(0);

    // The node says nothing any more, and then nothing is left of it. Another one is there.
    drop(node);
    switch_off(&lost);
    let _other = ground.node("other.example").await;
    // Neither a person's wish nor the death of the pod by force lets anything else begin.
    let wish = json!({ "metadata": { "annotations": { api::annotation::SYNC: "now" } } });
    let layers = Api::<TerraformLayer>::namespaced(ground.client.clone(), TENANT);
    layers.patch("slow", &PatchParams::default(), &Patch::Merge(wish)).await.unwrap();
    let pods = Api::<Pod>::namespaced(ground.client.clone(), TENANT);
    let pod = lost_pod(&pods, &lost).await;
    pods.delete(&pod, &DeleteParams::default().grace_period(0)).await.unwrap();
    let nodes = Api::<Node>::all(ground.client.clone());
    until("the cluster sees that the node is silent", async || {
        let status = nodes.get("machine.example").await.ok()?.status?;
        let ready = status.conditions?.into_iter().find(|one| one.type_ == "Ready")?;
        (ready.status == "Unknown").then_some(())
    })
    .await;
    let status = applies().await.remove(0).status.unwrap();
    assert_eq!(status.state, Some(RunState::Running), "{:?}", status.result);
    assert_eq!(applies().await.len(), 1, "its state is not free");
    lost_pod(&pods, &lost).await;

    // The administrator's word that nothing of it runs any more.
    nodes.delete("machine.example", &DeleteParams::default()).await.unwrap();
    let ended = until("the run has ended", async || {
        let run = runs.get_opt(&lost.name_any()).await.ok()??;
        run.status.as_ref()?.state.is_some_and(RunState::is_terminal).then_some(run)
    })
    .await;
    let result = ended.status.and_then(|status| status.result).unwrap();
    assert_eq!(result.reason, "OutcomeUnknown", "{result:?}");
    assert!(result.message.contains("taken from node machine.example: "), "{result:?}");
    fs::write(world.join("go"), "").unwrap();
    until("the other node applies a new plan", async || {
        let status = layers.get("slow").await.ok()?.status?;
        condition::is_true(&status.conditions, "Ready").then_some(())
    })
    .await;
    let after = applies().await;
    assert_eq!(after.len(), 2, "{after:#?}");
    let plan = |run: &TerraformRun| run.spec.artifact.as_ref().map(|plan| plan.sha256.clone());
    assert_ne!(plan(&after[0]), plan(&after[1]), "the plan of before is not applied again");
    drop((datastore, controller));
}

/// The pod of the run, which is there as long as something of it may work.
async fn lost_pod(pods: &Api<Pod>, run: &TerraformRun) -> String {
    let of_run = ListParams::default().labels(&format!("{}={}", api::label::RUN_UID, run.uid().unwrap()));
    let found = pods.list(&of_run).await.unwrap().items;
    assert_eq!(found.len(), 1, "{found:#?}");
    found[0].name_any()
}
