//! Who the roles are to the API, and what they may do there: the same in process as on a cluster.

use anyhow::Context;
use api::{CONTROLLER_ACCOUNT, GROUP, SERVER_ACCOUNT, SYSTEM_NAMESPACE, WORKLOAD_GROUP};
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
        { "apiGroups": [GROUP], "resources": ["terraformrepositories", "terraformlayers", "terraformnotifications", "repos"], "verbs": ["get", "list", "watch"] },
        { "apiGroups": [WORKLOAD_GROUP], "resources": ["terraforms"], "verbs": ["get", "list", "watch", "patch"] },
        { "apiGroups": [WORKLOAD_GROUP], "resources": ["terraforms/status"], "verbs": ["update"] },
        { "apiGroups": [GROUP], "resources": ["terraformlayers"], "verbs": ["delete"] },
        { "apiGroups": [GROUP], "resources": ["terraformapprovals"], "verbs": ["list", "watch"] },
        { "apiGroups": [GROUP], "resources": ["terraformrepositories", "terraformlayers"], "verbs": ["create", "patch"] },
        { "apiGroups": [GROUP], "resources": ["terraformruns"], "verbs": ["get", "list", "watch", "create", "delete"] },
        { "apiGroups": [GROUP], "resources": ["terraformrepositories/status", "terraformlayers/status", "terraformruns/status", "terraformapprovals/status", "terraformnotifications/status", "repos/status"], "verbs": ["update"] },
        { "apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "create"] },
        { "apiGroups": ["batch"], "resources": ["jobs/status"], "verbs": ["update"] },
        { "apiGroups": [""], "resources": ["services"], "verbs": ["list", "watch"] },
        { "apiGroups": ["networking.k8s.io"], "resources": ["ingresses"], "verbs": ["list", "watch"] },
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

    /// Group, resource, verb and, where it is about some alone, the name of each right.
    fn flat(rules: &Value) -> BTreeSet<[String; 4]> {
        let words = |value: &Value| -> Vec<String> {
            value.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
        };
        let mut rights = BTreeSet::new();
        for rule in rules.as_array().unwrap() {
            for group in words(&rule["apiGroups"]) {
                for resource in words(&rule["resources"]) {
                    let verbs = words(&rule["verbs"]).into_iter();
                    let names = rule.get("resourceNames").map_or_else(|| vec![String::new()], words);
                    rights.extend(verbs.flat_map(|verb| {
                        let right =
                            |name: &String| [group.clone(), resource.clone(), verb.clone(), name.clone()];
                        names.iter().map(right).collect::<Vec<_>>()
                    }));
                }
            }
        }
        rights
    }

    /// Without those on one name that all names have.
    fn widest(rights: BTreeSet<[String; 4]>) -> BTreeSet<[String; 4]> {
        let is_given_for_all = |[group, resource, verb, _]: &[String; 4]| {
            rights.contains(&[group.clone(), resource.clone(), verb.clone(), String::new()])
        };
        let needed = |right: &&[String; 4]| right[3].is_empty() || !is_given_for_all(right);
        rights.iter().filter(needed).cloned().collect()
    }

    /// What the roles of the chart give a part, wherever they are bound.
    fn of_chart(account: &str) -> BTreeSet<[String; 4]> {
        let rendered = include_str!("../../../../charts/tests/rendered/default.yaml");
        let of_part = [account.to_owned(), format!("{account}-tenant")];
        let roles = rendered.split("\n---\n").filter(|document| {
            document.lines().any(|line| ["kind: ClusterRole", "kind: Role"].contains(&line))
        });
        let roles = roles.map(|document| serde_saphyr::from_str::<Value>(document).unwrap());
        let of_part = roles.filter(|role| of_part.iter().any(|name| role["metadata"]["name"] == **name));
        of_part.flat_map(|role| flat(&role["rules"])).collect()
    }

    /// A field that the policy does not name could be written by the server, which takes what strangers send.
    #[test]
    fn the_policy_on_webhooks_names_all_of_a_repositorys_status_but_the_wish() {
        let rendered = include_str!("../../../../charts/tests/rendered/default.yaml");
        let policy = rendered
            .split("\n---\n")
            .find(|one| {
                one.contains("kind: ValidatingAdmissionPolicy\n") && one.contains("name: terrane-webhooks")
            })
            .unwrap();
        let definitions = serde_json::to_value(api::custom_resources()).unwrap();
        let is_repository = |one: &&Value| one["spec"]["names"]["plural"] == "terraformrepositories";
        let definition = definitions.as_array().unwrap().iter().find(is_repository).unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let fields = schema["properties"]["status"]["properties"].as_object().unwrap();
        assert!(fields.contains_key("webhook") && fields.len() > 3, "{fields:?}");
        for field in fields.keys() {
            let named = format!("object.?status.?{field} == oldObject.?status.?{field}");
            assert_eq!(policy.contains(&named), field != "webhook", "{field}");
        }
    }

    /// The chart's rights are compared with an audit log, both ways; `up` gives its parts the same and no more.
    #[test]
    fn the_parts_may_do_on_one_machine_what_they_may_on_a_cluster() {
        for (account, rules) in [
            (CONTROLLER_ACCOUNT, controller_rules()),
            (DATASTORE_ACCOUNT, datastore_rules()),
            (SERVER_ACCOUNT, crate::up::people::rules()),
        ] {
            assert_eq!(widest(flat(&rules)), widest(of_chart(account)), "{account}");
        }
    }
}
