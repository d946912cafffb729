//! Terraform (`alustan.io`): a workload in one object. Code of a Git repository or of an image, scripts that deploy and destroy it, variables, where its
//! state is kept, and what is run once it is deployed. Its repository and its layer are made for it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backends::BackendSpec;
use crate::inputs::KeyRef;
use crate::text::{GitUrl, RefName, RegistryProvider, VersionConstraint};

/// What is deployed, and how.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "alustan.io",
    version = "v1alpha1",
    kind = "Terraform",
    plural = "terraforms",
    namespaced,
    status = "TerraformStatus",
    shortname = "tfw",
    category = "terrane",
    derive = "PartialEq",
    doc = "Infrastructure that is kept deployed by scripts of its own. Terrane makes a TerraformLayer of the same name for it, and a TerraformRepository where its code is in Git.",
    printcolumn(
        name = "State",
        type_ = "string",
        json_path = ".status.state",
        description = "Pending, Progressing, Success, Completed or error"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.message",
        description = "The state in words"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        description = "Whether what it describes is deployed",
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
pub struct TerraformSpec {
    /// By name. Scripts and the tool find each in their environment under its name and, unless it has that prefix already, under
    /// `TF_VAR_` and its name, which makes it a variable of the code. Everybody who can read this object can read them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "variables_schema")]
    pub variables: BTreeMap<String, String>,
    /// Where the state is kept. Without it the code's own backend counts, and where it has none, Terrane keeps the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendSpec>,
    /// What deploys and what destroys. Without a script that deploys, the tool's own apply does.
    #[serde(default, skip_serializing_if = "WorkloadScripts::is_empty")]
    pub scripts: WorkloadScripts,
    /// The repository that the code is in. Without it the code is in the image of `containerRegistry`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_repo: Option<GitRepo>,
    /// What is run after each deploy that succeeded, to say something about what is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_deploy: Option<PostDeploy>,
    /// The image that the code is in. Beside `gitRepo` it is the one that the code is meant to be in: images are not built yet, and runs
    /// take the code from Git itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_registry: Option<ContainerRegistry>,
}

fn variables_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 128,
        "additionalProperties": { "type": "string", "maxLength": 32768 },
    })
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadScripts {
    /// What deploys, as a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apply: Option<ScriptText>,
    /// What deploys, as a file of the code and its arguments, with spaces between them. Instead of `apply`. A name without a directory is in
    /// the repository's root, or in the image's working directory or root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub deploy: Option<String>,
    /// What destroys when this object is deleted: a text as in `apply`, or a file and its arguments as in `deploy`. Without it the
    /// infrastructure stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "destroy_schema")]
    pub destroy: Option<Value>,
}

impl WorkloadScripts {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Text or object, which no structural schema can say.
fn destroy_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

/// One script. Its text begins with `#!` and the program that reads it, else `sh` does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.inline) != has(self.configMapRef)")
        .message("exactly one of inline and configMapRef must be set")
)]
pub struct ScriptText {
    /// The text itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub inline: Option<String>,
    /// A key of a ConfigMap of this namespace that holds the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<KeyRef>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitRepo {
    /// `https://…`, `ssh://…`, `git@host:path`, or `file:///…` where the administrator allows it. What follows the repository in it is the
    /// directory of the root module.
    pub url: GitUrl,
    /// The branch that is followed, or a full ref such as `refs/tags/v1`. Default: the branch that the repository itself calls its
    /// default one, and `main` where it names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<RefName>,
    /// The key of a Secret of this namespace that holds an SSH private key. Without it, the Secret of type `terrane.dev/repository` is
    /// used whose URL fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_key_secret: Option<KeyRef>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PostDeploy {
    /// A file of the code, with further arguments behind it, and spaces between them. It prints a JSON object with the key `outputs`.
    #[schemars(length(min = 1, max = 4096))]
    pub script: String,
    /// It is called with `--NAME VALUE` for each, with the value that the named variable has in its environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "args_schema")]
    pub args: BTreeMap<String, String>,
}

fn args_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": { "type": "string", "minLength": 1, "maxLength": 128 },
    })
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerRegistry {
    /// Whose registry it is, where the name has no host: `docker` for Docker Hub, `ghcr` for GitHub's, or the host of another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<RegistryProvider>,
    /// Its name. What follows a space is a remark.
    #[schemars(length(min = 1, max = 1024))]
    pub image_name: String,
    /// The newest version that satisfies this is used, such as `~1.0.0`, `^1.2`, `1.x` or `>=1.2, <2`. Without it the tag behind the name
    /// is followed, and without that `latest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub semantic_version: Option<VersionConstraint>,
    /// The key of a Secret of this namespace that logs in to its registry: a Docker `config.json`. Without it the Secret
    /// `terrane-registry` of this namespace counts, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<KeyRef>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WorkloadState {
    /// Nothing was begun.
    Pending,
    /// It is being deployed or destroyed, or that is waited for.
    Progressing,
    /// It is deployed; what follows a deploy is not done.
    Success,
    /// It is deployed, and all that follows that is done; or it is destroyed.
    Completed,
    /// It cannot go on by itself.
    #[serde(rename = "error")]
    Error,
}

/// How the deployment stands, and what it gave out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TerraformStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<WorkloadState>,
    /// The state in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What the code gives out, by name: texts as they are, all else as JSON. In the place of what is sensitive stands where it is.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub output: BTreeMap<String, String>,
    /// The URLs of the cluster's Ingresses, by namespace, as far as the administrator lets them be told.
    #[serde(default, rename = "ingressURLs", skip_serializing_if = "BTreeMap::is_empty")]
    pub ingress_urls: BTreeMap<String, Vec<String>>,
    /// The logins of Argo CD and Grafana, where one of them is found in the cluster. In the place of what is secret stands where it is, unless
    /// the administrator lets it be shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<WorkloadCredentials>,
    /// What `postDeploy` printed after the last deploy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "printed_schema")]
    pub post_deploy_output: Option<Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::list_schema")]
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadCredentials {
    /// Who logs in to Argo CD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argocd_username: Option<String>,
    /// The password, or which key of which Secret holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argocd_password: Option<String>,
    /// Who logs in to Grafana, or which key of which Secret says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grafana_username: Option<String>,
    /// The password, or which key of which Secret holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grafana_password: Option<String>,
}

fn printed_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}
