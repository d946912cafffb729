//! Azure's own storage server, Azurite, on loopback.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;

use crate::process::{Guarded, Scratch};
use crate::s3::knowing;
use crate::tools::tool;

const START_LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);
const ACCOUNT: &str = "terranetests";
const CONTAINER: &str = "artefacts";
const API_VERSION: &str = "2023-11-03";
/// What it prints before its address.
const LISTENS: &str = "successfully listens on http://";

static SHARED: OnceCell<Result<AzureServer, String>> = OnceCell::const_new();

/// A running server with one container. It stops, and what it holds goes, when this is dropped or the test process ends.
#[derive(Debug)]
pub struct AzureServer {
    address: SocketAddr,
    /// In base64, as everybody gives it.
    key: String,
    // Dropped in this order: first what uses the directory.
    _process: Guarded,
    _scratch: Scratch,
}

impl AzureServer {
    /// The one server of this test process. Tests share it, so each works below a prefix of its own.
    #[expect(clippy::panic, reason = "only tests call this, and a test without its server has failed")]
    pub async fn shared() -> &'static Self {
        let started =
            SHARED.get_or_init(|| async { Self::start().await.map_err(|error| format!("{error:#}")) }).await;
        match started {
            Ok(server) => server,
            Err(error) => panic!("no Azure server: {error}"),
        }
    }

    async fn start() -> Result<Self> {
        let program = tool("azurite")?;
        let scratch = Scratch::new("terrane-azure-")?;
        let key = STANDARD.encode(rand::random::<[u8; 32]>());
        let accounts = format!("{ACCOUNT}:{key}");
        let program = knowing(&program, &[("AZURITE_ACCOUNTS", &accounts)], scratch.path())?;
        let log = scratch.path().join("azure.log");
        let arguments = [
            "--blobHost=127.0.0.1",
            "--blobPort=0",
            "--inMemoryPersistence",
            "--silent",
            "--disableTelemetry",
            "--disableProductStyleUrl",
        ];
        let mut process = Guarded::start(&program, &arguments, log.clone())?;
        let limit = Instant::now() + START_LIMIT;
        let address = loop {
            process.ensure_running()?;
            let said = fs::read_to_string(&log).unwrap_or_default();
            let address = said.split_once(LISTENS).and_then(|(_, rest)| rest.lines().next());
            if let Some(Ok(address)) = address.map(|text| text.trim().parse()) {
                break address;
            }
            ensure!(
                Instant::now() < limit,
                "Azurite did not listen within {} s:\n{}",
                START_LIMIT.as_secs(),
                process.log_tail()
            );
            tokio::time::sleep(POLL).await;
        };
        make_container(address, &key).await?;
        Ok(Self { address, key, _process: process, _scratch: scratch })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a prefix in its container.
    pub fn url(&self, prefix: &str) -> String {
        format!("az://{CONTAINER}/{prefix}")
    }

    /// What a client finds in its environment; `address` is the server's, or that of a gate.
    pub fn environment(&self, address: SocketAddr) -> Vec<(String, String)> {
        [
            ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT.to_owned()),
            ("AZURE_STORAGE_ACCOUNT_KEY", self.key.clone()),
            ("AZURE_STORAGE_ENDPOINT", format!("http://{address}/{ACCOUNT}")),
            ("AZURE_ALLOW_HTTP", "true".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

/// Makes the container, by a request that is signed as Azure demands it: no client of ours can.
async fn make_container(address: SocketAddr, key: &str) -> Result<()> {
    let date = Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let headers = format!("x-ms-date:{date}\nx-ms-version:{API_VERSION}\n");
    let empty = "\n".repeat(12);
    let text = format!("PUT{empty}{headers}/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container");
    let key = STANDARD.decode(key).context("reading the key of the account")?;
    let signature = STANDARD.encode(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), text.as_bytes()));
    let request = format!(
        "PUT /{ACCOUNT}/{CONTAINER}?restype=container HTTP/1.1\r\nhost: {address}\r\nx-ms-date: {date}\r\nx-ms-version: {API_VERSION}\r\nauthorization: SharedKey {ACCOUNT}:{signature}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    let mut stream = TcpStream::connect(address).await.context("connecting to Azurite")?;
    stream.write_all(request.as_bytes()).await.context("asking Azurite for a container")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.context("reading the answer of Azurite")?;
    let answer = String::from_utf8_lossy(&answer);
    ensure!(answer.starts_with("HTTP/1.1 201"), "Azurite made no container: {answer}");
    Ok(())
}
