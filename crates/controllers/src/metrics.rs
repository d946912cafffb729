//! What is counted about the controllers, for Prometheus. No label holds the name of an object, so the number of series does not
//! grow with the fleet.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::condition;
use api::layer::LayerState;
use api::run::Action;
use api::{TerraformLayer, TerraformRun};
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::watcher::{self, Event};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::error::Class;
use crate::leader::Leadership;
use crate::notification::Channel;
use crate::queue::Queue;
use crate::span;

/// The result is the reason of an end, which is one of a few words of ours.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RunLabels {
    action: &'static str,
    result: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabels {
    action: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    kind: &'static str,
    class: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConditionLabels {
    condition: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeliveryLabels {
    receiver: &'static str,
    result: &'static str,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Cheap to clone; all clones count together.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    runs: Family<RunLabels, Counter>,
    retries: Family<ActionLabels, Counter>,
    durations: Histograms<RunLabels>,
    waits: Histograms<ActionLabels>,
    lock_waits: Histogram,
    reconciles: Histograms<KindLabels>,
    errors: Family<ErrorLabels, Counter>,
    notifications: Family<DeliveryLabels, Counter>,
    layers: Family<StateLabels, Gauge>,
    layer_conditions: Family<ConditionLabels, Gauge>,
    queue_length: Gauge,
    queue_age: Gauge<f64, AtomicU64>,
    locked_out: Gauge,
    leader: Gauge,
    shards: Gauge,
    term: Gauge,
    /// What gauges are read from when someone asks.
    sources: Mutex<Sources>,
}

#[derive(Default)]
struct Sources {
    /// What each part of the fleet that this process works on knows.
    parts: BTreeMap<u64, Part>,
    next: u64,
    leaderships: Vec<Leadership>,
}

struct Part {
    layers: HashMap<Place, Facts>,
    /// What the list that is under way has named.
    fresh: HashMap<Place, Facts>,
    queue: Arc<Queue>,
    now: fn() -> Timestamp,
}

/// Namespace and name.
type Place = (String, String);

/// What is counted of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Facts {
    state: Option<LayerState>,
    /// Which of [`COUNTED`] are true.
    conditions: [bool; COUNTED.len()],
}

impl Facts {
    fn of(layer: &TerraformLayer) -> Self {
        let status = layer.status.as_ref();
        let holds = |kind| status.is_some_and(|status| condition::is_true(&status.conditions, kind));
        Self { state: status.and_then(|status| status.state), conditions: COUNTED.map(holds) }
    }
}

impl Part {
    fn take_in(&mut self, event: Event<TerraformLayer>) {
        let place = |layer: &TerraformLayer| (layer.namespace().unwrap_or_default(), layer.name_any());
        match event {
            Event::Init => self.fresh.clear(),
            Event::InitApply(layer) => drop(self.fresh.insert(place(&layer), Facts::of(&layer))),
            Event::InitDone => self.layers = std::mem::take(&mut self.fresh),
            Event::Apply(layer) => drop(self.layers.insert(place(&layer), Facts::of(&layer))),
            Event::Delete(layer) => drop(self.layers.remove(&place(&layer))),
        }
    }
}

/// While it lives, the layers and the queue of a part of the fleet are counted.
#[derive(Debug)]
pub(crate) struct Followed {
    metrics: Metrics,
    key: u64,
}

impl Followed {
    /// Counts these layers until there is nothing more to hear of them.
    pub(crate) async fn count(
        &self,
        layers: impl Stream<Item = Result<Event<TerraformLayer>, watcher::Error>>,
    ) {
        let mut layers = std::pin::pin!(layers);
        while let Some(event) = layers.next().await {
            if let (Ok(event), Some(part)) = (event, self.metrics.sources().parts.get_mut(&self.key)) {
                part.take_in(event);
            }
        }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.metrics.sources().parts.remove(&self.key);
    }
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sources")
    }
}

/// Conditions of layers that are counted: each is a question that an operator asks of the whole fleet.
const COUNTED: [&str; 4] = ["Ready", "Reconciling", "Stalled", "Drifted"];

/// Results of runs that alerts ask for. They are there from the start, at 0: of a series that begins at 1 Prometheus sees no increase.
const AWAITED: [&str; 4] = ["Succeeded", "OutcomeUnknown", "DatastoreFull", "ToolUntrusted"];

