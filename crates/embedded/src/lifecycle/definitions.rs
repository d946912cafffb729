//! CustomResourceDefinitions: accepts their names, establishes them, and takes their instances along when they are deleted.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Error;
use super::api::Api;
use super::catalog::Catalog;
use super::conditions::{self, Condition};
use super::feed::{custom_resource_definitions, defines};
use super::queue::{Outcome, Queue};
use super::reactor::Reactor;
use crate::store::{Change, Event, Key, Snapshot, Store, Stored};

const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
/// Instances with finalizers of their own go when those are done.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

pub(super) struct Definitions {
    store: Store,
    api: Api,
    catalog: Arc<dyn Catalog>,
}

impl Definitions {
    pub(super) fn new(store: Store, api: Api, catalog: Arc<dyn Catalog>) -> Self {
        Definitions { store, api, catalog }
    }
}

impl Reactor for Definitions {
    const NAME: &'static str = "custom resource definitions";

    fn start_over(&mut self, snapshot: &Snapshot, queue: &mut Queue<Key>) {
        let definitions = snapshot.list(&custom_resource_definitions(), None, None);
        definitions.for_each(|definition| queue.add(definition.key.clone()));
    }

    fn hear(&mut self, event: &Event, queue: &mut Queue<Key>) {
        match event.change {
            Change::Added | Change::Modified => queue.add(event.object.key.clone()),
            // Its names are free now, and another may have waited for them.
            Change::Deleted => self.start_over(&self.store.snapshot(), queue),
        }
    }

    fn look(&self, key: Key) -> impl Future<Output = Result<Outcome, Error>> + Send + 'static {
        let (store, api, catalog) = (self.store.clone(), self.api.clone(), Arc::clone(&self.catalog));
        async move {
            let snapshot = store.snapshot();
            let Some(stored) = snapshot.get(&key) else { return Ok(Outcome::Done) };
            let definition = stored.value();
            if definition.pointer("/metadata/deletionTimestamp").is_some() {
                return clean_up(&store, &api, &*catalog, &stored, definition).await;
            }
            let others = others(&snapshot, &key, &definition);
            if let Some(updated) = established(definition, &others, Timestamp::now()) {
                api.replace(&status_path(&key), &updated).await?;
            }
            Ok(Outcome::Done)
        }
    }
}

fn path(key: &Key) -> String {
    format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}", key.name)
}

fn status_path(key: &Key) -> String {
    format!("{}/status", path(key))
}

/// The names that other definitions of the group have been given.
#[derive(Debug, Default, PartialEq, Eq)]
struct Taken {
    /// Plural, singular and short names share one space: each may be typed after `kubectl get`.
    resources: BTreeSet<String>,
    kinds: BTreeSet<String>,
}

/// O(definitions).
fn others(snapshot: &Snapshot, key: &Key, definition: &Value) -> Taken {
    let mut taken = Taken::default();
    let group = definition.pointer("/spec/group");
    for other in snapshot.list(&custom_resource_definitions(), None, None).filter(|other| other.key != *key) {
        let other = other.value();
        if other.pointer("/spec/group") != group {
            continue;
        }
        let names = other.pointer("/status/acceptedNames");
        taken.resources.extend(resource_names(names).into_iter().map(|(_, name)| name));
        taken.kinds.extend(kind_names(names).into_iter().map(|(_, name)| name));
    }
    taken
}

fn resource_names(names: Option<&Value>) -> Vec<(&'static str, String)> {
    let mut found = texts(names, &[("plural", "PluralConflict"), ("singular", "SingularConflict")]);
    let short = names.and_then(|names| names.get("shortNames")).and_then(Value::as_array);
    let short = short.into_iter().flatten().filter_map(Value::as_str);
    found.extend(short.map(|name| ("ShortNamesConflict", name.to_owned())));
    found
}

fn kind_names(names: Option<&Value>) -> Vec<(&'static str, String)> {
    texts(names, &[("kind", "KindConflict"), ("listKind", "ListKindConflict")])
}

