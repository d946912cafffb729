//! The audit of a layer: what was about to change its infrastructure, and who let it. It outlives the runs it is about, and the
//! layer.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use datastore::Subject;

use crate::may::{GetLayer, May};
use crate::{Refusal, Service};

/// What was about to change the infrastructure of a layer, and who let it; the layer itself may be gone
#[utoipa::path(
    get, operation_id = "getHistory", tag = "layers",
    path = "/api/v1/namespaces/{namespace}/layers/{name}/history",
    params(("namespace" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = serde_json::Value, content_type = "application/json")),
)]
pub(crate) async fn history(
    may: May<GetLayer>,
    State(service): State<Arc<Service>>,
) -> Result<Response, Refusal> {
    let May { person, namespace, name, .. } = may;
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
