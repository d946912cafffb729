//! Reads the output of containers: whole, from its end, since a time, with timestamps, and following.
//!
//! [`open`] gives a plain stream of bytes, so that whoever serves a pod's log needs to know nothing of this crate's
//! records. Writing is the shim's.

mod absence;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures::Stream as Bytewise;
use jiff::Timestamp;

use crate::records::{self, Attempt, AttemptDir, Records};

pub use absence::absence;

/// How often a follower looks for more.
const FOLLOW_PAUSE: Duration = Duration::from_millis(100);
/// The most that is read before the caller gets some of it.
const BATCH_BYTES: usize = 256 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("container {container:?} of the pod has not been started on this node")]
    NotStarted { container: String },
    #[error("previous terminated container {container:?} not found")]
    NoPrevious { container: String },
    #[error(transparent)]
    Records(#[from] records::Error),
    #[error("could not read the log in {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

/// Which container's log, and which part of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    pub which: Which,
    pub until: Until,
    pub prefix: Prefix,
    /// Only the last lines.
    pub tail: Option<u64>,
    /// Only what was written at or after this time.
    pub since: Option<Timestamp>,
    pub limit_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Which {
    #[default]
    Current,
    /// The attempt before the current one.
    Previous,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Until {
    /// What is there now.
    #[default]
    Now,
    /// What is there now and what comes, until the container has ended.
    ContainerEnds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prefix {
    #[default]
    Nothing,
    Timestamp,
}

pub(crate) fn segment_name(number: u32) -> String {
    format!("log.{number:06}")
}

/// The log of a container of the pod with this uid. `state` is the node's directory, as in its configuration.
pub async fn open(
    state: &Path,
    pod_uid: &str,
    container: &str,
    options: Options,
) -> Result<impl Bytewise<Item = Result<Bytes, Error>> + Send + use<>, Error> {
    let records = Records::open(state)?;
    let attempts = records.attempts(pod_uid, container)?;
    let container = container.to_owned();
    let attempt = match (options.which, attempts.last(), attempts.iter().rev().nth(1)) {
        (Which::Current, Some(current), _) => records.attempt(pod_uid, &container, *current),
        (Which::Previous, _, Some(previous)) => records.attempt(pod_uid, &container, *previous),
        (Which::Current, None, _) => return Err(Error::NotStarted { container }),
        (Which::Previous, _, None) => return Err(Error::NoPrevious { container }),
    };
    let path = attempt.path().to_owned();
    let tail = options.tail;
    let since = options.since;
    let reader = blocking(path.clone(), move || Reader::open(&path, tail, since)).await?;
    let cursor =
        Cursor { reader, attempt, selection: Selection::new(&options), until: options.until, over: false };
    Ok(futures::stream::try_unfold(cursor, next_piece))
}

struct Cursor {
    reader: Reader,
    attempt: AttemptDir,
    selection: Selection,
    until: Until,
    over: bool,
}

async fn next_piece(mut cursor: Cursor) -> Result<Option<(Bytes, Cursor)>, Error> {
    loop {
        if cursor.over || cursor.selection.is_full() {
            return Ok(None);
        }
        // Asked before reading: what is written before the end is recorded is read after this answer.
        let ended = match cursor.until {
            Until::Now => true,
            Until::ContainerEnds => match cursor.attempt.observe()? {
                Some(Attempt::Exited(_) | Attempt::Lost { .. }) | None => true,
                Some(Attempt::Intended | Attempt::Starting { .. } | Attempt::Running { .. }) => false,
            },
        };
        let path = cursor.attempt.path().to_owned();
        let (piece, at_end, back) = blocking(path, move || {
            let mut piece = Vec::new();
            let at_end = loop {
                match cursor.reader.next_record()? {
                    Some(record) => cursor.selection.add(&record, &mut piece),
                    None => break true,
                }
                if piece.len() >= BATCH_BYTES || cursor.selection.is_full() {
                    break false;
                }
            };
            Ok((piece, at_end, cursor))
        })
        .await?;
        cursor = back;
        cursor.over = ended && at_end;
        if !piece.is_empty() {
            return Ok(Some((Bytes::from(piece), cursor)));
        }
        if !cursor.over && at_end {
            tokio::time::sleep(FOLLOW_PAUSE).await;
        }
    }
}

async fn blocking<T: Send + 'static>(
    path: PathBuf,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)))
        .map_err(|source| Error::Io { path, source })
}

/// The last lines of an attempt's output, for a termination message.
pub(crate) fn end_of(directory: &Path, lines: usize, bytes: usize) -> String {
    let mut text = Vec::new();
    let mut read = || -> io::Result<()> {
        let mut reader = Reader::open(directory, Some(lines as u64), None)?;
        let mut selection = Selection::new(&Options::default());
        while let Some(record) = reader.next_record()? {
            selection.add(&record, &mut text);
        }
        Ok(())
    };
    // A message is a convenience: an unreadable log makes it shorter, never an error.
    let _ = read();
    let from = text.len().saturating_sub(bytes);
    String::from_utf8_lossy(text.get(from..).unwrap_or_default()).into_owned()
}

