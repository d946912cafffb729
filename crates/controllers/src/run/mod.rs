//! The run controller's loop. It is the only one that makes pods.

mod asking;
mod lock;
mod login;
mod observe;
pub(crate) mod orphans;

use std::sync::Arc;

use api::attempt::Description;
use api::run::RunState;
use api::{TerraformLayer, TerraformRun, TerraformRunStatus, annotation, condition, label};
use datastore::{Artefact, Attempt, client};
use engine::manifests::POD_FINALIZER;
use engine::queue::Slot;
use engine::run::{Decision, Effect, Lack, decide, home, is_at_rest, is_ours, pod_namespace};
use engine::{Read, Settings, Wake};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::json;
use tracing::Instrument;

use self::asking::ask;
use crate::error::{Class, Error, doing, storing};
use crate::feed::{Forget, Handle};
use crate::queue::{Fleet, Next};
use crate::turn::Turn;
use crate::{Context, span, status};

pub(crate) use lock::waiting_for;

/// Every line that is logged on the way says which layer, which run and which attempt.
pub(crate) async fn reconcile(
    run: Arc<Handle<TerraformRun>>,
    context: Arc<Context>,
    ended: &Forget<TerraformRun>,
) -> Result<Wake, Error> {
    let runs = Api::<TerraformRun>::namespaced(context.client.clone(), &run.namespace().unwrap_or_default());
    let Some(found) = runs.get_opt(&run.name_any()).await.map_err(doing("read the run"))? else {
        context.queue.leave(&*run, (context.now)());
        context.queue.stop_awaiting_lock(&*run);
        return Ok(Wake::OnChange);
    };
    let attempts = found.status.as_ref().map_or(0, |status| status.attempts.len());
    let span = tracing::info_span!("run", layer = %found.spec.layer.name, run = found.name_any(), attempt = attempts);
    let (wake, rest) = reconcile_one(found, &context).instrument(span).await?;
    if rest {
        ended.forget(&run);
    }
    Ok(wake)
}

/// When to look again, and whether nothing is left to do about the run.
async fn reconcile_one(run: TerraformRun, context: &Context) -> Result<(Wake, bool), Error> {
    let mut seen = observe::run(run, context).await?;
    let now = (context.now)();
    let settings = &context.settings;
    let mut slot = Slot::Free;
    let mut decision = decide(&seen.view(now, settings, slot.clone()));
    // Kept until the pod is made: nobody else counts the runners in between.
    let mut turn = None;
    if decision.wants_runner() {
        if let Some(wish) = engine::run::waiting(&seen.view(now, settings, Slot::Free)) {
            let Context { client, namespaces, queue, .. } = context;
            let next = if decision.makes_pod() { Next::Pod } else { Next::Lock };
            let builds = builds(settings);
            let fleet = Fleet { client, namespaces, builds, most: settings.max_runner_pods };
            (slot, turn) = queue.ask(wish, next, fleet, now).await?;
            if slot != Slot::Free {
                decision = decide(&seen.view(now, settings, slot.clone()));
            }
        }
    } else {
        context.queue.leave(&seen.run, now);
    }
    let acted = act_on(&mut seen, decision, slot, turn.as_ref(), now, context).await;
    if let Some(turn) = turn {
        turn.give_back().await;
    }
    let decision = acted?;
    if decision.frees_runner() {
        context.queue.wake_next(now);
    }
    if decision.waits_for_lock() {
        context.queue.await_lock(&seen.run, now);
    } else if decision.records_end() {
        context.queue.wake_locked_out(&seen.run);
        context.queue.stop_awaiting_lock(&seen.run);
    }
    Ok((decision.wake, is_at_rest(&seen.run, &decision)))
}

/// Acts on a decision, and on what follows from the answers. Each answer is met once: what is decided on it does not ask the same again.
async fn act_on(
    seen: &mut observe::Seen,
    mut decision: Decision,
    slot: Slot,
    turn: Option<&Turn>,
    now: Timestamp,
    context: &Context,
) -> Result<Decision, Error> {
    loop {
        match act(&seen.run, &decision, turn, context).await? {
            Acted::Whole => return Ok(decision),
            Acted::Described(stored) => seen.described = Read::Present(*stored),
            Acted::Refused { run, why } => {
                seen.run = *run;
                seen.refused = Some(why);
            }
            Acted::Lacking(lack) => seen.lack = Some(lack),
        }
        decision = decide(&seen.view(now, &context.settings, slot.clone()));
    }
}

/// The namespace of builds, where there is one.
fn builds(settings: &Settings) -> Option<&str> {
    settings.builds.as_ref().and_then(|builds| builds.namespace())
}

/// Where the run's pods are. None where that was a namespace of builds which is none any more: nothing there is ours to touch, and a build can
/// be repeated.
fn pods(run: &TerraformRun, context: &Context) -> Option<Api<Pod>> {
    let namespace = pod_namespace(run);
    let is_reached =
        run.namespace().as_deref() == Some(namespace) || builds(&context.settings) == Some(namespace);
    is_reached.then(|| Api::namespaced(context.client.clone(), namespace))
}

