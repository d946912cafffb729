//! Every right of every subject, found by name: what RBAC objects say, turned round so that a check looks only at the rules
//! of who asks. Immutable; built anew when a role or a binding changes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::identity::service_account_user;
use super::{Attributes, Identity, Verdict, rules};
use crate::schema::wording::quoted;

/// The four kinds that RBAC is made of, as they were at one revision.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub cluster_roles: Vec<ClusterRole>,
    pub roles: Vec<Role>,
    pub cluster_role_bindings: Vec<ClusterRoleBinding>,
    pub role_bindings: Vec<RoleBinding>,
}

#[derive(Debug, Default)]
pub struct Index {
    cluster_roles: HashMap<String, Arc<[PolicyRule]>>,
    /// By namespace and name.
    roles: HashMap<(String, String), Arc<[PolicyRule]>>,
    users: HashMap<String, Grants>,
    groups: HashMap<String, Grants>,
}

#[derive(Debug, Default)]
struct Grants {
    cluster: Vec<Grant>,
    namespaces: HashMap<String, Vec<Grant>>,
}

/// What one binding gives to one of its subjects.
#[derive(Clone, Debug)]
struct Grant {
    /// Position of the binding among all, so that a user met twice by one binding is given its rules once.
    binding: usize,
    rules: Result<Arc<[PolicyRule]>, MissingRole>,
    /// Who gave it, as an access review tells it.
    source: Arc<str>,
}

/// A binding that names a role which does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MissingRole {
    #[error("clusterrole.rbac.authorization.k8s.io {} not found", quoted(.0))]
    ClusterRole(String),
    #[error("role.rbac.authorization.k8s.io {} not found", quoted(.0))]
    Role(String),
    #[error("unsupported role reference kind: {}", quoted(.0))]
    Kind(String),
}

impl Index {
    /// O(roles + subjects of all bindings).
    pub fn build(objects: Objects) -> Self {
        let mut index = Index::default();
        for role in objects.cluster_roles {
            let rules = role.rules.unwrap_or_default().into();
            index.cluster_roles.insert(role.metadata.name.unwrap_or_default(), rules);
        }
        for role in objects.roles {
            let key = (role.metadata.namespace.unwrap_or_default(), role.metadata.name.unwrap_or_default());
            index.roles.insert(key, role.rules.unwrap_or_default().into());
        }
        let cluster = objects
            .cluster_role_bindings
            .into_iter()
            .map(|binding| ("", binding.metadata, binding.role_ref, binding.subjects));
        let namespaced = objects.role_bindings.into_iter().map(|mut binding| {
            let namespace = binding.metadata.namespace.take();
            (namespace.unwrap_or_default(), binding.metadata, binding.role_ref, binding.subjects)
        });
        let all =
            cluster.map(|(ns, meta, role, subjects)| (ns.to_owned(), meta, role, subjects)).chain(namespaced);
        for (binding, (namespace, metadata, role_ref, subjects)) in all.enumerate() {
            index.bind(binding, &namespace, &metadata, &role_ref, &subjects.unwrap_or_default());
        }
        index
    }

    fn bind(
        &mut self,
        binding: usize,
        namespace: &str,
        metadata: &ObjectMeta,
        role_ref: &RoleRef,
        subjects: &[Subject],
    ) {
        let rules = self.role_rules(role_ref, namespace);
        let name = metadata.name.as_deref().unwrap_or_default();
        for subject in subjects {
            let account_namespace =
                subject.namespace.as_deref().filter(|ns| !ns.is_empty()).unwrap_or(namespace);
            let grants = match subject.kind.as_str() {
                "User" => self.users.entry(subject.name.clone()),
                "Group" => self.groups.entry(subject.name.clone()),
                // Without a namespace of its own or of its binding it means nobody.
                "ServiceAccount" if !account_namespace.is_empty() => {
                    self.users.entry(service_account_user(account_namespace, &subject.name))
                }
                _ => continue,
            }
            .or_default();
            let source = source(namespace, name, role_ref, subject, account_namespace).into();
            let grant = Grant { binding, rules: rules.clone(), source };
            if namespace.is_empty() {
                grants.cluster.push(grant);
            } else {
                grants.namespaces.entry(namespace.to_owned()).or_default().push(grant);
            }
        }
    }

