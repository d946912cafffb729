//! TerraformRun: one plan, apply or build, with its attempts. The spec never changes; a terminal state never changes.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backend::StateIdentity;
use crate::difference::Differences;
use crate::image::{BuiltImage, PinnedImage};
use crate::setup::Setup;
use crate::text::{CommitId, ObjectName, Sha256};

/// One plan or one apply of a layer, or the build of its image. It never changes.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "terrane.dev",
    version = "v1alpha1",
    kind = "TerraformRun",
    namespaced,
    status = "TerraformRunStatus",
    shortname = "tfrun",
    category = "terrane",
    derive = "PartialEq",
    doc = "One plan or one apply of a layer, or the build of its image. Terrane makes these; a person reads them.",
    selectable = ".spec.layer.name",
    printcolumn(
        name = "Layer",
        type_ = "string",
        json_path = ".spec.layer.name",
        description = "Whose run this is"
    ),
    printcolumn(
        name = "Action",
        type_ = "string",
        json_path = ".spec.action",
        description = "plan, apply or build"
    ),
    printcolumn(
        name = "State",
        type_ = "string",
        json_path = ".status.state",
        description = "How far it is"
    ),
    printcolumn(
        name = "Result",
        type_ = "string",
        json_path = ".status.result.message",
        description = "What came of it"
    ),
    printcolumn(
        name = "Retries",
        type_ = "integer",
        json_path = ".status.retries",
        description = "How often it was tried again",
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
    validation = Rule::new("self == oldSelf").message("a run's spec never changes"),
    validation = Rule::new("(self.action == 'apply') == has(self.artifact)").message("an apply names the plan it applies, a plan names none"),
    validation = Rule::new("(self.action == 'build') == has(self.build)").message("a build names the image it builds, others name none")
)]
pub struct TerraformRunSpec {
    /// The layer, and the commit of its code.
    pub layer: LayerRef,
    /// Whether it plans, applies or builds.
    pub action: Action,
    /// What kind of plan it is; an apply has the mode of its plan.
    #[serde(default)]
    pub mode: Mode,
    /// Which state it is about: whoever changes this state holds its lock, whatever layer they belong to.
    pub state: Sha256,
    /// The plan that is applied, by the bytes that were approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<Artifact>,
    /// What led to it.
    pub trigger: Trigger,
    /// The image whose files it works on, where the code is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<PinnedImage>,
    /// Whether its pod is a container of that image; else the runners' own image unpacks it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_image: bool,
    /// The image that it builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuiltImage>,
    /// The files, where they are known from an earlier run: a deletion must not depend on the repository being there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<Sha256>,
    /// The variables and the environment that it works with, by a digest that says nothing about them. An attempt that is given others
    /// does not begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<Sha256>,
    /// What it is planned or applied with; a run that was made before this was written down has what the layer says when it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<Setup>,
    /// Whether it keeps the outputs of the code once that is in place, for the layer's Secrets and ConfigMaps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outputs: bool,
    /// The apply that a destroy undoes: what that one was given counts, whatever the layer and what it refers to are by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<Undone>,
    /// How often a failed attempt is followed by another.
    #[serde(default = "default_max_retries")]
    #[schemars(range(min = 0, max = 100))]
    pub max_retries: u32,
    /// Rounds of plan and apply that failed one after another before this run. They make the pause before the next one longer.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub preceding_failures: u32,
}

pub const fn default_max_retries() -> u32 {
    5
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayerRef {
    /// A layer of the run's own namespace.
    pub name: ObjectName,
    /// The layer's uid: a layer deleted and made again under the same name is another layer.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
    /// The commit that is planned, applied or built, or the digits of the image's digest.
    pub revision: CommitId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    Plan,
    Apply,
    /// Puts the code into an image of a registry.
    Build,
}

impl Action {
    pub const ALL: [Self; 3] = [Self::Plan, Self::Apply, Self::Build];

    pub const fn as_str(self) -> &'static str {
        match self {
            Action::Plan => "plan",
            Action::Apply => "apply",
            Action::Build => "build",
        }
    }

    /// Whether it may change infrastructure, and so needs the lock of the state.
    pub const fn mutates(self) -> bool {
        match self {
            Action::Plan | Action::Build => false,
            Action::Apply => true,
        }
    }
}

#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// Makes the infrastructure what the code says.
    #[default]
    Normal,
    /// Removes everything that the state knows.
    Destroy,
    /// Changes nothing but the state, to what the infrastructure is.
    RefreshOnly,
}

