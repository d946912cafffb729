//! Objects in a directory of this machine: what is answered as stored is on disk. Small objects are written ahead into a log, which
//! takes one flush where a file of its own takes two (its content, its name), and several that come together share it; large ones are
//! files that are flushed themselves. Some room is kept for what must not be refused when the disk is full. What the objects are is
//! not known here.

mod ahead;
mod reserve;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Extensions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, UploadPart,
};
use rustix::fs::{CWD, RenameFlags, renameat_with, statvfs};

use ahead::Ahead;
pub(super) use reserve::Need;
use reserve::Reserve;

use super::place::STAGING;
use crate::key::Key;

const STORE: &str = "local disk";
/// How often a directory is made again that somebody else removes because it is empty.
const TRIES: usize = 16;

type Result<T> = object_store::Result<T>;

/// When an object must be on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promise {
    /// When it is answered.
    AtOnce,
    /// When the next one is that is written after it: nobody rests on it before. The content of a state is such an object, which
    /// means nothing until a step of the state names it.
    WithNext,
}

impl Promise {
    pub(super) fn of(key: &Key) -> Self {
        match key {
            Key::StateContent(_, _) => Self::WithNext,
            Key::Bundle(_)
            | Key::Artefact(_, _)
            | Key::LogSegment(_, _)
            | Key::StateStep(_, _)
            | Key::Audit(_, _) => Self::AtOnce,
        }
    }

    /// Stores that know nothing of it ignore it, and promise more.
    pub(super) fn mark(self, extensions: &mut Extensions) {
        extensions.insert(self);
    }

    fn marked(extensions: &Extensions) -> Self {
        extensions.get::<Self>().copied().unwrap_or(Self::AtOnce)
    }
}

pub(super) struct Disk {
    /// Reads, lists, deletes, and writes what is not written ahead.
    files: LocalFileSystem,
    /// What the blocking parts need.
    shared: Arc<Shared>,
}

struct Shared {
    root: PathBuf,
    ahead: Ahead,
    reserve: Reserve,
    claims: Claims,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({})", self.shared.root.display())
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.shared.root.display())
    }
}

impl Disk {
    /// Opens a directory, makes it if it is not there, and finishes what a crash left in its log.
    pub(super) fn open(directory: &FilePath) -> Result<Self> {
        std::fs::create_dir_all(directory).map_err(failed)?;
        let root = directory.canonicalize().map_err(failed)?;
        let size = statvfs(&root).map(|found| found.f_blocks.saturating_mul(found.f_frsize)).unwrap_or(0);
        let files = LocalFileSystem::new_with_prefix(&root)?
            .with_fsync(true)
            // What a run left goes with its directories.
            .with_automatic_cleanup(true);
        let ahead = Ahead::open(&root, size).map_err(failed)?;
        let reserve = Reserve::open(&root, size);
        Ok(Self { files, shared: Arc::new(Shared { root, ahead, reserve, claims: Claims::default() }) })
    }
}

