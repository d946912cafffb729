//! Who makes a request. An `Identity` travels as an extension of the HTTP request, in process and over the port alike.

use std::collections::BTreeMap;
use std::sync::Arc;

pub const ADMINISTRATOR: &str = "terrane-admin";
pub const ANONYMOUS: &str = "system:anonymous";
pub const SYSTEM: &str = "system:apiserver";

pub const AUTHENTICATED_GROUP: &str = "system:authenticated";
pub const UNAUTHENTICATED_GROUP: &str = "system:unauthenticated";
/// Members may do everything; no rule is consulted for them.
pub const MASTERS_GROUP: &str = "system:masters";
pub const NODES_GROUP: &str = "system:nodes";
/// The API group of reviews and of what can be impersonated, not a group of users.
pub const AUTHENTICATION_GROUP: &str = "authentication.k8s.io";
pub const SERVICE_ACCOUNTS_GROUP: &str = "system:serviceaccounts";

const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// A user as Kubernetes means it. Cheap to clone: each request carries one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub user: Arc<str>,
    pub uid: Arc<str>,
    pub groups: Arc<[String]>,
    pub extra: Arc<BTreeMap<String, Vec<String>>>,
}

/// What a service-account token says about the object it is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundTo {
    pub credential_id: Option<String>,
    pub pod: Option<NamedUid>,
    pub node: Option<NamedUid>,
}

/// One object, named with the uid that tells it from a later one of the same name.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NamedUid {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

impl Identity {
    pub fn new<G: Into<String>>(user: &str, groups: impl IntoIterator<Item = G>) -> Self {
        Identity {
            user: user.into(),
            uid: "".into(),
            groups: groups.into_iter().map(Into::into).collect(),
            extra: Arc::default(),
        }
    }

    /// Whoever sends no credential.
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS, [UNAUTHENTICATED_GROUP])
    }

    /// Whoever holds the token of the generated kubeconfig.
    pub fn administrator() -> Self {
        Self::new(ADMINISTRATOR, [MASTERS_GROUP, AUTHENTICATED_GROUP])
    }

    /// The API itself, when it cleans up or installs what a cluster brings along.
    pub fn system() -> Self {
        Self::new(SYSTEM, [MASTERS_GROUP, AUTHENTICATED_GROUP])
    }

    pub fn service_account(namespace: &str, name: &str) -> Self {
        let mut groups = service_account_groups(namespace);
        groups.push(AUTHENTICATED_GROUP.to_owned());
        Self::new(&service_account_user(namespace, name), groups)
    }

    /// A service account as its token proves it: with its uid and what the token is bound to.
    pub fn bound_service_account(namespace: &str, account: &NamedUid, bound: &BoundTo) -> Self {
        let mut extra = BTreeMap::new();
        let mut put = |key: &str, value: &str| {
            if !value.is_empty() {
                extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
            }
        };
        put("credential-id", bound.credential_id.as_deref().unwrap_or_default());
        if let Some(pod) = &bound.pod {
            put("pod-name", &pod.name);
            put("pod-uid", &pod.uid);
        }
        if let Some(node) = &bound.node {
            put("node-name", &node.name);
            put("node-uid", &node.uid);
        }
        Identity {
            uid: account.uid.as_str().into(),
            extra: Arc::new(extra),
            ..Self::service_account(namespace, &account.name)
        }
    }

    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|member| member == group)
    }
}

pub fn service_account_user(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}")
}

pub fn service_account_groups(namespace: &str) -> Vec<String> {
    vec![SERVICE_ACCOUNTS_GROUP.to_owned(), format!("{SERVICE_ACCOUNTS_GROUP}:{namespace}")]
}

/// Namespace and name of `system:serviceaccount:NAMESPACE:NAME`; `None` for every other user.
pub fn split_service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_accounts_carry_their_groups_and_what_they_are_bound_to() {
        let identity = Identity::bound_service_account(
            "build",
            &NamedUid { name: "runner".into(), uid: "u1".into() },
            &BoundTo {
                credential_id: Some("JTI=7".into()),
                pod: Some(NamedUid { name: "p".into(), uid: "u2".into() }),
                node: Some(NamedUid { name: "n".into(), uid: String::new() }),
            },
        );
        assert_eq!(&*identity.user, "system:serviceaccount:build:runner");
        assert_eq!(&*identity.uid, "u1");
        assert_eq!(
            identity.groups.to_vec(),
            ["system:serviceaccounts", "system:serviceaccounts:build", "system:authenticated"]
        );
        let keys: Vec<_> = identity.extra.keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            [
                "authentication.kubernetes.io/credential-id",
                "authentication.kubernetes.io/node-name",
                "authentication.kubernetes.io/pod-name",
                "authentication.kubernetes.io/pod-uid"
            ]
        );
    }

    #[test]
    fn only_whole_service_account_names_are_split() {
        assert_eq!(split_service_account("system:serviceaccount:a:b"), Some(("a", "b")));
        for user in
            ["jane", "system:serviceaccount:a", "system:serviceaccount::b", "system:serviceaccount:a:b:c"]
        {
            assert_eq!(split_service_account(user), None, "{user}");
        }
    }
}