impl Mode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::Normal => "normal",
            Mode::Destroy => "destroy",
            Mode::RefreshOnly => "refreshOnly",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// The plan's run.
    pub run: ObjectName,
    /// The uid of that run.
    #[schemars(length(min = 1, max = 64))]
    pub run_uid: String,
    /// The attempt of that run that made it.
    #[schemars(range(min = 0))]
    pub attempt: u32,
    /// The sha256 of the bytes that are applied.
    pub sha256: Sha256,
    /// From when on it is too old to be applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::condition::time_schema")]
    pub expires: Option<Time>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Undone {
    /// The uid of its run.
    #[schemars(length(min = 1, max = 64))]
    pub run_uid: String,
    /// The attempt of that run.
    #[schemars(range(min = 0))]
    pub attempt: u32,
    /// Where the datastore keeps the layer's state, should it be there.
    pub state: Sha256,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Trigger {
    /// A commit, drift, a person, or another of the reasons there are.
    pub kind: TriggerKind,
    /// Who asked, where it was a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub by: Option<String>,
    /// Why, in words.
    #[schemars(length(max = 1024))]
    pub reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TriggerKind {
    /// A new commit touches the layer.
    Commit,
    /// What the layer gives to its code is another: variables, environment, path, workspace or tool.
    Inputs,
    /// The layer's outputs are to be written somewhere, and no run has kept them yet.
    Outputs,
    /// The last plan is older than the drift interval, or too old to be applied.
    Drift,
    /// A person asked.
    Manual,
    /// An earlier apply failed, so the world must be looked at anew.
    Failure,
    /// The layer applies its plans by itself.
    Auto,
    /// A person approved the plan.
    Approval,
    /// The layer is being deleted, and says that its infrastructure goes with it.
    Deletion,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RunState {
    Initial,
    Running,
    FailureGracePeriod,
    Retrying,
    Succeeded,
    Failed,
}

impl RunState {
    pub const fn as_str(self) -> &'static str {
        match self {
            RunState::Initial => "Initial",
            RunState::Running => "Running",
            RunState::FailureGracePeriod => "FailureGracePeriod",
            RunState::Retrying => "Retrying",
            RunState::Succeeded => "Succeeded",
            RunState::Failed => "Failed",
        }
    }

    pub const fn is_terminal(self) -> bool {
        match self {
            RunState::Succeeded | RunState::Failed => true,
            RunState::Initial | RunState::Running | RunState::FailureGracePeriod | RunState::Retrying => {
                false
            }
        }
    }
}

/// How far the run is, and how it ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TerraformRunStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How far it is; `Succeeded` and `Failed` are final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RunState>,
    /// Attempts that followed a failed one.
    #[serde(default)]
    pub retries: u32,
    /// Oldest first. An attempt stands here before its pod exists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 101))]
    pub attempts: Vec<Attempt>,
    /// The pod of the newest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_pod: Option<String>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::condition::time_schema")]
    pub finished_at: Option<Time>,
    /// What came of it, once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RunResult>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::list_schema")]
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Counted from 0.
    pub number: u32,
    /// The pod of its runner.
    pub pod_name: String,
    /// Where that pod is, if not in the run's own namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_namespace: Option<String>,
    /// The sha256 of the description that its runner reads.
    pub description: Sha256,
    /// Grows with every holder of the state's lock; what comes with a lower one is refused.
    pub fence: u64,
    /// The files that it works on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<Sha256>,
    /// When it began.
    #[schemars(schema_with = "crate::condition::time_schema")]
    pub started_at: Time,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::condition::time_schema")]
    pub finished_at: Option<Time>,
    /// How the runner ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why it ended so, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why it ended so, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The tool that ran and its version, such as `terraform 1.11.4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The sha256 of its whole log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_digest: Option<Sha256>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunResult {
    /// Why it ended as it did, in one word; `Stale`, `OutcomeUnknown` and the like are reasons, not states.
    pub reason: String,
    /// The same for people.
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<PlanSummary>,
    /// The digest of the plan this run made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_sha256: Option<Sha256>,
    /// The state that this run planned on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_identity: Option<StateIdentity>,
    /// The lineage of that state, which stays the same wherever a state is moved; none where there was no state yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub lineage: Option<String>,
    /// Tells the script that this run planned or ran, with its code and what it was given, from others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Sha256>,
    /// The image that this run built, or found to be there already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<PinnedImage>,
    /// What hooks printed to be kept, by the name that they give.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::hooks::outputs_schema")]
    pub hook_outputs: BTreeMap<String, Value>,
    /// Where the infrastructure differs from what this run planned.
    #[serde(default, skip_serializing_if = "Differences::is_empty")]
    pub differences: Differences,
}

/// How many resources a plan would change, in the tools' own words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanSummary {
    /// Resources that would be made.
    pub add: u32,
    /// Resources that would be changed in place.
    pub change: u32,
    /// Resources that would be destroyed.
    pub destroy: u32,
    /// Outputs that would change; a plan can consist of these alone.
    #[serde(default)]
    pub outputs: u32,
    /// 1 where a script of the layer's own would be run.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub scripts: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl PlanSummary {
    pub fn has_changes(&self) -> bool {
        *self != Self::default()
    }
}
