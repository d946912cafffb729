//! The log that is written ahead of small objects: once a record is flushed here, its object is durable, and its own file may take its
//! time. There are two files, used in turn; one is used again only after every object that it tells of has been flushed itself. After a
//! crash what they tell of is put right before anything is answered.
//!
//! A record names its object, the file that holds it (by inode) and the bytes. A file of that name which is another one was put there
//! by somebody who flushes for himself, such as a rotation of keys that runs beside us, and is left alone. A deletion is a record too,
//! or a crash would bring back what was deleted.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use object_store::PutPayload;

use super::{Staged, holds, own_file};

const NAMES: [&str; 2] = ["log#0", "log#1"];
const LARGEST: u64 = 8 * 1024 * 1024;
const SMALLEST: u64 = 256 * 1024;
/// A file grows by this much, so that few flushes have more to write than the records: a file's new size is a write of its own.
const GROWTH: u64 = 1024 * 1024;
const MAGIC: &[u8; 4] = b"TWA1";
const HEADER: usize = 40;

pub(super) struct Ahead {
    root: PathBuf,
    /// How far a file is used.
    limit: u64,
    files: [LogFile; 2],
    turn: Mutex<Turn>,
}

struct LogFile {
    file: File,
    /// The epoch, and up to where its records are on disk. Held during a flush: who waits for it mostly finds that it was his, too.
    flushed: Mutex<(u64, u64)>,
}

enum Turn {
    /// Another process writes the log, or did until a moment ago.
    Elsewhere,
    Ours(Box<Writer>),
    /// It could not be flushed, so nobody knows what it holds. It is left for the next start.
    Broken,
}

struct Writer {
    /// Each use of a file; even ones are those of the first.
    epoch: u64,
    end: u64,
    /// How far each file has been filled with anything.
    filled: [u64; 2],
    names: HashSet<String>,
    /// What the other file tells of: it would be read after a crash.
    names_before: HashSet<String>,
    /// Held by each entry of this epoch until its object has its name.
    entries: Arc<()>,
    retired: Option<Arc<()>>,
    /// Whether the other file is not needed any more.
    settled: Arc<AtomicBool>,
}

/// What is written ahead.
pub(super) struct Record<'a> {
    pub(super) name: &'a str,
    pub(super) inode: u64,
    pub(super) content: &'a PutPayload,
}

/// A record in the log. The log is not used again before it is dropped.
pub(super) struct Entry {
    epoch: u64,
    end: u64,
    _under_way: Arc<()>,
}

impl Ahead {
    /// The log of a directory on a file system of so many bytes.
    pub(super) fn open(root: &Path, disk: u64) -> io::Result<Self> {
        let [first, second] = NAMES;
        let file =
            |name| Ok::<_, io::Error>(LogFile { file: own_file(root, name)?, flushed: Mutex::default() });
        let log = Self {
            root: root.to_owned(),
            limit: (disk / 64).clamp(SMALLEST, LARGEST),
            files: [file(first)?, file(second)?],
            turn: Mutex::new(Turn::Elsewhere),
        };
        log.take_over(&mut log.turn())?;
        Ok(log)
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, epoch: u64) -> &LogFile {
        let [even, odd] = &self.files;
        if epoch.is_multiple_of(2) { even } else { odd }
    }

    /// Whether an object of this size is written ahead. A large one would push out too many others.
    pub(super) fn takes(&self, size: usize) -> bool {
        u64::try_from(size).is_ok_and(|size| size <= self.limit / 4)
    }

    /// Becomes the one process that writes the log, if no other is, and puts right what its last writer left.
    fn take_over(&self, turn: &mut Turn) -> io::Result<()> {
        match self.file(0).file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let (epoch, names) = self.recover()?;
        let [even, odd] = &self.files;
        *turn = Turn::Ours(Box::new(Writer {
            epoch,
            end: 0,
            filled: [even.file.metadata()?.len(), odd.file.metadata()?.len()],
            names: HashSet::new(),
            names_before: names.into_iter().collect(),
            entries: Arc::default(),
            retired: None,
            settled: Arc::new(AtomicBool::new(true)),
        }));
        Ok(())
    }

