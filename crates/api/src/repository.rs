//! TerraformRepository: where code comes from, and the defaults of the layers that use it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::layer::{Drift, RemediationStrategy, RunHistoryPolicy};
use crate::overrides::RunnerOverride;
use crate::text::{CommitId, DataKey, GitUrl, ObjectName, RefName, Span};
use crate::timeouts::Timeouts;
use crate::tool::Choice;

/// Where code comes from, and what its layers have in common.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "terrane.dev",
    version = "v1alpha1",
    kind = "TerraformRepository",
    plural = "terraformrepositories",
    namespaced,
    status = "TerraformRepositoryStatus",
    shortname = "tfr",
    category = "terrane",
    derive = "PartialEq",
    doc = "A Git repository that Terrane watches. Layers of the same namespace name it as their source.",
    printcolumn(
        name = "URL",
        type_ = "string",
        json_path = ".spec.repository.url",
        description = "Where the repository is"
    ),
    printcolumn(
        name = "State",
        type_ = "string",
        json_path = ".status.state",
        description = "SyncNeeded or Synced"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        description = "Whether the last look at the repository succeeded"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#,
        description = "What was found, or why it could not be read",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Since when it exists"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.terraform) && has(self.terraform.enabled) && self.terraform.enabled && has(self.opentofu) && has(self.opentofu.enabled) && self.opentofu.enabled)")
        .message("at most one of terraform and opentofu can be enabled")
)]
pub struct TerraformRepositorySpec {
    /// Which repository, and how to read it.
    pub repository: Location,
    /// How often the repository is asked for new commits, with some jitter; one request covers all branches. Default: 1m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_interval: Option<Span>,
    /// Use Terraform for this repository's layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terraform: Option<Choice>,
    /// Use OpenTofu for this repository's layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opentofu: Option<Choice>,
    /// Let Terragrunt run the tool for this repository's layers. Where nothing is said, it does for paths with a `terragrunt.hcl`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terragrunt: Option<Choice>,
    /// What is done about differences between code and infrastructure, unless the layer says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation_strategy: Option<RemediationStrategy>,
    /// How drift is looked for, unless the layer says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// How long plans and applies may take, unless the layer says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Timeouts>,
    /// How many runner pods may work for this repository's layers at the same time; the others queue. 0 sets no limit beside the
    /// controller's own.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 10_000))]
    pub max_concurrent_runner_pods: u32,
    /// How many finished runs a layer keeps, unless it says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_history_policy: Option<RunHistoryPolicy>,
    /// What the runners of this repository's layers have other than the controller's defaults, within what the administrator allows. What a
    /// layer says for itself is laid over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub override_runner_spec: Option<RunnerOverride>,
    /// Stop looking at the repository until this is false again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Location {
    /// `https://…`, `ssh://…`, `git@host:path`, or `file:///…` where the administrator allows it. Never with a password in it.
    pub url: GitUrl,
    /// How to log in. Without it, the Secret of type `terrane.dev/repository` in this namespace is used whose key `url` covers the
    /// most of the URL above; without such a Secret, the repository is read as anyone could.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    /// A Secret of the same namespace with `token`, or `username` and `password`, or `ssh-privatekey` (and `known_hosts`; the host
    /// keys of the large forges are known). `ca.crt` beside them names the authorities of an https server.
    pub secret_name: ObjectName,
    /// The key of the Secret that holds the SSH private key. Default: `ssh-privatekey`, `sshPrivateKey` or `identity`, whichever is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_key: Option<DataKey>,
}

/// What was last seen of the repository.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TerraformRepositoryStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Whether the branches below are as recent as the poll interval promises.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RepositoryState>,
    /// The branch that the repository itself calls its default one, if it names any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_branch: Option<RefName>,
    /// The branches and tags that layers use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub branches: Vec<BranchStatus>,
    /// How the layers that use the repository were doing when it was last looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<LayerCounts>,
    /// The newest delivery of a webhook that was believed and asked for a look. Written by the HTTP service, kept by everybody else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookStatus>,
    /// The value of the sync annotation that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::list_schema")]
    pub conditions: Vec<Condition>,
}

/// That the Git host said something new, and when the repository is to be looked at for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookStatus {
    /// When it arrived.
    #[schemars(schema_with = "crate::condition::time_schema")]
    pub received_at: Time,
    /// The look that answers it does not begin before this. Deliveries that arrive until then are answered by the same look and are not
    /// written down themselves.
    #[schemars(schema_with = "crate::condition::time_schema")]
    pub look_after: Time,
    /// Which kind of Git host sent it: `github`, `gitlab`, `gitea`, `bitbucket` or `azuredevops`.
    pub host: String,
}

/// One layer may be counted as drifted and as failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayerCounts {
    /// How many there are.
    pub total: u32,
    /// Those whose condition `Ready` is true.
    pub ready: u32,
    /// Those whose condition `Drifted` is true.
    pub drifted: u32,
    /// Those whose newest round failed, or that cannot go on by themselves.
    pub failed: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RepositoryState {
    SyncNeeded,
    Synced,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BranchStatus {
    /// The branch, or the full ref of a tag.
    pub name: String,
    /// The commit it points to; absent while it has never been seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_rev: Option<CommitId>,
    /// When the commit or the result last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::condition::time_schema")]
    pub last_sync_date: Option<Time>,
    /// How the last look at the branch ended.
    pub last_sync_status: SyncStatus,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SyncStatus {
    Success,
    Failed,
}
