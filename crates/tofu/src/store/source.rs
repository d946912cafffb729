//! Getting a version of a program from its vendor or a mirror, and finding out whether its bytes are the right ones: either the
//! vendor's signed checksums say so, or a checksum that the administrator wrote down. Nothing is unpacked or kept here.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use api::text::Sha256;
use api::tool::{Program, Trust};
use semver::Version;

use super::Error;
use super::http::{Http, Progress, Schemes};
use super::release::{self, Packing, Platform, Release, shown};
use crate::signature::{self, Certificate};
use crate::versions::Constraint;

const SUMS_LIMIT: u64 = 1024 * 1024;
const SIGNATURE_LIMIT: u64 = 64 * 1024;
const INDEX_LIMIT: u64 = 64 * 1024 * 1024;

/// Where programs come from and what is believed about them. Keys and checksums are read at each use, so that putting a file there
/// is enough.
#[derive(Debug, Clone)]
pub struct Source {
    http: Http,
    mirror: Option<String>,
    keys: Option<PathBuf>,
    checksums: Option<PathBuf>,
    platform: Platform,
}

/// What an administrator says about downloads.
#[derive(Debug, Clone, Default)]
pub struct SourceOptions {
    /// Instead of the vendors: programs lie below `URL/PROGRAM/VERSION/`.
    pub mirror: Option<String>,
    /// A directory with the vendors' public keys, `PROGRAM.asc` or `PROGRAM.gpg`.
    pub keys: Option<PathBuf>,
    /// A file in the format of `sha256sum` with checksums that need no signature.
    pub checksums: Option<PathBuf>,
    /// A PEM file with authorities that servers are believed by, beside those of the system.
    pub authority: Option<PathBuf>,
}

/// A release whose right bytes are known.
#[derive(Debug)]
pub(super) struct Vetted {
    pub(super) release: Release,
    pub(super) sha256: Sha256,
    pub(super) trust: Trust,
}

impl Vetted {
    pub(super) fn is_zip(&self) -> bool {
        match self.release.packing {
            Packing::Zip => true,
            Packing::Plain => false,
        }
    }
}

impl Source {
    pub fn new(options: SourceOptions) -> Result<Self, Error> {
        let mirror = options.mirror.as_deref().map(mirror_base).transpose()?;
        let platform = Platform::of_this_machine().ok_or(Error::Platform)?;
        let http = Http::new(Schemes::ClearToo, options.authority.as_deref())?;
        Ok(Self { http, mirror, keys: options.keys, checksums: options.checksums, platform })
    }

    /// The version to install for a constraint: the one it names, else the highest of those that are listed.
    pub async fn resolve(&self, program: Program, constraint: &Constraint) -> Result<Version, Error> {
        if let Some(exact) = constraint.exact() {
            return Ok(exact.clone());
        }
        let pinned = self.pinned_versions(program)?;
        let listed = match release::index_url(program, self.mirror.as_deref()) {
            Some(url) => self.fetch_index(&url).await,
            None => Err(Error::NoIndex { program }),
        };
        let best = |versions: &[Version]| {
            versions.iter().filter(|version| constraint.is_satisfied_by(version)).max().cloned()
        };
        match listed {
            Ok(listed) => best(&[pinned, listed].concat())
                .ok_or_else(|| Error::NoVersion { program, constraint: constraint.to_string() }),
            // What the administrator wrote down can be had without a list.
            Err(error) => best(&pinned).ok_or(error),
        }
    }

    async fn fetch_index(&self, url: &str) -> Result<Vec<Version>, Error> {
        let content = self.http.fetch_small(url, INDEX_LIMIT).await?;
        release::versions(&content).ok_or_else(|| Error::Index { url: shown(url) })
    }

    fn pinned_versions(&self, program: Program) -> Result<Vec<Version>, Error> {
        let Some(text) = self.read_checksums()? else { return Ok(Vec::new()) };
        let names = release::checksums(&text).map(|(_, name)| name);
        Ok(names.filter_map(|name| release::pinned_version(program, name, self.platform)).collect())
    }

    fn read_checksums(&self) -> Result<Option<String>, Error> {
        let Some(path) = &self.checksums else { return Ok(None) };
        std::fs::read_to_string(path).map(Some).map_err(|source| Error::Io { path: path.clone(), source })
    }

    /// Finds out which bytes are right, before any of them is fetched.
    pub(super) async fn vet(&self, program: Program, version: &Version) -> Result<Vetted, Error> {
        let release = Release::new(program, version, self.platform, self.mirror.as_deref());
        let pinned_name = release::pinned_name(program, version, self.platform);
        let pinned = self.read_checksums()?.and_then(|text| release::checksum(&text, &pinned_name));
        if let Some(sha256) = pinned {
            return Ok(Vetted { release, sha256, trust: Trust::Checksum });
        }
        let trusted = self.keys_of(program)?;
        if trusted.is_empty() {
            let place = match &self.keys {
                Some(directory) => directory.join(format!("{program}.asc")).display().to_string(),
                None => format!("a file {program}.asc in the directory of --tools-keys"),
            };
            return Err(Error::Untrusted { program, version: version.clone(), place, pinned_name });
        }
        let sums = self.http.fetch_small(&release.sums_url, SUMS_LIMIT).await?;
        let signature = self.http.fetch_small(&release.signature_url, SIGNATURE_LIMIT).await?;
        let fingerprint = signature::verify(&sums, &signature, &trusted)
            .map_err(|source| Error::Signature { url: shown(&release.signature_url), source })?;
        let text = String::from_utf8_lossy(&sums);
        let sha256 = release::checksum(&text, &release.file)
            .ok_or_else(|| Error::NotListed { file: release.file.clone(), url: release.sums_url.clone() })?;
        Ok(Vetted { release, sha256, trust: Trust::Signature { key: fingerprint.to_string() } })
    }

    fn keys_of(&self, program: Program) -> Result<Vec<Certificate>, Error> {
        let mut found = Vec::new();
        for ending in ["asc", "gpg"] {
            let Some(directory) = &self.keys else { continue };
            let path = directory.join(format!("{program}.{ending}"));
            match std::fs::read(&path) {
                Ok(content) => found.extend(
                    signature::read_certificates(&content).map_err(|source| Error::Key { path, source })?,
                ),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(source) => return Err(Error::Io { path, source }),
            }
        }
        Ok(found)
    }

    /// Fetches the release into a new file and compares its checksum.
    pub(super) async fn fetch(
        &self,
        vetted: &Vetted,
        to: &Path,
        progress: Progress<'_>,
    ) -> Result<(), Error> {
        self.http.fetch_file(&vetted.release.url, &vetted.sha256, to, progress).await
    }
}

fn mirror_base(text: &str) -> Result<String, Error> {
    let bad = || Error::Mirror(shown(text));
    let url = reqwest::Url::parse(text).map_err(|_| bad())?;
    let fits = matches!(url.scheme(), "http" | "https")
        && url.host().is_some()
        && url.query().is_none()
        && url.fragment().is_none();
    if fits { Ok(text.trim_end_matches('/').to_owned()) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_mirror_is_an_address_and_its_password_is_never_shown() {
        assert_eq!(mirror_base("https://mirror.example.org/a/").unwrap(), "https://mirror.example.org/a");
        for bad in ["", "mirror", "ftp://x/", "file:///x", "https://x/?a=b", "https://x/#y"] {
            assert!(mirror_base(bad).is_err(), "{bad}");
        }
        let error = mirror_base("ftp://ann:secret@example.org/x").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
        assert_eq!(shown("https://ann:secret@example.org/x@y"), "https://example.org/x@y");
    }
}
