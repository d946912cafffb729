//! Stacks: lists, one with all that is shown of it, and the wishes to stop what runs and to delete it.

use std::sync::Arc;

use api::run::RunState;
use api::{TerraformLayer, annotation};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt};
use serde::Deserialize;
use serde_json::json;
use utoipa::IntoParams;

use super::requests::Which;
use super::views::{Stack, StackSummary, State as Standing};
use super::{Accepted, accepted};
use crate::answers::{Asked, Seen, digested, versioned};
use crate::may::{Caller, DeleteLayer, GetLayer, GetRun, May, PatchLayer};
use crate::paging::{Page, Paging, Selector, page};
use crate::{Refusal, Service};

/// Which stacks.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Of this namespace; without it of all.
    namespace: Option<String>,
    /// Made from this template.
    template: Option<String>,
    /// In this state: `pending`, `running`, `ready`, `failed` or `deleting`.
    state: Option<String>,
    /// Labels as kubectl selects them: `team=net,env!=dev`.
    label: Option<String>,
    /// Text that the id, template or reason contains, in any case.
    text: Option<String>,
}

impl Filter {
    fn matches(&self, stack: &StackSummary, labels: &Selector, text: &str) -> bool {
        let is =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        is(&self.namespace, &stack.namespace)
            && is(&self.template, &stack.template)
            && is(&self.state, stack.state.as_str())
            && labels.matches(&stack.labels)
            && (text.is_empty()
                || [&stack.id, &stack.template, &stack.why]
                    .into_iter()
                    .any(|found| found.to_lowercase().contains(text)))
    }
}

/// List stacks; ordered by id, namespace, template, state or createdAt
#[utoipa::path(
    get, operation_id = "listStacks", tag = "stacks",
    path = "/tfstacks",
    params(Filter, Paging),
    responses(
        (status = 200, body = Page<StackSummary>),
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
    let labels = Selector::parse(filter.label.as_deref().unwrap_or_default())?;
    let text = filter.text.as_deref().unwrap_or_default().to_lowercase();
    let found = service
        .layers
        .matching(|layer| layer.stack.as_ref().is_some_and(|stack| filter.matches(stack, &labels, &text)))
        .await?;
    let found = service.visible(&person, "terraformlayers", found).await?;
    let found =
        found.into_iter().filter_map(|(key, layer)| Some((key, Arc::clone(layer.stack.as_ref()?)))).collect();
    Ok(digested(&headers, &page(found, &paging)?))
}

/// One stack with its variables, those that are sensitive masked
#[utoipa::path(
    get, operation_id = "getStack", tag = "stacks",
    path = "/tfstacks/{id}",
    params(
        ("id" = String, Path),
        ("namespace" = Option<String>, Query, description = "Where the stack is; without it `default`"),
    ),
    responses((status = 200, body = Stack), (status = 304, description = "Still what If-None-Match names")),
)]
pub(crate) async fn one(
    may: May<GetLayer>,
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let layer = service.stack(&may.namespace, &may.name).await?;
    Ok(versioned(&headers, &layer.resource_version().unwrap_or_default(), &Stack::from(&layer)))
}

/// Delete a stack: its infrastructure is destroyed, then its workspace goes, then the stack
///
/// It answers 404 once it is gone. Sent again after the destroy has failed, it is tried again.
#[utoipa::path(
    delete, operation_id = "deleteStack", tag = "stacks",
    path = "/tfstacks/{id}",
    params(
        ("id" = String, Path),
        ("namespace" = Option<String>, Query, description = "Where the stack is; without it `default`"),
        ("If-Match" = Option<String>, Header, description = "Only the version that has this ETag"),
    ),
    responses(
        (
            status = 202, body = Accepted,
            headers(("Location" = String, description = "Where the request tells what became of it")),
        ),
        (status = 204, description = "It is gone: nothing was ever started for it"),
    ),
)]
pub(crate) async fn delete(
    may: May<DeleteLayer>,
    State(service): State<Arc<Service>>,
    Seen(seen): Seen,
) -> Result<Response, Refusal> {
    let May { person, namespace, name: id, .. } = &may;
    let layer = service.stack(namespace, id).await?;
    let layers = Api::<TerraformLayer>::namespaced(service.acting(person)?, namespace);
    let outdated =
        || Refusal::Outdated(format!("stack {id} has changed since If-Match was seen; read it again"));
    if layer.metadata.deletion_timestamp.is_some() {
        if seen.is_some_and(|seen| Some(seen) != layer.resource_version()) {
            return Err(outdated());
        }
        let layer = match Standing::of(&layer) {
            Standing::Failed => {
                let wish = json!({ "metadata": { "annotations": { annotation::SYNC: Timestamp::now().to_string() } } });
                layers
                    .patch(id, &PatchParams::default(), &Patch::Merge(wish))
                    .await
                    .map_err(|error| Refusal::answered(&format!("destroy stack {id} again"), error))?
            }
            Standing::Pending | Standing::Running | Standing::Ready | Standing::Deleting => layer,
        };
        return Ok(accepted(&layer, Which::Delete));
    }
    // Only this one: another may be made of the same id by then.
    let only = Preconditions { uid: layer.uid(), resource_version: seen.clone() };
    let only = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
    match layers.delete(id, &only).await {
        Ok(answer) => match answer.left() {
            Some(layer) if layer.metadata.deletion_timestamp.is_some() && is_held(&layer) => {
                Ok(accepted(&layer, Which::Delete))
            }
            Some(_) | None => Ok(StatusCode::NO_CONTENT.into_response()),
        },
        Err(kube::Error::Api(answer)) if answer.code == 409 && seen.is_some() => Err(outdated()),
        Err(error) => Err(Refusal::answered(&format!("delete stack {id}"), error)),
    }
}

/// Something keeps it from being gone.
fn is_held(layer: &TerraformLayer) -> bool {
    !layer.finalizers().is_empty()
}

/// Stop what runs for a stack: what waits never starts, what runs is asked to stop and may save its state
#[utoipa::path(
    post, operation_id = "cancelStack", tag = "stacks",
    path = "/tfstacks/{id}/cancel",
    params(
        ("id" = String, Path),
        ("namespace" = Option<String>, Query, description = "Where the stack is; without it `default`"),
    ),
    responses((status = 202, body = Stack)),
)]
pub(crate) async fn cancel(
    may: May<PatchLayer>,
    State(service): State<Arc<Service>>,
) -> Result<Response, Refusal> {
    let May { person, namespace, name: id, .. } = &may;
    let layer = service.stack(namespace, id).await?;
    let nothing = || Refusal::Conflict(format!("nothing runs for stack {id} that could be canceled"));
    let last = layer.status.as_ref().and_then(|status| status.last_run.as_ref()).ok_or_else(nothing)?;
    may.also::<GetRun>(&service, &last.name).await?;
    let run = match service.run(namespace, &last.name).await {
        Err(Refusal::NotFound(_)) => return Err(nothing()),
        other => other?,
    };
    if run.status.as_ref().and_then(|status| status.state).is_some_and(RunState::is_terminal) {
        return Err(nothing());
    }
    let wish = json!({ "metadata": { "annotations": { annotation::CANCEL: last.name } } });
    let layer = Api::<TerraformLayer>::namespaced(service.acting(person)?, namespace)
        .patch(id, &PatchParams::default(), &Patch::Merge(wish))
        .await
        .map_err(|error| Refusal::answered(&format!("cancel run {} of stack {id}", last.name), error))?;
    Ok((StatusCode::ACCEPTED, axum::Json(Stack::from(&layer))).into_response())
}
