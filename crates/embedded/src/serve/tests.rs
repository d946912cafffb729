//! The server as its users meet it: over the port with the kubeconfig, in process with an identity, started twice, stopped.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use super::*;
use crate::auth::Refusal;

/// A server of its own data directory, which goes with it.
pub(crate) struct Running {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) server: Server,
}

pub(crate) fn options(directory: &Path) -> Options {
    let mut options = Options::new(directory.join("data"));
    options.listen = Listen::on_any_port();
    options.limits.farewell = Duration::from_millis(200);
    options
}

pub(crate) async fn started() -> Running {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(options(directory.path())).await.unwrap();
    Running { directory, server }
}

/// Waits until `condition` holds; says what it waited for if it never does.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

enum With<'a> {
    Kubeconfig,
    Nothing,
    Token(&'a str),
}

async fn over_the_port(server: &Server, with: With<'_>) -> kube::Client {
    let kubeconfig = Kubeconfig::read_from(server.kubeconfig()).unwrap();
    let mut config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    match with {
        With::Kubeconfig => {}
        With::Nothing => config.auth_info = Default::default(),
        With::Token(token) => {
            config.auth_info = serde_json::from_value(json!({"token": token})).unwrap();
        }
    }
    kube::Client::try_from(config).unwrap()
}

async fn get(client: &kube::Client, path: &str) -> Result<String, (u16, String)> {
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    client.request_text(request).await.map_err(|error| match error {
        kube::Error::Api(status) => (status.code, status.message.clone()),
        other => panic!("{path}: {other}"),
    })
}

fn config_map(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    }
}

#[tokio::test]
async fn the_kubeconfig_opens_the_api_and_nothing_else_does() {
    let Running { server, directory: _directory } = started().await;
    let unauthorized = Refusal::unauthorized();
    let refused = Err((401, unauthorized.to_string()));
    let check = async |with: With<'_>, path: &str, expected: Result<&str, (u16, String)>| {
        let answer = get(&over_the_port(&server, with).await, path).await;
        match expected {
            Ok(part) => assert!(answer.as_ref().is_ok_and(|text| text.contains(part)), "{path}: {answer:?}"),
            Err(expected) => assert_eq!(answer, Err(expected), "{path}"),
        }
    };
    check(With::Kubeconfig, "/api/v1/namespaces", Ok("terrane-system")).await;
    check(With::Kubeconfig, "/version", Ok("gitVersion")).await;
    check(With::Nothing, "/healthz", Ok("ok")).await;
    check(With::Nothing, "/readyz", Ok("ok")).await;
    check(With::Nothing, "/version", refused.clone()).await;
    check(With::Nothing, "/api", refused.clone()).await;
    check(With::Nothing, "/api/v1/namespaces", refused.clone()).await;
    check(With::Token("guess"), "/api/v1/namespaces", refused.clone()).await;
    check(With::Token("guess"), "/healthz", refused).await;
    server.stop().await;
}

#[tokio::test]
async fn a_service_account_has_the_rights_of_its_bindings_over_the_port_and_in_process() {
    let Running { server, directory: _directory } = started().await;
    let admin = server.client(Identity::administrator());
    until("the default service account", || async {
        get(&admin, "/api/v1/namespaces/default/serviceaccounts/default").await.is_ok()
    })
    .await;
    let request = http::Request::post("/api/v1/namespaces/default/serviceaccounts/default/token")
        .header("content-type", "application/json")
        .body(
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
                .to_string()
                .into_bytes(),
        )
        .unwrap();
    let answer: Value = admin.request(request).await.unwrap();
    let token = answer.pointer("/status/token").unwrap().as_str().unwrap();
    let path = "/api/v1/namespaces/default/configmaps";
    let user = "system:serviceaccount:default:default";
    let forbidden = format!(
        "configmaps is forbidden: User \"{user}\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"default\""
    );
    let port = over_the_port(&server, With::Token(token)).await;
    let in_process = server.client(Identity::service_account("default", "default"));
    for client in [&port, &in_process] {
        assert_eq!(get(client, path).await, Err((403, forbidden.clone())));
        assert!(get(client, "/apis").await.is_ok(), "discovery is for everybody who is known");
    }
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "viewers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]});
    let request = http::Request::post("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings")
        .header("content-type", "application/json")
        .body(binding.to_string().into_bytes())
        .unwrap();
    admin.request_text(request).await.unwrap();
    for client in [&port, &in_process] {
        assert!(get(client, path).await.is_ok());
    }
    server.stop().await;
}

