//! The process between the node and one container: it starts the child, keeps its output, outlives the node, and
//! writes down how the container ended once nothing of it is left.
//!
//! It is the same executable, called as `<program> shim <attempt directory>`; everything else, secrets above all,
//! comes from a file in that directory and never through arguments or environment. It knows nothing of Kubernetes.
//!
//! Signals it understands: `TERM` is passed to the container's main process, `USR1` kills everything at once.

mod output;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use rustix::process::{Signal, WaitOptions, WaitStatus};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};

use crate::isolation::Confinement;
use crate::logs::{self, Stream};
use crate::process::{self, Process, boot_id};
use crate::records::{AttemptDir, Exit, Fallback, How, Launch, Lock, Started, State, Termination};

/// How long to wait for the lock. Others hold it only for the moment of asking whether a shim is there.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Between two rounds of killing, when no death was reported meanwhile.
const KILL_PAUSE: Duration = Duration::from_millis(20);
const RECORD_PAUSE: Duration = Duration::from_secs(1);
/// As a kubelet limits them.
const MESSAGE_BYTES: u64 = 4096;
const MESSAGE_LOG_BYTES: usize = 2048;
const MESSAGE_LOG_LINES: usize = 80;

/// By how much containers give way to whoever serves people on this machine, where there is not time for both: what they do takes minutes, and
/// a page is looked at by somebody who waits.
const NICENESS: i32 = 5;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the shim takes one argument, the directory of an attempt")]
    Usage,
    #[error("another shim has this attempt, or it was started before; nothing is started twice")]
    Taken,
    #[error("{} holds no launch record", .0.display())]
    NothingToLaunch(std::path::PathBuf),
    #[error(transparent)]
    Records(#[from] crate::records::Error),
    #[error("{doing}: {source}")]
    Io { doing: &'static str, source: io::Error },
}

fn doing(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { doing, source }
}

/// What the hidden subcommand of the binary runs.
pub fn main(args: impl IntoIterator<Item = std::ffi::OsString>) -> ExitCode {
    let mut args = args.into_iter();
    let outcome = match (args.next(), args.next()) {
        (Some(directory), None) => run(Path::new(&directory)),
        _ => Err(Error::Usage),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::<()>(Err(error));
            ExitCode::FAILURE
        }
    }
}

fn run(directory: &Path) -> Result<(), Error> {
    // First of all, so that a Ctrl-C meant for the node does not reach the container.
    rustix::process::setsid().map_err(|errno| doing("could not begin a session")(errno.into()))?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|errno| doing("could not become the reaper of orphans")(errno.into()))?;
    // Groups are per pod as well; what a container leaves in a shared place is nobody else's to read.
    rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o027));

    let attempt = AttemptDir::at(directory);
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(doing("could not begin to wait for signals"))?
        .block_on(claim_and_supervise(&attempt))
}

async fn claim_and_supervise(attempt: &AttemptDir) -> Result<(), Error> {
    let _lock = take_lock(attempt).await?;
    if attempt.state()?.is_some() || attempt.exit()?.is_some() {
        return Err(Error::Taken);
    }
    let launch = attempt.launch()?.ok_or_else(|| Error::NothingToLaunch(attempt.path().to_owned()))?;
    supervise(attempt, launch).await
}

async fn take_lock(attempt: &AttemptDir) -> Result<Lock, Error> {
    let mut waited = Duration::ZERO;
    loop {
        if let Some(lock) = attempt.try_lock()? {
            return Ok(lock);
        }
        if waited >= LOCK_PATIENCE {
            return Err(Error::Taken);
        }
        tokio::time::sleep(LOCK_PAUSE).await;
        waited += LOCK_PAUSE;
    }
}

