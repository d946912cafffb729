//! Layers that are only copied: a template says where the code of stacks is and what they are given, and its status which variables that
//! code declares. What a value must look like to be one of a variable is decided here, as the tools convert values.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// More variables than this are not told; real modules have dozens.
pub const DECLARED_LIMIT: usize = 512;
/// Of a type and of a description so many characters are told.
pub const WORDS_LIMIT: usize = 256;

/// Makes a layer a template.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// What its stacks are, for whoever chooses one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub description: Option<String>,
    /// Used for stacks that name no template. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,
}

/// A variable that a root module declares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Declared {
    /// As the code spells it.
    pub name: String,
    /// The type as the code spells it; absent where it says none.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// What the code says about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Neither the code nor a file with variables has a value for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
    /// The code marks it as sensitive.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sensitive: bool,
}

impl Declared {
    /// What a value would have to be instead, where it cannot be one of this variable. Only the outermost type is looked at: what is
    /// inside of lists and objects, the tool says.
    pub fn mismatch(&self, value: &Value) -> Option<&'static str> {
        let kind = self.kind.as_deref().unwrap_or("any").trim();
        // A type in quotes is how tools before 0.12 were told.
        let kind = kind.trim_matches('"');
        let outer = kind.split(['(', ' ', '\n', '\t', '\r']).next().unwrap_or_default();
        let is_number = |text: &str| text.trim() == text && text.parse::<f64>().is_ok_and(f64::is_finite);
        let (fits, expected) = match outer {
            "string" => (value.is_string() || value.is_number() || value.is_boolean(), "text"),
            "number" => (value.is_number() || value.as_str().is_some_and(is_number), "a number"),
            "bool" => {
                let is_word = value.as_str().is_some_and(|text| ["true", "false"].contains(&text));
                (value.is_boolean() || is_word, "true or false")
            }
            "list" | "set" | "tuple" => (value.is_array(), "a list"),
            "map" | "object" => (value.is_object(), "an object"),
            _ => (true, "any value"),
        };
        (!fits).then_some(expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn declared(kind: Option<&str>) -> Declared {
        Declared {
            name: "x".to_owned(),
            kind: kind.map(str::to_owned),
            description: None,
            required: true,
            sensitive: false,
        }
    }

    #[test]
    fn values_fit_as_the_tools_convert_them() {
        for (kind, value, expected) in [
            (Some("string"), json!("a"), None),
            (Some("string"), json!(7), None),
            (Some("string"), json!(true), None),
            (Some("string"), json!(["a"]), Some("text")),
            (Some("\"string\""), json!({}), Some("text")),
            (Some("number"), json!(1.5), None),
            (Some("number"), json!("12"), None),
            (Some("number"), json!("twelve"), Some("a number")),
            (Some("number"), json!("inf"), Some("a number")),
            (Some("number"), json!(true), Some("a number")),
            (Some("bool"), json!("true"), None),
            (Some("bool"), json!("yes"), Some("true or false")),
            (Some("bool"), json!(1), Some("true or false")),
            (Some("list(string)"), json!([]), None),
            (Some("set (string)"), json!("a"), Some("a list")),
            (Some("map(number)"), json!({ "a": 1 }), None),
            (Some("object({\n a = string })"), json!([]), Some("an object")),
            (Some("any"), json!([1]), None),
            (Some("a_new_kind(of, type)"), json!([1]), None),
            (None, json!({}), None),
        ] {
            assert_eq!(declared(kind).mismatch(&value), expected, "{kind:?} {value}");
        }
    }
}
