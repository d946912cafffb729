//! Builds by kaniko: the one kind of run whose pod is in another namespace than the run, and what follows from that.

use api::image::{ImageBuilder, REGISTRY_SECRET};
use api::inputs::{Keys, Kind, Object};
use api::run::{Action, RunState};
use api::text::ObjectName;
use api::{TerraformLayer, TerraformRun, label};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Effect, Observed};
use crate::{Builder, Kaniko, Read, manifests};

/// A Secret of the run's namespace, and the copy of it: one that a pod in the builds' namespace can mount, or of the type that nodes pull with.
#[derive(Debug, Clone, PartialEq)]
pub struct LoginCopy {
    pub secret: ObjectName,
    pub keys: Keys,
    /// Without what it is to hold.
    pub copy: Secret,
}

/// The namespace of the newest attempt's pod, as it was written down before that was made: settings may have changed since.
pub fn pod_namespace(run: &TerraformRun) -> &str {
    let attempt = run.status.as_ref().and_then(|status| status.attempts.last());
    let elsewhere = attempt.and_then(|attempt| attempt.pod_namespace.as_deref());
    elsewhere.or(run.metadata.namespace.as_deref()).unwrap_or_default()
}

/// The namespace that an object serves: its own, or the one of its run, where it is in the builds' namespace. What it says elsewhere of other
/// namespaces counts for nothing.
pub fn home<'a>(object: &'a ObjectMeta, builds: Option<&str>) -> &'a str {
    let own = object.namespace.as_deref();
    let labels = object.labels.as_ref().filter(|_| builds.is_some() && own == builds);
    let elsewhere = labels.and_then(|labels| labels.get(label::RUN_NAMESPACE)).map(String::as_str);
    elsewhere.or(own).unwrap_or_default()
}

/// How kaniko is to make the image of this run, where it is to; or why it cannot any more.
pub(super) fn kaniko<'a>(seen: &Observed<'a>) -> Result<Option<&'a Kaniko>, String> {
    let wanted = match (seen.run.spec.action, &seen.run.spec.build) {
        (Action::Build, Some(image)) => image.builder,
        (Action::Build, None) | (Action::Plan | Action::Apply, _) => return Ok(None),
    };
    let builder = seen.settings.builds.as_ref().map(|builds| &builds.builder);
    match (wanted, builder) {
        (ImageBuilder::Kaniko, Some(Builder::Kaniko(kaniko)))
            if seen.run.metadata.namespace.as_ref() == Some(&kaniko.namespace) =>
        {
            Err(format!("namespace {} is for builds alone; a layer has no place there", kaniko.namespace))
        }
        (ImageBuilder::Kaniko, Some(Builder::Kaniko(kaniko))) => Ok(Some(kaniko)),
        (ImageBuilder::Runner, Some(Builder::Runner) | None) => Ok(None),
        (ImageBuilder::Kaniko, Some(Builder::Runner) | None)
        | (ImageBuilder::Runner, Some(Builder::Kaniko(_))) => {
            Err("the layer's code is to be built into an image by another builder now".to_owned())
        }
    }
}

/// What a build is given to log in to its registry.
pub(super) fn login(layer: &TerraformLayer) -> Option<(Object, Keys)> {
    let named = layer.spec.build.as_ref().and_then(|build| build.credentials.as_ref());
    let name = named.map(|login| login.secret_name.clone());
    let name = name.or_else(|| ObjectName::new(REGISTRY_SECRET).ok())?;
    let keys = match named.and_then(|login| login.key.clone()) {
        Some(key) => Keys::Only([key].into()),
        None => Keys::All,
    };
    Some((Object { kind: Kind::Secret, name }, keys))
}

/// For a pod that cannot mount the Secret itself, because it is in another namespace.
pub(super) fn copy_login(seen: &Observed<'_>, attempt: u32) -> Option<Effect> {
    let kaniko = kaniko(seen).ok()??;
    let Read::Present(layer) = seen.layer else { return None };
    let (object, keys) = login(layer)?;
    let copy = manifests::login_copy(seen.run, attempt, kaniko)?;
    Some(Effect::CopyLogin(Box::new(LoginCopy { secret: object.name, keys, copy })))
}

/// Whether an object of the builds' namespace is of no use any more: its attempt or its run has its end on record, or the run that it says it is
/// for is gone. The run is read after the object: an attempt is written down before anything is made for it.
pub fn is_leftover(object: &ObjectMeta, run: Option<&TerraformRun>) -> bool {
    let label = |key: &str| object.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
    // Whatever is no run's was made by somebody else.
    let (Some(uid), Some(number)) = (label(label::RUN_UID), label(label::ATTEMPT)) else { return false };
    let Some(run) = run.filter(|run| run.metadata.uid.as_deref() == Some(uid)) else { return true };
    if run.status.as_ref().and_then(|status| status.state).is_some_and(RunState::is_terminal) {
        return true;
    }
    let mut attempts = run.status.iter().flat_map(|status| &status.attempts);
    attempts
        .find(|attempt| attempt.number.to_string() == number)
        .is_some_and(|attempt| attempt.finished_at.is_some())
}
