//! SIGKILL of `terrane up` at random points while many write and watch over HTTPS: what was answered stays, and a watch that is
//! resumed from the last version it saw misses nothing and repeats nothing.

use std::net::TcpListener;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams, Preconditions, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;
use testkit::process::Guarded;
use tokio::task::JoinSet;

use crate::harness::{BINARY, POLL, Place, client, ended, signal, stop, until};

const KILLS: u32 = 50;
const WRITERS: usize = 32;
const WATCHERS: usize = 8;
/// One life in so many ends before it is known to be ready.
const KILLED_YOUNG: u32 = 5;
/// How many writes are answered before a life ends.
const WRITES_OF_A_LIFE: Range<u64> = 1..200;
const YOUTH_MILLISECONDS: Range<u64> = 0..800;
/// Every so often an object is deleted, and made anew.
const WRITES_OF_AN_OBJECT: u64 = 7;
const LABEL: &str = "writer=yes";
/// Written last: who has seen it has seen everything.
const LAST: &str = "last";

/// What happened to an object, as its writer knows it and as a watcher sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Happened {
    Made {
        count: u64,
        version: u64,
    },
    Changed {
        count: u64,
        version: u64,
    },
    /// The answer to a deletion tells no version.
    Gone {
        count: u64,
    },
}

#[derive(Debug, Clone)]
struct Current {
    uid: String,
    version: u64,
    count: u64,
}

impl Current {
    fn of(object: &ConfigMap) -> Self {
        Current { uid: object.uid().unwrap(), version: version(object), count: count(object) }
    }
}

fn version(object: &ConfigMap) -> u64 {
    object.resource_version().unwrap().parse().unwrap()
}

fn count(object: &ConfigMap) -> u64 {
    object.data.as_ref().and_then(|data| data.get("count")).map_or(0, |count| count.parse().unwrap())
}

fn object(name: &str, count: u64, version: Option<u64>) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([("writer".to_owned(), "yes".to_owned())].into()),
            resource_version: version.map(|version| version.to_string()),
            ..ObjectMeta::default()
        },
        data: Some([("count".to_owned(), count.to_string()), ("text".to_owned(), "x".repeat(300))].into()),
        ..ConfigMap::default()
    }
}

#[derive(Debug, Clone, Copy)]
enum Attempt {
    Create,
    Update,
    Delete,
}

/// An answer, or the connection broke. A refusal is neither: nothing here may be refused.
fn answered<T>(who: &str, answer: kube::Result<T>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(kube::Error::Api(status)) => panic!("{who} was refused: {status:?}"),
        Err(_) => None,
    }
}

/// Writes one object over and over, each time on top of what it knows to be there, and keeps what happened.
struct Writer {
    name: String,
    api: Api<ConfigMap>,
    acknowledged: Arc<AtomicU64>,
    current: Option<Current>,
    history: Vec<Happened>,
}

