//! Secrets, ConfigMaps, Leases, Events and Ingresses: what is refused.

use base64::Engine;
use serde_json::{Map, Value};

use super::super::{Builtin, Cause, Kind, format, meta};
use super::{items, text};

/// The data of a Secret or a ConfigMap together.
const DATA_LIMIT: usize = 1024 * 1024;
const IMMUTABLE: &str = "field is immutable when `immutable` is set";

static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);

fn entries<'a>(object: &'a Value, field: &str) -> &'a Map<String, Value> {
    object.get(field).and_then(Value::as_object).unwrap_or(&EMPTY)
}

fn decoded_len(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    text.len() / 4 * 3 - text.bytes().rev().take_while(|b| *b == b'=').count().min(text.len() / 4 * 3)
}

pub(super) fn validate_secret(secret: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    if let Some(old) = old {
        let kind = secret.get("type").unwrap_or(&Value::Null);
        if kind != old.get("type").unwrap_or(&Value::Null) {
            causes.push(Cause::invalid("type", kind, "field is immutable"));
        }
        validate_immutable(secret, old, &["data"], &mut causes);
    }
    let data = entries(secret, "data");
    let mut size = 0;
    for (key, value) in data {
        causes.extend(
            format::config_key(key)
                .iter()
                .map(|e| Cause::invalid(format!("data[{key}]"), &key.as_str().into(), e)),
        );
        size += decoded_len(value);
    }
    if size > DATA_LIMIT {
        causes.push(Cause::too_long("data", DATA_LIMIT));
    }
    let mut required = |key: &str| {
        if !data.contains_key(key) {
            causes.push(Cause::required(format!("data[{key}]"), ""));
        }
    };
    match text(secret, "/type") {
        "kubernetes.io/tls" => ["tls.crt", "tls.key"].into_iter().for_each(required),
        "kubernetes.io/dockercfg" => required(".dockercfg"),
        "kubernetes.io/dockerconfigjson" => required(".dockerconfigjson"),
        "kubernetes.io/ssh-auth" => required("ssh-privatekey"),
        "kubernetes.io/basic-auth" if !data.contains_key("username") && !data.contains_key("password") => {
            ["username", "password"].into_iter().for_each(required);
        }
        "kubernetes.io/service-account-token" => {
            let name = "kubernetes.io/service-account.name";
            let annotated =
                meta::of(secret).get("annotations").and_then(|a| a.get(name)).and_then(Value::as_str);
            if annotated.unwrap_or_default().is_empty() {
                causes.push(Cause::required(format!("metadata.annotations[{name}]"), ""));
            }
        }
        _ => {}
    }
    for key in [".dockercfg", ".dockerconfigjson"] {
        let holds = matches!(
            (text(secret, "/type"), key),
            ("kubernetes.io/dockercfg", ".dockercfg")
                | ("kubernetes.io/dockerconfigjson", ".dockerconfigjson")
        );
        let Some(encoded) = data.get(key).and_then(Value::as_str).filter(|_| holds) else { continue };
        let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).unwrap_or_default();
        if serde_json::from_slice::<Map<String, Value>>(&bytes).is_err() {
            let why = if bytes.is_empty() {
                "unexpected end of JSON input"
            } else {
                "invalid character looking for beginning of value"
            };
            causes.push(Cause::invalid(format!("data[{key}]"), &"<secret contents redacted>".into(), why));
        }
    }
    causes
}

fn validate_immutable(object: &Value, old: &Value, fields: &[&str], causes: &mut Vec<Cause>) {
    if old.get("immutable") != Some(&Value::Bool(true)) {
        return;
    }
    if object.get("immutable") != Some(&Value::Bool(true)) {
        causes.push(Cause::forbidden("immutable", IMMUTABLE));
    }
    for field in fields {
        if entries(object, field) != entries(old, field) {
            causes.push(Cause::forbidden(*field, IMMUTABLE));
        }
    }
}

