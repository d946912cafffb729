//! What the run controller reads before it decides.

use api::attempt::{Description, Outcome, Reason};
use api::image::{ImagePlace, PinnedImage};
use api::inputs::DigestKey;
use api::text::Sha256;
use api::{TerraformLayer, TerraformRepository, TerraformRun};
use datastore::{Artefact, Attempt, Client};
use engine::queue::Slot;
use engine::run::{Lack, Lock, Observed, can_still_work, obstacle};
use engine::{Read, Settings};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};

use super::asking::ask;
use super::lock;
use crate::error::{Error, doing, storing};
use crate::source::{ImageAt, Place, Waiting};
use crate::{Context, inputs};

pub(super) struct Seen {
    pub(super) run: TerraformRun,
    layer: Option<TerraformLayer>,
    repository: Option<TerraformRepository>,
    bundle: Read<Result<Sha256, String>>,
    pod: Option<Pod>,
    outcome: Read<Outcome>,
    lock: Read<Lock>,
    digest_key: Option<DigestKey>,
    /// Looked at only when the datastore refuses another description.
    pub(super) described: Read<Description>,
    /// Known once the API refused the pod in this round.
    pub(super) refused: Option<String>,
    /// Known once the datastore did not take something in this round.
    pub(super) lack: Option<Lack>,
}

impl Seen {
    pub(super) fn view<'a>(&'a self, now: Timestamp, settings: &'a Settings, slot: Slot) -> Observed<'a> {
        Observed {
            now,
            run: &self.run,
            layer: self.layer.as_ref().map_or(Read::Absent, Read::Present),
            repository: self.repository.as_ref().map_or(Read::Absent, Read::Present),
            bundle: self.bundle.clone(),
            pod: self.pod.as_ref().map_or(Read::Absent, Read::Present),
            outcome: self.outcome.as_ref(),
            lock: self.lock.clone(),
            digest_key: self.digest_key.as_ref(),
            slot: Read::Present(slot),
            described: self.described.as_ref(),
            refused: self.refused.as_deref(),
            lack: self.lack.as_ref(),
            settings,
        }
    }
}

/// Reads everything else from the API and the datastore. A read that fails ends the round: nothing is decided on half the facts.
pub(super) async fn run(run: TerraformRun, context: &Context) -> Result<Seen, Error> {
    let namespace = run.namespace().unwrap_or_default();
    let status = run.status.clone().unwrap_or_default();
    let attempt = status.attempts.last();
    let pod = match (attempt, super::pods(&run, context)) {
        (Some(attempt), Some(pods)) => {
            pods.get_opt(&attempt.pod_name).await.map_err(doing("read the runner's pod"))?
        }
        (Some(_) | None, _) => None,
    };
    let is_terminal = status.state.is_some_and(|state| state.is_terminal());
    let under_way = attempt.filter(|attempt| attempt.finished_at.is_none());
    let lock = if run.spec.action.mutates() && !is_terminal && under_way.is_none() {
        lock::read(&run, context).await?
    } else {
        Read::Unknown
    };

    // A layer can say that its run is canceled. Only a run that may make a pod, or whose pod cannot start, needs its repository, only one that may start an
    // attempt its files and its lock, and only one whose pod has ended or is gone its result.
    let layer = if is_terminal { None } else { observe_layer(&run, &namespace, context).await? };
    let repository = match &layer {
        Some(layer) if pod.as_ref().is_none_or(|pod| obstacle(pod).is_some()) || under_way.is_none() => {
            observe_repository(layer, &namespace, context).await?
        }
        Some(_) | None => None,
    };
    let missed = attempt.and_then(missed_its_files);
    let bundle = match (&run.spec.bundle, &run.spec.image, &repository, &layer) {
        (Some(known), _, _, _) => Read::Present(Ok(known.clone())),
        (None, Some(image), _, Some(layer)) if under_way.is_none() => {
            observe_image(&run, image, layer, &namespace, missed, context)
        }
        (None, None, Some(repository), _) if under_way.is_none() => {
            let waiting = Waiting::Run { namespace: namespace.clone(), name: run.name_any() };
            context.desk.bundle(&Place::of(repository), &run.spec.layer.revision, missed, waiting)
        }
        (None, Some(_) | None, _, _) => Read::Unknown,
    };
    let ended = pod.as_ref().is_none_or(|pod| !can_still_work(pod));
    let outcome = match under_way {
        Some(attempt) if ended => observe_outcome(&run, attempt.number, context).await?,
        Some(_) | None => Read::Unknown,
    };
    let digest_key = match &run.spec.inputs {
        Some(_) if under_way.is_none() && !is_terminal => {
            Some(inputs::key_of(&run.spec.layer.uid, context).await?)
        }
        Some(_) | None => None,
    };
    let described = Read::Unknown;
    Ok(Seen {
        run,
        layer,
        repository,
        bundle,
        pod,
        outcome,
        lock,
        digest_key,
        described,
        refused: None,
        lack: None,
    })
}

