//! The controllers: they observe through the Kubernetes API, let `engine` decide, and act. No choice is made here.
//!
//! Caches and watches only trigger; what decides is read from the API; every write carries a precondition.

mod alarm;
mod balance;
mod bundles;
mod concern;
mod credentials;
mod door;
mod error;
mod events;
mod feed;
mod gate;
mod inputs;
mod layer;
pub mod leader;
pub mod metrics;
pub mod notification;
mod outputs;
mod queue;
mod readable;
mod references;
mod repository;
mod run;
mod scope;
mod sizes;
mod source;
mod status;
mod surroundings;
mod turn;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use api::inputs::DigestKey;
use api::{
    Repo, Terraform, TerraformApproval, TerraformLayer, TerraformNotification, TerraformRepository,
    TerraformRun, label,
};
use engine::run::can_still_work;
use engine::shard::Shard;
use engine::{Settings, Wake};
use feed::{Feed, Handle};
use futures::future::OptionFuture;
use futures::{Stream, StreamExt, stream};
use gate::Gate;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::controller::{Action, Config};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

pub use alarm::{Alarm, Timer};
pub use balance::balance;
pub use door::terraform::composite::{Told, composite};
pub use error::{Class, Error};
pub use events::Events;
pub use leader::{Election, Leadership, lead};
pub use metrics::Metrics;
pub use notification::{Board, Outbox};
pub use outputs::Written;
pub use queue::Queue;
pub use references::References;
pub use scope::Namespaces;
pub use sizes::Sizes;
pub use source::{Branch, Desk, Followed, ImageAt, Place, Reader, Waiting};
pub use sources::{Interest, Module};
pub use surroundings::Surroundings;
pub use turn::Turns;

/// What every reconcile can reach.
#[derive(Clone)]
pub struct Context {
    pub client: Client,
    pub namespaces: Namespaces,
    /// The part of the fleet that is worked on.
    pub shard: Shard,
    pub terraforms: Terraforms,
    pub datastore: datastore::Client,
    pub desk: Arc<Desk>,
    pub settings: Arc<Settings>,
    /// Time comes in here and nowhere else.
    pub now: fn() -> Timestamp,
    /// What wakes an object that is to be looked at again later.
    pub alarm: Arc<dyn Alarm>,
    pub queue: Arc<Queue>,
    pub sizes: Arc<Sizes>,
    pub references: Arc<References>,
    pub outputs: Arc<Written>,
    /// What happened to layers of late, for notifications, and what of it is on its way to whom.
    pub board: Arc<Board>,
    pub outbox: Arc<Outbox>,
    /// What Terraforms tell of the cluster around them.
    pub surroundings: Arc<Surroundings>,
    /// Read once; what digests of variables are made with.
    pub digest_key: Arc<OnceCell<DigestKey>>,
    /// Randomness comes in here and nowhere else.
    pub random: fn(&mut [u8]) -> Result<(), String>,
    pub events: Arc<Events>,
    pub metrics: Metrics,
}

/// Who keeps Terraforms: never two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Terraforms {
    #[default]
    Kept,
    /// Metacontroller keeps them, and asks (see [`composite`]).
    LeftToMetacontroller,
}

impl Context {
    /// A context that waits for nothing and has counted nothing yet.
    pub fn new(
        client: Client,
        datastore: datastore::Client,
        desk: Arc<Desk>,
        settings: Arc<Settings>,
        now: fn() -> Timestamp,
    ) -> Self {
        Self {
            client,
            namespaces: Namespaces::All,
            shard: Shard::WHOLE,
            terraforms: Terraforms::default(),
            datastore,
            desk,
            settings,
            now,
            alarm: Arc::new(Timer),
            queue: Arc::default(),
            sizes: Arc::default(),
            references: Arc::default(),
            outputs: Arc::default(),
            board: Arc::default(),
            outbox: Arc::default(),
            surroundings: Arc::default(),
            digest_key: Arc::default(),
            random: ask_the_system,
            events: Arc::default(),
            metrics: Metrics::default(),
        }
    }

    /// The same, looking and acting only there.
    pub fn within(self, namespaces: Namespaces) -> Self {
        Self { namespaces, ..self }
    }

    /// The same for one part of the fleet, where other processes may work on the others. A runner is made in one's turn.
    pub fn of_shard(self, shard: Shard, turns: Turns) -> Self {
        Self { shard, queue: Arc::new(Queue::taking(turns)), ..self }
    }

    /// The same, with Terraforms kept by whom it says.
    pub fn with_terraforms(self, terraforms: Terraforms) -> Self {
        Self { terraforms, ..self }
    }

    /// The same, woken by another alarm than the passing of time.
    pub fn with_alarm(self, alarm: Arc<dyn Alarm>) -> Self {
        Self { alarm, ..self }
    }

