//! One command of the tool as a subprocess: its own process group, its output as readable lines, and one polite request to stop.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use semver::Version;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::plan;
use crate::program::Program;

/// A longer line is handed on in pieces, so that a tool that prints without end needs no more memory than this.
const LINE_LIMIT: usize = 64 * 1024;
/// Lines that wait for a slow reader; the tool waits when there are more.
const LINES_WAITING: usize = 256;
/// The largest plan description that is read.
const SHOW_LIMIT: u64 = 512 * 1024 * 1024;
/// The first version whose `plan` and `apply` have `-json`.
const JSON_SINCE: Version = Version::new(1, 0, 0);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{program} could not be started: {source}")]
    Start { program: String, source: std::io::Error },
    #[error("the output of {program} could not be read: {source}")]
    Output { program: String, source: std::io::Error },
    #[error("{program} could not describe the plan: {detail}")]
    Show { program: String, detail: String },
    #[error(transparent)]
    Plan(#[from] plan::Error),
}

/// Where and how the tool's commands run.
#[derive(Debug, Clone)]
pub struct Job {
    pub program: Program,
    pub directory: PathBuf,
    /// All that the tool sees of an environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Cancelled: the tool gets one SIGINT, and `grace` to save what it has.
    pub stop: CancellationToken,
    pub grace: Duration,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub status: ExitStatus,
    /// The first error the tool printed, with its place in the code: `Missing required argument (main.tf:3)`.
    pub first_error: Option<String>,
    /// It was told to stop.
    pub stopped: bool,
}

impl Ended {
    pub fn exit_code(&self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or_default())
    }
}

impl Job {
    pub async fn init(&self, sink: &mut (dyn FnMut(&str) + Send)) -> Result<Ended, Error> {
        self.run(&["init".into(), "-input=false".into(), "-no-color".into()], sink).await
    }

    /// Exit code 0: nothing to change; 2: changes; anything else: failed. Takes no lock: what it was made from is checked before it
    /// is applied, and a person's own apply is not disturbed.
    pub async fn plan(
        &self,
        out: &Path,
        extra: &[OsString],
        sink: &mut (dyn FnMut(&str) + Send),
    ) -> Result<Ended, Error> {
        let mut out_flag = OsString::from("-out=");
        out_flag.push(out);
        let mut arguments: Vec<OsString> = vec![
            "plan".into(),
            "-input=false".into(),
            "-lock=false".into(),
            "-detailed-exitcode".into(),
            "-no-color".into(),
            out_flag,
        ];
        arguments.extend(self.json_flag());
        arguments.extend(extra.iter().cloned());
        self.run(&arguments, sink).await
    }

    pub async fn apply(&self, plan: &Path, sink: &mut (dyn FnMut(&str) + Send)) -> Result<Ended, Error> {
        let mut arguments: Vec<OsString> = vec!["apply".into(), "-input=false".into(), "-no-color".into()];
        arguments.extend(self.json_flag());
        arguments.push(plan.into());
        self.run(&arguments, sink).await
    }

    /// What the plan would change, without what must not be seen.
    pub async fn show(&self, plan: &Path) -> Result<plan::View, Error> {
        let bytes = self.show_output(&["show".into(), "-json".into(), plan.into()]).await?;
        Ok(plan::View::parse(&bytes)?)
    }

