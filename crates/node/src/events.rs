//! Events about pods, for people. They are sent beside the work and never hold it up: what cannot be sent is dropped.

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::Resource;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;

const WAITING: usize = 256;

#[derive(Debug, Clone)]
pub(crate) struct Events {
    queue: mpsc::Sender<(Event, ObjectReference)>,
}

/// Sends what was put in, until every [`Events`] is gone.
pub(crate) struct Sender {
    queue: mpsc::Receiver<(Event, ObjectReference)>,
    recorder: Recorder,
}

pub(crate) fn channel(client: kube::Client, node: &str) -> (Events, Sender) {
    let (sender, receiver) = mpsc::channel(WAITING);
    let reporter = Reporter { controller: "terrane-node".to_owned(), instance: Some(node.to_owned()) };
    (Events { queue: sender }, Sender { queue: receiver, recorder: Recorder::new(client, reporter) })
}

impl Events {
    pub(crate) fn note(&self, pod: &Pod, reason: &str, message: &str) {
        self.send(pod, EventType::Normal, reason, message);
    }

    pub(crate) fn warn(&self, pod: &Pod, reason: &str, message: &str) {
        self.send(pod, EventType::Warning, reason, message);
    }

    fn send(&self, pod: &Pod, type_: EventType, reason: &str, message: &str) {
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(message.chars().take(1024).collect()),
            action: reason.to_owned(),
            secondary: None,
        };
        if self.queue.try_send((event, pod.object_ref(&()))).is_err() {
            tracing::debug!(reason, "too many events wait; this one is dropped");
        }
    }
}

impl Sender {
    pub(crate) async fn run(mut self) {
        while let Some((event, about)) = self.queue.recv().await {
            if let Err(error) = self.recorder.publish(&event, &about).await {
                tracing::debug!(%error, reason = event.reason, "an event was not accepted");
            }
        }
    }
}
