//! TerraformLayer: one root module with one state, kept equal to its code.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backend::StateIdentity;
use crate::backends::{BackendSpec, Backends, CredentialsRef, Facts, Refusal};
use crate::difference::Difference;
use crate::hooks::{Hooks, Scripts};
use crate::image::{ImageBuild, ImageSource, ImageStatus};
use crate::inputs::{EnvironmentFrom, EnvironmentVariable, Inputs, Object, Variable, VariablesFrom};
use crate::outputs::{OutputPlace, OutputTarget};
use crate::overrides::{Allowed, RunnerOverride};
use crate::repository::TerraformRepository;
use crate::run::{Action, Mode, PlanSummary};
use crate::template::{Declared, Template};
use crate::text::{CommitId, LayerPath, ObjectName, PathGlob, RefName, Sha256, Span, Workspace};
use crate::timeouts::Timeouts;
use crate::tool::Choice;

/// One root module and its state: which code, and what is done about differences.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "terrane.dev",
    version = "v1alpha1",
    kind = "TerraformLayer",
    namespaced,
    status = "TerraformLayerStatus",
    shortname = "tfl",
    category = "terrane",
    derive = "PartialEq",
    doc = "One root module of a repository with one state. Terrane plans it when its code or the world changes, and applies the plan where that is allowed.",
    printcolumn(
        name = "State",
        type_ = "string",
        json_path = ".status.state",
        description = "Idle, PlanNeeded or ApplyNeeded"
    ),
    printcolumn(
        name = "Changes",
        type_ = "string",
        json_path = ".status.lastResult",
        description = "What the last plan would change"
    ),
    printcolumn(
        name = "Why",
        type_ = "string",
        json_path = ".status.why",
        description = "The reason for the state, in words"
    ),
    printcolumn(
        name = "Commit",
        type_ = "string",
        json_path = ".status.revision.short",
        description = "The relevant commit"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        description = "Whether the relevant commit is applied or needs no change",
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
#[x_kube(
    validation = Rule::new("has(self.template) == has(oldSelf.template)")
        .message("a layer cannot become a template, nor a template a layer; make another")
)]
#[x_kube(
    validation = Rule::new("!has(self.template) || !(has(self.workspace) || has(self.writeOutputsTo) || has(self.deleteWorkspace))")
        .message("a template has no workspace and no outputs of its own: each of its stacks has")
)]
#[x_kube(
    validation = Rule::new("!(has(self.deleteWorkspace) && self.deleteWorkspace) || (has(self.workspace) && self.workspace != 'default')")
        .message("deleteWorkspace needs a workspace other than default, which no tool deletes")
)]
#[x_kube(
    validation = Rule::new("has(self.repository) != has(self.image)")
        .message("exactly one of repository and image must be set")
)]
#[x_kube(
    validation = Rule::new("has(self.branch) == has(self.repository)")
        .message("a repository needs a branch, and an image has none")
)]
#[x_kube(
    validation = Rule::new("!has(self.image) || !(has(self.template) || has(self.triggerPaths))")
        .message("an image counts as a whole: it has no triggerPaths, and is no template")
)]
#[x_kube(
    validation = Rule::new("!has(self.build) || (has(self.repository) && !has(self.template))")
        .message("only the code of a repository is built into an image, and not that of a template")
)]
pub struct TerraformLayerSpec {
    /// The repository that holds the code, in the layer's own namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<RepositoryRef>,
    /// The branch that is followed, or a full ref such as `refs/tags/v1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<RefName>,
    /// The image that holds the code, in the place of a repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSource>,
    /// The image that each needed commit of the repository is built into, and that the layer's runs then work on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<ImageBuild>,
    /// The directory of the root module, relative to the repository's root, or to the image's working directory.
    pub path: LayerPath,
    /// More paths of the repository whose change leads to a new plan: directories, files, or patterns such as `vars/**/*.tfvars`.
    /// The layer's own directory and the local modules it calls count anyway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub trigger_paths: Vec<PathGlob>,
    /// The workspace of the tool. Default: `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Workspace>,
    /// Use Terraform; overrides the repository's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terraform: Option<Choice>,
    /// Use OpenTofu; overrides the repository's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opentofu: Option<Choice>,
    /// Let Terragrunt run the tool; overrides the repository's choice. Where neither says so, it does for a path with a
    /// `terragrunt.hcl`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terragrunt: Option<Choice>,
    /// Variables of the root module. They win over all others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub variables: Vec<Variable>,
    /// Whole Secrets and ConfigMaps as variables; later ones win. They win over variable files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub variables_from: Vec<VariablesFrom>,
    /// Files with variables (`.tfvars`, `.tfvars.json`), relative to the repository's root; later ones win. They win over those that the
    /// tool finds in the layer's directory by itself. A commit that touches one leads to a new plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub variable_files: Vec<LayerPath>,
    /// The environment of the tool and its providers, for their credentials and settings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub environment: Vec<EnvironmentVariable>,
    /// Whole Secrets and ConfigMaps as environment; later ones win, and `environment` wins over them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub environment_from: Vec<EnvironmentFrom>,
    /// Where the state is kept, whatever the code says. Without it the code's own backend counts, and where it has none, Terrane keeps
    /// the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendSpec>,
    /// Commands around the steps of a plan and of an apply.
    #[serde(default, skip_serializing_if = "Hooks::is_empty")]
    pub hooks: Hooks,
    /// Commands in the place of the tool's own apply.
    #[serde(default, skip_serializing_if = "Scripts::is_empty")]
    pub scripts: Scripts,
    /// What is done about differences between code and infrastructure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation_strategy: Option<RemediationStrategy>,
    /// How drift is looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// How long plans and applies may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Timeouts>,
    /// How many finished runs are kept, with their plans and logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_history_policy: Option<RunHistoryPolicy>,
    /// What the layer's runners have other than the controller's defaults, within what the administrator allows. It is laid over what the
    /// repository says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub override_runner_spec: Option<RunnerOverride>,
    /// Secrets and ConfigMaps of the layer's own namespace that its outputs are written to, and kept true in. They go with the layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub write_outputs_to: Vec<OutputTarget>,
    /// What becomes of the infrastructure when the layer is deleted. Default: `Orphan`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<DeletionPolicy>,
    /// Delete the workspace too once the infrastructure is destroyed, where the code's own backend keeps it. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub delete_workspace: bool,
    /// Nothing of this layer is planned or applied: it is copied for each stack that is made from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Template>,
    /// Start nothing for this layer until this is false again. What already runs goes on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
}

