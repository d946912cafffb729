//! One run of a tool as a process: its own process group, its output line by line, its end by signal. A tool that is
//! asked to stop gets one interrupt (a second would make it drop its state), then patience, then its whole family is
//! killed.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use secrecy::{ExposeSecret, SecretString};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::terragrunt::is_command_of;

/// Longer lines are cut into pieces of about this size.
const LINE_LIMIT: usize = 256 * 1024;

/// The name of the variable that marks every process of an attempt, so that descendants who left the group are found.
pub const MARK: &str = "TERRANE_ATTEMPT";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("could not start {program}: {source}")]
    Start { program: String, source: std::io::Error },
    #[error("could not read what {program} says: {source}")]
    Output { program: String, source: std::io::Error },
}

/// Whether an attempt should go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    #[default]
    GoOn,
    Stop,
}

/// Everything around a process that is the same for all commands of an attempt.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// The whole environment; nothing is inherited.
    pub environment: Vec<(OsString, OsString)>,
    /// The value of [`MARK`], unique to the attempt.
    pub mark: String,
    pub stop: watch::Receiver<Wish>,
    /// How long a tool may take to stop after its interrupt.
    pub grace: Duration,
    /// What no cut of a long line goes through: who hides values sees one piece after the other, and half a value in none.
    pub whole: Arc<[SecretString]>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Absent when a signal ended it.
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// It was asked to stop before it ended.
    pub interrupted: bool,
}

/// Which stream a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Out,
    Err,
}

/// Receives lines, without their ends.
pub type Lines<'a> = &'a mut (dyn FnMut(Stream, &str) + Send);

/// Runs a program to its end.
pub async fn run(
    program: &Path,
    arguments: &[OsString],
    directory: &Path,
    surroundings: &Surroundings,
    lines: Lines<'_>,
) -> Result<Ended, Error> {
    run_family(program, None, arguments, directory, surroundings, lines).await
}

/// Runs a program that lets another one do the work. A stop is told to the worker: a wrapper that is interrupted kills its worker
/// half a minute later, whatever state it has to save.
pub async fn run_wrapper(
    program: &Path,
    worker: &Path,
    arguments: &[OsString],
    directory: &Path,
    surroundings: &Surroundings,
    lines: Lines<'_>,
) -> Result<Ended, Error> {
    run_family(program, Some(worker), arguments, directory, surroundings, lines).await
}

async fn run_family(
    program: &Path,
    worker: Option<&Path>,
    arguments: &[OsString],
    directory: &Path,
    surroundings: &Surroundings,
    lines: Lines<'_>,
) -> Result<Ended, Error> {
    let name = program.display().to_string();
    // A program inherits that interrupts are ignored, as they are below a shell's `&`, and then none would stop it. It does not inherit
    // that somebody listens to them.
    let _listening = signal(SignalKind::interrupt());
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .env_clear()
        .envs(surroundings.environment.iter().map(|(name, value)| (name, value)))
        .env(MARK, &surroundings.mark)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| Error::Start { program: name.clone(), source })?;
    let family = Family::of(&child, &surroundings.mark);
    let mut out = Reader::new(child.stdout.take(), &surroundings.whole);
    let mut err = Reader::new(child.stderr.take(), &surroundings.whole);
    let mut stop = surroundings.stop.clone();
    let mut interrupted = false;
    let mut kill_at = None;
    let mut workers = worker.map(Workers::new);
    let ended = loop {
        tokio::select! {
            // Lines last: one who talks without end can be stopped all the same, and what was said before the end is read after it.
            biased;
            () = wished(&mut stop), if !interrupted => {
                interrupted = true;
                match workers.as_mut() {
                    Some(workers) => workers.begin(),
                    None => family.interrupt(),
                }
                kill_at = Some(tokio::time::Instant::now() + surroundings.grace);
            }
            () = at(workers.as_ref().and_then(|workers| workers.look_at)), if interrupted && workers.is_some() => {
                if let Some(workers) = workers.as_mut() {
                    workers.look(&family);
                }
            }
            () = at(kill_at), if kill_at.is_some() => {
                kill_at = None;
                family.kill();
            }
            status = child.wait() => break status,
            piece = out.next(), if !out.done => tell(piece, Stream::Out, lines, &name)?,
            piece = err.next(), if !err.done => tell(piece, Stream::Err, lines, &name)?,
        }
    };
    let status = ended.map_err(|source| Error::Output { program: name.clone(), source })?;
    // A background process can hold the pipes open for ever; with the family dead they end. Dropped, because looking for them all a
    // second time costs as much as the first.
    drop(family);
    drain(&mut out, Stream::Out, lines, &name).await?;
    drain(&mut err, Stream::Err, lines, &name).await?;
    use std::os::unix::process::ExitStatusExt;
    Ok(Ended { code: status.code(), signal: status.signal(), interrupted })
}

