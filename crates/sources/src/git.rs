//! The git source: what a repository's heads are, a local mirror of it, and reads from that mirror. Nothing is ever
//! checked out or executed here.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::text::{CommitId, GitUrl, Sha256};

use crate::error::Error;
use crate::limits::{Limits, grows_past, size_of};
use crate::objects::{Entry, Objects, parse_tree};
use crate::process::{Invocation, Network, Surroundings};
use crate::refs::Refs;
use crate::relevance::{Step, parse_line};
use crate::remote::{Addresses, FileUrls, Remote};
use crate::source::{Rewrite, Source, rewritten};

/// Answers of git that are kept in memory: listings, never contents.
const LISTING_LIMIT: u64 = 128 * 1024 * 1024;

#[derive(Clone, Debug)]
pub struct GitOptions {
    /// Holds the mirrors and git's private directories; can be emptied while nothing runs.
    pub cache_dir: PathBuf,
    pub file_urls: FileUrls,
    pub addresses: Addresses,
    /// Where repositories are read from instead of their URLs. What they lead to is checked like any URL, but may be private.
    pub rewrites: Vec<Rewrite>,
    /// For one git process.
    pub timeout: Duration,
    pub program: PathBuf,
    /// The PATH that git and its ssh see.
    pub search_path: OsString,
    pub limits: Limits,
}

impl GitOptions {
    pub fn new(cache_dir: impl Into<PathBuf>) -> Self {
        Self {
            cache_dir: cache_dir.into(),
            file_urls: FileUrls::default(),
            addresses: Addresses::default(),
            rewrites: Vec::new(),
            timeout: Duration::from_secs(120),
            program: PathBuf::from("git"),
            search_path: OsString::from("/usr/local/bin:/usr/bin:/bin"),
            limits: Limits::default(),
        }
    }
}

/// Reads repositories with the `git` command. Cheap to share behind an `Arc`.
#[derive(Debug)]
pub struct Git {
    pub(crate) options: GitOptions,
    /// For reads of a mirror: no network, no credentials.
    local: Surroundings,
    program: PathBuf,
    /// One fetch at a time for each mirror in this process; between processes a file lock does it.
    fetches: Mutex<HashMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>,
    /// The commit of each mirror that could not be had within the limit: nobody downloads it again to learn the same.
    refused: Mutex<HashMap<PathBuf, CommitId>>,
}

/// A bare copy of a repository that has a certain commit. A cache: it may vanish, and is then made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    pub(crate) url: GitUrl,
    pub(crate) dir: PathBuf,
}

impl Mirror {
    pub fn url(&self) -> &GitUrl {
        &self.url
    }
}

impl Git {
    pub fn new(options: GitOptions) -> Result<Self, Error> {
        let io = Error::io("create git's cache directory");
        for dir in ["mirrors", "private"] {
            std::fs::create_dir_all(options.cache_dir.join(dir)).map_err(&io)?;
        }
        let cache_dir = std::fs::canonicalize(&options.cache_dir).map_err(&io)?;
        let program = find_program(&options.program, &options.search_path).ok_or_else(|| Error::Io {
            doing: "find git (install it, or put it on the PATH)",
            source: std::io::Error::from(std::io::ErrorKind::NotFound),
        })?;
        let options = GitOptions { cache_dir, ..options };
        let local =
            Surroundings::new(&options.cache_dir.join("private"), &options.search_path, Network::default())?;
        Ok(Self { options, local, program, fetches: Mutex::default(), refused: Mutex::default() })
    }

    /// Asks the repository for its heads: one request, whatever the number of branches.
    pub async fn resolve(&self, source: &Source) -> Result<Refs, Error> {
        let (url, surroundings) = self.reach(source).await?;
        let output = self
            .invocation(&surroundings, None, source.url.as_str(), "read the branches of")
            .output(
                [
                    "ls-remote",
                    "--symref",
                    "--end-of-options",
                    url.as_str(),
                    "HEAD",
                    "refs/heads/*",
                    "refs/tags/*",
                ],
                LISTING_LIMIT,
            )
            .await?;
        Ok(Refs::parse(&output))
    }

