//! What `terrane up` prints: where things are, then one line for each layer whenever it comes to rest.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;

use api::layer::LayerState;
use api::{TerraformLayer, condition};
use futures::TryStreamExt;
use kube::core::DeserializeGuard;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use node::isolation::Isolation;

use crate::demo::Demo;
use crate::environment;

pub(super) struct Places<'a> {
    pub(super) data: &'a Path,
    pub(super) service: SocketAddr,
    pub(super) link: &'a str,
    pub(super) kubeconfig: &'a Path,
    pub(super) demo: Option<&'a Demo>,
    pub(super) isolation: &'a Isolation,
    /// Where vendors' keys are looked for, without which nothing is downloaded.
    pub(super) keys: &'a Path,
}

pub(super) fn introduce(places: &Places<'_>) {
    println!(
        "terrane {}   everything on this machine, data in {}\n",
        env!("CARGO_PKG_VERSION"),
        places.data.display()
    );
    println!("  page     {}   opens without a password, once", places.link);
    println!("  service  http://{}", places.service);
    println!("  kubectl  export KUBECONFIG={}", places.kubeconfig.display());
    println!("  tool     {}", tools_on(&environment::search_path(), places.keys));
    if let Isolation::None { because } = places.isolation {
        println!("  warning  pods are not kept apart on this machine: {because}");
    }
    if let Some(demo) = places.demo {
        println!("  demo     {} is a Git repository with {} layers", demo.root.display(), demo.layers());
    }
    println!("\n  try      terrane get layers");
    if let Some(demo) = places.demo {
        println!("           terrane approve database && terrane logs -f database");
        println!("           edit {}/app/main.tf, commit, and watch", demo.root.display());
        println!("           change {} by hand, and see it put right", demo.motd.display());
    }
    println!("Ctrl-C stops it; nothing is lost.\n");
}

/// Which tools are installed, for people. Not asked for their versions: that takes as long as the rest of the start.
fn tools_on(path: &OsStr, keys: &Path) -> String {
    let place =
        |name: &str| std::env::split_paths(path).map(|dir| dir.join(name)).find(|file| file.is_file());
    let found: Vec<String> = ["terraform", "tofu", "terragrunt"]
        .into_iter()
        .filter_map(|name| Some(format!("{name}, found at {}", place(name)?.display())))
        .collect();
    if found.is_empty() {
        return format!(
            "none is installed; install one, or put its vendor's key into {} to have it downloaded (docs/tools.md)",
            keys.display()
        );
    }
    found.join("\n           ")
}

/// Prints a line when a layer has come to rest in another way than before. Ends only with an error.
pub(super) async fn follow(client: &Client) -> anyhow::Result<()> {
    // The controllers tell of a layer that cannot be read; here it only must not hide the others.
    let layers = Api::<DeserializeGuard<TerraformLayer>>::all(client.clone());
    let layers = watcher(layers, watcher::Config::default());
    let mut told: HashMap<String, String> = HashMap::new();
    let mut layers = std::pin::pin!(layers.default_backoff().applied_objects());
    loop {
        match layers.try_next().await {
            Ok(Some(DeserializeGuard(Ok(layer)))) => tell(&layer, &mut told),
            Ok(Some(DeserializeGuard(Err(_)))) => {}
            Ok(None) => return Ok(()),
            // The watch is opened again by itself.
            Err(error) => tracing::debug!(%error, "the watch of layers was interrupted"),
        }
    }
}

fn tell(layer: &TerraformLayer, told: &mut HashMap<String, String>) {
    let Some(status) = &layer.status else { return };
    let Some(ready) = condition::find(&status.conditions, "Ready") else { return };
    if condition::is_true(&status.conditions, "Reconciling") || ready.status == "Unknown" {
        return;
    }
    let stalled = condition::is_true(&status.conditions, "Stalled");
    let drifted = condition::is_true(&status.conditions, "Drifted");
    let word = match (status.state, stalled, drifted) {
        (_, true, _) => "failed",
        (_, false, true) => "drifted",
        (Some(LayerState::Idle), false, false) => "ok",
        (Some(LayerState::PlanNeeded | LayerState::ApplyNeeded) | None, false, false) => "waits",
    };
    let line = format!("  {word:<8} {:<12} {}", layer.name_any(), ready.message);
    let key = format!("{}/{}", layer.namespace().unwrap_or_default(), layer.name_any());
    if told.get(&key) != Some(&line) {
        println!("{line}");
        told.insert(key, line);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn installed_tools_are_named_with_their_places() {
        let place = tempfile::tempdir().unwrap();
        let keys = Path::new("/data/tool-keys");
        assert_eq!(
            tools_on(place.path().as_os_str(), keys),
            "none is installed; install one, or put its vendor's key into /data/tool-keys to have it downloaded (docs/tools.md)"
        );
        for name in ["tofu", "terraform"] {
            std::fs::write(place.path().join(name), "").unwrap();
        }
        let at = place.path().display();
        let told = tools_on(place.path().as_os_str(), keys);
        assert_eq!(told, format!("terraform, found at {at}/terraform\n           tofu, found at {at}/tofu"));
    }
}
