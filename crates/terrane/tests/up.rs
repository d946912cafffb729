//! `terrane up` as a person has it: the real binary, real git, the real tool.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use api::layer::LayerState;
use api::run::Action;
use api::{TerraformLayer, TerraformRepository, TerraformRun, condition};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use testkit::process::{Guarded, Scratch};

const BINARY: &str = env!("CARGO_BIN_EXE_terrane");
/// Far beyond what anything here takes, even on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// A running `terrane up` on a data directory of its own. Pods' files lie outside that directory when pods have users of their own.
struct Terrane {
    process: Option<Guarded>,
    root: Scratch,
    /// The same at every start: runners that outlive a crash report to where they were told.
    service: SocketAddr,
    starts: u32,
}

impl Terrane {
    fn new() -> Self {
        let service = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Self { process: None, root: Scratch::new("terrane-up-").unwrap(), service, starts: 0 }
    }

    fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    async fn start(&mut self, flags: &[&str]) -> Client {
        let data = self.data();
        let kubeconfig = data.join("kubeconfig");
        let _ = fs::remove_file(&kubeconfig);
        let service = self.service.to_string();
        let mut arguments = vec!["up", "--listen", &service, "--api-listen", "127.0.0.1:0", "--data-dir"];
        arguments.push(data.to_str().unwrap());
        arguments.extend(flags);
        self.starts += 1;
        let log = self.root.path().join(format!("up-{}.log", self.starts));
        let mut process = Guarded::start(Path::new(BINARY), &arguments, log).unwrap();
        until("the kubeconfig is written", || {
            process.ensure_running().unwrap();
            std::future::ready(kubeconfig.exists().then_some(()))
        })
        .await;
        self.process = Some(process);
        let config = Kubeconfig::read_from(&kubeconfig).unwrap();
        let config =
            kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
        Client::try_from(config).unwrap()
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.process.as_ref().unwrap().pid()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    async fn ended(&mut self) -> std::process::ExitStatus {
        let process = self.process.as_mut().unwrap();
        let status = until("terrane up has ended", || std::future::ready(process.exited().unwrap())).await;
        self.process = None;
        status
    }

    fn command(&self, arguments: &[&str]) -> Output {
        Command::new(BINARY)
            .args(arguments)
            .env("KUBECONFIG", self.data().join("kubeconfig"))
            .output()
            .unwrap()
    }
}

impl Drop for Terrane {
    fn drop(&mut self) {
        let state = self.data().join("node");
        let pods = node::config::pods_directory(&state, &node::isolation::Isolation::detect(&state));
        let _ = fs::remove_dir_all(pods);
    }
}

async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut probe: impl FnMut() -> F) -> T {
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

async fn layer_until(
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

fn is(kind: &'static str) -> impl Fn(&TerraformLayer) -> bool {
    move |layer| layer.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, kind))
}

fn why(layer: &TerraformLayer) -> String {
    layer.status.as_ref().and_then(|status| status.why.clone()).unwrap_or_default()
}

