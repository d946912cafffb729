//! How an object gets to where it rests, sealed on the way: into a bucket by one request or in parts, onto a disk piece by piece while the
//! rest is still arriving. Whether what arrived is what was announced is asked above, before an upload is finished.

use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{
    MultipartUpload, ObjectStoreExt, PutMode, PutOptions, PutPayload, RenameOptions, RenameTargetMode,
};
use tokio::task::{JoinHandle, spawn_blocking};

use super::disk::{Disk, Draft, Named};
use super::keyring::Keyring;
use super::place::{self, Objects, STAGING};
use super::seal::{self, Sealed, Sealer};
use super::store::{Error, Writing, digest_bytes};

/// Objects up to this size are written in one request; larger ones in parts of exactly it, as some stores demand. S3 takes none smaller,
/// and this much of an object is what is held of it in memory.
pub(super) const PART: usize = 5 * 1024 * 1024;

/// A disk is given this much at once; less is worth going to another thread for only at the end.
const ENOUGH: usize = 64 * 1024;
/// When this much waits for a disk, no more is taken from the sender.
const MOST: usize = 1024 * 1024;

pub(super) enum Upload {
    Bucket(Box<Parts>),
    Disk(Box<Pieces>),
}

impl Upload {
    pub(super) fn new(objects: &Objects, keys: &Arc<Keyring>, writing: &Writing<'_>) -> Result<Self, Error> {
        let path = writing.key.path();
        let mut sealed = Sealed::default();
        let digest = digest_bytes(writing.sha256);
        let sealer = Sealer::new(keys, writing.key, writing.tenant, &digest, &mut sealed)
            .map_err(|source| Error::Sealed { path: path.clone(), source })?;
        let name = random_name(&path)?;
        Ok(match objects.disk() {
            Some(disk) => {
                let after = writing.after.map(crate::key::Key::path);
                let file = Unfinished { disk: disk.clone(), path, name, after, sealer, sealed, draft: None };
                Self::Disk(Box::new(Pieces {
                    waiting: Vec::new(),
                    size: 0,
                    hand: Hand::Free(Box::new(file)),
                }))
            }
            None => {
                let staging = Path::from(format!("{STAGING}/{name}"));
                let after = writing.after.map(|key| Path::from(key.path()));
                let objects = objects.clone();
                Self::Bucket(Box::new(Parts { objects, path, staging, after, sealer, sealed, upload: None }))
            }
        })
    }

    pub(super) async fn push(&mut self, piece: Bytes) -> Result<(), Error> {
        match self {
            Self::Bucket(parts) => parts.push(&piece).await,
            Self::Disk(pieces) => pieces.push(piece).await,
        }
    }

    /// Gives the object its name, unless another has it.
    pub(super) async fn finish(&mut self) -> Result<Named, Error> {
        match self {
            Self::Bucket(parts) => parts.finish().await,
            Self::Disk(pieces) => pieces.finish().await,
        }
    }

    /// Removes what was written.
    pub(super) async fn abort(self) {
        match self {
            Self::Bucket(parts) => {
                if let Some(mut upload) = parts.upload {
                    // What is left behind in staging is swept later; why it is aborted matters more.
                    let _ = upload.abort().await;
                }
            }
            // A draft goes by itself, once nobody writes to it.
            Self::Disk(mut pieces) => drop(pieces.take().await),
        }
    }
}

pub(super) struct Parts {
    objects: Objects,
    path: String,
    staging: Path,
    after: Option<Path>,
    sealer: Sealer,
    sealed: Sealed,
    upload: Option<Box<dyn MultipartUpload>>,
}