/// Why nothing can be planned with what a layer gives.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    #[error(transparent)]
    Backend(#[from] Refusal),
    #[error(transparent)]
    Override(#[from] crate::overrides::Refusal),
}

impl Unusable {
    /// The reason of the condition that tells it.
    pub const fn reason(&self) -> &'static str {
        match self {
            Unusable::Backend(_) => "BackendRefused",
            Unusable::Override(_) => OVERRIDE_REFUSED,
        }
    }
}

/// The reason of a layer whose runners cannot be what is asked for.
pub const OVERRIDE_REFUSED: &str = "OverrideRefused";

impl TerraformLayer {
    /// What the layer's runners have other than the defaults, or why not.
    pub fn runner(
        &self,
        repository: Option<&TerraformRepository>,
        allowed: &Allowed,
    ) -> Result<RunnerOverride, crate::overrides::Refusal> {
        let of_repository = repository.and_then(|repository| {
            let name = repository.metadata.name.as_deref().unwrap_or_default();
            Some((name, repository.spec.override_runner_spec.as_ref()?))
        });
        allowed.settle(of_repository, self.spec.override_runner_spec.as_ref())
    }

    /// What the layer gives to its code beside the code, or why it cannot be used.
    pub fn inputs(
        &self,
        repository: Option<&TerraformRepository>,
        backends: &Backends,
        allowed: &Allowed,
    ) -> Result<Inputs, Unusable> {
        let spec = &self.spec;
        let facts = Facts {
            namespace: self.metadata.namespace.as_deref().unwrap_or_default(),
            name: self.metadata.name.as_deref().unwrap_or_default(),
            path: spec.path.trimmed(),
            workspace: spec.workspace.as_ref().map_or("default", Workspace::as_str),
        };
        let runner = self.runner(repository, allowed)?;
        let backend = spec.backend.as_ref().map(|asked| backends.generate(asked, facts)).transpose()?;
        Ok(Inputs { backend, ..spec.plain_inputs(&runner) })
    }
}

