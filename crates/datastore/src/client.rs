//! The client of the datastore. Every request can be repeated, so transient failures are retried here, for as long as
//! the caller allows; digests are checked on what arrives.

mod audit;
mod bundles;
mod relay;
mod tools;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::text::Sha256;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{Stream, StreamExt, TryStreamExt};
use http::{Method, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use sha2::Digest;
use tokio::io::{AsyncSeekExt, AsyncWrite, AsyncWriteExt};

use crate::key::{Artefact, Attempt, RunUid, StateId};
use crate::{Refusal, header};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the datastore could not be reached to {doing}: {detail}")]
    Unreachable { doing: String, detail: String },
    #[error(
        "the datastore's certificate is not believed, so that it was not asked to {doing}: {detail}; name the authority that signed it with --datastore-ca"
    )]
    Distrusted { doing: String, detail: String },
    #[error("the authority of the datastore cannot be used: {0}")]
    Authority(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Conflict(String),
    /// The log is stored up to another byte than the caller thought.
    #[error("the log is stored up to byte {end}")]
    LogEnd { end: u64 },
    #[error("the datastore refused to {doing}: {message}")]
    Refused { doing: String, status: StatusCode, message: String },
    #[error(
        "what the datastore sent to {doing} is not what was stored: its sha256 is {found}, not {expected}"
    )]
    Digest { doing: String, expected: Sha256, found: Sha256 },
    #[error("the answer to {doing} is larger than {limit} bytes")]
    TooLarge { doing: String, limit: u64 },
    #[error("could not {doing}: {source}")]
    Io { doing: String, source: std::io::Error },
}

impl Error {
    /// Whether the datastore has no room: trying again at once does not help, and somebody must be told.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == StatusCode::INSUFFICIENT_STORAGE)
    }

    /// Whether the same request may succeed by itself, soon.
    pub fn is_transient(&self) -> bool {
        match self {
            // Certificates are renewed, and a result is worth waiting for that.
            Self::Unreachable { .. } | Self::Distrusted { .. } => true,
            Self::Refused { .. } if self.is_full() => false,
            Self::Refused { status, .. } => {
                status.is_server_error()
                    || *status == StatusCode::TOO_MANY_REQUESTS
                    // A token can expire between reading its file and its arrival.
                    || *status == StatusCode::UNAUTHORIZED
            }
            Self::NotFound(_)
            | Self::Authority(_)
            | Self::Conflict(_)
            | Self::LogEnd { .. }
            | Self::Digest { .. }
            | Self::TooLarge { .. }
            | Self::Io { .. } => false,
        }
    }
}

/// Where the token comes from. A file is read again for each request, because the node renews it in place.
#[derive(Clone, Debug)]
pub enum TokenSource {
    File(PathBuf),
    Fixed(SecretString),
}

impl TokenSource {
    async fn token(&self) -> Result<SecretString, Error> {
        match self {
            Self::Fixed(token) => Ok(token.clone()),
            Self::File(path) => {
                let text = tokio::fs::read_to_string(path).await.map_err(|source| Error::Io {
                    doing: format!("read the token in {}", path.display()),
                    source,
                })?;
                Ok(SecretString::from(text.trim().to_owned()))
            }
        }
    }
}

pub use relay::Relay;
/// What requests and answers consist of on the way.
pub use reqwest::Body;

/// What carries requests to the service. Without one they go over the network; with one a process that holds the service
/// can do without a socket.
pub trait Transport: Send + Sync + std::fmt::Debug {
    fn send(
        &self,
        request: http::Request<Body>,
    ) -> BoxFuture<'static, Result<http::Response<Body>, Undelivered>>;
}

/// Why a request, or its answer, did not arrive.
pub type Undelivered = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    transport: Option<Arc<dyn Transport>>,
    base: String,
    token: TokenSource,
    patience: Duration,
    silence: Duration,
}

