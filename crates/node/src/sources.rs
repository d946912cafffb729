//! The Secrets and ConfigMaps that a pod refers to: which, and what they hold now.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Container, Secret, Volume};
use kube::{Api, Client, ResourceExt};

/// Names of the same namespace as the pod; nothing can be referred to across namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Needed {
    pub secrets: BTreeSet<String>,
    pub config_maps: BTreeSet<String>,
}

/// What was found. A name that is not in here does not exist.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    secrets: BTreeMap<String, Secret>,
    config_maps: BTreeMap<String, ConfigMap>,
}

impl Needed {
    /// What the environment of a container refers to.
    pub fn by_container(container: &Container) -> Needed {
        let mut needed = Needed::default();
        for from in container.env_from.iter().flatten() {
            needed.secrets.extend(from.secret_ref.iter().map(|r| r.name.clone()));
            needed.config_maps.extend(from.config_map_ref.iter().map(|r| r.name.clone()));
        }
        for from in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
            needed.secrets.extend(from.secret_key_ref.iter().map(|r| r.name.clone()));
            needed.config_maps.extend(from.config_map_key_ref.iter().map(|r| r.name.clone()));
        }
        needed
    }

    pub fn by_volumes(volumes: &[Volume]) -> Needed {
        let mut needed = Needed::default();
        for volume in volumes {
            needed.secrets.extend(volume.secret.iter().filter_map(|v| v.secret_name.clone()));
            needed.config_maps.extend(volume.config_map.iter().map(|v| v.name.clone()));
            let projected = volume.projected.iter().flat_map(|v| v.sources.iter().flatten());
            for source in projected {
                needed.secrets.extend(source.secret.iter().map(|s| s.name.clone()));
                needed.config_maps.extend(source.config_map.iter().map(|s| s.name.clone()));
            }
        }
        needed
    }

    pub fn is_empty(&self) -> bool {
        self.secrets.is_empty() && self.config_maps.is_empty()
    }
}

impl Sources {
    /// One read for each name. An error means that it is not known what exists, which is not the same as nothing.
    pub async fn fetch(client: &Client, namespace: &str, needed: &Needed) -> Result<Sources, kube::Error> {
        let mut sources = Sources::default();
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        for name in &needed.secrets {
            if let Some(secret) = secrets.get_opt(name).await? {
                sources.secrets.insert(name.clone(), secret);
            }
        }
        let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        for name in &needed.config_maps {
            if let Some(map) = config_maps.get_opt(name).await? {
                sources.config_maps.insert(name.clone(), map);
            }
        }
        Ok(sources)
    }

    pub fn from_objects(
        secrets: impl IntoIterator<Item = Secret>,
        config_maps: impl IntoIterator<Item = ConfigMap>,
    ) -> Sources {
        Sources {
            secrets: secrets.into_iter().map(|secret| (secret.name_any(), secret)).collect(),
            config_maps: config_maps.into_iter().map(|map| (map.name_any(), map)).collect(),
        }
    }

    pub fn secret(&self, name: &str) -> Option<&Secret> {
        self.secrets.get(name)
    }

    pub fn config_map(&self, name: &str) -> Option<&ConfigMap> {
        self.config_maps.get(name)
    }
}
