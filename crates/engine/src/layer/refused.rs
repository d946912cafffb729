//! A run that the API would not have: a quota, a policy, a missing right, or a namespace that is being deleted.
//!
//! The layer says so instead of what it would do, and the run is wished for again after a while, without a word, so that an API that
//! refuses it each time costs no writes. What is told once stays until the run is there.

use std::time::Duration;

use api::condition;

use super::need::{Need, Standing, Step, brief, hold};
use super::{Effect, Observed};
use crate::{Wake, later};

/// Why the API would not have a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The namespace is being deleted. That is never taken back, and nothing new is made there until it is gone.
    NamespaceTerminating,
    /// In the API's own words.
    Other(String),
}

const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";
const RUN_REFUSED: &str = "RunRefused";

/// How soon a refused run is wished for again: a quota may have room, an administrator may have changed a policy.
const AGAIN: Duration = Duration::from_secs(30);
/// The same where nothing is to be expected: an object may have been taken over, words and all, from a namespace that went.
const HARDLY_AGAIN: Duration = Duration::from_secs(600);

/// How whoever is stuck in a deletion gets out of it.
pub(super) const WAY_OUT: &str = "set deletionPolicy to Orphan to let the layer go and keep what it made";

/// What is done about a need, and what is said.
pub(super) struct Heeded {
    pub(super) effect: Option<Effect>,
    pub(super) told: Need,
    pub(super) wake: Wake,
}

/// The need in the light of what the API answers, or answered the last time.
pub(super) fn heed(seen: &Observed<'_>, need: Need) -> Heeded {
    let Step::Start(run) = &need.step else {
        return Heeded { effect: None, wake: need.wake, told: need };
    };
    let create = || Some(Effect::CreateRun(run.clone()));
    let name = run.metadata.name.as_deref().unwrap_or_default();
    let (effect, words) = match seen.refused {
        Some(refusal) => (None, Some(words(seen, refusal, name))),
        None => (create(), said_before(seen)),
    };
    match words {
        None => Heeded { effect, wake: need.wake, told: need },
        Some((reason, why)) => {
            let pause = if reason == NAMESPACE_TERMINATING { HARDLY_AGAIN } else { AGAIN };
            // When it is tried again is not told: it would be a write each time.
            let told = hold(need.state, reason, why, Standing::Stuck, Wake::OnChange);
            Heeded { effect, told, wake: Wake::At(later(seen.now, pause)) }
        }
    }
}

fn words(seen: &Observed<'_>, refusal: &Refusal, run: &str) -> (&'static str, String) {
    let is_deleted = seen.layer.metadata.deletion_timestamp.is_some();
    match refusal {
        Refusal::NamespaceTerminating => (NAMESPACE_TERMINATING, of_namespace(seen)),
        Refusal::Other(why) if is_deleted => {
            (RUN_REFUSED, format!("the API would not have run {run}: {}; {WAY_OUT}", brief(why)))
        }
        Refusal::Other(why) => (RUN_REFUSED, format!("the API would not have run {run}: {}", brief(why))),
    }
}

fn of_namespace(seen: &Observed<'_>) -> String {
    let namespace = seen.layer.metadata.namespace.as_deref().unwrap_or_default();
    if seen.layer.metadata.deletion_timestamp.is_some() {
        format!(
            "namespace {namespace} is being deleted and takes no new run, so what the layer made cannot be destroyed; {WAY_OUT}: its \
             state stays, and the same layer made again can destroy it"
        )
    } else {
        format!("namespace {namespace} is being deleted and takes no new run")
    }
}

/// What the status says of a refusal. A layer that has been deleted since is told how to get out.
fn said_before(seen: &Observed<'_>) -> Option<(&'static str, String)> {
    let status = seen.layer.status.as_ref()?;
    let ready = condition::find(&status.conditions, "Ready")?;
    match ready.reason.as_str() {
        NAMESPACE_TERMINATING => Some((NAMESPACE_TERMINATING, of_namespace(seen))),
        RUN_REFUSED => Some((RUN_REFUSED, ready.message.clone())),
        _ => None,
    }
}
