//! `terrane sync`: a plan now.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use api::layer::TerraformLayerStatus;
use api::{TerraformLayer, annotation};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::render;
use crate::arguments::Sync;

pub(crate) async fn run(options: Sync) -> anyhow::Result<()> {
    let (client, namespace) = super::connect(&options.target).await?;
    let wish = if options.known { Wish::KnownPlan } else { Wish::Plan };
    let (layer, _) = ask(&client, &namespace, &options.layer, wish).await?;
    render::object(options.shape.output, &layer, || {
        format!("{0} will be planned now; `terrane get layers {0}` shows how far it is", options.layer)
    })
}

/// What can be asked for of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// A plan towards the newest code, for which the repository is looked at first.
    Plan,
    /// A plan towards the code that is known.
    KnownPlan,
    /// A plan that only refreshes.
    Look,
}

impl Wish {
    const fn annotation(self) -> &'static str {
        match self {
            Self::Plan | Self::KnownPlan => annotation::SYNC,
            Self::Look => annotation::LOOK,
        }
    }

    /// The annotation of the run that answers.
    pub(super) fn token(self, text: &str) -> String {
        match self {
            Self::Plan | Self::KnownPlan => format!("sync:{text}"),
            Self::Look => format!("look:{text}"),
        }
    }

    /// Which wish was acted on last.
    pub(super) fn acted_on(self, status: &TerraformLayerStatus) -> Option<&str> {
        match self {
            Self::Plan | Self::KnownPlan => status.last_sync.as_deref(),
            Self::Look => status.last_look.as_deref(),
        }
    }
}

/// Asks for a plan. Returns the layer and the text by which the run that answers is known.
pub(super) async fn ask(
    client: &Client,
    namespace: &str,
    name: &str,
    wish: Wish,
) -> anyhow::Result<(TerraformLayer, String)> {
    let layer = super::layer(client, namespace, name).await?;
    if layer.spec.suspend {
        bail!(
            "layer {namespace}/{name} is suspended, so nothing is planned; `terrane resume {name}` lets it go on"
        );
    }
    let text = Timestamp::now().to_string();
    let latest = (wish == Wish::Plan).then_some((annotation::LATEST, &text));
    let annotations: BTreeMap<_, _> = [(wish.annotation(), &text)].into_iter().chain(latest).collect();
    let annotations = json!({ "metadata": { "annotations": annotations } });
    let layer = Api::<TerraformLayer>::namespaced(client.clone(), namespace)
        .patch(name, &PatchParams::default(), &Patch::Merge(annotations))
        .await
        .with_context(|| format!("ask for a plan of {namespace}/{name}"))?;
    Ok((layer, text))
}