    /// The same, with another source of randomness than the system's.
    pub fn with_random(self, random: fn(&mut [u8]) -> Result<(), String>) -> Self {
        Self { random, ..self }
    }

    /// The same, sending notifications this way.
    pub fn with_outbox(self, outbox: Outbox) -> Self {
        Self { outbox: Arc::new(outbox), ..self }
    }

    /// The same, counting where others count too.
    pub fn with_metrics(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }
}

fn ask_the_system(bytes: &mut [u8]) -> Result<(), String> {
    use rand::TryRngCore;
    rand::rngs::OsRng.try_fill_bytes(bytes).map_err(|error| error.to_string())
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Pods that are looked at at the same time, to find those whose run is gone. Of other kinds see [`gate`].
const PODS_AT_ONCE: u16 = 8;

/// Runs the controllers until they are told to stop. Returns when the reconciles under way have ended.
pub async fn run(context: Context, stop: CancellationToken) -> Result<(), Error> {
    let config = || watcher::Config::default().any_semantic();
    let ours = || watcher::Config::default().labels(&format!("{}=terrane", label::MANAGED_BY));
    let stopped = |stop: &CancellationToken| stop.clone().cancelled_owned();
    let news = context.desk.news().ok_or(Error::DeskTaken)?;
    let queue_news = context.queue.news().ok_or(Error::DeskTaken)?;
    let reference_news = context.references.news().ok_or(Error::DeskTaken)?;

    let layers_of_desk = context.desk.clone();
    let Context { events, namespaces, shard, .. } = &context;
    let shard = *shard;
    let mut repository_feed =
        Feed::<TerraformRepository>::new(&context.client, namespaces, shard, config(), events);
    let mut layer_feed = Feed::<TerraformLayer>::new(&context.client, namespaces, shard, config(), events);
    let mut run_feed = Feed::<TerraformRun>::new(&context.client, namespaces, shard, config(), events);
    let mut approval_feed =
        Feed::<TerraformApproval>::new(&context.client, namespaces, shard, config(), events);
    let mut repo_feed = Feed::<Repo>::new(&context.client, namespaces, shard, config(), events);
    let mut notification_feed =
        Feed::<TerraformNotification>::new(&context.client, namespaces, shard, config(), events);
    let (queue, now) = (Arc::clone(&context.queue), context.now);
    let builds = context.settings.builds.as_ref().and_then(|builds| builds.namespace()).map(str::to_owned);
    let homes = builds.clone();
    let mut pod_feed =
        Feed::<Pod>::new(&context.client, &namespaces.and(builds.as_deref()), shard, ours(), events)
            .with_home(move |pod| engine::run::home(&pod.metadata, homes.as_deref()))
            .with_beside(move |pod| {
                // The limit over all shards has room when a runner of any of them ends.
                if !can_still_work(pod) {
                    queue.wake_next(now());
                }
            });

    let (gate, called) = Gate::new();
    let (repositories, _) = repository_feed.controller(concern::repository);
    let repositories = repositories
        .watches_stream(layer_feed.touched(concern::layer_to_repository), |layer: TerraformLayer| {
            let namespace = layer.namespace().unwrap_or_default();
            Some(ObjectRef::new(layer.spec.repository_name()?.as_str()).within(&namespace))
        })
        .reconcile_on(news.repositories)
        .reconcile_on(called)
        .graceful_shutdown_on(stopped(&stop))
        .run(gate.guarding(repository::reconcile), on_error, Arc::new(context.clone()))
        .for_each(gate.logging("TerraformRepository"));

    let followed = context.metrics.follow(context.queue.clone(), context.now);
    let counting = followed.count(layer_feed.listen());
    let (gate, called) = Gate::new();
    let (layers, _) = layer_feed.controller(concern::layer);
    let layers = layers
        .watches_stream(run_feed.touched(concern::run_to_layer), |run: TerraformRun| {
            // By name, not by owner: the runs of a layer that is deleted in the foreground have none.
            let namespace = run.namespace().unwrap_or_default();
            Some(ObjectRef::new(run.spec.layer.name.as_str()).within(&namespace))
        })
        .watches_stream(approval_feed.touched(concern::approval), |approval: TerraformApproval| {
            let namespace = approval.namespace().unwrap_or_default();
            Some(ObjectRef::new(approval.spec.layer.as_str()).within(&namespace))
        })
        .watches_stream(
            repository_feed.touched(concern::repository_to_layers),
            move |repository: TerraformRepository| layers_of_desk.layers_of(&repository),
        )
        .reconcile_all_on(run_feed.anew())
        .reconcile_all_on(repository_feed.anew())
        .reconcile_on(news.layers)
        .reconcile_on(called)
        .reconcile_on(reference_news)
        .graceful_shutdown_on(stopped(&stop))
        .run(gate.guarding(layer::reconcile), on_error, Arc::new(context.clone()))
        .for_each(gate.logging("TerraformLayer"));

    let (gate, called) = Gate::new();
    let (repos, _) = repo_feed.controller(concern::repo);
    // By name, not by owner: a Repo also waits for what bears its name and belongs to somebody else.
    let repos = repos
        .watches_stream(
            repository_feed.touched(concern::repository_to_repo),
            |repository: TerraformRepository| {
                let namespace = repository.namespace().unwrap_or_default();
                Some(ObjectRef::new(&repository.name_any()).within(&namespace))
            },
        )
        .watches_stream(layer_feed.touched(concern::layer_to_repo), |layer: TerraformLayer| {
            let namespace = layer.namespace().unwrap_or_default();
            Some(ObjectRef::new(&layer.name_any()).within(&namespace))
        })
        .watches_stream(run_feed.touched(concern::run_to_repo), |run: TerraformRun| {
            let namespace = run.namespace().unwrap_or_default();
            Some(ObjectRef::new(run.spec.layer.name.as_str()).within(&namespace))
        })
        .reconcile_all_on(repository_feed.anew())
        .reconcile_all_on(layer_feed.anew())
        .reconcile_on(news.repos)
        .reconcile_on(called)
        .graceful_shutdown_on(stopped(&stop))
        .run(gate.guarding(door::repo::reconcile), on_error, Arc::new(context.clone()))
        .for_each(gate.logging("Repo"));

    let terraforms = match context.terraforms {
        Terraforms::Kept => Some(keep_terraforms(
            &context,
            config(),
            (
                repository_feed.touched(concern::repository_to_repo),
                layer_feed.touched(concern::layer_to_terraform),
            ),
            stream::select(repository_feed.anew(), layer_feed.anew()),
            news.terraforms,
            &stop,
        )),
        Terraforms::LeftToMetacontroller => {
            // Nobody reads them.
            drop(news.terraforms);
            None
        }
    };
    let terraforms = OptionFuture::from(terraforms);

    let posting =
        context.board.listen(layer_feed.listen(), run_feed.listen(), context.desk.clone(), context.now);
    let (gate, called) = Gate::new();
    let (notifications, _) = notification_feed.controller(concern::notification);
    let notifications = notifications
        .reconcile_on(news.notifications)
        .reconcile_on(called)
        .graceful_shutdown_on(stopped(&stop))
        .run(gate.guarding(notification::reconcile), on_error, Arc::new(context.clone()))
        .for_each(gate.logging("TerraformNotification"));

    let (gate, called) = Gate::new();
    let (runs, ended) = run_feed.controller(concern::run);
    let ended = Arc::new(ended);
    let runs = runs
        .watches_stream(pod_feed.touched(concern::pod), move |pod: Pod| run::of_pod(&pod, builds.as_deref()))
        .watches(
            Api::<Lease>::namespaced(context.client.clone(), api::SYSTEM_NAMESPACE),
            ours(),
            run::waiting_for,
        )
        .watches_stream(layer_feed.touched(concern::layer_to_runs), run::canceled_by)
        .reconcile_all_on(pod_feed.anew())
        .reconcile_on(news.runs)
        .reconcile_on(called)
        .reconcile_on(queue_news)
        .graceful_shutdown_on(stopped(&stop))
        .run(
            gate.guarding(move |object, context| {
                let ended = Arc::clone(&ended);
                async move { run::reconcile(object, context, &ended).await }
            }),
            on_error,
            Arc::new(context.clone()),
        )
        .for_each(gate.logging("TerraformRun"));

    let orphans = pod_feed
        .whole_controller(concern::pod)
        .with_config(Config::default().concurrency(PODS_AT_ONCE))
        .graceful_shutdown_on(stopped(&stop))
        .run(
            |object, context| async move {
                let now = context.now;
                let wake = counted("Pod", &context.clone(), run::orphans::reconcile(object, context)).await?;
                Ok(match wake {
                    Wake::OnChange => Action::await_change(),
                    Wake::At(at) => Action::requeue(span(now(), at)),
                })
            },
            |_, error: &Error, _| Action::requeue(error.class().pause()),
            Arc::new(context.clone()),
        )
        .for_each(|result| async move { log("Pod", result) });

    let desk = context.desk.clone().work(stop.clone());
    let sending = context.outbox.work(&context, stop.clone());
    let sweeping = run::orphans::sweep(&context, &stop);
    let sweeping_bundles = bundles::sweep(&context, &stop);
    let references = context.references.work(context.client.clone(), stop.clone());
    // Events are told until the last reconcile has ended.
    let told = CancellationToken::new();
    let telling = context.events.work(context.client.clone(), told.clone());
    let feeds = async {
        let stop = || stop.clone();
        tokio::join!(
            repository_feed.work(stop()),
            layer_feed.work(stop()),
            run_feed.work(stop()),
            approval_feed.work(stop()),
            repo_feed.work(stop()),
            notification_feed.work(stop()),
            pod_feed.work(stop()),
        )
    };
    let work = async {
        tokio::join!(
            repositories,
            layers,
            runs,
            repos,
            terraforms,
            notifications,
            orphans,
            desk,
            feeds,
            counting,
            posting,
            sending,
            sweeping,
            sweeping_bundles,
            references
        );
        told.cancel();
    };
    tokio::join!(work, telling);
    Ok(())
}

/// The loop of Terraforms, with its watch. By name, not by owner: one also waits for what bears its name and belongs to somebody else.
async fn keep_terraforms(
    context: &Context,
    config: watcher::Config,
    (repositories, layers): (
        impl Stream<Item = Result<TerraformRepository, watcher::Error>> + Send + 'static,
        impl Stream<Item = Result<TerraformLayer, watcher::Error>> + Send + 'static,
    ),
    anew: impl Stream<Item = ()> + Send + 'static,
    woken: impl Stream<Item = ObjectRef<Handle<Terraform>>> + Send + 'static,
    stop: &CancellationToken,
) {
    let Context { client, namespaces, shard, events, .. } = context;
    let mut feed = Feed::<Terraform>::new(client, namespaces, *shard, config, events);
    let (gate, called) = Gate::new();
    let (controller, _) = feed.controller(concern::terraform);
    let looking_around = context.surroundings.work(context, controller.store(), stop.clone());
    let working = controller
        .watches_stream(repositories, |repository: TerraformRepository| {
            let namespace = repository.namespace().unwrap_or_default();
            Some(ObjectRef::new(&repository.name_any()).within(&namespace))
        })
        .watches_stream(layers, |layer: TerraformLayer| {
            let namespace = layer.namespace().unwrap_or_default();
            Some(ObjectRef::new(&layer.name_any()).within(&namespace))
        })
        .reconcile_all_on(anew)
        .reconcile_on(woken)
        .reconcile_on(called)
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(gate.guarding(door::terraform::reconcile), on_error, Arc::new(context.clone()))
        .for_each(gate.logging("Terraform"));
    tokio::join!(working, looking_around, feed.work(stop.clone()));
}

async fn measured(
    who: Waiting,
    context: Arc<Context>,
    reconcile: impl Future<Output = Result<Wake, Error>>,
) -> Result<Action, Error> {
    Ok(match counted(who.kind(), &context, reconcile).await? {
        Wake::OnChange => context.alarm.on_change(who),
        Wake::At(at) => context.alarm.after(who, span((context.now)(), at)),
    })
}

/// How long it is until then; nothing if it has passed.
fn span(from: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(from)).unwrap_or_default()
}