fn tell(
    piece: std::io::Result<Vec<String>>,
    stream: Stream,
    lines: Lines<'_>,
    program: &str,
) -> Result<(), Error> {
    let piece = piece.map_err(|source| Error::Output { program: program.to_owned(), source })?;
    for line in piece {
        lines(stream, &line);
    }
    Ok(())
}

async fn drain<R: AsyncRead + Unpin>(
    reader: &mut Reader<'_, R>,
    stream: Stream,
    lines: Lines<'_>,
    program: &str,
) -> Result<(), Error> {
    while !reader.done {
        tell(reader.next().await, stream, lines, program)?;
    }
    Ok(())
}

async fn wished(stop: &mut watch::Receiver<Wish>) {
    if stop.wait_for(|wish| *wish == Wish::Stop).await.is_err() {
        // Whoever could ask is gone: nobody will.
        std::future::pending::<()>().await;
    }
}

async fn at(moment: Option<tokio::time::Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

struct Reader<'a, R> {
    stream: Option<R>,
    pending: Vec<u8>,
    done: bool,
    whole: &'a [SecretString],
}

impl<'a, R: AsyncRead + Unpin> Reader<'a, R> {
    fn new(stream: Option<R>, whole: &'a [SecretString]) -> Self {
        Self { done: stream.is_none(), stream, pending: Vec::new(), whole }
    }

    /// The lines that one read completes. Safe to drop while it waits: nothing is taken before it is kept.
    async fn next(&mut self) -> std::io::Result<Vec<String>> {
        let Some(stream) = self.stream.as_mut() else {
            self.done = true;
            return Ok(Vec::new());
        };
        let size = stream.read_buf(&mut self.pending).await?;
        if size == 0 {
            self.done = true;
            self.stream = None;
        }
        Ok(self.take_lines())
    }

    fn take_lines(&mut self) -> Vec<String> {
        // Only with so much behind the limit is it known whether a value goes across it.
        let longest = self.whole.iter().map(|value| value.expose_secret().len()).max().unwrap_or(0);
        let mut lines = Vec::new();
        let mut rest = self.pending.as_slice();
        while !rest.is_empty() {
            let end = rest.iter().position(|byte| *byte == b'\n');
            let line = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
            let is_all = end.is_some() || self.done;
            if line.len() > LINE_LIMIT && (is_all || line.len() >= LINE_LIMIT + longest) {
                let (piece, after) = rest.split_at(place_to_cut(line, self.whole));
                lines.push(String::from_utf8_lossy(piece).into_owned());
                rest = after;
            } else if is_all {
                lines.push(text_of(line));
                rest = end.and_then(|end| rest.get(end + 1..)).unwrap_or_default();
            } else {
                break;
            }
        }
        let taken = self.pending.len() - rest.len();
        self.pending.drain(..taken);
        lines
    }
}

fn text_of(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    String::from_utf8_lossy(line).into_owned()
}