    /// Writes a record. Nothing is said of its durability before [`Ahead::flush`]. None where it cannot be taken now.
    pub(super) fn append(&self, record: &Record<'_>) -> io::Result<Option<Entry>> {
        let mut turn = self.turn();
        if let Turn::Elsewhere = &*turn {
            self.take_over(&mut turn)?;
        }
        let Turn::Ours(writer) = &mut *turn else { return Ok(None) };
        let pieces: Vec<&[u8]> = record.content.iter().map(AsRef::as_ref).collect();
        match self.write(writer, Kind::Put, record.name, record.inode, &pieces) {
            Ok(entry) => Ok(entry),
            // Nothing of it counts: the end of the log is where it was.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(None),
            Err(error) => {
                *turn = Turn::Broken;
                Err(error)
            }
        }
    }

    /// Says that an object is being deleted. A deletion was never durable by itself, so this is not flushed.
    pub(super) fn forget(&self, name: &str) {
        let mut turn = self.turn();
        let Turn::Ours(writer) = &mut *turn else { return };
        if !writer.names.contains(name) && !writer.names_before.contains(name) {
            return;
        }
        if let Err(error) = self.write(writer, Kind::Forget, name, 0, &[]) {
            tracing::warn!(%error, name, "a crash could bring back what is being deleted");
        }
    }

    fn write(
        &self,
        writer: &mut Writer,
        kind: Kind,
        name: &str,
        inode: u64,
        pieces: &[&[u8]],
    ) -> io::Result<Option<Entry>> {
        let content: usize = pieces.iter().map(|piece| piece.len()).sum();
        let size = length(HEADER + name.len() + content);
        if writer.end + size > self.limit {
            if !writer.may_turn_over() {
                return Ok(None);
            }
            // A later flush is one of the other file only, and may be relied on for what is in this one.
            self.file(writer.epoch).file.sync_data()?;
            writer.turn_over();
        }
        let header = Header { kind, epoch: writer.epoch, inode, name: name.len(), content };
        let file = &self.file(writer.epoch).file;
        let [even, odd] = &mut writer.filled;
        let filled = if writer.epoch.is_multiple_of(2) { even } else { odd };
        let start = header.encode(name, pieces);
        let record = [start.as_slice(), name.as_bytes()].into_iter().chain(pieces.iter().copied());
        let at = writer.end + size;
        write_all(file, record, writer.end, *filled)?;
        if at > *filled {
            *filled = at;
            let whole = at.next_multiple_of(GROWTH).min(self.limit).max(at);
            let zeros = vec![0; usize::try_from(whole - at).unwrap_or(0)];
            match write_all(file, [zeros.as_slice()].into_iter(), at, at) {
                Ok(()) => *filled = whole,
                // The record is there, and that is all that matters.
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
                Err(error) => return Err(error),
            }
        }
        writer.end = at;
        writer.names.insert(name.to_owned());
        Ok(Some(Entry { epoch: writer.epoch, end: at, _under_way: Arc::clone(&writer.entries) }))
    }

