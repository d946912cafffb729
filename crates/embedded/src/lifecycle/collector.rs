//! The garbage collector: what is left without an owner is deleted, and an owner that goes in the foreground or leaves orphans
//! behind goes when its dependents are done.
//!
//! `Graph` remembers who is owned by whom; `decide` looks at one object in one snapshot and says what to do; the rest does it.
//! Owners are looked up in the snapshot, never remembered, so there is nothing to be wrong about.

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::json;

use super::Error;
use super::api::{Api, Propagation, Written};
use super::catalog::{Catalog, Scope};
use super::queue::{Outcome, Queue};
use super::reactor::Reactor;
use crate::store::{Change, Event, Key, Snapshot, Store, Stored};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// What of an object's metadata the collector reads.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    uid: Option<Box<str>>,
    deletion_timestamp: Option<String>,
    #[serde(deserialize_with = "null_as_empty")]
    finalizers: Vec<String>,
    #[serde(deserialize_with = "null_as_empty")]
    owner_references: Vec<OwnerReference>,
}

fn null_as_empty<'de, D: Deserializer<'de>, T: Deserialize<'de>>(field: D) -> Result<Vec<T>, D::Error> {
    Option::<Vec<T>>::deserialize(field).map(Option::unwrap_or_default)
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct OwnerReference {
    api_version: String,
    kind: String,
    name: String,
    uid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    controller: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    block_owner_deletion: Option<bool>,
}

impl Metadata {
    fn of(object: &Stored) -> Self {
        #[derive(Deserialize)]
        struct Object {
            #[serde(default)]
            metadata: Metadata,
        }
        serde_json::from_slice::<Object>(&object.bytes()).map(|object| object.metadata).unwrap_or_default()
    }

    /// The uids of its owners, in their order.
    fn owners(&self) -> Box<[Box<str>]> {
        self.owner_references.iter().map(|owner| owner.uid.as_str().into()).collect()
    }

    fn has(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|own| own == finalizer)
    }

    fn is_going(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// Waits for its dependents to go first.
    fn waits_for_dependents(&self) -> bool {
        self.is_going() && self.has(FOREGROUND)
    }

    fn leaves_orphans(&self) -> bool {
        self.is_going() && self.has(ORPHAN)
    }
}

/// Who is owned by which uid. Memory: one entry per owner reference, none for objects without.
#[derive(Debug, Default)]
struct Graph {
    dependents: HashMap<Box<str>, BTreeSet<Key>>,
    owners: HashMap<Key, Box<[Box<str>]>>,
    /// Objects that wait for their dependents, by uid: looked at again when one of those goes.
    waiting: HashMap<Box<str>, Key>,
}

impl Graph {
    /// Notes who owns `object` now. O(its owners before and after, log n).
    fn note(&mut self, object: &Stored, queue: &mut Queue<Key>) {
        let metadata = Metadata::of(object);
        let owners = metadata.owners();
        let before = self.owners.get(&object.key);
        if before.map(|owners| &**owners).unwrap_or_default() != &*owners {
            self.forget(&object.key, queue);
            for owner in &owners {
                self.dependents.entry(owner.clone()).or_default().insert(object.key.clone());
            }
            if !owners.is_empty() {
                self.owners.insert(object.key.clone(), owners.clone());
                queue.add(object.key.clone());
            }
        }
        if let (true, Some(uid)) = (metadata.waits_for_dependents(), &metadata.uid) {
            self.waiting.insert(uid.clone(), object.key.clone());
            // They find their owner waiting, and go.
            self.dependents.get(uid).into_iter().flatten().for_each(|key| queue.add(key.clone()));
        }
        if metadata.waits_for_dependents() || metadata.leaves_orphans() {
            queue.add(object.key.clone());
        }
        // A dependent that no longer blocks, or is going itself, may be what its owner waits for.
        for owner in &owners {
            if let Some(owner) = self.waiting.get(owner) {
                queue.add(owner.clone());
            }
        }
    }

    /// `object` is gone: its dependents may have to follow, and who waited for it may go. O(its owners and dependents).
    fn gone(&mut self, object: &Stored, queue: &mut Queue<Key>) {
        self.forget(&object.key, queue);
        if let Some(uid) = &Metadata::of(object).uid {
            self.waiting.remove(uid);
            self.dependents.get(uid).into_iter().flatten().for_each(|key| queue.add(key.clone()));
        }
    }

