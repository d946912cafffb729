//! Sealed objects in an object store: written once, digests checked on the way in, streamed both ways. Who may do what
//! is not decided here.

use std::pin::Pin;
use std::sync::Arc;

use api::text::Sha256;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt};
use jiff::Timestamp;
use object_store::path::Path;
use object_store::{GetResult, GetResultPayload, ObjectMeta, ObjectStoreExt};
use sha2::Digest;

use super::disk::Named;
use super::keyring::Keyring;
use super::place::{self, Objects};
use super::seal::{self, Opener, content_size};
use super::upload::Upload;
use crate::key::Key;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0} is not in the datastore")]
    NotFound(String),
    #[error("{0} is in the datastore already, with other content; what is stored is never changed")]
    Conflict(String),
    #[error("the content of {path} has the sha256 {found}, not {expected} as announced; send it again")]
    Digest { path: String, expected: Sha256, found: Sha256 },
    #[error("{path} is larger than the {limit} bytes that are accepted")]
    TooLarge { path: String, limit: u64 },
    #[error("the upload of {path} broke off: {detail}")]
    Body { path: String, detail: String },
    #[error("{path}: {source}")]
    Sealed { path: String, source: seal::Error },
    #[error("the object store failed at {path}: {source}")]
    Storage { path: String, source: object_store::Error },
    #[error(
        "the datastore is full: there is no room for {path}; free some space where it keeps its artefacts, or keep fewer runs (runHistoryPolicy)"
    )]
    Full { path: String },
    #[error("{0} is being written by another at this moment; try again")]
    Underway(String),
}

impl Error {
    /// What a failed write means.
    pub(super) fn of(path: &str, source: object_store::Error) -> Self {
        let path = path.to_owned();
        if is_full(&source) { Self::Full { path } } else { Self::Storage { path, source } }
    }
}

/// Whether a disk or a quota of this machine has no room left. The library has no name for it, so the cause is looked for.
fn is_full(error: &object_store::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && matches!(io.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
        {
            return true;
        }
        cause = error.source();
    }
    false
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Created,
    /// The same bytes were there: an upload whose answer was lost.
    Same,
}

#[derive(Clone)]
pub(crate) struct Store {
    pub(super) objects: Objects,
    pub(super) keys: Arc<Keyring>,
}

pub(crate) struct Opened {
    pub(crate) tenant: String,
    pub(crate) sha256: Sha256,
    pub(crate) size: u64,
    pub(crate) content: BoxStream<'static, Result<Bytes, Error>>,
}

pub(crate) struct Writing<'a> {
    pub(crate) key: &'a Key,
    pub(crate) tenant: &'a str,
    pub(crate) sha256: &'a Sha256,
    /// What must be there for this to be written.
    pub(crate) after: Option<&'a Key>,
}

impl Store {
    pub(crate) fn new(objects: Objects, keys: Arc<Keyring>) -> Self {
        Self { objects, keys }
    }

