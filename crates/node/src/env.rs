//! The environment of a container: exactly what its image and its pod name, in the order in which a kubelet lets later
//! values win, with `$(VAR)` expanded. Nothing is inherited from the node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVarSource, Pod};

use crate::fields::{self, Facts};
use crate::mounts::Mounts;
use crate::sources::Sources;

/// Variables in the order of their first definition; a later value replaces an earlier one.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Environment {
    order: Vec<String>,
    values: BTreeMap<String, String>,
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Values may be secrets; names are not.
        f.debug_list().entries(&self.order).finish()
    }
}

impl Environment {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    pub fn set(&mut self, name: String, value: String) {
        if self.values.insert(name.clone(), value).is_none() {
            self.order.push(name);
        }
    }

    pub fn into_pairs(mut self) -> Vec<(String, String)> {
        self.order
            .into_iter()
            .filter_map(|name| self.values.remove(&name).map(|value| (name, value)))
            .collect()
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Environment {
        let mut environment = Environment::default();
        for (name, value) in pairs {
            environment.set(name, value);
        }
        environment
    }
}

/// Why a container cannot be configured; the waiting reason is `CreateContainerConfigError`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("secret {0:?} not found")]
    NoSecret(String),
    #[error("configmap {0:?} not found")]
    NoConfigMap(String),
    #[error("couldn't find key {key} in Secret {namespace}/{name}")]
    NoSecretKey { namespace: String, name: String, key: String },
    #[error("couldn't find key {key} in ConfigMap {namespace}/{name}")]
    NoConfigMapKey { namespace: String, name: String, key: String },
    #[error("the value of {0:?} is not text and cannot be an environment variable")]
    NotText(String),
    #[error(transparent)]
    Field(#[from] fields::Error),
}

/// Puts the environment together. `base` is what the image gives.
///
/// Mount paths are translated only in values that the pod spells out; a value out of a Secret, a ConfigMap or a field
/// arrives byte for byte.
pub fn resolve(
    base: Environment,
    pod: &Pod,
    container: &Container,
    sources: &Sources,
    mounts: &Mounts,
    facts: &Facts,
) -> Result<Environment, Error> {
    let mut environment = base;
    add_env_from(&mut environment, container, sources)?;
    for variable in container.env.iter().flatten() {
        let value = match &variable.value_from {
            Some(from) => match value_from(from, pod, container, sources, facts)? {
                Some(value) => value,
                None => continue,
            },
            None => {
                let template = mounts.rewrite(variable.value.as_deref().unwrap_or_default());
                expand(&template, &environment)
            }
        };
        if value.contains('\0') {
            return Err(Error::NotText(variable.name.clone()));
        }
        environment.set(variable.name.clone(), value);
    }
    Ok(environment)
}

fn add_env_from(
    environment: &mut Environment,
    container: &Container,
    sources: &Sources,
) -> Result<(), Error> {
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let mut pairs: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        if let Some(reference) = &from.config_map_ref {
            match sources.config_map(&reference.name) {
                Some(map) => pairs.extend(
                    map.data.iter().flatten().map(|(key, value)| (key.clone(), value.clone().into_bytes())),
                ),
                None if reference.optional == Some(true) => {}
                None => return Err(Error::NoConfigMap(reference.name.clone())),
            }
        }
        if let Some(reference) = &from.secret_ref {
            match sources.secret(&reference.name) {
                Some(secret) => pairs
                    .extend(secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone()))),
                None if reference.optional == Some(true) => {}
                None => return Err(Error::NoSecret(reference.name.clone())),
            }
        }
        for (key, value) in pairs {
            let name = format!("{prefix}{key}");
            // A key that cannot name a variable is left out, as a kubelet does.
            if is_variable_name(&name) {
                environment.set(name.clone(), text(&name, value)?);
            }
        }
    }
    Ok(())
}

/// `None` when what is referred to is optional and absent.
fn value_from(
    from: &EnvVarSource,
    pod: &Pod,
    container: &Container,
    sources: &Sources,
    facts: &Facts,
) -> Result<Option<String>, Error> {
    let namespace = || pod.metadata.namespace.clone().unwrap_or_default();
    if let Some(reference) = &from.field_ref {
        return Ok(Some(fields::field(pod, &reference.field_path, facts)?));
    }
    if let Some(reference) = &from.resource_field_ref {
        return Ok(Some(fields::resource(pod, Some(container), reference, facts)?));
    }
    if let Some(reference) = &from.config_map_key_ref {
        let optional = reference.optional == Some(true);
        let Some(map) = sources.config_map(&reference.name) else {
            return if optional { Ok(None) } else { Err(Error::NoConfigMap(reference.name.clone())) };
        };
        return match map.data.as_ref().and_then(|data| data.get(&reference.key)) {
            Some(value) => Ok(Some(value.clone())),
            None if optional => Ok(None),
            None => Err(Error::NoConfigMapKey {
                namespace: namespace(),
                name: reference.name.clone(),
                key: reference.key.clone(),
            }),
        };
    }
    if let Some(reference) = &from.secret_key_ref {
        let optional = reference.optional == Some(true);
        let Some(secret) = sources.secret(&reference.name) else {
            return if optional { Ok(None) } else { Err(Error::NoSecret(reference.name.clone())) };
        };
        return match secret.data.as_ref().and_then(|data| data.get(&reference.key)) {
            Some(value) => text(&reference.key, value.0.clone()).map(Some),
            None if optional => Ok(None),
            None => Err(Error::NoSecretKey {
                namespace: namespace(),
                name: reference.name.clone(),
                key: reference.key.clone(),
            }),
        };
    }
    Err(Error::Field(fields::Error::Unsupported("a source of an environment variable".to_owned())))
}