impl Parts {
    async fn push(&mut self, piece: &[u8]) -> Result<(), Error> {
        let storage = |source| Error::of(&self.path, source);
        self.sealer
            .push(piece, &mut self.sealed)
            .map_err(|source| Error::Sealed { path: self.path.clone(), source })?;
        while let Some(part) = self.sealed.part(PART) {
            let parts = match &mut self.upload {
                Some(parts) => parts,
                None => self.upload.insert(self.objects.put_multipart(&self.staging).await.map_err(storage)?),
            };
            parts.put_part(PutPayload::from_iter(part)).await.map_err(storage)?;
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<Named, Error> {
        let storage = |source| Error::of(&self.path, source);
        self.sealer
            .finish(&mut self.sealed)
            .map_err(|source| Error::Sealed { path: self.path.clone(), source })?;
        if let Some(after) = &self.after {
            match self.objects.head(after).await {
                Ok(_) => {}
                Err(object_store::Error::NotFound { .. }) => return Err(Error::NotFound(after.to_string())),
                Err(source) => return Err(storage(source)),
            }
        }
        let target = Path::from(self.path.as_str());
        let rest = std::mem::take(&mut self.sealed).rest();
        let named = match self.upload.as_mut() {
            None => {
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                // In one piece: sent in many, a second write of the same content often failed on a real S3 server with a broken
                // connection, presumably because it refuses a taken name before it has read all of it.
                let whole = PutPayload::from(rest.concat());
                self.objects.put_opts(&target, whole, options).await.map(drop)
            }
            Some(parts) => {
                parts.put_part(PutPayload::from_iter(rest)).await.map_err(storage)?;
                parts.complete().await.map_err(storage)?;
                self.upload = None;
                let options =
                    RenameOptions { target_mode: RenameTargetMode::Create, ..RenameOptions::default() };
                let renamed = self.objects.rename_opts(&self.staging, &target, options).await;
                if renamed.is_err() {
                    let _ = self.objects.delete(&self.staging).await;
                }
                renamed
            }
        };
        match named {
            Ok(()) => Ok(Named::Now),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(Named::Before),
            Err(source) => Err(storage(source)),
        }
    }
}

/// What arrived and waits until the disk has taken what arrived before it.
pub(super) struct Pieces {
    waiting: Vec<Bytes>,
    size: usize,
    hand: Hand,
}

/// Who has the file. While a sender is slow nobody waits for it on a thread.
enum Hand {
    Free(Box<Unfinished>),
    Busy(JoinHandle<Result<Box<Unfinished>, Error>>),
    /// It failed, and was told.
    Gone,
}

impl Pieces {
    async fn push(&mut self, piece: Bytes) -> Result<(), Error> {
        self.size += piece.len();
        self.waiting.push(piece);
        let is_free = match &self.hand {
            Hand::Free(_) | Hand::Gone => true,
            Hand::Busy(job) => job.is_finished(),
        };
        if (is_free && self.size >= ENOUGH) || self.size >= MOST {
            let (mut file, pieces) = self.take().await?;
            self.hand = Hand::Busy(spawn_blocking(move || {
                file.write(&pieces)?;
                Ok(file)
            }));
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<Named, Error> {
        let (file, pieces) = self.take().await?;
        let path = file.path.clone();
        joined(spawn_blocking(move || file.publish(&pieces)).await, &path)
    }

    async fn take(&mut self) -> Result<(Box<Unfinished>, Vec<Bytes>), Error> {
        let file = match std::mem::replace(&mut self.hand, Hand::Gone) {
            Hand::Free(file) => file,
            Hand::Busy(job) => joined(job.await, STAGING)?,
            Hand::Gone => return Err(Error::of(STAGING, place::io(std::io::ErrorKind::BrokenPipe.into()))),
        };
        self.size = 0;
        Ok((file, std::mem::take(&mut self.waiting)))
    }
}

fn joined<T>(outcome: Result<Result<T, Error>, tokio::task::JoinError>, path: &str) -> Result<T, Error> {
    outcome.unwrap_or_else(|error| Err(Error::of(path, error.into())))
}

/// A file that is being written, sealed on the way.
struct Unfinished {
    disk: Disk,
    path: String,
    name: String,
    after: Option<String>,
    sealer: Sealer,
    sealed: Sealed,
    draft: Option<Draft>,
}

impl Unfinished {
    fn write(&mut self, pieces: &[Bytes]) -> Result<(), Error> {
        for piece in pieces {
            let pushed = self.sealer.push(piece, &mut self.sealed);
            pushed.map_err(|source| Error::Sealed { path: self.path.clone(), source })?;
            self.put_down()?;
        }
        Ok(())
    }

    fn publish(mut self, pieces: &[Bytes]) -> Result<Named, Error> {
        self.write(pieces)?;
        let finished = self.sealer.finish(&mut self.sealed);
        finished.map_err(|source| Error::Sealed { path: self.path.clone(), source })?;
        self.put_down()?;
        let failed = |error| Error::of(&self.path, place::io(error));
        if let Some(after) = self.after.take()
            && !self.disk.exists(&after).map_err(failed)?
        {
            return Err(Error::NotFound(after));
        }
        match self.draft.take() {
            Some(draft) => draft.publish().map_err(failed),
            None => Err(failed(std::io::ErrorKind::NotFound.into())),
        }
    }

    /// Everything that is sealed, into the file.
    fn put_down(&mut self) -> Result<(), Error> {
        let failed = |error| Error::of(&self.path, place::io(error));
        let draft = match &mut self.draft {
            Some(draft) => draft,
            None => self.draft.insert(self.disk.draft(&self.path, &self.name).map_err(failed)?),
        };
        while let Some(piece) = self.sealed.pop() {
            draft.write(&piece).map_err(failed)?;
        }
        Ok(())
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