/// Results of deliveries.
const TAKEN: &str = "taken";
const FAILED: &str = "failed";
const GIVEN_UP: &str = "givenUp";

/// The kinds that are reconciled.
const KINDS: [&str; 7] = [
    "TerraformRepository",
    "TerraformLayer",
    "TerraformRun",
    "Repo",
    "Terraform",
    "TerraformNotification",
    "Pod",
];

fn seconds_of_runs() -> Histogram {
    // 0.25 s to about 2 h 17 min.
    Histogram::new(exponential_buckets(0.25, 2.0, 16))
}

fn seconds_of_reconciles() -> Histogram {
    // 1 ms to about 16 s.
    Histogram::new(exponential_buckets(0.001, 4.0, 8))
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("terrane");
        let runs = Family::default();
        registry.register("runs", "Runs that have ended, by their result", runs.clone());
        let retries = Family::default();
        let help = "Attempts of runs that followed one that failed";
        registry.register("run_retries", help, retries.clone());
        let durations = Histograms::new_with_constructor(seconds_of_runs);
        let help = "How long attempts of runs took, from their intent to their result, by that result";
        registry.register_with_unit("run_duration", help, Unit::Seconds, durations.clone());
        let waits = Histograms::new_with_constructor(seconds_of_runs);
        let help = "How long runs waited from their creation to their first attempt";
        registry.register_with_unit("run_wait", help, Unit::Seconds, waits.clone());
        let lock_waits = seconds_of_runs();
        let help =
            "How long runs waited until another one was done with the same state, of those that had to";
        registry.register_with_unit("lock_wait", help, Unit::Seconds, lock_waits.clone());
        let reconciles = Histograms::new_with_constructor(seconds_of_reconciles);
        let help = "How long reconciles took, by kind";
        registry.register_with_unit("reconcile_duration", help, Unit::Seconds, reconciles.clone());
        let errors = Family::default();
        registry.register("reconcile_errors", "Reconciles that ended with an error", errors.clone());
        let notifications = Family::default();
        let help = "Deliveries to receivers of notifications: those that were taken, those that failed, which are tried again, and what was given up";
        registry.register("notifications", help, notifications.clone());
        let layers = Family::default();
        registry.register("layers", "Layers by state", layers.clone());
        let layer_conditions = Family::default();
        let help = "Layers whose condition is true";
        registry.register("layer_conditions", help, layer_conditions.clone());
        let queue_length = Gauge::default();
        registry.register("queue_length", "Runs that wait for a runner", queue_length.clone());
        let queue_age = Gauge::default();
        let help = "How long the run that has waited longest for a runner exists; 0 when none waits";
        registry.register_with_unit("queue_oldest", help, Unit::Seconds, queue_age.clone());
        let locked_out = Gauge::default();
        let help = "Runs that wait until another one is done with the same state";
        registry.register("runs_locked_out", help, locked_out.clone());
        let leader = Gauge::default();
        registry.register("leader", "1 while this process leads, else 0", leader.clone());
        let shards = Gauge::default();
        registry.register(
            "shards_held",
            "Shards that this process leads; undivided, the fleet is one",
            shards.clone(),
        );
        let term = Gauge::default();
        let help = "The number of this process's term, the highest of several, 0 without one";
        registry.register("leader_term", help, term.clone());
        for action in Action::ALL {
            let action = action.as_str();
            drop(retries.get_or_create(&ActionLabels { action }));
            for result in AWAITED {
                drop(runs.get_or_create(&RunLabels { action, result: result.to_owned() }));
            }
        }
        for receiver in Channel::ALL.map(Channel::as_str) {
            for result in [TAKEN, FAILED, GIVEN_UP] {
                drop(notifications.get_or_create(&DeliveryLabels { receiver, result }));
            }
        }
        for kind in KINDS {
            for class in [Class::Transient, Class::Conflict, Class::Invalid, Class::Bug] {
                drop(errors.get_or_create(&ErrorLabels { kind, class: class.as_str() }));
            }
        }
        Self(Arc::new(Inner {
            registry,
            runs,
            retries,
            durations,
            waits,
            lock_waits,
            reconciles,
            errors,
            notifications,
            layers,
            layer_conditions,
            queue_length,
            queue_age,
            locked_out,
            leader,
            shards,
            term,
            sources: Mutex::default(),
        }))
    }
}

