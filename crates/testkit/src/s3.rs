//! A real S3 server on loopback, and a gate in front of it that can refuse, or lose the answers to what was done.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OnceCell;

use crate::process::{Guarded, Scratch};
use crate::tools::tool;

const START_LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);
const BUCKET: &str = "artefacts";
const ACCESS: &str = "terrane-tests";

static SHARED: OnceCell<Result<S3Server, String>> = OnceCell::const_new();

/// A running server with one bucket. It stops, and its files go, when this is dropped or the test process ends.
#[derive(Debug)]
pub struct S3Server {
    address: SocketAddr,
    secret: String,
    // Dropped in this order: first what uses the directory.
    _process: Guarded,
    scratch: Scratch,
}

impl S3Server {
    /// The one server of this test process. Tests share it, so each works below a prefix of its own.
    #[expect(clippy::panic, reason = "only tests call this, and a test without its server has failed")]
    pub async fn shared() -> &'static Self {
        let started =
            SHARED.get_or_init(|| async { Self::start().await.map_err(|error| format!("{error:#}")) }).await;
        match started {
            Ok(server) => server,
            Err(error) => panic!("no S3 server: {error}"),
        }
    }

    /// Starts a server of its own.
    pub async fn start() -> Result<Self> {
        let program = tool("versitygw")?;
        let scratch = Scratch::new("terrane-s3-")?;
        let (objects, metadata) = (scratch.path().join("objects"), scratch.path().join("metadata"));
        fs::create_dir_all(objects.join(BUCKET)).context("making the bucket")?;
        fs::create_dir_all(&metadata).context("making the directory of metadata")?;
        let secret = format!("{:032x}", rand::random::<u128>());
        let credentials = [("ROOT_ACCESS_KEY", ACCESS), ("ROOT_SECRET_KEY", secret.as_str())];
        let program = knowing(&program, &credentials, scratch.path())?;
        let limit = Instant::now() + START_LIMIT;
        // It cannot choose a free port itself, so another process may take the one chosen for it before it binds.
        loop {
            let address = free_address()?;
            let arguments = [
                "--port".to_owned(),
                address.to_string(),
                "--quiet".to_owned(),
                "posix".to_owned(),
                // Not every file system has extended attributes, which it would keep metadata in.
                "--sidecar".to_owned(),
                metadata.display().to_string(),
                objects.display().to_string(),
            ];
            let mut process = Guarded::start(&program, &arguments, scratch.path().join("s3.log"))?;
            match wait_until_up(&mut process, address, limit).await {
                Ok(()) => return Ok(Self { address, secret, _process: process, scratch }),
                Err(_) if process.log_tail().contains("address already in use") => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The bucket that it has.
    pub fn bucket(&self) -> &'static str {
        BUCKET
    }

    /// The URL of a prefix in its bucket.
    pub fn url(&self, prefix: &str) -> String {
        format!("s3://{BUCKET}/{prefix}")
    }

    /// The directory in which the server keeps what is below a prefix, each object as a file.
    pub fn files(&self, prefix: &str) -> PathBuf {
        self.scratch.path().join("objects").join(BUCKET).join(prefix)
    }

    /// What a client finds in its environment; `address` is the server's, or that of a gate.
    pub fn environment(&self, address: SocketAddr) -> Vec<(String, String)> {
        [
            ("AWS_ACCESS_KEY_ID", ACCESS.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", self.secret.clone()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ENDPOINT_URL", format!("http://{address}")),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

/// A script that starts a server with its credentials in the environment: a test may look for them in command lines.
pub(crate) fn knowing(program: &Path, credentials: &[(&str, &str)], directory: &Path) -> Result<PathBuf> {
    let script = directory.join("start");
    let mut text = "#!/bin/sh\n".to_owned();
    for (name, value) in credentials {
        text.push_str(&format!("export {name}='{value}'\n"));
    }
    text.push_str(&format!("exec '{}' \"$@\"\n", program.display()));
    fs::write(&script, text).context("writing the script that starts the server")?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).context("making it a program")?;
    Ok(script)
}

async fn wait_until_up(process: &mut Guarded, address: SocketAddr, limit: Instant) -> Result<()> {
    loop {
        process.ensure_running()?;
        if answers(address).await {
            // Something else may have taken the port and answer in its place.
            return process.ensure_running();
        }
        ensure!(
            Instant::now() < limit,
            "versitygw did not answer within {} s:\n{}",
            START_LIMIT.as_secs(),
            process.log_tail()
        );
        tokio::time::sleep(POLL).await;
    }
}

async fn answers(address: SocketAddr) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: s3\r\nconnection: close\r\n\r\n").await?;
        let mut answer = [0u8; 8];
        stream.read_exact(&mut answer).await?;
        Ok::<_, std::io::Error>(answer.starts_with(b"HTTP/1.1"))
    };
    matches!(tokio::time::timeout(Duration::from_secs(5), ask).await, Ok(Ok(true)))
}

pub(crate) fn free_address() -> Result<SocketAddr> {
    let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).context("looking for a free port")?;
    listener.local_addr().context("reading the free port")
}

