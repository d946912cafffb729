//! A layer's words over those of its repository. Lists keep the order in which their entries first appear, so that the same two always come
//! to the same pod.

use std::collections::BTreeMap;

use super::{Metadata, Resources, RunnerOverride, name_of};

impl RunnerOverride {
    /// These words, laid over others. O(words).
    pub fn over(&self, below: &RunnerOverride) -> RunnerOverride {
        let RunnerOverride {
            image,
            image_pull_policy,
            image_pull_secrets,
            service_account_name,
            tolerations,
            node_selector,
            affinity,
            resources,
            env,
            env_from,
            volumes,
            volume_mounts,
            metadata,
            init_containers,
            extra_init_args,
            extra_plan_args,
            extra_apply_args,
            security_context,
            pod_security_context,
        } = self;
        RunnerOverride {
            image: image.clone().or_else(|| below.image.clone()),
            image_pull_policy: image_pull_policy.or(below.image_pull_policy),
            image_pull_secrets: appended(&below.image_pull_secrets, image_pull_secrets),
            service_account_name: service_account_name.clone().or_else(|| below.service_account_name.clone()),
            tolerations: appended(&below.tolerations, tolerations),
            node_selector: joined(&below.node_selector, node_selector),
            affinity: affinity.clone().or_else(|| below.affinity.clone()),
            resources: match (resources, &below.resources) {
                (Some(own), Some(below)) => Some(Resources {
                    requests: joined(&below.requests, &own.requests),
                    limits: joined(&below.limits, &own.limits),
                }),
                (own, below) => own.clone().or_else(|| below.clone()),
            },
            env: by_key(&below.env, env, |variable| variable.name.as_str()),
            env_from: appended(&below.env_from, env_from),
            volumes: by_key(&below.volumes, volumes, name_of),
            volume_mounts: by_key(&below.volume_mounts, volume_mounts, |mount| mount.mount_path.as_str()),
            metadata: Metadata {
                annotations: joined(&below.metadata.annotations, &metadata.annotations),
                labels: joined(&below.metadata.labels, &metadata.labels),
            },
            init_containers: by_key(&below.init_containers, init_containers, name_of),
            extra_init_args: replaced(&below.extra_init_args, extra_init_args),
            extra_plan_args: replaced(&below.extra_plan_args, extra_plan_args),
            extra_apply_args: replaced(&below.extra_apply_args, extra_apply_args),
            security_context: joined_values(&below.security_context, security_context),
            pod_security_context: joined_values(&below.pod_security_context, pod_security_context),
        }
    }
}

/// All of both, each once.
fn appended<T: Clone + PartialEq>(below: &[T], own: &[T]) -> Vec<T> {
    let mut all: Vec<T> = Vec::with_capacity(below.len() + own.len());
    for entry in below.iter().chain(own) {
        if !all.contains(entry) {
            all.push(entry.clone());
        }
    }
    all
}

/// An entry takes the place of the one that has its key.
fn by_key<T: Clone>(below: &[T], own: &[T], key: impl Fn(&T) -> &str) -> Vec<T> {
    let mut all: Vec<T> = Vec::with_capacity(below.len() + own.len());
    for entry in below.iter().chain(own) {
        match all.iter_mut().find(|known| key(known) == key(entry)) {
            Some(known) => *known = entry.clone(),
            None => all.push(entry.clone()),
        }
    }
    all
}

/// Arguments of a command are one sentence: a layer that has its own says all of it.
fn replaced<T: Clone>(below: &[T], own: &[T]) -> Vec<T> {
    if own.is_empty() { below.to_vec() } else { own.to_vec() }
}

fn joined<V: Clone>(below: &BTreeMap<String, V>, own: &BTreeMap<String, V>) -> BTreeMap<String, V> {
    below.iter().chain(own).map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn joined_values(
    below: &serde_json::Map<String, serde_json::Value>,
    own: &serde_json::Map<String, serde_json::Value>,
) -> serde_json::Map<String, serde_json::Value> {
    below.iter().chain(own).map(|(key, value)| (key.clone(), value.clone())).collect()
}
