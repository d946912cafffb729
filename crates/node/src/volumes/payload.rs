//! The files of a volume that the API provides: secret, configMap, downwardAPI and projected. Pure; writing them is
//! next door.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, ServiceAccountTokenProjection, Volume,
};

use crate::fields::{self, Facts};
use crate::sources::Sources;

/// Files by their path below the volume.
pub(super) type Payload = BTreeMap<PathBuf, Content>;

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    pub(super) mode: u32,
}

/// Which token of which volume: the volume's name and the position among its sources.
pub(super) type TokenKey = (String, usize);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("secret {0:?} not found")]
    NoSecret(String),
    #[error("configmap {0:?} not found")]
    NoConfigMap(String),
    #[error("references non-existent secret key: {0}")]
    NoSecretKey(String),
    #[error("references non-existent config key: {0}")]
    NoConfigMapKey(String),
    #[error("the path {0:?} leads out of the volume")]
    BadPath(String),
    #[error(
        "a process node has no volumes of this kind; it has emptyDir, secret, configMap, downwardAPI and projected"
    )]
    Unsupported,
    #[error("the token of the service account is not there yet")]
    NoToken,
    #[error(transparent)]
    Field(#[from] fields::Error),
}

const DEFAULT_MODE: i32 = 0o644;

/// The token requests of a volume, with their keys.
pub(super) fn tokens(volume: &Volume) -> Vec<(TokenKey, &ServiceAccountTokenProjection)> {
    let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    sources
        .enumerate()
        .filter_map(|(index, source)| {
            source.service_account_token.as_ref().map(|token| ((volume.name.clone(), index), token))
        })
        .collect()
}

/// `None` for a volume that only the pod fills.
pub(super) fn build(
    volume: &Volume,
    pod: &Pod,
    sources: &Sources,
    tokens: &BTreeMap<TokenKey, String>,
    facts: &Facts,
) -> Result<Option<Payload>, Error> {
    let mut files = Payload::new();
    if volume.empty_dir.is_some() {
        return Ok(None);
    } else if let Some(secret) = &volume.secret {
        let name = secret.secret_name.as_deref().unwrap_or_default();
        let optional = secret.optional == Some(true);
        let mode = secret.default_mode.unwrap_or(DEFAULT_MODE);
        add_secret(&mut files, name, sources, secret.items.as_deref(), mode, optional)?;
    } else if let Some(map) = &volume.config_map {
        let mode = map.default_mode.unwrap_or(DEFAULT_MODE);
        add_config_map(
            &mut files,
            &map.name,
            sources,
            map.items.as_deref(),
            mode,
            map.optional == Some(true),
        )?;
    } else if let Some(downward) = &volume.downward_api {
        let mode = downward.default_mode.unwrap_or(DEFAULT_MODE);
        add_downward(&mut files, downward.items.as_deref(), pod, mode, facts)?;
    } else if let Some(projected) = &volume.projected {
        let mode = projected.default_mode.unwrap_or(DEFAULT_MODE);
        for (index, source) in projected.sources.iter().flatten().enumerate() {
            if let Some(secret) = &source.secret {
                let optional = secret.optional == Some(true);
                add_secret(&mut files, &secret.name, sources, secret.items.as_deref(), mode, optional)?;
            } else if let Some(map) = &source.config_map {
                let optional = map.optional == Some(true);
                add_config_map(&mut files, &map.name, sources, map.items.as_deref(), mode, optional)?;
            } else if let Some(downward) = &source.downward_api {
                add_downward(&mut files, downward.items.as_deref(), pod, mode, facts)?;
            } else if let Some(token) = &source.service_account_token {
                let value = tokens.get(&(volume.name.clone(), index)).ok_or(Error::NoToken)?;
                // A token is nobody else's business, whatever the volume's default mode says.
                add(&mut files, &token.path, value.clone().into_bytes(), 0o600)?;
            } else {
                return Err(Error::Unsupported);
            }
        }
    } else {
        return Err(Error::Unsupported);
    }
    Ok(Some(files))
}

fn add_secret(
    files: &mut Payload,
    name: &str,
    sources: &Sources,
    items: Option<&[KeyToPath]>,
    mode: i32,
    optional: bool,
) -> Result<(), Error> {
    let Some(secret) = sources.secret(name) else {
        return if optional { Ok(()) } else { Err(Error::NoSecret(name.to_owned())) };
    };
    add_keys(files, items, mode, optional, secret_data(secret), Error::NoSecretKey)
}

fn add_config_map(
    files: &mut Payload,
    name: &str,
    sources: &Sources,
    items: Option<&[KeyToPath]>,
    mode: i32,
    optional: bool,
) -> Result<(), Error> {
    let Some(map) = sources.config_map(name) else {
        return if optional { Ok(()) } else { Err(Error::NoConfigMap(name.to_owned())) };
    };
    add_keys(files, items, mode, optional, config_map_data(map), Error::NoConfigMapKey)
}

fn secret_data(secret: &Secret) -> BTreeMap<String, Vec<u8>> {
    secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect()
}

fn config_map_data(map: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = map.data.iter().flatten().map(|(key, value)| (key.clone(), value.clone().into_bytes()));
    let binary = map.binary_data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone()));
    text.chain(binary).collect()
}

