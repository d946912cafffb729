//! One world: an embedded API and a datastore in memory, the real controllers behind faults, the stage, and a clock that moves
//! only when nothing is left to do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use api::layer::DeletionPolicy;
use api::run::RunState;
use api::template::Declared;
use api::text::{CommitId, ImageDigest, ImageTag, RefName, Sha256};
use api::{
    Repo, Terraform, TerraformLayer, TerraformNotification, TerraformRepository, TerraformRun, annotation,
    label,
};
use axum::Router;
use controllers::{
    Branch, Context, Desk, Election, Followed, ImageAt, Interest, Leadership, Module, Outbox, Place, Reader,
};
use datastore::client::TokenSource;
use datastore::service::Keyring;
use embedded::auth::{Authorizer, Identity, as_identity};
use embedded::kinds::Registry;
use embedded::lifecycle::Lifecycle;
use embedded::lifecycle::catalog::Registered;
use embedded::store::Store;
use engine::image::Found;
use engine::leader::Terms;
use engine::manifests::{RunnerSecrets, RunnerSettings};
use engine::repository::Heads;
use engine::retry::Policy;
use engine::webhook::{Delivery, Noted, note};
use engine::{Builds, Settings};
use futures::StreamExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use sources::Addresses;
use testkit::callers::ByName;
use testkit::faults::{Actor, Faults, InProcess, Seam};
use testkit::objects;
use testkit::receiver::Receiver;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::time::DelayQueue;
use tower::Layer;

use crate::clock::{self, Bells, Pauses};
use crate::stage::Stage;
use crate::workloads::{Act, Lead, Meanwhile, Workload};

/// Between two looks at the repository.
const POLL: Duration = Duration::from_secs(30 * 60);
/// Between two looks at the infrastructure: so rare that none falls into the time until a commit is seen.
pub const DRIFT: Duration = Duration::from_secs(60 * 60);
/// How old a plan may be when it is applied.
pub const PLAN_EXPIRY: Duration = Duration::from_secs(2 * 60 * 60);
/// Nothing will happen by itself for so long: the world is at rest. Shorter than anything that happens again and again.
const LULL: Duration = Duration::from_secs(20 * 60);
/// Where the receiver of notifications listens.
const HOOK: &str = "/hook";
/// For a delivery on this machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// More rounds than any workload needs.
const ROUNDS: usize = 1000;
/// Turns of every task without a request, after which nothing is left to do.
const CALM: usize = 40;
/// Requests without time passing: more are a loop.
const HOT: u64 = 1500;

pub struct World {
    pub faults: Faults,
    pub stage: Stage,
    /// The plans that a person approved.
    pub approved: Vec<Sha256>,
    /// What people did, and where in the recorded history.
    pub acted: Vec<(usize, Act)>,
    /// Without an identity, and as the system.
    router: Router,
    api: Router,
    datastore: Router,
    head: Arc<Mutex<CommitId>>,
    people: kube::Client,
    /// Who is told by notifications, where there are any.
    receiver: Option<Receiver>,
    processes: Vec<Process>,
    cap: u32,
    lead: Lead,
    /// When a process was struck, and until when one that came back is followed.
    struck: Option<Timestamp>,
    attentive: Timestamp,
    meanwhile: Meanwhile,
    store: Option<Store>,
    _lifecycle: JoinSet<()>,
    directory: tempfile::TempDir,
}

/// The times of an election, all ten times as long as the product's: fewer renewals while the world's time passes.
const TERMS: Terms = Terms {
    duration: Duration::from_secs(120),
    trust: Duration::from_secs(80),
    period: Duration::from_secs(20),
};

/// The controllers as one incarnation of a process.
struct Process {
    name: &'static str,
    actor: Actor,
    /// Where it has been elected; without an election it always leads.
    leadership: Option<Leadership>,
    pauses: Arc<Pauses>,
    work: Arc<Mutex<Option<Work>>>,
    task: JoinSet<Result<(), controllers::Error>>,
}

/// What wakes the controllers of one term.
#[derive(Debug, Clone)]
struct Work {
    desk: Arc<Desk>,
    bells: Arc<Bells>,
    outbox: Arc<Outbox>,
}

impl Process {
    fn leads(&self) -> bool {
        self.leadership.as_ref().is_none_or(|leadership| leadership.term().is_some())
    }

