//! What is served: health, version and discovery, in the old form (a document a version) and the aggregated one.

use axum::response::{IntoResponse, Response};
use base64::Engine;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::negotiate::{self, Discovery};
use super::request::Params;
use super::status::{Result, json_response};
use crate::kinds::openapi::KUBERNETES;
use crate::kinds::{Kind, Kinds};

/// Answers health checks: there is one thing to check, that requests are answered.
pub fn health(path: &str, params: &Params) -> Response {
    let body = match params.get("verbose") {
        None => "ok".to_owned(),
        Some(_) => format!(
            "[+]ping ok\n{} check passed\n",
            path.trim_start_matches('/').split('/').next().unwrap_or_default()
        ),
    };
    let headers =
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (StatusCode::OK, headers, body).into_response()
}

/// `None` for a path that is not one of discovery's.
pub fn serve(kinds: &Kinds, path: &str, headers: &HeaderMap) -> Result<Option<Response>> {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let document = match parts.as_slice() {
        ["version"] => version(),
        [""] => roots(kinds),
        [root @ ("api" | "apis")] => {
            return Ok(Some(match negotiate::discovery(headers)? {
                Discovery::Aggregated(version) => aggregated(kinds, root, version),
                Discovery::Legacy if *root == "api" => plain(&core()),
                Discovery::Legacy => plain(&groups(kinds)),
            }));
        }
        ["api", "v1"] => resources(kinds, "", "v1"),
        ["apis", group] => match kinds.groups().into_iter().find(|(name, _)| **name == **group) {
            Some((name, versions)) => {
                let mut document = Map::from_iter([
                    ("kind".to_owned(), "APIGroup".into()),
                    ("apiVersion".to_owned(), "v1".into()),
                ]);
                document.extend(self::group(&name, &versions));
                Value::Object(document)
            }
            None => return Ok(None),
        },
        ["apis", group, version] => {
            let known = kinds
                .groups()
                .into_iter()
                .any(|(name, versions)| *name == **group && versions.iter().any(|v| **v == **version));
            if !known {
                return Ok(None);
            }
            resources(kinds, group, version)
        }
        _ => return Ok(None),
    };
    Ok(Some(plain(&document)))
}

fn plain(document: &Value) -> Response {
    json_response(StatusCode::OK, document.to_string().into())
}

fn version() -> Value {
    let mut parts = KUBERNETES.trim_start_matches('v').split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    json!({
        "major": major, "minor": minor, "emulationMajor": major, "emulationMinor": minor, "minCompatibilityMajor": major,
        "minCompatibilityMinor": minor.parse::<u32>().map_or_else(|_| minor.to_owned(), |m| m.saturating_sub(1).to_string()),
        "gitVersion": KUBERNETES, "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "go1.26", "compiler": "gc", "platform": format!("{}/{}", std::env::consts::OS, platform()),
    })
}

/// The architecture as Go names it.
fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn roots(kinds: &Kinds) -> Value {
    let mut paths = vec!["/api".to_owned(), "/api/v1".to_owned(), "/apis".to_owned()];
    for (group, versions) in kinds.groups() {
        paths.push(format!("/apis/{group}"));
        paths.extend(versions.iter().map(|version| format!("/apis/{group}/{version}")));
    }
    paths.extend(["/healthz", "/livez", "/openapi/v3", "/readyz", "/version"].map(str::to_owned));
    json!({"paths": paths})
}

fn core() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}]})
}

fn groups(kinds: &Kinds) -> Value {
    let groups: Vec<Value> =
        kinds.groups().iter().map(|(name, versions)| Value::Object(group(name, versions))).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn group(name: &str, versions: &[std::sync::Arc<str>]) -> Map<String, Value> {
    let listed: Vec<Value> =
        versions.iter().map(|v| json!({"groupVersion": format!("{name}/{v}"), "version": &**v})).collect();
    let preferred = listed.first().cloned().unwrap_or_default();
    Map::from_iter([
        ("name".to_owned(), name.into()),
        ("versions".to_owned(), listed.into()),
        ("preferredVersion".to_owned(), preferred),
    ])
}

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

fn resources(kinds: &Kinds, group: &str, version: &str) -> Value {
    let listed: Vec<Value> =
        kinds.of_version(group, version).into_iter().flat_map(|kind| legacy(kind)).collect();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version(group, version), "resources": listed})
}

