//! Reading objects of a mirror: one `cat-file --batch` for many blobs, and the listing of a tree. Everything here is
//! content somebody pushed, so sizes are limited before bytes are kept.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};

use crate::error::Error;

/// The kinds of entry a tree can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Executable,
    Symlink,
    Submodule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    pub object: String,
    /// Zero for a submodule, which has no content here.
    pub size: u64,
    pub path: Vec<u8>,
}

impl Entry {
    pub(crate) fn path_lossy(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }
}

/// Reads `ls-tree -r -z --long`. Entries come in byte order of their paths, which is the order of a bundle.
pub fn parse_tree(output: &[u8]) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    for record in output.split(|byte| *byte == 0).filter(|record| !record.is_empty()) {
        let malformed = || format!("unexpected entry {:?}", String::from_utf8_lossy(record));
        let tab = record.iter().position(|byte| *byte == b'\t').ok_or_else(malformed)?;
        let (head, path) = record.split_at(tab);
        let head = std::str::from_utf8(head).map_err(|_| malformed())?;
        let mut fields = head.split_ascii_whitespace();
        let (Some(mode), Some(_), Some(object), Some(size)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(malformed());
        };
        let kind = match mode {
            "100644" | "100664" => Kind::File,
            "100755" => Kind::Executable,
            "120000" => Kind::Symlink,
            "160000" => Kind::Submodule,
            _ => return Err(malformed()),
        };
        let size = match kind {
            Kind::Submodule => 0,
            Kind::File | Kind::Executable | Kind::Symlink => size.parse().map_err(|_| malformed())?,
        };
        let path = path.get(1..).unwrap_or_default().to_vec();
        if path.is_empty() {
            return Err(malformed());
        }
        entries.push(Entry { kind, object: object.to_owned(), size, path });
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

/// A running `cat-file --batch`, used from a blocking thread. When the process is killed from outside the next read
/// ends with an error.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) requests: File,
    pub(crate) answers: BufReader<File>,
    pub(crate) subject: String,
}

impl Objects {
    /// Calls `consume` with the content of a blob; what it leaves unread is skipped.
    pub(crate) fn blob<T>(
        &mut self,
        object: &str,
        consume: impl FnOnce(u64, &mut dyn Read) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let io = Error::io("read an object of the mirror");
        self.requests.write_all(format!("{object}\n").as_bytes()).map_err(&io)?;
        let mut header = String::new();
        (&mut self.answers).take(256).read_line(&mut header).map_err(&io)?;
        let size = header
            .trim_end()
            .strip_prefix(object)
            .and_then(|rest| rest.strip_prefix(" blob "))
            .and_then(|size| size.parse::<u64>().ok())
            .ok_or_else(|| Error::DamagedMirror {
                url: self.subject.clone(),
                detail: format!("object {object} cannot be read"),
            })?;
        let mut content = (&mut self.answers).take(size);
        let result = consume(size, &mut content)?;
        // The rest of the content, and the newline after it.
        let rest = content.limit() + 1;
        let skipped =
            std::io::copy(&mut (&mut self.answers).take(rest), &mut std::io::sink()).map_err(&io)?;
        if skipped != rest {
            return Err(Error::DamagedMirror {
                url: self.subject.clone(),
                detail: format!("object {object} is cut short"),
            });
        }
        Ok(result)
    }

    /// The first `limit` bytes of a blob.
    pub(crate) fn blob_prefix(&mut self, object: &str, limit: u64) -> Result<Vec<u8>, Error> {
        self.blob(object, |_, content| {
            let mut bytes = Vec::new();
            content.take(limit).read_to_end(&mut bytes).map_err(Error::io("read an object of the mirror"))?;
            Ok(bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn reads_a_listing_and_sorts_it() {
        let hash = "a".repeat(40);
        let output = format!(
            "100755 blob {hash}      12\tb/run.sh\0100644 blob {hash}       3\ta\tb.tf\0160000 commit {hash}       -\tsub\0"
        );
        let entries = parse_tree(output.as_bytes()).unwrap();
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[0].path, b"a\tb.tf");
        assert_eq!(entries[1].kind, Kind::Executable);
        assert_eq!(entries[2].kind, Kind::Submodule);
        assert!(parse_tree(b"100644 blob\tx\0").is_err());
        assert!(parse_tree(b"040000 tree 00 -\tx\0").is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            if let Ok(entries) = parse_tree(&bytes) {
                proptest::prop_assert!(entries.iter().all(|entry| !entry.path.is_empty()));
            }
        }
    }
}
