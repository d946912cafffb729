//! A Terraform with scripts of its repository, by the real tool: the example of the documentation, what follows a deploy, tries up to
//! their limit, and whose fields are whose. They share the `terrane up` of the test that has the manifests of seed 000.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use api::run::{Action, TriggerKind};
use api::terraform::WorkloadState;
use api::{Terraform, TerraformLayer, TerraformRepository, TerraformRun, condition};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use testkit::process::Scratch;

use crate::harness::{Terrane, commit_files, layer_until, runs, until};
use crate::terraform::{BUCKET, Cloud, apply, gone, is_completed, login, resources, terraform_until};
use crate::told;

const MANIFEST: &str = include_str!("../../../../examples/terraform/workload.yaml");
const CODE: &str = include_str!("../../../../examples/terraform/main.tf");
const DEPLOY: &str = include_str!("../../../../examples/terraform/deploy");
const DESTROY: &str = include_str!("../../../../examples/terraform/destroy");
const REPORT: &str = include_str!("../../../../examples/terraform/report");
const HUGE: &str = "printf '{\"outputs\": {\"much\": \"%09000d\"}}\\n' 0\n";

/// What `commit_example` makes is at `team/infra` there, whose directory `live` has the code.
pub(crate) const FORGE: &str = "https://git.example";

/// Scripts are in the repository's root, the code is in a directory.
pub(crate) fn commit_example(below: &Path) {
    let root = below.join("team/infra");
    fs::create_dir_all(&root).unwrap();
    let files = [
        ("live/main.tf", CODE),
        ("deploy", DEPLOY),
        ("destroy", DESTROY),
        ("report", REPORT),
        ("huge", HUGE),
        ("wrong", "echo '{\"EC2\": []}'\n"),
        ("broken", "echo '{}'\nexit 3\n"),
        ("failing", "echo not this time\nexit 7\n"),
    ];
    commit_files(&root, &files);
}

/// The example, from the forge and with its state in the bucket.
fn example(name: &str, more: impl FnOnce(&mut Value)) -> String {
    let mut manifest: Value = serde_saphyr::from_str(MANIFEST).unwrap();
    manifest["metadata"]["name"] = name.into();
    // Elsewhere than on known forges the whole is tried first, and there is no such repository.
    manifest["spec"]["gitRepo"]["url"] = format!("{FORGE}/team/infra/live").into();
    manifest["spec"]["backend"] = json!({ "provider": "aws", "s3": BUCKET, "region": "us-east-1" });
    more(&mut manifest["spec"]);
    manifest.to_string()
}

