//! CustomResourceDefinitions: which versions have been stored, and what is refused.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::{Cause, format, meta};
use super::{items, part, text};
use crate::schema::{Node, SCHEMA_PATH, Subresource};

/// The version that objects are stored in.
pub(super) fn storage_version(object: &Value) -> Option<&str> {
    items(object, "/spec/versions")
        .iter()
        .find(|v| v.get("storage") == Some(&Value::Bool(true)))?
        .get("name")?
        .as_str()
}

/// A version that has been the stored one stays on the list until somebody migrates.
pub(super) fn remember_storage(object: &mut Value) {
    let Some(version) = storage_version(object).map(str::to_owned) else { return };
    let stored = part(object, "status").entry("storedVersions").or_insert_with(|| json!([]));
    match stored.as_array_mut() {
        Some(list) if list.iter().any(|v| *v == version.as_str()) => {}
        Some(list) => list.push(version.into()),
        None => *stored = json!([version]),
    }
}

pub(super) fn validate(object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let (group, plural) = (text(object, "/spec/group"), text(object, "/spec/names/plural"));
    let name = meta::name(object);
    if old.is_none() && !name.is_empty() && name != format!("{plural}.{group}") {
        causes.push(Cause::invalid(
            "metadata.name",
            &name.into(),
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
    if group.is_empty() {
        causes.push(Cause::required("spec.group", ""));
    } else {
        let errors = format::dns_subdomain(group);
        if !errors.is_empty() {
            causes.push(Cause::invalid("spec.group", &group.into(), &errors.join(",")));
        } else if !group.contains('.') {
            causes.push(Cause::invalid(
                "spec.group",
                &group.into(),
                "should be a domain with at least one dot",
            ));
        }
    }
    match text(object, "/spec/scope") {
        "" => causes.push(Cause::required("spec.scope", "")),
        "Cluster" | "Namespaced" => {}
        other => causes.push(Cause::not_supported("spec.scope", &other.into(), &["Cluster", "Namespaced"])),
    }
    validate_versions(object, &mut causes);
    validate_names(object, &mut causes);
    validate_schemas(object, &mut causes);
    validate_stored(object, &mut causes);
    let protected = group == "k8s.io"
        || group == "kubernetes.io"
        || group.ends_with(".k8s.io")
        || group.ends_with(".kubernetes.io");
    let approval = meta::of(object).get("annotations").and_then(|a| a.get("api-approved.kubernetes.io"));
    if protected && old.is_none() && approval.is_none() {
        let detail = "protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111";
        causes.push(Cause::required("metadata.annotations[api-approved.kubernetes.io]", detail));
    }
    if object.pointer("/spec/preserveUnknownFields") == Some(&Value::Bool(true)) && old.is_none() {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        causes.push(Cause::invalid("spec.preserveUnknownFields", &true.into(), detail));
    }
    if let Some(old) = old {
        validate_change(object, old, &mut causes);
    }
    causes
}

fn validate_versions(object: &Value, causes: &mut Vec<Cause>) {
    let versions = items(object, "/spec/versions");
    let mut names = BTreeSet::new();
    let mut unique = true;
    let schema = |version: &Value| version.pointer("/schema/openAPIV3Schema").cloned();
    for (index, version) in versions.iter().enumerate() {
        if schema(version).is_none() {
            causes.push(Cause::required(format!("spec.versions[{index}].schema.openAPIV3Schema"), ""));
        }
    }
    for (index, version) in versions.iter().enumerate() {
        let at = format!("spec.versions[{index}]");
        let name = text(version, "/name");
        unique &= names.insert(name);
        let errors = format::dns_1035_label(name);
        if !errors.is_empty() {
            causes.push(Cause::invalid(format!("{at}.name"), &name.into(), &errors.join(",")));
        }
        for (column_at, column) in items(version, "/additionalPrinterColumns").iter().enumerate() {
            validate_column(column, &format!("{at}.additionalPrinterColumns[{column_at}]"), causes);
        }
    }
    let listed = internal_versions(versions);
    if !unique {
        causes.push(Cause::invalid("spec.versions", &listed, "must contain unique version names"));
    }
    let stored = versions.iter().filter(|v| v.get("storage") == Some(&Value::Bool(true))).count();
    if stored != 1 {
        causes.push(Cause::invalid(
            "spec.versions",
            &listed,
            "must have exactly one version marked as storage version",
        ));
    }
    // The first version was once a field of its own, and is still checked as one.
    if let Some(name) = versions.first().map(|v| text(v, "/name")) {
        let errors = format::dns_1035_label(name);
        if !errors.is_empty() {
            causes.push(Cause::invalid("spec.version", &name.into(), &errors.join(",")));
        }
    }
}

/// Schemas that are all the same are one schema to the server, and its faults are told at that one place.
fn one_schema(versions: &[Value]) -> bool {
    let schema = |version: &Value| version.pointer("/schema/openAPIV3Schema").cloned();
    versions.iter().all(|version| schema(version) == versions.first().and_then(schema))
}

fn validate_schemas(object: &Value, causes: &mut Vec<Cause>) {
    let versions = items(object, "/spec/versions");
    let shared = one_schema(versions);
    for (index, version) in versions.iter().enumerate() {
        let Some(schema) = version.pointer("/schema/openAPIV3Schema").filter(|_| !shared || index == 0)
        else {
            continue;
        };
        let path = if shared {
            SCHEMA_PATH.to_owned()
        } else {
            format!("spec.versions[{index}].schema.openAPIV3Schema")
        };
        let has_status = version.pointer("/subresources/status").is_some();
        let subresource = if has_status { Subresource::Status } else { Subresource::None };
        if let Err(errors) = Node::parse_at(schema, &path, subresource) {
            causes.extend(errors.into_iter().map(Cause::from));
        }
    }
}

/// Versions as the real server's own type prints them in a fault. What all share is not theirs.
fn internal_versions(versions: &[Value]) -> Value {
    let shared = one_schema(versions);
    let shown = versions.iter().map(|version| {
        let own = |field: &str| version.get(field).filter(|_| !shared).cloned().unwrap_or_default();
        let flag = |field: &str| version.get(field).cloned().unwrap_or_else(|| false.into());
        json!({
            "Name": text(version, "/name"),
            "Served": flag("served"),
            "Storage": flag("storage"),
            "Deprecated": flag("deprecated"),
            "DeprecationWarning": version.get("deprecationWarning").cloned().unwrap_or_default(),
            "Schema": own("schema"),
            "Subresources": own("subresources"),
            "AdditionalPrinterColumns": own("additionalPrinterColumns"),
            "SelectableFields": own("selectableFields"),
        })
    });
    shown.collect()
}

fn validate_column(column: &Value, at: &str, causes: &mut Vec<Cause>) {
    if text(column, "/name").is_empty() {
        causes.push(Cause::required(format!("{at}.name"), ""));
    }
    match text(column, "/type") {
        "" => causes.push(Cause::required(
            format!("{at}.type"),
            "must be one of boolean, date, integer, number, string",
        )),
        "boolean" | "date" | "integer" | "number" | "string" => {}
        other => causes.push(Cause::invalid(
            format!("{at}.type"),
            &other.into(),
            "must be one of boolean, date, integer, number, string",
        )),
    }
    if text(column, "/jsonPath").is_empty() {
        causes.push(Cause::required(format!("{at}.JSONPath"), ""));
    }
}

fn validate_names(object: &Value, causes: &mut Vec<Cause>) {
    for field in ["plural", "singular", "kind", "listKind"] {
        if text(object, &format!("/spec/names/{field}")).is_empty() {
            causes.push(Cause::required(format!("spec.names.{field}"), ""));
        }
    }
    for field in ["plural", "singular"] {
        let name = text(object, &format!("/spec/names/{field}"));
        let errors = format::dns_1035_label(name);
        if !name.is_empty() && !errors.is_empty() {
            causes.push(Cause::invalid(format!("spec.names.{field}"), &name.into(), &errors.join(",")));
        }
    }
    for field in ["kind", "listKind"] {
        let name = text(object, &format!("/spec/names/{field}"));
        let errors = format::dns_1035_label(&name.to_lowercase());
        if !name.is_empty() && !errors.is_empty() {
            let detail = format!("may have mixed case, but should otherwise match: {}", errors.join(","));
            causes.push(Cause::invalid(format!("spec.names.{field}"), &name.into(), &detail));
        }
    }
    for field in ["shortNames", "categories"] {
        for (index, name) in items(object, &format!("/spec/names/{field}")).iter().enumerate() {
            let errors = format::dns_1035_label(name.as_str().unwrap_or_default());
            if !errors.is_empty() {
                causes.push(Cause::invalid(format!("spec.names.{field}[{index}]"), name, &errors.join(",")));
            }
        }
    }
    let (kind, list) = (text(object, "/spec/names/kind"), text(object, "/spec/names/listKind"));
    if !kind.is_empty() && kind == list {
        causes.push(Cause::invalid(
            "spec.names.listKind",
            &list.into(),
            "kind and listKind may not be the same",
        ));
    }
}

fn validate_stored(object: &Value, causes: &mut Vec<Cause>) {
    let versions: BTreeSet<&str> = items(object, "/spec/versions").iter().map(|v| text(v, "/name")).collect();
    if items(object, "/status/storedVersions").is_empty() {
        causes.push(Cause::invalid(
            "status.storedVersions",
            &Value::Null,
            "must have at least one stored version",
        ));
    }
    for (index, version) in items(object, "/status/storedVersions").iter().enumerate() {
        let name = version.as_str().unwrap_or_default();
        if !versions.contains(name) {
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            causes.push(Cause::invalid(format!("status.storedVersions[{index}]"), version, &detail));
        }
    }
}

fn validate_change(object: &Value, old: &Value, causes: &mut Vec<Cause>) {
    let conditions = items(old, "/status/conditions");
    let established =
        conditions.iter().any(|c| text(c, "/type") == "Established" && text(c, "/status") == "True");
    let mut fixed = vec!["group", "names/plural"];
    if established {
        fixed.extend(["scope", "names/kind"]);
    }
    for field in fixed {
        let pointer = format!("/spec/{field}");
        if text(object, &pointer) != text(old, &pointer) {
            let path = format!("spec.{}", field.replace('/', "."));
            causes.push(Cause::invalid(path, &text(object, &pointer).into(), "field is immutable"));
        }
    }
}
