//! Templates: layers that an administrator made to be copied.

use std::sync::Arc;

use api::TerraformLayer;
use api::condition;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use super::views::Template;
use crate::answers::{Asked, digested};
use crate::may::{Caller, CreateLayer, GetLayer, May};
use crate::paging::{Page, Paging, page};
use crate::{Refusal, Service};

/// What fits into a label, which is how a stack names its template.
const NAME_LIMIT: usize = 63;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Of this namespace; without it of all.
    namespace: Option<String>,
}

/// List the templates that stacks can be made from, with the variables that each takes
///
/// A template is a TerraformLayer with `spec.template`, which an administrator makes: its repository, branch, path, backend, credentials
/// and fixed variables are those of its stacks. Its stacks are in its namespace.
#[utoipa::path(
    get, operation_id = "listStackTemplates", tag = "stacks",
    path = "/tfstacks/templates",
    params(Filter, Paging),
    responses(
        (status = 200, body = Page<Template>),
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
    let wanted = filter.namespace.as_deref();
    let found = service
        .layers
        .matching(|layer| layer.template.is_some() && wanted.is_none_or(|wanted| wanted == layer.namespace))
        .await?;
    let found = service.visible(&person, "terraformlayers", found).await?;
    let found = found
        .into_iter()
        .filter_map(|(key, layer)| Some((key, Arc::clone(layer.template.as_ref()?))))
        .collect();
    Ok(digested(&headers, &page(found, &paging)?))
}

impl Service {
    /// The template that is named, or else the default one, if the caller may see it and stacks can be made from it.
    pub(super) async fn template(
        &self,
        may: &May<CreateLayer>,
        wanted: Option<&str>,
    ) -> Result<TerraformLayer, Refusal> {
        let namespace = &may.namespace;
        let name = match wanted {
            Some(name) => name.to_owned(),
            None => self.default_template(namespace).await?,
        };
        let missing = || {
            Refusal::Invalid(format!(
                "there is no template {name} in namespace {namespace}; GET /tfstacks/templates lists them"
            ))
        };
        if api::text::ObjectName::new(&*name).is_err() {
            return Err(missing());
        }
        may.also::<GetLayer>(self, &name).await?;
        let template = match self.layer(namespace, &name).await {
            Err(Refusal::NotFound(_)) => return Err(missing()),
            other => other?,
        };
        if template.spec.template.is_none() {
            return Err(missing());
        }
        if name.len() > NAME_LIMIT {
            return Err(Refusal::Conflict(format!(
                "template {namespace}/{name} cannot be used: its name has more than {NAME_LIMIT} characters"
            )));
        }
        if template.spec.suspend {
            return Err(Refusal::Conflict(format!(
                "template {namespace}/{name} is suspended: no stack is made from it until an administrator resumes it"
            )));
        }
        known(&template)?;
        Ok(template)
    }

    /// By what was seen of all layers a moment ago: there may be thousands, and few are templates.
    async fn default_template(&self, namespace: &str) -> Result<String, Refusal> {
        let is_default = |template: &Template| template.default && template.namespace == namespace;
        let found = self
            .layers
            .matching(|layer| layer.template.as_ref().is_some_and(|template| is_default(template)))
            .await?;
        let mut names = found.into_iter().map(|((_, name), _)| name);
        match (names.next(), names.next()) {
            (Some(name), None) => Ok(name.to_string()),
            (None, _) => Err(Refusal::Invalid(format!(
                "the body names no template, and none of namespace {namespace} is the default; GET /tfstacks/templates lists them"
            ))),
            (Some(one), Some(other)) => Err(Refusal::Conflict(format!(
                "the body names no template, and both {one} and {other} of namespace {namespace} are the default; name one"
            ))),
        }
    }
}

/// The variables of a template are known, so that values can be checked against them.
pub(super) fn known(template: &TerraformLayer) -> Result<(), Refusal> {
    let status = template.status.clone().unwrap_or_default();
    let place = || {
        let meta = &template.metadata;
        let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
        format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())
    };
    let why = status.why.unwrap_or_default();
    let is_true = |kind| condition::is_true(&status.conditions, kind);
    let is_current = status.observed_generation == template.metadata.generation;
    let is_suspended =
        condition::find(&status.conditions, "Ready").is_some_and(|ready| ready.reason == "Suspended");
    if is_current && (is_true("Ready") || is_suspended) {
        return Ok(());
    }
    if is_current && is_true("Stalled") {
        return Err(Refusal::Conflict(format!("template {} cannot be used: {why}", place())));
    }
    Err(Refusal::Unavailable(format!(
        "the variables of template {} are not known yet; try again in a moment",
        place()
    )))
}
