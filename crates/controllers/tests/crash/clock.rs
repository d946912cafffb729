//! Time that a test holds: it stands still until nothing is left to do, then jumps to the next wish to be woken.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use controllers::{Alarm, Waiting};
use jiff::Timestamp;
use kube::runtime::controller::Action;

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
