//! The pods of this node: follows them in the API and keeps one worker for each.

mod act;
mod admit;
pub mod decide;
mod news;
mod observe;
mod room;
pub mod status;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::Config;
use crate::events::Events;
use crate::fields::Facts;
use crate::records::{self, Records};

pub use admit::DIRECTORY_ANNOTATION;
pub(crate) use room::Room;

/// What all workers of a node have in common.
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) config: Config,
    pub(crate) records: Records,
    pub(crate) facts: Facts,
    pub(crate) room: Arc<Room>,
    pub(crate) events: Events,
}

/// The newest version of a pod that the watch has brought.
#[derive(Debug, Clone)]
pub(crate) enum Latest {
    Present(Arc<Pod>),
    Gone(Arc<Pod>),
}

struct Manager {
    shared: Arc<Shared>,
    known: BTreeMap<String, watch::Sender<Latest>>,
    workers: JoinSet<String>,
    /// Uids seen since a list began; what is missing at its end has been deleted.
    listed: BTreeSet<String>,
    seen_first_list: bool,
}

/// Runs until it is dropped. What the workers started keeps running without them.
pub(crate) async fn run(shared: Arc<Shared>) -> Result<(), records::Error> {
    let pods: Api<Pod> = Api::all(shared.client.clone());
    let selector = format!("spec.nodeName={}", shared.config.name);
    let mut events = Box::pin(watcher(pods, watcher::Config::default().fields(&selector)));
    let mut manager = Manager {
        shared,
        known: BTreeMap::new(),
        workers: JoinSet::new(),
        listed: BTreeSet::new(),
        seen_first_list: false,
    };
    let mut pause = watcher::DefaultBackoff::default();
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => {
                    pause = watcher::DefaultBackoff::default();
                    manager.handle(event)?;
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "the watch of pods failed; trying again");
                    if let Some(wait) = pause.next() {
                        tokio::time::sleep(wait).await;
                    }
                }
                // The stream of a watcher does not end.
                None => return Ok(()),
            },
            Some(ended) = manager.workers.join_next(), if !manager.workers.is_empty() => match ended {
                Ok(uid) => {
                    manager.known.remove(&uid);
                }
                Err(error) => tracing::error!(%error, "the worker of a pod failed"),
            },
        }
    }
}

impl Manager {
    fn handle(&mut self, event: watcher::Event<Pod>) -> Result<(), records::Error> {
        match event {
            watcher::Event::Init => self.listed.clear(),
            watcher::Event::InitApply(pod) => {
                self.listed.extend(pod.uid());
                self.put(pod);
            }
            watcher::Event::InitDone => {
                self.forget_unlisted();
                if !self.seen_first_list {
                    self.seen_first_list = true;
                    self.take_up_orphans()?;
                }
            }
            watcher::Event::Apply(pod) => self.put(pod),
            watcher::Event::Delete(pod) => {
                if let Some(worker) = pod.uid().and_then(|uid| self.known.get(&uid)) {
                    worker.send_replace(Latest::Gone(Arc::new(pod)));
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, pod: Pod) {
        let Some(uid) = pod.uid() else { return };
        let latest = Latest::Present(Arc::new(pod));
        match self.known.get(&uid) {
            Some(worker) => {
                worker.send_replace(latest);
            }
            None => self.start(uid, latest),
        }
    }

    fn start(&mut self, uid: String, latest: Latest) {
        let (sender, receiver) = watch::channel(latest);
        self.workers.spawn(worker::Worker::new(self.shared.clone(), uid.clone(), receiver).run());
        self.known.insert(uid, sender);
    }

    /// O(pods of this node).
    fn forget_unlisted(&mut self) {
        for (uid, worker) in &self.known {
            if !self.listed.contains(uid) {
                worker.send_modify(|latest| {
                    if let Latest::Present(pod) = latest {
                        *latest = Latest::Gone(pod.clone());
                    }
                });
            }
        }
    }

    /// Pods that were deleted while the node was away: their processes end and their records go.
    fn take_up_orphans(&mut self) -> Result<(), records::Error> {
        for record in self.shared.records.pod_list()? {
            if !self.known.contains_key(&record.uid) {
                let pod = worker::orphan(&self.shared, &record)?;
                self.start(record.uid, Latest::Gone(pod));
            }
        }
        Ok(())
    }
}
