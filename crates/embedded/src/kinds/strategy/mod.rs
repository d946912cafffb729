//! What each built-in kind does with its objects before they are stored: defaults, fields that clients may not set, generation, and
//! validation. Custom resources have their schema for this; only what is common to them is here.

mod data;
mod defaults;
mod definition;
mod job;
mod pod;
mod rbac;

use serde_json::{Map, Value, json};

use super::{Builtin, Cause, Kind, Origin, meta};
use crate::schema;

/// Which part of an object a write is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Main,
    Status,
    /// `spec.finalizers` of a namespace.
    Finalize,
}

/// Whether PUT to a name that is not there creates it.
pub fn creates_on_update(kind: &Kind) -> bool {
    matches!(
        kind.builtin(),
        Some(
            Builtin::Event
                | Builtin::EventV1
                | Builtin::Lease
                | Builtin::Role
                | Builtin::ClusterRole
                | Builtin::RoleBinding
                | Builtin::ClusterRoleBinding
        )
    )
}

/// Whether an update without a resourceVersion replaces whatever is there.
pub fn updates_unconditionally(kind: &Kind) -> bool {
    !matches!(kind.builtin(), None | Some(Builtin::Lease | Builtin::CustomResourceDefinition))
}

/// Whether a deletion answers with the object rather than with a `Status`.
pub fn returns_deleted(kind: &Kind) -> bool {
    matches!(kind.builtin(), Some(Builtin::Pod | Builtin::ServiceAccount | Builtin::Namespace))
}

/// Fields that a client leaves out and every object of the kind has.
pub fn default(kind: &Kind, object: &mut Value) {
    match &kind.origin {
        Origin::Builtin(builtin) => defaults::fill(*builtin, object),
        Origin::Custom(_) => schema::default(&kind.schema, object),
    }
}

/// Makes a new object ready: what only the server may say is set or taken out. Name and uid are there already.
pub fn prepare_create(kind: &Kind, object: &mut Value) {
    complete(kind, object);
    if let Some(metadata) = meta::of_mut(object) {
        metadata.remove("generation");
    }
    match kind.builtin() {
        Some(Builtin::Namespace) => {
            let spec = part(object, "spec");
            let finalizers = spec.entry("finalizers").or_insert_with(|| json!([]));
            if let Some(list) =
                finalizers.as_array_mut().filter(|list| !list.iter().any(|f| f == "kubernetes"))
            {
                list.push("kubernetes".into());
            }
            set(object, "status", json!({"phase": "Active"}));
        }
        Some(Builtin::Pod) => {
            let status = json!({"phase": "Pending", "qosClass": pod::quality(object)});
            set(object, "status", status);
            pod::gate(object);
            pod::admit(object);
            start_generation(object);
        }
        Some(Builtin::Job) => {
            job::select(object);
            defaults::fill(Builtin::Job, object);
            set(object, "status", json!({}));
            start_generation(object);
        }
        Some(Builtin::Ingress) => {
            set(object, "status", json!({"loadBalancer": {}}));
            start_generation(object);
        }
        Some(Builtin::CustomResourceDefinition) => {
            let stored = definition::storage_version(object)
                .map(|version| json!([version]))
                .unwrap_or_else(|| json!(null));
            let none = json!({"plural": "", "kind": ""});
            set(
                object,
                "status",
                json!({"conditions": null, "acceptedNames": none, "storedVersions": stored}),
            );
            start_generation(object);
        }
        Some(
            Builtin::Node
            | Builtin::Binding
            | Builtin::Secret
            | Builtin::ConfigMap
            | Builtin::Event
            | Builtin::EventV1
            | Builtin::ServiceAccount
            | Builtin::Service
            | Builtin::Lease
            | Builtin::TokenReview
            | Builtin::SelfSubjectReview
            | Builtin::SubjectAccessReview
            | Builtin::LocalSubjectAccessReview
            | Builtin::SelfSubjectAccessReview
            | Builtin::SelfSubjectRulesReview
            | Builtin::Role
            | Builtin::ClusterRole
            | Builtin::RoleBinding
            | Builtin::ClusterRoleBinding,
        ) => {}
        None => {
            if kind.has_status() {
                remove(object, "status");
            }
            start_generation(object);
        }
    }
}

