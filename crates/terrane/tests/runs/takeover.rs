//! Two controllers as processes of their own on one API: the second goes on when the first is killed, and one that was paused for
//! longer than its term writes nothing when it wakes.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::{SYSTEM_NAMESPACE, TerraformLayer, TerraformRepository, label};
use datastore::service::{Caller, Keyring, Options, ReviewError, Reviewer, router};
use embedded::auth::Identity;
use embedded::serve::{Listen, Server};
use futures::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::config::Kubeconfig;
use kube::{Api, Client};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use testkit::process::{Guarded, Scratch};

use crate::harness::{BINARY, free_address, git, until};

/// Whoever comes is the controller: what the datastore refuses is tested elsewhere.
#[derive(Debug)]
struct Anyone;

impl Reviewer for Anyone {
    fn review<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Caller, ReviewError>> {
        Box::pin(async { Ok(Caller::Controller) })
    }
}

/// An API, a datastore and a repository; no node, so a pod stays as it was made.
pub(crate) struct Ground {
    server: Server,
    pub(crate) client: Client,
    datastore: SocketAddr,
    serving: tokio::task::JoinSet<()>,
    pub(crate) root: Scratch,
}

impl Ground {
    pub(crate) async fn new() -> Self {
        let root = Scratch::new("terrane-takeover-").unwrap();
        let options = embedded::serve::Options {
            listen: Listen::new("127.0.0.1:0".parse().unwrap(), None, None).unwrap(),
            definitions: api::custom_resources(),
            ..embedded::serve::Options::new(root.path().join("data"))
        };
        let server = Server::start(options).await.unwrap();
        let client = server.client(Identity::administrator());
        let service = router(Options {
            objects: Options::local_objects(&root.path().join("objects")).unwrap(),
            keys: Keyring::load_or_create(&root.path().join("keys")).unwrap(),
            reviewer: Arc::new(Anyone),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let datastore = listener.local_addr().unwrap();
        let mut serving = tokio::task::JoinSet::new();
        serving.spawn(async move { axum::serve(listener, service).await.unwrap() });
        fs::write(root.path().join("token"), "anyone").unwrap();
        let code = root.path().join("code");
        for layer in ["one", "two", "three", "four"] {
            fs::create_dir_all(code.join(layer)).unwrap();
            fs::write(code.join(layer).join("main.tf"), "").unwrap();
        }
        git(&code, &["init", "--quiet"]);
        git(&code, &["add", "--all"]);
        git(&code, &["commit", "--quiet", "--message=Start"]);
        let ground = Self { server, client, datastore, serving, root };
        let repository = json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRepository", "metadata": { "name": "code" },
            "spec": { "repository": { "url": format!("file://{}", code.display()) }, "pollInterval": "1s" },
        });
        let repositories = Api::<TerraformRepository>::namespaced(ground.client.clone(), "default");
        let repository = serde_json::from_value(repository).unwrap();
        repositories.create(&PostParams::default(), &repository).await.unwrap();
        for (role, verbs) in [("everything", vec!["*"]), ("looking", vec!["get", "list", "watch"])] {
            let role = json!({
                "metadata": { "name": role },
                "rules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": verbs }],
            });
            let roles = Api::<ClusterRole>::all(ground.client.clone());
            roles.create(&PostParams::default(), &serde_json::from_value(role).unwrap()).await.unwrap();
        }
        ground
    }

    /// A kubeconfig of an account of its own, which may do everything.
    pub(crate) async fn account(&self, name: &str) -> PathBuf {
        let post = PostParams::default();
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), "default");
        let account = json!({ "metadata": { "name": name } });
        accounts.create(&post, &serde_json::from_value(account).unwrap()).await.unwrap();
        self.allow(name, "everything").await;
        let request = TokenRequest {
            spec: TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() },
            ..TokenRequest::default()
        };
        let token = accounts.create_token_request(name, &post, &request).await.unwrap().status.unwrap().token;
        let mut config =
            serde_json::to_value(Kubeconfig::read_from(self.server.kubeconfig()).unwrap()).unwrap();
        for user in config["users"].as_array_mut().unwrap() {
            user["user"] = json!({ "token": token });
        }
        let path = self.root.path().join(format!("{name}.kubeconfig"));
        fs::write(&path, config.to_string()).unwrap();
        path
    }

    async fn allow(&self, account: &str, role: &str) {
        let binding = json!({
            "metadata": { "name": account },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": "default" }],
        });
        let bindings = Api::<ClusterRoleBinding>::all(self.client.clone());
        let _ = bindings.delete(account, &DeleteParams::default()).await;
        bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    }

    fn controller(&self, kubeconfig: &Path, name: &str) -> (Guarded, PathBuf) {
        let place = |name: &str| self.root.path().join(name).display().to_string();
        let log = self.root.path().join(format!("{name}.log"));
        let arguments = [
            format!("KUBECONFIG={}", kubeconfig.display()),
            BINARY.to_owned(),
            "controller".to_owned(),
            format!("--listen={}", free_address()),
            format!("--datastore-url=http://{}", self.datastore),
            format!("--token-file={}", place("token")),
            "--runner-image=terrane.dev/local".to_owned(),
            "--allow-local-sources".to_owned(),
            format!("--git-dir={}", place(&format!("{name}-git"))),
        ];
        (Guarded::start(Path::new("/usr/bin/env"), &arguments, log.clone()).unwrap(), log)
    }

    /// Declares a layer and waits until somebody makes a pod for it.
    async fn is_served(&self, name: &str) {
        let layer = json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": name },
            "spec": { "repository": { "name": "code" }, "branch": "main", "path": name },
        });
        let layers = Api::<TerraformLayer>::namespaced(self.client.clone(), "default");
        layers.create(&PostParams::default(), &serde_json::from_value(layer).unwrap()).await.unwrap();
        let pods = Api::<Pod>::namespaced(self.client.clone(), "default");
        let of_layer = ListParams::default().labels(&format!("{}={name}", label::LAYER));
        until(&format!("a pod plans {name}"), || async {
            let found = pods.list(&of_layer).await.ok()?.items.len();
            (found > 0).then_some(())
        })
        .await;
    }

    /// Who leads, once it is none of these.
    async fn leader_beside(&self, others: &BTreeSet<String>) -> String {
        let leases = Api::<Lease>::namespaced(self.client.clone(), SYSTEM_NAMESPACE);
        until("somebody else leads", || async {
            let spec = leases.get_opt(engine::leader::LEASE).await.ok()??.spec?;
            spec.holder_identity.filter(|holder| !holder.is_empty() && !others.contains(holder))
        })
        .await
    }

    pub(crate) async fn end(mut self) {
        self.serving.shutdown().await;
        self.server.stop().await;
    }
}