    fn forget(&mut self, key: &Key, queue: &mut Queue<Key>) {
        for owner in self.owners.remove(key).into_iter().flatten() {
            if let Some(siblings) = self.dependents.get_mut(&owner) {
                siblings.remove(key);
                if siblings.is_empty() {
                    self.dependents.remove(&owner);
                }
            }
            if let Some(waiting) = self.waiting.get(&owner) {
                queue.add(waiting.clone());
            }
        }
    }

    fn dependents_of(&self, uid: &str) -> Vec<Key> {
        self.dependents.get(uid).into_iter().flatten().cloned().collect()
    }
}

/// What to do about one object.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Nothing,
    Delete(Propagation),
    /// Take these owners away: they are gone or going, and another one stays.
    Disown {
        owners: Vec<String>,
    },
    /// Take this finalizer away: what it waited for is done.
    Release {
        finalizer: &'static str,
    },
    /// Take the object's uid from the owners of these, then release it.
    Orphan {
        dependents: Vec<Key>,
    },
    /// Stop blocking its owners before it is deleted in the foreground: otherwise a circle would wait for itself.
    Unblock,
    /// An owner is of a kind that is not served (yet): nothing can be said about it.
    UnknownOwner {
        api_version: String,
        kind: String,
    },
}

/// How one owner reference stands.
enum Owner {
    Stays,
    Absent,
    WaitsForDependents,
    /// A cluster-scoped object cannot have an owner in a namespace; it is left alone.
    Impossible,
}

/// O(owners, or dependents of an object that waits for them).
fn decide(snapshot: &Snapshot, catalog: &dyn Catalog, object: &Stored, dependents: &[Key]) -> Decision {
    let metadata = Metadata::of(object);
    let uid = metadata.uid.as_deref().unwrap_or_default();
    if metadata.leaves_orphans() {
        return Decision::Orphan { dependents: dependents.to_vec() };
    }
    if metadata.waits_for_dependents() {
        let blocked =
            dependents.iter().filter_map(|key| snapshot.get(key)).any(|dependent| blocks(&dependent, uid));
        return if blocked { Decision::Nothing } else { Decision::Release { finalizer: FOREGROUND } };
    }
    if metadata.is_going() || metadata.owner_references.is_empty() {
        return Decision::Nothing;
    }
    let (mut stays, mut waits, mut leaving) = (false, false, Vec::new());
    for reference in &metadata.owner_references {
        match observe_owner(snapshot, catalog, object, reference) {
            None => {
                let OwnerReference { api_version, kind, .. } = reference.clone();
                return Decision::UnknownOwner { api_version, kind };
            }
            Some(Owner::Impossible) => return Decision::Nothing,
            Some(Owner::Stays) => stays = true,
            Some(Owner::Absent) => leaving.push(reference.uid.clone()),
            Some(Owner::WaitsForDependents) => {
                waits = true;
                leaving.push(reference.uid.clone());
            }
        }
    }
    if stays {
        return if leaving.is_empty() { Decision::Nothing } else { Decision::Disown { owners: leaving } };
    }
    if waits && !dependents.is_empty() {
        let circle = dependents
            .iter()
            .filter_map(|key| snapshot.get(key))
            .any(|dependent| Metadata::of(&dependent).waits_for_dependents());
        let blocking =
            metadata.owner_references.iter().any(|reference| reference.block_owner_deletion == Some(true));
        return if circle && blocking {
            Decision::Unblock
        } else {
            Decision::Delete(Propagation::Foreground)
        };
    }
    Decision::Delete(if metadata.has(ORPHAN) {
        Propagation::Orphan
    } else if metadata.has(FOREGROUND) {
        Propagation::Foreground
    } else {
        Propagation::Background
    })
}

/// Does the owner `uid` have to wait for this dependent?
fn blocks(dependent: &Stored, uid: &str) -> bool {
    Metadata::of(dependent)
        .owner_references
        .iter()
        .any(|reference| reference.uid == uid && reference.block_owner_deletion == Some(true))
}

/// `None` when the kind is not served. An owner is in the dependent's own namespace or in none.
fn observe_owner(
    snapshot: &Snapshot,
    catalog: &dyn Catalog,
    dependent: &Stored,
    reference: &OwnerReference,
) -> Option<Owner> {
    let served = catalog.kind(&reference.api_version, &reference.kind)?;
    let namespace = match served.scope {
        Scope::Cluster => "",
        Scope::Namespaced if dependent.key.namespace.is_empty() => return Some(Owner::Impossible),
        Scope::Namespaced => &*dependent.key.namespace,
    };
    let owner = snapshot.get(&Key::new(served.collection, namespace, &reference.name));
    Some(match owner.map(|owner| Metadata::of(&owner)) {
        Some(owner) if owner.uid.as_deref() == Some(reference.uid.as_str()) => {
            if owner.waits_for_dependents() { Owner::WaitsForDependents } else { Owner::Stays }
        }
        _ => Owner::Absent,
    })
}

