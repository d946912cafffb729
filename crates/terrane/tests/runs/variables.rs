//! What a layer gives to its code, by the real tool: where values come from and which of them wins, what a change of a referenced object
//! leads to, and what is said when one is missing.

use api::run::TriggerKind;
use api::{TerraformLayer, TerraformRun};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use testkit::process::Scratch;

use crate::harness::{Terrane, declare_repository, git, is, layer_until, run_until, until, why};
use crate::{end, told};

const LOGIN: &str = "first-login";

/// Shows what it was given. The provisioner shows what its environment holds.
const CODE: &str = r#"
variable "literal" {
  type = object({ sizes = list(number), template = string })
}
variable "password" {}
variable "zones" {
  type = list(string)
}
variable "owner" {}
variable "tier" {}
variable "stage" {}
variable "login" {}

resource "terraform_data" "given" {
  input = { literal = var.literal, zones = var.zones, owner = var.owner, tier = var.tier, stage = var.stage }
}

resource "terraform_data" "environment" {
  triggers_replace = [var.password]
  provisioner "local-exec" {
    command = "echo region=$REGION token=$CLOUD_TOKEN login=${var.login}"
  }
}

output "given" {
  value = terraform_data.given.output
}

output "login" {
  value = sha256(var.login)
}
"#;

async fn create<K>(client: &Client, object: Value)
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let api = Api::<K>::namespaced(client.clone(), "default");
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

fn layer() -> Value {
    json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": "app" },
        "spec": {
            "repository": { "name": "code" }, "branch": "main", "path": "app",
            "remediationStrategy": { "autoApply": true },
            "variables": [
                { "name": "literal", "value": { "sizes": [1, 2], "template": "${not_a_reference}" } },
                { "name": "password", "valueFrom": { "secretKeyRef": { "name": "db", "key": "password" } } },
                { "name": "zones", "valueFrom": { "configMapKeyRef": { "name": "common", "key": "zones" } }, "format": "json" },
            ],
            "variablesFrom": [{ "secretRef": { "name": "whole" } }, { "configMapRef": { "name": "common" } }],
            "variableFiles": ["vars/prod.tfvars"],
            "environment": [
                { "name": "REGION", "value": "north" },
                { "name": "CLOUD_TOKEN", "valueFrom": { "secretKeyRef": { "name": "db", "key": "token" } }, "rotates": true },
            ],
        },
    })
}

/// `terraform.tfvars` of the directory loses to the layer's file, which loses to the ConfigMap, which loses to the layer itself.
async fn source(client: &Client) -> Scratch {
    let files = [
        ("app/main.tf", CODE),
        ("app/terraform.tfvars", "stage = \"directory\"\ntier = \"directory\"\nowner = \"directory\"\n"),
        ("vars/prod.tfvars", "tier = \"file\"\nowner = \"file\"\n"),
    ];
    declare_repository(client, "code", &files).await
}

fn outputs(terrane: &Terrane) -> Value {
    let all: Value = serde_json::from_str(&told(terrane.command(&["outputs", "app", "-o", "json"]))).unwrap();
    all["given"].get("value").cloned().unwrap_or_else(|| all["given"].clone())
}

