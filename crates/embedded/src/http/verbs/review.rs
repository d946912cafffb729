//! Reviews and token requests: questions that `auth` answers. Nothing is stored.

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::auth::{Authenticator, reviews};
use crate::http::request::WriteOptions;
use crate::http::serve::Call;
use crate::http::status::{Result, Status};
use crate::http::{Api, decode, negotiate, respond, write};
use crate::kinds::{Builtin, meta};

pub async fn serve(api: &Api, call: Call, body: Body) -> Result<Response> {
    let (object, warnings) = read(api, &call, body).await?;
    let authorizer = &api.options.authorizer;
    let now = Timestamp::now();
    let answer = match call.kind.builtin() {
        Some(Builtin::TokenReview) => wire(reviews::token(authenticator(api)?, typed(object)?, now)?),
        Some(Builtin::SelfSubjectReview) => wire(reviews::self_subject(&call.identity, now)),
        Some(Builtin::SubjectAccessReview) => wire(reviews::subject_access(authorizer, typed(object)?)?),
        Some(Builtin::LocalSubjectAccessReview) => wire(reviews::local_subject_access(
            authorizer,
            call.namespace().unwrap_or_default(),
            typed(object)?,
        )?),
        Some(Builtin::SelfSubjectAccessReview) => {
            wire(reviews::self_subject_access(authorizer, &call.identity, typed(object)?)?)
        }
        Some(Builtin::SelfSubjectRulesReview) => {
            wire(reviews::self_subject_rules(authorizer, &call.identity, typed(object)?)?)
        }
        Some(_) | None => return Err(Status::unknown_resource()),
    }?;
    Ok(respond::warn(respond::plain(&call, StatusCode::CREATED, &answer)?, &warnings))
}

/// `POST serviceaccounts/NAME/token`.
pub async fn token_request(api: &Api, call: Call, body: Body) -> Result<Response> {
    let format = negotiate::body_format(&call.headers)?;
    let bytes = decode::body(body, api.options.max_body_bytes).await?;
    let decoded = decode::decode(&bytes, format, "io.k8s.api.authentication.v1.TokenRequest")
        .map_err(Status::bad_request)?;
    let namespace = call.namespace().unwrap_or_default();
    let given = meta::name(&decoded.value);
    if !given.is_empty() && given != call.path.name {
        let message = format!(
            "the name of the object ({given}) does not match the name on the URL ({})",
            call.path.name
        );
        return Err(Status::bad_request(message));
    }
    let tokens = authenticator(api)?.tokens();
    let answer = tokens.request(
        &api.store.snapshot(),
        namespace,
        &call.path.name,
        typed(decoded.value)?,
        Timestamp::now(),
    )?;
    respond::plain(&call, StatusCode::CREATED, &wire(answer)?)
}

async fn read(api: &Api, call: &Call, body: Body) -> Result<(Value, Vec<String>)> {
    let format = negotiate::body_format(&call.headers)?;
    let bytes = decode::body(body, api.options.max_body_bytes).await?;
    let options = WriteOptions::parse("CreateOptions", &call.params, &call.headers, Vec::new())?;
    let incoming = write::read(call, &bytes, format, options.validation)?;
    Ok((incoming.object, incoming.warnings))
}

fn authenticator(api: &Api) -> Result<&Authenticator> {
    api.options
        .authenticator
        .as_deref()
        .ok_or_else(|| Status::unavailable("this API was started without keys for tokens"))
}

fn typed<T: DeserializeOwned>(object: Value) -> Result<T> {
    serde_json::from_value(object).map_err(|error| Status::bad_request(error.to_string()))
}

fn wire(answer: impl Serialize) -> Result<Value> {
    serde_json::to_value(answer).map_err(Status::internal)
}
