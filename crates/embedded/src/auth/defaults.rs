//! The roles that a cluster has from the start, over the kinds that this API serves.
//!
//! The names and what they mean are Kubernetes' own. Two things differ: `admin`, `edit` and `view` are whole roles (nothing is
//! aggregated here), and `/version` is not public: it is told to authenticated users only.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::identity::{AUTHENTICATED_GROUP, MASTERS_GROUP, UNAUTHENTICATED_GROUP};

/// Marks what this list installed; `autoupdate: "false"` on an object keeps hands off it.
pub const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const BOOTSTRAPPING: (&str, &str) = ("kubernetes.io/bootstrapping", "rbac-defaults");
const RBAC: &str = "rbac.authorization.k8s.io";

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];
const READ_WRITE: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// A namespaced custom resource that is there from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    pub group: String,
    pub plural: String,
    pub writers: Writers,
}

/// Who may write a custom resource by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    Editors,
    /// A decision over what editors wrote: being one must not be enough.
    Admins,
}

pub fn cluster_roles(installed: &[Installed]) -> Vec<ClusterRole> {
    let health = ["/healthz", "/livez", "/readyz"];
    let discovery = ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", "/version", "/version/"];
    let everything = vec![rule(&["*"], &["*"], &["*"]), paths(&["*"])];
    let everything =
        everything.into_iter().map(|rule| PolicyRule { verbs: vec!["*".to_owned()], ..rule }).collect();
    let view = view_rules(installed);
    let edit = [edit_rules(installed, Writers::Editors), view.clone()].concat();
    let admin = [
        vec![
            rule(READ_WRITE, &[RBAC], &["rolebindings", "roles"]),
            rule(&["create"], &["authorization.k8s.io"], &["localsubjectaccessreviews"]),
        ],
        write_rules(installed, Writers::Admins),
        edit.clone(),
    ]
    .concat();
    vec![
        role("cluster-admin", everything),
        role("admin", admin),
        role("edit", edit),
        role("view", view),
        role("system:discovery", vec![paths(&[&health[..], &discovery[..]].concat())]),
        role(
            "system:monitoring",
            vec![paths(&[&health[..], &["/healthz/*", "/livez/*", "/metrics", "/readyz/*"]].concat())],
        ),
        role(
            "system:basic-user",
            vec![
                rule(
                    &["create"],
                    &["authorization.k8s.io"],
                    &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
                ),
                rule(&["create"], &["authentication.k8s.io"], &["selfsubjectreviews"]),
            ],
        ),
        role("system:public-info-viewer", vec![paths(&health)]),
        role(
            "system:auth-delegator",
            vec![
                rule(&["create"], &["authentication.k8s.io"], &["tokenreviews"]),
                rule(&["create"], &["authorization.k8s.io"], &["subjectaccessreviews"]),
            ],
        ),
    ]
}

pub fn cluster_role_bindings() -> Vec<ClusterRoleBinding> {
    vec![
        binding("cluster-admin", &[MASTERS_GROUP]),
        binding("system:monitoring", &["system:monitoring"]),
        binding("system:discovery", &[AUTHENTICATED_GROUP]),
        binding("system:basic-user", &[AUTHENTICATED_GROUP]),
        binding("system:public-info-viewer", &[AUTHENTICATED_GROUP, UNAUTHENTICATED_GROUP]),
    ]
}

fn view_rules(installed: &[Installed]) -> Vec<PolicyRule> {
    let mut rules = vec![
        // Not secrets: reading one can mean becoming somebody else.
        rule(
            READ,
            &[""],
            &[
                "configmaps",
                "namespaces",
                "namespaces/status",
                "pods",
                "pods/log",
                "pods/status",
                "serviceaccounts",
                "services",
            ],
        ),
        rule(READ, &["", "events.k8s.io"], &["events"]),
        rule(READ, &["batch"], &["jobs", "jobs/status"]),
        rule(READ, &["networking.k8s.io"], &["ingresses", "ingresses/status"]),
    ];
    rules.extend(installed.iter().map(|custom| {
        let status = format!("{}/status", custom.plural);
        rule(READ, &[&custom.group], &[&custom.plural, &status])
    }));
    rules
}

fn edit_rules(installed: &[Installed], writers: Writers) -> Vec<PolicyRule> {
    let mut rules = vec![
        rule(READ, &[""], &["secrets"]),
        rule(&["impersonate"], &[""], &["serviceaccounts"]),
        rule(WRITE, &[""], &["configmaps", "pods", "secrets", "serviceaccounts"]),
        rule(&["create"], &[""], &["serviceaccounts/token"]),
        rule(WRITE, &["", "events.k8s.io"], &["events"]),
        rule(WRITE, &["batch"], &["jobs"]),
        rule(WRITE, &["networking.k8s.io"], &["ingresses"]),
        rule(READ_WRITE, &["coordination.k8s.io"], &["leases"]),
    ];
    rules.extend(write_rules(installed, writers));
    rules
}

fn write_rules(installed: &[Installed], writers: Writers) -> Vec<PolicyRule> {
    let written = installed.iter().filter(|custom| custom.writers == writers);
    written.map(|custom| rule(WRITE, &[&custom.group], &[&custom.plural])).collect()
}

fn strings(items: &[&str]) -> Vec<String> {
    items.iter().map(|&item| item.to_owned()).collect()
}

fn rule(verbs: &[&str], groups: &[&str], resources: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(strings(groups)),
        resources: Some(strings(resources)),
        verbs: strings(verbs),
        ..PolicyRule::default()
    }
}

fn paths(paths: &[&str]) -> PolicyRule {
    PolicyRule { non_resource_urls: Some(strings(paths)), verbs: strings(&["get"]), ..PolicyRule::default() }
}

fn metadata(name: &str) -> ObjectMeta {
    let (label, value) = BOOTSTRAPPING;
    ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some([(label.to_owned(), value.to_owned())].into()),
        annotations: Some([(AUTOUPDATE.to_owned(), "true".to_owned())].into()),
        ..ObjectMeta::default()
    }
}

fn role(name: &str, rules: Vec<PolicyRule>) -> ClusterRole {
    ClusterRole { metadata: metadata(name), rules: Some(rules), aggregation_rule: None }
}

fn binding(role: &str, groups: &[&str]) -> ClusterRoleBinding {
    let subject = |group: &&str| Subject {
        api_group: Some(RBAC.to_owned()),
        kind: "Group".to_owned(),
        name: (*group).to_owned(),
        namespace: None,
    };
    ClusterRoleBinding {
        metadata: metadata(role),
        role_ref: RoleRef {
            api_group: RBAC.to_owned(),
            kind: "ClusterRole".to_owned(),
            name: role.to_owned(),
        },
        subjects: Some(groups.iter().map(subject).collect()),
    }
}
