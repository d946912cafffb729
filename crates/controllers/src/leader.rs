//! One of several controllers acts. It holds a Lease and renews it; once it cannot be sure to hold it any more, its client refuses
//! every write before the request leaves the process, which is before another may begin.
//!
//! What still slips through, a request already under way when the term ended, meets the second line: a status is written against
//! the version that was read, a lock is taken by compare-and-set, and a name follows from its intent.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::{SYSTEM_NAMESPACE, label};
use engine::leader::{self, Held, Sight, Standing, Step, Terms};
use engine::shard::{self, Shard};
use futures::future::BoxFuture;
use http::header::USER_AGENT;
use http::{HeaderValue, Method};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, PostParams};
use kube::core::ObjectMeta;
use kube::{Api, Client, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::error::doing;
use crate::{Context, Error};

/// Where an election takes its time from: the machine, or a test that holds it.
pub trait Clock: Send + Sync + std::fmt::Debug {
    fn moment(&self) -> Moment;
    fn pause(&self, time: Duration) -> BoxFuture<'static, ()>;
}

/// One moment on both clocks: the steady one, which counts from any fixed moment, stands still while a machine sleeps.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub steady: Duration,
    pub wall: Timestamp,
}

/// Real time, counted from when this was made.
#[derive(Debug)]
struct Machine(Instant);

impl Clock for Machine {
    fn moment(&self) -> Moment {
        Moment { steady: self.0.elapsed(), wall: Timestamp::now() }
    }

    fn pause(&self, time: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(time))
    }
}

/// Whether this process may write now, and in which term. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub struct Leadership {
    term: Arc<Mutex<Option<Term>>>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug, Clone, Copy)]
struct Term {
    number: u32,
    /// Taken before the renewal was sent.
    since: Moment,
    trust: Duration,
}

impl Term {
    /// Both clocks must say so: the steady one misses the time that the machine slept. A wall clock that jumps, and one that was set back
    /// cannot tell what it hides, costs the time until the next renewal.
    fn lasts_at(&self, now: Moment) -> bool {
        let awake = now.steady.saturating_sub(self.since.steady);
        let passed = Duration::try_from(now.wall.duration_since(self.since.wall));
        awake < self.trust && passed.is_ok_and(|passed| passed < self.trust)
    }
}

/// A write by a process that no longer leads.
#[derive(Debug, thiserror::Error)]
#[error("this controller no longer leads; another one acts, and nothing was written")]
pub struct NotLeader;

impl Leadership {
    /// The number of the term, while it surely lasts.
    pub fn term(&self) -> Option<u32> {
        let term = (*self.locked())?;
        term.lasts_at(self.clock.moment()).then_some(term.number)
    }

    /// The same client, whose writes fail unless this process leads. Reads always pass.
    pub fn guard(&self, client: Client) -> Client {
        let leadership = self.clone();
        let namespace = client.default_namespace().to_owned();
        let service = tower::service_fn(move |mut request: http::Request<kube::client::Body>| {
            let (client, leadership) = (client.clone(), leadership.clone());
            request.headers_mut().insert(USER_AGENT, FIELD_MANAGER);
            async move {
                if !is_read(request.method()) && leadership.term().is_none() {
                    return Err(Box::<dyn std::error::Error + Send + Sync>::from(NotLeader));
                }
                client.send(request).await.map_err(Into::into)
            }
        });
        Client::new(service, namespace)
    }

    fn new(clock: Arc<dyn Clock>) -> Self {
        Self { term: Arc::default(), clock }
    }

    fn begin(&self, number: u32, since: Moment, trust: Duration) {
        *self.locked() = Some(Term { number, since, trust });
    }

    fn end(&self) {
        *self.locked() = None;
    }