    /// Dead, cut off or standing still.
    fn is_stricken(&self) -> bool {
        self.actor.is_dead() || self.actor.is_cut() || self.actor.is_held()
    }

    fn work(&self) -> Option<Work> {
        self.work.lock().unwrap().clone().filter(|_| self.leads())
    }
}

/// What a process needs for the controllers of a term.
struct Making {
    code: Code,
    settings: Arc<Settings>,
    client: kube::Client,
    work: Arc<Mutex<Option<Work>>>,
}

impl Making {
    fn context(&self, client: kube::Client) -> Context {
        let desk = Arc::new(Desk::over(Arc::new(self.code.clone()), clock::now));
        let bells = Arc::new(Bells::default());
        let datastore = self.code.datastore.clone();
        let context =
            Context::new(client, datastore, Arc::clone(&desk), Arc::clone(&self.settings), clock::now)
                .with_alarm(Arc::clone(&bells) as _)
                .with_outbox(Outbox::to(Addresses::OwnToo));
        *self.work.lock().unwrap() = Some(Work { desk, bells, outbox: Arc::clone(&context.outbox) });
        context
    }
}

/// What a workload expects when all is quiet.
#[derive(Debug)]
pub struct Rest {
    pub layers: Vec<TerraformLayer>,
    pub repos: Vec<Repo>,
    pub terraforms: Vec<Terraform>,
    pub notifications: Vec<TerraformNotification>,
    /// What the receiver was told, each by its name and event.
    pub deliveries: Vec<(String, String)>,
    /// Each Job, oldest commit first, with the condition that it ended with.
    pub jobs: Vec<(String, String)>,
    /// What the objects of that name hold that layers write to.
    pub outputs: BTreeMap<String, BTreeMap<String, String>>,
}

/// A regular look comes at most a tenth later than its interval says.
fn with_jitter(interval: Duration) -> Duration {
    interval * 5 / 4
}

/// Whatever was due in the queues of the controllers has left them when this returns. Such a queue counts in whole milliseconds from its
/// making and rounds up, so a wish that is put into a new one now leaves it no earlier than an older wish leaves an older queue.
async fn due_wishes_have_left() {
    let mut queue = DelayQueue::new();
    queue.insert((), Duration::ZERO);
    queue.next().await;
}

pub fn commit(letter: char) -> CommitId {
    CommitId::new(letter.to_string().repeat(40)).unwrap()
}

/// The image that stands for a commit.
pub fn image_of(commit: &CommitId) -> ImageDigest {
    ImageDigest::new(format!("sha256:{}", Sha256::of(commit.as_str().as_bytes()))).unwrap()
}

/// As the HTTP service makes it of a template.
fn stack_of(template: &TerraformLayer) -> Result<TerraformLayer> {
    let mut stack = TerraformLayer::new("stack-a", template.spec.clone());
    stack.spec.template = None;
    stack.spec.workspace = Some("stack-a".parse()?);
    stack.spec.delete_workspace = true;
    stack.spec.deletion_policy = Some(DeletionPolicy::Destroy);
    stack.spec.variables = serde_json::from_value(json!([{ "name": "word", "value": "first" }]))?;
    stack.labels_mut().insert(label::STACK_TEMPLATE.to_owned(), template.name_any());
    Ok(stack)
}

