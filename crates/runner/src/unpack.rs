//! Unpacking a bundle: strict, because its content is somebody's repository. Regular files, directories, and symbolic
//! links that stay inside; anything else ends the attempt. Links are made last, so no file is ever written through one.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// What an archive may hold; a little more than a bundle's own limits.
const ENTRIES: u64 = 200_000;
const BYTES: u64 = 2 * 1024 * 1024 * 1024;
const DEPTH: usize = 100;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the bundle holds {path}, which is refused: {why}")]
    Refused { path: String, why: &'static str },
    #[error("the bundle is larger than {limit} {what}")]
    TooLarge { what: &'static str, limit: u64 },
    #[error("the bundle could not be unpacked at {path}: {source}")]
    Io { path: String, source: std::io::Error },
}

/// Unpacks into `target`, which must be an empty directory of our own.
pub fn unpack(archive: impl Read, target: &Path) -> Result<(), Error> {
    let io = |path: &Path| {
        let path = path.display().to_string();
        move |source| Error::Io { path: path.clone(), source }
    };
    let mut archive = tar::Archive::new(archive);
    let mut links = Vec::new();
    let (mut count, mut bytes) = (0u64, 0u64);
    for entry in archive.entries().map_err(io(target))? {
        let mut entry = entry.map_err(io(target))?;
        count += 1;
        bytes = bytes.saturating_add(entry.size());
        if count > ENTRIES {
            return Err(Error::TooLarge { what: "files", limit: ENTRIES });
        }
        if bytes > BYTES {
            return Err(Error::TooLarge { what: "bytes", limit: BYTES });
        }
        let path = entry.path().map_err(io(target))?.into_owned();
        check_path(&path)?;
        let place = target.join(&path);
        match entry.header().entry_type() {
            tar::EntryType::Directory => create_dirs(&place).map_err(io(&path))?,
            tar::EntryType::Regular => {
                create_parents(&place).map_err(io(&path))?;
                let executable = entry.header().mode().is_ok_and(|mode| mode & 0o100 != 0);
                let mut file = OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(if executable { 0o755 } else { 0o644 })
                    .open(&place)
                    .map_err(io(&path))?;
                copy(&mut entry, &mut file).map_err(io(&path))?;
            }
            tar::EntryType::Symlink => {
                let link = entry.link_name().map_err(io(&path))?;
                let link = link.ok_or_else(|| refused(&path, "a link without a target"))?.into_owned();
                check_link(&path, &link)?;
                links.push((path, link));
            }
            _ => return Err(refused(&path, "it is neither a file, a directory nor a symbolic link")),
        }
    }
    for (path, link) in links {
        let place = target.join(&path);
        create_parents(&place).map_err(io(&path))?;
        // A link made a moment ago must not become the way to this one.
        for parent in path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
            if target.join(parent).is_symlink() {
                return Err(refused(&path, "its directory is a link"));
            }
        }
        std::os::unix::fs::symlink(&link, &place).map_err(io(&path))?;
    }
    Ok(())
}

fn copy(from: &mut impl Read, to: &mut File) -> std::io::Result<()> {
    std::io::copy(from, to).map(drop)
}

fn create_dirs(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

fn create_parents(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), create_dirs)
}

fn refused(path: &Path, why: &'static str) -> Error {
    Error::Refused { path: path.display().to_string(), why }
}

fn check_path(path: &Path) -> Result<(), Error> {
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    let depth = path.components().count();
    if !plain || depth == 0 {
        return Err(refused(path, "its name could reach outside the directory"));
    }
    if depth > DEPTH || path.as_os_str().len() > 4096 {
        return Err(refused(path, "its name is too long or too deep"));
    }
    Ok(())
}

/// The same rule as when the bundle was made: relative, climbing only at its start, never above the root.
fn check_link(path: &Path, link: &Path) -> Result<(), Error> {
    let depth = path.components().count().saturating_sub(1);
    let climbs = link.components().take_while(|part| matches!(part, Component::ParentDir)).count();
    let rest_is_plain =
        link.components().skip(climbs).all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if link.as_os_str().is_empty() || climbs > depth || !rest_is_plain {
        return Err(refused(path, "it is a link that could lead outside the directory"));
    }
    Ok(())
}

