//! What happened to layers of late, as the watches of layers and runs tell it, by namespace. It is kept as long as somebody may still have
//! to be told; after a restart the watches tell it again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::{TerraformLayer, TerraformRun};
use engine::later;
use engine::notification::{Fact, REMEMBERED, of_layer, of_run};
use futures::{Stream, StreamExt, future};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::watcher::{self, Event};

use crate::source::{Desk, Waiting};

/// What is kept of one namespace; the oldest goes first.
const FACTS: usize = 2048;

type Labels = BTreeMap<String, String>;

#[derive(Debug, Default)]
pub struct Board {
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    by_namespace: BTreeMap<String, Place>,
    /// Namespace and name of each layer that the list that is under way has named.
    listed: BTreeSet<(String, String)>,
}

#[derive(Debug, Default)]
struct Place {
    /// By name.
    facts: BTreeMap<String, Fact>,
    /// Of layers that have labels; of one that is gone as long as something may be told of it.
    layers: BTreeMap<String, Known>,
    /// The notifications that are to be told of news.
    followers: BTreeSet<String>,
}

#[derive(Debug)]
struct Known {
    labels: Labels,
    gone: Option<Timestamp>,
}

impl Board {
    pub(crate) fn follow(&self, namespace: &str, notification: &str) {
        self.places().of(namespace).followers.insert(notification.to_owned());
    }

    pub(crate) fn unfollow(&self, namespace: &str, notification: &str) {
        self.places().of(namespace).followers.remove(notification);
    }

    /// What happened in a namespace, and the labels of the layers that it happened to.
    pub(crate) fn known(&self, namespace: &str) -> (Vec<Fact>, BTreeMap<String, Labels>) {
        let mut places = self.places();
        let place = places.of(namespace);
        let facts: Vec<Fact> = place.facts.values().cloned().collect();
        let labels = facts.iter().filter_map(|fact| {
            let known = place.layers.get(&fact.layer)?;
            Some((fact.layer.clone(), known.labels.clone()))
        });
        let labels = labels.collect();
        (facts, labels)
    }

    /// Takes in what happens until there is nothing more to hear of it.
    pub(crate) async fn listen(
        &self,
        layers: impl Stream<Item = Result<Event<TerraformLayer>, watcher::Error>> + Send,
        runs: impl Stream<Item = Result<Event<TerraformRun>, watcher::Error>> + Send,
        desk: Arc<Desk>,
        now: fn() -> Timestamp,
    ) {
        let wake = |woken: Vec<(String, String)>| {
            for (namespace, name) in woken {
                desk.wake(Waiting::Notification { namespace, name });
            }
        };
        let layers = layers.for_each(|event| {
            wake(event.map_or_else(|_| Vec::new(), |event| self.places().hear_layer(event, now())));
            future::ready(())
        });
        let runs = runs.for_each(|event| {
            wake(event.map_or_else(|_| Vec::new(), |event| self.places().hear_run(event, now())));
            future::ready(())
        });
        tokio::join!(layers, runs);
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    fn of(&mut self, namespace: &str) -> &mut Place {
        self.by_namespace.entry(namespace.to_owned()).or_default()
    }

    /// Gives back who is to look again, by namespace and name.
    fn hear_layer(&mut self, event: Event<TerraformLayer>, now: Timestamp) -> Vec<(String, String)> {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(layer) => {
                self.listed.insert((layer.namespace().unwrap_or_default(), layer.name_any()));
                return self.take_in(&layer, now);
            }
            Event::Apply(layer) => return self.take_in(&layer, now),
            Event::Delete(layer) => {
                self.of(&layer.namespace().unwrap_or_default()).lose(&layer.name_any(), now);
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                for (namespace, place) in &mut self.by_namespace {
                    let known: Vec<String> = place.layers.keys().cloned().collect();
                    for name in known {
                        if !listed.contains(&(namespace.clone(), name.clone())) {
                            place.lose(&name, now);
                        }
                    }
                }
            }
        }
        Vec::new()
    }

    /// The same. What came of a run stays true when it is deleted.
    fn hear_run(&mut self, event: Event<TerraformRun>, now: Timestamp) -> Vec<(String, String)> {
        let (Event::InitApply(run) | Event::Apply(run)) = event else { return Vec::new() };
        let namespace = run.namespace().unwrap_or_default();
        let place = self.of(&namespace);
        let is_news = of_run(&run).is_some_and(|fact| place.note(fact, now));
        if is_news { place.followers(&namespace) } else { Vec::new() }
    }

    fn take_in(&mut self, layer: &TerraformLayer, now: Timestamp) -> Vec<(String, String)> {
        let namespace = layer.namespace().unwrap_or_default();
        let place = self.of(&namespace);
        let mut is_news = place.label(&layer.name_any(), layer.labels());
        for fact in of_layer(layer) {
            is_news |= place.note(fact, now);
        }
        if is_news { place.followers(&namespace) } else { Vec::new() }
    }
}

