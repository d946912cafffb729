//! Repositories, as far as they are shown: never how Terrane logs in to them.

use std::sync::Arc;

use api::TerraformRepository;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use kube::{Api, ResourceExt};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::answers::{Asked, digested, versioned};
use crate::may::{Caller, GetRepository, May};
use crate::paging::{Page, Paging, Selector, page};
use crate::views::Repository;
use crate::{Refusal, Service};

/// Which repositories.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Of this namespace.
    namespace: Option<String>,
    /// `SyncNeeded` or `Synced`.
    state: Option<String>,
    /// Whether the last look succeeded.
    ready: Option<bool>,
    /// Labels as kubectl selects them: `team=net,env!=dev`.
    label: Option<String>,
    /// Text that the name, namespace, URL or message contains, in any case.
    text: Option<String>,
}

/// List repositories; ordered by name, namespace, state, url or createdAt
#[utoipa::path(
    get, operation_id = "listRepositories", tag = "repositories",
    path = "/api/v1/repositories",
    params(Filter, Paging),
    responses(
        (status = 200, body = Page<Repository>),
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
    let is = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
    let matches = |one: &Repository| {
        is(&filter.namespace, &one.namespace)
            && is(&filter.state, &one.state)
            && filter.ready.is_none_or(|ready| ready == one.ready)
            && labels.matches(&one.labels)
            && [&one.name, &one.namespace, &one.url, &one.message]
                .into_iter()
                .any(|found| found.to_lowercase().contains(&text))
    };
    let found = service.repositories.matching(matches).await?;
    let found = service.visible(&person, "terraformrepositories", found).await?;
    Ok(digested(&headers, &page(found, &paging)?))
}

/// One repository
#[utoipa::path(
    get, operation_id = "getRepository", tag = "repositories",
    path = "/api/v1/namespaces/{namespace}/repositories/{name}",
    params(("namespace" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = Repository), (status = 304, description = "Still what If-None-Match names")),
)]
pub(crate) async fn one(
    may: May<GetRepository>,
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let May { namespace, name, .. } = &may;
    // In the caller's own name: the service itself needs no right to read one.
    let repository = Api::<TerraformRepository>::namespaced(service.acting(&may.person)?, namespace)
        .get_opt(name)
        .await
        .map_err(|error| Refusal::answered("read a repository", error))?
        .ok_or_else(|| Refusal::NotFound(format!("repository {namespace}/{name} not found")))?;
    Ok(versioned(
        &headers,
        &repository.resource_version().unwrap_or_default(),
        &Repository::from(&repository),
    ))
}