async fn supervise(attempt: &AttemptDir, launch: Launch) -> Result<(), Error> {
    let listen = |kind| signal(kind).map_err(doing("could not listen for signals"));
    let mut child_died = listen(SignalKind::child())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut kill = listen(SignalKind::user_defined1())?;
    // Heard and ignored: a hang-up or an interrupt is for the node.
    let _interrupt = listen(SignalKind::interrupt())?;
    let _hangup = listen(SignalKind::hangup())?;

    let shim = Process::current().map_err(doing("could not read the process table"))?;
    let boot_id = boot_id().map_err(doing("could not read the boot id"))?;
    attempt.put_state(&State { boot_id: boot_id.clone(), shim, main: None })?;

    let termination = launch.termination.clone();
    let limits = launch.log;
    let started_at = Timestamp::now();
    let child = match start(launch) {
        Ok(child) => child,
        Err(message) => {
            attempt.forget_launch()?;
            let exit =
                Exit { how: How::NotStarted, started_at: None, finished_at: Timestamp::now(), message };
            return Ok(attempt.put_exit(&exit)?);
        }
    };
    // The child is not waited for yet, so even if it has ended its entry is still there.
    let main = process::identify(child.pid)
        .map_err(doing("could not read the process table"))?
        .ok_or(Error::Io { doing: "could not find the child", source: io::ErrorKind::NotFound.into() })?;
    let running = State { boot_id, shim, main: Some(Started { process: main, at: started_at }) };
    persist(|| attempt.put_state(&running)).await;
    persist(|| attempt.forget_launch()).await;

    let mut output = Output::new(child, output::Writer::new(attempt.path(), limits))?;
    let mut ending = Ending { main: main.pid, status: None, killing: false };
    loop {
        if ending.reap()? == Remaining::Nothing {
            break;
        }
        if ending.killing {
            report(kill_descendants(shim.pid));
        }
        tokio::select! {
            () = output.copy() => {}
            _ = child_died.recv() => {}
            _ = terminate.recv() => {
                // Its death, if it comes first, is noticed on the next round.
                report(main.signal(Signal::TERM).map_err(doing("could not signal the container")));
            }
            _ = kill.recv() => ending.killing = true,
            () = tokio::time::sleep(KILL_PAUSE), if ending.killing => {}
        }
    }
    output.drain();
    record_exit(attempt, &mut output.writer, ending.how(), started_at, &termination).await;
    Ok(())
}

/// How it began and how it ended must not be lost: on a full disk the shim waits until it can be written.
async fn persist(mut write: impl FnMut() -> Result<(), crate::records::Error>) {
    while let Err(error) = write() {
        report::<()>(Err(error.into()));
        tokio::time::sleep(RECORD_PAUSE).await;
    }
}

/// For what must not end the shim, because the container would be without one. The node keeps this stream.
fn report<T>(outcome: Result<T, Error>) {
    if let Err(error) = outcome {
        let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("shim: {error}\n"));
    }
}

async fn record_exit(
    attempt: &AttemptDir,
    writer: &mut output::Writer,
    how: How,
    started_at: Timestamp,
    termination: &Termination,
) {
    let finished_at = Timestamp::now();
    report(writer.finish(finished_at).map_err(doing("could not keep the whole log")));
    let message = termination_message(attempt.path(), how, termination);
    let exit = Exit { how, started_at: Some(started_at), finished_at, message };
    persist(|| attempt.put_exit(&exit)).await;
}

struct Child {
    pid: i32,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

/// Landlock domains, `no_new_privs` and niceness belong to a thread. A thread of its own enters them, starts the child that
/// inherits them, and ends, while the shim itself stays free to write its records.
fn start(launch: Launch) -> Result<Child, String> {
    let spawn = move || -> Result<Child, String> {
        launch.confinement.enter().map_err(|error| format!("could not confine the container: {error}"))?;
        report(
            rustix::process::nice(NICENESS)
                .map_err(|errno| doing("could not lower its priority")(errno.into())),
        );
        let mut command = Command::new(&launch.program);
        command
            .arg0(&launch.argv0)
            .args(&launch.args)
            .env_clear()
            .envs(launch.env.iter().map(|(name, value)| (name, value)))
            .current_dir(&launch.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        match launch.confinement {
            Confinement::User { id } => {
                command.uid(id).gid(id);
            }
            Confinement::Landlock { .. } | Confinement::None => {}
        }
        let child = command.spawn().map_err(|error| {
            format!("could not start {:?} in {}: {error}", launch.argv0, launch.directory.display())
        })?;
        let pid = i32::try_from(child.id()).map_err(|error| error.to_string())?;
        match (child.stdout, child.stderr) {
            (Some(stdout), Some(stderr)) => Ok(Child { pid, stdout: stdout.into(), stderr: stderr.into() }),
            _ => Err("the child has no output".to_owned()),
        }
    };
    std::thread::spawn(spawn).join().unwrap_or_else(|_| Err("the starting thread failed".to_owned()))
}

struct Output {
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
    writer: output::Writer,
}

impl Output {
    fn new(child: Child, writer: output::Writer) -> Result<Output, Error> {
        let open =
            |fd| pipe::Receiver::from_owned_fd(fd).map_err(doing("could not read the container's output"));
        Ok(Output { stdout: Some(open(child.stdout)?), stderr: Some(open(child.stderr)?), writer })
    }

    /// Copies one piece of either stream. Waits for ever once both have ended. Dropping it half way loses nothing.
    async fn copy(&mut self) {
        let (mut out, mut err) = (Vec::with_capacity(1 << 16), Vec::with_capacity(1 << 16));
        tokio::select! {
            open = read(&mut self.stdout, &mut out) => {
                self.writer.push(Stream::Stdout, &out, Timestamp::now());
                if open == Pipe::Ended { self.stdout = None; }
            }
            open = read(&mut self.stderr, &mut err) => {
                self.writer.push(Stream::Stderr, &err, Timestamp::now());
                if open == Pipe::Ended { self.stderr = None; }
            }
        }
    }

    /// Takes what is left in the pipes without waiting for their end: a process that is no descendant may have been
    /// handed one of them.
    fn drain(&mut self) {
        let mut buffer = vec![0_u8; 1 << 16];
        for (stream, pipe) in [(Stream::Stdout, self.stdout.take()), (Stream::Stderr, self.stderr.take())] {
            let Some(pipe) = pipe else { continue };
            // Read directly: the runtime may not have heard of what came last. The pipe does not block.
            while let Ok(count @ 1..) = rustix::io::read(&pipe, &mut buffer) {
                self.writer.push(stream, buffer.get(..count).unwrap_or_default(), Timestamp::now());
            }
        }
    }
}

#[derive(PartialEq, Eq)]
enum Pipe {
    Open,
    Ended,
}

async fn read(pipe: &mut Option<pipe::Receiver>, buffer: &mut Vec<u8>) -> Pipe {
    match pipe {
        None => std::future::pending().await,
        Some(pipe) => match pipe.read_buf(buffer).await {
            Ok(0) | Err(_) => Pipe::Ended,
            Ok(_) => Pipe::Open,
        },
    }
}

#[derive(PartialEq, Eq)]
enum Remaining {
    Something,
    Nothing,
}

struct Ending {
    main: i32,
    status: Option<WaitStatus>,
    killing: bool,
}

impl Ending {
    /// Collects the dead. When the main process is among them the rest must go too, as in a pid namespace.
    fn reap(&mut self) -> Result<Remaining, Error> {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if pid.as_raw_pid() == self.main {
                        self.status = Some(status);
                        self.killing = true;
                    }
                }
                Ok(None) => return Ok(Remaining::Something),
                Err(rustix::io::Errno::CHILD) => return Ok(Remaining::Nothing),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(doing("could not wait for the container")(errno.into())),
            }
        }
    }

    fn how(&self) -> How {
        match self.status {
            Some(status) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => How::Code(code),
                (None, Some(signal)) => How::Signal(signal),
                (None, None) => How::Unknown,
            },
            None => How::Unknown,
        }
    }
}

