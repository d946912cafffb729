//! What readers see: the newest snapshot and history, published as one immutable value, and how an op turns one into
//! the next. Pure but for the publishing.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::ArcSwap;

use super::{
    error::WriteError,
    fields::IndexedFields,
    history::{Change, Event, History},
    object::{Demand, Prepared, Stored},
    snapshot::{Pages, Snapshot},
    watch::Bells,
};

/// The snapshot and the history that led to it. Cloning is O(1).
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) snapshot: Snapshot,
    pub(super) history: History,
}

impl State {
    pub(super) fn new(fields: &IndexedFields) -> Self {
        Self { snapshot: Snapshot::new(fields), ..Self::default() }
    }

    /// Applies all of `ops` or none. The events are appended to `events`.
    pub(super) fn attempt(
        &mut self,
        ops: Vec<Prepared>,
        events: &mut Vec<Arc<Event>>,
    ) -> Result<Vec<Arc<Stored>>, WriteError> {
        let before = (ops.len() > 1).then(|| self.clone());
        let first = events.len();
        for op in ops {
            match self.apply(op) {
                Ok(event) => events.push(event),
                Err(error) => {
                    // A single op that fails has changed nothing.
                    if let Some(before) = before {
                        *self = before;
                    }
                    events.truncate(first);
                    return Err(error);
                }
            }
        }
        Ok(events.iter().skip(first).map(|event| Arc::clone(&event.object)).collect())
    }

    fn apply(&mut self, op: Prepared) -> Result<Arc<Event>, WriteError> {
        let current = self.snapshot.get(&op.key);
        let change = match (op.demand, &current) {
            (Demand::Create, Some(current)) => {
                return Err(WriteError::Exists { current: Arc::clone(current) });
            }
            (Demand::Create, None) => Change::Added,
            (Demand::Update { .. } | Demand::Delete { .. }, None) => {
                return Err(WriteError::Missing { key: op.key });
            }
            (Demand::Update { expected } | Demand::Delete { expected }, Some(current))
                if current.revision != expected =>
            {
                return Err(WriteError::Conflict { current: Arc::clone(current) });
            }
            (Demand::Update { .. }, Some(_)) => Change::Modified,
            (Demand::Delete { .. }, Some(_)) => Change::Deleted,
        };
        let key = current.map_or_else(|| op.key.clone(), |current| current.key.clone());
        let object = op.stored_at(key, self.snapshot.revision() + 1);
        Ok(self.record(change, Arc::new(object)))
    }

    /// Takes a row of the log as it was written, at start.
    pub(super) fn replay(&mut self, row: Stored, deleted: Deleted) {
        let change = match (deleted, self.snapshot.get(&row.key)) {
            (Deleted::Yes, _) => Change::Deleted,
            (Deleted::No, Some(_)) => Change::Modified,
            (Deleted::No, None) => Change::Added,
        };
        self.record(change, Arc::new(row));
    }

    fn record(&mut self, change: Change, object: Arc<Stored>) -> Arc<Event> {
        let previous = match change {
            Change::Added | Change::Modified => self.snapshot.put(&object),
            Change::Deleted => self.snapshot.remove(&object),
        };
        let event = Arc::new(Event { revision: object.revision, change, object, previous });
        self.history.push(Arc::clone(&event));
        event
    }
}

/// Whether a row says that the object is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deleted {
    Yes,
    No,
}

/// What the handles, the watches and the writer share.
#[derive(Debug)]
pub(super) struct Core {
    state: ArcSwap<State>,
    pages: Mutex<Pages>,
    pub(super) bells: Bells,
    stopped: OnceLock<Arc<str>>,
}

impl Core {
    pub(super) fn new(state: State, paging_snapshots: usize) -> Self {
        Self {
            state: ArcSwap::from_pointee(state),
            pages: Mutex::new(Pages::new(paging_snapshots)),
            bells: Bells::default(),
            stopped: OnceLock::new(),
        }
    }

    pub(super) fn state(&self) -> arc_swap::Guard<Arc<State>> {
        self.state.load()
    }

    pub(super) fn publish(&self, state: State) {
        self.state.store(Arc::new(state));
    }

    pub(super) fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says why no write will ever be answered again; the first reason stays.
    pub(super) fn stop(&self, reason: &str) {
        let _ = self.stopped.set(reason.into());
        self.bells.silence();
    }

    pub(super) fn stopped(&self) -> WriteError {
        let reason = self.stopped.get().cloned().unwrap_or_else(|| "its writer has stopped".into());
        WriteError::Stopped { reason }
    }
}
