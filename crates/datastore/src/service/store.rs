//! Sealed objects in an object store: written once, digests checked on the way in, streamed both ways. Who may do what
//! is not decided here.

use std::pin::Pin;
use std::sync::Arc;

use api::text::Sha256;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    GetResult, GetResultPayload, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload, RenameOptions, RenameTargetMode,
};
use sha2::Digest;

use super::keyring::Keyring;
use super::place::STAGING;
use super::seal::{self, Opener, Sealed, Sealer, content_size};
use crate::key::Key;

/// Objects up to this size are written in one request; larger ones in parts of exactly it, as some stores demand. S3 takes none smaller,
/// and this much of an object is what is held of it in memory.
pub(super) const PART: usize = 5 * 1024 * 1024;

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
    fn of(path: &str, source: object_store::Error) -> Self {
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
    pub(super) objects: Arc<dyn ObjectStore>,
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
}

impl Store {
    pub(crate) fn new(objects: Arc<dyn ObjectStore>, keys: Arc<Keyring>) -> Self {
        Self { objects, keys }
    }

    /// Stores a stream under a key that must be new, or hold the same content already.
    pub(crate) async fn put<S, E>(&self, writing: Writing<'_>, body: S) -> Result<Put, Error>
    where
        S: Stream<Item = Result<Bytes, E>>,
        E: std::fmt::Display,
    {
        let path = writing.key.path();
        let staging = Path::from(format!("{STAGING}/{}", random_name(&path)?));
        let mut upload = None;
        let mut body = std::pin::pin!(body.fuse());
        match self.write(&writing, body.as_mut(), &staging, &mut upload).await {
            Ok(put) => Ok(put),
            Err(error) => {
                if let Some(mut upload) = upload {
                    // What is left behind in staging is swept later; the error matters more.
                    let _ = upload.abort().await;
                }
                if matches!(error, Error::Full { .. }) {
                    drain(body, writing.key.limit()).await;
                }
                Err(error)
            }
        }
    }

    async fn write<S, E>(
        &self,
        writing: &Writing<'_>,
        mut body: Pin<&mut S>,
        staging: &Path,
        upload: &mut Option<Box<dyn MultipartUpload>>,
    ) -> Result<Put, Error>
    where
        S: Stream<Item = Result<Bytes, E>>,
        E: std::fmt::Display,
    {
        let path = writing.key.path();
        let sealed = |source| Error::Sealed { path: path.clone(), source };
        let storage = |source| Error::of(&path, source);
        let limit = writing.key.limit();
        let mut out = Sealed::default();
        let mut sealer =
            Sealer::new(&self.keys, writing.key, writing.tenant, &digest_bytes(writing.sha256), &mut out)
                .map_err(sealed)?;
        let mut hasher = sha2::Sha256::new();
        let mut size = 0u64;
        while let Some(piece) = body.next().await {
            let piece =
                piece.map_err(|error| Error::Body { path: path.clone(), detail: error.to_string() })?;
            size = size.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
            if size > limit {
                return Err(Error::TooLarge { path: path.clone(), limit });
            }
            hasher.update(&piece);
            sealer.push(&piece, &mut out).map_err(sealed)?;
            while let Some(part) = out.part(PART) {
                let parts = match upload {
                    Some(parts) => parts,
                    None => upload.insert(self.objects.put_multipart(staging).await.map_err(storage)?),
                };
                parts.put_part(PutPayload::from_iter(part)).await.map_err(storage)?;
            }
        }
        sealer.finish(&mut out).map_err(sealed)?;
        let found = hex_digest(hasher);
        if &found != writing.sha256 {
            return Err(Error::Digest { path, expected: writing.sha256.clone(), found });
        }
        let target = Path::from(path.as_str());
        let result = match upload.as_mut() {
            None => {
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                // In one piece: sent in many, a second write of the same content often failed on a real S3 server with a broken
                // connection, presumably because it refuses a taken name before it has read all of it.
                let whole = PutPayload::from(out.rest().concat());
                self.objects.put_opts(&target, whole, options).await.map(drop)
            }
            Some(parts) => {
                parts.put_part(PutPayload::from_iter(out.rest())).await.map_err(storage)?;
                parts.complete().await.map_err(storage)?;
                *upload = None;
                let options =
                    RenameOptions { target_mode: RenameTargetMode::Create, ..RenameOptions::default() };
                let renamed = self.objects.rename_opts(staging, &target, options).await;
                if renamed.is_err() {
                    let _ = self.objects.delete(staging).await;
                }
                renamed
            }
        };
        match result {
            Ok(()) => Ok(Put::Created),
            Err(object_store::Error::AlreadyExists { .. }) => {
                let stored = match self.open(writing.key).await {
                    Ok(stored) => stored,
                    // S3 refuses while a rival's write is not finished, and that one may still fail.
                    Err(Error::NotFound(_)) => return Err(Error::Underway(path)),
                    Err(other) => return Err(other),
                };
                if &stored.sha256 == writing.sha256 { Ok(Put::Same) } else { Err(Error::Conflict(path)) }
            }
            Err(source) => Err(storage(source)),
        }
    }

    pub(crate) async fn put_bytes(&self, key: &Key, tenant: &str, content: Bytes) -> Result<Put, Error> {
        let sha256 = Sha256::of(&content);
        let body = futures::stream::iter([Ok::<_, std::convert::Infallible>(content)]);
        self.put(Writing { key, tenant, sha256: &sha256 }, body).await
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
        let mut opened = self.open(key).await?;
        if opened.size > key.limit() {
            return Err(Error::TooLarge { path: key.path(), limit: key.limit() });
        }
        let mut content = Vec::new();
        while let Some(piece) = opened.content.try_next().await? {
            content.extend_from_slice(&piece);
        }
        Ok((opened.tenant, content))
    }

    pub(crate) async fn exists(&self, key: &Key) -> Result<bool, Error> {
        let path = key.path();
        match self.objects.head(&Path::from(path.as_str())).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
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

fn random_name(path: &str) -> Result<String, Error> {
    use rand::TryRngCore;
    let mut bytes = [0u8; 16];
    rand::rngs::OsRng
        .try_fill_bytes(&mut bytes)
        .map_err(|_| Error::Sealed { path: path.to_owned(), source: seal::Error::Randomness })?;
    Ok(hex::encode(bytes))
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