async fn patch_layer(client: &Client, name: &str, spec: Value) {
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    until("the layer is there", || async { layers.get_opt(name).await.ok().flatten() }).await;
    let patch = json!({ "spec": spec });
    layers.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

pub(crate) async fn applies_of(client: &Client, name: &str) -> Vec<TerraformRun> {
    let all = runs(client, Action::Apply).await.into_iter();
    let mut found: Vec<TerraformRun> = all.filter(|run| run.spec.layer.name.as_str() == name).collect();
    found.sort_by_key(|run| run.metadata.creation_timestamp.clone());
    found
}

pub(crate) async fn log_of_last(client: &Client, terrane: &Terrane, name: &str) -> String {
    let run = applies_of(client, name).await.pop().unwrap();
    told(terrane.command(&["logs", &format!("run/{}", run.name_any())]))
}

pub(crate) async fn the_example_is_deployed_kept_and_destroyed(
    client: &Client,
    terrane: &Terrane,
    cloud: &Cloud,
) {
    apply(client, &example("workload", |_| ())).await;
    let done = terraform_until(client, "workload", "the example is deployed", is_completed).await;
    let status = done.status.clone().unwrap();
    let report = json!({ "apps": [{ "region": "eu-north-1", "state": "running" }], "calledWith": "--region eu-north-1" });
    assert_eq!(status.post_deploy_output, Some(json!({ "outputs": report })));
    assert_eq!(
        serde_json::to_value(&status.output).unwrap(),
        json!({
            "app": "an app in eu-north-1",
            "password": "*** (sensitive; key password of Secret workload-outputs)",
        })
    );
    let log = log_of_last(client, terrane, "workload").await;
    assert!(log.contains("deploying to eu-north-1, called with --quick"), "{log}");
    let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
    let repository = repositories.get("workload").await.unwrap();
    assert_eq!(repository.spec.repository.url.as_str(), format!("{FORGE}/team/infra"));
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    let layer = layers.get("workload").await.unwrap();
    assert_eq!(layer.spec.path.as_str(), "live");
    fields_are_whose_they_should_be(&done, &repository, &layer);

    others_add_fields(client).await;
    drift_is_found_at_its_time_and_put_right_by_the_script(client, terrane, cloud).await;
    what_cannot_be_kept_is_refused(client).await;
    what_others_added_is_kept(client).await;
    a_first_line_counts_in_a_config_map_too(client, terrane).await;
    gone(client, "workload").await;
    assert!(resources(cloud, "workload").is_empty(), "all is destroyed");
}

/// The paths below `spec` and `metadata` that Terrane has, by the API's own record.
fn owned(metadata: &ObjectMeta) -> BTreeSet<String> {
    let ours =
        metadata.managed_fields.iter().flatten().filter(|one| one.manager.as_deref() != Some("kubectl"));
    let mut found = BTreeSet::new();
    for fields in ours.filter_map(|one| Some(&one.fields_v1.as_ref()?.0)) {
        for part in ["spec", "metadata"] {
            let below = fields[format!("f:{part}")].as_object().into_iter().flatten();
            let names = below.filter_map(|(name, _)| name.strip_prefix("f:"));
            found.extend(names.map(|name| format!("{part}.{name}")));
        }
    }
    found
}

/// Nothing that a person's manifest says is anybody else's, and of what is made for it Terrane has the fields that it sets.
fn fields_are_whose_they_should_be(
    terraform: &Terraform,
    repository: &TerraformRepository,
    layer: &TerraformLayer,
) {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
    assert_eq!(owned(&terraform.metadata), names(&["metadata.finalizers"]));
    let made = ["metadata.labels", "metadata.ownerReferences"];
    assert_eq!(owned(&repository.metadata), names(&[&made[..], &["spec.repository"]].concat()));
    let set = [
        "metadata.finalizers",
        "spec.backend",
        "spec.branch",
        "spec.deletionPolicy",
        "spec.environment",
        "spec.hooks",
        "spec.path",
        "spec.remediationStrategy",
        "spec.repository",
        "spec.scripts",
        "spec.triggerPaths",
        "spec.writeOutputsTo",
    ];
    assert_eq!(owned(&layer.metadata), names(&[&made[..], &set].concat()));
}

/// Somebody else's, by server-side apply as Argo CD does it, of each kind: what the door itself never sets.
fn added(kind: &str) -> Value {
    let spec = match kind {
        "TerraformRepository" => json!({ "pollInterval": "7m" }),
        "TerraformLayer" => json!({ "drift": { "onDrift": "revert" }, "runHistoryPolicy": { "runs": 20 } }),
        _ => Value::Null,
    };
    let group = if kind == "Terraform" { api::WORKLOAD_GROUP } else { api::GROUP };
    let mut object = json!({
        "apiVersion": format!("{group}/{}", api::VERSION), "kind": kind,
        "metadata": {
            "name": "workload", "labels": { "team": "payments" }, "annotations": { "example.org/note": "theirs" },
        },
    });
    if !spec.is_null() {
        object["spec"] = spec;
    }
    object
}

async fn add<K>(client: &Client, kind: &str) -> K
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let objects = Api::<K>::namespaced(client.clone(), "default");
    objects.patch("workload", &PatchParams::apply(OTHER), &Patch::Apply(added(kind))).await.unwrap()
}

const OTHER: &str = "argocd-controller";

async fn others_add_fields(client: &Client) {
    add::<TerraformRepository>(client, "TerraformRepository").await;
    add::<TerraformLayer>(client, "TerraformLayer").await;
    // Of the door itself only what is no part of its manifest: its spec is whoever applies that.
    add::<Terraform>(client, "Terraform").await;
}