/// Cuts records to what was asked for. Pure.
#[derive(Debug)]
struct Selection {
    since: Option<Timestamp>,
    prefix: Prefix,
    left: Option<u64>,
    at_line_start: bool,
}

impl Selection {
    fn new(options: &Options) -> Selection {
        Selection {
            since: options.since,
            prefix: options.prefix,
            left: options.limit_bytes,
            at_line_start: true,
        }
    }

    fn is_full(&self) -> bool {
        self.left == Some(0)
    }

    fn add(&mut self, record: &[u8], out: &mut Vec<u8>) {
        let Some(record) = Record::parse(record) else { return };
        if self.since.is_some_and(|since| record.time().is_some_and(|time| time < since)) {
            return;
        }
        let start = out.len();
        match self.prefix {
            Prefix::Timestamp if self.at_line_start => {
                out.extend_from_slice(record.stamp);
                out.push(b' ');
            }
            Prefix::Timestamp | Prefix::Nothing => {}
        }
        out.extend_from_slice(record.text);
        if record.ends_line {
            out.push(b'\n');
        }
        self.at_line_start = record.ends_line;
        if let Some(left) = &mut self.left {
            let added = (out.len() - start) as u64;
            if added > *left {
                out.truncate(start + usize::try_from(*left).unwrap_or(usize::MAX));
            }
            *left = left.saturating_sub(added);
        }
    }
}

struct Record<'a> {
    stamp: &'a [u8],
    ends_line: bool,
    text: &'a [u8],
}

impl<'a> Record<'a> {
    fn parse(record: &'a [u8]) -> Option<Record<'a>> {
        let mut fields = record.splitn(4, |byte| *byte == b' ');
        let (stamp, _stream, tag, text) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        Some(Record { stamp, ends_line: tag == b"F", text })
    }

    fn time(&self) -> Option<Timestamp> {
        std::str::from_utf8(self.stamp).ok()?.parse().ok()
    }
}

/// Goes through the segments of one attempt in order, and waits at the end for more.
#[derive(Debug)]
struct Reader {
    directory: PathBuf,
    segment: u32,
    file: Option<File>,
    /// Read and not yet given out; `taken` bytes of it are.
    buffer: Vec<u8>,
    taken: usize,
}

impl Reader {
    /// At the beginning, or before the last `tail` lines of those since a time.
    fn open(directory: &Path, tail: Option<u64>, since: Option<Timestamp>) -> io::Result<Reader> {
        match tail {
            None => Reader::at(directory, first_segment(directory)?, 0),
            Some(tail) => {
                let (segment, offset) = tail_start(directory, tail, since)?;
                Reader::at(directory, segment, offset)
            }
        }
    }

    fn at(directory: &Path, segment: u32, offset: u64) -> io::Result<Reader> {
        let mut reader = Reader {
            directory: directory.to_owned(),
            segment,
            file: open_segment(directory, segment)?,
            buffer: Vec::new(),
            taken: 0,
        };
        if let Some(file) = &mut reader.file {
            file.seek(SeekFrom::Start(offset))?;
        }
        Ok(reader)
    }