pub(super) fn validate_config_map(map: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    if let Some(old) = old {
        validate_immutable(map, old, &["data", "binaryData"], &mut causes);
    }
    let (data, binary) = (entries(map, "data"), entries(map, "binaryData"));
    let mut size = 0;
    for (key, value) in data {
        causes.extend(
            format::config_key(key)
                .iter()
                .map(|e| Cause::invalid(format!("data[{key}]"), &key.as_str().into(), e)),
        );
        if binary.contains_key(key) {
            causes.push(Cause::invalid(
                format!("data[{key}]"),
                &key.as_str().into(),
                "duplicate of key present in binaryData",
            ));
        }
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in binary {
        causes.extend(
            format::config_key(key)
                .iter()
                .map(|e| Cause::invalid(format!("binaryData[{key}]"), &key.as_str().into(), e)),
        );
        size += decoded_len(value);
    }
    if size > DATA_LIMIT {
        causes.push(Cause::too_long("[]", DATA_LIMIT));
    }
    causes
}

pub(super) fn validate_lease(lease: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let number = |field: &str| lease.pointer(&format!("/spec/{field}")).and_then(Value::as_i64);
    if let Some(seconds) = number("leaseDurationSeconds").filter(|s| *s <= 0) {
        causes.push(Cause::invalid("spec.leaseDurationSeconds", &seconds.into(), "must be greater than 0"));
    }
    if let Some(count) = number("leaseTransitions").filter(|c| *c < 0) {
        causes.push(Cause::invalid(
            "spec.leaseTransitions",
            &count.into(),
            "must be greater than or equal to 0",
        ));
    }
    if !text(lease, "/spec/preferredHolder").is_empty() && text(lease, "/spec/strategy").is_empty() {
        causes
            .push(Cause::forbidden("spec.preferredHolder", "may only be specified if `strategy` is defined"));
    }
    causes
}

pub(super) fn validate_event(kind: &Kind, event: &Value) -> Vec<Cause> {
    let v1 = kind.builtin() == Some(Builtin::EventV1);
    let (object, reporter, message) = if v1 {
        ("/regarding", "reportingController", "/note")
    } else {
        ("/involvedObject", "reportingComponent", "/message")
    };
    let namespace = meta::namespace(event);
    let about = text(event, &format!("{object}/namespace"));
    let mut causes = Vec::new();
    let mismatch =
        || Cause::invalid("involvedObject.namespace", &about.into(), "does not match event.namespace");
    if event.get("eventTime").is_none_or(Value::is_null) {
        if (about.is_empty() && !namespace.is_empty() && namespace != "default")
            || (!about.is_empty() && about != namespace)
        {
            causes.push(mismatch());
        }
        if v1 {
            causes.push(Cause::required("eventTime", ""));
            causes.extend(event_type(event));
        }
        return causes;
    }
    if about.is_empty() && !["default", "kube-system"].contains(&namespace) {
        causes.push(mismatch());
    }
    let given = text(event, &format!("/{reporter}"));
    if given.is_empty() {
        causes.push(Cause::required(reporter, ""));
    }
    causes.extend(format::label_key(given).iter().map(|e| Cause::invalid(reporter, &given.into(), e)));
    for (field, limit) in [("reportingInstance", 128), ("action", 128), ("reason", 128)] {
        let value = text(event, &format!("/{field}"));
        if value.is_empty() {
            causes.push(Cause::required(field, ""));
        }
        if value.len() > limit {
            causes.push(Cause::invalid(field, &"".into(), &format!("can have at most {limit} characters")));
        }
    }
    if text(event, message).len() > 1024 {
        causes.push(Cause::invalid("message", &"".into(), "can have at most 1024 characters"));
    }
    if v1 {
        causes.extend(event_type(event));
    }
    causes
}

fn event_type(event: &Value) -> Option<Cause> {
    let given = text(event, "/type");
    let wrong = !["Normal", "Warning"].contains(&given);
    wrong.then(|| Cause::invalid("type", &given.into(), &format!("has invalid value: {given}")))
}

pub(super) fn validate_ingress(ingress: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let rules = items(ingress, "/spec/rules");
    if rules.is_empty() && ingress.pointer("/spec/defaultBackend").is_none() {
        causes.push(Cause::invalid(
            "spec",
            &Value::Null,
            "either `defaultBackend` or `rules` must be specified",
        ));
    }
    for (index, rule) in rules.iter().enumerate() {
        let host = text(rule, "/host");
        let plain = host.strip_prefix("*.").unwrap_or(host);
        if !host.is_empty() {
            causes.extend(
                format::dns_subdomain(plain)
                    .iter()
                    .map(|e| Cause::invalid(format!("spec.rules[{index}].host"), &host.into(), e)),
            );
        }
        for (at, path) in items(rule, "/http/paths").iter().enumerate() {
            let at = format!("spec.rules[{index}].http.paths[{at}]");
            match path.get("pathType").and_then(Value::as_str) {
                None => causes.push(Cause::required(format!("{at}.pathType"), "pathType must be specified")),
                Some(kind) if !["Exact", "Prefix", "ImplementationSpecific"].contains(&kind) => {
                    causes.push(Cause::not_supported(
                        format!("{at}.pathType"),
                        &kind.into(),
                        &["Exact", "ImplementationSpecific", "Prefix"],
                    ));
                }
                Some("Exact" | "Prefix") if !text(path, "/path").starts_with('/') => {
                    causes.push(Cause::invalid(
                        format!("{at}.path"),
                        &text(path, "/path").into(),
                        "must be an absolute path",
                    ));
                }
                Some(_) => {}
            }
        }
    }
    causes
}
