//! The service on the embedded API, in one process, and people with different rights who ask it.

use std::sync::Arc;

use api::{SYSTEM_NAMESPACE, TerraformLayer, TerraformRepository, TerraformRun};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use datastore::client::TokenSource;
use embedded::auth::Identity;
use embedded::auth::identity::{ADMINISTRATOR, AUTHENTICATED_GROUP, MASTERS_GROUP};
use embedded::serve::{Listen, Server};
use http_body_util::BodyExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, RoleBinding};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use server::credential::{Credentials, Grant, Scope};
use server::{Deliveries, Local, Options, Reviews};
use tokio::task::JoinSet;
use tower::ServiceExt;

pub const COOKIE: &str = "terrane_8080";
pub const HOST: &str = "127.0.0.1:8080";

pub struct Ground {
    pub client: Client,
    pub credentials: Credentials,
    pub server: Server,
    pub deliveries: Deliveries,
    replica: Replica,
    _directory: tempfile::TempDir,
}

/// One process of the service: what it holds in memory no other knows.
pub struct Replica {
    router: Router,
    _keeping: JoinSet<()>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

/// An answer whose body may still come.
pub struct Begun {
    status: StatusCode,
    headers: HeaderMap,
    body: Body,
}

impl Begun {
    pub async fn whole(self) -> Answer {
        let bytes = self.body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Answer { status: self.status, headers: self.headers, text }
    }
}

impl Answer {
    #[track_caller]
    pub fn with(self, expected: u16) -> Self {
        assert_eq!(self.status.as_u16(), expected, "{self:#?}");
        if expected >= 400 {
            assert_eq!(self.header("content-type"), "application/problem+json", "{self:#?}");
            let problem = self.json();
            assert_eq!(problem["status"], json!(expected), "{problem}");
            assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
            assert_eq!(problem["type"], "about:blank");
        }
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    #[track_caller]
    pub fn names(&self) -> Vec<String> {
        let items = self.json()["items"].as_array().unwrap().clone();
        items.iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    }
}

/// A request in few words.
pub struct Call(axum::http::request::Builder, Body);

impl Call {
    pub fn new(method: Method, path: &str) -> Self {
        Self(Request::builder().method(method).uri(path).header(header::HOST, HOST), Body::empty())
    }

    pub fn get(path: &str) -> Self {
        Self::new(Method::GET, path)
    }

    pub fn post(path: &str) -> Self {
        Self::new(Method::POST, path)
    }

    pub fn header(self, name: &str, value: &str) -> Self {
        Self(self.0.header(name, value), self.1)
    }

    pub fn bearer(self, token: &str) -> Self {
        self.header("authorization", &format!("Bearer {token}"))
    }

    pub fn json(self, body: &Value) -> Self {
        let Self(builder, _) = self.header("content-type", "application/json");
        Self(builder, Body::from(body.to_string()))
    }

    pub fn body(self, body: impl Into<Body>) -> Self {
        Self(self.0, body.into())
    }
}

impl Ground {
    pub async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = embedded::serve::Options {
            listen: Listen::new("127.0.0.1:0".parse().unwrap(), None, None).unwrap(),
            definitions: api::custom_resources(),
            ..embedded::serve::Options::new(directory.path().join("data"))
        };
        let server = Server::start(options).await.unwrap();
        let client = server.client(Identity::administrator());
        let namespaces = Api::<Namespace>::all(client.clone());
        for name in [SYSTEM_NAMESPACE, "a", "b"] {
            if namespaces.get_opt(name).await.unwrap().is_none() {
                let namespace = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
                namespaces.create(&PostParams::default(), &namespace).await.unwrap();
            }
        }
        let deliveries = Deliveries::default();
        let credentials = Credentials::new(&client);
        let replica = started(&server, client.clone(), |client| client, deliveries.clone());
        Self { client, credentials, server, deliveries, replica, _directory: directory }
    }