/// How long an answer may take to begin, if nothing else is said.
const SILENCE: Duration = Duration::from_secs(60);
/// A file up to this size is read once, to know its digest and to send it; a larger one twice, so that it is never held in memory.
const SMALL_FILE: u64 = 4 * 1024 * 1024;

/// What an upload consists of; a file is read from its start at each try.
#[derive(Debug)]
enum Upload<'a> {
    Nothing,
    Bytes(Bytes),
    File(&'a Path),
}

impl<'a> Upload<'a> {
    /// A file and its digest.
    async fn of(file: &'a Path, doing: &str) -> Result<(Sha256, Self), Error> {
        let path = file.to_owned();
        let read = blocking(move || {
            let mut open = std::fs::File::open(&path)?;
            let size = open.metadata()?.len();
            if size > SMALL_FILE {
                return Ok((digest(open)?, None));
            }
            let mut content = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
            open.read_to_end(&mut content)?;
            Ok((Sha256::of(&content), Some(Bytes::from(content))))
        });
        let (sha256, content) = read.await.map_err(|source| Error::Io { doing: doing.to_owned(), source })?;
        Ok((sha256, content.map_or(Self::File(file), Self::Bytes)))
    }
}

struct Request<'a> {
    method: Method,
    path: String,
    doing: &'a str,
    sha256: Option<&'a Sha256>,
    fence: Option<u64>,
    upload: Upload<'a>,
}

impl<'a> Request<'a> {
    fn get(path: String, doing: &'a str) -> Self {
        Self { method: Method::GET, path, doing, sha256: None, fence: None, upload: Upload::Nothing }
    }
}

impl Client {
    /// `base` is the service's address, such as `http://127.0.0.1:9000`.
    pub fn new(base: &str, token: TokenSource) -> Result<Self, Error> {
        Self::believing(base, token, None)
    }

    /// The same, where one authority (in PEM) is to be believed instead of those of this machine.
    pub fn believing(base: &str, token: TokenSource, authority: Option<&str>) -> Result<Self, Error> {
        // A proxy of the environment is for what code fetches: here it would be given tokens, and an image that is run may name one.
        let mut http = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(Duration::from_secs(5))
            .read_timeout(SILENCE)
            .redirect(reqwest::redirect::Policy::none());
        if let Some(pem) = authority {
            let found = reqwest::Certificate::from_pem_bundle(pem.as_bytes())
                .map_err(|error| Error::Authority(chain(&error)))?;
            if found.is_empty() {
                return Err(Error::Authority("there is no certificate in PEM".to_owned()));
            }
            http = http.tls_certs_only(found);
        } else if base.starts_with("http://") {
            // Nobody is believed where nobody is asked for a certificate, and redirects are not followed: reading the authorities of
            // the machine would cost a runner more than any of its requests.
            http = http.tls_certs_only([]);
        }
        let http = http
            .build()
            .map_err(|error| Error::Unreachable { doing: "prepare".to_owned(), detail: chain(&error) })?;
        Ok(Self {
            http,
            transport: None,
            base: base.trim_end_matches('/').to_owned(),
            token,
            patience: Duration::from_secs(30),
            silence: SILENCE,
        })
    }

    /// The same client as another caller.
    pub fn with_token(mut self, token: TokenSource) -> Self {
        self.token = token;
        self
    }

    /// Sends everything through `transport`.
    pub fn with_transport(mut self, transport: Arc<dyn Transport>) -> Self {
        self.transport = Some(transport);
        self
    }

    /// How long transient failures are retried.
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How long an answer may take to begin, if not a minute.
    pub fn with_silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// For no longer than this, where it was to be longer.
    pub fn with_patience_at_most(self, limit: Duration) -> Self {
        let patience = self.patience.min(limit);
        self.with_patience(patience)
    }

