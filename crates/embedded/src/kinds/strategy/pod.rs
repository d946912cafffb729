//! Pods: what a new one starts with, what may change later, and what is refused.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::super::{Cause, format, meta};
use super::{items, text};

/// Guaranteed, Burstable or BestEffort, by what the containers ask for.
pub(super) fn quality(pod: &Value) -> &'static str {
    let containers: Vec<&Value> =
        items(pod, "/spec/containers").iter().chain(items(pod, "/spec/initContainers")).collect();
    let amount = |container: &Value, list: &str, name: &str| {
        container.pointer(&format!("/resources/{list}/{name}")).cloned()
    };
    let asks = |container: &&&Value| {
        ["requests", "limits"]
            .iter()
            .any(|list| ["cpu", "memory"].iter().any(|name| amount(container, list, name).is_some()))
    };
    if !containers.iter().any(|c| asks(&c)) {
        return "BestEffort";
    }
    let guaranteed = containers.iter().all(|container| {
        ["cpu", "memory"].iter().all(|name| {
            let limit = amount(container, "limits", name);
            limit.is_some()
                && amount(container, "requests", name).is_none_or(|request| Some(request) == limit)
        })
    });
    if guaranteed { "Guaranteed" } else { "Burstable" }
}

/// A pod with scheduling gates says that it waits for them.
pub(super) fn gate(pod: &mut Value) {
    if items(pod, "/spec/schedulingGates").is_empty() {
        return;
    }
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates", "lastProbeTime": null, "lastTransitionTime": null,
    });
    super::part(pod, "status").insert("conditions".to_owned(), json!([condition]));
}

/// What the real server's admission adds to a pod that says nothing about it.
pub(super) fn admit(pod: &mut Value) {
    let spec = super::part(pod, "spec");
    spec.entry("priority").or_insert_with(|| 0.into());
    spec.entry("preemptionPolicy").or_insert_with(|| "PreemptLowerPriority".into());
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    let Some(list) = tolerations.as_array_mut() else { return };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = list.iter().any(|t| {
            let (own, effect) = (text(t, "/key"), text(t, "/effect"));
            (own == key || own.is_empty()) && (effect == "NoExecute" || effect.is_empty())
        });
        if !tolerated {
            list.push(
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
            );
        }
    }
}

/// How long a deletion waits. A pod that no node has, or that has ended, is gone at once.
pub(super) fn grace(pod: &Value, asked: Option<i64>) -> i64 {
    if text(pod, "/spec/nodeName").is_empty() || ["Failed", "Succeeded"].contains(&text(pod, "/status/phase"))
    {
        return 0;
    }
    let own =
        || pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).unwrap_or_default();
    match asked.unwrap_or_else(own) {
        negative if negative < 0 => 1,
        period => period,
    }
}

pub(super) fn warnings(pod: &Value) -> Vec<String> {
    let errors = format::dns_label(meta::name(pod));
    if errors.is_empty() {
        return Vec::new();
    }
    vec![format!(
        "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [{}]",
        errors.join(" ")
    )]
}

pub(super) fn validate(pod: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let none = json!({});
    let spec = pod.get("spec").unwrap_or(&none);
    validate_spec(spec, "spec", &mut causes);
    if let Some(old) = old {
        validate_change(spec, old.get("spec").unwrap_or(&none), &mut causes);
    }
    causes
}