#[async_trait]
impl ObjectStore for Disk {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let need = Need::marked(&options.extensions);
        let promise = Promise::marked(&options.extensions);
        let target = self.files.path_to_filesystem(location)?;
        let shared = Arc::clone(&self.shared);
        let content = payload.clone();
        let created = matches!(options.mode, PutMode::Create);
        let outcome = blocking(move || {
            shared.reserve.prepare(need, content.content_length());
            let written = if created { shared.create(&target, &content, promise)? } else { Written::Not };
            match written {
                Written::Ahead => {}
                // It may be the next one of an object that rests on it.
                Written::Not => shared.ahead.flush_rest().map_err(failed)?,
            }
            Ok(written)
        })
        .await?;
        let result = match outcome {
            Written::Ahead => PutResult { e_tag: None, version: None, extensions: Default::default() },
            Written::Not => self.files.put_opts(location, payload, options).await?,
        };
        self.shared.reserve.refill();
        Ok(result)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let need = Need::marked(&options.extensions);
        let upload = self.files.put_multipart_opts(location, options).await?;
        Ok(Box::new(Parts { upload, need, shared: Arc::clone(&self.shared) }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.files.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[std::ops::Range<u64>]) -> Result<Vec<Bytes>> {
        self.files.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let shared = Arc::clone(&self.shared);
        let forgotten = locations.inspect_ok(move |location| shared.ahead.forget(location.as_ref()));
        self.files.delete_stream(forgotten.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.files.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        blocking(move || shared.ahead.flush_rest().map_err(failed)).await?;
        self.files.rename_opts(from, to, options).await
    }
}

/// How an object was written.
enum Written {
    Ahead,
    /// Nothing was done: it is too large for the log, or the log is another process's.
    Not,
}

impl Shared {
    /// Creates a small object by way of the log. **Which flush for which promise**: the one of the log makes content and name durable
    /// together, and nobody sees the name before that, so neither a reader nor whoever wrote the same can rest on what a power cut
    /// would take. The file itself is flushed when its log is about to be used again.
    fn create(&self, target: &FilePath, content: &PutPayload, promise: Promise) -> Result<Written> {
        let Ok(name) = target.strip_prefix(&self.root) else { return Ok(Written::Not) };
        let Some(name) = name.to_str().filter(|_| self.ahead.takes(content.content_length())) else {
            return Ok(Written::Not);
        };
        // Of two of one process the log must hold one only: after a crash nobody could tell which of them was answered.
        let _claim = self.claims.take(target);
        if target.symlink_metadata().is_ok() {
            return Err(exists(target, io::ErrorKind::AlreadyExists.into()));
        }
        let staged = Staged::write(&self.root, content.iter()).map_err(failed)?;
        let record = ahead::Record { name, inode: staged.inode, content };
        let Some(entry) = self.ahead.append(&record).map_err(failed)? else { return Ok(Written::Not) };
        match promise {
            Promise::AtOnce => self.ahead.flush(&entry).map_err(failed)?,
            Promise::WithNext => {}
        }
        match staged.publish(target) {
            // Another process was faster. Its file is another one than that of the record, which therefore means nothing.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(exists(target, error)),
            Err(error) => {
                // It is not there and nobody is told otherwise, now or after a crash.
                self.ahead.forget(name);
                return Err(failed(error));
            }
            Ok(()) => {}
        }
        drop(entry);
        if let Some(settling) = self.ahead.due() {
            // Nobody waits for it: until it is done the log stays as it is, and new objects are flushed themselves.
            drop(tokio::task::spawn_blocking(move || settling.run()));
        }
        Ok(Written::Ahead)
    }
}

/// A file that is written and has no name yet that anybody looks for. It goes away unless it is published.
struct Staged {
    path: PathBuf,
    inode: u64,
}

impl Staged {
    fn write<'a>(root: &FilePath, pieces: impl IntoIterator<Item = &'a Bytes>) -> io::Result<Self> {
        let directory = root.join(STAGING);
        let path = directory.join(format!("{:032x}", rand::random::<u128>()));
        let mut file =
            with_directory(&path, || File::options().read(true).write(true).create_new(true).open(&path))?;
        let mut staged = Self { path, inode: 0 };
        for piece in pieces {
            file.write_all(piece)?;
        }
        staged.inode = file.metadata()?.ino();
        Ok(staged)
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// Gives it its name, if nothing has that name.
    fn publish(&self, target: &FilePath) -> io::Result<()> {
        with_directory(target, || {
            match renameat_with(CWD, &self.path, CWD, target, RenameFlags::NOREPLACE) {
                // A file system that cannot do this in one step.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::NOTSUP) => {
                    std::fs::hard_link(&self.path, target)
                }
                other => Ok(other?),
            }
        })
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Mostly renamed by now; what cannot be removed is swept with the rest of staging.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Does something in a directory that may not be there, or be removed meanwhile because it is empty.
fn with_directory<T>(path: &FilePath, mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut tries = TRIES;
    loop {
        match act() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries > 0 => {
                tries -= 1;
                std::fs::create_dir_all(path.parent().unwrap_or(path))?;
            }
            other => return other,
        }
    }
}

/// A large object on its way.
struct Parts {
    upload: Box<dyn MultipartUpload>,
    need: Need,
    shared: Arc<Shared>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.upload.fmt(f)
    }
}

#[async_trait]
impl MultipartUpload for Parts {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (shared, need, size) = (Arc::clone(&self.shared), self.need, data.content_length());
        let part = self.upload.put_part(data);
        async move {
            shared.reserve.prepare(need, size);
            part.await
        }
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let result = self.upload.complete().await?;
        self.shared.reserve.refill();
        Ok(result)
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

/// Who is creating which name at this moment.
#[derive(Default)]
struct Claims {
    taken: Mutex<HashSet<PathBuf>>,
    freed: Condvar,
}

struct Claim<'a> {
    claims: &'a Claims,
    target: PathBuf,
}

impl Claims {
    fn take(&self, target: &FilePath) -> Claim<'_> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while taken.contains(target) {
            taken = self.freed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        taken.insert(target.to_owned());
        Claim { claims: self, target: target.to_owned() }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.target);
        self.claims.freed.notify_all();
    }
}

/// A file of ours beside the objects. Its name is one that is never listed.
fn own_file(root: &FilePath, name: &str) -> io::Result<File> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(root.join(name))?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    Ok(file)
}

/// Whether the file holds exactly these bytes.
fn holds(file: &File, content: &[u8]) -> io::Result<bool> {
    if file.metadata()?.len() != u64::try_from(content.len()).unwrap_or(u64::MAX) {
        return Ok(false);
    }
    let mut found = vec![0; content.len()];
    file.read_exact_at(&mut found, 0)?;
    Ok(found == content)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| failed(io::Error::other(error)))?
}

fn failed(source: io::Error) -> object_store::Error {
    object_store::Error::Generic { store: STORE, source: Box::new(source) }
}

fn exists(target: &FilePath, source: io::Error) -> object_store::Error {
    object_store::Error::AlreadyExists { path: target.display().to_string(), source: Box::new(source) }
}
