//! The lock of a state: who may begin to change it. It is a Lease that is only ever taken, each time under a higher fence.

use api::TerraformRun;
use api::run::RunState;

use super::Observed;
use crate::{Read, names};

/// The Lease of a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// The uid of the run that took it last.
    pub holder: Option<String>,
    pub fence: u64,
    /// Proved, not guessed: what it was taken for has its end on record, or the holder's run exists no more; and none of the
    /// holder's pods can still work.
    pub holder_is_done: bool,
}

/// Whether what a run took the lock for, under this fence, has its end on record. Nothing else begins under the same fence, so the
/// lock is free: a run that goes on takes it again, and whoever was faster has the higher fence. A run that took the lock and has not
/// begun is not done with it, and neither is one whose attempt has no end on record, however silent it is. O(attempts of one run).
pub fn is_done_with(run: &TerraformRun, fence: u64) -> bool {
    let Some(status) = &run.status else { return false };
    status.state.is_some_and(RunState::is_terminal)
        || status.attempts.iter().any(|attempt| attempt.fence == fence && attempt.finished_at.is_some())
}

pub(super) enum Permit {
    Granted(u64),
    Take { from: Option<String>, fence: u64 },
    Wait(String),
}

pub(super) fn lock(seen: &Observed<'_>) -> Permit {
    if !seen.run.spec.action.mutates() {
        return Permit::Granted(0);
    }
    match &seen.lock {
        Read::Absent => Permit::Take { from: None, fence: 0 },
        Read::Present(lock) if lock.holder.is_none() => Permit::Take { from: None, fence: lock.fence },
        Read::Present(lock) if lock.holder == seen.run.metadata.uid => {
            if is_spent(seen.run, lock.fence) {
                Permit::Take { from: lock.holder.clone(), fence: lock.fence }
            } else {
                Permit::Granted(lock.fence)
            }
        }
        Read::Present(lock) if lock.holder_is_done => {
            Permit::Take { from: lock.holder.clone(), fence: lock.fence }
        }
        Read::Present(_) => Permit::Wait("another run changes the same state".to_owned()),
        Read::Unknown => Permit::Wait("who holds the state's lock could not be read".to_owned()),
    }
}

/// A fence is for one attempt: each that starts has a higher one than all before it. O(attempts of one run).
fn is_spent(run: &TerraformRun, fence: u64) -> bool {
    run.status.iter().flat_map(|status| &status.attempts).any(|attempt| attempt.fence == fence)
}

/// Whether others wait for this run.
pub(super) fn holds_lock(seen: &Observed<'_>) -> bool {
    seen.run.spec.action.mutates() && matches!(lock(seen), Permit::Granted(_))
}

pub(super) fn lease_name(seen: &Observed<'_>) -> String {
    names::lease(&seen.run.spec.state)
}
