//! Tables: what `kubectl get` prints. The server decides the columns; one function a kind says what stands in them.

mod pod;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::jsonpath;
use super::negotiate::Include;
use super::view;
use crate::kinds::{Builtin, Column, Kind, meta};

/// A whole Table.
pub fn whole(kind: &Kind, rows: Vec<Value>, metadata: Value) -> Value {
    let columns: Vec<Value> = kind.columns.iter().map(definition).collect();
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": columns, "rows": rows})
}

fn definition(column: &Column) -> Value {
    json!({
        "name": column.name, "type": column.kind, "format": column.format, "description": column.description, "priority": column.priority,
    })
}

/// One object's row.
pub fn row(kind: &Kind, object: &Value, include: Include, now: Timestamp) -> Value {
    let cells = match kind.builtin() {
        Some(builtin) => builtin_cells(builtin, object, now),
        None => kind.columns.iter().map(|column| custom_cell(column, object, now)).collect(),
    };
    let mut row = Map::from_iter([("cells".to_owned(), Value::Array(cells))]);
    if let Some(condition) =
        kind.builtin().filter(|b| *b == Builtin::Pod).and_then(|_| pod::row_condition(object))
    {
        row.insert("conditions".to_owned(), json!([condition]));
    }
    match include {
        Include::None => {}
        Include::Metadata => {
            row.insert("object".to_owned(), view::partial(object));
        }
        Include::Object => {
            row.insert("object".to_owned(), object.clone());
        }
    }
    Value::Object(row)
}

fn builtin_cells(builtin: Builtin, object: &Value, now: Timestamp) -> Vec<Value> {
    let name = Value::from(meta::name(object));
    let created = text(object, "/metadata/creationTimestamp");
    let age = Value::from(age(created, now));
    match builtin {
        Builtin::Pod => pod::cells(object, now),
        Builtin::Namespace => vec![name, text(object, "/status/phase").into(), age],
        Builtin::Node => node(object, name, age),
        Builtin::Secret => vec![name, text(object, "/type").into(), count(object, &["data"]).into(), age],
        Builtin::ConfigMap => vec![name, count(object, &["data", "binaryData"]).into(), age],
        Builtin::ServiceAccount => vec![name, age],
        // None is ever stored.
        Builtin::Service => Vec::new(),
        Builtin::Event => event(object, now),
        Builtin::EventV1 => event(&view::event_core(object.clone()), now),
        Builtin::Lease => vec![name, text(object, "/spec/holderIdentity").into(), age],
        Builtin::Job => job(object, name, age, now),
        Builtin::Ingress => ingress(object, name, age),
        Builtin::RoleBinding | Builtin::ClusterRoleBinding => binding(object, name, age),
        Builtin::Role
        | Builtin::ClusterRole
        | Builtin::CustomResourceDefinition
        | Builtin::Binding
        | Builtin::TokenReview
        | Builtin::SelfSubjectReview
        | Builtin::SubjectAccessReview
        | Builtin::LocalSubjectAccessReview
        | Builtin::SelfSubjectAccessReview
        | Builtin::SelfSubjectRulesReview => vec![name, created.into()],
    }
}

pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn items<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn count(object: &Value, fields: &[&str]) -> usize {
    fields.iter().filter_map(|field| object.get(*field)?.as_object()).map(Map::len).sum()
}

/// How long ago, in the two largest units that matter.
fn age(timestamp: &str, now: Timestamp) -> String {
    match timestamp.parse::<Timestamp>() {
        Ok(then) => human(now.duration_since(then).as_secs()),
        Err(_) => "<unknown>".to_owned(),
    }
}

fn human(seconds: i64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let two = |whole: i64, unit: &str, part: i64, small: &str| {
        if part == 0 { format!("{whole}{unit}") } else { format!("{whole}{unit}{part}{small}") }
    };
    match seconds {
        ..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 192 => two(hours / 24, "d", hours % 24, "h"),
        _ if hours < 24 * 365 * 2 => format!("{}d", hours / 24),
        _ if hours < 24 * 365 * 8 => two(hours / 24 / 365, "y", hours / 24 % 365, "d"),
        _ => format!("{}y", hours / 24 / 365),
    }
}

fn or_none(text: &str) -> Value {
    if text.is_empty() { "<none>".into() } else { text.into() }
}

