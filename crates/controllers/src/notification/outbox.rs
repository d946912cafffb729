//! What is on its way to receivers, and what came of it. A few tasks send; of one notification only one thing is on its way at a time,
//! and they take turns: a receiver that is dead or slow keeps one task busy for a while, and no other receiver waiting.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::TerraformNotification;
use api::text::MailAddress;
use engine::notification::{Fact, Hope, Stage, Tried, Words};
use jiff::Timestamp;
use kube::ResourceExt;
use sources::Addresses;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::post::{self, NotTaken, Taken};
use super::receiver::{Receiver, Way};
use crate::Context;
use crate::source::Waiting;

/// Deliveries at the same time. They wait for the network only.
const TASKS: usize = 32;

/// One thing that is told to one receiver.
pub(crate) struct Letter {
    /// The uid of the notification.
    uid: String,
    waiting: Waiting,
    pub(super) receiver: Arc<Receiver>,
    /// The name of the fact.
    pub(super) id: String,
    pub(super) event: &'static str,
    pub(super) body: String,
    /// Who of several has it already.
    pub(super) reached: BTreeSet<MailAddress>,
}

impl Letter {
    pub(super) fn new(
        notification: &TerraformNotification,
        receiver: &Arc<Receiver>,
        fact: &Fact,
        words: &Words,
    ) -> Self {
        let body = match &receiver.way {
            Way::Webhook { .. } => words.for_webhook(fact).to_string(),
            Way::Slack { .. } => words.for_slack().to_string(),
            Way::Teams { .. } => words.for_teams().to_string(),
            Way::Mail(mailbox) => words.for_mail(fact, &mailbox.from, &mailbox.to),
        };
        Self {
            uid: notification.uid().unwrap_or_default(),
            waiting: Waiting::Notification {
                namespace: notification.namespace().unwrap_or_default(),
                name: notification.name_any(),
            },
            receiver: Arc::clone(receiver),
            id: fact.id.clone(),
            event: fact.event.as_str(),
            body,
            reached: BTreeSet::new(),
        }
    }
}

#[derive(Debug, Default)]
pub struct Outbox {
    addresses: Addresses,
    lines: Mutex<Lines>,
    more: Notify,
}

impl Outbox {
    /// Receivers may be at these addresses.
    pub fn to(addresses: Addresses) -> Self {
        Self { addresses, ..Self::default() }
    }

    /// Whether nothing is on its way or waits for its turn.
    pub fn is_idle(&self) -> bool {
        let lines = self.lines();
        lines.busy.is_empty() && lines.ready.is_empty()
    }

    pub(super) fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// What came of all that is told to a notification's receiver, by the names of facts.
    pub(super) fn tried(&self, uid: &str) -> BTreeMap<String, Tried> {
        let lines = self.lines();
        let attempts = lines.tried.get(uid).into_iter().flatten();
        attempts.map(|(id, attempt)| (id.clone(), attempt.tried.clone())).collect()
    }

    /// Forgets what came of everything else.
    pub(super) fn keep(&self, uid: &str, open: &BTreeSet<String>) {
        let mut lines = self.lines();
        if let Some(tried) = lines.tried.get_mut(uid) {
            tried.retain(|id, _| open.contains(id));
            if tried.is_empty() {
                lines.tried.remove(uid);
            }
        }
    }

    /// The notification is gone.
    pub(super) fn forget(&self, uid: &str) {
        let mut lines = self.lines();
        lines.tried.remove(uid);
        lines.waiting.remove(uid);
    }

    pub(super) fn post(&self, letter: Letter) {
        self.lines().post(letter);
        self.more.notify_one();
    }

    /// Sends until told to stop. What is on its way then is sent again by whoever comes next.
    pub(crate) async fn work(&self, context: &Context, stop: CancellationToken) {
        let mut tasks = JoinSet::new();
        let mut letters = HashMap::new();
        loop {
            while tasks.len() < TASKS
                && let Some(letter) = self.next()
            {
                let (letter, rule, now) = (Arc::new(letter), self.addresses, context.now);
                let sent = Arc::clone(&letter);
                let task = tasks.spawn(async move { post::deliver(&sent, rule, now()).await });
                letters.insert(task.id(), letter);
            }
            tokio::select! {
                () = stop.cancelled() => break,
                Some(ended) = tasks.join_next_with_id(), if !tasks.is_empty() => {
                    let (id, outcome) = ended.unwrap_or_else(|failed| {
                        (failed.id(), Err(NotTaken::again("the delivery broke off; this is a mistake of Terrane's".to_owned())))
                    });
                    if let Some(letter) = letters.remove(&id) {
                        context.metrics.notification_sent(letter.receiver.channel(), outcome.is_ok());
                        self.lines().ended(&letter, outcome, (context.now)());
                        context.desk.wake(letter.waiting.clone());
                    }
                }
                () = self.more.notified() => {}
            }
        }
        tasks.shutdown().await;
    }

