//! Time that a test holds: it stands still until nothing is left to do, then jumps to the next wish to be woken.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use controllers::leader::{Clock, Moment};
use controllers::{Alarm, Waiting};
use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::runtime::controller::Action;
use tokio::sync::oneshot;

thread_local! {
    /// Each world lives on a thread of its own, and so does its time.
    static NOW: Cell<Timestamp> = const { Cell::new(Timestamp::UNIX_EPOCH) };
}

pub fn now() -> Timestamp {
    NOW.get()
}

pub fn set(at: Timestamp) {
    NOW.set(at);
}

/// The wishes of one process to be woken.
#[derive(Debug, Default)]
pub struct Bells(Mutex<BTreeMap<Waiting, Timestamp>>);

impl Bells {
    pub fn next(&self) -> Option<Timestamp> {
        self.0.lock().unwrap().values().min().copied()
    }

    /// Takes the wishes whose time has come.
    pub fn due(&self) -> Vec<Waiting> {
        let mut bells = self.0.lock().unwrap();
        let due: Vec<Waiting> =
            bells.iter().filter(|(_, at)| **at <= now()).map(|(who, _)| who.clone()).collect();
        bells.retain(|_, at| *at > now());
        due
    }
}

impl Alarm for Bells {
    fn after(&self, who: Waiting, pause: Duration) -> Action {
        self.0.lock().unwrap().insert(who, engine::later(now(), pause));
        Action::await_change()
    }

    fn on_change(&self, who: Waiting) -> Action {
        self.0.lock().unwrap().remove(&who);
        Action::await_change()
    }
}

/// The pauses of one process' election.
#[derive(Debug, Default)]
pub struct Pauses(Mutex<Vec<(Timestamp, oneshot::Sender<()>)>>);

impl Pauses {
    /// The end of the first pause that somebody still waits for.
    pub fn next(&self) -> Option<Timestamp> {
        let mut pauses = self.0.lock().unwrap();
        pauses.retain(|(_, over)| !over.is_closed());
        pauses.iter().map(|(at, _)| *at).min()
    }

    /// Ends those whose time has come.
    pub fn end_due(&self) {
        let mut pauses = self.0.lock().unwrap();
        for (_, over) in pauses.extract_if(.., |(at, _)| *at <= now()) {
            // Nobody waits any more if this fails.
            let _ = over.send(());
        }
    }
}

impl Clock for Pauses {
    fn moment(&self) -> Moment {
        let steady = now().duration_since(Timestamp::UNIX_EPOCH);
        Moment { steady: Duration::try_from(steady).unwrap(), wall: now() }
    }

    fn pause(&self, time: Duration) -> BoxFuture<'static, ()> {
        let (over, ended) = oneshot::channel();
        self.0.lock().unwrap().push((engine::later(now(), time), over));
        Box::pin(async move {
            // Without an end the world is over, and so is this task.
            if ended.await.is_err() {
                std::future::pending().await
            }
        })
    }
}
