//! The one answer to "may they?": members of `system:masters` always, everyone else by RBAC.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use serde::de::DeserializeOwned;

use super::identity::MASTERS_GROUP;
use super::index::{Index, Objects};
use super::{Attributes, Identity, Refusal, escalation};
use crate::store::{Collection, Snapshot, Store, Version};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// `reason` names the binding; it is empty for the administrator.
    Allowed { reason: Arc<str> },
    /// `reason` is empty unless a binding names a role that does not exist.
    Denied { reason: String },
}

impl Verdict {
    pub fn is_allowed(&self) -> bool {
        match self {
            Verdict::Allowed { .. } => true,
            Verdict::Denied { .. } => false,
        }
    }
}

/// Answers from the newest roles and bindings: a right that was given or taken counts from the next check on.
#[derive(Debug)]
pub struct Authorizer {
    store: Option<Store>,
    collections: [Collection; 4],
    current: ArcSwap<Current>,
    /// So that a burst of checks after a change builds one index, not one each.
    building: Mutex<()>,
}

/// An index and the versions of the collections that it was built from.
#[derive(Debug, Default)]
struct Current {
    versions: [Version; 4],
    index: Arc<Index>,
}

impl Authorizer {
    pub fn new(store: Store) -> Self {
        let collections = collections();
        let current = Current::build(&store.snapshot(), &collections);
        Authorizer {
            store: Some(store),
            collections,
            current: ArcSwap::from_pointee(current),
            building: Mutex::default(),
        }
    }

    /// An authorizer of rights that do not change.
    pub fn fixed(index: Index) -> Self {
        let current = Current { index: Arc::new(index), ..Current::default() };
        Authorizer {
            store: None,
            collections: collections(),
            current: ArcSwap::from_pointee(current),
            building: Mutex::default(),
        }
    }

    /// The rights as they are now. O(1), or O(roles and bindings) once after one of them has changed.
    pub fn index(&self) -> Arc<Index> {
        let current = self.current.load();
        let Some(store) = &self.store else { return Arc::clone(&current.index) };
        if current.versions == versions(&store.snapshot(), &self.collections) {
            return Arc::clone(&current.index);
        }
        let _building = self.building.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = store.snapshot();
        let current = self.current.load();
        if current.versions == versions(&snapshot, &self.collections) {
            return Arc::clone(&current.index);
        }
        let current = Current::build(&snapshot, &self.collections);
        let index = Arc::clone(&current.index);
        self.current.store(Arc::new(current));
        index
    }

    /// O(rules of the subject).
    pub fn check(&self, identity: &Identity, attributes: &Attributes<'_>) -> Verdict {
        if identity.is_in(MASTERS_GROUP) {
            return Verdict::Allowed { reason: Arc::default() };
        }
        self.index().check(identity, attributes)
    }

    /// As `check`, for a caller that only wants to go on or to answer with the refusal.
    pub fn require(&self, identity: &Identity, attributes: &Attributes<'_>) -> Result<(), Refusal> {
        match self.check(identity, attributes) {
            Verdict::Allowed { .. } => Ok(()),
            Verdict::Denied { reason } => Err(Refusal::forbidden(identity, attributes, &reason)),
        }
    }
}

fn collections() -> [Collection; 4] {
    ["clusterroles", "roles", "clusterrolebindings", "rolebindings"]
        .map(|plural| Collection::new(escalation::GROUP, plural))
}

fn versions(snapshot: &Snapshot, collections: &[Collection; 4]) -> [Version; 4] {
    collections.each_ref().map(|collection| snapshot.version(collection))
}

impl Current {
    fn build(snapshot: &Snapshot, collections: &[Collection; 4]) -> Self {
        let [cluster_roles, roles, cluster_role_bindings, role_bindings] = collections;
        let objects = Objects {
            cluster_roles: read(snapshot, cluster_roles),
            roles: read(snapshot, roles),
            cluster_role_bindings: read(snapshot, cluster_role_bindings),
            role_bindings: read(snapshot, role_bindings),
        };
        Current { versions: versions(snapshot, collections), index: Arc::new(Index::build(objects)) }
    }
}

/// An object that cannot be read gives nothing, and takes nothing from the others.
fn read<T: DeserializeOwned>(snapshot: &Snapshot, collection: &Collection) -> Vec<T> {
    let stored = snapshot.list(collection, None, None);
    stored
        .filter_map(|stored| match serde_json::from_slice(&stored.bytes()) {
            Ok(object) => Some(object),
            Err(error) => {
                tracing::warn!(key = %stored.key, %error, "an RBAC object cannot be read and gives no rights");
                None
            }
        })
        .collect()
}
