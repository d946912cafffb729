//! Notifications with the real tool: what happens to layers reaches a webhook, Slack and Teams, signed and once, also over a restart;
//! receivers that are dead keep no other waiting; and no secret of theirs gets out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use api::notification::Event;
use api::{TerraformLayer, TerraformNotification, condition};
use http::StatusCode;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::process::Scratch;
use testkit::receiver::{Delivery, Receiver};

use crate::harness::{BINARY, Terrane, declare_repository, free_address, is, layer_until, until};
use crate::{end, told};

const HOOK: &str = "/hooks/d41c0bd7secret";
const CHAT: &str = "/services/T000/B000/9f2secret";
const CARDS: &str = "/workflows/77secret";
const KEY: &str = "a-key-that-nobody-else-has-secret";

pub(crate) const GOOD: &str = "resource \"terraform_data\" \"x\" {}\n";

pub(crate) async fn secret(client: &Client, name: &str, data: &[(&str, &str)]) {
    let data: BTreeMap<&str, &str> = data.iter().copied().collect();
    let secret = json!({ "metadata": { "name": name }, "stringData": data });
    let secrets = Api::<Secret>::namespaced(client.clone(), "default");
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
}

pub(crate) async fn notification(client: &Client, name: &str, spec: Value) {
    let notification = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformNotification", "metadata": { "name": name }, "spec": spec,
    });
    let notifications = Api::<TerraformNotification>::namespaced(client.clone(), "default");
    let notification = serde_json::from_value(notification).unwrap();
    notifications.create(&PostParams::default(), &notification).await.unwrap();
}

pub(crate) async fn layer(client: &Client, name: &str, applies: bool) {
    let layer = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer",
        "metadata": { "name": name, "labels": { "applies": applies.to_string() } },
        "spec": {
            "repository": { "name": "code" }, "branch": "main", "path": name,
            "remediationStrategy": { "autoApply": applies, "onError": { "maxRetries": 0 } },
        },
    });
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    layers.create(&PostParams::default(), &serde_json::from_value(layer).unwrap()).await.unwrap();
}

/// The reason and the words of its condition `Ready`, once it has that reason.
pub(crate) async fn says(client: &Client, name: &str, reason: &str) -> String {
    let notifications = Api::<TerraformNotification>::namespaced(client.clone(), "default");
    until(&format!("{name} says {reason}"), || async {
        let status = notifications.get_opt(name).await.ok().flatten()?.status?;
        let ready = condition::find(&status.conditions, "Ready")?;
        (ready.reason == reason).then(|| ready.message.clone())
    })
    .await
}

fn body(delivery: &Delivery) -> Value {
    serde_json::from_slice(&delivery.body).unwrap()
}

/// What the webhook was told: the event and the layer.
fn heard(receiver: &Receiver) -> BTreeSet<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let bodies = receiver.deliveries(HOOK).iter().map(body).collect::<Vec<_>>();
    bodies.iter().map(|body| (text(&body["event"]), text(&body["layer"]))).collect()
}

async fn until_heard(receiver: &Receiver, event: Event, layer: &str) {
    until(&format!("{event:?} of {layer} was told"), || {
        let heard = heard(receiver).contains(&(event.as_str().to_owned(), layer.to_owned()));
        std::future::ready(heard.then_some(()))
    })
    .await;
}

