//! Programs that were downloaded and found to be what their vendor published, in a directory that many read and one user writes.
//!
//! ```text
//! <root>/terraform-1.9.8         the program, executable by everybody; under this name it is complete
//! <root>/terraform-1.9.8.json    where it came from and why it is believed
//! <root>/.terraform-1.9.8.lock   held while somebody installs it
//! <root>/.terraform-1.9.8.new/   what is being installed; of no use to anybody without the lock
//! ```
//!
//! Whoever may write here decides what others execute, so that is never a runner's pod: docs/adr/0005.

pub mod archive;
mod http;
pub mod providers;
mod release;
mod source;

use std::fs::{DirBuilder, DirEntry, File, OpenOptions, Permissions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::text::Sha256;
use api::tool::{Program, Trust};
use jiff::Timestamp;
use semver::Version;
use serde::{Deserialize, Serialize};
use sha2::Digest;

pub use http::Progress;
pub use release::Platform;
pub use source::{Source, SourceOptions};

use crate::signature;
use crate::versions::Constraint;

/// How often a lock that somebody else holds is tried.
const LOCK_AGAIN: Duration = Duration::from_millis(100);
/// How many programs runs may bring in. A run can ask for any version that was ever released, so that there has to be an end.
const MOST: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{program} {version} was not downloaded, because nothing says which bytes are right: put the vendor's public key into {place}, or a line \"SHA256  {pinned_name}\" into the file of --tools-checksums"
    )]
    Untrusted { program: Program, version: Version, place: String, pinned_name: String },
    #[error("the signature {url} was refused, and nothing was installed: {source}")]
    Signature { url: String, source: signature::Error },
    #[error(
        "{url} is not what was published, and nothing was installed: its sha256 is {found}, not {expected}"
    )]
    Checksum { url: String, expected: Sha256, found: String },
    #[error("{url} has no checksum of {file}, and nothing was installed")]
    NotListed { file: String, url: String },
    #[error("what was downloaded from {url} was refused, and nothing was installed: {source}")]
    Archive { url: String, source: archive::Error },
    #[error("the key {path} cannot be used: {source}")]
    Key { path: PathBuf, source: signature::Error },
    #[error("there is no {url}; ask for a version that was released, or complete the mirror")]
    NotThere { url: String },
    #[error("{url} answered with status {status}")]
    Answer { url: String, status: u16 },
    #[error("{url} could not be fetched: {detail}")]
    Broken { url: String, detail: String },
    #[error("{url} is larger than {limit} bytes")]
    TooLarge { url: String, limit: u64 },
    #[error("{url} is no list of versions")]
    Index { url: String },
    #[error("no released {program} satisfies {constraint}")]
    NoVersion { program: Program, constraint: String },
    #[error("{program} has no list of releases: ask for one exact version, or use a mirror with an index")]
    NoIndex { program: Program },
    #[error("{0:?} is no address of a mirror, such as https://mirror.example.org/tools")]
    Mirror(String),
    #[error("vendors publish no programs for this kind of machine; install them by other means")]
    Platform,
    #[error("no client for downloads could be made: {0}")]
    Client(String),
    #[error("the store {} holds {MOST} programs already; remove some with `terrane tools prune`", .0.display())]
    Full(PathBuf),
    #[error("the authority {} cannot be used: {detail}", path.display())]
    Authority { path: PathBuf, detail: String },
    #[error("{host} is no registry that providers are shared from; name it with --provider-registries")]
    Registry { host: String },
    #[error("{host} did not answer a moment ago, and is left alone for a while: {detail}")]
    Resting { host: String, detail: String },
    #[error("{url} does not speak the protocol of provider registries: {detail}")]
    Protocol { url: String, detail: String },
    #[error("{provider} cannot be vouched for: {detail}")]
    Unvouched { provider: String, detail: String },
    #[error(
        "{provider} is not what the lock file allows: its {platform} package has the hashes {found}, and .terraform.lock.hcl names others; find out who changed it, or run `terraform providers lock -platform={platform}` and commit the file"
    )]
    NotLocked { provider: String, platform: Platform, found: String },
    #[error("the store {} holds as many providers as it may; remove some with `terrane tools prune`", .0.display())]
    ProvidersFull(PathBuf),
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

