//! What a Terraform needs: its repository, unless its code is an image, and its layer; and what it says about them. When something is deployed, tried again or destroyed
//! is the layer's business alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::condition::{self, Truth};
use api::image::ImageStatus;
use api::layer::DeletionPolicy;
use api::repository::Location;
use api::terraform::{ContainerRegistry, TerraformStatus, WorkloadState};
use api::text::{LayerPath, ObjectName};
use api::{Terraform, TerraformLayer, TerraformRepository, WORKLOAD_FINALIZER};
use jiff::Timestamp;
use kube::Resource;
use serde_json::{Value, json};

use super::child::{build_child, build_patch, difference, is_ours, may_change};
use super::composite::is_of_metacontroller;
use super::place::Place;
use super::ready::{Progress, Ready, in_the_way, of_layer, unreadable};
use super::surroundings::{self, Surroundings};
use super::workload::{POST_DEPLOY, Problem, Wish, applies_by_itself, image_name, outputs_name, wish};
use crate::{Settings, Wake, later};

#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    pub now: Timestamp,
    pub terraform: &'a Terraform,
    /// The objects that bear its name, whoever made them.
    pub repository: Option<&'a TerraformRepository>,
    pub layer: Option<&'a TerraformLayer>,
    /// What the layer has written of its outputs.
    pub outputs: &'a Given,
    pub surroundings: &'a Surroundings,
    pub settings: &'a Settings,
}

/// Outputs as they were written for the layer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given {
    /// Those that are not sensitive.
    pub shown: BTreeMap<String, String>,
    /// The names of all.
    pub names: BTreeSet<String>,
}

/// In this order; the status is written after them.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Before anything is made. Nothing else is done in the same round.
    AddFinalizer,
    CreateRepository(Box<TerraformRepository>),
    CreateLayer(Box<TerraformLayer>),
    /// Put the fields right that the Terraform sets; against the version that was seen.
    PatchRepository(Value),
    PatchLayer(Value),
    /// The layer of this uid.
    DeleteLayer(String),
}

/// What the API would not have, in its own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub kind: &'static str,
    pub words: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub status: TerraformStatus,
    pub wake: Wake,
    /// Nothing is left that it stands for: once the status says so, its finalizer goes.
    pub let_go: bool,
}

/// Between two tries at what the API refuses: a quota, or rights, change without a word to us.
const REFUSED: Duration = Duration::from_secs(60);
/// Between two rounds through all that a URL may mean.
const ROUND: Duration = Duration::from_secs(600);
/// What of one output, and of all together, stands in the status, which every reader gets each time.
const OUTPUT_LIMIT: usize = 1024;
const OUTPUTS_LIMIT: usize = 32 * 1024;

/// What the layer's outputs are written to, once it has a layer.
pub fn outputs_of(terraform: &Terraform) -> Option<ObjectName> {
    outputs_name(terraform)
}

pub fn decide(seen: &Observed<'_>) -> Vec<Effect> {
    let metadata = &seen.terraform.metadata;
    if is_metacontrollers(seen.terraform) {
        return Vec::new();
    }
    if metadata.deletion_timestamp.is_some() {
        return end(seen);
    }
    if !holds_finalizer(seen.terraform) {
        return vec![Effect::AddFinalizer];
    }
    // What cannot be understood leaves everything as it is.
    let Ok(wish) = wish(&seen.terraform.spec) else { return Vec::new() };
    keep_repository(seen, &wish).into_iter().chain(keep_layer(seen, &wish)).collect()
}

/// Whether metacontroller keeps it: two who keep one object would undo each other's work.
fn is_metacontrollers(terraform: &Terraform) -> bool {
    terraform.metadata.finalizers.iter().flatten().any(|finalizer| is_of_metacontroller(finalizer))
}

pub fn holds_finalizer(terraform: &Terraform) -> bool {
    terraform.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == WORKLOAD_FINALIZER)
}

/// The layer goes first, with the infrastructure where there is a script for that. Taking that script away lets it go without.
fn end(seen: &Observed<'_>) -> Vec<Effect> {
    let layer = seen.layer.filter(|layer| is_ours(&seen.terraform.metadata, &layer.metadata));
    let Some(layer) = layer.filter(|_| holds_finalizer(seen.terraform)) else { return Vec::new() };
    let is_kept =
        wish(&seen.terraform.spec).is_ok_and(|wish| wish.deletion_policy() == DeletionPolicy::Orphan);
    let would_destroy = layer.spec.deletion_policy == Some(DeletionPolicy::Destroy);
    if is_kept && would_destroy {
        let orphan = json!({ "deletionPolicy": DeletionPolicy::Orphan });
        return vec![Effect::PatchLayer(build_patch(&layer.metadata, &orphan))];
    }
    let uid = layer.metadata.uid.clone().filter(|_| layer.metadata.deletion_timestamp.is_none());
    uid.map(Effect::DeleteLayer).into_iter().collect()
}