fn text(name: &str, value: Vec<u8>) -> Result<String, Error> {
    match String::from_utf8(value) {
        Ok(value) if !value.contains('\0') => Ok(value),
        Ok(_) | Err(_) => Err(Error::NotText(name.to_owned())),
    }
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c != '=' && (' '..='~').contains(&c))
}

/// `$(NAME)` becomes the variable's value if there is one and stays as it is otherwise; `$$` is a single `$`.
pub fn expand(text: &str, environment: &Environment) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let mut following = after.chars();
        match following.next() {
            Some('$') => {
                out.push('$');
                rest = following.as_str();
            }
            Some('(') => match following.as_str().split_once(')') {
                Some((name, tail)) => {
                    match environment.get(name) {
                        Some(value) => out.push_str(value),
                        None => {
                            out.push_str("$(");
                            out.push_str(name);
                            out.push(')');
                        }
                    }
                    rest = tail;
                }
                None => {
                    out.push_str("$(");
                    rest = following.as_str();
                }
            },
            Some(_) | None => {
                out.push('$');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn references_are_expanded_as_kubernetes_does() {
        let environment = environment(&[("A", "1"), ("B", "$(A)"), ("EMPTY", "")]);
        for (text, expected) in [
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$(B)", "$(A)"),
            ("$(EMPTY)", ""),
            ("$(NONE)", "$(NONE)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$$$$(A)", "$$(A)"),
            ("$(A", "$(A"),
            ("$A", "$A"),
            ("100$", "100$"),
            ("$$", "$"),
            ("$(A)$(", "1$("),
            ("", ""),
        ] {
            assert_eq!(expand(text, &environment), expected, "{text}");
        }
    }

    fn sources() -> Sources {
        Sources::from_objects(
            [serde_json::from_value(
                json!({"metadata": {"name": "s"}, "data": {"PASS": "aHVudGVyMg==", "RAW": "gA=="}}),
            )
            .unwrap()],
            [serde_json::from_value(
                json!({"metadata": {"name": "c"}, "data": {"PATH_IN": "/data/x", "a=b": "no"}}),
            )
            .unwrap()],
        )
    }

    fn resolved(container: serde_json::Value) -> Result<Vec<(String, String)>, String> {
        let container: Container = serde_json::from_value(container).unwrap();
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns"}})).unwrap();
        let mounts = Mounts::new([("/data".to_owned(), "/real".into())]);
        resolve(environment(&[("PATH", "/bin")]), &pod, &container, &sources(), &mounts, &Facts::default())
            .map(Environment::into_pairs)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn later_values_win_and_literals_alone_are_translated() {
        let got = resolved(json!({"name": "main",
        "envFrom": [{"configMapRef": {"name": "c"}, "prefix": "C_"}],
        "env": [
            {"name": "DIR", "value": "/data/work"},
            {"name": "FILE", "value": "$(DIR)/f"},
            {"name": "COPY", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "PATH_IN"}}},
            {"name": "PASS", "valueFrom": {"secretKeyRef": {"name": "s", "key": "PASS"}}},
            {"name": "URL", "value": "u:$(PASS)@h"},
            {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "GONE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "x", "optional": true}}},
            {"name": "PATH", "value": "$(PATH):/data"}
        ]}))
        .unwrap();
        let expected = [
            ("PATH", "/bin:/real"),
            ("C_PATH_IN", "/data/x"),
            ("DIR", "/real/work"),
            ("FILE", "/real/work/f"),
            ("COPY", "/data/x"),
            ("PASS", "hunter2"),
            ("URL", "u:hunter2@h"),
            ("ME", "p"),
        ];
        assert_eq!(got, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn what_is_missing_is_named_as_a_kubelet_names_it() {
        let one = |source: serde_json::Value| {
            resolved(json!({"name": "m", "env": [{"name": "X", "valueFrom": source}]}))
        };
        for (source, expected) in [
            (json!({"secretKeyRef": {"name": "no", "key": "k"}}), "secret \"no\" not found"),
            (json!({"secretKeyRef": {"name": "s", "key": "k"}}), "couldn't find key k in Secret ns/s"),
            (json!({"configMapKeyRef": {"name": "no", "key": "k"}}), "configmap \"no\" not found"),
            (json!({"configMapKeyRef": {"name": "c", "key": "k"}}), "couldn't find key k in ConfigMap ns/c"),
            (
                json!({"secretKeyRef": {"name": "s", "key": "RAW"}}),
                "the value of \"RAW\" is not text and cannot be an environment variable",
            ),
        ] {
            assert_eq!(one(source).unwrap_err(), expected);
        }
        let from = resolved(json!({"name": "m", "envFrom": [{"secretRef": {"name": "no"}}]}));
        assert_eq!(from.unwrap_err(), "secret \"no\" not found");
        let optional =
            resolved(json!({"name": "m", "envFrom": [{"secretRef": {"name": "no", "optional": true}}]}));
        assert_eq!(optional.unwrap().len(), 1);
    }
}
