//! Defaults of built-in kinds.

use serde_json::{Map, Value, json};

use super::super::{Builtin, meta};
use super::part;

pub(super) fn fill(builtin: Builtin, object: &mut Value) {
    match builtin {
        Builtin::Pod => {
            let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
            pod_spec(spec);
            pod_only(spec);
        }
        Builtin::Job => job(object),
        Builtin::Secret => secret(object),
        Builtin::Namespace => {
            let name = meta::name(object).to_owned();
            if let (false, Some(metadata)) = (name.is_empty(), meta::of_mut(object)) {
                let labels = metadata.entry("labels").or_insert_with(|| json!({}));
                if let Some(labels) = labels.as_object_mut() {
                    labels.insert("kubernetes.io/metadata.name".to_owned(), name.into());
                }
            }
            if object.pointer("/status/phase").is_none() {
                part(object, "status").insert("phase".to_owned(), "Active".into());
            }
        }
        Builtin::Node => {
            let status = part(object, "status");
            if let (None, Some(capacity)) = (status.get("allocatable"), status.get("capacity").cloned()) {
                status.insert("allocatable".to_owned(), capacity);
            }
        }
        Builtin::CustomResourceDefinition => definition(object),
        Builtin::RoleBinding | Builtin::ClusterRoleBinding => binding(object),
        Builtin::Role
        | Builtin::ClusterRole
        | Builtin::Event
        | Builtin::EventV1
        | Builtin::Binding
        | Builtin::ConfigMap
        | Builtin::ServiceAccount
        | Builtin::Service
        | Builtin::Lease
        | Builtin::Ingress
        | Builtin::TokenReview
        | Builtin::SelfSubjectReview
        | Builtin::SubjectAccessReview
        | Builtin::LocalSubjectAccessReview
        | Builtin::SelfSubjectAccessReview
        | Builtin::SelfSubjectRulesReview => {}
    }
}

/// Puts a value where there is none, or an empty text or a zero, which to Go is the same.
fn or_default(fields: &mut Map<String, Value>, key: &str, value: Value) {
    let missing = match fields.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    if missing {
        fields.insert(key.to_owned(), value);
    }
}

fn objects<'a>(
    fields: &'a mut Map<String, Value>,
    key: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    fields.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn inner<'a>(fields: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Map<String, Value>> {
    fields.get_mut(key).and_then(Value::as_object_mut)
}

/// Of pods and of templates for them.
fn pod_spec(spec: &mut Map<String, Value>) {
    or_default(spec, "restartPolicy", "Always".into());
    or_default(spec, "terminationGracePeriodSeconds", 30.into());
    or_default(spec, "dnsPolicy", "ClusterFirst".into());
    or_default(spec, "securityContext", json!({}));
    or_default(spec, "schedulerName", "default-scheduler".into());
    // The old name of the service account follows the new one, and the other way round.
    let account = ["serviceAccountName", "serviceAccount"].iter().find_map(|key| spec.get(*key).cloned());
    if let Some(account) = account.filter(|a| a.as_str().is_some_and(|a| !a.is_empty())) {
        spec.insert("serviceAccountName".to_owned(), account.clone());
        spec.insert("serviceAccount".to_owned(), account);
    }
    for volume in objects(spec, "volumes") {
        self::volume(volume);
    }
    for list in ["initContainers", "containers"] {
        for container in objects(spec, list) {
            self::container(container);
        }
    }
}

/// Of pods only, not of templates.
fn pod_only(spec: &mut Map<String, Value>) {
    or_default(spec, "enableServiceLinks", true.into());
    let host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
    for list in ["initContainers", "containers"] {
        for container in objects(spec, list) {
            if host_network {
                for port in objects(container, "ports") {
                    if let Some(number) = port.get("containerPort").cloned() {
                        or_default(port, "hostPort", number);
                    }
                }
            }
            let Some(resources) = inner(container, "resources") else { continue };
            let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else { continue };
            let requests = resources.entry("requests").or_insert_with(|| json!({}));
            if let Some(requests) = requests.as_object_mut() {
                for (name, quantity) in limits {
                    requests.entry(name).or_insert(quantity);
                }
            }
        }
    }
}

fn volume(volume: &mut Map<String, Value>) {
    if volume.keys().all(|key| key == "name") {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = inner(volume, source) {
            or_default(source, "defaultMode", 420.into());
        }
    }
    if let Some(path) = inner(volume, "hostPath") {
        path.entry("type").or_insert_with(|| "".into());
    }
    if let Some(projected) = inner(volume, "projected") {
        for source in objects(projected, "sources") {
            if let Some(token) = inner(source, "serviceAccountToken") {
                or_default(token, "expirationSeconds", 3600.into());
            }
            if let Some(api) = inner(source, "downwardAPI") {
                objects(api, "items").for_each(field_version);
            }
        }
    }
    if let Some(api) = inner(volume, "downwardAPI") {
        objects(api, "items").for_each(field_version);
    }
}

