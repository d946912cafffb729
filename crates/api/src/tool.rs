//! Which tool runs a layer, and which versions of it will do.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::Sha256;

/// The command that plans and applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Tool {
    Terraform,
    Opentofu,
}

impl Tool {
    /// The name of the program.
    pub const fn program(self) -> &'static str {
        match self {
            Tool::Terraform => "terraform",
            Tool::Opentofu => "tofu",
        }
    }
}

/// A program that Terrane finds, installs and starts: the tools, and Terragrunt, which runs one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Program {
    Terraform,
    Opentofu,
    Terragrunt,
}

impl Program {
    pub const ALL: [Program; 3] = [Program::Terraform, Program::Opentofu, Program::Terragrunt];

    /// The name of its file.
    pub const fn name(self) -> &'static str {
        match self {
            Program::Terraform => "terraform",
            Program::Opentofu => "tofu",
            Program::Terragrunt => "terragrunt",
        }
    }
}

impl From<Tool> for Program {
    fn from(tool: Tool) -> Self {
        match tool {
            Tool::Terraform => Program::Terraform,
            Tool::Opentofu => Program::Opentofu,
        }
    }
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Conditions on a version, separated by commas.
const VERSION_FORM: &str = "^ *(!=|>=|<=|~>|=|>|<)? *v?[0-9]{1,9}([.][0-9]{1,9}){0,2}(-[0-9A-Za-z.-]+)?([+][0-9A-Za-z.-]+)? *(, *(!=|>=|<=|~>|=|>|<)? *v?[0-9]{1,9}([.][0-9]{1,9}){0,2}(-[0-9A-Za-z.-]+)?([+][0-9A-Za-z.-]+)? *)*$";

/// Whether a tool is used, and in which version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Choice {
    /// Use this tool for the layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// A version or constraint as the tool itself writes it, such as `1.9.8` or `~> 1.9`. Without one, the version files and
    /// `required_version` of the code decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), regex(pattern = VERSION_FORM))]
    pub version: Option<String>,
}

/// Why a downloaded program is believed to be what its vendor published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Trust {
    /// The vendor's signed checksums name it; the fingerprint is that of the vendor's key.
    Signature { key: String },
    /// Its checksum was written down by the administrator.
    Checksum,
}

/// What a runner asks the datastore for when nothing that is installed will do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    pub program: Program,
    /// In Terraform's words; none is satisfied by every version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraint: Option<String>,
}

/// What the datastore says to that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    Ready(Offer),
    /// It could not be had; the message says why and what to do.
    Unavailable {
        message: String,
    },
    /// What could be had is not, or not provably, what its vendor published.
    Untrusted {
        message: String,
    },
}

/// A program that can be had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Offer {
    /// Its name in the store, such as `terraform-1.9.8`.
    pub name: String,
    pub version: String,
    pub sha256: Sha256,
}