    /// Another process of the service, on the same API.
    pub fn another(&self) -> Replica {
        started(&self.server, self.client.clone(), |client| client, Deliveries::default())
    }

    /// The service begins anew, on the same API.
    pub fn restart(&mut self) {
        self.restart_with(self.client.clone());
    }

    /// The same, and what it asks of the API in its own name goes through this client.
    pub fn restart_with(&mut self, client: Client) {
        self.replica = started(&self.server, client, |client| client, self.deliveries.clone());
    }

    /// The service begins anew, and this is its datastore.
    pub fn restart_beside(&mut self, datastore: datastore::Client) {
        let deliveries = self.deliveries.clone();
        self.replica = beside(&self.server, self.client.clone(), |client| client, deliveries, datastore);
    }

    /// The same, and whatever it asks of the API, in whoever's name, goes through what this makes of a client.
    pub fn restart_through(&mut self, through: impl Fn(Client) -> Client + Send + Sync + 'static) {
        let client = through(self.client.clone());
        self.replica = started(&self.server, client, through, self.deliveries.clone());
    }

    pub async fn call(&self, call: Call) -> Answer {
        self.replica.call(call).await
    }

    /// Returns when the answer has begun.
    pub async fn begin(&self, call: Call) -> Begun {
        self.replica.begin(call).await
    }

    /// A list answers from what the watch has seen; waits until it has seen this.
    pub async fn until(
        &self,
        what: &str,
        call: impl Fn() -> Call,
        holds: impl Fn(&Answer) -> bool,
    ) -> Answer {
        let started = std::time::Instant::now();
        loop {
            let answer = self.call(call()).await;
            if holds(&answer) {
                return answer;
            }
            assert!(started.elapsed().as_secs() < 60, "{what}: {answer:#?}");
            tokio::task::yield_now().await;
        }
    }

    pub async fn layer(&self, namespace: &str, name: &str, labels: Value, status: Value) {
        let object: TerraformLayer = serde_json::from_value(json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer",
            "metadata": { "name": name, "namespace": namespace, "labels": labels },
            "spec": {
                "repository": { "name": "code" }, "branch": "main", "path": format!("live/{name}"),
                "variables": [{ "name": "password", "value": "hunter2" }],
            },
        }))
        .unwrap();
        let layers = Api::<TerraformLayer>::namespaced(self.client.clone(), namespace);
        layers.create(&PostParams::default(), &object).await.unwrap();
        if status.as_object().is_some_and(|status| !status.is_empty()) {
            let patch = Patch::Merge(json!({ "status": status }));
            layers.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
        }
    }

    pub async fn repository(&self, namespace: &str, name: &str) {
        self.repository_at(namespace, name, "https://git.example.com/infra/code.git").await;
    }

    pub async fn repository_at(&self, namespace: &str, name: &str, url: &str) {
        let object: TerraformRepository = serde_json::from_value(json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRepository",
            "metadata": { "name": name, "namespace": namespace },
            "spec": { "repository": { "url": url } },
        }))
        .unwrap();
        let all = Api::<TerraformRepository>::namespaced(self.client.clone(), namespace);
        all.create(&PostParams::default(), &object).await.unwrap();
    }

    pub async fn run(&self, namespace: &str, name: &str, layer: &str, status: Value) {
        let object: TerraformRun = serde_json::from_value(json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRun",
            "metadata": { "name": name, "namespace": namespace },
            "spec": {
                "layer": { "name": layer, "uid": "u", "revision": "a".repeat(40) },
                "action": "plan", "mode": "normal", "state": "b".repeat(64),
                "trigger": { "kind": "commit", "reason": "a new commit" },
            },
        }))
        .unwrap();
        let runs = Api::<TerraformRun>::namespaced(self.client.clone(), namespace);
        runs.create(&PostParams::default(), &object).await.unwrap();
        if status.as_object().is_some_and(|status| !status.is_empty()) {
            let patch = Patch::Merge(json!({ "status": status }));
            runs.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
        }
    }

    /// A ServiceAccount of namespace `a` with these rights there, and its token.
    pub async fn account(&self, name: &str, rules: Value) -> String {
        let post = PostParams::default();
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), "a");
        let account = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        accounts.create(&post, &account).await.unwrap();
        let role: ClusterRole =
            serde_json::from_value(json!({ "metadata": { "name": name }, "rules": rules })).unwrap();
        Api::<ClusterRole>::all(self.client.clone()).create(&post, &role).await.unwrap();
        let binding: RoleBinding = serde_json::from_value(json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": "a" }],
        }))
        .unwrap();
        Api::<RoleBinding>::namespaced(self.client.clone(), "a").create(&post, &binding).await.unwrap();
        let request: TokenRequest = serde_json::from_value(
            json!({ "metadata": {}, "spec": { "audiences": [], "expirationSeconds": 3600 } }),
        )
        .unwrap();
        accounts.create_token_request(name, &post, &request).await.unwrap().status.unwrap().token
    }

    /// A token for machines.
    pub async fn token(&self, name: &str, scopes: &[Scope], namespaces: &[&str]) -> String {
        let grant = Grant {
            user: format!("terrane:token:{name}"),
            scopes: scopes.iter().copied().collect(),
            namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
            expires: Timestamp::now() + SignedDuration::from_hours(1),
        };
        let token = self.credentials.make_token(&name.parse().unwrap(), &grant).await.unwrap();
        token.expose_secret().to_owned()
    }

    /// The word of a new login link.
    pub async fn link(&self) -> String {
        let expires = Timestamp::now() + SignedDuration::from_hours(1);
        let word = self.credentials.make_login(ADMINISTRATOR, expires).await.unwrap();
        word.expose_secret().to_owned()
    }

    /// Logs in; returns what the cookie holds.
    pub async fn session(&self) -> String {
        let link = format!("/login?once={}", self.link().await);
        let answer = self.call(Call::get(&link)).await.with(303);
        let cookie = answer.header("set-cookie").to_owned();
        cookie.split(';').next().unwrap().to_owned()
    }
}

