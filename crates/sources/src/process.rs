//! Running the `git` command: the hardened environment, time and size limits, and the end of its whole process
//! group. No knowledge of what is asked of git lives here.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use crate::error::{Error, classify};

/// What is kept of git's standard error: enough for a message, bounded against a hostile server's banner.
const STDERR_LIMIT: u64 = 64 * 1024;

/// A private directory with everything one git process may find: its home, its configuration, its credentials.
///
/// The configuration is a file named by GIT_CONFIG_GLOBAL rather than `-c` arguments, because git drops the latter
/// when it starts `upload-pack` for a `file://` URL.
#[derive(Debug)]
pub(crate) struct Surroundings {
    dir: tempfile::TempDir,
    vars: Vec<(OsString, OsString)>,
}

/// Settings that differ between a local read and a request over the network.
#[derive(Debug, Default)]
pub(crate) struct Network {
    /// Protocols git may speak; empty for local work.
    pub(crate) protocols: Vec<&'static str>,
    /// `host:port:address`: the address that was checked is the one that is used.
    pub(crate) pinned: Option<String>,
}

impl Surroundings {
    pub(crate) fn new(parent: &Path, search_path: &OsStr, network: Network) -> Result<Self, Error> {
        let dir = tempfile::Builder::new()
            .prefix("git-")
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir_in(parent)
            .map_err(Error::io("create a private directory for git"))?;
        let config = dir.path().join("config");
        write_private(&config, hardened_config(network.pinned.as_deref()).as_bytes())?;
        let vars: Vec<(OsString, OsString)> = vec![
            ("PATH".into(), search_path.to_owned()),
            ("HOME".into(), dir.path().into()),
            ("XDG_CONFIG_HOME".into(), dir.path().into()),
            ("LC_ALL".into(), "C".into()),
            ("GIT_CONFIG_NOSYSTEM".into(), "1".into()),
            ("GIT_CONFIG_GLOBAL".into(), config.into()),
            ("GIT_ATTR_NOSYSTEM".into(), "1".into()),
            ("GIT_TERMINAL_PROMPT".into(), "0".into()),
            // Without this a partial repository could make a read fetch from a remote of its own choice.
            ("GIT_NO_LAZY_FETCH".into(), "1".into()),
            ("GIT_NO_REPLACE_OBJECTS".into(), "1".into()),
            ("GIT_OPTIONAL_LOCKS".into(), "0".into()),
            ("GIT_ALLOW_PROTOCOL".into(), network.protocols.join(":").into()),
            ("GIT_PROTOCOL_FROM_USER".into(), "0".into()),
        ];
        Ok(Self { dir, vars })
    }

    /// Puts a file that only we can read beside the configuration, and returns its path.
    pub(crate) fn private_file(&self, name: &str, content: &[u8]) -> Result<PathBuf, Error> {
        let path = self.dir.path().join(name);
        write_private(&path, content)?;
        Ok(path)
    }

    pub(crate) fn private_program(&self, name: &str, content: &str) -> Result<PathBuf, Error> {
        let path = self.private_file(name, content.as_bytes())?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700))
            .map_err(Error::io("make git's askpass program executable"))?;
        Ok(path)
    }

    pub(crate) fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.vars.push((name.into(), value.into()));
    }
}

fn write_private(path: &Path, content: &[u8]) -> Result<(), Error> {
    use std::io::Write as _;
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(Error::io("write git's private configuration"))?;
    file.write_all(content).map_err(Error::io("write git's private configuration"))
}

