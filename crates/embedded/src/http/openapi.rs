//! OpenAPI v3: an index with a hash a document, and a document a version with what `kubectl explain` and its validation read: the schemas,
//! and paths that say which kind they lead to and which parameters a patch takes.

mod protobuf;
pub mod v2;

use std::collections::BTreeSet;

use axum::response::Response;
use http::StatusCode;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::status::json_response;
use crate::kinds::openapi as schemas;
use crate::kinds::{Kind, Kinds, Origin};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// `rest` is the path behind `/openapi/v3`.
pub fn serve(kinds: &Kinds, rest: &str) -> Option<Response> {
    if rest.is_empty() {
        return Some(json_response(StatusCode::OK, index(kinds).to_string().into()));
    }
    let (group, version) = match rest.trim_start_matches('/').split('/').collect::<Vec<_>>().as_slice() {
        ["api", version] => (String::new(), (*version).to_owned()),
        ["apis", group, version] => ((*group).to_owned(), (*version).to_owned()),
        _ => return None,
    };
    let of_version = kinds.of_version(&group, &version);
    if of_version.is_empty() {
        return None;
    }
    Some(json_response(StatusCode::OK, document(&of_version).into()))
}

fn index(kinds: &Kinds) -> Value {
    let mut versions: Vec<(String, String)> = vec![(String::new(), "v1".to_owned())];
    for (group, of_group) in kinds.groups() {
        versions.extend(of_group.iter().map(|version| (group.to_string(), version.to_string())));
    }
    let mut paths = Map::new();
    for (group, version) in versions {
        let of_version = kinds.of_version(&group, &version);
        let path =
            if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
        // Built-in schemas change with the binary only, so their document need not be made to be told apart.
        let digest = match of_version.iter().any(|kind| kind.builtin().is_none()) {
            true => Sha256::digest(document(&of_version)),
            false => Sha256::digest(format!("{}{}{path}", schemas::KUBERNETES, env!("CARGO_PKG_VERSION"))),
        };
        let hash = hex::encode_upper(digest);
        paths.insert(path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")}));
    }
    json!({"paths": paths})
}

/// The document as text: built-in schemas are text already and are put in as they are.
fn document(kinds: &[&std::sync::Arc<Kind>]) -> String {
    let mut roots: Vec<&str> = vec![
        "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
        "io.k8s.apimachinery.pkg.apis.meta.v1.Status",
    ];
    let mut custom: Vec<(String, Value)> = Vec::new();
    let mut paths = Map::new();
    let lists: Vec<String> = kinds.iter().map(|kind| format!("{}List", kind.definition)).collect();
    for (kind, list) in kinds.iter().zip(&lists) {
        paths.extend(self::paths(kind));
        match &kind.origin {
            Origin::Builtin(_) => roots.extend([kind.definition, list.as_str()]),
            Origin::Custom(definition) => {
                roots.push("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
                roots.push("io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta");
                let raw = definition
                    .versions
                    .iter()
                    .find(|(name, _)| *name == kind.version)
                    .map(|(_, raw)| raw.clone())
                    .unwrap_or_default();
                custom.extend(custom_schemas(kind, raw));
            }
        }
    }
    let names: BTreeSet<&str> = schemas::closure(&roots);
    let mut all: Vec<String> =
        names.iter().filter_map(|name| Some(format!("{name:?}:{}", schemas::document(name)?))).collect();
    all.extend(custom.iter().map(|(name, schema)| format!("{name:?}:{schema}")));
    let info = json!({"title": "Kubernetes", "version": schemas::KUBERNETES});
    format!(
        r#"{{"openapi":"3.0.0","info":{info},"paths":{},"components":{{"schemas":{{{}}}}}}}"#,
        Value::Object(paths),
        all.join(",")
    )
}

/// `dev.terrane.v1alpha1.TerraformLayer`.
fn definition_name(kind: &Kind) -> String {
    let reversed: Vec<&str> = kind.group.rsplit('.').collect();
    format!("{}.{}.{}", reversed.join("."), kind.version, kind.kind)
}

fn custom_schemas(kind: &Kind, raw: Value) -> Vec<(String, Value)> {
    let name = definition_name(kind);
    let gvk =
        |kind_name: &str| json!([{"group": &*kind.group, "version": &*kind.version, "kind": kind_name}]);
    let mut schema = raw;
    if !schema.is_object() {
        schema = json!({"type": "object"});
    }
    let reference = |target: &str| json!({"allOf": [{"$ref": format!("#/components/schemas/{target}")}]});
    if let Some(fields) = schema.as_object_mut() {
        fields.insert("x-kubernetes-group-version-kind".to_owned(), gvk(&kind.kind));
        if !kind.selectable.is_empty() {
            let selectable = kind.selectable.iter().map(|path| json!({"fieldPath": path})).collect();
            fields.insert("x-kubernetes-selectable-fields".to_owned(), selectable);
        }
        let properties = fields.entry("properties").or_insert_with(|| json!({}));
        if let Some(properties) = properties.as_object_mut() {
            properties.insert(
                "apiVersion".to_owned(),
                json!({"type": "string", "description": type_description("apiVersion")}),
            );
            properties.insert(
                "kind".to_owned(),
                json!({"type": "string", "description": type_description("kind")}),
            );
            let mut metadata = reference(&format!("{META}.ObjectMeta"));
            if let Some(metadata) = metadata.as_object_mut() {
                let text = "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";
                metadata.insert("description".to_owned(), text.into());
            }
            properties.insert("metadata".to_owned(), metadata);
        }
    }
    let item = format!("#/components/schemas/{name}");
    let list = json!({
        "description": format!("{} is a list of {}", kind.list_kind, kind.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": type_description("apiVersion")},
            "kind": {"type": "string", "description": type_description("kind")},
            "metadata": reference(&format!("{META}.ListMeta")),
            "items": {"type": "array", "description": format!("List of {}. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md", kind.plural), "items": {"$ref": item}},
        },
        "x-kubernetes-group-version-kind": gvk(&kind.list_kind),
    });
    vec![(name, schema), (format!("{}List", definition_name(kind)), list)]
}

/// What every kind says of these two fields.
fn type_description(field: &str) -> String {
    crate::kinds::BuiltinSchemas::shared().description("io.k8s.api.core.v1.Pod", field)
}

fn paths(kind: &Kind) -> Map<String, Value> {
    let root = if kind.group.is_empty() {
        format!("/api/{}", kind.version)
    } else {
        format!("/apis/{}/{}", kind.group, kind.version)
    };
    let base = if kind.is_namespaced() {
        format!("{root}/namespaces/{{namespace}}/{}", kind.plural)
    } else {
        format!("{root}/{}", kind.plural)
    };
    let gvk = json!({"group": &*kind.group, "version": &*kind.version, "kind": &*kind.kind});
    let operation = |action: &str, parameters: &[&str]| {
        let parameters: Vec<Value> = parameters.iter().map(|name| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}})).collect();
        json!({"x-kubernetes-action": action, "x-kubernetes-group-version-kind": gvk, "parameters": parameters, "responses": {"200": {"description": "OK"}}})
    };
    const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
    let has = |verb: &str| kind.verbs.contains(&verb);
    let (mut collection, mut single) = (Map::new(), Map::new());
    for (verb, method, parameters) in [
        ("list", "get", &["labelSelector", "fieldSelector", "limit", "continue", "watch"][..]),
        ("create", "post", WRITE),
    ] {
        if has(verb) {
            collection.insert(
                method.to_owned(),
                operation(if verb == "create" { "post" } else { verb }, parameters),
            );
        }
    }
    for (verb, method, parameters) in [
        ("get", "get", &[][..]),
        ("update", "put", WRITE),
        ("patch", "patch", &["dryRun", "fieldManager", "fieldValidation", "force"]),
        ("delete", "delete", &["dryRun", "gracePeriodSeconds", "propagationPolicy"]),
    ] {
        if has(verb) {
            single.insert(
                method.to_owned(),
                operation(if verb == "update" { "put" } else { verb }, parameters),
            );
        }
    }
    let mut found = Map::from_iter([(base.clone(), Value::Object(collection))]);
    let has_status = kind.subresources.iter().any(|subresource| subresource.name == "status");
    if has_status && kind.builtin().is_none() {
        // As far as a status can be asked for: it is neither made nor deleted.
        let status = single.iter().filter(|(method, _)| *method != "delete");
        let status = status.map(|(method, operation)| (method.clone(), operation.clone())).collect();
        found.insert(format!("{base}/{{name}}/status"), Value::Object(status));
    }
    if !single.is_empty() {
        found.insert(format!("{base}/{{name}}"), Value::Object(single));
    }
    found
}