    /// The rules of the role that a binding in `namespace` (empty for the cluster) names.
    pub fn role_rules(&self, role: &RoleRef, namespace: &str) -> Result<Arc<[PolicyRule]>, MissingRole> {
        match role.kind.as_str() {
            "ClusterRole" => self
                .cluster_roles
                .get(&role.name)
                .cloned()
                .ok_or_else(|| MissingRole::ClusterRole(role.name.clone())),
            "Role" => self
                .roles
                .get(&(namespace.to_owned(), role.name.clone()))
                .cloned()
                .ok_or_else(|| MissingRole::Role(role.name.clone())),
            other => Err(MissingRole::Kind(other.to_owned())),
        }
    }

    /// O(rules of the subject).
    pub fn check(&self, identity: &Identity, attributes: &Attributes<'_>) -> Verdict {
        let mut missing = Vec::new();
        for grant in self.grants(identity, attributes.namespace()) {
            match &grant.rules {
                Ok(held) if held.iter().any(|rule| rules::allows(rule, attributes)) => {
                    return Verdict::Allowed { reason: grant.source.clone() };
                }
                Ok(_) => {}
                Err(error) => missing.push(error),
            }
        }
        Verdict::Denied { reason: reason(&missing) }
    }

    /// Every rule that the subject holds in `namespace` (empty: in the cluster only), and what could not be resolved.
    pub fn rules_of(&self, identity: &Identity, namespace: &str) -> (Vec<&PolicyRule>, Vec<&MissingRole>) {
        let mut seen = BTreeSet::new();
        let (mut held, mut missing) = (Vec::new(), Vec::new());
        for grant in self.grants(identity, namespace) {
            if seen.insert(grant.binding) {
                match &grant.rules {
                    Ok(rules) => held.extend(rules.iter()),
                    Err(error) => missing.push(error),
                }
            }
        }
        (held, missing)
    }

    fn grants(&self, identity: &Identity, namespace: &str) -> impl Iterator<Item = &Grant> {
        let subjects: Vec<&Grants> = self
            .users
            .get(&*identity.user)
            .into_iter()
            .chain(identity.groups.iter().filter_map(|group| self.groups.get(group)))
            .collect();
        let local: Vec<&Grant> =
            subjects.iter().filter_map(|grants| grants.namespaces.get(namespace)).flatten().collect();
        subjects.into_iter().flat_map(|grants| grants.cluster.iter()).chain(local)
    }
}

/// `RBAC: ` and what is missing, as the end of a refusal; empty when nothing is.
fn reason(missing: &[&MissingRole]) -> String {
    match aggregate(missing) {
        text if text.is_empty() => text,
        text => format!("RBAC: {text}"),
    }
}

/// Errors as Go's aggregate prints them: each once, in brackets when there are several.
pub(super) fn aggregate(errors: &[&MissingRole]) -> String {
    let mut texts: Vec<String> = Vec::new();
    for text in errors.iter().map(ToString::to_string) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    match texts.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

fn source(namespace: &str, name: &str, role: &RoleRef, subject: &Subject, account_namespace: &str) -> String {
    let (kind, binding) = match namespace {
        "" => ("ClusterRoleBinding", quoted(name)),
        namespace => ("RoleBinding", quoted(&format!("{name}/{namespace}"))),
    };
    let who = match subject.kind.as_str() {
        "ServiceAccount" => quoted(&format!("{}/{account_namespace}", subject.name)),
        _ => quoted(&subject.name),
    };
    let role = format!("{} {}", role.kind, quoted(&role.name));
    format!("RBAC: allowed by {kind} {binding} of {role} to {} {who}", subject.kind)
}
