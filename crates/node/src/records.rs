//! What the node and the shims write down, and where: the only memory that outlives a crash of either.
//!
//! ```text
//! <state>/lock                                   held by the one node that uses this directory
//! <state>/pods/<pod uid>/pod.json                PodRecord: directory, user, stop order
//! <state>/pods/<pod uid>/<container>/<attempt>/  one start of one container
//!     intent.json   written by the node before anything else
//!     launch.json   command, environment and confinement; holds secrets, removed once the child runs
//!     lock          held by the shim for as long as it lives
//!     state.json    written by the shim: Starting before the child exists, Running when it counts as started
//!     exit.json     written when nothing of the container is left
//!     log.000001…   its output
//! ```
//!
//! An attempt that has a `state.json` or an `exit.json` is never launched again. That one rule is why nothing is
//! started twice. Nothing here talks to the API or starts a process.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::fs::FlockOperation;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::isolation::Confinement;
use crate::process::{Process, boot_id};

/// How long a lock may outlive its holder: a process that is killed while it starts a shim leaves the lock with that child until
/// the child's own program begins.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
const LOCK_PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("the record {} cannot be understood ({source}); it was written by another version or damaged", path.display())]
    Malformed { path: PathBuf, source: serde_json::Error },
    #[error("{} is in use by another process{}; two nodes must not share a directory", path.display(), holder.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    InUse { path: PathBuf, holder: Option<u32> },
}

/// What the node means to start; without secrets, kept as long as the attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    pub boot_id: String,
    pub image: String,
    pub image_id: String,
    /// How many times the restart back-off has doubled before this attempt.
    pub backoff: u32,
}

/// Everything a shim needs. Holds the container's environment, so the file has mode 0600 and a short life.
#[derive(Clone, Serialize, Deserialize)]
pub struct Launch {
    pub program: PathBuf,
    /// The name under which the program is told that it was called.
    pub argv0: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub directory: PathBuf,
    pub confinement: Confinement,
    pub log: LogLimits,
    pub termination: Termination,
}

impl std::fmt::Debug for Launch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Arguments and environment may hold secrets and stay out of every log.
        f.debug_struct("Launch").field("program", &self.program).finish_non_exhaustive()
    }
}

/// When the newest segment is full another is begun; the oldest beyond `segments` is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLimits {
    pub segment_bytes: u64,
    pub segments: u32,
}

impl Default for LogLimits {
    /// A kubelet's own defaults.
    fn default() -> LogLimits {
        LogLimits { segment_bytes: 10 << 20, segments: 5 }
    }
}

/// Where the message of a terminated container comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Termination {
    pub path: PathBuf,
    pub fallback: Fallback,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fallback {
    Nothing,
    /// The end of the log, when the container failed and left no message.
    LogsOnError,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub boot_id: String,
    pub shim: Process,
    pub main: Option<Started>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    pub process: Process,
    pub at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub how: How,
    pub started_at: Option<Timestamp>,
    pub finished_at: Timestamp,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    Code(i32),
    Signal(i32),
    /// The program could not be started at all.
    NotStarted,
    /// The machine or the shim went away first. Whatever the container did, nobody saw how it ended.
    Unknown,
}

/// What is known of one attempt now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    /// Written down and not yet taken up by a shim: launching it (again) is safe.
    Intended,
    /// A shim has it; the child does not count as started yet.
    Starting {
        shim: Option<Process>,
    },
    Running {
        shim: Process,
        main: Process,
        started_at: Timestamp,
    },
    /// The shim is gone and recorded no exit; what it left behind may still run.
    Lost {
        state: State,
    },
    Exited(Exit),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRecord {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// What the pod's processes see: volumes, home, temporary files.
    pub directory: PathBuf,
    /// The user and group that the pod has for itself, when the node runs as root.
    pub owner: Option<u32>,
    pub stop: Option<Stop>,
    /// Directory and user are given back; what remains is the log and how it ended.
    pub released: bool,
}