/// One round; orphans of those killed become children of this subreaper and are found by the next one.
fn kill_descendants(shim: i32) -> Result<(), Error> {
    let table = process::table().map_err(doing("could not read the process table"))?;
    for entry in process::descendants(&table, shim) {
        // Children of this process keep their pid until they are waited for, and deeper ones were seen a moment ago
        // below us; the pidfd makes sure that it is still them.
        if entry.state == process::State::Alive {
            entry.process.signal(Signal::KILL).map_err(doing("could not kill a process of the container"))?;
        }
    }
    Ok(())
}

fn termination_message(directory: &Path, how: How, termination: &Termination) -> String {
    let mut message = Vec::new();
    let opened = rustix::fs::open(
        &termination.path,
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK,
        rustix::fs::Mode::empty(),
    );
    if let Ok(file) = opened {
        // A message that cannot be read is an empty one: it must not hold up the exit.
        let _ = io::Read::read_to_end(
            &mut io::Read::take(std::fs::File::from(file), MESSAGE_BYTES),
            &mut message,
        );
    }
    let failed = how != How::Code(0);
    match termination.fallback {
        Fallback::LogsOnError if failed && message.is_empty() => {
            logs::end_of(directory, MESSAGE_LOG_LINES, MESSAGE_LOG_BYTES)
        }
        Fallback::LogsOnError | Fallback::Nothing => String::from_utf8_lossy(&message).into_owned(),
    }
}

/// For the node, when a shim is gone and left processes behind: whatever is still found of the container.
///
/// With a user of its own every process of that user belongs to the pod, save what other living shims look after.
/// Otherwise only the shim's session and the tree below the main process can be told from the user's other processes.
pub(crate) fn leftovers(state: &State, owner: Option<u32>, others: &[Process]) -> io::Result<Vec<Process>> {
    let table = process::table()?;
    let mut found: Vec<Process> = match owner {
        Some(uid) => {
            let looked_after: Vec<Process> = others
                .iter()
                .flat_map(|shim| process::descendants(&table, shim.pid))
                .map(|entry| entry.process)
                .collect();
            alive(&table)
                .filter(|entry| entry.uid == uid && !looked_after.contains(&entry.process))
                .map(|entry| entry.process)
                .collect()
        }
        None => {
            let main = state.main.as_ref().map(|main| main.process);
            let below_main = main
                .filter(|main| table.iter().any(|entry| entry.process == *main))
                .map(|main| process::descendants(&table, main.pid))
                .unwrap_or_default();
            alive(&below_main)
                .chain(alive(&table).filter(|entry| entry.session == state.shim.pid))
                .map(|entry| entry.process)
                .collect()
        }
    };
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

fn alive(entries: &[process::Entry]) -> impl Iterator<Item = &process::Entry> {
    entries.iter().filter(|entry| entry.state == process::State::Alive)
}