fn git(root: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .current_dir(root)
        .args(["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "init.defaultBranch=main"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn the_demo_is_planned_applied_approved_and_follows_a_commit() {
    let mut terrane = Terrane::new();
    let client = terrane.start(&["--demo"]).await;
    layer_until(&client, "network", "applied", is("Ready")).await;
    layer_until(&client, "app", "applied", is("Ready")).await;

    let database = layer_until(&client, "database", "planned", |layer| why(layer).contains("3 to add")).await;
    assert!(why(&database).ends_with("terrane approve database"), "{}", why(&database));
    let output = terrane.command(&["approve", "database"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    layer_until(&client, "database", "applied after the approval", is("Ready")).await;

    let broken = layer_until(&client, "broken", "failed", is("Stalled")).await;
    assert!(why(&broken).contains("Missing required argument (main.tf:2)"), "{}", why(&broken));

    let demo = terrane.data().join("demo");
    fs::write(
        demo.join("modules/service/main.tf"),
        "variable \"name\" {}\nresource \"terraform_data\" \"other\" {}\n",
    )
    .unwrap();
    git(&demo, &["commit", "--quiet", "--all", "--message=Change the shared module"]);
    let head = git(&demo, &["rev-parse", "HEAD"]);
    layer_until(&client, "app", "applied at the new commit", |layer| {
        is("Ready")(layer)
            && layer.status.as_ref().unwrap().revision.applied.as_ref().is_some_and(|c| c.as_str() == head)
    })
    .await;
    let network = layer_until(&client, "network", "still applied", is("Ready")).await;
    assert_ne!(
        network.status.unwrap().revision.relevant.unwrap().as_str(),
        head,
        "the commit does not touch network"
    );

    drift_is_told_and_put_right(&terrane, &client).await;

    let table = terrane.command(&["get", "layers"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.lines().any(|line| line.starts_with("app ") && line.contains("in sync")), "{table}");
    let missing = terrane.command(&["approve", "databse"]);
    assert_eq!(missing.status.code(), Some(1));
    let error = String::from_utf8(missing.stderr).unwrap();
    assert_eq!(error.trim(), "error: layer default/databse not found; did you mean database?");

    old_runs_go_with_what_they_left(&terrane, &client).await;
    a_deleted_layer_takes_its_infrastructure_along(&terrane, &client).await;

    terrane.signal(Signal::TERM);
    assert_eq!(terrane.ended().await.code(), Some(0));
}

/// The layer `motd` keeps a file. First it only reports what somebody did to it, then it may put it right.
async fn drift_is_told_and_put_right(terrane: &Terrane, client: &Client) {
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    layer_until(client, "motd", "applied", is("Ready")).await;
    let file = terrane.data().join("demo-world/motd");
    let kept = fs::read_to_string(&file).unwrap();
    let on_drift = |wish: &str| Patch::Merge(json!({ "spec": { "drift": { "onDrift": wish } } }));
    layers.patch("motd", &PatchParams::default(), &on_drift("report")).await.unwrap();
    fs::write(&file, "changed by hand\n").unwrap();
    let drifted = layer_until(client, "motd", "drift is reported", |layer| {
        is("Drifted")(layer) && why(layer).contains("terrane approve motd")
    })
    .await;
    assert!(why(&drifted).starts_with("drifted, terraform_data.motd differs in"), "{}", why(&drifted));
    let status = drifted.status.unwrap();
    assert_eq!(status.state, Some(LayerState::ApplyNeeded));
    let found = status.drift.unwrap();
    let [resource] = found.resources.as_slice() else { panic!("{found:?}") };
    let attribute = resource.attributes.iter().find(|a| a.name == "triggers_replace").unwrap();
    assert_eq!(
        (attribute.expected.as_str(), attribute.found.as_str()),
        ("{\"times_made\":2}", "{\"times_made\":1}")
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "changed by hand\n", "it was only reported");

    layers.patch("motd", &PatchParams::default(), &on_drift("revert")).await.unwrap();
    layer_until(client, "motd", "drift is reverted", |layer| is("Ready")(layer) && !is("Drifted")(layer))
        .await;
    assert_eq!(fs::read_to_string(&file).unwrap(), kept);
}

/// `motd` keeps three runs and is looked at all the time.
async fn old_runs_go_with_what_they_left(terrane: &Terrane, client: &Client) {
    let runs = Api::<TerraformRun>::namespaced(client.clone(), "default");
    let of_motd = ListParams::default().fields("spec.layer.name=motd");
    let newest = runs.list(&of_motd).await.unwrap().items.into_iter();
    // The newest that nothing rests on in the end: a plan, because the last apply is kept.
    let plan = newest
        .filter(|run| run.spec.action == Action::Plan)
        .max_by_key(|run| run.metadata.creation_timestamp.as_ref().map(|t| t.0))
        .unwrap();
    let left = terrane.data().join("artefacts/runs").join(plan.metadata.uid.as_deref().unwrap());
    until("the run and what it left are gone", || async {
        let found = runs.get_opt(plan.metadata.name.as_deref().unwrap()).await.ok()?;
        (found.is_none() && !left.exists()).then_some(())
    })
    .await;
    let kept = runs.list(&of_motd).await.unwrap().items;
    assert!(kept.iter().any(|run| run.spec.action == Action::Apply), "the last apply is kept");
}

/// `motd` has `deletionPolicy: Destroy`. Its repository is deleted first, as `kubectl delete -f` may do.
async fn a_deleted_layer_takes_its_infrastructure_along(terrane: &Terrane, client: &Client) {
    let file = terrane.data().join("demo-world/motd");
    assert!(file.exists());
    let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
    repositories.delete("demo", &DeleteParams::default()).await.unwrap();
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    for name in ["motd", "network"] {
        layers.delete(name, &DeleteParams::default()).await.unwrap();
        until(&format!("{name} is let go"), || async {
            layers.get_opt(name).await.ok()?.is_none().then_some(())
        })
        .await;
    }
    assert!(!file.exists(), "what the layer made is destroyed with it");
    let runs = Api::<TerraformRun>::namespaced(client.clone(), "default");
    let left = runs.list(&ListParams::default().fields("spec.layer.name=motd")).await.unwrap();
    assert!(left.items.is_empty(), "{:?}", left.items);
}

/// A layer whose apply writes a line to `marks` and then waits for `gate`.
async fn declare_slow_layer(client: &Client, root: &Path, world: &Path) {
    let code = format!(
        "resource \"terraform_data\" \"slow\" {{\n  provisioner \"local-exec\" {{\n    command = \"echo applied >> {0}/marks; while [ ! -e {0}/gate ]; do sleep 0.1; done\"\n  }}\n}}\n",
        world.display()
    );
    fs::create_dir_all(root.join("slow")).unwrap();
    fs::write(root.join("slow/main.tf"), code).unwrap();
    git(root, &["init", "--quiet"]);
    git(root, &["add", "--all"]);
    git(root, &["commit", "--quiet", "--message=Start"]);
    let repository = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRepository", "metadata": { "name": "slow" },
        "spec": { "repository": { "url": format!("file://{}", root.display()) }, "pollInterval": "1s" },
    });
    let layer = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": "slow" },
        "spec": { "repository": { "name": "slow" }, "branch": "main", "path": "slow", "remediationStrategy": { "autoApply": true } },
    });
    let post = PostParams::default();
    let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
    repositories.create(&post, &serde_json::from_value(repository).unwrap()).await.unwrap();
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    layers.create(&post, &serde_json::from_value(layer).unwrap()).await.unwrap();
}

#[tokio::test]
async fn killed_in_mid_apply_it_takes_the_apply_up_again_and_never_starts_it_twice() {
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    // Pods have users of their own: what they leave for us to see lies where everybody may write.
    let world = tempfile::tempdir().unwrap();
    fs::set_permissions(world.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let source = Scratch::new("terrane-source-").unwrap();
    declare_slow_layer(&client, source.path(), world.path()).await;
    let marks = world.path().join("marks");
    until("the apply has begun", || std::future::ready(marks.exists().then_some(()))).await;

    terrane.signal(Signal::KILL);
    terrane.ended().await;
    let client = terrane.start(&[]).await;
    fs::write(world.path().join("gate"), "").unwrap();
    layer_until(&client, "slow", "applied", is("Ready")).await;

    assert_eq!(fs::read_to_string(&marks).unwrap(), "applied\n");
    let runs = Api::<TerraformRun>::namespaced(client.clone(), "default")
        .list(&ListParams::default())
        .await
        .unwrap();
    let applies: Vec<&TerraformRun> =
        runs.items.iter().filter(|run| run.spec.action == Action::Apply).collect();
    let attempts: Vec<usize> =
        applies.iter().map(|run| run.status.as_ref().unwrap().attempts.len()).collect();
    assert_eq!(attempts, [1], "one apply, one attempt");

    terrane.signal(Signal::TERM);
    assert_eq!(terrane.ended().await.code(), Some(0));
}

#[test]
fn what_cannot_work_is_refused_in_one_sentence() {
    let output = Command::new(BINARY).args(["up", "--listen", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("choose a loopback address"), "{error}");
    let help = Command::new(BINARY).args(["up", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for flag in ["--data-dir", "--listen", "--api-listen", "--demo"] {
        assert!(help.contains(flag), "{help}");
    }
}
