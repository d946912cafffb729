//! Who is told what, and when. What happens to layers is heard as facts, each with a name that follows from what it is about; a fact is told
//! once, tried again after a pause that grows, and in the end given up. What is over stands in the status.

mod facts;
mod mail;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::condition::{self, Truth};
use api::notification::{Delivered, LayerSelector, Settled, Undelivered};
use api::{TerraformNotification, TerraformNotificationStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub use facts::{Fact, of_layer, of_run};
pub use words::{Words, check, words};

use crate::retry::Policy;
use crate::{Note, Severity, Wake, later, news};

/// How long after it happened something is still tried to be told.
pub const TRIED: Duration = Duration::from_secs(3600);
/// How long it is remembered that something is over. Longer than it is tried, and than the clocks of two leaders differ.
pub const REMEMBERED: Duration = Duration::from_secs(2 * 3600);
/// How soon a receiver that cannot be told at all, such as one whose Secret is missing, is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
const PAUSES: Policy = Policy { first: Duration::from_secs(2), max: Duration::from_secs(600) };

/// What came of telling something so far, as far as this process knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    pub stage: Stage,
    pub failures: u32,
    /// Why it was not taken last, without a secret; of what was taken, by whom not and why, or nothing.
    pub why: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    UnderWay,
    Taken { at: Timestamp },
    Failed { at: Timestamp, hope: Hope },
}

/// Whether the same may be taken another time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hope {
    Some,
    /// The receiver understood, and does not want it.
    None,
}

#[derive(Debug)]
pub struct Observed<'a> {
    pub now: Timestamp,
    pub notification: &'a TerraformNotification,
    /// Of the notification's namespace, in any order.
    pub facts: &'a [Fact],
    /// The labels of layers, as far as they have some.
    pub labels: &'a BTreeMap<String, BTreeMap<String, String>>,
    /// By the name of a fact.
    pub tried: &'a BTreeMap<String, Tried>,
    /// Whether the receiver can be told at all, or why not.
    pub receiver: Result<(), String>,
}

#[derive(Debug, PartialEq)]
pub struct Decision {
    pub status: TerraformNotificationStatus,
    /// What is told now, oldest first, once the status is written.
    pub send: Vec<Fact>,
    /// What is not over, by name: of all else nothing has to be known any more.
    pub open: BTreeSet<String>,
    /// What was given up by this decision.
    pub given_up: u32,
    pub notes: Vec<Note>,
    pub wake: Wake,
}

/// O(facts · remembered).
pub fn decide(seen: &Observed<'_>) -> Decision {
    let notification = seen.notification;
    let before = notification.status.clone().unwrap_or_default();
    let mut next = TerraformNotificationStatus {
        observed_generation: notification.metadata.generation,
        ..before.clone()
    };
    let obstacle = seen.receiver.clone().and_then(|()| check(notification.spec.template.as_ref())).err();
    let (mut send, mut wake, mut is_open, mut over) =
        (Vec::new(), Wake::OnChange, BTreeSet::new(), Vec::new());
    let (mut taken, mut failing, mut given_up, mut partly) = (None, None, Vec::new(), Vec::new());
    for fact in open(seen) {
        let tried = seen.tried.get(&fact.id);
        if let Some(tried) = tried.filter(|tried| tried.failures > 0) {
            failing = Some((fact, tried.why.as_str()));
        }
        match tried.map(|tried| (tried, tried.stage)) {
            Some((tried, Stage::Taken { at })) => {
                failing = failing.filter(|(failing, _)| failing.id != fact.id);
                let sent = delivered(fact, at, &tried.why);
                if sent.except.is_some() {
                    partly.push(sent.clone());
                }
                taken = Some(sent);
                over.push(fact);
                continue;
            }
            Some((tried, Stage::Failed { at, hope })) => {
                let again = later(at, PAUSES.pause(tried.failures));
                if hope == Hope::None || again > later(fact.at, TRIED) {
                    failing = failing.filter(|(failing, _)| failing.id != fact.id);
                    given_up.push(undelivered(fact, &tried.why, true));
                    over.push(fact);
                    continue;
                }
                if again > seen.now {
                    wake = wake.sooner(Wake::At(again));
                } else if obstacle.is_none() {
                    send.push(fact.clone());
                }
            }
            Some((_, Stage::UnderWay)) => {}
            None if obstacle.is_none() => send.push(fact.clone()),
            None => {}
        }
        is_open.insert(fact.id.clone());
    }
    if let Some(taken) = taken {
        (next.last_sent, next.last_failure) = (Some(taken), None);
    }
    let last_failure = given_up.last().cloned();
    if let Some(last) = last_failure.or_else(|| failing.map(|(fact, why)| undelivered(fact, why, false))) {
        next.last_failure = Some(last);
    }
    settle(&mut next, seen.facts, &over, seen.now);
    tell(&mut next, notification, obstacle.as_deref(), failing, seen.now);
    if obstacle.is_some() {
        wake = wake.sooner(Wake::At(later(seen.now, LOOK_AGAIN)));
    }
    let notes = notes(&before, &next, &given_up, &partly);
    let given_up = u32::try_from(given_up.len()).unwrap_or(u32::MAX);
    Decision { status: next, send, open: is_open, given_up, notes, wake }
}

