//! `terrane sync`: a plan now.

use anyhow::Context;
use api::{TerraformLayer, annotation};
use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::arguments::Sync;

pub(crate) async fn run(options: Sync) -> anyhow::Result<()> {
    let (client, namespace) = super::connect(&options.target).await?;
    super::layer(&client, &namespace, &options.layer).await?;
    let wish = json!({ "metadata": { "annotations": { annotation::SYNC: Timestamp::now().to_string() } } });
    Api::<TerraformLayer>::namespaced(client, &namespace)
        .patch(&options.layer, &PatchParams::default(), &Patch::Merge(wish))
        .await
        .with_context(|| format!("ask for a plan of {namespace}/{}", options.layer))?;
    println!(
        "{} will be planned now; `terrane get layers {}` shows how far it is",
        options.layer, options.layer
    );
    Ok(())
}
