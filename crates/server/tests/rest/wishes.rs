//! What is asked of layers and runs: written in the name of whoever asks, and only on what they saw.

use api::{TerraformApproval, TerraformLayer, annotation};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;
use server::credential::Scope;

use crate::ground::{Call, Ground};

#[tokio::test]
async fn a_layer_is_synced_suspended_and_resumed() {
    let ground = Ground::new().await;
    ground.layer("a", "net", json!({}), json!({})).await;
    let token = ground.token("ci", &[Scope::Read, Scope::Write], &["a"]).await;
    let layers = Api::<TerraformLayer>::namespaced(ground.client.clone(), "a");
    let place = "/api/v1/namespaces/a/layers/net";
    let post = |verb: &str| Call::post(&format!("{place}/{verb}")).bearer(&token);
    let wished = ground.call(post("sync")).await.with(202).json();
    let annotations = layers.get("net").await.unwrap().annotations().clone();
    assert_eq!(wished["token"], json!(format!("sync:{}", annotations[annotation::SYNC])));
    assert_eq!(annotations[annotation::LATEST], annotations[annotation::SYNC], "of the newest commit");
    ground.call(post("sync?known=true")).await.with(202);
    let annotations = layers.get("net").await.unwrap().annotations().clone();
    assert_ne!(annotations[annotation::LATEST], annotations[annotation::SYNC]);
    let wished = ground.call(post("sync?refreshOnly=true")).await.with(202).json();
    let annotations = layers.get("net").await.unwrap().annotations().clone();
    assert_eq!(wished["token"], json!(format!("look:{}", annotations[annotation::LOOK])));
    // By the one who asked, as the API records it.
    let managers = layers.get("net").await.unwrap();
    assert!(!managers.managed_fields().is_empty());

    let seen = ground.call(Call::get(place).bearer(&token)).await.with(200);
    let tag = seen.header("etag").to_owned();
    assert_eq!(tag, format!("\"{}\"", seen.json()["version"].as_str().unwrap()));
    let same = ground.call(Call::get(place).bearer(&token).header("if-none-match", &tag)).await;
    assert_eq!(same.status, 304);
    ground.call(post("suspend").header("if-match", "\"1\"")).await.with(412);
    ground.call(post("suspend").header("if-match", "no quotes")).await.with(400);
    assert!(!layers.get("net").await.unwrap().spec.suspend);
    let done = ground.call(post("suspend").header("if-match", &tag)).await.with(200).json();
    assert_eq!(done["suspended"], true);
    ground.call(post("resume").header("if-match", &tag)).await.with(412);
    ground.call(post("sync")).await.with(409);
    ground.call(post("resume").header("if-match", "*")).await.with(200);
    assert!(!layers.get("net").await.unwrap().spec.suspend);
    let elsewhere = Call::post("/api/v1/namespaces/a/layers/nothing/suspend").bearer(&token);
    ground.call(elsewhere).await.with(404);
}

#[tokio::test]
async fn a_word_is_about_the_bytes_that_were_seen_and_is_signed() {
    let ground = Ground::new().await;
    let sha256 = "c".repeat(64);
    let plan = json!({
        "run": "net-plan-1", "attempt": 0, "sha256": sha256, "madeAt": "2026-01-01T00:00:00Z",
        "summary": { "add": 1, "change": 0, "destroy": 0 },
    });
    ground.layer("a", "net", json!({}), json!({ "state": "ApplyNeeded", "plan": plan })).await;
    ground.layer("a", "new", json!({}), json!({})).await;
    let ci = ground.token("ci", &[Scope::Read, Scope::Approve], &["a"]).await;
    let place = "/api/v1/namespaces/a/layers/net/approvals";
    let word = |sha256: &str, decision: &str| json!({ "planSha256": sha256, "decision": decision, "reason": "looked at" });
    let post = |body| Call::post(place).bearer(&ci).json(&body);
    ground.call(post(word(&"d".repeat(64), "approve"))).await.with(409);
    ground.call(post(word("cc", "approve"))).await.with(422);
    ground.call(post(word(&sha256, "perhaps"))).await.with(422);
    ground
        .call(post(json!({ "planSha256": sha256, "decision": "approve", "user": "somebody else" })))
        .await
        .with(422);
    let none =
        Call::post("/api/v1/namespaces/a/layers/new/approvals").bearer(&ci).json(&word(&sha256, "approve"));
    ground.call(none).await.with(409);
    let all = Api::<TerraformApproval>::namespaced(ground.client.clone(), "a");
    assert!(all.list(&ListParams::default()).await.unwrap().items.is_empty(), "nothing was written");

    let made = ground.call(post(word(&sha256, "approve"))).await.with(201).json();
    assert_eq!((&made["user"], &made["planSha256"]), (&json!("terrane:token:ci"), &json!(sha256)));
    ground.call(post(word(&sha256, "reject"))).await.with(409);
    // Somebody whom the Kubernetes API knows signs with the name that it says.
    let rules = json!([
        { "apiGroups": ["terrane.dev"], "resources": ["terraformlayers"], "verbs": ["get"] },
        { "apiGroups": ["terrane.dev"], "resources": ["terraformapprovals"], "verbs": ["create", "list"] },
    ]);
    let anna = ground.account("anna", rules).await;
    let made =
        ground.call(Call::post(place).bearer(&anna).json(&word(&sha256, "reject"))).await.with(201).json();
    assert_eq!(made["user"], "system:serviceaccount:a:anna");
    let words = ground.call(Call::get(place).bearer(&anna)).await.with(200).json();
    assert_eq!(words["items"].as_array().unwrap().len(), 2, "{words}");
}

#[tokio::test]
async fn a_run_is_canceled_by_a_word_on_its_layer() {
    let ground = Ground::new().await;
    ground.layer("a", "net", json!({}), json!({})).await;
    ground.run("a", "net-plan-1", "net", json!({ "state": "Running" })).await;
    ground
        .run(
            "a",
            "net-plan-2",
            "net",
            json!({ "state": "Failed", "result": { "reason": "X", "message": "broke" } }),
        )
        .await;
    let token = ground.token("ci", &[Scope::Read, Scope::Write], &[]).await;
    let cancel = |run: &str| Call::post(&format!("/api/v1/namespaces/a/runs/{run}/cancel")).bearer(&token);
    ground.call(cancel("net-plan-2")).await.with(409);
    ground.call(cancel("nothing")).await.with(404);
    ground.call(cancel("net-plan-1")).await.with(202);
    let layer = Api::<TerraformLayer>::namespaced(ground.client.clone(), "a").get("net").await.unwrap();
    assert_eq!(layer.annotations()[annotation::CANCEL], "net-plan-1");
}
