//! Errors as the API tells them: whole `Status` objects with kube-apiserver's reasons and wording. What an error means for a verb is
//! decided elsewhere; here it only gets its words and its code.

use std::borrow::Cow;
use std::fmt;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};

use super::respond;
use crate::apply;
use crate::auth::Refusal;
use crate::kinds::{Builtin, Cause, Kind};
use crate::patch;

/// The one error that request handling returns.
pub type Result<T> = std::result::Result<T, Status>;

/// A `Status` of kind failure.
#[derive(Debug, Clone)]
pub struct Status(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    code: StatusCode,
    reason: Cow<'static, str>,
    message: String,
    details: Option<Map<String, Value>>,
    retry_after: Option<u32>,
    warnings: Vec<String>,
}

impl Status {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Status(Box::new(Inner {
            code,
            reason: reason.into(),
            message: message.into(),
            details: None,
            retry_after: None,
            warnings: Vec::new(),
        }))
    }

    fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        let details = self.0.details.get_or_insert_with(Map::new);
        for (key, value) in [("name", name), ("group", group), ("kind", kind)] {
            if !value.is_empty() {
                details.insert(key.to_owned(), value.into());
            }
        }
        self
    }

    /// The same error with remarks on what was sent.
    pub fn warning(mut self, warnings: &[String]) -> Self {
        self.0.warnings.extend_from_slice(warnings);
        self
    }

    pub fn code(&self) -> StatusCode {
        self.0.code
    }

    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The same error with other words.
    pub fn reworded(mut self, message: String) -> Self {
        self.0.message = message;
        self
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub fn not_found(kind: &Kind, name: &str) -> Self {
        Self::not_found_named(&kind.group, &kind.plural, name)
    }

    pub fn not_found_named(group: &str, plural: &str, name: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            format!("{} {name:?} not found", qualified(group, plural)),
        )
        .about(group, plural, name)
    }

    /// The resource itself is not served.
    pub fn unknown_resource() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource")
            .with_empty_details()
    }

    pub fn already_exists(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", qualified(&kind.group, &kind.plural));
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).about(&kind.group, &kind.plural, name)
    }

    /// 409 for a write that somebody else's write has overtaken, or whose precondition fails.
    pub fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        Self::conflict_named(&kind.group, &kind.plural, name, why)
    }

    pub fn conflict_named(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {name:?}: {why}", qualified(group, resource));
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(group, resource, name)
    }

    pub fn modified(kind: &Kind, name: &str) -> Self {
        Self::conflict(
            kind,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 409 of server-side apply: one cause per field that another manager owns.
    pub fn apply_conflict(message: String, causes: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut status = Self::new(StatusCode::CONFLICT, "Conflict", message);
        let causes = causes.into_iter().map(
            |(field, message)| json!({"reason": "FieldManagerConflict", "message": message, "field": field}),
        );
        status.0.details = Some(Map::from_iter([("causes".to_owned(), Value::Array(causes.collect()))]));
        status
    }

    pub fn apply_refused(error: &apply::Error) -> Self {
        match error {
            apply::Error::Conflict(_) => Self::apply_conflict(
                error.to_string(),
                error.causes().into_iter().map(|cause| (cause.field, cause.message)),
            ),
            apply::Error::BadRequest(message) => Self::bad_request(message.as_str()),
            apply::Error::ManagerRequired => Self::invalid_named(
                "meta.k8s.io",
                "PatchOptions",
                "",
                vec![Cause::required("fieldManager", "is required for apply patch")],
            ),
            apply::Error::Unmergeable(message) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message.as_str())
            }
        }
    }

    pub fn patch_refused(error: &patch::Error) -> Self {
        match error {
            patch::Error::Malformed(message) => Self::bad_request(message.as_str()),
            patch::Error::Inapplicable(cause) => {
                tracing::debug!(%cause, "a patch does not apply");
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", error.to_string()).with_empty_details()
            }
            patch::Error::TooLarge(_) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", error.to_string())
            }
            patch::Error::Unmergeable(message) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message.as_str())
            }
        }
    }

    pub fn invalid(kind: &Kind, name: &str, causes: Vec<Cause>) -> Self {
        // Events of both sorts are one type to the server, and faults are told of that one.
        let group = if kind.builtin() == Some(Builtin::EventV1) { "" } else { &kind.group };
        Self::invalid_named(group, &kind.kind, name, causes)
    }

    pub fn invalid_named(group: &str, kind: &str, name: &str, causes: Vec<Cause>) -> Self {
        let mut said: Vec<String> = Vec::with_capacity(causes.len());
        for cause in &causes {
            let text = cause.to_string();
            if !said.contains(&text) {
                said.push(text);
            }
        }
        let said = match said.as_slice() {
            [] => String::new(),
            [one] => format!(": {one}"),
            many => format!(": [{}]", many.join(", ")),
        };
        let message = format!("{} {name:?} is invalid{said}", qualified(group, kind));
        let mut status =
            Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).about(group, kind, name);
        let causes = causes
            .into_iter()
            .map(|c| json!({"reason": c.reason, "message": c.message, "field": c.field}))
            .collect();
        status.0.details.get_or_insert_with(Map::new).insert("causes".to_owned(), Value::Array(causes));
        status
    }

    pub fn forbidden(kind: &Kind, name: &str, why: &str) -> Self {
        Self::forbidden_named(&kind.group, &kind.plural, name, why)
    }

    pub fn forbidden_named(group: &str, plural: &str, name: &str, why: &str) -> Self {
        let what = qualified(group, plural);
        let message = if name.is_empty() {
            format!("{what} is forbidden: {why}")
        } else {
            format!("{what} {name:?} is forbidden: {why}")
        };
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).about(group, plural, name)
    }

    pub fn forbidden_path(message: String) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).with_empty_details()
    }

    pub fn with_cause(mut self, reason: &str, message: String, field: &str) -> Self {
        let details = self.0.details.get_or_insert_with(Map::new);
        details.insert("causes".to_owned(), json!([{"reason": reason, "message": message, "field": field}]));
        self
    }

    /// 410: the revision, or the page's token, is older than what the server still knows.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    pub fn too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {limit}"),
        )
    }

    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    /// 415 and 406 of built-in kinds, which the router below the API answers.
    pub fn routed(code: StatusCode, message: &str) -> Self {
        let reason =
            if code == StatusCode::NOT_ACCEPTABLE { "NotAcceptable" } else { "UnsupportedMediaType" };
        Self::new(code, reason, message).with_empty_details()
    }

    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let message = format!("only the following media types are accepted: {}", accepted.join(", "));
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    pub fn method_not_supported(group: &str, plural: &str, verb: &str) -> Self {
        let message = format!("{verb} is not supported on resources of kind {:?}", qualified(group, plural));
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message).about(group, plural, "")
    }

    /// The path exists, this method of it does not.
    pub fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
        .with_empty_details()
    }

    /// A pod's streams into a container, which a node that runs processes does not have.
    pub fn no_sessions(subresource: &str, pod: &str) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            format!(
                "pods/{subresource} is not served: the containers of pod {pod:?} are processes of this machine that nobody can be \
                 connected with; read what it prints with kubectl logs, and what it writes below the directory of its volumes"
            ),
        )
    }

    /// A write of a Service: the kind is there to be asked for, and holds none.
    pub fn no_services(verb: &str) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            format!(
                "{verb} is not supported on services: none is kept here, because nothing would route to one; the containers of a pod are \
                 processes of this machine, reached at the ports that they open on it"
            ),
        )
        .about("", "services", "")
    }

    pub fn too_many_requests(message: &str, retry_after: u32) -> Self {
        let mut status = Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
        status.0.details = Some(Map::from_iter([("retryAfterSeconds".to_owned(), retry_after.into())]));
        status.0.retry_after = Some(retry_after);
        status
    }

    /// A revision that the server has not reached.
    pub fn revision_too_large(asked: u64, current: u64) -> Self {
        let mut status = Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "Timeout",
            format!("Timeout: Too large resource version: {asked}, current: {current}"),
        );
        let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        status.0.details = Some(Map::from_iter([
            ("causes".to_owned(), json!([cause])),
            ("retryAfterSeconds".to_owned(), 1.into()),
        ]));
        status.0.retry_after = Some(1);
        status
    }

    pub fn internal(why: impl fmt::Display) -> Self {
        let mut status = Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            format!("Internal error occurred: {why}"),
        );
        status.0.details =
            Some(Map::from_iter([("causes".to_owned(), json!([{"message": why.to_string()}]))]));
        status
    }

    pub fn unavailable(why: impl fmt::Display) -> Self {
        let mut status = Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", why.to_string());
        status.0.retry_after = Some(1);
        status
    }

    /// An error that the real server has no reason for: its own code failed in a way that it did not foresee.
    pub fn bare(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    fn with_empty_details(mut self) -> Self {
        self.0.details.get_or_insert_with(Map::new);
        self
    }

    /// The object that goes over the wire, also inside an `ERROR` event of a watch.
    pub fn value(&self) -> Value {
        let mut object = Map::from_iter([
            ("kind".to_owned(), Value::from("Status")),
            ("apiVersion".to_owned(), Value::from("v1")),
            ("metadata".to_owned(), json!({})),
            ("status".to_owned(), Value::from("Failure")),
            ("message".to_owned(), Value::from(self.0.message.as_str())),
        ]);
        if !self.0.reason.is_empty() {
            object.insert("reason".to_owned(), Value::from(&*self.0.reason));
        }
        if let Some(details) = &self.0.details {
            object.insert("details".to_owned(), Value::Object(details.clone()));
        }
        object.insert("code".to_owned(), self.0.code.as_u16().into());
        Value::Object(object)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Status {}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let code = StatusCode::from_u16(refusal.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let status = refusal.into_status();
        let details =
            status.details.and_then(|details| serde_json::to_value(details).ok()).and_then(|details| {
                match details {
                    Value::Object(details) => Some(details),
                    _ => None,
                }
            });
        Status(Box::new(Inner {
            code,
            reason: status.reason.unwrap_or_default().into(),
            message: status.message.unwrap_or_default(),
            details,
            retry_after: None,
            warnings: Vec::new(),
        }))
    }
}

impl IntoResponse for Status {
    fn into_response(self) -> Response {
        let mut response = json_response(self.0.code, self.value().to_string().into());
        if let Some(seconds) = self.0.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        respond::warn(response, &self.0.warnings)
    }
}

/// `pods`, or `terraformlayers.terrane.dev`.
fn qualified(group: &str, name: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// A JSON answer whose bytes are there already.
pub fn json_response(code: StatusCode, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The `Status` of a deletion that has happened.
pub fn deleted(kind: &Kind, name: &str, uid: &str) -> Value {
    let mut details = Map::from_iter([("name".to_owned(), Value::from(name))]);
    if !kind.group.is_empty() {
        details.insert("group".to_owned(), (&*kind.group).into());
    }
    details.insert("kind".to_owned(), (&*kind.plural).into());
    details.insert("uid".to_owned(), uid.into());
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}