fn node(object: &Value, name: Value, age: Value) -> Vec<Value> {
    let ready = items(object, "/status/conditions").iter().find(|c| text(c, "/type") == "Ready");
    let mut status = vec![match ready.map(|c| text(c, "/status")) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }];
    if object.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
        status.push("SchedulingDisabled");
    }
    let labels = meta::of(object).get("labels").and_then(Value::as_object).into_iter().flatten();
    let mut roles: Vec<&str> = labels
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None => (key == "kubernetes.io/role").then(|| value.as_str().unwrap_or_default()),
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    let address = |kind: &str| {
        let found = items(object, "/status/addresses").iter().find(|a| text(a, "/type") == kind);
        or_none(found.map(|a| text(a, "/address")).unwrap_or_default())
    };
    let info = |field: &str| text(object, &format!("/status/nodeInfo/{field}"));
    let unknown = |value: &str| if value.is_empty() { "<unknown>".to_owned() } else { value.to_owned() };
    let mut kernel = unknown(info("kernelVersion"));
    if !info("architecture").is_empty() {
        kernel.push_str(&format!(" ({})", info("architecture")));
    }
    vec![
        name,
        status.join(",").into(),
        or_none(&roles.join(",")),
        age,
        info("kubeletVersion").into(),
        address("InternalIP"),
        address("ExternalIP"),
        unknown(info("osImage")).into(),
        kernel.into(),
        unknown(info("containerRuntimeVersion")).into(),
    ]
}

fn event(object: &Value, now: Timestamp) -> Vec<Value> {
    let since = |pointer: &str| age(text(object, pointer), now);
    let first = if text(object, "/firstTimestamp").is_empty() {
        since("/eventTime")
    } else {
        since("/firstTimestamp")
    };
    let mut last =
        if text(object, "/lastTimestamp").is_empty() { first.clone() } else { since("/lastTimestamp") };
    let mut times = object.get("count").and_then(Value::as_i64).unwrap_or_default();
    if object.get("series").is_some_and(Value::is_object) {
        last = since("/series/lastObservedTime");
        times = object.pointer("/series/count").and_then(Value::as_i64).unwrap_or_default();
    } else if times == 0 {
        times = 1;
    }
    let (kind, name) =
        (text(object, "/involvedObject/kind").to_lowercase(), text(object, "/involvedObject/name"));
    let about = if name.is_empty() { kind } else { format!("{kind}/{name}") };
    let either = |first: &'static str, second: &'static str| {
        Some(text(object, first)).filter(|t| !t.is_empty()).unwrap_or_else(|| text(object, second))
    };
    let (component, instance) =
        (either("/source/component", "/reportingComponent"), either("/source/host", "/reportingInstance"));
    let source = if instance.is_empty() { component.to_owned() } else { format!("{component}, {instance}") };
    vec![
        last.into(),
        text(object, "/type").into(),
        text(object, "/reason").into(),
        about.into(),
        text(object, "/involvedObject/fieldPath").into(),
        source.into(),
        text(object, "/message").trim().into(),
        first.into(),
        times.into(),
        meta::name(object).into(),
    ]
}

fn job(object: &Value, name: Value, age: Value, now: Timestamp) -> Vec<Value> {
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64);
    let succeeded = number("/status/succeeded").unwrap_or_default();
    let completions = match (number("/spec/completions"), number("/spec/parallelism").unwrap_or_default()) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallel) if parallel > 1 => format!("{succeeded}/1 of {parallel}"),
        (None, _) => format!("{succeeded}/1"),
    };
    let started = text(object, "/status/startTime").parse::<Timestamp>();
    let ended = text(object, "/status/completionTime").parse::<Timestamp>().unwrap_or(now);
    let duration = started.map(|started| human(ended.duration_since(started).as_secs())).unwrap_or_default();
    let holds = |condition: &str| {
        let found = items(object, "/status/conditions").iter().find(|c| text(c, "/type") == condition);
        found.is_some_and(|c| text(c, "/status") == "True")
    };
    let status =
        [("Complete", "Complete"), ("Failed", "Failed")].into_iter().find(|(c, _)| holds(c)).map(|(_, s)| s);
    let later = || {
        [
            ("Suspended", "Suspended"),
            ("FailureTarget", "FailureTarget"),
            ("SuccessCriteriaMet", "SuccessCriteriaMet"),
        ]
        .into_iter()
        .find(|(c, _)| holds(c))
        .map(|(_, s)| s)
    };
    let status = match status {
        Some(status) => status,
        None if meta::is_deleting(object) => "Terminating",
        None => later().unwrap_or("Running"),
    };
    let containers = items(object, "/spec/template/spec/containers");
    let joined = |field: &str| containers.iter().map(|c| text(c, field)).collect::<Vec<_>>().join(",");
    vec![
        name,
        status.into(),
        completions.into(),
        duration.into(),
        age,
        joined("/name").into(),
        joined("/image").into(),
        selector(object.pointer("/spec/selector")).into(),
    ]
}

