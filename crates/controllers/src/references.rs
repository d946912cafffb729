//! Which layers refer to which Secrets and ConfigMaps, and the news of those objects. Watched is only where somebody refers to something,
//! namespace by namespace, because only there Terrane may read; and only metadata is sent, because who hears of a change reads the
//! object anew. No value is kept here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::inputs::{Kind, Object};
use api::{TerraformLayer, TerraformRepository};
use engine::outputs::{asked, recorded};
use futures::channel::mpsc;
use futures::stream::{BoxStream, SelectAll};
use futures::{Stream, StreamExt, future};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher as watching;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::feed::Handle;

type News = mpsc::UnboundedReceiver<ObjectRef<Handle<TerraformLayer>>>;

/// A kind of object in a namespace.
type Place = (String, Kind);

#[derive(Debug)]
pub struct References {
    index: Mutex<Index>,
    /// There is another place to watch, or one less.
    moved: Notify,
    told: mpsc::UnboundedSender<ObjectRef<Handle<TerraformLayer>>>,
    news: Mutex<Option<News>>,
}

#[derive(Debug, Default)]
struct Index {
    /// By namespace and name.
    of_layer: BTreeMap<(String, String), BTreeSet<Object>>,
    layers: BTreeMap<(Place, Object), BTreeSet<String>>,
    /// With how many objects somebody refers to there.
    places: BTreeMap<Place, usize>,
}

impl Default for References {
    fn default() -> Self {
        let (told, news) = mpsc::unbounded();
        Self { index: Mutex::default(), moved: Notify::new(), told, news: Mutex::new(Some(news)) }
    }
}

/// What a watch says.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Heard {
    /// Something happened to the object of this name.
    Of(String),
    /// The watch begins, or begins again: anything may have happened in between.
    Anything,
}

impl References {
    /// Who is to look again; taken once.
    pub(crate) fn news(&self) -> Option<News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Remembers what a layer refers to, also by its repository. Called before the objects are read, so that no change after that is missed.
    /// O(references of the layer · log).
    pub(crate) fn follow(&self, layer: &TerraformLayer, repository: Option<&TerraformRepository>) {
        let given = layer.spec.objects(repository).into_iter();
        let objects = given.chain(asked(layer)).chain(recorded(layer)).collect();
        self.set((layer.namespace().unwrap_or_default(), layer.name_any()), objects);
    }

    pub(crate) fn unfollow(&self, namespace: &str, layer: &str) {
        self.set((namespace.to_owned(), layer.to_owned()), BTreeSet::new());
    }

    fn set(&self, layer: (String, String), objects: BTreeSet<Object>) {
        if self.index().set(layer, objects) {
            self.moved.notify_one();
        }
    }

    /// Watches until told to stop.
    pub(crate) async fn work(&self, client: Client, stop: CancellationToken) {
        stop.run_until_cancelled(self.watch(&client)).await;
    }

    async fn watch(&self, client: &Client) {
        let mut watches = SelectAll::new();
        let mut ends: BTreeMap<Place, CancellationToken> = BTreeMap::new();
        loop {
            // O(places), each time that one comes or goes.
            let wanted: Vec<Place> = self.index().places.keys().cloned().collect();
            ends.retain(|place, end| {
                let stays = wanted.binary_search(place).is_ok();
                if !stays {
                    end.cancel();
                }
                stays
            });
            for place in wanted {
                ends.entry(place).or_insert_with_key(|place| {
                    let end = CancellationToken::new();
                    let until = end.clone().cancelled_owned();
                    watches.push(watch_place(client, place.clone()).take_until(until).boxed());
                    end
                });
            }
            loop {
                tokio::select! {
                    Some((place, heard)) = watches.next(), if !watches.is_empty() => self.tell(&place, &heard),
                    () = self.moved.notified() => break,
                }
            }
        }
    }