    /// Stores a stream under a key that must be new, or hold the same content already.
    pub(crate) async fn put<S, E>(&self, writing: Writing<'_>, body: S) -> Result<Put, Error>
    where
        S: Stream<Item = Result<Bytes, E>>,
        E: std::fmt::Display,
    {
        let path = writing.key.path();
        let mut upload = Upload::new(&self.objects, &self.keys, &writing)?;
        let mut body = std::pin::pin!(body.fuse());
        let named = match write(&writing, body.as_mut(), &mut upload).await {
            Ok(named) => named,
            Err(error) => {
                upload.abort().await;
                if matches!(error, Error::Full { .. }) {
                    drain(body, writing.key.limit()).await;
                }
                return Err(error);
            }
        };
        match named {
            Named::Now => Ok(Put::Created),
            Named::Before => {
                let stored = match self.open(writing.key).await {
                    Ok(stored) => stored,
                    // S3 refuses while a rival's write is not finished, and that one may still fail.
                    Err(Error::NotFound(_)) => return Err(Error::Underway(path)),
                    Err(other) => return Err(other),
                };
                if &stored.sha256 == writing.sha256 { Ok(Put::Same) } else { Err(Error::Conflict(path)) }
            }
        }
    }

    pub(crate) async fn put_bytes(&self, key: &Key, tenant: &str, content: Bytes) -> Result<Put, Error> {
        self.put_bytes_after(None, key, tenant, content).await
    }

    /// The same for what follows another object, which must still be there.
    pub(crate) async fn put_bytes_after(
        &self,
        after: Option<&Key>,
        key: &Key,
        tenant: &str,
        content: Bytes,
    ) -> Result<Put, Error> {
        let sha256 = Sha256::of(&content);
        let body = futures::stream::iter([Ok::<_, std::convert::Infallible>(content)]);
        self.put(Writing { key, tenant, sha256: &sha256, after }, body).await
    }

    /// Opens an object: its preamble is proved before this returns, each chunk before it is given out.
    pub(crate) async fn open(&self, key: &Key) -> Result<Opened, Error> {
        let path = key.path();
        match self.objects.get(&Path::from(path.as_str())).await {
            Ok(found) => self.unseal(key, found).await,
            Err(object_store::Error::NotFound { .. }) => Err(Error::NotFound(path)),
            Err(source) => Err(Error::Storage { path, source }),
        }
    }

    /// What [`Store::open`] does with an object that was found.
    pub(super) async fn unseal(&self, key: &Key, found: GetResult) -> Result<Opened, Error> {
        let path = key.path();
        let sealed = |path: &str, source| Error::Sealed { path: path.to_owned(), source };
        let size = content_size(found.meta.size).ok_or_else(|| sealed(&path, seal::Error::Damaged))?;
        let mut stream = pieces(found);
        let mut start = Vec::new();
        while start.len() < Opener::PREAMBLE {
            match stream.try_next().await {
                Ok(Some(piece)) => start.extend_from_slice(&piece),
                Ok(None) => return Err(sealed(&path, seal::Error::Damaged)),
                Err(source) => return Err(Error::Storage { path, source }),
            }
        }
        let rest = start.split_off(Opener::PREAMBLE);
        let (opener, preamble) =
            Opener::new(&self.keys, key, &start).map_err(|source| sealed(&path, source))?;
        let reading = Reading { opener: Some(opener), first: Some(rest), stream, path };
        let content = futures::stream::try_unfold(reading, Reading::next).boxed();
        let sha256 = Sha256::new(hex::encode(preamble.sha256))
            .map_err(|_| Error::Sealed { path: key.path(), source: seal::Error::Damaged })?;
        Ok(Opened { tenant: preamble.tenant, sha256, size, content })
    }

    /// The whole content of an object that is small by its kind, checked against its digest.
    pub(crate) async fn bytes(&self, key: &Key) -> Result<(String, Vec<u8>), Error> {
        let too_large = || Error::TooLarge { path: key.path(), limit: key.limit() };
        let Some(disk) = self.objects.disk().cloned() else {
            let mut opened = self.open(key).await?;
            if opened.size > key.limit() {
                return Err(too_large());
            }
            let mut content = Vec::new();
            while let Some(piece) = opened.content.try_next().await? {
                content.extend_from_slice(&piece);
            }
            return Ok((opened.tenant, content));
        };
        let path = key.path();
        let storage = |source| Error::Storage { path: key.path(), source };
        // Sealed it is longer, by less than this.
        let limit = key.limit() + key.limit() / 1024 + 1024;
        let read = tokio::task::spawn_blocking(move || disk.read(&path, limit));
        let sealed = match read.await.map_err(|error| storage(error.into()))? {
            Ok(Some(sealed)) => sealed,
            Ok(None) => return Err(Error::NotFound(key.path())),
            Err(error) if error.kind() == std::io::ErrorKind::FileTooLarge => return Err(too_large()),
            Err(error) => return Err(storage(place::io(error))),
        };
        seal::open_whole(&self.keys, key, &sealed)
            .map_err(|source| Error::Sealed { path: key.path(), source })
    }

    pub(crate) async fn exists(&self, key: &Key) -> Result<bool, Error> {
        self.written_at(key).await.map(|at| at.is_some())
    }

    /// When an object was stored, or last replaced by the same content; nothing where there is none.
    pub(crate) async fn written_at(&self, key: &Key) -> Result<Option<Timestamp>, Error> {
        let path = key.path();
        match self.objects.head(&Path::from(path.as_str())).await {
            Ok(meta) => Ok(Some(written_at(&meta))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(Error::Storage { path, source }),
        }
    }

    /// Deletes one object. One that is gone already does not matter.
    pub(crate) async fn delete(&self, key: &Key) -> Result<(), Error> {
        let path = key.path();
        match self.objects.delete(&Path::from(path.as_str())).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(source) => Err(Error::Storage { path, source }),
        }
    }

    /// Deletes everything under a prefix, at any depth. What is gone already does not matter. O(objects found).
    pub(crate) async fn delete_under(&self, prefix: &str) -> Result<(), Error> {
        let storage = |source| Error::Storage { path: prefix.to_owned(), source };
        let found: Vec<Path> = self
            .objects
            .list(Some(&Path::from(prefix)))
            .map_ok(|meta| meta.location)
            .try_collect()
            .await
            .map_err(storage)?;
        // A bucket forgets a thousand at a time.
        let paths = futures::stream::iter(found.into_iter().map(Ok)).boxed();
        let mut deleted = self.objects.delete_stream(paths);
        while let Some(outcome) = deleted.next().await {
            match outcome {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(source) => return Err(storage(source)),
            }
        }
        Ok(())
    }

    /// The last parts and content sizes of everything directly under a prefix, in order of name. O(objects found).
    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, Error> {
        let storage = |source| Error::Storage { path: prefix.to_owned(), source };
        let mut found: Vec<(String, u64)> = self
            .objects
            .list(Some(&Path::from(prefix)))
            .map_err(storage)
            .map_ok(|meta| {
                let name = meta.location.filename().unwrap_or_default().to_owned();
                (name, content_size(meta.size).unwrap_or(0))
            })
            .try_collect()
            .await?;
        found.sort();
        Ok(found)
    }
}

/// Takes a body to where it rests, and gives it its name once it proved to be what was announced.
async fn write<S, E>(
    writing: &Writing<'_>,
    mut body: Pin<&mut S>,
    upload: &mut Upload,
) -> Result<Named, Error>
where
    S: Stream<Item = Result<Bytes, E>>,
    E: std::fmt::Display,
{
    let path = || writing.key.path();
    let limit = writing.key.limit();
    let mut hasher = sha2::Sha256::new();
    let mut size = 0u64;
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(|error| Error::Body { path: path(), detail: error.to_string() })?;
        size = size.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        if size > limit {
            return Err(Error::TooLarge { path: path(), limit });
        }
        // First: where there is a disk, it is busy with this piece while its digest is taken.
        upload.push(piece.clone()).await?;
        hasher.update(&piece);
    }
    let found = hex_digest(hasher);
    if &found != writing.sha256 {
        return Err(Error::Digest { path: path(), expected: writing.sha256.clone(), found });
    }
    upload.finish().await
}

