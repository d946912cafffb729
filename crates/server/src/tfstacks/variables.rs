//! The variables of a stack: checked against what the template's code declares, and laid into the layer. The values of sensitive ones go
//! into a Secret that the layer owns, and nowhere else.

use std::collections::{BTreeMap, BTreeSet};

use api::inputs::{Format, KeyRef, ValueSource, Variable};
use api::similar::similar;
use api::text::{DataKey, ObjectName, VariableName};
use api::{TerraformLayer, label};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::Value;

use super::views::fixed;
use crate::Refusal;
use crate::refusal::Fault;

/// As many as a layer can have.
const MOST: usize = 256;

/// Values by name. Null stands for none.
pub(super) type Values = BTreeMap<String, Value>;

/// What a request says about variables.
pub(super) struct Given<'a> {
    /// Those that get a value.
    pub(super) values: &'a Values,
    /// Those of them that are sensitive, though the code may not say so.
    pub(super) sensitive: &'a BTreeSet<String>,
    /// Those that have a value already, and keep it.
    pub(super) kept: BTreeSet<String>,
}

impl Given<'_> {
    /// Refuses what the template's code could not take, all of it at once. O(variables · log).
    pub(super) fn check(&self, template: &TerraformLayer) -> Result<(), Refusal> {
        let declared = template.status.as_ref().map_or(&[][..], |status| &status.declared);
        let fixed = fixed(template);
        let count = self.values.len().max(self.sensitive.len()) + self.kept.len() + fixed.len();
        if count > MOST {
            return Err(Refusal::Invalid(format!(
                "a stack has at most {MOST} variables, and this are {count}"
            )));
        }
        let mut faults = Vec::new();
        let mut fault = |name: &str, detail: String| {
            // As RFC 6901 wants it.
            let escaped = name.replace('~', "~0").replace('/', "~1");
            let pointer = format!("#/variables/{escaped}");
            faults.push(Fault { pointer, detail: format!("{} {detail}", brief(name)) });
        };
        for (name, value) in self.values.iter().filter(|(_, value)| !value.is_null()) {
            if fixed.contains(name) {
                fault(name, "is given by the template and cannot be set".to_owned());
                continue;
            }
            match declared.iter().find(|declared| declared.name == *name) {
                None => {
                    let names = declared.iter().map(|one| one.name.clone());
                    let names = names.filter(|known| !fixed.contains(known));
                    let meant = similar(names, &brief(name));
                    let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
                    fault(name, format!("is no variable of the template's code{meant}"));
                }
                Some(declared) => {
                    if let Some(expected) = declared.mismatch(value) {
                        fault(name, format!("must be {expected}, and is {}", kind_of(value)));
                    }
                }
            }
        }
        for name in self.sensitive {
            if self.values.get(name).is_none_or(Value::is_null) && !self.kept.contains(name) {
                fault(name, "is said to be sensitive, but has no value".to_owned());
            }
        }
        let has_value = |name: &String| {
            self.values.get(name).is_some_and(|value| !value.is_null()) || self.kept.contains(name)
        };
        // What whole objects hold is not known here.
        if template.spec.variables_from.is_empty() {
            let required = declared.iter().filter(|one| one.required && !fixed.contains(&one.name));
            for missing in required.filter(|one| !has_value(&one.name)) {
                fault(&missing.name, "is missing, and the code has no default for it".to_owned());
            }
        }
        if faults.is_empty() {
            return Ok(());
        }
        let all: Vec<&str> = faults.iter().map(|fault| fault.detail.as_str()).collect();
        let message = format!(
            "the variables cannot be used: {}; GET /tfstacks/templates says what template {} takes",
            all.join("; "),
            template.name_any()
        );
        Err(Refusal::Faulty { message, faults })
    }

    /// Those whose values may stand nowhere but in a Secret.
    pub(super) fn hidden(&self, template: &TerraformLayer) -> Values {
        let declared = template.status.as_ref().map_or(&[][..], |status| &status.declared);
        let is_hidden = |name: &String| {
            self.sensitive.contains(name) || declared.iter().any(|one| one.name == *name && one.sensitive)
        };
        let given = self.values.iter().filter(|(name, value)| !value.is_null() && is_hidden(name));
        given.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// The given ones as the layer names them; hidden ones by the Secret that holds them.
    pub(super) fn laid(&self, hidden: &Values, secret: &str) -> Result<Vec<Variable>, Refusal> {
        let refused = |error: api::text::Error| Refusal::Invalid(error.to_string());
        let given = self.values.iter().filter(|(_, value)| !value.is_null());
        given
            .map(|(name, value)| {
                let variable = VariableName::new(&**name).map_err(refused)?;
                if !hidden.contains_key(name) {
                    return Ok(Variable {
                        name: variable,
                        value: Some(value.clone()),
                        value_from: None,
                        format: None,
                        sensitive: false,
                    });
                }
                let key = KeyRef {
                    name: ObjectName::new(secret).map_err(refused)?,
                    key: DataKey::new(&**name).map_err(refused)?,
                };
                let source = ValueSource { secret_key_ref: Some(key), config_map_key_ref: None };
                Ok(Variable {
                    name: variable,
                    value: None,
                    value_from: Some(source),
                    format: Some(Format::Json),
                    sensitive: true,
                })
            })
            .collect()
    }
}

