//! A receiver of notifications: an HTTP server on loopback that keeps what it is sent and answers as it is told.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use aws_lc_rs::hmac;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use http::{HeaderMap, StatusCode, Uri};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// One request.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Delivery {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// As docs/notifications.md tells receivers to check it.
    pub fn is_signed_with(&self, key: &str) -> bool {
        let signed = [self.header("terrane-timestamp").as_bytes(), b".", &self.body].concat();
        let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
        let expected: String =
            hmac::sign(&key, &signed).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        self.header("terrane-signature") == format!("sha256={expected}")
    }
}

#[derive(Debug, Default)]
struct Taken {
    deliveries: Vec<Delivery>,
    /// By path; what is not here is answered 200.
    answers: BTreeMap<String, VecDeque<StatusCode>>,
}

#[derive(Debug)]
pub struct Receiver {
    address: SocketAddr,
    taken: Arc<Mutex<Taken>>,
    /// Ends with it.
    _server: JoinSet<()>,
}

impl Receiver {
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("binding the receiver")?;
        let address = listener.local_addr().context("asking for the receiver's address")?;
        let taken = Arc::<Mutex<Taken>>::default();
        let service = Router::new().fallback(take).with_state(Arc::clone(&taken));
        let mut server = JoinSet::new();
        server.spawn(async move {
            let _ = axum::serve(listener, service).await;
        });
        Ok(Self { address, taken, _server: server })
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The next request for this path is answered so.
    pub fn answer_once(&self, path: &str, code: StatusCode) {
        locked(&self.taken).answers.entry(path.to_owned()).or_default().push_back(code);
    }

    /// What came for this path so far, oldest first.
    pub fn deliveries(&self, path: &str) -> Vec<Delivery> {
        locked(&self.taken).deliveries.iter().filter(|one| one.path == path).cloned().collect()
    }
}

async fn take(
    State(taken): State<Arc<Mutex<Taken>>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let mut taken = locked(&taken);
    let path = uri.path().to_owned();
    let answer = taken.answers.get_mut(&path).and_then(VecDeque::pop_front);
    taken.deliveries.push(Delivery { path, headers, body: body.to_vec() });
    answer.unwrap_or(StatusCode::OK)
}

fn locked(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}
