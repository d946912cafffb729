//! A test process that is killed leaves neither children nor files behind.
//!
//! This needs a process to kill, so it is its own `main`: called with `--hold` it is the victim.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use testkit::process::{Guarded, Scratch};

fn main() -> Result<()> {
    if std::env::args().any(|argument| argument == "--hold") {
        return hold();
    }
    killed_process_leaves_nothing()?;
    println!("test result: ok. 1 passed; 0 failed");
    Ok(())
}

/// Starts a child and a directory, says which, and stays until killed.
fn hold() -> Result<()> {
    let scratch = Scratch::new("terrane-orphans-")?;
    let child = Guarded::start(Path::new("/bin/sleep"), &["3600"], scratch.path().join("log"))?;
    println!("{} {}", child.pid(), scratch.path().display());
    loop {
        std::thread::park();
    }
}

fn killed_process_leaves_nothing() -> Result<()> {
    let mut victim = Command::new(std::env::current_exe()?).arg("--hold").stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(victim.stdout.take().context("no output")?).read_line(&mut line)?;
    let (pid, directory) = line.trim().split_once(' ').with_context(|| format!("unexpected: {line}"))?;
    let child = format!("/proc/{pid}");
    ensure!(Path::new(&child).exists() && Path::new(directory).exists(), "nothing was started");

    victim.kill()?;
    victim.wait()?;

    let limit = Instant::now() + Duration::from_secs(30);
    while Path::new(&child).exists() || Path::new(directory).exists() {
        if Instant::now() > limit {
            bail!(
                "after the kill: child there {}, directory there {}",
                Path::new(&child).exists(),
                Path::new(directory).exists()
            );
        }
        std::thread::yield_now();
    }
    Ok(())
}
