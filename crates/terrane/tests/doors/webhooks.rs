//! A webhook at the door of a real `terrane up`: what was pushed is planned although the next poll is an hour away.

use std::fs;
use std::path::Path;
use std::process::Command;

use api::TerraformLayer;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use rustix::process::Signal;
use serde_json::json;
use testkit::deliveries::Delivery;
use testkit::process::Scratch;

use crate::harness::{BINARY, Terrane, commit_files, declare_path, git, is, layer_until};
use crate::people::finished;

const SECRET: &str = "a secret that the host and Terrane know";

fn planned(layer: &TerraformLayer, commit: &str) -> bool {
    let revision = layer.status.as_ref().map(|status| &status.revision);
    revision.and_then(|revision| revision.planned.as_ref()).is_some_and(|planned| planned.as_str() == commit)
}

/// What the host of a repository of files would send.
fn push(root: &Path, commit: &str) -> Delivery {
    let body = json!({
        "ref": "refs/heads/main", "before": "0".repeat(40), "after": commit,
        "repository": { "clone_url": format!("file://{}", root.display()) },
    });
    Delivery { body: body.to_string().into_bytes(), ..Delivery::named("gitea-push").unwrap() }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_pushed_is_planned_when_the_host_says_so() {
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    let service = format!("http://{}", terrane.service().await);
    let source = Scratch::new("terrane-source-").unwrap();
    let root = source.path();
    commit_files(root, &[("net/main.tf", "output \"version\" { value = 1 }\n")]);
    let repositories = Api::<api::TerraformRepository>::namespaced(client.clone(), "default");
    let repository = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRepository", "metadata": { "name": "code" },
        "spec": { "repository": { "url": format!("file://{}", root.display()) }, "pollInterval": "1h" },
    });
    repositories.create(&PostParams::default(), &serde_json::from_value(repository).unwrap()).await.unwrap();
    declare_path(&client, "code", "net", "net").await;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "terrane-webhooks" }, "stringData": { "code": SECRET },
    });
    let secrets = Api::<Secret>::namespaced(client.clone(), "default");
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    layer_until(&client, "net", "the first commit is applied", is("Ready")).await;

    fs::write(root.join("net/main.tf"), "output \"version\" { value = 2 }\n").unwrap();
    git(root, &["commit", "--quiet", "--all", "--message=Second"]);
    let second = git(root, &["rev-parse", "HEAD"]);
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let post = |delivery: &Delivery| {
        let request = http.post(format!("{service}/webhooks/gitea/default/code"));
        request.headers(delivery.headers.clone()).body(delivery.body.clone()).send()
    };
    // A stranger's word has no effect.
    let forged = push(root, &second).proved("a secret that nobody has agreed on").unwrap();
    assert_eq!(post(&forged).await.unwrap().status(), 401);
    let found = repositories.get("code").await.unwrap().status.unwrap();
    assert!(found.webhook.is_none() && found.branches[0].latest_rev.as_ref().unwrap().as_str() != second);

    let signed = push(root, &second).proved(SECRET).unwrap();
    assert_eq!(post(&signed).await.unwrap().status(), 202);
    layer_until(&client, "net", "the second commit is planned", |layer| planned(layer, &second)).await;
    // Once it is known, the same delivery says nothing new.
    let again: serde_json::Value = post(&signed).await.unwrap().json().await.unwrap();
    assert_eq!(again["outcome"], "known", "{again}");

    let told = terrane.command(&["describe", "repository/code"]);
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains("webhook:") && told.contains("host: gitea"), "{told}");
    let figures = http.get(format!("{service}/metrics")).header("accept", "application/openmetrics-text");
    let figures = figures.send().await.unwrap().text().await.unwrap();
    for (outcome, count) in [("recorded", 1), ("refused", 1), ("known", 1)] {
        let line =
            format!("terrane_webhook_deliveries_total{{host=\"gitea\",outcome=\"{outcome}\"}} {count}\n");
        assert!(figures.contains(&line), "{line}{figures}");
    }
    assert!(figures.ends_with("# EOF\n") && figures.matches("# EOF").count() == 1, "{figures}");

    terrane.signal(Signal::TERM);
    assert_eq!(terrane.ended().await.code(), Some(0));
}

/// The example of the documentation's page, by a shell and curl.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_about_webhooks_does_what_it_says() {
    let mut terrane = Terrane::new();
    terrane.start(&[]).await;
    terrane.service().await;
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/webhooks.md")).unwrap();
    let script: String =
        page.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    assert!(script.contains("/webhooks/"), "{script}");
    let place = Scratch::new("terrane-hooked-").unwrap();
    let program = Path::new(BINARY).parent().unwrap().to_owned();
    let kubectl = testkit::tools::tool("kubectl").unwrap().parent().unwrap().to_owned();
    let programs = format!("{}:{}", program.display(), kubectl.display());
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", &format!("PATH=\"$PROGRAMS:$PATH\"\n{script}")]);
    shell.current_dir(place.path()).env("PROGRAMS", programs);
    shell.env("KUBECONFIG", terrane.data().join("kubeconfig"));
    for name in ["AUTHOR", "COMMITTER"] {
        shell.env(format!("GIT_{name}_NAME"), "test").env(format!("GIT_{name}_EMAIL"), "test@localhost");
    }
    let done = tokio::task::spawn_blocking(move || finished(shell.output().unwrap())).await.unwrap();
    done.with_code(0).says("\"outcome\":\"recorded\"").says("host: gitlab");
    terrane.signal(Signal::TERM);
    assert_eq!(terrane.ended().await.code(), Some(0));
}
