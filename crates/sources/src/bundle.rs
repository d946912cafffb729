//! A bundle: the files of one commit without its history, as a tar whose bytes depend on the tree alone. Owner, times
//! and order are fixed, so the same tree gives the same digest on every machine.

use std::ffi::OsStr;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use api::text::{CommitId, Sha256};
use sha2::Digest;
use tempfile::NamedTempFile;

use crate::error::Error;
use crate::git::{Git, Mirror};
use crate::objects::{Entry, Kind, Objects};

/// An archive on disk that vanishes with this value.
#[derive(Debug)]
pub struct Bundle {
    file: NamedTempFile,
    sha256: Sha256,
    size: u64,
}

impl Bundle {
    pub(crate) fn new(file: NamedTempFile, sha256: Sha256, size: u64) -> Self {
        Self { file, sha256, size }
    }

    pub fn sha256(&self) -> &Sha256 {
        &self.sha256
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// Where the bytes are, for as long as this value lives.
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Git {
    /// Makes the bundle of a commit. Symbolic links are kept when they cannot lead out of the tree; anything else that
    /// could is refused by name.
    pub async fn bundle(&self, mirror: &Mirror, commit: &CommitId) -> Result<Bundle, Error> {
        let entries = self.tree(mirror, commit).await?;
        let limits = self.options.limits;
        if u64::try_from(entries.len()).unwrap_or(u64::MAX) > limits.entries {
            return Err(Error::TooManyFiles { commit: commit.to_string(), limit: limits.entries });
        }
        let total = entries.iter().fold(0u64, |sum, entry| sum.saturating_add(entry.size));
        if total > limits.bytes {
            return Err(Error::TooLarge { commit: commit.to_string(), limit: limits.bytes });
        }
        let file = tempfile::NamedTempFile::new_in(self.options.cache_dir.join("private"))
            .map_err(Error::io("create a file for the bundle"))?;
        let commit = commit.clone();
        self.with_objects(mirror, "bundle", move |objects| write_bundle(objects, &commit, &entries, file))
            .await
    }
}

fn write_bundle(
    objects: &mut Objects,
    commit: &CommitId,
    entries: &[Entry],
    file: NamedTempFile,
) -> Result<Bundle, Error> {
    let io = Error::io("write the bundle");
    let mut archive = tar::Builder::new(Hashing::new(BufWriter::with_capacity(256 * 1024, file)));
    for entry in entries {
        check_path(entry, commit)?;
        let path = Path::new(OsStr::from_bytes(&entry.path));
        let mut header = tar::Header::new_gnu();
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(0);
        match entry.kind {
            Kind::File | Kind::Executable => {
                header.set_entry_type(tar::EntryType::Regular);
                header.set_mode(if entry.kind == Kind::Executable { 0o755 } else { 0o644 });
                objects.blob(&entry.object, |size, content| {
                    header.set_size(size);
                    archive.append_data(&mut header, path, content).map_err(&io)
                })?;
            }
            Kind::Symlink => {
                let target = objects.blob_prefix(&entry.object, 4096)?;
                check_link(entry, &target, commit)?;
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_mode(0o777);
                archive.append_link(&mut header, path, OsStr::from_bytes(&target)).map_err(&io)?;
            }
            // Submodules are not followed; their place is an empty directory, as in a plain clone.
            Kind::Submodule => {
                header.set_entry_type(tar::EntryType::Directory);
                header.set_mode(0o755);
                archive.append_data(&mut header, path, std::io::empty()).map_err(&io)?;
            }
        }
    }
    let (writer, sha256, size) = archive.into_inner().map_err(&io)?.finish();
    let file = writer.into_inner().map_err(|error| io(error.into_error()))?;
    Ok(Bundle { file, sha256, size })
}

fn check_path(entry: &Entry, commit: &CommitId) -> Result<(), Error> {
    for part in entry.path.split(|byte| *byte == b'/') {
        let lower = part.to_ascii_lowercase();
        if part.is_empty() || part == b"." || part == b".." || lower == b".git" || part.contains(&0) {
            return Err(Error::BadEntry {
                path: entry.path_lossy(),
                commit: commit.to_string(),
                why: "its name could reach outside the tree or into git's own files; rename it".to_owned(),
            });
        }
    }
    Ok(())
}

/// A link is kept when its target is relative and climbs only at its start, at most to the root of the tree. By
/// induction no chain of such links leaves the tree: the climb starts from a real directory, and every further step
/// goes down, through links of the same kind.
fn check_link(entry: &Entry, target: &[u8], commit: &CommitId) -> Result<(), Error> {
    let depth = entry.path.split(|byte| *byte == b'/').count().saturating_sub(1);
    let parts: Vec<&[u8]> = target.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
    let climbs = parts.iter().take_while(|part| **part == b"..").count();
    let later = parts.iter().skip(climbs).any(|part| *part == b"..");
    let why = if target.is_empty() || target.contains(&0) || target.len() >= 4096 {
        "it is a symbolic link without a usable target; remove it"
    } else if target.starts_with(b"/") {
        "it is a symbolic link to an absolute path; make it relative and inside the repository"
    } else if climbs > depth {
        "it is a symbolic link that leaves the repository; point it inside"
    } else if later {
        "it is a symbolic link whose target has '..' after a name; write the target without that detour"
    } else {
        return Ok(());
    };
    Err(Error::BadEntry { path: entry.path_lossy(), commit: commit.to_string(), why: why.to_owned() })
}

pub(crate) struct Hashing<W> {
    inner: W,
    hasher: sha2::Sha256,
    size: u64,
}

impl<W: Write> Hashing<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self { inner, hasher: sha2::Sha256::new(), size: 0 }
    }

    pub(crate) fn finish(self) -> (W, Sha256, u64) {
        let digest = hex::encode(self.hasher.finalize());
        // A hex-encoded sha256 is always a valid one; hashing nothing is never reached.
        let sha256 = Sha256::new(digest).unwrap_or_else(|_| Sha256::of(b""));
        (self.inner, sha256, self.size)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.update(bytes.get(..written).unwrap_or_default());
        self.size = self.size.saturating_add(u64::try_from(written).unwrap_or(u64::MAX));
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn links_are_kept_only_when_no_chain_can_leave() {
        let check = |path: &str, target: &str| {
            let entry =
                Entry { kind: Kind::Symlink, object: String::new(), size: 0, path: path.as_bytes().to_vec() };
            check_link(&entry, target.as_bytes(), &CommitId::new("a".repeat(40)).unwrap()).is_ok()
        };
        for (path, target) in
            [("a", "b"), ("a/b", "../c"), ("a/b/c", "../../d/e"), ("a", "./b"), ("a/b", "..")]
        {
            assert!(check(path, target), "{path} -> {target}");
        }
        for (path, target) in [
            ("a", "/etc/passwd"),
            ("a", ".."),
            ("a/b", "../../c"),
            ("a", "b/../../c"),
            ("a/b", "x/.."),
            ("a", ""),
        ] {
            assert!(!check(path, target), "{path} -> {target}");
        }
    }
}