pub(crate) async fn log_of(terrane: &Terrane, run: &TerraformRun) -> String {
    let name = format!("run/{}", run.name_any());
    until("the log is there", || {
        let output = terrane.command(&["logs", &name]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        std::future::ready((output.status.success() && !text.is_empty()).then_some(text))
    })
    .await
}

async fn run_count(client: &Client) -> usize {
    let runs = Api::<TerraformRun>::namespaced(client.clone(), "default");
    runs.list(&ListParams::default()).await.unwrap().items.len()
}

#[tokio::test]
async fn variables_come_from_where_they_are_and_a_change_of_one_is_planned_and_applied() {
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    let source = source(&client).await;
    // All of a Secret; the ConfigMap after it wins.
    let whole = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "whole" },
        "stringData": { "login": LOGIN, "owner": "owner-of-whole" } });
    create::<Secret>(&client, whole).await;
    create::<TerraformLayer>(&client, layer()).await;

    // Told in the order in which they are asked for, and gone on with as soon as they are there.
    let absent = "Secret db does not exist in this namespace; create it, and the layer goes on";
    layer_until(&client, "app", absent, |layer| why(layer) == absent).await;
    let secret = |password: &str, token: &str| {
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "db" },
            "stringData": { "password": password, "token": token } })
    };
    create::<Secret>(&client, secret("first-password", "first-token")).await;
    let absent = "ConfigMap common does not exist in this namespace; create it, and the layer goes on";
    layer_until(&client, "app", absent, |layer| why(layer) == absent).await;
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "common" },
        "data": { "zones": "[\"a\", \"b\"]", "owner": "map" } });
    create::<ConfigMap>(&client, map).await;
    layer_until(&client, "app", "applied", is("Ready")).await;
    let given = json!({
        "literal": { "sizes": [1, 2], "template": "${not_a_reference}" }, "zones": ["a", "b"],
        "owner": "map", "tier": "file", "stage": "directory",
    });
    assert_eq!(outputs(&terrane), given);
    let login = told(terrane.command(&["outputs", "app"]));
    assert!(login.contains(api::text::Sha256::of(LOGIN.as_bytes()).as_str()), "{login}");
    let applied = |run: &TerraformRun| run.spec.artifact.is_some();
    let first = run_until(&client, "app", "the apply", applied).await;
    let log = log_of(&terrane, &first).await;
    assert!(log.contains("region=north token=*** login=***"), "{log}");
    assert!(!log.contains("first-"), "{log}");

    // A change of what is referred to, and of nothing else, is planned and applied; it is no drift.
    let secrets = Api::<Secret>::namespaced(client.clone(), "default");
    let patch = PatchParams::default();
    let runs = run_count(&client).await;
    let rotated = json!({ "stringData": { "token": "second-token", "unused": "x" }, "metadata": { "labels": { "a": "b" } } });
    secrets.patch("db", &patch, &Patch::Merge(rotated)).await.unwrap();
    secrets
        .patch("db", &patch, &Patch::Merge(json!({ "stringData": { "password": "second-password" } })))
        .await
        .unwrap();
    let is_of_inputs = |run: &TerraformRun| run.spec.trigger.kind == TriggerKind::Inputs;
    let plan = run_until(&client, "app", "a plan with the new value", is_of_inputs).await;
    assert_ne!(plan.spec.inputs, first.spec.inputs);
    let again =
        run_until(&client, "app", "its apply", |run| applied(run) && run.spec.inputs == plan.spec.inputs)
            .await;
    layer_until(&client, "app", "applied again", |layer| {
        let status = layer.status.as_ref();
        is("Ready")(layer)
            && status.is_some_and(|status| status.inputs == plan.spec.inputs && status.drift.is_none())
    })
    .await;
    let log = log_of(&terrane, &again).await;
    assert!(log.contains("region=north token=***") && !log.contains("second-"), "{log}");
    assert_eq!(run_count(&client).await, runs + 2, "what rotates or is not asked for led to nothing");

    // A commit that touches the file is relevant, though it is nowhere near the layer's directory.
    std::fs::write(source.path().join("vars/prod.tfvars"), "tier = \"better\"\n").unwrap();
    git(source.path(), &["commit", "--quiet", "--all", "--message=Better"]);
    until("the new file is applied", || {
        std::future::ready((outputs(&terrane)["tier"] == "better").then_some(()))
    })
    .await;

    another_tool_or_workspace_is_planned(&client).await;

    // What vanishes is told, keeps what is there, and nobody else waits.
    secrets.delete("db", &DeleteParams::default()).await.unwrap();
    layer_until(&client, "app", "its Secret is gone", |layer| {
        why(layer).starts_with("Secret db does not exist")
    })
    .await;
    let described = told(terrane.command(&["describe", "app"]));
    assert!(
        described.contains("InputsMissing") || described.contains("Secret db does not exist"),
        "{described}"
    );
    assert!(described.contains("Variables:") && described.contains("password from Secret db"), "{described}");
    end(terrane).await;
}

/// The commit is the same, and so is all that the layer gives to it.
async fn another_tool_or_workspace_is_planned(client: &Client) {
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    let change = async |spec: Value| {
        let patch = Patch::Merge(json!({ "spec": spec }));
        layers.patch("app", &PatchParams::default(), &patch).await.unwrap().metadata.generation
    };
    layer_until(client, "app", "in sync before", is("Ready")).await;
    let asked = change(json!({ "terraform": { "enabled": true } })).await;
    let words = "the layer has changed: tool from what the code asks for to terraform";
    let plan = run_until(client, "app", "a plan by that tool", |run| run.spec.trigger.reason == words).await;
    layer_until(client, "app", "in sync by that tool", |layer| {
        is("Ready")(layer)
            && layer.status.as_ref().is_some_and(|status| {
                status.observed_generation == asked
                    && status.plan.as_ref().is_some_and(|newest| newest.run == plan.name_any())
            })
    })
    .await;

    // Another workspace is another state, so this plan waits for a person; and is not applied in the old workspace's place.
    change(json!({ "workspace": "blue" })).await;
    let waits = layer_until(client, "app", "a plan of the empty state", |layer| {
        why(layer).contains("is now looked for in") && !is("Ready")(layer)
    })
    .await;
    let newest = waits.status.unwrap().plan.unwrap().run;
    let plan = run_until(client, "app", "that plan", |run| run.name_any() == newest).await;
    assert_eq!(plan.spec.trigger.reason, "the layer has changed: workspace from default to blue");
    assert_eq!(plan.spec.setup.unwrap().workspace.as_str(), "blue");
    change(json!({ "workspace": null })).await;
    layer_until(client, "app", "back in its own workspace", is("Ready")).await;
}
