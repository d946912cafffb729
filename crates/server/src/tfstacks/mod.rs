//! Stacks: many deployments of one piece of code, each with variables and a workspace of its own. A stack is a layer that was copied from
//! a template, and all that is known of it is in that layer: the service remembers nothing, so any number of them answer alike.

pub(crate) mod create;
pub(crate) mod parts;
pub(crate) mod requests;
pub(crate) mod stacks;
pub(crate) mod templates;
pub(crate) mod update;
mod variables;
pub(crate) mod views;

use api::TerraformLayer;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::may::USUAL_NAMESPACE;
use crate::{Refusal, Service};
use requests::{Request, Which};
use views::Stack;

/// A request that was taken, and the stack that it is about.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Accepted {
    request: Request,
    stack: Stack,
}

/// 202, with `Location` where it is told what became of the request.
fn accepted(layer: &TerraformLayer, which: Which) -> Response {
    let stack = Stack::from(layer);
    let place = which.place(layer);
    let request = Request::of(layer, which);
    let mut response = (StatusCode::ACCEPTED, Json(Accepted { request, stack })).into_response();
    if let Ok(value) = HeaderValue::from_str(&place) {
        response.headers_mut().insert(header::LOCATION, value);
    }
    response
}

/// The path of something that belongs to a stack.
fn path(namespace: &str, id: &str, rest: &str) -> String {
    if namespace == USUAL_NAMESPACE {
        format!("/tfstacks/{id}{rest}")
    } else {
        format!("/tfstacks/{id}{rest}?namespace={namespace}")
    }
}

impl Service {
    /// The layer of a stack. Other layers are none, and are not told from those that are not there.
    async fn stack(&self, namespace: &str, id: &str) -> Result<TerraformLayer, Refusal> {
        let nothing = || {
            Refusal::NotFound(format!(
                "there is no stack {id} in namespace {namespace}; GET /tfstacks lists them, and one that was deleted is gone"
            ))
        };
        match self.layer(namespace, id).await {
            Ok(layer) if views::template_of(&layer).is_some() => Ok(layer),
            Ok(_) | Err(Refusal::NotFound(_)) => Err(nothing()),
            Err(other) => Err(other),
        }
    }
}