    fn locked(&self) -> MutexGuard<'_, Option<Term>> {
        self.term.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who the controllers are in `managedFields`: an API server takes the words before the slash.
const FIELD_MANAGER: HeaderValue =
    HeaderValue::from_static(concat!("terrane-controller/", env!("CARGO_PKG_VERSION")));

fn is_read(method: &Method) -> bool {
    *method == Method::GET || *method == Method::HEAD || *method == Method::OPTIONS
}

/// What is decided by an election.
#[derive(Debug, Clone, Copy)]
enum About {
    /// Who acts for a part of the fleet.
    Shard(Shard),
    /// Whose turn it is to do something short that all processes do one after the other.
    Turn,
}

/// One candidate.
pub struct Election {
    leases: Api<Lease>,
    /// The name of the Lease.
    lease: String,
    about: About,
    /// Of one process at a time.
    identity: String,
    terms: Terms,
    leadership: Leadership,
    is_asked_for: bool,
    /// Leases as they were seen last, and since when on the steady clock they have not changed.
    seen: HashMap<String, (Option<String>, Duration)>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Election {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Election").field("identity", &self.identity).field("terms", &self.terms).finish()
    }
}

impl About {
    /// What a Lease says of its new holder beside its spec; a wish that somebody had of the last one is no longer one.
    fn mark(self, metadata: &mut ObjectMeta) {
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.remove(shard::ASKED_BY);
        annotations.remove(shard::SHARDS);
        match self {
            Self::Shard(own) if own != Shard::WHOLE => {
                annotations.insert(shard::SHARDS.to_owned(), own.of().to_string());
            }
            Self::Shard(_) | Self::Turn => {}
        }
    }
}

/// The label of the Leases of elections.
const COMPONENT: &str = "controller";
/// No request is given less time than this.
const QUICK: Duration = Duration::from_secs(1);

impl Election {
    /// `client` is a plain one: a candidate writes its Lease before it leads.
    pub fn new(client: Client, identity: impl Into<String>, terms: Terms) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(Machine(Instant::now()));
        Self {
            leases: Api::namespaced(client, SYSTEM_NAMESPACE),
            lease: Shard::WHOLE.lease(),
            about: About::Shard(Shard::WHOLE),
            identity: identity.into(),
            terms,
            leadership: Leadership::new(Arc::clone(&clock)),
            is_asked_for: false,
            seen: HashMap::new(),
            clock,
        }
    }

    /// The same before it stands, for one of several parts of the fleet.
    pub fn for_shard(self, shard: Shard) -> Self {
        Self { lease: shard.lease(), about: About::Shard(shard), ..self }
    }

    /// The same before it stands, for whose turn it is by the Lease of this name.
    pub(crate) fn for_turn(self, lease: &str) -> Self {
        Self { lease: lease.to_owned(), about: About::Turn, ..self }
    }

    /// The same before it stands, with another clock. How long a request may take stays a matter of real time.
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { leadership: Leadership::new(Arc::clone(&clock)), clock, ..self }
    }

    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Waits until this candidate leads; returns the number of its term.
    pub async fn won(&mut self) -> u32 {
        loop {
            match self.step(Standing::Candidate).await {
                Ok(Some(term)) => return term,
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "the controllers' Lease could not be read or taken"),
            }
            self.clock.pause(self.terms.period).await;
        }
    }

    /// Renews until the term is over, by another's hand or because the API could not be reached for too long.
    pub async fn lost(&mut self) {
        self.lost_or(&CancellationToken::new()).await;
    }

    /// The same, and says on the way that another candidate, who holds fewer shards, would have this one.
    async fn lost_or(&mut self, asked_for: &CancellationToken) {
        loop {
            self.clock.pause(self.terms.period).await;
            match self.step(Standing::Leader).await {
                Ok(Some(_)) if self.is_asked_for => asked_for.cancel(),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => tracing::warn!(%error, "the controllers' Lease could not be renewed"),
            }
            if self.leadership.term().is_none() {
                break;
            }
        }
        self.leadership.end();
    }

    /// Lets the next one begin at once. A failure costs the others the time of a term, no more.
    pub async fn release(&mut self) {
        self.leadership.end();
        let release = async {
            let Some(mut lease) = self.leases.get_opt(&self.lease).await? else { return Ok(()) };
            let Some(spec) = lease.spec.as_mut() else { return Ok(()) };
            if spec.holder_identity.as_deref() != Some(self.identity.as_str()) {
                return Ok(());
            }
            *spec = leader::released(spec);
            self.leases.replace(&self.lease, &PostParams::default(), &lease).await.map(drop)
        };
        match tokio::time::timeout(self.terms.trust, release).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the controllers' Lease runs out by itself"),
            Err(_) => tracing::debug!("the controllers' Lease runs out by itself"),
        }
    }

    /// One look and at most one write. The term, if this candidate leads after it.
    async fn step(&mut self, standing: Standing) -> Result<Option<u32>, Error> {
        // A request that hangs must not outlast the trust in what it was to renew.
        let limit = (self.terms.period * 2).max(QUICK);
        match tokio::time::timeout(limit, self.look_and_write(standing)).await {
            Ok(result) => result,
            Err(_) => Err(Error::Slow { doing: "renew the controllers' Lease", after: limit }),
        }
    }

    async fn look_and_write(&mut self, standing: Standing) -> Result<Option<u32>, Error> {
        let since = self.clock.moment();
        let found = self.leases.get_opt(&self.lease).await.map_err(doing("read the controllers' Lease"))?;
        let sight = found.as_ref().map(|lease| self.sight(lease));
        self.is_asked_for = sight.as_ref().is_some_and(|sight| sight.is_asked_for_beside(&self.identity));
        let step = leader::decide(&self.identity, standing, sight.as_ref(), &self.terms);
        let (held, term) = match step {
            Step::Wait => return Ok(None),
            Step::Take { .. } if self.is_divided_otherwise().await? => return Ok(None),
            Step::Take { term } => (Held::Taken { term }, term),
            Step::Renew { term } => (Held::Renewed { term }, term),
        };
        let before = found.as_ref().and_then(|lease| lease.spec.as_ref());
        let spec = Some(leader::held(before, &self.identity, held, &self.terms, since.wall));
        let post = PostParams::default();
        let written = match found {
            // The version that was read goes along: of two candidates one is refused.
            Some(lease) => {
                let mut lease = Lease { spec, ..lease };
                if matches!(held, Held::Taken { .. }) {
                    self.about.mark(&mut lease.metadata);
                }
                self.leases.replace(&self.lease, &post, &lease).await
            }
            None => {
                let mut metadata = ObjectMeta {
                    name: Some(self.lease.clone()),
                    labels: Some([(label::COMPONENT.to_owned(), COMPONENT.to_owned())].into()),
                    ..ObjectMeta::default()
                };
                self.about.mark(&mut metadata);
                self.leases.create(&post, &Lease { metadata, spec }).await
            }
        };
        written.map_err(doing("take or renew the controllers' Lease"))?;
        // Looked at again now that others can see the Lease: of two who divide the fleet differently, one sees the other.
        if matches!(held, Held::Taken { .. }) && self.is_divided_otherwise().await? {
            self.release().await;
            return Ok(None);
        }
        self.leadership.begin(term, since, self.terms.trust);
        Ok(Some(term))
    }

    /// Whether somebody acts who divides the fleet into another number of shards, so that a namespace would have two leaders.
    /// O(shards), and asked only when a Lease is taken.
    async fn is_divided_otherwise(&mut self) -> Result<bool, Error> {
        let About::Shard(own) = self.about else { return Ok(false) };
        let ours = ListParams::default().labels(&format!("{}={COMPONENT}", label::COMPONENT));
        let all = self.leases.list(&ours).await.map_err(doing("list the controllers' Leases"))?;
        let mut is_divided = false;
        for lease in all.items {
            let is_other = lease.name_any() != self.lease && shard::is_of_controllers(&lease);
            if !is_other || shard::divided_by(&lease) == own.of() {
                continue;
            }
            let sight = self.sight(&lease);
            let is_held = sight.holder.is_some() && sight.unchanged < self.terms.duration.max(sight.promised);
            if is_held {
                tracing::debug!(
                    lease = lease.name_any(),
                    "another controller still divides the fleet differently"
                );
            }
            is_divided |= is_held;
        }
        Ok(is_divided)
    }

    fn sight(&mut self, lease: &Lease) -> Sight {
        let version = lease.metadata.resource_version.clone();
        let now = self.clock.moment().steady;
        let since = match self.seen.get(&lease.name_any()) {
            Some((known, since)) if *known == version => *since,
            Some(_) | None => now,
        };
        self.seen.insert(lease.name_any(), (version, since));
        leader::view(lease, now.saturating_sub(since))
    }
}

