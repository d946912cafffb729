//! Pages of layers, runs and the queue, by what they are asked for.

use api::TerraformRun;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use server::credential::Scope;

use crate::ground::{Call, Ground};

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": format!("{reason} it is"),
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

#[tokio::test]
async fn layers_are_filtered_ordered_and_paged() {
    let ground = Ground::new().await;
    let token = ground.token("reader", &[Scope::Read], &[]).await;
    let drifted = json!({ "state": "ApplyNeeded", "why": "somebody changed it", "conditions": [condition("Drifted", "True", "Moved")] });
    let ready = json!({ "state": "Idle", "conditions": [condition("Ready", "True", "InSync")] });
    ground.layer("a", "network", json!({ "team": "net" }), ready.clone()).await;
    ground.layer("a", "database", json!({ "team": "data" }), drifted).await;
    ground.layer("b", "app", json!({ "team": "web" }), ready).await;
    ground.layer("b", "cache", json!({}), json!({})).await;
    let get = |query: &str| Call::get(&format!("/api/v1/layers{query}")).bearer(&token);
    let whole = |answer: &crate::ground::Answer| {
        let items = answer.json()["items"].as_array().unwrap().clone();
        items.len() == 4 && items.iter().filter(|item| item["state"] != "").count() == 3
    };
    let all = ground.until("all layers are seen", || get(""), whole).await;
    assert_eq!(all.names(), ["app", "cache", "database", "network"]);
    assert!(!all.text.contains("hunter2"), "no value of a variable is shown");
    for (query, expected) in [
        ("?namespace=a", &["database", "network"][..]),
        ("?namespace=c", &[]),
        ("?state=Idle", &["app", "network"]),
        ("?drifted=true", &["database"]),
        ("?drifted=false&namespace=a", &["network"]),
        ("?ready=true", &["app", "network"]),
        ("?failed=true", &[]),
        ("?suspended=false", &["app", "cache", "database", "network"]),
        ("?label=team", &["app", "database", "network"]),
        ("?label=team%3Dnet", &["network"]),
        ("?label=team%21%3Dnet,team", &["app", "database"]),
        ("?text=SOMEBODY", &["database"]),
        ("?text=live/ca", &["cache"]),
        ("?repository=code&sort=-name", &["network", "database", "cache", "app"]),
        ("?sort=-state", &["app", "network", "database", "cache"]),
        ("?sort=namespace", &["database", "network", "app", "cache"]),
    ] {
        let answer = ground.call(get(query)).await.with(200);
        let mut names = answer.names();
        if query == "?sort=-state" {
            names[..2].sort();
        }
        assert_eq!(names, expected, "{query}");
    }
    // Page by page.
    let (mut query, mut seen) = ("?limit=3".to_owned(), Vec::new());
    loop {
        let page = ground.call(get(&query)).await.with(200);
        seen.extend(page.names());
        assert_eq!(page.json()["total"], 4);
        match page.json()["next"].as_str() {
            Some(next) => query = format!("?limit=3&continue={next}"),
            None => break,
        }
    }
    assert_eq!(seen, ["app", "cache", "database", "network"]);
    // What was seen is not sent again.
    let first = ground.call(get("?namespace=a")).await.with(200);
    let tag = first.header("etag").to_owned();
    let again = ground.call(get("?namespace=a").header("if-none-match", &tag)).await;
    assert_eq!((again.status.as_u16(), again.text.as_str()), (304, ""));
    let other = ground.call(get("?namespace=b").header("if-none-match", &tag)).await;
    assert_eq!(other.status, 200);
}

