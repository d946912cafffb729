//! `terrane suspend` and `terrane resume`.

use anyhow::{Context, bail};
use api::TerraformLayer;
use clap::Args;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::render;
use crate::arguments::{Shape, Target};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The layers
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    layers: Vec<String>,
    /// All layers of the namespace
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Suspend,
    Resume,
}

pub(crate) async fn run(options: Options, wish: Wish) -> anyhow::Result<()> {
    let (client, namespace) = super::connect(&options.target).await?;
    let api = Api::<TerraformLayer>::namespaced(client.clone(), &namespace);
    let mut layers = Vec::new();
    if options.all {
        layers = api.list(&ListParams::default()).await.context("list the layers")?.items;
        if layers.is_empty() {
            bail!("namespace {namespace} has no layers");
        }
    }
    for name in &options.layers {
        layers.push(super::layer(&client, &namespace, name).await?);
    }
    let suspend = wish == Wish::Suspend;
    for layer in layers {
        let name = layer.name_any();
        let changed = if layer.spec.suspend == suspend {
            layer
        } else {
            api.patch(
                &name,
                &PatchParams::default(),
                &Patch::Merge(json!({ "spec": { "suspend": suspend } })),
            )
            .await
            .with_context(|| format!("change spec.suspend of {namespace}/{name}"))?
        };
        render::object(options.shape.output, &changed, || match wish {
            Wish::Suspend => format!("{name} is suspended; `terrane resume {name}` lets it go on"),
            Wish::Resume => format!("{name} goes on"),
        })?;
    }
    Ok(())
}
