//! A Repo with the real tool: one object with a URL, a commit a Job, the newest commit after a long apply, and nothing that is started
//! by saying the same again.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use api::repo::RepoRunState;
use api::run::Action;
use api::text::CommitId;
use api::{Repo, TerraformLayer, TerraformRepository, TerraformRun, condition};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use testkit::process::Scratch;

use crate::harness::{Gate, Terrane, commit_files, git, runs, until};
use crate::{end, told};

const MANIFEST: &str = include_str!("../../../../examples/seeds/003/repo.yaml");
const CODE: &str = include_str!("../../../../examples/seeds/003/main.tf");
const NAME: &str = "seed-003";
/// Below the repository's root, so that a commit can be beside it.
const PATH: &str = "live/main.tf";

/// As `kubectl apply --server-side` does it.
async fn apply(client: &Client, manifest: &Value) -> Repo {
    let repos = Api::<Repo>::namespaced(client.clone(), "default");
    repos.patch(NAME, &PatchParams::apply("kubectl").force(), &Patch::Apply(manifest)).await.unwrap()
}

async fn repo_until(client: &Client, what: &str, holds: impl Fn(&Repo) -> bool) -> Repo {
    let repos = Api::<Repo>::namespaced(client.clone(), "default");
    until(what, || async { repos.get_opt(NAME).await.ok().flatten().filter(|repo| holds(repo)) }).await
}

fn is_applied(commit: &str) -> impl Fn(&Repo) -> bool {
    move |repo| {
        let Some(status) = &repo.status else { return false };
        let run = status.run.as_ref();
        let is_done =
            run.is_some_and(|run| run.state == RepoRunState::Succeeded && run.revision.as_str() == commit);
        is_done && condition::is_true(&status.conditions, "Ready")
    }
}

fn seen(repo: &Repo) -> Option<&str> {
    repo.status.as_ref()?.revision.seen.as_ref().map(CommitId::as_str)
}

fn commit(root: &Path, path: &str, content: &str) -> String {
    fs::write(root.join(path), content).unwrap();
    git(root, &["add", "--all"]);
    git(root, &["commit", "--quiet", "--message=Change"]);
    head(root)
}

fn head(root: &Path) -> String {
    git(root, &["rev-parse", "HEAD"])
}

/// What `kubectl get jobs` prints: name without its digest, status, completions. In the order of their names.
async fn listed(client: &Client) -> Vec<[String; 3]> {
    let request = http::Request::get("/apis/batch/v1/namespaces/default/jobs")
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .unwrap();
    let table: Value = client.request(request).await.unwrap();
    let rows = table["rows"].as_array().unwrap();
    rows.iter()
        .map(|row| {
            let cell = |at: usize| row["cells"][at].as_str().unwrap_or_default().to_owned();
            [cell(0).rsplit_once('-').unwrap().0.to_owned(), cell(1), cell(2)]
        })
        .collect()
}

fn row(commit: &str, status: &str, completions: &str) -> [String; 3] {
    [format!("{NAME}-{}", &commit[..7]), status.to_owned(), completions.to_owned()]
}

