//! What a pod can be told about itself: the fields and resources of the downward API.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};

use crate::quantity::Quantity;

/// What the node adds to what the pod says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    pub address: String,
    pub cpus: u64,
    pub memory_bytes: u64,
    pub storage_bytes: u64,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error("unsupported fieldPath: {0}")]
    Unsupported(String),
    #[error("container {0:?} not found")]
    NoContainer(String),
    #[error("unsupported container resource : {0}")]
    UnsupportedResource(String),
    #[error("{0:?} is not a quantity")]
    NotAQuantity(String),
}

/// One field of a pod, as `fieldRef` names it.
pub fn field(pod: &Pod, path: &str, facts: &Facts) -> Result<String, Error> {
    let metadata = &pod.metadata;
    let spec = pod.spec.as_ref();
    if let Some(key) = subscript(path, "metadata.labels") {
        return Ok(value_of(metadata.labels.as_ref(), key));
    }
    if let Some(key) = subscript(path, "metadata.annotations") {
        return Ok(value_of(metadata.annotations.as_ref(), key));
    }
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    match path {
        "metadata.name" => Ok(text(&metadata.name)),
        "metadata.namespace" => Ok(text(&metadata.namespace)),
        "metadata.uid" => Ok(text(&metadata.uid)),
        "metadata.labels" => Ok(format_map(metadata.labels.as_ref())),
        "metadata.annotations" => Ok(format_map(metadata.annotations.as_ref())),
        "spec.nodeName" => Ok(spec.map(|spec| text(&spec.node_name)).unwrap_or_default()),
        "spec.serviceAccountName" => {
            Ok(spec.map(|spec| text(&spec.service_account_name)).unwrap_or_default())
        }
        // Processes share the machine's network, so these are all the same.
        "status.hostIP" | "status.hostIPs" | "status.podIP" | "status.podIPs" => Ok(facts.address.clone()),
        other => Err(Error::Unsupported(other.to_owned())),
    }
}

/// One resource of a container, as `resourceFieldRef` names it. A limit that is not set is what the node has.
pub fn resource(
    pod: &Pod,
    own: Option<&Container>,
    selector: &ResourceFieldSelector,
    facts: &Facts,
) -> Result<String, Error> {
    let container = match &selector.container_name {
        Some(name) => {
            let spec = pod.spec.as_ref();
            let mut all = spec
                .into_iter()
                .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
            all.find(|container| container.name == *name).ok_or_else(|| Error::NoContainer(name.clone()))?
        }
        None => own.ok_or_else(|| Error::NoContainer(String::new()))?,
    };
    let (kind, name) = selector
        .resource
        .split_once('.')
        .ok_or_else(|| Error::UnsupportedResource(selector.resource.clone()))?;
    let resources = container.resources.as_ref();
    let (set, default) = match kind {
        "limits" => (resources.and_then(|r| r.limits.as_ref()), allocatable(name, facts)),
        "requests" => (resources.and_then(|r| r.requests.as_ref()), Some(Quantity::ZERO)),
        _ => return Err(Error::UnsupportedResource(selector.resource.clone())),
    };
    if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !name.starts_with("hugepages-") {
        return Err(Error::UnsupportedResource(selector.resource.clone()));
    }
    let value = match set.and_then(|set| set.get(name)) {
        Some(quantity) => {
            Quantity::parse(&quantity.0).ok_or_else(|| Error::NotAQuantity(quantity.0.clone()))?
        }
        None => default.unwrap_or(Quantity::ZERO),
    };
    let divisor = match &selector.divisor {
        Some(divisor) if !divisor.0.is_empty() && divisor.0 != "0" => {
            Quantity::parse(&divisor.0).ok_or_else(|| Error::NotAQuantity(divisor.0.clone()))?
        }
        Some(_) | None => Quantity::whole(1),
    };
    value.divide_up(divisor).map(|n| n.to_string()).ok_or_else(|| Error::NotAQuantity("0".to_owned()))
}

fn allocatable(name: &str, facts: &Facts) -> Option<Quantity> {
    match name {
        "cpu" => Some(Quantity::whole(facts.cpus)),
        "memory" => Some(Quantity::whole(facts.memory_bytes)),
        "ephemeral-storage" => Some(Quantity::whole(facts.storage_bytes)),
        _ => None,
    }
}

fn subscript<'a>(path: &'a str, field: &str) -> Option<&'a str> {
    path.strip_prefix(field)?.strip_prefix("['")?.strip_suffix("']")
}

fn value_of(map: Option<&BTreeMap<String, String>>, key: &str) -> String {
    map.and_then(|map| map.get(key)).cloned().unwrap_or_default()
}

/// One `key="value"` a line, quoted so that a line break in a value does not make a line.
fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = map
        .into_iter()
        .flatten()
        .map(|(key, value)| {
            let quoted: String = value
                .chars()
                .flat_map(|c| match c {
                    '"' => vec!['\\', '"'],
                    '\\' => vec!['\\', '\\'],
                    '\n' => vec!['\\', 'n'],
                    '\r' => vec!['\\', 'r'],
                    '\t' => vec!['\\', 't'],
                    other => vec![other],
                })
                .collect();
            format!("{key}=\"{quoted}\"")
        })
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u",
                "labels": {"a": "1", "b": "two \"quoted\"\nlines"}, "annotations": {"x/y": "z"}},
            "spec": {"nodeName": "n", "serviceAccountName": "sa", "containers": [
                {"name": "main", "resources": {"limits": {"cpu": "1500m"}, "requests": {"memory": "64Mi"}}}]}
        }))
        .unwrap()
    }

    fn facts() -> Facts {
        Facts { address: "127.0.0.1".into(), cpus: 4, memory_bytes: 8 << 30, storage_bytes: 100 }
    }

    #[test]
    fn fields_are_those_of_the_downward_api() {
        for (path, expected) in [
            ("metadata.name", "p"),
            ("metadata.namespace", "ns"),
            ("metadata.uid", "u"),
            ("metadata.labels['a']", "1"),
            ("metadata.labels['none']", ""),
            ("metadata.annotations['x/y']", "z"),
            ("metadata.labels", "a=\"1\"\nb=\"two \\\"quoted\\\"\\nlines\""),
            ("spec.nodeName", "n"),
            ("spec.serviceAccountName", "sa"),
            ("status.podIP", "127.0.0.1"),
        ] {
            assert_eq!(field(&pod(), path, &facts()).unwrap(), expected, "{path}");
        }
        assert_eq!(
            field(&pod(), "spec.volumes", &facts()).unwrap_err().to_string(),
            "unsupported fieldPath: spec.volumes"
        );
    }

    #[test]
    fn resources_are_divided_and_default_to_what_the_node_has() {
        for (name, divisor, expected) in [
            ("limits.cpu", "0", "2"),
            ("limits.cpu", "1m", "1500"),
            ("requests.cpu", "1m", "0"),
            ("requests.memory", "1Mi", "64"),
            ("limits.memory", "1Gi", "8"),
            ("limits.ephemeral-storage", "1", "100"),
        ] {
            let selector: ResourceFieldSelector = serde_json::from_value(
                json!({"containerName": "main", "resource": name, "divisor": divisor}),
            )
            .unwrap();
            assert_eq!(resource(&pod(), None, &selector, &facts()).unwrap(), expected, "{name}");
        }
        let other: ResourceFieldSelector =
            serde_json::from_value(json!({"containerName": "no", "resource": "limits.cpu"})).unwrap();
        assert_eq!(resource(&pod(), None, &other, &facts()).unwrap_err(), Error::NoContainer("no".into()));
    }
}
