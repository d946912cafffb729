//! A real PostgreSQL on loopback, with a database and a user of its own.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, geteuid};

use crate::process::{Guarded, Scratch};
use crate::s3::free_address;
use crate::tools::tool;

const START_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);
const USER: &str = "terrane";
const DATABASE: &str = "postgres";
/// It refuses to be root; a user who owns nothing else will do.
const NOBODY: u32 = 65534;

/// A running server. It stops, and its files go, when this is dropped or the test process ends.
#[derive(Debug)]
pub struct Postgres {
    address: SocketAddr,
    password: String,
    // Dropped in this order: first what uses the directory.
    process: Guarded,
    _scratch: Scratch,
}

impl Postgres {
    /// Starts a server of its own.
    pub async fn start() -> Result<Self> {
        // By their own paths: whoever runs them may not see into the directory of links.
        let real = |name: &str| fs::canonicalize(tool(name)?).with_context(|| format!("looking for {name}"));
        let (server, maker) = (real("postgres")?, real("initdb")?);
        let scratch = Scratch::new("terrane-pg-")?;
        let (data, word) = (scratch.path().join("data"), scratch.path().join("word"));
        let password = format!("{:032x}", rand::random::<u128>());
        fs::write(&word, format!("{password}\n")).context("writing the password of the database")?;
        let as_nobody = geteuid().is_root();
        if as_nobody {
            for path in [scratch.path(), word.as_path()] {
                chown(path, Some(NOBODY), Some(NOBODY)).context("giving the database its directory")?;
            }
        }
        let made = command(as_nobody, &maker)
            .arg("--pgdata")
            .arg(&data)
            .arg("--pwfile")
            .arg(&word)
            .args([
                "--username",
                USER,
                "--auth",
                "scram-sha-256",
                "--encoding",
                "UTF8",
                "--no-locale",
                "--no-sync",
            ])
            .current_dir(scratch.path())
            .output()
            .context("starting initdb")?;
        ensure!(made.status.success(), "initdb failed: {}", String::from_utf8_lossy(&made.stderr));
        let limit = Instant::now() + START_LIMIT;
        // It cannot choose a free port itself, so another process may take the one chosen for it before it binds.
        loop {
            let address = free_address()?;
            let (program, mut arguments) = line(as_nobody, &server);
            let settings = [
                format!("port={}", address.port()),
                format!("listen_addresses={}", Ipv4Addr::LOCALHOST),
                format!("unix_socket_directories={}", scratch.path().display()),
                // Left in the directory, should it be killed.
                "dynamic_shared_memory_type=mmap".to_owned(),
                "fsync=off".to_owned(),
            ];
            arguments.extend(["-D".to_owned(), data.display().to_string()]);
            arguments.extend(settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]));
            let mut process = Guarded::start(&program, &arguments, scratch.path().join("pg.log"))?;
            match wait_until_up(&mut process, limit).await {
                Ok(()) => return Ok(Self { address, password, process, _scratch: scratch }),
                Err(_) if process.log_tail().contains("Address already in use") => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// How a client reaches it, with the password.
    pub fn connection(&self) -> String {
        format!("postgres://{USER}:{}@{}/{DATABASE}?sslmode=disable", self.password, self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn password(&self) -> &str {
        &self.password
    }
}

impl Drop for Postgres {
    /// In order, so that it removes what the system keeps for it outside of its directory.
    #[expect(clippy::disallowed_methods, reason = "a destructor cannot wait otherwise")]
    fn drop(&mut self) {
        let pid = i32::try_from(self.process.pid()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, Signal::INT);
        }
        let limit = Instant::now() + STOP_LIMIT;
        while matches!(self.process.exited(), Ok(None)) && Instant::now() < limit {
            std::thread::sleep(POLL);
        }
    }
}

/// The program and the beginning of its arguments.
fn line(as_nobody: bool, program: &Path) -> (PathBuf, Vec<String>) {
    if !as_nobody {
        return (program.to_owned(), Vec::new());
    }
    let user = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()];
    let arguments = user.into_iter().chain([program.display().to_string()]);
    ("setpriv".into(), arguments.collect())
}

fn command(as_nobody: bool, program: &Path) -> Command {
    let (program, arguments) = line(as_nobody, program);
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

async fn wait_until_up(process: &mut Guarded, limit: Instant) -> Result<()> {
    loop {
        process.ensure_running()?;
        if process.log_tail().contains("database system is ready to accept connections") {
            return Ok(());
        }
        let patience = START_LIMIT.as_secs();
        ensure!(
            Instant::now() < limit,
            "PostgreSQL was not ready within {patience} s:\n{}",
            process.log_tail()
        );
        tokio::time::sleep(POLL).await;
    }
}
