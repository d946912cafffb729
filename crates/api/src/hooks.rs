//! Commands of a layer's own: hooks around what the tool does, and whole scripts in its place. Their text stands in the layer, in a
//! ConfigMap, or in a file of the repository.

use std::fmt;

use kube::KubeSchema;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::inputs::KeyRef;
use crate::run::Mode;
use crate::text::{EnvironmentName, LayerPath, OutputName, Sha256, Span};

/// How long a hook may take where it does not say.
pub const HOOK_TIMEOUT: Span = Span::from_secs(10 * 60);

/// What is run around the steps of a plan and of an apply. An apply that destroys has the hooks of a destroy, and not those of an apply.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hooks {
    /// Before `init`, in plans and applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub before_init: Vec<Hook>,
    /// After `init`, in plans and applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub after_init: Vec<Hook>,
    /// Before a plan is made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub before_plan: Vec<Hook>,
    /// After a plan is made and before it counts: where one fails there is no plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub after_plan: Vec<Hook>,
    /// Before a plan is applied: where one fails nothing is applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub before_apply: Vec<Hook>,
    /// After an apply that succeeded: where one fails the run has failed, and what was applied stays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub after_apply: Vec<Hook>,
    /// Before everything is destroyed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub before_destroy: Vec<Hook>,
    /// After everything was destroyed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub after_destroy: Vec<Hook>,
}

/// One command. Its text begins with `#!` and the program that reads it, else `sh` does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.inline), has(self.configMapRef), has(self.path)].filter(x, x).size() == 1")
        .message("exactly one of inline, configMapRef and path must be set")
)]
pub struct Hook {
    /// The text itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16384))]
    pub inline: Option<String>,
    /// A key of a ConfigMap that holds the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<KeyRef>,
    /// A file of the repository, relative to its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<LayerPath>,
    /// What it is called with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub args: Vec<String>,
    /// What it is called with behind those: `--NAME VALUE` for each, with a value that its environment has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub args_from: Vec<ArgumentFrom>,
    /// How long it may take. Default: 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// What it prints is a JSON object, or its last line is, and stands in `status.hookOutputs` under this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_to: Option<OutputName>,
    /// The attempt goes on as if it had succeeded, whatever comes of it. Why it failed, or why what it printed is not kept, then stands
    /// under its `outputTo` as `failed`. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// One argument whose value is in the environment. It is left out where there is none, and where it is secret: arguments can be seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArgumentFrom {
    /// What is called `--NAME`.
    pub name: OutputName,
    /// The variable of the environment that holds its value.
    pub variable: EnvironmentName,
}

/// Commands in the place of the tool's own apply. There is no plan file to approve then: the digest of the script, of the code and of what
/// the layer gives takes its place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scripts {
    /// What applies the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apply: Option<Script>,
    /// What destroys what the code made, when the layer is deleted with `deletionPolicy: Destroy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroy: Option<Script>,
}

/// One script. Its text begins with `#!` and the program that reads it, else `sh` does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.inline), has(self.configMapRef), has(self.path)].filter(x, x).size() == 1")
        .message("exactly one of inline, configMapRef and path must be set")
)]
pub struct Script {
    /// The text itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub inline: Option<String>,
    /// A key of a ConfigMap that holds the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<KeyRef>,
    /// A file of the repository, relative to its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<LayerPath>,
    /// What it is called with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub args: Vec<String>,
    /// How long it may take; then it is asked to stop as the tool would be. Default: as long as it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
}

impl Scripts {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The script in the place of what the tool would do; none where the tool does it.
    pub fn of(&self, mode: Mode) -> Option<&Script> {
        match mode {
            Mode::Normal => self.apply.as_ref(),
            Mode::Destroy => self.destroy.as_ref(),
            Mode::RefreshOnly => None,
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &Script> {
        self.apply.iter().chain(&self.destroy)
    }
}

/// What tells a script, with the code and all that it is given, from another: it takes the place of a plan's bytes.
pub fn script_digest(mode: Mode, bundle: &Sha256, inputs: &Sha256) -> Sha256 {
    let parts = ["script", mode.as_str(), bundle.as_str(), inputs.as_str()];
    Sha256::of(parts.map(|part| format!("{}:{part}", part.len())).concat().as_bytes())
}

/// Objects of any shape, by name.
pub(crate) fn outputs_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
    })
}

/// Where hooks are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    BeforeInit,
    AfterInit,
    BeforePlan,
    AfterPlan,
    BeforeApply,
    AfterApply,
    BeforeDestroy,
    AfterDestroy,
}

impl Moment {
    pub const ALL: [Self; 8] = [
        Self::BeforeInit,
        Self::AfterInit,
        Self::BeforePlan,
        Self::AfterPlan,
        Self::BeforeApply,
        Self::AfterApply,
        Self::BeforeDestroy,
        Self::AfterDestroy,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BeforeInit => "beforeInit",
            Self::AfterInit => "afterInit",
            Self::BeforePlan => "beforePlan",
            Self::AfterPlan => "afterPlan",
            Self::BeforeApply => "beforeApply",
            Self::AfterApply => "afterApply",
            Self::BeforeDestroy => "beforeDestroy",
            Self::AfterDestroy => "afterDestroy",
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Hooks {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn at(&self, moment: Moment) -> &[Hook] {
        match moment {
            Moment::BeforeInit => &self.before_init,
            Moment::AfterInit => &self.after_init,
            Moment::BeforePlan => &self.before_plan,
            Moment::AfterPlan => &self.after_plan,
            Moment::BeforeApply => &self.before_apply,
            Moment::AfterApply => &self.after_apply,
            Moment::BeforeDestroy => &self.before_destroy,
            Moment::AfterDestroy => &self.after_destroy,
        }
    }

    /// All of them, in an order that is always the same.
    pub fn all(&self) -> impl Iterator<Item = &Hook> {
        Moment::ALL.into_iter().flat_map(|moment| self.at(moment))
    }
}