    /// O(layers that refer to the object, or to any of its kind in its namespace).
    fn tell(&self, (namespace, kind): &Place, heard: &Heard) {
        for layer in self.index().layers_of(namespace, *kind, heard) {
            // Nobody listens any more once the controllers end.
            let _ = self.told.unbounded_send(ObjectRef::new(&layer).within(namespace));
        }
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Index {
    /// Whether the places changed.
    fn set(&mut self, layer: (String, String), objects: BTreeSet<Object>) -> bool {
        let before = self.of_layer.get(&layer).cloned().unwrap_or_default();
        if before == objects {
            return false;
        }
        let (namespace, name) = &layer;
        let mut moved = false;
        for object in before.difference(&objects) {
            let place = (namespace.clone(), object.kind);
            let key = (place.clone(), object.clone());
            let Some(layers) = self.layers.get_mut(&key) else { continue };
            layers.remove(name);
            if layers.is_empty() {
                self.layers.remove(&key);
                let left = self.places.get(&place).map_or(0, |count| count.saturating_sub(1));
                match left {
                    0 => moved |= self.places.remove(&place).is_some(),
                    left => drop(self.places.insert(place, left)),
                }
            }
        }
        for object in objects.difference(&before) {
            let place = (namespace.clone(), object.kind);
            let layers = self.layers.entry((place.clone(), object.clone())).or_default();
            if layers.is_empty() {
                let count = self.places.entry(place).or_default();
                moved |= *count == 0;
                *count += 1;
            }
            layers.insert(name.clone());
        }
        if objects.is_empty() {
            self.of_layer.remove(&layer);
        } else {
            self.of_layer.insert(layer, objects);
        }
        moved
    }

    fn layers_of(&self, namespace: &str, kind: Kind, heard: &Heard) -> BTreeSet<String> {
        let place = (namespace.to_owned(), kind);
        let is_meant = |object: &Object| match heard {
            Heard::Of(name) => object.name.as_str() == name,
            Heard::Anything => true,
        };
        let all = self.layers.iter().filter(|((at, object), _)| *at == place && is_meant(object));
        all.flat_map(|(_, layers)| layers.iter().cloned()).collect()
    }
}

fn watch_place(client: &Client, place: Place) -> BoxStream<'static, (Place, Heard)> {
    let heard = match place.1 {
        Kind::Secret => watch::<Secret>(client, &place.0).boxed(),
        Kind::ConfigMap => watch::<ConfigMap>(client, &place.0).boxed(),
    };
    heard.map(move |heard| (place.clone(), heard)).boxed()
}

fn watch<K>(client: &Client, namespace: &str) -> impl Stream<Item = Heard> + Send + use<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    let namespace = namespace.to_owned();
    let config = watcher::Config::default().any_semantic();
    let metadata = Api::<PartialObjectMeta<K>>::namespaced(client.clone(), &namespace);
    watching(metadata, config).default_backoff().filter_map(move |event| {
        future::ready(match event {
            Ok(Event::Apply(object) | Event::Delete(object)) => Some(Heard::Of(object.name_any())),
            Ok(Event::InitDone) => Some(Heard::Anything),
            Ok(Event::Init | Event::InitApply(_)) => None,
            Err(error) => {
                tracing::warn!(kind = %K::kind(&()), namespace, %error, "the watch was interrupted and goes on");
                None
            }
        })
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use api::text::ObjectName;

    use super::*;

    fn object(kind: Kind, name: &str) -> Object {
        Object { kind, name: ObjectName::new(name).unwrap() }
    }

    fn layer(name: &str) -> (String, String) {
        ("team".to_owned(), name.to_owned())
    }

    #[test]
    fn a_place_is_watched_while_somebody_refers_to_something_there() {
        let mut index = Index::default();
        let db = object(Kind::Secret, "db");
        let common = object(Kind::ConfigMap, "common");
        assert!(index.set(layer("a"), [db.clone(), common.clone()].into()), "two new places");
        assert!(!index.set(layer("b"), [db.clone()].into()), "watched already");
        assert!(!index.set(layer("b"), [db.clone()].into()), "nothing new");
        let told = |index: &Index, kind, heard| {
            index.layers_of("team", kind, &heard).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(told(&index, Kind::Secret, Heard::Of("db".to_owned())), ["a", "b"]);
        assert_eq!(told(&index, Kind::Secret, Heard::Of("other".to_owned())), [""; 0]);
        assert_eq!(told(&index, Kind::ConfigMap, Heard::Anything), ["a"]);
        assert!(index.layers_of("elsewhere", Kind::Secret, &Heard::Anything).is_empty());
        assert!(index.set(layer("a"), [db].into()), "nobody refers to a ConfigMap any more");
        assert!(!index.set(layer("a"), BTreeSet::new()));
        assert!(index.set(layer("b"), BTreeSet::new()), "nobody refers to anything any more");
        assert!(index.layers.is_empty() && index.places.is_empty() && index.of_layer.is_empty());
    }
}
