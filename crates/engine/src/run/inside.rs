//! Runs that are containers of the image that they work on, and when one has to do without it: a plan whose image no node can pull goes on in the
//! runners' own image, which unpacks what the datastore has kept. An apply works where its plan was made, and waits for it.

use std::time::Duration;

use api::overrides::RunnerOverride;
use api::run::{Action, Attempt, RunState};
use api::text::ObjectName;
use api::{TerraformLayer, TerraformRun, TerraformRunStatus, condition};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::conditions::progress;
use super::{Effect, LoginCopy, Observed, pod};
use crate::manifests::{self, Inside};
use crate::{Read, later};

/// The reason of an attempt whose image no node could pull.
pub(super) const IMAGE_NOT_PULLED: &str = "ImageNotPulled";
/// How long a node may try, from when nothing else is missing: a registry that is restarted should not make a run another than its apply would
/// be.
const PATIENCE: Duration = Duration::from_secs(120);

/// The image that the pod of the run's next attempt is a container of, where it is not the runners' own.
pub(super) fn image_of(
    seen: &Observed<'_>,
    layer: Option<&TerraformLayer>,
    asked: &RunnerOverride,
    attempt: u32,
) -> Option<Inside> {
    let pods = seen.settings.image_pods.as_ref()?;
    let image = seen.run.spec.image.as_ref().filter(|_| is_inside(seen.run))?;
    // Whoever names an image for the runners means that one.
    asked.image.is_none().then(|| pods.inside(seen.run, attempt, image, layer))
}

/// What a node is to pull the pod's image with, where it cannot read what the controller logs in with.
pub(super) fn copy_login(seen: &Observed<'_>, attempt: u32, pod: &Pod) -> Option<Effect> {
    let Read::Present(layer) = seen.layer else { return None };
    let (secret, keys) = manifests::login(Some(layer));
    let copy = manifests::is_inside(pod).then(|| manifests::pull_copy(seen.run, attempt))??;
    let secret = ObjectName::new(secret).ok()?;
    Some(Effect::CopyLogin(Box::new(LoginCopy { secret, keys, copy })))
}

/// Whether the run is to be in the image that it works on, and no node has failed to pull that yet. O(attempts of one run).
pub(crate) fn is_inside(run: &TerraformRun) -> bool {
    let mut attempts = run.status.iter().flat_map(|status| &status.attempts);
    run.spec.in_image && !attempts.any(|attempt| attempt.reason.as_deref() == Some(IMAGE_NOT_PULLED))
}

/// How long a pod that is there may stay.
pub(super) enum Stay {
    AsLongAsItTakes,
    Until(Timestamp),
    /// The next attempt does without the image.
    Leave(Box<TerraformRunStatus>),
}

pub(super) fn stay(seen: &Observed<'_>, status: &TerraformRunStatus, attempt: &Attempt, pod: &Pod) -> Stay {
    let may_leave = match seen.run.spec.action {
        Action::Plan => manifests::is_inside(pod),
        Action::Apply | Action::Build => false,
    };
    if !may_leave || (!is_left(status) && !pod::lacks_image(pod, "runner")) {
        return Stay::AsLongAsItTakes;
    }
    let until = later(pod::brought_at(pod).unwrap_or(attempt.started_at.0), PATIENCE);
    if !is_left(status) && seen.now < until {
        return Stay::Until(until);
    }
    let message = format!(
        "image {} cannot be pulled for pod {}; the next attempt has its files in the runners' own image",
        pod::image(pod, "runner").unwrap_or_default(),
        attempt.pod_name
    );
    Stay::Leave(Box::new(progress(seen, status, RunState::Running, IMAGE_NOT_PULLED, &message)))
}

/// The status itself says that the attempt under way is being ended for want of its image.
pub(super) fn is_left(status: &TerraformRunStatus) -> bool {
    why_left(status).is_some()
}

pub(super) fn why_left(status: &TerraformRunStatus) -> Option<&str> {
    let ready = condition::find(&status.conditions, "Ready")?;
    (ready.reason == IMAGE_NOT_PULLED).then_some(ready.message.as_str())
}
