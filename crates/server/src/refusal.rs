//! Every answer that is not what was asked: a problem as RFC 9457 has it, with one sentence for a person and the status that fits.

use axum::extract::rejection::{BytesRejection, JsonRejection, QueryRejection};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// What every refusal looks like.
#[derive(Debug, Serialize, ToSchema)]
pub struct Problem {
    /// Always `about:blank`: the status says what kind of problem it is.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The status in words.
    pub title: String,
    pub status: u16,
    /// What happened, to which object, and what to do next.
    pub detail: String,
    /// What of the body cannot be, each by itself, where there is more to say than one sentence.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<Fault>,
}

/// One thing of a body that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Fault {
    /// Where it stands in the body, as a JSON pointer.
    pub pointer: String,
    /// What is wrong there.
    pub detail: String,
}

#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    Unauthenticated(String),
    #[error("{0}")]
    Forbidden(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    MethodNotAllowed(String),
    #[error("{0}")]
    Conflict(String),
    /// What the caller last saw is no longer so.
    #[error("{0}")]
    Outdated(String),
    #[error("{0}")]
    BadRequest(String),
    #[error("{0}")]
    TooLarge(String),
    #[error("{0}")]
    WrongType(String),
    /// The body is what it says it is, and asks for what cannot be.
    #[error("{0}")]
    Invalid(String),
    /// The same, with everything that cannot be.
    #[error("{message}")]
    Faulty { message: String, faults: Vec<Fault> },
    #[error("{0}")]
    TooSlow(String),
    #[error("{message}")]
    TooOften { message: String, seconds: u64 },
    #[error("{0}")]
    Unavailable(String),
}

impl Refusal {
    /// The Kubernetes API could not be asked.
    pub(crate) fn api(doing: &str, error: &kube::Error) -> Self {
        Self::Unavailable(format!("the Kubernetes API could not be asked to {doing}: {error}"))
    }

    /// What the Kubernetes API said to a request in the caller's own name.
    pub(crate) fn answered(doing: &str, error: kube::Error) -> Self {
        let kube::Error::Api(answer) = &error else { return Self::api(doing, &error) };
        let said = format!("could not {doing}: {}", answer.message);
        match answer.code {
            401 => Self::Unauthenticated(said),
            403 => Self::Forbidden(said),
            404 => Self::NotFound(said),
            409 => Self::Conflict(said),
            400 | 422 => Self::Invalid(said),
            _ => Self::Unavailable(said),
        }
    }

    pub(crate) fn datastore(error: &datastore::client::Error) -> Self {
        Self::Unavailable(error.to_string())
    }

    pub(crate) const fn status(&self) -> StatusCode {
        match self {
            Self::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Conflict(_) => StatusCode::CONFLICT,
            Self::Outdated(_) => StatusCode::PRECONDITION_FAILED,
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::WrongType(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Invalid(_) | Self::Faulty { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            Self::TooSlow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::TooOften { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl From<JsonRejection> for Refusal {
    fn from(rejection: JsonRejection) -> Self {
        let said = rejection.body_text();
        match rejection {
            JsonRejection::MissingJsonContentType(_) => Self::WrongType(
                "the body must be JSON, with the header content-type: application/json".to_owned(),
            ),
            JsonRejection::JsonSyntaxError(_) => Self::BadRequest(format!("the body is no JSON: {said}")),
            JsonRejection::JsonDataError(_) => Self::Invalid(format!("the body cannot be used: {said}")),
            JsonRejection::BytesRejection(inner) => inner.into(),
            _ => Self::BadRequest(said),
        }
    }
}

impl From<BytesRejection> for Refusal {
    fn from(rejection: BytesRejection) -> Self {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            Self::TooLarge(format!("the body is larger than {} bytes", crate::BODY_LIMIT))
        } else {
            Self::BadRequest(format!("the body broke off: {}", rejection.body_text()))
        }
    }
}

impl From<QueryRejection> for Refusal {
    fn from(rejection: QueryRejection) -> Self {
        Self::BadRequest(format!("the query cannot be used: {}", rejection.body_text()))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = self.status();
        let problem = Problem {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or_default().to_owned(),
            status: status.as_u16(),
            detail: self.to_string(),
            errors: match &self {
                Self::Faulty { faults, .. } => faults.clone(),
                _ => Vec::new(),
            },
        };
        let mut response = (status, axum::Json(problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match self {
            Self::Unauthenticated(_) => {
                headers
                    .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"terrane\""));
            }
            Self::TooOften { seconds, .. } => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
            Self::Unavailable(_) => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
            }
            _ => {}
        }
        response
    }
}
