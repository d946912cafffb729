//! What a runner is told about its one attempt, and what it reports. Both are artefacts in the datastore, written once;
//! no secret value stands in either.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backend::Backend;
use crate::difference::Differences;
use crate::image::{BuiltImage, PinnedImage};
use crate::inputs::{DigestKey, Inputs};
use crate::run::{Action, Mode, PlanSummary};
use crate::text::{CommitId, ImageRepository, LayerPath, Sha256, Span, Workspace};
use crate::tool::{Choice, Tool};

/// `runs/<uid>/<attempt>/spec`: written before the pod exists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    pub namespace: String,
    pub layer: String,
    pub layer_uid: String,
    pub run: String,
    pub run_uid: String,
    pub attempt: u32,
    /// 0 for a plan, which takes no lock.
    pub fence: u64,
    pub action: Action,
    #[serde(default)]
    pub mode: Mode,
    pub revision: CommitId,
    /// The files of the revision, by the digest of their archive.
    pub bundle: Sha256,
    /// The image that the archive holds the layers of; none where it holds the files themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<PinnedImage>,
    /// The image that a build makes of the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildOrder>,
    pub path: LayerPath,
    pub workspace: Workspace,
    /// Which tool; none means that the code's version files and what is installed decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<Tool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_version: Option<String>,
    /// Whether Terragrunt runs the tool, and in which version; where nothing is said, a `terragrunt.hcl` in the layer's directory
    /// decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terragrunt: Option<Choice>,
    /// The state kept in the datastore, used when the code names no backend.
    pub state: Sha256,
    /// The identity of the code's own backend that the plan was made on; none where the datastore keeps the state. An apply that
    /// finds another one does not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Sha256>,
    /// The plan an apply applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanSource>,
    /// What the layer gives to its code; the values of references come with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<GivenInputs>,
    /// Whether the outputs are kept once the code is in place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outputs: bool,
    /// The script that was last run to its end: the same one need not be run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Sha256>,
    /// The apply that this run undoes: what that one was given counts, as it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
    /// Once everything is destroyed, the workspace of the code's own backend goes too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub delete_workspace: bool,
    /// How long it may take, from its start; none leaves that to the runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
}

/// What a build makes, and how its registries are reached. How to log in to them comes with the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildOrder {
    pub image: BuiltImage,
    /// The Secret that the layer names to log in with, as people know it; without one there may be no account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    pub registries: Registries,
    /// Where kaniko keeps layers between builds, as a registry knows it; without it, below the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<ImageRepository>,
}

/// Where registries are, as the administrator says it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Registries {
    /// `FROM=TO`, each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rewrites: Vec<String>,
    /// Whether this machine's own addresses may be named.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_too: bool,
    /// Whether private addresses may not be named.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub private_denied: bool,
}

/// An attempt of an apply, and so the place of what it was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    pub run_uid: String,
    pub attempt: u32,
}

/// What an attempt is given, and by which digest it knows that it is given that.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GivenInputs {
    pub inputs: Inputs,
    /// Of this layer alone.
    pub key: DigestKey,
    pub digest: Sha256,
}

/// What tells a runner where it finds the n-th of the objects that its inputs refer to: this, and the number.
pub const INPUT_VARIABLE: &str = "TERRANE_INPUT_";

/// Where the bytes of a plan are, and what they must hash to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanSource {
    pub run_uid: String,
    pub attempt: u32,
    pub sha256: Sha256,
    /// From when on it is too old to be applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
}

/// `runs/<uid>/<attempt>/result`: the runner's last act.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    pub run_uid: String,
    pub attempt: u32,
    pub action: Action,
    pub reason: Reason,
    /// For people: what happened, with the place in the code where there is one.
    pub message: String,
    pub exit_code: i32,
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
    /// The tool that ran and its version, such as `terraform 1.11.4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanOutcome>,
    /// The script that was planned or run, by the digest that takes the place of a plan's bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Sha256>,
    /// The image that a build made, or found to be there already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<PinnedImage>,
    /// What hooks printed to be kept.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hook_outputs: BTreeMap<String, Value>,
    /// The digest of the whole log.
    pub log_sha256: Sha256,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanOutcome {
    pub sha256: Sha256,
    pub summary: PlanSummary,
    /// Where the infrastructure differs from what is planned.
    #[serde(default, skip_serializing_if = "Differences::is_empty")]
    pub differences: Differences,
    /// Lineage and serial of the state that the plan was made from; both absent when there was no state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<u64>,
    /// The code's own backend as the tool resolved it; none where the datastore keeps the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The tool did what was asked.
    Succeeded,
    /// The tool ran and failed.
    ToolFailed,
    /// The plan no longer fits the state, or is too old: nothing was changed.
    Stale,
    /// The state is locked by someone else: nothing was changed, and it may be tried again.
    StateLocked,
    /// The code leads to another state than the one that was planned: nothing was changed.
    StateMoved,
    /// No installed tool satisfies what the layer or its code asks for.
    ToolMissing,
    /// The tool that would be needed is not, or not provably, what its vendor published, or a provider is not what its registry
    /// vouches for or the lock file allows: it was not run.
    ToolUntrusted,
    /// The bundle, the path in it, a variable or the plan could not be used.
    BadInput,
    /// A hook of the layer failed or took too long.
    HookFailed,
    /// The script in the place of the tool's apply failed or took too long.
    ScriptFailed,
    /// The image could not be built or pushed.
    BuildFailed,
    /// The variables or the environment are not those that the run is about: nothing was planned or changed.
    InputsChanged,
    /// The tool was stopped by a signal.
    Interrupted,
    /// It took longer than it may, and was stopped.
    TimedOut,
    /// The datastore had no room for the plan: it may be made again when there is.
    DatastoreFull,
}

/// What a runner exits with when the datastore has no room for its result.
pub const EXIT_DATASTORE_FULL: i32 = 3;

impl Reason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::Succeeded => "Succeeded",
            Reason::ToolFailed => "ToolFailed",
            Reason::Stale => "Stale",
            Reason::StateLocked => "StateLocked",
            Reason::StateMoved => "StateMoved",
            Reason::ToolMissing => "ToolMissing",
            Reason::ToolUntrusted => "ToolUntrusted",
            Reason::BadInput => "BadInput",
            Reason::InputsChanged => "InputsChanged",
            Reason::HookFailed => "HookFailed",
            Reason::ScriptFailed => "ScriptFailed",
            Reason::BuildFailed => "BuildFailed",
            Reason::Interrupted => "Interrupted",
            Reason::TimedOut => "TimedOut",
            Reason::DatastoreFull => "DatastoreFull",
        }
    }
}

impl Description {
    /// The exact bytes that are stored; field order is that of the type, so the same description has the same bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub fn digest(&self) -> Sha256 {
        Sha256::of(&self.to_bytes())
    }
}