    /// A mirror that has `commit`: fetched only when the commit is not there yet, rebuilt when it is damaged.
    pub async fn mirror(&self, source: &Source, commit: &CommitId) -> Result<Mirror, Error> {
        let url = &source.url;
        let mirror = Mirror { url: url.clone(), dir: self.mirror_dir(source) };
        if self.has_commit(&mirror, commit).await {
            return Ok(mirror);
        }
        self.check_not_refused(&mirror, commit)?;
        let turn = self.turn(&mirror.dir);
        let _turn = turn.lock().await;
        let _file_lock = lock_file(mirror.dir.with_extension("lock")).await?;
        // Somebody else may have fetched it while we waited.
        if self.has_commit(&mirror, commit).await {
            return Ok(mirror);
        }
        self.check_not_refused(&mirror, commit)?;
        let (place, surroundings) = self.reach(source).await?;
        match self.fetch(&mirror, &place, &surroundings).await {
            Ok(()) => {}
            Err(error @ Error::RepositoryTooLarge { .. }) => {
                self.refused().insert(mirror.dir.clone(), commit.clone());
                remove_dir(&mirror.dir).await?;
                return Err(error);
            }
            Err(Error::DamagedMirror { detail, .. }) => {
                tracing::warn!(url = %url, detail, "the mirror is damaged and is rebuilt");
                remove_dir(&mirror.dir).await?;
                self.fetch(&mirror, &place, &surroundings).await?;
            }
            Err(other) => return Err(other),
        }
        if self.has_commit(&mirror, commit).await {
            Ok(mirror)
        } else {
            Err(Error::CommitMissing { url: url.to_string(), commit: commit.to_string() })
        }
    }

    pub(crate) async fn tree(&self, mirror: &Mirror, commit: &CommitId) -> Result<Vec<Entry>, Error> {
        let output = self
            .local(mirror, "list the files of")
            .output(
                ["ls-tree", "-r", "-z", "--long", "--full-tree", "--end-of-options", commit.as_str()],
                LISTING_LIMIT,
            )
            .await?;
        parse_tree(&output).map_err(|detail| Error::DamagedMirror { url: mirror.url.to_string(), detail })
    }

    /// Commits of the line of first parents from `head` back, the newest first: at most `limit`, and none that `known` has.
    pub(crate) async fn line(
        &self,
        mirror: &Mirror,
        head: &CommitId,
        known: Option<&CommitId>,
        limit: usize,
    ) -> Result<Vec<Step>, Error> {
        let count = format!("--max-count={limit}");
        let fixed = ["log", "-z", "--name-only", "--no-renames", "--format=%x02%H %P", "--first-parent"];
        let known = known.map(|known| format!("^{known}"));
        let output = self
            .local(mirror, "read the history of")
            .output(
                fixed
                    .into_iter()
                    .chain(["--diff-merges=first-parent", &count, "--end-of-options", head.as_str()])
                    .chain(known.as_deref()),
                LISTING_LIMIT,
            )
            .await?;
        Ok(parse_line(&output))
    }

    /// The newest commit of the same line that changed one of the pathspecs.
    pub(crate) async fn last_commit_touching(
        &self,
        mirror: &Mirror,
        head: &CommitId,
        pathspecs: &[String],
    ) -> Result<Option<CommitId>, Error> {
        let fixed = ["log", "-1", "--format=%H", "--first-parent", "--end-of-options", head.as_str(), "--"];
        let output = self
            .local(mirror, "read the history of")
            .output(fixed.into_iter().chain(pathspecs.iter().map(String::as_str)), 1024)
            .await?;
        Ok(std::str::from_utf8(&output).ok().and_then(|text| CommitId::new(text.trim()).ok()))
    }

