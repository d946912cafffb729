//! The service with a reviewer that believes names, and what cases are made of.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::attempt::Description;
use api::run::Action;
use api::text::{CommitId, Sha256};
use datastore::client::{Client, TokenSource};
use datastore::service::{Keyring, Objects, Options, Place, router};
use datastore::{Artefact, Attempt};
use futures::TryStreamExt;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use reqwest::{Method, StatusCode};
use testkit::azure::AzureServer;
use testkit::callers::ByName;
use testkit::google::GoogleServer;
use testkit::s3::S3Server;

pub(crate) struct Harness {
    pub(crate) base: String,
    http: reqwest::Client,
    pub(crate) store: Objects,
    pub(crate) dir: tempfile::TempDir,
    server: tokio::task::JoinHandle<()>,
    /// What the objects rest in, where that is of this test alone.
    _google: Option<GoogleServer>,
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Harness {
    pub(crate) async fn on_disk() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let objects = dir.path().join("objects");
        let store = Place::Directory(objects).open([]).await.unwrap();
        Self::start(dir, store).await
    }

    pub(crate) async fn on_s3() -> Self {
        let server = S3Server::shared().await;
        Self::on_s3_at(server, server.address()).await
    }

    /// On the server, reached by way of `address`.
    pub(crate) async fn on_s3_at(server: &S3Server, address: std::net::SocketAddr) -> Self {
        Self::on_bucket(|prefix| server.url(prefix), server.environment(address)).await
    }

    pub(crate) async fn on_azure() -> Self {
        let server = AzureServer::shared().await;
        Self::on_azure_at(server, server.address()).await
    }

    /// On the server, reached by way of `address`.
    pub(crate) async fn on_azure_at(server: &AzureServer, address: std::net::SocketAddr) -> Self {
        Self::on_bucket(|prefix| server.url(prefix), server.environment(address)).await
    }

    pub(crate) async fn on_google() -> Self {
        let server = GoogleServer::start().await.unwrap();
        let address = server.address();
        Self::on_google_at(server, address).await
    }

    /// On the server, reached by way of `address`.
    pub(crate) async fn on_google_at(server: GoogleServer, address: std::net::SocketAddr) -> Self {
        let environment = server.environment(address);
        let mut harness = Self::on_bucket(|prefix| server.url(prefix), environment).await;
        harness._google = Some(server);
        harness
    }

    /// Below a prefix that nobody else uses.
    async fn on_bucket(url: impl Fn(&str) -> String, environment: Vec<(String, String)>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let prefix = dir.path().file_name().unwrap().to_str().unwrap().trim_start_matches('.').to_owned();
        let place = Place::Bucket(url(&prefix).parse().unwrap());
        let store = place.open(environment).await.unwrap();
        Self::start(dir, store).await
    }

    async fn start(dir: tempfile::TempDir, store: Objects) -> Self {
        let (base, server) = serve(&dir.path().join("keys"), &store).await;
        Self { base, http: reqwest::Client::new(), store, dir, server, _google: None }
    }

    /// The same objects served by a new process, as far as can be told from outside: nothing is remembered, keys are read again.
    pub(crate) async fn restarted(mut self) -> Self {
        self.server.abort();
        let (base, server) = serve(&self.keys(), &self.store).await;
        self.base = base;
        self.server = server;
        self
    }

    /// A second service on the same objects and keys, as another replica is.
    pub(crate) async fn beside(&self) -> Beside {
        let (base, server) = serve(&self.keys(), &self.store).await;
        Beside { base, server }
    }

    pub(crate) fn keys(&self) -> PathBuf {
        self.dir.path().join("keys")
    }

    pub(crate) fn client(&self, token: &str) -> Client {
        client(&self.base, token)
    }

    pub(crate) async fn describe(&self, description: &Description) -> Attempt {
        let attempt = Attempt::new(description.run_uid.as_str(), description.attempt).unwrap();
        let content = serde_json::to_vec(description).unwrap();
        self.client("controller").artefact_put(&attempt, Artefact::Spec, content.into()).await.unwrap();
        attempt
    }

    /// The bytes of an object as they rest.
    pub(crate) async fn stored(&self, path: &str) -> Vec<u8> {
        self.store.get(&Path::from(path)).await.unwrap().bytes().await.unwrap().to_vec()
    }

    /// Puts other bytes in their place, behind the service's back.
    pub(crate) async fn overwrite(&self, path: &str, bytes: &[u8]) {
        self.store.put(&Path::from(path), bytes.to_vec().into()).await.unwrap();
    }

    pub(crate) async fn remove(&self, path: &str) {
        self.store.delete(&Path::from(path)).await.unwrap();
    }

    /// Everything below a prefix.
    pub(crate) async fn names(&self, prefix: &str) -> Vec<String> {
        let found = self.store.list(Some(&Path::from(prefix)));
        found.map_ok(|meta| meta.location.to_string()).try_collect().await.unwrap()
    }

    pub(crate) async fn raw(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        fence: &str,
        body: &str,
    ) -> StatusCode {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let digest = Sha256::of(body.as_bytes());
        request
            .header("terrane-sha256", digest.as_str())
            .header("terrane-fence", fence)
            .body(body.to_owned())
            .send()
            .await
            .unwrap()
            .status()
    }

    pub(crate) async fn get(&self, path: &str) -> reqwest::Response {
        self.http.get(format!("{}{path}", self.base)).bearer_auth("controller").send().await.unwrap()
    }
}

/// It remembers what it was asked, and nothing of what the first was.
pub(crate) struct Beside {
    base: String,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Beside {
    pub(crate) fn client(&self, token: &str) -> Client {
        client(&self.base, token)
    }
}

fn client(base: &str, token: &str) -> Client {
    Client::new(base, TokenSource::Fixed(token.to_owned().into())).unwrap().with_patience(Duration::ZERO)
}

async fn serve(keys: &std::path::Path, store: &Objects) -> (String, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let keys = Keyring::load_or_create(keys).unwrap();
    let service = router(Options { objects: store.clone(), keys, reviewer: Arc::new(ByName) });
    #[allow(clippy::disallowed_methods)] // A test's server ends with the test.
    let server = tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
    (base, server)
}

pub(crate) fn description(
    namespace: &str,
    run: &str,
    action: Action,
    fence: u64,
    state: &str,
) -> Description {
    Description {
        namespace: namespace.to_owned(),
        layer: "layer".to_owned(),
        layer_uid: "layer-uid".to_owned(),
        run: format!("{run}-name"),
        run_uid: run.to_owned(),
        attempt: 1,
        fence,
        action,
        mode: Default::default(),
        revision: CommitId::new("a".repeat(40)).unwrap(),
        bundle: Sha256::of(b"bundle"),
        image: None,
        build: None,
        path: ".".parse().unwrap(),
        workspace: Default::default(),
        tool: None,
        tool_version: None,
        terragrunt: None,
        state: identity(state),
        backend: None,
        plan: None,
        inputs: None,
        outputs: false,
        script: None,
        kept: None,
        delete_workspace: false,
        timeout: None,
    }
}

/// States are named by a digest; tests name them by a word.
pub(crate) fn identity(word: &str) -> Sha256 {
    Sha256::of(word.as_bytes())
}

pub(crate) fn state_text(lineage: &str, serial: u64, padding: usize) -> String {
    let pad = "x".repeat(padding);
    format!("{{\"version\":4,\"serial\":{serial},\"lineage\":\"{lineage}\",\"pad\":\"{pad}\"}}")
}
