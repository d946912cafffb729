//! Outputs of the real tool in Secrets and ConfigMaps: written, kept true, left alone where they are somebody else's, cleared; and not
//! written when nothing has changed.

use std::collections::BTreeMap;

use api::run::TriggerKind;
use api::{TerraformLayer, TerraformRun, condition};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::harness::{Terrane, declare_repository, git, is, layer_until, run_until, until};
use crate::{end, told};

fn code(url: &str) -> String {
    format!(
        r#"
resource "terraform_data" "db" {{
  input = {{ url = "{url}", password = sensitive("hunter2-{url}") }}
}}

output "url" {{
  value = terraform_data.db.output.url
}}

output "password" {{
  value     = terraform_data.db.output.password
  sensitive = true
}}

output "ports" {{
  value = [5432, 12345678901234567890]
}}
"#
    )
}

fn layer(targets: Value) -> TerraformLayer {
    let layer = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": "db" },
        "spec": {
            "repository": { "name": "code" }, "branch": "main", "path": "db",
            "remediationStrategy": { "autoApply": true }, "writeOutputsTo": targets,
        },
    });
    serde_json::from_value(layer).unwrap()
}

fn words(layer: &TerraformLayer) -> (String, String) {
    let conditions = layer.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let found = condition::find(conditions, "OutputsWritten");
    found.map_or_else(Default::default, |found| (found.reason.clone(), found.message.clone()))
}

struct Places {
    layers: Api<TerraformLayer>,
    secrets: Api<Secret>,
    maps: Api<ConfigMap>,
}

impl Places {
    fn new(client: &Client) -> Self {
        let client = || client.clone();
        Self {
            layers: Api::namespaced(client(), "default"),
            secrets: Api::namespaced(client(), "default"),
            maps: Api::namespaced(client(), "default"),
        }
    }

    async fn secret(&self, name: &str) -> Option<BTreeMap<String, String>> {
        let data = self.secrets.get_opt(name).await.unwrap()?.data.unwrap_or_default();
        Some(
            data.into_iter()
                .map(|(key, ByteString(value))| (key, String::from_utf8(value).unwrap()))
                .collect(),
        )
    }

    async fn map(&self, name: &str) -> Option<BTreeMap<String, String>> {
        Some(self.maps.get_opt(name).await.unwrap()?.data.unwrap_or_default())
    }

    async fn secret_is(&self, what: &str, expected: Value) {
        until(what, || async { (json!(self.secret("db").await) == expected).then_some(()) }).await;
    }

    async fn ask(&self, targets: Value) {
        let patch = Patch::Merge(json!({ "spec": { "writeOutputsTo": targets } }));
        self.layers.patch("db", &PatchParams::default(), &patch).await.unwrap();
    }
}

fn written(url: &str) -> Value {
    json!({ "url": url, "password": format!("hunter2-{url}"), "ports": "[5432,12345678901234567890]" })
}