fn field_version(item: &mut Map<String, Value>) {
    if let Some(field) = inner(item, "fieldRef") {
        or_default(field, "apiVersion", "v1".into());
    }
    if let Some(resource) = inner(item, "resourceFieldRef") {
        or_default(resource, "divisor", "0".into());
    }
}

fn container(container: &mut Map<String, Value>) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let policy = if is_latest(image) { "Always" } else { "IfNotPresent" };
    or_default(container, "terminationMessagePath", "/dev/termination-log".into());
    or_default(container, "terminationMessagePolicy", "File".into());
    or_default(container, "imagePullPolicy", policy.into());
    container.entry("resources").or_insert_with(|| json!({}));
    for port in objects(container, "ports") {
        or_default(port, "protocol", "TCP".into());
    }
    for variable in objects(container, "env") {
        if let Some(source) = inner(variable, "valueFrom") {
            field_version(source);
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = inner(container, probe) else { continue };
        for (key, value) in
            [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
        {
            if probe.get(key).and_then(Value::as_i64).unwrap_or_default() == 0 {
                probe.insert(key.to_owned(), value.into());
            }
        }
        if let Some(get) = inner(probe, "httpGet") {
            or_default(get, "path", "/".into());
            or_default(get, "scheme", "HTTP".into());
        }
        if let Some(grpc) = inner(probe, "grpc") {
            grpc.entry("service").or_insert_with(|| "".into());
        }
    }
}

/// Whether an image's tag is `latest`, also because it has none.
fn is_latest(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let last = image.rsplit('/').next().unwrap_or_default();
    last.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

fn job(object: &mut Value) {
    let labels = object.pointer("/spec/template/metadata/labels").cloned();
    let own_labels = meta::of(object).get("labels").and_then(Value::as_object).is_some_and(|l| !l.is_empty());
    if !own_labels
        && let Some(labels) = labels.filter(|l| l.as_object().is_some_and(|l| !l.is_empty()))
        && let Some(metadata) = meta::of_mut(object)
    {
        metadata.insert("labels".to_owned(), labels);
    }
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if !spec.contains_key("completions") && !spec.contains_key("parallelism") {
        spec.insert("completions".to_owned(), 1.into());
    }
    or_default(spec, "parallelism", 1.into());
    let limit = if spec.contains_key("backoffLimitPerIndex") { i32::MAX } else { 6 };
    or_default(spec, "backoffLimit", limit.into());
    or_default(spec, "completionMode", "NonIndexed".into());
    or_default(spec, "suspend", false.into());
    let replacement = if spec.contains_key("podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    or_default(spec, "podReplacementPolicy", replacement.into());
    or_default(spec, "manualSelector", false.into());
    let Some(template) = inner(spec, "template") else { return };
    template.entry("metadata").or_insert_with(|| json!({}));
    template.entry("spec").or_insert_with(|| json!({}));
    if let Some(pod) = inner(template, "spec") {
        pod_spec(pod);
    }
}

/// Text data joins the data in its encoded form and is not kept.
fn secret(object: &mut Value) {
    use base64::Engine;
    let Some(fields) = object.as_object_mut() else { return };
    or_default(fields, "type", "Opaque".into());
    let Some(Value::Object(texts)) = fields.remove("stringData") else { return };
    if texts.is_empty() {
        return;
    }
    let data = fields.entry("data").or_insert_with(|| json!({}));
    if let Some(data) = data.as_object_mut() {
        for (key, text) in texts {
            let encoded = base64::engine::general_purpose::STANDARD.encode(text.as_str().unwrap_or_default());
            data.insert(key, encoded.into());
        }
    }
}

fn definition(object: &mut Value) {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if let Some(names) = inner(spec, "names") {
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        if !kind.is_empty() {
            or_default(names, "singular", kind.to_lowercase().into());
            or_default(names, "listKind", format!("{kind}List").into());
        }
    }
    or_default(spec, "conversion", json!({"strategy": "None"}));
}

fn binding(object: &mut Value) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    let Some(fields) = object.as_object_mut() else { return };
    if let Some(role) = inner(fields, "roleRef") {
        or_default(role, "apiGroup", GROUP.into());
    }
    for subject in objects(fields, "subjects") {
        if !subject.contains_key("apiGroup")
            && matches!(subject.get("kind").and_then(Value::as_str), Some("User" | "Group"))
        {
            subject.insert("apiGroup".to_owned(), GROUP.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_policy_follows_the_tag() {
        for (image, latest) in [
            ("a", true),
            ("a:latest", true),
            ("a:1", false),
            ("h:5000/a", true),
            ("h:5000/a:1", false),
            ("a@sha256:0", false),
        ] {
            assert_eq!(is_latest(image), latest, "{image}");
        }
    }
}