/// A label selector as text.
fn selector(selector: Option<&Value>) -> String {
    let Some(selector) = selector else { return "<none>".to_owned() };
    let mut parts: Vec<String> = Vec::new();
    for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
        parts.push(format!("{key}={}", value.as_str().unwrap_or_default()));
    }
    for expression in items(selector, "/matchExpressions") {
        let key = text(expression, "/key");
        let values: Vec<&str> = items(expression, "/values").iter().filter_map(Value::as_str).collect();
        parts.push(match text(expression, "/operator") {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        });
    }
    parts.sort();
    if parts.is_empty() { "<none>".to_owned() } else { parts.join(",") }
}

fn ingress(object: &Value, name: Value, age: Value) -> Vec<Value> {
    let rules = items(object, "/spec/rules");
    let hosts: Vec<&str> = rules.iter().take(3).map(|r| text(r, "/host")).filter(|h| !h.is_empty()).collect();
    let shown = match (hosts.is_empty(), rules.len() > 3) {
        (true, _) => "*".to_owned(),
        (false, false) => hosts.join(","),
        (false, true) => format!("{} + {} more...", hosts.join(","), rules.len() - 3),
    };
    let mut addresses: Vec<&str> = items(object, "/status/loadBalancer/ingress")
        .iter()
        .map(|i| Some(text(i, "/ip")).filter(|ip| !ip.is_empty()).unwrap_or_else(|| text(i, "/hostname")))
        .filter(|a| !a.is_empty())
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    let ports = if items(object, "/spec/tls").is_empty() { "80" } else { "80, 443" };
    vec![
        name,
        or_none(text(object, "/spec/ingressClassName")),
        shown.into(),
        addresses.join(",").into(),
        ports.into(),
        age,
    ]
}

fn binding(object: &Value, name: Value, age: Value) -> Vec<Value> {
    let role = format!("{}/{}", text(object, "/roleRef/kind"), text(object, "/roleRef/name"));
    let subjects = |kind: &str| -> String {
        let of_kind = items(object, "/subjects").iter().filter(|s| text(s, "/kind") == kind);
        let named = of_kind.map(|s| match (kind, text(s, "/namespace")) {
            ("ServiceAccount", namespace) if !namespace.is_empty() => {
                format!("{namespace}/{}", text(s, "/name"))
            }
            _ => text(s, "/name").to_owned(),
        });
        named.collect::<Vec<_>>().join(", ")
    };
    vec![
        name,
        role.into(),
        age,
        subjects("User").into(),
        subjects("Group").into(),
        subjects("ServiceAccount").into(),
    ]
}

fn custom_cell(column: &Column, object: &Value, now: Timestamp) -> Value {
    let Some(path) = &column.path else { return meta::name(object).into() };
    let Some(&found) = jsonpath::find(path, object).first() else { return Value::Null };
    match (column.kind.as_str(), found) {
        (_, Value::Null) => Value::Null,
        ("string", Value::String(text)) => text.as_str().into(),
        ("string", other) => other.to_string().into(),
        ("integer", Value::Number(number)) => {
            number.as_i64().or_else(|| number.as_f64().map(|f| f as i64)).map_or(Value::Null, Value::from)
        }
        ("number", Value::Number(number)) => number.as_f64().map_or(Value::Null, Value::from),
        ("boolean", Value::Bool(flag)) => (*flag).into(),
        ("date", Value::String(text)) => match text.parse::<Timestamp>() {
            Ok(then) => human(now.duration_since(then).as_secs()).into(),
            Err(_) => "<invalid>".into(),
        },
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectls() {
        for (seconds, shown) in [
            (-5, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (121, "2m1s"),
            (600, "10m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 60, "3h1m"),
            (10 * 3600, "10h"),
            (49 * 3600, "2d1h"),
            (48 * 3600, "2d"),
            (100 * 86400, "100d"),
            (3 * 365 * 86400 + 86400, "3y1d"),
            (9 * 365 * 86400, "9y"),
        ] {
            assert_eq!(human(seconds), shown);
        }
    }
}
