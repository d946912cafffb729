//! A private repository from end to end: the real binary, git over https with a login, the real tool.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod harness;

use std::fs;
use std::future::ready;
use std::path::Path;

use api::{TerraformLayer, TerraformRepository, condition};
use harness::{Terrane, git, is, layer_until, until};
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testkit::forge::HttpsForge;

const CANARY: &str = "canary-7d1e";

async fn create<K>(client: &Client, object: Value)
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
    K: Clone + serde::Serialize + DeserializeOwned + std::fmt::Debug,
    K::DynamicType: Default,
{
    let object: K = serde_json::from_value(object).unwrap();
    Api::<K>::namespaced(client.clone(), "default").create(&PostParams::default(), &object).await.unwrap();
}

fn bare_repository(root: &Path) {
    let work = root.join("work");
    fs::create_dir_all(work.join("app")).unwrap();
    fs::write(work.join("app/main.tf"), "output \"secret_free\" {\n  value = \"yes\"\n}\n").unwrap();
    git(&work, &["init", "--quiet"]);
    git(&work, &["add", "--all"]);
    git(&work, &["commit", "--quiet", "--message=Start"]);
    git(root, &["clone", "--quiet", "--bare", "work", "team.git"]);
}

#[tokio::test]
async fn a_private_repository_waits_for_its_secret_and_is_then_applied() {
    let served = tempfile::tempdir().unwrap();
    bare_repository(served.path());
    let forge = HttpsForge::start(served.path(), "git", CANARY).await.unwrap();
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    let api = |kind: &str| json!({ "apiVersion": "terrane.dev/v1alpha1", "kind": kind });
    let mut repository = api("TerraformRepository");
    repository["metadata"] = json!({ "name": "private" });
    repository["spec"] = json!({ "repository": { "url": forge.url("team.git") }, "pollInterval": "1s" });
    create::<TerraformRepository>(&client, repository).await;
    let mut layer = api("TerraformLayer");
    layer["metadata"] = json!({ "name": "app" });
    layer["spec"] = json!({
        "repository": { "name": "private" }, "branch": "main", "path": "app",
        "remediationStrategy": { "autoApply": true },
    });
    create::<TerraformLayer>(&client, layer).await;

    let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
    let message = until("the repository says that it cannot be read", || async {
        let status = repositories.get("private").await.ok()?.status?;
        let failed = condition::find(&status.conditions, "Ready").filter(|ready| ready.status == "False")?;
        Some(failed.message.clone())
    })
    .await;
    assert!(message.contains("certificate"), "{message}");

    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "terrane.dev/repository", "metadata": { "name": "forge" },
        "stringData": { "url": forge.url(""), "token": CANARY, "ca.crt": forge.authority() },
    });
    create::<Secret>(&client, secret).await;
    layer_until(&client, "app", "applied with the Secret of its URL", is("Ready")).await;

    // The token went to git in files that are gone: neither logs nor the cache of mirrors have it.
    terrane.signal(rustix::process::Signal::TERM);
    assert!(terrane.ended().await.success());
    until("nothing below the data directory of git holds the token", || {
        ready((!holds(&terrane.data().join("git"), CANARY.as_bytes())).then_some(()))
    })
    .await;
    assert!(!terrane.printed().contains(CANARY));
}

fn holds(directory: &Path, needle: &[u8]) -> bool {
    let Ok(entries) = fs::read_dir(directory) else { return false };
    entries.flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            holds(&path, needle)
        } else {
            fs::read(&path).is_ok_and(|bytes| bytes.windows(needle.len()).any(|window| window == needle))
        }
    })
}
