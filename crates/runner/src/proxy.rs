//! The state backend that the tool sees: the tools' `http` protocol on loopback, for this attempt's own child only. It
//! forwards with the current token and the fence, neither of which the tool ever sees. While the datastore is away a
//! request waits here with its body on disk, so a state that was handed over is never lost to a short outage. The same holds for a
//! datastore that has no room.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::text::Sha256;
use axum::Router;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use datastore::client::{Error as ClientError, LockChange};
use datastore::{Client, StateId};
use futures::TryStreamExt;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use tokio::io::AsyncWriteExt;

use crate::log::Log;

const USER: &str = "terrane";
const LOCK_LIMIT: usize = 64 * 1024;
/// Between two questions whether there is room.
const ROOM_AGAIN: Duration = Duration::from_secs(2);

pub(crate) struct Proxy {
    pub(crate) client: Client,
    pub(crate) state: StateId,
    /// Absent for a plan, which may only read.
    pub(crate) fence: Option<u64>,
    pub(crate) spool: PathBuf,
    /// How long a state, or the release of its lock, waits for room in the datastore.
    pub(crate) patience: Duration,
    pub(crate) password: SecretString,
    pub(crate) log: Arc<Log>,
    pub(crate) refused_lock: RefusedLock,
}

/// Who held the lock that the tool was refused, in words. The tools print their own lock instead of the holder's.
#[derive(Clone, Debug, Default)]
pub(crate) struct RefusedLock(Arc<Mutex<Option<String>>>);

impl RefusedLock {
    pub(crate) fn words(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn remember(&self, holder: &str) {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "PascalCase", default)]
        struct Holder {
            who: String,
            operation: String,
            held_by: String,
            held_since: String,
        }
        let Ok(holder) = serde_json::from_str::<Holder>(holder) else { return };
        let who = [&holder.who, &holder.held_by].into_iter().find(|who| !who.is_empty());
        let words = format!(
            "the state is locked by {} (operation {}, held by {} since {}); nothing was changed",
            who.map_or("someone", String::as_str),
            if holder.operation.is_empty() { "unknown" } else { &holder.operation },
            holder.held_by,
            holder.held_since
        );
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(words);
    }
}