/// A name that somebody made up may be as long as a body.
fn brief(name: &str) -> String {
    name.chars().take(128).collect()
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Whether a Secret holds what it is asked to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    These,
    Others,
}

/// Puts values into a Secret that goes with the layer. One that is there already stays as it is. Nothing is made of no values.
pub(super) async fn keep(
    client: &Client,
    layer: &TerraformLayer,
    name: &str,
    hidden: &Values,
) -> Result<Held, Refusal> {
    if hidden.is_empty() {
        return Ok(Held::These);
    }
    let namespace = layer.namespace().unwrap_or_default();
    let secrets = Api::<Secret>::namespaced(client.clone(), &namespace);
    let data: BTreeMap<String, ByteString> = hidden
        .iter()
        .map(|(name, value)| (name.clone(), ByteString(value.to_string().into_bytes())))
        .collect();
    let mut secret = Secret {
        data: Some(data.clone()),
        immutable: Some(true),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    };
    secret.metadata.name = Some(name.to_owned());
    secret.metadata.labels = Some([(label::LAYER.to_owned(), layer.name_any())].into());
    secret.metadata.owner_references = layer.owner_ref(&()).map(|owner| vec![owner]);
    let doing = || format!("keep the sensitive variables of stack {} in Secret {name}", layer.name_any());
    match secrets.create(&PostParams::default(), &secret).await {
        Ok(_) => Ok(Held::These),
        Err(kube::Error::Api(answer)) if answer.reason == "AlreadyExists" => {
            let found = secrets.get(name).await.map_err(|error| Refusal::answered(&doing(), error))?;
            Ok(if found.data == Some(data) { Held::These } else { Held::Others })
        }
        Err(error) => Err(Refusal::answered(&doing(), error)),
    }
}

/// Deletes Secrets of a stack that it no longer needs. One that is not its own stays, whatever names it; what cannot be deleted goes with
/// the layer.
pub(super) async fn forget(client: &Client, layer: &TerraformLayer, names: &BTreeSet<String>) {
    let namespace = layer.namespace().unwrap_or_default();
    let secrets = Api::<Secret>::namespaced(client.clone(), &namespace);
    let is_owned = |meta: &kube::core::ObjectMeta| {
        meta.owner_references.iter().flatten().any(|owner| Some(&owner.uid) == layer.metadata.uid.as_ref())
    };
    for name in names {
        let deleted = async {
            let Some(found) = secrets.get_metadata_opt(name).await?.filter(|found| is_owned(&found.metadata))
            else {
                return Ok(());
            };
            let only = Preconditions { uid: found.uid(), resource_version: None };
            let only = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
            secrets.delete(name, &only).await.map(drop)
        };
        if let Err(error) = deleted.await {
            let error: kube::Error = error;
            tracing::warn!(stack = layer.name_any(), secret = name, %error, "a Secret stays until its stack goes");
        }
    }
}

/// The Secrets that the variables of a layer come from.
pub(super) fn secrets_of(variables: &[Variable]) -> BTreeSet<String> {
    let sources = variables.iter().filter_map(|variable| variable.value_from.as_ref());
    sources.filter_map(|source| Some(source.secret_key_ref.as_ref()?.name.to_string())).collect()
}