    pub async fn artefact_put(
        &self,
        attempt: &Attempt,
        artefact: Artefact,
        content: Bytes,
    ) -> Result<(), Error> {
        let sha256 = Sha256::of(&content);
        let doing = format!("store {} of {attempt}", artefact.name());
        self.put(artefact_path(attempt, artefact), &doing, &sha256, Upload::Bytes(content)).await
    }

    /// Stores a file; returns its digest.
    pub async fn artefact_put_file(
        &self,
        attempt: &Attempt,
        artefact: Artefact,
        file: &Path,
    ) -> Result<Sha256, Error> {
        let doing = format!("store {} of {attempt}", artefact.name());
        let (sha256, upload) = Upload::of(file, &doing).await?;
        self.put(artefact_path(attempt, artefact), &doing, &sha256, upload).await?;
        Ok(sha256)
    }

    pub async fn artefact_exists(&self, attempt: &Attempt, artefact: Artefact) -> Result<bool, Error> {
        let doing = format!("look for {} of {attempt}", artefact.name());
        let request =
            Request { method: Method::HEAD, ..Request::get(artefact_path(attempt, artefact), &doing) };
        match self.send(request).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound(_)) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// A whole artefact of at most `limit` bytes, or nothing if it is not there.
    pub async fn artefact_get(
        &self,
        attempt: &Attempt,
        artefact: Artefact,
        limit: u64,
    ) -> Result<Option<Bytes>, Error> {
        let doing = format!("fetch {} of {attempt}", artefact.name());
        let mut content = Vec::new();
        let mut sink = Limited { inner: &mut content, left: limit };
        match self.download(artefact_path(attempt, artefact), &doing, None, &mut sink).await {
            Ok(_) => Ok(Some(content.into())),
            Err(Error::NotFound(_)) => Ok(None),
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::FileTooLarge => {
                Err(Error::TooLarge { doing, limit })
            }
            Err(other) => Err(other),
        }
    }

    /// Writes an artefact to `out`, checked against the digest that the caller expects.
    pub async fn artefact_get_file(
        &self,
        attempt: &Attempt,
        artefact: Artefact,
        expected: &Sha256,
        out: &mut tokio::fs::File,
    ) -> Result<u64, Error> {
        let doing = format!("fetch {} of {attempt}", artefact.name());
        let (size, _) = self.download(artefact_path(attempt, artefact), &doing, Some(expected), out).await?;
        Ok(size)
    }

    /// How many bytes a run left in the datastore.
    pub async fn run_size(&self, run: &RunUid) -> Result<u64, Error> {
        let doing = format!("measure what run {run} left");
        let response = self.send(Request::get(format!("/v1/runs/{run}"), &doing)).await?;
        let answer = response
            .text()
            .await
            .map_err(|error| Error::Unreachable { doing: doing.clone(), detail: error.to_string() })?;
        answer.trim().parse().map_err(|_| {
            let source = std::io::Error::new(std::io::ErrorKind::InvalidData, "the answer is not a number");
            Error::Io { doing, source }
        })
    }

    /// Deletes everything that a run left. Deleting it again is no error.
    pub async fn run_delete(&self, run: &RunUid) -> Result<(), Error> {
        let doing = format!("delete what run {run} left");
        let path = format!("/v1/runs/{run}");
        let request = Request { method: Method::DELETE, ..Request::get(path, &doing) };
        self.send(request).await.map(drop)
    }

    /// Appends to a log; returns up to which byte it is stored.
    pub async fn log_append(&self, attempt: &Attempt, offset: u64, content: Bytes) -> Result<u64, Error> {
        let sha256 = Sha256::of(&content);
        let doing = format!("append to the log of {attempt}");
        let response = self
            .send(Request {
                method: Method::POST,
                path: format!("/v1/runs/{attempt}/log?offset={offset}"),
                doing: &doing,
                sha256: Some(&sha256),
                fence: None,
                upload: Upload::Bytes(content),
            })
            .await?;
        Ok(log_end(&response).unwrap_or(offset))
    }