impl Replica {
    pub async fn call(&self, call: Call) -> Answer {
        self.begin(call).await.whole().await
    }

    pub async fn begin(&self, Call(builder, body): Call) -> Begun {
        let response = self.router.clone().oneshot(builder.body(body).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
        ] {
            assert_eq!(parts.headers.get(name).unwrap(), value, "{parts:?}");
        }
        let policy = parts.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        Begun { status: parts.status, headers: parts.headers, body }
    }
}

/// What the service asks in its own name goes through `client`; what it asks in another's through what `through` makes of theirs.
fn started(
    server: &Server,
    client: Client,
    through: impl Fn(Client) -> Client + Send + Sync + 'static,
    deliveries: Deliveries,
) -> Replica {
    // Nobody listens there: what needs the datastore says so.
    let datastore = datastore::Client::new("http://127.0.0.1:1", TokenSource::File("none".into())).unwrap();
    beside(server, client, through, deliveries, datastore.with_patience(std::time::Duration::ZERO))
}

fn beside(
    server: &Server,
    client: Client,
    through: impl Fn(Client) -> Client + Send + Sync + 'static,
    deliveries: Deliveries,
    datastore: datastore::Client,
) -> Replica {
    let administrator = through(server.client(Identity::administrator()));
    let bare = through(Client::new(server.front(), "default"));
    let clients = server.clients();
    let local = Local {
        credentials: Credentials::new(&administrator),
        client: administrator,
        cookie: COOKIE.to_owned(),
        acting: Arc::new(move |user| {
            through(clients(Identity::new(user, [MASTERS_GROUP, AUTHENTICATED_GROUP])))
        }),
    };
    let (router, keeping) = server::service(Options {
        client,
        bare,
        reviews: Reviews::Cluster,
        datastore,
        local: Some(local),
        deliveries,
    });
    let mut tasks = JoinSet::new();
    tasks.spawn(keeping);
    Replica { router, _keeping: tasks }
}
