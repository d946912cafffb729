//! What clients send to the embedded API: whole requests, with their selectors, tokens to continue, patches, definitions and reviews; and
//! objects in protobuf. An input may be refused in any way, but the API never fails of its own.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use embedded::auth::tokens::Tokens;
use embedded::auth::{Authenticator, Authorizer, Identity, as_identity};
use embedded::http::{Options, router};
use embedded::store::{self, Store};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::fuzz;
use super::requests::request;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const LAYERS: &str = "/apis/terrane.dev/v1alpha1/namespaces/default/terraformlayers";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

async fn send(api: &Router, method: &str, path: &str, body: &Value) -> Value {
    let request =
        http::Request::builder().method(method).uri(path).body(Body::from(body.to_string())).unwrap();
    let answer = api.clone().oneshot(request).await.unwrap();
    let status = answer.status();
    let bytes = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    assert!(status.is_success(), "{method} {path}: {status}: {}", String::from_utf8_lossy(&bytes));
    serde_json::from_slice(&bytes).unwrap()
}

/// An API with our definitions, served as its own controller would have them served, and something of the kinds that inputs name.
async fn furnished(api: &Router) {
    send(api, "POST", "/api/v1/namespaces", &json!({ "metadata": { "name": "default" } })).await;
    for definition in api::custom_resources() {
        let mut made = send(api, "POST", DEFINITIONS, &serde_json::to_value(definition).unwrap()).await;
        let held = |kind: &str| json!({ "type": kind, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
        made["status"]["conditions"] = json!([held("NamesAccepted"), held("Established")]);
        made["status"]["acceptedNames"] = made["spec"]["names"].clone();
        let name = made["metadata"]["name"].as_str().unwrap().to_owned();
        send(api, "PUT", &format!("{DEFINITIONS}/{name}/status"), &made).await;
    }
    let layer = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": "app" },
        "spec": { "repository": { "name": "code" }, "branch": "main", "path": "app" },
    });
    send(api, "POST", LAYERS, &layer).await;
    let map = json!({ "metadata": { "name": "a", "labels": { "app": "x" } }, "data": { "a": "1" } });
    send(api, "POST", "/api/v1/namespaces/default/configmaps", &map).await;
    let pod =
        json!({ "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "main", "image": "i" }] } });
    send(api, "POST", "/api/v1/namespaces/default/pods", &pod).await;
}

async fn answers(api: &Router, request: http::Request<Body>) {
    let shown = format!("{} {}", request.method(), request.uri());
    // Logs come from a node, and there is none.
    let of_a_node = request.uri().path().ends_with("/log");
    let answer = api.clone().oneshot(request).await.unwrap();
    let status = answer.status();
    if status.is_server_error() && !of_a_node {
        let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        let told: Value = serde_json::from_slice(&body).unwrap_or_default();
        // kube-apiserver has no better code for an object that cannot be merged, nor for a revision that is yet to come.
        let as_a_cluster_does =
            status == 504 || (status == 500 && told["reason"].as_str().is_none_or(str::is_empty));
        assert!(as_a_cluster_does && told["kind"] == "Status", "{shown}: {status}: {told}");
        return;
    }
    // A watch has no end, so a part of the body must do.
    let mut body = answer.into_body().into_data_stream();
    let first = futures::StreamExt::next(&mut body);
    let _ = tokio::time::timeout(std::time::Duration::from_millis(1), first).await;
}

#[test]
fn kubernetes() {
    let place = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let store = Store::open(&place.path().join("db"), store::Options::default()).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let tokens = Arc::new(Tokens::new(&key.serialize_pem(), &key.public_key_pem()).unwrap());
    let options = Options {
        authenticator: Some(Arc::new(Authenticator::new("administrator", tokens, store.clone()))),
        ..Options::new(Arc::new(Authorizer::new(store.clone())))
    };
    let api = as_identity(router(store, options), Identity::administrator());
    runtime.block_on(furnished(&api));
    fuzz("api", |input| {
        let Some(request) = request(input) else { return };
        runtime.block_on(async {
            answers(&api, request).await;
            // The columns may have been changed, and are paths that somebody wrote.
            let table = http::Request::get(LAYERS).header("accept", TABLE).body(Body::empty()).unwrap();
            answers(&api, table).await;
        });
    });
}

#[test]
fn protobuf() {
    fuzz("protobuf", |input| {
        for definition in
            ["io.k8s.api.core.v1.Secret", "io.k8s.api.core.v1.Pod", "io.k8s.api.coordination.v1.Lease"]
        {
            let once = embedded::kinds::protobuf::read(input, definition);
            assert_eq!(
                once,
                embedded::kinds::protobuf::read(input, definition),
                "the same bytes mean the same"
            );
        }
    });
}
