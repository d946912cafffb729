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
        { "apiGroups": [GROUP], "resources": ["terraformrepositories", "terraformlayers", "repos"], "verbs": ["get", "list", "watch"] },
        { "apiGroups": [GROUP], "resources": ["terraformapprovals"], "verbs": ["list", "watch"] },
        { "apiGroups": [GROUP], "resources": ["terraformrepositories", "terraformlayers"], "verbs": ["create", "patch"] },
        { "apiGroups": [GROUP], "resources": ["terraformruns"], "verbs": ["get", "list", "watch", "create", "delete"] },
        { "apiGroups": [GROUP], "resources": ["terraformrepositories/status", "terraformlayers/status", "terraformruns/status", "terraformapprovals/status", "repos/status"], "verbs": ["update"] },
        { "apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "create"] },
        { "apiGroups": ["batch"], "resources": ["jobs/status"], "verbs": ["update"] },
        { "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "patch", "delete"] },
        { "apiGroups": [""], "resources": ["secrets", "configmaps"], "verbs": ["get", "list", "watch", "create", "patch", "delete"] },
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use std::collections::BTreeSet;

    use super::*;

    /// Group, resource and verb of each right.
    fn flat(rules: &Value) -> BTreeSet<[String; 3]> {
        let words = |value: &Value| -> Vec<String> {
            value.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
        };
        let mut rights = BTreeSet::new();
        for rule in rules.as_array().unwrap() {
            for group in words(&rule["apiGroups"]) {
                for resource in words(&rule["resources"]) {
                    let verbs = words(&rule["verbs"]).into_iter();
                    rights.extend(verbs.map(|verb| [group.clone(), resource.clone(), verb]));
                }
            }
        }
        rights
    }

    /// What the roles of the chart give a part, wherever they are bound.
    fn of_chart(account: &str) -> BTreeSet<[String; 3]> {
        let rendered = include_str!("../../../../charts/tests/rendered/default.yaml");
        let of_part = [account.to_owned(), format!("{account}-tenant")];
        let roles = rendered.split("\n---\n").filter(|document| {
            document.lines().any(|line| ["kind: ClusterRole", "kind: Role"].contains(&line))
        });
        let roles = roles.map(|document| serde_saphyr::from_str::<Value>(document).unwrap());
        let of_part = roles.filter(|role| of_part.iter().any(|name| role["metadata"]["name"] == **name));
        of_part.flat_map(|role| flat(&role["rules"])).collect()
    }

    /// The chart's rights are compared with an audit log, both ways; `up` gives its parts the same and no more.
    #[test]
    fn the_parts_may_do_on_one_machine_what_they_may_on_a_cluster() {
        for (account, rules) in [
            (CONTROLLER_ACCOUNT, controller_rules()),
            (DATASTORE_ACCOUNT, datastore_rules()),
            (SERVER_ACCOUNT, crate::up::people::rules()),
        ] {
            assert_eq!(flat(&rules), of_chart(account), "{account}");
        }
    }
}
