//! Carries out what was decided about a layer. Every write is against the version that was read; nothing is chosen here.

use api::{LAYER_FINALIZER, TerraformApproval, TerraformLayer, TerraformRun};
use datastore::RunUid;
use engine::Wake;
use engine::layer::{Decision, Effect, Gone, Refusal};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Status;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::error::{Error, doing, is_refusal, storing};
use crate::{Context, status};

pub(super) enum Acted {
    Whole(Wake),
    /// Nothing after it was done: the API would not have the run. The layer is as it was written last.
    Refused {
        layer: Box<TerraformLayer>,
        why: Refusal,
    },
}

pub(super) async fn act(
    api: &Api<TerraformLayer>,
    mut layer: TerraformLayer,
    decision: Decision,
    context: &Context,
) -> Result<Acted, Error> {
    let mut effects = decision.effects;
    // Before anything that it protects, the status included.
    if effects.first() == Some(&Effect::AddFinalizer) {
        effects.remove(0);
        layer = add_finalizer(api, &layer).await?;
    }
    if layer.status.clone().unwrap_or_default() != decision.status {
        let before = layer.status.replace(decision.status).unwrap_or_default();
        layer = status::replace(api, &layer, "write the layer's status").await?;
        let after = layer.status.as_ref().map_or(&[][..], |status| &status.conditions);
        context.events.tell(&layer, &before.conditions, after);
    }
    for effect in effects {
        match effect {
            Effect::AddFinalizer => {}
            Effect::LookAtImage { asked } => {
                if let Some(followed) = super::followed(&layer) {
                    context.desk.look_at_image(followed, asked);
                }
            }
            Effect::CreateRun(run) => {
                if let Some(why) = create_run(&run, context).await? {
                    return Ok(Acted::Refused { layer: Box::new(layer), why });
                }
            }
            Effect::AnswerApproval(approval) => answer(&approval, &layer, context).await?,
            Effect::DeleteRun(gone) => delete_run(&gone, &layer, context).await?,
            Effect::RemoveFinalizer => remove_finalizer(api, &layer).await?,
        }
    }
    Ok(Acted::Whole(decision.wake))
}

async fn add_finalizer(api: &Api<TerraformLayer>, layer: &TerraformLayer) -> Result<TerraformLayer, Error> {
    let finalizers: Vec<&str> =
        layer.finalizers().iter().map(String::as_str).chain([LAYER_FINALIZER]).collect();
    set_finalizers(api, layer, &finalizers, "keep the layer until its runs have ended").await
}

async fn remove_finalizer(api: &Api<TerraformLayer>, layer: &TerraformLayer) -> Result<(), Error> {
    let left: Vec<&str> =
        layer.finalizers().iter().map(String::as_str).filter(|known| *known != LAYER_FINALIZER).collect();
    set_finalizers(api, layer, &left, "let the layer go").await?;
    tracing::info!(layer = layer.name_any(), "let the layer go");
    Ok(())
}

async fn set_finalizers(
    api: &Api<TerraformLayer>,
    layer: &TerraformLayer,
    finalizers: &[&str],
    what: &'static str,
) -> Result<TerraformLayer, Error> {
    let patch =
        json!({ "metadata": { "resourceVersion": layer.resource_version(), "finalizers": finalizers } });
    api.patch(&layer.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await.map_err(doing(what))
}

/// The name says what the run is for, so one that exists is the one we wanted. The answer is why the API surely did not make it; after
/// any other failure it may exist.
async fn create_run(run: &TerraformRun, context: &Context) -> Result<Option<Refusal>, Error> {
    let api = Api::<TerraformRun>::namespaced(context.client.clone(), &run.namespace().unwrap_or_default());
    match api.create(&PostParams::default(), run).await {
        Ok(_) => {
            tracing::info!(layer = %run.spec.layer.name, run = run.name_any(), reason = run.spec.trigger.reason, "started a run");
            Ok(None)
        }
        Err(kube::Error::Api(answer)) if answer.reason == "AlreadyExists" => Ok(None),
        Err(kube::Error::Api(answer)) if is_refusal(answer.code) => {
            tracing::warn!(layer = %run.spec.layer.name, run = run.name_any(), why = answer.message, "the API would not have the run");
            Ok(Some(refusal(&answer)))
        }
        Err(error) => Err(doing("create a run")(error)),
    }
}

fn refusal(answer: &Status) -> Refusal {
    let causes = answer.details.iter().flat_map(|details| &details.causes);
    if causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating") {
        Refusal::NamespaceTerminating
    } else {
        Refusal::Other(answer.message.clone())
    }
}

/// One that a person has taken back in the meantime needs no answer.
async fn answer(
    approval: &TerraformApproval,
    layer: &TerraformLayer,
    context: &Context,
) -> Result<(), Error> {
    let namespace = layer.namespace().unwrap_or_default();
    let api = Api::<TerraformApproval>::namespaced(context.client.clone(), &namespace);
    match status::replace(&api, approval, "write what became of an approval").await {
        Err(Error::Api { source, .. }) if matches!(&*source, kube::Error::Api(answer) if answer.code == 404) => {
            Ok(())
        }
        written => written.map(drop),
    }
}

/// Artefacts first: while the run is there, a deletion that was cut short is taken up again.
async fn delete_run(gone: &Gone, layer: &TerraformLayer, context: &Context) -> Result<(), Error> {
    let run = RunUid::new(gone.uid.as_str()).map_err(Error::BadUid)?;
    context.datastore.run_delete(&run).await.map_err(storing("delete what a run left"))?;
    let api = Api::<TerraformRun>::namespaced(context.client.clone(), &layer.namespace().unwrap_or_default());
    let exactly_this = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(gone.uid.clone()),
            resource_version: gone.resource_version.clone(),
        }),
        ..DeleteParams::default()
    };
    match api.delete(&gone.name, &exactly_this).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
        Err(error) => Err(doing("delete a run of the past")(error)),
    }
}