#[tokio::test]
async fn outputs_are_written_kept_true_and_cleared_and_nothing_of_others_is_touched() {
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    let places = Places::new(&client);
    let source = declare_repository(&client, "code", &[("db/main.tf", &code("first"))]).await;
    let targets =
        json!([{ "secret": "db" }, { "configMap": "facts", "keys": [{ "output": "url", "as": "DB_URL" }] }]);
    let made = places.layers.create(&PostParams::default(), &layer(targets.clone())).await.unwrap();
    let ready = layer_until(&client, "db", "applied", is("Ready")).await;
    assert_eq!(json!(places.secret("db").await), written("first"), "there when the layer is ready");
    assert_eq!(json!(places.map("facts").await), json!({ "DB_URL": "first" }));
    assert_eq!(
        words(&ready),
        ("Written".to_owned(), "3 outputs in Secret db, 1 output in ConfigMap facts".to_owned())
    );
    let secret = places.secrets.get("db").await.unwrap();
    let owner = secret.owner_references().first().unwrap().clone();
    assert_eq!((owner.kind.as_str(), Some(owner.uid)), ("TerraformLayer", made.uid()));
    assert_eq!(secret.labels()["app.kubernetes.io/managed-by"], "terrane");
    assert_eq!(secret.type_.as_deref(), Some("Opaque"));

    // What is edited or deleted by hand is put right; what somebody added stays.
    let edit = json!({ "stringData": { "url": "edited", "mine": "stays" } });
    places.secrets.patch("db", &PatchParams::default(), &Patch::Merge(edit)).await.unwrap();
    let mut with_mine = written("first");
    with_mine["mine"] = json!("stays");
    places.secret_is("the edited key is put right", with_mine.clone()).await;
    places.maps.delete("facts", &DeleteParams::default()).await.unwrap();
    until("the ConfigMap is made anew", || async { places.map("facts").await }).await;

    // A new commit changes an output.
    std::fs::write(source.path().join("db/main.tf"), code("second")).unwrap();
    git(source.path(), &["commit", "--quiet", "--all", "--message=Second"]);
    let mut second = written("second");
    second["mine"] = json!("stays");
    places.secret_is("the new value is written", second).await;
    layer_until(&client, "db", "ready again", is("Ready")).await;

    // Another plan finds nothing to change, and nothing is written.
    let version = || async { places.secrets.get("db").await.unwrap().resource_version() };
    let before = version().await;
    told(terrane.command(&["sync", "db"]));
    let synced = |run: &TerraformRun| {
        run.spec.trigger.kind == TriggerKind::Manual
            && run.status.as_ref().is_some_and(|s| s.finished_at.is_some())
    };
    run_until(&client, "db", "the plan that was asked for", synced).await;
    layer_until(&client, "db", "ready after it", is("Ready")).await;
    assert_eq!(version().await, before);

    // Fewer keys: the others go, but for what is somebody else's.
    places.ask(json!([{ "secret": "db", "keys": [{ "output": "url" }] }])).await;
    places.secret_is("only what is asked for is left", json!({ "url": "second", "mine": "stays" })).await;
    until("the ConfigMap is gone", || async { places.map("facts").await.is_none().then_some(()) }).await;

    // Refusals, each in words, with nothing written; the layer is not ready meanwhile.
    places.ask(json!([{ "configMap": "facts", "keys": [{ "output": "password" }] }])).await;
    let refused = layer_until(&client, "db", "refused", |layer| words(layer).0 == "OutputSensitive").await;
    assert!(words(&refused).1.contains("write it to a Secret"), "{refused:?}");
    assert!(!is("Ready")(&refused));
    assert_eq!(places.map("facts").await, None);
    until("what was shared is let go", || async {
        let left = places.secrets.get("db").await.ok()?;
        (left.owner_references().is_empty() && left.data?.len() == 1).then_some(())
    })
    .await;
    places.ask(json!([{ "secret": "db" }])).await;
    let refused = layer_until(&client, "db", "not its own", |layer| words(layer).0 == "NotOurs").await;
    assert!(words(&refused).1.starts_with("Secret db is there already"), "{refused:?}");
    assert_eq!(json!(places.secret("db").await), json!({ "mine": "stays" }));
    places.secrets.delete("db", &DeleteParams::default()).await.unwrap();
    layer_until(&client, "db", "the name is free", is("Ready")).await;
    assert_eq!(json!(places.secret("db").await), written("second"));

    // The layer goes, and what it made goes with it.
    places.layers.delete("db", &DeleteParams::default()).await.unwrap();
    until("the Secret went with the layer", || async { places.secret("db").await.is_none().then_some(()) })
        .await;
    assert!(!terrane.printed().contains("hunter2"), "a sensitive value is in the log");
    end(terrane).await;
}

#[tokio::test]
async fn a_layer_in_place_that_begins_to_ask_is_planned_once_for_its_outputs() {
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    let places = Places::new(&client);
    let _source = declare_repository(&client, "code", &[("db/main.tf", &code("first"))]).await;
    places.layers.create(&PostParams::default(), &layer(json!([]))).await.unwrap();
    layer_until(&client, "db", "applied", is("Ready")).await;
    places.ask(json!([{ "secret": "db" }])).await;
    places.secret_is("the outputs of what was there", written("first")).await;
    let plan =
        run_until(&client, "db", "a plan for it", |run| run.spec.trigger.kind == TriggerKind::Outputs).await;
    assert!(plan.spec.outputs && plan.spec.artifact.is_none());
    layer_until(&client, "db", "ready", is("Ready")).await;
    let runs = Api::<TerraformRun>::namespaced(client.clone(), "default");
    let all = runs.list(&Default::default()).await.unwrap().items;
    let kept = all.iter().filter(|run| run.spec.outputs).count();
    assert_eq!((all.len(), kept), (3, 1), "a plan, its apply, and the plan that kept the outputs");
    end(terrane).await;
}