impl World {
    pub async fn start(workload: &Workload, faults: Faults) -> Result<Self> {
        // Objects get their times from the API, which has the machine's clock: the world's begins with it.
        clock::set(Timestamp::from_second(Timestamp::now().as_second())?);
        let directory = scratch()?;
        let database = directory.path().join("store.db");
        std::fs::write(&database, template()?)?;
        let store = Store::open(&database, embedded::store::Options::default())?;
        let registry = registry();
        let options = embedded::http::Options::new(Arc::new(Authorizer::new(store.clone())));
        let router = embedded::http::router_with(store.clone(), Arc::clone(&registry), options);
        let api = as_identity(router.clone(), Identity::system());
        let mut tasks = JoinSet::new();
        let catalog = Arc::new(Registered::new(registry, store.clone()));
        let lifecycle =
            Lifecycle::new(store.clone(), kube::Client::new(api.clone(), "default"), catalog, "authority");
        for (_, part) in lifecycle.parts() {
            tasks.spawn(async move {
                // A part that ends shows as a world that never comes to rest.
                let _ = part.await;
            });
        }
        let datastore = datastore::service::router(datastore::service::Options {
            objects: object_store::memory::InMemory::new().into(),
            keys: Keyring::load_or_create(&directory.path().join("keys"))?,
            reviewer: Arc::new(ByName),
        });
        let client = |actor: &str| {
            kube::Client::new(faults.actor(actor).layer(Seam::Api).layer(api.clone()), "default")
        };
        let people = client("people");
        let stage = Stage::new(client("node"), datastore.clone(), faults.clone(), workload.verdict)?;
        let mut world = Self {
            stage,
            approved: Vec::new(),
            acted: Vec::new(),
            datastore,
            head: Arc::new(Mutex::new(commit('a'))),
            people,
            receiver: None,
            processes: Vec::new(),
            cap: workload.cap,
            lead: workload.lead,
            struck: None,
            attentive: Timestamp::UNIX_EPOCH,
            meanwhile: workload.meanwhile,
            store: Some(store),
            _lifecycle: tasks,
            directory,
            router,
            api,
            faults,
        };
        world.declare(workload).await?;
        for name in workload.processes {
            let process = world.process(name)?;
            world.processes.push(process);
            if workload.lead == Lead::Elected {
                // The first one is elected.
                world.settle().await?;
            }
        }
        Ok(world)
    }

    async fn declare(&mut self, workload: &Workload) -> Result<()> {
        let post = PostParams::default();
        let repositories = Api::default_namespaced(self.people.clone());
        repositories.create(&post, &objects::repository("code")?).await?;
        for layer in (workload.layers)()? {
            Api::<TerraformLayer>::default_namespaced(self.people.clone()).create(&post, &layer).await?;
        }
        for repo in (workload.repos)()? {
            Api::<Repo>::default_namespaced(self.people.clone()).create(&post, &repo).await?;
        }
        for terraform in (workload.terraforms)()? {
            Api::<Terraform>::default_namespaced(self.people.clone()).create(&post, &terraform).await?;
        }
        for notification in (workload.notifications)()? {
            let receiver = Receiver::start().await?;
            receiver.answer_once(HOOK, http::StatusCode::SERVICE_UNAVAILABLE);
            let secret = objects::secret(&notification.name_any(), [("url", receiver.url(HOOK).as_str())]);
            Api::<Secret>::default_namespaced(self.people.clone()).create(&post, &secret).await?;
            let notifications = Api::<TerraformNotification>::default_namespaced(self.people.clone());
            notifications.create(&post, &notification).await?;
            self.receiver = Some(receiver);
            // What happened before somebody wanted to be told is not told, and the API has the machine's clock.
            clock::set(Timestamp::from_second(Timestamp::now().as_second() + 1)?);
        }
        Ok(())
    }

    fn process(&self, name: &'static str) -> Result<Process> {
        let actor = self.faults.actor(name);
        let carrier = InProcess::new(self.datastore.clone(), actor.clone());
        let datastore = datastore_client(carrier, "controller".to_owned())?;
        let code = Code { head: Arc::clone(&self.head), datastore, file: self.directory.path().join(name) };
        let mut settings = Settings::new(RunnerSettings {
            image: api::LOCAL_IMAGE.to_owned(),
            service_account: "default".to_owned(),
            datastore_url: "http://datastore".to_owned(),
            path: None,
            environment: Vec::new(),
            secrets: RunnerSecrets::default(),
        });
        settings.poll_interval = POLL;
        settings.image_interval = POLL;
        settings.drift_interval = DRIFT;
        settings.plan_expiry = PLAN_EXPIRY;
        settings.max_runner_pods = self.cap;
        settings.builds = Some(Builds::default());
        settings.retry = Policy { first: Duration::from_secs(1), max: Duration::from_secs(60) };
        let client = kube::Client::new(actor.layer(Seam::Api).layer(self.api.clone()), "default");
        let (work, pauses) = (Arc::default(), Arc::<Pauses>::default());
        let making = Making { code, settings: Arc::new(settings), client, work: Arc::clone(&work) };
        let mut task = JoinSet::new();
        let leadership = match self.lead {
            Lead::Each => {
                let context = making.context(making.client.clone());
                task.spawn(controllers::run(context, CancellationToken::new()));
                None
            }
            Lead::Elected => {
                let election =
                    Election::new(making.client.clone(), name, TERMS).with_clock(Arc::clone(&pauses) as _);
                let leadership = election.leadership();
                let guard = leadership.clone();
                let make = move || Ok(making.context(guard.guard(making.client.clone())));
                task.spawn(controllers::lead(election, make, CancellationToken::new()));
                Some(leadership)
            }
        };
        Ok(Process { name, actor, leadership, pauses, work, task })
    }

