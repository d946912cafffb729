//! What a layer needs next: nothing, a plan, an apply, or to wait, and always why.
//!
//! The runs are the truth, the status is only what people read: everything that decides is derived from the layer's runs, the
//! relevant commit and the approvals. A run's name follows from the wish behind it, so deciding twice makes one run.
//!
//! Here is the order of the questions; each answer has a file of its own.

mod answers;
mod branch_words;
mod build;
mod deletion;
mod drift;
mod expiry;
mod history;
mod image_words;
mod moved;
mod need;
mod outputs;
mod policy;
mod refused;
mod remedy;
mod retention;
mod runs;
mod status;
mod template;
mod undone;

use std::collections::BTreeMap;
use std::time::Duration;

use api::layer::LayerState;
use api::run::{Trigger, TriggerKind};
use api::setup::Setup;
use api::template::Declared;
use api::text::{CommitId, Sha256, Workspace};
use api::{
    LAYER_FINALIZER, TerraformApproval, TerraformLayer, TerraformLayerStatus, TerraformRepository,
    TerraformRun,
};
use jiff::Timestamp;

use crate::outputs::Outcome;
use crate::{Read, Settings, Wake, image, later, names};
pub use branch_words::BRANCH_INTACT;
pub use image_words::TAG_MOVED;
pub use need::{APPLYING, PLANNING};

pub(crate) use expiry::moment;
use history::History;
pub use history::is_terminal;
use need::{Need, Standing, hold, unknown};
pub use outputs::{gives_outputs, kept_outputs};
pub use policy::bytes_kept;
use refused::Heeded;
pub use refused::Refusal;
use remedy::PlanWish;
use runs::{Asked, Wanted};

#[derive(Debug, Clone)]
pub struct Observed<'a> {
    pub now: Timestamp,
    pub layer: &'a TerraformLayer,
    pub repository: Read<&'a TerraformRepository>,
    pub source: Read<Result<Source, String>>,
    /// What was decided about the image, where the code is one.
    pub image: Option<&'a image::Decision>,
    /// Of a template: the variables of its code at the relevant commit.
    pub declared: &'a Read<Result<Vec<Declared>, String>>,
    /// The digest of the layer's variables and environment as they are now, if it has any; or what of them is missing.
    pub inputs: Read<Result<Option<Sha256>, String>>,
    /// The runs of this incarnation of the layer.
    pub runs: &'a [TerraformRun],
    pub approvals: &'a [TerraformApproval],
    /// What finished runs take in the datastore, by their uid. A run that is not among them was not measured, and is not forgotten for
    /// its size.
    pub sizes: &'a BTreeMap<String, u64>,
    /// Where the layer's outputs are.
    pub outputs: Outcome,
    /// Why the API would not have the run that was decided on; known in the round that tried to make it.
    pub refused: Option<&'a Refusal>,
    pub settings: &'a Settings,
}

/// What the layer's branch holds. Of an image both are the digits of its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub head: CommitId,
    /// The last commit that touches the layer.
    pub relevant: CommitId,
    /// Where the branch was before, if it does not hold that commit any more.
    pub left: Option<CommitId>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// In this order; the first that fails ends the round. The status is written after the finalizer is set and before the rest.
    pub effects: Vec<Effect>,
    pub status: TerraformLayerStatus,
    pub wake: Wake,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Keep the layer in the API until its runs have ended. It comes before everything else.
    AddFinalizer,
    /// Ask the registry for the image. It answers this value of the sync annotation, if there is one.
    LookAtImage {
        asked: Option<String>,
    },
    CreateRun(Box<TerraformRun>),
    /// Tell whoever had a word on a plan what became of it. As it was seen, with another status.
    AnswerApproval(Box<TerraformApproval>),
    /// A run that has ended, or never began, with all that it left in the datastore; only if it is still as it was seen.
    DeleteRun(Gone),
    /// Let the layer go. Nothing comes after it.
    RemoveFinalizer,
}

/// A run to delete, as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    pub name: String,
    pub uid: String,
    pub resource_version: Option<String>,
}

pub fn decide(seen: &Observed<'_>) -> Decision {
    let history = History::of(seen);
    if seen.layer.metadata.deletion_timestamp.is_some() {
        return deletion::decide(seen, &history);
    }
    let mut effects = Vec::new();
    // Nothing is ever started under a template.
    if !holds_finalizer(seen.layer) && seen.layer.spec.template.is_none() {
        effects.push(Effect::AddFinalizer);
    }
    let look = seen.image.and_then(|image| image.look.clone());
    effects.extend(look.map(|asked| Effect::LookAtImage { asked }));
    let need = outputs::with_outputs(seen, need(seen, &history));
    let Heeded { effect, told, wake } = refused::heed(seen, need);
    effects.extend(effect);
    effects.extend(answers::answers(seen, &history, &effects));
    let expired = retention::expired(seen, &history);
    let wake = wake.sooner(expired.wake).sooner(seen.image.map_or(Wake::OnChange, |image| image.wake));
    let (status, wake) = match unsaid(seen, &told) {
        Some((status, until)) => (status, wake.sooner(until)),
        None => {
            let status = status::status(seen, &history, &told, &expired.gone);
            (status, wake.sooner(outputs::wake(seen, &history)))
        }
    };
    effects.extend(expired.gone.into_iter().map(Effect::DeleteRun));
    Decision { status, effects, wake }
}

