//! What a repository or a layer may ask of its runners: where their pods work, what they are made of, and what the tool is given more. Here
//! is what can be said and how the two are laid over each other; what of it counts, [`Allowed`] says, which is the administrator's.

mod allowed;
mod arguments;
mod check;
mod glob;
mod merge;
mod security;

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use allowed::{Allowed, Field};
pub use check::Refusal;

use crate::inputs::{EnvironmentFrom, EnvironmentVariable, ObjectRef};
use crate::text::{ImageName, LayerPath, MountPath, ObjectName, ToolArgument};

/// What the runners of a layer have other than the controller's defaults. A layer's words win over its repository's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunnerOverride {
    /// The image that runs work in. It has the program `terrane` of this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageName>,
    /// When the image is pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,
    /// Secrets of the same namespace to pull images with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<ObjectRef>,
    /// The ServiceAccount of the pod, such as one that a cloud gives a role. No token of it for the Kubernetes API is in the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<ObjectName>,
    /// Taints that are tolerated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// Labels that the node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "texts")]
    pub node_selector: BTreeMap<String, String>,
    /// Near which nodes and pods, as in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub affinity: Option<Value>,
    /// What the runner's container asks for and may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// More variables of the environment of the tool and its providers. `environment` of a layer wins over them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvironmentVariable>,
    /// Whole Secrets and ConfigMaps as such variables; later ones win, and `env` wins over them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub env_from: Vec<EnvironmentFrom>,
    /// Volumes of the pod, as in a pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "volumes_schema")]
    pub volumes: Vec<Value>,
    /// Where the runner's container sees such volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["mountPath"]))]
    pub volume_mounts: Vec<VolumeMount>,
    /// Labels and annotations of the pod.
    #[serde(default, skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// Containers that end before the runner starts, as in a pod. They see the volumes above and nothing of the runner's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "containers_schema")]
    pub init_containers: Vec<Value>,
    /// More arguments of the tool's `init`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub extra_init_args: Vec<ToolArgument>,
    /// More arguments of the tool's `plan`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub extra_plan_args: Vec<ToolArgument>,
    /// More arguments of the tool's `apply`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub extra_apply_args: Vec<ToolArgument>,
    /// Of the runner's container, as in a pod, and no looser than the runner's own.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "any_object")]
    pub security_context: Map<String, Value>,
    /// Of the pod, as in a pod, and no looser than the runner's own.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "any_object")]
    pub pod_security_context: Map<String, Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    pub const fn as_str(self) -> &'static str {
        match self {
            PullPolicy::Always => "Always",
            PullPolicy::IfNotPresent => "IfNotPresent",
            PullPolicy::Never => "Never",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// The key of the taint.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// Whether the value counts. Default: `Equal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<TolerationOperator>,
    /// The value of the taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// What the taint does; without it, whatever it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// How long a `NoExecute` is tolerated; without it, for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    Equal,
    Exists,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What a node must have free.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub requests: BTreeMap<String, Value>,
    /// What may be used at most.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub limits: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMount {
    /// The name of the volume.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Where it is seen.
    pub mount_path: MountPath,
    /// Only this path of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<LayerPath>,
    /// Whether nothing can be written there. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Annotations, such as those that tell a node's agents something.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "texts")]
    pub annotations: BTreeMap<String, String>,
    /// Labels, such as those that costs are counted by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "texts")]
    pub labels: BTreeMap<String, String>,
}

impl Metadata {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// More arguments of the tool, by its command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtraArguments {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub init: Vec<ToolArgument>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plan: Vec<ToolArgument>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apply: Vec<ToolArgument>,
}

impl ExtraArguments {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl RunnerOverride {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn extra_arguments(&self) -> ExtraArguments {
        ExtraArguments {
            init: self.extra_init_args.clone(),
            plan: self.extra_plan_args.clone(),
            apply: self.extra_apply_args.clone(),
        }
    }
}

/// The name of an object in a list of a pod.
fn name_of(value: &Value) -> &str {
    value.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

fn texts(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "maxProperties": 64, "additionalProperties": { "type": "string", "maxLength": 4096 } })
}

fn quantities(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": {
            "x-kubernetes-int-or-string": true,
            "pattern": "^([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?[0-9]+))?$",
        },
    })
}

fn volumes_schema(_: &mut SchemaGenerator) -> Schema {
    named("What mounts call it.", 16)
}

fn containers_schema(_: &mut SchemaGenerator) -> Schema {
    named("Its name.", 8)
}

/// A list of objects that are told apart by their name; what else they hold is checked by the types of a pod.
fn named(words: &str, most: u32) -> Schema {
    let name = serde_json::json!({
        "type": "string", "description": words, "minLength": 1, "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
    });
    json_schema!({
        "type": "array",
        "maxItems": most,
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": { "name": name },
            "x-kubernetes-preserve-unknown-fields": true,
        },
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    })
}
