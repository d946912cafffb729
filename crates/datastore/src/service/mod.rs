//! The HTTP service. Here: its options, its router, how a request is identified and allowed, and how errors are
//! answered. The handlers are in their own files.

mod access;
mod artefacts;
mod audit;
mod bundles;
mod cipher;
mod disk;
mod identity;
mod issuer;
mod journal;
mod keyring;
mod log;
mod place;
mod reseal;
mod seal;
mod state;
mod state_scan;
mod store;
mod upload;
mod usage;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use api::attempt::Description;
use api::text::Sha256;
use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post, put};

pub use identity::{Caller, Error as ReviewError, KubeReviewer, Reviewer, Runner};
pub use issuer::KeySource;
pub use journal::{Head, Kind as StepKind, Lock, Step};
pub use keyring::{Error as KeyringError, FirstKey, KeyInfo, Keyring, add_key, add_newest_key};
pub use place::{Bucket, Error as PlaceError, Objects, Place};
pub use reseal::{Error as ResealError, Resealed, reseal, uses};
pub use usage::{AREAS, Held, usage};

use access::{Denied, Operation, permit};
use journal::{Journal, Refused};
use store::Store;

use crate::Refusal;
use crate::key::{Artefact, Attempt, Key, RunUid};

/// Descriptions never change, so they may be remembered; this many are.
const DESCRIPTIONS: usize = 2048;

/// What the service is made of.
#[derive(Debug)]
pub struct Options {
    pub objects: Objects,
    pub keys: Keyring,
    pub reviewer: Arc<dyn Reviewer>,
}

impl Options {
    /// The objects of a directory of this machine, which needs no trial.
    pub fn local_objects(dir: &std::path::Path) -> Result<Objects, object_store::Error> {
        place::local(dir)
    }
}

pub(crate) struct Service {
    store: Store,
    journal: Journal,
    logs: log::Logs,
    reviewer: Arc<dyn Reviewer>,
    descriptions: Mutex<HashMap<Attempt, Arc<Description>>>,
    /// Whoever writes a use of a bundle down, or deletes one because there was none, holds this.
    bundle_uses: tokio::sync::Mutex<()>,
}

/// The whole service as a router; serve it on a socket or call it in process.
pub fn router(options: Options) -> Router {
    let store = Store::new(options.objects, Arc::new(options.keys));
    let service = Arc::new(Service {
        journal: Journal::new(store.clone()),
        store,
        logs: log::Logs::default(),
        reviewer: options.reviewer,
        descriptions: Mutex::default(),
        bundle_uses: tokio::sync::Mutex::default(),
    });
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/v1/bundles", get(bundles::list))
        .route(
            "/v1/bundles/{sha256}",
            get(bundles::get).put(bundles::put).post(bundles::keep).delete(bundles::delete),
        )
        .route("/v1/runs/{run}", get(artefacts::run_size).delete(artefacts::run_delete))
        .route("/v1/runs/{run}/{attempt}/log", post(log::append).get(log::read))
        .route("/v1/runs/{run}/{attempt}/{artefact}", get(artefacts::get).put(artefacts::put))
        .route("/v1/state/{id}", any(state::dispatch))
        .route(
            "/v1/state/{id}/lock",
            get(state::lock_show).post(state::lock_take).delete(state::lock_release),
        )
        .route("/v1/state/{id}/versions", get(state::versions))
        .route("/v1/state/{id}/versions/{version}", get(state::version_get))
        .route("/v1/audit/{namespace}/{layer}", get(audit::list))
        .route("/v1/audit/{namespace}/{layer}/{run}/{attempt}", put(audit::put))
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(service)
}

