//! What metacontroller is answered about a Terraform: read what it does not tell, let `engine` decide, and say the outcome. Metacontroller
//! writes. One thing is taken away here: the finalizer of a time when Terrane kept the object itself, which nobody else would.

use api::{Terraform, TerraformLayer, TerraformRepository};
use engine::Settings;
use engine::door::composite::{Answer, answer};
use engine::door::surroundings::Surroundings;
use engine::door::terraform::{Given, Observed, holds_finalizer};
use jiff::Timestamp;
use kube::{Client, ResourceExt};

use super::{act, observe_layer, observe_outputs, observe_repository};
use crate::door::api;
use crate::error::Error;

/// What metacontroller tells of a Terraform, and of the objects that it keeps for it.
#[derive(Debug, Clone)]
pub struct Told {
    pub terraform: Terraform,
    pub repository: Option<TerraformRepository>,
    pub layer: Option<TerraformLayer>,
}

/// What is to be there for it, and what its status is to say. Of the cluster around it nothing is said: anybody may ask.
pub async fn composite(
    client: &Client,
    settings: &Settings,
    told: Told,
    now: Timestamp,
) -> Result<Answer, Error> {
    let Told { terraform, repository, layer } = told;
    // It tells of its own alone, as it last saw them: what bears the name may be somebody else's, or new.
    let repository = match repository {
        Some(told) => Some(told),
        None => observe_repository(client, &terraform).await?,
    };
    let (layer, outputs) = match layer {
        None => {
            let layer = observe_layer(client, &terraform).await?;
            let outputs = observe_outputs(client, &terraform, layer.as_ref()).await?;
            (layer, outputs)
        }
        Some(told) => {
            let outputs = outputs_of_told(client, &terraform, &told).await?;
            (Some(told), outputs)
        }
    };
    let seen = Observed {
        now,
        terraform: &terraform,
        repository: repository.as_ref(),
        layer: layer.as_ref(),
        outputs: &outputs,
        surroundings: &Surroundings::default(),
        settings,
    };
    let answer = answer(&seen);
    if answer.finalized && holds_finalizer(&terraform) {
        let terraforms = api::<Terraform>(client, &terraform.namespace().unwrap_or_default());
        act::let_go(&terraforms, &terraform).await?;
    }
    Ok(answer)
}

/// Nobody proves who they are here, so outputs are read for a layer that is really there: its uid is known to those who can see it.
async fn outputs_of_told(
    client: &Client,
    terraform: &Terraform,
    told: &TerraformLayer,
) -> Result<Given, Error> {
    if told.status.as_ref().is_none_or(|status| status.output_targets.is_empty()) {
        return Ok(Given::default());
    }
    let found = observe_layer(client, terraform).await?;
    let is_told = found.as_ref().is_some_and(|found| found.metadata.uid == told.metadata.uid);
    if is_told { observe_outputs(client, terraform, found.as_ref()).await } else { Ok(Given::default()) }
}