/// Fields that every object of a kind shows, empty or not. Nobody owns them by leaving them out.
fn complete(kind: &Kind, object: &mut Value) {
    let Some(fields) = object.as_object_mut() else { return };
    match kind.builtin() {
        Some(Builtin::Event) => {
            for (field, value) in [
                ("involvedObject", json!({})),
                ("source", json!({})),
                ("reportingComponent", json!("")),
                ("reportingInstance", json!("")),
            ] {
                fields.entry(field).or_insert(value);
            }
            for field in ["firstTimestamp", "lastTimestamp", "eventTime"] {
                fields.entry(field).or_insert(Value::Null);
            }
        }
        Some(Builtin::EventV1) => {
            for (field, value) in [
                ("regarding", json!({})),
                ("deprecatedSource", json!({})),
                ("reportingController", json!("")),
                ("reportingInstance", json!("")),
            ] {
                fields.entry(field).or_insert(value);
            }
            for field in ["deprecatedFirstTimestamp", "deprecatedLastTimestamp", "eventTime"] {
                fields.entry(field).or_insert(Value::Null);
            }
        }
        Some(Builtin::Node) => {
            fields.entry("spec").or_insert_with(|| json!({}));
            let status = part(object, "status");
            status.entry("daemonEndpoints").or_insert_with(|| json!({"kubeletEndpoint": {"Port": 0}}));
            let info = status.entry("nodeInfo").or_insert_with(|| json!({}));
            for field in NODE_INFO {
                if let Some(info) = info.as_object_mut() {
                    info.entry(field).or_insert_with(|| "".into());
                }
            }
        }
        Some(Builtin::Role | Builtin::ClusterRole) => {
            fields.entry("rules").or_insert(Value::Null);
        }
        Some(Builtin::Job | Builtin::Lease | Builtin::Ingress | Builtin::Namespace | Builtin::Pod) => {
            fields.entry("spec").or_insert_with(|| json!({}));
        }
        Some(_) | None => {}
    }
}

const NODE_INFO: [&str; 10] = [
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
];

/// Puts back what this kind of write may not change, and counts the generation up if what remains changed.
pub fn prepare_update(kind: &Kind, part: Part, object: &mut Value, old: &Value) {
    complete(kind, object);
    match part {
        Part::Main => keep(object, old, kept_by_main(kind)),
        Part::Status => keep_all_but_status(kind, object, old),
        Part::Finalize => keep_all_but_finalizers(object, old),
    }
    if let Some(metadata) = meta::of_mut(object) {
        match meta::of(old).get("generation") {
            Some(generation) => metadata.insert("generation".to_owned(), generation.clone()),
            None => metadata.remove("generation"),
        };
    }
    match kind.builtin() {
        Some(Builtin::Namespace) if part == Part::Main => {
            let finalizers = old.pointer("/spec/finalizers").cloned();
            let spec = self::part(object, "spec");
            match finalizers {
                Some(finalizers) => spec.insert("finalizers".to_owned(), finalizers),
                None => spec.remove("finalizers"),
            };
        }
        Some(Builtin::CustomResourceDefinition) if part == Part::Main => definition::remember_storage(object),
        _ => {}
    }
    if part == Part::Main && counts_generation(kind) && differs(kind, object, old) {
        let next = meta::of(old).get("generation").and_then(Value::as_i64).unwrap_or_default() + 1;
        if let Some(metadata) = meta::of_mut(object) {
            metadata.insert("generation".to_owned(), next.into());
        }
    }
}

