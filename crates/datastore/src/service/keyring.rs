//! Encryption keys: named by a fingerprint, newest first. New objects are sealed with the newest; any of them opens.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rand::TryRngCore;
use sha2::Digest;
use zeroize::Zeroizing;

/// Tells keys apart; part of every sealed object.
pub(crate) type KeyId = [u8; 8];

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "there is no encryption key in {0}; restore it from your backup, or name the directory that has it"
    )]
    Empty(String),
    #[error("{0} does not hold an encryption key of 64 hex digits; restore it from your backup")]
    Malformed(String),
    #[error("could not read or create encryption keys in {dir}: {source}")]
    Io { dir: String, source: std::io::Error },
    #[error("the operating system gave no randomness: {0}")]
    Randomness(String),
}

pub(crate) struct Key {
    pub(crate) id: KeyId,
    pub(crate) bytes: Zeroizing<[u8; 32]>,
}

/// All keys of this datastore. Values are wiped when dropped, and never shown.
pub struct Keyring {
    newest: Key,
    older: Vec<Key>,
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyring").field("newest", &hex::encode(self.newest.id)).finish_non_exhaustive()
    }
}

impl Key {
    fn new(bytes: Zeroizing<[u8; 32]>) -> Self {
        let mut hasher = sha2::Sha256::new();
        hasher.update(b"terrane key id\0");
        hasher.update(bytes.as_slice());
        let mut id = KeyId::default();
        for (to, from) in id.iter_mut().zip(hasher.finalize()) {
            *to = from;
        }
        Self { id, bytes }
    }
}

impl Keyring {
    /// A keyring of the given keys, newest first.
    pub fn new(newest: Zeroizing<[u8; 32]>, older: Vec<Zeroizing<[u8; 32]>>) -> Self {
        Self { newest: Key::new(newest), older: older.into_iter().map(Key::new).collect() }
    }

    /// Reads every `*.key` file of a directory; the name that sorts last is the newest key.
    pub fn load(dir: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io { dir: dir.display().to_string(), source };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if path.extension().is_some_and(|extension| extension == "key") {
                files.push(path);
            }
        }
        files.sort();
        let mut keys = Vec::new();
        for path in files.iter().rev() {
            let text = Zeroizing::new(std::fs::read_to_string(path).map_err(io)?);
            let mut bytes = Zeroizing::new([0u8; 32]);
            hex::decode_to_slice(text.trim(), bytes.as_mut_slice())
                .map_err(|_| Error::Malformed(path.display().to_string()))?;
            keys.push(bytes);
        }
        let mut keys = keys.into_iter();
        let newest = keys.next().ok_or_else(|| Error::Empty(dir.display().to_string()))?;
        Ok(Self::new(newest, keys.collect()))
    }

    /// Like [`Keyring::load`], but makes a first key where the directory has none: for one machine that keeps its own.
    pub fn load_or_create(dir: &Path) -> Result<Self, Error> {
        std::fs::create_dir_all(dir)
            .map_err(|source| Error::Io { dir: dir.display().to_string(), source })?;
        match Self::load(dir) {
            Err(Error::Empty(_)) => {
                add_key(dir, "0001")?;
                Self::load(dir)
            }
            other => other,
        }
    }

    pub(crate) fn newest(&self) -> &Key {
        &self.newest
    }

    pub(crate) fn find(&self, id: &KeyId) -> Option<&Key> {
        std::iter::once(&self.newest).chain(&self.older).find(|key| &key.id == id)
    }
}

/// Creates a key file that nobody else can read. A name that sorts after the others makes it the newest.
pub fn add_key(dir: &Path, name: &str) -> Result<(), Error> {
    let mut bytes = Zeroizing::new([0u8; 32]);
    rand::rngs::OsRng
        .try_fill_bytes(bytes.as_mut_slice())
        .map_err(|error| Error::Randomness(error.to_string()))?;
    let text = Zeroizing::new(format!("{}\n", hex::encode(bytes.as_slice())));
    let io = |source| Error::Io { dir: dir.display().to_string(), source };
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(dir.join(format!("{name}.key")))
        .map_err(io)?;
    file.write_all(text.as_bytes()).map_err(io)?;
    file.sync_all().map_err(io)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_first_key_is_made_once_and_a_later_one_becomes_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        let first = Keyring::load_or_create(dir.path()).unwrap().newest().id;
        assert_eq!(Keyring::load_or_create(dir.path()).unwrap().newest().id, first);
        add_key(dir.path(), "0002").unwrap();
        let ring = Keyring::load(dir.path()).unwrap();
        assert_ne!(ring.newest().id, first);
        assert!(ring.find(&first).is_some());
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(dir.path().join("0001.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_key_is_an_error_and_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("0001.key"), "short").unwrap();
        assert!(matches!(Keyring::load_or_create(dir.path()), Err(Error::Malformed(_))));
    }
}
