//! What happened to layers, runs and repositories, as far as the API keeps it. Asked in the caller's own name.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::answers::{Asked, digested};
use crate::cache::Key;
use crate::may::Caller;
use crate::person::Right;
use crate::views::{Happened, RunSummary};
use crate::{Refusal, Service};

/// Which events.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Of this namespace; without it of all.
    namespace: Option<String>,
    /// About this layer and its runs; needs `namespace`.
    layer: Option<String>,
    /// How many at most, the newest: 1 to 1000, without it 200.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// Newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Events {
    items: Vec<Happened>,
}

/// List what happened, newest first
#[utoipa::path(
    get, operation_id = "listEvents", tag = "events",
    path = "/api/v1/events",
    params(Filter),
    responses((status = 200, body = Events), (status = 304, description = "Still what If-None-Match names")),
)]
pub(crate) async fn list(
    Caller(person): Caller,
    State(service): State<Arc<Service>>,
    Asked(filter): Asked<Filter>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let limit = filter.limit.unwrap_or(200);
    if !(1..=1000).contains(&limit) {
        return Err(Refusal::BadRequest("limit must be a number from 1 to 1000".to_owned()));
    }
    let namespace = filter.namespace.as_deref().unwrap_or_default();
    if !namespace.is_empty() && api::text::ObjectName::new(namespace).is_err() {
        return Err(Refusal::BadRequest(format!("no namespace can be called {namespace}")));
    }
    let right = Right { verb: "list", resource: "events", subresource: None, namespace, name: "" };
    service.check(&person, right).await?;
    let client = service.acting(&person)?;
    let events: Api<Event> =
        if namespace.is_empty() { Api::all(client) } else { Api::namespaced(client, namespace) };
    let found =
        events.list(&ListParams::default()).await.map_err(|error| Refusal::answered("list events", error))?;
    let ours = format!("{}/", api::GROUP);
    let is_ours =
        |event: &&Event| event.involved_object.api_version.as_deref().is_some_and(|v| v.starts_with(&ours));
    let of_layer = |layer: &str, runs: &[(Key, Arc<RunSummary>)]| -> BTreeSet<(&'static str, String)> {
        let runs = runs.iter().filter(|(_, run)| run.layer == *layer && run.namespace == *namespace);
        let runs = runs.map(|(_, run)| ("run", run.name.to_string()));
        runs.chain([("layer", layer.to_owned())]).collect()
    };
    let about = match filter.layer.as_deref().filter(|layer| !layer.is_empty()) {
        Some(_) if namespace.is_empty() => {
            return Err(Refusal::BadRequest("layer needs namespace, which says where it is".to_owned()));
        }
        Some(layer) => Some(of_layer(layer, &service.runs.all().await?)),
        None => None,
    };
    let is_about = |one: &Happened| {
        about
            .as_ref()
            .is_none_or(|about| about.iter().any(|(kind, name)| *kind == one.kind && *name == one.name))
    };
    // O(events of the namespace).
    let mut items: Vec<Happened> =
        found.items.iter().filter(is_ours).map(Happened::from).filter(is_about).collect();
    items.sort_by(|a, b| b.at.cmp(&a.at));
    items.truncate(limit);
    Ok(digested(&headers, &Events { items }))
}
