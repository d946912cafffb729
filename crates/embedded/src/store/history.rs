//! The events that are retained, by collection: what watches read, and from which it follows which rows on disk
//! nobody needs any more. Bounded by number, memory and age; nothing here reads a clock.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use imbl::OrdMap;

use super::object::{Collection, Stored};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Added,
    Modified,
    Deleted,
}

/// One change of one object.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    pub revision: u64,
    pub change: Change,
    /// What is stored since; for `Deleted` the last state, at the revision of the deletion.
    pub object: Arc<Stored>,
    /// What was there before; `None` exactly for `Added`.
    pub previous: Option<Arc<Stored>>,
}

/// What an event takes beside the objects that it alone keeps alive.
const EVENT_OVERHEAD: usize = 160;

impl Event {
    /// The memory that is free when this event is forgotten. The object it made is live, or counted by the event that
    /// replaced it.
    fn cost(&self) -> usize {
        let superseded = self.previous.as_ref().map_or(0, |previous| previous.size());
        let tombstone = match self.change {
            Change::Added | Change::Modified => 0,
            Change::Deleted => self.object.size(),
        };
        EVENT_OVERHEAD + superseded + tombstone
    }
}

/// What follows from the events that histories have forgotten.
#[derive(Debug, Default)]
pub(super) struct Forgotten {
    /// Revisions whose rows nobody needs any more, in the order in which they must leave the disk.
    pub(super) rows: VecDeque<u64>,
    /// Objects of events that others have followed; some are gone by now.
    pub(super) quiet: Vec<Weak<Stored>>,
}

/// The newest events of a collection, whose objects are left as they are: all who watch read them now.
const FRESH: usize = 1_000;

/// The retained events of one collection.
#[derive(Debug, Clone, Default)]
pub(super) struct Log {
    /// The revision of the newest event that was forgotten; everything after it is here.
    floor: u64,
    cost: usize,
    /// Everything up to this revision is quiet.
    quiet: u64,
    /// How many events are not.
    fresh: usize,
    events: OrdMap<u64, Arc<Event>>,
}

impl Log {
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// The retained events after `revision`, oldest first.
    pub(super) fn after(&self, revision: u64) -> impl Iterator<Item = &Arc<Event>> {
        self.events.range(revision.saturating_add(1)..).map(|(_, event)| event)
    }

    fn oldest(&self) -> Option<u64> {
        self.events.get_min().map(|(revision, _)| *revision)
    }

    /// Forgets the oldest event. Returns what it cost.
    fn forget_oldest(&mut self, forgotten: &mut Forgotten) -> usize {
        let Some(event) = self.oldest().and_then(|revision| self.events.remove(&revision)) else { return 0 };
        self.floor = self.floor.max(event.revision);
        // The order matters: a deletion must never leave the disk before the rows that it hides.
        forgotten.rows.extend(event.previous.as_ref().map(|previous| previous.revision));
        if event.revision > self.quiet {
            self.fresh -= 1;
            forgotten.quiet.push(Arc::downgrade(&event.object));
        }
        if event.change == Change::Deleted {
            forgotten.rows.push_back(event.revision);
        }
        let cost = event.cost();
        self.cost -= cost;
        cost
    }

    /// Leaves at most `FRESH` events fresh. O(log n) for each that becomes quiet.
    fn settle(&mut self, forgotten: &mut Forgotten) {
        let many = self.fresh.saturating_sub(FRESH);
        if many == 0 {
            return;
        }
        let mut through = self.quiet;
        for event in self.after(self.quiet).take(many) {
            through = event.revision;
            // What it replaced was quiet before, or is fresh in an event of its own.
            forgotten.quiet.push(Arc::downgrade(&event.object));
        }
        self.quiet = through;
        self.fresh -= many;
    }
}

/// The retained events of all collections. Cloning is O(1).
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    cost: usize,
    logs: OrdMap<Collection, Log>,
}

impl History {
    pub(super) fn log(&self, collection: &Collection) -> Option<&Log> {
        self.logs.get(collection)
    }

    pub(super) fn floors(&self) -> impl Iterator<Item = (&Collection, u64)> {
        self.logs.iter().map(|(collection, log)| (collection, log.floor))
    }

    pub(super) fn push(&mut self, event: Arc<Event>) {
        let cost = event.cost();
        self.cost += cost;
        let log = self.logs.entry(event.object.key.collection.clone()).or_default();
        log.cost += cost;
        log.fresh += 1;
        log.events.insert(event.revision, event);
    }

    /// Brings the histories of `touched` collections and the whole within bounds.
    /// O(log n) per event forgotten, and O(collections) per event forgotten for memory.
    pub(super) fn bound<'a>(
        &mut self,
        touched: impl IntoIterator<Item = &'a Collection>,
        events: usize,
        bytes: usize,
        forgotten: &mut Forgotten,
    ) {
        for collection in touched {
            let Some(log) = self.logs.get_mut(collection) else { continue };
            while log.events.len() > events {
                self.cost -= log.forget_oldest(forgotten);
            }
            log.settle(forgotten);
        }
        while self.cost > bytes {
            let largest =
                self.logs.iter().max_by_key(|(_, log)| log.cost).map(|(collection, _)| collection.clone());
            let Some(log) = largest.and_then(|collection| self.logs.get_mut(&collection)) else { return };
            self.cost -= log.forget_oldest(forgotten);
        }
    }

    /// Forgets all events up to `revision`.
    pub(super) fn forget_through(&mut self, revision: u64, forgotten: &mut Forgotten) {
        let old = self.logs.iter().filter(|(_, log)| log.oldest().is_some_and(|oldest| oldest <= revision));
        let old = old.map(|(collection, _)| collection.clone()).collect::<Vec<_>>();
        for collection in old {
            self.forget_collection_through(&collection, revision, forgotten);
        }
    }

    /// Forgets the events of one collection up to `revision`, which is its floor from then on.
    pub(super) fn forget_collection_through(
        &mut self,
        collection: &Collection,
        revision: u64,
        forgotten: &mut Forgotten,
    ) {
        let Some(log) = self.logs.get_mut(collection) else { return };
        while log.oldest().is_some_and(|oldest| oldest <= revision) {
            self.cost -= log.forget_oldest(forgotten);
        }
    }

    /// Only at start: the floor that the disk remembers.
    pub(super) fn set_floor(&mut self, collection: &Collection, floor: u64) {
        self.logs.entry(collection.clone()).or_default().floor = floor;
    }
}