impl Error {
    /// Whether what arrived was not what the vendor published, or nobody can tell.
    pub fn is_distrust(&self) -> bool {
        match self {
            Self::Untrusted { .. }
            | Self::Signature { .. }
            | Self::Checksum { .. }
            | Self::NotListed { .. }
            | Self::Archive { .. }
            | Self::NotLocked { .. }
            | Self::Key { .. } => true,
            Self::NotThere { .. }
            | Self::Answer { .. }
            | Self::Broken { .. }
            | Self::TooLarge { .. }
            | Self::Index { .. }
            | Self::NoVersion { .. }
            | Self::NoIndex { .. }
            | Self::Mirror(_)
            | Self::Platform
            | Self::Client(_)
            | Self::Full(_)
            | Self::Authority { .. }
            | Self::Registry { .. }
            | Self::Resting { .. }
            | Self::Protocol { .. }
            | Self::Unvouched { .. }
            | Self::ProvidersFull(_)
            | Self::Io { .. } => false,
        }
    }
}

/// A directory of programs.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

/// A program in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    pub program: Program,
    pub version: Version,
    pub path: PathBuf,
}

/// What is known about a program in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub sha256: Sha256,
    pub bytes: u64,
    pub from: String,
    pub trust: Trust,
    pub installed_at: Timestamp,
}

impl Installed {
    /// Its name in the store.
    pub fn name(&self) -> String {
        name(self.program, &self.version)
    }
}

fn name(program: Program, version: &Version) -> String {
    format!("{program}-{version}")
}

impl Store {
    /// A store that others made; it is only read.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// A store of our own, made where it is missing: readable by everybody, writable by this user.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, Error> {
        let root = root.into();
        open_directory(&root)?;
        Ok(Self { root })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What is installed, by program and then version. O(programs in the store).
    pub fn list(&self) -> Result<Vec<Installed>, Error> {
        let io = |source| Error::Io { path: self.root.clone(), source };
        let mut found = Vec::new();
        for entry in entries_of(&self.root)? {
            let Some((program, version)) = entry.file_name().to_str().and_then(read_name) else { continue };
            if entry.file_type().map_err(io)?.is_file() {
                found.push(Installed { program, version, path: entry.path() });
            }
        }
        found.sort_by(|a, b| (a.program, &a.version).cmp(&(b.program, &b.version)));
        Ok(found)
    }

    /// The highest version in the store that satisfies a constraint.
    pub fn find(&self, program: Program, constraint: &Constraint) -> Result<Option<Installed>, Error> {
        let fits = |installed: &Installed| {
            installed.program == program && constraint.is_satisfied_by(&installed.version)
        };
        Ok(self.list()?.into_iter().rfind(fits))
    }

    /// What was written down at the installation; nothing for a program that somebody put there by hand.
    pub fn record(&self, installed: &Installed) -> Option<Record> {
        let content = std::fs::read(self.record_path(&installed.name())).ok()?;
        serde_json::from_slice(&content).ok()
    }

    /// What is in the store for a constraint, else the newest released version of it, installed.
    pub async fn ensure(
        &self,
        program: Program,
        constraint: &Constraint,
        source: &Source,
        progress: Progress<'_>,
    ) -> Result<Installed, Error> {
        if let Some(installed) = self.find(program, constraint)? {
            return Ok(installed);
        }
        if self.list()?.len() >= MOST {
            return Err(Error::Full(self.root.clone()));
        }
        let version = source.resolve(program, constraint).await?;
        self.install(program, &version, source, progress).await
    }

    /// Installs one version, unless it is there. Of several at the same time, here or in other processes, one downloads and the
    /// others find what it installed. A kill at any moment leaves the store as it was.
    pub async fn install(
        &self,
        program: Program,
        version: &Version,
        source: &Source,
        progress: Progress<'_>,
    ) -> Result<Installed, Error> {
        let name = name(program, version);
        let installed = Installed { program, version: version.clone(), path: self.root.join(&name) };
        let _turn = take_turn(self.root.join(format!(".{name}.lock"))).await?;
        if installed.path.is_file() {
            return Ok(installed);
        }
        let draft = Draft::new(self.root.join(format!(".{name}.new")))?;
        let vetted = source.vet(program, version).await?;
        let download = draft.path.join("download");
        source.fetch(&vetted, &download, progress).await?;
        let ready = draft.path.join("program");
        let (url, is_zip) = (vetted.release.url_shown(), vetted.is_zip());
        let place = ready.clone();
        let unpacking = tokio::task::spawn_blocking(move || unpack(&download, is_zip, program, &place, &url));
        let (sha256, bytes) = unpacking
            .await
            .map_err(|stopped| Error::Io { path: ready.clone(), source: std::io::Error::other(stopped) })??;
        let record = Record {
            sha256,
            bytes,
            from: vetted.release.url_shown(),
            trust: vetted.trust,
            installed_at: Timestamp::now(),
        };
        self.publish(&draft, &name, &record)?;
        Ok(installed)
    }