    fn next(&self) -> Option<Letter> {
        self.lines().next()
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What came of telling one thing, and who of several has it.
#[derive(Debug)]
struct Attempts {
    tried: Tried,
    reached: BTreeSet<MailAddress>,
}

/// Everything by the uid of its notification. Every step is O(log of what is there).
#[derive(Default)]
struct Lines {
    tried: BTreeMap<String, BTreeMap<String, Attempts>>,
    waiting: HashMap<String, VecDeque<Letter>>,
    /// Those that have something waiting and nothing on its way.
    ready: VecDeque<String>,
    busy: HashSet<String>,
}

impl Lines {
    fn post(&mut self, mut letter: Letter) {
        let tried = self.tried.entry(letter.uid.clone()).or_default();
        let entry = tried.entry(letter.id.clone()).or_insert_with(|| Attempts {
            tried: Tried { stage: Stage::UnderWay, failures: 0, why: String::new() },
            reached: BTreeSet::new(),
        });
        entry.tried.stage = Stage::UnderWay;
        letter.reached.clone_from(&entry.reached);
        let (uid, line) = (letter.uid.clone(), self.waiting.entry(letter.uid.clone()).or_default());
        line.push_back(letter);
        if line.len() == 1 && !self.busy.contains(&uid) {
            self.ready.push_back(uid);
        }
    }

    fn next(&mut self) -> Option<Letter> {
        while let Some(uid) = self.ready.pop_front() {
            if let Some(letter) = self.waiting.get_mut(&uid).and_then(VecDeque::pop_front) {
                self.busy.insert(uid);
                return Some(letter);
            }
        }
        None
    }

    fn ended(&mut self, letter: &Letter, outcome: Result<Taken, NotTaken>, at: Timestamp) {
        self.busy.remove(&letter.uid);
        match self.waiting.get(&letter.uid).map(VecDeque::is_empty) {
            Some(false) => self.ready.push_back(letter.uid.clone()),
            Some(true) => drop(self.waiting.remove(&letter.uid)),
            None => {}
        }
        // Nobody asks any more for what was forgotten meanwhile.
        let tried = self.tried.get_mut(&letter.uid).and_then(|tried| tried.get_mut(&letter.id));
        let Some(Attempts { tried, reached }) = tried else { return };
        match outcome {
            Ok(Taken { except }) => {
                *tried = Tried { stage: Stage::Taken { at }, failures: tried.failures, why: except }
            }
            Err(NotTaken { why, hope, reached: now }) => {
                let failures = tried.failures.saturating_add(1);
                *tried = Tried { stage: Stage::Failed { at, hope }, failures, why };
                reached.extend(now);
            }
        }
    }
}

impl NotTaken {
    pub(super) fn again(why: String) -> Self {
        Self { why, hope: Hope::Some, reached: BTreeSet::new() }
    }
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").field("ready", &self.ready).field("busy", &self.busy).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn letter(uid: &str, id: &str) -> Letter {
        Letter {
            uid: uid.to_owned(),
            waiting: Waiting::Notification { namespace: "team".to_owned(), name: uid.to_owned() },
            receiver: Arc::new(Receiver::at("https://hooks.example/x").unwrap()),
            id: id.to_owned(),
            event: "Applied",
            body: String::new(),
            reached: BTreeSet::new(),
        }
    }

    #[test]
    fn of_one_receiver_one_thing_is_on_its_way_and_the_others_have_their_turn() {
        let mut lines = Lines::default();
        for id in ["1", "2", "3"] {
            lines.post(letter("dead", id));
        }
        lines.post(letter("alive", "1"));
        let take = |lines: &mut Lines| lines.next().map(|letter| (letter.uid, letter.id));
        let named = |uid: &str, id: &str| Some((uid.to_owned(), id.to_owned()));
        assert_eq!(take(&mut lines), named("dead", "1"));
        assert_eq!(take(&mut lines), named("alive", "1"));
        assert_eq!(take(&mut lines), None);
        lines.ended(&letter("alive", "1"), Ok(Taken::default()), Timestamp::UNIX_EPOCH);
        assert_eq!(lines.tried["alive"]["1"].tried.stage, Stage::Taken { at: Timestamp::UNIX_EPOCH });
        lines.post(letter("alive", "2"));
        lines.ended(&letter("dead", "1"), Err(NotTaken::again("no".to_owned())), Timestamp::UNIX_EPOCH);
        assert_eq!(take(&mut lines), named("alive", "2"));
        assert_eq!(take(&mut lines), named("dead", "2"));
        assert_eq!(take(&mut lines), None);

        lines.post(letter("dead", "1"));
        assert_eq!(
            lines.tried["dead"]["1"].tried,
            Tried { stage: Stage::UnderWay, failures: 1, why: "no".to_owned() }
        );
        let outbox = Outbox { lines: Mutex::new(lines), ..Outbox::default() };
        assert!(!outbox.is_idle() && Outbox::default().is_idle());
        outbox.keep("dead", &BTreeSet::from(["2".to_owned()]));
        assert_eq!(outbox.tried("dead").into_keys().collect::<Vec<_>>(), ["2"]);
        outbox.forget("dead");
        let mut lines = outbox.lines.into_inner().unwrap();
        lines.ended(&letter("dead", "2"), Ok(Taken::default()), Timestamp::UNIX_EPOCH);
        assert_eq!(take(&mut lines), None, "nothing is sent for a notification that is gone");
        assert!(!lines.tried.contains_key("dead"));
    }

    #[test]
    fn who_has_a_mail_already_is_not_sent_it_again() {
        let (ann, bob) =
            (MailAddress::new("ann@example.org").unwrap(), MailAddress::new("bob@example.org").unwrap());
        let mut lines = Lines::default();
        let mut sent = Vec::new();
        for reached in [&ann, &bob, &bob] {
            lines.post(letter("team", "1"));
            let letter = lines.next().unwrap();
            sent.push(letter.reached.clone());
            let outcome =
                NotTaken { reached: BTreeSet::from([reached.clone()]), ..NotTaken::again("no".to_owned()) };
            lines.ended(&letter, Err(outcome), Timestamp::UNIX_EPOCH);
        }
        let both = BTreeSet::from([ann.clone(), bob]);
        assert_eq!(sent, [BTreeSet::new(), BTreeSet::from([ann]), both]);
        lines.post(letter("team", "2"));
        assert_eq!(lines.next().unwrap().reached, BTreeSet::new(), "of another thing nobody has anything");
    }
}
