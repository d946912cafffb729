//! One backend as it is defined: a small document that an administrator can write. It is checked when it is read, so that whoever uses
//! it only has to fear what a layer says.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::template::{Names, names_in, render};
use super::{BackendSpec, Error, Facts, Generated, Login, Refusal, listed};
use crate::similar::similar;
use crate::text::{DataKey, EnvironmentName, FieldName, ProviderName, VariableName};

/// More than any backend has to say.
const TEXT_LIMIT: usize = 64 * 1024;
/// Longer values are no names of places.
const VALUE_LIMIT: usize = 4096;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Definition {
    /// What a layer calls it.
    pub name: ProviderName,
    /// In a sentence, for people.
    pub about: String,
    /// What the tool calls it.
    pub backend: ProviderName,
    /// What a layer can say.
    #[serde(default)]
    pub fields: BTreeMap<FieldName, Field>,
    /// What the tool is told, with names of fields in braces. Where nothing is said, each field under its own name.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub settings: Map<String, Value>,
    /// Which keys of a Secret the tool reads, and from where.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credentials: Vec<Credential>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Field {
    #[serde(rename = "type", default)]
    pub kind: FieldType,
    /// In a sentence, for people.
    pub about: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
    /// What it is where a layer says nothing. Texts can name the layer: `{layer.namespace}`, `{layer.name}`, `{layer.path}`,
    /// `{layer.workspace}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    /// The default does not hold where the layer sets this other field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unless: Option<FieldName>,
    /// The only values there are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Value>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FieldType {
    #[default]
    Text,
    Number,
    Bool,
    /// Of texts.
    List,
    /// Of texts, by name.
    Map,
}

/// One key of the Secret with credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Credential {
    pub key: DataKey,
    /// The variable of the environment that the tool reads; the key's own name where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentName>,
    /// The variable holds the path of a file with the value, not the value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub file: bool,
}

impl Credential {
    /// The variable that the tool reads; none of a definition that was never checked.
    pub fn variable(&self) -> Option<EnvironmentName> {
        self.environment.clone().or_else(|| EnvironmentName::new(self.key.as_str()).ok())
    }
}

impl FieldType {
    const fn words(self) -> &'static str {
        match self {
            FieldType::Text => "text",
            FieldType::Number => "a whole number",
            FieldType::Bool => "true or false",
            FieldType::List => "a list of texts",
            FieldType::Map => "an object of texts",
        }
    }

    fn accepts(self, value: &Value) -> bool {
        let is_text = |value: &Value| value.as_str().is_some_and(|text| text.len() <= VALUE_LIMIT);
        match self {
            FieldType::Text => is_text(value),
            FieldType::Number => value.is_i64() || value.is_u64(),
            FieldType::Bool => value.is_boolean(),
            FieldType::List => value.as_array().is_some_and(|items| items.iter().all(is_text)),
            FieldType::Map => value.as_object().is_some_and(|fields| fields.values().all(is_text)),
        }
    }
}

