//! What may not be written whatever the rights: the checks between authorization and the store.
//!
//! The HTTP layer calls [`admit`] once per write with what would be stored. It only says yes or no; what a new pod is given by its
//! service account is in `accounts`.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause;
use serde::Deserialize;
use serde_json::Value;

use super::{Authorizer, Identity, Refusal, Resource, escalation};
use crate::schema::wording::quoted;
use crate::store::{Collection, Key, Snapshot, Stored};

/// Namespaces that the cluster itself lives in.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];
pub const APPROVALS: (&str, &str) = ("terrane.dev", "terraformapprovals");

/// One write, as it would happen.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    pub identity: &'a Identity,
    /// What the URL names; `name` is empty for a create.
    pub resource: Resource<'a>,
    pub change: Change<'a>,
}

#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    Create { object: &'a Value },
    Update { object: &'a Value, old: &'a Value },
    Delete,
}

/// Refuses what no right allows: content in a namespace that is missing or going, rights that the writer does not hold, an
/// approval in another's name.
pub fn admit(authorizer: &Authorizer, snapshot: &Snapshot, write: &Write<'_>) -> Result<(), Refusal> {
    namespace_lifecycle(snapshot, write)?;
    let Write { identity, resource, change } = *write;
    match change {
        Change::Create { object } => {
            approval_is_own(identity, resource, object)?;
            escalation::check(authorizer, identity, resource, object, None)
        }
        Change::Update { object, old } => {
            approval_keeps_its_user(resource, object, old)?;
            escalation::check(authorizer, identity, resource, object, Some(old))
        }
        Change::Delete => Ok(()),
    }
}

fn namespace_lifecycle(snapshot: &Snapshot, write: &Write<'_>) -> Result<(), Refusal> {
    let Resource { group, resource, name, namespace, .. } = write.resource;
    match write.change {
        Change::Delete => {
            let immortal = group.is_empty() && resource == "namespaces" && IMMORTAL.contains(&name);
            if immortal {
                let why = "this namespace may not be deleted";
                return Err(Refusal::forbidden_object("", "namespaces", name, why));
            }
            Ok(())
        }
        Change::Update { .. } => Ok(()),
        Change::Create { object } => {
            let is_namespace = group.is_empty() && resource == "namespaces";
            if namespace.is_empty() || is_namespace || resource == "localsubjectaccessreviews" {
                return Ok(());
            }
            let key = Key::new(Collection::new("", "namespaces"), "", namespace);
            let stored = snapshot.get(&key).ok_or_else(|| Refusal::not_found("", "namespaces", namespace))?;
            if !is_terminating(&stored) {
                return Ok(());
            }
            let created = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or(name);
            let cause = StatusCause {
                reason: Some("NamespaceTerminating".to_owned()),
                message: Some(format!("namespace {namespace} is being terminated")),
                field: Some("metadata.namespace".to_owned()),
            };
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            Err(Refusal::forbidden_because(group, resource, created, &why, cause))
        }
    }
}

/// Whether a namespace is on its way out. Asked with every create, so only the one word is read.
fn is_terminating(namespace: &Stored) -> bool {
    #[derive(Deserialize)]
    struct Namespace<'a> {
        #[serde(borrow)]
        status: Option<Status<'a>>,
    }
    #[derive(Deserialize)]
    struct Status<'a> {
        #[serde(borrow)]
        phase: Option<Cow<'a, str>>,
    }
    let bytes = namespace.bytes();
    let read = serde_json::from_slice::<Namespace<'_>>(&bytes).ok();
    let phase = read.and_then(|namespace| namespace.status?.phase);
    phase.as_deref() == Some("Terminating")
}

/// An approval is worth what its author is worth, so nobody signs for another: not even the administrator.
fn approval_is_own(identity: &Identity, resource: Resource<'_>, object: &Value) -> Result<(), Refusal> {
    if (resource.group, resource.resource) != APPROVALS || !resource.subresource.is_empty() {
        return Ok(());
    }
    let user = object.pointer("/spec/user").and_then(Value::as_str).unwrap_or_default();
    if user == &*identity.user {
        return Ok(());
    }
    let (requester, user) = (quoted(&identity.user), quoted(user));
    refuse_approval(
        object,
        &format!(
            "spec.user is {user} but the request is made by {requester}: an approval is signed by who makes it; set spec.user to {requester}, or let {user} approve"
        ),
    )
}

fn approval_keeps_its_user(resource: Resource<'_>, object: &Value, old: &Value) -> Result<(), Refusal> {
    let user = |object: &Value| object.pointer("/spec/user").cloned();
    if (resource.group, resource.resource) != APPROVALS || user(object) == user(old) {
        return Ok(());
    }
    refuse_approval(
        object,
        "spec.user cannot be changed: an approval is signed once; delete it and create another",
    )
}

fn refuse_approval(object: &Value, why: &str) -> Result<(), Refusal> {
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let (group, plural) = APPROVALS;
    Err(Refusal::forbidden_object(group, plural, name, why))
}
