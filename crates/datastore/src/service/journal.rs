//! The life of a state as numbered steps, each written once and holding the whole situation after it: who has the lock,
//! which version is current, the highest fence seen. Creating the next number decides between two writers, so this
//! needs no store that can compare and swap, and the history is complete by construction.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use api::text::Sha256;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::store::{self, Store};
use crate::key::{Key, StateId};

/// Another writer can win a race this often before we give up.
const TRIES: u32 = 16;
/// Steps read at the same time.
const READS: usize = 16;
const CACHE_SIZE: usize = 10_000;
/// So many last steps are remembered whole, if they are no longer than this.
const RECENT: usize = 1_000;
const RECENT_SIZE: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    Lock,
    Unlock,
    Write,
    Delete,
}

/// Who holds a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lock {
    pub id: String,
    /// The tool's own words: operation, who, version.
    pub info: serde_json::Value,
    /// Absent for a lock that was taken by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    pub by: String,
    pub since: Timestamp,
}

/// The current content of a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    pub version: u64,
    pub sha256: Sha256,
    pub lineage: Option<String>,
    pub serial: Option<u64>,
}

/// One step, and the situation after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    pub number: u64,
    pub kind: Kind,
    pub at: Timestamp,
    pub by: String,
    /// The highest fence that was ever seen.
    pub fence: u64,
    /// How many versions there have been.
    pub versions: u64,
    pub head: Option<Head>,
    pub lock: Option<Lock>,
}

/// What a change of a state starts from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Situation {
    pub(crate) number: u64,
    pub(crate) fence: u64,
    pub(crate) versions: u64,
    pub(crate) head: Option<Head>,
    pub(crate) lock: Option<Lock>,
}

/// Why a state was left as it is.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Refused {
    #[error(
        "this run's fence {own} is lower than {seen}, which was seen already: another run took over this state, so nothing more is written"
    )]
    Fenced { own: u64, seen: u64 },
    #[error("the state is locked by {} since {}", .0.by, .0.since)]
    Locked(Box<Lock>),
    #[error("the state is not locked by this run; lock it before writing")]
    NotLocked,
    #[error("the lock to release has the id {0}, the one held has another")]
    OtherLock(String),
    #[error("the new state has lineage {new}, the stored one {stored}: they are different states")]
    Lineage { new: String, stored: String },
    #[error(
        "the new state has serial {new}, which does not follow the stored serial {stored}: it was made from an older state"
    )]
    Serial { new: u64, stored: u64 },
    #[error("the content is no state: lineage or serial is missing")]
    NoState,
    #[error("the state belongs to another namespace")]
    OtherTenant,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("step {0} of a state cannot be read: {1}")]
    Malformed(u64, serde_json::Error),
    #[error(
        "step {number} of state {id} was stored and is gone: the object store was rolled back or damaged, and an older state must not pass for the current one; restore the store"
    )]
    RolledBack { id: StateId, number: u64 },
    #[error("the state is being changed by too many at once; try again")]
    Busy,
}

/// What a change makes of a situation. It is made once a request and never kept, so its size does not matter.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Change {
    /// It already is as wished.
    Nothing,
    To(Box<Next>),
}

/// What the next step says.
pub(crate) struct Next {
    pub(crate) kind: Kind,
    pub(crate) fence: u64,
    pub(crate) head: Option<Head>,
    pub(crate) lock: Option<Lock>,
}

impl Change {
    fn to(kind: Kind, fence: u64, head: Option<Head>, lock: Option<Lock>) -> Self {
        Self::To(Box::new(Next { kind, fence, head, lock }))
    }
}

pub(crate) struct Journal {
    store: Store,
    /// The last step known of each state: a hint where to look, never an answer.
    hints: Mutex<HashMap<StateId, u64>>,
    /// What the last step known of a state says, and whose it is. Another process may have gone on since, so only what the store then
    /// confirms may rest on it: that the number after it was free.
    recent: Mutex<HashMap<StateId, (String, Step)>>,
}