    /// Lets everything happen that happens without time passing.
    async fn settle(&self) -> Result<()> {
        let began = self.faults.activity();
        let mut calm = 0;
        while calm < 2 {
            self.faults.idle().await;
            self.letters_have_arrived().await?;
            let before = self.faults.activity();
            due_wishes_have_left().await;
            for _ in 0..CALM {
                tokio::task::yield_now().await;
            }
            calm = if self.faults.activity() == before { calm + 1 } else { 0 };
            if self.faults.activity() - began > HOT {
                bail!("L7: requests follow one another without end");
            }
        }
        Ok(())
    }

    /// They go over the loopback of this machine, which nobody counts.
    async fn letters_have_arrived(&self) -> Result<()> {
        let is_under_way =
            || self.processes.iter().filter_map(Process::work).any(|work| !work.outbox.is_idle());
        let arrived = async {
            while is_under_way() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, arrived).await.context("a delivery takes for ever")
    }

    /// A process that crashed is started again, with nothing in its memory; one that was cut off or stood still goes on. Where
    /// there is an election, that is once another one leads.
    async fn revive(&mut self) -> Result<bool> {
        for at in 0..self.processes.len() {
            if self.processes[at].task.try_join_next().is_some() {
                bail!("the controllers ended by themselves");
            }
            if !self.processes[at].is_stricken() {
                continue;
            }
            let struck = *self.struck.get_or_insert_with(clock::now);
            let replaced = self.lead == Lead::Each
                || self.processes.iter().any(|other| !other.is_stricken() && other.leads());
            if !replaced {
                let gap = Duration::try_from(clock::now().duration_since(struck)).unwrap_or_default();
                ensure!(gap <= TERMS.duration + TERMS.period, "L8: nobody leads after {gap:?}");
                continue;
            }
            self.attentive = engine::later(clock::now(), TERMS.duration);
            if !self.processes[at].actor.is_dead() {
                self.processes[at].actor.mend();
                return Ok(true);
            }
            self.processes[at].task.shutdown().await;
            match self.meanwhile {
                Meanwhile::Nothing => {}
                Meanwhile::Retool => self.retool().await?,
            }
            self.processes[at] = self.process(self.processes[at].name)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Runs the workload until nothing happens by itself for a while.
    pub async fn run(&mut self, acts: &[Act]) -> Result<()> {
        let mut acts = acts.iter();
        for _ in 0..ROUNDS {
            self.settle().await?;
            if self.revive().await? || self.stage.step().await? {
                continue;
            }
            if self.stage.awaits_people
                && let Some(act) = acts.next()
            {
                self.act(*act).await?;
            } else if !self.ring(engine::later(clock::now(), LULL)) {
                match acts.next() {
                    Some(act) => self.act(*act).await?,
                    None => return Ok(()),
                }
            }
        }
        bail!("L1: the world does not come to rest")
    }

    /// Lets time pass, with everything that happens in it.
    pub async fn pass(&mut self, time: Duration) -> Result<()> {
        let until = engine::later(clock::now(), time);
        for _ in 0..ROUNDS {
            self.settle().await?;
            if self.revive().await? || self.stage.step().await? {
                continue;
            }
            if !self.ring(until) {
                return Ok(());
            }
        }
        bail!("L1: the world does not stay at rest")
    }

    /// Moves the clock to the next wish before `until` and wakes whoever wished so. The renewals of an election are none by
    /// themselves: they happen on the way, while nobody leads, and for a while after a process came back.
    fn ring(&self, until: Timestamp) -> bool {
        let awake =
            || self.processes.iter().filter(|process| !process.actor.is_dead() && !process.actor.is_held());
        let bell = awake().filter_map(|process| process.work()?.bells.next()).min().filter(|at| *at < until);
        let vacant = !self.processes.iter().any(|process| !process.is_stricken() && process.leads());
        let attentive = self.lead == Lead::Elected && (vacant || clock::now() < self.attentive);
        if bell.is_none() && !attentive {
            return false;
        }
        let pause = awake().filter_map(|process| process.pauses.next()).min();
        let Some(next) = bell.into_iter().chain(pause).min() else { return false };
        clock::set(next.max(clock::now()));
        for process in awake() {
            process.pauses.end_due();
            if let Some(work) = process.work() {
                work.bells.due().into_iter().for_each(|who| work.desk.wake(who));
            }
        }
        true
    }

    async fn act(&mut self, act: Act) -> Result<()> {
        self.acted.push((self.faults.recorded(), act));
        match act {
            Act::Approve => {
                for layer in self.rest().await?.layers {
                    let plan = layer.status.and_then(|s| s.plan).context("nothing to approve")?.sha256;
                    let name = layer.metadata.name.unwrap_or_default();
                    let word = api::approval::Decision::Approve;
                    let approval = objects::approval(&name, &plan, "jane", word)?;
                    let jane = Identity::new("jane", ["system:masters"]);
                    let router = as_identity(self.router.clone(), jane);
                    let api = Api::default_namespaced(kube::Client::new(router, "default"));
                    api.create(&PostParams::default(), &approval).await?;
                    self.approved.push(plan);
                }
            }
            Act::Push => {
                *self.head.lock().unwrap() = commit('b');
                self.pass(with_jitter(POLL)).await?;
            }
            Act::Deliver => {
                *self.head.lock().unwrap() = commit('b');
                self.deliver().await?;
            }
            Act::Drift => {
                self.stage.drift();
                self.pass(with_jitter(DRIFT)).await?;
            }
            Act::Haunt => self.stage.haunt().await?,
            Act::Wait => {
                let end = engine::later(clock::now(), TERMS.period * 2);
                self.attentive = self.attentive.max(end);
                self.pass(TERMS.period * 2).await?;
            }
            Act::Age => clock::set(engine::later(clock::now(), PLAN_EXPIRY)),
            Act::Cancel => {
                let runs = Api::<TerraformRun>::default_namespaced(self.people.clone());
                let wish = json!({ "metadata": { "annotations": { annotation::CANCEL: "jane" } } });
                for run in runs.list(&ListParams::default()).await?.items {
                    let state = run.status.as_ref().and_then(|status| status.state);
                    if !state.is_some_and(RunState::is_terminal) {
                        runs.patch(&run.name_any(), &PatchParams::default(), &Patch::Merge(&wish)).await?;
                    }
                }
            }
            Act::Tamper => {
                let (secrets, maps) = (
                    Api::<Secret>::default_namespaced(self.people.clone()),
                    Api::<ConfigMap>::default_namespaced(self.people.clone()),
                );
                let edit = json!({ "stringData": { "hidden": "edited", "theirs": "stays" } });
                secrets.patch("given", &PatchParams::default(), &Patch::Merge(edit)).await?;
                maps.delete("given", &DeleteParams::default()).await?;
            }
            Act::Unname => {
                let layers = Api::<TerraformLayer>::default_namespaced(self.people.clone());
                let wish = json!({ "spec": { "writeOutputsTo": [{ "secret": "given" }] } });
                for layer in self.rest().await?.layers {
                    layers.patch(&layer.name_any(), &PatchParams::default(), &Patch::Merge(&wish)).await?;
                }
            }
            Act::Delete => {
                let layers = Api::<TerraformLayer>::default_namespaced(self.people.clone());
                for layer in self.rest().await?.layers {
                    layers.delete(&layer.name_any(), &DeleteParams::default()).await?;
                }
            }
            Act::Change => {
                let terraforms = Api::<Terraform>::default_namespaced(self.people.clone());
                let wish = json!({ "spec": { "variables": { "word": "second" } } });
                for terraform in self.rest().await?.terraforms {
                    let name = terraform.name_any();
                    terraforms.patch(&name, &PatchParams::default(), &Patch::Merge(&wish)).await?;
                }
            }
            Act::Make => {
                let layers = Api::<TerraformLayer>::default_namespaced(self.people.clone());
                for template in self.rest().await?.layers {
                    layers.create(&PostParams::default(), &stack_of(&template)?).await?;
                }
            }
            Act::Vary => {
                let layers = Api::<TerraformLayer>::default_namespaced(self.people.clone());
                let wish = json!({ "spec": { "variables": [{ "name": "word", "value": "second" }] } });
                for layer in self.rest().await?.layers.iter().filter(|layer| layer.spec.template.is_none()) {
                    let version = layer.metadata.resource_version.as_deref();
                    let mut wish = wish.clone();
                    wish["metadata"] = json!({ "resourceVersion": version });
                    layers.patch(&layer.name_any(), &PatchParams::default(), &Patch::Merge(&wish)).await?;
                }
            }
            Act::Withdraw => {
                let terraforms = Api::<Terraform>::default_namespaced(self.people.clone());
                for terraform in self.rest().await?.terraforms {
                    terraforms.delete(&terraform.name_any(), &DeleteParams::default()).await?;
                }
            }
        }
        Ok(())
    }

    /// What the HTTP service writes down of a delivery before it answers.
    async fn deliver(&self) -> Result<()> {
        let repositories = Api::<TerraformRepository>::default_namespaced(self.people.clone());
        let heads = [("refs/heads/main".to_owned(), Some(commit('b')))];
        let delivery = Delivery { host: "gitea", heads: &heads };
        for repository in repositories.list(&ListParams::default()).await?.items {
            let Noted::Record(webhook) = note(&repository, &delivery, clock::now()) else {
                bail!("the delivery is no news: {:?}", repository.status);
            };
            let status = json!({
                "metadata": { "resourceVersion": repository.metadata.resource_version },
                "status": { "webhook": webhook },
            });
            let name = repository.name_any();
            repositories.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
        }
        Ok(())
    }

    async fn retool(&self) -> Result<()> {
        let layers = Api::<TerraformLayer>::default_namespaced(self.people.clone());
        let tool = json!({ "spec": { "opentofu": { "enabled": true, "version": "1.9.0" } } });
        for layer in self.rest().await?.layers {
            layers.patch(&layer.name_any(), &PatchParams::default(), &Patch::Merge(&tool)).await?;
        }
        Ok(())
    }

    pub async fn rest(&self) -> Result<Rest> {
        let all = ListParams::default();
        let layers = Api::<TerraformLayer>::all(self.people.clone()).list(&all).await?.items;
        let repos = Api::<Repo>::all(self.people.clone()).list(&all).await?.items;
        let terraforms = Api::<Terraform>::all(self.people.clone()).list(&all).await?.items;
        let notifications = Api::<TerraformNotification>::all(self.people.clone()).list(&all).await?.items;
        let deliveries = self.receiver.iter().flat_map(|receiver| receiver.deliveries(HOOK));
        let deliveries = deliveries
            .map(|one| (one.header("terrane-delivery").to_owned(), one.header("terrane-event").to_owned()))
            .collect();
        let jobs = Api::<Job>::all(self.people.clone()).list(&all).await?.items;
        let mut jobs: Vec<(String, String)> = jobs
            .iter()
            .map(|job| {
                let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
                (job.name_any(), conditions.last().map_or("none", |last| last.type_.as_str()).to_owned())
            })
            .collect();
        jobs.sort();
        let mut outputs = BTreeMap::new();
        if let Some(secret) = Api::<Secret>::default_namespaced(self.people.clone()).get_opt("given").await? {
            let data = secret.data.unwrap_or_default().into_iter();
            let data = data.map(|(key, ByteString(value))| Ok((key, String::from_utf8(value)?)));
            outputs.insert("Secret given".to_owned(), data.collect::<Result<_>>()?);
        }
        if let Some(map) = Api::<ConfigMap>::default_namespaced(self.people.clone()).get_opt("given").await? {
            outputs.insert("ConfigMap given".to_owned(), map.data.unwrap_or_default());
        }
        Ok(Rest { layers, repos, terraforms, notifications, deliveries, jobs, outputs })
    }

    /// Ends every task and closes the database.
    pub async fn end(mut self) {
        for process in &mut self.processes {
            process.task.shutdown().await;
        }
        self._lifecycle.shutdown().await;
        drop((self.api, self.router));
        if let Some(store) = self.store.take() {
            let _ = tokio::task::spawn_blocking(move || store.close()).await;
        }
    }
}

/// A database with everything that an API has before anybody uses it, made once.
fn template() -> Result<&'static [u8]> {
    static MADE: OnceLock<Result<Vec<u8>, String>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        // Whoever asks may be inside a runtime already.
        std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(make_template())
        })
        .join()
        .unwrap()
        .map_err(|error| format!("{error:#}"))
    });
    made.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