    /// The plan as the tool words it for people; the tool masks what is sensitive.
    pub async fn show_text(&self, plan: &Path) -> Result<String, Error> {
        let bytes = self.show_output(&["show".into(), "-no-color".into(), plan.into()]).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn json_flag(&self) -> Option<OsString> {
        (self.program.version >= JSON_SINCE).then(|| "-json".into())
    }

    fn command(&self, arguments: &[OsString]) -> Command {
        let mut command = Command::new(&self.program.path);
        command
            .args(arguments)
            .current_dir(&self.directory)
            .env_clear()
            .envs(self.environment.iter().cloned())
            .envs([("TF_IN_AUTOMATION", "1"), ("TF_INPUT", "0"), ("CHECKPOINT_DISABLE", "1")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A terminal's Ctrl-C reaches a whole group; the tool must hear of it once, from us.
            .process_group(0);
        command
    }

    fn start(&self, arguments: &[OsString]) -> Result<Child, Error> {
        self.command(arguments)
            .spawn()
            .map_err(|source| Error::Start { program: self.program.words(), source })
    }

    async fn show_output(&self, arguments: &[OsString]) -> Result<Vec<u8>, Error> {
        let mut child = self.start(arguments)?;
        let unread = |source| Error::Output { program: self.program.words(), source };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let stdout = child.stdout.take().map(|pipe| pipe.take(SHOW_LIMIT));
        let stderr = child.stderr.take().map(|pipe| pipe.take(LINE_LIMIT as u64));
        let read_out = async {
            if let Some(mut pipe) = stdout { pipe.read_to_end(&mut out).await.map(drop) } else { Ok(()) }
        };
        let read_err = async {
            if let Some(mut pipe) = stderr { pipe.read_to_end(&mut err).await.map(drop) } else { Ok(()) }
        };
        tokio::try_join!(read_out, read_err).map_err(unread)?;
        let status = child.wait().await.map_err(unread)?;
        if status.success() {
            return Ok(out);
        }
        let detail = String::from_utf8_lossy(&err).trim().to_owned();
        Err(Error::Show { program: self.program.words(), detail })
    }

    async fn run(&self, arguments: &[OsString], sink: &mut (dyn FnMut(&str) + Send)) -> Result<Ended, Error> {
        let mut child = self.start(arguments)?;
        let unread = |source| Error::Output { program: self.program.words(), source };
        let (send, mut lines) = mpsc::channel(LINES_WAITING);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let readers = async move {
            let out = read_lines(stdout, send.clone());
            let err = read_lines(stderr, send);
            tokio::try_join!(out, err).map(drop)
        };
        tokio::pin!(readers);
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let mut first_error = None;
        let mut stopped = false;
        let mut reading = true;
        let mut deadline = None;
        while reading {
            tokio::select! {
                done = &mut readers, if reading => {
                    done.map_err(unread)?;
                    reading = false;
                }
                Some(line) = lines.recv() => hear(&line, &mut first_error, sink),
                () = self.stop.cancelled(), if !stopped => {
                    stopped = true;
                    deadline = Some(tokio::time::Instant::now() + self.grace);
                    interrupt(pid);
                }
                () = sleep_until(deadline), if deadline.is_some() => {
                    deadline = None;
                    kill(pid);
                }
            }
        }
        while let Ok(line) = lines.try_recv() {
            hear(&line, &mut first_error, sink);
        }
        let status = child.wait().await.map_err(unread)?;
        Ok(Ended { status, first_error, stopped })
    }
}

async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    if let Some(deadline) = deadline {
        tokio::time::sleep_until(deadline).await;
    }
}

/// One signal to the main process only: a second one would make it drop what it has not saved.
fn interrupt(pid: Option<Pid>) {
    if let Some(pid) = pid
        && let Err(error) = kill_process(pid, Signal::INT)
    {
        tracing::warn!(%error, "the tool could not be told to stop");
    }
}

fn kill(pid: Option<Pid>) {
    if let Some(pid) = pid
        && let Err(error) = kill_process_group(pid, Signal::KILL)
    {
        tracing::warn!(%error, "the tool could not be killed");
    }
}

/// Cuts a stream into lines. Bytes that are no UTF-8 are shown as such; nothing is lost and nothing grows without bound.
async fn read_lines(pipe: Option<impl AsyncRead + Unpin>, send: mpsc::Sender<String>) -> std::io::Result<()> {
    let Some(mut pipe) = pipe else { return Ok(()) };
    let mut pending: Vec<u8> = Vec::new();
    let mut chunk = vec![0; 16 * 1024];
    loop {
        let count = pipe.read(&mut chunk).await?;
        if count == 0 {
            break;
        }
        for piece in chunk.get(..count).unwrap_or_default().split_inclusive(|byte| *byte == b'\n') {
            pending.extend_from_slice(piece);
            if piece.ends_with(b"\n") || pending.len() >= LINE_LIMIT {
                hand_on(&mut pending, &send).await;
            }
        }
    }
    if !pending.is_empty() {
        hand_on(&mut pending, &send).await;
    }
    Ok(())
}

async fn hand_on(pending: &mut Vec<u8>, send: &mpsc::Sender<String>) {
    let line = String::from_utf8_lossy(pending).trim_end_matches(['\n', '\r']).to_owned();
    pending.clear();
    // The receiver lives as long as the readers do.
    let _ = send.send(line).await;
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "@message", default)]
    message: String,
    #[serde(default)]
    diagnostic: Option<Diagnostic>,
}

#[derive(Deserialize)]
struct Diagnostic {
    severity: String,
    summary: String,
    #[serde(default)]
    detail: String,
    #[serde(default)]
    range: Option<Range>,
}

#[derive(Deserialize)]
struct Range {
    filename: String,
    start: Position,
}

#[derive(Deserialize)]
struct Position {
    line: u64,
}

fn hear(line: &str, first_error: &mut Option<String>, sink: &mut (dyn FnMut(&str) + Send)) {
    let event = line.starts_with('{').then(|| serde_json::from_str::<Event>(line).ok()).flatten();
    match event {
        None => {
            if let Some(error) = line.trim_start_matches(['│', '╷', ' ']).strip_prefix("Error: ") {
                first_error.get_or_insert_with(|| error.trim().to_owned());
            }
            sink(line);
        }
        Some(Event { message, diagnostic: None }) => sink(&message),
        Some(Event { diagnostic: Some(diagnostic), .. }) => {
            let place =
                diagnostic.range.map(|r| format!(" ({}:{})", r.filename, r.start.line)).unwrap_or_default();
            let words = format!("{}{place}", diagnostic.summary);
            sink(&format!("{}: {words}", if diagnostic.severity == "error" { "Error" } else { "Warning" }));
            diagnostic.detail.lines().for_each(|line| sink(&format!("  {line}")));
            if diagnostic.severity == "error" {
                first_error.get_or_insert(words);
            }
        }
    }
}
