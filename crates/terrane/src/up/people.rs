//! The HTTP service for people as part of `terrane up`: its account and rights, the roles that administrators can give, and the
//! announcement by which the command line finds it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use api::service::{ANNOUNCEMENT, SESSIONS, URL, WEBHOOK_SECRETS, subresource};
use api::{GROUP, SERVER_ACCOUNT, SYSTEM_NAMESPACE, WORKLOAD_GROUP};
use axum::Router;
use datastore::client::TokenSource;
use embedded::auth::Identity;
use embedded::auth::identity::{ADMINISTRATOR, AUTHENTICATED_GROUP, MASTERS_GROUP};
use embedded::serve::Server;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{ClusterRole, Role, RoleBinding};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use server::credential::Credentials;
use tokio::net::TcpListener;

pub(super) fn identity() -> Identity {
    Identity::service_account(SYSTEM_NAMESPACE, SERVER_ACCOUNT)
}

pub(super) fn rules() -> Value {
    json!([
        { "apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"] },
        { "apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"] },
        { "apiGroups": [GROUP], "resources": ["terraformrepositories", "terraformlayers", "terraformruns"], "verbs": ["get", "list", "watch"] },
        // Webhooks: one Secret of each namespace, and the wish that a repository be looked at.
        { "apiGroups": [""], "resources": ["secrets"], "resourceNames": [WEBHOOK_SECRETS], "verbs": ["get"] },
        { "apiGroups": [GROUP], "resources": ["terraformrepositories/status"], "verbs": ["patch"] },
        // A lock is released by hand only when no pod of its holder can still work.
        { "apiGroups": [""], "resources": ["pods"], "verbs": ["list"] },
        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"] },
    ])
}

/// The service, announced, and a link by which whoever started it logs in.
pub(super) struct People<K> {
    pub(super) router: Router,
    /// What must be polled for the service's lists to be true.
    pub(super) keeping: K,
    pub(super) link: SecretString,
}

pub(super) async fn people(
    administrator: &Client,
    server: &Server,
    listener: &TcpListener,
    token_file: &Path,
    deliveries: server::Deliveries,
) -> anyhow::Result<People<impl Future<Output = ()> + Send + use<>>> {
    let address = listener.local_addr().context("find the address of the HTTP service")?;
    let token = TokenSource::File(token_file.to_owned());
    let datastore = datastore::Client::new(&format!("http://{address}"), token)
        .context("prepare the datastore's client")?;
    announce(administrator, address).await?;
    let credentials = Credentials::new(administrator);
    let expires = Timestamp::now().checked_add(server::LINK).context("find out when a link expires")?;
    let word = credentials.make_login(ADMINISTRATOR, expires).await.context("make a link to log in")?;
    let link = format!("http://{address}/login?once={}", word.expose_secret()).into();
    let clients = server.clients();
    let local = server::Local {
        credentials,
        client: administrator.clone(),
        cookie: format!("terrane_{}", address.port()),
        acting: Arc::new(move |user| clients(Identity::new(user, [MASTERS_GROUP, AUTHENTICATED_GROUP]))),
    };
    let (router, keeping) = server::service(server::Options {
        client: server.client(identity()),
        bare: Client::new(server.front(), "default"),
        reviews: server::Reviews::Cluster,
        datastore,
        local: Some(local),
        deliveries,
    });
    Ok(People { router, keeping, link })
}

/// Says where the service is. Server-side apply: the same address at the next start writes nothing.
async fn announce(client: &Client, address: SocketAddr) -> anyhow::Result<()> {
    let manager = PatchParams::apply("terrane-up").force();
    let metadata = json!({ "name": ANNOUNCEMENT });
    let announcement = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { URL: format!("http://{address}"), SESSIONS: "yes" },
    });
    Api::<ConfigMap>::namespaced(client.clone(), SYSTEM_NAMESPACE)
        .patch(ANNOUNCEMENT, &manager, &Patch::Apply(announcement))
        .await
        .context("announce the HTTP service")?;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata,
        "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [ANNOUNCEMENT], "verbs": ["get"] }],
    });
    Api::<Role>::namespaced(client.clone(), SYSTEM_NAMESPACE)
        .patch(ANNOUNCEMENT, &manager, &Patch::Apply(role))
        .await
        .context("let everybody find the HTTP service")?;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ANNOUNCEMENT },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated" }],
    });
    Api::<RoleBinding>::namespaced(client.clone(), SYSTEM_NAMESPACE)
        .patch(ANNOUNCEMENT, &manager, &Patch::Apply(binding))
        .await
        .context("let everybody find the HTTP service")?;
    for (name, rules) in roles() {
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": name }, "rules": rules,
        });
        Api::<ClusterRole>::all(client.clone())
            .patch(name, &manager, &Patch::Apply(role))
            .await
            .with_context(|| format!("install the role {name}"))?;
    }
    Ok(())
}

/// Roles to bind to people, each holding the one before it.
fn roles() -> [(&'static str, Value); 3] {
    let with = |resource: &str, part: &str| format!("{resource}/{part}");
    let (log, plan) = (with("terraformruns", subresource::LOG), with("terraformruns", subresource::PLAN));
    let (outputs, state) =
        (with("terraformlayers", subresource::OUTPUTS), with("terraformlayers", subresource::STATE));
    let kinds = [
        "terraformrepositories",
        "terraformlayers",
        "terraformruns",
        "terraformapprovals",
        "terraformnotifications",
        "repos",
    ];
    let view = [
        json!({ "apiGroups": [GROUP], "resources": kinds, "verbs": ["get", "list", "watch"] }),
        json!({ "apiGroups": [WORKLOAD_GROUP], "resources": ["terraforms"], "verbs": ["get", "list", "watch"] }),
        json!({ "apiGroups": [GROUP], "resources": [log, plan, outputs], "verbs": ["get"] }),
        json!({ "apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["get", "list", "watch"] }),
    ];
    let operate = [
        json!({ "apiGroups": [GROUP], "resources": ["terraformlayers"], "verbs": ["patch"] }),
        json!({ "apiGroups": [GROUP], "resources": ["terraformapprovals"], "verbs": ["create"] }),
    ];
    let states = [json!({ "apiGroups": [GROUP], "resources": [state], "verbs": ["get", "update"] })];
    [
        ("terrane-viewer", json!(view)),
        ("terrane-operator", json!([&view[..], &operate[..]].concat())),
        ("terrane-state-keeper", json!([&view[..], &operate[..], &states[..]].concat())),
    ]
}