    /// The log from a byte on, to where it is stored now.
    pub async fn log_get(
        &self,
        attempt: &Attempt,
        offset: u64,
    ) -> Result<impl Stream<Item = Result<Bytes, Error>> + use<>, Error> {
        self.log_stream(attempt, format!("/v1/runs/{attempt}/log?offset={offset}")).await
    }

    /// The log from a byte on, until the attempt has ended.
    pub async fn log_follow(
        &self,
        attempt: &Attempt,
        offset: u64,
    ) -> Result<impl Stream<Item = Result<Bytes, Error>> + use<>, Error> {
        self.log_stream(attempt, format!("/v1/runs/{attempt}/log?offset={offset}&follow=true")).await
    }

    async fn log_stream(
        &self,
        attempt: &Attempt,
        path: String,
    ) -> Result<impl Stream<Item = Result<Bytes, Error>> + use<>, Error> {
        let doing = format!("read the log of {attempt}");
        let response = self.send(Request::get(path, &doing)).await?;
        Ok(response.bytes_stream().map(move |piece| {
            piece.map_err(|error| Error::Unreachable { doing: doing.clone(), detail: chain(&error) })
        }))
    }

    /// The current content of a state, written to `out`; `None` when there is none.
    pub async fn state_get<W: AsyncWrite + Unpin + Rewind>(
        &self,
        id: &StateId,
        out: &mut W,
    ) -> Result<Option<Sha256>, Error> {
        let doing = format!("read state {id}");
        let (_, sha256) = self.download(format!("/v1/state/{id}"), &doing, None, out).await?;
        Ok(sha256)
    }

    /// Writes a state from a file, under the lock with this id.
    pub async fn state_put(
        &self,
        id: &StateId,
        file: &Path,
        lock_id: Option<&str>,
        fence: Option<u64>,
    ) -> Result<(), Error> {
        let doing = format!("write state {id}");
        let (sha256, upload) = Upload::of(file, &doing).await?;
        let query = lock_id.map(|lock| format!("?ID={}", escape(lock))).unwrap_or_default();
        self.send(Request {
            method: Method::POST,
            path: format!("/v1/state/{id}{query}"),
            doing: &doing,
            sha256: Some(&sha256),
            fence,
            upload,
        })
        .await
        .map(drop)
    }

    /// Sends LOCK or UNLOCK with the tool's own words. A refusal carries the holder's words.
    pub async fn state_lock(
        &self,
        id: &StateId,
        change: LockChange,
        info: Bytes,
        fence: Option<u64>,
    ) -> Result<(), Error> {
        let (method, doing) = match change {
            LockChange::Take => (Method::POST, format!("lock state {id}")),
            LockChange::Release => (Method::DELETE, format!("unlock state {id}")),
        };
        let path = format!("/v1/state/{id}/lock");
        let request =
            Request { method, path, doing: &doing, sha256: None, fence, upload: Upload::Bytes(info) };
        self.send(request).await.map(drop)
    }

    async fn put(&self, path: String, doing: &str, sha256: &Sha256, upload: Upload<'_>) -> Result<(), Error> {
        let request = Request { method: Method::PUT, path, doing, sha256: Some(sha256), fence: None, upload };
        self.send(request).await.map(drop)
    }

    /// Streams an answer into `out` and checks its digest; starts over when the connection breaks off.
    async fn download<W: AsyncWrite + Unpin + Rewind>(
        &self,
        path: String,
        doing: &str,
        expected: Option<&Sha256>,
        out: &mut W,
    ) -> Result<(u64, Option<Sha256>), Error> {
        let mut retry = Retry::new(self.patience);
        loop {
            match self.download_once(&path, doing, expected, out).await {
                Err(error) if error.is_transient() => retry.pause(error).await?,
                other => return other,
            }
            out.rewind().await.map_err(|source| Error::Io { doing: doing.to_owned(), source })?;
        }
    }

