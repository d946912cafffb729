//! Kinds that CustomResourceDefinitions add: one per served version. What is wrong with a definition is said by `validate::crd`; here a
//! definition that was accepted becomes kinds.

use std::sync::Arc;

use serde_json::Value;

use super::openapi::BuiltinSchemas;
use super::{Column, Kind, Origin, Scope, Subresource, meta, strings};
use crate::schema::Node;
use crate::store::{Collection, Stored};

/// What all versions of a custom resource share.
#[derive(Debug)]
pub struct Definition {
    /// The definition's own name, such as `terraformlayers.terrane.dev`.
    pub name: Arc<str>,
    /// The revision since which its versions are as they are. Objects written before were not seen by this schema.
    pub schema_revision: u64,
    /// It is being deleted: its objects can be removed, not created.
    pub terminating: bool,
    /// `spec`, to see whether a later revision changes anything.
    pub(super) spec: Value,
    /// Per version: the schema as it was written, for OpenAPI.
    pub versions: Vec<(Arc<str>, Value)>,
}

const VERBS: &[&str] = &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
const STATUS_VERBS: &[&str] = &["get", "patch", "update"];

/// The kinds of one definition; none until it is established.
pub(super) fn kinds(object: &Stored, former: Option<&Arc<Definition>>) -> Vec<Arc<Kind>> {
    let value = object.value();
    if !is_true(&value, "Established") {
        return Vec::new();
    }
    let spec = value.get("spec").cloned().unwrap_or_default();
    let schema_revision = match former {
        Some(former) if former.spec == spec => former.schema_revision,
        _ => object.revision,
    };
    let text = |pointer: &str| spec.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (group, plural) = (text("/group").to_owned(), text("/names/plural").to_owned());
    let versions: Vec<Value> = spec.get("versions").and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(storage) = versions
        .iter()
        .find(|v| v.get("storage") == Some(&Value::Bool(true)))
        .and_then(|v| v.get("name")?.as_str())
    else {
        return Vec::new();
    };
    let storage_version: Arc<str> = format!("{group}/{storage}").into();
    let accepted = |field: &str| {
        value
            .pointer(&format!("/status/acceptedNames/{field}"))
            .filter(|v| !v.is_null())
            .or_else(|| spec.pointer(&format!("/names/{field}")))
    };
    let name =
        |field: &str| -> Arc<str> { accepted(field).and_then(Value::as_str).unwrap_or_default().into() };
    let names = |field: &str| strings(accepted(field));
    let definition = Arc::new(Definition {
        name: meta::name(&value).into(),
        schema_revision,
        terminating: meta::is_deleting(&value),
        versions: versions
            .iter()
            .filter_map(|v| {
                Some((
                    v.get("name")?.as_str()?.into(),
                    v.pointer("/schema/openAPIV3Schema").cloned().unwrap_or_default(),
                ))
            })
            .collect(),
        spec: spec.clone(),
    });
    let collection = Collection::new(&group, &plural);
    let group: Arc<str> = group.into();
    versions
        .iter()
        .filter(|version| version.get("served") == Some(&Value::Bool(true)))
        .filter_map(|version| {
            let version_name = version.get("name")?.as_str()?;
            Some(Arc::new(Kind {
                group: Arc::clone(&group),
                version: version_name.into(),
                kind: name("kind"),
                list_kind: name("listKind"),
                plural: plural.as_str().into(),
                singular: name("singular"),
                short_names: names("shortNames"),
                categories: names("categories"),
                scope: if text("/scope") == "Cluster" { Scope::Cluster } else { Scope::Namespaced },
                verbs: VERBS,
                subresources: subresources(version),
                api_version: format!("{group}/{version_name}").into(),
                collection: collection.clone(),
                storage_version: Arc::clone(&storage_version),
                schema: compiled(version, &spec),
                definition: "",
                columns: columns(version),
                selectable: selectable(version),
                origin: Origin::Custom(Arc::clone(&definition)),
            }))
        })
        .collect()
}

fn is_true(object: &Value, condition: &str) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| {
        c.get("type").and_then(Value::as_str) == Some(condition)
            && c.get("status").and_then(Value::as_str) == Some("True")
    })
}

fn compiled(version: &Value, spec: &Value) -> Arc<Node> {
    let raw = version.pointer("/schema/openAPIV3Schema");
    let parsed = raw.and_then(|raw| Node::parse(raw).ok()).unwrap_or_default();
    if spec.get("preserveUnknownFields") == Some(&Value::Bool(true)) {
        return Arc::new(Node { preserve_unknown: true, ..(*parsed).clone() });
    }
    parsed
}

fn subresources(version: &Value) -> Vec<Subresource> {
    let mut found = Vec::new();
    if version.pointer("/subresources/status").is_some_and(|s| !s.is_null()) {
        found.push(Subresource { name: "status", kind: None, verbs: STATUS_VERBS });
    }
    found
}

fn columns(version: &Value) -> Vec<Column> {
    let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    let described = |field: &str| BuiltinSchemas::shared().description(meta, field);
    let mut columns = vec![Column {
        name: "Name".to_owned(),
        kind: "string".to_owned(),
        format: "name".to_owned(),
        description: described("name"),
        priority: 0,
        path: None,
    }];
    let given =
        version.get("additionalPrinterColumns").and_then(Value::as_array).filter(|list| !list.is_empty());
    let Some(given) = given else {
        columns.push(Column {
            name: "Age".to_owned(),
            kind: "date".to_owned(),
            format: String::new(),
            description: described("creationTimestamp"),
            priority: 0,
            path: Some(".metadata.creationTimestamp".to_owned()),
        });
        return columns;
    };
    columns.extend(given.iter().map(|column| {
        let text = |key: &str| column.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let path = text("jsonPath");
        let described = match text("description") {
            given if !given.is_empty() => given,
            _ => format!("Custom resource definition column (in JSONPath format): {path}"),
        };
        Column {
            name: text("name"),
            kind: text("type"),
            format: text("format"),
            description: described,
            priority: column
                .get("priority")
                .and_then(Value::as_i64)
                .and_then(|p| i32::try_from(p).ok())
                .unwrap_or_default(),
            path: Some(path),
        }
    }));
    columns
}

fn selectable(version: &Value) -> Vec<String> {
    let fields = version.get("selectableFields").and_then(Value::as_array);
    let paths = fields.into_iter().flatten().filter_map(|f| f.get("jsonPath")?.as_str());
    paths.map(|path| path.trim_start_matches('.').to_owned()).collect()
}
