//! The Kubernetes API over HTTP: paths, verbs, lists, watches, discovery, errors. It decides what a request means and what is answered;
//! what an object must look like is said by `kinds` and `schema`, who may do what by `auth`, and what is kept by `store`.

mod decode;
mod discovery;
mod jsonpath;
mod list;
mod negotiate;
mod openapi;
pub mod pod_log;
mod request;
mod respond;
mod selector;
mod serve;
mod status;
mod table;
mod verbs;
mod view;
mod watch;
mod write;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::sync::Semaphore;

use crate::auth::{Authenticator, Authorizer};
use crate::kinds::Registry;
use crate::store::Store;

pub use pod_log::{LogOptions, PodLogs};
pub use status::Status;

/// How the API is served.
#[derive(Clone)]
pub struct Options {
    pub authorizer: Arc<Authorizer>,
    /// Turns tokens into identities and makes them; without it, neither is served.
    pub authenticator: Option<Arc<Authenticator>>,
    /// Where logs of pods come from; without it, they are said to be out of reach.
    pub logs: Option<Arc<dyn PodLogs>>,
    /// The largest body of a request, as kube-apiserver has it.
    pub max_body_bytes: usize,
    /// Watches that may be open at once.
    pub max_watches: usize,
    /// How long a watch lasts that does not say so itself: this, and up to as much again.
    pub watch_timeout: Duration,
    /// How often a watch that asks for bookmarks gets one.
    pub bookmark_interval: Duration,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("max_body_bytes", &self.max_body_bytes)
            .field("max_watches", &self.max_watches)
            .finish_non_exhaustive()
    }
}

impl Options {
    pub fn new(authorizer: Arc<Authorizer>) -> Self {
        Options {
            authorizer,
            authenticator: None,
            logs: None,
            max_body_bytes: 3 * 1024 * 1024,
            max_watches: 10_000,
            watch_timeout: Duration::from_secs(1800),
            bookmark_interval: Duration::from_secs(60),
        }
    }
}

/// What all requests share.
pub(crate) struct Api {
    store: Store,
    registry: Arc<Registry>,
    options: Options,
    watches: Arc<Semaphore>,
}

/// The API as a service. Identities arrive as request extensions, put there by the layers of `auth`; a request without one is refused.
pub fn router(store: Store, options: Options) -> Router {
    router_with(store, Arc::new(Registry::new()), options)
}

/// The same, sharing the kinds with those who go through everything that is stored.
pub fn router_with(store: Store, registry: Arc<Registry>, options: Options) -> Router {
    let watches = Arc::new(Semaphore::new(options.max_watches));
    Router::new().fallback(serve::serve).with_state(Arc::new(Api { store, registry, options, watches }))
}
