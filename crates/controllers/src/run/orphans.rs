//! What is left of runs that are gone. Pods of applies whose run a person deleted: the garbage collector deletes them too, with their grace; our
//! finalizer would keep them for ever, since nobody is left to record a result. And what was made in the namespace of builds, where the garbage
//! collector knows no owner, for a run that is gone or an attempt that has ended.

use std::sync::Arc;
use std::time::Duration;

use api::{TerraformRun, label};
use engine::Wake;
use engine::manifests::POD_FINALIZER;
use engine::run::{can_still_work, home, is_leftover};
use engine::shard::Shard;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::core::ObjectMeta;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::{builds, let_go};
use crate::Context;
use crate::error::{Error, doing};

/// How often the namespace of builds is looked over. What ended well leaves nothing there; this is for what a crash or a deleted run left.
const SWEEP: Duration = Duration::from_secs(60);
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

/// Removes what is of no use any more from the namespace of builds, again and again until told to stop.
pub(crate) async fn sweep(context: &Context, stop: &CancellationToken) {
    let Some(namespace) = builds(&context.settings) else { return };
    let sweeping = async {
        loop {
            if let Err(error) = sweep_once(namespace, &context.client, context.shard).await {
                tracing::warn!(namespace, %error, "what is left of builds could not be removed; it is tried again");
            }
            tokio::time::sleep(SWEEP).await;
        }
    };
    stop.run_until_cancelled(sweeping).await;
}

/// O(objects of builds under way), a read of the run for each. Accounts first: they are worth more than a pod.
async fn sweep_once(namespace: &str, client: &Client, shard: Shard) -> Result<(), Error> {
    sweep_kind::<Secret>(namespace, client, shard).await?;
    sweep_kind::<Pod>(namespace, client, shard).await
}

async fn sweep_kind<K>(namespace: &str, client: &Client, shard: Shard) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let api = Api::<K>::namespaced(client.clone(), namespace);
    let ours = format!("{}=terrane,{}", label::MANAGED_BY, label::RUN_UID);
    let listed = api.list_metadata(&ListParams::default().labels(&ours)).await;
    let listed = listed.map_err(doing("list what builds have left"))?;
    for object in listed.items {
        let home = home(&object.metadata, Some(namespace));
        let is_going = object.metadata.deletion_timestamp.is_some();
        if is_going || !shard.holds(home) {
            continue;
        }
        let run = run_of(&object.metadata, home, client).await?;
        if !is_leftover(&object.metadata, run.as_ref()) {
            continue;
        }
        let name = object.name_any();
        tracing::info!(kind = %K::kind(&()), name, namespace, "removed: the build that it was for is over");
        let exactly_this = DeleteParams {
            preconditions: Some(Preconditions { uid: object.uid(), resource_version: None }),
            ..DeleteParams::default()
        };
        match api.delete(&name, &exactly_this).await {
            Ok(_) => {}
            Err(kube::Error::Api(answer)) if [404, 409].contains(&answer.code) => {}
            Err(error) => return Err(doing("remove what a build has left")(error)),
        }
    }
    Ok(())
}

async fn run_of(
    object: &ObjectMeta,
    namespace: &str,
    client: &Client,
) -> Result<Option<TerraformRun>, Error> {
    let Some(name) = object.labels.as_ref().and_then(|labels| labels.get(label::RUN)) else {
        return Ok(None);
    };
    let runs = Api::<TerraformRun>::namespaced(client.clone(), namespace);
    runs.get_opt(name).await.map_err(doing("read the run of a build"))
}