/// The facts that the notification is about and that are not over, oldest first.
fn open<'a>(seen: &Observed<'a>) -> Vec<&'a Fact> {
    let (spec, status) = (&seen.notification.spec, seen.notification.status.as_ref());
    let made = seen.notification.metadata.creation_timestamp.as_ref().map_or(Timestamp::MAX, |time| time.0);
    let forgotten = status.and_then(|status| status.since.as_ref()).map_or(Timestamp::MIN, |time| time.0);
    let settled: BTreeSet<&str> =
        status.iter().flat_map(|status| &status.settled).map(|one| one.id.as_str()).collect();
    let mut open: Vec<&Fact> = seen
        .facts
        .iter()
        .filter(|fact| spec.events.is_empty() || spec.events.contains(&fact.event))
        .filter(|fact| fact.at >= made && fact.at > forgotten && later(fact.at, REMEMBERED) > seen.now)
        .filter(|fact| is_selected(spec.layers.as_ref(), &fact.layer, seen.labels.get(&fact.layer)))
        .filter(|fact| !settled.contains(fact.id.as_str()))
        .collect();
    open.sort_by(|a, b| (a.at, &a.id).cmp(&(b.at, &b.id)));
    open
}

fn is_selected(
    selector: Option<&LayerSelector>,
    layer: &str,
    labels: Option<&BTreeMap<String, String>>,
) -> bool {
    let Some(selector) = selector else { return true };
    let has = |(key, value)| labels.is_some_and(|labels| labels.get(key) == Some(value));
    (selector.names.is_empty() || selector.names.iter().any(|name| name.as_str() == layer))
        && selector.match_labels.iter().all(has)
}

/// Adds what is over now, and forgets what is too old to come again. What goes on stays remembered as long as it is seen.
fn settle(next: &mut TerraformNotificationStatus, facts: &[Fact], over: &[&Fact], now: Timestamp) {
    let seen: BTreeMap<&str, Timestamp> = facts.iter().map(|fact| (fact.id.as_str(), fact.at)).collect();
    for one in &mut next.settled {
        if let Some(at) = seen.get(one.id.as_str()).filter(|at| **at > one.at.0) {
            one.at = Time(*at);
        }
    }
    if over.is_empty() {
        return;
    }
    next.settled.retain(|one| later(one.at.0, REMEMBERED) > now);
    next.settled.extend(over.iter().map(|fact| Settled { id: fact.id.clone(), at: Time(fact.at) }));
    next.settled.sort_by(|a, b| (a.at.0, &a.id).cmp(&(b.at.0, &b.id)));
    let surplus = next.settled.len().saturating_sub(TerraformNotificationStatus::SETTLED);
    if let Some(last) = next.settled.drain(..surplus).next_back() {
        // Otherwise what is forgotten would be told again.
        next.since = Some(last.at);
    }
}