/// Of a pod or of a template for one, at `path`.
pub(super) fn validate_spec(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    let volumes = validate_volumes(items(spec, "/volumes"), &format!("{path}.volumes"), causes);
    let containers = items(spec, "/containers");
    if containers.is_empty() {
        causes.push(Cause::required(format!("{path}.containers"), ""));
    }
    let mut names = BTreeSet::new();
    for (list, containers) in [("containers", containers), ("initContainers", items(spec, "/initContainers"))]
    {
        for (index, container) in containers.iter().enumerate() {
            let at = format!("{path}.{list}[{index}]");
            let name = text(container, "/name");
            if name.is_empty() {
                causes.push(Cause::required(format!("{at}.name"), ""));
            } else {
                causes.extend(
                    format::dns_label(name)
                        .iter()
                        .map(|e| Cause::invalid(format!("{at}.name"), &name.into(), e)),
                );
                if !names.insert(name) {
                    causes.push(Cause::duplicate(format!("{at}.name"), &name.into()));
                }
            }
            validate_container(container, &at, &volumes, causes);
        }
    }
    one_of(spec, path, "restartPolicy", &["Always", "OnFailure", "Never"], causes);
    one_of(spec, path, "dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"], causes);
    if let Some(selector) = spec.get("nodeSelector").and_then(Value::as_object) {
        meta::validate_labels(selector, &format!("{path}.nodeSelector"), causes);
    }
    let mut named = |field: &str, check: fn(&str) -> Vec<String>| {
        let value = spec.get(field).and_then(Value::as_str).unwrap_or_default();
        if !value.is_empty() {
            causes.extend(
                check(value).iter().map(|e| Cause::invalid(format!("{path}.{field}"), &value.into(), e)),
            );
        }
    };
    named("serviceAccountName", format::dns_subdomain);
    named("nodeName", format::dns_subdomain);
    named("hostname", format::dns_label);
    named("subdomain", format::dns_label);
    if let Some(seconds) = spec
        .get("activeDeadlineSeconds")
        .filter(|s| !s.as_i64().is_some_and(|s| (1..=i64::from(i32::MAX)).contains(&s)))
    {
        causes.push(Cause::invalid(
            format!("{path}.activeDeadlineSeconds"),
            seconds,
            "must be between 1 and 2147483647, inclusive",
        ));
    }
}

fn one_of(spec: &Value, path: &str, field: &str, supported: &[&str], causes: &mut Vec<Cause>) {
    let value = spec.get(field).and_then(Value::as_str).unwrap_or_default();
    if value.is_empty() {
        causes.push(Cause::required(format!("{path}.{field}"), ""));
    } else if !supported.contains(&value) {
        causes.push(Cause::not_supported(format!("{path}.{field}"), &value.into(), supported));
    }
}

/// Returns the names of the volumes, which mounts refer to.
fn validate_volumes<'a>(volumes: &'a [Value], path: &str, causes: &mut Vec<Cause>) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for (index, volume) in volumes.iter().enumerate() {
        let at = format!("{path}[{index}]");
        let name = text(volume, "/name");
        let sources: Vec<&String> =
            volume.as_object().into_iter().flatten().map(|(key, _)| key).filter(|k| *k != "name").collect();
        for extra in sources.iter().skip(1) {
            causes.push(Cause::forbidden(format!("{at}.{extra}"), "may not specify more than 1 volume type"));
        }
        validate_source(volume, &at, causes);
        if name.is_empty() {
            causes.push(Cause::required(format!("{at}.name"), ""));
            continue;
        }
        causes.extend(
            format::dns_label(name).iter().map(|e| Cause::invalid(format!("{at}.name"), &name.into(), e)),
        );
        if !names.insert(name) {
            causes.push(Cause::duplicate(format!("{at}.name"), &name.into()));
        }
    }
    names
}

fn validate_source(volume: &Value, at: &str, causes: &mut Vec<Cause>) {
    for (source, key) in [
        ("secret", "secretName"),
        ("configMap", "name"),
        ("hostPath", "path"),
        ("persistentVolumeClaim", "claimName"),
    ] {
        if volume
            .get(source)
            .is_some_and(|s| s.get(key).and_then(Value::as_str).unwrap_or_default().is_empty())
        {
            causes.push(Cause::required(format!("{at}.{source}.{key}"), ""));
        }
    }
    for (index, source) in items(volume, "/projected/sources").iter().enumerate() {
        let Some(token) = source.get("serviceAccountToken") else { continue };
        let at = format!("{at}.projected.sources[{index}].serviceAccountToken");
        let seconds = token.get("expirationSeconds").and_then(Value::as_i64).unwrap_or(3600);
        if seconds < 600 {
            causes.push(Cause::invalid(
                format!("{at}.expirationSeconds"),
                &seconds.into(),
                "may not specify a duration less than 10 minutes",
            ));
        }
        if text(token, "/path").is_empty() {
            causes.push(Cause::required(format!("{at}.path"), ""));
        }
    }
}