/// Fields of the old object that a write to the main path leaves alone.
fn kept_by_main(kind: &Kind) -> &'static [&'static str] {
    match kind.builtin() {
        Some(
            Builtin::Namespace
            | Builtin::Node
            | Builtin::Pod
            | Builtin::Job
            | Builtin::Ingress
            | Builtin::CustomResourceDefinition,
        ) => &["status"],
        None if kind.has_status() => &["status"],
        _ => &[],
    }
}

fn keep(object: &mut Value, old: &Value, fields: &[&str]) {
    for field in fields {
        match old.get(*field) {
            Some(value) => set(object, field, value.clone()),
            None => remove(object, field),
        }
    }
}

fn keep_all_but_status(kind: &Kind, object: &mut Value, old: &Value) {
    let status = object.get("status").cloned();
    let managed = meta::of(object).get("managedFields").cloned();
    let given = meta::of(object).clone();
    let mut kept = old.clone();
    match status {
        Some(status) => set(&mut kept, "status", status),
        None => remove(&mut kept, "status"),
    }
    if let Some(metadata) = meta::of_mut(&mut kept) {
        match managed {
            Some(managed) => metadata.insert("managedFields".to_owned(), managed),
            None => metadata.remove("managedFields"),
        };
        // A status write of a built-in kind may change labels and the like; of a custom resource it may not.
        if kind.builtin().is_some() {
            for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
                let removable = field != "ownerReferences" || kind.builtin() != Some(Builtin::Pod);
                match given.get(field) {
                    Some(value) if removable => metadata.insert(field.to_owned(), value.clone()),
                    None if removable => metadata.remove(field),
                    _ => None,
                };
            }
        }
        // What was sent stays to be compared and refused.
        for field in [
            "name",
            "namespace",
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "resourceVersion",
        ] {
            if let Some(value) = given.get(field) {
                metadata.insert(field.to_owned(), value.clone());
            }
        }
    }
    *object = kept;
}

fn keep_all_but_finalizers(object: &mut Value, old: &Value) {
    let finalizers = object.pointer("/spec/finalizers").cloned();
    let managed = meta::of(object).get("managedFields").cloned();
    let revision = meta::of(object).get("resourceVersion").cloned();
    let mut kept = old.clone();
    match finalizers.filter(|f| f.as_array().is_some_and(|list| !list.is_empty())) {
        Some(finalizers) => part(&mut kept, "spec").insert("finalizers".to_owned(), finalizers),
        None => part(&mut kept, "spec").remove("finalizers"),
    };
    if let Some(metadata) = meta::of_mut(&mut kept) {
        for (field, value) in [("managedFields", managed), ("resourceVersion", revision)] {
            if let Some(value) = value {
                metadata.insert(field.to_owned(), value);
            }
        }
    }
    *object = kept;
}

fn counts_generation(kind: &Kind) -> bool {
    match kind.builtin() {
        Some(Builtin::Pod | Builtin::Job | Builtin::Ingress | Builtin::CustomResourceDefinition) | None => {
            true
        }
        Some(_) => false,
    }
}

