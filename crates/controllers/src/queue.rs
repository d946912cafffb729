//! The queue for runners. The limits are kept by counting the pods that are at work in the API, one run at a time: whoever is
//! admitted makes its pod before the next one counts (`crate::turn`). The memory of who waits only decides the order; losing it costs a turn.
//!
//! A fleet may wait in thousands, so few of them look when a runner is free: the first, who wakes the next one when it is admitted, until
//! one finds no room. Until another runner ends nobody counts again to hear the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::text::Sha256;
use api::{TerraformRun, label};
use engine::later;
use engine::manifests::label_value;
use engine::queue::{Busy, Limit, Named, Slot, Waiting, admit, limit_of, next};
use engine::run::home;
use futures::channel::mpsc;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, ResourceExt};

use crate::error::{Error, doing};
use crate::feed::Handle;
use crate::scope::Namespaces;
use crate::turn::{Turn, Turns};

/// A run that has not asked for this long is gone or waits for something else.
const FORGOTTEN: Duration = Duration::from_secs(180);
/// How many repositories' first runs are woken when a runner is free and may be any of theirs.
const WOKEN: usize = 64;
/// How long a count is believed by those whom it keeps out. Runners also end without our hearing of it.
const BELIEVED: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Queue {
    turns: Turns,
    waiting: Mutex<BTreeMap<Named, (Waiting, Timestamp)>>,
    counted: Mutex<Counted>,
    /// Who waits until another run is done with a state. It only wakes; who is forgotten looks again by itself.
    locked_out: Mutex<BTreeMap<Sha256, BTreeSet<Named>>>,
    /// Since when each of them waits, as far as this process knows.
    locked_since: Mutex<BTreeMap<Named, Timestamp>>,
    tell: mpsc::UnboundedSender<ObjectRef<Handle<TerraformRun>>>,
    news: Mutex<Option<mpsc::UnboundedReceiver<ObjectRef<Handle<TerraformRun>>>>>,
}

/// The last count of the runners at work.
#[derive(Debug, Default)]
struct Counted {
    busy: Busy,
    /// None once there may be more room than was counted, or less.
    at: Option<Timestamp>,
}

/// What a run that asks for a runner goes on to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Takes the lock of its state; it asks again before it makes its pod.
    Lock,
    Pod,
}

/// Where runners are counted, and how many there may be over all repositories; 0 sets no limit.
#[derive(Clone, Copy)]
pub(crate) struct Fleet<'a> {
    pub(crate) client: &'a Client,
    pub(crate) namespaces: &'a Namespaces,
    /// Where the pods of builds are that are in no namespace of a layer.
    pub(crate) builds: Option<&'a str>,
    pub(crate) most: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Self::taking(Turns::default())
    }
}

impl Queue {
    /// A queue that takes these turns, as others may.
    pub fn taking(turns: Turns) -> Self {
        let (tell, news) = mpsc::unbounded();
        Self {
            turns,
            waiting: Mutex::default(),
            counted: Mutex::default(),
            locked_out: Mutex::default(),
            locked_since: Mutex::default(),
            tell,
            news: Mutex::new(Some(news)),
        }
    }

