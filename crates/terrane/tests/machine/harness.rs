//! A place on disk with processes of the binary on it, and the few things every test does with them.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use node::isolation::Isolation;
use rustix::process::{Pid, Signal, kill_process};
use testkit::process::{Guarded, Scratch};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_terrane");
/// Far beyond what anything here takes, even on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);
/// The last line that `terrane up` prints by itself.
const INTRODUCED: &str = "Ctrl-C stops it; nothing is lost.";
/// Between two looks at a condition.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// A directory of one test, in which `data` belongs to `terrane up` and `node` to `terrane node`.
pub(crate) struct Place {
    root: Scratch,
    starts: Cell<u32>,
}

impl Place {
    pub(crate) fn new() -> Self {
        Place { root: Scratch::new("terrane-machine-").unwrap(), starts: Cell::new(0) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// Where the log of the newest process is.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.path(&format!("process-{}.log", self.starts.get()))
    }

    pub(crate) fn start(&self, program: &str, arguments: &[&str]) -> Guarded {
        self.starts.set(self.starts.get() + 1);
        Guarded::start(Path::new(program), arguments, self.log_file()).unwrap()
    }

    /// `terrane up` on this place, ready to be asked; ports are free ones unless `flags` say otherwise.
    pub(crate) async fn up(&self, flags: &[&str]) -> (Guarded, Client) {
        let mut process = self.start(BINARY, &self.arguments(flags).each_ref());
        let kubeconfig = self.data().join("kubeconfig");
        let client = self.ready(&mut process, &kubeconfig).await;
        (process, client)
    }

    /// A client, once every role of the newest process is there.
    pub(crate) async fn ready(&self, process: &mut Guarded, kubeconfig: &Path) -> Client {
        until("terrane up has said what to try", async || {
            process.ensure_running().unwrap();
            self.log().contains(INTRODUCED).then_some(())
        })
        .await;
        client(kubeconfig).await.unwrap()
    }

    /// How `up` is started on this place with `flags`; a flag that is given has the last word.
    pub(crate) fn arguments(&self, flags: &[&str]) -> Arguments {
        let mut arguments = vec!["up".to_owned()];
        let data = self.data().to_str().unwrap().to_owned();
        for (flag, value) in
            [("--data-dir", data.as_str()), ("--listen", "127.0.0.1:0"), ("--api-listen", "127.0.0.1:0")]
        {
            if !flags.contains(&flag) {
                arguments.extend([flag.to_owned(), value.to_owned()]);
            }
        }
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        Arguments(arguments)
    }

    /// Everything that a command says which must fail, and does so with code 1.
    pub(crate) async fn refused(&self, program: &str, arguments: &[&str]) -> String {
        let mut process = self.start(program, arguments);
        let status = ended(&mut process).await;
        assert_eq!(status.code(), Some(1), "{}", self.log());
        self.log()
    }

    /// The same for `terrane up`.
    pub(crate) async fn up_refused(&self, flags: &[&str]) -> String {
        self.refused(BINARY, &self.arguments(flags).each_ref()).await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // With a user for each pod their files lie outside of the data directory, of which a place may have several.
        for entry in fs::read_dir(self.root.path()).into_iter().flatten().flatten() {
            let state = entry.path().join("node");
            let pods = node::config::pods_directory(&state, &Isolation::detect(&state));
            let _ = fs::remove_dir_all(pods);
        }
    }
}

pub(crate) struct Arguments(Vec<String>);

impl Arguments {
    pub(crate) fn each_ref(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

/// What precedes a command so that it has mounts of its own, made by the shell `script`, in which `$1` is `directory`. They end
/// with the command. Whoever is not root becomes it in a user namespace.
pub(crate) fn with_mounts<'a>(script: &'a str, directory: &'a str) -> Vec<&'a str> {
    let own = if rustix::process::geteuid().is_root() { "--mount" } else { "--map-root-user" };
    vec![own, "--mount", "--", "sh", "-ec", script, "sh", directory]
}

pub(crate) async fn client(kubeconfig: &Path) -> Option<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).ok()?;
    let mut config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.ok()?;
    // A test wants to see each answer, not the one after the last of several tries.
    config.default_retry = false;
    Client::try_from(config).ok()
}

pub(crate) fn signal(process: &Guarded, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(process.pid()).unwrap()).unwrap();
    // It may have ended by itself, which whoever waits for its end will see.
    let _ = kill_process(pid, signal);
}

pub(crate) async fn ended(process: &mut Guarded) -> ExitStatus {
    until("the process has ended", async || process.exited().unwrap()).await
}

/// Asks it to stop, and expects that it does so in order.
pub(crate) async fn stop(mut process: Guarded) {
    signal(&process, Signal::TERM);
    let status = ended(&mut process).await;
    assert_eq!(status.code(), Some(0), "{}", process.log_tail());
}

/// Looks again and again until there is something.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < DEADLINE, "not so within {DEADLINE:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
}
