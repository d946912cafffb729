//! The demo: a Git repository made on the spot, and the objects that follow it. It is the first thing a newcomer sees, so every
//! layer shows something else: plain, with a shared module, waiting for a person, failing in a way worth looking at.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::process::Command;

use api::{TerraformLayer, TerraformRepository};

const NAMESPACE: &str = "default";

const FILES: &[(&str, &str)] = &[
    (
        "network/main.tf",
        r#"# Applied by itself: the layer has autoApply.
resource "terraform_data" "vpc" {
  input = { cidr = "10.0.0.0/16" }
}

resource "terraform_data" "subnet" {
  input = { vpc = terraform_data.vpc.id, cidr = "10.0.1.0/24" }
}

output "cidr" {
  value = terraform_data.subnet.output.cidr
}
"#,
    ),
    (
        "modules/service/main.tf",
        r#"# Shared by layers. A commit that touches this directory is relevant to each layer that calls it.
variable "name" {
  type = string
}

resource "terraform_data" "service" {
  input = "service ${var.name}"
}
"#,
    ),
    (
        "app/main.tf",
        r#"# Calls a local module, and is applied by itself.
module "web" {
  source = "../modules/service"
  name   = "web"
}
"#,
    ),
    (
        "database/main.tf",
        r#"# Its plan waits for a person: terrane approve database
resource "terraform_data" "db" {
  count = 3
  input = "replica ${count.index}"
}
"#,
    ),
    (
        "broken/main.tf",
        r#"# Fails on purpose: the module needs a name.
module "nameless" {
  source = "../modules/service"
}
"#,
    ),
];

/// The layers, each with whether its plans are applied without asking.
const LAYERS: &[(&str, bool)] = &[("network", true), ("app", true), ("database", false), ("broken", false)];

pub(crate) const LAYER_COUNT: usize = LAYERS.len();

/// Makes the repository if there is none. What a person did to it since stays.
pub(crate) async fn prepare(data_dir: &Path) -> anyhow::Result<PathBuf> {
    let root = data_dir.join("demo");
    if root.join(".git").exists() {
        return Ok(root);
    }
    for (path, content) in FILES {
        let file = root.join(path);
        let parent = file.parent().context("a demo file without a directory")?;
        tokio::fs::create_dir_all(parent).await.with_context(|| format!("create {}", parent.display()))?;
        tokio::fs::write(&file, content).await.with_context(|| format!("write {}", file.display()))?;
    }
    git(&root, &["init", "--quiet", "--initial-branch=main"]).await?;
    git(&root, &["add", "--all"]).await?;
    git(
        &root,
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
    Ok(root)
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
pub(crate) async fn declare(client: &Client, root: &Path) -> anyhow::Result<()> {
    let root = root.canonicalize().context("find the demo repository")?;
    let manager = PatchParams::apply("terrane-demo").force();
    let object = |kind: &str, name: &str, spec: serde_json::Value| {
        let metadata = json!({ "name": name, "namespace": NAMESPACE });
        json!({ "apiVersion": "terrane.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec })
    };
    let url = format!("file://{}", root.display());
    let repository = object(
        "TerraformRepository",
        "demo",
        json!({ "repository": { "url": url }, "pollInterval": "2s", "remediationStrategy": { "onError": { "maxRetries": 1 } } }),
    );
    Api::<TerraformRepository>::namespaced(client.clone(), NAMESPACE)
        .patch("demo", &manager, &Patch::Apply(repository))
        .await
        .context("declare the demo repository")?;
    for (name, auto_apply) in LAYERS {
        let layer = object(
            "TerraformLayer",
            name,
            json!({
                "repository": { "name": "demo" }, "branch": "main", "path": name,
                "remediationStrategy": { "autoApply": auto_apply },
            }),
        );
        Api::<TerraformLayer>::namespaced(client.clone(), NAMESPACE)
            .patch(name, &manager, &Patch::Apply(layer))
            .await
            .with_context(|| format!("declare the demo layer {name}"))?;
    }
    Ok(())
}
