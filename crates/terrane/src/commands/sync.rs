//! `terrane sync`: a plan of a layer, or a look at a repository, now.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use api::layer::TerraformLayerStatus;
use api::{TerraformLayer, TerraformRepository, annotation};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::{describe, render, wait};
use crate::arguments::{Kind, Sync};

pub(crate) async fn run(options: Sync) -> anyhow::Result<()> {
    let (client, namespace) = super::connect(&options.target).await?;
    let object = describe::in_one_word(&options.object, options.name.as_deref());
    match (wait::object(&object)?, options.known) {
        ((Kind::Layers, name), known) => {
            let wish = if known { Wish::KnownPlan } else { Wish::Plan };
            let (layer, _) = ask(&client, &namespace, name, wish).await?;
            render::object(options.shape.output, &layer, || {
                format!("{name} will be planned now; `terrane get layers {name}` shows how far it is")
            })
        }
        ((Kind::Repositories, name), false) => {
            let repository = look_at(&client, &namespace, name).await?;
            render::object(options.shape.output, &repository, || {
                format!(
                    "repository {name} will be looked at now; `terrane describe repository/{name}` shows what is found"
                )
            })
        }
        ((Kind::Repositories, name), true) => {
            bail!("--known is about plans of layers; without it repository {name} is looked at")
        }
        ((Kind::Runs | Kind::Approvals | Kind::Repos | Kind::Terraforms | Kind::Notifications, _), _) => {
            bail!("only layers and repositories can be synchronized, and {object} is neither")
        }
    }
}

/// Asks for a look at a repository; its layers follow what is found.
async fn look_at(client: &Client, namespace: &str, name: &str) -> anyhow::Result<TerraformRepository> {
    let repository = super::repository(client, namespace, name).await?;
    if repository.spec.suspend {
        bail!(
            "repository {namespace}/{name} is suspended, so nobody looks at it; `terrane resume repository/{name}` lets it go on"
        );
    }
    let wish = json!({ "metadata": { "annotations": { annotation::SYNC: Timestamp::now().to_string() } } });
    Api::<TerraformRepository>::namespaced(client.clone(), namespace)
        .patch(name, &PatchParams::default(), &Patch::Merge(wish))
        .await
        .with_context(|| format!("ask for a look at repository {namespace}/{name}"))
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