fn texts(names: Option<&Value>, fields: &[(&str, &'static str)]) -> Vec<(&'static str, String)> {
    let text = |field: &str| names.and_then(|names| names.get(field)).and_then(Value::as_str);
    fields
        .iter()
        .filter_map(|(field, conflict)| text(field).map(|name| (*conflict, name.to_owned())))
        .filter(|(_, name)| !name.is_empty())
        .collect()
}

/// The definition with the status that its names deserve; `None` when it has it already.
fn established(mut definition: Value, others: &Taken, now: Timestamp) -> Option<Value> {
    let before = definition.get("status").cloned();
    let names = definition.pointer("/spec/names").cloned()?;
    let conflicts = |wanted: Vec<(&'static str, String)>, taken: &BTreeSet<String>| {
        wanted.into_iter().find(|(_, name)| taken.contains(name))
    };
    let conflict = conflicts(resource_names(Some(&names)), &others.resources)
        .or_else(|| conflicts(kind_names(Some(&names)), &others.kinds));
    let stored_version = definition
        .pointer("/spec/versions")
        .and_then(Value::as_array)?
        .iter()
        .find(|version| version.get("storage") == Some(&Value::Bool(true)))
        .and_then(|version| version.get("name"))
        .cloned();
    let was_established =
        conditions::get(&definition, "Established").is_some_and(|(status, _)| status == "True");
    let status = conditions::status_of(&mut definition)?;
    let condition =
        |kind, status, reason, message: &str| Condition { kind, status, reason, message: message.to_owned() };
    match &conflict {
        None => {
            status.insert("acceptedNames".to_owned(), names);
            conditions::set(
                status,
                &condition("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
                now,
            );
            if !was_established {
                let message = "the initial names have been accepted";
                conditions::set(
                    status,
                    &condition("Established", "True", "InitialNamesAccepted", message),
                    now,
                );
            }
        }
        Some((reason, name)) => {
            let in_use = format!("{} is already in use", json!(name));
            status.entry("acceptedNames").or_insert_with(|| json!({"plural": "", "kind": ""}));
            conditions::set(status, &condition("NamesAccepted", "False", reason, &in_use), now);
            if !was_established {
                conditions::set(
                    status,
                    &condition("Established", "False", "NotAccepted", "not all names are accepted"),
                    now,
                );
            }
        }
    }
    let versions = status.entry("storedVersions").or_insert_with(|| json!([])).as_array_mut()?;
    if let Some(version) = stored_version.filter(|version| !versions.contains(version)) {
        versions.push(version);
    }
    (definition.get("status") != before.as_ref()).then_some(definition)
}

/// Deletes the instances of a definition that is going; releases it when none is left. O(instances).
async fn clean_up(
    store: &Store,
    api: &Api,
    catalog: &dyn Catalog,
    stored: &Stored,
    mut definition: Value,
) -> Result<Outcome, Error> {
    let held = definition.pointer("/metadata/finalizers").and_then(Value::as_array);
    let held: Vec<Value> = held.cloned().unwrap_or_default();
    let (true, Some(collection)) = (held.contains(&json!(CLEANUP)), defines(&definition)) else {
        return Ok(Outcome::Done);
    };
    let before = definition.get("status").cloned();
    if let Some(status) = conditions::status_of(&mut definition) {
        let terminating = Condition {
            kind: "Terminating",
            status: "True",
            reason: "InstanceDeletionInProgress",
            message: "CustomResource deletion is in progress".to_owned(),
        };
        conditions::set(status, &terminating, Timestamp::now());
    }
    if definition.get("status") != before.as_ref() {
        // Comes back as a change, and then the instances are next.
        api.replace(&status_path(&stored.key), &definition).await?;
        return Ok(Outcome::After(Duration::ZERO));
    }
    let snapshot = store.snapshot();
    if let Some(served) = catalog.served(&collection) {
        let namespaces: BTreeSet<Arc<str>> =
            snapshot.list(&collection, None, None).map(|instance| instance.key.namespace.clone()).collect();
        for namespace in namespaces {
            api.delete_collection(&served.path(&namespace)).await?;
        }
    }
    if store.snapshot().count(&collection, None) > 0 {
        return Ok(Outcome::After(LOOK_AGAIN));
    }
    let left: Vec<&Value> = held.iter().filter(|own| **own != json!(CLEANUP)).collect();
    let left = if left.is_empty() { Value::Null } else { json!(left) };
    api.patch_metadata(&path(&stored.key), stored, json!({"finalizers": left})).await?;
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn definition() -> Value {
        json!({"spec": {"group": "terrane.dev", "versions": [{"name": "v1", "storage": true}],
               "names": {"plural": "layers", "singular": "layer", "kind": "Layer", "listKind": "LayerList", "shortNames": ["tfl"]}}})
    }

    fn condition(definition: &Value, kind: &str) -> (String, String, String) {
        let conditions = definition.pointer("/status/conditions").unwrap().as_array().unwrap().clone();
        let condition = conditions.into_iter().find(|condition| condition["type"] == kind).unwrap();
        let text = |field: &str| condition[field].as_str().unwrap().to_owned();
        (text("status"), text("reason"), text("message"))
    }

    fn expect(status: &str, reason: &str, message: &str) -> (String, String, String) {
        (status.into(), reason.into(), message.into())
    }

    #[test]
    fn free_names_are_accepted_once() {
        let now = Timestamp::UNIX_EPOCH;
        let done = established(definition(), &Taken::default(), now).unwrap();
        assert_eq!(condition(&done, "NamesAccepted"), expect("True", "NoConflicts", "no conflicts found"));
        assert_eq!(
            condition(&done, "Established"),
            expect("True", "InitialNamesAccepted", "the initial names have been accepted")
        );
        assert_eq!(done["status"]["storedVersions"], json!(["v1"]));
        assert_eq!(done["status"]["acceptedNames"], done["spec"]["names"]);
        let later = now + jiff::SignedDuration::from_secs(60);
        assert_eq!(established(done, &Taken::default(), later), None, "a second look writes nothing");
    }

    #[test]
    fn names_in_use_are_refused_and_accepted_when_they_are_free() {
        let now = Timestamp::UNIX_EPOCH;
        let table = [
            (
                Taken { resources: ["tfl".to_owned()].into(), ..Taken::default() },
                "ShortNamesConflict",
                "\"tfl\" is already in use",
            ),
            (
                Taken { resources: ["layers".to_owned()].into(), ..Taken::default() },
                "PluralConflict",
                "\"layers\" is already in use",
            ),
            (
                Taken { kinds: ["Layer".to_owned()].into(), ..Taken::default() },
                "KindConflict",
                "\"Layer\" is already in use",
            ),
        ];
        for (taken, reason, message) in table {
            let refused = established(definition(), &taken, now).unwrap();
            assert_eq!(condition(&refused, "NamesAccepted"), expect("False", reason, message));
            assert_eq!(
                condition(&refused, "Established"),
                expect("False", "NotAccepted", "not all names are accepted")
            );
            let accepted = established(refused, &Taken::default(), now).unwrap();
            assert_eq!(condition(&accepted, "Established").0, "True");
        }
    }
}
