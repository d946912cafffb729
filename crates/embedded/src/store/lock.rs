//! The lock that keeps two processes off one database. SQLite's own locks would do, but cannot say who holds them.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process, thread,
    time::{Duration, Instant},
};

use super::{
    disk::io_error,
    error::{Error, Holder},
};

/// How long a lock may outlive its holder: a process that is killed while it starts a child leaves the lock with that
/// child until the child's own program begins.
const PATIENCE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(10);

/// Held while the database at a path is open.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Lock {
    /// Whether there is something to lock: without it nobody has ever opened the database.
    pub(super) fn exists(path: &Path) -> bool {
        file_beside(path).exists()
    }

    /// Locks the file beside `path`. It stays there afterwards, since removing it would race with the next holder.
    pub(super) fn take(path: &Path) -> Result<Self, Error> {
        let mut file = private_file(&file_beside(path)).map_err(|source| io_error(path, source))?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => pause(),
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::InUse { path: path.into(), holder: read_holder(&mut file) });
                }
                Err(TryLockError::Error(source)) => return Err(io_error(path, source)),
            }
        }
        let lock = Self(file);
        // A courtesy to whoever finds the lock taken; without room for it the lock still holds.
        let _ = write_holder(&lock.0);
        Ok(lock)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a child that is just being started has the file open as well.
        let _ = self.0.unlock();
    }
}

fn file_beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

#[allow(clippy::disallowed_methods, reason = "opening blocks anyway, and no event tells that a lock is free")]
fn pause() {
    thread::sleep(PAUSE);
}

fn read_holder(file: &mut File) -> Holder {
    let mut pid = String::new();
    let read = file.read_to_string(&mut pid).ok();
    read.and_then(|_| pid.trim().parse().ok()).map_or(Holder::Unknown, Holder::Process)
}

fn write_holder(mut file: &File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", process::id())
}

/// Secrets are in there, so nobody else may read it; SQLite gives the mode to the files beside it.
pub(super) fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn letting_go_counts_even_if_a_child_still_has_the_file_open() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("store.db");
        let lock = Lock::take(&path).unwrap();
        let inherited = lock.0.try_clone().unwrap();
        drop(lock);
        Lock::take(&path).unwrap();
        drop(inherited);
    }

    #[test]
    fn a_lock_that_a_dying_process_left_with_its_child_is_waited_for() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("store.db");
        let left = private_file(&directory.path().join("store.db.lock")).unwrap();
        left.lock().unwrap();
        let waiting = thread::spawn(move || Lock::take(&path));
        drop(left);
        waiting.join().unwrap().unwrap();
    }
}