/// What a value is, in words.
fn form(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(text) if text.len() > VALUE_LIMIT => "a very long text",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn facts_as_names(facts: Facts<'_>) -> Names {
    let Facts { namespace, name, path, workspace } = facts;
    [
        ("layer.namespace", namespace),
        ("layer.name", name),
        ("layer.path", path),
        ("layer.workspace", workspace),
    ]
    .map(|(name, value)| (name.to_owned(), Value::String(value.to_owned())))
    .into()
}

const ANY_LAYER: Facts<'static> = Facts { namespace: "n", name: "l", path: "p", workspace: "w" };

impl Definition {
    /// Reads a document and checks it.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.len() > TEXT_LIMIT {
            return Err(Error::Wrong(format!("it is longer than {TEXT_LIMIT} bytes")));
        }
        let mut definition: Self =
            serde_saphyr::from_str(text).map_err(|error| Error::Malformed(error.to_string()))?;
        definition.check().map_err(Error::Wrong)?;
        if definition.settings.is_empty() {
            let same = |name: &FieldName| (name.to_string(), Value::String(format!("{{{name}}}")));
            definition.settings = definition.fields.keys().map(same).collect();
        }
        Ok(definition)
    }

    fn check(&self) -> Result<(), String> {
        let facts = facts_as_names(ANY_LAYER);
        for (name, field) in &self.fields {
            if let Some(unless) = &field.unless
                && (!self.fields.contains_key(unless) || field.default.is_none())
            {
                return Err(format!("unless of field {name} needs a default, and the name of another field"));
            }
            if field.required && field.default.is_some() {
                return Err(format!("field {name} is required and has a default; it can be one of them"));
            }
            for value in field.default.iter().chain(&field.values) {
                let mut named = Vec::new();
                names_in(value, &mut named).map_err(|why| format!("field {name}: {why}"))?;
                if let Some(unknown) = named.iter().find(|named| !facts.contains_key(*named)) {
                    return Err(format!("the default of field {name} names {unknown}, which no layer has"));
                }
                if !render(value, &facts).is_some_and(|value| field.kind.accepts(&value)) {
                    return Err(format!("a value of field {name} is not {}", field.kind.words()));
                }
            }
        }
        for (name, template) in &self.settings {
            VariableName::new(name.as_str()).map_err(|error| format!("setting {error}"))?;
            let mut named = Vec::new();
            names_in(template, &mut named).map_err(|why| format!("setting {name}: {why}"))?;
            let is_known = |named: &&String| {
                facts.contains_key(*named) || self.fields.keys().any(|field| field.as_str() == named.as_str())
            };
            if let Some(unknown) = named.iter().find(|named| !is_known(named)) {
                return Err(format!("setting {name} names {{{unknown}}}, which is not one of its fields"));
            }
        }
        for (at, credential) in self.credentials.iter().enumerate() {
            let Some(variable) = credential.variable() else {
                return Err(format!(
                    "key {} cannot name a variable: say which by environment",
                    credential.key
                ));
            };
            if self.credentials.iter().take(at).any(|other| other.variable().as_ref() == Some(&variable)) {
                return Err(format!("two credentials become {variable}"));
            }
        }
        Ok(())
    }

    /// What the fields of a layer come to.
    pub(super) fn generate(&self, asked: &BackendSpec, facts: Facts<'_>) -> Result<Generated, Refusal> {
        let name = &self.name;
        if let Some(unknown) = asked.fields.keys().find(|field| !self.knows(field)) {
            let meant = similar(self.fields.keys().map(ToString::to_string), unknown);
            let hint = match meant {
                Some(meant) => format!("did you mean {meant}?"),
                None if is_secretive(unknown) => {
                    "what is secret belongs into a Secret, which credentials.secretName names".to_owned()
                }
                None => format!("its fields are {}", listed(self.fields.keys().map(FieldName::as_str))),
            };
            return Err(Refusal(format!("{name} has no field {unknown}; {hint}")));
        }
        let known = facts_as_names(facts);
        let mut names = known.clone();
        for (field_name, field) in &self.fields {
            let said = asked.fields.get(field_name.as_str()).filter(|value| !value.is_null());
            let is_default_off =
                field.unless.as_ref().is_some_and(|other| asked.fields.contains_key(other.as_str()));
            let value = match said {
                Some(value) => value.clone(),
                None if field.required => {
                    return Err(Refusal(format!("{name} needs the field {field_name}: {}", field.about)));
                }
                None if is_default_off => continue,
                None => match field.default.as_ref().and_then(|value| render(value, &known)) {
                    Some(value) => value,
                    None => continue,
                },
            };
            if !field.kind.accepts(&value) {
                let hint = match (field.kind, &value) {
                    (FieldType::Text, Value::Number(_) | Value::Bool(_)) => "; put it in quotes",
                    _ => "",
                };
                return Err(Refusal(format!(
                    "field {field_name} of {name} must be {}, and is {}{hint}",
                    field.kind.words(),
                    form(&value)
                )));
            }
            if !field.values.is_empty() && !field.values.contains(&value) {
                let choices: Vec<String> = field.values.iter().map(Value::to_string).collect();
                return Err(Refusal(format!(
                    "field {field_name} of {name} must be one of {}",
                    listed(choices.iter().map(String::as_str))
                )));
            }
            names.insert(field_name.to_string(), value);
        }
        let rendered = self
            .settings
            .iter()
            .filter_map(|(setting, template)| Some((setting.clone(), render(template, &names)?)));
        let settings: Map<String, Value> = rendered.collect();
        if let Some((setting, _)) = settings.iter().find(|(_, value)| !is_plain(value)) {
            return Err(Refusal(format!(
                "{setting} of {name} must not hold ${{, %{{ or control characters: the tool would not take them as they stand"
            )));
        }
        let credentials = match &asked.credentials {
            Some(_) if self.credentials.is_empty() => {
                return Err(Refusal(format!("{name} reads no credentials; leave credentials out")));
            }
            Some(found) => Some(Login { secret: found.secret_name.clone(), keys: self.credentials.clone() }),
            None => None,
        };
        Ok(Generated { provider: self.name.clone(), kind: self.backend.clone(), settings, credentials })
    }

    fn knows(&self, field: &str) -> bool {
        self.fields.keys().any(|known| known.as_str() == field)
    }
}

/// Whether the tool takes each text of it as it stands. No place is called otherwise, and what could be evaluated is not even written.
fn is_plain(value: &Value) -> bool {
    let is_plain_text = |text: &str| {
        !text.contains("${") && !text.contains("%{") && !text.chars().any(|c| c.is_control() && c != '\n')
    };
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
        Value::String(text) => is_plain_text(text),
        Value::Array(items) => items.iter().all(is_plain),
        Value::Object(fields) => fields.iter().all(|(name, field)| is_plain_text(name) && is_plain(field)),
    }
}

/// Names that people write when they mean credentials.
fn is_secretive(field: &str) -> bool {
    let field = field.to_ascii_lowercase();
    ["secret", "password", "token", "access_key", "accesskey", "conn_str", "client_key", "sas", "credential"]
        .iter()
        .any(|part| field.contains(part))
}
