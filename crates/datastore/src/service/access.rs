//! Who may do what: one function over typed operations, so that the whole matrix can be read and tested in one place.

use api::attempt::Description;
use api::run::Mode;
use api::text::Sha256;

use super::identity::{Caller, Runner};
use crate::key::{Artefact, Attempt, StateId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    BundleRead(Sha256),
    /// Store one, or say that it is about to be used.
    BundleWrite,
    BundleList,
    BundleDelete,
    ArtefactRead(Attempt, Artefact),
    ArtefactWrite(Attempt, Artefact),
    LogRead,
    /// How much a run left.
    RunMeasure,
    /// Forget everything that a run left.
    RunDelete,
    LogAppend(Attempt),
    StateRead(StateId),
    /// Lock, unlock, write: what needs a fence.
    StateChange(StateId),
    /// Delete, list versions, read old ones, see locks.
    StateAdminister,
    AuditAppend,
    AuditRead,
}

/// Why not. The words reach the runner's log, so they say what would be right.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("this caller may not do this: {0}")]
pub struct Denied(pub(crate) &'static str);

/// `spec` is the description of the runner's own attempt; a controller has none.
pub(crate) fn permit(
    caller: &Caller,
    spec: Option<&Description>,
    operation: &Operation,
) -> Result<(), Denied> {
    let runner = match caller {
        Caller::Controller => return Ok(()),
        Caller::Server => return permit_server(operation),
        Caller::Runner(runner) => runner,
    };
    let spec = spec.ok_or(Denied("its attempt has no description in the datastore"))?;
    if spec.namespace != runner.namespace || !is_own(runner, spec) {
        return Err(Denied("the description of its attempt belongs to someone else"));
    }
    let own = |attempt: &Attempt| attempt == &runner.attempt;
    let own_state = |id: &StateId| id.as_str() == spec.state.as_str();
    let allowed = match operation {
        Operation::BundleRead(sha256) => sha256 == &spec.bundle,
        Operation::ArtefactRead(attempt, Artefact::Spec) => own(attempt),
        Operation::ArtefactRead(attempt, Artefact::Plan) => spec
            .plan
            .as_ref()
            .is_some_and(|plan| plan.run_uid == attempt.run_uid() && plan.attempt == attempt.number()),
        // A destroy reads what the apply that it undoes was given. Whoever could read that of another run could read its Secrets.
        Operation::ArtefactRead(attempt, Artefact::Inputs) => {
            let is_named = spec
                .kept
                .as_ref()
                .is_some_and(|kept| kept.run_uid == attempt.run_uid() && kept.attempt == attempt.number());
            spec.mode == Mode::Destroy && is_named
        }
        Operation::ArtefactRead(
            _,
            Artefact::PlanJson | Artefact::PlanText | Artefact::Outputs | Artefact::Result,
        ) => false,
        Operation::ArtefactWrite(_, Artefact::Spec) => false,
        Operation::ArtefactWrite(attempt, Artefact::Inputs) => own(attempt) && spec.action.mutates(),
        Operation::ArtefactWrite(
            attempt,
            Artefact::Plan | Artefact::PlanJson | Artefact::PlanText | Artefact::Outputs | Artefact::Result,
        ) => own(attempt),
        Operation::LogAppend(attempt) => own(attempt),
        Operation::StateRead(id) => own_state(id),
        Operation::StateChange(id) => own_state(id) && spec.action.mutates() && spec.fence > 0,
        Operation::BundleWrite
        | Operation::BundleList
        | Operation::BundleDelete
        | Operation::LogRead
        | Operation::RunMeasure
        | Operation::RunDelete
        | Operation::StateAdminister
        | Operation::AuditAppend
        | Operation::AuditRead => false,
    };
    if allowed {
        Ok(())
    } else {
        Err(Denied(
            "it reads its own description, bundle and plan, what the apply was given that it undoes, and writes its own results, log and, with a fence, its own state; nothing else",
        ))
    }
}

/// What people can ask for through the HTTP service. It makes nothing that a run could rest on, and forgets nothing.
fn permit_server(operation: &Operation) -> Result<(), Denied> {
    match operation {
        // Whoever may see a state may see its outputs; what is sensitive of both is withheld by the same rule.
        Operation::ArtefactRead(
            _,
            Artefact::PlanJson | Artefact::PlanText | Artefact::Outputs | Artefact::Result,
        )
        | Operation::LogRead
        | Operation::StateRead(_)
        | Operation::StateChange(_)
        | Operation::StateAdminister
        | Operation::AuditRead => Ok(()),
        Operation::ArtefactRead(_, Artefact::Spec | Artefact::Plan | Artefact::Inputs)
        | Operation::ArtefactWrite(_, _)
        | Operation::BundleRead(_)
        | Operation::BundleWrite
        | Operation::BundleList
        | Operation::BundleDelete
        | Operation::RunMeasure
        | Operation::RunDelete
        | Operation::LogAppend(_)
        | Operation::AuditAppend => Err(Denied(
            "the service for people reads logs, plans for people, outputs, results and the audit, and works on states; nothing else",
        )),
    }
}

fn is_own(runner: &Runner, spec: &Description) -> bool {
    spec.run_uid == runner.attempt.run_uid() && spec.attempt == runner.attempt.number()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_service_for_people_makes_nothing_that_a_run_could_rest_on() {
        let attempt = Attempt::new("run-1", 0).unwrap();
        let sha256 = Sha256::of(b"");
        let state = StateId::new(sha256.as_str()).unwrap();
        let allowed = [
            Operation::ArtefactRead(attempt.clone(), Artefact::PlanJson),
            Operation::ArtefactRead(attempt.clone(), Artefact::PlanText),
            Operation::ArtefactRead(attempt.clone(), Artefact::Outputs),
            Operation::LogRead,
            Operation::StateRead(state.clone()),
            Operation::StateChange(state),
            Operation::StateAdminister,
            Operation::AuditRead,
        ];
        let refused = [
            Operation::ArtefactRead(attempt.clone(), Artefact::Spec),
            Operation::ArtefactRead(attempt.clone(), Artefact::Plan),
            Operation::ArtefactRead(attempt.clone(), Artefact::Inputs),
            Operation::ArtefactWrite(attempt.clone(), Artefact::Spec),
            Operation::ArtefactWrite(attempt.clone(), Artefact::Plan),
            Operation::ArtefactWrite(attempt.clone(), Artefact::Result),
            Operation::BundleRead(sha256),
            Operation::BundleWrite,
            Operation::BundleList,
            Operation::BundleDelete,
            Operation::RunMeasure,
            Operation::RunDelete,
            Operation::LogAppend(attempt),
            Operation::AuditAppend,
        ];
        for (operations, expected) in [(&allowed[..], true), (&refused[..], false)] {
            for operation in operations {
                assert_eq!(permit(&Caller::Server, None, operation).is_ok(), expected, "{operation:?}");
            }
        }
    }
}