fn keep_repository(seen: &Observed<'_>, wish: &Wish) -> Option<Effect> {
    let terraform = seen.terraform;
    let place = place(seen, wish)?;
    let wanted = Location { url: place.url.clone(), credentials: wish.credentials.clone() };
    let Some(found) = seen.repository else {
        let fields = json!({ "repository": wanted });
        let owner = terraform.controller_owner_ref(&())?;
        let made = build_child(&terraform.metadata, &owner, "TerraformRepository", &fields);
        return serde_json::from_value(made).ok().map(Box::new).map(Effect::CreateRepository);
    };
    if !may_change(&terraform.metadata, &found.metadata) {
        return None;
    }
    let known = serde_json::to_value(&found.spec).ok()?;
    let fields = json!({ "repository": { "url": wanted.url, "credentials": wanted.credentials } });
    let patch = difference(&known, &fields)?;
    Some(Effect::PatchRepository(build_patch(&found.metadata, &patch)))
}

fn keep_layer(seen: &Observed<'_>, wish: &Wish) -> Option<Effect> {
    let (terraform, door) = (seen.terraform, &seen.terraform.metadata);
    let (branch, path) = if wish.image.is_some() {
        (None, LayerPath::new(".").ok()?)
    } else {
        let repository = seen.repository.filter(|repository| is_ours(door, &repository.metadata))?;
        let place = place(seen, wish)?;
        let is_known = is_settled(seen, wish) || is_readable(repository);
        // What a URL means is known once something was found there.
        if repository.spec.repository.url != place.url || !is_known {
            return None;
        }
        let asked = terraform.spec.git_repo.as_ref().and_then(|git| git.branch.as_ref());
        (Some(super::branch::followed(door, asked, seen.repository, seen.layer)?), place.path.clone())
    };
    let build = wish.build.as_ref().filter(|_| seen.settings.builds.is_some());
    let fields = wish.layer_fields(terraform, branch.as_ref(), &path, build)?;
    let strategy = json!({ "autoApply": true });
    let Some(found) = seen.layer else {
        let mut spec = fields;
        spec.as_object_mut()?.retain(|_, value| !value.is_null());
        spec.as_object_mut()?.insert("remediationStrategy".to_owned(), strategy);
        let made = build_child(door, &terraform.controller_owner_ref(&())?, "TerraformLayer", &spec);
        return serde_json::from_value(made).ok().map(Box::new).map(Effect::CreateLayer);
    };
    if !may_change(door, &found.metadata) {
        return None;
    }
    let known = serde_json::to_value(&found.spec).ok()?;
    let mut patch = difference(&known, &fields).unwrap_or_else(|| json!({}));
    if !applies_by_itself(found) {
        patch.as_object_mut()?.insert("remediationStrategy".to_owned(), strategy);
    }
    let is_right = patch.as_object()?.is_empty();
    (!is_right).then(|| Effect::PatchLayer(build_patch(&found.metadata, &patch)))
}

/// Which of all that the URL may mean is taken: what the layer works with, else what is looked at now, else, when that cannot be read, the
/// next one. When none can, the last stands for a while before they are gone through again.
fn place<'a>(seen: &Observed<'_>, wish: &'a Wish) -> Option<&'a Place> {
    let door = &seen.terraform.metadata;
    let repository = seen.repository.filter(|repository| is_ours(door, &repository.metadata));
    let at = |repository: &TerraformRepository| {
        wish.places.iter().position(|place| place.url == repository.spec.repository.url)
    };
    let Some((repository, index)) = repository.and_then(|found| Some((found, at(found)?))) else {
        return wish.places.first();
    };
    if is_settled(seen, wish) || unreadable(repository).is_none() {
        return wish.places.get(index);
    }
    match wish.places.get(index + 1) {
        Some(next) => Some(next),
        None if round_ends(seen) <= seen.now => wish.places.first(),
        None => wish.places.get(index),
    }
}

