//! An immutable view of all objects at one revision, and the few old views that are kept for lists read in pages.

use std::{
    collections::VecDeque,
    ops::Bound,
    sync::Arc,
    time::{Duration, Instant},
};

use imbl::{OrdMap, OrdSet};

use super::fields::IndexedFields;
use super::object::{Collection, Key, Stored};

/// Namespace and name: the order of a list within its collection.
type Name = (Arc<str>, Arc<str>);

/// All objects at one revision. Cloning is O(1); versions share what did not change between them.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    revision: u64,
    collections: OrdMap<Collection, OrdMap<Name, Arc<Stored>>>,
    fields: Arc<IndexedFields>,
    /// The collections of `fields` only.
    by_value: OrdMap<Collection, OrdSet<Place>>,
}

/// Where an object stands in the index of its collection: the position of the field, its value, and the name.
type Place = (usize, Arc<str>, Name);

impl Snapshot {
    pub(super) fn new(fields: &IndexedFields) -> Self {
        Self { fields: Arc::new(fields.clone()), ..Self::default() }
    }

    pub(super) fn indexed(&self) -> &Arc<IndexedFields> {
        &self.fields
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }

    pub fn get(&self, key: &Key) -> Option<Arc<Stored>> {
        let name = (Arc::clone(&key.namespace), Arc::clone(&key.name));
        self.collections.get(&key.collection)?.get(&name).cloned()
    }

    /// The objects of `collection` ordered by namespace and name, those after `after` (namespace, name) only.
    /// O(log n) to the first, then O(1) each.
    pub fn list<'a>(
        &'a self,
        collection: &Collection,
        namespace: Option<&'a str>,
        after: Option<(&str, &str)>,
    ) -> impl Iterator<Item = Arc<Stored>> + use<'a> {
        let start = start(namespace, after);
        self.collections
            .get(collection)
            .into_iter()
            .flat_map(move |objects| objects.range((start.clone(), Bound::Unbounded)))
            .take_while(move |((of, _), _)| namespace.is_none_or(|namespace| **of == *namespace))
            .map(|(_, object)| Arc::clone(object))
    }

    /// The objects that [`Snapshot::list`] would give and whose field at `path` is `value`, in the same order; `None` where that field
    /// has no index. O(log n) each.
    pub fn list_by<'a>(
        &'a self,
        collection: &'a Collection,
        (path, value): (&str, &str),
        namespace: Option<&'a str>,
        after: Option<(&str, &str)>,
    ) -> Option<impl Iterator<Item = Arc<Stored>> + use<'a>> {
        let field = self.fields.position(collection, path).filter(|_| !value.is_empty())?;
        let value: Arc<str> = value.into();
        let start = match start(namespace, after) {
            Bound::Unbounded => Bound::Included(("".into(), "".into())),
            bound => bound,
        };
        let start = start.map(|name| -> Place { (field, Arc::clone(&value), name) });
        let objects = self.collections.get(collection);
        let places = self.by_value.get(collection).into_iter();
        let places = places.flat_map(move |places| places.range((start.clone(), Bound::Unbounded)));
        let places = places.take_while(move |(of, is, (within, _))| {
            *of == field && *is == value && namespace.is_none_or(|namespace| **within == *namespace)
        });
        Some(places.filter_map(move |(_, _, name)| objects?.get(name).cloned()))
    }

    /// How many objects [`Snapshot::list`] would give; O(1) for a whole collection, O(n) in one namespace.
    pub fn count(&self, collection: &Collection, namespace: Option<&str>) -> usize {
        match namespace {
            None => self.collections.get(collection).map_or(0, OrdMap::len),
            Some(_) => self.list(collection, namespace, None).count(),
        }
    }

    /// What tells whether `collection` has changed between two snapshots. O(1).
    pub fn version(&self, collection: &Collection) -> Version {
        Version(self.collections.get(collection).cloned())
    }

    /// The collections that hold at least one object.
    pub fn collections(&self) -> impl Iterator<Item = &Collection> {
        self.collections.iter().filter(|(_, objects)| !objects.is_empty()).map(|(collection, _)| collection)
    }

    /// Puts `object` in the place of the one with its key, which is returned.
    pub(super) fn put(&mut self, object: &Arc<Stored>) -> Option<Arc<Stored>> {
        self.revision = object.revision;
        let name = (Arc::clone(&object.key.namespace), Arc::clone(&object.key.name));
        let former = match self.collections.get_mut(&object.key.collection) {
            Some(objects) => objects.insert(name, Arc::clone(object)),
            None => {
                let objects = OrdMap::unit(name, Arc::clone(object));
                self.collections.insert(object.key.collection.clone(), objects);
                None
            }
        };
        self.index(former.as_deref(), Some(object));
        former
    }

    /// Removes the object with the key of `tombstone`, which is returned.
    pub(super) fn remove(&mut self, tombstone: &Stored) -> Option<Arc<Stored>> {
        self.revision = tombstone.revision;
        let name = (Arc::clone(&tombstone.key.namespace), Arc::clone(&tombstone.key.name));
        // Looked up first: asking for a collection to change it makes a new version of it, even if nothing is removed.
        self.collections.get(&tombstone.key.collection)?.get(&name)?;
        let former = self.collections.get_mut(&tombstone.key.collection)?.remove(&name);
        self.index(former.as_deref(), None);
        former
    }

    /// Moves an object from its former places in the index to its present ones. Most changes leave them as they are.
    fn index(&mut self, former: Option<&Stored>, present: Option<&Stored>) {
        let values = |object: Option<&Stored>| object.map_or(0, |object| object.fields.len());
        for field in 0..values(former).max(values(present)) {
            let value = |object: Option<&Stored>| object?.fields.get(field)?.clone();
            let (before, now) = (value(former), value(present));
            if before == now {
                continue;
            }
            let Some(Stored { key, .. }) = present.or(former) else { return };
            let places = self.by_value.entry(key.collection.clone()).or_default();
            let name = (Arc::clone(&key.namespace), Arc::clone(&key.name));
            if let Some(before) = before {
                places.remove(&(field, before, name.clone()));
            }
            if let Some(now) = now {
                places.insert((field, now, name));
            }
        }
    }

    /// Only at start: the newest operations may have left no row behind.
    pub(super) fn advance_to(&mut self, revision: u64) {
        self.revision = self.revision.max(revision);
    }
}