/// After the door has changed what it made several times, all of it is there, is theirs, and nobody is in their way: what they apply
/// again, without force, changes nothing.
async fn what_others_added_is_kept(client: &Client) {
    async fn check<K>(client: &Client, kind: &str)
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
        K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
    {
        let objects = Api::<K>::namespaced(client.clone(), "default");
        let before = objects.get("workload").await.unwrap();
        let fields = before.meta().managed_fields.iter().flatten();
        let theirs = fields.clone().filter(|one| one.manager.as_deref() == Some(OTHER)).count();
        assert_eq!(theirs, 1, "{kind}: {:?}", before.meta().managed_fields);
        let after = add::<K>(client, kind).await;
        assert_eq!(after.meta().generation, before.meta().generation, "{kind}");
        let (mut found, added) = (serde_json::to_value(&before).unwrap(), added(kind));
        for part in ["labels", "annotations"] {
            for (key, value) in added["metadata"][part].as_object().unwrap() {
                assert_eq!(&found["metadata"][part][key], value, "{kind}");
            }
        }
        for (key, value) in added["spec"].as_object().into_iter().flatten() {
            assert_eq!(&found["spec"][key].take(), value, "{kind}");
        }
    }
    check::<TerraformRepository>(client, "TerraformRepository").await;
    check::<TerraformLayer>(client, "TerraformLayer").await;
    check::<Terraform>(client, "Terraform").await;
}

/// Somebody applies the code by hand, with another region, to the same state. Whoever logs in as the runners do can do that.
fn change_by_hand(cloud: &Cloud) {
    let place = Scratch::new("terrane-by-hand-").unwrap();
    let backend = format!(
        "terraform {{\n  backend \"s3\" {{\n    bucket = \"{BUCKET}\"\n    key = \"default/workload/terraform.tfstate\"\n    region = \"us-east-1\"\n  }}\n}}\n"
    );
    fs::write(place.path().join("main.tf"), CODE).unwrap();
    fs::write(place.path().join("backend.tf"), backend).unwrap();
    let tool = testkit::tools::tool("terraform").or_else(|_| testkit::tools::tool("tofu")).unwrap();
    for arguments in [&["init"][..], &["apply", "-auto-approve", "-var=region=by-hand"]] {
        let mut command = Command::new(&tool);
        command.current_dir(place.path()).envs(login(cloud)).env("CHECKPOINT_DISABLE", "1");
        let done = command.args(arguments).args(["-input=false", "-no-color"]).output().unwrap();
        let words = [done.stdout, done.stderr].map(|words| String::from_utf8_lossy(&words).into_owned());
        assert!(done.status.success(), "{arguments:?}: {words:?}");
    }
    assert_eq!(what_is_there(cloud).as_deref(), Some("an app in by-hand"));
}

fn what_is_there(cloud: &Cloud) -> Option<String> {
    let resources = resources(cloud, "workload");
    Some(resources.first()?["instances"][0]["attributes"]["input"]["value"].as_str()?.to_owned())
}

/// What was changed by hand is found at the next look, and the script puts it right.
async fn drift_is_found_at_its_time_and_put_right_by_the_script(
    client: &Client,
    terrane: &Terrane,
    cloud: &Cloud,
) {
    change_by_hand(cloud);
    let applies = applies_of(client, "workload").await.len();
    patch_layer(client, "workload", json!({ "drift": { "interval": "2s" } })).await;
    until("the drift is reconciled", || async {
        (applies_of(client, "workload").await.len() > applies).then_some(())
    })
    .await;
    // Rarely from here on.
    patch_layer(client, "workload", json!({ "drift": { "interval": null } })).await;
    until("what is there is what the code says", || async {
        (what_is_there(cloud)? == "an app in eu-north-1").then_some(())
    })
    .await;
    let done = terraform_until(client, "workload", "it is deployed again", is_completed).await;
    assert_eq!(done.status.unwrap().output["app"], "an app in eu-north-1");
    let plans = runs(client, Action::Plan).await.into_iter();
    let looked = |run: &TerraformRun| {
        let result = run.status.as_ref().and_then(|status| status.result.clone());
        run.spec.layer.name.as_str() == "workload"
            && run.spec.trigger.kind == TriggerKind::Drift
            && result.and_then(|result| result.summary).is_some_and(|summary| summary.change == 1)
    };
    assert_eq!(plans.filter(looked).count(), 1, "it was found on the interval");
    let log = log_of_last(client, terrane, "workload").await;
    assert!(log.contains("deploying to eu-north-1, called with --quick"), "{log}");
}

