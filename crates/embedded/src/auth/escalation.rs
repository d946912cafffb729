//! Nobody gives away more than they have: the check on writing roles and bindings.

use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::identity::MASTERS_GROUP;
use super::index::{Index, MissingRole, aggregate};
use super::refusal::quoted_list;
use super::{Attributes, Authorizer, Identity, Refusal, Resource, rules};
use crate::schema::wording::quoted;

pub const GROUP: &str = "rbac.authorization.k8s.io";

/// The field of a role or a binding that decides what it gives.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Granting {
    #[serde(default)]
    rules: Option<Vec<PolicyRule>>,
    #[serde(default)]
    role_ref: Option<RoleRef>,
}

/// Refuses a role whose rules, or a binding whose role's rules, the writer does not hold.
///
/// `written` is what the request names (for a create its name is empty), `object` what would be stored, `old` what is.
pub fn check(
    authorizer: &Authorizer,
    identity: &Identity,
    written: Resource<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), Refusal> {
    let kind = written.resource;
    let is_role = matches!(kind, "roles" | "clusterroles");
    let is_binding = matches!(kind, "rolebindings" | "clusterrolebindings");
    if written.group != GROUP || !(is_role || is_binding) || identity.is_in(MASTERS_GROUP) {
        return Ok(());
    }
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    // A finalizer or an owner may be taken away by whoever cleans up, without holding what the role gives.
    if old.is_some_and(|old| differ_only_in_collection_fields(object, old)) {
        return Ok(());
    }
    let granting = Granting::deserialize(object)
        .map_err(|error| Refusal::bad_request(format!("{kind} {} cannot be read: {error}", quoted(name))))?;
    let index = authorizer.index();
    let granted: Vec<PolicyRule> = if is_role {
        let escalate = Attributes::resource("escalate", Resource { version: "*", ..written });
        if authorizer.check(identity, &escalate).is_allowed() {
            return Ok(());
        }
        granting.rules.unwrap_or_default()
    } else {
        let Some(role) = granting.role_ref else { return Ok(()) };
        if may_bind(authorizer, identity, &role, written.namespace) {
            return Ok(());
        }
        match index.role_rules(&role, written.namespace) {
            Ok(rules) => rules.to_vec(),
            Err(MissingRole::ClusterRole(role)) => {
                return Err(Refusal::not_found(GROUP, "clusterroles", &role));
            }
            Err(MissingRole::Role(role)) => return Err(Refusal::not_found(GROUP, "roles", &role)),
            Err(error @ MissingRole::Kind(_)) => return Err(Refusal::internal(&error.to_string())),
        }
    };
    confirm(&index, identity, written.namespace, &granted)
        .map_err(|why| Refusal::forbidden_object(GROUP, kind, name, &why))?;
    let aggregates = |object: &Value| {
        object
            .pointer("/aggregationRule/clusterRoleSelectors")
            .and_then(Value::as_array)
            .is_some_and(|selectors| !selectors.is_empty())
    };
    if aggregates(object) || old.is_some_and(aggregates) {
        let everything = [everything(), every_path()];
        confirm(&index, identity, "", &everything).map_err(|_| {
            let why = "must have cluster-admin privileges to use the aggregationRule";
            Refusal::forbidden_object(GROUP, kind, name, why)
        })?;
    }
    Ok(())
}

/// `bind` on the role itself, in the namespace of the binding, is enough.
fn may_bind(authorizer: &Authorizer, identity: &Identity, role: &RoleRef, namespace: &str) -> bool {
    let resource = match role.kind.as_str() {
        "ClusterRole" => "clusterroles",
        "Role" => "roles",
        _ => return false,
    };
    let bind = Resource {
        group: &role.api_group,
        version: "*",
        resource,
        name: &role.name,
        namespace,
        ..Resource::default()
    };
    authorizer.check(identity, &Attributes::resource("bind", bind)).is_allowed()
}

fn confirm(
    index: &Index,
    identity: &Identity,
    namespace: &str,
    granted: &[PolicyRule],
) -> Result<(), String> {
    let (held, missing) = index.rules_of(identity, namespace);
    let uncovered = rules::uncovered(&held, granted);
    if uncovered.is_empty() {
        return Ok(());
    }
    let mut why = format!(
        "user {} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        quoted(&identity.user),
        quoted_list(&identity.groups),
        rules::describe(&uncovered)
    );
    if !missing.is_empty() {
        why.push_str(&format!("; resolution errors: [{}]", aggregate(&missing)));
    }
    Err(why)
}

fn everything() -> PolicyRule {
    let all = || vec!["*".to_owned()];
    PolicyRule { api_groups: Some(all()), resources: Some(all()), verbs: all(), ..PolicyRule::default() }
}

fn every_path() -> PolicyRule {
    let all = || vec!["*".to_owned()];
    PolicyRule { non_resource_urls: Some(all()), verbs: all(), ..PolicyRule::default() }
}

fn differ_only_in_collection_fields(new: &Value, old: &Value) -> bool {
    let stripped = |object: &Value| {
        let mut object = object.clone();
        let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
        let metadata = metadata.map(|metadata: &mut Map<String, Value>| {
            // The revision is given anew with each write and the managers follow from it.
            for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion", "generation"] {
                metadata.remove(field);
            }
        });
        metadata.map(|()| object)
    };
    matches!((stripped(new), stripped(old)), (Some(new), Some(old)) if new == old)
}
