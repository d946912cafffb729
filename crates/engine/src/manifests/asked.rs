//! A runner's pod with what its layer asks of it. What is asked for has been allowed; here it only gets its place, after all that the runner
//! needs itself.

use std::collections::BTreeMap;

use api::overrides::RunnerOverride;
use serde_json::{Map, Value, json};

use super::append;

/// How every container of a runner's pod is confined.
pub(super) fn confinement() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": { "drop": ["ALL"] },
    })
}

/// O(what is asked for).
pub(super) fn lay_over(pod: &mut Value, asked: &RunnerOverride) {
    let RunnerOverride {
        image,
        image_pull_policy,
        image_pull_secrets,
        service_account_name,
        tolerations,
        node_selector,
        affinity,
        resources,
        // The tool's, and told by the description.
        env: _,
        env_from: _,
        volumes,
        volume_mounts,
        metadata,
        init_containers,
        extra_init_args: _,
        extra_plan_args: _,
        extra_apply_args: _,
        security_context,
        pod_security_context,
    } = asked;
    let set = |value: Option<&mut Value>, key: &str, wanted: Value| {
        if let Some(Value::Object(fields)) = value {
            fields.insert(key.to_owned(), wanted);
        }
    };
    for (place, wanted) in [("labels", &metadata.labels), ("annotations", &metadata.annotations)] {
        if let Some(Value::Object(own)) = pod.pointer_mut(&format!("/metadata/{place}")) {
            for (key, value) in wanted {
                own.entry(key).or_insert_with(|| value.clone().into());
            }
        }
    }
    if let Some(account) = service_account_name {
        set(pod.get_mut("spec"), "serviceAccountName", json!(account));
    }
    if !image_pull_secrets.is_empty() {
        add(pod.get_mut("spec"), "imagePullSecrets", image_pull_secrets.iter().map(|secret| json!(secret)));
    }
    if !node_selector.is_empty() {
        set(pod.get_mut("spec"), "nodeSelector", json!(node_selector));
    }
    if let Some(affinity) = affinity {
        set(pod.get_mut("spec"), "affinity", affinity.clone());
    }
    let runner = "/spec/containers/0";
    if let Some(resources) = resources {
        let amounts =
            json!({ "requests": amounts(&resources.requests), "limits": amounts(&resources.limits) });
        // A quota may ask each container for them, also the one that brings the runner's program.
        for own in ["/spec/initContainers/0", runner] {
            set(pod.pointer_mut(own), "resources", amounts.clone());
        }
    }
    if !init_containers.is_empty() {
        // What puts the runner's program into its place comes first.
        add(pod.get_mut("spec"), "initContainers", init_containers.iter().map(confined));
    }
    append(pod.pointer_mut("/spec/tolerations"), tolerations.iter().map(|toleration| json!(toleration)));
    append(pod.pointer_mut("/spec/volumes"), volumes.iter().cloned());
    join(pod.pointer_mut("/spec/securityContext"), pod_security_context);
    if let Some(image) = image {
        set(pod.pointer_mut(runner), "image", json!(image));
    }
    if let Some(policy) = image_pull_policy {
        set(pod.pointer_mut(runner), "imagePullPolicy", json!(policy));
    }
    let mounts = volume_mounts.iter().map(|mount| json!(mount));
    append(pod.pointer_mut("/spec/containers/0/volumeMounts"), mounts);
    join(pod.pointer_mut("/spec/containers/0/securityContext"), security_context);
}

/// As a pod has them: a number is written like any other amount.
fn amounts(asked: &BTreeMap<String, Value>) -> Option<BTreeMap<&str, String>> {
    let words = |amount: &Value| amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
    (!asked.is_empty()).then(|| asked.iter().map(|(name, amount)| (name.as_str(), words(amount))).collect())
}

/// An init container as confined as the runner.
fn confined(container: &Value) -> Value {
    let mut container = container.clone();
    if let Value::Object(fields) = &mut container {
        let mut context = confinement();
        if let Some(Value::Object(own)) = fields.get("securityContext") {
            join(Some(&mut context), own);
        }
        fields.insert("securityContext".to_owned(), context);
    }
    container
}

/// To a list that may not be there yet.
fn add(object: Option<&mut Value>, key: &str, more: impl IntoIterator<Item = Value>) {
    if let Some(Value::Object(fields)) = object {
        append(Some(fields.entry(key).or_insert_with(|| json!([]))), more);
    }
}

fn join(object: Option<&mut Value>, more: &Map<String, Value>) {
    if let Some(Value::Object(fields)) = object {
        fields.extend(more.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
}
