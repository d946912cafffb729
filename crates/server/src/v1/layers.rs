//! Layers: lists, one with all that is shown of it, and what can be wished of one.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{TerraformLayer, annotation};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use crate::answers::{Asked, Seen, digested, versioned};
use crate::may::{Caller, GetLayer, May, PatchLayer};
use crate::paging::{Page, Paging, Selector, page};
use crate::views::{Layer, LayerSummary};
use crate::{Refusal, Service};

/// Which layers.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Of this namespace.
    namespace: Option<String>,
    /// Of this repository.
    repository: Option<String>,
    /// In this state: `Idle`, `PlanNeeded` or `ApplyNeeded`.
    state: Option<String>,
    ready: Option<bool>,
    drifted: Option<bool>,
    failed: Option<bool>,
    suspended: Option<bool>,
    /// Labels as kubectl selects them: `team=net,env!=dev`.
    label: Option<String>,
    /// Text that the name, namespace, repository, branch, path or reason contains, in any case.
    text: Option<String>,
}

impl Filter {
    fn matches(&self, layer: &LayerSummary, labels: &Selector, text: &str) -> bool {
        let is =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let holds = |wanted: Option<bool>, found: bool| wanted.is_none_or(|wanted| wanted == found);
        let contains = |found: &str| found.to_lowercase().contains(text);
        is(&self.namespace, &layer.namespace)
            && is(&self.repository, &layer.repository)
            && is(&self.state, &layer.state)
            && holds(self.ready, layer.ready)
            && holds(self.drifted, layer.drifted)
            && holds(self.failed, layer.failed)
            && holds(self.suspended, layer.suspended)
            && labels.matches(&layer.labels)
            && (text.is_empty()
                || [&layer.name, &layer.namespace, &layer.repository, &layer.branch, &layer.path, &layer.why]
                    .into_iter()
                    .any(|found| contains(found)))
    }
}

/// List layers; ordered by name, namespace, state, repository, createdAt or lastRun
#[utoipa::path(
    get, operation_id = "listLayers", tag = "layers",
    path = "/api/v1/layers",
    params(Filter, Paging),
    responses(
        (status = 200, body = Page<LayerSummary>),
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
    let found = service.layers.matching(|layer| filter.matches(layer, &labels, &text)).await?;
    let found = service.visible(&person, "terraformlayers", found).await?;
    Ok(digested(&headers, &page(found, &paging)?))
}

/// One layer
#[utoipa::path(
    get, operation_id = "getLayer", tag = "layers",
    path = "/api/v1/namespaces/{namespace}/layers/{name}",
    params(("namespace" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = Layer), (status = 304, description = "Still what If-None-Match names")),
)]
pub(crate) async fn one(
    may: May<GetLayer>,
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let layer = service.layer(&may.namespace, &may.name).await?;
    Ok(versioned(&headers, &layer.resource_version().unwrap_or_default(), &Layer::from(&layer)))
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(rename_all = "camelCase")]
pub(crate) struct How {
    /// Only look what moved in the world, without comparing it with the code.
    #[serde(default)]
    refresh_only: bool,
    /// Plan the newest commit that is known, without a look at the repository first.
    #[serde(default)]
    known: bool,
}

/// A wish that was written down.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Wished {
    /// The run that answers carries this in its annotation `terrane.dev/token`.
    token: String,
    layer: Layer,
}

