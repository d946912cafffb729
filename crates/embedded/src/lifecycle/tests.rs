//! The lifecycle as clients see it: a whole server, asked in process.

#![allow(clippy::unwrap_used)]

use http::Request;
use serde_json::{Value, json};

use crate::auth::Identity;
use crate::serve::Server;
use crate::serve::tests::{Running, options, started, until};

/// The administrator, in process, with paths and JSON.
struct Client(kube::Client);

impl Client {
    fn of(server: &Server) -> Self {
        Client(server.client(Identity::administrator()))
    }

    async fn send(&self, method: &str, path: &str, content_type: &str, body: Value) -> Result<Value, u16> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .body(body)
            .unwrap();
        self.0.request::<Value>(request).await.map_err(|error| match error {
            kube::Error::Api(status) => status.code,
            other => panic!("{method} {path}: {other}"),
        })
    }

    async fn get(&self, path: &str) -> Option<Value> {
        self.send("GET", path, "application/json", Value::Null).await.ok()
    }

    async fn exists(&self, path: &str) -> bool {
        self.get(path).await.is_some()
    }

    async fn create(&self, path: &str, object: Value) -> Value {
        self.send("POST", path, "application/json", object).await.unwrap()
    }

    async fn delete(&self, path: &str, policy: &str) {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy});
        self.send("DELETE", path, "application/json", options).await.unwrap();
    }

    async fn merge(&self, path: &str, patch: Value) -> Value {
        self.send("PATCH", path, "application/merge-patch+json", patch).await.unwrap()
    }

    /// A ConfigMap owned by these.
    async fn owned(&self, namespace: &str, name: &str, owners: &[&Value], blocks: bool) -> Value {
        let references: Vec<Value> = owners.iter().map(|owner| reference(owner, blocks)).collect();
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": references}});
        self.create(&maps(namespace), map).await
    }

    async fn gone(&self, path: &str) {
        until(&format!("{path} is gone"), || async { !self.exists(path).await }).await;
    }
}

fn reference(owner: &Value, blocks: bool) -> Value {
    json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
           "uid": owner["metadata"]["uid"], "blockOwnerDeletion": blocks})
}

fn maps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

fn map(name: &str) -> String {
    format!("{}/{name}", maps("default"))
}

#[tokio::test]
async fn dependents_go_when_their_last_owner_has_gone() {
    let Running { server, directory: _directory } = started().await;
    let client = Client::of(&server);
    let (first, second) = (
        client.owned("default", "first", &[], false).await,
        client.owned("default", "second", &[], false).await,
    );
    let child = client.owned("default", "child", &[&first], false).await;
    client.owned("default", "grandchild", &[&child], false).await;
    client.owned("default", "shared", &[&first, &second], false).await;
    client.delete(&map("first"), "Background").await;
    client.gone(&map("child")).await;
    client.gone(&map("grandchild")).await;
    until("shared has one owner left", || async {
        let shared = client.get(&map("shared")).await.unwrap();
        shared["metadata"]["ownerReferences"].as_array().unwrap().len() == 1
    })
    .await;
    client.delete(&map("second"), "Background").await;
    client.gone(&map("shared")).await;
    server.stop().await;
}

