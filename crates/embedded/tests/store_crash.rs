//! SIGKILL at random points while many threads write: no answered write may be lost, no revision skipped or given
//! twice, and a watch resumed after each crash sees every event once. Without the usual harness, because the program
//! also plays the part of the process that is killed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
};

use embedded::store::{Change, Collection, Event, Key, Op, Options, Snapshot, Store, Stored};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;
use tokio::task::JoinSet;

const KILLS: u64 = 30;
const WRITERS: usize = 16;
/// Sets the victim apart from the test.
const VICTIM: &str = "--be-killed-while-writing-to";

const NAME: &str = "store::crash::no_answered_write_is_lost_by_sigkill";

fn main() {
    let arguments = env::args().skip(1).collect::<Vec<_>>();
    if let [victim_argument, path] = &arguments[..]
        && victim_argument == VICTIM
    {
        return victim(Path::new(path));
    }
    // As with other tests: words choose by name, `--seed=<number>` repeats a run's choices.
    let mut words = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
    if words.peek().is_none() || words.any(|word| NAME.contains(word)) {
        let seed = arguments.iter().find_map(|argument| argument.strip_prefix("--seed="));
        survives_kill(seed.map_or_else(rand::random, |seed| seed.parse().unwrap()));
        println!("test {NAME} ... ok");
    }
}

fn pods() -> Collection {
    Collection::new("", "pods")
}

/// Retains more than one life can write, so that every event of it can be asked for afterwards. What earlier lives left
/// is compacted while the writers are at work.
fn options() -> Options {
    Options { history_events: 20_000, compaction_rows: 20, ..Options::default() }
}

/// Writes for ever, one object per writer, while the past is compacted, and says on standard output what was answered: `revision writer count state`.
fn victim(path: &Path) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    let store = Store::open(path, options()).unwrap();
    let output = Arc::new(Mutex::new(std::io::stdout()));
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for writer in 0..WRITERS {
            tasks.spawn(write_forever(store.clone(), writer, output.clone()));
        }
        compact_the_past(&store).await;
        panic!("a writer ended: {:?}", tasks.join_next().await);
    });
}

async fn compact_the_past(store: &Store) {
    let past = store.snapshot().revision();
    for revision in (past.saturating_sub(2000)..=past).step_by(5) {
        store.compact(revision).await.unwrap();
    }
}

async fn write_forever(store: Store, writer: usize, output: Arc<Mutex<std::io::Stdout>>) {
    let key = Key::new(pods(), "default", &format!("pod-{writer}"));
    let mut count = 0_u64;
    loop {
        count += 1;
        let object = json!({"metadata": {"name": &*key.name}, "count": count, "padding": "x".repeat(500)});
        let current = store.snapshot().get(&key);
        let (op, state) = match current {
            None => (Op::Create { key: key.clone(), object }, "there"),
            Some(current) if count.is_multiple_of(5) => {
                (Op::Delete { key: key.clone(), expected: current.revision, object }, "gone")
            }
            Some(current) => (Op::Update { key: key.clone(), expected: current.revision, object }, "there"),
        };
        let stored = store.write(vec![op]).await.unwrap();
        let mut output = output.lock().unwrap();
        writeln!(output, "{} {writer} {count} {state}", stored[0].revision).unwrap();
        output.flush().unwrap();
    }
}

/// What one life of the victim acknowledged, by revision.
type Answers = BTreeMap<u64, (String, u64, String)>;

/// Killed when it goes, so that a failing assertion leaves no process behind.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn live_and_die(path: &Path, answers_before_death: usize) -> Answers {
    let child =
        Command::new(env::current_exe().unwrap()).arg(VICTIM).arg(path).stdout(Stdio::piped()).spawn();
    let mut victim = Victim(child.unwrap());
    let mut answers = Answers::new();
    let lines = BufReader::new(victim.0.stdout.take().unwrap()).lines();
    for line in lines {
        let line = line.unwrap();
        // The kill may cut the last line short.
        if let [revision, writer, count, state] = line.split(' ').collect::<Vec<_>>()[..]
            && (state == "there" || state == "gone")
        {
            let answer = (format!("pod-{writer}"), count.parse().unwrap(), state.to_owned());
            assert!(
                answers.insert(revision.parse().unwrap(), answer).is_none(),
                "revision {revision} given twice"
            );
        }
        if answers.len() == answers_before_death {
            victim.0.kill().unwrap();
        }
    }
    assert!(answers.len() >= answers_before_death, "the victim died by itself");
    answers
}

fn survives_kill(seed: u64) {
    println!("running with --seed={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("store.db");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut past = Snapshot::default();
    let mut answered = 0;
    for _ in 0..KILLS {
        let answers = live_and_die(&path, random.random_range(1..400));
        answered += answers.len();
        let store = Store::open(&path, options()).unwrap();
        past = runtime.block_on(check(&store, &past, &answers));
        store.close();
    }
    println!(
        "{answered} answered writes survived {KILLS} kills; the store is at revision {}",
        past.revision()
    );
}

/// Everything since `past` must be there once, in order, and agree with what was answered. Returns the new past.
async fn check(store: &Store, past: &Snapshot, answers: &Answers) -> Snapshot {
    let snapshot = store.snapshot();
    let before = past.revision();
    let events = events_between(store, before, snapshot.revision()).await;
    let revisions = events.iter().map(|event| event.revision).collect::<Vec<_>>();
    assert_eq!(revisions, (before + 1..=snapshot.revision()).collect::<Vec<_>>(), "revisions are contiguous");
    for (revision, (name, count, state)) in answers {
        let event = revision.checked_sub(before + 1).and_then(|at| events.get(usize::try_from(at).unwrap()));
        let event = event.unwrap_or_else(|| panic!("the answered revision {revision} is lost"));
        assert_eq!((&*event.object.key.name, &event.object.value()["count"]), (name.as_str(), &json!(count)));
        assert_eq!(event.change == Change::Deleted, state == "gone");
    }
    // The events lead from the past to what is there now, each naming what it found.
    let mut objects = objects(past);
    for event in &events {
        let key = event.object.key.clone();
        let previous = match event.change {
            Change::Added | Change::Modified => objects.insert(key, event.object.clone()),
            Change::Deleted => objects.remove(&key),
        };
        assert_eq!(event.previous, previous);
        assert_eq!(previous.is_none(), event.change == Change::Added);
    }
    assert_eq!(objects, self::objects(&snapshot));
    // And it can be written.
    let key = Key::new(Collection::new("", "configmaps"), "default", "probe");
    let op = match snapshot.get(&key) {
        None => Op::Create { key, object: json!({}) },
        Some(current) => Op::Delete { key, expected: current.revision, object: json!({}) },
    };
    assert_eq!(store.write(vec![op]).await.unwrap()[0].revision, snapshot.revision() + 1);
    store.snapshot()
}

fn objects(snapshot: &Snapshot) -> BTreeMap<Key, Arc<Stored>> {
    let collections = snapshot.collections().cloned().collect::<Vec<_>>();
    let objects = collections.iter().flat_map(|collection| snapshot.list(collection, None, None));
    objects.map(|object| (object.key.clone(), object)).collect()
}

async fn events_between(store: &Store, before: u64, newest: u64) -> Vec<Arc<Event>> {
    let mut watch = store.watch(&pods(), before).expect("one life writes less than is retained");
    let mut events = Vec::new();
    while watch.revision() < newest {
        events.extend(watch.next().await.unwrap());
    }
    events
}
