//! A private repository from end to end: the real binary, git over https with a login, the real tool; and no secret of it anywhere
//! that it does not belong.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod canary;
#[path = "../harness/mod.rs"]
mod harness;
mod logins;

use std::fs;
use std::future::ready;
use std::path::Path;
use std::process::Command;

use api::{TerraformLayer, TerraformNotification, TerraformRepository, condition};
use canary::{Code, Search, Seen};
use harness::{Terrane, git, is, layer_until, until};
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use logins::Logins;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testkit::canary::{Canary, search};
use testkit::forge::HttpsForge;
use testkit::mail::MailServer;
use testkit::receiver::Receiver;
use testkit::s3::S3Server;

async fn create<K>(client: &Client, object: Value)
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
    K: Clone + serde::Serialize + DeserializeOwned + std::fmt::Debug,
    K::DynamicType: Default,
{
    let object: K = serde_json::from_value(object).unwrap();
    Api::<K>::namespaced(client.clone(), "default").create(&PostParams::default(), &object).await.unwrap();
}

fn bare_repository(root: &Path) -> Code {
    let work = root.join("work");
    let code = Code::write(&work.join("app"));
    git(&work, &["init", "--quiet"]);
    git(&work, &["add", "--all"]);
    git(&work, &["commit", "--quiet", "--message=Start"]);
    git(root, &["clone", "--quiet", "--bare", "work", "team.git"]);
    code
}