    async fn download_once<W: AsyncWrite + Unpin>(
        &self,
        path: &str,
        doing: &str,
        expected: Option<&Sha256>,
        out: &mut W,
    ) -> Result<(u64, Option<Sha256>), Error> {
        let io = |source| Error::Io { doing: doing.to_owned(), source };
        let response = self.try_send(&Request::get(path.to_owned(), doing)).await?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok((0, None));
        }
        let announced = response
            .headers()
            .get(header::SHA256)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| Sha256::new(value).ok());
        let mut hasher = sha2::Sha256::new();
        let mut size = 0u64;
        let mut stream = response.bytes_stream();
        loop {
            let piece = stream
                .try_next()
                .await
                .map_err(|error| Error::Unreachable { doing: doing.to_owned(), detail: chain(&error) })?;
            let Some(piece) = piece else { break };
            hasher.update(&piece);
            size = size.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
            out.write_all(&piece).await.map_err(io)?;
        }
        out.flush().await.map_err(io)?;
        let found = finish(hasher);
        if let Some(wanted) = expected.or(announced.as_ref())
            && wanted != &found
        {
            return Err(Error::Digest { doing: doing.to_owned(), expected: wanted.clone(), found });
        }
        Ok((size, Some(found)))
    }

    async fn send(&self, request: Request<'_>) -> Result<reqwest::Response, Error> {
        let mut retry = Retry::new(self.patience);
        loop {
            match self.try_send(&request).await {
                Err(error) if error.is_transient() => retry.pause(error).await?,
                other => return other,
            }
        }
    }

    async fn try_send(&self, request: &Request<'_>) -> Result<reqwest::Response, Error> {
        let doing = request.doing;
        let token = self.token.token().await?;
        let mut builder = self
            .http
            .request(request.method.clone(), format!("{}{}", self.base, request.path))
            .bearer_auth(token.expose_secret());
        if let Some(sha256) = request.sha256 {
            builder = builder.header(header::SHA256, sha256.as_str());
        }
        if let Some(fence) = request.fence {
            builder = builder.header(header::FENCE, fence);
        }
        builder = match &request.upload {
            Upload::Nothing => builder,
            Upload::Bytes(bytes) => builder.body(bytes.clone()),
            Upload::File(path) => {
                let io = |source| Error::Io { doing: doing.to_owned(), source };
                let file = tokio::fs::File::open(path).await.map_err(io)?;
                let size = file.metadata().await.map_err(io)?.len();
                let stream = tokio_util::io::ReaderStream::with_capacity(file, 256 * 1024);
                builder.header(http::header::CONTENT_LENGTH, size).body(reqwest::Body::wrap_stream(stream))
            }
        };
        let response = self.deliver(builder).await.map_err(|error| undelivered(doing, chain(&*error)))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let end = log_end(&response);
        let message = refusal(response).await;
        Err(match status {
            StatusCode::NOT_FOUND => Error::NotFound(message),
            StatusCode::CONFLICT => match end {
                Some(end) => Error::LogEnd { end },
                None => Error::Conflict(message),
            },
            status => Error::Refused { doing: doing.to_owned(), status, message },
        })
    }
}