    /// The record first: a program under its name is complete with everything that is known about it.
    fn publish(&self, draft: &Draft, name: &str, record: &Record) -> Result<(), Error> {
        let described = draft.path.join("record");
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { path: path.clone(), source }
        };
        let content = serde_json::to_vec_pretty(record)
            .map_err(|error| io(&described)(std::io::Error::other(error)))?;
        let mut file = File::create_new(&described).map_err(io(&described))?;
        file.write_all(&content).and_then(|()| file.sync_all()).map_err(io(&described))?;
        std::fs::set_permissions(&described, Permissions::from_mode(0o644)).map_err(io(&described))?;
        let (record_path, program_path) = (self.record_path(name), self.root.join(name));
        std::fs::rename(&described, &record_path).map_err(io(&record_path))?;
        std::fs::rename(draft.path.join("program"), &program_path).map_err(io(&program_path))?;
        File::open(&self.root).and_then(|root| root.sync_all()).map_err(io(&self.root))
    }

    /// Takes a program away. Whatever executes it goes on.
    pub async fn remove(&self, installed: &Installed) -> Result<(), Error> {
        let name = installed.name();
        let _turn = take_turn(self.root.join(format!(".{name}.lock"))).await?;
        for path in [self.root.join(&name), self.record_path(&name)] {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(Error::Io { path, source: error });
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn record_path(&self, name: &str) -> PathBuf {
        self.root.join(format!("{name}.json"))
    }
}

/// The kernel gives a lock back at any death. It is tried again and again rather than waited for: a waiting thread could not be
/// given up.
async fn take_turn(path: PathBuf) -> Result<File, Error> {
    let io = |source| Error::Io { path: path.clone(), source };
    let file =
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(io)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_AGAIN).await,
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
    }
}

/// The program and version that a name in the store means.
fn read_name(name: &str) -> Option<(Program, Version)> {
    Program::ALL.into_iter().find_map(|program| {
        let version = name.strip_prefix(program.name())?.strip_prefix('-')?;
        // A record's name would pass for a version with odd last letters.
        let version = Version::parse(version).ok().filter(|_| !name.ends_with(".json"))?;
        Some((program, version))
    })
}

/// What a directory holds; nothing where it is not there. O(entries).
fn entries_of(directory: &Path) -> Result<Vec<DirEntry>, Error> {
    let io = |source| Error::Io { path: directory.to_owned(), source };
    match std::fs::read_dir(directory) {
        Ok(entries) => entries.collect::<Result<_, _>>().map_err(io),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(io(error)),
    }
}

/// A directory that everybody can read, whatever this process gives away by default.
fn open_directory(path: &Path) -> Result<(), Error> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(io)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(io)
}

/// A directory that goes with whoever holds it. What a killed installation left is removed first: its lock is free.
struct Draft {
    path: PathBuf,
}

impl Draft {
    fn new(path: PathBuf) -> Result<Self, Error> {
        let io = |source| Error::Io { path: path.clone(), source };
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(io(error)),
            Ok(()) | Err(_) => {}
        }
        DirBuilder::new().mode(0o700).create(&path).map_err(io)?;
        Ok(Self { path })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // What stays is removed by the next installation of the same program.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Makes the program out of what was downloaded; returns its digest and size.
fn unpack(
    download: &Path,
    is_zip: bool,
    program: Program,
    ready: &Path,
    url: &str,
) -> Result<(Sha256, u64), Error> {
    let io = |source| Error::Io { path: ready.to_owned(), source };
    let refused = |source| Error::Archive { url: url.to_owned(), source };
    let mut from = File::open(download).map_err(io)?;
    let mut out = Hashed { file: File::create_new(ready).map_err(io)?, hasher: sha2::Sha256::new() };
    let bytes = if is_zip {
        archive::unpack(&mut from, program.name(), &mut out).map_err(refused)?
    } else {
        std::io::copy(&mut from, &mut out).map_err(io)?
    };
    out.file.sync_all().map_err(io)?;
    std::fs::set_permissions(ready, Permissions::from_mode(0o755)).map_err(io)?;
    let digest = hex::encode(out.hasher.finalize());
    let sha256 = Sha256::new(digest).map_err(|error| io(std::io::Error::other(error)))?;
    Ok((sha256, bytes))
}

struct Hashed {
    file: File,
    hasher: sha2::Sha256,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.hasher.update(bytes.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}
