//! Whose turn it is to count the runners at work and make one more. In one process that is a lock in memory. Where several processes act,
//! each for its shards, the limit over all of them holds only if they count one after the other: the holder of a Lease of its own
//! counts, makes its pod and lets the next one count.

use std::sync::Arc;
use std::time::Duration;

use engine::leader::Terms;
use kube::Client;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::error::Error;
use crate::leader::Election;

/// The name of the Lease in the system namespace.
pub const LEASE: &str = "terrane-runners";

/// A turn is short: a count, what an attempt needs to begin, and its pod. Who dies in it keeps the others waiting for `duration`.
const TERMS: Terms = Terms {
    duration: Duration::from_secs(10),
    trust: Duration::from_secs(6),
    period: Duration::from_millis(100),
};
/// How long a turn is waited for before the run looks again from the start; longer than a dead holder keeps it.
const PATIENCE: Duration = Duration::from_secs(15);

/// The turns of one process; all its shards share them.
#[derive(Debug, Clone, Default)]
pub struct Turns(Arc<Mutex<Option<Election>>>);

impl Turns {
    /// Turns that other processes take too. `identity` is of this process alone.
    pub fn among_processes(client: Client, identity: &str) -> Self {
        Self(Arc::new(Mutex::new(Some(Election::new(client, identity, TERMS).for_turn(LEASE)))))
    }

    /// Waits until nobody else of this process has the turn.
    pub(crate) async fn take(&self) -> Turn {
        Turn { election: Arc::clone(&self.0).lock_owned().await, is_won: false }
    }
}

/// While it lives nobody else of this process is admitted, and while it is won nobody else at all.
#[derive(Debug)]
pub(crate) struct Turn {
    election: OwnedMutexGuard<Option<Election>>,
    is_won: bool,
}

impl Turn {
    /// Whether other processes may have a turn now.
    pub(crate) fn is_shared(&self) -> bool {
        self.election.is_some() && !self.is_won
    }

    /// Waits until nobody else of any process has the turn.
    pub(crate) async fn win(&mut self) -> Result<(), Error> {
        let Some(election) = self.election.as_mut() else { return Ok(()) };
        match tokio::time::timeout(PATIENCE, election.won()).await {
            Ok(_) => {
                self.is_won = true;
                Ok(())
            }
            Err(_) => Err(Error::Slow { doing: "wait for the turn to count the runners", after: PATIENCE }),
        }
    }

    /// Fails if another process may count by now: then no pod is made on what was counted.
    pub(crate) fn ensure_kept(&self) -> Result<(), Error> {
        match self.election.as_ref() {
            Some(election) if self.is_won && election.leadership().term().is_none() => {
                Err(Error::Slow { doing: "make the runner's pod while it is our turn", after: TERMS.trust })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Lets the next one count. One that is dropped instead is followed by this process at once, and by others after a while.
    pub(crate) async fn give_back(mut self) {
        if let (true, Some(election)) = (self.is_won, self.election.as_mut()) {
            election.release().await;
        }
    }
}
