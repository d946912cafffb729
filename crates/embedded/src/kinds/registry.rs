//! All kinds that are served at a revision: the table, and what the stored definitions add. It is brought up to date when it is asked, from the
//! snapshot that the request reads, so a client that sees a definition established can use it at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use super::crd::{self, Definition};
use super::openapi::BuiltinSchemas;
use super::{BUILTIN_GROUPS, Kind, Origin, builtin};
use crate::store::{Collection, Snapshot};

#[derive(Debug)]
pub struct Registry {
    definitions: Collection,
    current: ArcSwap<Kinds>,
    /// Held while kinds are made anew, so that an older snapshot never replaces a newer one.
    renewing: Mutex<()>,
}

/// Group, version and plural.
type ResourceName = (Arc<str>, Arc<str>, Arc<str>);

/// The kinds at one revision.
#[derive(Debug)]
pub struct Kinds {
    /// The newest revision at which the definitions were known to be these.
    revision: u64,
    builtin: Arc<[Arc<Kind>]>,
    custom: BTreeMap<Arc<str>, Custom>,
    index: Arc<HashMap<ResourceName, Arc<Kind>>>,
}

#[derive(Debug, Clone)]
struct Custom {
    revision: u64,
    kinds: Vec<Arc<Kind>>,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    pub fn new() -> Registry {
        let table = builtin::table(BuiltinSchemas::shared());
        let kinds =
            Kinds { revision: 0, builtin: table.into(), custom: BTreeMap::new(), index: Arc::default() };
        Registry {
            definitions: Collection::new("apiextensions.k8s.io", "customresourcedefinitions"),
            current: ArcSwap::from_pointee(kinds.indexed()),
            renewing: Mutex::new(()),
        }
    }

    /// The kinds that need no definition.
    pub fn builtin_kinds(&self) -> Arc<Kinds> {
        self.current.load_full()
    }

    /// The kinds as `snapshot` defines them. O(1) while nothing is written, O(definitions) else; schemas are read only when they change.
    pub fn at(&self, snapshot: &Snapshot) -> Arc<Kinds> {
        let current = self.current.load_full();
        if current.revision >= snapshot.revision() {
            return current;
        }
        let _renewing = self.renewing.lock().unwrap_or_else(PoisonError::into_inner);
        let current = self.current.load_full();
        if current.revision >= snapshot.revision() {
            return current;
        }
        let next = Arc::new(self.renewed(&current, snapshot));
        self.current.store(Arc::clone(&next));
        next
    }

    fn renewed(&self, current: &Kinds, snapshot: &Snapshot) -> Kinds {
        let mut custom = BTreeMap::new();
        let mut changed = false;
        for object in snapshot.list(&self.definitions, None, None) {
            let former = current.custom.get(&object.key.name);
            let entry = match former {
                Some(former) if former.revision == object.revision => former.clone(),
                _ => {
                    changed = true;
                    let former = former.and_then(|f| f.kinds.first()).and_then(|kind| definition(kind));
                    Custom { revision: object.revision, kinds: crd::kinds(&object, former) }
                }
            };
            custom.insert(Arc::clone(&object.key.name), entry);
        }
        let same = !changed && custom.len() == current.custom.len();
        let index = if same { Arc::clone(&current.index) } else { Arc::default() };
        let kinds =
            Kinds { revision: snapshot.revision(), builtin: Arc::clone(&current.builtin), custom, index };
        if same { kinds } else { kinds.indexed() }
    }
}

fn definition(kind: &Kind) -> Option<&Arc<Definition>> {
    match &kind.origin {
        Origin::Builtin(_) => None,
        Origin::Custom(definition) => Some(definition),
    }
}

impl Kinds {
    fn indexed(mut self) -> Kinds {
        let custom = self.custom.values().flat_map(|c| &c.kinds);
        let named = |kind: &Arc<Kind>| {
            let name = (Arc::clone(&kind.group), Arc::clone(&kind.version), Arc::clone(&kind.plural));
            (name, Arc::clone(kind))
        };
        let index: HashMap<_, _> = custom.chain(self.builtin.iter()).map(named).collect();
        self.index = Arc::new(index);
        self
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        self.index.get(&(group.into(), version.into(), plural.into()))
    }

