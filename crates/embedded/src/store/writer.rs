//! The one thread that writes: it gathers what is queued into one transaction, makes it durable, publishes the new
//! state and answers. Group commit is what makes many small durable writes fast.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    Options,
    disk::{self, Disk, Progress},
    error::WriteError,
    history::{Ages, Event, Forgotten},
    object::{Collection, Prepared, Stored},
    packed::Packer,
    state::{Core, State},
};

/// Ops and bytes gathered into one transaction: enough to share a sync between all callers, little enough that the
/// first of them does not wait long for the last.
const BATCH_OPS: usize = 1024;
const BATCH_BYTES: usize = 4 << 20;

pub(super) type Answer = Result<Vec<Arc<Stored>>, WriteError>;

pub(super) enum Command {
    Write(Request),
    Compact { revision: u64, answer: oneshot::Sender<Result<(), WriteError>> },
    Close,
}

pub(super) struct Request {
    pub(super) ops: Vec<Prepared>,
    pub(super) bytes: usize,
    pub(super) answer: oneshot::Sender<Answer>,
    /// Its place in the queue, given back when the request is dropped.
    pub(super) _room: OwnedSemaphorePermit,
}

pub(super) struct Writer {
    disk: Disk,
    core: Arc<Core>,
    /// Rows that nobody needs any more, in the order in which they must leave the disk.
    garbage: VecDeque<u64>,
    packer: Packer,
    ages: Ages,
    options: Options,
    health: Health,
}

/// Whether the disk took the last write, so that a full one is logged once and not with every write that it refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    Failing,
}

/// Whether the writer may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Continue,
    Stop,
}

/// Tells everyone that writing is over, also when the thread panics.
struct Farewell(Arc<Core>);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.stop(if thread::panicking() {
            "its writer failed unexpectedly; restart, and report what the log says"
        } else {
            "it is closed"
        });
    }
}

impl Writer {
    pub(super) fn new(
        disk: Disk,
        core: Arc<Core>,
        forgotten: Forgotten,
        packer: Packer,
        options: Options,
    ) -> Self {
        let ages = Ages::new(options.history_age);
        let mut writer =
            Self { disk, core, garbage: VecDeque::new(), packer, ages, options, health: Health::Good };
        writer.take_in(forgotten);
        writer
    }

    fn take_in(&mut self, mut forgotten: Forgotten) {
        self.garbage.append(&mut forgotten.rows);
        self.packer.pack(forgotten.quiet);
    }

    pub(super) fn run(mut self, commands: &Receiver<Command>) {
        let _farewell = Farewell(Arc::clone(&self.core));
        let mut upkeep_at = Instant::now() + self.ages.period();
        let mut cleaning = Progress::More;
        let mut waiting = None;
        loop {
            // Writes come first; cleaning is done in pieces while none is queued.
            let patience = match cleaning {
                Progress::More => Duration::ZERO,
                Progress::Done => upkeep_at.saturating_duration_since(Instant::now()),
            };
            let command = waiting.take().map_or_else(|| commands.recv_timeout(patience), Ok);
            let next = match command {
                Ok(Command::Write(first)) => {
                    let requests = gather(first, commands, &mut waiting);
                    self.commit(requests)
                }
                Ok(Command::Compact { revision, answer }) => {
                    let result = self.compact(revision);
                    // Nobody waits any more if this fails; the work is done all the same.
                    let _ = answer.send(result);
                    Next::Continue
                }
                Err(RecvTimeoutError::Timeout) => {
                    cleaning = self.clean().unwrap_or_else(|error| {
                        let path = self.disk.path().display();
                        tracing::warn!(%path, %error, "old revisions could not be removed yet");
                        Progress::Done
                    });
                    Next::Continue
                }
                Ok(Command::Close) | Err(RecvTimeoutError::Disconnected) => Next::Stop,
            };
            if next == Next::Stop {
                break;
            }
            let now = Instant::now();
            if now >= upkeep_at {
                self.upkeep(now);
                cleaning = Progress::More;
                upkeep_at = now + self.ages.period();
            }
        }
        self.disk.close();
    }

    /// Checks each request against the state that the ones before it will leave, so that one that fails takes no
    /// other with it, and answers all of them once it is known what the disk says.
    fn commit(&mut self, requests: Vec<Request>) -> Next {
        let mut state = State::clone(&self.core.state());
        let mut events = Vec::new();
        let mut answers = Vec::with_capacity(requests.len());
        for Request { ops, answer, _room, .. } in requests {
            answers.push((answer, state.attempt(ops, &mut events), _room));
        }
        if !events.is_empty()
            && let Err(error) = self.store(state, &events)
        {
            // A refusal may rest on a write of the same batch that now never happened: nobody learns of it.
            let (error, next) = self.failed(error);
            for (answer, _, _room) in answers {
                let _ = answer.send(Err(error.clone()));
            }
            return next;
        }
        for (answer, result, _room) in answers {
            let _ = answer.send(result);
        }
        Next::Continue
    }