#[tokio::test]
async fn an_owner_of_another_uid_or_namespace_is_no_owner() {
    let Running { server, directory: _directory } = started().await;
    let client = Client::of(&server);
    let owner = client.owned("default", "owner", &[], false).await;
    let mut stale = owner.clone();
    stale["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000".into();
    client.owned("default", "of-another-uid", &[&stale], false).await;
    client.owned("kube-public", "elsewhere", &[&owner], false).await;
    client.owned("default", "stays", &[&owner], false).await;
    client.gone(&map("of-another-uid")).await;
    client.gone(&format!("{}/elsewhere", maps("kube-public"))).await;
    assert!(client.exists(&map("stays")).await);
    server.stop().await;
}

#[tokio::test]
async fn an_owner_of_a_kind_that_is_not_served_is_left_open_and_delays_nobody() {
    let Running { server, directory: _directory } = started().await;
    let client = Client::of(&server);
    let strange =
        json!({"apiVersion": "nowhere.dev/v1", "kind": "Thing", "metadata": {"name": "x", "uid": "u"}});
    for n in 0..40 {
        client.owned("default", &format!("strange-{n}"), &[&strange], false).await;
    }
    let owner = client.owned("default", "owner", &[], false).await;
    client.owned("default", "child", &[&owner], false).await;
    client.delete(&map("owner"), "Background").await;
    client.gone(&map("child")).await;
    assert!(client.exists(&map("strange-0")).await);
    server.stop().await;
}

#[tokio::test]
async fn in_the_foreground_an_owner_waits_for_what_blocks_it() {
    let Running { server, directory: _directory } = started().await;
    let client = Client::of(&server);
    let owner = client.owned("default", "owner", &[], false).await;
    client.owned("default", "blocking", &[&owner], true).await;
    client.owned("default", "free", &[&owner], false).await;
    client.merge(&map("blocking"), json!({"metadata": {"finalizers": ["test.dev/hold"]}})).await;
    client.delete(&map("owner"), "Foreground").await;
    client.gone(&map("free")).await;
    until("the blocking one is being deleted", || async {
        client.get(&map("blocking")).await.unwrap().pointer("/metadata/deletionTimestamp").is_some()
    })
    .await;
    let waiting = client.get(&map("owner")).await.unwrap();
    assert_eq!(waiting["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    client.merge(&map("blocking"), json!({"metadata": {"finalizers": null}})).await;
    client.gone(&map("blocking")).await;
    client.gone(&map("owner")).await;
    server.stop().await;
}

#[tokio::test]
async fn a_circle_of_owners_does_not_wait_for_itself() {
    let Running { server, directory: _directory } = started().await;
    let client = Client::of(&server);
    let one = client.owned("default", "one", &[], false).await;
    let two = client.owned("default", "two", &[&one], true).await;
    client.merge(&map("one"), json!({"metadata": {"ownerReferences": [reference(&two, true)]}})).await;
    client.delete(&map("one"), "Foreground").await;
    client.gone(&map("one")).await;
    client.gone(&map("two")).await;
    server.stop().await;
}

#[tokio::test]
async fn orphans_stay_and_forget_their_owner() {
    let Running { server, directory: _directory } = started().await;
    let client = Client::of(&server);
    let owner = client.owned("default", "owner", &[], false).await;
    client.owned("default", "orphan", &[&owner], true).await;
    client.delete(&map("owner"), "Orphan").await;
    client.gone(&map("owner")).await;
    let orphan = client.get(&map("orphan")).await.unwrap();
    assert_eq!(orphan.pointer("/metadata/ownerReferences"), None);
    server.stop().await;
}

#[tokio::test]
async fn a_namespace_takes_its_content_along_and_waits_for_finalizers() {
    let Running { server, directory: _directory } = started().await;
    let client = Client::of(&server);
    client
        .create(
            "/api/v1/namespaces",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}),
        )
        .await;
    for path in ["serviceaccounts/default", "configmaps/kube-root-ca.crt"] {
        let path = format!("/api/v1/namespaces/team/{path}");
        until(&path, || async { client.exists(&path).await }).await;
    }
    let held = client.owned("team", "held", &[], false).await;
    assert_eq!(held["metadata"]["namespace"], "team");
    client.owned("team", "plain", &[], false).await;
    let held = format!("{}/held", maps("team"));
    client.merge(&held, json!({"metadata": {"finalizers": ["test.dev/hold"]}})).await;
    client.delete("/api/v1/namespaces/team", "Background").await;
    client.gone(&format!("{}/plain", maps("team"))).await;
    client.gone("/api/v1/namespaces/team/serviceaccounts/default").await;
    until("the namespace says what is left", || async {
        let namespace = client.get("/api/v1/namespaces/team").await.unwrap();
        let conditions = namespace.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
        conditions.iter().any(|condition| {
            condition["message"] == "Some content in the namespace has finalizers remaining: test.dev/hold in 1 resource instances"
        })
    })
    .await;
    assert_eq!(
        client.send("POST", &maps("team"), "application/json", json!({"metadata": {"name": "late"}})).await,
        Err(403),
        "nothing new comes in"
    );
    client.merge(&held, json!({"metadata": {"finalizers": null}})).await;
    client.gone("/api/v1/namespaces/team").await;
    assert_eq!(
        client.send("DELETE", "/api/v1/namespaces/default", "application/json", Value::Null).await,
        Err(403)
    );
    server.stop().await;
}

#[tokio::test]
async fn what_every_namespace_has_comes_back() {
    let Running { server, directory: _directory } = started().await;
    let client = Client::of(&server);
    let account = "/api/v1/namespaces/default/serviceaccounts/default";
    let bundle = map("kube-root-ca.crt");
    until("both are there", || async { client.exists(account).await && client.exists(&bundle).await }).await;
    assert_eq!(client.get(&bundle).await.unwrap()["data"]["ca.crt"], server.authority_pem());
    let uid = client.get(account).await.unwrap()["metadata"]["uid"].clone();
    client.delete(account, "Background").await;
    client.merge(&bundle, json!({"data": {"ca.crt": "forged"}})).await;
    until("a new account", || async {
        client.get(account).await.is_some_and(|new| new["metadata"]["uid"] != uid)
    })
    .await;
    until("the true certificate", || async {
        client.get(&bundle).await.is_some_and(|new| new["data"]["ca.crt"] == server.authority_pem())
    })
    .await;
    server.stop().await;
}

fn definition(name: &str, kind: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("{name}.test.dev")},
        "spec": {"group": "test.dev", "scope": "Namespaced",
                 "names": {"plural": name, "singular": name.trim_end_matches('s'), "kind": kind, "listKind": format!("{kind}List")},
                 "versions": [{"name": "v1", "served": true, "storage": true,
                               "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}
    })
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

async fn condition(client: &Client, name: &str, kind: &str) -> String {
    let definition = client.get(&format!("{DEFINITIONS}/{name}.test.dev")).await.unwrap_or_default();
    let conditions =
        definition.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let condition = conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default();
    format!(
        "{} {}",
        condition["status"].as_str().unwrap_or("-"),
        condition["message"].as_str().unwrap_or("-")
    )
}

#[tokio::test]
async fn definitions_are_established_and_take_their_instances_along() {
    let Running { server, directory: _directory } = started().await;
    let client = Client::of(&server);
    client.create(DEFINITIONS, definition("widgets", "Widget")).await;
    until("widgets are established", || async {
        condition(&client, "widgets", "Established").await.starts_with("True")
    })
    .await;
    let widgets = "/apis/test.dev/v1/namespaces/default/widgets";
    let widget =
        |name: &str| json!({"apiVersion": "test.dev/v1", "kind": "Widget", "metadata": {"name": name}});
    let owner = client.create(widgets, widget("one")).await;
    client.create("/apis/test.dev/v1/namespaces/kube-public/widgets", widget("two")).await;
    client.owned("default", "of-a-widget", &[&owner], false).await;

    client.create(DEFINITIONS, definition("gadgets", "Widget")).await;
    until("the name is refused", || async {
        condition(&client, "gadgets", "NamesAccepted").await == "False \"Widget\" is already in use"
    })
    .await;

    client.delete(&format!("{DEFINITIONS}/widgets.test.dev"), "Background").await;
    client.gone(&format!("{DEFINITIONS}/widgets.test.dev")).await;
    let left = server.store().snapshot().count(&crate::store::Collection::new("test.dev", "widgets"), None);
    assert_eq!(left, 0);
    until("the name is free", || async {
        condition(&client, "gadgets", "Established").await.starts_with("True")
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn given_definitions_are_installed_once_and_brought_up_to_date() {
    let directory = tempfile::tempdir().unwrap();
    let with = |description: &str| {
        let mut definition = definition("widgets", "Widget");
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = description.into();
        let mut options = options(directory.path());
        options.definitions = vec![serde_json::from_value(definition).unwrap()];
        options
    };
    let revision = |server: &Server| {
        let key = crate::store::Key::new(super::feed::custom_resource_definitions(), "", "widgets.test.dev");
        server.store().snapshot().get(&key).unwrap().revision
    };
    let server = Server::start(with("first")).await.unwrap();
    let client = Client::of(&server);
    assert!(client.exists("/apis/test.dev/v1/widgets").await, "served as soon as the server is");
    let first = revision(&server);
    server.stop().await;
    let server = Server::start(with("first")).await.unwrap();
    assert_eq!(revision(&server), first, "unchanged, so not written");
    server.stop().await;
    let server = Server::start(with("second")).await.unwrap();
    let stored = Client::of(&server).get(&format!("{DEFINITIONS}/widgets.test.dev")).await.unwrap();
    let description = stored.pointer("/spec/versions/0/schema/openAPIV3Schema/description").unwrap();
    assert_eq!(description, "second");
    let roles =
        Client::of(&server).get("/apis/rbac.authorization.k8s.io/v1/clusterroles/edit").await.unwrap();
    assert!(roles.to_string().contains("widgets"), "editors may write what is installed");
    server.stop().await;
}