impl TerraformLayerSpec {
    /// The repository that holds the code, where it is not an image.
    pub fn repository_name(&self) -> Option<&ObjectName> {
        self.repository.as_ref().map(|repository| &repository.name)
    }

    fn plain_inputs(&self, runner: &RunnerOverride) -> Inputs {
        let is_own = |other: &&EnvironmentVariable| self.environment.iter().any(|own| own.name == other.name);
        let inherited = runner.env.iter().filter(|variable| !is_own(variable));
        Inputs {
            variables: self.variables.clone(),
            variable_files: self.variable_files.clone(),
            variables_from: self.variables_from.clone(),
            environment: inherited.chain(&self.environment).cloned().collect(),
            environment_from: runner.env_from.iter().chain(&self.environment_from).cloned().collect(),
            hooks: self.hooks.clone(),
            scripts: self.scripts.clone(),
            backend: None,
            arguments: runner.extra_arguments(),
        }
    }

    /// The Secrets and ConfigMaps that the layer or its repository refers to for its runs, whether or not it can be planned.
    /// O(inputs · log).
    pub fn objects(&self, repository: Option<&TerraformRepository>) -> BTreeSet<Object> {
        let of_repository = repository.and_then(|repository| repository.spec.override_runner_spec.clone());
        let own = self.override_runner_spec.clone().unwrap_or_default();
        let runner = own.over(&of_repository.unwrap_or_default());
        let login = self.backend.as_ref().and_then(|asked| asked.credentials.as_ref());
        let given = self.plain_inputs(&runner).objects().into_keys();
        given.chain(login.map(CredentialsRef::object)).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepositoryRef {
    /// The name of a TerraformRepository.
    pub name: ObjectName,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemediationStrategy {
    /// Apply every plan that has changes, without asking a person. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_apply: Option<bool>,
    /// What happens when a plan or an apply fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OnError {
    /// How often a failed plan is tried again, and how many rounds of plan and failed apply there are, before the layer waits
    /// for a new commit or a person. Default: 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub max_retries: Option<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drift {
    /// How long a plan stays up to date before the world is compared with the code again. Default: 30m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Span>,
    /// How the world is looked at. Default: `plan`; with `onDrift: accept` always `refreshOnly`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<DriftMode>,
    /// What is done about infrastructure that moved away from a commit that was in place. Default: `revert` with autoApply,
    /// else `report`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_drift: Option<OnDrift>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DriftMode {
    /// By a plan: only what the code would change counts.
    Plan,
    /// By a plan that only refreshes: everything that differs from the last apply counts.
    RefreshOnly,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnDrift {
    /// Say so, and wait for a person.
    Report,
    /// Make the infrastructure what the code says, without asking.
    Revert,
    /// Write what is found into the state, without changing the infrastructure.
    Accept,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// The infrastructure stays as it is.
    Orphan,
    /// Everything in the state is destroyed before the layer goes. Setting `Orphan` while that is under way lets the layer go
    /// without it.
    Destroy,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunHistoryPolicy {
    /// How many finished runs are kept. The newest plan, its apply and the last run that left the layer in sync stay in any
    /// case. Default: 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub runs: Option<u32>,
    /// Finished runs that are older go too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age: Option<Span>,
    /// How many bytes the plans, logs and results of the layer's finished runs may take in the datastore. The oldest runs go until they fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub max_bytes: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LayerState {
    /// Nothing needs to be started.
    Idle,
    /// A plan is needed, running, or waited for.
    PlanNeeded,
    /// A plan with changes is not applied yet.
    ApplyNeeded,
}

/// What is known of the layer, and what happens next.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TerraformLayerStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What the layer needs: nothing (`Idle`), a plan, or an apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<LayerState>,
    /// The reason for the state, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What the last plan would change, as Burrito writes it, or what was changed by it once it is applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_result: Option<String>,
    /// When the layer is looked at again without anything having changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::condition::time_schema")]
    pub next_check: Option<Time>,
    #[serde(default, skip_serializing_if = "Revisions::is_empty")]
    pub revision: Revisions,
    /// Where the code is an image: which one, and what its registry says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageStatus>,
    /// Tells the variables, the environment, the hooks and the scripts as they are now from others, and says nothing about them. None where
    /// the layer gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<Sha256>,
    /// Tells the script that was last run to its end, with its code and what it was given, from others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Sha256>,
    /// Of a template: the variables that its code declares at the relevant commit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    pub declared: Vec<Declared>,
    /// What hooks printed for it, by the name that they give; newer ones replace older ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::hooks::outputs_schema")]
    pub hook_outputs: BTreeMap<String, Value>,
    /// The Secrets and ConfigMaps that outputs are written to. One that the spec no longer names stays here until it is cleared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_targets: Vec<OutputPlace>,
    /// The newest plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanRef>,
    /// The state that the newest plan was made on. Layers with the same one never apply at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_identity: Option<StateIdentity>,
    /// The newest run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<RunRef>,
    /// Newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latest_runs: Vec<RunRef>,
    /// The value of the sync annotation that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync: Option<String>,
    /// The value of the look annotation that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_look: Option<String>,
    /// What was found to differ from the code, as long as it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<DriftStatus>,
    /// Rounds that failed one after another; a success or a new commit starts again at 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub consecutive_failures: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::list_schema")]
    pub conditions: Vec<Condition>,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

fn is_normal(mode: &Mode) -> bool {
    *mode == Mode::Normal
}

/// Full commit ids, except `short`. Of code that is an image they are the digits of its digest, and `short` is its tag.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Revisions {
    /// The head of the branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<CommitId>,
    /// The last commit that touches the layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relevant: Option<CommitId>,
    /// The relevant commit, short, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short: Option<String>,
    /// The commit that was last planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned: Option<CommitId>,
    /// The commit that was last applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<CommitId>,
}

impl Revisions {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DriftStatus {
    /// The run that found it.
    pub run: String,
    /// When it was found.
    #[schemars(schema_with = "crate::condition::time_schema")]
    pub found_at: Time,
    /// How many resources differ; more than are named when there are many.
    pub total: u32,
    /// The resources that differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub resources: Vec<Difference>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanRef {
    /// The run that made it.
    pub run: String,
    /// The attempt of the run that made it.
    pub attempt: u32,
    /// The sha256 of its bytes: what an approval names.
    pub sha256: Sha256,
    pub summary: PlanSummary,
    /// When it was made.
    #[schemars(schema_with = "crate::condition::time_schema")]
    pub made_at: Time,
    /// From when on it is too old to be applied; nothing once it is applied, or where it has nothing to apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::condition::time_schema")]
    pub expires: Option<Time>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunRef {
    /// Its name.
    pub name: String,
    /// Whether it planned or applied.
    pub action: Action,
    /// What kind of plan it was.
    #[serde(default, skip_serializing_if = "is_normal")]
    pub mode: Mode,
    /// The commit that it was about.
    pub commit: CommitId,
    /// When it was made.
    #[schemars(schema_with = "crate::condition::time_schema")]
    pub date: Time,
    /// How it ended, or `running`.
    pub result: String,
}