/// All keys under their own names, or just the chosen ones under the chosen paths.
fn add_keys(
    files: &mut Payload,
    items: Option<&[KeyToPath]>,
    mode: i32,
    optional: bool,
    data: BTreeMap<String, Vec<u8>>,
    missing: impl Fn(String) -> Error,
) -> Result<(), Error> {
    match items.filter(|items| !items.is_empty()) {
        None => data.into_iter().try_for_each(|(key, bytes)| add(files, &key, bytes, mode)),
        Some(items) => items.iter().try_for_each(|item| match data.get(&item.key) {
            Some(bytes) => add(files, &item.path, bytes.clone(), item.mode.unwrap_or(mode)),
            None if optional => Ok(()),
            None => Err(missing(item.key.clone())),
        }),
    }
}

fn add_downward(
    files: &mut Payload,
    items: Option<&[DownwardAPIVolumeFile]>,
    pod: &Pod,
    mode: i32,
    facts: &Facts,
) -> Result<(), Error> {
    for item in items.into_iter().flatten() {
        let value = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => fields::field(pod, &field.field_path, facts)?,
            (None, Some(resource)) => fields::resource(pod, None, resource, facts)?,
            (None, None) => return Err(Error::Unsupported),
        };
        add(files, &item.path, value.into_bytes(), item.mode.unwrap_or(mode))?;
    }
    Ok(())
}

fn add(files: &mut Payload, path: &str, bytes: Vec<u8>, mode: i32) -> Result<(), Error> {
    let relative = Path::new(path);
    let inside = relative.components().all(|part| matches!(part, Component::Normal(_)));
    // Names that begin with two dots are the writer's own.
    if !inside || path.is_empty() || path.starts_with("..") {
        return Err(Error::BadPath(path.to_owned()));
    }
    let mode = u32::try_from(mode).unwrap_or_default() & 0o777;
    files.insert(relative.to_path_buf(), Content { bytes, mode });
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::{Value, json};

    fn files(volume: Value) -> Result<Vec<(String, String, u32)>, String> {
        let volume: Volume = serde_json::from_value(volume).unwrap();
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "labels": {"a": "b"}}})).unwrap();
        let sources = Sources::from_objects(
            [serde_json::from_value(json!({"metadata": {"name": "s"}, "data": {"k": "dg=="}})).unwrap()],
            [serde_json::from_value(
                json!({"metadata": {"name": "c"}, "data": {"t": "text"}, "binaryData": {"b": "Ymlu"}}),
            )
            .unwrap()],
        );
        let tokens = BTreeMap::from([(("v".to_owned(), 1), "jwt".to_owned())]);
        build(&volume, &pod, &sources, &tokens, &Facts::default()).map_err(|error| error.to_string()).map(
            |files| {
                files
                    .unwrap_or_default()
                    .into_iter()
                    .map(|(path, content)| {
                        let text = String::from_utf8(content.bytes).unwrap();
                        (path.to_str().unwrap().to_owned(), text, content.mode)
                    })
                    .collect()
            },
        )
    }

    fn file(path: &str, text: &str, mode: u32) -> (String, String, u32) {
        (path.to_owned(), text.to_owned(), mode)
    }

    #[test]
    fn each_kind_of_volume_has_its_files() {
        for (volume, expected) in [
            (json!({"name": "v", "emptyDir": {}}), vec![]),
            (json!({"name": "v", "secret": {"secretName": "s"}}), vec![file("k", "v", 0o644)]),
            (
                json!({"name": "v", "secret": {"secretName": "s", "defaultMode": 0o400,
                    "items": [{"key": "k", "path": "a/b"}, {"key": "k", "path": "c", "mode": 0o440}]}}),
                vec![file("a/b", "v", 0o400), file("c", "v", 0o440)],
            ),
            (json!({"name": "v", "secret": {"secretName": "none", "optional": true}}), vec![]),
            (
                json!({"name": "v", "configMap": {"name": "c"}}),
                vec![file("b", "bin", 0o644), file("t", "text", 0o644)],
            ),
            (
                json!({"name": "v", "downwardAPI": {"items": [
                    {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}),
                vec![file("labels", "a=\"b\"", 0o644)],
            ),
            (
                json!({"name": "v", "projected": {"sources": [
                    {"configMap": {"name": "c", "items": [{"key": "t", "path": "ca.crt"}]}},
                    {"serviceAccountToken": {"path": "token", "audience": "x"}},
                    {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                    {"secret": {"name": "s"}}]}}),
                vec![
                    file("ca.crt", "text", 0o644),
                    file("k", "v", 0o644),
                    file("name", "p", 0o644),
                    file("token", "jwt", 0o600),
                ],
            ),
        ] {
            assert_eq!(files(volume.clone()).unwrap(), expected, "{volume}");
        }
    }

    #[test]
    fn what_cannot_be_provided_is_said() {
        for (volume, expected) in [
            (json!({"name": "v", "secret": {"secretName": "no"}}), "secret \"no\" not found"),
            (json!({"name": "v", "configMap": {"name": "no"}}), "configmap \"no\" not found"),
            (
                json!({"name": "v", "secret": {"secretName": "s", "items": [{"key": "x", "path": "x"}]}}),
                "references non-existent secret key: x",
            ),
            (
                json!({"name": "v", "secret": {"secretName": "s", "items": [{"key": "k", "path": "../x"}]}}),
                "the path \"../x\" leads out of the volume",
            ),
            (
                json!({"name": "w", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
                "the token of the service account is not there yet",
            ),
        ] {
            assert_eq!(files(volume).unwrap_err(), expected);
        }
        let host = files(json!({"name": "v", "hostPath": {"path": "/"}})).unwrap_err();
        assert!(host.starts_with("a process node has no volumes of this kind"), "{host}");
    }
}
