//! What can go wrong when the store is opened or written, in the words that a person reads.

use std::{fmt, io, path::PathBuf, sync::Arc};

use super::object::{Key, Stored};

/// Why a database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} is in use by {holder}: stop it or choose another data directory", path.display())]
    InUse { path: PathBuf, holder: Holder },
    #[error(
        "{} cannot be written because the file or its disk is read-only: make it writable or choose another data directory",
        path.display()
    )]
    ReadOnly { path: PathBuf },
    #[error(
        "{} was written by a newer version of Terrane (format {found}, this version knows up to {known}): start that version again",
        path.display()
    )]
    Newer { path: PathBuf, found: u32, known: u32 },
    #[error("{} is not a database of Terrane: move it away or choose another data directory", path.display())]
    Foreign { path: PathBuf },
    #[error("{} is damaged ({what}): restore it from a backup or move it away", path.display())]
    Damaged { path: PathBuf, what: String },
    #[error("no room left to open {}: free some space on its disk and start again", path.display())]
    Full { path: PathBuf },
    #[error("cannot open {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("cannot open {}", path.display())]
    Sqlite { path: PathBuf, source: rusqlite::Error },
}

/// Who holds the lock, as far as the lock file tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    Process(u32),
    Unknown,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid) => write!(f, "another process (pid {pid})"),
            Self::Unknown => f.write_str("another process"),
        }
    }
}

/// Why a write changed nothing.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WriteError {
    #[error("{} already exists at revision {}", current.key, current.revision)]
    Exists { current: Arc<Stored> },
    #[error("{} has changed: it is at revision {} now", current.key, current.revision)]
    Conflict { current: Arc<Stored> },
    #[error("{key} does not exist")]
    Missing { key: Key },
    #[error("{key} cannot be stored: {reason}")]
    Malformed { key: Key, reason: String },
    #[error("no room left for {}: nothing was changed; free some space on its disk and try again", path.display())]
    Full { path: Arc<PathBuf> },
    #[error("{} could not be written, nothing was changed: {source}", path.display())]
    Disk { path: Arc<PathBuf>, source: Arc<rusqlite::Error> },
    #[error("the store takes no more writes: {reason}")]
    Stopped { reason: Arc<str> },
}
