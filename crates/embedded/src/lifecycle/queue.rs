//! A queue of things to look at: each at most once at a time, later again if it failed, and none ever waits for another.
//! Pure: the time comes in as a parameter.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

const FIRST_RETRY: Duration = Duration::from_millis(20);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// Bounded by the number of distinct keys: a key that is added a thousand times is held once. Every call is O(log n).
#[derive(Debug)]
pub(super) struct Queue<K> {
    ready: VecDeque<K>,
    /// In `ready`, so that a key is not there twice.
    waiting: HashSet<K>,
    later: BTreeMap<(Instant, u64), K>,
    due: HashMap<K, (Instant, u64)>,
    running: HashSet<K>,
    /// Added while running: looked at again as soon as it is done.
    again: HashSet<K>,
    failures: HashMap<K, u32>,
    sequence: u64,
}

/// How looking at a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// Nothing is wrong, but there is more to do then.
    After(Duration),
    /// Tried again after a pause that grows with each failure in a row.
    Failed,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Queue {
            ready: VecDeque::new(),
            waiting: HashSet::new(),
            later: BTreeMap::new(),
            due: HashMap::new(),
            running: HashSet::new(),
            again: HashSet::new(),
            failures: HashMap::new(),
            sequence: 0,
        }
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// Now, or as soon as whoever has it is done with it.
    pub(super) fn add(&mut self, key: K) {
        if self.running.contains(&key) {
            self.again.insert(key);
            return;
        }
        self.forget_later(&key);
        if self.waiting.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    /// At `when`; a key that is already there for then or sooner is moved to `when`, unless it is ready now.
    pub(super) fn add_at(&mut self, key: K, when: Instant) {
        if self.waiting.contains(&key) {
            return;
        }
        self.forget_later(&key);
        self.sequence += 1;
        let place = (when, self.sequence);
        self.later.insert(place, key.clone());
        self.due.insert(key, place);
    }

    pub(super) fn take(&mut self, now: Instant) -> Option<K> {
        while let Some(entry) = self.later.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            self.due.remove(&key);
            self.add(key);
        }
        let key = self.ready.pop_front()?;
        self.waiting.remove(&key);
        self.running.insert(key.clone());
        Some(key)
    }

    pub(super) fn finish(&mut self, key: K, outcome: Outcome, now: Instant) {
        self.running.remove(&key);
        let changed_meanwhile = self.again.remove(&key);
        match outcome {
            Outcome::Done | Outcome::After(_) => {
                self.failures.remove(&key);
            }
            Outcome::Failed => {
                let failures = self.failures.entry(key.clone()).or_insert(0);
                let pause = FIRST_RETRY.saturating_mul(1 << (*failures).min(16)).min(LONGEST_RETRY);
                *failures = failures.saturating_add(1);
                self.add_at(key, now + pause);
                return;
            }
        }
        match outcome {
            _ if changed_meanwhile => self.add(key),
            Outcome::After(pause) => self.add_at(key, now + pause),
            Outcome::Done | Outcome::Failed => {}
        }
    }

    /// When `take` will have something that it has not now.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.later.first_key_value().map(|((when, _), _)| *when)
    }

    fn forget_later(&mut self, key: &K) {
        if let Some(place) = self.due.remove(key) {
            self.later.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_held_once_and_never_taken_twice_at_a_time() {
        let now = Instant::now();
        let mut queue = Queue::default();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.take(now), Some("a"));
        queue.add("a");
        assert_eq!(queue.take(now), Some("b"));
        assert_eq!(queue.take(now), None, "a is being looked at");
        queue.finish("a", Outcome::Done, now);
        assert_eq!(queue.take(now), Some("a"), "it changed meanwhile");
        queue.finish("a", Outcome::Done, now);
        queue.finish("b", Outcome::Done, now);
        assert_eq!((queue.take(now), queue.next_due()), (None, None));
    }

    #[test]
    fn a_failing_key_waits_ever_longer_and_delays_no_other() {
        let mut now = Instant::now();
        let mut queue = Queue::default();
        queue.add("bad");
        let mut pauses = Vec::new();
        for _ in 0..14 {
            let taken = queue.take(now);
            assert_eq!(taken, Some("bad"));
            queue.finish("bad", Outcome::Failed, now);
            queue.add_at("good", now);
            assert_eq!(queue.take(now), Some("good"), "the good one is not held up");
            queue.finish("good", Outcome::Done, now);
            let due = queue.next_due().unwrap_or(now);
            pauses.push(due - now);
            now = due;
        }
        assert_eq!(pauses.first(), Some(&FIRST_RETRY));
        assert_eq!(pauses.last(), Some(&LONGEST_RETRY));
        assert!(pauses.is_sorted());
        queue.add("bad");
        assert_eq!(queue.take(now), Some("bad"), "an event ends the pause");
        queue.finish("bad", Outcome::Done, now);
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn a_later_time_replaces_an_earlier_one() {
        let now = Instant::now();
        let mut queue = Queue::default();
        queue.add_at("event", now + Duration::from_secs(1));
        queue.add_at("event", now + Duration::from_secs(9));
        assert_eq!(queue.take(now + Duration::from_secs(8)), None);
        assert_eq!(queue.take(now + Duration::from_secs(9)), Some("event"));
    }
}