#[tokio::test]
async fn a_repo_applies_every_commit_shows_each_as_a_job_and_starts_nothing_for_the_same_again() {
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    let source = Scratch::new("terrane-source-").unwrap();
    let root = source.path();
    commit_files(root, &[(PATH, CODE)]);
    let mut manifest: Value = serde_saphyr::from_str(MANIFEST).unwrap();
    manifest["spec"]["url"] = json!(format!("file://{}", root.display()));
    manifest["spec"]["path"] = json!("live");
    manifest["spec"]["interval"] = json!("1s");

    let made = apply(&client, &manifest).await;
    let first = head(root);
    told(terrane.command(&["wait", "repo/seed-003", "--for=condition=Ready", "--timeout=180s"]));
    let repo = repo_until(&client, "the first commit is applied", is_applied(&first)).await;
    let status = repo.status.clone().unwrap();
    assert_eq!(status.observed_generation, repo.metadata.generation);
    assert_eq!(status.branch.unwrap().as_str(), "main", "the branch that the repository has checked out");
    assert_eq!(status.revision.applied.unwrap().as_str(), first);
    assert!(condition::is_true(&status.conditions, "JobsShown"));
    assert_eq!(listed(&client).await, [row(&first, "Complete", "1/1")]);
    let jobs = Api::<Job>::namespaced(client.clone(), "default");
    let job = jobs.get(status.run.as_ref().unwrap().job.as_deref().unwrap()).await.unwrap();
    assert_eq!(job.spec.unwrap().managed_by.as_deref(), Some("terrane.dev/repo"));
    for owner in [
        Api::<TerraformRepository>::namespaced(client.clone(), "default").get(NAME).await.unwrap().metadata,
        Api::<TerraformLayer>::namespaced(client.clone(), "default").get(NAME).await.unwrap().metadata,
    ] {
        assert_eq!(owner.owner_references.unwrap()[0].uid, made.uid().unwrap());
    }

    // The same once more is no change of the object. What it would have started would be counted below.
    assert_eq!(apply(&client, &manifest).await.metadata.generation, repo.metadata.generation);

    // A commit that touches nothing of the path has a run of its own, which finds nothing to change.
    let second = commit(root, "README.md", "words\n");
    repo_until(&client, "the second commit is applied", is_applied(&second)).await;
    assert_eq!((runs(&client, Action::Plan).await.len(), runs(&client, Action::Apply).await.len()), (2, 1));
    assert_eq!(
        listed(&client).await.into_iter().collect::<BTreeSet<_>>(),
        BTreeSet::from([row(&first, "Complete", "1/1"), row(&second, "Complete", "1/1")])
    );

    // What comes during an apply waits for its end, and only the newest of it is taken.
    let gate = Gate::new();
    let slow = commit(root, PATH, &format!("{CODE}\n{}", gate.code()));
    gate.visitors().await;
    let working = repo_until(&client, "the slow commit runs", |repo| {
        let run = repo.status.as_ref().and_then(|status| status.run.clone());
        run.is_some_and(|run| run.state == RepoRunState::Running && run.revision.as_str() == slow)
    })
    .await;
    let job = working.status.unwrap().run.unwrap().job.unwrap();
    until("its Job says that one works", || async {
        (jobs.get(&job).await.ok()?.status?.active == Some(1)).then_some(())
    })
    .await;
    assert!(listed(&client).await.contains(&row(&slow, "Running", "0/1")));
    let overtaken = commit(root, "README.md", "other words\n");
    repo_until(&client, "it is seen", |repo| seen(repo) == Some(&overtaken)).await;
    let last = commit(root, "README.md", "the last words\n");
    let waiting = repo_until(&client, "the last one is seen", |repo| seen(repo) == Some(&last)).await;
    assert_eq!(waiting.status.unwrap().revision.running.unwrap().as_str(), slow);
    assert_eq!(gate.arrived(), 1);
    gate.open();
    let repo = repo_until(&client, "the last commit is applied", is_applied(&last)).await;
    let skipped = repo.status.unwrap().skipped.unwrap();
    assert_eq!((skipped.total, skipped.latest[0].as_str()), (1, overtaken.as_str()));
    let rows = listed(&client).await;
    assert!(rows.contains(&row(&slow, "Complete", "1/1")) && rows.contains(&row(&last, "Complete", "1/1")));
    assert!(!rows.iter().any(|row| row[0].ends_with(&overtaken[..7])), "{rows:?}");

    let table = told(terrane.command(&["get", "repos"]));
    assert!(table.contains(&last[..7]) && table.contains("Succeeded"), "{table}");
    let described = told(terrane.command(&["describe", "repo/seed-003"]));
    assert!(described.contains("JobsShown") && described.contains(&overtaken), "{described}");
    // Runners are the pods of runs. Jobs have none.
    let pods = Api::<Pod>::namespaced(client.clone(), "default").list(&ListParams::default()).await.unwrap();
    for pod in pods {
        assert_eq!(pod.owner_references()[0].kind, "TerraformRun", "{}", pod.name_any());
    }
    assert_gone(&client).await;
    end(terrane).await;
}

/// With the Repo goes what it made, and the infrastructure stays: nothing is run for it.
async fn assert_gone(client: &Client) {
    let runs = Api::<TerraformRun>::namespaced(client.clone(), "default");
    let before = runs.list(&ListParams::default()).await.unwrap().items.len();
    let repos = Api::<Repo>::namespaced(client.clone(), "default");
    repos.delete(NAME, &DeleteParams::default()).await.unwrap();
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
    until("repository and layer are gone", || async {
        let left = (repositories.get_opt(NAME).await.ok()?, layers.get_opt(NAME).await.ok()?);
        assert!(runs.list(&ListParams::default()).await.ok()?.items.len() <= before, "a run was started");
        (left == (None, None)).then_some(())
    })
    .await;
    until("its Jobs are gone", || async { listed(client).await.is_empty().then_some(()) }).await;
}
