//! The plan file, as far as we look into it: which state and which providers it was made from. A plan file is a zip archive; only its
//! directory and single entries are read, with limits, by a parser that is total.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde::Deserialize;

use crate::lock_file;

const DIRECTORY_LIMIT: u64 = 16 * 1024 * 1024;
const STATE_LIMIT: u64 = 1024 * 1024 * 1024;
const END_MARK: &[u8] = b"PK\x05\x06";
const ENTRY_MARK: &[u8] = b"PK\x01\x02";
const LOCAL_MARK: &[u8] = b"PK\x03\x04";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the plan file could not be read: {0}")]
    Io(#[from] std::io::Error),
    #[error("the plan file is not one that the tools make: {0}")]
    Malformed(&'static str),
}

/// Which state something was made from. Both are absent when there was none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct StateFacts {
    #[serde(default)]
    pub lineage: Option<String>,
    #[serde(default)]
    pub serial: Option<u64>,
}

impl StateFacts {
    /// Reads a state without keeping it. An empty document is no state.
    pub fn read(state: impl Read) -> Result<Self, Error> {
        let mut state = std::io::BufReader::new(state);
        if std::io::BufRead::fill_buf(&mut state)?.is_empty() {
            return Ok(Self::default());
        }
        let facts: Self =
            serde_json::from_reader(state).map_err(|_| Error::Malformed("its state is not JSON"))?;
        Ok(facts.normalised())
    }

    /// The tools write a state that never was as one without lineage.
    fn normalised(self) -> Self {
        match self.lineage.as_deref() {
            None | Some("") => Self::default(),
            Some(_) => self,
        }
    }
}

/// The state that a plan was made from.
pub fn base_state(plan: &Path) -> Result<StateFacts, Error> {
    let mut file = File::open(plan)?;
    let entry = find_entry(&mut file, b"tfstate")?.ok_or(Error::Malformed("it holds no state"))?;
    let content = open_entry(&mut file, &entry)?;
    StateFacts::read(content)
}

/// The providers that a plan was made with: its copy of the dependency lock file. Tools older than such files have none.
pub fn lock_file(plan: &Path) -> Result<Option<String>, Error> {
    let mut file = File::open(plan)?;
    let Some(entry) = find_entry(&mut file, lock_file::NAME.as_bytes())? else { return Ok(None) };
    let mut text = String::new();
    open_entry(&mut file, &entry)?
        .take(lock_file::LIMIT)
        .read_to_string(&mut text)
        .map_err(|_| Error::Malformed("its lock file is no text"))?;
    Ok(Some(text))
}

struct Entry {
    method: u16,
    packed: u64,
    offset: u64,
}

fn find_entry(file: &mut File, wanted: &[u8]) -> Result<Option<Entry>, Error> {
    let size = file.seek(SeekFrom::End(0))?;
    // The end record is the last 22 bytes, before a comment of up to 64 KiB.
    let tail_size = size.min(22 + 65_535);
    let tail = read_at(file, size - tail_size, tail_size)?;
    let at = tail
        .windows(END_MARK.len())
        .rposition(|window| window == END_MARK)
        .ok_or(Error::Malformed("it has no directory"))?;
    let end = Fields(tail.get(at..).unwrap_or_default());
    let (directory_size, directory_offset) = (u64::from(end.u32(12)?), u64::from(end.u32(16)?));
    if directory_size > DIRECTORY_LIMIT {
        return Err(Error::Malformed("its directory is too large"));
    }
    let directory = read_at(file, directory_offset, directory_size)?;
    let mut rest = directory.as_slice();
    while rest.starts_with(ENTRY_MARK) {
        let fields = Fields(rest);
        let name_size = usize::from(fields.u16(28)?);
        let size = 46 + name_size + usize::from(fields.u16(30)?) + usize::from(fields.u16(32)?);
        if rest.get(46..46 + name_size) == Some(wanted) {
            return Ok(Some(Entry {
                method: fields.u16(10)?,
                packed: u64::from(fields.u32(20)?),
                offset: u64::from(fields.u32(42)?),
            }));
        }
        rest = rest.get(size..).ok_or(Error::Malformed("its directory is cut short"))?;
    }
    Ok(None)
}

fn open_entry<'a>(file: &'a mut File, entry: &Entry) -> Result<Box<dyn Read + 'a>, Error> {
    let local = read_at(file, entry.offset, 30)?;
    if !local.starts_with(LOCAL_MARK) {
        return Err(Error::Malformed("its directory points nowhere"));
    }
    let fields = Fields(&local);
    let skip = 30 + u64::from(fields.u16(26)?) + u64::from(fields.u16(28)?);
    file.seek(SeekFrom::Start(entry.offset.saturating_add(skip)))?;
    let packed = file.take(entry.packed);
    match entry.method {
        0 => Ok(Box::new(packed)),
        8 => Ok(Box::new(flate2::read::DeflateDecoder::new(packed).take(STATE_LIMIT))),
        _ => Err(Error::Malformed("its state is packed in an unknown way")),
    }
}

fn read_at(file: &mut File, offset: u64, size: u64) -> Result<Vec<u8>, Error> {
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(size).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Little-endian numbers at fixed places.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u16(&self, at: usize) -> Result<u16, Error> {
        let bytes = self
            .0
            .get(at..)
            .and_then(|rest| rest.first_chunk())
            .ok_or(Error::Malformed("it is cut short"))?;
        Ok(u16::from_le_bytes(*bytes))
    }

    fn u32(&self, at: usize) -> Result<u32, Error> {
        let bytes = self
            .0
            .get(at..)
            .and_then(|rest| rest.first_chunk())
            .ok_or(Error::Malformed("it is cut short"))?;
        Ok(u32::from_le_bytes(*bytes))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn facts_of_states_and_of_none() {
        let read = |text: &str| StateFacts::read(text.as_bytes());
        assert_eq!(
            read(r#"{"version":4,"serial":3,"lineage":"a","resources":[{"x":[1]}]}"#).unwrap(),
            StateFacts { lineage: Some("a".to_owned()), serial: Some(3) }
        );
        assert_eq!(read(r#"{"serial":0,"lineage":""}"#).unwrap(), StateFacts::default());
        assert_eq!(read("").unwrap(), StateFacts::default());
        assert!(read("<html>").is_err());
    }

    #[test]
    fn what_is_no_plan_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plan");
        for content in [
            &b""[..],
            b"PK\x05\x06",
            b"hello",
            &[0xff; 200],
            b"PK\x05\x06\0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0",
        ] {
            std::fs::write(&path, content).unwrap();
            assert!(base_state(&path).is_err(), "{content:?}");
        }
    }
}
