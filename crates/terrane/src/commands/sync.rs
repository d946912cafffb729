//! `terrane sync`: a plan now.

use anyhow::{Context, bail};
use api::{TerraformLayer, annotation};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::render;
use crate::arguments::Sync;

pub(crate) async fn run(options: Sync) -> anyhow::Result<()> {
    let (client, namespace) = super::connect(&options.target).await?;
    let (layer, _) = ask(&client, &namespace, &options.layer).await?;
    render::object(options.shape.output, &layer, || {
        format!("{0} will be planned now; `terrane get layers {0}` shows how far it is", options.layer)
    })
}

/// Asks for a plan. Returns the layer and the text by which the run that answers is known.
pub(super) async fn ask(
    client: &Client,
    namespace: &str,
    name: &str,
) -> anyhow::Result<(TerraformLayer, String)> {
    let layer = super::layer(client, namespace, name).await?;
    if layer.spec.suspend {
        bail!(
            "layer {namespace}/{name} is suspended, so nothing is planned; `terrane resume {name}` lets it go on"
        );
    }
    let text = Timestamp::now().to_string();
    let wish = json!({ "metadata": { "annotations": { annotation::SYNC: text } } });
    let layer = Api::<TerraformLayer>::namespaced(client.clone(), namespace)
        .patch(name, &PatchParams::default(), &Patch::Merge(wish))
        .await
        .with_context(|| format!("ask for a plan of {namespace}/{name}"))?;
    Ok((layer, text))
}
