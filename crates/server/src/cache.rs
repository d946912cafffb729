//! What lists are answered from: small views of all objects of a kind, kept by a watch. A list of ten thousand layers is then a look at
//! memory and not at the API. Single objects are always read from the API.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use kube::core::DeserializeGuard;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, Resource};
use tokio::sync::watch as signal;

use crate::Refusal;
use crate::person::Reviews;
use crate::text::{Text, Texts};

/// How long a list waits for the first look at the API to be complete.
const PATIENCE: Duration = Duration::from_secs(10);

/// Namespace and name.
pub(crate) type Key = (Text, Text);

/// What a kind is shown as in lists.
pub(crate) trait Viewed:
    Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
    + Clone
    + std::fmt::Debug
    + serde::de::DeserializeOwned
    + Send
    + Sync
    + 'static
{
    type View: View;

    fn view(self) -> Self::View;
}

/// What is kept of an object.
pub(crate) trait View: Send + Sync + 'static {
    /// Whose it is.
    fn key(&self) -> Key;

    /// Holds what others have in common with it only once, where there are so many of them that it matters.
    fn share(&mut self, _texts: &mut Texts) {}
}

/// All views of a kind. Cheap to clone; all clones see the same.
pub(crate) struct Cache<V> {
    views: Arc<RwLock<BTreeMap<Key, Kept<V>>>>,
    /// How many of the watches have not seen everything yet.
    missing: signal::Sender<usize>,
}

struct Kept<V> {
    view: Arc<V>,
    /// The watch that tells of it.
    watch: usize,
}

impl<V> Clone for Cache<V> {
    fn clone(&self) -> Self {
        Self { views: Arc::clone(&self.views), missing: self.missing.clone() }
    }
}

impl<V: View> Cache<V> {
    pub(crate) fn new() -> Self {
        Self { views: Arc::default(), missing: signal::Sender::new(usize::MAX) }
    }

    /// All that is known now, once everything was seen.
    pub(crate) async fn all(&self) -> Result<Vec<(Key, Arc<V>)>, Refusal> {
        self.matching(|_| true).await
    }

    /// Those of what is known now that match, once everything was seen. O(objects): each is looked at once, and only those that match are
    /// taken along.
    pub(crate) async fn matching(&self, matches: impl Fn(&V) -> bool) -> Result<Vec<(Key, Arc<V>)>, Refusal> {
        self.seen().await?;
        let views = self.views.read().unwrap_or_else(PoisonError::into_inner);
        let found = views.iter().filter(|(_, kept)| matches(&kept.view));
        Ok(found.map(|(key, kept)| (key.clone(), Arc::clone(&kept.view))).collect())
    }

    /// Whether there is such an object, as far as is known now, once everything was seen.
    pub(crate) async fn contains(&self, key: &Key) -> Result<bool, Refusal> {
        self.seen().await?;
        Ok(self.views.read().unwrap_or_else(PoisonError::into_inner).contains_key(key))
    }

    /// Waits until everything was seen once.
    async fn seen(&self) -> Result<(), Refusal> {
        let mut missing = self.missing.subscribe();
        let whole = tokio::time::timeout(PATIENCE, missing.wait_for(|count| *count == 0)).await;
        if matches!(whole, Ok(Ok(_))) {
            return Ok(());
        }
        Err(Refusal::Unavailable(
            "the service has not seen all objects of the Kubernetes API yet; try again".to_owned(),
        ))
    }

    /// Watches for ever; an interrupted watch goes on by itself.
    pub(crate) async fn keep<K: Viewed<View = V>>(self, client: Client, reviews: Reviews) {
        let config = watcher::Config::default;
        let watches: Vec<BoxStream<'static, _>> = match reviews {
            Reviews::Cluster => {
                vec![numbered(0, watch(Api::<DeserializeGuard<K>>::all(client), config()))]
            }
            Reviews::Namespaces(names) => names
                .into_iter()
                .enumerate()
                .map(|(at, name)| numbered(at, watch(Api::namespaced(client.clone(), &name), config())))
                .collect(),
        };
        let mut waiting: BTreeSet<usize> = (0..watches.len()).collect();
        let mut staged: BTreeMap<usize, BTreeMap<Key, Kept<V>>> = BTreeMap::new();
        let mut texts = Texts::default();
        let mut kept = |watch: usize, object: K| {
            let mut view = object.view();
            view.share(&mut texts);
            (view.key(), Kept { view: Arc::new(view), watch })
        };
        let mut events = stream::select_all(watches);
        while let Some((at, event)) = events.next().await {
            match event {
                Ok(Event::Init) => {
                    staged.insert(at, BTreeMap::new());
                }
                Ok(Event::InitApply(DeserializeGuard(Ok(object)))) => {
                    staged.entry(at).or_default().extend([kept(at, object)]);
                }
                Ok(Event::InitDone) => {
                    let fresh = staged.remove(&at).unwrap_or_default();
                    let mut views = self.views.write().unwrap_or_else(PoisonError::into_inner);
                    // O(objects), each time a watch begins anew.
                    views.retain(|_, kept| kept.watch != at);
                    views.extend(fresh);
                    drop(views);
                    waiting.remove(&at);
                    self.missing.send_replace(waiting.len());
                }
                Ok(Event::Apply(DeserializeGuard(Ok(object)))) => {
                    let changed = kept(at, object);
                    self.views.write().unwrap_or_else(PoisonError::into_inner).extend([changed]);
                }
                Ok(Event::Delete(object)) => {
                    let key = match &object.0 {
                        Ok(object) => place(object.meta()),
                        Err(invalid) => place(&invalid.metadata),
                    };
                    self.views.write().unwrap_or_else(PoisonError::into_inner).remove(&key);
                }
                // The controllers tell of an object that cannot be read; here it only must not hide the others.
                Ok(Event::InitApply(_) | Event::Apply(_)) => {}
                Err(error) => {
                    tracing::warn!(kind = %K::kind(&()), %error, "the watch was interrupted and goes on")
                }
            }
        }
    }
}

type Told<K> = Result<Event<DeserializeGuard<K>>, watcher::Error>;

fn numbered<K: Viewed>(
    at: usize,
    events: impl Stream<Item = Told<K>> + Send + 'static,
) -> BoxStream<'static, (usize, Told<K>)> {
    events.default_backoff().map(move |event| (at, event)).boxed()
}

fn place(meta: &kube::core::ObjectMeta) -> Key {
    let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
    (text(&meta.namespace), text(&meta.name))
}
