//! The store as its callers see it: written, read, watched, closed and opened again. Objects here are small; what
//! matters is keys, revisions and what survives.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod basics;
mod compaction;
mod full;
mod held;
mod model;
mod refusals;
mod watching;

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Change, Collection, Event, Key, Op, Options, Store, Stored, WriteError};

/// A database in a directory of its own, which goes when this does.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { directory: TempDir::new().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("store.db")
    }

    fn open(&self) -> Store {
        self.open_with(Options::default())
    }

    fn open_with(&self, options: Options) -> Store {
        Store::open(&self.path(), options).unwrap()
    }
}

fn layers() -> Collection {
    Collection::new("terrane.dev", "terraformlayers")
}

fn pods() -> Collection {
    Collection::new("", "pods")
}

fn layer(name: &str) -> Key {
    Key::new(layers(), "infra", name)
}

fn pod(name: &str) -> Key {
    Key::new(pods(), "default", name)
}

fn object(key: &Key, note: impl Into<Value>) -> Value {
    let note = note.into();
    let third = note.as_u64().map(|note| note % 3);
    json!({"metadata": {"name": &*key.name, "namespace": &*key.namespace}, "note": note, "spec": {"third": third}})
}

fn create(key: &Key, note: impl Into<Value>) -> Op {
    Op::Create { key: key.clone(), object: object(key, note) }
}

fn update(key: &Key, expected: u64, note: impl Into<Value>) -> Op {
    Op::Update { key: key.clone(), expected, object: object(key, note) }
}

fn delete(key: &Key, expected: u64) -> Op {
    Op::Delete { key: key.clone(), expected, object: object(key, "last") }
}

/// Writes one op and returns its revision.
async fn write(store: &Store, op: Op) -> u64 {
    one(store, op).await.unwrap().revision
}

async fn one(store: &Store, op: Op) -> Result<Arc<Stored>, WriteError> {
    store.write(vec![op]).await.map(|stored| stored[0].clone())
}

/// Everything that a watch of `collection` from `from` offers at once.
async fn events_after(store: &Store, collection: &Collection, from: u64) -> Vec<Arc<Event>> {
    let mut watch = store.watch(collection, from).unwrap();
    let mut events = Vec::new();
    while watch.revision() < store.snapshot().revision() {
        events.extend(watch.next().await.unwrap());
    }
    events
}

/// Holds the writer in the middle of a write for as long as a test has it.
#[derive(Debug, Clone, Default)]
pub(super) struct Gate(Arc<tokio::sync::Mutex<()>>);

impl Gate {
    pub(super) fn pass(&self) {
        drop(self.0.blocking_lock());
    }
}

/// Something mounted for the length of a test.
struct Mount(PathBuf);

impl Mount {
    /// `None` if this user may not mount.
    fn new(options: &[&str], what: impl AsRef<OsStr>, at: &Path) -> Option<Self> {
        let mount = Command::new("mount").args(options).arg(what).arg(at).output().ok()?;
        mount.status.success().then(|| Self(at.into()))
    }

    fn remount(&self, options: &str) -> bool {
        let mount = Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(&self.0).output();
        mount.is_ok_and(|mount| mount.status.success())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
