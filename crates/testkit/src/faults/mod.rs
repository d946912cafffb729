//! Faults at the seams: a layer between a client and the service it talks to that can delay, drop, refuse, lose the answer,
//! repeat, and crash, each at one named request, and that keeps the history of what passed.
//!
//! A fault is addressed by who sends what for the how-manieth time ([`Site`]), not by a global index, which would shift with
//! every unrelated request. All layers of one [`Faults`] share the history, so an API and a datastore are seen in one order.
//! What a fault means for the product is judged elsewhere, by whoever reads the history.

mod carrier;
mod layer;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

pub use carrier::InProcess;
pub use layer::{FaultLayer, Faulty};

/// Which service is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Seam {
    Api,
    Datastore,
}

/// One request, by what it is rather than by when it comes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    pub actor: String,
    pub seam: Seam,
    /// The HTTP method.
    pub verb: String,
    /// The kind of thing, with the subresource: `terraformruns/status`, `runs/spec`.
    pub target: String,
    /// From 0, counted over all incarnations of the actor.
    pub occurrence: usize,
}

impl std::fmt::Display for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} #{}", self.actor, self.verb, self.target, self.occurrence)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// It arrives later.
    Delay(Duration),
    /// It never arrives; the caller sees a broken connection.
    Drop,
    /// It is not executed; the caller gets this answer.
    Refuse(Refusal),
    /// It is executed; the caller sees a broken connection.
    LoseReply,
    /// It arrives twice; the caller gets the second answer.
    Repeat,
    /// The caller dies, and the request never arrives.
    CrashBefore,
    /// It is executed, and the caller dies before it learns so.
    CrashAfter,
    /// The caller is cut off: neither this nor anything later arrives until [`Actor::mend`].
    Cut,
    /// The caller stands still: this and whatever it sends later arrives only after [`Actor::mend`].
    Hold,
}

/// What becomes of an actor's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Open,
    Cut,
    Held,
}

/// The classes of refusals that a client may meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    Forbidden,
    Conflict,
    Gone,
    TooManyRequests,
    Internal,
    Unavailable,
    Timeout,
}

impl Refusal {
    pub const ALL: [Refusal; 7] = [
        Refusal::Forbidden,
        Refusal::Conflict,
        Refusal::Gone,
        Refusal::TooManyRequests,
        Refusal::Internal,
        Refusal::Unavailable,
        Refusal::Timeout,
    ];

    /// The status code, and the reason that the Kubernetes API gives with it.
    pub const fn answer(self) -> (u16, &'static str) {
        match self {
            Refusal::Forbidden => (403, "Forbidden"),
            Refusal::Conflict => (409, "Conflict"),
            Refusal::Gone => (410, "Expired"),
            Refusal::TooManyRequests => (429, "TooManyRequests"),
            Refusal::Internal => (500, "InternalError"),
            Refusal::Unavailable => (503, "ServiceUnavailable"),
            Refusal::Timeout => (504, "Timeout"),
        }
    }
}

/// A request on its way, as the service will see it.
#[derive(Debug, Clone)]
pub struct Passing {
    pub verb: String,
    /// With its query.
    pub path: String,
    pub headers: http::HeaderMap,
    pub body: Vec<u8>,
}

impl Passing {
    /// The body, where it is JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// What passed, and what became of it.
#[derive(Debug, Clone)]
pub struct Event {
    pub site: Site,
    pub path: String,
    pub headers: BTreeMap<String, String>,
    pub sent: Value,
    /// What the service answered; none if the request never arrived.
    pub status: Option<u16>,
    /// The answer's body, for writes.
    pub answer: Value,
    pub fault: Option<Fault>,
    /// It was in the hands of a process that stood still, and arrived when that went on.
    pub held: bool,
}

impl Event {
    pub fn is_write(&self) -> bool {
        is_write(&self.site.verb)
    }