/// What a gate does with requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passage {
    Open,
    /// As if the server were down.
    Shut,
    /// The next request that starts with this text is carried out, and its answer lost; then it opens.
    LoseAnswerTo(String),
}

/// A port in front of a server. It knows nothing of HTTP but that a request begins with its method.
#[derive(Debug)]
pub struct Gate {
    address: SocketAddr,
    passage: Arc<Mutex<Passage>>,
    task: tokio::task::JoinHandle<()>,
}

impl Gate {
    /// An open gate to `target`.
    pub async fn new(target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("listening as a gate")?;
        let address = listener.local_addr().context("reading the address of the gate")?;
        let passage = Arc::new(Mutex::new(Passage::Open));
        let seen = Arc::clone(&passage);
        #[expect(clippy::disallowed_methods, reason = "it ends with the test that made it")]
        let task = tokio::spawn(async move {
            let mut visits = tokio::task::JoinSet::new();
            while let Ok((visitor, _)) = listener.accept().await {
                visits.spawn(visit(visitor, target, Arc::clone(&seen)));
            }
        });
        Ok(Self { address, passage, task })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections that exist already are held to it too.
    pub fn set(&self, passage: Passage) {
        *self.passage.lock().unwrap_or_else(PoisonError::into_inner) = passage;
    }

    /// What it does now.
    pub fn passage(&self) -> Passage {
        self.passage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Carries bytes both ways. Requests on one connection follow each other, so an answer belongs to the request before it.
async fn visit(mut visitor: TcpStream, target: SocketAddr, passage: Arc<Mutex<Passage>>) {
    let current = || passage.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if current() == Passage::Shut {
        return;
    }
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    let (mut from_visitor, mut from_server) = (vec![0u8; 64 * 1024], vec![0u8; 64 * 1024]);
    let mut answered = true;
    let mut lost = false;
    loop {
        tokio::select! {
            read = visitor.read(&mut from_visitor) => {
                let Ok(size @ 1..) = read else { return };
                let bytes = from_visitor.get(..size).unwrap_or_default();
                match current() {
                    Passage::Open => {}
                    Passage::Shut => return,
                    Passage::LoseAnswerTo(start) => lost |= answered && bytes.starts_with(start.as_bytes()),
                }
                answered = false;
                if server.write_all(bytes).await.is_err() { return }
            }
            read = server.read(&mut from_server) => {
                let Ok(size @ 1..) = read else { return };
                if lost {
                    *passage.lock().unwrap_or_else(PoisonError::into_inner) = Passage::Open;
                    return;
                }
                if current() == Passage::Shut { return }
                answered = true;
                let bytes = from_server.get(..size).unwrap_or_default();
                if visitor.write_all(bytes).await.is_err() { return }
            }
        }
    }
}

/// The files below a directory, at any depth.
pub fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => pending.push(entry.path()),
                Ok(_) => found.push(entry.path()),
                Err(_) => {}
            }
        }
    }
    found.sort();
    found
}
