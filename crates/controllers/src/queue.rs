//! The queue for runners. The limits are kept by counting the pods that are at work in the API, one run at a time: whoever is
//! admitted makes its pod before the next one counts (`crate::turn`). The memory of who waits only decides the order; losing it costs a turn.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::text::Sha256;
use api::{TerraformRun, label};
use engine::later;
use engine::manifests::label_value;
use engine::queue::{Busy, Named, Slot, Waiting, admit, order};
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
/// How many repositories' first runs are woken when a runner is free.
const WOKEN: usize = 64;

#[derive(Debug)]
pub struct Queue {
    turns: Turns,
    waiting: Mutex<BTreeMap<Named, (Waiting, Timestamp)>>,
    /// Who waits until another run is done with a state. It only wakes; who is forgotten looks again by itself.
    locked_out: Mutex<BTreeMap<Sha256, BTreeSet<Named>>>,
    tell: mpsc::UnboundedSender<ObjectRef<Handle<TerraformRun>>>,
    news: Mutex<Option<mpsc::UnboundedReceiver<ObjectRef<Handle<TerraformRun>>>>>,
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
            locked_out: Mutex::default(),
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

    /// Asks for a runner. With a free slot comes the turn, to be kept until the pod is made and then to be given back.
    /// O(pods at work + n log n in what waits).
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
        {
            let mut waiting = self.locked();
            waiting.retain(|_, (_, asked)| later(*asked, FORGOTTEN) > now);
            waiting.insert(run.clone(), (wish, now));
        }
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
                (Slot::Free, Some(turn))
            }
            Slot::Full(limit) => (Slot::Full(limit), None),
        })
    }

    async fn admit(&self, run: &Named, fleet: Fleet<'_>, now: Timestamp) -> Result<Slot, Error> {
        let busy = observe_busy(fleet).await?;
        let all: Vec<Waiting> = self.locked().values().map(|(one, _)| by_label(one)).collect();
        Ok(admit(run, &all, &busy, fleet.most, now))
    }

    /// The run waits for no runner (any more).
    pub(crate) fn leave(&self, run: &impl ResourceExt) {
        self.locked().remove(&named(run));
    }

    /// The run is to be told when another one is done with its state.
    pub(crate) fn await_lock(&self, run: &TerraformRun) {
        let mut locked_out = self.locked_out.lock().unwrap_or_else(PoisonError::into_inner);
        locked_out.entry(run.spec.state.clone()).or_default().insert(named(run));
    }

    /// The run is done with its state: whoever waits for that looks again. O(runs that wait for this one state).
    pub(crate) fn wake_locked_out(&self, run: &TerraformRun) {
        let mut locked_out = self.locked_out.lock().unwrap_or_else(PoisonError::into_inner);
        for next in locked_out.remove(&run.spec.state).into_iter().flatten() {
            let _ = self.tell.unbounded_send(ObjectRef::new(&next.name).within(&next.namespace));
        }
    }

    /// A runner is free: the first of each repository look again. O(n log n) in what waits.
    pub(crate) fn wake_next(&self, now: Timestamp) {
        let all: Vec<Waiting> = self.locked().values().map(|(one, _)| one.clone()).collect();
        let mut repositories = BTreeSet::new();
        for next in order(&all, &Busy::new(), now) {
            if repositories.len() < WOKEN && repositories.insert(&next.repository) {
                // A closed channel means that the controllers have stopped; then nobody waits.
                let _ = self.tell.unbounded_send(ObjectRef::new(&next.run.name).within(&next.run.namespace));
            }
        }
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
    let Fleet { client, namespaces, .. } = fleet;
    let ours = ListParams::default()
        .labels(&format!("{}=terrane,{}", label::MANAGED_BY, label::RUN_UID))
        .fields("status.phase!=Succeeded,status.phase!=Failed");
    let pods = match namespaces {
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
            .map(|name| Named { namespace: pod.namespace().unwrap_or_default(), name: name.clone() });
        *busy.entry(repository).or_default() += 1;
    }
    Ok(busy)
}
