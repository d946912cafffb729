//! Every answer that is not what was asked: one sentence for a person, and the status that fits.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    Unauthenticated(String),
    #[error("{0}")]
    Forbidden(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Conflict(String),
    #[error("{0}")]
    BadRequest(String),
    #[error("{0}")]
    Unavailable(String),
}

impl Refusal {
    /// The Kubernetes API could not be asked.
    pub(crate) fn api(doing: &str, error: &kube::Error) -> Self {
        Self::Unavailable(format!("the Kubernetes API could not be asked to {doing}: {error}"))
    }

    pub(crate) fn datastore(error: &datastore::client::Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Conflict(_) => StatusCode::CONFLICT,
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, axum::Json(datastore::Refusal { message: self.to_string() })).into_response()
    }
}
