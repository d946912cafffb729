//! One API over a store in a directory of its own, and requests to it.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use embedded::auth::{Authorizer, Identity, as_identity};
use embedded::http::{Options, router};
use embedded::store::{self, Store};
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

pub struct Api {
    pub router: Router,
    pub store: Store,
    _directory: tempfile::TempDir,
}

#[derive(Debug)]
pub struct Answer {
    pub code: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    pub fn message(&self) -> String {
        self.json()["message"].as_str().unwrap_or_default().to_owned()
    }

    pub fn reason(&self) -> String {
        self.json()["reason"].as_str().unwrap_or_default().to_owned()
    }

    /// The object of an answer that must be a success.
    pub fn object(self) -> Value {
        assert!(self.code.is_success(), "{}: {}", self.code, self.text);
        self.json()
    }

    /// Code and message of an answer that must be a refusal.
    pub fn refusal(self) -> (u16, String) {
        assert!(!self.code.is_success(), "{}: {}", self.code, self.text);
        (self.code.as_u16(), self.message())
    }

    pub fn warnings(&self) -> Vec<String> {
        self.headers.get_all(header::WARNING).iter().map(|w| w.to_str().unwrap().to_owned()).collect()
    }
}

impl Api {
    pub async fn start() -> Api {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut Options)) -> Api {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("db"), store::Options::default()).unwrap();
        let mut options = Options::new(Arc::new(Authorizer::new(store.clone())));
        change(&mut options);
        let router = as_identity(router(store.clone(), options), Identity::administrator());
        let api = Api { router, store, _directory: directory };
        api.post("/api/v1/namespaces", &json!({"metadata": {"name": "default"}})).await.object();
        api
    }

    pub fn client(&self) -> kube::Client {
        kube::Client::new(self.router.clone(), "default")
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Answer {
            code: parts.status,
            headers: parts.headers,
            text: String::from_utf8(bytes.to_vec()).unwrap(),
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub async fn get_as(&self, path: &str, accept: &str) -> Answer {
        self.send(Request::get(path).header(header::ACCEPT, accept).body(Body::empty()).unwrap()).await
    }

    pub async fn post(&self, path: &str, object: &Value) -> Answer {
        self.send(Request::post(path).body(Body::from(object.to_string())).unwrap()).await
    }

    pub async fn put(&self, path: &str, object: &Value) -> Answer {
        self.send(Request::put(path).body(Body::from(object.to_string())).unwrap()).await
    }

    pub async fn patch(&self, path: &str, kind: &str, patch: &Value) -> Answer {
        let kind = format!("application/{kind}");
        self.send(
            Request::patch(path)
                .header(header::CONTENT_TYPE, kind)
                .body(Body::from(patch.to_string()))
                .unwrap(),
        )
        .await
    }

    pub async fn delete(&self, path: &str, options: &Value) -> Answer {
        let body = if options.is_null() { Body::empty() } else { Body::from(options.to_string()) };
        self.send(Request::delete(path).body(body).unwrap()).await
    }

    /// A definition, established as the server's own controller would.
    pub async fn define(&self, definition: &Value) {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let mut created = self.post(path, definition).await.object();
        created["status"]["conditions"] = json!([
            {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ]);
        created["status"]["acceptedNames"] = created["spec"]["names"].clone();
        let name = created["metadata"]["name"].as_str().unwrap().to_owned();
        self.put(&format!("{path}/{name}/status"), &created).await.object();
    }
}

pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub const PODS: &str = "/api/v1/namespaces/default/pods";

pub fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

pub fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "terrane.dev/local"}]}})
}

pub const WIDGETS: &str = "/apis/example.dev/v1/namespaces/default/widgets";

/// A custom resource with defaults, bounds and a status.
pub fn widgets() -> Value {
    json!({
        "metadata": {"name": "widgets.example.dev"},
        "spec": {
            "group": "example.dev",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                    {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
                ],
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "spec": {"type": "object", "required": ["size"], "properties": {
                            "size": {"type": "integer", "minimum": 1, "maximum": 9},
                            "color": {"type": "string", "default": "red", "enum": ["red", "blue"]},
                            "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                                "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "weight": {"type": "integer"}}}},
                        }},
                        "status": {"type": "object", "properties": {
                            "phase": {"type": "string"},
                            "conditions": {"type": "array", "items": {"type": "object", "properties": {
                                "type": {"type": "string"}, "status": {"type": "string"}}}},
                        }},
                    },
                }},
            }],
        },
    })
}

pub fn widget(name: &str, size: i64) -> Value {
    json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": size}})
}
