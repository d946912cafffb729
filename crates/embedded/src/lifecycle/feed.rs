//! The changes of several collections in one stream, custom resources that appear later included.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::FuturesUnordered;
use serde_json::Value;

use crate::store::{Collection, Event, Expired, Snapshot, Store, Watch};

/// Which collections to follow.
#[derive(Clone, Debug)]
pub(super) enum Scope {
    Only(Vec<Collection>),
    /// These, everything that is stored, and what CustomResourceDefinitions add.
    Everything(Vec<Collection>),
}

pub(super) enum Heard {
    Events(Vec<Arc<Event>>),
    /// Something was missed, or a collection is new: look at everything as it is in this snapshot; the events go on from there.
    StartOver(Snapshot),
}

const PAUSE: Duration = Duration::from_millis(100);

type Turn = (Collection, Watch, Result<Vec<Arc<Event>>, Expired>);

pub(super) struct Feed {
    store: Store,
    scope: Scope,
    followed: BTreeSet<Collection>,
    turns: FuturesUnordered<BoxFuture<'static, Turn>>,
    /// Set when the next thing to say is `StartOver`.
    behind: bool,
}

pub(super) fn custom_resource_definitions() -> Collection {
    Collection::new("apiextensions.k8s.io", "customresourcedefinitions")
}

impl Feed {
    /// The first thing that `next` says is `StartOver`.
    pub(super) fn new(store: Store, scope: Scope) -> Self {
        Feed { store, scope, followed: BTreeSet::new(), turns: FuturesUnordered::new(), behind: true }
    }

    /// Waits for the next news. O(1) per event and followed collection that has news.
    pub(super) async fn next(&mut self) -> Heard {
        loop {
            if self.behind {
                if let Some(snapshot) = self.start_over() {
                    self.behind = false;
                    return Heard::StartOver(snapshot);
                }
                // The store forgot the newest revision between two lines: only under an absurdly small history.
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let Some((collection, watch, result)) = self.turns.next().await else {
                // Nothing is followed, so nothing will be heard.
                return std::future::pending().await;
            };
            match result {
                Ok(events) => {
                    self.behind = self.brings_new_collection(&events);
                    self.turns.push(turn(collection, watch));
                    return Heard::Events(events);
                }
                Err(Expired { .. }) => {
                    // Also what a closed store says, for ever: do not spin on it.
                    tokio::time::sleep(PAUSE).await;
                    self.behind = true;
                }
            }
        }
    }

    /// Follows every collection of the scope from one snapshot on; `None` if the store has moved past it already.
    fn start_over(&mut self) -> Option<Snapshot> {
        let snapshot = self.store.snapshot();
        self.turns.clear();
        self.followed = self.collections(&snapshot);
        for collection in &self.followed {
            let watch = self.store.watch(collection, snapshot.revision()).ok()?;
            self.turns.push(turn(collection.clone(), watch));
        }
        Some(snapshot)
    }

    fn collections(&self, snapshot: &Snapshot) -> BTreeSet<Collection> {
        match &self.scope {
            Scope::Only(collections) => collections.iter().cloned().collect(),
            Scope::Everything(builtin) => {
                let definitions = custom_resource_definitions();
                let defined = snapshot.list(&definitions, None, None).filter_map(|crd| defines(&crd.value()));
                let mut all: BTreeSet<Collection> = builtin.iter().cloned().chain(defined).collect();
                all.extend(snapshot.collections().cloned());
                all.insert(definitions);
                all
            }
        }
    }

    fn brings_new_collection(&self, events: &[Arc<Event>]) -> bool {
        let Scope::Everything(_) = self.scope else { return false };
        let definitions = custom_resource_definitions();
        events
            .iter()
            .filter(|event| event.object.key.collection == definitions)
            .filter_map(|event| defines(&event.object.value()))
            .any(|collection| !self.followed.contains(&collection))
    }
}

fn turn(collection: Collection, mut watch: Watch) -> BoxFuture<'static, Turn> {
    async move {
        let result = watch.next().await;
        (collection, watch, result)
    }
    .boxed()
}

/// The collection that a CustomResourceDefinition adds.
pub(super) fn defines(definition: &Value) -> Option<Collection> {
    let group = definition.pointer("/spec/group")?.as_str()?;
    let plural = definition.pointer("/spec/names/plural")?.as_str()?;
    Some(Collection::new(group, plural))
}
