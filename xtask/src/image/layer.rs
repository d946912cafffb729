//! One layer of an image: a set of files, written as an archive whose bytes depend on nothing else. Where the files come from is not known here.

use std::collections::BTreeMap;
use std::io;

use sha2::{Digest as _, Sha256};

/// A file of the image. Times are left out on purpose: each has the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    pub(super) mode: u32,
    /// User and group; almost everything belongs to root.
    pub(super) owner: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Directory,
    File(Vec<u8>),
    /// Where it leads, as it is written.
    Symlink(String),
    /// A file of the same layer, by its path in the image.
    HardLink(String),
}

/// Files by their path in the image, without a leading slash.
#[derive(Debug, Default)]
pub(super) struct Layer {
    entries: BTreeMap<String, Entry>,
}

/// A layer as a registry keeps it.
#[derive(Debug)]
pub(super) struct Packed {
    /// What a registry names it by: the digest of the compressed bytes.
    pub(super) digest: String,
    /// What the image's configuration names it by: the digest of the archive.
    pub(super) diff_id: String,
    pub(super) bytes: Vec<u8>,
}

impl Entry {
    pub(super) fn directory() -> Self {
        Self { kind: Kind::Directory, mode: 0o755, owner: 0 }
    }

    pub(super) fn file(content: impl Into<Vec<u8>>) -> Self {
        Self { kind: Kind::File(content.into()), mode: 0o644, owner: 0 }
    }

    pub(super) fn program(content: impl Into<Vec<u8>>) -> Self {
        Self { kind: Kind::File(content.into()), mode: 0o755, owner: 0 }
    }

    pub(super) fn symlink(target: &str) -> Self {
        Self { kind: Kind::Symlink(target.to_owned()), mode: 0o777, owner: 0 }
    }
}

impl Layer {
    /// Adds a file and the directories above it. What was there under the same path goes.
    pub(super) fn put(&mut self, path: &str, entry: Entry) {
        for (end, _) in path.match_indices('/') {
            if let Some(parent) = path.get(..end) {
                self.entries.entry(parent.to_owned()).or_insert_with(Entry::directory);
            }
        }
        self.entries.insert(path.to_owned(), entry);
    }

    pub(super) fn contains(&self, path: &str) -> bool {
        self.entries.contains_key(path)
    }

    /// Files whose path begins so, by path.
    pub(super) fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a Entry)> {
        self.entries
            .range(prefix.to_owned()..)
            .take_while(move |(path, _)| path.starts_with(prefix))
            .map(|(path, entry)| (path.as_str(), entry))
    }

    /// An archive sorted by path. Hard links come last: what they name must be there when they are unpacked.
    pub(super) fn archive(&self) -> io::Result<Vec<u8>> {
        let mut archive = tar::Builder::new(Vec::new());
        let is_link = |entry: &Entry| matches!(entry.kind, Kind::HardLink(_));
        let first = self.entries.iter().filter(|(_, entry)| !is_link(entry));
        let last = self.entries.iter().filter(|(_, entry)| is_link(entry));
        for (path, entry) in first.chain(last) {
            let mut header = tar::Header::new_gnu();
            header.set_mode(entry.mode);
            header.set_uid(entry.owner);
            header.set_gid(entry.owner);
            header.set_mtime(0);
            header.set_size(0);
            match &entry.kind {
                Kind::Directory => {
                    header.set_entry_type(tar::EntryType::Directory);
                    archive.append_data(&mut header, format!("{path}/"), io::empty())?;
                }
                Kind::File(content) => {
                    header.set_entry_type(tar::EntryType::Regular);
                    header.set_size(u64::try_from(content.len()).map_err(io::Error::other)?);
                    archive.append_data(&mut header, path, content.as_slice())?;
                }
                Kind::Symlink(target) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    archive.append_link(&mut header, path, target)?;
                }
                Kind::HardLink(target) => {
                    header.set_entry_type(tar::EntryType::Link);
                    archive.append_link(&mut header, path, target)?;
                }
            }
        }
        archive.into_inner()
    }

    pub(super) fn pack(&self) -> io::Result<Packed> {
        let archive = self.archive()?;
        let bytes = gzip(&archive);
        Ok(Packed { digest: digest(&bytes), diff_id: digest(&archive), bytes })
    }
}

pub(super) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// By one compressor at one level. `flate2` has several, and which one it uses depends on what else is built with it: then the same files
/// would have another digest.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    const LEVEL: u8 = 6;
    // Deflate, no name, no time, no hint on the level, an unknown system.
    let mut packed = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    packed.extend(miniz_oxide::deflate::compress_to_vec(bytes, LEVEL));
    packed.extend(crc32fast::hash(bytes).to_le_bytes());
    // The format keeps the length modulo 2^32.
    packed.extend((bytes.len() as u32).to_le_bytes());
    packed
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn layer(order: impl Iterator<Item = usize>) -> Layer {
        let long = format!("usr/share/{}", "a-long-name/".repeat(20));
        let files = [
            ("usr/bin/git".to_owned(), Entry::program("#!")),
            (
                "usr/bin/again".to_owned(),
                Entry { kind: Kind::HardLink("usr/bin/git".to_owned()), ..Entry::program("") },
            ),
            ("bin".to_owned(), Entry::symlink("usr/bin")),
            (format!("{long}file"), Entry::file(vec![7; 100_000])),
            ("tmp".to_owned(), Entry { mode: 0o1777, ..Entry::directory() }),
            ("home/terrane".to_owned(), Entry { owner: 65_532, ..Entry::directory() }),
        ];
        let mut layer = Layer::default();
        for index in order {
            let (path, entry) = files[index].clone();
            layer.put(&path, entry);
        }
        layer
    }

    #[test]
    fn the_same_files_have_the_same_digest_whatever_their_order() {
        let one = layer(0..6).pack().unwrap();
        let other = layer((0..6).rev()).pack().unwrap();
        assert_eq!((&one.digest, &one.diff_id), (&other.digest, &other.diff_id));
        // Pinned: another version of a compressor or archiver would change the digests of released images.
        insta::assert_snapshot!(one.diff_id);
        insta::assert_snapshot!(one.digest);
    }

    #[test]
    fn a_layer_unpacks_to_its_files() {
        let packed = layer(0..6).pack().unwrap();
        let mut archive = Vec::new();
        flate2::read::GzDecoder::new(packed.bytes.as_slice()).read_to_end(&mut archive).unwrap();
        assert_eq!(digest(&archive), packed.diff_id);
        let directory = tempfile::tempdir().unwrap();
        let mut reader = tar::Archive::new(archive.as_slice());
        reader.set_preserve_permissions(true);
        reader.unpack(directory.path()).unwrap();
        assert_eq!(std::fs::read(directory.path().join("bin/again")).unwrap(), b"#!");
        let mut owners: Vec<(String, u64, u64)> = Vec::new();
        for entry in tar::Archive::new(archive.as_slice()).entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            let path = entry.path().unwrap().display().to_string();
            owners.push((path, header.uid().unwrap(), header.mtime().unwrap()));
        }
        assert!(
            owners
                .iter()
                .all(|(path, uid, time)| *time == 0 && (*uid == 65_532) == (path == "home/terrane/")),
            "{owners:?}"
        );
        assert!(owners.iter().any(|(path, _, _)| path.len() > 200), "{owners:?}");
    }
}
