//! What a stack's runs left: logs, and outputs. The same as of layers and runs, found by the stack.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::answers::Asked;
use crate::may::{GetLayer, GetLog, GetOutputs, May};
use crate::v1::artefacts::{Part, log_text};
use crate::v1::log_events::told;
use crate::v1::states::{Output, Wish, shown_outputs};
use crate::{Refusal, Service};

#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// One of the stack's runs; without one, the newest.
    run: Option<String>,
}

/// The log of the newest plan or apply of a stack, as text
#[utoipa::path(
    get, operation_id = "getStackLog", tag = "stacks",
    path = "/tfstacks/{id}/logs",
    params(
        ("id" = String, Path),
        ("namespace" = Option<String>, Query, description = "Where the stack is; without it `default`"),
        Which, Part,
    ),
    responses((status = 200, body = String, content_type = "text/plain")),
)]
pub(crate) async fn logs(
    may: May<GetLayer>,
    State(service): State<Arc<Service>>,
    Asked(which): Asked<Which>,
    Asked(part): Asked<Part>,
) -> Result<Response, Refusal> {
    let may = run_of(&service, &may, which).await?;
    log_text(service, may, &part).await
}

/// The log of the newest plan or apply of a stack as server-sent events of whole lines; `end` says that it is whole
///
/// `Last-Event-ID` goes on after that byte, as browsers ask by themselves; it wins over `offset`.
#[utoipa::path(
    get, operation_id = "followStackLog", tag = "stacks",
    path = "/tfstacks/{id}/logs/events",
    params(
        ("id" = String, Path),
        ("namespace" = Option<String>, Query, description = "Where the stack is; without it `default`"),
        Which, Part,
        ("Last-Event-ID" = Option<u64>, Header),
    ),
    responses((status = 200, body = String, content_type = "text/event-stream")),
)]
pub(crate) async fn log_events(
    may: May<GetLayer>,
    State(service): State<Arc<Service>>,
    Asked(which): Asked<Which>,
    Asked(part): Asked<Part>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let may = run_of(&service, &may, which).await?;
    told(service, may, part, &headers).await
}

/// The run that is meant, and that the caller may read its log.
async fn run_of(service: &Service, may: &May<GetLayer>, which: Which) -> Result<May<GetLog>, Refusal> {
    let May { namespace, name: id, .. } = may;
    let layer = service.stack(namespace, id).await?;
    let status = layer.status.unwrap_or_default();
    let wanted = match which.run {
        Some(name) => {
            let is_known = status.latest_runs.iter().any(|run| run.name == name);
            if !is_known {
                return Err(Refusal::NotFound(format!(
                    "stack {id} has no run of that name; its `runs` are told"
                )));
            }
            name
        }
        None => match status.last_run {
            Some(run) => run.name,
            None => return Err(Refusal::NotFound(format!("nothing was started for stack {id} yet"))),
        },
    };
    may.also::<GetLog>(service, &wanted).await
}

/// The outputs of a stack; sensitive ones are masked, unless asked for with the right to read the state
#[utoipa::path(
    get, operation_id = "getStackOutputs", tag = "stacks",
    path = "/tfstacks/{id}/outputs",
    params(
        ("id" = String, Path),
        ("namespace" = Option<String>, Query, description = "Where the stack is; without it `default`"),
        Wish,
    ),
    responses((status = 200, body = std::collections::BTreeMap<String, Output>)),
)]
pub(crate) async fn outputs(
    may: May<GetOutputs>,
    State(service): State<Arc<Service>>,
    Asked(wish): Asked<Wish>,
) -> Result<Response, Refusal> {
    service.stack(&may.namespace, &may.name).await?;
    shown_outputs(&service, may, &wish).await
}
