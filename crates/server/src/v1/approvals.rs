//! Words on plans: each is about the bytes that the caller saw, by their sha256, and is signed by who makes it.

use std::sync::Arc;

use api::approval::{Decision, TerraformApproval, TerraformApprovalSpec};
use api::text::{ObjectName, Sha256};
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answers::{Told, digested};
use crate::may::{CreateApproval, ListApprovals, May};
use crate::views::Approval;
use crate::{Refusal, Service};

/// A word on one plan.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Word {
    /// The plan, by the sha256 of its bytes, as the layer and the plan's run say it.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    plan_sha256: String,
    decision: Verdict,
    /// Why, for those who read the history.
    #[schema(max_length = 1024)]
    reason: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Approve,
    Reject,
}

/// All words on plans of a layer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Approvals {
    items: Vec<Approval>,
}

/// List the words on plans of a layer
#[utoipa::path(
    get, operation_id = "listApprovals", tag = "approvals",
    path = "/api/v1/namespaces/{namespace}/layers/{name}/approvals",
    params(("namespace" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = Approvals), (status = 304, description = "Still what If-None-Match names")),
)]
pub(crate) async fn list(
    may: May<ListApprovals>,
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let of_layer = ListParams::default().fields(&format!("spec.layer={}", may.name));
    let found = Api::<TerraformApproval>::namespaced(service.acting(&may.person)?, &may.namespace)
        .list(&of_layer)
        .await
        .map_err(|error| Refusal::answered("list approvals", error))?;
    let mut items: Vec<TerraformApproval> = found.items;
    items.sort_by_key(|one| std::cmp::Reverse(one.metadata.creation_timestamp.as_ref().map(|time| time.0)));
    Ok(digested(&headers, &Approvals { items: items.iter().map(Approval::from).collect() }))
}

/// Approve or reject the newest plan of a layer, by the digest of its bytes
#[utoipa::path(
    post, operation_id = "decideOnPlan", tag = "approvals",
    path = "/api/v1/namespaces/{namespace}/layers/{name}/approvals",
    params(("namespace" = String, Path), ("name" = String, Path)),
    request_body = Word,
    responses((status = 201, body = Approval)),
)]
pub(crate) async fn decide(
    may: May<CreateApproval>,
    State(service): State<Arc<Service>>,
    Told(word): Told<Word>,
) -> Result<Response, Refusal> {
    let May { person, namespace, name, .. } = &may;
    let wanted =
        Sha256::new(&*word.plan_sha256).map_err(|error| Refusal::Invalid(format!("planSha256: {error}")))?;
    let layer = service.layer(namespace, name).await?;
    let Some(plan) = layer.status.and_then(|status| status.plan) else {
        return Err(Refusal::Conflict(format!("layer {namespace}/{name} has no plan yet; sync it first")));
    };
    if plan.sha256 != wanted {
        return Err(Refusal::Conflict(format!(
            "the newest plan of {namespace}/{name} is {}, not {}; look at it again",
            plan.sha256, wanted
        )));
    }
    let user = person.name.clone();
    // One person has one word on one plan.
    let short: String = name.chars().take(200).collect();
    let id = format!("{short}-{}-{}", wanted.short(), Sha256::of(user.as_bytes()).short());
    let spec = TerraformApprovalSpec {
        layer: ObjectName::new(&**name).map_err(|error| Refusal::Invalid(error.to_string()))?,
        plan_sha256: wanted,
        user,
        decision: match word.decision {
            Verdict::Approve => Decision::Approve,
            Verdict::Reject => Decision::Reject,
        },
        reason: word.reason,
    };
    let approvals = Api::<TerraformApproval>::namespaced(service.acting(person)?, namespace);
    match approvals.create(&PostParams::default(), &TerraformApproval::new(&id, spec)).await {
        Ok(approval) => Ok((StatusCode::CREATED, Json(Approval::from(&approval))).into_response()),
        Err(kube::Error::Api(answer)) if answer.reason == "AlreadyExists" => Err(Refusal::Conflict(format!(
            "you have already decided on plan {} of {namespace}/{name}",
            plan.sha256.short()
        ))),
        Err(error) => Err(Refusal::answered(&format!("decide on layer {namespace}/{name}"), error)),
    }
}