/// When an attempt began that may not have found its files: what was known of them before is looked at again.
fn missed_its_files(attempt: &api::run::Attempt) -> Option<Timestamp> {
    (attempt.reason.as_deref() == Some(Reason::BadInput.as_str())).then_some(attempt.started_at.0)
}

/// The layers of the run's image, which is the one that was decided on. How to log in is for the layer to say.
fn observe_image(
    run: &TerraformRun,
    image: &PinnedImage,
    layer: &TerraformLayer,
    namespace: &str,
    missed: Option<Timestamp>,
    context: &Context,
) -> Read<Result<Sha256, String>> {
    let place = ImagePlace { host: image.host.clone(), path: image.path.clone() };
    let read = layer.spec.image.as_ref().and_then(|source| source.credentials.clone());
    let built = || layer.spec.build.as_ref().and_then(|build| build.credentials.clone());
    let credentials = read.or_else(built);
    let at = ImageAt { namespace: namespace.to_owned(), place, credentials };
    let waiting = Waiting::Run { namespace: namespace.to_owned(), name: run.name_any() };
    context.desk.image_bundle(at, &image.digest, missed, waiting)
}

async fn observe_layer(
    run: &TerraformRun,
    namespace: &str,
    context: &Context,
) -> Result<Option<TerraformLayer>, Error> {
    let layers = Api::<TerraformLayer>::namespaced(context.client.clone(), namespace);
    layers.get_opt(run.spec.layer.name.as_str()).await.map_err(doing("read the run's layer"))
}

async fn observe_repository(
    layer: &TerraformLayer,
    namespace: &str,
    context: &Context,
) -> Result<Option<TerraformRepository>, Error> {
    let repositories = Api::<TerraformRepository>::namespaced(context.client.clone(), namespace);
    let Some(name) = layer.spec.repository_name() else { return Ok(None) };
    repositories.get_opt(name.as_str()).await.map_err(doing("read the layer's repository"))
}

/// More than any result holds.
const OUTCOME_LIMIT: u64 = 1024 * 1024;

/// A datastore that cannot be asked, or a result that cannot be understood, leaves the outcome unknown, never absent.
async fn observe_outcome(
    run: &TerraformRun,
    attempt: u32,
    context: &Context,
) -> Result<Read<Outcome>, Error> {
    let key = Attempt::new(run.uid().unwrap_or_default(), attempt).map_err(Error::BadUid)?;
    let unknown = |error: &dyn std::fmt::Display| {
        tracing::warn!(run = run.name_any(), attempt, %error, "the result could not be read and is asked for again");
        Read::Unknown
    };
    let get = async |datastore: Client| datastore.artefact_get(&key, Artefact::Result, OUTCOME_LIMIT).await;
    Ok(match ask(&context.datastore, "read a result", get).await {
        Ok(None) => Read::Absent,
        Ok(Some(bytes)) => match serde_json::from_slice(&bytes) {
            Ok(outcome) => Read::Present(outcome),
            Err(error) => unknown(&error),
        },
        Err(error) => unknown(&error),
    })
}

/// More than any description holds.
const DESCRIPTION_LIMIT: u64 = 1024 * 1024;

/// What the runner of an attempt was told, if it was told anything. One that cannot be understood is as good as unread.
pub(super) async fn description(attempt: &Attempt, context: &Context) -> Result<Option<Description>, Error> {
    const DOING: &str = "read what the runner was told before";
    let get =
        async |datastore: Client| datastore.artefact_get(attempt, Artefact::Spec, DESCRIPTION_LIMIT).await;
    let bytes = ask(&context.datastore, DOING, get).await.map_err(storing(DOING))?;
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}