fn legacy(kind: &Kind) -> Vec<Value> {
    let mut main = json!({
        "name": &*kind.plural, "singularName": &*kind.singular, "namespaced": kind.is_namespaced(), "kind": &*kind.kind, "verbs": kind.verbs,
    });
    if let Some(fields) = main.as_object_mut() {
        if !kind.short_names.is_empty() {
            fields.insert("shortNames".to_owned(), json!(kind.short_names));
        }
        if !kind.categories.is_empty() {
            fields.insert("categories".to_owned(), json!(kind.categories));
        }
        if kind.verbs.contains(&"list") {
            fields.insert("storageVersionHash".to_owned(), storage_hash(kind).into());
        }
    }
    let mut found = vec![main];
    for sub in &kind.subresources {
        let mut entry = json!({
            "name": format!("{}/{}", kind.plural, sub.name), "singularName": "", "namespaced": kind.is_namespaced(),
            "kind": sub.kind.map_or(&*kind.kind, |(_, _, kind)| kind), "verbs": sub.verbs,
        });
        if let (Some((group, version, _)), Some(fields)) =
            (sub.kind.filter(|(group, ..)| **group != *kind.group), entry.as_object_mut())
        {
            fields.insert("group".to_owned(), group.into());
            fields.insert("version".to_owned(), version.into());
        }
        found.push(entry);
    }
    found
}

/// Changes when objects of the kind are stored in another version.
fn storage_hash(kind: &Kind) -> String {
    let stored = kind
        .storage_version
        .split_once('/')
        .map_or((String::new(), &*kind.storage_version), |(group, version)| (group.to_owned(), version));
    let digest = Sha256::digest(format!("{}/{}/{}", stored.0, stored.1, kind.kind));
    base64::engine::general_purpose::STANDARD.encode(digest.get(..8).unwrap_or_default())
}

fn aggregated(kinds: &Kinds, root: &str, version: &str) -> Response {
    let groups: Vec<(String, Vec<String>)> = if root == "api" {
        vec![(String::new(), vec!["v1".to_owned()])]
    } else {
        kinds
            .groups()
            .into_iter()
            .map(|(name, versions)| (name.to_string(), versions.iter().map(|v| v.to_string()).collect()))
            .collect()
    };
    let items: Vec<Value> = groups
        .iter()
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    let resources: Vec<Value> =
                        kinds.of_version(group, version).into_iter().map(|kind| discovered(kind)).collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let metadata = if group.is_empty() {
                json!({"creationTimestamp": null})
            } else {
                json!({"name": group, "creationTimestamp": null})
            };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    let document = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"), "metadata": {}, "items": items,
    });
    let mut response = plain(&document);
    let content_type = match version {
        "v2" => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        _ => "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
    };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn discovered(kind: &Kind) -> Value {
    let scope = if kind.is_namespaced() { "Namespaced" } else { "Cluster" };
    // Of a built-in kind the group and version are those around it, and left out.
    let (group, version) = if kind.builtin().is_some() { ("", "") } else { (&*kind.group, &*kind.version) };
    let own = || json!({"group": group, "version": version, "kind": &*kind.kind});
    let mut entry = json!({
        "resource": &*kind.plural, "responseKind": own(), "scope": scope, "singularResource": &*kind.singular, "verbs": kind.verbs,
    });
    let Some(fields) = entry.as_object_mut() else { return entry };
    if !kind.short_names.is_empty() {
        fields.insert("shortNames".to_owned(), json!(kind.short_names));
    }
    if !kind.categories.is_empty() {
        fields.insert("categories".to_owned(), json!(kind.categories));
    }
    if !kind.subresources.is_empty() {
        let subs: Vec<Value> = kind
            .subresources
            .iter()
            .map(|sub| {
                let answer = sub.kind.map_or_else(
                    own,
                    |(group, version, kind)| json!({"group": group, "version": version, "kind": kind}),
                );
                json!({"subresource": sub.name, "responseKind": answer, "verbs": sub.verbs})
            })
            .collect();
        fields.insert("subresources".to_owned(), subs.into());
    }
    entry
}
