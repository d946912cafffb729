//! How requests are read and answers are written, the same for every handler: problems where something cannot be read, and tags by which a
//! caller says which version it has seen.

use std::sync::Arc;
use std::time::Duration;

use api::text::Sha256;
use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Refusal, Service};

/// How long a body may take to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was asked after the `?`.
#[derive(Debug)]
pub(crate) struct Asked<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<Arc<Service>> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, Refusal> {
        let Query(value) = Query::<T>::from_request_parts(parts, service).await?;
        Ok(Self(value))
    }
}

/// A body of JSON, whole within a while.
#[derive(Debug)]
pub(crate) struct Told<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<Service>> for Told<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, service: &Arc<Service>) -> Result<Self, Refusal> {
        let reading = Json::<T>::from_request(request, service);
        let Json(value) = tokio::time::timeout(PATIENCE, reading).await.map_err(|_| {
            Refusal::TooSlow(format!("the body did not arrive within {} seconds", PATIENCE.as_secs()))
        })??;
        Ok(Self(value))
    }
}

/// The version that the caller has seen and wants to change, by `If-Match`; any, where it says nothing or `*`.
#[derive(Debug)]
pub(crate) struct Seen(pub(crate) Option<String>);

impl FromRequestParts<Arc<Service>> for Seen {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Service>) -> Result<Self, Refusal> {
        let Some(value) = parts.headers.get(header::IF_MATCH) else { return Ok(Self(None)) };
        let text = value.to_str().unwrap_or_default().trim();
        if text == "*" {
            return Ok(Self(None));
        }
        let version = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        match version.filter(|version| !version.is_empty() && !version.contains('"')) {
            Some(version) => Ok(Self(Some(version.to_owned()))),
            None => Err(Refusal::BadRequest(
                "If-Match must be the ETag of one answer, with its quotes, or *".to_owned(),
            )),
        }
    }
}

/// An object with its version; nothing but that, where the caller has it already.
pub(crate) fn versioned<T: Serialize>(asked: &HeaderMap, version: &str, body: &T) -> Response {
    tagged(asked, version, || Json(body).into_response())
}

/// A list, by the digest of what it says.
pub(crate) fn digested<T: Serialize>(asked: &HeaderMap, body: &T) -> Response {
    let bytes = match serde_json::to_vec(body) {
        Ok(bytes) => bytes,
        Err(error) => {
            return Refusal::Unavailable(format!("the answer could not be written: {error}")).into_response();
        }
    };
    let digest = Sha256::of(&bytes);
    let json = [(header::CONTENT_TYPE, "application/json")];
    tagged(asked, digest.short(), || (json, bytes).into_response())
}

fn tagged(asked: &HeaderMap, tag: &str, whole: impl FnOnce() -> Response) -> Response {
    let tag = format!("\"{tag}\"");
    let known = asked.get_all(header::IF_NONE_MATCH).into_iter().filter_map(|value| value.to_str().ok());
    let is_known = known
        .flat_map(|value| value.split(','))
        .map(|one| one.trim().trim_start_matches("W/"))
        .any(|one| one == tag || one == "*");
    let mut response = if is_known { StatusCode::NOT_MODIFIED.into_response() } else { whole() };
    if let Ok(value) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, value);
    }
    response
}