/// How long a new layer may have nothing to say.
const YOUNG: Duration = Duration::from_secs(10);

/// What is not known for a moment is no news: every commit would be told on every layer, and taken back. The status as it stays, and
/// until when.
fn unsaid(seen: &Observed<'_>, need: &Need) -> Option<(TerraformLayerStatus, Wake)> {
    match &seen.layer.status {
        Some(before) if before.state.is_some() => {
            let is_about_this = before.observed_generation == seen.layer.metadata.generation;
            (need.reason == need::NOT_KNOWN && is_about_this).then(|| (before.clone(), Wake::OnChange))
        }
        before => {
            let old = later(seen.layer.metadata.creation_timestamp.as_ref()?.0, YOUNG);
            let is_unknown = need.standing == Standing::Unknown;
            (is_unknown && seen.now < old).then(|| (before.clone().unwrap_or_default(), Wake::At(old)))
        }
    }
}

fn need(seen: &Observed<'_>, history: &History<'_>) -> Need {
    if let Some(run) = history.active {
        return need::at_work(run, history.applied_by(run).as_ref());
    }
    if seen.layer.spec.suspend && seen.layer.spec.template.is_none() {
        let state = seen.layer.status.as_ref().and_then(|s| s.state).unwrap_or(LayerState::Idle);
        let why = "suspended; set spec.suspend to false to go on";
        return hold(state, "Suspended", why, Standing::Waiting, Wake::OnChange);
    }
    match (seen.repository, seen.layer.spec.repository_name()) {
        (_, None) | (Read::Present(_), Some(_)) => {}
        (Read::Absent, Some(name)) => {
            let why = format!("repository {name} not found in this namespace");
            return hold(LayerState::PlanNeeded, "RepositoryMissing", why, Standing::Stuck, Wake::OnChange);
        }
        (Read::Unknown, Some(_)) => return unknown("the repository could not be read"),
    }
    let source = match &seen.source {
        Read::Present(Ok(source)) => source,
        Read::Present(Err(why)) => {
            let why = need::brief(why);
            return hold(LayerState::PlanNeeded, "SourceUnavailable", why, Standing::Stuck, Wake::OnChange);
        }
        Read::Absent => {
            let spec = &seen.layer.spec;
            let branch = spec.branch.as_ref().map_or("", |branch| branch.as_str());
            let repository = spec.repository_name().map_or("", |name| name.as_str());
            let why = format!("waiting for branch {branch} of {repository} to be seen");
            return hold(LayerState::PlanNeeded, "SourceUnseen", why, Standing::Unknown, Wake::OnChange);
        }
        Read::Unknown if seen.image.is_some() => return unknown("asking the registry for the newest image"),
        Read::Unknown => return unknown("looking at the repository's newest commit"),
    };
    if seen.layer.spec.template.is_some() {
        return template::need(seen);
    }
    let inputs = match inputs(seen) {
        Ok(inputs) => inputs,
        Err(need) => return *need,
    };
    if let Some(need) = build::need(seen, history, source) {
        return need;
    }
    for asked in Asked::ALL {
        if let Some(token) = asked.unanswered(seen, history) {
            let reason = "asked for by hand".to_owned();
            let trigger = Trigger { kind: TriggerKind::Manual, by: None, reason };
            let wanted =
                Wanted { mode: asked.mode(), ..Wanted::new(seen, &source.relevant, &token, trigger) };
            return runs::start_plan(seen, wanted);
        }
    }
    match &history.plan {
        Some(plan) if plan.run.spec.layer.revision != source.relevant => {
            remedy::plan_or_pause(seen, history, new_commit(seen, source, Some(plan.run)))
        }
        Some(plan) if let Some(changed) = changed_setup(seen, plan.run) => {
            let reason = format!("the layer has changed: {}", need::brief(&changed));
            let wish = PlanWish::new(TriggerKind::Inputs, &source.relevant, reason);
            remedy::plan_or_pause(seen, history, PlanWish { after: Some(plan.run), ..wish })
        }
        Some(plan) if plan.run.spec.inputs.as_ref() != inputs => {
            let reason = "the layer's variables, environment, backend or arguments have changed".to_owned();
            let wish = PlanWish::new(TriggerKind::Inputs, &source.relevant, reason);
            remedy::plan_or_pause(seen, history, PlanWish { after: Some(plan.run), ..wish })
        }
        Some(plan) if is_of_another_image(seen, plan.run) => {
            let reason = match build::built(seen, &source.relevant) {
                Some(image) => format!("image {image} was built, which the plan before was not made of"),
                None => "the code is not taken from an image any more".to_owned(),
            };
            let wish = PlanWish::new(TriggerKind::Commit, &source.relevant, reason);
            remedy::plan_or_pause(seen, history, PlanWish { after: Some(plan.run), ..wish })
        }
        Some(plan) => remedy::after_plan(seen, source, history, plan),
        None => remedy::plan_or_pause(seen, history, new_commit(seen, source, None)),
    }
}