impl Journal {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, hints: Mutex::default(), recent: Mutex::default() }
    }

    /// The last step of a state, with the namespace it belongs to.
    pub(crate) async fn last(&self, id: &StateId) -> Result<Option<(String, Step)>, Error> {
        let hint = self.hints.lock().unwrap_or_else(PoisonError::into_inner).get(id).copied();
        let mut number = match hint {
            Some(number) => number,
            // Cold: one listing finds the end. O(steps of this state).
            None => self
                .store
                .list(&Key::steps_prefix(id))
                .await?
                .last()
                .and_then(|(name, _)| name.parse().ok())
                .unwrap_or(0),
        };
        while self.store.exists(&Key::StateStep(id.clone(), number + 1)).await? {
            number += 1;
        }
        if number == 0 {
            return Ok(None);
        }
        let found = self.step(id, number).await?;
        self.hint(id, number);
        Ok(Some(found))
    }

    /// A step that was stored.
    async fn step(&self, id: &StateId, number: u64) -> Result<(String, Step), Error> {
        let (tenant, content) = match self.store.bytes(&Key::StateStep(id.clone(), number)).await {
            // Steps are never deleted, so whoever removed this one did it behind our back.
            Err(store::Error::NotFound(_)) => return Err(Error::RolledBack { id: id.clone(), number }),
            other => other?,
        };
        let step = serde_json::from_slice(&content).map_err(|error| Error::Malformed(number, error))?;
        Ok((tenant, step))
    }

    /// The steps that wrote a version, oldest first. O(steps of this state).
    pub(crate) async fn writes(&self, id: &StateId) -> Result<Vec<Step>, Error> {
        let last = self.last(id).await?.map_or(0, |(_, step)| step.number);
        futures::stream::iter(1..=last)
            .map(|number| self.step(id, number))
            .buffered(READS)
            .try_filter_map(async |(_, step)| match step.kind {
                Kind::Write => Ok(Some(step)),
                Kind::Lock | Kind::Unlock | Kind::Delete => Ok(None),
            })
            .try_collect()
            .await
    }

    /// A version, if there has been one of this number. Each step says how many there were, so it reads O(log steps) of them.
    pub(crate) async fn version(&self, id: &StateId, version: u64) -> Result<Option<Head>, Error> {
        let Some((_, last)) = self.last(id).await? else { return Ok(None) };
        let (mut from, mut to) = (1, last.number);
        while from < to {
            let middle = from + (to - from) / 2;
            let (_, step) = self.step(id, middle).await?;
            if step.versions < version {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        let (_, step) = self.step(id, from).await?;
        Ok(step.head.filter(|head| head.version == version))
    }

    /// Appends one step, or none when `decide` sees no need. `decide` may be asked again when another writer was
    /// faster, each time with the newer situation.
    ///
    /// It is asked about what is remembered first, which spares reading the last step: if that was not the last, the number after it is
    /// taken. Refusing, or doing nothing, has no such proof, so that is decided only on what was read.
    pub(crate) async fn change(
        &self,
        id: &StateId,
        tenant: &str,
        by: &str,
        now: Timestamp,
        mut decide: impl FnMut(&Situation) -> Result<Change, Refused>,
    ) -> Result<Situation, Error> {
        let mut remembered = self.recent().remove(id).filter(|(owner, _)| owner == tenant);
        for _ in 0..TRIES {
            let is_proved = remembered.is_none();
            let last = match remembered.take() {
                None => self.last(id).await?,
                known => known,
            };
            if last.as_ref().is_some_and(|(owner, _)| owner != tenant) {
                return Err(Refused::OtherTenant.into());
            }
            let situation = last.map(|(_, step)| Situation::after(step)).unwrap_or_default();
            let Next { kind, fence, head, lock } = match decide(&situation) {
                Ok(Change::To(next)) => *next,
                _ if !is_proved => continue,
                Ok(Change::Nothing) => return Ok(situation),
                Err(refused) => return Err(refused.into()),
            };
            let versions =
                head.as_ref().map_or(situation.versions, |head| head.version.max(situation.versions));
            let number = situation.number + 1;
            let fence = fence.max(situation.fence);
            let step = Step { number, kind, at: now, by: by.to_owned(), fence, versions, head, lock };
            let content = serde_json::to_vec(&step).map_err(|error| Error::Malformed(number, error))?;
            let size = content.len();
            let key = Key::StateStep(id.clone(), number);
            // Steps are never deleted, so whoever removed the last one did it behind our back. One that was just read is there.
            let before = (!is_proved).then(|| Key::StateStep(id.clone(), situation.number));
            match self.store.put_bytes_after(before.as_ref(), &key, tenant, content.into()).await {
                Ok(_) => {
                    self.hint(id, number);
                    self.remember(id, tenant, &step, size);
                    return Ok(Situation::after(step));
                }
                Err(store::Error::Conflict(_) | store::Error::Underway(_)) => {}
                Err(store::Error::NotFound(_)) => {
                    return Err(Error::RolledBack { id: id.clone(), number: situation.number });
                }
                Err(other) => return Err(other.into()),
            }
        }
        Err(Error::Busy)
    }

    fn recent(&self) -> std::sync::MutexGuard<'_, HashMap<StateId, (String, Step)>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, id: &StateId, tenant: &str, step: &Step, size: usize) {
        let mut recent = self.recent();
        if recent.len() >= RECENT && !recent.contains_key(id) {
            recent.clear();
        }
        match recent.get(id) {
            Some((_, newer)) if newer.number > step.number => {}
            _ if size > RECENT_SIZE => {
                recent.remove(id);
            }
            _ => {
                recent.insert(id.clone(), (tenant.to_owned(), step.clone()));
            }
        }
    }

    fn hint(&self, id: &StateId, number: u64) {
        let mut hints = self.hints.lock().unwrap_or_else(PoisonError::into_inner);
        if hints.len() >= CACHE_SIZE && !hints.contains_key(id) {
            hints.clear();
        }
        hints.insert(id.clone(), number);
    }
}

