//! The store of providers: packages that were fetched once for all runs of a machine, unpacked where the tools only link to them.
//!
//! ```text
//! <root>/HOST/NAMESPACE/TYPE/VERSION/linux_amd64/      the package; complete as soon as it has this name
//! <root>/HOST/NAMESPACE/TYPE/VERSION/linux_amd64.zip   its archive, for runners that do not see the store
//! <root>/HOST/NAMESPACE/TYPE/VERSION/linux_amd64.json  its hashes, where it came from and why it is believed
//! <root>/HOST/NAMESPACE/TYPE/VERSION/.linux_amd64.lock held while somebody fetches it
//! ```
//!
//! Whoever may write here decides what others execute, so that is never a runner's pod: docs/adr/0005.

mod registry;

use std::fs::{File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use api::provider::Address;
use api::text::Sha256;
use api::tool::Trust;
use base64::Engine as _;
use jiff::Timestamp;
use semver::Version;
use serde::{Deserialize, Serialize};
use sha2::Digest;

pub use registry::{Registry, RegistryOptions};

use super::archive::{self, Unpacked};
use super::release::shown;
use super::{Draft, Error, Platform, entries_of, open_directory, take_turn};

/// Where a store of programs has its providers.
pub const DIRECTORY: &str = "providers";
/// How many packages runs may bring in, and how many bytes of them. A run can ask for any provider that a registry has, so that there
/// has to be an end.
const MOST: usize = 128;
const MOST_BYTES: u64 = 32 * 1024 * 1024 * 1024;

/// A directory of providers.
#[derive(Debug, Clone)]
pub struct ProviderStore {
    root: PathBuf,
}

/// A provider, in one version, for one kind of machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provider {
    pub address: Address,
    pub version: Version,
    pub platform: Platform,
}

/// A package in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    pub provider: Provider,
    /// What the tools link to.
    pub directory: PathBuf,
    pub record: Record,
}

/// What is known about a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Of the archive.
    pub sha256: Sha256,
    /// Of the files, as lock files have it.
    pub h1: String,
    /// Unpacked.
    pub bytes: u64,
    pub from: String,
    pub trust: Trust,
    pub installed_at: Timestamp,
}

impl Record {
    /// How a lock file names the archive.
    pub fn zh(&self) -> String {
        format!("zh:{}", self.sha256)
    }

    /// Whether a lock file with these hashes allows the package. One without any allows what the registry vouches for.
    pub fn is_allowed_by(&self, hashes: &[String]) -> bool {
        let zh = self.zh();
        hashes.is_empty() || hashes.iter().any(|hash| *hash == self.h1 || *hash == zh)
    }
}

impl Package {
    pub fn archive(&self) -> PathBuf {
        self.directory.with_extension("zip")
    }

    /// Refuses a package that a lock file does not allow.
    pub fn check(self, hashes: &[String]) -> Result<Self, Error> {
        if self.record.is_allowed_by(hashes) {
            return Ok(self);
        }
        let found = format!("{} and {}", self.record.h1, self.record.zh());
        let Provider { address, version, platform } = self.provider;
        Err(Error::NotLocked { provider: format!("{address} {version}"), platform, found })
    }
}

impl ProviderStore {
    /// A store that others made; it is only read.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// A store of our own, made where it is missing.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, Error> {
        let root = root.into();
        open_directory(&root)?;
        Ok(Self { root })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    fn version_directory(&self, provider: &Provider) -> PathBuf {
        let Provider { address, version, .. } = provider;
        self.root
            .join(address.host())
            .join(address.namespace())
            .join(address.kind())
            .join(version.to_string())
    }

    /// A package that is there.
    pub fn find(&self, provider: &Provider) -> Option<Package> {
        let directory = self.version_directory(provider).join(provider.platform.to_string());
        if !directory.is_dir() {
            return None;
        }
        let record = std::fs::read(directory.with_extension("json")).ok()?;
        let record = serde_json::from_slice(&record).ok()?;
        Some(Package { provider: provider.clone(), directory, record })
    }

    /// What is in the store, by address and then version. O(packages).
    pub fn list(&self) -> Result<Vec<Package>, Error> {
        let mut places = vec![(self.root.clone(), Vec::<String>::new())];
        for _ in 0..5 {
            let mut deeper = Vec::new();
            for (place, names) in places {
                for name in directories(&place)? {
                    let mut names = names.clone();
                    let place = place.join(&name);
                    names.push(name);
                    deeper.push((place, names));
                }
            }
            places = deeper;
        }
        let mut found: Vec<Package> = places
            .into_iter()
            .filter_map(|(_, names)| {
                let [host, namespace, kind, version, platform] = names.try_into().ok()?;
                self.find(&Provider {
                    address: Address::parse(&format!("{host}/{namespace}/{kind}")).ok()?,
                    version: Version::parse(&version).ok()?,
                    platform: Platform::named(&platform)?,
                })
            })
            .collect();
        found.sort_by(|a, b| {
            (&a.provider.address, &a.provider.version).cmp(&(&b.provider.address, &b.provider.version))
        });
        Ok(found)
    }