    /// Returns when the entry is on disk. One flush serves all that came before it.
    pub(super) fn flush(&self, entry: &Entry) -> io::Result<()> {
        let log = self.file(entry.epoch);
        let mut flushed = log.flushed.lock().unwrap_or_else(PoisonError::into_inner);
        if flushed.0 == entry.epoch && flushed.1 >= entry.end {
            return Ok(());
        }
        let end = match &*self.turn() {
            Turn::Ours(writer) if writer.epoch == entry.epoch => writer.end,
            Turn::Ours(_) | Turn::Elsewhere | Turn::Broken => entry.end,
        };
        if let Err(error) = log.file.sync_data() {
            *self.turn() = Turn::Broken;
            return Err(error);
        }
        *flushed = (entry.epoch, end);
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn is_flushed(&self) -> bool {
        let (epoch, end) = match &*self.turn() {
            Turn::Ours(writer) => (writer.epoch, writer.end),
            Turn::Elsewhere | Turn::Broken => return true,
        };
        *self.file(epoch).flushed.lock().unwrap_or_else(PoisonError::into_inner) == (epoch, end)
    }

    /// Returns when everything that was appended is on disk.
    pub(super) fn flush_rest(&self) -> io::Result<()> {
        let last = match &*self.turn() {
            Turn::Ours(writer) if writer.end > 0 => {
                Entry { epoch: writer.epoch, end: writer.end, _under_way: Arc::clone(&writer.entries) }
            }
            Turn::Ours(_) | Turn::Elsewhere | Turn::Broken => return Ok(()),
        };
        self.flush(&last)
    }

    /// The work that lets the other file be used again, once nothing is under way in it. It is given out once.
    pub(super) fn due(&self) -> Option<Settling> {
        let mut turn = self.turn();
        let Turn::Ours(writer) = &mut *turn else { return None };
        writer.retired.take_if(|entries| Arc::strong_count(entries) == 1)?;
        let names = writer.names_before.iter().cloned().collect();
        Some(Settling { root: self.root.clone(), names, settled: Arc::clone(&writer.settled) })
    }

    /// Puts right what the log tells of. Gives the epoch to go on with and the names that were found. O(the two files).
    fn recover(&self) -> io::Result<(u64, BTreeSet<String>)> {
        let mut logs = Vec::new();
        for log in &self.files {
            let mut bytes = vec![0; usize::try_from(log.file.metadata()?.len()).unwrap_or(0)];
            log.file.read_exact_at(&mut bytes, 0)?;
            if let Some((header, _, _)) = Header::decode(&bytes) {
                logs.push((header.epoch, bytes));
            }
        }
        logs.sort_unstable_by_key(|(epoch, _)| *epoch);
        let mut wanted: BTreeMap<&str, Option<(u64, &[u8])>> = BTreeMap::new();
        let mut last = 0;
        for (epoch, bytes) in &logs {
            last = *epoch;
            let mut rest = bytes.as_slice();
            while let Some((header, name, content)) =
                Header::decode(rest).filter(|(header, _, _)| header.epoch == *epoch)
            {
                let action = match header.kind {
                    Kind::Put => Some((header.inode, content)),
                    Kind::Forget => None,
                };
                wanted.insert(name, action);
                rest = rest.get(HEADER + name.len() + content.len()..).unwrap_or_default();
            }
        }
        for (name, action) in &wanted {
            if let Some((inode, content)) = action {
                restore(&self.root, name, *inode, content)?;
            }
        }
        let names: BTreeSet<String> = wanted.keys().map(|name| (*name).to_owned()).collect();
        settle(&self.root, &names)?;
        Ok((last + 1, names))
    }
}

impl Writer {
    /// Whether the other file is not needed any more.
    fn may_turn_over(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    /// Goes on in the other file.
    fn turn_over(&mut self) {
        self.names_before = std::mem::take(&mut self.names);
        self.retired = Some(std::mem::take(&mut self.entries));
        self.settled = Arc::new(AtomicBool::new(false));
        self.epoch += 1;
        self.end = 0;
    }
}

/// Writes pieces one after the other. Where there is no room it gives back what it took beyond `filled`: others need it more.
fn write_all<'a>(
    file: &File,
    pieces: impl Iterator<Item = &'a [u8]>,
    mut at: u64,
    filled: u64,
) -> io::Result<()> {
    for piece in pieces {
        if let Err(error) = file.write_all_at(piece, at) {
            if error.kind() == io::ErrorKind::StorageFull && file.metadata()?.len() > filled {
                file.set_len(filled)?;
            }
            return Err(error);
        }
        at += length(piece.len());
    }
    Ok(())
}

/// Flushing the objects of a file of the log.
pub(super) struct Settling {
    root: PathBuf,
    names: BTreeSet<String>,
    settled: Arc<AtomicBool>,
}

impl Settling {
    pub(super) fn run(self) {
        match settle(&self.root, &self.names) {
            Ok(()) => self.settled.store(true, Ordering::Release),
            // The log stays as it is until the next start; objects are flushed one by one.
            Err(error) => {
                tracing::error!(%error, place = %self.root.display(), "objects could not be flushed")
            }
        }
    }
}

/// Flushes objects and the directories that name them. O(names).
fn settle(root: &Path, names: &BTreeSet<String>) -> io::Result<()> {
    let mut directories = BTreeSet::new();
    for name in names {
        let path = root.join(name);
        directories
            .extend(path.ancestors().skip(1).take_while(|above| above.starts_with(root)).map(Path::to_owned));
        sync_if_there(&path)?;
    }
    // Deepest first, so that a directory is whole before it is named.
    directories.iter().rev().try_for_each(|directory| sync_if_there(directory))
}

fn sync_if_there(path: &Path) -> io::Result<()> {
    match File::open(path) {
        Ok(file) => file.sync_all(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes an object what its record says, unless somebody else has put another file in its place.
fn restore(root: &Path, name: &str, inode: u64, content: &[u8]) -> io::Result<()> {
    let target = root.join(name);
    match File::open(&target) {
        Ok(found) if found.metadata()?.ino() != inode || holds(&found, content)? => return Ok(()),
        Ok(_) => std::fs::remove_file(&target)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    tracing::info!(name, "an object that a crash left unfinished is restored from the log");
    let staged = Staged::write(root, [&content.to_vec().into()])?;
    // From now on it is a file of another inode, which is believed as it is.
    staged.sync()?;
    staged.publish(&target)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Put,
    Forget,
}

/// What stands before the name and the bytes of a record.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    kind: Kind,
    epoch: u64,
    inode: u64,
    name: usize,
    content: usize,
}

impl Header {
    fn encode(&self, name: &str, pieces: &[&[u8]]) -> Vec<u8> {
        let mut fields = Vec::with_capacity(HEADER);
        fields.extend_from_slice(MAGIC);
        fields.extend_from_slice(&match self.kind {
            Kind::Put => 0u32.to_le_bytes(),
            Kind::Forget => 1u32.to_le_bytes(),
        });
        for field in [self.epoch, self.inode, length(self.content)] {
            fields.extend_from_slice(&field.to_le_bytes());
        }
        fields.extend_from_slice(&u32::try_from(self.name).unwrap_or(u32::MAX).to_le_bytes());
        let sum = checksum(&fields, name, pieces.iter().copied());
        fields.extend_from_slice(&sum.to_le_bytes());
        fields
    }

    /// The record at the start of `bytes`, if there is a whole one.
    fn decode(bytes: &[u8]) -> Option<(Self, &str, &[u8])> {
        let (start, rest) = bytes.split_at_checked(HEADER)?;
        let (fields, sum) = start.split_at_checked(HEADER - 4)?;
        let four = |at: usize| Some(u32::from_le_bytes(*start.get(at..)?.first_chunk()?));
        let eight = |at: usize| Some(u64::from_le_bytes(*start.get(at..)?.first_chunk()?));
        if !fields.starts_with(MAGIC) {
            return None;
        }
        let kind = match four(4)? {
            0 => Kind::Put,
            1 => Kind::Forget,
            _ => return None,
        };
        let (content, name) = (usize::try_from(eight(24)?).ok()?, usize::try_from(four(32)?).ok()?);
        let header = Self { kind, epoch: eight(8)?, inode: eight(16)?, name, content };
        let (name, rest) = rest.split_at_checked(name)?;
        let name = std::str::from_utf8(name).ok()?;
        let content = rest.get(..content)?;
        (checksum(fields, name, [content].into_iter()).to_le_bytes() == sum)
            .then_some((header, name, content))
    }
}

/// Tells a record that is whole from one that a crash cut short; whether it is genuine is told by the seal of what it holds.
fn checksum<'a>(fields: &[u8], name: &str, content: impl Iterator<Item = &'a [u8]>) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(fields);
    sum.update(name.as_bytes());
    content.for_each(|piece| sum.update(piece));
    sum.finalize()
}

fn length(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