/// The order to end a pod, written down so that a restarted node carries on with the same deadline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    pub cause: Cause,
    pub at: Timestamp,
    pub grace_seconds: i64,
    /// The containers whose main process has been told.
    pub signalled: BTreeSet<String>,
}

impl Stop {
    pub fn new(cause: Cause, at: Timestamp, grace_seconds: i64) -> Stop {
        Stop { cause, at, grace_seconds, signalled: BTreeSet::new() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// Somebody deleted the pod, gracefully or not.
    Deleted,
    /// `activeDeadlineSeconds` has passed.
    DeadlineExceeded,
}

/// The node's private directory.
#[derive(Debug, Clone)]
pub struct Records {
    root: PathBuf,
}

/// The directory of one start of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptDir {
    path: PathBuf,
}

/// Held as long as the value lives; the kernel releases it when the process dies.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Records {
    pub fn open(root: &Path) -> Result<Records, Error> {
        make_private_directory(&root.join("pods"))?;
        Ok(Records { root: root.to_owned() })
    }

    /// Claims the directory for one node, and leaves its process id for whoever finds it taken.
    pub fn lock(&self) -> Result<Lock, Error> {
        let path = self.root.join("lock");
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            match try_lock(&path)? {
                Some(lock) => {
                    // A courtesy only; without room for it the lock still holds.
                    let _ = fs::write(&path, format!("{}\n", std::process::id()));
                    return Ok(lock);
                }
                None if Instant::now() < deadline => std::thread::park_timeout(LOCK_PAUSE),
                None => {
                    let holder = fs::read_to_string(&path).ok().and_then(|pid| pid.trim().parse().ok());
                    return Err(Error::InUse { path, holder });
                }
            }
        }
    }

    fn pod(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    /// The pods of which something is written down. O(pods of this node).
    pub fn pod_list(&self) -> Result<Vec<PodRecord>, Error> {
        let mut records = Vec::new();
        for uid in directories(&self.root.join("pods"))? {
            if let Some(record) = self.pod_get(&uid)? {
                records.push(record);
            }
        }
        Ok(records)
    }

    pub fn pod_get(&self, uid: &str) -> Result<Option<PodRecord>, Error> {
        read_json(&self.pod(uid).join("pod.json"))
    }

    pub fn pod_put(&self, record: &PodRecord) -> Result<(), Error> {
        make_private_directory(&self.pod(&record.uid))?;
        write_json(&self.pod(&record.uid).join("pod.json"), record)
    }

    pub fn pod_remove(&self, uid: &str) -> Result<(), Error> {
        remove_tree(&self.pod(uid))
    }

    pub fn attempt(&self, uid: &str, container: &str, attempt: u32) -> AttemptDir {
        AttemptDir { path: self.pod(uid).join(container).join(attempt.to_string()) }
    }

    /// The containers of which attempts are kept.
    pub fn containers(&self, uid: &str) -> Result<Vec<String>, Error> {
        directories(&self.pod(uid))
    }

    /// The numbers of the attempts that are kept, ascending.
    pub fn attempts(&self, uid: &str, container: &str) -> Result<Vec<u32>, Error> {
        let names = directories(&self.pod(uid).join(container))?;
        let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }
}