    /// Makes `events`, which lead to `state`, durable and then visible.
    fn store(&mut self, mut state: State, events: &[Arc<Event>]) -> Result<(), rusqlite::Error> {
        let touched = events.iter().map(|event| &event.object.key.collection).collect::<BTreeSet<_>>();
        let mut forgotten = Forgotten::default();
        let Options { history_events, history_bytes, .. } = self.options;
        state.history.bound(touched.iter().copied(), history_events, history_bytes, &mut forgotten);
        let due = self.due(events.len());
        #[cfg(test)]
        self.options.gate.pass();
        self.disk.append(events, &state, self.garbage.iter().copied().take(due))?;
        if self.health == Health::Failing {
            tracing::info!(path = %self.disk.path().display(), "writing works again");
            self.health = Health::Good;
        }
        self.garbage.drain(..due);
        self.take_in(forgotten);
        self.publish(state, touched);
        Ok(())
    }

    /// How many superseded rows to remove along with `events` new ones. It costs little inside a transaction that is
    /// synced anyway: nothing until there are some, then more than one batch can leave behind, so that no load outruns
    /// it, but in proportion, so that no small write pays for a large backlog.
    fn due(&self, events: usize) -> usize {
        let most = self.options.compaction_rows.max(1);
        let some = most.div_ceil(4);
        if self.garbage.len() < some { 0 } else { self.garbage.len().min(most).min(some.max(events * 3)) }
    }

    fn publish<'a>(&self, state: State, touched: impl IntoIterator<Item = &'a Collection>) {
        self.core.publish(state);
        self.core.bells.ring(touched);
    }

    /// After an error SQLite has rolled back, and what readers see was never touched. Should the disk nevertheless
    /// hold more than was published, numbering on would give a revision two meanings: then only a restart helps.
    fn failed(&mut self, error: rusqlite::Error) -> (WriteError, Next) {
        if self.health == Health::Good {
            tracing::warn!(path = %self.disk.path().display(), %error, "a write failed and was rolled back");
            self.health = Health::Failing;
        }
        let published = self.core.state().snapshot.revision();
        match self.disk.newest_revision() {
            Ok(newest) if newest > published => {
                self.core.stop("a failed write left the database ahead of memory; restart to read it again");
                (self.core.stopped(), Next::Stop)
            }
            Ok(_) | Err(_) => (disk::write_error(self.disk.path(), error), Next::Continue),
        }
    }

    /// Forgets the events up to `revision` and takes the rows that only they needed off the disk.
    fn compact(&mut self, revision: u64) -> Result<(), WriteError> {
        self.forget(revision);
        while self.clean().map_err(|error| self.failed(error).0)? == Progress::More {}
        Ok(())
    }

    /// Forgetting is safe before the disk follows: at worst a restart offers old events again.
    fn forget(&mut self, revision: u64) {
        let mut state = State::clone(&self.core.state());
        let mut forgotten = Forgotten::default();
        state.history.forget_through(revision, &mut forgotten);
        self.take_in(forgotten);
        self.core.publish(state);
    }

    /// Removes superseded rows, and once there are none gives space back: a bounded piece of it at a time.
    fn clean(&mut self) -> Result<Progress, rusqlite::Error> {
        if self.garbage.is_empty() {
            return self.disk.shrink();
        }
        let due = self.garbage.len().min(self.options.compaction_rows.max(1));
        let state = State::clone(&self.core.state());
        self.disk.append(&[], &state, self.garbage.iter().copied().take(due))?;
        self.garbage.drain(..due);
        Ok(Progress::More)
    }

    /// Lets go of what has grown old.
    fn upkeep(&mut self, now: Instant) {
        self.core.pages().drop_unused(now, self.options.history_age);
        let newest = self.core.state().snapshot.revision();
        if let Some(old) = self.ages.old(newest, now) {
            self.forget(old);
        }
    }
}

/// Takes what else is queued, up to one transaction's worth. A command of another kind ends the batch.
fn gather(first: Request, commands: &Receiver<Command>, waiting: &mut Option<Command>) -> Vec<Request> {
    let (mut ops, mut bytes) = (first.ops.len(), first.bytes);
    let mut requests = vec![first];
    while ops < BATCH_OPS && bytes < BATCH_BYTES {
        match commands.try_recv() {
            Ok(Command::Write(request)) => {
                ops += request.ops.len();
                bytes += request.bytes;
                requests.push(request);
            }
            Ok(command @ (Command::Compact { .. } | Command::Close)) => {
                *waiting = Some(command);
                break;
            }
            // Empty, or every handle is gone; the next receive tells which.
            Err(_) => break,
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;

    #[test]
    fn the_death_of_the_writer_is_seen_and_its_first_reason_stays() {
        let core = Arc::new(Core::new(State::default(), 1));
        let farewell = Farewell(Arc::clone(&core));
        let thread = thread::spawn(move || {
            let _farewell = farewell;
            std::panic::resume_unwind(Box::new("the writer meets a bug"));
        });
        thread.join().unwrap_err();
        let expected = "the store takes no more writes: its writer failed unexpectedly; restart, and report what the log says";
        assert_eq!(core.stopped().to_string(), expected);
        drop(Farewell(Arc::clone(&core)));
        assert_eq!(core.stopped().to_string(), expected);
    }
}