    /// A package that is there, else fetched. Of several at the same time, here or in other processes, one fetches and the others
    /// find what it kept. A kill at any moment leaves no half of a package.
    pub async fn ensure(
        &self,
        provider: &Provider,
        hashes: &[String],
        registry: &Registry,
    ) -> Result<Package, Error> {
        if let Some(package) = self.find(provider) {
            return package.check(hashes);
        }
        let vetted = registry.vet(&provider.address, &provider.version, provider.platform).await?;
        let held = self.list()?;
        let bytes: u64 = held.iter().map(|package| package.record.bytes).sum();
        if held.len() >= MOST || bytes >= MOST_BYTES {
            return Err(Error::ProvidersFull(self.root.clone()));
        }
        let place = self.make_directories(provider)?;
        let name = provider.platform.to_string();
        let _turn = take_turn(place.join(format!(".{name}.lock"))).await?;
        if let Some(package) = self.find(provider) {
            return package.check(hashes);
        }
        let draft = Draft::new(place.join(format!(".{name}.new")))?;
        let (download, ready) = (draft.path.join("download"), draft.path.join("package"));
        registry.fetch(&vetted, &download).await?;
        let url = shown(&vetted.url);
        let unpacking = tokio::task::spawn_blocking(move || unpack(&download, &ready, &url));
        let (h1, bytes) = unpacking
            .await
            .map_err(|stopped| Error::Io { path: place.clone(), source: std::io::Error::other(stopped) })??;
        let record = Record {
            sha256: vetted.sha256,
            h1,
            bytes,
            from: shown(&vetted.url),
            trust: vetted.trust,
            installed_at: Timestamp::now(),
        };
        let package = Package { provider: provider.clone(), directory: place.join(&name), record };
        // What this run may not use is what the registry vouches for all the same, and others may have asked for it rightly.
        publish(&draft, &place, &package)?;
        package.check(hashes)
    }

    fn make_directories(&self, provider: &Provider) -> Result<PathBuf, Error> {
        let place = self.version_directory(provider);
        let below: Vec<&Path> = place.ancestors().take_while(|path| *path != self.root).collect();
        for directory in below.into_iter().rev() {
            open_directory(directory)?;
        }
        Ok(place)
    }

    /// Takes a package away. A run that linked to it can no longer start it.
    pub async fn remove(&self, package: &Package) -> Result<(), Error> {
        let place = self.version_directory(&package.provider);
        let name = package.provider.platform.to_string();
        let _turn = take_turn(place.join(format!(".{name}.lock"))).await?;
        // First its name, so that nobody finds half of it.
        let draft = Draft::new(place.join(format!(".{name}.new")))?;
        let gone = draft.path.join("gone");
        std::fs::rename(&package.directory, &gone).map_err(|source| Error::Io { path: gone, source })?;
        for path in [package.archive(), package.directory.with_extension("json")] {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(Error::Io { path, source: error });
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

/// The directories in a place, without those that are being made.
fn directories(place: &Path) -> Result<Vec<String>, Error> {
    let io = |source| Error::Io { path: place.to_owned(), source };
    let mut names = Vec::new();
    for entry in entries_of(place)? {
        if let Ok(name) = entry.file_name().into_string()
            && !name.starts_with('.')
            && entry.file_type().map_err(io)?.is_dir()
        {
            names.push(name);
        }
    }
    Ok(names)
}

/// The package under its name is complete with everything that is known about it, so that comes last.
fn publish(draft: &Draft, place: &Path, package: &Package) -> Result<(), Error> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { path: path.clone(), source }
    };
    let described = draft.path.join("record");
    let content = serde_json::to_vec_pretty(&package.record)
        .map_err(|error| io(&described)(std::io::Error::other(error)))?;
    let mut file = File::create_new(&described).map_err(io(&described))?;
    file.write_all(&content).and_then(|()| file.sync_all()).map_err(io(&described))?;
    let download = draft.path.join("download");
    for path in [&described, &download] {
        std::fs::set_permissions(path, Permissions::from_mode(0o644)).map_err(io(path))?;
    }
    let (archive, record) = (package.archive(), package.directory.with_extension("json"));
    std::fs::rename(&download, &archive).map_err(io(&archive))?;
    std::fs::rename(&described, &record).map_err(io(&record))?;
    std::fs::rename(draft.path.join("package"), &package.directory).map_err(io(&package.directory))?;
    File::open(place).and_then(|place| place.sync_all()).map_err(io(place))
}

/// Makes the package out of its archive; returns the hash and the size of its files.
fn unpack(download: &Path, ready: &Path, url: &str) -> Result<(String, u64), Error> {
    open_directory(ready)?;
    let mut from = File::open(download).map_err(|source| Error::Io { path: download.to_owned(), source })?;
    let files = archive::unpack_all(&mut from, ready)
        .map_err(|source| Error::Archive { url: url.to_owned(), source })?;
    Ok((h1(&files), files.iter().map(|file| file.size).sum()))
}

/// The hash of a package in lock files: over the sorted list of its files with their digests. O(n log n) in files.
fn h1(files: &[Unpacked]) -> String {
    let mut files: Vec<&Unpacked> = files.iter().collect();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    let mut hasher = sha2::Sha256::new();
    for file in files {
        hasher.update(format!("{}  {}\n", file.sha256, file.name));
    }
    format!("h1:{}", base64::prelude::BASE64_STANDARD.encode(hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_one_that_the_tools_write() {
        let file = |name: &str, content: &[u8]| Unpacked {
            name: name.to_owned(),
            sha256: hex::encode(sha2::Sha256::digest(content)),
            size: 0,
        };
        // `sha256sum` of the two lines that `sha256sum b a/c` prints, in the order of their names.
        let hash = h1(&[file("b", b"2"), file("a/c", b"1")]);
        assert_eq!(hash, "h1:FhG+L7haclLRA2W3VuuAZy1uPFldDd5GGsuTQvw/vQw=");
    }
}