/// Ask for a plan; what follows is up to the layer
#[utoipa::path(
    post, operation_id = "syncLayer", tag = "layers",
    path = "/api/v1/namespaces/{namespace}/layers/{name}/sync",
    params(("namespace" = String, Path), ("name" = String, Path), How, ("If-Match" = Option<String>, Header)),
    responses((status = 202, body = Wished)),
)]
pub(crate) async fn sync(
    may: May<PatchLayer>,
    State(service): State<Arc<Service>>,
    Asked(how): Asked<How>,
    seen: Seen,
) -> Result<Response, Refusal> {
    let layer = service.layer(&may.namespace, &may.name).await?;
    if layer.spec.suspend {
        return Err(Refusal::Conflict(format!(
            "layer {}/{} is suspended, so nothing is planned; resume it first",
            may.namespace, may.name
        )));
    }
    let (key, kind) = if how.refresh_only { (annotation::LOOK, "look") } else { (annotation::SYNC, "sync") };
    let text = Timestamp::now().to_string();
    let latest = (!how.refresh_only && !how.known).then_some((annotation::LATEST, &text));
    let wish: BTreeMap<_, _> = [(key, &text)].into_iter().chain(latest).collect();
    let wish = json!({ "metadata": { "annotations": wish } });
    let layer = service.patch_layer(&may, seen, wish, "ask for a plan of").await?;
    let answer = Wished { token: format!("{kind}:{text}"), layer: Layer::from(&layer) };
    Ok((StatusCode::ACCEPTED, axum::Json(answer)).into_response())
}

/// Start nothing more for a layer; what runs goes on
#[utoipa::path(
    post, operation_id = "suspendLayer", tag = "layers",
    path = "/api/v1/namespaces/{namespace}/layers/{name}/suspend",
    params(("namespace" = String, Path), ("name" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Layer)),
)]
pub(crate) async fn suspend(
    may: May<PatchLayer>,
    State(service): State<Arc<Service>>,
    seen: Seen,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let layer = service.patch_layer(&may, seen, json!({ "spec": { "suspend": true } }), "suspend").await?;
    Ok(versioned(&headers, &layer.resource_version().unwrap_or_default(), &Layer::from(&layer)))
}

/// Let a suspended layer go on
#[utoipa::path(
    post, operation_id = "resumeLayer", tag = "layers",
    path = "/api/v1/namespaces/{namespace}/layers/{name}/resume",
    params(("namespace" = String, Path), ("name" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Layer)),
)]
pub(crate) async fn resume(
    may: May<PatchLayer>,
    State(service): State<Arc<Service>>,
    seen: Seen,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let layer = service.patch_layer(&may, seen, json!({ "spec": { "suspend": false } }), "resume").await?;
    Ok(versioned(&headers, &layer.resource_version().unwrap_or_default(), &Layer::from(&layer)))
}

impl Service {
    pub(crate) async fn layer(&self, namespace: &str, name: &str) -> Result<TerraformLayer, Refusal> {
        Api::<TerraformLayer>::namespaced(self.client.clone(), namespace)
            .get_opt(name)
            .await
            .map_err(|error| Refusal::api("read a layer", &error))?
            .ok_or_else(|| Refusal::NotFound(format!("layer {namespace}/{name} not found")))
    }

    /// Changes a layer in the caller's name; only the version that was seen, where one is named.
    async fn patch_layer(
        &self,
        may: &May<PatchLayer>,
        Seen(seen): Seen,
        mut wish: Value,
        doing: &str,
    ) -> Result<TerraformLayer, Refusal> {
        let May { person, namespace, name, .. } = may;
        if let (Some(version), Some(object)) = (&seen, wish.as_object_mut()) {
            let meta = object.entry("metadata").or_insert_with(|| json!({}));
            if let Some(meta) = meta.as_object_mut() {
                meta.insert("resourceVersion".to_owned(), json!(version));
            }
        }
        let layers = Api::<TerraformLayer>::namespaced(self.acting(person)?, namespace);
        match layers.patch(name, &PatchParams::default(), &Patch::Merge(wish)).await {
            Ok(layer) => Ok(layer),
            Err(kube::Error::Api(answer)) if answer.code == 404 => {
                Err(Refusal::NotFound(format!("layer {namespace}/{name} not found")))
            }
            Err(kube::Error::Api(answer)) if seen.is_some() && matches!(answer.code, 400 | 409 | 422) => {
                Err(Refusal::Outdated(format!(
                    "layer {namespace}/{name} has changed since If-Match was seen; read it again"
                )))
            }
            Err(error) => Err(Refusal::answered(&format!("{doing} layer {namespace}/{name}"), error)),
        }
    }
}
