//! A node of this crate against an API, and the few things every case does with it.

use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use node::config::{Admission, Config, Jobs, Schedule, ShimCommand};
use node::images::{Image, Images};
use node::isolation::{Isolation, UserRange};
use node::process;
use node::records::{Attempt, LogLimits, Records};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Much longer than anything takes; it only ends a wait for something broken.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Harness {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) config: Config,
    root: PathBuf,
    task: JoinSet<Result<(), node::Error>>,
}

fn unique(prefix: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let now = jiff::Timestamp::now().as_nanosecond();
    format!(
        "{prefix}-{}-{:x}-{}",
        std::process::id(),
        now & 0xffff_ffff,
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Users that no other test has at the same time: what runs as one of them is killed when the test ends.
pub(crate) fn users_of_its_own(isolation: Isolation) -> Isolation {
    use std::sync::atomic::{AtomicU32, Ordering};
    const FIRST: u32 = 2_067_200_000;
    const COUNT: u32 = 1024;
    const BLOCKS: u32 = 70_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    match isolation {
        // In a user namespace there may be no others; then the node's own choice has to do.
        Isolation::Users(range) if range.first >= 2_000_000_000 => {
            let block =
                std::process::id().wrapping_mul(64).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            Isolation::Users(UserRange { first: FIRST + block % BLOCKS * COUNT, count: COUNT })
        }
        other => other,
    }
}

impl Harness {
    /// A running node and a namespace for it alone. `change` has the last word about the configuration.
    pub(crate) async fn new(client: Client, change: impl FnOnce(&mut Config)) -> Harness {
        let _ = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_test_writer().try_init();
        let root = std::env::temp_dir().join(unique("terrane-node-test"));
        std::fs::create_dir(&root).unwrap();
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755)).unwrap();
        // What is inside the state directory is closed to others, as a data directory is.
        let state = root.join("data").join("node");
        std::fs::create_dir_all(&state).unwrap();
        std::fs::set_permissions(root.join("data"), std::fs::Permissions::from_mode(0o700)).unwrap();
        let program = PathBuf::from(env!("CARGO_BIN_EXE_terrane-node"));
        let mut config = Config {
            name: unique("node"),
            isolation: users_of_its_own(Isolation::detect(&state)),
            pods: root.join("pods"),
            state,
            shim: ShimCommand { program, args: vec!["shim".into()] },
            images: Images::new(vec![]).with("example.org/tool", Image::default()),
            readable: Vec::new(),
            schedule: Schedule::LeaveToScheduler,
            jobs: Jobs::LeaveToController,
            admission: Admission::Everything,
            max_pods: 10,
            log: LogLimits::default(),
        };
        change(&mut config);
        let namespace = unique("pods");
        let mut harness = Harness { client, namespace, config, root, task: JoinSet::new() };
        harness.make_namespace().await;
        harness.start().await;
        harness
    }

    async fn make_namespace(&self) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": self.namespace}})).unwrap();
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        until("the default service account is there", || async {
            accounts.get_opt("default").await.unwrap()
        })
        .await;
    }

    pub(crate) async fn start(&mut self) {
        // A process that another test is just starting may still hold a copy of the old lock, until it executes.
        let node =
            until("the old node's lock is free", || async { node::Node::open(self.config.clone()).ok() })
                .await;
        self.task.spawn(node.run(self.client.clone()));
    }

    /// As if the process had been killed: nothing is said to anybody, the shims stay.
    pub(crate) async fn crash(&mut self) {
        self.task.shutdown().await;
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// A pod on this node with one container that runs a shell script.
    pub(crate) fn script(&self, name: &str, script: &str) -> Value {
        json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": self.config.name,
                "restartPolicy": "Never",
                "serviceAccountName": "default",
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 30,
                "containers": [{"name": "main", "image": "terrane.dev/local", "command": ["sh", "-c", script]}]
            }
        })
    }

    pub(crate) async fn create(&self, pod: Value) -> Pod {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.pods().create(&PostParams::default(), &pod).await.unwrap()
    }

    pub(crate) async fn delete(&self, name: &str, grace: u32) {
        let params = DeleteParams { grace_period_seconds: Some(grace), ..DeleteParams::default() };
        self.pods().delete(name, &params).await.unwrap();
    }

    pub(crate) async fn pod(&self, name: &str) -> Value {
        serde_json::to_value(self.pods().get(name).await.unwrap()).unwrap()
    }

    /// The pod once `pointer` has this value.
    pub(crate) async fn wait(&self, name: &str, pointer: &str, value: impl Into<Value>) -> Value {
        let value = value.into();
        let mut last = Value::Null;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            last = self.pod(name).await;
            if last.pointer(pointer) == Some(&value) {
                return last;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("{pointer} of pod {name} is not {value}: {:#}", last["status"]);
    }

    /// The Event about a pod with this reason and this message, once it is there.
    pub(crate) async fn told(&self, pod: &str, reason: &str, message: &str) -> Event {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        until(&format!("{pod} has the event {reason}: {message}"), || async {
            let all = events.list(&ListParams::default()).await.unwrap();
            all.items.into_iter().find(|event| {
                event.regarding.as_ref().and_then(|regarding| regarding.name.as_deref()) == Some(pod)
                    && event.reason.as_deref() == Some(reason)
                    && event.note.as_deref() == Some(message)
            })
        })
        .await
    }

    pub(crate) async fn gone(&self, name: &str) {
        until("the pod is gone", || async {
            self.pods().get_opt(name).await.unwrap().is_none().then_some(())
        })
        .await;
    }

    pub(crate) async fn log(&self, pod: &Value, options: node::logs::Options) -> String {
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        let pieces: Vec<bytes::Bytes> = node::logs::open(&self.config.state, uid, "main", options)
            .await
            .unwrap()
            .try_collect()
            .await
            .unwrap();
        String::from_utf8(pieces.concat()).unwrap()
    }

    /// The text of a file that a container writes, once it ends with a line break.
    pub(crate) async fn file(&self, path: &Path) -> String {
        until(&format!("{} is written", path.display()), || async {
            std::fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'))
        })
        .await
    }

    pub(crate) fn records(&self) -> Records {
        Records::open(&self.config.state).unwrap()
    }

    pub(crate) fn running(&self, pod: &Value) -> (process::Process, process::Process) {
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        match self.records().attempt(uid, "main", 0).observe().unwrap() {
            Some(Attempt::Running { shim, main, .. }) => (shim, main),
            other => panic!("it does not run: {other:?}"),
        }
    }

    /// Whatever still runs for this node goes with the test, passed or failed, also what has lost its shim.
    fn kill_everything(&self) -> usize {
        let table = process::table().unwrap_or_default();
        let sessions = self.shim_sessions();
        let own = |entry: &&process::Entry| {
            let arguments = std::fs::read(format!("/proc/{}/cmdline", entry.process.pid)).unwrap_or_default();
            let of_the_user = match self.config.isolation {
                Isolation::Users(range) => (range.first..range.first + range.count).contains(&entry.uid),
                Isolation::Landlock | Isolation::None { .. } => false,
            };
            of_the_user
                || sessions.contains(&entry.session)
                || String::from_utf8_lossy(&arguments).contains(&*self.root.to_string_lossy())
        };
        let found: Vec<&process::Entry> =
            table.iter().filter(|entry| entry.state == process::State::Alive).filter(own).collect();
        for entry in &found {
            for below in process::descendants(&table, entry.process.pid) {
                let _ = below.process.signal(Signal::KILL);
            }
            let _ = entry.process.signal(Signal::KILL);
        }
        found.len()
    }

    /// A shim leads a session, and what it starts stays in it unless it asks for another.
    fn shim_sessions(&self) -> Vec<i32> {
        // Opening makes the directory, and it may be gone for good already.
        if !self.config.state.exists() {
            return Vec::new();
        }
        let Ok(records) = Records::open(&self.config.state) else { return Vec::new() };
        let mut sessions = Vec::new();
        for pod in records.pod_list().unwrap_or_default() {
            for container in records.containers(&pod.uid).unwrap_or_default() {
                for number in records.attempts(&pod.uid, &container).unwrap_or_default() {
                    let state = records.attempt(&pod.uid, &container, number).state();
                    sessions.extend(state.ok().flatten().map(|state| state.shim.pid));
                }
            }
        }
        sessions
    }

    pub(crate) fn volume(&self, pod: &Value, name: &str) -> PathBuf {
        self.config.pods.join(pod["metadata"]["uid"].as_str().unwrap()).join("volumes").join(name)
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.task.abort_all();
        // The node may be in the middle of a step, and a shim about to write: until both are over, the directory can
        // come back.
        for _ in 0..500 {
            let gone = !self.root.exists();
            if self.kill_everything() == 0 {
                let _ = std::fs::remove_dir_all(&self.root);
            }
            let clean = gone && !self.root.exists();
            if clean && self.task.try_join_next().is_none() && self.task.is_empty() {
                return;
            }
            while self.task.try_join_next().is_some() {}
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }
}

/// Looks again and again until there is something.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "waited too long until {what}");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

/// A client to which the API gives tokens that seem to end soon, so that they have to be renewed while a test looks.
pub(crate) fn with_tokens_that_end_soon(client: Client) -> Client {
    const LIFE: jiff::SignedDuration = jiff::SignedDuration::from_secs(5);
    let shorten = move |request: http::Request<kube::client::Body>| {
        let client = client.clone();
        async move {
            let is_token = request.method() == http::Method::POST && request.uri().path().ends_with("/token");
            let answer = client.send(request).await?;
            if !is_token || !answer.status().is_success() {
                return Ok(answer);
            }
            let (parts, body) = answer.into_parts();
            let mut token: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap();
            let end = jiff::Timestamp::now().checked_add(LIFE).unwrap();
            token["status"]["expirationTimestamp"] = json!(end.to_string());
            let mut parts = parts;
            parts.headers.remove(http::header::CONTENT_LENGTH);
            Ok::<_, kube::Error>(http::Response::from_parts(
                parts,
                kube::client::Body::from(token.to_string().into_bytes()),
            ))
        }
    };
    Client::new(tower::service_fn(shorten), "default")
}
