//! The log of an attempt: masked, written to a file first, then sent in segments. The file is the truth while the
//! datastore is away; nothing waits for the network but the end of the attempt.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::text::Sha256;
use bytes::Bytes;
use datastore::client;
use datastore::{Attempt, Client};
use sha2::Digest as _;
use tokio::sync::Notify;

use crate::mask::Mask;

/// What is sent at once.
const SEGMENT: usize = 256 * 1024;
/// How long a datastore without room is waited for once the log is complete: whoever can make room must hear of it soon.
const FULL_PATIENCE: Duration = Duration::from_secs(5);
/// Between two questions whether there is room.
const ROOM_AGAIN: Duration = Duration::from_secs(1);
/// Lines that come within this time travel together, unless they are the last ones.
const GATHER: Duration = Duration::from_millis(75);
/// Where a log ends, with a line that says so.
const LIMIT: u64 = 256 * 1024 * 1024;

/// Whether lines are also printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Echo {
    /// To standard output, where the node or kubelet keeps them too.
    #[default]
    Stdout,
    Nowhere,
}

#[derive(Debug)]
pub(crate) struct Log {
    mask: Mask,
    echo: Echo,
    kept: Mutex<Kept>,
    grown: Notify,
    /// Somebody waits for what was said so far to be stored.
    hurry: Notify,
}

#[derive(Debug)]
struct Kept {
    file: File,
    size: u64,
    hasher: sha2::Sha256,
    full: bool,
    closed: bool,
}

impl Log {
    pub(crate) fn new(path: &Path, mask: Mask, echo: Echo) -> std::io::Result<Self> {
        let file = File::options().create_new(true).read(true).append(true).open(path)?;
        let kept = Kept { file, size: 0, hasher: sha2::Sha256::new(), full: false, closed: false };
        Ok(Self { mask, echo, kept: Mutex::new(kept), grown: Notify::new(), hurry: Notify::new() })
    }

    pub(crate) fn mask(&self) -> &Mask {
        &self.mask
    }

    pub(crate) fn line(&self, line: &str) {
        let mut text = self.mask.line(line);
        text.push('\n');
        let mut kept = self.kept();
        if kept.full || kept.closed {
            return;
        }
        if kept.size.saturating_add(u64::try_from(text.len()).unwrap_or(u64::MAX)) > LIMIT {
            kept.full = true;
            text = format!("[the log is cut here: it reached {LIMIT} bytes]\n");
        }
        match self.echo {
            // Nobody reading standard output is no reason to stop.
            Echo::Stdout => drop(std::io::stdout().write_all(text.as_bytes())),
            Echo::Nowhere => {}
        }
        if let Err(error) = kept.file.write_all(text.as_bytes()) {
            tracing::error!(%error, "the log cannot be kept; it ends here");
            kept.full = true;
            return;
        }
        kept.hasher.update(text.as_bytes());
        kept.size += u64::try_from(text.len()).unwrap_or(0);
        drop(kept);
        self.grown.notify_one();
    }

    /// Sends what was said so far without gathering more of it.
    pub(crate) fn hurry(&self) {
        self.grown.notify_one();
        self.hurry.notify_one();
    }

    /// No line follows; returns the digest of the whole.
    pub(crate) fn close(&self) -> Sha256 {
        let mut kept = self.kept();
        kept.closed = true;
        let digest = hex::encode(kept.hasher.clone().finalize());
        drop(kept);
        self.hurry();
        Sha256::new(digest).unwrap_or_else(|_| Sha256::of(b""))
    }

    /// Sends the log as it grows; returns when it is closed and all of it is stored. Transient failures are waited out
    /// until `patience` after the close, a datastore without room for seconds only.
    pub(crate) async fn send(
        &self,
        client: &Client,
        attempt: &Attempt,
        patience: Duration,
    ) -> Result<(), client::Error> {
        let mut sent = 0u64;
        let mut give_up = None;
        let mut give_up_full = None;
        loop {
            let (piece, closed) = self.piece(sent).map_err(|source| client::Error::Io {
                doing: "read the log that was kept".to_owned(),
                source,
            })?;
            if closed && give_up.is_none() {
                give_up = Some(Instant::now() + patience);
                give_up_full = Some(Instant::now() + patience.min(FULL_PATIENCE));
            }
            if piece.is_empty() {
                if closed {
                    return Ok(());
                }
                self.grown.notified().await;
                // Whether the time is over or somebody hurries: what is there is sent.
                let _ = tokio::time::timeout(GATHER, self.hurry.notified()).await;
                continue;
            }
            let end = sent + u64::try_from(piece.len()).unwrap_or(0);
            match client.log_append(attempt, sent, piece).await {
                Ok(_) => sent = end,
                // What was stored of this attempt before is kept; go on behind it.
                Err(client::Error::LogEnd { end }) if end != sent => sent = end.min(self.kept().size),
                Err(error) if error.is_full() && give_up_full.is_none_or(|until| Instant::now() < until) => {
                    tracing::warn!(%error, "the log waits for room in the datastore");
                    tokio::time::sleep(ROOM_AGAIN).await;
                }
                Err(error) if error.is_transient() && give_up.is_none_or(|until| Instant::now() < until) => {
                    tracing::warn!(%error, "the log waits for the datastore");
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn piece(&self, from: u64) -> std::io::Result<(Bytes, bool)> {
        let kept = self.kept();
        let left = usize::try_from(kept.size.saturating_sub(from)).unwrap_or(usize::MAX);
        let mut bytes = vec![0u8; left.min(SEGMENT)];
        kept.file.read_exact_at(&mut bytes, from)?;
        Ok((bytes.into(), kept.closed))
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