#[tokio::test]
async fn impersonation_works_in_process_and_over_the_port() {
    let Running { server, directory: _directory } = started().await;
    let admin = over_the_port(&server, With::Kubeconfig).await;
    let as_jane = |client: kube::Client| async move {
        let request = http::Request::get("/api/v1/namespaces/default/pods")
            .header("Impersonate-User", "jane")
            .body(Vec::new())
            .unwrap();
        client.request_text(request).await.unwrap_err().to_string()
    };
    let jane = "User \"jane\" cannot list resource \"pods\"";
    let joe = "User \"joe\" cannot impersonate-on:user-info:list resource \"pods\"";
    for (client, expected) in [
        (admin, jane),
        (server.client(Identity::administrator()), jane),
        (server.client(Identity::new("joe", ["system:authenticated"])), joe),
    ] {
        let answer = as_jane(client).await;
        assert!(answer.contains(expected), "{answer}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_directory_in_use_is_refused_and_survives_a_restart() {
    let Running { directory, server } = started().await;
    let second = Server::start(options(directory.path())).await.unwrap_err().to_string();
    assert!(second.contains(&format!("pid {}", std::process::id())), "{second}");
    let maps: Api<ConfigMap> = Api::namespaced(server.client(Identity::system()), "default");
    maps.create(&PostParams::default(), &config_map("kept")).await.unwrap();
    let old_kubeconfig = std::fs::read_to_string(server.kubeconfig()).unwrap();
    settle(&server).await;
    let before = server.store().snapshot().revision();
    server.stop().await;

    let server = Server::start(options(directory.path())).await.unwrap();
    assert_eq!(server.store().snapshot().revision(), before, "nothing was there to install");
    let maps: Api<ConfigMap> = Api::namespaced(server.client(Identity::system()), "default");
    assert!(maps.get("kept").await.is_ok());
    let line =
        |text: &str, key: &str| text.lines().find(|line| line.contains(key)).map(str::to_owned).unwrap();
    let new_kubeconfig = std::fs::read_to_string(server.kubeconfig()).unwrap();
    for key in ["token:", "certificate-authority-data:"] {
        assert_eq!(
            line(&new_kubeconfig, key),
            line(&old_kubeconfig, key),
            "a kubeconfig that was copied still works"
        );
    }
    server.stop().await;
}

/// Waits until every namespace has what it gets by itself.
async fn settle(server: &Server) {
    let client = server.client(Identity::system());
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for namespace in namespaces.list(&ListParams::default()).await.unwrap() {
        let name = namespace.metadata.name.unwrap();
        for path in ["serviceaccounts/default", "configmaps/kube-root-ca.crt"] {
            let path = format!("/api/v1/namespaces/{name}/{path}");
            until(&path, || async { get(&client, &path).await.is_ok() }).await;
        }
    }
}

#[tokio::test]
async fn what_is_kept_is_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let Running { directory, server } = started().await;
    let data = directory.path().join("data");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&data), 0o700);
    for file in ["ca.json", "service-account.key", "administrator.token", "kubeconfig"] {
        assert_eq!(mode(&data.join(file)), 0o600, "{file}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_taken_port_is_told_and_the_directory_is_free_again() {
    let Running { server, directory: _directory } = started().await;
    let other = tempfile::tempdir().unwrap();
    let mut taken = options(other.path());
    taken.listen = Listen::new(server.address, None, None).unwrap();
    let error = Server::start(taken).await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("port {} is taken by process {} (", server.address, std::process::id())),
        "{error}"
    );
    let free = Server::start(options(other.path())).await.unwrap();
    free.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_task_that_ends_ends_the_server_with_its_reason() {
    let mut tasks = Tasks::default();
    tasks.start("sleeper", std::future::pending());
    tasks.start("failing", async { Err("no more disk".to_owned()) });
    assert_eq!(tasks.ended().await.to_string(), "the failing of the API ended: no more disk");
    tasks.start("broken", async { panic!("at the disco") });
    assert_eq!(tasks.ended().await.to_string(), "the broken of the API ended: it panicked: at the disco");
}