/// Runs the controllers whenever this candidate leads, until told to stop. `make` is asked for a fresh context at each term: what
/// was known in an earlier one may be wrong by now. What it cannot make at the first term was never given to this process; later
/// something is short for a while, such as room on a disk, and it stands again.
pub async fn lead<E: From<Error> + Display>(
    mut election: Election,
    mut make: impl FnMut() -> Result<Context, E>,
    stop: CancellationToken,
) -> Result<(), E> {
    let mut has_led = false;
    loop {
        let term = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            term = election.won() => term,
        };
        let lease = election.lease.clone();
        tracing::info!(term, lease, identity = election.identity, "this controller leads");
        let asked_for = stop.child_token();
        let outcome = match make() {
            Err(error) if has_led => {
                tracing::warn!(
                    term,
                    lease,
                    "this controller cannot begin its term, and stands again: {error:#}"
                );
                election.release().await;
                let pause = election.clock.pause(election.terms.duration);
                stop.run_until_cancelled(pause).await;
                continue;
            }
            Ok(context) => tokio::select! {
                outcome = crate::run(context, asked_for.clone()) => Some(outcome.map_err(E::from)),
                // Dropping the controllers is a crash to them, which is what they are built for.
                () = election.lost_or(&asked_for) => None,
            },
            Err(error) => Some(Err(error)),
        };
        has_led = true;
        match outcome {
            Some(Ok(())) if asked_for.is_cancelled() && !stop.is_cancelled() => {
                tracing::info!(term, lease, "another controller with fewer shards takes this one");
                election.release().await;
            }
            Some(outcome) => {
                election.release().await;
                return outcome;
            }
            None => {
                tracing::warn!(term, lease, "this controller no longer leads; it stopped, and stands again")
            }
        }
    }
}
