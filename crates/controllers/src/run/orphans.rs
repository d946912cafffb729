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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use embedded::auth::Identity;
    use embedded::serve::{Listen, Options, Server};
    use kube::api::PostParams;
    use serde_json::json;

    use super::*;

    /// What is there after a crash between two writes, or a run that a person deleted, and what is under way.
    #[tokio::test]
    async fn what_builds_have_left_is_removed_and_what_they_work_with_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let listen = Listen::new("127.0.0.1:0".parse().unwrap(), None, None).unwrap();
        let options = Options { listen, ..Options::new(directory.path().join("data")) };
        let server = Server::start(options).await.unwrap();
        let client = Client::new(server.router(Identity::administrator()), "default");
        let namespaces = Api::<k8s_openapi::api::core::v1::Namespace>::all(client.clone());
        let builds: k8s_openapi::api::core::v1::Namespace =
            serde_json::from_value(json!({ "metadata": { "name": "builds" } })).unwrap();
        namespaces.create(&PostParams::default(), &builds).await.unwrap();

        let runs = Api::<TerraformRun>::namespaced(client.clone(), "default");
        let run: TerraformRun = serde_json::from_value(json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRun", "metadata": { "name": "db-build-1" },
            "spec": {
                "layer": { "name": "db", "uid": "l", "revision": "b".repeat(40) }, "action": "build", "state": "a".repeat(64),
                "trigger": { "kind": "commit", "reason": "new" },
            },
        }))
        .unwrap();
        let mut run = runs.create(&PostParams::default(), &run).await.unwrap();
        let attempt = |number: u32, finished: Option<&str>| {
            json!({
                "number": number, "podName": "p", "podNamespace": "builds", "description": "c".repeat(64), "fence": 0,
                "startedAt": "2026-01-01T00:00:00Z", "finishedAt": finished,
            })
        };
        let attempts = json!({ "attempts": [attempt(0, Some("2026-01-01T00:01:00Z")), attempt(1, None)] });
        run.status = Some(serde_json::from_value(attempts).unwrap());
        let run = runs.replace_status(&run.name_any(), &PostParams::default(), &run).await.unwrap();

        let uid = run.uid().unwrap();
        let labels = |name: &str, uid: &str, attempt: &str| {
            json!({
                label::MANAGED_BY: "terrane", label::RUN: name, label::RUN_UID: uid, label::ATTEMPT: attempt,
                label::RUN_NAMESPACE: "default",
            })
        };
        let secrets = Api::<Secret>::namespaced(client.clone(), "builds");
        let pods = Api::<Pod>::namespaced(client.clone(), "builds");
        for (name, labels) in [
            ("under-way", labels("db-build-1", &uid, "1")),
            ("ended", labels("db-build-1", &uid, "0")),
            ("gone", labels("db-build-2", "another", "0")),
            ("strange", json!({ label::MANAGED_BY: "helm" })),
        ] {
            let metadata = json!({ "name": name, "labels": labels });
            let secret: Secret = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
            secrets.create(&PostParams::default(), &secret).await.unwrap();
            let spec = json!({ "containers": [{ "name": "runner", "image": "example.org/builder" }] });
            let pod: Pod = serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap();
            pods.create(&PostParams::default(), &pod).await.unwrap();
        }
        let other = Shard::all(std::num::NonZeroU16::new(2).unwrap()).find(|shard| !shard.holds("default"));
        sweep_once("builds", &client, other.unwrap()).await.unwrap();
        assert_eq!(
            secrets.list(&ListParams::default()).await.unwrap().items.len(),
            4,
            "another shard's runs"
        );
        for _ in 0..2 {
            sweep_once("builds", &client, Shard::WHOLE).await.unwrap();
            let left = secrets.list(&ListParams::default()).await.unwrap().items;
            let left: Vec<String> = left.iter().map(|secret| secret.name_any()).collect();
            assert_eq!(left, ["strange", "under-way"]);
            // Nobody has a node's word that a pod which never ran has ended, so it goes at once.
            let left = pods.list(&ListParams::default()).await.unwrap().items;
            let left: Vec<String> = left
                .iter()
                .filter(|pod| pod.metadata.deletion_timestamp.is_none())
                .map(|pod| pod.name_any())
                .collect();
            assert_eq!(left, ["strange", "under-way"]);
        }
    }
}
