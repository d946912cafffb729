//! A small job controller, for an API that has none: follows Jobs and their pods and carries out what [`decide`] says.
//!
//! A pod of a job carries a finalizer until it is counted, and which pods are about to be counted is written into the
//! status first. So a pod is counted exactly once, whoever deletes it and whenever this process dies.

mod decide;

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use decide::{Action, CONTROLLER_UID, FINALIZER, JOB_NAME, Observed, decide, is_ours};

/// Namespace and name of a job.
type Key = (String, String);

const RETRY: SignedDuration = SignedDuration::from_secs(5);
const MANAGER: &str = "terrane-jobs";

/// Runs until it is dropped. Jobs are looked at one after the other; one that fails waits and delays no other.
pub(crate) async fn run(client: Client) {
    let jobs: Api<Job> = Api::all(client.clone());
    let pods: Api<Pod> = Api::all(client.clone());
    let mut jobs = Box::pin(watcher(jobs, watcher::Config::default()));
    let mut pods = Box::pin(watcher(pods, watcher::Config::default().labels(CONTROLLER_UID)));
    let mut due: BTreeSet<Key> = BTreeSet::new();
    let mut later: BTreeMap<Key, Timestamp> = BTreeMap::new();
    let mut pause = watcher::DefaultBackoff::default();
    loop {
        if let Some(key) = due.pop_first() {
            later.remove(&key);
            match reconcile(&client, &key).await {
                Ok(Some(wake)) => {
                    later.insert(key, wake);
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(namespace = key.0, job = key.1, %error, "could not look after the job; trying again");
                    later.insert(key, Timestamp::now().checked_add(RETRY).unwrap_or(Timestamp::MAX));
                }
            }
            continue;
        }
        let next = later.values().min().copied();
        let failed = tokio::select! {
            event = jobs.next() => match event {
                Some(Ok(event)) => { due.extend(about(event, |job: &Job| Some(job.name_any()))); false }
                Some(Err(error)) => { tracing::warn!(%error, "the watch of jobs failed; trying again"); true }
                None => return,
            },
            event = pods.next() => match event {
                Some(Ok(event)) => { due.extend(about(event, job_of)); false }
                Some(Err(error)) => { tracing::warn!(%error, "the watch of pods failed; trying again"); true }
                None => return,
            },
            () = sleep_until(next) => false,
        };
        if failed {
            tokio::time::sleep(pause.next().unwrap_or_default()).await;
        } else {
            pause = watcher::DefaultBackoff::default();
        }
        let now = Timestamp::now();
        due.extend(later.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()));
    }
}

async fn sleep_until(time: Option<Timestamp>) {
    match time {
        Some(time) => {
            let left = Timestamp::now().duration_until(time);
            tokio::time::sleep(left.try_into().unwrap_or_default()).await;
        }
        None => std::future::pending().await,
    }
}

fn about<K: ResourceExt>(event: watcher::Event<K>, job: impl Fn(&K) -> Option<String>) -> Option<Key> {
    match event {
        watcher::Event::Init | watcher::Event::InitDone => None,
        watcher::Event::Apply(object)
        | watcher::Event::InitApply(object)
        | watcher::Event::Delete(object) => Some((object.namespace().unwrap_or_default(), job(&object)?)),
    }
}

fn job_of(pod: &Pod) -> Option<String> {
    pod.metadata.labels.as_ref()?.get(JOB_NAME).cloned()
}

/// One look at one job, with reads from the API. Gives the time of the next.
async fn reconcile(client: &Client, (namespace, name): &Key) -> Result<Option<Timestamp>, kube::Error> {
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let job = jobs.get_opt(name).await?;
    let named = pods.list(&ListParams::default().labels(&format!("{JOB_NAME}={name}"))).await?.items;
    let uid = job.as_ref().and_then(|job| job.metadata.uid.clone());
    // Pods of a job that is no more must not wait for being counted.
    for pod in named.iter().filter(|pod| uid.as_deref().is_none_or(|uid| !is_ours(pod, uid))) {
        release(&pods, pod).await?;
    }
    let (Some(job), Some(uid)) = (job, uid) else { return Ok(None) };
    let own: Vec<Pod> = named.into_iter().filter(|pod| is_ours(pod, &uid)).collect();
    let decision = decide(&Observed { now: Timestamp::now(), job: &job, pods: &own });
    if let Some(status) = decision.status {
        let job = Job { status: Some(status), ..job };
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        // Replaced, so that what is no longer so goes; against the version that was read, so that nothing is lost. The
        // watch brings us back with the status in place, and what rests on it is done then.
        return match jobs.replace_status(name, &params, &job).await {
            Ok(_) => Ok(decision.wake),
            Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => Ok(decision.wake),
            Err(error) => Err(error),
        };
    }
    for action in decision.actions {
        match action {
            Action::Create(pod) => match pods.create(&PostParams::default(), &pod).await {
                Ok(_) => {}
                // Its name is derived from the wish, so it is the one that was wished for.
                Err(kube::Error::Api(error)) if error.code == 409 => {}
                Err(error) => return Err(error),
            },
            Action::Delete(pod) => {
                ignore_missing(pods.delete(&pod.name_any(), &delete_params(pod.uid())).await.map(drop))?;
            }
            Action::Release(pod) => release(&pods, &pod).await?,
            Action::DeleteJob => {
                let params = DeleteParams {
                    propagation_policy: Some(kube::api::PropagationPolicy::Foreground),
                    ..delete_params(job.uid())
                };
                ignore_missing(jobs.delete(name, &params).await.map(drop))?;
            }
        }
    }
    Ok(decision.wake)
}

fn delete_params(uid: Option<String>) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid, resource_version: None }),
        ..DeleteParams::default()
    }
}

/// Takes our finalizer from a pod.
async fn release(pods: &Api<Pod>, pod: &Pod) -> Result<(), kube::Error> {
    if !pod.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
        return Ok(());
    }
    let kept: Vec<&String> = pod.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER).collect();
    let patch = json!({"metadata": {
        "uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version, "finalizers": kept}});
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    ignore_missing(pods.patch(&pod.name_any(), &params, &Patch::Merge(patch)).await.map(drop))
}

/// Gone, or changed meanwhile: the watch brings what is true now.
fn ignore_missing(outcome: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match outcome {
        Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => Ok(()),
        other => other,
    }
}