/// When all that the URL may mean is gone through again.
fn round_ends(seen: &Observed<'_>) -> Timestamp {
    let status = seen.terraform.status.as_ref();
    let status = status.filter(|status| status.observed_generation == seen.terraform.metadata.generation);
    let stalled = status.and_then(|status| condition::find(&status.conditions, "Stalled"));
    later(stalled.map_or(seen.now, |stalled| stalled.last_transition_time.0), ROUND)
}

/// Whether there is one thing that the URL can mean, or the layer works with what was found.
fn is_settled(seen: &Observed<'_>, wish: &Wish) -> bool {
    let door = &seen.terraform.metadata;
    let repository = seen.repository.filter(|repository| is_ours(door, &repository.metadata));
    let layer = seen.layer.filter(|layer| is_ours(door, &layer.metadata));
    let works = repository.zip(layer).is_some_and(|(repository, layer)| {
        wish.places
            .iter()
            .any(|place| place.url == repository.spec.repository.url && place.path == layer.spec.path)
    });
    wish.places.len() == 1 || works
}

fn is_readable(repository: &TerraformRepository) -> bool {
    let status = repository.status.as_ref();
    let status = status.filter(|status| status.observed_generation == repository.metadata.generation);
    status.is_some_and(|status| condition::is_true(&status.conditions, "Ready"))
}

/// What the status says after the effects, of which some were refused.
pub fn report(seen: &Observed<'_>, refused: &[Refused]) -> Report {
    let terraform = seen.terraform;
    let (generation, before) = (terraform.metadata.generation, terraform.status.clone().unwrap_or_default());
    if is_metacontrollers(terraform) {
        return Report { status: before, wake: Wake::OnChange, let_go: false };
    }
    if terraform.metadata.deletion_timestamp.is_some() {
        return ending(seen, before, refused);
    }
    let wish = wish(&terraform.spec);
    let ready = ready(seen, wish.as_ref(), refused);
    let mut status = TerraformStatus { observed_generation: generation, ..before };
    ready.tell(&mut status.conditions, generation, seen.now);
    tell_of_image(seen, &mut status);
    let after = post_deploy(seen, &mut status);
    status.output = if is_deployed(&ready) { outputs(seen) } else { status.output };
    let own = terraform.metadata.namespace.as_deref().unwrap_or_default();
    surroundings::tell(&seen.settings.told, seen.surroundings, own, &mut status);
    let (state, message) = state(seen, &ready, after);
    status.state = Some(state);
    status.message = Some(format!("{message}{}", image_words(seen, wish.as_ref().ok())));
    let wake = match wish {
        _ if !refused.is_empty() => Wake::At(later(seen.now, REFUSED)),
        Ok(wish)
            if wish.places.len() > 1 && !is_settled(seen, &wish) && ready.progress == Progress::Stuck =>
        {
            Wake::At(round_ends(seen))
        }
        Ok(_) | Err(_) => Wake::OnChange,
    };
    let wake = match surroundings::shows_values(seen.surroundings) {
        true => wake.sooner(Wake::At(later(seen.now, surroundings::LOOK_AGAIN))),
        false => wake,
    };
    Report { status, wake, let_go: false }
}

/// A layer whose outputs could not be written is deployed all the same.
const OUTPUTS_NOT_WRITTEN: &str = "OutputsNotWritten";

fn is_deployed(ready: &Ready) -> bool {
    ready.truth == Truth::True || ready.reason == OUTPUTS_NOT_WRITTEN
}

fn state(seen: &Observed<'_>, ready: &Ready, after: After) -> (WorkloadState, String) {
    let message = ready.message.clone();
    match (is_deployed(ready), after) {
        (true, After::NotAsked | After::Done) if ready.truth == Truth::True => {
            (WorkloadState::Completed, message)
        }
        (true, After::NotAsked | After::Done) => (WorkloadState::Success, message),
        (true, After::Open(why)) => (WorkloadState::Success, format!("{message}; {why}")),
        (false, _) => match (ready.progress, seen.layer) {
            (Progress::Stuck, _) => (WorkloadState::Error, message),
            (Progress::Working | Progress::Still, None) => (WorkloadState::Pending, message),
            (Progress::Working | Progress::Still, Some(_)) => (WorkloadState::Progressing, message),
        },
    }
}

