//! Brings files to disk so that a reader sees all of the old ones or all of the new ones, as a kubelet does: files in
//! a directory of their own, a link `..data` to it that is swapped by a rename, and a link through it for each name.
//!
//! Directories belong to the node, not to the pod: a pod that could rename or link in here could make a node that
//! runs as root write somewhere else.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};

use super::payload::Payload;

const DATA: &str = "..data";
const DATA_NEXT: &str = "..data_tmp";

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Written {
    Changed,
    Same,
}

/// Makes a directory that the pod can enter and not change.
pub(super) fn make_readable(path: &Path, owner: Option<u32>) -> io::Result<()> {
    make(path)?;
    if let Some(id) = owner {
        std::os::unix::fs::chown(path, None, Some(id))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o750))?;
    }
    Ok(())
}

/// Makes a directory that belongs to the pod. Only for places that the pod has not been able to touch yet.
pub(super) fn make_owned(path: &Path, owner: Option<u32>) -> io::Result<()> {
    make(path)?;
    match owner {
        Some(id) => std::os::unix::fs::lchown(path, Some(id), Some(id)),
        None => Ok(()),
    }
}

/// An empty file that belongs to the pod, in a directory that does not.
pub(super) fn make_owned_file(path: &Path, owner: Option<u32>) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    match owner {
        Some(id) => fchown(&file, Some(id), Some(id)),
        None => Ok(()),
    }
}

fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Makes directories below `root` one by one and follows no link, because the pod may have put one there.
pub(super) fn make_beneath(root: &Path, below: &Path, owner: Option<u32>) -> io::Result<()> {
    let open = |at: &rustix::fd::OwnedFd, name: &std::ffi::OsStr| {
        rustix::fs::openat(at, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
    };
    let mut at = rustix::fs::open(root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for part in below.components() {
        let Component::Normal(name) = part else {
            return Err(io::Error::other(format!("{} leads out of the volume", below.display())));
        };
        at = match open(&at, name) {
            Ok(next) => next,
            Err(rustix::io::Errno::NOENT) => {
                rustix::fs::mkdirat(&at, name, Mode::from_bits_truncate(0o700))?;
                let next = open(&at, name)?;
                if let Some(id) = owner {
                    fchown(&next, Some(id), Some(id))?;
                }
                next
            }
            Err(errno) => return Err(errno.into()),
        };
    }
    Ok(())
}

/// Puts the files of a volume in place. Running it again after a crash at any point completes it.
pub(super) fn put(volume: &Path, files: &Payload, owner: Option<u32>) -> io::Result<Written> {
    make_readable(volume, owner)?;
    let current = fs::read_link(volume.join(DATA)).ok();
    if let Some(current) = &current
        && same(&volume.join(current), files, owner)?
    {
        link_names(volume, files)?;
        return Ok(Written::Same);
    }
    let next = fresh_directory(volume, current.as_deref(), owner)?;
    for (path, content) in files {
        let target = next.join(path);
        if let Some(parent) = path.parent() {
            let mut directory = next.clone();
            for part in parent.components() {
                directory.push(part);
                make_readable(&directory, owner)?;
            }
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target)?;
        file.write_all(&content.bytes)?;
        if let Some(id) = owner {
            fchown(&file, None, Some(id))?;
        }
        file.set_permissions(fs::Permissions::from_mode(effective_mode(content.mode, owner)))?;
    }
    let name = next.file_name().map(PathBuf::from).unwrap_or_default();
    let link = volume.join(DATA_NEXT);
    match fs::remove_file(&link) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    symlink(&name, &link)?;
    fs::rename(&link, volume.join(DATA))?;
    link_names(volume, files)?;
    sweep(volume, files, &name)?;
    Ok(Written::Changed)
}

/// The pod reads through its group, so the group may do what the owner may, as with a kubelet's `fsGroup`.
fn effective_mode(mode: u32, owner: Option<u32>) -> u32 {
    match owner {
        Some(_) => mode | ((mode & 0o700) >> 3),
        None => mode,
    }
}

fn fresh_directory(volume: &Path, current: Option<&Path>, owner: Option<u32>) -> io::Result<PathBuf> {
    let path = ["..a", "..b"]
        .iter()
        .find(|name| current != Some(Path::new(name)))
        .map_or_else(|| volume.join("..a"), |name| volume.join(name));
    // What a crash left of an earlier try was never linked to, so nobody reads it.
    match fs::remove_dir_all(&path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    make_readable(&path, owner)?;
    Ok(path)
}

fn same(directory: &Path, files: &Payload, owner: Option<u32>) -> io::Result<bool> {
    let mut found = 0;
    let mut pending = vec![directory.to_owned()];
    while let Some(next) = pending.pop() {
        let entries = match fs::read_dir(&next) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                pending.push(path);
                continue;
            }
            let Some(content) = path.strip_prefix(directory).ok().and_then(|below| files.get(below)) else {
                return Ok(false);
            };
            let mode = entry.metadata()?.mode() & 0o777;
            if mode != effective_mode(content.mode, owner) || fs::read(&path)? != content.bytes {
                return Ok(false);
            }
            found += 1;
        }
    }
    Ok(found == files.len())
}

fn first_parts(files: &Payload) -> impl Iterator<Item = &std::ffi::OsStr> {
    files.keys().filter_map(|path| path.components().next()).map(Component::as_os_str)
}

fn link_names(volume: &Path, files: &Payload) -> io::Result<()> {
    for name in first_parts(files) {
        match symlink(Path::new(DATA).join(name), volume.join(name)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Removes the links of names that are no more, and the files that were current before.
fn sweep(volume: &Path, files: &Payload, current: &Path) -> io::Result<()> {
    for entry in fs::read_dir(volume)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_directory = entry.file_type()?.is_dir();
        if is_directory && Path::new(&name) != current {
            fs::remove_dir_all(entry.path())?;
        } else if !is_directory && name != DATA && first_parts(files).all(|part| part != name) {
            rustix::fs::unlinkat(rustix::fs::CWD, entry.path(), AtFlags::empty())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::payload::Content;
    use super::*;

    fn payload(files: &[(&str, &str, u32)]) -> Payload {
        files
            .iter()
            .map(|(path, text, mode)| {
                (PathBuf::from(path), Content { bytes: text.as_bytes().to_vec(), mode: *mode })
            })
            .collect()
    }

    fn names(volume: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(volume).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn files_change_all_at_once_and_nothing_is_written_without_a_change() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("v");
        let first = payload(&[("token", "one", 0o600), ("deep/er/file", "x", 0o644), ("old", "o", 0o644)]);
        assert_eq!(put(&volume, &first, None).unwrap(), Written::Changed);
        assert_eq!(put(&volume, &first, None).unwrap(), Written::Same);
        assert_eq!(fs::read_to_string(volume.join("token")).unwrap(), "one");
        assert_eq!(fs::read_to_string(volume.join("deep/er/file")).unwrap(), "x");
        assert_eq!(fs::metadata(volume.join("token")).unwrap().mode() & 0o777, 0o600);

        // A reader that holds the old directory open keeps reading the old files' names through it.
        let before = fs::read_link(volume.join(DATA)).unwrap();
        let second = payload(&[("token", "two", 0o600), ("deep/er/file", "x", 0o644)]);
        assert_eq!(put(&volume, &second, None).unwrap(), Written::Changed);
        assert_ne!(fs::read_link(volume.join(DATA)).unwrap(), before);
        assert_eq!(fs::read_to_string(volume.join("token")).unwrap(), "two");
        assert_eq!(names(&volume), ["..b", "..data", "deep", "token"]);
    }

    #[test]
    fn a_crash_half_way_is_made_good() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("v");
        let files = payload(&[("a", "1", 0o644)]);
        fs::create_dir_all(volume.join("..a/half")).unwrap();
        symlink("..a", volume.join(DATA_NEXT)).unwrap();
        put(&volume, &files, None).unwrap();
        assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "1");
        fs::remove_file(volume.join("a")).unwrap();
        assert_eq!(put(&volume, &files, None).unwrap(), Written::Same);
        assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "1");
    }

    #[test]
    fn directories_are_made_beneath_and_never_through_a_link() {
        let root = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        make_beneath(root.path(), Path::new("a/b"), None).unwrap();
        assert!(root.path().join("a/b").is_dir());
        symlink(elsewhere.path(), root.path().join("link")).unwrap();
        make_beneath(root.path(), Path::new("link/x"), None).unwrap_err();
        make_beneath(root.path(), Path::new("../x"), None).unwrap_err();
        assert!(names(elsewhere.path()).is_empty());
    }
}
