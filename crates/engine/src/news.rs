//! What an object's readers are told as an Event: that the answer to "is it ready, and why" has changed. Because it follows from
//! the change of a status that is written once, the same news is never told twice, not even after a restart.

use api::condition::{self, Truth};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::layer::{BRANCH_INTACT, TAG_MOVED};
use crate::{Note, Severity};

/// The news between two lists of conditions. A message that only rewords the same reason is no news.
pub fn between(before: &[Condition], after: &[Condition]) -> Option<Note> {
    let ready = condition::find(after, "Ready")?;
    let same = condition::find(before, "Ready")
        .is_some_and(|old| old.reason == ready.reason && old.status == ready.status);
    if same || ready.message.is_empty() {
        return None;
    }
    let bad = condition::is_true(after, "Stalled") || condition::is_true(after, "IsInFailureGracePeriod");
    let severity = if bad { Severity::Warning } else { Severity::Normal };
    Some(Note { severity, reason: ready.reason.clone(), message: ready.message.clone() })
}

/// That a tag which a layer follows points to another image than before, or that its branch is not what it was; once for each time.
pub fn lost(before: &[Condition], after: &[Condition]) -> impl Iterator<Item = Note> {
    let kinds = [(TAG_MOVED, Truth::True), (BRANCH_INTACT, Truth::False)];
    kinds.into_iter().filter_map(move |(kind, truth)| warning(kind, truth, before, after))
}

fn warning(kind: &str, truth: Truth, before: &[Condition], after: &[Condition]) -> Option<Note> {
    let moved = condition::find(after, kind).filter(|moved| moved.status == truth.as_str())?;
    let is_known = condition::find(before, kind)
        .is_some_and(|known| known.status == moved.status && known.message == moved.message);
    let note =
        Note { severity: Severity::Warning, reason: moved.reason.clone(), message: moved.message.clone() };
    (!is_known).then_some(note)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn conditions(entries: &[(&str, Truth, &str, &str)]) -> Vec<Condition> {
        let mut all = Vec::new();
        for (kind, truth, reason, message) in entries {
            condition::set(&mut all, kind, *truth, reason, *message, None, Timestamp::UNIX_EPOCH);
        }
        all
    }

    #[test]
    fn a_new_reason_is_news_and_new_words_for_the_same_are_not() {
        let waiting = conditions(&[("Ready", Truth::False, "Queued", "queued")]);
        let reworded = conditions(&[("Ready", Truth::False, "Queued", "still queued")]);
        let done = conditions(&[("Ready", Truth::True, "Succeeded", "1 added")]);
        assert_eq!(between(&waiting, &waiting), None);
        assert_eq!(between(&waiting, &reworded), None);
        let note = between(&waiting, &done);
        assert_eq!(note.as_ref().map(|note| note.message.as_str()), Some("1 added"));
        assert_eq!(between(&[], &waiting).map(|note| note.severity), Some(Severity::Normal));
    }

    #[test]
    fn a_moved_tag_is_told_each_time_it_moves_and_once() {
        let stayed = conditions(&[("IsImageTagMoved", Truth::False, "TagStayed", "")]);
        let moved = conditions(&[("IsImageTagMoved", Truth::True, "TagMoved", "it was a")]);
        let again = conditions(&[("IsImageTagMoved", Truth::True, "TagMoved", "it was b")]);
        for (before, after, told) in [
            (&stayed, &moved, Some("it was a")),
            (&moved, &moved, None),
            (&moved, &again, Some("it was b")),
            (&again, &stayed, None),
        ] {
            let news: Vec<Note> = lost(before, after).collect();
            assert_eq!(news.first().map(|note| note.message.as_str()), told);
        }
    }

    #[test]
    fn what_failed_is_a_warning() {
        for kind in ["Stalled", "IsInFailureGracePeriod"] {
            let failed =
                conditions(&[("Ready", Truth::False, "ToolFailed", "no"), (kind, Truth::True, "X", "no")]);
            assert_eq!(between(&[], &failed).map(|note| note.severity), Some(Severity::Warning), "{kind}");
        }
    }
}