impl Service {
    async fn caller(&self, headers: &HeaderMap) -> Result<Caller, Error> {
        let token = headers
            .get(axum::http::header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "))
            .map(str::trim)
            .filter(|token| !token.is_empty())
            .ok_or_else(|| {
                Error::Unauthenticated(
                    "the request has no bearer token; send one made for the datastore".to_owned(),
                )
            })?;
        self.reviewer.review(token).await.map_err(|error| match error {
            identity::Error::Unauthenticated(_) => Error::Unauthenticated(error.to_string()),
            identity::Error::Stranger(_) => Error::Forbidden(error.to_string()),
            identity::Error::Unavailable(_) => Error::Unavailable(error.to_string()),
        })
    }

    /// Identifies the caller and refuses what it may not do. Returns the description of a runner's own attempt.
    async fn authorise(
        &self,
        headers: &HeaderMap,
        operation: &Operation,
    ) -> Result<(Caller, Option<Arc<Description>>), Error> {
        let caller = self.caller(headers).await?;
        let description = match &caller {
            Caller::Controller | Caller::Server => None,
            Caller::Runner(runner) => self.description(&runner.attempt).await?,
        };
        match permit(&caller, description.as_deref(), operation) {
            Ok(()) => Ok((caller, description)),
            Err(denied) => {
                tracing::warn!(?caller, ?operation, "refused");
                Err(denied.into())
            }
        }
    }

    async fn description(&self, attempt: &Attempt) -> Result<Option<Arc<Description>>, Error> {
        if let Some(known) = self.descriptions().get(attempt) {
            return Ok(Some(Arc::clone(known)));
        }
        let key = Key::Artefact(attempt.clone(), Artefact::Spec);
        let (tenant, content) = match self.store.bytes(&key).await {
            Ok(found) => found,
            Err(store::Error::NotFound(_)) => return Ok(None),
            Err(other) => return Err(other.into()),
        };
        let description: Description = serde_json::from_slice(&content).map_err(|error| {
            Error::Internal(format!("the description of {attempt} cannot be read: {error}"))
        })?;
        if description.namespace != tenant {
            return Err(Error::Internal(format!(
                "the description of {attempt} is stored for another namespace"
            )));
        }
        let description = Arc::new(description);
        let mut known = self.descriptions();
        if known.len() >= DESCRIPTIONS {
            known.clear();
        }
        known.insert(attempt.clone(), Arc::clone(&description));
        Ok(Some(description))
    }

    /// What was remembered of a run that is gone.
    fn forget(&self, run: &RunUid) {
        self.descriptions().retain(|attempt, _| attempt.run_uid() != run.as_str());
        self.logs.forget(run);
    }

    fn descriptions(&self) -> std::sync::MutexGuard<'_, HashMap<Attempt, Arc<Description>>> {
        self.descriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything a handler can answer with instead of what was asked.
#[derive(Debug)]
pub(crate) enum Error {
    Unauthenticated(String),
    Forbidden(String),
    NotFound(String),
    Conflict(String),
    /// The log ends here, not where the caller thinks.
    LogEnd {
        end: u64,
        message: String,
    },
    Locked(Box<Lock>),
    BadRequest(String),
    TooLarge(String),
    Method(String),
    Unavailable(String),
    /// There is no room; trying again at once does not help.
    Full(String),
    Internal(String),
}

impl From<Denied> for Error {
    fn from(denied: Denied) -> Self {
        Self::Forbidden(denied.to_string())
    }
}

impl From<crate::key::Error> for Error {
    fn from(error: crate::key::Error) -> Self {
        Self::BadRequest(error.to_string())
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        let message = error.to_string();
        match error {
            store::Error::NotFound(_) => Self::NotFound(message),
            store::Error::Conflict(_) => Self::Conflict(message),
            store::Error::Digest { .. } | store::Error::Body { .. } => Self::BadRequest(message),
            store::Error::TooLarge { .. } => Self::TooLarge(message),
            store::Error::Sealed { .. } => Self::Internal(message),
            store::Error::Storage { .. } | store::Error::Underway(_) => Self::Unavailable(message),
            store::Error::Full { .. } => Self::Full(message),
        }
    }
}

impl From<journal::Error> for Error {
    fn from(error: journal::Error) -> Self {
        let message = error.to_string();
        match error {
            journal::Error::Refused(Refused::Locked(lock)) => Self::Locked(lock),
            journal::Error::Refused(Refused::NoState) => Self::BadRequest(message),
            journal::Error::Refused(Refused::OtherTenant) => Self::Forbidden(message),
            journal::Error::Refused(
                Refused::Fenced { .. }
                | Refused::NotLocked
                | Refused::OtherLock(_)
                | Refused::Lineage { .. }
                | Refused::Serial { .. },
            ) => Self::Conflict(message),
            journal::Error::Store(error) => error.into(),
            journal::Error::Malformed(_, _) | journal::Error::RolledBack { .. } => Self::Internal(message),
            journal::Error::Busy => Self::Unavailable(message),
        }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let (status, message) = match self {
            Self::Unauthenticated(message) => (StatusCode::UNAUTHORIZED, message),
            Self::Forbidden(message) => (StatusCode::FORBIDDEN, message),
            Self::NotFound(message) => (StatusCode::NOT_FOUND, message),
            Self::Conflict(message) => (StatusCode::CONFLICT, message),
            Self::LogEnd { end, message } => {
                let headers = [(crate::header::LOG_END, end.to_string())];
                return (StatusCode::CONFLICT, headers, axum::Json(Refusal { message })).into_response();
            }
            // The tools read the holder's own words from the body, and skip what they do not know.
            Self::Locked(lock) => {
                let mut info = lock.info;
                if let Some(fields) = info.as_object_mut() {
                    fields.insert("HeldBy".to_owned(), lock.by.into());
                    fields.insert("HeldSince".to_owned(), lock.since.to_string().into());
                }
                return (StatusCode::LOCKED, axum::Json(info)).into_response();
            }
            Self::BadRequest(message) => (StatusCode::BAD_REQUEST, message),
            Self::TooLarge(message) => (StatusCode::PAYLOAD_TOO_LARGE, message),
            Self::Method(message) => (StatusCode::METHOD_NOT_ALLOWED, message),
            Self::Unavailable(message) => (StatusCode::SERVICE_UNAVAILABLE, message),
            Self::Full(message) => {
                tracing::error!(message, "a request was refused");
                (StatusCode::INSUFFICIENT_STORAGE, message)
            }
            Self::Internal(message) => {
                tracing::error!(message, "a request failed");
                (StatusCode::INTERNAL_SERVER_ERROR, message)
            }
        };
        (status, axum::Json(Refusal { message })).into_response()
    }
}

/// The digest that an upload announces.
fn announced_digest(headers: &HeaderMap) -> Result<Sha256, Error> {
    headers
        .get(crate::header::SHA256)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| Sha256::new(value).ok())
        .ok_or_else(|| {
            Error::BadRequest(format!(
                "the header {} must hold the sha256 of the body in hex",
                crate::header::SHA256
            ))
        })
}
