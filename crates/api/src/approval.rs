//! TerraformApproval: one person's word on one plan. It is made once; what became of it is its status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::{ObjectName, Sha256};

/// One person's word on the exact bytes of one plan. It never changes.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[kube(
    group = "terrane.dev",
    version = "v1alpha1",
    kind = "TerraformApproval",
    namespaced,
    status = "TerraformApprovalStatus",
    shortname = "tfa",
    category = "terrane",
    selectable = ".spec.layer",
    derive = "PartialEq",
    doc = "One person's word on the exact bytes of one plan. It is made once and never changed.",
    printcolumn(
        name = "Layer",
        type_ = "string",
        json_path = ".spec.layer",
        description = "Whose plan it is"
    ),
    printcolumn(
        name = "Decision",
        type_ = "string",
        json_path = ".spec.decision",
        description = "approve or reject"
    ),
    printcolumn(name = "User", type_ = "string", json_path = ".spec.user", description = "Who decided"),
    printcolumn(
        name = "Outcome",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason",
        description = "What became of it"
    ),
    printcolumn(
        name = "Plan",
        type_ = "string",
        json_path = ".spec.planSha256",
        description = "The sha256 of the plan",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Since when it holds"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf").message("an approval never changes; make another for another plan"))]
pub struct TerraformApprovalSpec {
    /// A layer of the same namespace.
    pub layer: ObjectName,
    /// The plan, by the digest of its bytes.
    pub plan_sha256: Sha256,
    /// Who decides: the user who creates this object.
    #[schemars(length(min = 1, max = 256))]
    pub user: String,
    /// Whether the plan may be applied.
    pub decision: Decision,
    /// Why, for those who read the history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,
}

/// What became of the word.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TerraformApprovalStatus {
    /// `Ready` is true once the word has had its effect, and false, with the reason, where it can have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::list_schema")]
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    Approve,
    Reject,
}
