//! Objects as files of a directory, written so that an answer can be relied upon. A draft in the staging directory is filled, forced to the
//! disk and only then linked to its name, which exactly one of several writers succeeds in; the name is forced to the disk too. All of it
//! blocks, and is called where that is allowed.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::place::STAGING;

/// How often the directory of a name may go while the name is given.
const TRIES: u32 = 8;

/// The directory.
#[derive(Clone, Debug)]
pub(crate) struct Disk(Arc<Path>);

/// A file that has no name yet. It goes unless it gets one.
#[derive(Debug)]
pub(crate) struct Draft {
    file: File,
    draft: PathBuf,
    target: PathBuf,
}

/// Whether a name was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Now,
    /// By another, earlier.
    Before,
}

impl Disk {
    pub(crate) fn new(directory: &Path) -> Self {
        Self(directory.into())
    }

    /// Begins the file of an object. `name` is random: what a crash leaves under it is swept with the rest of staging.
    pub(crate) fn draft(&self, path: &str, name: &str) -> io::Result<Draft> {
        let staging = self.0.join(STAGING);
        let draft = staging.join(name);
        let create = || File::options().write(true).create_new(true).open(&draft);
        let file = match create() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                fs::create_dir_all(&staging)?;
                create()?
            }
            other => other?,
        };
        Ok(Draft { file, draft, target: self.0.join(path) })
    }

    pub(crate) fn exists(&self, path: &str) -> io::Result<bool> {
        self.0.join(path).try_exists()
    }

    /// The bytes of a file, of which there must be no more than `limit`; nothing where there is none.
    pub(crate) fn read(&self, path: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(self.0.join(path)) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > limit {
            return Err(ErrorKind::FileTooLarge.into());
        }
        Ok(Some(bytes))
    }
}

impl Draft {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Gives the file its name, for good: when this returns, it outlives a crash of the machine.
    pub(crate) fn publish(self) -> io::Result<Named> {
        self.file.sync_all()?;
        let directory = self.target.parent().unwrap_or(Path::new("/"));
        let mut tries = TRIES;
        loop {
            match fs::hard_link(&self.draft, &self.target) {
                Ok(()) => {
                    sync_directory(directory)?;
                    return Ok(Named::Now);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(Named::Before),
                // Also when it was there a moment ago: what a run left goes with its directories.
                Err(error) if error.kind() == ErrorKind::NotFound && tries > 0 => make_directory(directory)?,
                Err(error) => return Err(error),
            }
            tries -= 1;
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // What stays is swept later.
        let _ = fs::remove_file(&self.draft);
    }
}

/// Makes a directory and those above it that are missing, each for good before what goes into it.
fn make_directory(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Ok(()) => {}
        // By another, who may not be done with it.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let above = directory.parent().ok_or(error)?;
            make_directory(above)?;
            return make_directory(directory);
        }
        Err(error) => return Err(error),
    }
    directory.parent().map_or(Ok(()), sync_directory)
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn publish(disk: &Disk, path: &str, name: &str, content: &[u8]) -> io::Result<Named> {
        let mut draft = disk.draft(path, name)?;
        draft.write(content)?;
        draft.publish()
    }

    #[test]
    fn of_many_that_give_one_name_one_succeeds_and_nothing_of_the_others_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Disk::new(directory.path());
        let named: Vec<Named> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..8u8)
                .map(|number| {
                    let disk = &disk;
                    scope.spawn(move || publish(disk, "a/b/c", &number.to_string(), &[number; 100]).unwrap())
                })
                .collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        assert_eq!(named.iter().filter(|named| **named == Named::Now).count(), 1, "{named:?}");
        let winner = named.iter().position(|named| *named == Named::Now).unwrap();
        let content = disk.read("a/b/c", 100).unwrap().unwrap();
        assert_eq!(content, [u8::try_from(winner).unwrap(); 100]);
        assert_eq!(fs::read_dir(directory.path().join(STAGING)).unwrap().count(), 0);
    }

    #[test]
    fn a_draft_that_gets_no_name_goes() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Disk::new(directory.path());
        let mut draft = disk.draft("a/b", "draft").unwrap();
        draft.write(b"half of it").unwrap();
        drop(draft);
        assert_eq!(fs::read_dir(directory.path().join(STAGING)).unwrap().count(), 0);
        assert!(!disk.exists("a/b").unwrap());
        assert_eq!(disk.read("a/b", 10).unwrap(), None);
    }

    #[test]
    fn a_draft_that_was_swept_away_is_an_error_and_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let draft = Disk::new(directory.path()).draft("a/b", "draft").unwrap();
        fs::remove_file(directory.path().join(STAGING).join("draft")).unwrap();
        assert_eq!(draft.publish().unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn what_is_larger_than_it_may_be_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Disk::new(directory.path());
        publish(&disk, "a", "draft", b"12345").unwrap();
        assert_eq!(disk.read("a", 5).unwrap().unwrap(), b"12345");
        assert_eq!(disk.read("a", 4).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }
}
