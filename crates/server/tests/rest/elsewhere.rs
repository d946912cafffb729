//! Layers whose state a backend of their own keeps: the truth about it, and their outputs where a run kept them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::text::Sha256;
use api::{TerraformLayer, TerraformRun};
use axum::http::{Method, Request, Response};
use datastore::client::{Body, TokenSource, Transport, Undelivered};
use futures::future::BoxFuture;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use server::credential::Scope;

use crate::ground::{Call, Ground};

const BACKEND: &str = "s3 bucket=states key=net.tfstate";

/// A datastore that keeps no states, and outputs of one run.
#[derive(Debug, Default)]
struct Shelf {
    /// The versions that it lists of any state.
    versions: Mutex<Value>,
    asked: Mutex<Vec<String>>,
}

impl Transport for Shelf {
    fn send(&self, request: Request<Body>) -> BoxFuture<'static, Result<Response<Body>, Undelivered>> {
        let path = request.uri().path().to_owned();
        let (status, body) = match path.rsplit('/').next().unwrap() {
            "outputs" => (
                200,
                json!({
                    "cidr": { "sensitive": false, "value": "10.0.0.0/16" },
                    "password": { "sensitive": true, "value": "hunter2" },
                }),
            ),
            "versions" => (200, self.versions.lock().unwrap().clone()),
            _ => (500, json!({ "message": "nobody should ask for this" })),
        };
        self.asked.lock().unwrap().push(path);
        let answer = Response::builder().status(status).body(Body::from(body.to_string()));
        Box::pin(async move { Ok(answer?) })
    }
}

/// A layer of namespace `a` whose last apply was asked to keep its outputs.
pub async fn layer_with_kept_outputs(ground: &Ground, name: &str) {
    let identity = json!({ "sha256": "e".repeat(64), "backend": BACKEND });
    ground.layer("a", name, json!({}), json!({ "stateIdentity": identity })).await;
    let ended = json!({ "state": "Succeeded", "finishedAt": "2026-01-01T00:01:00Z" });
    apply(ground, name, "1", ended).await;
}

/// An apply of such a layer.
async fn apply(ground: &Ground, layer: &str, number: &str, mut status: Value) {
    let layers = Api::<TerraformLayer>::namespaced(ground.client.clone(), "a");
    let uid = layers.get(layer).await.unwrap().metadata.uid.unwrap();
    let name = format!("{layer}-apply-{number}");
    let run: TerraformRun = serde_json::from_value(json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRun",
        "metadata": { "name": name, "namespace": "a" },
        "spec": {
            "layer": { "name": layer, "uid": uid, "revision": "a".repeat(40) }, "outputs": true,
            "action": "apply", "mode": "normal", "state": "e".repeat(64),
            "artifact": { "run": format!("{layer}-plan-1"), "runUid": "p", "attempt": 0, "sha256": "c".repeat(64) },
            "trigger": { "kind": "commit", "reason": "a new commit" },
        },
    }))
    .unwrap();
    let runs = Api::<TerraformRun>::namespaced(ground.client.clone(), "a");
    runs.create(&PostParams::default(), &run).await.unwrap();
    status["attempts"] = json!([{ "number": 0, "podName": "p", "description": "a".repeat(64), "fence": 1, "startedAt": "2026-01-01T00:00:00Z" }]);
    let patch = Patch::Merge(json!({ "status": status }));
    runs.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test]
async fn a_state_that_another_backend_keeps_is_told_and_its_outputs_are_those_that_a_run_kept() {
    let mut ground = Ground::new().await;
    layer_with_kept_outputs(&ground, "net").await;
    let identity = json!({ "sha256": "f".repeat(64), "backend": BACKEND });
    ground.layer("a", "bare", json!({}), json!({ "stateIdentity": identity })).await;
    let shelf = Arc::new(Shelf { versions: Mutex::new(json!([])), ..Shelf::default() });
    let datastore =
        datastore::Client::new("http://shelf", TokenSource::Fixed("t".to_owned().into())).unwrap();
    ground.restart_beside(datastore.with_patience(Duration::ZERO).with_transport(shelf.clone()));
    let reader = ground.token("reader", &[Scope::Read], &["a"]).await;
    let keeper = ground.token("keeper", &Scope::ALL, &["a"]).await;
    let at = |layer: &str, rest: &str| format!("/api/v1/namespaces/a/layers/{layer}/{rest}");

    let shown = ground.call(Call::get(&at("net", "outputs")).bearer(&reader)).await.with(200).json();
    assert_eq!(shown["cidr"]["value"], "10.0.0.0/16");
    assert_eq!(shown["password"]["value"], "(sensitive value)");
    let sensitive = at("net", "outputs?sensitive=true");
    ground.call(Call::get(&sensitive).bearer(&reader)).await.with(403);
    let shown = ground.call(Call::get(&sensitive).bearer(&keeper)).await.with(200).json();
    assert_eq!(shown["password"]["value"], "hunter2");

    let content = json!({ "version": 4, "serial": 1 });
    let sha256 = Sha256::of(content.to_string().as_bytes());
    let put = Call::new(Method::PUT, &at("bare", "state"));
    let put = put.header(datastore::header::SHA256, sha256.as_str()).json(&content);
    for (call, expected, advice) in [
        (Call::get(&at("bare", "outputs")), 404, "spec.writeOutputsTo has runs keep them"),
        (Call::get(&at("bare", "state")), 404, "`terraform state pull`"),
        (put, 409, "`terraform state push`"),
        (Call::get(&at("bare", "state/versions")), 404, "that backend knows"),
        (Call::get(&at("bare", "state/lock")), 404, "`terraform force-unlock ID`"),
        (Call::new(Method::DELETE, &at("bare", "state/lock?id=x")), 409, "`terraform force-unlock ID`"),
    ] {
        let detail = ground.call(call.bearer(&keeper)).await.with(expected).json()["detail"].clone();
        let detail = detail.as_str().unwrap();
        let truth = format!("the state of layer a/bare is kept by {BACKEND} and not by Terrane; ");
        assert!(detail.starts_with(&truth) && detail.contains(advice), "{detail}");
    }
    let asked = shelf.asked.lock().unwrap().clone();
    assert!(asked.iter().all(|path| path.ends_with("/outputs") || path.ends_with("/versions")), "{asked:?}");

    // While a run of Terrane may hold the lock, nobody is told to break it.
    apply(&ground, "net", "2", json!({ "state": "Running" })).await;
    let lock = ground.call(Call::get(&at("net", "state/lock")).bearer(&keeper)).await.with(404).text;
    assert!(lock.contains("run a/net-apply-2 is at work on it") && !lock.contains("force-unlock"), "{lock}");

    // What Terrane kept before the state moved away can still be seen.
    *shelf.versions.lock().unwrap() = json!([{ "at": "2026-01-01T00:00:00Z", "by": "anna" }]);
    let versions =
        ground.call(Call::get(&at("bare", "state/versions")).bearer(&reader)).await.with(200).json();
    assert_eq!(versions[0]["by"], "anna");
}
