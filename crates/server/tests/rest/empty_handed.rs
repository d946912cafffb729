//! The datastore is away: every operation that needs it says so within its limit, and all others are answered as ever.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::http::Method;
use datastore::client::TokenSource;
use futures::StreamExt;
use serde_json::json;
use server::credential::Scope;
use tokio::net::TcpListener;

use crate::access::operations;
use crate::ground::{Call, Ground};
use crate::outage::{good, is_away};

/// How long the service waits for the datastore here.
const SILENCE: Duration = Duration::from_millis(300);
/// Whatever takes longer hangs.
const HANGS: Duration = Duration::from_secs(60);

/// What cannot be answered without the datastore.
const NEEDS_IT: [&str; 14] = [
    "DELETE /api/v1/namespaces/{namespace}/layers/{name}/state/lock",
    "GET /api/v1/namespaces/{namespace}/layers/{name}/history",
    "GET /api/v1/namespaces/{namespace}/layers/{name}/outputs",
    "GET /api/v1/namespaces/{namespace}/layers/{name}/state",
    "GET /api/v1/namespaces/{namespace}/layers/{name}/state/lock",
    "GET /api/v1/namespaces/{namespace}/layers/{name}/state/versions",
    "GET /api/v1/namespaces/{namespace}/layers/{name}/state/versions/{version}",
    "GET /api/v1/namespaces/{namespace}/runs/{name}/log",
    "GET /api/v1/namespaces/{namespace}/runs/{name}/plan",
    "GET /api/v1/namespaces/{namespace}/runs/{name}/plan.json",
    "GET /tfstacks/{id}/logs",
    "GET /tfstacks/{id}/outputs",
    "PUT /api/v1/namespaces/{namespace}/layers/{name}/state",
    // Asked for a layer whose state another backend keeps.
    "GET /api/v1/namespaces/{namespace}/layers/{name}/outputs of what a run kept",
];
/// These have begun when it shows, as a browser does not come back after a refusal: they end with a word about it.
const FOLLOW: [&str; 2] =
    ["GET /api/v1/namespaces/{namespace}/runs/{name}/log/events", "GET /tfstacks/{id}/logs/events"];

async fn sweep(datastore: datastore::Client) {
    let mut ground = Ground::new().await;
    let stack = json!({ "terrane.dev/stack-template": "template" });
    let run = json!({ "name": "thing", "action": "plan", "commit": "a".repeat(40), "date": "2026-01-01T00:00:00Z", "result": "planned" });
    ground.layer("a", "thing", stack, json!({ "lastRun": run, "latestRuns": [run] })).await;
    let attempt = json!({ "number": 0, "podName": "p", "description": "a".repeat(64), "fence": 1, "startedAt": "2026-01-01T00:00:00Z" });
    ground.run("a", "thing", "thing", json!({ "state": "Succeeded", "attempts": [attempt] })).await;
    ground.repository("a", "thing").await;
    crate::elsewhere::layer_with_kept_outputs(&ground, "away").await;
    let token = ground.token("machine", &Scope::ALL, &["a"]).await;
    ground.restart_beside(datastore.with_patience(Duration::ZERO).with_silence(SILENCE));
    let seen = || Call::get("/api/v1/layers").bearer(&token);
    ground.until("everything is seen", seen, |answer| answer.names() == ["away", "thing"]).await;

    let mut calls = vec![(
        format!("{} of what a run kept", NEEDS_IT[2]),
        Call::get("/api/v1/namespaces/a/layers/away/outputs").bearer(&token),
    )];
    for (method, path, is_open) in operations() {
        let changes_a_state = path.contains("/state") && [Method::PUT, Method::DELETE].contains(&method);
        if !is_open && (method == Method::GET || changes_a_state) {
            calls.push((format!("{method} {path}"), good(&method, &path).bearer(&token)));
        }
    }
    // All at once: whoever waits for the datastore keeps nobody up.
    let mut answers: futures::stream::FuturesUnordered<_> = calls
        .into_iter()
        .map(async |(what, call)| (what, tokio::time::timeout(HANGS, ground.call(call)).await))
        .collect();
    let (mut away, mut begun, mut wrong) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    while let Some((what, answer)) = answers.next().await {
        let Ok(answer) = answer else {
            wrong.push(format!("{what} hangs"));
            continue;
        };
        let says_it = answer.text.contains("the datastore could not be reached");
        if answer.status.is_server_error() {
            if let Err(why) = is_away(&answer) {
                wrong.push(format!("{what}: {why}: {answer:?}"));
            }
            if !says_it {
                wrong.push(format!("{what} does not say what is away: {answer:?}"));
            }
            away.insert(what);
        } else if says_it && answer.text.starts_with("event: problem\n") {
            begun.insert(what);
        }
    }
    drop(answers);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(away, BTreeSet::from(NEEDS_IT.map(str::to_owned)));
    assert_eq!(begun, BTreeSet::from(FOLLOW.map(str::to_owned)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_datastore_that_refuses_connections_is_told() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let token = TokenSource::Fixed("token".to_owned().into());
    sweep(datastore::Client::new(&format!("http://{address}"), token).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_datastore_that_says_nothing_is_waited_for_so_long_and_keeps_nobody_up() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        let mut held = Vec::new();
        while let Ok((connection, _)) = silent.accept().await {
            held.push(connection);
        }
    });
    let token = TokenSource::Fixed("token".to_owned().into());
    sweep(datastore::Client::new(&format!("http://{address}"), token).unwrap()).await;
}