impl Place {
    fn followers(&self, namespace: &str) -> Vec<(String, String)> {
        self.followers.iter().map(|name| (namespace.to_owned(), name.clone())).collect()
    }

    /// Whether it is new, or seen again. O(facts of the namespace) if so.
    fn note(&mut self, fact: Fact, now: Timestamp) -> bool {
        let is_known = self.facts.get(&fact.id).is_some_and(|known| known.at >= fact.at);
        if is_known || later(fact.at, REMEMBERED) <= now {
            return false;
        }
        self.facts.insert(fact.id.clone(), fact);
        self.facts.retain(|_, fact| later(fact.at, REMEMBERED) > now);
        if self.facts.len() > FACTS
            && let Some(oldest) = self.facts.values().min_by_key(|fact| fact.at).map(|fact| fact.id.clone())
        {
            self.facts.remove(&oldest);
        }
        true
    }

    /// Whether something is known of a layer that has other labels now.
    fn label(&mut self, layer: &str, labels: &Labels) -> bool {
        let before = match labels.is_empty() {
            true => self.layers.remove(layer),
            false => self.layers.insert(layer.to_owned(), Known { labels: labels.clone(), gone: None }),
        };
        let before = before.map(|known| known.labels).unwrap_or_default();
        before != *labels && self.facts.values().any(|fact| fact.layer == layer)
    }

    /// The layer is gone. O(layers of the namespace that have labels).
    fn lose(&mut self, layer: &str, now: Timestamp) {
        if let Some(known) = self.layers.get_mut(layer) {
            known.gone.get_or_insert(now);
        }
        self.layers.retain(|_, known| known.gone.is_none_or(|gone| later(gone, REMEMBERED) > now));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn layer(name: &str, labels: Value) -> TerraformLayer {
        serde_json::from_value(json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer",
            "metadata": { "name": name, "namespace": "team", "uid": name, "labels": labels },
            "spec": { "repository": { "name": "infra" }, "branch": "main", "path": name },
        }))
        .unwrap()
    }

    /// An apply that ended then.
    fn applied(layer: &str, second: i64) -> TerraformRun {
        serde_json::from_value(json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRun",
            "metadata": { "name": format!("{layer}-{second}"), "namespace": "team" },
            "spec": {
                "layer": { "name": layer, "uid": layer, "revision": "a".repeat(40) }, "action": "apply",
                "state": "0".repeat(64), "trigger": { "kind": "auto", "reason": "" },
            },
            "status": { "state": "Succeeded", "finishedAt": at(second), "result": { "reason": "Succeeded", "message": "done" } },
        }))
        .unwrap()
    }

    #[test]
    fn news_wake_the_notifications_of_the_namespace_once() {
        let board = Board::default();
        board.follow("team", "chat");
        board.follow("others", "chat");
        let chat = vec![("team".to_owned(), "chat".to_owned())];
        let hear = |event, second| board.places().hear_run(event, at(second));
        let run = || Event::Apply(applied("db", 100));
        assert_eq!(hear(run(), 100), chat);
        assert_eq!(hear(run(), 101), [], "heard before");
        assert_eq!(hear(Event::Delete(applied("db", 100)), 102), []);
        assert_eq!(board.known("team").0.len(), 1, "what was done stays true");
        assert_eq!(hear(Event::Apply(applied("web", 110)), 20_000), [], "long ago");
        assert_eq!(hear(Event::Apply(applied("web", 19_999)), 20_000), chat);
        assert_eq!(board.known("team").0.len(), 1, "the first one is too old by now");
        board.unfollow("team", "chat");
        assert_eq!(hear(Event::Apply(applied("web", 20_000)), 20_000), []);
        assert_eq!(board.known("others").0, []);
    }

    #[test]
    fn labels_are_known_when_they_come_late_and_after_the_layer_is_gone() {
        let board = Board::default();
        board.follow("team", "chat");
        let hear = |event, second| board.places().hear_layer(event, at(second));
        board.places().hear_run(Event::InitApply(applied("db", 100)), at(100));
        assert!(board.known("team").1.is_empty());
        let db = || layer("db", json!({ "env": "prod" }));
        hear(Event::Init, 101);
        assert_eq!(hear(Event::InitApply(db()), 101).len(), 1, "somebody may ask for this label");
        hear(Event::InitDone, 101);
        assert_eq!(hear(Event::Apply(db()), 102), []);
        let env =
            |board: &Board| board.known("team").1.get("db").and_then(|labels| labels.get("env").cloned());
        hear(Event::Delete(db()), 103);
        assert_eq!(env(&board).as_deref(), Some("prod"));
        hear(Event::Init, 104);
        hear(Event::InitDone, 104);
        assert_eq!(env(&board).as_deref(), Some("prod"));
        hear(Event::Delete(layer("other", json!({}))), 20_000);
        assert_eq!(env(&board), None);
    }
}
