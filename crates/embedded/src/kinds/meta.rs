//! Reading and checking `metadata`, the part that all objects share.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{Builtin, Cause, Kind, format};

/// Annotations of one object together.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);

/// `metadata` of an object; an empty one where there is none.
pub fn of(object: &Value) -> &Map<String, Value> {
    object.get("metadata").and_then(Value::as_object).unwrap_or(&EMPTY)
}

/// `metadata` for writing. An object without one gets it; a value that is no object at all gets none.
pub fn of_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    let metadata = object.as_object_mut()?.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if metadata.is_null() {
        *metadata = Value::Object(Map::new());
    }
    metadata.as_object_mut()
}

pub fn text<'a>(metadata: &'a Map<String, Value>, key: &str) -> &'a str {
    metadata.get(key).and_then(Value::as_str).unwrap_or_default()
}

pub fn name(object: &Value) -> &str {
    text(of(object), "name")
}

pub fn namespace(object: &Value) -> &str {
    text(of(object), "namespace")
}

pub fn uid(object: &Value) -> &str {
    text(of(object), "uid")
}

pub fn is_deleting(object: &Value) -> bool {
    of(object).get("deletionTimestamp").is_some_and(|t| !t.is_null())
}

pub fn finalizers(object: &Value) -> Vec<&str> {
    of(object)
        .get("finalizers")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// The grace that a deletion gives, where one has been asked for.
pub fn grace(object: &Value) -> Option<i64> {
    of(object).get("deletionGracePeriodSeconds").and_then(Value::as_i64)
}

/// What a name of this kind may look like.
pub fn name_errors(kind: &Kind, name: &str) -> Vec<String> {
    match kind.builtin() {
        Some(Builtin::Namespace) => format::dns_label(name),
        Some(Builtin::Role | Builtin::ClusterRole | Builtin::RoleBinding | Builtin::ClusterRoleBinding) => {
            format::path_segment(name)
        }
        Some(
            Builtin::Node
            | Builtin::Pod
            | Builtin::Binding
            | Builtin::Secret
            | Builtin::ConfigMap
            | Builtin::Event
            | Builtin::EventV1
            | Builtin::ServiceAccount
            | Builtin::Service
            | Builtin::Lease
            | Builtin::Job
            | Builtin::Ingress
            | Builtin::CustomResourceDefinition
            | Builtin::TokenReview
            | Builtin::SelfSubjectReview
            | Builtin::SubjectAccessReview
            | Builtin::LocalSubjectAccessReview
            | Builtin::SelfSubjectAccessReview
            | Builtin::SelfSubjectRulesReview,
        )
        | None => format::dns_subdomain(name),
    }
}

/// The prefix and five characters that spell no words.
pub fn generated_name(prefix: &str) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let prefix: String = prefix.chars().take(58).collect();
    let suffix =
        (0..5).filter_map(|_| LETTERS.get(rand::random_range(0..LETTERS.len())).map(|b| char::from(*b)));
    prefix.chars().chain(suffix).collect()
}

/// A prefix for names is checked as a name that goes on.
fn prefix_errors(kind: &Kind, prefix: &str) -> Vec<String> {
    let masked = match prefix.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => format!("{}a", rest.get(..rest.len() - 1).unwrap_or_default()),
        _ => prefix.to_owned(),
    };
    name_errors(kind, &masked)
}

/// Of a new object.
pub fn validate(kind: &Kind, object: &Value) -> Vec<Cause> {
    let metadata = of(object);
    let mut causes = Vec::new();
    let generate = text(metadata, "generateName");
    if !generate.is_empty() {
        causes.extend(
            prefix_errors(kind, generate)
                .iter()
                .map(|e| Cause::invalid("metadata.generateName", &generate.into(), e)),
        );
    }
    let name = text(metadata, "name");
    if name.is_empty() {
        causes.push(Cause::required("metadata.name", "name or generateName is required"));
    } else {
        causes
            .extend(name_errors(kind, name).iter().map(|e| Cause::invalid("metadata.name", &name.into(), e)));
    }
    let namespace = text(metadata, "namespace");
    if kind.is_namespaced() {
        if namespace.is_empty() {
            causes.push(Cause::required("metadata.namespace", ""));
        } else {
            causes.extend(
                format::dns_label(namespace)
                    .iter()
                    .map(|e| Cause::invalid("metadata.namespace", &namespace.into(), e)),
            );
        }
    } else if !namespace.is_empty() {
        causes.push(Cause::forbidden("metadata.namespace", "not allowed on this type"));
    }
    if let Some(generation) = metadata.get("generation").and_then(Value::as_i64).filter(|g| *g < 0) {
        causes.push(Cause::invalid(
            "metadata.generation",
            &generation.into(),
            "must be greater than or equal to 0",
        ));
    }
    validate_parts(metadata, &mut causes);
    let finalizers = finalizers(object);
    for (index, finalizer) in finalizers.iter().enumerate() {
        causes.extend(
            format::label_key(finalizer)
                .iter()
                .map(|e| Cause::invalid("metadata.finalizers", &(*finalizer).into(), e)),
        );
        // Outside the core group's own names a finalizer needs a domain.
        if kind.builtin().is_some()
            && !finalizer.contains('/')
            && !["orphan", "foregroundDeletion", "kubernetes"].contains(finalizer)
        {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            causes.push(Cause::invalid(
                format!("metadata.finalizers[{index}]"),
                &(*finalizer).into(),
                detail,
            ));
        }
    }
    if finalizers.contains(&"orphan") && finalizers.contains(&"foregroundDeletion") {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        causes.push(Cause::invalid(
            "metadata.finalizers",
            metadata.get("finalizers").unwrap_or(&Value::Null),
            detail,
        ));
    }
    causes
}