/// Where a list begins.
fn start(namespace: Option<&str>, after: Option<(&str, &str)>) -> Bound<Name> {
    let first = namespace.map(|namespace| Bound::Included((namespace, "")));
    let after = after.map(Bound::Excluded);
    let start = match (first, after) {
        (Some(Bound::Included(first)), Some(Bound::Excluded(after))) if after < first => {
            Bound::Included(first)
        }
        (first, after) => after.or(first).unwrap_or(Bound::Unbounded),
    };
    start.map(|(namespace, name)| (namespace.into(), name.into()))
}

/// A collection as it was in one snapshot; equal to that of another if nothing in it was written in between.
/// Comparing is O(1), and it keeps alive no more than that collection.
#[derive(Debug, Clone, Default)]
pub struct Version(Option<OrdMap<Name, Arc<Stored>>>);

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => one.ptr_eq(other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

/// The snapshots that continue tokens point to, the least recently used first. Bounded by number and by age, since
/// each keeps alive what has been superseded since.
#[derive(Debug)]
pub(super) struct Pages {
    limit: usize,
    kept: VecDeque<(Instant, Snapshot)>,
}

impl Pages {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, kept: VecDeque::new() }
    }

    pub(super) fn keep(&mut self, snapshot: &Snapshot, now: Instant) {
        self.kept.retain(|(_, kept)| kept.revision != snapshot.revision);
        self.kept.push_back((now, snapshot.clone()));
        while self.kept.len() > self.limit {
            self.kept.pop_front();
        }
    }

    pub(super) fn find(&mut self, revision: u64, now: Instant) -> Option<Snapshot> {
        let found = self.kept.iter().find(|(_, kept)| kept.revision == revision)?.1.clone();
        self.keep(&found, now);
        Some(found)
    }

    pub(super) fn drop_unused(&mut self, now: Instant, age: Duration) {
        self.kept.retain(|(used, _)| now.saturating_duration_since(*used) < age);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::{super::object::Op, super::object::Prepared, *};

    fn fields() -> IndexedFields {
        let mut fields = IndexedFields::default();
        fields.add(Collection::new("", "pods"), "spec.nodeName".to_owned());
        fields
    }

    fn object(namespace: &str, name: &str, revision: u64) -> Arc<Stored> {
        let key = Key::new(Collection::new("", "pods"), namespace, name);
        let op = Op::Create { key: key.clone(), object: json!({"spec": {"nodeName": name}}) };
        let prepared = Prepared::new(op, &fields()).unwrap();
        Arc::new(prepared.stored_at(key, revision))
    }

    fn snapshot() -> Snapshot {
        let mut snapshot = Snapshot::new(&fields());
        let names = [("", "z"), ("a", "x"), ("a", "y"), ("ab", "a"), ("b", "x")];
        for (revision, (namespace, name)) in (1..).zip(names) {
            snapshot.put(&object(namespace, name, revision));
        }
        snapshot
    }

    #[test]
    fn a_list_is_ordered_scoped_and_can_start_anywhere() {
        let snapshot = snapshot();
        let pods = Collection::new("", "pods");
        let check = |namespace, after, expected: &[&str]| {
            let listed = snapshot.list(&pods, namespace, after);
            let listed = listed.map(|o| format!("{}/{}", o.key.namespace, o.key.name)).collect::<Vec<_>>();
            assert_eq!(listed, expected, "namespace {namespace:?} after {after:?}");
        };
        check(None, None, &["/z", "a/x", "a/y", "ab/a", "b/x"]);
        check(Some("a"), None, &["a/x", "a/y"]);
        check(Some("a"), Some(("a", "x")), &["a/y"]);
        check(Some("a"), Some(("", "z")), &["a/x", "a/y"]);
        check(Some("a"), Some(("b", "x")), &[]);
        check(None, Some(("a", "xx")), &["a/y", "ab/a", "b/x"]);
        check(Some(""), None, &["/z"]);
        check(Some("none"), None, &[]);
        assert_eq!(snapshot.list(&Collection::new("", "secrets"), None, None).count(), 0);
        assert_eq!((snapshot.count(&pods, None), snapshot.count(&pods, Some("a"))), (5, 2));
    }

    #[test]
    fn a_list_by_value_has_the_order_and_the_bounds_of_a_list() {
        let snapshot = snapshot();
        let pods = Collection::new("", "pods");
        let check = |value, namespace, after, expected: &[&str]| {
            let listed = snapshot.list_by(&pods, ("spec.nodeName", value), namespace, after).unwrap();
            let listed = listed.map(|o| format!("{}/{}", o.key.namespace, o.key.name)).collect::<Vec<_>>();
            assert_eq!(listed, expected, "{value} in namespace {namespace:?} after {after:?}");
        };
        check("x", None, None, &["a/x", "b/x"]);
        check("x", Some("b"), None, &["b/x"]);
        check("x", None, Some(("a", "x")), &["b/x"]);
        check("x", Some("a"), Some(("", "z")), &["a/x"]);
        check("x", Some("ab"), None, &[]);
        check("z", None, None, &["/z"]);
        check("none", None, None, &[]);
        assert!(snapshot.list_by(&pods, ("spec.nodeName", ""), None, None).is_none(), "empty is not a value");
        assert!(snapshot.list_by(&pods, ("spec.host", "x"), None, None).is_none());
        assert!(snapshot.list_by(&Collection::new("", "secrets"), ("type", "x"), None, None).is_none());
    }

    #[test]
    fn a_version_changes_with_its_collection_and_with_no_other() {
        let (pods, secrets) = (Collection::new("", "pods"), Collection::new("", "secrets"));
        let mut snapshot = snapshot();
        let (pods_before, secrets_before) = (snapshot.version(&pods), snapshot.version(&secrets));
        assert_eq!(snapshot.clone().version(&pods), pods_before);
        snapshot.put(&object("a", "x", 9));
        assert_ne!(snapshot.version(&pods), pods_before);
        assert_eq!(snapshot.version(&secrets), secrets_before);
        let changed = snapshot.version(&pods);
        snapshot.remove(&object("a", "x", 10));
        assert_ne!(snapshot.version(&pods), changed);
    }

    #[test]
    fn pages_are_bounded_by_number_and_age_and_use_renews_them() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let view = |revision| Snapshot { revision, ..Snapshot::default() };
        let mut pages = Pages::new(2);
        pages.keep(&view(1), at(0));
        pages.keep(&view(2), at(1));
        assert!(pages.find(1, at(2)).is_some(), "used, so it outlives revision 2");
        pages.keep(&view(3), at(3));
        assert!(pages.find(2, at(3)).is_none());
        pages.drop_unused(at(12), Duration::from_secs(10));
        assert!(pages.find(1, at(12)).is_none(), "last used ten seconds ago");
        assert!(pages.find(3, at(12)).is_some());
    }
}