fn hardened_config(pinned: Option<&str>) -> String {
    let mut config = String::from(
        "[core]\n\thooksPath = /dev/null\n\tfsmonitor = false\n\tsymlinks = true\n\tattributesFile = /dev/null\n\
         [credential]\n\thelper =\n\
         [fetch]\n\tfsckObjects = true\n\trecurseSubmodules = false\n\
         [transfer]\n\tfsckObjects = true\n\tadvertiseSID = false\n\
         [receive]\n\tfsckObjects = true\n\
         [submodule]\n\trecurse = false\n\
         [gc]\n\tautoDetach = false\n\
         [maintenance]\n\tautoDetach = false\n\
         [init]\n\tdefaultBranch = main\n\ttemplateDir =\n\
         [safe]\n\tdirectory = *\n\
         [http]\n\tfollowRedirects = false\n\tlowSpeedLimit = 100\n\tlowSpeedTime = 60\n",
    );
    if let Some(pinned) = pinned {
        config.push_str("\tcurloptResolve = ");
        config.push_str(pinned);
        config.push('\n');
    }
    config
}

/// What git is told to do. `subject` is the URL that errors speak of.
#[derive(Debug)]
pub(crate) struct Invocation<'a> {
    pub(crate) program: &'a Path,
    pub(crate) surroundings: &'a Surroundings,
    pub(crate) repository: Option<&'a Path>,
    pub(crate) subject: &'a str,
    pub(crate) doing: &'static str,
    pub(crate) timeout: Duration,
}

/// Kills the whole process group when it is dropped: git leaves transport helpers behind when only it is killed.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) child: Child,
    group: Option<rustix::process::Pid>,
}

impl Running {
    async fn wait(&mut self) -> std::io::Result<std::process::ExitStatus> {
        let status = self.child.wait().await?;
        // The leader is reaped; its group id may be reused from here on.
        self.group = None;
        Ok(status)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // The group may have ended in between; there is nobody to tell.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

impl Invocation<'_> {
    pub(crate) fn spawn<I, S>(&self, args: I, stdin: Stdio) -> Result<Running, Error>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let mut command = Command::new(self.program);
        command.env_clear().envs(self.surroundings.vars.iter().map(|(name, value)| (name, value)));
        if let Some(repository) = self.repository {
            command.arg("--git-dir").arg(repository).current_dir(repository);
        } else {
            command.current_dir(self.surroundings.dir.path());
        }
        command
            .args(args)
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let child = command.spawn().map_err(Error::io("start git (is it installed and on the PATH?)"))?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
        Ok(Running { child, group })
    }

    /// Runs to the end and returns standard output, refusing more than `limit` bytes of it.
    pub(crate) async fn output<I, S>(&self, args: I, limit: u64) -> Result<Vec<u8>, Error>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        self.finish(self.spawn(args, Stdio::null())?, &[], limit).await
    }

    /// The same for a git that reads `input`.
    pub(crate) async fn answer<I, S>(&self, args: I, input: &[u8], limit: u64) -> Result<Vec<u8>, Error>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        self.finish(self.spawn(args, Stdio::piped())?, input, limit).await
    }

    async fn finish(&self, mut running: Running, input: &[u8], limit: u64) -> Result<Vec<u8>, Error> {
        let stdin = running.child.stdin.take();
        let stdout = running.child.stdout.take();
        let stderr = running.child.stderr.take();
        let work = async {
            let feed = async move {
                if let Some(mut stdin) = stdin {
                    // It closes its input when it has read enough, or gives up and says why.
                    let _ = stdin.write_all(input).await;
                }
            };
            let ((), out, err) =
                tokio::join!(feed, read_limited(stdout, limit), read_limited(stderr, STDERR_LIMIT));
            let (out, complete) = out.map_err(Error::io("read git's output"))?;
            if !complete {
                return Err(Error::Git {
                    url: self.subject.to_owned(),
                    doing: self.doing,
                    detail: format!("it answered with more than {limit} bytes"),
                });
            }
            let (err, _) = err.map_err(Error::io("read git's errors"))?;
            let status = running.wait().await.map_err(Error::io("wait for git"))?;
            if status.success() { Ok(out) } else { Err(self.failure(&err)) }
        };
        match tokio::time::timeout(self.timeout, work).await {
            Ok(result) => result,
            Err(_) => Err(self.timed_out()),
        }
    }

    pub(crate) fn failure(&self, stderr: &[u8]) -> Error {
        classify(self.subject, self.doing, &String::from_utf8_lossy(stderr))
    }

    pub(crate) fn timed_out(&self) -> Error {
        Error::Timeout { url: self.subject.to_owned(), doing: self.doing, limit: self.timeout }
    }
}