/// The run that is woken by its pod: its owner, or the one that a pod of the builds' namespace names.
pub(crate) fn of_pod(pod: &Pod, builds: Option<&str>) -> Option<ObjectRef<Handle<TerraformRun>>> {
    let owner = pod.owner_references().iter().find(|owner| owner.kind == "TerraformRun");
    let named = || pod.labels().get(label::RUN).map(String::as_str);
    let name = owner.map(|owner| owner.name.as_str()).or_else(named)?;
    Some(ObjectRef::new(name).within(home(&pod.metadata, builds)))
}

enum Acted {
    Whole,
    /// Nothing was done: an earlier, interrupted round told the runner of this attempt something else, and what is stored is never
    /// changed.
    Described(Box<Description>),
    /// The attempt is written down, and the API would not have its pod: it was not made.
    Refused {
        run: Box<TerraformRun>,
        why: String,
    },
    /// The attempt is not written down: the datastore does not take what it needs to begin.
    Lacking(Lack),
}

async fn act(
    run: &TerraformRun,
    decision: &Decision,
    turn: Option<&Turn>,
    context: &Context,
) -> Result<Acted, Error> {
    let mut run = run.clone();
    for effect in &decision.effects {
        match effect {
            Effect::TakeLock { lease, from, fence } => {
                lock::take(lease, from.as_deref(), *fence, &run, context).await?;
                if let Some(since) = context.queue.stop_awaiting_lock(&run) {
                    context.metrics.lock_awaited(span(since, (context.now)()));
                }
            }
            Effect::PutDescription(description) => match put_description(description, context).await {
                Ok(None) => {}
                Ok(Some(stored)) => return Ok(Acted::Described(Box::new(stored))),
                Err(error) => return lacking(error, context),
            },
            Effect::Audit(entry) => {
                const DOING: &str = "write down what is about to be changed";
                let stored =
                    ask(&context.datastore, DOING, async |datastore| datastore.audit_append(entry).await)
                        .await;
                if let Err(error) = stored.map_err(storing(DOING)) {
                    return lacking(error, context);
                }
            }
            Effect::SetStatus(next) => run = set_status(run, next, context).await?,
            Effect::CopyLogin(copy) => login::put(copy, &run, context).await?,
            Effect::CreatePod(pod) => {
                turn.map_or(Ok(()), Turn::ensure_kept)?;
                if let Some(why) = create_pod(pod, context).await? {
                    return Ok(Acted::Refused { run: Box::new(run), why });
                }
            }
            Effect::StopPod { name } => stop_pod(name, &run, context).await?,
            Effect::DeletePod { name } => delete_pod(name, &run, context).await?,
        }
    }
    Ok(Acted::Whole)
}

/// A datastore that has no room, or does not answer, is for a person to see, and to be asked again only after a while; any other failure passes
/// or is a fault.
fn lacking(error: Error, context: &Context) -> Result<Acted, Error> {
    match error {
        Error::Datastore { source, .. } if source.is_full() => {
            Ok(Acted::Lacking(Lack::Room(source.to_string())))
        }
        Error::Datastore { source, .. } if source.is_transient() => {
            // An administrator is told by figures and the log, whether or not somebody looks at the layer.
            context.metrics.failed("TerraformRun", Class::Transient);
            tracing::warn!(error = %source, "a run cannot begin: the datastore does not answer");
            Ok(Acted::Lacking(Lack::Answer(source.to_string())))
        }
        other => Err(other),
    }
}

/// The run that an annotation of its layer cancels.
pub(crate) fn canceled_by(layer: TerraformLayer) -> Option<ObjectRef<Handle<TerraformRun>>> {
    let run = layer.annotations().get(annotation::CANCEL).filter(|run| !run.is_empty())?;
    Some(ObjectRef::new(run).within(&layer.namespace()?))
}

/// The answer is what was stored for the attempt before, where that is something else.
async fn put_description(description: &Description, context: &Context) -> Result<Option<Description>, Error> {
    const DOING: &str = "store what the runner is to do";
    let attempt = Attempt::new(&*description.run_uid, description.attempt).map_err(Error::BadUid)?;
    let content = description.to_bytes().into();
    let put =
        async |datastore: client::Client| datastore.artefact_put(&attempt, Artefact::Spec, content).await;
    let refused = match ask(&context.datastore, DOING, put).await {
        Ok(()) => return Ok(None),
        Err(error) => error,
    };
    if matches!(refused, client::Error::Conflict(_))
        && let Some(stored) = observe::description(&attempt, context).await?
    {
        return Ok(Some(stored));
    }
    Err(storing(DOING)(refused))
}

async fn set_status(
    run: TerraformRun,
    next: &TerraformRunStatus,
    context: &Context,
) -> Result<TerraformRun, Error> {
    if run.status.as_ref() == Some(next) {
        return Ok(run);
    }
    let api = Api::<TerraformRun>::namespaced(context.client.clone(), &run.namespace().unwrap_or_default());
    let before = run.status.clone().unwrap_or_default();
    let mut changed = run;
    changed.status = Some(next.clone());
    let run = status::replace(&api, &changed, "write the run's status").await?;
    tell(&before, &run, context);
    Ok(run)
}

