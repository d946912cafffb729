//! Who the roles are to the API, and what they may do there: the same in process as on a cluster.

use anyhow::Context;
use api::{CONTROLLER_ACCOUNT, GROUP, SERVER_ACCOUNT, SYSTEM_NAMESPACE};
use embedded::auth::Identity;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

const DATASTORE_ACCOUNT: &str = "terrane-datastore";

pub(super) fn controller() -> Identity {
    Identity::service_account(SYSTEM_NAMESPACE, CONTROLLER_ACCOUNT)
}

pub(super) fn datastore() -> Identity {
    Identity::service_account(SYSTEM_NAMESPACE, DATASTORE_ACCOUNT)
}

/// Accounts, roles and bindings. Server-side apply: a restart writes nothing.
pub(super) async fn install(client: &Client) -> anyhow::Result<()> {
    let accounts = [
        (CONTROLLER_ACCOUNT, controller_rules()),
        (DATASTORE_ACCOUNT, datastore_rules()),
        (SERVER_ACCOUNT, super::people::rules()),
    ];
    for (account, rules) in accounts {
        let doing = || format!("give {account} its rights");
        let manager = PatchParams::apply("terrane-up").force();
        let object = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": account } });
        Api::<ServiceAccount>::namespaced(client.clone(), SYSTEM_NAMESPACE)
            .patch(account, &manager, &Patch::Apply(object))
            .await
            .with_context(doing)?;
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": account }, "rules": rules,
        });
        Api::<ClusterRole>::all(client.clone())
            .patch(account, &manager, &Patch::Apply(role))
            .await
            .with_context(doing)?;
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": account },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account },
            "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": SYSTEM_NAMESPACE }],
        });
        Api::<ClusterRoleBinding>::all(client.clone())
            .patch(account, &manager, &Patch::Apply(binding))
            .await
            .with_context(doing)?;
    }
    Ok(())
}

fn controller_rules() -> Value {
    json!([
        { "apiGroups": [GROUP], "resources": ["terraformrepositories", "terraformlayers"], "verbs": ["get", "list", "watch"] },
        { "apiGroups": [GROUP], "resources": ["terraformapprovals"], "verbs": ["list", "watch"] },
        { "apiGroups": [GROUP], "resources": ["terraformlayers"], "verbs": ["patch"] },
        { "apiGroups": [GROUP], "resources": ["terraformruns"], "verbs": ["get", "list", "watch", "create", "delete"] },
        { "apiGroups": [GROUP], "resources": ["terraformrepositories/status", "terraformlayers/status", "terraformruns/status"], "verbs": ["update"] },
        { "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "patch", "delete"] },
        { "apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch", "create"] },
        { "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"] },
        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "list", "watch", "create", "update"] },
        { "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] },
    ])
}

fn datastore_rules() -> Value {
    json!([
        { "apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"] },
        { "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] },
    ])
}