fn signal(process: &Guarded, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(process.pid()).unwrap()).unwrap(), signal).unwrap();
}

async fn says(log: &Path, words: &str) {
    until(&format!("it says {words:?}"), || {
        let text = fs::read_to_string(log).unwrap_or_default();
        std::future::ready(text.contains(words).then_some(()))
    })
    .await;
}

#[tokio::test]
async fn a_killed_leader_is_followed_and_a_paused_one_writes_nothing_when_it_wakes() {
    let ground = Ground::new().await;
    let (first, second) = (ground.account("first").await, ground.account("second").await);
    let mut leaders = BTreeSet::new();
    let (mut doomed, _) = ground.controller(&first, "doomed");
    leaders.insert(ground.leader_beside(&leaders).await);
    ground.is_served("one").await;

    let (paused, paused_log) = ground.controller(&second, "paused");
    says(&paused_log, "serving health and metrics").await;
    signal(&doomed, Signal::KILL);
    until("the leader is dead", || std::future::ready(doomed.exited().unwrap())).await;
    leaders.insert(ground.leader_beside(&leaders).await);
    ground.is_served("two").await;

    let (heir, heir_log) = ground.controller(&first, "heir");
    says(&heir_log, "serving health and metrics").await;
    signal(&paused, Signal::STOP);
    leaders.insert(ground.leader_beside(&leaders).await);
    assert_eq!(leaders.len(), 3);
    ground.is_served("three").await;
    // Any write of the sleeper would be refused from here on, and it would say so.
    ground.allow("second", "looking").await;
    signal(&paused, Signal::CONT);
    says(&paused_log, "no longer leads").await;
    ground.is_served("four").await;
    let log = fs::read_to_string(&paused_log).unwrap();
    assert!(!log.to_lowercase().contains("forbidden"), "it tried to write: {log}");
    for process in [paused, heir] {
        let log = process.log_tail();
        process.stop(crate::harness::DEADLINE).await.unwrap_or_else(|error| panic!("{error}: {log}"));
    }
    ground.end().await;
}
