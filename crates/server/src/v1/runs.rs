//! Runs: lists, one with its attempts, and the wish to stop one.

use std::sync::Arc;

use api::run::RunState;
use api::{TerraformLayer, annotation};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde::Deserialize;
use serde_json::json;
use utoipa::IntoParams;

use crate::answers::{Asked, digested, versioned};
use crate::may::{Caller, GetRun, May};
use crate::paging::{Page, Paging, page};
use crate::person::Right;
use crate::views::{Run, RunSummary};
use crate::{Refusal, Service};

/// Which runs.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Of this namespace.
    namespace: Option<String>,
    /// Of this layer.
    layer: Option<String>,
    /// In this state, such as `Running` or `Failed`.
    state: Option<String>,
    /// `plan` or `apply`.
    action: Option<String>,
    /// Those that have not ended, or those that have.
    open: Option<bool>,
    /// Text that the name, layer, reason or message contains, in any case.
    text: Option<String>,
}

impl Filter {
    fn matches(&self, run: &RunSummary, text: &str) -> bool {
        let is =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let is_open = !run.state.is_terminal();
        is(&self.namespace, &run.namespace)
            && is(&self.layer, &run.layer)
            && is(&self.state, run.state.as_str())
            && is(&self.action, run.action.as_str())
            && self.open.is_none_or(|open| open == is_open)
            && (text.is_empty()
                || [&run.name, &run.layer, &run.reason, &run.message]
                    .into_iter()
                    .any(|found| found.to_lowercase().contains(text)))
    }
}

/// List runs; ordered by name, namespace, state, layer, createdAt or finishedAt
#[utoipa::path(
    get, operation_id = "listRuns", tag = "runs",
    path = "/api/v1/runs",
    params(Filter, Paging),
    responses(
        (status = 200, body = Page<RunSummary>),
        (status = 304, description = "Still what If-None-Match names"),
    ),
)]
pub(crate) async fn list(
    Caller(person): Caller,
    State(service): State<Arc<Service>>,
    Asked(filter): Asked<Filter>,
    Asked(paging): Asked<Paging>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let text = filter.text.as_deref().unwrap_or_default().to_lowercase();
    let found = service.runs.matching(|run| filter.matches(run, &text)).await?;
    let found = service.visible(&person, "terraformruns", found).await?;
    Ok(digested(&headers, &page(found, &paging)?))
}

/// One run with its attempts
#[utoipa::path(
    get, operation_id = "getRun", tag = "runs",
    path = "/api/v1/namespaces/{namespace}/runs/{name}",
    params(("namespace" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = Run), (status = 304, description = "Still what If-None-Match names")),
)]
pub(crate) async fn one(
    may: May<GetRun>,
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let run = service.run(&may.namespace, &may.name).await?;
    Ok(versioned(&headers, &run.resource_version().unwrap_or_default(), &Run::from(&run)))
}

/// Stop a run: one that waits never starts, one that runs is asked to stop and may save its state
#[utoipa::path(
    post, operation_id = "cancelRun", tag = "runs",
    path = "/api/v1/namespaces/{namespace}/runs/{name}/cancel",
    params(("namespace" = String, Path), ("name" = String, Path)),
    responses((status = 202, body = Run)),
)]
pub(crate) async fn cancel(
    may: May<GetRun>,
    State(service): State<Arc<Service>>,
) -> Result<Response, Refusal> {
    let May { person, namespace, name, .. } = &may;
    let run = service.run(namespace, name).await?;
    let layer = run.spec.layer.name.to_string();
    // The wish is written on the layer, so that whoever may ask it for a plan may also end one.
    let right =
        Right { verb: "patch", resource: "terraformlayers", subresource: None, namespace, name: &layer };
    service.check(person, right).await?;
    if run.status.as_ref().and_then(|status| status.state).is_some_and(RunState::is_terminal) {
        let result = run.status.and_then(|status| status.result).map(|result| result.message);
        return Err(Refusal::Conflict(format!(
            "run {namespace}/{name} has ended: {}",
            result.unwrap_or_default()
        )));
    }
    let wish = json!({ "metadata": { "annotations": { annotation::CANCEL: name } } });
    Api::<TerraformLayer>::namespaced(service.acting(person)?, namespace)
        .patch(&layer, &PatchParams::default(), &Patch::Merge(wish))
        .await
        .map_err(|error| Refusal::answered(&format!("cancel run {namespace}/{name}"), error))?;
    Ok((StatusCode::ACCEPTED, axum::Json(Run::from(&run))).into_response())
}