/// What `postDeploy` prints is refused with a reason, and what was deployed stays so.
async fn what_cannot_be_kept_is_refused(client: &Client) {
    for (script, reason, words) in [
        ("broken", "Failed", "hook afterApply failed with exit code 3"),
        ("wrong", "OutputRefused", "without the key outputs"),
        ("huge", "Failed", "larger than 8192 bytes"),
    ] {
        apply(client, &example("workload", |spec| spec["postDeploy"]["script"] = script.into())).await;
        let refused = terraform_until(client, "workload", &format!("{script} is refused"), |terraform| {
            let status = terraform.status.clone().unwrap_or_default();
            let told = condition::find(&status.conditions, "PostDeployed");
            status.observed_generation == terraform.metadata.generation
                && condition::is_true(&status.conditions, "Ready")
                && told.is_some_and(|told| told.reason == reason && told.message.contains(words))
        })
        .await;
        let status = refused.status.unwrap();
        assert_eq!((status.state, status.post_deploy_output), (Some(WorkloadState::Success), None));
        assert!(status.message.as_ref().unwrap().contains(words), "{:?}", status.message);
    }
}

async fn a_first_line_counts_in_a_config_map_too(client: &Client, terrane: &Terrane) {
    let words = "no command, but what cat is asked to print";
    let map =
        json!({ "metadata": { "name": "printed" }, "data": { "it": format!("#!/bin/cat\n{words}\n") } });
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "default");
    maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
    let manifest = example("workload", |spec| {
        spec["scripts"]["apply"] = json!({ "configMapRef": { "name": "printed", "key": "it" } });
        spec["scripts"].as_object_mut().unwrap().remove("deploy");
    });
    apply(client, &manifest).await;
    terraform_until(client, "workload", "the ConfigMap's script was run", is_completed).await;
    assert!(log_of_last(client, terrane, "workload").await.contains(words));
}

/// A deploy that fails is tried again up to the limit, and then says so.
pub(crate) async fn a_deploy_that_fails_is_tried_to_the_limit(client: &Client) {
    let name = "stubborn";
    let manifest = example(name, |spec| spec["scripts"] = json!({ "deploy": "failing" }));
    apply(client, &manifest).await;
    let limit = json!({ "remediationStrategy": { "onError": { "maxRetries": 1 } } });
    patch_layer(client, name, limit).await;
    let terraforms = Api::<Terraform>::namespaced(client.clone(), "default");
    let status = until("it is given up", || async {
        let status = terraforms.get(name).await.ok()?.status?;
        (status.state == Some(WorkloadState::Error)).then_some(status)
    })
    .await;
    let message = status.message.unwrap();
    assert!(
        message.starts_with("gave up after 2 failed applies; a new commit or terrane sync stubborn"),
        "{message}"
    );
    assert!(message.contains("exit code 7"), "{message}");
    assert!(condition::is_true(&status.conditions, "Stalled"));
    assert_eq!(applies_of(client, name).await.len(), 2);
    // What is changed begins anew.
    apply(client, &example(name, |_| ())).await;
    until("what was changed is deployed", || async { terraforms.get(name).await.ok().filter(is_completed) })
        .await;
    let layer = layer_until(client, name, "its layer", |_| true).await;
    let strategy = layer.spec.remediation_strategy.unwrap();
    assert_eq!(strategy.on_error.unwrap().max_retries, Some(1), "the limit stays");
    gone(client, name).await;
}