impl AttemptDir {
    pub fn at(path: &Path) -> AttemptDir {
        AttemptDir { path: path.to_owned() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn launch_path(&self) -> PathBuf {
        self.path.join("launch.json")
    }

    /// Writes all that a shim needs, and then the intent to carry it out. Both are on disk when this returns.
    pub fn prepare(&self, intent: &Intent, launch: &Launch) -> Result<(), Error> {
        make_private_directory(&self.path)?;
        write_json(&self.launch_path(), launch)?;
        write_json(&self.path.join("intent.json"), intent)
    }

    pub fn intent(&self) -> Result<Option<Intent>, Error> {
        read_json(&self.path.join("intent.json"))
    }

    pub fn launch(&self) -> Result<Option<Launch>, Error> {
        read_json(&self.launch_path())
    }

    pub fn forget_launch(&self) -> Result<(), Error> {
        let path = self.launch_path();
        match fs::remove_file(&path) {
            Ok(()) => Ok(()),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(Error::Io { doing: "could not remove", path, source }),
        }
    }

    pub fn state(&self) -> Result<Option<State>, Error> {
        read_json(&self.path.join("state.json"))
    }

    pub fn put_state(&self, state: &State) -> Result<(), Error> {
        write_json(&self.path.join("state.json"), state)
    }

    /// Whether a shim has got as far as to start the container, or has said why not.
    pub fn has_begun(&self) -> Result<bool, Error> {
        let runs = self.state()?.is_some_and(|state| state.main.is_some());
        Ok(runs || self.exit()?.is_some())
    }

    pub fn exit(&self) -> Result<Option<Exit>, Error> {
        read_json(&self.path.join("exit.json"))
    }

    pub fn put_exit(&self, exit: &Exit) -> Result<(), Error> {
        make_private_directory(&self.path)?;
        write_json(&self.path.join("exit.json"), exit)
    }

    /// An attempt that ended before it began.
    pub fn put_exit_of(&self, intent: &Intent, exit: &Exit) -> Result<(), Error> {
        make_private_directory(&self.path)?;
        self.put_exit(exit)?;
        write_json(&self.path.join("intent.json"), intent)
    }

    /// `None` while somebody else holds it.
    pub fn try_lock(&self) -> Result<Option<Lock>, Error> {
        try_lock(&self.path.join("lock"))
    }

    pub fn remove(&self) -> Result<(), Error> {
        remove_tree(&self.path)
    }

    /// `None` when nothing was ever intended here.
    pub fn observe(&self) -> Result<Option<Attempt>, Error> {
        if let Some(exit) = self.exit()? {
            return Ok(Some(Attempt::Exited(exit)));
        }
        if self.intent()?.is_none() {
            return Ok(None);
        }
        // The lock is asked before the files are read: a shim that ends in between has written its exit by then.
        let shim_is_gone = self.try_lock()?.is_some();
        let state = self.state()?;
        if let Some(exit) = self.exit()? {
            return Ok(Some(Attempt::Exited(exit)));
        }
        Ok(Some(match (state, shim_is_gone) {
            (None, true) => Attempt::Intended,
            (None, false) => Attempt::Starting { shim: None },
            (Some(state), true) => Attempt::Lost { state },
            (Some(State { shim, main: None, .. }), false) => Attempt::Starting { shim: Some(shim) },
            (Some(State { shim, main: Some(main), .. }), false) => {
                Attempt::Running { shim, main: main.process, started_at: main.at }
            }
        }))
    }
}

impl State {
    /// Whether the processes it names can still exist.
    pub fn is_of_this_boot(&self) -> Result<bool, Error> {
        let path = PathBuf::from("/proc/sys/kernel/random/boot_id");
        let now = boot_id().map_err(|source| Error::Io { doing: "could not read", path, source })?;
        Ok(now == self.boot_id)
    }
}

fn try_lock(path: &Path) -> Result<Option<Lock>, Error> {
    let fail = |doing| move |source| Error::Io { doing, path: path.to_owned(), source };
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(fail("could not open"))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(Lock { _file: file })),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(fail("could not lock")(errno.into())),
    }
}

pub(crate) fn make_private_directory(path: &Path) -> Result<(), Error> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|source| Error::Io {
        doing: "could not make",
        path: path.to_owned(),
        source,
    })
}

pub(crate) fn remove_tree(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(Error::Io { doing: "could not remove", path: path.to_owned(), source }),
    }
}