pub(super) struct Collector {
    store: Store,
    api: Api,
    catalog: Arc<dyn Catalog>,
    graph: Graph,
}

impl Collector {
    pub(super) fn new(store: Store, api: Api, catalog: Arc<dyn Catalog>) -> Self {
        Collector { store, api, catalog, graph: Graph::default() }
    }
}

impl Reactor for Collector {
    const NAME: &'static str = "garbage collector";

    fn start_over(&mut self, snapshot: &Snapshot, queue: &mut Queue<Key>) {
        self.graph = Graph::default();
        for collection in snapshot.collections() {
            for object in snapshot.list(collection, None, None) {
                self.graph.note(&object, queue);
            }
        }
    }

    fn hear(&mut self, event: &Event, queue: &mut Queue<Key>) {
        match event.change {
            Change::Added | Change::Modified => self.graph.note(&event.object, queue),
            Change::Deleted => self.graph.gone(&event.object, queue),
        }
    }

    fn look(&self, key: Key) -> impl Future<Output = Result<Outcome, Error>> + Send + 'static {
        let snapshot = self.store.snapshot();
        let object = snapshot.get(&key);
        let uid = object.as_ref().and_then(|object| Metadata::of(object).uid).unwrap_or_default();
        let dependents = self.graph.dependents_of(&uid);
        let (api, catalog) = (self.api.clone(), Arc::clone(&self.catalog));
        async move {
            let Some(object) = object else { return Ok(Outcome::Done) };
            let decision = decide(&snapshot, &*catalog, &object, &dependents);
            act(&api, &snapshot, &*catalog, &object, decision).await
        }
    }
}

async fn act(
    api: &Api,
    snapshot: &Snapshot,
    catalog: &dyn Catalog,
    object: &Stored,
    decision: Decision,
) -> Result<Outcome, Error> {
    let path = |object: &Stored| {
        let served = catalog.served(&object.key.collection);
        served
            .map(|served| served.object_path(&object.key))
            .ok_or_else(|| Error::NotServed(object.key.clone()))
    };
    match decision {
        Decision::Nothing => {}
        Decision::UnknownOwner { api_version, kind } => {
            return Err(Error::UnknownOwner { object: object.key.clone(), api_version, kind });
        }
        Decision::Delete(policy) => {
            api.delete(&path(object)?, object, policy).await?;
        }
        Decision::Unblock => {
            let references: Vec<_> = Metadata::of(object)
                .owner_references
                .into_iter()
                .map(|reference| OwnerReference { block_owner_deletion: Some(false), ..reference })
                .collect();
            api.patch_metadata(&path(object)?, object, json!({"ownerReferences": references})).await?;
            // Its owners are the same, so the change does not bring it back here by itself.
            return Ok(Outcome::After(Duration::ZERO));
        }
        Decision::Disown { owners } => {
            disown(api, &path(object)?, object, &owners).await?;
        }
        Decision::Release { finalizer } => {
            release(api, &path(object)?, object, finalizer).await?;
        }
        Decision::Orphan { dependents } => {
            let uid = object.uid().unwrap_or_default().into_string();
            for dependent in dependents.iter().filter_map(|key| snapshot.get(key)) {
                disown(api, &path(&dependent)?, &dependent, std::slice::from_ref(&uid)).await?;
            }
            release(api, &path(object)?, object, ORPHAN).await?;
        }
    }
    Ok(Outcome::Done)
}

async fn disown(api: &Api, path: &str, object: &Stored, owners: &[String]) -> Result<Written, Error> {
    let references = Metadata::of(object).owner_references;
    let left: Vec<_> = references.iter().filter(|reference| !owners.contains(&reference.uid)).collect();
    if left.len() == references.len() {
        return Ok(Written::Done);
    }
    let left = if left.is_empty() { json!(null) } else { json!(left) };
    api.patch_metadata(path, object, json!({"ownerReferences": left})).await
}

async fn release(api: &Api, path: &str, object: &Stored, finalizer: &str) -> Result<Written, Error> {
    let finalizers = Metadata::of(object).finalizers;
    let left: Vec<_> = finalizers.iter().filter(|own| *own != finalizer).collect();
    let left = if left.is_empty() { json!(null) } else { json!(left) };
    api.patch_metadata(path, object, json!({"finalizers": left})).await
}