/// Takes what is still sent, up to `limit` bytes, and forgets it: whoever is in the middle of sending may not hear an answer.
async fn drain<S, E>(mut body: Pin<&mut S>, limit: u64)
where
    S: Stream<Item = Result<Bytes, E>>,
{
    let mut size = 0u64;
    while size < limit
        && let Some(Ok(piece)) = body.next().await
    {
        size = size.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
    }
}

/// The bytes of an object. The library reads a file by 8 KiB, each in a task of its own; a large one goes by larger pieces.
fn pieces(found: GetResult) -> BoxStream<'static, object_store::Result<Bytes>> {
    const PIECE: usize = 256 * 1024;
    const SMALL: u64 = 8 * 1024;
    let is_small = found.meta.size <= SMALL;
    match found.payload {
        GetResultPayload::File(file, _) if !is_small => {
            let file = tokio::fs::File::from_std(file);
            tokio_util::io::ReaderStream::with_capacity(file, PIECE)
                .map_err(|error| object_store::Error::Generic { store: "local disk", source: error.into() })
                .boxed()
        }
        GetResultPayload::File(_, _) | GetResultPayload::Stream(_) => found.into_stream(),
    }
}

struct Reading {
    opener: Option<Opener>,
    first: Option<Vec<u8>>,
    stream: BoxStream<'static, object_store::Result<Bytes>>,
    path: String,
}

impl Reading {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, Error> {
        loop {
            let Some(mut opener) = self.opener.take() else { return Ok(None) };
            let sealed = |source| Error::Sealed { path: self.path.clone(), source };
            let mut out = Vec::new();
            let piece = match self.first.take() {
                Some(first) => Some(Bytes::from(first)),
                None => self
                    .stream
                    .try_next()
                    .await
                    .map_err(|source| Error::Storage { path: self.path.clone(), source })?,
            };
            match piece {
                Some(piece) => {
                    opener.push(&piece, &mut out).map_err(sealed)?;
                    self.opener = Some(opener);
                }
                None => opener.finish(&mut out).map_err(sealed)?,
            }
            if !out.is_empty() {
                return Ok(Some((out.into(), self)));
            }
        }
    }
}

/// In whole seconds, which is all that some stores tell. What is no time is never long ago.
pub(super) fn written_at(meta: &ObjectMeta) -> Timestamp {
    Timestamp::from_second(meta.last_modified.timestamp()).unwrap_or(Timestamp::MAX)
}

pub(super) fn digest_bytes(sha256: &Sha256) -> [u8; 32] {
    let mut bytes = [0u8; 32];
    // A `Sha256` is always 64 hex digits.
    let _ = hex::decode_to_slice(sha256.as_str(), &mut bytes);
    bytes
}

pub(crate) fn hex_digest(hasher: sha2::Sha256) -> Sha256 {
    let digest = hex::encode(hasher.finalize());
    Sha256::new(digest).unwrap_or_else(|_| Sha256::of(b""))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EIO: i32 = 5;
    const ENOSPC: i32 = 28;
    const EDQUOT: i32 = 122;

    #[test]
    fn a_full_disk_and_a_used_up_quota_are_told_from_other_failures_wherever_they_stand_in_the_chain() {
        #[derive(Debug, thiserror::Error)]
        #[error("the disk failed")]
        struct Above(#[source] std::io::Error);
        let of = |number| {
            let source = Box::new(Above(std::io::Error::from_raw_os_error(number)));
            Error::of("bundles/x", object_store::Error::Generic { store: "local disk", source })
        };
        let [full, quota, broken] = [ENOSPC, EDQUOT, EIO].map(of);
        assert!(matches!(full, Error::Full { .. }), "{full}");
        assert!(matches!(quota, Error::Full { .. }), "{quota}");
        assert!(matches!(broken, Error::Storage { .. }), "{broken}");
        assert_eq!(
            full.to_string(),
            "the datastore is full: there is no room for bundles/x; free some space where it keeps its artefacts, or keep fewer runs (runHistoryPolicy)"
        );
    }
}
