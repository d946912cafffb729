//! The loop of Terraforms: what it reads, and the decision on it. What it does about that is in `act`; for those that metacontroller keeps
//! there is no loop, and `composite` answers it.

mod act;
pub(crate) mod composite;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::{Terraform, TerraformLayer, TerraformRepository};
use engine::Wake;
use engine::door::terraform::{Effect, Given, Observed, decide, outputs_of, report};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client, Resource, ResourceExt};

use crate::door::api;
use crate::error::{Error, doing};
use crate::feed::Handle;
use crate::source::Waiting;
use crate::{Context, status};

pub(crate) async fn reconcile(
    terraform: Arc<Handle<Terraform>>,
    context: Arc<Context>,
) -> Result<Wake, Error> {
    let namespace = terraform.namespace().unwrap_or_default();
    let api = Api::<Terraform>::namespaced(context.client.clone(), &namespace);
    let found = api.get_opt(&terraform.name_any()).await.map_err(doing("read the Terraform"))?;
    let Some(mut terraform) = found else { return Ok(Wake::OnChange) };
    let repository = observe_repository(&context.client, &terraform).await?;
    let layer = observe_layer(&context.client, &terraform).await?;
    let outputs = observe_outputs(&context.client, &terraform, layer.as_ref()).await?;
    let surroundings = context.surroundings.observe(&context).await?;
    let seen = Observed {
        now: (context.now)(),
        terraform: &terraform,
        repository: repository.as_ref(),
        layer: layer.as_ref(),
        outputs: &outputs,
        surroundings: &surroundings,
        settings: &context.settings,
    };
    let effects = decide(&seen);
    let is_new = effects.first() == Some(&Effect::AddFinalizer);
    let refused = act::act(&terraform, effects, &context).await?;
    if is_new && refused.is_empty() {
        // It is another version now, and that wakes us.
        return Ok(Wake::OnChange);
    }
    let report = report(&seen, &refused);
    let before = terraform.status.take().unwrap_or_default();
    let has_changed = before != report.status;
    terraform.status = Some(report.status);
    if has_changed {
        terraform = status::replace(&api, &terraform, "write the Terraform's status").await?;
        let after = terraform.status.as_ref().map_or(&[][..], |status| &status.conditions);
        context.events.tell(&terraform, &before.conditions, after);
    }
    if report.let_go {
        act::let_go(&api, &terraform).await?;
    }
    Ok(report.wake)
}

/// What a layer gave out has changed, which its own words may not show.
pub(crate) fn wake_owner(layer: &TerraformLayer, context: &Context) {
    let kind = Terraform::kind(&());
    if let Some(owner) = layer.owner_references().iter().find(|owner| owner.kind == kind) {
        let namespace = layer.namespace().unwrap_or_default();
        context.desk.wake(Waiting::Terraform { namespace, name: owner.name.clone() });
    }
}

async fn observe_repository(
    client: &Client,
    terraform: &Terraform,
) -> Result<Option<TerraformRepository>, Error> {
    let repositories = api::<TerraformRepository>(client, &terraform.namespace().unwrap_or_default());
    repositories.get_opt(&terraform.name_any()).await.map_err(doing("read the Terraform's repository"))
}

async fn observe_layer(client: &Client, terraform: &Terraform) -> Result<Option<TerraformLayer>, Error> {
    let layers = api::<TerraformLayer>(client, &terraform.namespace().unwrap_or_default());
    layers.get_opt(&terraform.name_any()).await.map_err(doing("read the Terraform's layer"))
}

/// What the layer says that it has written. Values of the Secret are not kept.
async fn observe_outputs(
    client: &Client,
    terraform: &Terraform,
    layer: Option<&TerraformLayer>,
) -> Result<Given, Error> {
    let written = layer.and_then(|layer| layer.status.as_ref()).map(|status| &status.output_targets);
    let name = outputs_of(terraform);
    let (Some(name), true) = (name, written.is_some_and(|written| !written.is_empty())) else {
        return Ok(Given::default());
    };
    let namespace = terraform.namespace().unwrap_or_default();
    let map = api::<ConfigMap>(client, &namespace).get_opt(name.as_str()).await;
    let map = map.map_err(doing("read the Terraform's outputs"))?;
    let secret = api::<Secret>(client, &namespace).get_opt(name.as_str()).await;
    let secret = secret.map_err(doing("read the names of its outputs"))?;
    let names: BTreeSet<String> =
        secret.and_then(|secret| secret.data).into_iter().flatten().map(|(name, _)| name).collect();
    Ok(Given { shown: map.and_then(|map| map.data).unwrap_or_default(), names })
}
