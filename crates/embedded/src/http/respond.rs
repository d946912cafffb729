//! Answers: an object in the form that the client accepts, with warnings.

use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde_json::Value;

use super::negotiate::{Accept, Encoding, Shape};
use super::status::{Result, Status, json_response};
use super::view::{self, Shown};
use super::{serve::Call, table};
use crate::kinds::Kind;

/// One object of the call's kind.
pub fn object(call: &Call, code: StatusCode, shown: &Shown) -> Result<Response> {
    match (call.accept.shape, call.accept.encoding) {
        (Shape::Whole, Encoding::Json) => Ok(json_response(code, shown.bytes(&call.kind))),
        (Shape::Whole, _) => encoded(call.accept, code, &shown.value(&call.kind)),
        (Shape::Metadata, _) => encoded(call.accept, code, &view::partial(&shown.value(&call.kind))),
        (Shape::Table(include), _) => {
            let value = shown.value(&call.kind);
            let revision =
                crate::kinds::meta::text(crate::kinds::meta::of(&value), "resourceVersion").to_owned();
            let rows = vec![table::row(&call.kind, &value, include, jiff::Timestamp::now())];
            encoded(
                call.accept,
                code,
                &table::whole(&call.kind, rows, serde_json::json!({"resourceVersion": revision})),
            )
        }
    }
}

/// A value as it is, whatever the kind: a `Status`, a review.
pub fn plain(call: &Call, code: StatusCode, value: &Value) -> Result<Response> {
    encoded(call.accept, code, value)
}

pub fn encoded(accept: Accept, code: StatusCode, value: &Value) -> Result<Response> {
    let (bytes, content_type): (Bytes, &'static str) = match accept.encoding {
        Encoding::Json => (value.to_string().into(), "application/json"),
        Encoding::Pretty => {
            (serde_json::to_string_pretty(value).map_err(Status::internal)?.into(), "application/json")
        }
        Encoding::Yaml => {
            let mut sorted = value.clone();
            sorted.sort_all_objects();
            (serde_saphyr::to_string(&sorted).map_err(Status::internal)?.into(), "application/yaml")
        }
    };
    let mut response = json_response(code, bytes);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(response)
}

/// Adds `Warning` headers; each text once, what cannot stand in a header left out.
pub fn warn(mut response: Response, warnings: &[String]) -> Response {
    let mut said: Vec<&String> = Vec::new();
    for warning in warnings {
        if said.contains(&warning) {
            continue;
        }
        said.push(warning);
        let escaped: String = warning
            .chars()
            .filter(|c| !c.is_control())
            .collect::<String>()
            .replace('\\', "\\\\")
            .replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{escaped}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}

/// The words that open each object of a list: kube-apiserver leaves them out of lists of its own kinds.
pub fn list_item<'a>(kind: &Kind, bytes: &'a Bytes) -> (&'static [u8], &'a [u8]) {
    match kind.builtin().and_then(|_| view::without_type(kind, bytes)) {
        Some(rest) => (b"{", rest),
        None => (b"", bytes),
    }
}
