//! A layer that is deleted with its infrastructure after everything that it referred to: it is destroyed with what the last apply was given.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use api::{TerraformLayer, TerraformRepository};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use testkit::process::Scratch;

use crate::end;
use crate::harness::{Terrane, declare_repository, is, layer_until, until, why};

#[tokio::test]
async fn a_layer_is_destroyed_with_the_values_of_its_last_apply_when_all_of_them_are_gone() {
    let scratch = Scratch::new("terrane-undone-").unwrap();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let trace = scratch.path().join("trace");
    let code = format!(
        r#"
variable "name" {{}}
variable "password" {{}}
resource "terraform_data" "x" {{
  input = "${{var.name}} ${{var.password}}"
  provisioner "local-exec" {{
    when    = destroy
    command = "echo \"${{self.input}} $TOKEN\" > {}"
  }}
}}
"#,
        trace.display()
    );
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    let source = declare_repository(&client, "code", &[("app/main.tf", &code)]).await;
    let secrets = Api::<Secret>::namespaced(client.clone(), "default");
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "default");
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    let new = PostParams::default();
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "db" },
        "stringData": { "password": "kept-password", "token": "kept-token" } });
    secrets.create(&new, &serde_json::from_value(secret).unwrap()).await.unwrap();
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "common" }, "data": { "name": "kept-name" } });
    maps.create(&new, &serde_json::from_value(map).unwrap()).await.unwrap();
    let layer = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": "app" },
        "spec": {
            "repository": { "name": "code" }, "branch": "main", "path": "app",
            "remediationStrategy": { "autoApply": true }, "deletionPolicy": "Destroy",
            "variables": [{ "name": "password", "valueFrom": { "secretKeyRef": { "name": "db", "key": "password" } } }],
            "variablesFrom": [{ "configMapRef": { "name": "common" } }],
            "environment": [{ "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "db", "key": "token" } }, "rotates": true }],
        },
    });
    layers.create(&new, &serde_json::from_value(layer).unwrap()).await.unwrap();
    layer_until(&client, "app", "applied", is("Ready")).await;

    let now = DeleteParams::default();
    secrets.delete("db", &now).await.unwrap();
    maps.delete("common", &now).await.unwrap();
    let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
    repositories.delete("code", &now).await.unwrap();
    drop(source);
    layer_until(&client, "app", "it says what is missing", |layer| {
        !why(layer).is_empty() && !is("Ready")(layer)
    })
    .await;
    assert!(!trace.exists());

    layers.delete("app", &now).await.unwrap();
    until("the layer is gone", || async { layers.get_opt("app").await.unwrap().is_none().then_some(()) })
        .await;
    assert_eq!(fs::read_to_string(&trace).unwrap().trim(), "kept-name kept-password kept-token");
    end(terrane).await;
}
