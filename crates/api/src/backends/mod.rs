//! Backends that a layer can ask for by name. Each is a [`Definition`]: which fields it takes, which backend of the tool they become, and
//! which keys of a Secret the tool reads from its environment. Those that come with Terrane are written like those that an
//! administrator adds. No value of a Secret stands here.

mod definition;
mod template;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use definition::{Credential, Definition, Field, FieldType};

use crate::inputs::{Kind, Object};
use crate::similar::similar;
use crate::text::{ObjectName, ProviderName};

/// Where the state of a layer is kept: a backend by its name, and its fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendSpec {
    pub provider: ProviderName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<CredentialsRef>,
    /// What they may be, the definition of the provider says.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct CredentialsRef {
    /// A Secret of the layer's own namespace. `terrane backends` says which of its keys are read.
    pub secret_name: ObjectName,
}

impl CredentialsRef {
    pub fn object(&self) -> Object {
        Object { kind: Kind::Secret, name: self.secret_name.clone() }
    }
}

impl JsonSchema for BackendSpec {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "BackendSpec".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let described = |mut schema: Schema, words: &str| {
            schema.insert("description".to_owned(), Value::String(words.to_owned()));
            schema
        };
        let provider = described(
            generator.subschema_for::<ProviderName>(),
            "Its name; `terrane backends` lists them with their fields.",
        );
        let credentials = described(
            generator.subschema_for::<CredentialsRef>(),
            "What the tool logs in with. It is given to the tool by its environment and stands in no file.",
        );
        json_schema!({
            "type": "object",
            "required": ["provider"],
            "properties": { "provider": provider, "credentials": credentials },
            "x-kubernetes-preserve-unknown-fields": true,
        })
    }
}

/// What a layer's backend comes to: what the tool is told, without credentials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Generated {
    pub provider: ProviderName,
    /// The tool's own name for it, such as `s3`.
    pub kind: ProviderName,
    /// The arguments of the tool's backend block. A list of objects stands for blocks.
    pub settings: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Login>,
}

/// Which Secret the tool logs in with, and how it is told of its keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Login {
    pub secret: ObjectName,
    pub keys: Vec<Credential>,
}

impl Login {
    pub fn object(&self) -> Object {
        Object { kind: Kind::Secret, name: self.secret.clone() }
    }

    /// The keys that are read, in words.
    pub fn known(&self) -> String {
        listed(self.keys.iter().map(|credential| credential.key.as_str()))
    }
}

/// What a definition can say about the layer.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub path: &'a str,
    pub workspace: &'a str,
}

/// Why a layer's backend cannot be used: what is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("spec.backend: {0}")]
pub struct Refusal(String);

/// Why a definition cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("it is not a definition of a backend: {0}")]
    Malformed(String),
    #[error("{0}")]
    Wrong(String),
    #[error("there is a backend {0} already; give it another name")]
    Taken(ProviderName),
}

/// The definitions that there are, by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Backends(BTreeMap<ProviderName, Definition>);

/// Those that come with Terrane.
const KNOWN: [&str; 8] = [
    include_str!("known/aws.yaml"),
    include_str!("known/azurerm.yaml"),
    include_str!("known/gcs.yaml"),
    include_str!("known/http.yaml"),
    include_str!("known/kubernetes.yaml"),
    include_str!("known/local.yaml"),
    include_str!("known/pg.yaml"),
    include_str!("known/s3.yaml"),
];

impl Default for Backends {
    /// Those that come with Terrane; a test sees to it that each of them can be used.
    fn default() -> Self {
        static KNOWN_ONES: OnceLock<Backends> = OnceLock::new();
        let read = || {
            let definitions = KNOWN.iter().filter_map(|text| Definition::parse(text).ok());
            Self(definitions.map(|definition| (definition.name.clone(), definition)).collect())
        };
        KNOWN_ONES.get_or_init(read).clone()
    }
}

impl Backends {
    /// One more, as an administrator wrote it.
    pub fn add(&mut self, text: &str) -> Result<&Definition, Error> {
        let definition = Definition::parse(text)?;
        match self.0.entry(definition.name.clone()) {
            std::collections::btree_map::Entry::Occupied(taken) => Err(Error::Taken(taken.key().clone())),
            std::collections::btree_map::Entry::Vacant(place) => Ok(place.insert(definition)),
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &Definition> {
        self.0.values()
    }

    /// What a layer's backend comes to. O(fields of the backend).
    pub fn generate(&self, asked: &BackendSpec, facts: Facts<'_>) -> Result<Generated, Refusal> {
        let Some(definition) = self.0.get(&asked.provider) else {
            let meant = similar(self.0.keys().map(ToString::to_string), asked.provider.as_str());
            let hint = match meant {
                Some(meant) => format!("did you mean {meant}? "),
                None => String::new(),
            };
            return Err(Refusal(format!(
                "there is no backend {}; {hint}`terrane backends` lists them",
                asked.provider
            )));
        };
        definition.generate(asked, facts)
    }
}

/// Names in a sentence.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    match names.split_last() {
        None => "none".to_owned(),
        Some((only, [])) => (*only).to_owned(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests;
