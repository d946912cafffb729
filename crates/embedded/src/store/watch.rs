//! Watches: cursors into the history. A watch holds a revision and nothing else, so a slow one costs no memory and
//! delays nobody; it falls out of the retained history and is told so.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::{history::Event, object::Collection, state::Core};

/// The events after `from` are not all retained: list again and watch from there.
/// The words are those of kube-apiserver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too old resource version: {from} ({oldest})")]
pub struct Expired {
    pub from: u64,
    /// The oldest revision that a watch can start from.
    pub oldest: u64,
}

/// Events handed out at once, so that a watch far behind holds a bounded number of them.
const BATCH: usize = 512;

/// The events of one collection, in order, each once.
#[derive(Debug)]
pub struct Watch {
    core: Arc<Core>,
    collection: Collection,
    /// Everything up to this revision has been handed out.
    cursor: u64,
    bell: watch::Receiver<()>,
}

impl Watch {
    pub(super) fn start(core: Arc<Core>, collection: Collection, from: u64) -> Result<Self, Expired> {
        let bell = core.bells.listen(&collection);
        let watch = Self { core, collection, cursor: from, bell };
        watch.ready(0)?;
        Ok(watch)
    }

    /// Waits for events and returns those that there are, at least one. Fails when it fell behind what is retained, and
    /// when the store is closed and all events before that were read. Can be dropped and called again without loss.
    pub async fn next(&mut self) -> Result<Vec<Arc<Event>>, Expired> {
        loop {
            // Before looking, so that what happens while we look rings again.
            self.bell.mark_unchanged();
            let events = self.ready(BATCH)?;
            if let Some(last) = events.last() {
                self.cursor = last.revision;
                return Ok(events);
            }
            if self.bell.changed().await.is_err() {
                // The writer is gone. It may have published once more before it left.
                let events = self.ready(BATCH)?;
                let Some(last) = events.last() else {
                    return Err(Expired { from: self.cursor, oldest: self.core.state().snapshot.revision() });
                };
                self.cursor = last.revision;
                return Ok(events);
            }
        }
    }

    /// The revision up to which this watch has seen everything, for bookmarks: as new as the store's when nothing of
    /// this collection is waiting.
    pub fn revision(&self) -> u64 {
        let state = self.core.state();
        let log = state.history.log(&self.collection);
        let behind =
            log.is_some_and(|log| log.floor() > self.cursor || log.after(self.cursor).next().is_some());
        if behind { self.cursor } else { self.cursor.max(state.snapshot.revision()) }
    }

    fn ready(&self, limit: usize) -> Result<Vec<Arc<Event>>, Expired> {
        let state = self.core.state();
        let Some(log) = state.history.log(&self.collection) else { return Ok(Vec::new()) };
        if self.cursor < log.floor() {
            return Err(Expired { from: self.cursor, oldest: log.floor() });
        }
        Ok(log.after(self.cursor).take(limit).cloned().collect())
    }
}

/// One bell per collection, rung after a write to it.
#[derive(Debug)]
pub(super) struct Bells(Mutex<Option<HashMap<Collection, watch::Sender<()>>>>);

impl Default for Bells {
    fn default() -> Self {
        Self(Mutex::new(Some(HashMap::new())))
    }
}

impl Bells {
    fn listen(&self, collection: &Collection) -> watch::Receiver<()> {
        match &mut *self.lock() {
            Some(bells) => bells.entry(collection.clone()).or_default().subscribe(),
            // Its sender is dropped at once, which says that nothing more will come.
            None => watch::channel(()).1,
        }
    }

    pub(super) fn ring<'a>(&self, collections: impl IntoIterator<Item = &'a Collection>) {
        let Some(bells) = &*self.lock() else { return };
        for collection in collections {
            if let Some(bell) = bells.get(collection) {
                bell.send_replace(());
            }
        }
    }

    /// Ends all watches once they have read what there is.
    pub(super) fn silence(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<HashMap<Collection, watch::Sender<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