/// Where a line longer than the limit is cut: between two characters, and through none of the values. O(limit · values).
fn place_to_cut(line: &[u8], whole: &[SecretString]) -> usize {
    let is_within_character =
        |at: &usize| line.get(*at).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000);
    let furthest_back = LINE_LIMIT - 3;
    let between = (furthest_back..=LINE_LIMIT).rev().find(|at| !is_within_character(at));
    let mut cut = between.unwrap_or(LINE_LIMIT);
    while let Some((start, end)) = whole.iter().find_map(|value| across(line, cut, value.expose_secret())) {
        if start == 0 {
            return end;
        }
        cut = start;
    }
    cut
}

/// Where a value lies that begins before this place and ends behind it.
fn across(line: &[u8], at: usize, value: &str) -> Option<(usize, usize)> {
    let value = value.as_bytes();
    let beyond = value.len().checked_sub(1).filter(|beyond| *beyond > 0)?;
    let from = at.saturating_sub(beyond);
    let around = line.get(from..line.len().min(at + beyond))?;
    let start = from + around.windows(value.len()).position(|part| part == value)?;
    Some((start, start + value.len()))
}

/// A process with everything it started.
struct Family {
    leader: Option<Pid>,
    mark: String,
}

impl Family {
    fn of(child: &Child, mark: &str) -> Self {
        let leader = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Self { leader, mark: mark.to_owned() }
    }

    /// The leader alone, once: it tells its own children.
    fn interrupt(&self) {
        if let Some(leader) = self.leader {
            let _ = rustix::process::kill_process(leader, Signal::INT);
        }
    }

    /// Everyone: the group, and those who left it but still carry the mark. Repeated, because a process can start
    /// another while it is looked for.
    fn kill(&self) {
        for _ in 0..10 {
            if let Some(leader) = self.leader {
                let _ = rustix::process::kill_process_group(leader, Signal::KILL);
            }
            let marked = marked_processes(&self.mark);
            if marked.is_empty() {
                return;
            }
            for process in marked {
                let _ = rustix::process::kill_process(process, Signal::KILL);
            }
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The processes that work for a wrapper, each of which is interrupted once.
struct Workers {
    program: std::path::PathBuf,
    told: Vec<Pid>,
    look_at: Option<tokio::time::Instant>,
    /// When the wrapper itself is told, because it seems to do something else.
    patience_ends: Option<tokio::time::Instant>,
}

const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Longer than a wrapper takes from its start to the start of its worker.
const WORKER_PATIENCE: Duration = Duration::from_secs(10);

impl Workers {
    fn new(program: &Path) -> Self {
        Self { program: program.to_owned(), told: Vec::new(), look_at: None, patience_ends: None }
    }

    fn begin(&mut self) {
        let now = tokio::time::Instant::now();
        self.look_at = Some(now);
        self.patience_ends = Some(now + WORKER_PATIENCE);
    }

    /// Tells those who were not told yet, until the wrapper ends: it can start a worker after another one. O(processes of the
    /// machine).
    fn look(&mut self, family: &Family) {
        let now = tokio::time::Instant::now();
        let Some(leader) = family.leader else { return };
        for process in children_of(leader, &self.program) {
            if !self.told.contains(&process) {
                let _ = rustix::process::kill_process(process, Signal::INT);
                self.told.push(process);
            }
        }
        if self.told.is_empty() && self.patience_ends.is_some_and(|end| now >= end) {
            self.patience_ends = None;
            family.interrupt();
        }
        self.look_at = Some(now + LOOK_EVERY);
    }
}

/// Children of a process that run this program.
fn children_of(parent: Pid, program: &Path) -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let parent = parent.as_raw_nonzero().to_string();
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw))
        .filter(|process| {
            let of = |file: &str| std::fs::read(format!("/proc/{}/{file}", process.as_raw_nonzero()));
            // The name, in parentheses, can hold anything; the state and the parent's number follow its end.
            let is_child = of("stat").is_ok_and(|stat| {
                let stat = String::from_utf8_lossy(&stat).into_owned();
                let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
                after_name.split(' ').nth(1) == Some(parent.as_str())
            });
            is_child && of("cmdline").is_ok_and(|line| is_command_of(program.as_os_str(), &line))
        })
        .collect()
}