/// Remembers when revisions were made, coarsely, so that events can be forgotten by age without a time in each.
#[derive(Debug)]
pub(super) struct Ages {
    age: Duration,
    marks: VecDeque<(Instant, u64)>,
}

/// Marks within one age: the precision with which events grow old.
const MARKS: u32 = 10;

impl Ages {
    pub(super) fn new(age: Duration) -> Self {
        Self { age, marks: VecDeque::new() }
    }

    /// How often [`Ages::old`] has something new to say.
    pub(super) fn period(&self) -> Duration {
        (self.age / MARKS).max(Duration::from_millis(10))
    }

    /// Notes that `revision` is the newest at `now`, and returns the newest revision that is too old to keep.
    pub(super) fn old(&mut self, revision: u64, now: Instant) -> Option<u64> {
        if self.marks.back().is_none_or(|(at, _)| now.saturating_duration_since(*at) >= self.period()) {
            self.marks.push_back((now, revision));
        }
        let mut old = None;
        while let Some((_, revision)) =
            self.marks.pop_front_if(|(at, _)| now.saturating_duration_since(*at) >= self.age)
        {
            old = Some(revision);
        }
        old
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::{
        super::fields::IndexedFields,
        super::object::{Key, Op, Prepared},
        *,
    };

    fn pods() -> Collection {
        Collection::new("", "pods")
    }

    fn object(revision: u64) -> Arc<Stored> {
        let key = Key::new(pods(), "default", "a");
        let op = Op::Create { key: key.clone(), object: json!({}) };
        Arc::new(Prepared::new(op, &IndexedFields::default()).unwrap().stored_at(key, revision))
    }

    /// Created, changed, deleted and created again.
    fn history() -> History {
        let mut history = History::default();
        let changes = [
            (Change::Added, None),
            (Change::Modified, Some(1)),
            (Change::Deleted, Some(2)),
            (Change::Added, None),
        ];
        for (revision, (change, previous)) in (1..).zip(changes) {
            let previous = previous.map(object);
            history.push(Arc::new(Event { revision, change, object: object(revision), previous }));
        }
        history
    }

    #[test]
    fn a_row_leaves_when_its_last_event_does_and_before_the_deletion_that_hides_it() {
        let mut history = history();
        let mut forgotten = Forgotten::default();
        for (events, expected) in [(4, &[][..]), (3, &[]), (2, &[1]), (1, &[1, 2, 3]), (0, &[1, 2, 3])] {
            history.bound([&pods()], events, usize::MAX, &mut forgotten);
            assert_eq!(forgotten.rows, expected, "with {events} events left");
            assert_eq!(history.log(&pods()).unwrap().floor(), 4 - events as u64);
        }
        assert_eq!(history.cost, 0, "what was counted in is counted out");
    }

    #[test]
    fn memory_is_bounded_by_what_the_events_alone_keep_alive() {
        let mut history = history();
        let bytes = object(1).size();
        assert_eq!(history.cost, 4 * EVENT_OVERHEAD + 3 * bytes, "the objects 1 and 2, and the deletion");
        let mut forgotten = Forgotten::default();
        history.bound([], usize::MAX, 2 * EVENT_OVERHEAD + 2 * bytes, &mut forgotten);
        assert_eq!(history.log(&pods()).unwrap().floor(), 2);
        assert_eq!(forgotten.rows, [1]);
    }

    #[test]
    fn what_others_have_followed_is_quiet_once() {
        let mut history = History::default();
        let mut forgotten = Forgotten::default();
        // Somebody must hold them.
        let objects: Vec<_> = (1..=FRESH as u64 + 3).map(object).collect();
        for object in &objects {
            let (revision, object) = (object.revision, Arc::clone(object));
            history.push(Arc::new(Event { revision, change: Change::Added, object, previous: None }));
        }
        let quiet = |forgotten: &Forgotten| -> Vec<u64> {
            forgotten.quiet.iter().map(|object| object.upgrade().unwrap().revision).collect()
        };
        for _ in 0..2 {
            history.bound([&pods()], usize::MAX, usize::MAX, &mut forgotten);
            assert_eq!(quiet(&forgotten), [1, 2, 3]);
        }
        history.bound([&pods()], 0, usize::MAX, &mut forgotten);
        assert_eq!(quiet(&forgotten), (1..=FRESH as u64 + 3).collect::<Vec<_>>());
    }

    #[test]
    fn a_revision_is_old_once_its_age_has_passed() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut ages = Ages::new(Duration::from_secs(100));
        assert_eq!(ages.period(), Duration::from_secs(10));
        assert_eq!(ages.old(5, at(0)), None);
        assert_eq!(ages.old(6, at(1)), None, "within a period of the last mark, so the next one covers it");
        assert_eq!(ages.old(9, at(50)), None);
        assert_eq!(ages.old(12, at(100)), Some(5));
        assert_eq!(ages.old(12, at(149)), None);
        assert_eq!(ages.old(12, at(151)), Some(9));
        assert_eq!(ages.old(12, at(300)), Some(12));
    }
}
