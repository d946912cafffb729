//! A namespace that is being deleted: everything in it goes first, then its finalizer.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::Error;
use super::api::{Api, Written};
use super::catalog::{Catalog, Scope};
use super::conditions::{self, Condition};
use super::queue::{Outcome, Queue};
use super::reactor::Reactor;
use crate::store::{Change, Collection, Event, Key, Snapshot, Store};

/// The finalizer in `spec.finalizers` that stands for the content.
const FINALIZER: &str = "kubernetes";
/// Deletions in the namespace bring it back at once; this is for what is removed without one.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

pub(super) struct Namespaces {
    store: Store,
    api: Api,
    catalog: Arc<dyn Catalog>,
}

pub(super) fn collection() -> Collection {
    Collection::new("", "namespaces")
}

fn is_going(namespace: &Value) -> bool {
    namespace.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null())
}

impl Namespaces {
    pub(super) fn new(store: Store, api: Api, catalog: Arc<dyn Catalog>) -> Self {
        Namespaces { store, api, catalog }
    }
}

impl Reactor for Namespaces {
    const NAME: &'static str = "namespace deletion";

    fn start_over(&mut self, snapshot: &Snapshot, queue: &mut Queue<Key>) {
        snapshot.list(&collection(), None, None).for_each(|namespace| queue.add(namespace.key.clone()));
    }

    fn hear(&mut self, event: &Event, queue: &mut Queue<Key>) {
        let key = &event.object.key;
        match event.change {
            Change::Added | Change::Modified if key.collection == collection() => queue.add(key.clone()),
            // Whether that namespace is going is for `look` to say: it costs one look-up.
            Change::Deleted if !key.namespace.is_empty() => {
                queue.add(Key::new(collection(), "", &key.namespace));
            }
            Change::Added | Change::Modified | Change::Deleted => {}
        }
    }

    fn look(&self, key: Key) -> impl Future<Output = Result<Outcome, Error>> + Send + 'static {
        let (store, api, catalog) = (self.store.clone(), self.api.clone(), Arc::clone(&self.catalog));
        async move {
            let Some(namespace) = store.snapshot().get(&key) else { return Ok(Outcome::Done) };
            if !is_going(&namespace.value()) {
                return Ok(Outcome::Done);
            }
            empty(&store, &api, &*catalog, &key.name).await?;
            finish(&store, &api, &key).await
        }
    }
}

/// Asks for the deletion of everything in the namespace. O(collections + objects in it).
async fn empty(store: &Store, api: &Api, catalog: &dyn Catalog, namespace: &str) -> Result<(), Error> {
    let snapshot = store.snapshot();
    let mut failed = None;
    for collection in snapshot.collections() {
        if snapshot.list(collection, Some(namespace), None).next().is_none() {
            continue;
        }
        let result = match catalog.served(collection) {
            Some(served) if served.scope == Scope::Namespaced => {
                api.delete_collection(&served.path(namespace)).await
            }
            // Instances of a definition that is gone; its own cleanup takes them.
            Some(_) | None => continue,
        };
        // One kind that cannot be deleted does not keep the others.
        if let Err(error) = result {
            failed.get_or_insert(error);
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Releases the namespace when nothing is left, else says in its status what is.
async fn finish(store: &Store, api: &Api, key: &Key) -> Result<Outcome, Error> {
    let snapshot = store.snapshot();
    let Some(stored) = snapshot.get(key) else { return Ok(Outcome::Done) };
    let mut namespace = stored.value();
    let left = observe_left(&snapshot, &key.name);
    let path = format!("/api/v1/namespaces/{}", key.name);
    if left.objects.is_empty() {
        let finalizers = namespace.pointer_mut("/spec/finalizers").and_then(Value::as_array_mut);
        let Some(finalizers) = finalizers.filter(|list| list.iter().any(|own| own == FINALIZER)) else {
            return Ok(Outcome::Done);
        };
        finalizers.retain(|own| own != FINALIZER);
        return match api.replace(&format!("{path}/finalize"), &namespace).await? {
            Written::Done | Written::Gone => Ok(Outcome::Done),
        };
    }
    let before = namespace.get("status").cloned();
    if let Some(status) = conditions::status_of(&mut namespace) {
        let now = Timestamp::now();
        left.conditions().iter().for_each(|condition| conditions::set(status, condition, now));
    }
    if namespace.get("status") != before.as_ref() {
        api.replace(&format!("{path}/status"), &namespace).await?;
    }
    Ok(Outcome::After(LOOK_AGAIN))
}

/// What is still in a namespace: objects by resource, and the finalizers that hold them.
#[derive(Debug, Default)]
struct Left {
    objects: BTreeMap<String, usize>,
    finalizers: BTreeMap<String, usize>,
}

fn observe_left(snapshot: &Snapshot, namespace: &str) -> Left {
    let mut left = Left::default();
    for collection in snapshot.collections() {
        for object in snapshot.list(collection, Some(namespace), None) {
            *left.objects.entry(format!("{}.{}", collection.plural, collection.group)).or_default() += 1;
            let value = object.value();
            let finalizers = value.pointer("/metadata/finalizers").and_then(Value::as_array);
            for finalizer in finalizers.into_iter().flatten().filter_map(Value::as_str) {
                *left.finalizers.entry(finalizer.to_owned()).or_default() += 1;
            }
        }
    }
    left
}

impl Left {
    fn conditions(&self) -> Vec<Condition> {
        let condition = |kind, status, reason, message| Condition { kind, status, reason, message };
        let list = |counts: &BTreeMap<String, usize>, word: &str| {
            let parts: Vec<_> = counts
                .iter()
                .map(|(what, count)| format!("{what} {word} {count} resource instances"))
                .collect();
            parts.join(", ")
        };
        let mut conditions = vec![
            condition(
                "NamespaceDeletionDiscoveryFailure",
                "False",
                "ResourcesDiscovered",
                "All resources successfully discovered".to_owned(),
            ),
            condition(
                "NamespaceDeletionGroupVersionParsingFailure",
                "False",
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed".to_owned(),
            ),
            condition(
                "NamespaceDeletionContentFailure",
                "False",
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization".to_owned(),
            ),
            condition(
                "NamespaceContentRemaining",
                "True",
                "SomeResourcesRemain",
                format!("Some resources are remaining: {}", list(&self.objects, "has")),
            ),
        ];
        conditions.push(if self.finalizers.is_empty() {
            condition(
                "NamespaceFinalizersRemaining",
                "False",
                "ContentHasNoFinalizers",
                "All content-preserving finalizers finished".to_owned(),
            )
        } else {
            condition(
                "NamespaceFinalizersRemaining",
                "True",
                "SomeFinalizersRemain",
                format!(
                    "Some content in the namespace has finalizers remaining: {}",
                    list(&self.finalizers, "in")
                ),
            )
        });
        conditions
    }
}