impl Writer {
    async fn run(mut self, stop: Arc<AtomicBool>) -> (String, Vec<Happened>) {
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            count += 1;
            let attempt = match &self.current {
                None => Attempt::Create,
                Some(_) if count % WRITES_OF_AN_OBJECT == 0 => Attempt::Delete,
                Some(_) => Attempt::Update,
            };
            match self.write(attempt, count).await {
                Some(now) => {
                    self.acknowledged.fetch_add(1, Ordering::Relaxed);
                    self.happened(attempt, now);
                }
                None => self.find_out(attempt, count).await,
            }
        }
        (self.name, self.history)
    }

    /// What is there afterwards, or nothing if no answer came.
    async fn write(&self, attempt: Attempt, count: u64) -> Option<Option<Current>> {
        let post = PostParams::default();
        let current = self.current.as_ref();
        let stored = match (attempt, current) {
            (Attempt::Delete, Some(current)) => {
                let preconditions = Preconditions {
                    uid: Some(current.uid.clone()),
                    resource_version: Some(current.version.to_string()),
                };
                let params = DeleteParams::default().preconditions(preconditions);
                return answered(&self.name, self.api.delete(&self.name, &params).await).map(|_| None);
            }
            (Attempt::Update, Some(current)) => {
                let object = object(&self.name, count, Some(current.version));
                self.api.replace(&self.name, &post, &object).await
            }
            (Attempt::Create | Attempt::Update | Attempt::Delete, _) => {
                self.api.create(&post, &object(&self.name, count, None)).await
            }
        };
        answered(&self.name, stored).map(|stored| Some(Current::of(&stored)))
    }

    fn happened(&mut self, attempt: Attempt, now: Option<Current>) {
        let happened = match (attempt, &now, &self.current) {
            (Attempt::Create, Some(now), _) => Happened::Made { count: now.count, version: now.version },
            (Attempt::Update, Some(now), _) => Happened::Changed { count: now.count, version: now.version },
            (Attempt::Delete, None, Some(before)) => Happened::Gone { count: before.count },
            other => panic!("{}: {other:?}", self.name),
        };
        self.history.push(happened);
        self.current = now;
    }

    /// No answer came, so the write may have been made or not. Whatever was answered before must be there.
    async fn find_out(&mut self, attempt: Attempt, count: u64) {
        // Bounded by whoever starts the API again, and waits until it answers.
        let found = loop {
            match answered(&self.name, self.api.get_opt(&self.name).await) {
                Some(found) => break found.as_ref().map(Current::of),
                None => tokio::time::sleep(POLL).await,
            }
        };
        let made = match (attempt, &found) {
            (Attempt::Create | Attempt::Update, Some(found)) => found.count == count,
            (Attempt::Create | Attempt::Update, None) => false,
            (Attempt::Delete, found) => found.is_none(),
        };
        if made {
            self.happened(attempt, found);
        } else {
            let unchanged =
                |now: &Option<Current>| now.as_ref().map(|now| (now.uid.clone(), now.version, now.count));
            assert_eq!(
                unchanged(&found),
                unchanged(&self.current),
                "{} lost what was answered, or got what nobody wrote",
                self.name
            );
        }
    }
}

/// Everything that is seen from `start` on, until the last object comes. O(events).
async fn watch(api: Api<ConfigMap>, start: u64) -> Vec<(String, u64, Happened)> {
    let params = WatchParams::default().labels(LABEL);
    let mut seen = Vec::new();
    let mut last = start;
    loop {
        let Some(events) = answered("a watch", api.watch(&params, &last.to_string()).await) else {
            tokio::time::sleep(POLL).await;
            continue;
        };
        let mut events = std::pin::pin!(events);
        // However it ends, it goes on from the last version that was seen.
        while let Ok(Some(event)) = events.try_next().await {
            let (object, happened): (ConfigMap, fn(u64, u64) -> Happened) = match event {
                WatchEvent::Added(object) => (object, |count, version| Happened::Made { count, version }),
                WatchEvent::Modified(object) => {
                    (object, |count, version| Happened::Changed { count, version })
                }
                WatchEvent::Deleted(object) => (object, |count, _| Happened::Gone { count }),
                WatchEvent::Bookmark(bookmark) => {
                    let version: u64 = bookmark.metadata.resource_version.parse().unwrap();
                    assert!(version >= last, "a bookmark goes back from {last} to {version}");
                    last = version;
                    continue;
                }
                WatchEvent::Error(status) => panic!("the watch from {last} was refused: {status:?}"),
            };
            let version = version(&object);
            assert!(version > last, "{} at {version} came after {last}", object.name_any());
            last = version;
            if object.name_any() == LAST {
                return seen;
            }
            seen.push((object.name_any(), version, happened(count(&object), version)));
        }
    }
}

