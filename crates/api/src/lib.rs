//! The words that every part of Terrane shares: custom resources, their conditions, names and labels, and what a runner is told
//! and reports. Types only: no clock, no IO, no client.

pub mod approval;
pub mod attempt;
pub mod audit;
pub mod backend;
pub mod backends;
pub mod bundle;
pub mod condition;
pub mod difference;
mod formats;
pub mod hooks;
pub mod image;
pub mod inputs;
pub mod layer;
pub mod notification;
pub mod outputs;
pub mod overrides;
pub mod provider;
pub mod repo;
pub mod repository;
pub mod run;
pub mod service;
pub mod setup;
pub mod similar;
pub mod snapshot;
pub mod template;
pub mod terraform;
pub mod text;
pub mod timeouts;
pub mod tool;

pub use approval::{TerraformApproval, TerraformApprovalSpec, TerraformApprovalStatus};
pub use layer::{TerraformLayer, TerraformLayerSpec, TerraformLayerStatus};
pub use notification::{TerraformNotification, TerraformNotificationSpec, TerraformNotificationStatus};
pub use repo::{Repo, RepoSpec, RepoStatus};
pub use repository::{TerraformRepository, TerraformRepositorySpec, TerraformRepositoryStatus};
pub use run::{TerraformRun, TerraformRunSpec, TerraformRunStatus};
pub use terraform::{Terraform, TerraformSpec, TerraformStatus};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

pub const GROUP: &str = "terrane.dev";
/// The group of the kind [`Terraform`].
pub const WORKLOAD_GROUP: &str = "alustan.io";
/// All groups that kinds of Terrane are in.
pub const GROUPS: [&str; 2] = [GROUP, WORKLOAD_GROUP];
pub const VERSION: &str = "v1alpha1";

/// Where Terrane keeps what belongs to no tenant: its leases, its own service accounts.
pub const SYSTEM_NAMESPACE: &str = "terrane-system";

/// The ServiceAccount of the controllers, in [`SYSTEM_NAMESPACE`].
pub const CONTROLLER_ACCOUNT: &str = "terrane-controller";
/// The ServiceAccount of the HTTP service for people, in the same namespace.
pub const SERVER_ACCOUNT: &str = "terrane-server";

/// The ServiceAccount of the pods in which kaniko builds images, in a namespace that holds nothing else.
pub const BUILDER_ACCOUNT: &str = "terrane-builder";
/// That namespace, where the administrator names no other.
pub const BUILD_NAMESPACE: &str = "terrane-builds";

/// The audience of the only token a runner holds.
pub const DATASTORE_AUDIENCE: &str = "terrane-datastore";

/// The image that means "this machine's own programs" to the process node.
pub const LOCAL_IMAGE: &str = "terrane.dev/local";
/// The taint of nodes that run pods as processes: pods that are meant for containers stay away.
pub const PROCESS_NODE_TAINT: &str = "terrane.dev/process-node";

pub mod label {
    //! Labels that Terrane puts on what it makes.
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    pub const COMPONENT: &str = "app.kubernetes.io/component";
    pub const LAYER: &str = "terrane.dev/layer";
    /// The repository whose limit of runners a pod counts towards.
    pub const REPOSITORY: &str = "terrane.dev/repository";
    pub const RUN: &str = "terrane.dev/run";
    pub const RUN_UID: &str = "terrane.dev/run-uid";
    pub const ATTEMPT: &str = "terrane.dev/attempt";
    /// The namespace of a run whose pod is in another one, where no owner reference can name the run.
    pub const RUN_NAMESPACE: &str = "terrane.dev/run-namespace";
    pub const ACTION: &str = "terrane.dev/action";
    /// On a layer that is a stack: the template that it was made from.
    pub const STACK_TEMPLATE: &str = "terrane.dev/stack-template";
}

/// Who looks after the Jobs that show runs: no job controller makes pods for a Job that names another.
pub const JOB_MANAGER: &str = "terrane.dev/repo";

/// On every layer from before its first run until its runs have ended and, where it says so, its infrastructure is destroyed.
pub const LAYER_FINALIZER: &str = "terrane.dev/layer";
/// On every Terraform from before its layer is made until that is gone, and with it, where it says so, the infrastructure.
pub const WORKLOAD_FINALIZER: &str = "terrane.dev/terraform";

pub mod annotation {
    //! Wishes of people with the right to annotate a layer, a repository or a run.

    /// On a layer: any new value asks for a plan now. On a repository: for a look at it.
    pub const SYNC: &str = "terrane.dev/sync";
    /// With the value of [`SYNC`]: the repository is looked at first, so that the plan is of the newest commit, not of the newest known.
    pub const LATEST: &str = "terrane.dev/latest";
    /// Any new value asks what moved in the world, without comparing it with the code: a plan that only refreshes, now.
    pub const LOOK: &str = "terrane.dev/look";
    /// On a run that answers a sync or a look: `sync:` or `look:`, and the value of the layer's annotation.
    pub const TOKEN: &str = "terrane.dev/token";
    /// The sha256 of a plan that may be applied; counts as one approval without a proved author.
    pub const APPROVE: &str = "terrane.dev/approve";
    /// On a Secret or ConfigMap with outputs of a layer: the keys that the layer wrote there, with commas between them. All others are
    /// somebody else's.
    pub const OUTPUT_KEYS: &str = "terrane.dev/output-keys";
    /// On a layer that is a stack: what tells the request that made it from others. Values of sensitive variables are no part of it.
    pub const STACK_REQUEST: &str = "terrane.dev/stack-request";
    /// On a layer that is a stack: the variables that were asked for, with commas between them; the others are its template's.
    pub const STACK_VARIABLES: &str = "terrane.dev/stack-variables";
    /// On a layer that is a stack: the Secrets that its last update replaced, with commas between them. The next one deletes them.
    pub const STACK_SECRETS: &str = "terrane.dev/stack-secrets";
    /// On a run: any value cancels it. On a layer: the name of the run that is canceled.
    pub const CANCEL: &str = "terrane.dev/cancel";
}

/// The definitions that an API must know before Terrane can work with it.
pub fn custom_resources() -> Vec<CustomResourceDefinition> {
    let all = [
        TerraformRepository::crd(),
        TerraformLayer::crd(),
        TerraformRun::crd(),
        TerraformApproval::crd(),
        Repo::crd(),
        TerraformNotification::crd(),
        Terraform::crd(),
    ];
    all.map(formats::signed).into()
}
