//! The run controller's loop. It is the only one that makes pods.

mod lock;
mod observe;

use std::sync::Arc;

use api::attempt::Description;
use api::{TerraformRun, TerraformRunStatus};
use datastore::{Artefact, Attempt};
use engine::Wake;
use engine::manifests::POD_FINALIZER;
use engine::run::{Effect, decide};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::error::{Error, doing, storing};
use crate::{Context, status};

pub(crate) use lock::waiting_for;

pub(crate) async fn reconcile(run: Arc<TerraformRun>, context: Arc<Context>) -> Result<Wake, Error> {
    let Some(seen) = observe::run(&run, &context).await? else { return Ok(Wake::OnChange) };
    let decision = decide(&seen.view((context.now)(), &context.settings));
    let mut run = seen.run.clone();
    for effect in decision.effects {
        match effect {
            Effect::TakeLock { lease } => lock::take(&lease, &run, &context).await?,
            Effect::ReleaseLock { lease } => lock::release(&lease, &run, &context).await?,
            Effect::PutDescription(description) => put_description(&description, &context).await?,
            Effect::SetStatus(next) => run = set_status(run, *next, &context).await?,
            Effect::CreatePod(pod) => create_pod(&pod, &context).await?,
            Effect::DeletePod { name } => delete_pod(&name, &run, &context).await?,
        }
    }
    for note in decision.notes {
        tracing::warn!(layer = %run.spec.layer.name, run = run.name_any(), reason = note.reason, "{}", note.message);
    }
    Ok(decision.wake)
}

async fn put_description(description: &Description, context: &Context) -> Result<(), Error> {
    let attempt = Attempt::new(&*description.run_uid, description.attempt).map_err(Error::BadUid)?;
    context
        .datastore
        .artefact_put(&attempt, Artefact::Spec, description.to_bytes().into())
        .await
        .map_err(storing("store what the runner is to do"))
}

async fn set_status(
    run: TerraformRun,
    next: TerraformRunStatus,
    context: &Context,
) -> Result<TerraformRun, Error> {
    if run.status.as_ref() == Some(&next) {
        return Ok(run);
    }
    let api = Api::<TerraformRun>::namespaced(context.client.clone(), &run.namespace().unwrap_or_default());
    let mut changed = run;
    changed.status = Some(next);
    status::replace(&api, &changed, "write the run's status").await
}

/// The name is the attempt's: a pod that exists was made by an earlier, interrupted round.
async fn create_pod(pod: &Pod, context: &Context) -> Result<(), Error> {
    let api = Api::<Pod>::namespaced(context.client.clone(), &pod.namespace().unwrap_or_default());
    match api.create(&PostParams::default(), pod).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.reason == "AlreadyExists" => Ok(()),
        Err(error) => Err(doing("create the runner's pod")(error)),
    }
}

/// Takes our finalizer off and deletes the pod, if it is this run's and still the one we saw.
async fn delete_pod(name: &str, run: &TerraformRun, context: &Context) -> Result<(), Error> {
    let api = Api::<Pod>::namespaced(context.client.clone(), &run.namespace().unwrap_or_default());
    let Some(pod) = api.get_opt(name).await.map_err(doing("read the runner's pod"))? else { return Ok(()) };
    let is_ours = pod.owner_references().iter().any(|owner| Some(&owner.uid) == run.uid().as_ref());
    if !is_ours {
        return Ok(());
    }
    if pod.finalizers().iter().any(|finalizer| finalizer == POD_FINALIZER) {
        let left: Vec<&String> =
            pod.finalizers().iter().filter(|finalizer| *finalizer != POD_FINALIZER).collect();
        let patch = json!({ "metadata": { "resourceVersion": pod.resource_version(), "finalizers": left } });
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map_err(doing("let the runner's pod go"))?;
    }
    let exactly_this = DeleteParams {
        preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
        ..DeleteParams::default()
    };
    match api.delete(name, &exactly_this).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
        Err(error) => Err(doing("delete the runner's pod")(error)),
    }
}
