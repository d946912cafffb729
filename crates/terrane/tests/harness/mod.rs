//! `terrane up` as a child of the test: started, signalled, started again, and gone with everything that it ran.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::run::Action;
use api::{TerraformLayer, TerraformRepository, TerraformRun, condition};
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use node::isolation::Isolation;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use testkit::process::{Guarded, Scratch};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_terrane");
/// Far beyond what anything here takes, even on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(180);

/// A running `terrane up` on a data directory of its own. Pods' files lie outside that directory when pods have users of their own.
pub(crate) struct Terrane {
    process: Option<Guarded>,
    root: Scratch,
    user: Option<u32>,
    binary: PathBuf,
    starts: u32,
}

impl Terrane {
    pub(crate) fn new() -> Self {
        let root = Scratch::new("terrane-up-").unwrap();
        Self { process: None, root, user: None, binary: PathBuf::from(BINARY), starts: 0 }
    }

    /// As an ordinary user would have it. Only root can start it so.
    pub(crate) fn as_user(user: u32) -> Self {
        let mut terrane = Self::new();
        let root = terrane.root.path();
        std::os::unix::fs::chown(root, Some(user), Some(user)).unwrap();
        if !others_can_execute(Path::new(BINARY)) {
            let copy = root.join("terrane");
            fs::copy(BINARY, &copy).unwrap();
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
            terrane.binary = copy;
        }
        terrane.user = Some(user);
        terrane
    }

    /// Starts it from now on with one more variable in its environment, which no command line shows.
    pub(crate) fn with_variable(&mut self, name: &str, value: &str) {
        let script = self.root.path().join(format!("with-{name}"));
        let text =
            format!("#!/bin/sh\n{name}={value}; export {name}\nexec {} \"$@\"\n", self.binary.display());
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        self.binary = script;
    }

    /// With a program of `tools/setup` on its path, where pods that have users of their own can execute it.
    pub(crate) fn with_program(self, name: &str) -> Self {
        let programs = self.programs();
        fs::create_dir_all(&programs).unwrap();
        fs::copy(testkit::tools::tool(name).unwrap(), programs.join(name)).unwrap();
        for path in [self.root.path(), &programs, &programs.join(name)] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        self
    }

    /// The same with a program of the test's own.
    pub(crate) fn with_script(self, name: &str, text: &str) -> Self {
        let programs = self.programs();
        fs::create_dir_all(&programs).unwrap();
        fs::write(programs.join(name), text).unwrap();
        for path in [self.root.path(), &programs, &programs.join(name)] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        self
    }

    fn programs(&self) -> PathBuf {
        self.root.path().join("programs")
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.root.path().join(format!("up-{}.log", self.starts))
    }

