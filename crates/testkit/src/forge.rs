//! Real Git servers for tests: `git http-backend` behind https with a login, and OpenSSH's sshd. Both serve the bare
//! repositories of one directory, on loopback, and end with the value.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use crate::process::{Guarded, Scratch};
use crate::tls::{Tls, certificate};

/// Serves bare repositories over https to those who know one user name and password.
#[derive(Debug)]
pub struct HttpsForge {
    address: SocketAddr,
    authority: String,
    /// Ends with this value.
    _task: tokio::task::JoinSet<()>,
}

#[derive(Clone)]
struct Gate {
    repositories: PathBuf,
    authorization: Arc<str>,
}

impl HttpsForge {
    pub async fn start(repositories: &Path, username: &str, password: &str) -> Result<Self> {
        let (authority, acceptor) = certificate()?;
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listening for git over https")?;
        let address = listener.local_addr()?;
        let pair = base64::prelude::BASE64_STANDARD.encode(format!("{username}:{password}"));
        let gate =
            Gate { repositories: repositories.to_owned(), authorization: format!("Basic {pair}").into() };
        let service = Router::new().fallback(serve).with_state(gate);
        let mut task = tokio::task::JoinSet::new();
        task.spawn(async move {
            // It ends with its task; an error here is a test that finds nobody.
            let _ = axum::serve(Tls { listener, acceptor }, service).await;
        });
        Ok(Self { address, authority, _task: task })
    }

    /// The URL of a repository in the directory.
    pub fn url(&self, repository: &str) -> String {
        format!("https://localhost:{}/{repository}", self.address.port())
    }

    /// The certificate of the authority that signed the server's, in PEM.
    pub fn authority(&self) -> &str {
        &self.authority
    }
}

async fn serve(
    State(gate): State<Gate>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if headers.get(header::AUTHORIZATION).map(|value| value.as_bytes()) != Some(gate.authorization.as_bytes())
    {
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Basic realm=\"git\"")])
            .into_response();
    }
    match http_backend(&gate.repositories, &method, &uri, &headers, &body).await {
        Ok(response) => response,
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")).into_response(),
    }
}

/// One request as a CGI call of `git http-backend`. Answers are held in memory: test repositories are small.
async fn http_backend(
    repositories: &Path,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Response> {
    let text =
        |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let mut child = tokio::process::Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", repositories)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .env("GIT_PROTOCOL", text("git-protocol"))
        .env("HTTP_CONTENT_ENCODING", text("content-encoding"))
        .env("PATH_INFO", uri.path())
        .env("QUERY_STRING", uri.query().unwrap_or_default())
        .env("REQUEST_METHOD", method.as_str())
        .env("CONTENT_TYPE", text("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("starting git http-backend")?;
    let mut input = child.stdin.take().context("git http-backend has no input")?;
    let request = body.clone();
    let feed = async move {
        // It closes its input when it has read enough.
        let _ = input.write_all(&request).await;
    };
    let (output, ()) = tokio::join!(child.wait_with_output(), feed);
    let output = output.context("waiting for git http-backend")?.stdout;
    let end =
        output.windows(4).position(|four| four == b"\r\n\r\n").context("git http-backend sent no headers")?;
    let (head, content) = output.split_at(end + 4);
    let mut response = Response::builder();
    for line in String::from_utf8_lossy(head).lines().filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ").context("git http-backend sent a strange header")?;
        if name.eq_ignore_ascii_case("status") {
            response = response.status(value.get(..3).unwrap_or_default().parse::<u16>()?);
        } else {
            response = response.header(name, value);
        }
    }
    Ok(response.body(Body::from(content.to_vec()))?)
}

/// Serves repositories over ssh to the holder of one key.
#[derive(Debug)]
pub struct SshForge {
    port: u16,
    user: String,
    client_key: String,
    host_key: String,
    _server: Guarded,
    _scratch: Scratch,
}

impl SshForge {
    /// Starts OpenSSH's server as the user of this process.
    pub async fn start() -> Result<Self> {
        let server = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"]
            .into_iter()
            .map(Path::new)
            .find(|path| path.is_file())
            .context("sshd is missing: run `tools/setup test`")?;
        let scratch = Scratch::new("terrane-sshd-")?;
        let dir = scratch.path();
        for name in ["client", "host"] {
            let made = std::process::Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"])
                .arg(dir.join(name))
                .status()
                .context("starting ssh-keygen")?;
            ensure!(made.success(), "ssh-keygen ended with {made}");
        }
        let user = std::process::Command::new("id").arg("-un").output().context("asking who we are")?;
        let user = String::from_utf8(user.stdout)?.trim().to_owned();
        if rustix::process::getuid().is_root() {
            // Where sshd puts its unprivileged half; Debian makes it at boot.
            std::fs::create_dir_all("/run/sshd").context("making /run/sshd")?;
        }
        for _ in 0..20 {
            // The port is free now; if someone takes it before sshd does, sshd ends and another is tried.
            let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
            let config = dir.join("sshd_config");
            std::fs::write(
                &config,
                format!(
                    "ListenAddress 127.0.0.1:{port}\nHostKey {0}/host\nAuthorizedKeysFile {0}/client.pub\nPidFile none\n\
                     StrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\n\
                     PermitRootLogin prohibit-password\nAcceptEnv GIT_PROTOCOL\n",
                    dir.display()
                ),
            )?;
            let arguments: [&std::ffi::OsStr; 4] =
                ["-D".as_ref(), "-e".as_ref(), "-f".as_ref(), config.as_os_str()];
            let mut guarded = Guarded::start(server, &arguments, dir.join("sshd.log"))?;
            if !answers(&mut guarded, port).await? {
                continue;
            }
            let read = |name: &str| std::fs::read_to_string(dir.join(name));
            return Ok(Self {
                port,
                user,
                client_key: read("client")?,
                host_key: read("host.pub")?,
                _server: guarded,
                _scratch: scratch,
            });
        }
        bail!("sshd found no free port")
    }

    /// The URL of a repository by its absolute path.
    pub fn url(&self, repository: &Path) -> String {
        format!("ssh://{}@127.0.0.1:{}{}", self.user, self.port, repository.display())
    }

    /// The private key that may log in.
    pub fn private_key(&self) -> &str {
        &self.client_key
    }

    /// The line of known_hosts that names this server.
    pub fn known_hosts(&self) -> String {
        format!("[127.0.0.1]:{} {}", self.port, self.host_key)
    }
}

/// Whether the server greets; false when it has ended.
async fn answers(server: &mut Guarded, port: u16) -> Result<bool> {
    use tokio::io::AsyncReadExt;
    for _ in 0..600 {
        if server.exited()?.is_some() {
            return Ok(false);
        }
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await {
            let mut greeting = [0; 4];
            if stream.read_exact(&mut greeting).await.is_ok() && &greeting == b"SSH-" {
                return Ok(true);
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("sshd does not answer:\n{}", server.log_tail())
}