#[tokio::test]
async fn a_private_repository_waits_for_its_secret_and_is_then_applied_and_no_secret_gets_out() {
    let served = tempfile::tempdir().unwrap();
    let code = bare_repository(served.path());
    let git_token = Canary::random("the token of a repository");
    let bucket = S3Server::start().await.unwrap();
    let credentials = bucket.environment(bucket.address());
    let secret = credentials.iter().find(|(name, _)| name == "AWS_SECRET_ACCESS_KEY").unwrap();
    let environment = Canary::known("the environment of `terrane up`", &secret.1);
    let forge = HttpsForge::start(served.path(), "git", &git_token.value).await.unwrap();
    let logins = Logins::start(served.path()).await;
    let mut terrane = Terrane::new();
    logins.furnish(&mut terrane);
    for (name, value) in &credentials {
        terrane.with_variable(name, value);
    }
    let store = bucket.url("terrane");
    let client = terrane.start(&["--store", &store]).await;
    let seen = Seen::default();
    let mut watch = tokio::task::JoinSet::new();
    watch.spawn(seen.clone().watch(terrane.pods()));
    let api = |kind: &str| json!({ "apiVersion": "terrane.dev/v1alpha1", "kind": kind });
    let mut repository = api("TerraformRepository");
    repository["metadata"] = json!({ "name": "private" });
    repository["spec"] = json!({ "repository": { "url": forge.url("team.git") }, "pollInterval": "1s" });
    create::<TerraformRepository>(&client, repository).await;
    let mut layer = api("TerraformLayer");
    layer["metadata"] = json!({ "name": "app" });
    let from = |key: &str| json!({ "secretKeyRef": { "name": "given", "key": key } });
    layer["spec"] = json!({
        "repository": { "name": "private" }, "branch": "main", "path": "app",
        "remediationStrategy": { "autoApply": true },
        "variables": [{ "name": "given", "valueFrom": from("variable") }],
        "environment": [{ "name": "CLOUD_TOKEN", "valueFrom": from("environment") }],
        "writeOutputsTo": [{ "secret": "app-outputs" }, { "configMap": "app-facts" }],
    });
    let inputs = [("variable", "a variable"), ("environment", "the layer's environment")];
    let inputs = inputs.map(|(key, source)| (key, Canary::random(source)));
    let data: Value = inputs.iter().map(|(key, canary)| ((*key).to_owned(), json!(canary.value))).collect();
    let secret =
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "given" }, "stringData": data });
    create::<Secret>(&client, secret).await;
    let hook = Canary::random("the secret of a webhook");
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "terrane-webhooks" },
        "stringData": { "private": hook.value },
    });
    create::<Secret>(&client, secret).await;
    let receiver = Receiver::start().await.unwrap();
    let (address, signing) = (Canary::random("a receiver's address"), Canary::random("a receiver's key"));
    let path = format!("/{}", address.value);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "told" },
        "stringData": { "url": receiver.url(&path), "key": signing.value },
    });
    create::<Secret>(&client, secret).await;
    let notification = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformNotification", "metadata": { "name": "told" },
        "spec": { "to": { "webhook": { "secretName": "told" } }, "template": { "text": "{message} {run} {revision}" } },
    });
    create::<TerraformNotification>(&client, notification).await;
    let mailing = Canary::random("the password of a mail server");
    let mail_server = MailServer::start("terrane", &mailing.value).await.unwrap();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "mailed" },
        "stringData": {
            "url": mail_server.starttls(), "ca.crt": mail_server.authority(), "username": "terrane", "password": mailing.value,
        },
    });
    create::<Secret>(&client, secret).await;
    let email = json!({ "secretName": "mailed", "from": "terrane@example.org", "to": ["ann@example.org", "nobody@example.org"] });
    let notification = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformNotification", "metadata": { "name": "mailed" },
        "spec": { "to": { "email": email }, "events": ["Applied"] },
    });
    create::<TerraformNotification>(&client, notification).await;
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
        "stringData": { "url": forge.url(""), "token": git_token.value, "ca.crt": forge.authority() },
    });
    create::<Secret>(&client, secret).await;
    logins.declare(&client, served.path()).await;
    layer_until(&client, "app", "applied with the Secret of its URL", is("Ready")).await;

    logins.are_used(&client).await;
    say_what_was_pushed(&terrane, &forge.url("team.git"), &hook).await;
    watch.shutdown().await;
    let (mut logins, home) = logins.into_secrets();
    logins.extend(inputs.map(|(_, canary)| canary));
    logins.extend([hook, address, signing, mailing]);
    let told = until("what was applied is told", || {
        let told: Vec<Vec<u8>> = receiver.deliveries(&path).into_iter().map(|one| one.body).collect();
        let applied = |body: &Vec<u8>| String::from_utf8_lossy(body).contains(r#""event":"Applied""#);
        ready(told.iter().any(applied).then_some(told))
    })
    .await;
    let mailed = until("what was applied is mailed", || {
        let mails = mail_server.mails();
        ready((!mails.is_empty()).then_some(mails))
    })
    .await;
    let told = told.into_iter().chain(mailed.iter().map(|mail| mail.to_string().into_bytes())).collect();
    let search_all =
        Search { terrane: &terrane, client: &client, code, git_token, logins, home, environment, told, seen };
    let left = search_all.finds_nothing().await;

    // What git was given went in files that are gone, and so did what runners worked with.
    terrane.signal(rustix::process::Signal::TERM);
    assert!(terrane.ended().await.success());
    until("nothing of git or of pods holds a secret of others", || {
        let mut found = search(&terrane.data().join("git"), &left);
        found.extend(search(&terrane.pods(), &left));
        ready(found.is_empty().then_some(()))
    })
    .await;
    for canary in &left {
        assert_eq!(canary.found_in(terrane.printed().as_bytes()), None, "{}", canary.source);
    }
    let stored = bucket.files("terrane");
    assert!(stored.join("states").is_dir() && !terrane.data().join("artefacts").exists());
    assert_eq!(search(&stored, &left), Vec::<String>::new());
    rotate(&terrane, &store, &credentials);
    terrane.start(&["--store", &store]).await;
    let log = until("the log is still there", || {
        let output = terrane.command(&["logs", "app"]);
        ready(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
    })
    .await;
    assert!(log.contains("looked-around"), "{log}");
    terrane.signal(rustix::process::Signal::TERM);
    assert!(terrane.ended().await.success());
}

/// A Git host that sends the secret itself, once the right one and once nearly.
async fn say_what_was_pushed(terrane: &Terrane, url: &str, secret: &Canary) {
    let place = format!("http://{}/webhooks/gitlab/default/private", terrane.service().await);
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let body =
        json!({ "ref": "refs/heads/main", "after": "1".repeat(40), "project": { "git_http_url": url } });
    for (token, expected) in [(secret.value.clone(), 202), (format!("{}x", secret.value), 401)] {
        let request = http.post(&place).header("x-gitlab-event", "Push Hook").header("x-gitlab-token", token);
        let answer = request.json(&body).send().await.unwrap();
        assert_eq!(answer.status(), expected);
        assert_eq!(secret.found_in(&answer.bytes().await.unwrap()), None);
    }
}

/// As `docs/operating.md` says it, on the bucket: a new key, everything sealed with it, the old one gone.
fn rotate(terrane: &Terrane, store: &str, credentials: &[(String, String)]) {
    let keys = terrane.data().join("keys");
    let run = |verb: &str| {
        let mut command = Command::new(harness::BINARY);
        command.args(["datastore", "keys", verb, "--store", store]).arg("--keys").arg(&keys);
        let output = command.envs(credentials.iter().map(|(name, value)| (name, value))).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success(), text + &String::from_utf8_lossy(&output.stderr))
    };
    let (listed, before) = run("list");
    assert!(listed && before.lines().count() == 2, "{before}");
    let (added, text) = run("add");
    assert!(added && text.contains("0002.key"), "{text}");
    let (sealed, text) = run("reseal");
    assert!(sealed && text.contains("objects sealed anew with key"), "{text}");
    let (listed, after) = run("list");
    let old = after.lines().find(|line| line.ends_with("0001.key")).unwrap();
    assert!(listed && old.split_whitespace().nth(1) == Some("0"), "{after}");
    fs::rename(keys.join("0001.key"), keys.join("old")).unwrap();
    fs::rename(keys.join("0002.key"), keys.join("0002.hidden")).unwrap();
    fs::rename(keys.join("old"), keys.join("0001.key")).unwrap();
    let (listed, missing) = run("list");
    assert!(!listed && missing.contains("which is not in"), "{missing}");
    fs::rename(keys.join("0002.hidden"), keys.join("0002.key")).unwrap();
    fs::remove_file(keys.join("0001.key")).unwrap();
}