fn directories(path: &Path) -> Result<Vec<String>, Error> {
    let fail = |source| Error::Io { doing: "could not list", path: path.to_owned(), source };
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(fail(source)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(fail)?;
        if entry.file_type().map_err(fail)?.is_dir() {
            names.extend(entry.file_name().to_str().map(str::to_owned));
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::Io { doing: "could not read", path: path.to_owned(), source }),
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|source| Error::Malformed { path: path.to_owned(), source })
}

/// Readers see the old file or the new one, whole, and the new one is on disk when this returns.
fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), Error> {
    let bytes =
        serde_json::to_vec(value).map_err(|source| Error::Malformed { path: path.to_owned(), source })?;
    let write = || -> io::Result<()> {
        let temporary = path.with_extension(format!("{}.tmp", rustix::process::getpid().as_raw_pid()));
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        match path.parent() {
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        }
    };
    write().map_err(|source| Error::Io { doing: "could not write", path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn attempt() -> (tempfile::TempDir, AttemptDir) {
        let root = tempfile::tempdir().unwrap();
        let records = Records::open(root.path()).unwrap();
        let attempt = records.attempt("uid", "main", 0);
        (root, attempt)
    }

    fn launch() -> Launch {
        Launch {
            program: "/bin/true".into(),
            argv0: "true".into(),
            args: vec![],
            env: vec![("TOKEN".into(), "secret".into())],
            directory: "/".into(),
            confinement: Confinement::None,
            log: LogLimits::default(),
            termination: Termination { path: "/dev/null".into(), fallback: Fallback::Nothing },
        }
    }

    fn intent() -> Intent {
        Intent { boot_id: "b".into(), image: "i".into(), image_id: "i".into(), backoff: 0 }
    }

    #[test]
    fn an_attempt_goes_from_nothing_to_intended_to_lost_as_the_files_say() {
        let (_root, attempt) = attempt();
        assert_eq!(attempt.observe().unwrap(), None);
        attempt.prepare(&intent(), &launch()).unwrap();
        assert_eq!(attempt.observe().unwrap(), Some(Attempt::Intended));

        let lock = attempt.try_lock().unwrap().unwrap();
        assert_eq!(attempt.observe().unwrap(), Some(Attempt::Starting { shim: None }));
        let me = Process::current().unwrap();
        let state = State { boot_id: boot_id().unwrap(), shim: me, main: None };
        attempt.put_state(&state).unwrap();
        assert_eq!(attempt.observe().unwrap(), Some(Attempt::Starting { shim: Some(me) }));
        assert!(!attempt.has_begun().unwrap());
        let running = State { main: Some(Started { process: me, at: Timestamp::UNIX_EPOCH }), ..state };
        attempt.put_state(&running).unwrap();
        assert!(matches!(attempt.observe().unwrap(), Some(Attempt::Running { main, .. }) if main == me));
        assert!(attempt.has_begun().unwrap());
        drop(lock);
        assert_eq!(attempt.observe().unwrap(), Some(Attempt::Lost { state: running }));
    }

    #[test]
    fn secrets_of_a_launch_are_readable_by_the_owner_alone_and_not_shown() {
        use std::os::unix::fs::PermissionsExt;
        let (_root, attempt) = attempt();
        attempt.prepare(&intent(), &launch()).unwrap();
        let mode = fs::metadata(attempt.launch_path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!format!("{:?}", attempt.launch().unwrap()).contains("secret"));
        attempt.forget_launch().unwrap();
        attempt.forget_launch().unwrap();
        assert!(attempt.launch().unwrap().is_none());
    }

    #[test]
    fn two_nodes_cannot_use_one_directory() {
        let root = tempfile::tempdir().unwrap();
        let records = Records::open(root.path()).unwrap();
        let held = records.lock().unwrap();
        let refused = records.lock().unwrap_err();
        let pid = std::process::id();
        let why = format!("is in use by another process (pid {pid}); two nodes must not share a directory");
        assert!(refused.to_string().ends_with(&why), "{refused}");
        drop(held);
        records.lock().unwrap();
    }
}