    /// Whether the service did what was asked.
    pub fn is_done(&self) -> bool {
        self.status.is_some_and(|status| (200..300).contains(&status))
    }
}

pub(crate) fn is_write(verb: &str) -> bool {
    matches!(verb, "POST" | "PUT" | "PATCH" | "DELETE")
}

/// Changes requests and answers on the way: how a test plants a bug in a caller without writing one into it.
pub trait Tamper: Send + Sync + std::fmt::Debug {
    /// Sent by the same caller right before this one.
    fn before(&self, _: &Passing) -> Vec<Passing> {
        Vec::new()
    }
    /// Changes the request.
    fn request(&self, _: &mut Passing) {}
    /// Changes what the caller sees, after any fault.
    fn answer(&self, _: &Passing, _: &mut http::StatusCode) {}
    /// Sees what a write came to.
    fn seen(&self, _: &Passing, _: &Value) {}
}

/// The faults and the history of one test.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    book: Mutex<Book>,
    activity: AtomicU64,
    in_flight: watch::Sender<usize>,
}

impl Default for Shared {
    fn default() -> Self {
        Self { book: Mutex::default(), activity: AtomicU64::new(0), in_flight: watch::Sender::new(0) }
    }
}

#[derive(Debug, Default)]
struct Book {
    plan: HashMap<Site, Fault>,
    fired: Vec<(Site, Fault)>,
    met: HashMap<Site, usize>,
    history: Vec<Event>,
    tampers: BTreeMap<String, Arc<dyn Tamper>>,
}

impl Faults {
    pub fn new() -> Self {
        Self::default()
    }

    /// At this request, once, this happens.
    pub fn at(&self, site: Site, fault: Fault) {
        self.book().plan.insert(site, fault);
    }

    /// All requests of an actor pass through `tamper`.
    pub fn tamper(&self, actor: &str, tamper: Arc<dyn Tamper>) {
        self.book().tampers.insert(actor.to_owned(), tamper);
    }

    /// A new incarnation of an actor.
    pub fn actor(&self, name: &str) -> Actor {
        Actor {
            name: name.into(),
            faults: self.clone(),
            dead: Arc::new(watch::Sender::new(false)),
            link: Arc::new(watch::Sender::new(Link::Open)),
        }
    }

    /// The faults that happened. One that was planned and is not here tested nothing.
    pub fn fired(&self) -> Vec<(Site, Fault)> {
        self.book().fired.clone()
    }

    /// Everything that passed, in the order of the answers.
    pub fn history(&self) -> Vec<Event> {
        self.book().history.clone()
    }

    /// Looks at everything that passed without copying it, while nothing else may pass.
    pub fn read<T>(&self, look: impl FnOnce(&[Event]) -> T) -> T {
        look(&self.book().history)
    }

    /// How many requests passed so far.
    pub fn recorded(&self) -> usize {
        self.book().history.len()
    }

    /// Moves with every request that starts or ends.
    pub fn activity(&self) -> u64 {
        self.0.activity.load(Ordering::SeqCst)
    }

