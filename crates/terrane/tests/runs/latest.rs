//! What `terrane sync` plans, of a repository that nobody looks at for an hour: what was pushed a moment ago. And what a layer says
//! of a branch that does not just go on.

use std::collections::HashSet;
use std::fs;

use api::run::Action;
use api::{TerraformLayer, TerraformRepository, TerraformRun, condition};
use k8s_openapi::api::core::v1::Event;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::harness::{
    Terrane, declare_layer, declare_repository, git, is, layer_until, run_until, runs, until,
};
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

fn applied_at(layer: &TerraformLayer) -> Option<&str> {
    Some(layer.status.as_ref()?.revision.applied.as_ref()?.as_str())
}

/// What the layer says of its branch.
fn of_branch(layer: &TerraformLayer) -> Option<&str> {
    let told = condition::find(&layer.status.as_ref()?.conditions, "IsBranchIntact")?;
    Some(told.reason.as_str())
}

async fn an_event_says(client: &Client, reason: &str, words: &str) {
    let events = Api::<Event>::namespaced(client.clone(), "default");
    until(reason, || async {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        all.into_iter().find(|event| {
            event.reason.as_deref() == Some(reason)
                && event.message.as_ref().is_some_and(|said| said.contains(words))
                && event.involved_object.name.as_deref() == Some("app")
        })
    })
    .await;
}

#[tokio::test]
async fn a_branch_that_is_rewritten_or_deleted_is_told_and_nothing_is_taken_away() {
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    let source = declare_layer(&client, "app", &code("one")).await;
    let git = |arguments: &[&str]| git(source.path(), arguments);
    layer_until(&client, "app", "in place", is("Ready")).await;
    let commit = |input: &str| {
        fs::write(source.path().join("app/main.tf"), code(input)).unwrap();
        git(&["commit", "--quiet", "--all", "--message=Change"]);
        git(&["rev-parse", "HEAD"])
    };
    let settled = async |what: &str, at: &str, told: Option<&str>| {
        let is_so = |layer: &TerraformLayer| {
            is("Ready")(layer) && applied_at(layer) == Some(at) && of_branch(layer) == told
        };
        layer_until(&client, "app", what, is_so).await
    };

    let first = git(&["rev-parse", "HEAD"]);
    git(&["checkout", "--quiet", "--orphan", "fresh"]);
    let second = commit("two");
    git(&["branch", "--force", "main", "fresh"]);
    git(&["checkout", "--quiet", "main"]);
    settled("an unrelated history is applied", &second, Some("HistoryRewritten")).await;
    an_event_says(&client, "HistoryRewritten", &format!("{} was its newest commit", &first[..7])).await;

    let third = commit("three");
    settled("what goes on from there is no news", &third, None).await;
    git(&["reset", "--quiet", "--hard", "HEAD~1"]);
    // Its Event is the one of before, counted twice.
    let layer = settled("a commit that was taken back is undone", &second, Some("HistoryRewritten")).await;
    let told = condition::find(&layer.status.unwrap().conditions, "IsBranchIntact").cloned().unwrap();
    assert!(told.message.contains(&format!("{} was its newest commit", &third[..7])), "{}", told.message);

    git(&["checkout", "--quiet", "-b", "other"]);
    git(&["branch", "--quiet", "-D", "main"]);
    let applies = async || -> HashSet<_> {
        runs(&client, Action::Apply).await.into_iter().map(|run| run.name_any()).collect()
    };
    let before = applies().await;
    settled("a branch that is gone takes nothing with it", &second, Some("BranchGone")).await;
    an_event_says(&client, "BranchGone", "branch main is not in the repository any more").await;
    // Older ones may have gone by their age in the meantime.
    assert!(applies().await.is_subset(&before));
    git(&["branch", "--quiet", "main"]);
    settled("it is back", &second, None).await;
    end(terrane).await;
}

#[tokio::test]
async fn a_tag_is_followed_wherever_it_goes_and_told_when_it_leaves_something_or_goes() {
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    let source = declare_repository(&client, "app", &[("app/main.tf", code("one").as_str())]).await;
    let git = |arguments: &[&str]| git(source.path(), arguments);
    git(&["tag", "v1"]);
    let first = git(&["rev-parse", "HEAD"]);
    fs::write(source.path().join("app/main.tf"), code("two")).unwrap();
    git(&["commit", "--quiet", "--all", "--message=Change"]);
    let second = git(&["rev-parse", "HEAD"]);
    let layer = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": "app" },
        "spec": {
            "repository": { "name": "app" }, "branch": "refs/tags/v1", "path": "app",
            "remediationStrategy": { "autoApply": true },
        },
    });
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    layers.create(&PostParams::default(), &serde_json::from_value(layer).unwrap()).await.unwrap();
    let settled = async |what: &str, at: &str, told: Option<&str>| {
        let is_so = |layer: &TerraformLayer| {
            is("Ready")(layer) && applied_at(layer) == Some(at) && of_branch(layer) == told
        };
        layer_until(&client, "app", what, is_so).await
    };
    settled("what the tag names is applied, and nothing that came later", &first, None).await;
    git(&["tag", "--force", "v1"]);
    settled("a tag that goes on is followed", &second, None).await;
    git(&["tag", "--force", "v1", &first]);
    settled("one that goes back too", &first, Some("HistoryRewritten")).await;
    an_event_says(&client, "HistoryRewritten", &format!("tag v1 was moved: it was at {}", &second[..7]))
        .await;
    git(&["tag", "--delete", "v1"]);
    settled("one that is gone takes nothing with it", &first, Some("BranchGone")).await;
    an_event_says(&client, "BranchGone", "tag v1 is not in the repository any more").await;
    // One with a message of its own is an object of git that names the commit.
    git(&["tag", "--annotate", "--message=Again", "v1", &second]);
    settled("it is back", &second, None).await;
    end(terrane).await;
}