#[tokio::test]
async fn what_happens_is_told_signed_once_and_over_a_restart_whoever_else_is_dead() {
    let receiver = Receiver::start().await.unwrap();
    // Takes connections, and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("http://{}{HOOK}", silent.local_addr().unwrap());
    let closed_url = format!("http://{}{HOOK}", free_address());
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    secret(&client, "hook", &[("url", &receiver.url(HOOK)), ("key", KEY)]).await;
    secret(&client, "chat", &[("url", &receiver.url(CHAT))]).await;
    secret(&client, "cards", &[("url", &receiver.url(CARDS))]).await;
    secret(&client, "silent", &[("url", &silent_url)]).await;
    secret(&client, "closed", &[("url", &closed_url)]).await;
    secret(&client, "metadata", &[("url", "https://169.254.169.254/latest/secret")]).await;
    receiver.answer_once(CHAT, StatusCode::INTERNAL_SERVER_ERROR);

    let webhook = |secret: &str| json!({ "to": { "webhook": { "secretName": secret } } });
    for name in ["silent", "closed", "metadata", "hook"] {
        notification(&client, name, webhook(name)).await;
    }
    let template = json!({ "title": "{layer}: {event}", "text": "{message} by {run}" });
    let chat =
        json!({ "to": { "slack": { "secretName": "chat" } }, "events": ["Applied"], "template": template });
    notification(&client, "chat", chat).await;
    let labels = json!({ "matchLabels": { "applies": "false" } });
    notification(&client, "cards", json!({ "to": { "teams": { "secretName": "cards" } }, "layers": labels }))
        .await;
    notification(&client, "nobody", webhook("missing")).await;
    let wrong = json!({ "to": { "slack": { "secretName": "chat" } }, "template": { "text": "{password}" } });
    notification(&client, "wrong", wrong).await;
    for name in ["hook", "chat", "cards", "silent", "closed"] {
        says(&client, name, "Telling").await;
    }
    assert_eq!(
        says(&client, "nobody", "CannotBeTold").await,
        "Secret missing does not exist in namespace default; make it, with the address as `url`"
    );
    let refused = says(&client, "wrong", "CannotBeTold").await;
    assert!(refused.starts_with("spec.template.text asks for {password}; there are event, "), "{refused}");

    let files = [("app/main.tf", GOOD), ("db/main.tf", GOOD), ("broken/main.tf", "resource \"x\" {\n")];
    let _source = declare_repository(&client, "code", &files).await;
    layer(&client, "app", true).await;
    layer(&client, "db", false).await;
    layer(&client, "broken", true).await;
    until_heard(&receiver, Event::Applied, "app").await;
    until_heard(&receiver, Event::ApprovalNeeded, "db").await;
    until_heard(&receiver, Event::PlanFailed, "broken").await;
    until_heard(&receiver, Event::Stalled, "broken").await;
    for delivery in receiver.deliveries(HOOK) {
        assert!(delivery.is_signed_with(KEY) && !delivery.is_signed_with("another"), "{delivery:?}");
        let body = body(&delivery);
        assert_eq!(delivery.header("terrane-delivery"), body["id"]);
        assert_eq!(delivery.header("terrane-event"), body["event"]);
        assert_eq!(body["namespace"], "default");
    }
    silent.set_nonblocking(true).unwrap();
    assert!(silent.accept().is_ok(), "the silent one was tried, and nobody waited for it");

    // Slack said 500 first, and takes the very same then.
    until("Slack is told again", || std::future::ready((receiver.deliveries(CHAT).len() == 2).then_some(())))
        .await;
    let posts = receiver.deliveries(CHAT);
    assert_eq!(body(&posts[0]), body(&posts[1]));
    assert_eq!(body(&posts[1])["text"], "app: Applied");
    assert_eq!(posts[1].header("terrane-signature"), "");
    says(&client, "chat", "Telling").await;
    until("Teams is told", || std::future::ready((!receiver.deliveries(CARDS).is_empty()).then_some(())))
        .await;
    let cards = receiver.deliveries(CARDS);
    assert_eq!(cards.len(), 1, "of one layer, which waits: {cards:?}");
    let title = &body(&cards[0])["attachments"][0]["content"]["body"][0]["inlines"][0]["text"];
    assert_eq!(title, "default/db: a plan waits for approval");
    let why = says(&client, "closed", "NotTaken").await;
    assert!(why.contains("Connection refused") && why.ends_with("it is tried again"), "{why}");
    let why = says(&client, "metadata", "NotTaken").await;
    assert!(
        why.contains("its host has the address 169.254.169.254, which is not a place for a receiver"),
        "{why}"
    );

    // What was told is on record before it is asked for again.
    let notifications = Api::<TerraformNotification>::namespaced(client.clone(), "default");
    let count = receiver.deliveries(HOOK).len();
    until("what the webhook took is on record", || async {
        let status = notifications.get("hook").await.ok()?.status?;
        (status.settled.len() == count).then_some(())
    })
    .await;
    let table = told(terrane.command(&["get", "notifications"]));
    assert!(table.contains("chat") && table.contains("Applied"), "{table}");
    let described = told(terrane.command(&["describe", "notification/closed"]));
    assert!(described.contains("NotTaken"), "{described}");
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let metrics = http.get(format!("http://{}/metrics", terrane.service().await)).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    for line in [
        "terrane_notifications_total{receiver=\"slack\",result=\"taken\"} 1",
        "terrane_notifications_total{receiver=\"slack\",result=\"failed\"} 1",
        "terrane_notifications_total{receiver=\"teams\",result=\"taken\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is missing in\n{metrics}");
    }
    keeps_secrets(&terrane, &client).await;
    terrane.signal(Signal::TERM);
    assert_eq!(terrane.ended().await.code(), Some(0));

    let client = terrane.start(&[]).await;
    until("a plan can be approved", || {
        std::future::ready(terrane.command(&["approve", "db"]).status.success().then_some(()))
    })
    .await;
    until_heard(&receiver, Event::Applied, "db").await;
    layer_until(&client, "db", "is applied", is("Ready")).await;
    let ids: Vec<String> =
        receiver.deliveries(HOOK).iter().map(|one| one.header("terrane-delivery").to_owned()).collect();
    let different: BTreeSet<&String> = ids.iter().collect();
    assert_eq!(ids.len(), different.len(), "told twice: {ids:?}");
    assert_eq!(heard(&receiver).len(), ids.len());
    keeps_secrets(&terrane, &client).await;
    the_page_does_what_it_says(&terrane).await;
    end(terrane).await;
}