#[tokio::test]
async fn runs_are_listed_and_those_that_wait_stand_in_a_queue() {
    let ground = Ground::new().await;
    let token = ground.token("reader", &[Scope::Read], &["a"]).await;
    ground.layer("a", "network", json!({}), json!({})).await;
    ground.layer("b", "other", json!({}), json!({})).await;
    let queued = json!({ "state": "Initial", "conditions": [condition("Ready", "Unknown", "Queued")] });
    let ended = json!({ "state": "Failed", "result": { "reason": "Broken", "message": "it broke" } });
    ground.run("b", "other-plan-1", "other", queued.clone()).await;
    ground.run("a", "network-plan-1", "network", ended).await;
    ground.run("a", "network-plan-2", "network", queued).await;
    let get = |path: &str| Call::get(path).bearer(&token);
    let both = |answer: &crate::ground::Answer| answer.json()["waiting"] == 2;
    let queue = ground.until("the queue is seen", || get("/api/v1/queue"), both).await.json();
    assert_eq!(queue["items"].as_array().unwrap().len(), 1, "only those that the caller may see: {queue}");
    assert_eq!(queue["items"][0]["run"], "network-plan-2");
    assert!(matches!(queue["items"][0]["place"].as_u64(), Some(1 | 2)), "{queue}");
    for (query, expected) in [
        ("", &["network-plan-1", "network-plan-2"][..]),
        ("?open=true", &["network-plan-2"]),
        ("?state=Failed", &["network-plan-1"]),
        ("?layer=network&action=apply", &[]),
        ("?text=BROKE", &["network-plan-1"]),
        ("?sort=-name&limit=1", &["network-plan-2"]),
    ] {
        let call = || get(&format!("/api/v1/runs{query}"));
        ground.until(query, call, |answer| answer.names() == expected).await;
    }
    let one = ground.call(get("/api/v1/namespaces/a/runs/network-plan-1")).await.with(200).json();
    assert_eq!((&one["result"], &one["message"]), (&json!("Broken"), &json!("it broke")));
    // What needs the datastore says that it is away.
    ground.call(get("/api/v1/namespaces/a/layers/network/history")).await.with(503);
    ground.call(get("/api/v1/namespaces/a/runs/network-plan-1/log")).await.with(404);
}

/// A browser does not come back after a 404, so whoever follows a run from its creation waits for its first attempt.
#[tokio::test]
async fn a_follower_waits_until_the_run_starts_or_will_never_start() {
    let ground = Ground::new().await;
    let token = ground.token("reader", &[Scope::Read], &[]).await;
    let status = |state: &str, attempts: Value| json!({ "state": state, "attempts": attempts, "conditions": [condition("Ready", "Unknown", state)] });
    let log =
        |run: &str, how: &str| Call::get(&format!("/api/v1/namespaces/a/runs/{run}/log{how}")).bearer(&token);
    for run in ["early", "never", "gone"] {
        ground.run("a", run, "network", status("Initial", json!([]))).await;
        ground.call(log(run, "")).await.with(404);
        ground.call(log(run, "?follow=true&attempt=0")).await.with(404);
    }
    ground.call(log("unknown", "/events?follow=true")).await.with(404);
    let mut following = Vec::new();
    for run in ["early", "never", "gone"] {
        following.push(ground.begin(log(run, "/events?follow=true")).await);
    }
    let runs = Api::<TerraformRun>::namespaced(ground.client.clone(), "a");
    let begun = json!([{ "number": 0, "podName": "p", "description": "a".repeat(64), "fence": 1, "startedAt": "2026-01-01T00:00:00Z" }]);
    for (run, status) in [("early", status("Running", begun)), ("never", status("Failed", json!([])))] {
        let patch = Patch::Merge(json!({ "status": status }));
        runs.patch_status(run, &PatchParams::default(), &patch).await.unwrap();
    }
    runs.delete("gone", &DeleteParams::default()).await.unwrap();
    // Of the first the datastore is asked, which is away here.
    for (answer, last) in following.into_iter().zip(["problem", "end", "end"]) {
        let answer = answer.whole().await.with(200);
        assert!(answer.text.starts_with(&format!("event: {last}\n")), "{answer:#?}");
    }
}

/// A page of ten thousand is a look at memory. How long it takes is printed; the bound is for a busy machine and a build for debugging.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_layers_are_listed_from_memory() {
    let ground = Ground::new().await;
    let token = ground.token("reader", &[Scope::Read], &[]).await;
    let numbers: Vec<u32> = (0..10_000).collect();
    for some in numbers.chunks(500) {
        futures::future::join_all(some.iter().map(async |number| {
            let (namespace, label) =
                (if number % 2 == 0 { "a" } else { "b" }, json!({ "team": format!("t{}", number % 10) }));
            ground.layer(namespace, &format!("layer-{number:05}"), label, json!({})).await;
        }))
        .await;
    }
    let query = "/api/v1/layers?label=team%3Dt3&text=live&sort=-createdAt&limit=100";
    let call = || Call::get(query).bearer(&token);
    let page = ground.until("all are seen", call, |answer| answer.json()["total"] == 1000).await;
    assert_eq!(page.names().len(), 100);
    let mut took: Vec<std::time::Duration> = Vec::new();
    for _ in 0..100 {
        let began = std::time::Instant::now();
        ground.call(call()).await.with(200);
        took.push(began.elapsed());
    }
    took.sort();
    println!("a page of 100 of 10,000 layers, filtered and ordered: p50 {:?}, p95 {:?}", took[50], took[95]);
    assert!(took[95].as_millis() < 500, "{took:?}");
}