fn ready(seen: &Observed<'_>, wish: Result<&Wish, &Problem>, refused: &[Refused]) -> Ready {
    let stuck = |reason: &str, message: String| Ready::new(Truth::False, reason, message, Progress::Stuck);
    let wish = match wish {
        Ok(wish) => wish,
        Err(Problem { reason, message }) => return stuck(reason, message.clone()),
    };
    // An image needs no repository, whoever has one of that name.
    let repository = seen.repository.filter(|_| wish.image.is_none());
    if let Some(found) = in_the_way(&seen.terraform.metadata, "Terraform", repository, seen.layer) {
        return found;
    }
    if let Some(Refused { kind, words }) = refused.first() {
        let name = seen.terraform.metadata.name.as_deref().unwrap_or_default();
        return stuck("Refused", format!("the API would not have {kind} {name}: {words}"));
    }
    let is_changed = !decide(seen).is_empty();
    if let Some(unreadable) = repository.and_then(unreadable).filter(|_| !is_changed) {
        if wish.places.len() == 1 || is_settled(seen, wish) {
            return unreadable;
        }
        let tried: Vec<&str> = wish.places.iter().map(|place| place.url.as_str()).collect();
        let message =
            format!("none of {} can be read; the last of them: {}", tried.join(", "), unreadable.message);
        return stuck(&unreadable.reason, message);
    }
    let layer = seen.layer.filter(|_| !is_changed).and_then(of_layer);
    layer.unwrap_or_else(|| {
        let url = place(seen, wish).map(|place| place.url.to_string());
        let image = wish.image.as_ref().map(|image| format!("image {}", image.name));
        let what = url.or(image).unwrap_or_default();
        Ready::new(Truth::Unknown, "Progressing", format!("looking at {what}"), Progress::Working)
    })
}

/// While it is being deleted: what the layer says, and the end once that is gone.
fn ending(seen: &Observed<'_>, before: TerraformStatus, refused: &[Refused]) -> Report {
    let terraform = seen.terraform;
    if !holds_finalizer(terraform) {
        return Report { status: before, wake: Wake::OnChange, let_go: false };
    }
    let generation = terraform.metadata.generation;
    let mut status = TerraformStatus { observed_generation: generation, ..before };
    let destroys = wish(&terraform.spec).is_ok_and(|wish| wish.deletion_policy() == DeletionPolicy::Destroy);
    let layer = seen.layer.filter(|layer| is_ours(&terraform.metadata, &layer.metadata));
    let working = |message: String| Ready::new(Truth::False, "Deleting", message, Progress::Working);
    let (state, ready) = match (layer, refused.first()) {
        (Some(_), Some(Refused { words, .. })) => {
            let message = format!("being deleted, but the API would not let its layer go: {words}");
            (WorkloadState::Error, Ready::new(Truth::False, "Refused", message, Progress::Stuck))
        }
        (Some(layer), None) => {
            let is_under_way = layer.metadata.deletion_timestamp.is_some();
            let said = of_layer(layer).filter(|said| is_under_way && said.truth != Truth::True);
            let ready = said.unwrap_or_else(|| working("being deleted".to_owned()));
            let is_stuck = ready.progress == Progress::Stuck;
            (if is_stuck { WorkloadState::Error } else { WorkloadState::Progressing }, ready)
        }
        (None, _) => {
            let message = if destroys { "destroyed" } else { "deleted; the infrastructure stays as it is" };
            (WorkloadState::Completed, working(message.to_owned()))
        }
    };
    ready.tell(&mut status.conditions, generation, seen.now);
    status.state = Some(state);
    status.message = Some(ready.message);
    let wake = if refused.is_empty() { Wake::OnChange } else { Wake::At(later(seen.now, REFUSED)) };
    Report { status, wake, let_go: layer.is_none() }
}

/// Whether the code is in an image.
const IMAGE_BUILT: &str = "ImageBuilt";

fn tell_of_image(seen: &Observed<'_>, status: &mut TerraformStatus) {
    let generation = seen.terraform.metadata.generation;
    let (Some(registry), Some(_)) = (&seen.terraform.spec.container_registry, &seen.terraform.spec.git_repo)
    else {
        return condition::clear(&mut status.conditions, IMAGE_BUILT);
    };
    let ((image, _), remark) = (image_name(registry), left_out(registry));
    let known = known_image(seen);
    let (truth, reason, message) = match known.map(|known| (known, &known.digest, &known.message)) {
        _ if seen.settings.builds.is_none() => {
            let message = format!(
                "images are not built here: runs take the code from Git itself, and {image} is not made; an administrator can let them be built, by --build-images"
            );
            (Truth::False, "NotBuilt", message)
        }
        Some((known, Some(_), _)) => (Truth::True, "Built", format!("{known} holds commit {}", known.wanted)),
        Some((known, None, Some(why))) => (Truth::False, "BuildFailed", format!("{known}: {why}")),
        Some((_, None, None)) | None => {
            (Truth::Unknown, "NotBuiltYet", format!("{image} is built before its code is planned"))
        }
    };
    let message = format!("{message}{remark}");
    condition::set(&mut status.conditions, IMAGE_BUILT, truth, reason, message, generation, seen.now);
}

