//! One API over a store in a directory of its own, and requests to it.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use embedded::auth::{Authorizer, Identity, as_identity};
use embedded::http::{Options, router};
use embedded::store::{self, Store};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

pub struct Api {
    pub router: Router,
    _directory: tempfile::TempDir,
}

#[derive(Debug)]
pub struct Answer {
    pub code: StatusCode,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    pub fn message(&self) -> String {
        self.json()["message"].as_str().unwrap_or_default().to_owned()
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
        let router = as_identity(router(store, options), Identity::administrator());
        let api = Api { router, _directory: directory };
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
        Answer { code: parts.status, text: String::from_utf8(bytes.to_vec()).unwrap() }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub async fn post(&self, path: &str, object: &Value) -> Answer {
        self.send(Request::post(path).body(Body::from(object.to_string())).unwrap()).await
    }

    pub async fn put(&self, path: &str, object: &Value) -> Answer {
        self.send(Request::put(path).body(Body::from(object.to_string())).unwrap()).await
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
