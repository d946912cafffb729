//! Files that only their owner may read: the data directory and the secrets in it.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

const PRIVATE_DIRECTORY: u32 = 0o700;
const PRIVATE_FILE: u32 = 0o600;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} holds files but no data of Terrane: choose an empty directory, or one that does not exist yet", .0.display())]
    NotOurs(PathBuf),
    #[error("{} cannot be the data directory: {why}; choose another with --data-dir", path.display())]
    Directory { path: PathBuf, why: String },
    #[error("{} cannot be made private to its owner: {source}", path.display())]
    Permissions { path: PathBuf, source: io::Error },
    #[error("{} cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} cannot be written: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Makes the directory, or takes one that is empty or has `marker` in it. Nobody but the owner may enter it afterwards.
pub(super) fn private_directory(path: &Path, marker: &str) -> Result<(), Error> {
    let unusable = |error| Error::Directory { path: path.to_owned(), why: told(&error) };
    DirBuilder::new().recursive(true).mode(PRIVATE_DIRECTORY).create(path).map_err(unusable)?;
    let mode = fs::metadata(path).map_err(unusable)?.permissions().mode() & 0o777;
    // Somebody's home or /tmp given by mistake must not lose its permissions.
    let is_empty = fs::read_dir(path).map_err(unusable)?.next().is_none();
    if !is_empty && !path.join(marker).exists() {
        return Err(Error::NotOurs(path.to_owned()));
    }
    if mode != PRIVATE_DIRECTORY {
        fs::set_permissions(path, Permissions::from_mode(PRIVATE_DIRECTORY)).map_err(unusable)?;
    }
    Ok(())
}

/// What the system said, in words where its own would puzzle.
fn told(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AlreadyExists => "it is a file".to_owned(),
        io::ErrorKind::NotADirectory => "something above it is a file".to_owned(),
        io::ErrorKind::ReadOnlyFilesystem => "its disk is read-only".to_owned(),
        _ => error.to_string(),
    }
}

/// The file's text, or `None` if there is none. One that others may read is made private first.
pub(super) fn read_private(path: &Path) -> Result<Option<String>, Error> {
    let read = |source| Error::Read { path: path.to_owned(), source };
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(read(source)),
    };
    let mode = fs::metadata(path).map_err(read)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        tracing::warn!(path = %path.display(), mode = format!("{mode:o}"), "others could read this file; it is private now");
        fs::set_permissions(path, Permissions::from_mode(PRIVATE_FILE))
            .map_err(|source| Error::Permissions { path: path.to_owned(), source })?;
    }
    Ok(Some(text))
}

/// Writes the whole file or leaves what was there, also when the machine stops in between.
pub(super) fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    let write = |source| Error::Write { path: path.to_owned(), source };
    let directory = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or(OsStr::new("file"));
    let temporary = directory.join(format!(".{}.{}", name.to_string_lossy(), uuid::Uuid::new_v4()));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE_FILE).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        // The rename itself is durable only when the directory is.
        File::open(if directory.as_os_str().is_empty() { Path::new(".") } else { directory })?.sync_all()
    })();
    written.map_err(|source| {
        // Best effort: the error that matters is the first one.
        let _ = fs::remove_file(&temporary);
        write(source)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_data_directory_is_private_and_never_somebody_elses() {
        let root = tempfile::tempdir().unwrap();
        let fresh = root.path().join("a/b");
        private_directory(&fresh, "store.db").unwrap();
        assert_eq!(mode(&fresh), 0o700);
        fs::set_permissions(&fresh, Permissions::from_mode(0o755)).unwrap();
        private_directory(&fresh, "store.db").unwrap();
        assert_eq!(mode(&fresh), 0o700, "empty, so it may be taken");
        let foreign = root.path().join("home");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("letter"), "dear").unwrap();
        fs::set_permissions(&foreign, Permissions::from_mode(0o755)).unwrap();
        let error = private_directory(&foreign, "store.db").unwrap_err();
        let said =
            "holds files but no data of Terrane: choose an empty directory, or one that does not exist yet";
        assert_eq!(error.to_string(), format!("{} {said}", foreign.display()));
        assert_eq!(mode(&foreign), 0o755, "left as it was");
        fs::write(foreign.join("store.db"), "").unwrap();
        private_directory(&foreign, "store.db").unwrap();
    }

    #[test]
    fn secrets_are_written_whole_and_private() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("key");
        assert_eq!(read_private(&path).unwrap(), None);
        write_private(&path, "one").unwrap();
        write_private(&path, "two").unwrap();
        assert_eq!((read_private(&path).unwrap().as_deref(), mode(&path)), (Some("two"), 0o600));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "nothing is left beside it");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        read_private(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
    }
}