/// The kinds that the API serves. All worlds begin with the same definitions and change none, so they share them.
fn registry() -> Arc<Registry> {
    static SHARED: OnceLock<Arc<Registry>> = OnceLock::new();
    Arc::clone(SHARED.get_or_init(|| Arc::new(Registry::new())))
}

async fn make_template() -> Result<Vec<u8>> {
    let directory = scratch()?;
    let options = embedded::serve::Options {
        listen: embedded::serve::Listen::new("127.0.0.1:0".parse()?, None, None)?,
        definitions: api::custom_resources(),
        ..embedded::serve::Options::new(directory.path())
    };
    embedded::serve::Server::start(options).await?.stop().await;
    Ok(std::fs::read(directory.path().join("store.db"))?)
}

/// A client of the datastore in this process. Preparing one reads the certificates of the machine, so that is done once.
pub fn datastore_client(carrier: InProcess, token: String) -> Result<datastore::Client> {
    static PREPARED: OnceLock<datastore::Client> = OnceLock::new();
    let token = TokenSource::Fixed(token.into());
    let prepared = match PREPARED.get() {
        Some(prepared) => prepared,
        None => {
            let client = datastore::Client::new("http://datastore", token.clone())?;
            PREPARED.get_or_init(|| client)
        }
    };
    let client = prepared.clone().with_token(token).with_transport(Arc::new(carrier));
    Ok(client.with_patience(Duration::ZERO))
}