/// Joins a layer's path to the unpacked root and proves that it is a directory inside it.
pub fn layer_directory(root: &Path, path: &str) -> Option<PathBuf> {
    directory_within(root, root, path)
}

/// The same for a path that begins at a directory of it.
pub(crate) fn directory_within(root: &Path, from: &Path, path: &str) -> Option<PathBuf> {
    let joined = from.join(path);
    let resolved = joined.canonicalize().ok()?;
    let inside = resolved.starts_with(root.canonicalize().ok()?);
    (inside && resolved.is_dir()).then_some(joined)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn archive(entries: &[(&str, tar::EntryType, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            // Written raw, because the library itself refuses to write dangerous names.
            let field = &mut header.as_gnu_mut().unwrap().name;
            field[..path.len()].copy_from_slice(path.as_bytes());
            if kind.is_symlink() || kind.is_hard_link() {
                header.set_size(0);
                let field = &mut header.as_gnu_mut().unwrap().linkname;
                field[..content.len()].copy_from_slice(content.as_bytes());
                header.set_cksum();
                builder.append(&header, std::io::empty()).unwrap();
            } else {
                header.set_size(content.len() as u64);
                header.set_cksum();
                builder.append(&header, content.as_bytes()).unwrap();
            }
        }
        builder.into_inner().unwrap()
    }

    use tar::EntryType as Kind;

    #[test]
    fn files_directories_and_inner_links_arrive() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = archive(&[
            ("a/b/main.tf", Kind::Regular, "x"),
            ("empty", Kind::Directory, ""),
            ("a/link", Kind::Symlink, "../a/b/main.tf"),
        ]);
        unpack(bytes.as_slice(), dir.path()).unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("a/link")).unwrap(), "x");
        assert!(dir.path().join("empty").is_dir());
        assert!(layer_directory(dir.path(), "a/b").is_some());
        assert!(layer_directory(dir.path(), "a/none").is_none());
        assert!(layer_directory(dir.path(), "a/link").is_none(), "a file is no layer");
    }

    #[test]
    fn everything_that_could_leave_is_refused_and_writes_nothing_outside() {
        let cases: &[&[(&str, Kind, &str)]] = &[
            &[("../evil", Kind::Regular, "x")],
            &[("/tmp/terrane-evil", Kind::Regular, "x")],
            &[("a/../../evil", Kind::Regular, "x")],
            &[("l", Kind::Symlink, "/etc")],
            &[("l", Kind::Symlink, "..")],
            &[("a/l", Kind::Symlink, "b/../../..")],
            &[("hard", Kind::Link, "/etc/passwd")],
            &[("dev", Kind::Char, "")],
            &[("pipe", Kind::Fifo, "")],
            &[("same", Kind::Regular, "1"), ("same", Kind::Regular, "2")],
            &[("d", Kind::Symlink, "e"), ("d/x", Kind::Symlink, "y"), ("e/f", Kind::Regular, "")],
            &[("", Kind::Regular, "x")],
        ];
        for case in cases {
            let parent = tempfile::tempdir().unwrap();
            let target = parent.path().join("target");
            std::fs::create_dir(&target).unwrap();
            let result = unpack(archive(case).as_slice(), &target);
            assert!(result.is_err(), "{case:?}");
            let around: Vec<_> = std::fs::read_dir(parent.path()).unwrap().collect();
            assert_eq!(around.len(), 1, "{case:?} wrote outside");
        }
        assert!(!Path::new("/tmp/terrane-evil").exists());
    }

    #[test]
    fn a_cut_archive_is_an_error() {
        let bytes = archive(&[("a", Kind::Regular, &"x".repeat(2000))]);
        let dir = tempfile::tempdir().unwrap();
        assert!(unpack(&bytes[..1000], dir.path()).is_err());
    }
}
