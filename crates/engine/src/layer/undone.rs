//! The apply that a deletion undoes. What it was given was kept with it, so that a Secret, a variable or a backend that is gone or is
//! another by now can neither keep the infrastructure nor change what is destroyed.

use api::TerraformRun;
use api::layer::DeletionPolicy;
use api::run::{Action, Mode, Undone};
use jiff::Timestamp;

use super::history::{finished_at, has_begun};
use super::{Observed, policy, state_of};

/// What a state that the datastore keeps is called.
const HERE: &str = "terrane";

/// The last apply of a layer that is being deleted with its infrastructure. O(runs kept).
pub(super) fn apply<'a>(seen: &Observed<'a>) -> Option<&'a TerraformRun> {
    let is_due =
        seen.layer.metadata.deletion_timestamp.is_some() && policy::deletion(seen) == DeletionPolicy::Destroy;
    let is_apply = |run: &&TerraformRun| {
        run.spec.action == Action::Apply && run.spec.mode == Mode::Normal && has_begun(run)
    };
    let age = |run: &&TerraformRun| {
        let created = run.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (finished_at(run).unwrap_or(Timestamp::MAX), created, run.metadata.name.clone())
    };
    is_due.then(|| seen.runs.iter().filter(is_apply).max_by_key(age)).flatten()
}

pub(super) fn of(seen: &Observed<'_>) -> Option<Undone> {
    let apply = apply(seen)?;
    let attempt = apply.status.as_ref()?.attempts.last()?.number;
    Some(Undone { run_uid: apply.metadata.uid.clone()?, attempt, state: kept_here(seen, apply) })
}

/// Where the datastore keeps the layer's state: where it was when the apply changed it, should the layer have moved since.
fn kept_here(seen: &Observed<'_>, apply: &TerraformRun) -> api::text::Sha256 {
    let planned = apply.spec.artifact.as_ref().and_then(|artifact| {
        let made_it = |run: &&TerraformRun| run.metadata.uid.as_ref() == Some(&artifact.run_uid);
        seen.runs.iter().find(made_it)?.status.as_ref()?.result.as_ref()?.state_identity.as_ref()
    });
    let known = seen.layer.status.as_ref().and_then(|status| status.state_identity.as_ref());
    let is_here = planned
        .or(known)
        .is_some_and(|identity| identity.backend == HERE && identity.sha256 == apply.spec.state);
    if is_here { apply.spec.state.clone() } else { state_of(seen.layer) }
}
