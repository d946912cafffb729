//! Child processes and directories that never outlive the test process, however it ends.
//!
//! A destructor is not enough: statics are never dropped, and a killed process drops nothing. So a
//! small shell stands between the test and each child, with a pipe from the test as its input. The
//! kernel closes that pipe when the test process is gone, and the shell then kills the child.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal};

/// `$1` is the log, the rest is the command. The guard ends by itself when the child does, so that
/// it cannot hit another process that was given the same number.
const KEEPER: &str = r#"
log=$1; shift
exec 3<&0
"$@" <&- >"$log" 2>&1 3<&- &
child=$!
( read -r _ <&3; kill -9 "$child" ) >/dev/null 2>&1 &
guard=$!
echo "$child"
wait "$child"; status=$?
kill "$guard" 2>/dev/null
exit "$status"
"#;

/// `$1` is the directory. Children are killed in the same moment and may still write, hence the tries.
const SWEEPER: &str = r#"
read -r _
tries=0
until rm -rf "$1" 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || exit 1
    sleep 0.1
done
"#;

/// A shell that acts when the pipe to it closes.
#[derive(Debug)]
struct Shell {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Shell {
    fn start(script: &str, arguments: &[&OsStr], directory: &Path, stdout: Stdio) -> Result<Self> {
        let mut child = Command::new("/bin/sh")
            .args(["-c", script, "sh"])
            .args(arguments)
            .current_dir(directory)
            // Ctrl-C reaches a whole process group: in one of its own the shell lives to clean up.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(stdout)
            .stderr(Stdio::null())
            .spawn()
            .context("starting /bin/sh")?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe })
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _ = self.child.wait();
    }
}

/// A running program, killed when this value is dropped and when the test process ends.
#[derive(Debug)]
pub struct Guarded {
    name: String,
    pid: u32,
    log: PathBuf,
    shell: Shell,
}

impl Guarded {
    /// Starts `program` in the directory of `log`, which gets everything that it prints.
    pub fn start<A: AsRef<OsStr>>(program: &Path, arguments: &[A], log: PathBuf) -> Result<Self> {
        let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
        let directory = log.parent().unwrap_or(Path::new("/"));
        let mut line: Vec<&OsStr> = vec![log.as_os_str(), program.as_os_str()];
        line.extend(arguments.iter().map(AsRef::as_ref));
        let mut shell = Shell::start(KEEPER, &line, directory, Stdio::piped())?;
        let stdout = shell.child.stdout.take().context("the shell has no output")?;
        let mut pid = String::new();
        BufReader::new(stdout)
            .read_line(&mut pid)
            .with_context(|| format!("reading the process id of {name}"))?;
        let pid = pid.trim().parse().with_context(|| format!("{name} was not started"))?;
        Ok(Self { name, pid, log, shell })
    }

    /// The process id of the program itself, to measure or to signal it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How the program ended, if it has.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        self.shell.child.try_wait().with_context(|| format!("asking whether {} runs", self.name))
    }

    /// Asks the program to end in order, with SIGTERM, and waits for it.
    pub async fn stop(mut self, patience: Duration) -> Result<()> {
        let pid =
            i32::try_from(self.pid).ok().and_then(Pid::from_raw).context("the process id is not one")?;
        rustix::process::kill_process(pid, Signal::TERM)
            .with_context(|| format!("stopping {}", self.name))?;
        let limit = Instant::now() + patience;
        while self.exited()?.is_none() {
            ensure!(Instant::now() < limit, "{} did not stop within {} s", self.name, patience.as_secs());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Fails with the end of the program's log if it is no longer running.
    pub fn ensure_running(&mut self) -> Result<()> {
        match self.exited()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("{} ended with {status}:\n{}", self.name, self.log_tail()),
        }
    }

    /// The last lines that the program printed.
    pub fn log_tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().rev().take(30).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

/// A directory of mode 0700, removed when this value is dropped and when the test process ends.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    _sweeper: Shell,
}

impl Scratch {
    /// Makes an empty directory whose name starts with `prefix`.
    pub fn new(prefix: &str) -> Result<Self> {
        let directory =
            tempfile::Builder::new().prefix(prefix).tempdir().context("making a scratch directory")?;
        let sweeper = Shell::start(SWEEPER, &[directory.path().as_os_str()], Path::new("/"), Stdio::null())?;
        // From here on the sweeper owns the directory.
        Ok(Self { path: directory.keep(), _sweeper: sweeper })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
