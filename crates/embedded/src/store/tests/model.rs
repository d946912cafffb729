//! The store against a model that is too simple to be wrong: random ops, restarts and compactions, and after each of
//! them every read and every watch must say what the model says.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::store::IndexedFields;

#[derive(Debug, Clone)]
enum Step {
    /// Each names a key and whether its precondition is meant to hold.
    Write(Vec<(Verb, u8, bool)>),
    Reopen,
    /// Forgets the events up to that many revisions before the newest.
    Compact(u8),
}

#[derive(Debug, Clone, Copy)]
enum Verb {
    Create,
    Update,
    Delete,
}

/// What an event must look like.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    revision: u64,
    change: Change,
    key: Key,
    note: u64,
    previous: Option<(u64, u64)>,
}

/// Live objects as (revision, note), and everything that ever happened.
#[derive(Debug, Clone, Default)]
struct Model {
    revision: u64,
    live: BTreeMap<Key, (u64, u64)>,
    told: Vec<Told>,
}

fn key_of(number: u8) -> Key {
    let name = ["a", "b", "c"][usize::from(number) % 3];
    if number < 3 { pod(name) } else { layer(name) }
}

impl Model {
    /// The op that `verb` means now, and whether it must succeed.
    fn op(&self, verb: Verb, key: &Key, valid: bool, note: u64) -> (Op, bool) {
        let current = self.live.get(key).map(|(revision, _)| *revision);
        let expected = if valid { current.unwrap_or(1) } else { self.revision + 1000 };
        match verb {
            Verb::Create => (create(key, note), current.is_none()),
            Verb::Update => (update(key, expected, note), current == Some(expected)),
            Verb::Delete => {
                let op = Op::Delete { key: key.clone(), expected, object: object(key, note) };
                (op, current == Some(expected))
            }
        }
    }

    fn apply(&mut self, op: &Op, note: u64) {
        self.revision += 1;
        let (key, change) = match op {
            Op::Create { key, .. } => (key, Change::Added),
            Op::Update { key, .. } => (key, Change::Modified),
            Op::Delete { key, .. } => (key, Change::Deleted),
        };
        let previous = match change {
            Change::Added | Change::Modified => self.live.insert(key.clone(), (self.revision, note)),
            Change::Deleted => self.live.remove(key),
        };
        self.told.push(Told { revision: self.revision, change, key: key.clone(), note, previous });
    }

    fn told_after(&self, collection: &Collection, from: u64) -> Vec<Told> {
        let wanted = |told: &&Told| told.key.collection == *collection && told.revision > from;
        self.told.iter().filter(wanted).cloned().collect()
    }
}

fn note(stored: &Stored) -> u64 {
    stored.value()["note"].as_u64().unwrap()
}

fn told(event: &Event) -> Told {
    assert_eq!(event.revision, event.object.revision);
    assert_eq!(event.object.value()["metadata"]["resourceVersion"], event.revision.to_string());
    Told {
        revision: event.revision,
        change: event.change,
        key: event.object.key.clone(),
        note: note(&event.object),
        previous: event.previous.as_ref().map(|previous| (previous.revision, note(previous))),
    }
}

/// Compares everything that can be read. Events up to `compacted` must be forgotten; those up to `forgettable` may be,
/// because a restart finds again what was still on disk.
async fn check(store: &Store, model: &Model, events: usize, compacted: u64, forgettable: u64) {
    let snapshot = store.snapshot();
    assert_eq!(snapshot.revision(), model.revision);
    for collection in [pods(), layers()] {
        let listed = snapshot.list(&collection, None, None).map(|o| (o.key.clone(), (o.revision, note(&o))));
        let expected = model.live.iter().filter(|(key, _)| key.collection == collection);
        let expected = expected.map(|(key, object)| (key.clone(), *object)).collect::<Vec<_>>();
        assert_eq!(listed.collect::<Vec<_>>(), expected);
        for third in 0..3_u64 {
            let text = third.to_string();
            let found = snapshot.list_by(&collection, ("spec.third", &text), None, None);
            let found = found.map(|found| found.map(|o| o.key.clone()).collect::<Vec<_>>());
            let having = expected.iter().filter(|(_, (_, note))| note % 3 == third);
            let having = having.map(|(key, _)| key.clone()).collect::<Vec<_>>();
            assert_eq!(found, (collection == layers()).then_some(having), "third {third} of {collection}");
        }
        let all = model.told_after(&collection, 0);
        let mut resumable = 0;
        for from in (0..=model.revision).rev() {
            match store.watch(&collection, from) {
                Ok(_) => {
                    resumable = from;
                    let events = events_after(store, &collection, from).await;
                    let events = events.iter().map(|event| told(event)).collect::<Vec<_>>();
                    assert_eq!(events, model.told_after(&collection, from));
                }
                Err(expired) => assert!(expired.oldest > from),
            }
        }
        // Nothing may be forgotten without need.
        let bound = all.iter().rev().nth(events).map_or(0, |told| told.revision);
        let newest =
            |limit| all.iter().rev().find(|told| told.revision <= limit).map_or(0, |told| told.revision);
        let allowed = bound.max(newest(compacted))..=bound.max(newest(forgettable));
        assert!(allowed.contains(&resumable), "{resumable} is not in {allowed:?} of {all:?}");
    }
}

async fn run(steps: Vec<Step>, options: Options) {
    let place = Place::new();
    let mut store = place.open_with(options.clone());
    let (mut model, mut notes) = (Model::default(), 0);
    let (mut compacted, mut forgettable) = (0, 0);
    for step in steps {
        match step {
            Step::Write(ops) => {
                let mut next = model.clone();
                let (mut written, mut succeeds) = (Vec::new(), true);
                for (verb, key, valid) in ops {
                    notes += 1;
                    let (op, valid) = next.op(verb, &key_of(key), valid, notes);
                    if valid {
                        next.apply(&op, notes);
                    }
                    succeeds &= valid;
                    written.push(op);
                }
                assert_eq!(store.write(written).await.is_ok(), succeeds);
                if succeeds {
                    model = next;
                }
            }
            Step::Reopen => {
                store.close();
                store = place.open_with(options.clone());
                compacted = 0;
            }
            Step::Compact(back) => {
                let revision = model.revision.saturating_sub(u64::from(back));
                store.compact(revision).await.unwrap();
                compacted = compacted.max(revision);
                forgettable = forgettable.max(revision);
            }
        }
        check(&store, &model, options.history_events, compacted, forgettable).await;
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let verb = prop_oneof![Just(Verb::Create), Just(Verb::Update), Just(Verb::Update), Just(Verb::Delete)];
    let op = (verb, 0..6_u8, prop::bool::weighted(0.9));
    let write = prop_oneof![3 => prop::collection::vec(op.clone(), 1), 1 => prop::collection::vec(op, 2..4)];
    let step = prop_oneof![
        8 => write.prop_map(Step::Write),
        1 => Just(Step::Reopen),
        1 => (0..8_u8).prop_map(Step::Compact),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_store_agrees_with_the_model(steps in steps(), events in 1..12_usize, rows in 1..6_usize) {
        let mut indexed = IndexedFields::default();
        indexed.add(layers(), "spec.third".to_owned());
        let options = Options { history_events: events, compaction_rows: rows, indexed, ..Options::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(run(steps, options));
    }
}