/// Living processes whose environment carries the mark. O(processes of the machine).
fn marked_processes(mark: &str) -> Vec<Pid> {
    let wanted = format!("{MARK}={mark}");
    let own = rustix::process::getpid();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw))
        .filter(|process| *process != own)
        .filter(|process| {
            // Unreadable or gone: not ours. A zombie's environment is empty.
            std::fs::read(format!("/proc/{}/environ", process.as_raw_nonzero()))
                .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|var| var == wanted.as_bytes()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn surroundings(mark: &str, grace: Duration) -> (watch::Sender<Wish>, Surroundings) {
        let (sender, stop) = watch::channel(Wish::GoOn);
        let environment = vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())];
        (sender, Surroundings { environment, mark: mark.to_owned(), stop, grace, whole: Arc::default() })
    }

    async fn shell(script: &str, around: &Surroundings) -> (Ended, Vec<String>) {
        let mut said = Vec::new();
        let arguments = ["-c".into(), script.into()];
        let ended = run(Path::new("/bin/sh"), &arguments, Path::new("/"), around, &mut |_, line| {
            said.push(line.to_owned())
        })
        .await
        .unwrap();
        (ended, said)
    }

    #[tokio::test]
    async fn output_comes_line_by_line_and_broken_text_does_no_harm() {
        let (_keep, around) = surroundings("lines", Duration::from_secs(5));
        let (ended, said) = shell("printf 'a\\nb\\r\\n\\377c\\nlast'; exit 3", &around).await;
        assert_eq!(said, ["a", "b", "\u{fffd}c", "last"]);
        assert_eq!(ended, Ended { code: Some(3), signal: None, interrupted: false });
        let (_, said) = shell("head -c 600000 /dev/zero | tr '\\0' x", &around).await;
        assert_eq!(said.iter().map(String::len).sum::<usize>(), 600_000);
        assert!(said.len() > 1);
    }

    #[tokio::test]
    async fn a_long_line_is_cut_between_characters_and_not_through_what_stays_whole() {
        let (_keep, mut around) = surroundings("cuts", Duration::from_secs(5));
        let long = "v".repeat(LINE_LIMIT + 3);
        around.whole = [long.as_str(), "hunter2hunter2", "2hunt"].map(SecretString::from).into();
        let file = tempfile::NamedTempFile::new().unwrap();
        let (fill, some) = ("x".repeat(LINE_LIMIT - 5), "y".repeat(LINE_LIMIT));
        for (line, pieces) in [
            (
                format!("{fill}hunter2hunter2{fill}"),
                vec![fill.clone(), format!("hunter2hunter2{}", &fill[9..]), "x".repeat(9)],
            ),
            (
                format!("{fill}xxx\u{20ac}{some}"),
                vec![format!("{fill}xxx"), format!("\u{20ac}{}", &some[3..]), "yyy".to_owned()],
            ),
            (format!("{long}{fill}"), vec![long.clone(), fill.clone()]),
            (fill.clone(), vec![fill.clone()]),
        ] {
            for end in ["", "\n", "\nnext\n"] {
                std::fs::write(file.path(), format!("{line}{end}")).unwrap();
                let (_, mut said) = shell(&format!("cat {}", file.path().display()), &around).await;
                if end.contains("next") {
                    assert_eq!(said.pop().as_deref(), Some("next"));
                }
                assert!(said == pieces, "{:?}", said.iter().map(String::len).collect::<Vec<_>>());
            }
        }
    }

    #[tokio::test]
    async fn nothing_of_our_own_environment_is_inherited() {
        let (_keep, around) = surroundings("environment", Duration::from_secs(5));
        let (_, said) = shell("env | cut -d= -f1 | sort | tr '\\n' ' '", &around).await;
        assert!(said.concat().contains("TERRANE_ATTEMPT"), "{said:?}");
        assert!(!said.concat().contains("CARGO"), "{said:?}");
    }

    #[tokio::test]
    async fn a_stop_is_one_interrupt_and_the_tool_may_finish() {
        let (stop, around) = surroundings("gentle", Duration::from_secs(60));
        let mut said = Vec::new();
        let script = "trap 'echo interrupted; exit 7' INT; echo ready; while :; do sleep 0.05; done";
        let arguments = ["-c".into(), script.into()];
        let ended = run(Path::new("/bin/sh"), &arguments, Path::new("/"), &around, &mut |_, line| {
            if line == "ready" {
                stop.send_replace(Wish::Stop);
            }
            said.push(line.to_owned());
        })
        .await
        .unwrap();
        assert_eq!(said, ["ready", "interrupted"]);
        assert_eq!(ended, Ended { code: Some(7), signal: None, interrupted: true });
    }

    #[tokio::test]
    async fn a_stop_is_told_to_the_worker_of_a_wrapper_and_not_to_the_wrapper() {
        let dir = tempfile::tempdir().unwrap();
        let worker = dir.path().join("worker");
        let script = "#!/bin/sh\ntrap 'echo worker interrupted; exit 7' INT\necho ready\nwhile :; do sleep 0.05; done\n";
        std::fs::write(&worker, script).unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&worker, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (stop, around) = surroundings("wrapped", Duration::from_secs(60));
        let mut said = Vec::new();
        let wrapper =
            format!("trap 'echo wrapper interrupted' INT; {}; echo worker ended with $?", worker.display());
        let arguments = ["-c".into(), wrapper.into()];
        let shell = Path::new("/bin/sh");
        let ended = run_wrapper(shell, &worker, &arguments, Path::new("/"), &around, &mut |_, line| {
            if line == "ready" {
                stop.send_replace(Wish::Stop);
            }
            said.push(line.to_owned());
        })
        .await
        .unwrap();
        assert_eq!(said, ["ready", "worker interrupted", "worker ended with 7"]);
        assert_eq!(ended, Ended { code: Some(0), signal: None, interrupted: true });
    }

    #[tokio::test]
    async fn after_the_grace_the_whole_family_dies_even_those_who_left_the_group() {
        let mark = format!("stubborn-{}", std::process::id());
        let (stop, around) = surroundings(&mark, Duration::from_millis(50));
        let script = "trap '' INT; setsid sleep 1000 & echo ready; while :; do sleep 1000; done";
        let arguments = ["-c".into(), script.into()];
        let ended = run(Path::new("/bin/sh"), &arguments, Path::new("/"), &around, &mut |_, line| {
            if line == "ready" {
                stop.send_replace(Wish::Stop);
            }
        })
        .await
        .unwrap();
        assert_eq!(ended.signal, Some(9));
        assert_eq!(marked_processes(&mark), []);
    }

    #[tokio::test]
    async fn a_tool_that_talks_without_end_can_be_stopped() {
        let mark = format!("endless-{}", std::process::id());
        let (stop, around) = surroundings(&mark, Duration::from_millis(50));
        let arguments = ["-c".into(), "trap '' INT; yes & yes >&2".into()];
        let mut said = 0_usize;
        let mut count = |_: Stream, _: &str| {
            said += 1;
            if said == 1000 {
                stop.send_replace(Wish::Stop);
            }
        };
        let ended = run(Path::new("/bin/sh"), &arguments, Path::new("/"), &around, &mut count);
        let ended = tokio::time::timeout(Duration::from_secs(120), ended).await.unwrap().unwrap();
        assert_eq!((ended.signal, ended.interrupted), (Some(9), true));
        assert_eq!(marked_processes(&mark), []);
    }

    #[tokio::test]
    async fn a_background_process_does_not_outlive_the_tool() {
        let mark = format!("background-{}", std::process::id());
        let (_keep, around) = surroundings(&mark, Duration::from_secs(5));
        let (ended, said) = shell("sleep 1000 & setsid sleep 1000 & echo done", &around).await;
        assert_eq!((ended.code, said), (Some(0), vec!["done".to_owned()]));
        assert_eq!(marked_processes(&mark), []);
    }
}
