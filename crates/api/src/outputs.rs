//! What the code gives out: where a layer wants its outputs written, and the outputs themselves as a runner keeps them. Values of outputs
//! stand in no status, event or log.

use std::collections::BTreeMap;
use std::fmt;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::inputs::{Kind, Object};
use crate::text::{DataKey, ObjectName, VariableName};

/// A Secret or a ConfigMap of the layer's own namespace that holds outputs of the layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.secret) != has(self.configMap)")
        .message("exactly one of secret and configMap must be set")
)]
pub struct OutputTarget {
    /// The name of a Secret. It is made; one that is there already and not the layer's own is left as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<ObjectName>,
    /// The name of a ConfigMap, for outputs that are not sensitive. It is made; one that is there already and not the layer's own is left
    /// as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ObjectName>,
    /// Which outputs. Default: all of them; into a ConfigMap all that are not sensitive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub keys: Vec<OutputKey>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputKey {
    /// The output, as the code declares it.
    pub output: VariableName,
    /// The key that it is written to. Default: the name of the output.
    #[serde(default, rename = "as", skip_serializing_if = "Option::is_none")]
    pub key: Option<DataKey>,
}

impl OutputTarget {
    /// None of what no API accepts.
    pub fn object(&self) -> Option<Object> {
        let of_secret = self.secret.as_ref().map(|name| (Kind::Secret, name));
        let found = of_secret.or_else(|| self.config_map.as_ref().map(|name| (Kind::ConfigMap, name)));
        found.map(|(kind, name)| Object { kind, name: name.clone() })
    }
}

/// An object that a layer's outputs are, or may be, written to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputPlace {
    /// The name of a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<ObjectName>,
    /// The name of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ObjectName>,
}

impl OutputPlace {
    pub fn object(&self) -> Option<Object> {
        let Self { secret, config_map } = self.clone();
        OutputTarget { secret, config_map, keys: Vec::new() }.object()
    }
}

impl From<&Object> for OutputPlace {
    fn from(object: &Object) -> Self {
        let name = Some(object.name.clone());
        match object.kind {
            Kind::Secret => Self { secret: name, config_map: None },
            Kind::ConfigMap => Self { secret: None, config_map: name },
        }
    }
}

/// `runs/<uid>/<attempt>/outputs`: what the code gave out when the attempt left it in place, by name.
pub type Outputs = BTreeMap<String, Output>;

/// One output. The value stays as the tool wrote it: a number is not rounded on its way.
#[derive(Clone, Serialize, Deserialize)]
pub struct Output {
    #[serde(default)]
    pub sensitive: bool,
    pub value: Box<RawValue>,
}

/// Its value may be a secret.
impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("sensitive", &self.sensitive).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_as_they_were_written_and_no_value_is_printed() {
        let text = r#"{"big":{"sensitive":true,"value":12345678901234567890123.50,"type":"number"}}"#;
        let outputs: Outputs = serde_json::from_str(text).unwrap();
        assert_eq!(outputs["big"].value.get(), "12345678901234567890123.50");
        assert!(!format!("{outputs:?}").contains("123"));
    }
}