/// What the layer says of its image.
fn known_image<'a>(seen: &Observed<'a>) -> Option<&'a ImageStatus> {
    let layer = seen.layer.filter(|layer| is_ours(&seen.terraform.metadata, &layer.metadata));
    layer.and_then(|layer| layer.status.as_ref()?.image.as_ref())
}

/// What of the image's name is none of it.
fn left_out(registry: &ContainerRegistry) -> String {
    match image_name(registry) {
        (_, "") => String::new(),
        (_, remark) => format!("; {remark:?} is no part of the image's name and is left out"),
    }
}

/// Which image it is, once that is known, and what of its name was left out.
fn image_words(seen: &Observed<'_>, wish: Option<&Wish>) -> String {
    let Some(registry) = wish.and(seen.terraform.spec.container_registry.as_ref()) else {
        return String::new();
    };
    let known = known_image(seen).filter(|image| image.digest.is_some());
    let image = known.map(|image| format!("; image {image}")).unwrap_or_default();
    // A condition of its own tells that of an image that is built.
    let is_read = seen.terraform.spec.git_repo.is_none();
    let left_out = if is_read { left_out(registry) } else { String::new() };
    format!("{image}{left_out}")
}

/// What follows a deploy.
enum After {
    NotAsked,
    Done,
    /// And why.
    Open(String),
}

/// Whether `postDeploy` has done its work after the last deploy.
const POST_DEPLOYED: &str = "PostDeployed";

fn post_deploy(seen: &Observed<'_>, status: &mut TerraformStatus) -> After {
    let (generation, now) = (seen.terraform.metadata.generation, seen.now);
    if seen.terraform.spec.post_deploy.is_none() {
        condition::clear(&mut status.conditions, POST_DEPLOYED);
        status.post_deploy_output = None;
        return After::NotAsked;
    }
    let layer = seen.layer.filter(|layer| is_ours(&seen.terraform.metadata, &layer.metadata));
    let printed = layer.and_then(|layer| layer.status.as_ref()?.hook_outputs.get(POST_DEPLOY));
    let failed = printed.and_then(|printed| printed.get("failed")).and_then(Value::as_str);
    let (truth, reason, message) = match (printed, failed) {
        (Some(printed), _) if printed.get("outputs").is_some() => {
            let message = "what it printed stands in status.postDeployOutput";
            (Truth::True, "Done", message.to_owned())
        }
        (Some(_), Some(why)) => (Truth::False, "Failed", format!("postDeploy: {why}")),
        (Some(_), None) => {
            let message =
                "postDeploy printed an object without the key outputs at its top, which is not kept";
            (Truth::False, "OutputRefused", message.to_owned())
        }
        (None, _) => {
            (Truth::Unknown, "NotRun", "postDeploy was not run yet; it follows the next deploy".to_owned())
        }
    };
    status.post_deploy_output = printed.filter(|_| truth == Truth::True).cloned();
    condition::set(&mut status.conditions, POST_DEPLOYED, truth, reason, message.clone(), generation, now);
    if truth == Truth::True { After::Done } else { After::Open(message) }
}

/// What the code gives out, as far as it may be shown here. O(outputs).
fn outputs(seen: &Observed<'_>) -> BTreeMap<String, String> {
    let Some(object) = outputs_name(seen.terraform) else { return BTreeMap::new() };
    let mut room = OUTPUTS_LIMIT;
    let mut shown = BTreeMap::new();
    let shown_names: BTreeSet<String> = seen.outputs.shown.keys().cloned().collect();
    for name in seen.outputs.names.union(&shown_names) {
        let value = match seen.outputs.shown.get(name) {
            None => format!("*** (sensitive; key {name} of Secret {object})"),
            Some(value) if value.len() > OUTPUT_LIMIT.min(room) => {
                format!("({} bytes; key {name} of ConfigMap {object})", value.len())
            }
            Some(value) => value.clone(),
        };
        room = room.saturating_sub(value.len());
        shown.insert(name.clone(), value);
    }
    shown
}