    /// The next whole record, or `None` when there is none yet.
    fn next_record(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let rest = self.buffer.get(self.taken..).unwrap_or_default();
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let record = rest.get(..end).unwrap_or_default().to_vec();
                self.taken += end + 1;
                return Ok(Some(record));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    fn fill(&mut self) -> io::Result<bool> {
        self.buffer.drain(..self.taken);
        self.taken = 0;
        if self.file.is_none() {
            self.file = open_segment(&self.directory, self.segment)?;
        }
        if self.read_more()? {
            return Ok(true);
        }
        // At its end a segment is complete only once there is a later one.
        let Some(next) = next_segment(&self.directory, self.segment)? else { return Ok(false) };
        if self.read_more()? {
            return Ok(true);
        }
        // A record torn by a full disk has no end; it must not run into the next segment's first.
        self.buffer.clear();
        self.segment = next;
        self.file = open_segment(&self.directory, next)?;
        Ok(true)
    }

    fn read_more(&mut self) -> io::Result<bool> {
        let Some(file) = &mut self.file else { return Ok(false) };
        let read = file.take(BATCH_BYTES as u64).read_to_end(&mut self.buffer)?;
        Ok(read > 0)
    }
}

/// Where the last `tail` lines begin. O(size of the log), which rotation bounds.
fn tail_start(directory: &Path, tail: u64, since: Option<Timestamp>) -> io::Result<(u32, u64)> {
    let mut reader = Reader::at(directory, first_segment(directory)?, 0)?;
    let mut starts: VecDeque<(u32, u64)> = VecDeque::new();
    let mut position = (reader.segment, 0);
    let mut at_line_start = true;
    while let Some(bytes) = reader.next_record()? {
        if reader.segment != position.0 {
            position = (reader.segment, 0);
        }
        let record = Record::parse(&bytes);
        let wanted = record
            .as_ref()
            .is_some_and(|record| since.is_none_or(|since| record.time().is_none_or(|time| time >= since)));
        if wanted && at_line_start {
            starts.push_back(position);
            if starts.len() as u64 > tail {
                starts.pop_front();
            }
        }
        if let Some(record) = record {
            at_line_start = record.ends_line;
        }
        position.1 += bytes.len() as u64 + 1;
    }
    Ok(starts.front().copied().unwrap_or(position))
}

fn segments(directory: &Path) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        // The pod was deleted meanwhile. What is open can be read to its end; there will be no more.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(numbers),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("log."));
        numbers.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn first_segment(directory: &Path) -> io::Result<u32> {
    Ok(segments(directory)?.first().copied().unwrap_or(1))
}

fn next_segment(directory: &Path, after: u32) -> io::Result<Option<u32>> {
    Ok(segments(directory)?.into_iter().find(|number| *number > after))
}

fn open_segment(directory: &Path, number: u32) -> io::Result<Option<File>> {
    match File::open(directory.join(segment_name(number))) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::records::{Exit, How};
    use futures::TryStreamExt;

    const POD: &str = "11111111-2222-3333-4444-555555555555";

    /// An attempt that has ended, with these segments.
    fn log(segments: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let state = tempfile::tempdir().unwrap();
        let attempt = Records::open(state.path()).unwrap().attempt(POD, "main", 0);
        let now = Timestamp::UNIX_EPOCH;
        let exit = Exit { how: How::Code(0), started_at: None, finished_at: now, message: String::new() };
        attempt.put_exit(&exit).unwrap();
        for (number, text) in (3..).zip(segments) {
            std::fs::write(attempt.path().join(segment_name(number)), text).unwrap();
        }
        let path = attempt.path().to_owned();
        (state, path)
    }

    async fn read(state: &Path, options: Options) -> String {
        let pieces: Vec<Bytes> =
            open(state, POD, "main", options).await.unwrap().try_collect().await.unwrap();
        String::from_utf8(pieces.concat()).unwrap()
    }

    const SEGMENTS: &[&str] = &[
        "2026-01-01T00:00:01.000000000Z stdout F one\n2026-01-01T00:00:02.000000000Z stderr P tw\n",
        "2026-01-01T00:00:03.000000000Z stderr F o\n2026-01-01T00:00:04.000000000Z stdout F three\n2026-01-0",
        "2026-01-01T00:00:05.000000000Z stdout F four\n2026-01-01T00:00:06.000000000Z stdout P end",
    ];

    #[tokio::test]
    async fn what_is_asked_for_is_what_comes() {
        let (state, path) = log(SEGMENTS);
        // The record without an end of line is still being written; nobody sees half of it.
        let since = Some("2026-01-01T00:00:04Z".parse().unwrap());
        let cases = [
            (Options::default(), "one\ntwo\nthree\nfour\n"),
            (Options { tail: Some(2), ..Options::default() }, "three\nfour\n"),
            (Options { tail: Some(3), ..Options::default() }, "two\nthree\nfour\n"),
            (Options { tail: Some(0), ..Options::default() }, ""),
            (Options { tail: Some(99), ..Options::default() }, "one\ntwo\nthree\nfour\n"),
            (Options { since, ..Options::default() }, "three\nfour\n"),
            (Options { since, tail: Some(1), ..Options::default() }, "four\n"),
            (Options { limit_bytes: Some(6), ..Options::default() }, "one\ntw"),
            (Options { until: Until::ContainerEnds, tail: Some(1), ..Options::default() }, "four\n"),
            (
                Options { prefix: Prefix::Timestamp, tail: Some(3), ..Options::default() },
                "2026-01-01T00:00:02.000000000Z two\n2026-01-01T00:00:04.000000000Z three\n\
                 2026-01-01T00:00:05.000000000Z four\n",
            ),
        ];
        for (options, expected) in cases {
            assert_eq!(read(state.path(), options.clone()).await, expected, "{options:?}");
        }
        assert_eq!(end_of(&path, 1, 3), "ur\n");
    }

    #[tokio::test]
    async fn an_unended_last_line_is_shown_without_an_end() {
        let (state, _) = log(&["2026-01-01T00:00:01.000000000Z stdout P prompt> \n"]);
        assert_eq!(read(state.path(), Options::default()).await, "prompt> ");
    }

    #[tokio::test]
    async fn missing_logs_are_named() {
        let (state, _) = log(&[]);
        assert_eq!(read(state.path(), Options::default()).await, "");
        let previous = Options { which: Which::Previous, ..Options::default() };
        let error = open(state.path(), POD, "main", previous).await.err().unwrap();
        assert_eq!(error.to_string(), "previous terminated container \"main\" not found");
        let error = open(state.path(), POD, "other", Options::default()).await.err().unwrap();
        assert_eq!(error.to_string(), "container \"other\" of the pod has not been started on this node");
    }
}
