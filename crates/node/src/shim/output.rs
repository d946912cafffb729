//! Writes a container's output as lines of the container runtimes' own log format, in segments of bounded size.
//!
//! `2026-11-15T22:05:21.000000001Z stdout F text`; the tag is `P` where a line was longer than one record. No two records
//! have the same time. Reading is the matter of [`crate::logs`].

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};

use crate::logs::{Stream, segment_name};
use crate::records::LogLimits;

/// The longest text of one record, as the container runtimes have it.
const RECORD_BYTES: usize = 16 * 1024;

#[derive(Debug)]
pub(super) struct Writer {
    directory: PathBuf,
    limits: LogLimits,
    segment: u32,
    file: Option<File>,
    written: u64,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    lost: u64,
    last: Timestamp,
}

impl Writer {
    pub(super) fn new(directory: &Path, limits: LogLimits) -> Writer {
        Writer {
            directory: directory.to_owned(),
            limits,
            segment: 0,
            file: None,
            written: 0,
            stdout: Vec::new(),
            stderr: Vec::new(),
            lost: 0,
            last: Timestamp::MIN,
        }
    }

    /// Takes a piece of output. It never fails towards the container: what the disk refuses is counted, and said in
    /// the log itself when there is room again.
    pub(super) fn push(&mut self, stream: Stream, mut bytes: &[u8], now: Timestamp) {
        while !bytes.is_empty() {
            let pending = match stream {
                Stream::Stdout => &mut self.stdout,
                Stream::Stderr => &mut self.stderr,
            };
            let room = RECORD_BYTES.saturating_sub(pending.len());
            let window = bytes.get(..room.min(bytes.len())).unwrap_or(bytes);
            match window.iter().position(|byte| *byte == b'\n') {
                Some(end) => {
                    pending.extend(window.iter().take(end));
                    let line = std::mem::take(pending);
                    bytes = bytes.get(end + 1..).unwrap_or_default();
                    self.record(stream, "F", &line, now);
                }
                None => {
                    pending.extend_from_slice(window);
                    bytes = bytes.get(window.len()..).unwrap_or_default();
                    if pending.len() >= RECORD_BYTES {
                        let line = std::mem::take(pending);
                        self.record(stream, "P", &line, now);
                    }
                }
            }
        }
    }

    /// Writes what has no end of line yet, and brings everything to disk.
    pub(super) fn finish(&mut self, now: Timestamp) -> io::Result<()> {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let pending = match stream {
                Stream::Stdout => std::mem::take(&mut self.stdout),
                Stream::Stderr => std::mem::take(&mut self.stderr),
            };
            if !pending.is_empty() {
                // `P`: the container never ended this line, and readers must not invent an end for it.
                self.record(stream, "P", &pending, now);
            }
        }
        match &self.file {
            Some(file) => file.sync_all(),
            None => Ok(()),
        }
    }

    fn record(&mut self, stream: Stream, tag: &str, text: &[u8], now: Timestamp) {
        if self.lost > 0 {
            let note = format!("[{} bytes of output were lost: the log could not be written]", self.lost);
            if self.append(Stream::Stderr, "F", note.as_bytes(), now).is_ok() {
                self.lost = 0;
            }
        }
        if self.append(stream, tag, text, now).is_err() {
            self.lost = self.lost.saturating_add(text.len() as u64);
        }
    }

    /// Lines that were read at once, or after the clock was set back, still have an order: who asks for the log since the last line
    /// that they saw gets no other line again.
    fn time_of_its_own(&mut self, now: Timestamp) -> Timestamp {
        let next = self.last.checked_add(SignedDuration::from_nanos(1)).unwrap_or(Timestamp::MAX);
        self.last = now.max(next);
        self.last
    }

    fn append(&mut self, stream: Stream, tag: &str, text: &[u8], now: Timestamp) -> io::Result<()> {
        let time = self.time_of_its_own(now);
        let mut record = format!("{time:.9} {} {tag} ", stream.name()).into_bytes();
        record.extend_from_slice(text);
        record.push(b'\n');
        let size = record.len() as u64;
        if self.written > 0 && self.written.saturating_add(size) > self.limits.segment_bytes {
            self.file = None;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let next = self.segment + 1;
                let path = self.directory.join(segment_name(next));
                let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
                self.segment = next;
                self.written = 0;
                if let Some(oldest) =
                    next.checked_sub(self.limits.segments.max(1)).filter(|oldest| *oldest > 0)
                {
                    // A segment that cannot be removed is only kept longer than it should be.
                    let _ = std::fs::remove_file(self.directory.join(segment_name(oldest)));
                }
                self.file.insert(file)
            }
        };
        if let Err(error) = file.write_all(&record) {
            // A torn record ends here: the next one begins a segment of its own, so no two are ever mixed.
            self.file = None;
            return Err(error);
        }
        self.written = self.written.saturating_add(size);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn written(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
            .iter()
            .flat_map(|name| {
                std::fs::read_to_string(directory.join(name))
                    .unwrap()
                    .lines()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    #[test]
    fn lines_are_joined_across_reads_have_times_of_their_own_and_streams_do_not_mix() {
        let directory = tempfile::tempdir().unwrap();
        let now: Timestamp = "2026-01-02T03:04:05.6Z".parse().unwrap();
        let mut writer = Writer::new(directory.path(), LogLimits::default());
        writer.push(Stream::Stdout, b"one\ntw", now);
        writer.push(Stream::Stderr, b"warning\n", now);
        writer.push(Stream::Stdout, b"o\n\nopen", now);
        writer.finish(now).unwrap();
        assert_eq!(
            written(directory.path()),
            [
                "2026-01-02T03:04:05.600000000Z stdout F one",
                "2026-01-02T03:04:05.600000001Z stderr F warning",
                "2026-01-02T03:04:05.600000002Z stdout F two",
                "2026-01-02T03:04:05.600000003Z stdout F ",
                "2026-01-02T03:04:05.600000004Z stdout P open",
            ]
        );
    }

    #[test]
    fn a_long_line_is_cut_into_records_and_old_segments_go() {
        let directory = tempfile::tempdir().unwrap();
        let now = Timestamp::UNIX_EPOCH;
        let limits = LogLimits { segment_bytes: 20_000, segments: 2 };
        let mut writer = Writer::new(directory.path(), limits);
        let line = vec![b'x'; RECORD_BYTES * 4];
        writer.push(Stream::Stdout, &line, now);
        writer.push(Stream::Stdout, b"\n", now);
        writer.finish(now).unwrap();
        let mut names: Vec<_> = std::fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, [segment_name(3), segment_name(4)]);
        let tags: Vec<String> = written(directory.path())
            .iter()
            .map(|record| record.split(' ').nth(2).unwrap().to_owned())
            .collect();
        assert_eq!(tags, ["P", "P", "F"]);
    }
}
