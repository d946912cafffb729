//! Several processes of the service on one API: whichever is asked, the answer is the same, and what one was asked another knows.

use std::collections::BTreeSet;

use axum::http::Method;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use server::credential::Scope;

use crate::ground::{Call, Ground};
use crate::stacks::{call, layers, looked_at, post, template};

#[tokio::test(flavor = "multi_thread")]
async fn a_stack_that_one_replica_made_the_other_shows_cancels_changes_and_deletes() {
    let ground = Ground::new().await;
    template(&ground, "machine", json!({}), "Ready").await;
    let (one, other) = (ground.another(), ground.another());
    let token = ground.token("ci", &[Scope::Read, Scope::Write], &["a"]).await;
    let body = json!({ "template": "machine", "variables": { "name": "web", "password": "correct-horse" } });

    // The same key to both, each in turn and then at once: the API alone says which came first.
    let mut places = BTreeSet::new();
    for at in 0..10 {
        let replica = if at % 2 == 0 { &one } else { &other };
        let answer = replica.call(post(&token, &body).header("idempotency-key", "in-turn")).await.with(202);
        places.insert(answer.header("location").to_owned());
    }
    assert_eq!(places.len(), 1, "{places:?}");
    let at_once = (0..20).map(|at| {
        let replica = if at % 2 == 0 { &one } else { &other };
        replica.call(post(&token, &body).header("idempotency-key", "at-once"))
    });
    for answer in futures::future::join_all(at_once).await {
        places.insert(answer.with(202).header("location").to_owned());
    }
    assert_eq!(places.len(), 2, "{places:?}");
    let of_template = ListParams::default().labels(api::label::STACK_TEMPLATE);
    assert_eq!(layers(&ground).list(&of_template).await.unwrap().items.len(), 2);
    let different = json!({ "template": "machine", "variables": { "name": "db" } });
    other.call(post(&token, &different).header("idempotency-key", "in-turn")).await.with(422);

    // Made by the one; everything else is asked of the other, and told by the first.
    let made = one.call(post(&token, &json!({ "template": "machine", "variables": { "name": "web" } })));
    let id = made.await.with(202).json()["stack"]["id"].as_str().unwrap().to_owned();
    let seen = other.call(call(&token, Method::GET, &id, "")).await.with(200);
    let request = async |replica: &crate::ground::Replica, which: &str| {
        let asked = call(&token, Method::GET, &id, &format!("/requests/{which}"));
        replica.call(asked).await.with(200).json()["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(request(&other, "create").await, "pending");
    looked_at(&ground, &id, "Reconciling", "applying").await;
    let run = format!("{id}-apply-1");
    ground.run("a", &run, &id, json!({ "state": "Running" })).await;
    other.call(call(&token, Method::POST, &id, "/cancel")).await.with(202);
    assert_eq!(layers(&ground).get(&id).await.unwrap().annotations()[api::annotation::CANCEL], run);
    // What the other showed is outdated for both.
    let larger = json!({ "variables": { "size": 3 } });
    let stale = seen.header("etag").to_owned();
    let patch = |tag: &str| call(&token, Method::PATCH, &id, "").json(&larger).header("if-match", tag);
    one.call(patch(&stale)).await.with(412);
    let tag = other.call(call(&token, Method::GET, &id, "")).await.with(200).header("etag").to_owned();
    one.call(patch(&tag)).await.with(202);
    other.call(patch(&tag)).await.with(412);
    assert_eq!(request(&other, "create").await, "superseded");

    let hold = json!({ "metadata": { "finalizers": [api::LAYER_FINALIZER] } });
    layers(&ground).patch(&id, &PatchParams::default(), &Patch::Merge(hold)).await.unwrap();
    other.call(call(&token, Method::DELETE, &id, "")).await.with(202);
    assert_eq!(request(&one, "delete").await, request(&other, "delete").await);
    one.call(call(&token, Method::DELETE, &id, "")).await.with(202);
    let free = json!({ "metadata": { "finalizers": null } });
    layers(&ground).patch(&id, &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
    one.call(call(&token, Method::GET, &id, "")).await.with(404);
    other.call(call(&token, Method::GET, &id, "")).await.with(404);
}

/// Who has logged in at one replica is known at the others, and who has logged out there as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_belongs_to_no_replica() {
    let ground = Ground::new().await;
    let (one, other) = (ground.another(), ground.another());
    let link = format!("/login?once={}", ground.link().await);
    let cookie = one.call(Call::get(&link)).await.with(303).header("set-cookie").to_owned();
    let cookie = cookie.split(';').next().unwrap();
    other.call(Call::get(&link)).await.with(401);
    let session = || Call::get("/api/v1/session").header("cookie", cookie);
    let told = other.call(session()).await.with(200).json();
    one.call(session()).await.with(200);
    let end = Call::new(Method::DELETE, "/api/v1/session")
        .header("cookie", cookie)
        .header("origin", &format!("http://{}", crate::ground::HOST))
        .header("x-terrane-csrf", told["csrf"].as_str().unwrap_or_else(|| panic!("{told}")));
    assert!(other.call(end).await.status.is_success());
    one.call(session()).await.with(401);
    other.call(session()).await.with(401);
}
