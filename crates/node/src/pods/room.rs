//! What pods take from a node and give back: a place among the pods that may run, a user, a directory.
//!
//! All of it is in the pods' records too; this is the same knowledge where it can be asked and changed at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::{Duration, Instant};

use crate::isolation::Isolation;

const PROMISE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Room {
    pods: PathBuf,
    isolation: Isolation,
    max: usize,
    held: Mutex<BTreeMap<String, Held>>,
    /// Pods that were bound to this node and have not come to take their place yet.
    promised: Mutex<BTreeMap<String, Instant>>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) directory: PathBuf,
    pub(crate) owner: Option<u32>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Full {
    #[error("the node runs {max} pods, as many as it may; this one waits for another to end")]
    Pods { max: usize },
    #[error("all {count} users that this node gives to pods are taken")]
    Users { count: u32 },
    #[error("another pod of the namespace uses the directory {name:?}; this one waits for it to end")]
    Directory { name: String },
}

impl Room {
    pub(crate) fn new(pods: &Path, isolation: Isolation, max: usize) -> Room {
        Room {
            pods: pods.to_owned(),
            isolation,
            max,
            held: Mutex::default(),
            promised: Mutex::default(),
            changes: watch::Sender::new(0),
        }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, Held>> {
        // Every change is one insert or remove, so a panic elsewhere cannot have left it half done.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one more pod could be bound here.
    pub(crate) fn has_space(&self) -> bool {
        let held = self.held();
        let mut promised = self.promised.lock().unwrap_or_else(PoisonError::into_inner);
        // A pod that was deleted before it came never takes its place; its promise runs out.
        promised.retain(|uid, at| !held.contains_key(uid) && at.elapsed() < PROMISE);
        held.len() + promised.len() < self.max
    }

    pub(crate) fn promise(&self, uid: &str) {
        let mut promised = self.promised.lock().unwrap_or_else(PoisonError::into_inner);
        promised.insert(uid.to_owned(), Instant::now());
    }

    /// What a pod held before the node was restarted stays its own, even past the limit.
    pub(crate) fn adopt(&self, uid: &str, held: Held) {
        self.held().insert(uid.to_owned(), held);
    }

    /// O(live pods).
    pub(crate) fn take(&self, uid: &str, namespace: &str, directory: Option<&str>) -> Result<Held, Full> {
        let mut all = self.held();
        if let Some(held) = all.get(uid) {
            return Ok(held.clone());
        }
        if all.len() >= self.max {
            return Err(Full::Pods { max: self.max });
        }
        let owner = match &self.isolation {
            Isolation::Users(range) => {
                let taken: BTreeSet<u32> = all.values().filter_map(|held| held.owner).collect();
                Some(range.allocate(&taken).ok_or(Full::Users { count: range.count })?)
            }
            Isolation::Landlock | Isolation::None { .. } => None,
        };
        let directory = match directory {
            Some(name) => {
                // The namespace is part of it, and neither name can hold an underscore: no tenant can take another's.
                let path = self.pods.join(format!("{namespace}_{name}"));
                if all.values().any(|held| held.directory == path) {
                    return Err(Full::Directory { name: name.to_owned() });
                }
                path
            }
            None => self.pods.join(uid),
        };
        let held = Held { directory, owner };
        all.insert(uid.to_owned(), held.clone());
        // The promise is kept. A pod that ends before anybody asks for space must not leave it behind.
        self.promised.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
        Ok(held)
    }

    pub(crate) fn give_back(&self, uid: &str) {
        if self.held().remove(uid).is_some() {
            self.changes.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Changes whenever something was given back.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::isolation::UserRange;

    #[test]
    fn places_users_and_directories_are_taken_once_and_come_back() {
        let range = UserRange { first: 100, count: 10 };
        let room = Room::new(Path::new("/pods"), Isolation::Users(range), 2);
        let changes = room.changes();
        let first = room.take("a", "ns", Some("layer")).unwrap();
        assert_eq!(first, Held { directory: "/pods/ns_layer".into(), owner: Some(100) });
        assert_eq!(room.take("a", "ns", Some("layer")).unwrap(), first, "asking again is no second place");
        assert_eq!(room.take("b", "ns", Some("layer")), Err(Full::Directory { name: "layer".into() }));
        let second = room.take("b", "other", Some("layer")).unwrap();
        assert_eq!(second, Held { directory: "/pods/other_layer".into(), owner: Some(101) });
        assert_eq!(room.take("c", "ns", None), Err(Full::Pods { max: 2 }));
        room.promise("a");
        assert!(!room.has_space() && !changes.has_changed().unwrap());
        room.give_back("a");
        assert!(room.has_space() && changes.has_changed().unwrap());
        room.promise("c");
        assert!(!room.has_space(), "a place that is promised is not free");
        assert_eq!(room.take("c", "ns", None).unwrap().directory, Path::new("/pods/c"));
        room.give_back("c");
        assert!(room.has_space(), "a promise that was kept is none any more");
    }
}
