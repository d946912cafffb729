//! Which tool runs a layer, and which versions of it will do.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