    /// Runs `work` on a blocking thread with a `cat-file --batch` of the mirror at hand.
    pub(crate) async fn with_objects<T: Send + 'static>(
        &self,
        mirror: &Mirror,
        doing: &'static str,
        work: impl FnOnce(&mut Objects) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let invocation = self.local(mirror, doing);
        let mut running = invocation.spawn(["cat-file", "--batch"], Stdio::piped())?;
        let io = Error::io("connect to git");
        let closed = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let requests = running.child.stdin.take().ok_or_else(closed).map_err(&io)?;
        let answers = running.child.stdout.take().ok_or_else(closed).map_err(&io)?;
        let mut objects = Objects {
            requests: requests.into_owned_fd().map_err(&io)?.into(),
            answers: BufReader::with_capacity(64 * 1024, answers.into_owned_fd().map_err(&io)?.into()),
            subject: mirror.url.to_string(),
        };
        let job = tokio::task::spawn_blocking(move || work(&mut objects));
        // On a timeout `running` is dropped: git dies, the thread's next read fails, and the thread ends.
        match tokio::time::timeout(self.options.timeout, job).await {
            Ok(Ok(result)) => result,
            Ok(Err(stopped)) => Err(Error::Io { doing, source: std::io::Error::other(stopped) }),
            Err(_) => Err(invocation.timed_out()),
        }
    }

    async fn has_commit(&self, mirror: &Mirror, commit: &CommitId) -> bool {
        mirror.dir.join("HEAD").exists()
            && self
                .local(mirror, "look into")
                .output(
                    ["rev-parse", "--verify", "--quiet", "--end-of-options", &format!("{commit}^{{tree}}")],
                    1024,
                )
                .await
                .is_ok()
    }

    async fn fetch(&self, mirror: &Mirror, place: &GitUrl, surroundings: &Surroundings) -> Result<(), Error> {
        let url = mirror.url.as_str();
        if !mirror.dir.join("HEAD").exists() {
            remove_dir(&mirror.dir).await?;
            let path = mirror.dir.as_os_str();
            let fixed = ["init", "--quiet", "--bare", "--template=", "--"].map(std::ffi::OsStr::new);
            self.invocation(&self.local, None, url, "prepare the mirror of")
                .output(fixed.into_iter().chain([path]), 1024)
                .await?;
        }
        let limit = self.options.limits.mirror;
        let invocation = self.invocation(surroundings, Some(&mirror.dir), url, "fetch");
        let fetching = invocation.output(
            [
                "fetch",
                "--quiet",
                "--prune",
                "--no-tags",
                "--no-write-fetch-head",
                "--no-recurse-submodules",
                "--end-of-options",
                place.as_str(),
                "+refs/heads/*:refs/heads/*",
                "+refs/tags/*:refs/tags/*",
            ],
            1024 * 1024,
        );
        // Whichever comes first ends the other: a fetch that is dropped is killed with its helpers.
        let fits = tokio::select! {
            fetched = fetching => { fetched?; size_of(&mirror.dir).await? <= limit }
            () = grows_past(&mirror.dir, limit) => false,
        };
        if fits { Ok(()) } else { Err(self.too_large(mirror)) }
    }

    fn too_large(&self, mirror: &Mirror) -> Error {
        Error::RepositoryTooLarge { url: mirror.url.to_string(), limit: self.options.limits.mirror }
    }

    fn check_not_refused(&self, mirror: &Mirror, commit: &CommitId) -> Result<(), Error> {
        match self.refused().get(&mirror.dir) {
            Some(refused) if refused == commit => Err(self.too_large(mirror)),
            Some(_) | None => Ok(()),
        }
    }

    fn refused(&self) -> MutexGuard<'_, HashMap<PathBuf, CommitId>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the source is read from, and what git finds around itself there.
    async fn reach(&self, source: &Source) -> Result<(GitUrl, Surroundings), Error> {
        let place = rewritten(&source.url, &self.options.rewrites);
        let addresses = if place == source.url {
            self.options.addresses
        } else {
            self.options.addresses.for_named_place()
        };
        let remote = Remote::parse(&place)?.check(self.options.file_urls, addresses).await?;
        let mut surroundings = Surroundings::new(
            &self.options.cache_dir.join("private"),
            &self.options.search_path,
            Network { protocols: vec![remote.protocol()], pinned: remote.curl_pin() },
        )?;
        source.credentials.install(&remote, &mut surroundings)?;
        Ok((place, surroundings))
    }

    fn local<'a>(&'a self, mirror: &'a Mirror, doing: &'static str) -> Invocation<'a> {
        self.invocation(&self.local, Some(&mirror.dir), mirror.url.as_str(), doing)
    }

    fn invocation<'a>(
        &'a self,
        surroundings: &'a Surroundings,
        repository: Option<&'a Path>,
        subject: &'a str,
        doing: &'static str,
    ) -> Invocation<'a> {
        Invocation {
            program: &self.program,
            surroundings,
            repository,
            subject,
            doing,
            timeout: self.options.timeout,
        }
    }

    fn mirror_dir(&self, source: &Source) -> PathBuf {
        let key = Sha256::of(format!("{} {}", source.tenant, source.url).as_bytes());
        self.options
            .cache_dir
            .join("mirrors")
            .join(format!("{}.git", key.as_str().get(..32).unwrap_or_default()))
    }

    fn turn(&self, dir: &Path) -> Arc<tokio::sync::Mutex<()>> {
        let mut fetches = self.fetches.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(fetches.entry(dir.to_owned()).or_default())
    }
}

pub(crate) fn find_program(program: &Path, search_path: &std::ffi::OsStr) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return Some(program.to_owned());
    }
    std::env::split_paths(search_path).map(|dir| dir.join(program)).find(|candidate| candidate.is_file())
}

/// Holds an exclusive lock on a file until the returned handle is dropped.
async fn lock_file(path: PathBuf) -> Result<std::fs::File, Error> {
    let doing = "lock a mirror";
    tokio::task::spawn_blocking(move || {
        let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        file.lock()?;
        Ok(file)
    })
    .await
    .map_err(|stopped| Error::Io { doing, source: std::io::Error::other(stopped) })?
    .map_err(Error::io(doing))
}

/// A git that was just killed may still leave a file behind the one who removes, so it is removed again a few times.
async fn remove_dir(dir: &Path) -> Result<(), Error> {
    let mut tries = 0;
    loop {
        match tokio::fs::remove_dir_all(dir).await {
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty && tries < 50 => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::Io { doing: "remove a mirror", source: error });
            }
            Ok(()) | Err(_) => return Ok(()),
        }
    }
}
