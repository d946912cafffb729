//! Which namespaces the controllers look after, and how a kind is watched there. A watch of a few namespaces is one watch for each,
//! told as if it were a single one.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use kube::ResourceExt;
use kube::runtime::watcher::{self, Event};

/// Where the controllers look and act.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Namespaces {
    /// Wherever there are layers; needs rights over the whole cluster.
    #[default]
    All,
    /// In these and nowhere else.
    These(BTreeSet<String>),
}

impl Namespaces {
    /// The same, and another one.
    pub(crate) fn and(&self, other: Option<&str>) -> Self {
        match (self, other) {
            (Self::All, _) => Self::All,
            (Self::These(names), other) => {
                Self::These(names.iter().cloned().chain(other.map(str::to_owned)).collect())
            }
        }
    }
}

/// One of several watches, and what it has told of so far.
struct Part<K> {
    known: BTreeMap<String, K>,
    /// What the list that is under way has named.
    fresh: Option<BTreeMap<String, K>>,
    /// It was listed, or there was an answer why it cannot be.
    answered: bool,
}

impl<K> Default for Part<K> {
    fn default() -> Self {
        Self { known: BTreeMap::new(), fresh: None, answered: false }
    }
}

struct Merge<K> {
    parts: Vec<Part<K>>,
    /// The first list of all was told.
    begun: bool,
}

type Told<K> = Result<Event<K>, watcher::Error>;

/// Several watches as one: a first list once each of them was listed or refused, and then what changes. A namespace that cannot be
/// watched keeps nobody else waiting. Where one of them is listed anew, only what differs is told.
pub(crate) fn merged<K>(watches: Vec<BoxStream<'static, Told<K>>>) -> impl Stream<Item = Told<K>> + Send
where
    K: kube::Resource + Clone + Send + 'static,
{
    let mut merge =
        Merge { parts: watches.iter().map(|_| Part::default()).collect::<Vec<Part<K>>>(), begun: false };
    let numbered =
        watches.into_iter().enumerate().map(|(at, watch)| watch.map(move |told| (at, told)).boxed());
    stream::select_all(numbered.collect::<Vec<_>>())
        .flat_map(move |(at, told)| stream::iter(merge.take_in(at, told)))
}

impl<K: kube::Resource + Clone> Merge<K> {
    /// What to tell after one of the watches told something. O(objects of that watch) for a list, else O(log objects).
    fn take_in(&mut self, at: usize, told: Told<K>) -> Vec<Told<K>> {
        let begun = self.begun;
        let Some(part) = self.parts.get_mut(at) else { return Vec::new() };
        let mut tell = Vec::new();
        match told {
            Ok(Event::Init) => part.fresh = Some(BTreeMap::new()),
            Ok(Event::InitApply(object)) => {
                tell.push(Ok(Event::Apply(object.clone())));
                part.fresh.get_or_insert_default().insert(object.name_any(), object);
            }
            Ok(Event::InitDone) => {
                let fresh = part.fresh.take().unwrap_or_default();
                let before = std::mem::replace(&mut part.known, fresh);
                let gone = before.into_iter().filter(|(name, _)| !part.known.contains_key(name));
                tell.extend(gone.map(|(_, object)| Ok(Event::Delete(object))));
                part.answered = true;
            }
            Ok(Event::Apply(object)) => {
                part.known.insert(object.name_any(), object.clone());
                tell.push(Ok(Event::Apply(object)));
            }
            Ok(Event::Delete(object)) => {
                part.known.remove(&object.name_any());
                tell.push(Ok(Event::Delete(object)));
            }
            Err(error) => {
                part.answered = true;
                return std::iter::once(Err(error)).chain(self.begin()).collect();
            }
        }
        if begun { tell } else { self.begin() }
    }

    /// The first list, once there is an answer about each namespace.
    fn begin(&mut self) -> Vec<Told<K>> {
        if self.begun || !self.parts.iter().all(|part| part.answered) {
            return Vec::new();
        }
        self.begun = true;
        let known = self.parts.iter().flat_map(|part| part.known.values().cloned());
        let list = known.map(|object| Ok(Event::InitApply(object)));
        std::iter::once(Ok(Event::Init)).chain(list).chain(std::iter::once(Ok(Event::InitDone))).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::ObjectMeta;

    use super::*;

    fn named(name: &str) -> ConfigMap {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        ConfigMap { metadata, ..ConfigMap::default() }
    }

    fn words(told: Vec<Told<ConfigMap>>) -> Vec<String> {
        let word = |told: Told<ConfigMap>| match told {
            Ok(Event::Init) => "init".to_owned(),
            Ok(Event::InitApply(object)) => format!("has {}", object.name_any()),
            Ok(Event::InitDone) => "done".to_owned(),
            Ok(Event::Apply(object)) => format!("now {}", object.name_any()),
            Ok(Event::Delete(object)) => format!("gone {}", object.name_any()),
            Err(_) => "error".to_owned(),
        };
        told.into_iter().map(word).collect()
    }

    #[test]
    fn two_watches_tell_one_list_and_then_what_changes() {
        let mut merge = Merge { parts: vec![Part::default(), Part::default()], begun: false };
        let mut tell = |at, event| words(merge.take_in(at, Ok(event)));
        let nothing = Vec::<String>::new();
        assert_eq!(tell(0, Event::Init), nothing);
        assert_eq!(tell(0, Event::InitApply(named("a"))), nothing);
        assert_eq!(tell(0, Event::InitDone), nothing, "the other one was not listed yet");
        assert_eq!(tell(0, Event::Apply(named("b"))), nothing);
        assert_eq!(tell(0, Event::Delete(named("a"))), nothing);
        assert_eq!(tell(1, Event::Init), nothing);
        assert_eq!(tell(1, Event::InitApply(named("c"))), nothing);
        assert_eq!(tell(1, Event::InitDone), ["init", "has b", "has c", "done"]);
        assert_eq!(tell(1, Event::Apply(named("d"))), ["now d"]);
        // Listed anew after an interruption: c went meanwhile, and nothing of the other namespace is touched.
        assert_eq!(tell(1, Event::Init), nothing);
        assert_eq!(tell(1, Event::InitApply(named("d"))), ["now d"]);
        assert_eq!(tell(1, Event::InitDone), ["gone c"]);
    }

    #[test]
    fn a_namespace_that_cannot_be_watched_keeps_nobody_waiting() {
        let mut merge = Merge { parts: vec![Part::default(), Part::default()], begun: false };
        let refused = || Err(watcher::Error::NoResourceVersion);
        assert_eq!(words(merge.take_in(1, refused())), ["error"]);
        merge.take_in(0, Ok(Event::Init));
        merge.take_in(0, Ok(Event::InitApply(named("a"))));
        assert_eq!(words(merge.take_in(0, Ok(Event::InitDone))), ["init", "has a", "done"]);
        assert_eq!(words(merge.take_in(1, refused())), ["error"]);
        // Its rights came: what is there is told.
        assert_eq!(words(merge.take_in(1, Ok(Event::Init))), Vec::<String>::new());
        assert_eq!(words(merge.take_in(1, Ok(Event::InitApply(named("b"))))), ["now b"]);
        assert_eq!(words(merge.take_in(1, Ok(Event::InitDone))), Vec::<String>::new());
    }
}
