//! What an image is made of, as CycloneDX: the crates in the binary, the Debian packages, the tool. Made of the same inputs as the image, so it
//! has neither a time nor a serial number.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Architecture;
use super::debian::Package;
use super::layout::Identity;

/// A program that was put in as a file.
#[derive(Debug)]
pub(super) struct Program<'a> {
    pub(super) name: &'a str,
    pub(super) sha256: &'a str,
}

pub(super) fn document(
    identity: &Identity<'_>,
    digest: &str,
    crates: &[Value],
    packages: &[&Package],
    programs: &[Program<'_>],
) -> Value {
    let mut components: Vec<Value> = programs
        .iter()
        .map(|program| {
            json!({
                "type": "file",
                "bom-ref": format!("file:usr/local/bin/{}", program.name),
                "name": format!("/usr/local/bin/{}", program.name),
                "hashes": [{ "alg": "SHA-256", "content": program.sha256 }],
            })
        })
        .collect();
    components.extend(crates.iter().cloned());
    components.extend(packages.iter().map(|package| {
        // Both characters have a meaning of their own in a package URL.
        let version = package.version.replace('+', "%2B").replace(':', "%3A");
        let purl = format!(
            "pkg:deb/debian/{}@{version}?arch={}&distro=debian-12",
            package.name,
            identity.architecture.as_str()
        );
        json!({
            "type": "library",
            "bom-ref": purl,
            "name": package.name,
            "version": package.version,
            "purl": purl,
            "hashes": [{ "alg": "SHA-256", "content": package.sha256 }],
        })
    }));
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "bom-ref": identity.name,
                "name": identity.title,
                "version": identity.version,
                "hashes": [{ "alg": "SHA-256", "content": digest.trim_start_matches("sha256:") }],
            },
        },
        "components": components,
    })
}

/// The crates that the binary is linked from, asked of cargo: Cargo.lock alone also names what only tests and builds use.
pub(super) fn crates(architecture: Architecture, lock: &str) -> Result<Vec<Value>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", architecture.target()])
        .output()
        .context("cargo cannot be run")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    linked(&serde_json::from_slice(&output.stdout)?, "terrane", &checksums(lock))
}

/// By name and version, from the registry's packages in Cargo.lock.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    lock.split("[[package]]")
        .filter_map(|package| {
            let field = |key: &str| {
                let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""))?;
                Some(line.trim_end_matches('"').to_owned())
            };
            Some(((field("name")?, field("version")?), field("checksum")?))
        })
        .collect()
}

/// From one package of the workspace along what is linked: each package and each edge is looked at once.
fn linked(
    metadata: &Value,
    root: &str,
    checksums: &BTreeMap<(String, String), String>,
) -> Result<Vec<Value>> {
    let list =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let packages: BTreeMap<String, Value> = list(metadata, "packages")
        .into_iter()
        .filter_map(|package| Some((text(&package, "id")?, package)))
        .collect();
    let resolve = metadata.get("resolve").context("cargo metadata resolves nothing")?;
    let nodes: BTreeMap<String, Value> =
        list(resolve, "nodes").into_iter().filter_map(|node| Some((text(&node, "id")?, node))).collect();
    let members: BTreeSet<String> =
        list(metadata, "workspace_members").iter().filter_map(|id| id.as_str().map(str::to_owned)).collect();
    let start = members
        .iter()
        .find(|id| packages.get(*id).and_then(|package| text(package, "name")).as_deref() == Some(root))
        .with_context(|| format!("the workspace has no package {root}"))?;
    let mut seen = BTreeSet::new();
    let mut open = vec![start.clone()];
    while let Some(id) = open.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let dependencies = nodes.get(&id).map(|node| list(node, "deps")).unwrap_or_default();
        let is_linked = |dependency: &Value| {
            list(dependency, "dep_kinds").iter().any(|kind| kind.get("kind").is_none_or(Value::is_null))
        };
        open.extend(
            dependencies
                .iter()
                .filter(|dependency| is_linked(dependency))
                .filter_map(|dependency| text(dependency, "pkg")),
        );
    }
    let mut components: BTreeMap<String, Value> = BTreeMap::new();
    for package in seen.iter().filter_map(|id| packages.get(id)) {
        let (name, version) =
            (text(package, "name").unwrap_or_default(), text(package, "version").unwrap_or_default());
        let purl = format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"));
        let mut component =
            json!({ "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl });
        if let Some(fields) = component.as_object_mut() {
            if let Some(licence) = text(package, "license") {
                fields.insert("licenses".to_owned(), json!([{ "expression": licence.replace('/', " OR ") }]));
            }
            if let Some(checksum) = checksums.get(&(name, version)) {
                fields.insert("hashes".to_owned(), json!([{ "alg": "SHA-256", "content": checksum }]));
            }
        }
        components.insert(purl, component);
    }
    Ok(components.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::super::debian::Group;
    use super::*;

    #[test]
    fn what_is_linked_is_named_and_what_is_not_is_not() {
        let dependency = |id: &str, kind: Value| json!({ "pkg": id, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "workspace_members": ["t"],
            "packages": [
                { "id": "t", "name": "terrane", "version": "0.1.0", "license": "Apache-2.0" },
                { "id": "a", "name": "serde", "version": "1.0.1", "license": "MIT/Apache-2.0" },
                { "id": "b", "name": "insta", "version": "1.0.0", "license": "MIT" },
                { "id": "c", "name": "cc", "version": "1.0.0", "license": "MIT" },
            ],
            "resolve": { "nodes": [
                { "id": "t", "deps": [dependency("a", Value::Null), dependency("b", json!("dev")), dependency("c", json!("build"))] },
                { "id": "a", "deps": [dependency("t", Value::Null)] },
            ] },
        });
        let lock = "[[package]]\nname = \"serde\"\nversion = \"1.0.1\"\nchecksum = \"aa\"\n\n[[package]]\nname = \"terrane\"\nversion = \"0.1.0\"\n";
        let crates = linked(&metadata, "terrane", &checksums(lock)).unwrap();
        let identity = Identity {
            name: "terrane.dev/terrane:0.1.0",
            title: "terrane",
            version: "0.1.0",
            architecture: Architecture::Amd64,
            process: &super::super::PROCESS,
        };
        let package = Package {
            group: Group::Base,
            name: "git".to_owned(),
            version: "1:2.39.5-0+deb12u3".to_owned(),
            sha256: "bb".to_owned(),
        };
        let programs = [Program { name: "terrane", sha256: "cc" }];
        insta::assert_json_snapshot!(document(&identity, "sha256:dd", &crates, &[&package], &programs));
    }

    #[test]
    fn the_crates_of_this_workspace_are_found() {
        let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock")).unwrap();
        let crates = crates(Architecture::of_this_machine().unwrap(), &lock).unwrap();
        let find = |name: &str| crates.iter().find(|component| component["name"] == name);
        assert!(find("terrane").is_some());
        assert!(find("tokio").is_some_and(|tokio| {
            tokio["hashes"][0]["content"].as_str().is_some_and(|hash| hash.len() == 64)
        }));
        // Only tests use it.
        assert!(find("insta").is_none());
    }
}