fn validate_container(container: &Value, at: &str, volumes: &BTreeSet<&str>, causes: &mut Vec<Cause>) {
    let image = text(container, "/image");
    if image.is_empty() {
        causes.push(Cause::required(format!("{at}.image"), ""));
    } else if image.trim() != image {
        causes.push(Cause::invalid(
            format!("{at}.image"),
            &image.into(),
            "must not have leading or trailing whitespace",
        ));
    }
    one_of(container, at, "terminationMessagePolicy", &["File", "FallbackToLogsOnError"], causes);
    validate_ports(items(container, "/ports"), at, causes);
    for (index, variable) in items(container, "/env").iter().enumerate() {
        validate_variable(variable, &format!("{at}.env[{index}]"), causes);
    }
    for (index, source) in items(container, "/envFrom").iter().enumerate() {
        let at = format!("{at}.envFrom[{index}]");
        let given: Vec<&str> =
            ["configMapRef", "secretRef"].into_iter().filter(|key| source.get(*key).is_some()).collect();
        match given.as_slice() {
            [] => causes.push(Cause::invalid(
                at,
                &"".into(),
                "must specify one of: `configMapRef` or `secretRef`",
            )),
            [one] if text(source, &format!("/{one}/name")).is_empty() => {
                causes.push(Cause::required(format!("{at}.{one}.name"), ""))
            }
            [_] => {}
            _ => causes.push(Cause::invalid(
                at,
                &"".into(),
                "may not have more than one field specified at a time",
            )),
        }
    }
    let mut paths = BTreeSet::new();
    for (index, mount) in items(container, "/volumeMounts").iter().enumerate() {
        let at = format!("{at}.volumeMounts[{index}]");
        let (name, path) = (text(mount, "/name"), text(mount, "/mountPath"));
        if name.is_empty() {
            causes.push(Cause::required(format!("{at}.name"), ""));
        } else if !volumes.contains(name) {
            causes.push(Cause::not_found(format!("{at}.name"), &name.into()));
        }
        if path.is_empty() {
            causes.push(Cause::required(format!("{at}.mountPath"), ""));
        } else if !paths.insert(path) {
            causes.push(Cause::invalid(format!("{at}.mountPath"), &path.into(), "must be unique"));
        }
    }
    one_of(container, at, "imagePullPolicy", &["Always", "IfNotPresent", "Never"], causes);
}

fn validate_ports(ports: &[Value], at: &str, causes: &mut Vec<Cause>) {
    for (index, port) in ports.iter().enumerate() {
        let at = format!("{at}.ports[{index}]");
        for (field, required) in [("containerPort", true), ("hostPort", false)] {
            match port.get(field).and_then(Value::as_i64) {
                None | Some(0) if required => causes.push(Cause::required(format!("{at}.{field}"), "")),
                Some(number) if number != 0 && !(1..=65535).contains(&number) => {
                    causes.push(Cause::invalid(
                        format!("{at}.{field}"),
                        &number.into(),
                        "must be between 1 and 65535, inclusive",
                    ));
                }
                _ => {}
            }
        }
        one_of(port, &at, "protocol", &["SCTP", "TCP", "UDP"], causes);
    }
}

