//! Two controllers that act at the same time, each for some of four shards: by what was recorded between them and the API, no namespace
//! has two leaders, the limit on runners holds over both, shards spread, and those of a controller that dies are taken over.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::template::Declared;
use api::text::{CommitId, ImageDigest, RefName, Sha256};
use api::{SYSTEM_NAMESPACE, TerraformLayer, TerraformRepository, TerraformRun, label};
use controllers::{
    Branch, Context, Desk, Election, Followed, ImageAt, Interest, Module, Place, Reader, Turns,
};
use datastore::service::Keyring;
use embedded::auth::Identity;
use embedded::serve::{Listen, Options, Server};
use engine::image::Found;
use engine::leader::Terms;
use engine::manifests::{RunnerSecrets, RunnerSettings};
use engine::repository::Heads;
use engine::retry::Policy;
use engine::shard::Shard;
use engine::{Settings, run::can_still_work};
use futures::StreamExt;
use futures::future::BoxFuture;
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use testkit::callers::{ByName, Served, serve};
use testkit::objects;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::within;

/// So far apart that a stall of the machine shows no write of a controller whose term was just over.
const TERMS: Terms = Terms {
    duration: Duration::from_secs(6),
    trust: Duration::from_secs(2),
    period: Duration::from_millis(100),
};
const SHARDS: NonZeroU16 = NonZeroU16::new(4).unwrap();
const NAMESPACES: usize = 12;
/// Runners over all shards.
const CAP: usize = 3;
const POLL: Duration = Duration::from_millis(20);

