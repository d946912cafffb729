//! What is asked of a repository instead of a layer: a look now, none any more, and again.

use std::fs;

use api::{TerraformLayer, TerraformRepository};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::PATIENTLY;
use crate::harness::{Terrane, declare_layer, git, is, layer_until, until};
use crate::people::finished;

/// A person who asks for a look at a repository gets it long before the next poll.
#[tokio::test]
async fn a_repository_is_looked_at_when_somebody_asks() {
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    let source = declare_layer(&client, "rare", "output \"one\" { value = 1 }\n").await;
    layer_until(&client, "rare", "applied", is("Ready")).await;
    let command = |words: &[&str]| finished(terrane.command(words)).with_code(0);
    let patch = json!({ "spec": { "pollInterval": "24h" } });
    let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
    repositories.patch("rare", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    // A look that was begun with the short interval ends before this one begins.
    command(&["reconcile", "repository", "rare"]);
    let wish = repositories.get("rare").await.unwrap().annotations()[api::annotation::SYNC].clone();
    until("the repository was looked at", || async {
        let status = repositories.get("rare").await.ok()?.status?;
        (status.last_sync.as_ref() == Some(&wish)).then_some(())
    })
    .await;
    fs::write(source.path().join("rare/main.tf"), "output \"one\" { value = 2 }\n").unwrap();
    git(source.path(), &["commit", "--quiet", "--all", "--message=Two"]);
    let head = git(source.path(), &["rev-parse", "HEAD"]);
    command(&["sync", "tfr/rare"]).says("repository rare will be looked at now");
    layer_until(&client, "rare", "applied at the new commit", |layer| is_at(layer, &head)).await;

    // While it is suspended nobody looks at it, not for a layer that is asked for a plan either; what was pushed then comes afterwards.
    command(&["suspend", "repository/rare"]).says("repository rare is not looked at any more");
    fs::write(source.path().join("rare/main.tf"), "output \"one\" { value = 3 }\n").unwrap();
    git(source.path(), &["commit", "--quiet", "--all", "--message=Three"]);
    let head = git(source.path(), &["rev-parse", "HEAD"]);
    command(&["plan", "rare", PATIENTLY]).says("No changes.");
    command(&["resume", "repository/rare"]).says("repository rare is looked at now");
    layer_until(&client, "rare", "applied at what was pushed meanwhile", |layer| is_at(layer, &head)).await;

    let refused = finished(terrane.command(&["sync", "tfr/rare", "--known"])).with_code(1);
    refused.complains("--known is about plans of layers");
    let refused = finished(terrane.command(&["suspend", "run/x"])).with_code(1);
    refused.complains("`terrane cancel x` stops it");
}

fn is_at(layer: &TerraformLayer, commit: &str) -> bool {
    let applied = layer.status.as_ref().and_then(|status| status.revision.applied.as_ref());
    applied.is_some_and(|applied| applied.as_str() == commit)
}
