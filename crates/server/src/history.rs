//! The audit of a layer: what was about to change its infrastructure, and who let it. It outlives the runs it is about, and the
//! layer.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use datastore::Subject;

use crate::person::Right;
use crate::{Refusal, Service};

/// Whoever may read a layer may read who changed it; the layer itself may be gone.
pub(crate) async fn history(
    State(service): State<Arc<Service>>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let right = Right {
        verb: "get",
        resource: "terraformlayers",
        subresource: None,
        namespace: &namespace,
        name: &name,
    };
    let person = service.admit(&headers, right).await?;
    // Only what can be a name becomes a part of the datastore's address.
    let subject =
        Subject::new(&*namespace, &*name).map_err(|error| Refusal::BadRequest(error.to_string()))?;
    let path = format!("/v1/audit/{}/{}", subject.namespace(), subject.layer());
    let answer = service.fetch(&person, path).await?;
    match answer.status() {
        StatusCode::OK => {
            let headers = [(header::CONTENT_TYPE, "application/json")];
            Ok((headers, Body::from_stream(answer.bytes_stream())).into_response())
        }
        other => Err(Refusal::Unavailable(format!("the datastore answered {other}"))),
    }
}