impl Situation {
    fn after(step: Step) -> Self {
        let Step { number, fence, versions, head, lock, .. } = step;
        Self { number, fence, versions, head, lock }
    }

    /// Refuses whoever was overtaken. `None` is a person or controller, who has no fence.
    fn check_fence(&self, fence: Option<u64>) -> Result<u64, Refused> {
        match fence {
            Some(own) if own < self.fence => Err(Refused::Fenced { own, seen: self.fence }),
            Some(own) => Ok(own),
            None => Ok(self.fence),
        }
    }

    pub(crate) fn lock(&self, wish: &Lock) -> Result<Change, Refused> {
        let fence = self.check_fence(wish.fence)?;
        match &self.lock {
            Some(held) if held.id == wish.id => return Ok(Change::Nothing),
            // A higher fence is only issued once the holder's pod is known to be gone: its lock is an orphan.
            Some(held) if held.fence.zip(wish.fence).is_some_and(|(old, new)| old < new) => {}
            Some(held) => return Err(Refused::Locked(Box::new(held.clone()))),
            None => {}
        }
        Ok(Change::to(Kind::Lock, fence, self.head.clone(), Some(wish.clone())))
    }

    /// An absent id releases whatever lock there is; only people can ask for that.
    pub(crate) fn unlock(&self, id: Option<&str>, fence: Option<u64>) -> Result<Change, Refused> {
        let fence = self.check_fence(fence)?;
        match (&self.lock, id) {
            (None, _) => Ok(Change::Nothing),
            (Some(held), Some(id)) if held.id != id => Err(Refused::OtherLock(id.to_owned())),
            (Some(_), _) => Ok(Change::to(Kind::Unlock, fence, self.head.clone(), None)),
        }
    }

    pub(crate) fn write(
        &self,
        new: &Head,
        lock_id: Option<&str>,
        fence: Option<u64>,
    ) -> Result<Change, Refused> {
        let seen = self.check_fence(fence)?;
        match (&self.lock, fence) {
            (Some(held), _) if Some(held.id.as_str()) != lock_id => {
                return Err(Refused::Locked(Box::new(held.clone())));
            }
            (None, Some(_)) => return Err(Refused::NotLocked),
            (Some(_), _) | (None, None) => {}
        }
        let (Some(lineage), Some(serial)) = (&new.lineage, new.serial) else { return Err(Refused::NoState) };
        if let Some(head) = &self.head {
            if head.sha256 == new.sha256 {
                return Ok(Change::Nothing);
            }
            if let Some(stored) = &head.lineage
                && stored != lineage
            {
                return Err(Refused::Lineage { new: lineage.clone(), stored: stored.clone() });
            }
            if let Some(stored) = head.serial
                && serial <= stored
            {
                return Err(Refused::Serial { new: serial, stored });
            }
        }
        let head = Head { version: self.versions + 1, ..new.clone() };
        Ok(Change::to(Kind::Write, seen, Some(head), self.lock.clone()))
    }

