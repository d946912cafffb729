//! What `terrane sync` plans, of a repository that nobody looks at for an hour: what was pushed a moment ago.

use std::fs;

use api::run::Action;
use api::{TerraformLayer, TerraformRepository, TerraformRun};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::harness::{Terrane, declare_layer, git, is, layer_until, run_until, runs, until};
use crate::{end, told};

fn code(input: &str) -> String {
    format!("resource \"terraform_data\" \"x\" {{ input = \"{input}\" }}\n")
}

fn is_of(commit: &str) -> impl Fn(&TerraformRun) -> bool + '_ {
    move |run| run.spec.layer.revision.as_str() == commit
}

#[tokio::test]
async fn what_was_just_pushed_is_planned_by_a_sync_and_a_known_commit_where_that_is_asked_for() {
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    let source = declare_layer(&client, "app", &code("one")).await;
    let rarely = Patch::Merge(json!({ "spec": { "pollInterval": "1h" } }));
    let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
    repositories.patch("app", &PatchParams::default(), &rarely).await.unwrap();
    layer_until(&client, "app", "in sync", is("Ready")).await;
    let first = git(source.path(), &["rev-parse", "HEAD"]);
    let commit = |input: &str| {
        fs::write(source.path().join("app/main.tf"), code(input)).unwrap();
        git(source.path(), &["commit", "--quiet", "--all", "--message=Change"]);
        git(source.path(), &["rev-parse", "HEAD"])
    };

    let second = commit("two");
    told(terrane.command(&["sync", "app", "--known"]));
    let answers = |run: &TerraformRun| is_of(&first)(run) && run.spec.trigger.reason.contains("by hand");
    run_until(&client, "app", "the known commit is planned", answers).await;

    told(terrane.command(&["sync", "app"]));
    run_until(&client, "app", "the newest commit is planned", is_of(&second)).await;
    let applied = |layer: &TerraformLayer| {
        layer
            .status
            .as_ref()
            .and_then(|status| status.revision.applied.as_ref())
            .is_some_and(|at| at.as_str() == second)
    };
    layer_until(&client, "app", "and applied", applied).await;

    // One that cannot be looked at is no reason to plan nothing: what is known is planned.
    fs::rename(source.path().join(".git"), source.path().join("away")).unwrap();
    told(terrane.command(&["sync", "app"]));
    until("the known commit is planned once more", || async {
        let plans = runs(&client, Action::Plan).await;
        (plans.into_iter().filter(is_of(&second)).count() > 1).then_some(())
    })
    .await;
    end(terrane).await;
}