    /// What the newest start has printed so far, its log lines included.
    pub(crate) fn printed(&self) -> String {
        fs::read_to_string(self.log()).unwrap()
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    /// Another role of the binary on the same API, serving on `listen`.
    pub(crate) fn role(&self, role: &str, listen: SocketAddr, more: Vec<String>) -> Guarded {
        let mut arguments = vec![
            format!("KUBECONFIG={}", self.data().join("kubeconfig").display()),
            BINARY.to_owned(),
            role.to_owned(),
            format!("--listen={listen}"),
        ];
        arguments.extend(more);
        let log = self.root.path().join(format!("{role}.log"));
        Guarded::start(Path::new("/usr/bin/env"), &arguments, log).unwrap()
    }

    /// On ports that the kernel chooses, others at every start.
    pub(crate) async fn start(&mut self, flags: &[&str]) -> Client {
        let kubeconfig = self.data().join("kubeconfig");
        let _ = fs::remove_file(&kubeconfig);
        self.launch(flags);
        until("the kubeconfig is written", || {
            self.process.as_mut().unwrap().ensure_running().unwrap();
            std::future::ready(kubeconfig.exists().then_some(()))
        })
        .await;
        let config = Kubeconfig::read_from(&kubeconfig).unwrap();
        let config =
            kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
        Client::try_from(config).unwrap()
    }

    /// The same, without waiting for anything.
    pub(crate) fn launch(&mut self, flags: &[&str]) {
        let data = self.data();
        self.starts += 1;
        let home = format!("HOME={}", self.root.path().display());
        let mut line: Vec<String> = match self.user {
            Some(user) => ["setpriv", "--reuid", &user.to_string(), "--regid", &user.to_string()]
                .into_iter()
                .chain(["--clear-groups", "env", &home])
                .map(str::to_owned)
                .collect(),
            None => vec!["env".to_owned()],
        };
        if self.programs().exists() {
            #[expect(clippy::disallowed_methods, reason = "the child's path begins with the one of the test")]
            let path = std::env::var("PATH").unwrap();
            line.push(format!("PATH={path}:{}", self.programs().display()));
        }
        line.push(self.binary.display().to_string());
        let fixed = ["up", "--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0", "--data-dir"];
        line.extend(fixed.into_iter().map(str::to_owned));
        line.push(data.display().to_string());
        line.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let program = line.remove(0);
        self.process = Some(Guarded::start(Path::new(&program), &line, self.log()).unwrap());
    }

    /// Where this start serves people, as it says itself.
    pub(crate) async fn service(&self) -> SocketAddr {
        until("it says where its service is", || {
            let log = fs::read_to_string(self.log()).unwrap_or_default();
            let line =
                log.lines().find_map(|line| line.trim().strip_prefix("service  http://")?.parse().ok());
            std::future::ready(line)
        })
        .await
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().pid()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    pub(crate) async fn ended(&mut self) -> std::process::ExitStatus {
        let process = self.process.as_mut().unwrap();
        let status = until("terrane up has ended", || std::future::ready(process.exited().unwrap())).await;
        self.process = None;
        status
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Output {
        Command::new(BINARY)
            .args(arguments)
            .env("KUBECONFIG", self.data().join("kubeconfig"))
            .output()
            .unwrap()
    }

    /// Where the files of its pods are.
    pub(crate) fn pods(&self) -> PathBuf {
        let state = self.data().join("node");
        let isolation = match self.user {
            Some(_) => Isolation::detect_without_root(),
            None => Isolation::detect(&state),
        };
        node::config::pods_directory(&state, &isolation)
    }

    /// Pods outlive `terrane up`, and would outlive a test that failed.
    fn kill_pods(&self) {
        let state = self.data().join("node");
        if !state.exists() {
            return;
        }
        let Ok(records) = node::records::Records::open(&state) else { return };
        let table = node::process::table().unwrap_or_default();
        for pod in records.pod_list().unwrap_or_default() {
            for container in records.containers(&pod.uid).unwrap_or_default() {
                for number in records.attempts(&pod.uid, &container).unwrap_or_default() {
                    let attempt = records.attempt(&pod.uid, &container, number);
                    let running = attempt.exit().ok().flatten().is_none();
                    let Some(found) = attempt.state().ok().flatten().filter(|_| running) else { continue };
                    for below in node::process::descendants(&table, found.shim.pid) {
                        let _ = below.process.signal(Signal::KILL);
                    }
                    let _ = found.shim.signal(Signal::KILL);
                }
            }
        }
    }
}

impl Drop for Terrane {
    fn drop(&mut self) {
        self.process = None;
        self.kill_pods();
        let _ = fs::remove_dir_all(self.pods());
    }
}

fn others_can_execute(program: &Path) -> bool {
    let program = program.canonicalize().unwrap();
    program.ancestors().all(|path| fs::metadata(path).unwrap().mode() & 0o001 != 0)
}

pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut probe: impl FnMut() -> F) -> T {
    let wait = async {
        loop {
            if let Some(found) = probe().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait)
        .await
        .unwrap_or_else(|_| panic!("not so within {DEADLINE:?}: {what}"))
}

pub(crate) async fn layer_until(
    client: &Client,
    name: &str,
    what: &str,
    holds: impl Fn(&TerraformLayer) -> bool,
) -> TerraformLayer {
    let api = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    until(&format!("{name}: {what}"), || async {
        let layer = api.get_opt(name).await.ok().flatten()?;
        holds(&layer).then_some(layer)
    })
    .await
}

pub(crate) fn is(kind: &'static str) -> impl Fn(&TerraformLayer) -> bool {
    move |layer| layer.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, kind))
}

pub(crate) fn why(layer: &TerraformLayer) -> String {
    layer.status.as_ref().and_then(|status| status.why.clone()).unwrap_or_default()
}

pub(crate) fn git(root: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .current_dir(root)
        .args(["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "init.defaultBranch=main"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A repository with one root module of this code, and a layer that applies it by itself; all three are called `name`.
pub(crate) async fn declare_layer(client: &Client, name: &str, code: &str) -> Scratch {
    let source = declare_repository(client, name, &[(&format!("{name}/main.tf"), code)]).await;
    declare_path(client, name, name, name).await;
    source
}

/// Makes a directory a repository whose first commit has these files.
pub(crate) fn commit_files(root: &Path, files: &[(&str, &str)]) {
    for (path, content) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    git(root, &["init", "--quiet"]);
    git(root, &["add", "--all"]);
    git(root, &["commit", "--quiet", "--message=Start"]);
}

/// A repository of these files.
pub(crate) async fn declare_repository(client: &Client, name: &str, files: &[(&str, &str)]) -> Scratch {
    let source = Scratch::new("terrane-source-").unwrap();
    let root = source.path();
    commit_files(root, files);
    let repository = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRepository", "metadata": { "name": name },
        "spec": { "repository": { "url": format!("file://{}", root.display()) }, "pollInterval": "1s" },
    });
    let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
    let repository = serde_json::from_value(repository).unwrap();
    repositories.create(&PostParams::default(), &repository).await.unwrap();
    source
}

/// A layer that applies a path of a repository by itself.
pub(crate) async fn declare_path(client: &Client, repository: &str, name: &str, path: &str) {
    let layer = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": name },
        "spec": { "repository": { "name": repository }, "branch": "main", "path": path, "remediationStrategy": { "autoApply": true } },
    });
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    layers.create(&PostParams::default(), &serde_json::from_value(layer).unwrap()).await.unwrap();
}

