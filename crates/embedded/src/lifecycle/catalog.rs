//! How a stored collection is reached over the API, and which collection an owner reference means.

use std::fmt;
use std::sync::Arc;

use crate::kinds::{Kind, Registry};
use crate::store::{Collection, Key, Store};

/// One served resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    pub collection: Collection,
    /// Any version that is served; objects are the same in all of them.
    pub version: String,
    pub scope: Scope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Namespaced,
    Cluster,
}

/// What is served right now. Answers change when CustomResourceDefinitions do.
pub trait Catalog: fmt::Debug + Send + Sync {
    /// The built-in kinds' collections, which never change.
    fn builtin(&self) -> Vec<Collection>;
    fn served(&self, collection: &Collection) -> Option<Served>;
    /// By what an owner reference says.
    fn kind(&self, api_version: &str, kind: &str) -> Option<Served>;
}

impl Served {
    /// `/api/v1/namespaces/a/pods`; for all namespaces and for cluster-scoped kinds the namespace is empty.
    pub fn path(&self, namespace: &str) -> String {
        let Collection { group, plural, .. } = &self.collection;
        let version = &self.version;
        let root =
            if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
        if namespace.is_empty() {
            format!("{root}/{plural}")
        } else {
            format!("{root}/namespaces/{namespace}/{plural}")
        }
    }

    pub fn object_path(&self, key: &Key) -> String {
        format!("{}/{}", self.path(&key.namespace), encoded(&key.name))
    }
}

/// Names of roles may hold letters that a URL cannot.
fn encoded(name: &str) -> String {
    name.bytes().fold(String::with_capacity(name.len()), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}

/// What the API's own registry serves, at the store's newest revision.
#[derive(Debug)]
pub struct Registered {
    registry: Arc<Registry>,
    store: Store,
}

impl Registered {
    pub fn new(registry: Arc<Registry>, store: Store) -> Self {
        Registered { registry, store }
    }
}

fn served(kind: &Kind) -> Served {
    let scope = if kind.is_namespaced() { Scope::Namespaced } else { Scope::Cluster };
    Served { collection: kind.collection.clone(), version: kind.version.to_string(), scope }
}

/// Each answer is O(kinds), of which there are dozens.
impl Catalog for Registered {
    fn builtin(&self) -> Vec<Collection> {
        let kinds = self.registry.at(&self.store.snapshot());
        kinds
            .collections()
            .filter(|kind| kind.builtin().is_some())
            .map(|kind| kind.collection.clone())
            .collect()
    }

    fn served(&self, collection: &Collection) -> Option<Served> {
        let kinds = self.registry.at(&self.store.snapshot());
        kinds.collections().find(|kind| kind.collection == *collection).map(|kind| served(kind))
    }

    fn kind(&self, api_version: &str, kind: &str) -> Option<Served> {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let kinds = self.registry.at(&self.store.snapshot());
        kinds.by_kind(group, version, kind).map(|kind| served(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_api() {
        let pods = Served {
            collection: Collection::new("", "pods"),
            version: "v1".into(),
            scope: Scope::Namespaced,
        };
        let roles = Served {
            collection: Collection::new("rbac.authorization.k8s.io", "clusterroles"),
            version: "v1".into(),
            scope: Scope::Cluster,
        };
        let key = |served: &Served, namespace, name| Key::new(served.collection.clone(), namespace, name);
        assert_eq!(pods.path("a"), "/api/v1/namespaces/a/pods");
        assert_eq!(pods.object_path(&key(&pods, "a", "b")), "/api/v1/namespaces/a/pods/b");
        assert_eq!(
            roles.object_path(&key(&roles, "", "system:node proxy")),
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node%20proxy"
        );
    }
}