/// What the outside learns of a change: an Event, a log line, the counts.
fn tell(before: &TerraformRunStatus, run: &TerraformRun, context: &Context) {
    let Some(after) = &run.status else { return };
    context.events.tell(run, &before.conditions, &after.conditions);
    let action = run.spec.action;
    if !before.attempts.is_empty() && after.attempts.len() > before.attempts.len() {
        context.metrics.run_retried(action);
    }
    if before.attempts.is_empty()
        && let (Some(first), Some(created)) = (after.attempts.first(), run.creation_timestamp())
    {
        context.metrics.run_started(action, span(created.0, first.started_at.0));
    }
    let was_open = before.attempts.last().is_some_and(|attempt| attempt.finished_at.is_none());
    if let (true, Some(last)) = (was_open, after.attempts.last())
        && let Some(finished) = &last.finished_at
    {
        let result = last.reason.as_deref().unwrap_or_default();
        context.metrics.attempt_ended(action, result, span(last.started_at.0, finished.0));
    }
    let (Some(state), Some(ready)) = (after.state, condition::find(&after.conditions, "Ready")) else {
        return;
    };
    match state {
        RunState::Succeeded | RunState::Failed => {
            context.metrics.run_ended(run);
            let reason = ready.reason.as_str();
            if state == RunState::Succeeded {
                tracing::info!(action = action.as_str(), reason, "{}", ready.message);
            } else {
                tracing::warn!(action = action.as_str(), reason, "{}", ready.message);
            }
        }
        RunState::FailureGracePeriod => {
            tracing::warn!(action = action.as_str(), reason = ready.reason, "{}", ready.message);
        }
        RunState::Initial | RunState::Running | RunState::Retrying => {
            tracing::debug!(action = action.as_str(), reason = ready.reason, "{}", ready.message);
        }
    }
}

/// Asks the pod to end, if it is this run's and still the one we saw. Its grace is that of its spec: an apply may take long to save
/// its state.
async fn stop_pod(name: &str, run: &TerraformRun, context: &Context) -> Result<(), Error> {
    let Some(api) = pods(run, context) else { return Ok(()) };
    let Some(pod) = api.get_opt(name).await.map_err(doing("read the runner's pod"))? else { return Ok(()) };
    if !is_ours(&pod, run) || pod.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let exactly_this = DeleteParams {
        preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
        ..DeleteParams::default()
    };
    match api.delete(name, &exactly_this).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
        Err(error) => Err(doing("ask the runner's pod to stop")(error)),
    }
}

/// The name is the attempt's: a pod that exists was made by an earlier, interrupted round. The answer is why the API surely did not
/// make it, such as a quota; after any other failure it may exist.
async fn create_pod(pod: &Pod, context: &Context) -> Result<Option<String>, Error> {
    let api = Api::<Pod>::namespaced(context.client.clone(), &pod.namespace().unwrap_or_default());
    match api.create(&PostParams::default(), pod).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(answer)) if answer.reason == "AlreadyExists" => Ok(None),
        Err(kube::Error::Api(answer)) if is_refusal(answer.code) => {
            tracing::warn!(
                pod = pod.name_any(),
                why = answer.message,
                "the API would not have the runner's pod"
            );
            Ok(Some(answer.message.clone()))
        }
        Err(error) => Err(doing("create the runner's pod")(error)),
    }
}

/// Whether an API that answers so has done nothing. A timeout (408) is no such answer.
const fn is_refusal(code: u16) -> bool {
    matches!(code, 400..=407 | 409..=499)
}

/// Takes our finalizer off and deletes the pod, if it is this run's and still the one we saw.
async fn delete_pod(name: &str, run: &TerraformRun, context: &Context) -> Result<(), Error> {
    let Some(api) = pods(run, context) else { return Ok(()) };
    // First: as long as the pod is there, this is done again.
    login::delete(name, run, context).await?;
    let Some(pod) = api.get_opt(name).await.map_err(doing("read the runner's pod"))? else { return Ok(()) };
    if !is_ours(&pod, run) {
        return Ok(());
    }
    let_go(&api, &pod).await?;
    if pod.metadata.deletion_timestamp.is_some() {
        return Ok(());
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

/// Takes our finalizer off, against the version that was read.
async fn let_go(api: &Api<Pod>, pod: &Pod) -> Result<(), Error> {
    if !pod.finalizers().iter().any(|finalizer| finalizer == POD_FINALIZER) {
        return Ok(());
    }
    let left: Vec<&String> =
        pod.finalizers().iter().filter(|finalizer| *finalizer != POD_FINALIZER).collect();
    let patch = json!({ "metadata": { "resourceVersion": pod.resource_version(), "finalizers": left } });
    match api.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
        Err(error) => Err(doing("let the runner's pod go")(error)),
    }
}