    pub(crate) fn delete(&self) -> Result<Change, Refused> {
        match (&self.lock, &self.head) {
            (Some(held), _) => Err(Refused::Locked(Box::new(held.clone()))),
            (None, None) => Ok(Change::Nothing),
            (None, Some(_)) => Ok(Change::to(Kind::Delete, self.fence, None, None)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use zeroize::Zeroizing;

    use super::super::keyring::Keyring;
    use super::super::place::Objects;
    use super::*;

    async fn lock(journal: &Journal, id: &StateId, name: &str) -> Result<Situation, Error> {
        let wish = Lock {
            id: name.to_owned(),
            info: serde_json::json!({"ID": name}),
            fence: Some(1),
            by: "run".to_owned(),
            since: Timestamp::UNIX_EPOCH,
        };
        journal.change(id, "team", "run", Timestamp::now(), |situation| situation.lock(&wish)).await
    }

    async fn unlock(journal: &Journal, id: &StateId, name: &str) -> Result<Situation, Error> {
        journal
            .change(id, "team", "run", Timestamp::now(), |situation| situation.unlock(Some(name), Some(1)))
            .await
    }

    async fn write(journal: &Journal, id: &StateId, serial: u64) -> Result<Situation, Error> {
        let head = Head {
            version: 0,
            sha256: Sha256::of(serial.to_string().as_bytes()),
            lineage: Some("l".to_owned()),
            serial: Some(serial),
        };
        journal
            .change(id, "team", "run", Timestamp::now(), |situation| {
                situation.write(&head, Some("a"), Some(1))
            })
            .await
    }

    #[tokio::test]
    async fn each_version_is_found_among_locks_and_unlocks() {
        let journal = Journal::new(store());
        let id = StateId::new("net").unwrap();
        assert_eq!(journal.version(&id, 1).await.unwrap(), None, "no state");
        let mut serial = 0;
        for writes in [2, 0, 1, 3] {
            lock(&journal, &id, "a").await.unwrap();
            for _ in 0..writes {
                serial += 1;
                write(&journal, &id, serial).await.unwrap();
            }
            unlock(&journal, &id, "a").await.unwrap();
        }
        for version in 1..=6 {
            let found = journal.version(&id, version).await.unwrap().unwrap();
            assert_eq!((found.version, found.serial), (version, Some(version)));
        }
        for absent in [0, 7, u64::MAX] {
            assert_eq!(journal.version(&id, absent).await.unwrap(), None, "{absent}");
        }
        let writes = journal.writes(&id).await.unwrap();
        assert_eq!(writes.iter().map(|step| step.versions).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    }

    fn store() -> Store {
        let objects = Objects::from(object_store::memory::InMemory::new());
        Store::new(objects, Arc::new(Keyring::new(Zeroizing::new([1; 32]), Vec::new())))
    }

    fn holder(outcome: Result<Situation, Error>) -> Option<String> {
        match outcome {
            Err(Error::Refused(Refused::Locked(lock))) => Some(lock.id),
            _ => None,
        }
    }

    #[tokio::test]
    async fn what_one_process_remembers_never_stands_against_what_another_has_stored() {
        let store = store();
        let (one, other) = (Journal::new(store.clone()), Journal::new(store));
        let id = StateId::new("net").unwrap();
        assert_eq!(lock(&one, &id, "a").await.unwrap().number, 1);
        assert_eq!(unlock(&other, &id, "a").await.unwrap().number, 2);
        assert_eq!(lock(&other, &id, "b").await.unwrap().number, 3);
        // One remembers the lock of a, and must see that of b.
        assert_eq!(holder(lock(&one, &id, "c").await).as_deref(), Some("b"));
        assert_eq!(unlock(&other, &id, "b").await.unwrap().number, 4);
        assert_eq!(lock(&one, &id, "c").await.unwrap().number, 5, "nobody holds it");
        // The other remembers that nobody holds it, and must see that of c.
        assert_eq!(holder(lock(&other, &id, "d").await).as_deref(), Some("c"));
        // The same again, and the release of what is released, say nothing of what is only remembered.
        assert_eq!(unlock(&one, &id, "c").await.unwrap().number, 6);
        assert_eq!(lock(&other, &id, "e").await.unwrap().number, 7);
        assert!(matches!(unlock(&one, &id, "c").await, Err(Error::Refused(Refused::OtherLock(_)))));
    }
}
