//! Events about pods, for people. They are sent beside the work and never hold it up: what cannot be sent is dropped.
//!
//! What happens again within some minutes is counted, not told anew. Two messages of one reason are two happenings, which is
//! why the recorder of the client library, whose series know only the reason, is not used.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;

const WAITING: usize = 256;
/// A happening is new after this long, as in a cluster.
const SERIES: SignedDuration = SignedDuration::from_mins(6);
/// The longest note that the API takes.
const NOTE: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Severity {
    Normal,
    Warning,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Happening {
    /// The pod's uid, and the field of the pod that is meant.
    about: (Option<String>, Option<String>),
    severity: Severity,
    reason: String,
    note: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Events {
    queue: mpsc::Sender<(Happening, ObjectReference)>,
}

/// Sends what was put in, until every [`Events`] is gone.
pub(crate) struct Sender {
    queue: mpsc::Receiver<(Happening, ObjectReference)>,
    client: Client,
    controller: &'static str,
    instance: String,
    told: BTreeMap<Happening, Told>,
}

/// An Event that is in the API, as far as is known.
struct Told {
    name: String,
    count: i32,
    at: Timestamp,
}

/// `controller` is who reports, on the node `instance`.
pub(crate) fn channel(client: Client, controller: &'static str, instance: &str) -> (Events, Sender) {
    let (sender, receiver) = mpsc::channel(WAITING);
    let instance = instance.to_owned();
    (
        Events { queue: sender },
        Sender { queue: receiver, client, controller, instance, told: BTreeMap::new() },
    )
}

impl Events {
    pub(crate) fn note(&self, pod: &Pod, reason: &str, message: &str) {
        self.send(pod.object_ref(&()), Severity::Normal, reason, message);
    }

    pub(crate) fn warn(&self, pod: &Pod, reason: &str, message: &str) {
        self.send(pod.object_ref(&()), Severity::Warning, reason, message);
    }

    /// About one container: its place in the spec is part of what the Event is about, as a kubelet does it.
    pub(crate) fn note_of(&self, pod: &Pod, container: &str, reason: &str, message: &str) {
        self.send(container_reference(pod, container), Severity::Normal, reason, message);
    }

    pub(crate) fn warn_of(&self, pod: &Pod, container: &str, reason: &str, message: &str) {
        self.send(container_reference(pod, container), Severity::Warning, reason, message);
    }

    fn send(&self, about: ObjectReference, severity: Severity, reason: &str, message: &str) {
        let happening = Happening {
            about: (about.uid.clone(), about.field_path.clone()),
            severity,
            reason: reason.to_owned(),
            note: message.chars().take(NOTE).collect(),
        };
        if self.queue.try_send((happening, about)).is_err() {
            tracing::debug!(reason, "too many events wait; this one is dropped");
        }
    }
}

fn container_reference(pod: &Pod, container: &str) -> ObjectReference {
    let mut init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let is_init = init.any(|init| init.name == container);
    let list = if is_init { "initContainers" } else { "containers" };
    ObjectReference { field_path: Some(format!("spec.{list}{{{container}}}")), ..pod.object_ref(&()) }
}

impl Sender {
    pub(crate) async fn run(mut self) {
        while let Some((happening, about)) = self.queue.recv().await {
            let reason = happening.reason.clone();
            if let Err(error) = self.publish(happening, about).await {
                tracing::debug!(%error, reason, "an event was not accepted");
            }
        }
    }

    /// O(happenings of the last minutes).
    async fn publish(&mut self, happening: Happening, about: ObjectReference) -> Result<(), kube::Error> {
        let now = Timestamp::now();
        self.told.retain(|_, told| told.at.duration_until(now) < SERIES);
        let namespace = about.namespace.clone().unwrap_or_default();
        let events: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        if let Some(told) = self.told.get_mut(&happening) {
            let count = told.count.saturating_add(1);
            let series = EventSeries { count, last_observed_time: MicroTime(now) };
            let patch = Patch::Merge(json!({"series": series}));
            match events.patch(&told.name, &PatchParams::default(), &patch).await {
                Ok(_) => {
                    (told.count, told.at) = (count, now);
                    return Ok(());
                }
                // Somebody has removed it: it is told as if for the first time.
                Err(kube::Error::Api(error)) if error.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let name = format!("{}.{:x}", about.name.as_deref().unwrap_or_default(), now.as_nanosecond());
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(namespace),
                ..ObjectMeta::default()
            },
            type_: Some(happening.severity.name().to_owned()),
            reason: Some(happening.reason.clone()),
            action: Some(happening.reason.clone()),
            note: Some(happening.note.clone()),
            event_time: Some(MicroTime(now)),
            regarding: Some(about),
            reporting_controller: Some(self.controller.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        };
        events.create(&PostParams::default(), &event).await?;
        self.told.insert(happening, Told { name, count: 1, at: now });
        Ok(())
    }
}
