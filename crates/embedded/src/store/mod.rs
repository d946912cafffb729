//! The object store: an append-only SQLite log, a snapshot of it in memory, and the history that watches read.
//! It knows keys, revisions, labels, owners and bytes; what an object means (kinds, schemas, rights) belongs above it.
//!
//! **Invariants.**
//! - A write is answered after its transaction is on disk, and never before it can be read.
//! - One thread writes. Readers load an immutable state and wait for nobody.
//! - Revisions start at 1 and grow by one per operation, over all collections, also across restarts.
//! - Every event that is retained is offered in order, once, with the object that it replaced; a watch that asks
//!   for more than is retained is told so and never gets a history with a hole.

mod disk;
mod error;
mod fields;
mod history;
mod lock;
mod object;
mod packed;
mod snapshot;
mod state;
#[cfg(test)]
mod tests;
mod watch;
mod writer;

use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::sync::{Semaphore, oneshot};

pub use self::{
    error::{Error, Holder, WriteError},
    fields::IndexedFields,
    history::{Change, Event},
    object::{Collection, Key, Labels, Op, Stored},
    snapshot::{Snapshot, Version},
    watch::{Expired, Watch},
};
use self::{
    object::Prepared,
    packed::Packer,
    state::Core,
    writer::{Command, Request, Writer},
};

/// How much the store keeps. The defaults suit one machine.
#[derive(Debug, Clone)]
pub struct Options {
    /// Events kept per collection for watches that resume.
    pub history_events: usize,
    /// Memory that all histories together may hold beyond the live objects; the largest history gives way first.
    pub history_bytes: usize,
    /// Age after which an event is forgotten, and a snapshot kept for paging is dropped.
    pub history_age: Duration,
    /// Snapshots kept for lists that are read in pages.
    pub paging_snapshots: usize,
    /// Superseded rows that one transaction may remove, so that compaction never delays a write for long.
    pub compaction_rows: usize,
    /// Size that the database file may reach before writes are refused; `None` leaves that to the disk.
    pub max_file_bytes: Option<u64>,
    /// Fields by whose value objects are found without a look at the others.
    pub indexed: IndexedFields,
    /// Where a test can hold the writer, in the middle of a write.
    #[cfg(test)]
    gate: tests::Gate,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            history_events: 20_000,
            history_bytes: 16 << 20,
            history_age: Duration::from_secs(600),
            paging_snapshots: 32,
            compaction_rows: 1024,
            max_file_bytes: None,
            indexed: IndexedFields::default(),
            #[cfg(test)]
            gate: tests::Gate::default(),
        }
    }
}

/// Bytes of unanswered writes, in KiB, beyond which a writer waits for its turn before it is queued.
const QUEUE_KIB: u32 = 64 << 10;
/// What a queued write costs beside its bytes.
const REQUEST_OVERHEAD: usize = 512;

/// A handle on an open database; clones share it. The last one to go closes it.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    core: Arc<Core>,
    commands: mpsc::Sender<Command>,
    queue: Arc<Semaphore>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Store {
    /// Fails if another process has the database at `path` open, and names it. One that is not there is used by nobody.
    pub fn ensure_unused(path: &Path) -> Result<(), Error> {
        if lock::Lock::exists(path) { lock::Lock::take(path).map(drop) } else { Ok(()) }
    }

    /// Opens or creates the database at `path`, reads it and starts its writer. Blocks for as long as that takes.
    pub fn open(path: &Path, options: Options) -> Result<Self, Error> {
        let (disk, state, forgotten) = disk::open(path, &options)?;
        let core = Arc::new(Core::new(state, options.paging_snapshots));
        let (commands, queue) = mpsc::channel();
        let not_started = |source| Error::Io { path: path.into(), source };
        let packer = Packer::start().map_err(not_started)?;
        let writer = Writer::new(disk, Arc::clone(&core), forgotten, packer, options);
        let thread = thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || writer.run(&queue))
            .map_err(not_started)?;
        let shared = Shared {
            core,
            commands,
            queue: Arc::new(Semaphore::new(QUEUE_KIB as usize)),
            thread: Mutex::new(Some(thread)),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The newest state. O(1); it never changes, however long it is held.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.core.state().snapshot.clone()
    }

    /// Keeps `snapshot` for a while, so that [`Store::snapshot_at`] can answer the next page from the same state.
    pub fn keep_for_paging(&self, snapshot: &Snapshot) {
        self.shared.core.pages().keep(snapshot, Instant::now());
    }

    /// The state at `revision` if it is the newest or was kept for paging; `None` asks the client to start over.
    pub fn snapshot_at(&self, revision: u64) -> Option<Snapshot> {
        let newest = self.snapshot();
        if newest.revision() == revision {
            return Some(newest);
        }
        self.shared.core.pages().find(revision, Instant::now())
    }

    /// Applies all of `ops` or none. When it returns `Ok` they are durable and visible to every later snapshot.
    /// The answer holds what was stored, one per op: each object with its `resourceVersion`.
    /// Dropping the future does not take back a write that is already queued.
    pub async fn write(&self, ops: Vec<Op>) -> Result<Vec<Arc<Stored>>, WriteError> {
        if ops.is_empty() {
            return Ok(Vec::new());
        }
        // Serializing happens here, on the caller's thread, so that the one writer only copies bytes.
        let fields = Arc::clone(self.shared.core.state().snapshot.indexed());
        let ops = ops.into_iter().map(|op| Prepared::new(op, &fields)).collect::<Result<Vec<_>, _>>()?;
        let bytes = ops.iter().map(Prepared::len).sum::<usize>() + REQUEST_OVERHEAD;
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(QUEUE_KIB).min(QUEUE_KIB);
        let room = Arc::clone(&self.shared.queue).acquire_many_owned(kib).await;
        let room = room.map_err(|_| self.shared.core.stopped())?;
        let (answer, answered) = oneshot::channel();
        self.send(Command::Write(Request { ops, bytes, answer, _room: room }))?;
        answered.await.map_err(|_| self.shared.core.stopped())?
    }

    /// The events of `collection` after revision `from`, first those retained, then the live ones.
    pub fn watch(&self, collection: &Collection, from: u64) -> Result<Watch, Expired> {
        Watch::start(Arc::clone(&self.shared.core), collection.clone(), from)
    }

    /// Forgets the events up to `revision` at once, as age would: later watches from before it are refused.
    pub async fn compact(&self, revision: u64) -> Result<(), WriteError> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Compact { revision, answer })?;
        answered.await.map_err(|_| self.shared.core.stopped())?
    }

    /// Finishes the queued writes, ends the watches and releases the file. Blocks until that is done.
    /// Other handles stay readable; their writes are refused.
    pub fn close(self) {
        self.shared.shut_down();
    }

    fn send(&self, command: Command) -> Result<(), WriteError> {
        self.shared.commands.send(command).map_err(|_| self.shared.core.stopped())
    }
}

impl Shared {
    fn shut_down(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        // Both fail only if the writer is gone already, which is what we want.
        let _ = self.commands.send(Command::Close);
        let _ = thread.join();
        self.queue.close();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("revision", &self.snapshot().revision()).finish_non_exhaustive()
    }
}
