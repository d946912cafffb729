//! What of an object concerns whom. Nobody is woken by a change of anything else: most changes of an object are a controller's own words
//! about it, and each look costs several reads of the API.
//!
//! Whoever adds a field to what a decision reads adds it here, or the decision comes late: at the next wake. Reads still decide; this
//! only says when to look.

use std::hash::{DefaultHasher, Hash, Hasher};

use api::{
    Repo, Terraform, TerraformApproval, TerraformLayer, TerraformNotification, TerraformRepository,
    TerraformRun, condition,
};
use engine::run::{can_still_work, obstacle};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, ResourceExt};

/// What people and other controllers change about an object: everything but its status.
fn wish<K: Resource>(object: &K) -> impl Hash + use<K> {
    let meta = object.meta();
    let deleted = meta.deletion_timestamp.is_some();
    (meta.generation, meta.annotations.clone(), meta.finalizers.clone(), deleted)
}

/// A repository to its own controller, which writes the status and knows it, but for what the HTTP service notes there of webhooks.
pub(crate) fn repository(repository: &TerraformRepository) -> u64 {
    let webhook = repository.status.as_ref().and_then(|status| status.webhook.as_ref());
    hash(&(wish(repository), webhook.map(|webhook| webhook.look_after.0)))
}

/// A repository to its layers: what it says for all of them, and where its branches stand. Not how many layers it has.
pub(crate) fn repository_to_layers(repository: &TerraformRepository) -> u64 {
    let branches = repository.status.as_ref().map_or(&[][..], |status| status.branches.as_slice());
    // O(branches that layers follow).
    let heads: Vec<_> = branches
        .iter()
        .map(|branch| (&branch.name, branch.latest_rev.as_ref().map(|rev| rev.as_str()), &branch.message))
        .collect();
    hash(&(wish(repository), heads))
}

/// A layer to its own controller, which writes the status and knows it.
pub(crate) fn layer(layer: &TerraformLayer) -> u64 {
    hash(&wish(layer))
}

/// A layer to its repository: which branch it follows. How it is doing is counted once a poll.
pub(crate) fn layer_to_repository(layer: &TerraformLayer) -> u64 {
    hash(&layer.metadata.generation)
}

/// A layer to its runs: whether one of them is canceled.
pub(crate) fn layer_to_runs(layer: &TerraformLayer) -> u64 {
    hash(&layer.annotations().get(api::annotation::CANCEL))
}

/// A run to its own controller: what came of its attempts. That one begins is written before its pod is made, in the same round.
pub(crate) fn run(run: &TerraformRun) -> u64 {
    hash(&(wish(run), ends(run)))
}

/// A run to its layer: what came of it so far, and what keeps it from going on. That it works says nothing new.
pub(crate) fn run_to_layer(run: &TerraformRun) -> u64 {
    let ready = run.status.as_ref().and_then(|status| condition::find(&status.conditions, "Ready"));
    let obstacle =
        ready.filter(|ready| ready.reason != "Running").map(|ready| (&ready.reason, &ready.message));
    hash(&(wish(run), ends(run), obstacle))
}

/// Whether the run is over, and how many of its attempts are. O(attempts of the run).
fn ends(run: &TerraformRun) -> (bool, usize) {
    run.status.as_ref().map_or((false, 0), |status| {
        let ended = status.attempts.iter().filter(|attempt| attempt.finished_at.is_some()).count();
        (status.state.is_some_and(|state| state.is_terminal()), ended)
    })
}

/// A repository to the Repo that bears its name: what it is, and what it says about itself.
pub(crate) fn repository_to_repo(repository: &TerraformRepository) -> u64 {
    let status = repository.status.as_ref();
    let branch = status.and_then(|status| status.default_branch.as_ref()).map(|name| name.as_str());
    let told = status.map(|status| (status.observed_generation, words(&status.conditions)));
    hash(&(wish(repository), branch, told))
}

/// A layer to the Repo that bears its name: what it is, what it says about itself, and where its commits stand.
pub(crate) fn layer_to_repo(layer: &TerraformLayer) -> u64 {
    let status = layer.status.as_ref();
    let told = status.map(|status| {
        let commits = [&status.revision.relevant, &status.revision.applied];
        let commits = commits.map(|commit| commit.as_ref().map(|commit| commit.to_string()));
        (status.observed_generation, words(&status.conditions), commits)
    });
    hash(&(wish(layer), told))
}

/// A run to the Repo that bears its layer's name: how far it is. The Repo's own status says no more of it.
pub(crate) fn run_to_repo(run: &TerraformRun) -> u64 {
    let state = run.status.as_ref().and_then(|status| status.state).map(|state| format!("{state:?}"));
    hash(&(state, ends(run)))
}

/// A Repo to its own controller, which writes the status and knows it.
pub(crate) fn repo(repo: &Repo) -> u64 {
    hash(&wish(repo))
}

/// A Terraform to its own controller, which writes the status and knows it.
pub(crate) fn terraform(terraform: &Terraform) -> u64 {
    hash(&wish(terraform))
}

/// A notification to its own controller, which writes the status and knows it. What it tells of comes by [`crate::notification::Board`].
pub(crate) fn notification(notification: &TerraformNotification) -> u64 {
    hash(&wish(notification))
}

/// A layer to the Terraform that bears its name: what it is, what it says about itself, and what its hooks printed.
pub(crate) fn layer_to_terraform(layer: &TerraformLayer) -> u64 {
    let status = layer.status.as_ref();
    let told = status.map(|status| {
        let printed: Vec<_> =
            status.hook_outputs.iter().map(|(name, value)| (name, value.to_string())).collect();
        let written = condition::find(&status.conditions, "OutputsWritten").map(|one| one.message.as_str());
        (status.observed_generation, words(&status.conditions), printed, written)
    });
    hash(&(wish(layer), told))
}

/// What an object says about itself as a whole.
fn words(conditions: &[Condition]) -> Vec<(&str, &str, &str, &str)> {
    let kinds = ["Ready", "Reconciling", "Stalled"];
    let found = kinds.into_iter().filter_map(|kind| condition::find(conditions, kind));
    found
        .map(|one| (one.type_.as_str(), one.status.as_str(), one.reason.as_str(), one.message.as_str()))
        .collect()
}

/// A pod to its run: whether it can still work, what keeps it from starting, and whether it is to stop.
pub(crate) fn pod(pod: &Pod) -> u64 {
    let deleted = pod.metadata.deletion_timestamp.is_some();
    hash(&(can_still_work(pod), obstacle(pod), deleted, &pod.metadata.finalizers))
}

/// An approval is made once, and never changed.
pub(crate) fn approval(approval: &TerraformApproval) -> u64 {
    hash(&approval.metadata.generation)
}

fn hash(concern: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    concern.hash(&mut hasher);
    hasher.finish()
}
