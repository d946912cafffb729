//! Encryption keys: named by a fingerprint, newest first. New objects are sealed with the newest; any of them opens. A key that
//! is added to the directory while a service runs opens at once, and seals from the next start on.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use futures::TryStreamExt;
use rand::TryRngCore;
use sha2::Digest;
use zeroize::Zeroizing;

use super::place::{Objects, STAGING};

/// Tells keys apart; part of every sealed object.
pub(crate) type KeyId = [u8; 8];

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "there is no encryption key in {0}; restore it from your backup, or name the directory that has it"
    )]
    Empty(String),
    #[error(
        "there is no encryption key in {0}, but something is stored that was sealed with one; none was made in its place: restore it from your backup, or name the directory that has it"
    )]
    Lost(String),
    #[error("could not see whether anything is stored that needs a key: {0}")]
    Objects(#[from] object_store::Error),
    #[error("{0} does not hold an encryption key of 64 hex digits; restore it from your backup")]
    Malformed(String),
    #[error("could not read or create encryption keys in {dir}: {source}")]
    Io { dir: String, source: std::io::Error },
    #[error("the operating system gave no randomness: {0}")]
    Randomness(String),
}

/// What happens where there is no key at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstKey {
    /// It is made, unless something is stored already.
    Made,
    /// It is an error: keys come from elsewhere, and a new one would hide that they did not.
    Refused,
}

#[derive(Clone)]
pub(crate) struct Key {
    pub(crate) id: KeyId,
    pub(crate) bytes: Zeroizing<[u8; 32]>,
    file: Option<PathBuf>,
}

/// All keys of this datastore. Values are wiped when dropped, and never shown.
pub struct Keyring {
    newest: Key,
    others: RwLock<Vec<Key>>,
    directory: Option<PathBuf>,
}

/// What can be told about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// The fingerprint that sealed objects carry.
    pub id: String,
    pub file: Option<PathBuf>,
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
        Self { id, bytes, file: None }
    }

    fn info(&self) -> KeyInfo {
        KeyInfo { id: hex::encode(self.id), file: self.file.clone() }
    }
}

impl Keyring {
    /// A keyring of the given keys, newest first.
    pub fn new(newest: Zeroizing<[u8; 32]>, older: Vec<Zeroizing<[u8; 32]>>) -> Self {
        Self {
            newest: Key::new(newest),
            others: RwLock::new(older.into_iter().map(Key::new).collect()),
            directory: None,
        }
    }

    /// Reads every `*.key` file of a directory; the name that sorts last is the newest key.
    pub fn load(dir: &Path) -> Result<Self, Error> {
        let mut keys = read(dir)?.into_iter();
        let newest = keys.next().ok_or_else(|| Error::Empty(dir.display().to_string()))?;
        Ok(Self { newest, others: RwLock::new(keys.collect()), directory: Some(dir.to_owned()) })
    }