    pub fn builtin(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.builtin.iter()
    }

    pub fn custom(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.custom.values().flat_map(|c| &c.kinds)
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.builtin().chain(self.custom())
    }

    /// The kind that an owner reference or a review names.
    pub fn by_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Kind>> {
        self.all().find(|k| *k.group == *group && *k.version == *version && *k.kind == *kind)
    }

    /// One kind per collection that can be listed, for those who go through everything that is stored.
    pub fn collections(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.all().filter(|kind| kind.verbs.contains(&"list") && kind.storage_version == kind.api_version)
    }

    /// The named groups with their versions, the preferred one first, in the order of discovery.
    pub fn groups(&self) -> Vec<(Arc<str>, Vec<Arc<str>>)> {
        let mut groups: Vec<(Arc<str>, Vec<Arc<str>>)> =
            BUILTIN_GROUPS.iter().map(|group| ((*group).into(), vec!["v1".into()])).collect();
        let mut added: BTreeMap<Arc<str>, Vec<Arc<str>>> = BTreeMap::new();
        for kind in self.custom() {
            let versions = added.entry(Arc::clone(&kind.group)).or_default();
            if !versions.contains(&kind.version) {
                versions.push(Arc::clone(&kind.version));
            }
        }
        for (group, mut versions) in added {
            versions.sort_by_key(|version| std::cmp::Reverse(version_order(version)));
            match groups.iter_mut().find(|(known, _)| *known == group) {
                Some((_, known)) => known.extend(versions.into_iter().filter(|v| &**v != "v1")),
                None => groups.push((group, versions)),
            }
        }
        groups
    }

    /// The kinds of one group and version, by plural.
    pub fn of_version(&self, group: &str, version: &str) -> Vec<&Arc<Kind>> {
        let mut found: Vec<&Arc<Kind>> =
            self.all().filter(|k| *k.group == *group && *k.version == *version).collect();
        found.sort_by(|a, b| a.plural.cmp(&b.plural));
        found
    }
}

/// GA before beta before alpha, newer before older, anything else last and by name.
fn version_order(version: &str) -> (u8, u32, u32, std::cmp::Reverse<String>) {
    let other = || (0, 0, 0, std::cmp::Reverse(version.to_owned()));
    let Some(rest) = version.strip_prefix('v') else { return other() };
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (major, stage) = rest.split_at(digits);
    let Ok(major) = major.parse::<u32>() else { return other() };
    let ranked = |rank, minor: &str| {
        minor.parse::<u32>().map(|minor| (rank, major, minor, std::cmp::Reverse(String::new())))
    };
    let parsed = if stage.is_empty() {
        ranked(3, "0")
    } else if let Some(minor) = stage.strip_prefix("beta") {
        ranked(2, minor)
    } else if let Some(minor) = stage.strip_prefix("alpha") {
        ranked(1, minor)
    } else {
        return other();
    };
    parsed.unwrap_or_else(|_| other())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_stability_then_age() {
        let mut versions = ["v1alpha1", "v2", "v1beta2", "foo10", "v1", "v10beta1", "v1beta1", "v11", "foo1"];
        versions.sort_by_key(|version| std::cmp::Reverse(version_order(version)));
        assert_eq!(
            versions,
            ["v11", "v2", "v1", "v10beta1", "v1beta2", "v1beta1", "v1alpha1", "foo1", "foo10"]
        );
    }

    #[test]
    fn built_in_kinds_are_found_by_their_path() {
        let registry = Registry::new();
        let kinds = registry.current.load_full();
        assert_eq!(kinds.find("", "v1", "pods").map(|k| &*k.kind), Some("Pod"));
        assert_eq!(kinds.find("batch", "v1", "jobs").map(|k| &*k.list_kind), Some("JobList"));
        assert!(kinds.find("batch", "v1beta1", "jobs").is_none());
    }
}