/// Of a changed object, beside what it was.
pub fn validate_update(object: &Value, old: &Value) -> Vec<Cause> {
    let (new_meta, old_meta) = (of(object), of(old));
    let mut causes = Vec::new();
    if is_deleting(old) {
        let before: BTreeSet<&str> = finalizers(old).into_iter().collect();
        let extra: BTreeSet<&str> = finalizers(object).into_iter().filter(|f| !before.contains(f)).collect();
        if !extra.is_empty() {
            let listed: Vec<String> = extra.iter().map(|f| format!("{f:?}")).collect();
            let listed = format!("[]string{{{}}}", listed.join(", "));
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers {listed}"
            );
            causes.push(Cause::forbidden("metadata.finalizers", &detail));
        }
    }
    let generation = |metadata: &Map<String, Value>| {
        metadata.get("generation").and_then(Value::as_i64).unwrap_or_default()
    };
    if generation(new_meta) < generation(old_meta) {
        causes.push(Cause::invalid(
            "metadata.generation",
            &generation(new_meta).into(),
            "must not be decremented",
        ));
    }
    for field in
        ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"]
    {
        let (new, old) =
            (new_meta.get(field).unwrap_or(&Value::Null), old_meta.get(field).unwrap_or(&Value::Null));
        if new != old {
            causes.push(Cause::invalid(format!("metadata.{field}"), new, "field is immutable"));
        }
    }
    validate_parts(new_meta, &mut causes);
    causes
}

/// Labels, annotations and owners, which are checked at each write. O(entries).
fn validate_parts(metadata: &Map<String, Value>, causes: &mut Vec<Cause>) {
    if let Some(labels) = metadata.get("labels").and_then(Value::as_object) {
        validate_labels(labels, "metadata.labels", causes);
    }
    if let Some(annotations) = metadata.get("annotations").and_then(Value::as_object) {
        let mut size = 0;
        for (key, value) in annotations {
            size += key.len() + value.as_str().map_or(0, str::len);
            causes.extend(
                format::label_key(&key.to_lowercase())
                    .iter()
                    .map(|e| Cause::invalid("metadata.annotations", &key.as_str().into(), e)),
            );
        }
        if size > ANNOTATIONS_LIMIT {
            causes.push(Cause::too_long("metadata.annotations", ANNOTATIONS_LIMIT));
        }
    }
    if let Some(owners) = metadata.get("ownerReferences").and_then(Value::as_array) {
        validate_owners(owners, causes);
    }
}

pub fn validate_labels(labels: &Map<String, Value>, field: &str, causes: &mut Vec<Cause>) {
    for (key, value) in labels {
        causes.extend(format::label_key(key).iter().map(|e| Cause::invalid(field, &key.as_str().into(), e)));
        let value = value.as_str().unwrap_or_default();
        causes.extend(format::label_value(value).iter().map(|e| Cause::invalid(field, &value.into(), e)));
    }
}

fn validate_owners(owners: &[Value], causes: &mut Vec<Cause>) {
    let mut controller: Option<String> = None;
    for owner in owners {
        let text = |key: &str| owner.get(key).and_then(Value::as_str).unwrap_or_default();
        let version = text("apiVersion").rsplit('/').next().unwrap_or_default();
        for (key, value, message) in [
            ("apiVersion", version, "version must not be empty"),
            ("kind", text("kind"), "must not be empty"),
            ("name", text("name"), "must not be empty"),
            ("uid", text("uid"), "must not be empty"),
        ] {
            if value.is_empty() {
                causes.push(Cause::invalid(
                    format!("metadata.ownerReferences.{key}"),
                    &text(key).into(),
                    message,
                ));
            }
        }
        if text("apiVersion") == "v1" && text("kind") == "Event" {
            causes.push(Cause::invalid(
                "metadata.ownerReferences",
                owner,
                "/v1, Kind=Event is disallowed from being an owner",
            ));
        }
        if owner.get("controller") == Some(&Value::Bool(true)) {
            let this = format!("{}/{}", text("kind"), text("name"));
            match &controller {
                None => controller = Some(this),
                Some(first) => {
                    let detail = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                    );
                    causes.push(Cause::invalid(
                        "metadata.ownerReferences",
                        &Value::Array(owners.to_vec()),
                        &detail,
                    ));
                }
            }
        }
    }
}
