//! One pod from the moment it is seen to the moment it is forgotten: observe, decide, act, report, wait.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::admit::{DIRECTORY_ANNOTATION, admit};
use super::decide::{Action, Blocked, Decision, Observed, Place, Presence, View, decide, is_terminal};
use super::news::{self, Weight};
use super::room::Held;
use super::{Latest, Shared, act, observe, status};
use crate::process::Process;
use crate::records::{self, Exit, How, Intent, PodRecord, Stop};
use crate::volumes::{PodDirectory, Tokens};

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Act(#[from] act::Error),
    #[error(transparent)]
    Records(#[from] records::Error),
    #[error("could not tell the API about the pod: {0}")]
    Api(#[from] Box<kube::Error>),
}

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const REFRESH_RETRY: SignedDuration = SignedDuration::from_secs(10);
const PREPARE_FIRST_RETRY: SignedDuration = SignedDuration::from_millis(500);
const PREPARE_LONGEST_RETRY: SignedDuration = SignedDuration::from_secs(10);
const MANAGER: &str = "terrane-node";

pub(super) struct Worker {
    shared: Arc<Shared>,
    latest: watch::Receiver<Latest>,
    room_changes: watch::Receiver<u64>,
    uid: String,
    record: Option<PodRecord>,
    stop: Option<Stop>,
    place: Place,
    blocked: BTreeMap<String, Blocked>,
    tokens: Tokens,
    refresh_at: Option<Timestamp>,
    prepare_failures: u32,
    /// What the API answered to the last status, and to which version of the pod it was written.
    reported: Option<(Option<String>, Arc<Pod>)>,
    /// What was written last and the status that the API answered, so that a field that the API does not keep is not
    /// sent again and again, while one that somebody else has changed is.
    sent: Option<(serde_json::Value, Option<PodStatus>)>,
    deletion_told: bool,
}

/// What a round of work came to.
enum Round {
    /// Something changed: look again at once.
    Again,
    /// `shims` are those that the decision knew of: one that has ended since then must not be waited for in vain.
    Wait {
        wake: Option<Timestamp>,
        shims: Vec<Process>,
    },
    Over,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, uid: String, latest: watch::Receiver<Latest>) -> Worker {
        let room_changes = shared.room.changes();
        Worker {
            shared,
            latest,
            room_changes,
            uid,
            record: None,
            stop: None,
            place: Place::Unprepared,
            blocked: BTreeMap::new(),
            tokens: Tokens::default(),
            refresh_at: None,
            prepare_failures: 0,
            reported: None,
            sent: None,
            deletion_told: false,
        }
    }

    pub(super) async fn run(mut self) -> String {
        let mut pause = FIRST_PAUSE;
        let mut adopted = false;
        loop {
            let round = if adopted {
                self.round().await
            } else {
                self.adopt().map(|()| {
                    adopted = true;
                    Round::Again
                })
            };
            match round {
                Ok(Round::Over) => return self.uid,
                Ok(Round::Again) => pause = FIRST_PAUSE,
                Ok(Round::Wait { wake, shims }) => {
                    pause = FIRST_PAUSE;
                    self.wait(wake, shims).await;
                }
                Err(error) => {
                    let (pod, _) = self.pod();
                    tracing::warn!(pod = pod.metadata.name, namespace = pod.metadata.namespace, %error, "will try again");
                    // Deletion and new versions of the pod are not kept waiting by a failure.
                    let _ = tokio::time::timeout(pause, self.latest.changed()).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// The pod as the API has it, including what it answered to our own last write.
    fn pod(&self) -> (Arc<Pod>, Presence) {
        let (pod, presence) = match &*self.latest.borrow() {
            Latest::Present(pod) => (pod.clone(), Presence::Present),
            Latest::Gone(pod) => (pod.clone(), Presence::Gone),
        };
        match &self.reported {
            Some((before, answered)) if is_later(answered, before.as_deref(), &pod) => {
                (answered.clone(), presence)
            }
            Some(_) | None => (pod, presence),
        }
    }

    /// Takes up what an earlier life of the node has written down.
    fn adopt(&mut self) -> Result<(), Error> {
        let (pod, _) = self.pod();
        self.record = self.shared.records.pod_get(&self.uid)?;
        if self.record.is_none() && !is_terminal(&pod) {
            self.adopt_unrecorded(&pod)?;
        }
        let Some(record) = &self.record else { return Ok(()) };
        self.stop.clone_from(&record.stop);
        if record.released {
            self.place = Place::Released;
            return Ok(());
        }
        self.shared.room.adopt(&self.uid, Held { directory: record.directory.clone(), owner: record.owner });
        let begun = observe::views(&self.shared.records, &pod)?.values().any(|view| view.current.is_some());
        if begun {
            self.place = Place::Ready;
            self.refresh_at = Some(Timestamp::now());
        }
        Ok(())
    }

    /// The API says that containers ran here and there is no record of them: the state directory was lost. They are
    /// over, in a way that nobody saw, and are not started as if for the first time.
    fn adopt_unrecorded(&mut self, pod: &Pod) -> Result<(), Error> {
        let status = pod.status.clone().unwrap_or_default();
        let statuses = status.container_statuses.into_iter().chain(status.init_container_statuses).flatten();
        let begun: Vec<_> = statuses.filter(|status| status.container_id.is_some()).collect();
        if begun.is_empty() {
            return Ok(());
        }
        if self.take_room(pod)?.is_none() {
            return Ok(());
        }
        for status in begun {
            let number = u32::try_from(status.restart_count).unwrap_or(0);
            let done = status.state.as_ref().and_then(|state| state.terminated.as_ref());
            let how = match done {
                Some(done) => How::Code(done.exit_code),
                None => How::Unknown,
            };
            let intent = Intent {
                boot_id: String::new(),
                image: status.image.clone(),
                image_id: status.image_id.clone(),
                backoff: number,
            };
            let exit = Exit {
                how,
                started_at: done.and_then(|done| done.started_at.as_ref()).map(|time| time.0),
                finished_at: done
                    .and_then(|done| done.finished_at.as_ref())
                    .map_or_else(Timestamp::now, |time| time.0),
                message: match done {
                    Some(done) => done.message.clone().unwrap_or_default(),
                    None => "The node has no record of the container; how it ended is not known".to_owned(),
                },
            };
            self.shared.records.attempt(&self.uid, &status.name, number).put_exit_of(&intent, &exit)?;
        }
        Ok(())
    }

    async fn round(&mut self) -> Result<Round, Error> {
        let (pod, presence) = self.pod();
        let now = Timestamp::now();
        if let (Place::Unprepared, Err(refusal)) = (&self.place, admit(&pod)) {
            self.place = Place::Refused { reason: refusal.reason, message: refusal.message };
        }
        let mut views = observe::views(&self.shared.records, &pod)?;
        for (name, view) in &mut views {
            view.blocked = self.blocked.get(name).cloned();
        }
        let observed = Observed {
            now,
            pod: &pod,
            presence,
            place: self.place.clone(),
            stop: self.stop.as_ref(),
            containers: &views,
        };
        let decision = decide(&observed);
        let status = status::build(&observed, &self.shared.facts.address);
        if !decision.actions.is_empty() {
            let kills_only = decision.actions.iter().all(|action| matches!(action, Action::Kill { .. }));
            for action in &decision.actions {
                self.act(&pod, &views, action).await?;
            }
            let wait = Round::Wait { wake: decision.wake, shims: observe::shims(&views) };
            return Ok(if kills_only { wait } else { Round::Again });
        }
        let wake = self.maintain(&pod, &views, now, decision.wake).await;
        if presence == Presence::Present && self.report(&pod, &status).await? == Reported::Changed {
            return Ok(Round::Again);
        }
        let wait = Round::Wait { wake, shims: observe::shims(&views) };
        self.finish(&pod, &views, &decision).await.map(|over| over.unwrap_or(wait))
    }

    async fn finish(
        &mut self,
        pod: &Pod,
        views: &BTreeMap<String, View>,
        decision: &Decision,
    ) -> Result<Option<Round>, Error> {
        for action in &decision.last {
            self.act(pod, views, action).await?;
            match action {
                Action::Forget => return Ok(Some(Round::Over)),
                Action::Release => return Ok(Some(Round::Again)),
                Action::Prepare
                | Action::Start { .. }
                | Action::Launch { .. }
                | Action::Settle { .. }
                | Action::Order(_)
                | Action::Terminate { .. }
                | Action::Kill { .. }
                | Action::Delete => {}
            }
        }
        Ok(None)
    }

    async fn act(&mut self, pod: &Pod, views: &BTreeMap<String, View>, action: &Action) -> Result<(), Error> {
        match action {
            Action::Prepare => self.prepare(pod).await?,
            Action::Start { container, number, backoff } => {
                let Some(record) = &self.record else { return Ok(()) };
                let before = self.blocked.get(container);
                match act::start(&self.shared, pod, record, container, (*number, *backoff), before).await? {
                    Some(blocked) => {
                        self.blocked.insert(container.clone(), blocked);
                    }
                    None => {
                        self.blocked.remove(container);
                    }
                }
            }
            Action::Launch { container, number } => {
                let attempt = self.shared.records.attempt(&self.uid, container, *number);
                act::launch_shim(&self.shared, &attempt).await?;
            }
            Action::Settle { container, number } => {
                let Some(record) = &self.record else { return Ok(()) };
                act::settle(&self.shared, record, container, *number, views).await?;
            }
            Action::Order(stop) => {
                self.stop = Some(stop.clone());
                self.persist_stop()?;
            }
            Action::Terminate { container, .. } => {
                act::terminate(views, container)?;
                let message = format!("Stopping container {container}");
                self.shared.events.note_of(pod, container, "Killing", &message);
                if let Some(stop) = &mut self.stop {
                    stop.signalled.insert(container.clone());
                }
                self.persist_stop()?;
            }
            Action::Kill { container, .. } => act::kill(views, container)?,
            Action::Release => self.release()?,
            Action::Delete => self.delete(pod).await?,
            Action::Forget => {
                self.shared.records.pod_remove(&self.uid)?;
            }
        }
        Ok(())
    }

    fn persist_stop(&mut self) -> Result<(), Error> {
        if let Some(record) = &mut self.record {
            record.stop.clone_from(&self.stop);
            self.shared.records.pod_put(record)?;
        }
        Ok(())
    }

    /// A place, a user and a directory, written down before they are used.
    fn take_room(&mut self, pod: &Pod) -> Result<Option<PodRecord>, Error> {
        let metadata = &pod.metadata;
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let directory = metadata.annotations.as_ref().and_then(|all| all.get(DIRECTORY_ANNOTATION));
        match self.shared.room.take(&self.uid, &namespace, directory.map(String::as_str)) {
            Ok(held) => {
                let record = PodRecord {
                    namespace,
                    name: metadata.name.clone().unwrap_or_default(),
                    uid: self.uid.clone(),
                    directory: held.directory,
                    owner: held.owner,
                    stop: self.stop.clone(),
                    released: false,
                };
                self.shared.records.pod_put(&record)?;
                self.record = Some(record.clone());
                Ok(Some(record))
            }
            Err(full) => {
                self.place = Place::NoRoom { message: full.to_string() };
                Ok(None)
            }
        }
    }

    async fn prepare(&mut self, pod: &Pod) -> Result<(), Error> {
        let record = match self.record.clone() {
            Some(record) => record,
            None => match self.take_room(pod)? {
                Some(record) => record,
                None => return Ok(()),
            },
        };
        let now = Timestamp::now();
        let directory = PodDirectory { path: record.directory, owner: record.owner };
        let prepared =
            directory.prepare(&self.shared.client, pod, &self.shared.facts, &mut self.tokens, now).await;
        match prepared {
            Ok(refresh_at) => {
                self.refresh_at = refresh_at;
                self.place = Place::Ready;
            }
            Err(error) => {
                let message = error.to_string();
                self.shared.events.warn(pod, "FailedMount", &message);
                let doubled = PREPARE_FIRST_RETRY.saturating_mul(1 << self.prepare_failures.min(8));
                self.prepare_failures = self.prepare_failures.saturating_add(1);
                let retry_at = now.checked_add(doubled.min(PREPARE_LONGEST_RETRY)).unwrap_or(now);
                self.place = Place::Blocked { message, retry_at };
            }
        }
        Ok(())
    }

    /// Keeps the volumes of a running pod up to date; a failure is tried again and disturbs nothing else.
    async fn maintain(
        &mut self,
        pod: &Pod,
        views: &BTreeMap<String, View>,
        now: Timestamp,
        wake: Option<Timestamp>,
    ) -> Option<Timestamp> {
        let (Place::Ready, Some(record), Some(due)) = (&self.place, &self.record, self.refresh_at) else {
            return wake;
        };
        if is_terminal(pod) || (self.stop.is_some() && observe::shims(views).is_empty()) {
            return wake;
        }
        if due <= now {
            let directory = PodDirectory { path: record.directory.clone(), owner: record.owner };
            let refreshed =
                directory.refresh(&self.shared.client, pod, &self.shared.facts, &mut self.tokens, now).await;
            self.refresh_at = match refreshed {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(pod = pod.metadata.name, %error, "could not refresh the volumes; will try again");
                    now.checked_add(REFRESH_RETRY).ok()
                }
            };
        }
        [wake, self.refresh_at].into_iter().flatten().min()
    }

    /// Directory, user and place go back; records and logs stay until the API has forgotten the pod.
    fn release(&mut self) -> Result<(), Error> {
        if let Some(record) = &mut self.record
            && !record.released
        {
            records::remove_tree(&record.directory)?;
            record.released = true;
            self.shared.records.pod_put(record)?;
        }
        self.shared.room.give_back(&self.uid);
        self.place = Place::Released;
        Ok(())
    }

    async fn report(&mut self, pod: &Pod, status: &PodStatus) -> Result<Reported, Error> {
        let Some(patch) = status::patch(pod, status) else { return Ok(Reported::Same) };
        if self.sent.as_ref().is_some_and(|(sent, answered)| *sent == patch && *answered == pod.status) {
            return Ok(Reported::Same);
        }
        let api = self.api(pod);
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let before = match &*self.latest.borrow() {
            Latest::Present(pod) | Latest::Gone(pod) => pod.metadata.resource_version.clone(),
        };
        match api.patch_status(name, &params, &Patch::Strategic(&patch)).await {
            Ok(answered) => {
                self.sent = Some((patch, answered.status.clone()));
                self.reported = Some((before, Arc::new(answered)));
                self.announce(pod, status);
                Ok(Reported::Changed)
            }
            // The pod is gone, or another has its name: the watch will say so.
            Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => Ok(Reported::Same),
            Err(error) => Err(Box::new(error).into()),
        }
    }

    async fn delete(&mut self, pod: &Pod) -> Result<(), Error> {
        if self.deletion_told {
            return Ok(());
        }
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(self.uid.clone()), resource_version: None }),
            ..DeleteParams::default()
        };
        match self.api(pod).delete(name, &params).await {
            Ok(_) => {}
            Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => {}
            Err(error) => return Err(Box::new(error).into()),
        }
        self.deletion_told = true;
        Ok(())
    }

    fn api(&self, pod: &Pod) -> Api<Pod> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        Api::namespaced(self.shared.client.clone(), namespace)
    }

    /// For what people look for with `kubectl describe`.
    fn announce(&self, pod: &Pod, status: &PodStatus) {
        let events = &self.shared.events;
        for news in news::build(pod, status) {
            match news.weight {
                Weight::Normal => events.note_of(pod, &news.container, news.reason, &news.message),
                Weight::Warning => events.warn_of(pod, &news.container, news.reason, &news.message),
            }
        }
    }

    /// Until the pod changes, one of its shims ends, room is given back to someone who waits for it, or the time comes.
    async fn wait(&mut self, wake: Option<Timestamp>, shims: Vec<Process>) {
        let mut ends: FuturesUnordered<_> = shims.into_iter().map(end_of).collect();
        let sleep = async {
            match wake {
                Some(wake) => {
                    let left = Timestamp::now().duration_until(wake);
                    tokio::time::sleep(Duration::try_from(left).unwrap_or(Duration::ZERO)).await;
                }
                None => std::future::pending().await,
            }
        };
        let waits_for_room = matches!(self.place, Place::NoRoom { .. });
        tokio::select! {
            changed = self.latest.changed() => {
                if changed.is_err() {
                    // The manager is gone, and with it the runtime; nothing is left to do here.
                    std::future::pending::<()>().await;
                }
            }
            Some(()) = ends.next() => {}
            _ = self.room_changes.changed(), if waits_for_room => self.place = Place::Unprepared,
            () = sleep => {}
        }
    }
}

