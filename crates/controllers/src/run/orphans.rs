//! Pods of applies whose run a person deleted. The garbage collector deletes them too, with their grace; our finalizer would keep them
//! for ever, since nobody is left to record a result.

use std::sync::Arc;
use std::time::Duration;

use api::TerraformRun;
use engine::Wake;
use engine::manifests::POD_FINALIZER;
use engine::run::can_still_work;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};

use super::let_go;
use crate::Context;
use crate::error::{Error, doing};

/// How soon a pod that has ended is looked at again, as long as its run is there.
const AGAIN: Duration = Duration::from_secs(20);

/// Costs a read only for a pod that is being deleted, has ended and is held.
pub(crate) async fn reconcile(pod: Arc<Pod>, context: Arc<Context>) -> Result<Wake, Error> {
    let owner = pod.owner_references().iter().find(|owner| owner.kind == "TerraformRun");
    let is_held = pod.finalizers().iter().any(|finalizer| finalizer == POD_FINALIZER);
    let is_over = pod.metadata.deletion_timestamp.is_some() && !can_still_work(&pod);
    let (Some(owner), true, true) = (owner, is_held, is_over) else {
        return Ok(Wake::OnChange);
    };
    let namespace = pod.namespace().unwrap_or_default();
    let runs = Api::<TerraformRun>::namespaced(context.client.clone(), &namespace);
    let run = runs.get_opt(&owner.name).await.map_err(doing("read the run of a pod"))?;
    if run.is_some_and(|run| run.uid().as_ref() == Some(&owner.uid)) {
        // The run's own controller records the end and lets the pod go, unless the run is deleted before it does: of that the pod
        // tells nothing.
        return Ok(Wake::At(engine::later((context.now)(), AGAIN)));
    }
    tracing::warn!(
        pod = pod.name_any(),
        "its run was deleted; the pod is let go, what it did is not recorded"
    );
    let_go(&Api::namespaced(context.client.clone(), &namespace), &pod).await?;
    Ok(Wake::OnChange)
}