/// A port that the kernel gives to nobody by itself, so that it is still free at the next start.
fn lasting_port(random: &mut StdRng) -> u16 {
    loop {
        let port = random.random_range(20_000..30_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

async fn live_and_die(mut up: Guarded, reach: &Client, random: &mut StdRng, acknowledged: &AtomicU64) {
    if random.random_ratio(1, KILLED_YOUNG) {
        let age = Duration::from_millis(random.random_range(YOUTH_MILLISECONDS));
        // Not a wait for anything: the moment of death is the point.
        tokio::time::sleep(age).await;
    } else {
        until("terrane up answers", async || {
            up.ensure_running().unwrap();
            reach.apiserver_version().await.ok()
        })
        .await;
        let enough = acknowledged.load(Ordering::Relaxed) + random.random_range(WRITES_OF_A_LIFE);
        until("enough writes are answered", async || {
            up.ensure_running().unwrap();
            (acknowledged.load(Ordering::Relaxed) >= enough).then_some(())
        })
        .await;
    }
    signal(&up, Signal::KILL);
    let status = ended(&mut up).await;
    assert_eq!(status.code(), Some(128 + Signal::KILL.as_raw()), "{}", up.log_tail());
}

#[allow(clippy::disallowed_methods, reason = "a run is repeated with the seed that it printed")]
fn choose_seed() -> u64 {
    std::env::var("TERRANE_TEST_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answered_write_is_lost_and_watches_resume_without_gap_or_repetition() {
    let seed = choose_seed();
    println!("TERRANE_TEST_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let place = Place::new();
    let api_address = format!("127.0.0.1:{}", lasting_port(&mut random));
    let flags = ["--api-listen", &api_address];
    let (first, reach) = place.up(&flags).await;
    // Keys and address stay, so that one kubeconfig reaches every life.
    let kubeconfig = place.data().join("kubeconfig");
    let objects = Api::<ConfigMap>::namespaced(reach.clone(), "default");
    let list = objects.list(&ListParams::default().labels(LABEL)).await.unwrap();
    let start = list.metadata.resource_version.unwrap().parse().unwrap();

    let (acknowledged, enough) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut watchers = JoinSet::new();
    for _ in 0..WATCHERS {
        let client = client(&kubeconfig).await.unwrap();
        watchers.spawn(watch(Api::namespaced(client, "default"), start));
    }
    let mut writers = JoinSet::new();
    for number in 0..WRITERS {
        let client = client(&kubeconfig).await.unwrap();
        let writer = Writer {
            name: format!("writer-{number}"),
            api: Api::namespaced(client, "default"),
            acknowledged: acknowledged.clone(),
            current: None,
            history: Vec::new(),
        };
        writers.spawn(writer.run(enough.clone()));
    }
    live_and_die(first, &reach, &mut random, &acknowledged).await;
    for _ in 1..KILLS {
        let up = place.start(BINARY, &place.arguments(&flags).each_ref());
        live_and_die(up, &reach, &mut random, &acknowledged).await;
    }
    let (up, _) = place.up(&flags).await;
    enough.store(true, Ordering::Relaxed);
    let histories = writers.join_all().await;
    objects.create(&PostParams::default(), &object(LAST, 0, None)).await.unwrap();

    let views = watchers.join_all().await;
    let (first, others) = views.split_first().unwrap();
    for other in others {
        assert_eq!(other, first, "two watchers saw different things");
    }
    let mut written = 0;
    for (name, history) in histories {
        let seen: Vec<Happened> =
            first.iter().filter(|(of, _, _)| *of == name).map(|(_, _, happened)| *happened).collect();
        assert_eq!(seen, history, "{name}: what was seen is not what was written");
        written += history.len();
    }
    assert_eq!(first.len(), written, "something was seen that nobody wrote");
    let acknowledged = acknowledged.load(Ordering::Relaxed);
    assert!(written as u64 >= acknowledged);
    println!(
        "{KILLS} kills, {acknowledged} answered writes, {} made without an answer",
        written as u64 - acknowledged
    );
    stop(up).await;
}