/// What was written: by whom, and to which Lease or in which namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Write {
    /// Answered.
    Lease { by: &'static str, name: String },
    /// About to be sent.
    Object { by: &'static str, namespace: String },
}

type History = Arc<Mutex<Vec<Write>>>;

struct Ground {
    server: Server,
    datastore: Served,
    history: History,
    directory: tempfile::TempDir,
}

impl Ground {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            listen: Listen::new("127.0.0.1:0".parse().unwrap(), None, None).unwrap(),
            definitions: api::custom_resources(),
            ..Options::new(directory.path().join("data"))
        };
        let server = Server::start(options).await.unwrap();
        let service = datastore::service::router(datastore::service::Options {
            objects: object_store::memory::InMemory::new().into(),
            keys: Keyring::load_or_create(&directory.path().join("keys")).unwrap(),
            reviewer: Arc::new(ByName),
        });
        let datastore = serve(service).await.unwrap();
        let ground = Self { server, datastore, history: History::default(), directory };
        for namespace in namespaces() {
            let api = Api::all(ground.client());
            api.create(&PostParams::default(), &objects::namespace(&namespace)).await.unwrap();
            let mut repository = objects::repository("code").unwrap();
            repository.metadata.namespace = Some(namespace.clone());
            let api = Api::<TerraformRepository>::namespaced(ground.client(), &namespace);
            api.create(&PostParams::default(), &repository).await.unwrap();
        }
        ground
    }

    fn client(&self) -> Client {
        self.server.client(Identity::administrator())
    }

    /// A client whose writes are recorded.
    fn recorded(&self, by: &'static str) -> Client {
        let (client, history) = (self.client(), Arc::clone(&self.history));
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (client, history) = (client.clone(), Arc::clone(&history));
            async move {
                let is_read = request.method() == Method::GET;
                let path = request.uri().path().to_owned();
                let part = |after: &str| {
                    let mut parts = path.split('/').skip_while(|part| *part != after);
                    parts.nth(1).unwrap_or_default().to_owned()
                };
                let is_lease = path.contains("/leases");
                if !is_read && !is_lease {
                    history.lock().unwrap().push(Write::Object { by, namespace: part("namespaces") });
                }
                let answer = client.send(request).await;
                let is_done = answer.as_ref().is_ok_and(|answer| answer.status().is_success());
                if !is_read && is_lease && is_done {
                    // A creation names the Lease in its body alone; its first renewal follows.
                    history.lock().unwrap().push(Write::Lease { by, name: part("leases") });
                }
                answer.map_err(Box::<dyn std::error::Error + Send + Sync>::from)
            }
        });
        Client::new(service, "default")
    }

    /// All that one controller process does, until it is dropped.
    fn process(&self, name: &'static str) -> JoinSet<()> {
        let client = self.recorded(name);
        let datastore = self.datastore.client.clone();
        let code = Code { datastore: datastore.clone(), file: self.directory.path().join(name) };
        let mut settings = Settings::new(RunnerSettings {
            image: api::LOCAL_IMAGE.to_owned(),
            service_account: "default".to_owned(),
            datastore_url: self.datastore.url.clone(),
            path: None,
            environment: Vec::new(),
            secrets: RunnerSecrets::default(),
        });
        settings.max_runner_pods = u32::try_from(CAP).unwrap();
        settings.max_retries = 0;
        settings.retry = Policy { first: Duration::from_millis(50), max: Duration::from_millis(50) };
        let settings = Arc::new(settings);
        let turns = Turns::among_processes(client.clone(), name);
        let mut tasks = JoinSet::new();
        for shard in Shard::all(SHARDS) {
            let election = Election::new(client.clone(), name, TERMS).for_shard(shard);
            let leadership = election.leadership();
            let (client, code, datastore) = (client.clone(), code.clone(), datastore.clone());
            let (settings, turns) = (Arc::clone(&settings), turns.clone());
            let make = move || {
                let desk = Arc::new(Desk::over(Arc::new(code.clone()), Timestamp::now));
                let client = leadership.guard(client.clone());
                let settings = Arc::clone(&settings);
                let context = Context::new(client, datastore.clone(), desk, settings, Timestamp::now);
                Ok::<_, controllers::Error>(context.of_shard(shard, turns.clone()))
            };
            tasks.spawn(
                async move { controllers::lead(election, make, CancellationToken::new()).await.unwrap() },
            );
        }
        // Asking for a shard writes to a Lease that is another's and stays so: that is no term to be recorded.
        let asking = self.client();
        tasks.spawn(async move { controllers::balance(asking, name, TERMS, CancellationToken::new()).await });
        tasks
    }

    async fn declare(&self, name: &str) {
        for namespace in namespaces() {
            let mut layer = objects::layer(name, "code", name).unwrap();
            layer.metadata.namespace = Some(namespace.clone());
            let layers = Api::<TerraformLayer>::namespaced(self.client(), &namespace);
            layers.create(&PostParams::default(), &layer).await.unwrap();
        }
    }

    /// Until a run of this layer has ended in each namespace.
    async fn is_served(&self, layer: &str) {
        let runs = Api::<TerraformRun>::all(self.client());
        let served = async {
            loop {
                let all = runs.list(&ListParams::default()).await.unwrap();
                let ended = all.items.iter().filter(|run| run.spec.layer.name.as_str() == layer);
                let ended =
                    ended.filter(|run| run.status.as_ref().is_some_and(|status| status.result.is_some()));
                let found: BTreeSet<String> = ended.filter_map(ResourceExt::namespace).collect();
                if found.len() == NAMESPACES {
                    return;
                }
                tokio::time::sleep(POLL).await;
            }
        };
        within(&format!("{layer} was served in each namespace"), served).await;
    }

    /// How many shards each controller holds.
    async fn holders(&self) -> BTreeMap<String, usize> {
        let leases = Api::<Lease>::namespaced(self.client(), SYSTEM_NAMESPACE);
        let mut held = BTreeMap::new();
        for shard in Shard::all(SHARDS) {
            let lease = leases.get_opt(&shard.lease()).await.unwrap();
            let holder = lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default();
            *held.entry(holder).or_default() += 1;
        }
        held
    }

    async fn until_held(&self, expected: &[(&str, usize)]) {
        let expected: BTreeMap<String, usize> =
            expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let held = async {
            while self.holders().await != expected {
                tokio::time::sleep(POLL).await;
            }
        };
        within(&format!("shards are held so: {expected:?}"), held).await;
    }
}

fn namespaces() -> impl Iterator<Item = String> {
    (0..NAMESPACES).map(|number| format!("team-{number}"))
}

/// The repository: one branch, one file.
#[derive(Debug, Clone)]
pub(crate) struct Code {
    pub(crate) datastore: datastore::Client,
    pub(crate) file: std::path::PathBuf,
}

