//! Events: what people read in `kubectl describe`. They are told after the status is written, by a task of their own, so that a
//! slow API for Events delays no reconcile; and they are told best-effort, because the status already says the same.

use std::sync::{Mutex, PoisonError};

use api::text::Sha256;
use engine::{Note, Severity, news};
use futures::StreamExt;
use futures::channel::mpsc;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use tokio_util::sync::CancellationToken;

/// Who tells, in the Events themselves.
const REPORTER: &str = "terrane.dev/controller";
/// Events that wait to be written; more than these are dropped.
const BACKLOG: usize = 4096;
/// An Event that repeats is counted instead of written again, unless so many others came between: each of those that may be counted
/// is held in memory.
const REMEMBERED: usize = 512;
/// What an Event can hold.
const NOTE_BYTES: usize = 1024;

#[derive(Debug)]
pub struct Events {
    tell: mpsc::Sender<(ObjectReference, Note)>,
    told: Mutex<Option<mpsc::Receiver<(ObjectReference, Note)>>>,
}

impl Default for Events {
    fn default() -> Self {
        let (tell, told) = mpsc::channel(BACKLOG);
        Self { tell, told: Mutex::new(Some(told)) }
    }
}

impl Events {
    /// Tells what is new between two lists of conditions of an object, if anything is.
    pub(crate) fn tell<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        before: &[Condition],
        after: &[Condition],
    ) {
        for note in news::between(before, after).into_iter().chain(news::lost(before, after)) {
            self.tell_of(object, note);
        }
    }

    /// Tells one thing about an object.
    pub(crate) fn tell_of<K: Resource<DynamicType = ()>>(&self, object: &K, note: Note) {
        let reference = object.object_ref(&());
        // A sender of its own has room for one in any case; a full backlog means that the API takes no Events.
        let mut tell = self.tell.clone();
        if tell.try_send((reference, note)).is_err() {
            tracing::debug!("an Event was dropped: too many wait to be written");
        }
    }

    /// Writes Events until told to stop, and then those that wait already.
    pub(crate) async fn work(&self, client: Client, stop: CancellationToken) {
        let Some(mut told) = self.told.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let reporter = Reporter { controller: REPORTER.to_owned(), instance: None };
        loop {
            let recorder = Recorder::new(client.clone(), reporter.clone());
            for _ in 0..REMEMBERED {
                tokio::select! {
                    biased;
                    Some((object, note)) = told.next() => publish(&recorder, &object, note).await,
                    () = stop.cancelled() => return,
                }
            }
        }
    }
}

async fn publish(recorder: &Recorder, object: &ObjectReference, note: Note) {
    let event = Event {
        type_: match note.severity {
            Severity::Normal => EventType::Normal,
            Severity::Warning => EventType::Warning,
        },
        action: action(&note),
        reason: note.reason,
        note: Some(shortened(note.message)),
        secondary: None,
    };
    if let Err(error) = recorder.publish(&event, object).await {
        let name = object.name.as_deref().unwrap_or_default();
        tracing::debug!(name, reason = event.reason, %error, "an Event could not be written");
    }
}

/// Tells one Event from another: an Event that is counted keeps its first words, so others are not to be counted with it.
fn action(note: &Note) -> String {
    format!("{}-{}", note.reason, Sha256::of(note.message.as_bytes()).short())
}

/// At most what an Event can hold, cut between characters.
fn shortened(mut text: String) -> String {
    const MARK: &str = "…";
    if text.len() > NOTE_BYTES {
        let end = (0..=NOTE_BYTES - MARK.len()).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push_str(MARK);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_together_only_when_they_say_the_same() {
        let note = |reason: &str, message: &str| Note {
            severity: Severity::Normal,
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        let one = action(&note("Planning", "planning aaaaaaa"));
        assert_eq!(one, action(&note("Planning", "planning aaaaaaa")));
        assert_ne!(one, action(&note("Planning", "planning bbbbbbb")));
        assert_ne!(one, action(&note("Applying", "planning aaaaaaa")));
        assert!(one.len() <= 128, "what the API takes");
    }

    #[test]
    fn a_long_note_is_cut_between_characters() {
        for text in ["short".to_owned(), "x".repeat(5000), "ü".repeat(600), "€".repeat(1000)] {
            let cut = shortened(text.clone());
            assert!(cut.len() <= NOTE_BYTES, "{}", cut.len());
            assert_eq!(cut == text, text.len() <= NOTE_BYTES);
        }
    }
}