fn tell(
    next: &mut TerraformNotificationStatus,
    notification: &TerraformNotification,
    obstacle: Option<&str>,
    failing: Option<(&Fact, &str)>,
    now: Timestamp,
) {
    let lost = next.last_failure.as_ref().filter(|last| last.given_up);
    let partly = next.last_sent.as_ref().and_then(partly_words);
    let (truth, progress, reason, message) = if let Some(why) = obstacle {
        (Truth::False, "Stalled", "CannotBeTold", why.to_owned())
    } else if let Some((fact, why)) = failing {
        let message =
            format!("{} was not taken: {why}; it is tried again", named(fact.event.as_str(), &fact.layer));
        (Truth::False, "Reconciling", "NotTaken", message)
    } else if let Some(last) = lost {
        (Truth::False, "Stalled", "GivenUp", given_up_words(last))
    } else if let Some(message) = partly {
        (Truth::True, "", "PartlyTaken", message)
    } else {
        (Truth::True, "", "Telling", format!("what happens is told to {}", kind(notification)))
    };
    let generation = notification.metadata.generation;
    condition::set(&mut next.conditions, "Ready", truth, reason, message.as_str(), generation, now);
    for kind in ["Reconciling", "Stalled"] {
        if kind == progress {
            condition::set(
                &mut next.conditions,
                kind,
                Truth::True,
                reason,
                message.as_str(),
                generation,
                now,
            );
        } else {
            condition::clear(&mut next.conditions, kind);
        }
    }
}

/// Of each thing that was given up or that not all took, or else of what is new about the whole.
fn notes(
    before: &TerraformNotificationStatus,
    next: &TerraformNotificationStatus,
    given_up: &[Undelivered],
    partly: &[Delivered],
) -> Vec<Note> {
    if given_up.is_empty() && partly.is_empty() {
        return news::between(&before.conditions, &next.conditions).into_iter().collect();
    }
    let note =
        |reason: &str, message| Note { severity: Severity::Warning, reason: reason.to_owned(), message };
    let given_up = given_up.iter().map(|lost| note("GivenUp", given_up_words(lost)));
    let partly = partly.iter().filter_map(|sent| Some(note("PartlyTaken", partly_words(sent)?)));
    given_up.chain(partly).collect()
}

/// Of what was taken, but not by all.
fn partly_words(sent: &Delivered) -> Option<String> {
    let except = sent.except.as_ref()?;
    Some(format!("{} was taken, but not by all: {except}", named(sent.event.as_str(), &sent.layer)))
}

fn given_up_words(lost: &Undelivered) -> String {
    format!("{} was given up: {}", named(lost.event.as_str(), &lost.layer), lost.message)
}

fn named(event: &str, layer: &str) -> String {
    format!("{event} of layer {layer}")
}

fn delivered(fact: &Fact, at: Timestamp, except: &str) -> Delivered {
    let except = Some(except.to_owned()).filter(|except| !except.is_empty());
    Delivered { id: fact.id.clone(), event: fact.event, layer: fact.layer.clone(), at: Time(at), except }
}

fn undelivered(fact: &Fact, why: &str, given_up: bool) -> Undelivered {
    let (id, layer, message) = (fact.id.clone(), fact.layer.clone(), why.to_owned());
    Undelivered { id, event: fact.event, layer, message, given_up }
}

/// In words, without an address.
fn kind(notification: &TerraformNotification) -> &'static str {
    let to = &notification.spec.to;
    if to.slack.is_some() {
        "a channel of Slack"
    } else if to.teams.is_some() {
        "a channel of Teams"
    } else if to.email.is_some() {
        "people by e-mail"
    } else {
        "a webhook"
    }
}