    pub(crate) fn news(&self) -> Option<mpsc::UnboundedReceiver<ObjectRef<Handle<TerraformRun>>>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// How many runs wait for a runner.
    pub fn len(&self) -> usize {
        self.locked().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Since when the run exists that waits longest for a runner. O(what waits).
    pub(crate) fn oldest(&self) -> Option<Timestamp> {
        self.locked().values().map(|(one, _)| one.since).min()
    }

    /// How many runs wait until another one is done with their state.
    pub(crate) fn locked_out(&self) -> usize {
        self.since().len()
    }

    /// Asks for a runner. With a free slot comes the turn, to be kept until the pod is made and then to be given back.
    /// O(log n) in what waits where the last count leaves no room, else O(pods at work + n log n).
    pub(crate) async fn ask(
        &self,
        wish: Waiting,
        next: Next,
        fleet: Fleet<'_>,
        now: Timestamp,
    ) -> Result<(Slot, Option<Turn>), Error> {
        if fleet.most == 0 && wish.most == 0 {
            return Ok((Slot::Free, None));
        }
        let run = wish.run.clone();
        let mut turn = self.turns.take().await;
        let place = by_label(&wish);
        let kept_out = self.kept_out(&place, fleet.most, now);
        self.locked().insert(run.clone(), (wish, now));
        if let Some(limit) = kept_out {
            return Ok((Slot::Full(limit), None));
        }
        self.locked().retain(|_, (_, asked)| later(*asked, FORGOTTEN) > now);
        let mut slot = self.admit(&run, fleet, now).await?;
        // A repository's runs are all of one shard; only the limit over all of them is other processes' too. Without room there is
        // nothing to take turns for.
        if slot == Slot::Free && next == Next::Pod && fleet.most > 0 && turn.is_shared() {
            turn.win().await?;
            slot = match self.admit(&run, fleet, now).await {
                Ok(Slot::Free) => Slot::Free,
                other => {
                    turn.give_back().await;
                    return Ok((other?, None));
                }
            };
        }
        Ok(match slot {
            Slot::Free => {
                self.locked().remove(&run);
                // There may be room for one more, who gets ready meanwhile and counts when this turn is over.
                self.wake_next(now);
                (Slot::Free, Some(turn))
            }
            Slot::Full(limit) => {
                // Somebody else goes first, and may not have been the first by the count before.
                if limit_of(&place, &self.count().busy, fleet.most).is_none() {
                    self.wake_next(now);
                }
                (Slot::Full(limit), None)
            }
        })
    }

    async fn admit(&self, run: &Named, fleet: Fleet<'_>, now: Timestamp) -> Result<Slot, Error> {
        // A runner that ends while they are counted makes the count void: `wake_next` takes this away again.
        self.count().at = Some(now);
        let busy = match observe_busy(fleet).await {
            Ok(busy) => busy,
            Err(error) => {
                self.count().at = None;
                return Err(error);
            }
        };
        let slot = admit(run, &self.all(), &busy, fleet.most, now);
        self.count().busy = busy;
        Ok(slot)
    }

    /// What keeps the run out by the last count, if that still holds.
    fn kept_out(&self, wish: &Waiting, most: u32, now: Timestamp) -> Option<Limit> {
        let counted = self.count();
        counted.at.filter(|at| later(*at, BELIEVED) > now)?;
        limit_of(wish, &counted.busy, most)
    }

    /// The run waits for no runner (any more). If it did, another may have been waiting behind it.
    pub(crate) fn leave(&self, run: &impl ResourceExt, now: Timestamp) {
        if self.locked().remove(&named(run)).is_some() {
            self.wake_next(now);
        }
    }

    /// The run is to be told when another one is done with its state.
    pub(crate) fn await_lock(&self, run: &TerraformRun, now: Timestamp) {
        self.since().entry(named(run)).or_insert(now);
        let mut locked_out = self.locked_out.lock().unwrap_or_else(PoisonError::into_inner);
        locked_out.entry(run.spec.state.clone()).or_default().insert(named(run));
    }

    /// The run waits for no lock (any more). The answer is since when it did.
    pub(crate) fn stop_awaiting_lock(&self, run: &impl ResourceExt) -> Option<Timestamp> {
        self.since().remove(&named(run))
    }

    /// The run is done with its state: whoever waits for that looks again. O(runs that wait for this one state).
    pub(crate) fn wake_locked_out(&self, run: &TerraformRun) {
        let mut locked_out = self.locked_out.lock().unwrap_or_else(PoisonError::into_inner);
        for next in locked_out.remove(&run.spec.state).into_iter().flatten() {
            let _ = self.tell.unbounded_send(ObjectRef::new(&next.name).within(&next.namespace));
        }
    }

    /// A runner may be free: whoever is next looks again. O(n log n) in what waits.
    pub(crate) fn wake_next(&self, now: Timestamp) {
        let all = self.all();
        let busy = {
            let mut counted = self.count();
            counted.at = None;
            counted.busy.clone()
        };
        for next in next(&all, &busy, WOKEN, now) {
            // A closed channel means that the controllers have stopped; then nobody waits.
            let _ = self.tell.unbounded_send(ObjectRef::new(&next.run.name).within(&next.run.namespace));
        }
    }

    /// Who waits, by the names that pods have for repositories.
    fn all(&self) -> Vec<Waiting> {
        self.locked().values().map(|(one, _)| by_label(one)).collect()
    }

    fn count(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn since(&self) -> MutexGuard<'_, BTreeMap<Named, Timestamp>> {
        self.locked_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<Named, (Waiting, Timestamp)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn named(run: &impl ResourceExt) -> Named {
    Named { namespace: run.namespace().unwrap_or_default(), name: run.name_any() }
}

/// Pods name their repository by a label, which is shorter than a name may be.
fn by_label(waiting: &Waiting) -> Waiting {
    let repository = Named { name: label_value(&waiting.repository.name), ..waiting.repository.clone() };
    Waiting { repository, ..waiting.clone() }
}

/// Runner pods that have not ended, of which only the names and labels are asked for. O(runner pods at work), which the limit itself
/// keeps few, and a request for each namespace where these are given.
async fn observe_busy(fleet: Fleet<'_>) -> Result<Busy, Error> {
    let Fleet { client, namespaces, builds, .. } = fleet;
    let ours = ListParams::default()
        .labels(&format!("{}=terrane,{}", label::MANAGED_BY, label::RUN_UID))
        .fields("status.phase!=Succeeded,status.phase!=Failed");
    let pods = match &namespaces.and(builds) {
        Namespaces::All => vec![Api::<Pod>::all(client.clone())],
        Namespaces::These(names) => {
            names.iter().map(|name| Api::<Pod>::namespaced(client.clone(), name)).collect()
        }
    };
    let lists = pods.iter().map(|pods| pods.list_metadata(&ours));
    let lists = futures::future::try_join_all(lists).await.map_err(doing("count the runners at work"))?;
    let mut busy = Busy::new();
    for pod in lists.into_iter().flat_map(|list| list.items) {
        let repository = pod
            .labels()
            .get(label::REPOSITORY)
            .filter(|name| !name.is_empty())
            .map(|name| Named { namespace: home(&pod.metadata, builds).to_owned(), name: name.clone() });
        *busy.entry(repository).or_default() += 1;
    }
    Ok(busy)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use embedded::auth::Identity;
    use embedded::serve::{Listen, Options, Server};
    use engine::queue::Urgency;
    use kube::api::{Patch, PatchParams, PostParams};
    use serde_json::json;
    use testkit::faults::{Faults, Seam};
    use tower::Layer;

    use super::*;

    fn wish(run: usize) -> Waiting {
        let named = |name: String| Named { namespace: "default".to_owned(), name };
        Waiting {
            run: named(format!("run-{run:02}")),
            repository: named(format!("infra-{}", run % 5)),
            most: 0,
            urgency: Urgency::Usual,
            since: Timestamp::UNIX_EPOCH,
        }
    }

    /// One runner at work where one may be, and fifty runs of five repositories that want one.
    #[tokio::test]
    async fn what_waits_costs_one_count_and_a_free_runner_wakes_one() {
        let directory = tempfile::tempdir().unwrap();
        let listen = Listen::new("127.0.0.1:0".parse().unwrap(), None, None).unwrap();
        let options = Options { listen, ..Options::new(directory.path().join("data")) };
        let server = Server::start(options).await.unwrap();
        let faults = Faults::new();
        let layer = faults.actor("controller").layer(Seam::Api);
        let client = Client::new(layer.layer(server.router(Identity::administrator())), "default");
        let counts = || {
            let is_count =
                |event: &&testkit::faults::Event| event.site.verb == "GET" && event.site.target == "pods";
            faults.read(|events| events.iter().filter(is_count).count())
        };
        let pods = Api::<Pod>::default_namespaced(client.clone());
        let mut busy = testkit::objects::pod("busy", "image").unwrap();
        busy.metadata.labels = Some(BTreeMap::from([
            (label::MANAGED_BY.to_owned(), "terrane".to_owned()),
            (label::RUN_UID.to_owned(), "a-run".to_owned()),
            (label::REPOSITORY.to_owned(), "infra-0".to_owned()),
        ]));
        pods.create(&PostParams::default(), &busy).await.unwrap();

        let queue = Queue::default();
        let mut news = queue.news().unwrap();
        let fleet = Fleet { client: &client, namespaces: &Namespaces::All, builds: None, most: 1 };
        let now = Timestamp::UNIX_EPOCH;
        for run in 0..50 {
            let (slot, turn) = queue.ask(wish(run), Next::Pod, fleet, now).await.unwrap();
            assert_eq!(slot, Slot::Full(Limit::Overall { most: 1 }));
            assert!(turn.is_none());
        }
        assert_eq!((queue.len(), counts()), (50, 1));

        let ended = json!({ "status": { "phase": "Succeeded" } });
        pods.patch_status("busy", &PatchParams::default(), &Patch::Merge(ended)).await.unwrap();
        queue.wake_next(now);
        let woken = news.try_recv().unwrap().name;
        assert_eq!(woken, "run-01", "of a repository that had none at work");
        assert!(news.try_recv().is_err(), "one runner is free, and one run looks");
        // Now no repository has one at work, and the first run is of the one whose runner has ended.
        let (slot, _) = queue.ask(wish(1), Next::Pod, fleet, now).await.unwrap();
        assert_eq!((slot, counts()), (Slot::Full(Limit::Overall { most: 1 }), 2));
        assert_eq!(news.try_recv().unwrap().name, "run-00");
        let (slot, turn) = queue.ask(wish(0), Next::Pod, fleet, now).await.unwrap();
        assert_eq!((slot, turn.is_some(), counts()), (Slot::Free, true, 3));
        assert!(news.try_recv().is_ok(), "there may be room for another");
        drop(turn);

        // Whoever has nothing to do there any more keeps nobody waiting who stood behind.
        queue.leave(&testkit::objects::pod("run-02", "any object of this name").unwrap(), now);
        assert!(news.try_recv().is_ok());
        assert_eq!(queue.len(), 48);

        // A count is not believed for ever.
        queue.admit(&wish(1).run, fleet, now).await.unwrap();
        queue.count().busy.insert(None, 1);
        let before = counts();
        let again = async |at| queue.ask(wish(1), Next::Pod, fleet, at).await.unwrap().0;
        assert_eq!((again(now).await, counts()), (Slot::Full(Limit::Overall { most: 1 }), before));
        assert_eq!((again(later(now, BELIEVED)).await, counts()), (Slot::Free, before + 1));
    }
}
