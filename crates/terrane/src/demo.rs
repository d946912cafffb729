//! The demo: a Git repository made on the spot, and the objects that follow it. It is the first thing a newcomer sees, so every
//! layer shows something else: applied by itself, with a shared module, waiting for a person, failing in a way worth looking at,
//! drifting, or only copied for stacks. All of it is in `examples/demo`; here is only how it comes to this machine.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use api::{TerraformLayer, TerraformRepository};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use node::isolation::Isolation;
use serde_json::{Value, json};
use tokio::process::Command;

const NAMESPACE: &str = "default";

macro_rules! example {
    ($path:literal) => {
        ($path, include_str!(concat!("../../../examples/demo/", $path)))
    };
}

const FILES: &[(&str, &str)] = &[
    example!("network/main.tf"),
    example!("modules/service/main.tf"),
    example!("app/main.tf"),
    example!("database/main.tf"),
    example!("broken/main.tf"),
    example!("motd/main.tf"),
    example!("machine/main.tf"),
];

const MANIFESTS: &str = include_str!("../../../examples/demo/terrane.yaml");

/// Where the demo is on this machine.
#[derive(Debug)]
pub(crate) struct Demo {
    /// The Git repository.
    pub(crate) root: PathBuf,
    /// The file that the layer `motd` keeps.
    pub(crate) motd: PathBuf,
    manifests: Vec<Value>,
}

impl Demo {
    pub(crate) fn layers(&self) -> usize {
        let is_template = |manifest: &Value| manifest.pointer("/spec/template").is_some();
        self.manifests.iter().filter(|manifest| is_layer(manifest) && !is_template(manifest)).count()
    }
}

/// Makes the repository if there is none. What a person did to it since stays.
pub(crate) async fn prepare(data_dir: &Path, isolation: &Isolation) -> anyhow::Result<Demo> {
    let world = open_world(data_dir, isolation).context("make a place for the demo's infrastructure")?;
    let demo = Demo { root: data_dir.join("demo"), motd: world.join("motd"), manifests: manifests()? };
    let root = &demo.root;
    if root.join(".git").exists() {
        return Ok(demo);
    }
    let place = world.canonicalize().context("find the demo's infrastructure")?.join("motd");
    let variables = format!("file = {}\n", Value::from(place.display().to_string()));
    for (path, content) in FILES.iter().chain(&[("motd/terraform.tfvars", variables.as_str())]) {
        let file = root.join(path);
        let parent = file.parent().context("a demo file without a directory")?;
        tokio::fs::create_dir_all(parent).await.with_context(|| format!("create {}", parent.display()))?;
        tokio::fs::write(&file, content).await.with_context(|| format!("write {}", file.display()))?;
    }
    git(root, &["init", "--quiet", "--initial-branch=main"]).await?;
    git(root, &["add", "--all"]).await?;
    git(
        root,
        &[
            "-c",
            "user.name=demo",
            "-c",
            "user.email=demo@localhost",
            "commit",
            "--quiet",
            "--message=Start the demo",
        ],
    )
    .await?;
    Ok(demo)
}

/// A directory that this user and every pod can write to, found at `DATA-DIR/demo-world`.
fn open_world(data_dir: &Path, isolation: &Isolation) -> std::io::Result<PathBuf> {
    let pods = node::config::pods_directory(&data_dir.join("node"), isolation);
    let commons = node::config::commons_directory(&pods);
    std::fs::create_dir_all(&commons)?;
    if let Isolation::Users(_) = isolation {
        // Pods have users of their own, and each replaces what another made.
        std::fs::set_permissions(&commons, std::fs::Permissions::from_mode(0o777))?;
    }
    let here = data_dir.join("demo-world");
    match std::os::unix::fs::symlink(&commons, &here) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(here),
    }
}

fn manifests() -> anyhow::Result<Vec<Value>> {
    MANIFESTS
        .split("\n---\n")
        .map(|document| serde_saphyr::from_str(document).context("read the demo's manifests"))
        .collect()
}

fn is_layer(manifest: &Value) -> bool {
    manifest.get("kind").and_then(Value::as_str) == Some("TerraformLayer")
}

async fn git(root: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(arguments)
        .output()
        .await
        .context("start git; install it, or put it on the PATH")?;
    if !output.status.success() {
        bail!(
            "make the demo repository: git {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// Declares repository and layers. Server-side apply: at the next start nothing changes.
pub(crate) async fn declare(client: &Client, demo: &Demo) -> anyhow::Result<()> {
    let root = demo.root.canonicalize().context("find the demo repository")?;
    let url = format!("file://{}", root.display());
    let manager = PatchParams::apply("terrane-demo").force();
    for manifest in &demo.manifests {
        let name = manifest.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let doing = || format!("declare {name} of the demo");
        if is_layer(manifest) {
            let api = Api::<TerraformLayer>::namespaced(client.clone(), NAMESPACE);
            api.patch(name, &manager, &Patch::Apply(manifest)).await.with_context(doing)?;
        } else {
            let mut manifest = manifest.clone();
            if let Some(place) = manifest.pointer_mut("/spec/repository/url") {
                *place = json!(url);
            }
            let api = Api::<TerraformRepository>::namespaced(client.clone(), NAMESPACE);
            api.patch(name, &manager, &Patch::Apply(&manifest)).await.with_context(doing)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_layer_of_the_manifests_has_its_files() {
        let manifests = manifests().unwrap();
        let layers: Vec<&Value> = manifests.iter().filter(|manifest| is_layer(manifest)).collect();
        assert_eq!((manifests.len(), layers.len()), (7, 6));
        for layer in layers {
            let layer: TerraformLayer = serde_json::from_value(layer.clone()).unwrap();
            let file = format!("{}/main.tf", layer.spec.path.trimmed());
            assert!(FILES.iter().any(|(path, _)| *path == file), "{file}");
        }
    }
}