/// Whether a run of a repository's code worked on another image than is built of it now.
fn is_of_another_image(seen: &Observed<'_>, run: &TerraformRun) -> bool {
    let revision = &run.spec.layer.revision;
    seen.layer.spec.repository.is_some() && run.spec.image != build::built(seen, revision)
}

fn new_commit<'a>(seen: &Observed<'_>, source: &'a Source, after: Option<&'a TerraformRun>) -> PlanWish<'a> {
    let reason = match seen.image.and_then(|image| image.status.as_ref()) {
        Some(image) => image_words::reason(image),
        None => format!("new commit {} touches {}", source.relevant.short(), seen.layer.spec.path),
    };
    PlanWish { after, ..PlanWish::new(TriggerKind::Commit, &source.relevant, reason) }
}

/// The digest of what the layer gives to its code. Without what it refers to, nothing of it can be planned.
fn inputs<'a>(seen: &'a Observed<'_>) -> Result<Option<&'a Sha256>, Box<Need>> {
    let settings = seen.settings;
    if let Err(unusable) = seen.layer.inputs(repository(seen), &settings.backends, &settings.overrides) {
        let (reason, why) = (unusable.reason(), unusable.to_string());
        return Err(Box::new(hold(LayerState::PlanNeeded, reason, why, Standing::Stuck, Wake::OnChange)));
    }
    match &seen.inputs {
        Read::Present(Ok(inputs)) => Ok(inputs.as_ref()),
        Read::Present(Err(why)) => {
            let why = need::brief(why);
            let wake = Wake::OnChange;
            Err(Box::new(hold(LayerState::PlanNeeded, "InputsMissing", why, Standing::Stuck, wake)))
        }
        Read::Absent | Read::Unknown => {
            Err(Box::new(unknown("looking at the layer's variables and environment")))
        }
    }
}

/// The same, where what is missing has been told before. Of a deletion it is what the apply was given that it undoes.
fn known_inputs<'a>(seen: &'a Observed<'_>) -> Option<&'a Sha256> {
    if let Some(apply) = undone::apply(seen) {
        return apply.spec.inputs.as_ref();
    }
    match &seen.inputs {
        Read::Present(Ok(inputs)) => inputs.as_ref(),
        Read::Present(Err(_)) | Read::Absent | Read::Unknown => None,
    }
}

/// What plans are made with now. Of a deletion it is what the apply was made with that it undoes.
fn known_setup(seen: &Observed<'_>) -> Setup {
    let undone = undone::apply(seen).and_then(|apply| apply.spec.setup.clone());
    undone.unwrap_or_else(|| seen.layer.setup(repository(seen)))
}

/// In which way a run was made with another path, workspace or tool than there is now. Of one from before runs said so, nothing is known
/// to have changed.
fn changed_setup(seen: &Observed<'_>, run: &TerraformRun) -> Option<String> {
    known_setup(seen).changes_since(run.spec.setup.as_ref()?)
}

fn repository<'a>(seen: &Observed<'a>) -> Option<&'a TerraformRepository> {
    match seen.repository {
        Read::Present(repository) => Some(repository),
        Read::Absent | Read::Unknown => None,
    }
}

fn holds_finalizer(layer: &TerraformLayer) -> bool {
    layer.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == LAYER_FINALIZER)
}

/// The state that the datastore keeps for a layer. A plan reads it unless the code names a backend; what an apply is about, its plan
/// has found out. One image is meant for many layers, and so each has a state of its own, whatever its image is called.
pub fn state_of(layer: &TerraformLayer) -> Sha256 {
    let of_image = format!("image of layer/{}", name_of(layer));
    names::state(
        layer.metadata.namespace.as_deref().unwrap_or_default(),
        layer.spec.repository_name().map_or(of_image.as_str(), |name| name.as_str()),
        layer.spec.path.trimmed(),
        layer.spec.workspace.as_ref().map_or("default", Workspace::as_str),
    )
}

fn annotated<'a>(layer: &'a TerraformLayer, key: &str) -> Option<&'a str> {
    layer.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn name_of(layer: &TerraformLayer) -> &str {
    layer.metadata.name.as_deref().unwrap_or_default()
}
