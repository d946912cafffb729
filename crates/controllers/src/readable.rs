//! Objects that this version can read, among others that it cannot: written by a newer version, or past a schema that was loosened. One
//! such object must not hide the rest, as a typed list or watch would. It is told of, in the log and as an Event on the object itself,
//! and nobody works on it. What decides about a single layer still fails on it: there an object left out would be a wrong fact.

use std::fmt::Debug;
use std::sync::Arc;

use engine::{Note, Severity};
use futures::stream::BoxStream;
use futures::{StreamExt, future};
use k8s_openapi::NamespaceResourceScope;
use kube::api::ListParams;
use kube::core::error_boundary::InvalidObject;
use kube::core::{DeserializeGuard, ObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher as watching;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::events::Events;
use crate::scope::{Namespaces, merged};

/// A kind of ours that is watched.
pub(crate) trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// What happens to the objects of a kind that can be read. A watch that fails is begun again, less and less often.
pub(crate) fn watch<K: Kind>(
    client: &Client,
    namespaces: &Namespaces,
    config: watcher::Config,
    events: &Arc<Events>,
) -> BoxStream<'static, Result<Event<K>, watcher::Error>> {
    let watch = |guarded: Api<DeserializeGuard<K>>| {
        let events = Arc::clone(events);
        watching(guarded, config.clone())
            .filter_map(move |event| future::ready(event.map(|event| read(event, &events)).transpose()))
            .default_backoff()
    };
    match namespaces {
        Namespaces::All => watch(Api::all(client.clone())).boxed(),
        Namespaces::These(names) => {
            let watches = names.iter().map(|name| watch(Api::namespaced(client.clone(), name)).boxed());
            merged(watches.collect()).boxed()
        }
    }
}

/// The event, unless it is about an object that cannot be read.
fn read<K: Kind>(event: Event<DeserializeGuard<K>>, events: &Events) -> Option<Event<K>> {
    Some(match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(object) => Event::InitApply(readable(object, events)?),
        Event::Apply(object) => Event::Apply(readable(object, events)?),
        Event::Delete(object) => Event::Delete(object.0.ok()?),
    })
}

/// The objects of a list that can be read. O(objects of the list).
pub(crate) async fn list<K: Kind>(
    client: &Client,
    namespace: &str,
    events: &Events,
) -> Result<Vec<K>, kube::Error> {
    let guarded = Api::<DeserializeGuard<K>>::namespaced(client.clone(), namespace);
    let all = guarded.list(&ListParams::default()).await?;
    Ok(all.items.into_iter().filter_map(|object| readable(object, events)).collect())
}

fn readable<K: Kind>(object: DeserializeGuard<K>, events: &Events) -> Option<K> {
    match object.0 {
        Ok(object) => Some(object),
        Err(InvalidObject { error, metadata }) => {
            tell::<K>(metadata, &error, events);
            None
        }
    }
}

/// The error names the field and what is wrong with it, never the whole object.
fn tell<K: Kind>(metadata: ObjectMeta, error: &str, events: &Events) {
    let (namespace, name) =
        (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default());
    tracing::error!(kind = %K::kind(&()), namespace, name, error, "this version of Terrane cannot read the object and leaves it alone");
    let message = format!(
        "this version of Terrane cannot read it: {error}; correct it, or bring the version that wrote it"
    );
    let note = Note { severity: Severity::Warning, reason: "Unreadable".to_owned(), message };
    events.tell_of(&DeserializeGuard::<K>(Err(InvalidObject { error: String::new(), metadata })), note);
}