fn validate_variable(variable: &Value, at: &str, causes: &mut Vec<Cause>) {
    let name = text(variable, "/name");
    if name.is_empty() {
        causes.push(Cause::required(format!("{at}.name"), ""));
    } else {
        causes.extend(
            format::env_name(name).iter().map(|e| Cause::invalid(format!("{at}.name"), &name.into(), e)),
        );
    }
    let Some(source) = variable.get("valueFrom").and_then(Value::as_object) else { return };
    let at = format!("{at}.valueFrom");
    if !text(variable, "/value").is_empty() && !source.is_empty() {
        causes.push(Cause::invalid(at.clone(), &"".into(), "may not be specified when `value` is not empty"));
    }
    match source.len() {
        0 => causes.push(Cause::invalid(at.clone(), &"".into(), "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`")),
        1 => {}
        _ => causes.push(Cause::invalid(at.clone(), &"".into(), "may not have more than one field specified at a time")),
    }
    for reference in ["configMapKeyRef", "secretKeyRef"] {
        let Some(reference_value) = source.get(reference) else { continue };
        for field in ["name", "key"] {
            if reference_value.get(field).and_then(Value::as_str).unwrap_or_default().is_empty() {
                causes.push(Cause::required(format!("{at}.{reference}.{field}"), ""));
            }
        }
    }
}

const CHANGEABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// A pod that exists can hardly be changed.
fn validate_change(spec: &Value, old: &Value, causes: &mut Vec<Cause>) {
    for list in ["containers", "initContainers"] {
        let pointer = format!("/{list}");
        if items(spec, &pointer).len() != items(old, &pointer).len() {
            causes.push(Cause::forbidden(
                format!("spec.{list}"),
                "pod updates may not add or remove containers",
            ));
            return;
        }
    }
    let deadline = |spec: &Value| spec.get("activeDeadlineSeconds").and_then(Value::as_i64);
    match (deadline(spec), deadline(old)) {
        (Some(new), Some(old)) if new > old => {
            causes.push(Cause::invalid(
                "spec.activeDeadlineSeconds",
                &new.into(),
                "must be less than or equal to previous value",
            ));
            return;
        }
        (None, Some(_)) => {
            causes.push(Cause::invalid(
                "spec.activeDeadlineSeconds",
                &Value::Null,
                "must not update from a positive integer to nil value",
            ));
        }
        _ => {}
    }
    if spec == old {
        return;
    }
    let munged = munged(spec, old);
    if munged != *old {
        let detail = format!(
            "pod updates may not change fields other than {CHANGEABLE}\n{}",
            difference(old, &munged)
        );
        causes.push(Cause::forbidden("spec", &detail));
    }
}

/// The new spec with what may change set back.
fn munged(spec: &Value, old: &Value) -> Value {
    let mut munged = spec.clone();
    let Some(fields) = munged.as_object_mut() else { return munged };
    for list in ["containers", "initContainers"] {
        let before = items(old, &format!("/{list}"));
        let after = fields.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for (container, before) in after.zip(before) {
            if let (Some(container), Some(image)) = (container.as_object_mut(), before.get("image")) {
                container.insert("image".to_owned(), image.clone());
            }
        }
    }
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        match old.get(field) {
            Some(value) => fields.insert(field.to_owned(), value.clone()),
            None => fields.remove(field),
        };
    }
    munged
}

/// Which fields differ, one a line.
fn difference(old: &Value, new: &Value) -> String {
    let empty = Map::new();
    let (old, new) = (old.as_object().unwrap_or(&empty), new.as_object().unwrap_or(&empty));
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let show = |sign: char, key: &str, value: Option<&Value>| {
        value.map(|v| format!("{sign} \t{key}: {v},\n")).unwrap_or_default()
    };
    let lines = keys.into_iter().filter(|key| old.get(*key) != new.get(*key));
    let lines: String =
        lines.map(|key| show('-', key, old.get(key)) + &show('+', key, new.get(key))).collect();
    format!("  core.PodSpec{{\n{lines}  }}\n")
}