/// The example of docs/notifications.md, by a shell and kubectl.
async fn the_page_does_what_it_says(terrane: &Terrane) {
    let page = include_str!("../../../../docs/notifications.md");
    let script = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let place = Scratch::new("terrane-told-").unwrap();
    let kubectl = testkit::tools::tool("kubectl").unwrap().parent().unwrap().to_owned();
    let programs = format!("{}:{}", Path::new(BINARY).parent().unwrap().display(), kubectl.display());
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", &format!("PATH=\"$PROGRAMS:$PATH\"\n{script}")]);
    shell.env("PROGRAMS", programs).env("TMPDIR", place.path());
    shell.env("KUBECONFIG", terrane.data().join("kubeconfig"));
    for name in ["AUTHOR", "COMMITTER"] {
        shell.env(format!("GIT_{name}_NAME"), "test").env(format!("GIT_{name}_EMAIL"), "test@localhost");
    }
    let said = told(tokio::task::spawn_blocking(move || shell.output().unwrap()).await.unwrap());
    assert!(said.contains("sha256=") && said.contains(r#""event":"Applied""#), "{said}");
}

/// Neither addresses nor the key are said anywhere.
async fn keeps_secrets(terrane: &Terrane, client: &Client) {
    keeps(terrane, client, &[HOOK, CHAT, CARDS, KEY, "/latest/secret"]).await;
}

/// None of these is in what notifications say, in Events or in the log.
pub(crate) async fn keeps(terrane: &Terrane, client: &Client, secrets: &[&str]) {
    let notifications = Api::<TerraformNotification>::namespaced(client.clone(), "default");
    let events = Api::<k8s_openapi::api::events::v1::Event>::namespaced(client.clone(), "default");
    let said = [
        serde_json::to_string(&notifications.list(&ListParams::default()).await.unwrap().items).unwrap(),
        serde_json::to_string(&events.list(&ListParams::default()).await.unwrap().items).unwrap(),
        terrane.printed(),
    ];
    for text in said {
        for one in secrets {
            assert!(!text.contains(*one), "{one} is said in {text}");
        }
    }
}