impl Client {
    async fn deliver(&self, builder: reqwest::RequestBuilder) -> Result<reqwest::Response, Undelivered> {
        match &self.transport {
            None => match tokio::time::timeout(self.silence, builder.send()).await {
                Ok(answer) => Ok(answer?),
                Err(_) => Err(format!("no answer has begun within {} s", self.silence.as_secs_f32()).into()),
            },
            Some(transport) => {
                let request = http::Request::<Body>::try_from(builder.build()?)?;
                Ok(transport.send(request).await?.into())
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockChange {
    Take,
    Release,
}

/// Starting a download over needs an empty target.
pub trait Rewind {
    fn rewind(&mut self) -> impl Future<Output = std::io::Result<()>> + Send;
}

impl Rewind for tokio::fs::File {
    async fn rewind(&mut self) -> std::io::Result<()> {
        self.set_len(0).await?;
        self.seek(std::io::SeekFrom::Start(0)).await.map(drop)
    }
}

impl Rewind for Vec<u8> {
    async fn rewind(&mut self) -> std::io::Result<()> {
        self.clear();
        Ok(())
    }
}

/// Memory that refuses to grow without end.
struct Limited<'a> {
    inner: &'a mut Vec<u8>,
    left: u64,
}

impl Rewind for Limited<'_> {
    async fn rewind(&mut self) -> std::io::Result<()> {
        self.left = self.left.saturating_add(u64::try_from(self.inner.len()).unwrap_or(0));
        self.inner.clear();
        Ok(())
    }
}

impl AsyncWrite for Limited<'_> {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        match self.left.checked_sub(size) {
            Some(left) => {
                self.left = left;
                self.inner.extend_from_slice(bytes);
                std::task::Poll::Ready(Ok(bytes.len()))
            }
            None => std::task::Poll::Ready(Err(std::io::ErrorKind::FileTooLarge.into())),
        }
    }

    fn poll_flush(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}

/// Pauses between tries, growing to two seconds, until patience ends.
struct Retry {
    until: Instant,
    pause: Duration,
}

impl Retry {
    fn new(patience: Duration) -> Self {
        Self { until: Instant::now() + patience, pause: Duration::from_millis(50) }
    }

    async fn pause(&mut self, error: Error) -> Result<(), Error> {
        if Instant::now() + self.pause > self.until {
            return Err(error);
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(Duration::from_secs(2));
        Ok(())
    }
}

fn artefact_path(attempt: &Attempt, artefact: Artefact) -> String {
    format!("/v1/runs/{attempt}/{}", artefact.name())
}

fn log_end(response: &reqwest::Response) -> Option<u64> {
    response.headers().get(header::LOG_END)?.to_str().ok()?.parse().ok()
}

/// The service's own words, or what can be told from an answer of something in between.
async fn refusal(response: reqwest::Response) -> String {
    let status = response.status();
    let mut body = Vec::new();
    let mut stream = response.bytes_stream();
    while let Some(Ok(piece)) = stream.next().await {
        body.extend_from_slice(&piece);
        if body.len() > 64 * 1024 {
            break;
        }
    }
    match serde_json::from_slice::<Refusal>(&body) {
        Ok(refusal) => refusal.message,
        Err(_) if status == StatusCode::LOCKED => String::from_utf8_lossy(&body).into_owned(),
        Err(_) => format!("it answered {status}"),
    }
}

pub async fn file_digest(path: &Path) -> std::io::Result<Sha256> {
    let path = path.to_owned();
    blocking(move || digest(std::fs::File::open(path)?)).await
}

/// Reads to the end. O(what is read), and no more than a piece of it in memory.
fn digest(mut reader: impl Read) -> std::io::Result<Sha256> {
    let mut hasher = sha2::Sha256::new();
    let mut buffer = vec![0u8; 256 * 1024];
    loop {
        let size = reader.read(&mut buffer)?;
        if size == 0 {
            return Ok(finish(hasher));
        }
        hasher.update(buffer.get(..size).unwrap_or_default());
    }
}

/// Goes to a thread that may wait for a disk, once for all of it.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

fn finish(hasher: sha2::Sha256) -> Sha256 {
    let digest = hex::encode(hasher.finalize());
    Sha256::new(digest).unwrap_or_else(|_| Sha256::of(b""))
}

fn escape(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Nobody there, or somebody who cannot show to be the datastore.
fn undelivered(doing: &str, detail: String) -> Error {
    let doing = doing.to_owned();
    // The only sign of it that comes through the libraries between.
    if detail.contains("invalid peer certificate") {
        Error::Distrusted { doing, detail }
    } else {
        Error::Unreachable { doing, detail }
    }
}

/// An error with its causes; reqwest's own text stops at the first.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