/// Reads up to `limit` bytes; the second value tells whether that was all. What exceeds the limit of standard error
/// is still drained, so that git does not block on a full pipe.
async fn read_limited<R: AsyncRead + Unpin>(
    stream: Option<R>,
    limit: u64,
) -> std::io::Result<(Vec<u8>, bool)> {
    let Some(mut stream) = stream else { return Ok((Vec::new(), true)) };
    let mut kept = Vec::new();
    (&mut stream).take(limit).read_to_end(&mut kept).await?;
    let rest = tokio::io::copy(&mut stream.take(limit), &mut tokio::io::sink()).await?;
    Ok((kept, rest == 0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A server that answers each request in the same way, and counts them. It ends with the process.
    struct Answering {
        address: SocketAddr,
        asked: Arc<AtomicUsize>,
    }

    impl Answering {
        fn at(address: SocketAddr, answer: String) -> Self {
            let listener = TcpListener::bind(address).unwrap();
            let address = listener.local_addr().unwrap();
            let asked = Arc::new(AtomicUsize::new(0));
            let counting = Arc::clone(&asked);
            std::thread::spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    counting.fetch_add(1, Ordering::SeqCst);
                    let _ = stream.read(&mut [0; 4096]);
                    let _ = stream.write_all(answer.as_bytes());
                }
            });
            Self { address, asked }
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::SeqCst)
        }
    }

    fn not_found() -> String {
        "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned()
    }

    async fn ls_remote(url: &str, pinned: Option<String>) -> Result<Vec<u8>, Error> {
        let directory = tempfile::tempdir().unwrap();
        let search_path = OsString::from("/usr/local/bin:/usr/bin:/bin");
        let network = Network { protocols: vec!["http"], pinned };
        let surroundings = Surroundings::new(directory.path(), &search_path, network).unwrap();
        let program = crate::git::find_program(Path::new("git"), &search_path).unwrap();
        let invocation = Invocation {
            program: &program,
            surroundings: &surroundings,
            repository: None,
            subject: url,
            doing: "read the branches of",
            timeout: Duration::from_secs(60),
        };
        invocation.output(["ls-remote", "--end-of-options", url], 1024).await
    }

    #[tokio::test]
    async fn git_follows_no_redirect() {
        let other = Answering::at((Ipv4Addr::LOCALHOST, 0).into(), not_found());
        let moved = format!(
            "HTTP/1.1 302 Found\r\nLocation: http://{}/x/info/refs?service=git-upload-pack\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            other.address
        );
        let first = Answering::at((Ipv4Addr::LOCALHOST, 0).into(), moved);
        let error = ls_remote(&format!("http://{}/x", first.address), None).await.unwrap_err();
        assert!(first.asked() > 0, "{error}");
        assert_eq!(other.asked(), 0, "{error}");
    }

    /// The name has one address for the check, and another one for whoever asks again.
    #[tokio::test]
    async fn git_goes_to_the_address_that_was_checked_whatever_the_name_means_by_then() {
        let by_name = Answering::at((Ipv4Addr::LOCALHOST, 0).into(), not_found());
        let port = by_name.address.port();
        let checked = Answering::at((Ipv4Addr::new(127, 0, 0, 2), port).into(), not_found());
        let url = format!("http://localhost:{port}/x");
        let error = ls_remote(&url, Some(format!("localhost:{port}:127.0.0.2"))).await.unwrap_err();
        assert!(checked.asked() > 0, "{error}");
        assert_eq!(by_name.asked(), 0, "{error}");
    }
}