/// In memory where the machine has such a place: a world writes a lot and keeps nothing.
fn scratch() -> Result<tempfile::TempDir> {
    let builder = || {
        let mut builder = tempfile::Builder::new();
        builder.prefix("terrane-crash-");
        builder
    };
    Ok(builder().tempdir_in("/dev/shm").or_else(|_| builder().tempdir())?)
}

/// The repository: one branch, one file.
#[derive(Debug, Clone)]
struct Code {
    head: Arc<Mutex<CommitId>>,
    datastore: datastore::Client,
    file: std::path::PathBuf,
}

impl Reader for Code {
    fn heads<'a>(&'a self, _: &'a Place) -> BoxFuture<'a, Result<Heads, String>> {
        let head = self.head.lock().unwrap().clone();
        let refs = [("refs/heads/main".to_owned(), head)].into();
        Box::pin(async move { Ok(Heads { default_branch: RefName::new("main").ok(), refs }) })
    }

    fn relevant<'a>(
        &'a self,
        _: &'a Branch,
        head: &'a CommitId,
        _: &'a Interest,
    ) -> BoxFuture<'a, Result<CommitId, String>> {
        Box::pin(async move { Ok(head.clone()) })
    }

    fn bundle<'a>(&'a self, _: &'a Place, commit: &'a CommitId) -> BoxFuture<'a, Result<Sha256, String>> {
        Box::pin(async move {
            let sha256 = Sha256::of(commit.as_str().as_bytes());
            std::fs::write(&self.file, commit.as_str()).map_err(|error| error.to_string())?;
            self.datastore.bundle_put(&sha256, &self.file).await.map_err(|error| error.to_string())?;
            Ok(sha256)
        })
    }

    fn declared<'a>(
        &'a self,
        _: &'a Place,
        _: &'a CommitId,
        _: &'a Module,
    ) -> BoxFuture<'a, Result<Vec<Declared>, String>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// The newest image is the newest commit, by another name.
    fn image<'a>(&'a self, _: &'a Followed) -> BoxFuture<'a, Result<Found, String>> {
        let head = self.head.lock().unwrap().clone();
        let digest = image_of(&head);
        Box::pin(async move { Ok(Found { tag: ImageTag::new("1.0.0").ok(), digest }) })
    }

    fn image_bundle<'a>(
        &'a self,
        _: &'a ImageAt,
        digest: &'a ImageDigest,
    ) -> BoxFuture<'a, Result<Sha256, String>> {
        Box::pin(async move {
            let sha256 = Sha256::of(digest.as_str().as_bytes());
            std::fs::write(&self.file, digest.as_str()).map_err(|error| error.to_string())?;
            self.datastore.bundle_put(&sha256, &self.file).await.map_err(|error| error.to_string())?;
            Ok(sha256)
        })
    }
}