#[derive(PartialEq, Eq)]
enum Reported {
    Changed,
    Same,
}

/// Ends when the process does. A shim writes its last record before it ends.
async fn end_of(shim: Process) {
    // Its successor is `unsafe` for types that could change their descriptor; an `OwnedFd` cannot.
    #[allow(deprecated)]
    let watch = || -> io::Result<Option<AsyncFd<std::os::fd::OwnedFd>>> {
        match shim.open()? {
            Some(fd) => AsyncFd::with_interest(fd, tokio::io::Interest::READABLE).map(Some),
            None => Ok(None),
        }
    };
    match watch() {
        Ok(Some(fd)) => {
            let _ = fd.readable().await;
        }
        Ok(None) => {}
        // Out of descriptors: looking again now and then is all that is left.
        Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("uid", &self.uid).finish_non_exhaustive()
    }
}

/// For records whose pod the API no longer has.
pub(super) fn orphan(shared: &Shared, record: &PodRecord) -> Result<Arc<Pod>, records::Error> {
    observe::orphan(&shared.records, record).map(Arc::new)
}

/// Whether the answer to our write is later than what the watch shows, which may be ahead of the answer: somebody else can write
/// between the two. Versions are numbers that grow; where they are not, the watch counts as soon as it shows anything new.
fn is_later(answered: &Pod, before: Option<&str>, watched: &Pod) -> bool {
    let number = |version: Option<&str>| version.and_then(|version| version.parse::<u64>().ok());
    let watched = watched.metadata.resource_version.as_deref();
    match (number(answered.metadata.resource_version.as_deref()), number(watched)) {
        (Some(answered), Some(watched)) => answered > watched,
        (_, _) => before == watched,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(version: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.resource_version = Some(version.to_owned());
        pod
    }

    #[test]
    fn what_somebody_wrote_after_us_counts_although_our_answer_comes_later() {
        for (answered, before, watched, later) in [
            ("12", "10", "10", true),
            ("12", "10", "11", true),
            ("12", "10", "12", false),
            ("12", "10", "13", false),
            ("9", "8", "10", false),
            ("c", "a", "a", true),
            ("c", "a", "d", false),
        ] {
            let found = is_later(&pod(answered), Some(before), &pod(watched));
            assert_eq!(found, later, "{answered} after {before}, while the watch shows {watched}");
        }
    }
}