    /// The keys for what is kept in `objects`.
    pub async fn open(dir: &Path, objects: &Objects, first: FirstKey) -> Result<Self, Error> {
        match first {
            FirstKey::Refused => Self::load(dir),
            FirstKey::Made if dir.exists() && !files(dir)?.is_empty() => Self::load(dir),
            FirstKey::Made if holds_anything(objects).await? => Err(Error::Lost(dir.display().to_string())),
            FirstKey::Made => Self::load_or_create(dir),
        }
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

    /// What can be told about the keys, the one that seals first.
    pub fn infos(&self) -> Vec<KeyInfo> {
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
        std::iter::once(&self.newest).chain(others.iter()).map(Key::info).collect()
    }

    pub(crate) fn newest(&self) -> &Key {
        &self.newest
    }

    /// The key that an object names. One that is not known may have been added meanwhile.
    pub(crate) fn find(&self, id: &KeyId) -> Option<Key> {
        if let Some(known) = self.known(id) {
            return Some(known);
        }
        let found = read(self.directory.as_deref()?).ok()?;
        *self.others.write().unwrap_or_else(PoisonError::into_inner) =
            found.into_iter().filter(|key| key.id != self.newest.id).collect();
        self.known(id)
    }

    fn known(&self, id: &KeyId) -> Option<Key> {
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
        std::iter::once(&self.newest).chain(others.iter()).find(|key| &key.id == id).cloned()
    }
}

/// Whether anything is stored for good. What unfinished uploads and trials left is not.
async fn holds_anything(objects: &Objects) -> Result<bool, object_store::Error> {
    let mut all = objects.list(None);
    while let Some(object) = all.try_next().await? {
        if object.location.parts().next().is_none_or(|part| part.as_ref() != STAGING) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The keys of a directory, newest first. O(keys).
fn read(dir: &Path) -> Result<Vec<Key>, Error> {
    let mut keys = Vec::new();
    for path in files(dir)?.into_iter().rev() {
        let io = |source| Error::Io { dir: dir.display().to_string(), source };
        let text = Zeroizing::new(std::fs::read_to_string(&path).map_err(io)?);
        let mut bytes = Zeroizing::new([0u8; 32]);
        hex::decode_to_slice(text.trim(), bytes.as_mut_slice())
            .map_err(|_| Error::Malformed(path.display().to_string()))?;
        keys.push(Key { file: Some(path), ..Key::new(bytes) });
    }
    Ok(keys)
}

/// The files of keys, the newest last.
fn files(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let io = |source| Error::Io { dir: dir.display().to_string(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|extension| extension == "key") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Makes a key that becomes the newest, and tells which.
pub fn add_newest_key(dir: &Path) -> Result<KeyInfo, Error> {
    std::fs::create_dir_all(dir).map_err(|source| Error::Io { dir: dir.display().to_string(), source })?;
    let last = files(dir)?.pop().and_then(|path| Some(path.file_stem()?.to_string_lossy().into_owned()));
    let name = match last {
        None => "0001".to_owned(),
        Some(last) => {
            let next = last.parse::<u32>().ok().and_then(|number| number.checked_add(1));
            next.map(|number| format!("{number:04}"))
                .filter(|name| *name > last)
                .unwrap_or_else(|| format!("{last}_next"))
        }
    };
    add_key(dir, &name)?;
    Ok(Keyring::load(dir)?.newest().info())
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
    fn a_key_that_is_added_later_opens_at_once_and_each_new_one_sorts_last() {
        let dir = tempfile::tempdir().unwrap();
        let ring = Keyring::load_or_create(dir.path()).unwrap();
        let first = ring.newest().id;
        let added = add_newest_key(dir.path()).unwrap();
        assert_eq!(added.file.as_deref(), Some(dir.path().join("0002.key").as_path()));
        let mut id = KeyId::default();
        hex::decode_to_slice(&added.id, &mut id).unwrap();
        assert!(ring.find(&id).is_some(), "found without a restart");
        assert!(ring.find(&first).is_some());
        assert_eq!(ring.newest().id, first, "and seals from the next start on");
        assert!(ring.find(&[9; 8]).is_none());
        for existing in ["9999", "prod"] {
            add_key(dir.path(), existing).unwrap();
            let newest = add_newest_key(dir.path()).unwrap();
            assert_eq!(newest.file, Some(dir.path().join(format!("{existing}_next.key"))));
        }
        assert_eq!(Keyring::load(dir.path()).unwrap().infos().len(), 6);
    }

    #[tokio::test]
    async fn a_first_key_is_made_for_an_empty_store_alone_and_not_where_keys_come_from_elsewhere() {
        use object_store::ObjectStoreExt;
        let objects = Objects::from(object_store::memory::InMemory::new());
        let dir = tempfile::tempdir().unwrap();
        let keys = dir.path().join("keys");
        let put = async |name: &str| objects.put(&name.into(), b"sealed".to_vec().into()).await.unwrap();
        put("staging/trial").await;
        std::fs::create_dir(&keys).unwrap();
        let refused = Keyring::open(&keys, &objects, FirstKey::Refused).await;
        assert!(matches!(refused, Err(Error::Empty(_))), "{refused:?}");
        let made = Keyring::open(&keys, &objects, FirstKey::Made).await.unwrap().newest().id;
        put("state/one").await;
        for first in [FirstKey::Made, FirstKey::Refused] {
            assert_eq!(Keyring::open(&keys, &objects, first).await.unwrap().newest().id, made);
        }
        std::fs::remove_dir_all(&keys).unwrap();
        let lost = Keyring::open(&keys, &objects, FirstKey::Made).await;
        assert!(matches!(lost, Err(Error::Lost(_))), "{lost:?}");
        assert!(!keys.exists(), "nothing was made");
    }

    #[test]
    fn a_damaged_key_is_an_error_and_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("0001.key"), "short").unwrap();
        assert!(matches!(Keyring::load_or_create(dir.path()), Err(Error::Malformed(_))));
    }
}
