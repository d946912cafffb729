//! What repositories and layers ask of their runners, by the real tool: whose words win, what a change leads to, and what is said of what
//! is not allowed.

use api::run::{Action, TriggerKind};
use api::{TerraformLayer, TerraformRepository, TerraformRun, condition};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::{Value, json};

use crate::end;
use crate::harness::{Terrane, declare_repository, is, layer_until, run_until, why};
use crate::variables::log_of;

/// Shows what it was given. The check fails, which is a warning at each plan.
const CODE: &str = r#"
variable "stage" {}

check "always" {
  assert {
    condition     = var.stage == ""
    error_message = "The stage is ${var.stage}."
  }
}

resource "terraform_data" "given" {
  input = var.stage
  provisioner "local-exec" {
    command = "echo stage=${var.stage} region=$REGION zone=$ZONE login=$CLOUD_LOGIN"
  }
}
"#;

fn layer(name: &str, wish: Value) -> TerraformLayer {
    let layer = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": name },
        "spec": {
            "repository": { "name": "code" }, "branch": "main", "path": "app", "workspace": name,
            "remediationStrategy": { "autoApply": true },
            "environment": [{ "name": "ZONE", "value": "own" }],
            "overrideRunnerSpec": wish,
        },
    });
    serde_json::from_value(layer).unwrap()
}

#[tokio::test]
async fn a_layer_asks_for_its_runner_and_is_told_what_it_cannot_have() {
    let mut terrane = Terrane::new();
    let client = terrane
        .start(&[
            "--allow-runner-override=env",
            "--allow-runner-override=envFrom",
            "--allow-runner-override=extraInitArgs",
            "--allow-runner-override=extraPlanArgs",
            "--allow-runner-override=extraApplyArgs=-parallelism",
            "--allow-runner-override=resources",
            "--allow-runner-override=metadata=team",
        ])
        .await;
    let login = json!({ "metadata": { "name": "cloud" }, "stringData": { "CLOUD_LOGIN": "swordfish-99" } });
    let secrets = Api::<Secret>::namespaced(client.clone(), "default");
    secrets.create(&PostParams::default(), &serde_json::from_value(login).unwrap()).await.unwrap();
    let _source = declare_repository(&client, "code", &[("app/main.tf", CODE)]).await;
    let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
    let of_repository = json!({ "spec": { "overrideRunnerSpec": {
        "env": [{ "name": "TF_VAR_stage", "value": "common" }, { "name": "REGION", "value": "north" }, { "name": "ZONE", "value": "common" }],
        "envFrom": [{ "secretRef": { "name": "cloud" } }],
        "metadata": { "labels": { "team": "common" } },
    } } });
    repositories.patch("code", &PatchParams::default(), &Patch::Merge(of_repository)).await.unwrap();

    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    let watched = WatchParams::default().labels("team=blue,terrane.dev/layer=app");
    let seen = pods.watch(&watched, "0").await.unwrap();
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    let wish = json!({
        "env": [{ "name": "TF_VAR_stage", "value": "blue" }],
        "metadata": { "labels": { "team": "blue" } },
        "extraInitArgs": ["-upgrade"],
        "extraPlanArgs": ["-compact-warnings"],
        "extraApplyArgs": ["-parallelism=1"],
    });
    layers.create(&PostParams::default(), &layer("app", wish)).await.unwrap();
    layer_until(&client, "app", "applied", is("Ready")).await;
    let plan = run_until(&client, "app", "the plan", |run| run.spec.action == Action::Plan).await;
    let log = log_of(&terrane, &plan).await;
    assert!(log.contains("without -compact-warnings"), "{log}");
    let apply = run_until(&client, "app", "the apply", |run| run.spec.action == Action::Apply).await;
    let log = log_of(&terrane, &apply).await;
    assert!(log.contains("stage=blue region=north zone=own login=***"), "{log}");
    assert!(!log.contains("swordfish"), "{log}");
    let made = seen.try_filter(|event| std::future::ready(matches!(event, WatchEvent::Added(_))));
    assert!(Box::pin(made).try_next().await.unwrap().is_some(), "a pod with the layer's own label");

    // Another argument is another plan of the same code, and what is not on the list is told.
    let patch = |value: Value| Patch::Merge(json!({ "spec": { "overrideRunnerSpec": value } }));
    let change = PatchParams::default();
    layers.patch("app", &change, &patch(json!({ "extraPlanArgs": ["-parallelism=3"] }))).await.unwrap();
    let again = |run: &TerraformRun| run.spec.trigger.kind == TriggerKind::Inputs;
    let again = run_until(&client, "app", "a plan with the other argument", again).await;
    layer_until(&client, "app", "planned with it", |layer| {
        is("Ready")(layer) && layer.status.as_ref().is_some_and(|status| status.inputs == again.spec.inputs)
    })
    .await;
    let log = log_of(&terrane, &again).await;
    assert!(!log.contains("without -compact-warnings") && log.contains("The stage is blue."), "{log}");
    layers.patch("app", &change, &patch(json!({ "extraPlanArgs": ["-target=x"] }))).await.unwrap();
    let words =
        "spec.overrideRunnerSpec: extraPlanArgs: plan -target=x is not one of those that can be given";
    layer_until(&client, "app", words, |layer| why(layer).starts_with(words)).await;

    for (name, wish, words) in [
        (
            "pictured",
            json!({ "image": "example.org/mine" }),
            "spec.overrideRunnerSpec: image is not among the fields that the administrator allows; remove it, or have \
             --allow-runner-override name it",
        ),
        (
            "large",
            json!({ "resources": { "limits": { "memory": "8Gi" } } }),
            "spec.overrideRunnerSpec: resources has no effect where runners are processes; remove it",
        ),
        (
            "labelled",
            json!({ "metadata": { "labels": { "cost": "1" } } }),
            "spec.overrideRunnerSpec: metadata: the administrator does not allow the label or annotation cost (allowed: team); choose another, \
             or have --allow-runner-override name it",
        ),
    ] {
        layers.create(&PostParams::default(), &layer(name, wish)).await.unwrap();
        let told = layer_until(&client, name, words, |layer| why(layer) == words).await;
        let status = told.status.unwrap();
        let ready = condition::find(&status.conditions, "Ready").unwrap();
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "OverrideRefused"));
        assert!(status.last_run.is_none(), "nothing was started");
    }
    layers
        .patch("large", &change, &Patch::Merge(json!({ "spec": { "overrideRunnerSpec": null } })))
        .await
        .unwrap();
    layer_until(&client, "large", "applied once it asks for nothing", is("Ready")).await;
    end(terrane).await;
}
