//! What an object behind a door says about itself as a whole: what its layer says, unless something keeps that from being there.

use api::condition::{self, Truth};
use api::{TerraformLayer, TerraformRepository};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};

use super::child::is_ours;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ready {
    pub(super) truth: Truth,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) progress: Progress,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Working,
    Stuck,
    Still,
}

impl Ready {
    pub(super) fn new(truth: Truth, reason: &str, message: String, progress: Progress) -> Self {
        Self { truth, reason: reason.to_owned(), message, progress }
    }

    fn copied(conditions: &[Condition], ready: &Condition) -> Self {
        let truth = match ready.status.as_str() {
            "True" => Truth::True,
            "False" => Truth::False,
            _ => Truth::Unknown,
        };
        let progress = if condition::is_true(conditions, "Stalled") {
            Progress::Stuck
        } else if condition::is_true(conditions, "Reconciling") || truth == Truth::Unknown {
            Progress::Working
        } else {
            Progress::Still
        };
        Self { truth, reason: ready.reason.clone(), message: ready.message.clone(), progress }
    }

    /// Sets `Ready`, and `Reconciling` and `Stalled` as kstatus means them.
    pub(super) fn tell(&self, conditions: &mut Vec<Condition>, generation: Option<i64>, now: Timestamp) {
        condition::set(conditions, "Ready", self.truth, &self.reason, &self.message, generation, now);
        for (kind, standing) in [("Reconciling", Progress::Working), ("Stalled", Progress::Stuck)] {
            if self.progress == standing {
                condition::set(conditions, kind, Truth::True, &self.reason, &self.message, generation, now);
            } else {
                condition::clear(conditions, kind);
            }
        }
    }
}

/// Why an object of the door's name cannot be worked with: it is somebody else's, or on its way out.
pub(super) fn in_the_way(
    door: &ObjectMeta,
    kind_of_door: &str,
    repository: Option<&TerraformRepository>,
    layer: Option<&TerraformLayer>,
) -> Option<Ready> {
    let name = door.name.as_deref().unwrap_or_default();
    let repository = repository.map(|repository| ("TerraformRepository", &repository.metadata));
    let layer = layer.map(|layer| ("TerraformLayer", &layer.metadata));
    for (kind, found) in repository.into_iter().chain(layer) {
        if !is_ours(door, found) {
            let message = format!(
                "{kind} {name} is there and does not belong to this {kind_of_door}; delete it, or give the {kind_of_door} another name"
            );
            return Some(Ready::new(Truth::False, "NameTaken", message, Progress::Stuck));
        }
        if found.deletion_timestamp.is_some() {
            let message = format!("{kind} {name} is being deleted; another is made when it is gone");
            return Some(Ready::new(Truth::False, "BeingDeleted", message, Progress::Working));
        }
    }
    None
}

/// What the layer says about the spec that it has now.
pub(super) fn of_layer(layer: &TerraformLayer) -> Option<Ready> {
    let status = layer.status.as_ref()?;
    let is_about_this = status.observed_generation == layer.metadata.generation;
    let ready = condition::find(&status.conditions, "Ready").filter(|_| is_about_this)?;
    Some(Ready::copied(&status.conditions, ready))
}

/// What the repository says about itself, if it cannot be used.
pub(super) fn unreadable(repository: &TerraformRepository) -> Option<Ready> {
    let status = repository.status.as_ref()?;
    let is_about_this = status.observed_generation == repository.metadata.generation;
    let ready = condition::find(&status.conditions, "Ready").filter(|_| is_about_this)?;
    (ready.status == Truth::False.as_str()).then(|| Ready::copied(&status.conditions, ready))
}
