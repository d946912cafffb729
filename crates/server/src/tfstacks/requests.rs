//! What became of a request: read from the layer, whose generation counts the changes.

use std::sync::Arc;

use api::{TerraformLayer, condition};
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use kube::ResourceExt;
use serde::Serialize;
use utoipa::ToSchema;

use super::path;
use super::views::State as Standing;
use crate::answers::versioned;
use crate::may::{GetLayer, May};
use crate::{Refusal, Service};

/// A request, by its place among those about the same stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Create,
    /// By the generation of the layer that it led to.
    Update(i64),
    Delete,
}

impl Which {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "create" => Some(Self::Create),
            "delete" => Some(Self::Delete),
            other => {
                let number = other.strip_prefix("update-")?;
                let is_plain = number.bytes().all(|byte| byte.is_ascii_digit()) && !number.starts_with('0');
                number.parse().ok().filter(|_| is_plain).map(Self::Update)
            }
        }
    }

    fn id(self) -> String {
        match self {
            Self::Create => "create".to_owned(),
            Self::Update(generation) => format!("update-{generation}"),
            Self::Delete => "delete".to_owned(),
        }
    }

    /// Where it is told what became of it.
    pub(super) fn place(self, layer: &TerraformLayer) -> String {
        let rest = format!("/requests/{}", self.id());
        path(&layer.namespace().unwrap_or_default(), &layer.name_any(), &rest)
    }

    /// Whether anybody asked that.
    fn was_made(self, layer: &TerraformLayer) -> bool {
        match self {
            Self::Create => true,
            Self::Update(generation) => {
                (1..=layer.metadata.generation.unwrap_or_default()).contains(&generation)
            }
            Self::Delete => layer.metadata.deletion_timestamp.is_some(),
        }
    }

    fn is_newest(self, layer: &TerraformLayer) -> bool {
        let is_at = |generation: i64| {
            layer.metadata.deletion_timestamp.is_none() && layer.metadata.generation == Some(generation)
        };
        match self {
            Self::Create => is_at(1),
            Self::Update(generation) => is_at(generation),
            Self::Delete => true,
        }
    }
}

/// How far a request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Progress {
    /// Nothing was started for it yet.
    Pending,
    /// It is planned or applied.
    Running,
    Succeeded,
    /// It cannot go on by itself; `why` says what to do.
    Failed,
    /// The stack was changed since, and what is told of it now is about that change.
    Superseded,
}

/// What became of a request. One to delete a stack has succeeded when the stack is gone, and this answers 404.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Request {
    /// `create`, `update-` and a number, or `delete`.
    id: String,
    stack: String,
    namespace: String,
    state: Progress,
    /// The reason for the state, in words.
    why: String,
    /// The run that works for it, or did last.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<String>,
    /// The path of this answer.
    href: String,
}

impl Request {
    pub(super) fn of(layer: &TerraformLayer, which: Which) -> Self {
        let status = layer.status.as_ref();
        let is_newest = which.is_newest(layer);
        let state = match Standing::of(layer) {
            _ if !is_newest => Progress::Superseded,
            Standing::Pending => Progress::Pending,
            Standing::Running => Progress::Running,
            Standing::Ready => Progress::Succeeded,
            Standing::Failed => Progress::Failed,
            Standing::Deleting => {
                let works =
                    status.is_some_and(|status| condition::is_true(&status.conditions, "Reconciling"));
                if works { Progress::Running } else { Progress::Pending }
            }
        };
        let why = match state {
            Progress::Superseded => "the stack was changed or deleted since".to_owned(),
            Progress::Pending | Progress::Running | Progress::Succeeded | Progress::Failed => {
                status.and_then(|status| status.why.clone()).unwrap_or_default()
            }
        };
        let run = status.and_then(|status| status.last_run.as_ref()).map(|run| run.name.clone());
        Self {
            id: which.id(),
            stack: layer.name_any(),
            namespace: layer.namespace().unwrap_or_default(),
            state,
            why,
            run: run.filter(|_| is_newest && state != Progress::Pending),
            href: which.place(layer),
        }
    }
}

/// What became of a request: pending, running, succeeded, failed, or superseded by a later one
///
/// One to delete a stack has succeeded when the stack is gone, and then answers 404 as the stack does.
#[utoipa::path(
    get, operation_id = "getStackRequest", tag = "stacks",
    path = "/tfstacks/{id}/requests/{request}",
    params(
        ("id" = String, Path),
        ("request" = String, Path, description = "`create`, `update-` and a number, or `delete`"),
        ("namespace" = Option<String>, Query, description = "Where the stack is; without it `default`"),
    ),
    responses((status = 200, body = Request), (status = 304, description = "Still what If-None-Match names")),
)]
pub(crate) async fn one(
    may: May<GetLayer>,
    State(service): State<Arc<Service>>,
    Path((_, request)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let layer = service.stack(&may.namespace, &may.name).await?;
    let which = Which::parse(&request).filter(|which| which.was_made(&layer)).ok_or_else(|| {
        Refusal::NotFound(format!("nobody made that request about stack {}", layer.name_any()))
    })?;
    Ok(versioned(&headers, &layer.resource_version().unwrap_or_default(), &Request::of(&layer, which)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_named_in_one_way() {
        for which in [Which::Create, Which::Update(1), Which::Update(12), Which::Delete] {
            assert_eq!(Which::parse(&which.id()), Some(which));
        }
        for wrong in ["", "update", "update-", "update-0", "update-01", "update-+1", "update--1", "Create"] {
            assert_eq!(Which::parse(wrong), None, "{wrong}");
        }
    }
}
