//! The schemas of built-in kinds, from a real kube-apiserver: `openapi.json` from what it publishes, `protobuf.txt` from the Go types that it
//! is compiled from. Only what our kinds reach is kept.

mod go_types;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

const TARGET: &str = "crates/embedded/src/kinds";

/// The kinds that the embedded API serves, by the document that holds them.
const DOCUMENTS: &[(&str, &[&str])] = &[
    (
        "api/v1",
        &[
            "Namespace",
            "Node",
            "Pod",
            "Secret",
            "ConfigMap",
            "Event",
            "ServiceAccount",
            "Service",
            "Binding",
            "TokenRequest",
        ],
    ),
    ("apis/events.k8s.io/v1", &["Event"]),
    ("apis/coordination.k8s.io/v1", &["Lease"]),
    ("apis/batch/v1", &["Job"]),
    ("apis/networking.k8s.io/v1", &["Ingress"]),
    ("apis/apiextensions.k8s.io/v1", &["CustomResourceDefinition"]),
    ("apis/authentication.k8s.io/v1", &["TokenReview", "SelfSubjectReview"]),
    (
        "apis/authorization.k8s.io/v1",
        &[
            "SubjectAccessReview",
            "SelfSubjectAccessReview",
            "LocalSubjectAccessReview",
            "SelfSubjectRulesReview",
        ],
    ),
    ("apis/rbac.authorization.k8s.io/v1", &["Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"]),
];

#[derive(clap::Args)]
pub struct Arguments {
    /// Where a kube-apiserver listens, such as <https://127.0.0.1:6443>
    #[arg(long)]
    server: String,
    /// A bearer token of its administrator
    #[arg(long)]
    token: String,
    /// The Go module cache that holds k8s.io/api and k8s.io/apimachinery of the same version (`go env GOMODCACHE`)
    #[arg(long)]
    modules: PathBuf,
}

pub fn write(arguments: &Arguments) -> Result<()> {
    let version = fetch(arguments, "version")?;
    let version = version
        .get("gitVersion")
        .and_then(Value::as_str)
        .context("the server does not tell its version")?
        .to_owned();
    let definitions = definitions(arguments)?;
    let mut lines: Vec<String> = Vec::with_capacity(definitions.len());
    for (name, definition) in &definitions {
        lines.push(format!("{}:{}", serde_json::to_string(name)?, definition));
    }
    let text = format!("{{\"kubernetes\":\"{version}\",\"schemas\":{{\n{}\n}}}}\n", lines.join(",\n"));
    put(&Path::new(TARGET).join("openapi.json"), &text)?;
    let minor = version.trim_start_matches("v1.");
    put(
        &Path::new(TARGET).join("protobuf.txt"),
        &go_types::messages(&arguments.modules, &format!("v0.{minor}"))?,
    )
}

fn put(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

/// Certificates of a server made for this are its own, so they are not checked: nothing secret is asked for.
fn fetch(arguments: &Arguments, path: &str) -> Result<Value> {
    let url = format!("{}/{path}", arguments.server.trim_end_matches('/'));
    let header = format!("Authorization: Bearer {}", arguments.token);
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--fail", "--insecure", "--header", &header, &url])
        .output();
    let output = output.context("curl cannot be run; install it")?;
    ensure!(output.status.success(), "{url}: {}", String::from_utf8_lossy(&output.stderr).trim());
    serde_json::from_slice(&output.stdout).with_context(|| format!("{url} does not answer with JSON"))
}

fn definitions(arguments: &Arguments) -> Result<BTreeMap<String, Value>> {
    let ours: BTreeSet<(String, String)> =
        DOCUMENTS.iter().map(|(document, _)| group_version(document)).collect();
    let mut found = BTreeMap::new();
    for (document, kinds) in DOCUMENTS {
        let answer = fetch(arguments, &format!("openapi/v3/{document}"))?;
        let schemas = answer
            .pointer("/components/schemas")
            .and_then(Value::as_object)
            .with_context(|| format!("{document} has no schemas"))?;
        let mut open: Vec<String> = roots(schemas, &group_version(document), kinds);
        for kind in *kinds {
            let suffix = format!(".{kind}");
            ensure!(open.iter().any(|name| name.ends_with(&suffix)), "{document} has no {kind}");
        }
        while let Some(name) = open.pop() {
            if found.contains_key(&name) {
                continue;
            }
            let mut schema =
                schemas.get(&name).cloned().with_context(|| format!("{document} has no {name}"))?;
            references(&schema, &mut open);
            keep_our_kinds(&name, &mut schema, &ours);
            schema.sort_all_objects();
            found.insert(name, schema);
        }
    }
    Ok(found)
}

fn group_version(document: &str) -> (String, String) {
    match document.split('/').collect::<Vec<_>>().as_slice() {
        [_, group, version] => ((*group).to_owned(), (*version).to_owned()),
        [_, version] => (String::new(), (*version).to_owned()),
        _ => (String::new(), String::new()),
    }
}

/// The kinds, their lists, and what every version has.
fn roots(
    schemas: &serde_json::Map<String, Value>,
    (group, version): &(String, String),
    kinds: &[&str],
) -> Vec<String> {
    let wanted = |kind: &str| {
        let plain = kind.strip_suffix("List").unwrap_or(kind);
        kinds.contains(&kind) || kinds.contains(&plain) || ["DeleteOptions", "Status"].contains(&kind)
    };
    let named = |name: &str| name.rsplit('.').next().is_some_and(|short| kinds.contains(&short));
    let of_kind = |schema: &Value| {
        let kinds = schema["x-kubernetes-group-version-kind"].as_array();
        kinds.into_iter().flatten().any(|k| {
            k["group"] == *group && k["version"] == *version && k["kind"].as_str().is_some_and(wanted)
        })
    };
    schemas
        .iter()
        .filter(|(name, schema)| of_kind(schema) || (named(name) && is_root(schema)))
        .map(|(name, _)| name.clone())
        .collect()
}

/// Reviews and token requests are kinds without a list.
fn is_root(schema: &Value) -> bool {
    schema.get("x-kubernetes-group-version-kind").is_some()
}

fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value
                    .as_str()
                    .filter(|_| key == "$ref")
                    .and_then(|reference| reference.rsplit('/').next())
                {
                    Some(name) => found.push(name.to_owned()),
                    None => references(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Types that all groups share list every group of the server; ours are enough.
fn keep_our_kinds(name: &str, schema: &mut Value, ours: &BTreeSet<(String, String)>) {
    if !name.starts_with("io.k8s.apimachinery") {
        return;
    }
    let Some(kinds) = schema.get_mut("x-kubernetes-group-version-kind").and_then(Value::as_array_mut) else {
        return;
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    kinds.retain(|kind| ours.contains(&(text(&kind["group"]), text(&kind["version"]))));
}