impl Metrics {
    /// All series as text, with the gauges as they are now. O(layers).
    pub fn text(&self) -> String {
        self.refresh();
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.0.registry);
        text
    }

    /// What is told of leadership is of these elections, and of no others before.
    pub fn follow_leaderships(&self, leaderships: Vec<Leadership>) {
        self.sources().leaderships = leaderships;
    }

    pub(crate) fn follow(&self, queue: Arc<Queue>, now: fn() -> Timestamp) -> Followed {
        let mut sources = self.sources();
        let key = sources.next;
        sources.next += 1;
        let (layers, fresh) = Default::default();
        sources.parts.insert(key, Part { layers, fresh, queue, now });
        Followed { metrics: self.clone(), key }
    }

    fn sources(&self) -> MutexGuard<'_, Sources> {
        self.0.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn run_ended(&self, run: &TerraformRun) {
        let Some(status) = &run.status else { return };
        let result = status.result.as_ref().map_or_else(String::new, |result| result.reason.clone());
        self.0.runs.get_or_create(&RunLabels { action: run.spec.action.as_str(), result }).inc();
    }

    pub(crate) fn attempt_ended(&self, action: Action, result: &str, took: Duration) {
        let labels = RunLabels { action: action.as_str(), result: result.to_owned() };
        self.0.durations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub(crate) fn run_retried(&self, action: Action) {
        self.0.retries.get_or_create(&ActionLabels { action: action.as_str() }).inc();
    }

    pub(crate) fn lock_awaited(&self, waited: Duration) {
        self.0.lock_waits.observe(waited.as_secs_f64());
    }

    pub(crate) fn run_started(&self, action: Action, waited: Duration) {
        let labels = ActionLabels { action: action.as_str() };
        self.0.waits.get_or_create(&labels).observe(waited.as_secs_f64());
    }

    pub(crate) fn reconciled(&self, kind: &'static str, took: Duration) {
        self.0.reconciles.get_or_create(&KindLabels { kind }).observe(took.as_secs_f64());
    }

    pub(crate) fn failed(&self, kind: &'static str, class: Class) {
        self.0.errors.get_or_create(&ErrorLabels { kind, class: class.as_str() }).inc();
    }

    pub(crate) fn notification_sent(&self, channel: Channel, is_taken: bool) {
        let labels =
            DeliveryLabels { receiver: channel.as_str(), result: if is_taken { TAKEN } else { FAILED } };
        self.0.notifications.get_or_create(&labels).inc();
    }

    pub(crate) fn notifications_given_up(&self, channel: Channel, count: u32) {
        let labels = DeliveryLabels { receiver: channel.as_str(), result: GIVEN_UP };
        self.0.notifications.get_or_create(&labels).inc_by(u64::from(count));
    }

    fn refresh(&self) {
        let sources = self.sources();
        let terms: Vec<u32> = sources.leaderships.iter().filter_map(Leadership::term).collect();
        self.0.leader.set(i64::from(!terms.is_empty()));
        self.0.shards.set(i64::try_from(terms.len()).unwrap_or(i64::MAX));
        self.0.term.set(terms.iter().max().map_or(0, |term| i64::from(*term)));
        let queued: usize = sources.parts.values().map(|part| part.queue.len()).sum();
        self.0.queue_length.set(i64::try_from(queued).unwrap_or(i64::MAX));
        let ages = sources.parts.values().filter_map(|part| Some(span(part.queue.oldest()?, (part.now)())));
        self.0.queue_age.set(ages.max().unwrap_or_default().as_secs_f64());
        let locked_out: usize = sources.parts.values().map(|part| part.queue.locked_out()).sum();
        self.0.locked_out.set(i64::try_from(locked_out).unwrap_or(i64::MAX));
        for state in ["Idle", "PlanNeeded", "ApplyNeeded", "Unknown"] {
            self.0.layers.get_or_create(&StateLabels { state }).set(0);
        }
        for condition in COUNTED {
            self.0.layer_conditions.get_or_create(&ConditionLabels { condition }).set(0);
        }
        for layer in sources.parts.values().flat_map(|part| part.layers.values()) {
            let state = match layer.state {
                Some(LayerState::Idle) => "Idle",
                Some(LayerState::PlanNeeded) => "PlanNeeded",
                Some(LayerState::ApplyNeeded) => "ApplyNeeded",
                None => "Unknown",
            };
            self.0.layers.get_or_create(&StateLabels { state }).inc();
            for (condition, _) in COUNTED.into_iter().zip(layer.conditions).filter(|(_, holds)| *holds) {
                self.0.layer_conditions.get_or_create(&ConditionLabels { condition }).inc();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn layer(name: &str, state: &str, drifted: &str) -> TerraformLayer {
        let condition = serde_json::json!({
            "type": "Drifted", "status": drifted, "reason": "Drifted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let spec = serde_json::json!({ "repository": { "name": "infra" }, "branch": "main", "path": name });
        let layer = serde_json::json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer",
            "metadata": { "name": name, "namespace": "default" },
            "spec": spec, "status": { "state": state, "conditions": [condition] },
        });
        serde_json::from_value(layer).unwrap()
    }

    #[tokio::test]
    async fn layers_are_counted_as_they_come_change_and_go() {
        let metrics = Metrics::default();
        let followed = metrics.follow(Arc::default(), Timestamp::now);
        let counted = |line: &str| {
            let text = metrics.text();
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        };
        let hear = async |told: Vec<Event<TerraformLayer>>| {
            followed.count(futures::stream::iter(told.into_iter().map(Ok))).await;
        };
        let (a, b) = (|state, drifted| layer("a", state, drifted), layer("b", "Idle", "True"));
        hear(vec![
            Event::Init,
            Event::InitApply(a("PlanNeeded", "False")),
            Event::InitApply(b.clone()),
            Event::InitDone,
        ])
        .await;
        counted("terrane_layers{state=\"PlanNeeded\"} 1");
        counted("terrane_layers{state=\"Idle\"} 1");
        counted("terrane_layer_conditions{condition=\"Drifted\"} 1");
        hear(vec![Event::Apply(a("Idle", "True"))]).await;
        counted("terrane_layers{state=\"PlanNeeded\"} 0");
        counted("terrane_layers{state=\"Idle\"} 2");
        counted("terrane_layer_conditions{condition=\"Drifted\"} 2");
        hear(vec![Event::Delete(b.clone())]).await;
        counted("terrane_layers{state=\"Idle\"} 1");
        hear(vec![Event::Init, Event::InitApply(b)]).await;
        counted("terrane_layers{state=\"Idle\"} 1");
        hear(vec![Event::InitDone]).await;
        counted("terrane_layer_conditions{condition=\"Drifted\"} 1");
        drop(followed);
        counted("terrane_layers{state=\"Idle\"} 0");
    }

    #[test]
    fn the_text_has_our_prefix_units_and_totals() {
        let metrics = Metrics::default();
        metrics.attempt_ended(Action::Plan, "ToolFailed", Duration::from_secs(3));
        metrics.run_retried(Action::Plan);
        metrics.lock_awaited(Duration::from_secs(2));
        metrics.failed("TerraformRun", Class::Transient);
        metrics.reconciled("TerraformRun", Duration::from_millis(5));
        let text = metrics.text();
        for line in [
            "terrane_run_duration_seconds_count{action=\"plan\",result=\"ToolFailed\"} 1",
            "terrane_run_duration_seconds_sum{action=\"plan\",result=\"ToolFailed\"} 3.0",
            "terrane_run_retries_total{action=\"plan\"} 1",
            "terrane_run_retries_total{action=\"apply\"} 0",
            "terrane_lock_wait_seconds_sum 2.0",
            "terrane_runs_total{action=\"apply\",result=\"OutcomeUnknown\"} 0",
            "terrane_reconcile_errors_total{kind=\"TerraformLayer\",class=\"bug\"} 0",
            "terrane_reconcile_errors_total{kind=\"TerraformRun\",class=\"transient\"} 1",
            "terrane_notifications_total{receiver=\"slack\",result=\"givenUp\"} 0",
            "terrane_layers{state=\"Idle\"} 0",
            "terrane_queue_length 0",
            "terrane_queue_oldest_seconds 0.0",
            "terrane_runs_locked_out 0",
            "terrane_leader 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }
}