async fn counted(
    kind: &'static str,
    context: &Context,
    reconcile: impl Future<Output = Result<Wake, Error>>,
) -> Result<Wake, Error> {
    let began = std::time::Instant::now();
    let result = reconcile.await;
    context.metrics.reconciled(kind, began.elapsed());
    if let Err(error) = &result {
        context.metrics.failed(kind, error.class());
    }
    result
}

/// The one place that maps the class of an error to the time of the next try.
fn on_error<K>(object: Arc<K>, error: &Error, context: Arc<Context>) -> Action
where
    Waiting: for<'a> From<&'a K>,
{
    context.alarm.after(Waiting::from(&*object), error.class().pause())
}

fn log<K: kube::Resource>(
    kind: &'static str,
    result: Result<(ObjectRef<K>, Action), kube::runtime::controller::Error<Error, watcher::Error>>,
) where
    K::DynamicType: std::fmt::Debug + Clone + Eq + std::hash::Hash,
{
    match result {
        Ok(_) => {}
        Err(kube::runtime::controller::Error::ReconcilerFailed(error, object)) => match error.class() {
            Class::Conflict => {
                tracing::debug!(kind, name = object.name, "someone else wrote first; looking again")
            }
            Class::Transient => tracing::warn!(kind, name = object.name, %error, "will be tried again"),
            Class::Invalid | Class::Bug => {
                tracing::error!(kind, name = object.name, %error, "could not be reconciled")
            }
        },
        Err(kube::runtime::controller::Error::ObjectNotFound(_)) => {}
        Err(error) => tracing::warn!(kind, %error, "the watch was interrupted and goes on"),
    }
}