/// The runs of one action, in no order.
pub(crate) async fn runs(client: &Client, action: Action) -> Vec<TerraformRun> {
    let runs = Api::<TerraformRun>::namespaced(client.clone(), "default");
    let all = runs.list(&ListParams::default()).await.unwrap();
    all.items.into_iter().filter(|run| run.spec.action == action).collect()
}

/// Lets an apply wait for the test: its provisioner connects, and goes on when the gate is opened. A port of loopback, because a
/// confined pod can write to no file that the test could see.
pub(crate) struct Gate {
    address: SocketAddr,
    waiting: Arc<Mutex<Vec<TcpStream>>>,
}

impl Gate {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let waiting = Arc::new(Mutex::new(Vec::new()));
        let arrived = waiting.clone();
        std::thread::spawn(move || {
            for visitor in listener.incoming().map_while(Result::ok) {
                arrived.lock().unwrap().push(visitor);
            }
        });
        Self { address, waiting }
    }

    /// A resource whose creation waits at the gate.
    pub(crate) fn code(&self) -> String {
        let (host, port) = (self.address.ip(), self.address.port());
        format!(
            "resource \"terraform_data\" \"slow\" {{\n  provisioner \"local-exec\" {{\n    interpreter = [\"bash\", \"-c\"]\n    command     = \"exec 3<>/dev/tcp/{host}/{port}; read -r word <&3; test \\\"$word\\\" = go\"\n  }}\n}}\n"
        )
    }

    /// How many came, once one has.
    pub(crate) async fn visitors(&self) -> usize {
        until("the apply has begun", || {
            let count = self.waiting.lock().unwrap().len();
            std::future::ready((count > 0).then_some(count))
        })
        .await
    }

    /// How many came so far.
    pub(crate) fn arrived(&self) -> usize {
        self.waiting.lock().unwrap().len()
    }

    pub(crate) fn open(&self) {
        for visitor in self.waiting.lock().unwrap().iter_mut() {
            // Those whose apply was broken off are gone.
            let _ = visitor.write_all(b"go\n");
        }
    }

    /// Whether the provisioner of the first visitor still waits there.
    pub(crate) fn is_waited_at(&self) -> bool {
        let waiting = self.waiting.lock().unwrap();
        let Some(mut visitor) = waiting.first() else { return false };
        visitor.set_nonblocking(true).unwrap();
        let found = visitor.read(&mut [0; 1]);
        visitor.set_nonblocking(false).unwrap();
        matches!(found, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    }
}

/// A run of a layer that fits, as soon as there is one.
pub(crate) async fn run_until(
    client: &Client,
    layer: &str,
    what: &str,
    fits: impl Fn(&TerraformRun) -> bool,
) -> TerraformRun {
    let api = Api::<TerraformRun>::namespaced(client.clone(), "default");
    until(&format!("{layer}: {what}"), || async {
        let runs = api.list(&ListParams::default()).await.ok()?;
        runs.items.into_iter().find(|run| run.spec.layer.name.as_str() == layer && fits(run))
    })
    .await
}

/// A port that was free a moment ago.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