    /// Waits until no request is under way.
    pub async fn idle(&self) {
        // The sender lives as long as this value, so waiting cannot fail.
        let _ = self.0.in_flight.subscribe().wait_for(|count| *count == 0).await;
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request and says what happens at it.
    fn meet(&self, mut site: Site) -> (Site, Option<Fault>) {
        let mut book = self.book();
        let met = book.met.entry(Site { occurrence: 0, ..site.clone() }).or_default();
        site.occurrence = *met;
        *met += 1;
        let fault = book.plan.remove(&site);
        book.fired.extend(fault.map(|fault| (site.clone(), fault)));
        (site, fault)
    }

    fn record(&self, event: Event) {
        self.book().history.push(event);
    }

    fn tamper_of(&self, actor: &str) -> Option<Arc<dyn Tamper>> {
        self.book().tampers.get(actor).cloned()
    }

    fn under_way(&self) -> UnderWay {
        self.0.activity.fetch_add(1, Ordering::SeqCst);
        self.0.in_flight.send_modify(|count| *count += 1);
        UnderWay(self.clone())
    }
}

/// A request that has not ended yet.
struct UnderWay(Faults);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.0.activity.fetch_add(1, Ordering::SeqCst);
        self.0.0.in_flight.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// A request that waits in a process that stands still: nobody need wait for it.
struct Aside(Faults);

impl Aside {
    fn new(faults: &Faults) -> Self {
        faults.0.in_flight.send_modify(|count| *count = count.saturating_sub(1));
        Self(faults.clone())
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.0.0.in_flight.send_modify(|count| *count += 1);
    }
}

/// One incarnation of a process. Once it is dead its requests go nowhere and never return, as those of a killed process.
#[derive(Clone, Debug)]
pub struct Actor {
    name: Arc<str>,
    faults: Faults,
    dead: Arc<watch::Sender<bool>>,
    link: Arc<watch::Sender<Link>>,
}

impl Actor {
    /// What stands between this actor and a service.
    pub fn layer(&self, seam: Seam) -> FaultLayer {
        FaultLayer::new(self.clone(), seam)
    }

    /// From now on nothing that it sends arrives.
    pub fn die(&self) {
        self.dead.send_replace(true);
    }

    pub fn is_dead(&self) -> bool {
        *self.dead.borrow()
    }

    /// What it sends arrives again, and what was held does now.
    pub fn mend(&self) {
        self.link.send_replace(Link::Open);
    }

    /// Nothing that it sends arrives, and it does not know why.
    pub fn is_cut(&self) -> bool {
        *self.link.borrow() == Link::Cut
    }

    /// It stands still, and does not know that.
    pub fn is_held(&self) -> bool {
        *self.link.borrow() == Link::Held
    }

    /// Waits while it is held. Nothing is under way meanwhile, as far as others wait for that.
    async fn released(&self) {
        let _ = self.link.subscribe().wait_for(|link| *link != Link::Held).await;
    }

    /// Waits for its death.
    pub async fn died(&self) {
        let _ = self.dead.subscribe().wait_for(|dead| *dead).await;
    }
}

/// `terraformruns/status` of a path of the Kubernetes API, `runs/spec` of one of the datastore.
fn target(seam: Seam, path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let pick = |at: usize| parts.get(at).copied().unwrap_or_default();
    let joined = |kind: &str, below: &str| {
        if below.is_empty() { kind.to_owned() } else { format!("{kind}/{below}") }
    };
    match seam {
        Seam::Datastore => match pick(1) {
            "runs" => joined("runs", pick(4)),
            kind => joined(kind, pick(3)),
        },
        Seam::Api => {
            let group = if pick(0) == "api" { 2 } else { 3 };
            // The namespace object itself has no resource below it.
            let start =
                if pick(group) == "namespaces" && parts.len() > group + 2 { group + 2 } else { group };
            joined(pick(start), pick(start + 2))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_names_the_kind_and_the_subresource_only() {
        for (seam, path, expected) in [
            (
                Seam::Api,
                "/apis/terrane.dev/v1alpha1/namespaces/a/terraformruns/b/status?x=y",
                "terraformruns/status",
            ),
            (Seam::Api, "/api/v1/namespaces/a/pods", "pods"),
            (Seam::Api, "/api/v1/namespaces/a", "namespaces"),
            (Seam::Api, "/apis/terrane.dev/v1alpha1/terraformlayers", "terraformlayers"),
            (Seam::Datastore, "/v1/runs/uid/0/spec", "runs/spec"),
            (Seam::Datastore, "/v1/bundles/abc", "bundles"),
            (Seam::Datastore, "/v1/state/abc/lock", "state/lock"),
        ] {
            assert_eq!(target(seam, path), expected, "{path}");
        }
    }
}