impl Reader for Code {
    fn heads<'a>(&'a self, _: &'a Place) -> BoxFuture<'a, Result<Heads, String>> {
        let head = CommitId::new("a".repeat(40)).unwrap();
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
            tokio::fs::write(&self.file, commit.as_str()).await.map_err(|error| error.to_string())?;
            let sha256 = Sha256::of(commit.as_str().as_bytes());
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

    fn image<'a>(&'a self, _: &'a Followed) -> BoxFuture<'a, Result<Found, String>> {
        Box::pin(async { Err("there are no images here".to_owned()) })
    }

    fn image_bundle<'a>(
        &'a self,
        _: &'a ImageAt,
        _: &'a ImageDigest,
    ) -> BoxFuture<'a, Result<Sha256, String>> {
        Box::pin(async { Err("there are no images here".to_owned()) })
    }
}

/// The node: runners end a moment after as many work as may, or when no further one has come for a while. Keeps the most that worked at a
/// time, in the order in which the API took the changes.
async fn node(client: Client, most: Arc<Mutex<usize>>) {
    let pods = Api::<Pod>::all(client.clone());
    let ours = WatchParams::default().labels(&format!("{}=terrane", label::MANAGED_BY)).timeout(280);
    let mut changes = pods.watch(&ours, "0").await.unwrap().boxed();
    let mut working: BTreeMap<(String, String), ()> = BTreeMap::new();
    loop {
        let patience =
            if working.len() < CAP { Duration::from_millis(1500) } else { Duration::from_millis(150) };
        match tokio::time::timeout(patience, changes.next()).await {
            Ok(Some(Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod)))) => {
                let key = (pod.namespace().unwrap(), pod.name_any());
                if can_still_work(&pod) {
                    working.insert(key, ());
                } else {
                    working.remove(&key);
                }
            }
            Ok(Some(Ok(WatchEvent::Deleted(pod)))) => {
                working.remove(&(pod.namespace().unwrap(), pod.name_any()));
            }
            Ok(Some(Ok(WatchEvent::Bookmark(_)))) => {}
            Ok(Some(Ok(WatchEvent::Error(error)))) => panic!("the watch of pods ended: {error:?}"),
            Ok(Some(Err(error))) => panic!("the watch of pods ended: {error}"),
            Ok(None) => panic!("the watch of pods ended"),
            Err(_) => {
                for (namespace, name) in working.keys() {
                    let ended = json!({ "status": { "phase": "Failed" } });
                    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
                    // It may have gone meanwhile.
                    let _ = pods.patch_status(name, &PatchParams::default(), &Patch::Merge(ended)).await;
                }
            }
        }
        let mut most = most.lock().unwrap();
        *most = working.len().max(*most);
    }
}

/// No write to an object was about to be sent after another controller's write of the Lease of its shard was answered.
fn check_one_leader(history: &[Write]) {
    let mut last: BTreeMap<String, &'static str> = BTreeMap::new();
    let mut counted = BTreeMap::<&str, usize>::new();
    for write in history {
        match write {
            Write::Lease { by, name } => {
                last.insert(name.clone(), by);
            }
            Write::Object { by, namespace } => {
                let Some(shard) = Shard::all(SHARDS).find(|shard| shard.holds(namespace)) else { continue };
                if let Some(leader) = last.get(&shard.lease()) {
                    assert_eq!(leader, by, "{by} wrote in {namespace}, of which {leader} was the leader");
                }
                *counted.entry(by).or_default() += 1;
            }
        }
    }
    assert_eq!(counted.len(), 2, "both acted: {counted:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_controllers_share_four_shards_under_one_limit_and_one_takes_over_when_the_other_dies() {
    let ground = Ground::new().await;
    let most = Arc::new(Mutex::new(0));
    let mut stage = JoinSet::new();
    stage.spawn(node(ground.client(), Arc::clone(&most)));
    let mut first = ground.process("first");
    ground.until_held(&[("first", 4)]).await;
    ground.declare("one").await;
    // The second comes into running work and is given its share.
    let mut second = ground.process("second");
    ground.until_held(&[("first", 2), ("second", 2)]).await;
    ground.is_served("one").await;
    ground.declare("two").await;
    ground.is_served("two").await;

    // It dies in mid-work, its Leases stand until they have run out.
    ground.declare("three").await;
    first.shutdown().await;
    ground.is_served("three").await;
    ground.until_held(&[("second", 4)]).await;
    second.shutdown().await;
    assert!(stage.try_join_next().is_none(), "the node saw everything");
    let most = *most.lock().unwrap();
    assert!((2..=CAP).contains(&most), "several runners worked at a time, and never more than may: {most}");
    check_one_leader(&ground.history.lock().unwrap());
    stage.shutdown().await;
    let Ground { server, .. } = ground;
    server.stop().await;
}