/// Whether what the generation counts has changed: the spec of built-in kinds; of custom resources all but metadata, and but status where
/// that is written on its own.
fn differs(kind: &Kind, object: &Value, old: &Value) -> bool {
    if kind.builtin().is_some() {
        return object.get("spec") != old.get("spec");
    }
    let counted = |value: &Value| -> Map<String, Value> {
        let fields = value.as_object().into_iter().flatten();
        let counted =
            fields.filter(|(key, _)| *key != "metadata" && (*key != "status" || !kind.has_status()));
        counted.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    counted(object) != counted(old)
}

/// What is wrong with a new object.
pub fn validate_create(kind: &Kind, object: &Value) -> Vec<Cause> {
    let mut causes = match &kind.origin {
        Origin::Builtin(_) => meta::validate(kind, object),
        Origin::Custom(_) => {
            let mut causes = custom_type(kind, object);
            causes.extend(meta::validate(kind, object));
            causes
        }
    };
    causes.extend(validate_kind(kind, object, None));
    causes
}

/// What is wrong with a changed object.
pub fn validate_update(kind: &Kind, part: Part, object: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = match &kind.origin {
        // The real server checks the metadata twice, and tells each fault twice among the causes.
        Origin::Builtin(_) => {
            [meta::validate_update(object, old), meta::validate_update(object, old)].concat()
        }
        Origin::Custom(_) => {
            let mut causes = meta::validate_update(object, old);
            causes.extend(custom_type(kind, object));
            causes.extend(meta::validate_update(object, old));
            causes
        }
    };
    match part {
        Part::Main => causes.extend(validate_kind(kind, object, Some(old))),
        Part::Status if kind.builtin().is_none() => {
            causes.extend(schema::validate_status(&kind.schema, object, old).into_iter().map(Cause::from));
        }
        Part::Status | Part::Finalize => {}
    }
    causes
}

fn custom_type(kind: &Kind, object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (field, expected) in [("kind", &kind.kind), ("apiVersion", &kind.api_version)] {
        let found = object.get(field).and_then(Value::as_str).unwrap_or_default();
        if *found != **expected {
            causes.push(Cause::invalid(field, &found.into(), &format!("must be {expected}")));
        }
    }
    causes
}

fn validate_kind(kind: &Kind, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    match kind.builtin() {
        None => schema::validate(&kind.schema, object, old).into_iter().map(Cause::from).collect(),
        Some(Builtin::Pod) => pod::validate(object, old),
        Some(Builtin::Job) => job::validate(object, old),
        Some(Builtin::Secret) => data::validate_secret(object, old),
        Some(Builtin::ConfigMap) => data::validate_config_map(object, old),
        Some(Builtin::Lease) => data::validate_lease(object),
        Some(Builtin::Event | Builtin::EventV1) => data::validate_event(kind, object),
        Some(Builtin::CustomResourceDefinition) => definition::validate(object, old),
        Some(
            builtin @ (Builtin::Role
            | Builtin::ClusterRole
            | Builtin::RoleBinding
            | Builtin::ClusterRoleBinding),
        ) => rbac::validate(builtin, object, old),
        Some(Builtin::Ingress) => data::validate_ingress(object),
        Some(
            Builtin::Namespace
            | Builtin::Node
            | Builtin::Binding
            | Builtin::ServiceAccount
            | Builtin::Service
            | Builtin::TokenReview
            | Builtin::SelfSubjectReview
            | Builtin::SubjectAccessReview
            | Builtin::LocalSubjectAccessReview
            | Builtin::SelfSubjectAccessReview
            | Builtin::SelfSubjectRulesReview,
        ) => Vec::new(),
    }
}

/// The grace of a deletion: `None` where the kind knows none.
pub fn grace(kind: &Kind, object: &Value, asked: Option<i64>) -> Option<i64> {
    match kind.builtin() {
        Some(Builtin::Pod) => Some(pod::grace(object, asked)),
        _ => None,
    }
}

/// Remarks on a new or changed object that do not stop it.
pub fn warnings(kind: &Kind, object: &Value) -> Vec<String> {
    match kind.builtin() {
        Some(Builtin::Pod) => pod::warnings(object),
        _ => Vec::new(),
    }
}

fn start_generation(object: &mut Value) {
    if let Some(metadata) = meta::of_mut(object) {
        metadata.insert("generation".to_owned(), 1.into());
    }
}

/// A field that is an object, made if it is not there.
fn part<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    as_object(as_object(object).entry(field).or_insert(Value::Null))
}

/// The fields of a value, which becomes an object if it is none.
fn as_object(value: &mut Value) -> &mut Map<String, Value> {
    loop {
        match value {
            Value::Object(fields) => return fields,
            _ => *value = json!({}),
        }
    }
}

fn set(object: &mut Value, field: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(field.to_owned(), value);
    }
}

fn remove(object: &mut Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove(field);
    }
}

/// Text at a JSON pointer; empty where there is none.
fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The elements at a JSON pointer.
fn items<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}