/// The variables by which the tool finds the proxy. They leave no trace in a plan file.
pub(crate) fn variables(address: SocketAddr, password: &SecretString) -> [(&'static str, String); 5] {
    let url = format!("http://{address}/state");
    [
        ("TF_HTTP_ADDRESS", url.clone()),
        ("TF_HTTP_LOCK_ADDRESS", url.clone()),
        ("TF_HTTP_UNLOCK_ADDRESS", url),
        ("TF_HTTP_USERNAME", USER.to_owned()),
        ("TF_HTTP_PASSWORD", password.expose_secret().to_owned()),
    ]
}

pub(crate) fn router(proxy: Proxy) -> Router {
    Router::new()
        .route("/state", axum::routing::any(dispatch))
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(Arc::new(proxy))
}

#[derive(Debug, Default, Deserialize)]
struct Parameters {
    #[serde(rename = "ID")]
    lock_id: Option<String>,
}

async fn dispatch(
    State(proxy): State<Arc<Proxy>>,
    Query(parameters): Query<Parameters>,
    headers: HeaderMap,
    request: Request,
) -> Response {
    if !proxy.knows(&headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let method = request.method().as_str().to_owned();
    let result = match method.as_str() {
        "GET" => proxy.read().await,
        "POST" | "PUT" => proxy.write(parameters.lock_id, request.into_body()).await,
        "LOCK" => proxy.lock(LockChange::Take, request.into_body()).await,
        "UNLOCK" => proxy.lock(LockChange::Release, request.into_body()).await,
        _ => return StatusCode::METHOD_NOT_ALLOWED.into_response(),
    };
    result.unwrap_or_else(|failure| proxy.answer(&method, failure))
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Datastore(#[from] ClientError),
    #[error("the state could not be kept on disk while it is sent: {0}")]
    Disk(#[from] std::io::Error),
    #[error("the tool broke off its request: {0}")]
    Tool(String),
}

impl Proxy {
    /// Compared by digest, so that the time it takes tells nothing.
    fn knows(&self, headers: &HeaderMap) -> bool {
        let expected = format!("{USER}:{}", self.password.expose_secret());
        let expected = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(expected));
        let sent = headers.get(header::AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
        Sha256::of(sent) == Sha256::of(expected.as_bytes())
    }

    async fn read(&self) -> Result<Response, Failure> {
        let mut file = tokio::fs::File::from_std(tempfile::tempfile_in(&self.spool)?);
        if self.client.state_get(&self.state, &mut file).await?.is_none() {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
        use tokio::io::AsyncSeekExt;
        let size = file.stream_position().await?;
        file.rewind().await?;
        let body = Body::from_stream(tokio_util::io::ReaderStream::with_capacity(file, 256 * 1024));
        Ok(([(header::CONTENT_LENGTH, size)], body).into_response())
    }

    async fn write(&self, lock_id: Option<String>, body: Body) -> Result<Response, Failure> {
        let spooled = tempfile::NamedTempFile::new_in(&self.spool)?;
        let mut file = tokio::fs::File::from_std(spooled.reopen()?);
        let mut stream = body.into_data_stream();
        while let Some(piece) = stream.try_next().await.map_err(|error| Failure::Tool(error.to_string()))? {
            file.write_all(&piece).await?;
        }
        file.flush().await?;
        file.sync_all().await?;
        // It is the only record of what was changed.
        let push = || self.client.state_put(&self.state, spooled.path(), lock_id.as_deref(), self.fence);
        self.when_there_is_room("The new state is kept here until it can be stored", push).await?;
        Ok(StatusCode::OK.into_response())
    }

    /// Sends again and again as long as the datastore has no room, and says so once.
    async fn when_there_is_room<F>(&self, waiting: &str, send: impl Fn() -> F) -> Result<(), ClientError>
    where
        F: Future<Output = Result<(), ClientError>>,
    {
        let until = Instant::now() + self.patience;
        let mut told = false;
        loop {
            match send().await {
                Err(error) if error.is_full() && Instant::now() < until => {
                    if !std::mem::replace(&mut told, true) {
                        self.log.line(&format!("{waiting}: {error}"));
                    }
                    tokio::time::sleep(ROOM_AGAIN).await;
                }
                other => return other,
            }
        }
    }

    async fn lock(&self, change: LockChange, body: Body) -> Result<Response, Failure> {
        let info =
            axum::body::to_bytes(body, LOCK_LIMIT).await.map_err(|error| Failure::Tool(error.to_string()))?;
        let send = || self.client.state_lock(&self.state, change, info.clone(), self.fence);
        match change {
            // Nothing has been changed yet, and the tool can say so.
            LockChange::Take => send().await?,
            LockChange::Release => {
                self.when_there_is_room("The state stays locked until its release can be stored", send)
                    .await?;
            }
        }
        Ok(StatusCode::OK.into_response())
    }

    /// The tools show only a number for most refusals; the words go to the log.
    fn answer(&self, method: &str, failure: Failure) -> Response {
        let status = match &failure {
            Failure::Datastore(ClientError::Refused { status, message, .. })
                if *status == StatusCode::LOCKED =>
            {
                self.refused_lock.remember(message);
                return (StatusCode::LOCKED, message.clone()).into_response();
            }
            Failure::Datastore(ClientError::Refused { status, .. }) => *status,
            Failure::Datastore(ClientError::Conflict(_)) => StatusCode::CONFLICT,
            // Not 404: a tool would take that for "there is no state yet".
            Failure::Datastore(
                ClientError::NotFound(_) | ClientError::Digest { .. } | ClientError::Io { .. },
            ) => StatusCode::INTERNAL_SERVER_ERROR,
            Failure::Datastore(
                ClientError::Unreachable { .. }
                | ClientError::Distrusted { .. }
                | ClientError::Authority(_)
                | ClientError::TooLarge { .. }
                | ClientError::LogEnd { .. },
            ) => StatusCode::SERVICE_UNAVAILABLE,
            Failure::Disk(_) => StatusCode::INSUFFICIENT_STORAGE,
            Failure::Tool(_) => StatusCode::BAD_REQUEST,
        };
        let word = match method {
            "GET" => "read",
            "LOCK" => "locked",
            "UNLOCK" => "unlocked",
            _ => "written",
        };
        self.log.line(&format!("The state could not be {word}: {failure}"));
        (status, failure.to_string()).into_response()
    }
}
