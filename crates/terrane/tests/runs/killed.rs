//! Processes that die at the worst moment, by the real binary and the real tool: `terrane up` again and again under a busy
//! workload, a runner, the tool itself, and the datastore while an apply needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::run::{Action, RunState};
use api::text::Sha256;
use api::{TerraformLayer, TerraformRepository, TerraformRun};
use datastore::client::TokenSource;
use datastore::{Attempt, StateId};
use futures::TryStreamExt;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use testkit::process::Scratch;

use crate::harness::{Gate, Terrane, declare_layer, git, is, layer_until, run_until, until};

/// For applies that wait at their gates all at the same time.
const ROOM: &[&str] = &["--max-runner-pods", "8"];
const KILLS: u32 = 30;
/// One life in so many ends before it is known to be ready.
const KILLED_YOUNG: u32 = 4;
const YOUTH_MILLISECONDS: Range<u64> = 0..600;
const LIFE_MILLISECONDS: Range<u64> = 0..1500;
const LAYERS: [&str; 4] = ["amber", "birch", "cedar", "dune"];

/// Keeps what each apply says that it did: one line from each provisioner that ran, over loopback, because a confined pod can write
/// to no file that the test could see.
struct Ledger {
    address: SocketAddr,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Ledger {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = lines.clone();
        std::thread::spawn(move || {
            for visitor in listener.incoming().map_while(Result::ok) {
                let mut line = String::new();
                let mut reader = BufReader::new(visitor);
                if reader.read_line(&mut line).is_ok() && line.ends_with('\n') {
                    kept.lock().unwrap().push(line.trim().to_owned());
                    // Whoever asked may have been killed meanwhile.
                    let _ = reader.into_inner().write_all(b"go\n");
                }
            }
        });
        Self { address, lines }
    }

    /// A resource that is made anew for each value, and says so.
    fn code(&self, layer: &str, value: u32) -> String {
        let (host, port) = (self.address.ip(), self.address.port());
        format!(
            "resource \"terraform_data\" \"step\" {{\n  triggers_replace = {value}\n  provisioner \"local-exec\" {{\n    interpreter = [\"bash\", \"-c\"]\n    command     = \"exec 3<>/dev/tcp/{host}/{port}; echo '{layer} {value}' >&3; read -r word <&3; test \\\"$word\\\" = go\"\n  }}\n}}\n"
        )
    }

    /// How often each line came.
    fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for line in self.lines.lock().unwrap().iter() {
            *counts.entry(line.clone()).or_default() += 1;
        }
        counts
    }
}

/// A repository whose layers change with every commit.
struct Busy {
    source: Scratch,
    ledger: Ledger,
    values: BTreeMap<&'static str, u32>,
}

impl Busy {
    fn new() -> Self {
        let busy = Self {
            source: Scratch::new("terrane-source-").unwrap(),
            ledger: Ledger::new(),
            values: LAYERS.map(|layer| (layer, 0)).into(),
        };
        git(busy.source.path(), &["init", "--quiet"]);
        for layer in LAYERS {
            fs::create_dir_all(busy.source.path().join(layer)).unwrap();
            busy.write(layer);
        }
        busy.commit("Start");
        busy
    }

    fn write(&self, layer: &str) {
        let code = self.ledger.code(layer, self.values[layer]);
        fs::write(self.source.path().join(layer).join("main.tf"), code).unwrap();
    }

    fn commit(&self, message: &str) {
        git(self.source.path(), &["add", "--all"]);
        git(self.source.path(), &["commit", "--quiet", &format!("--message={message}")]);
    }

    fn change(&mut self, layer: &'static str) {
        *self.values.get_mut(layer).unwrap() += 1;
        self.write(layer);
        self.commit("Change");
    }

    /// The commit that touched a layer last.
    fn newest(&self, layer: &str) -> String {
        git(self.source.path(), &["log", "-1", "--format=%H", "--", layer])
    }

    async fn declare(&self, client: &Client) {
        let post = PostParams::default();
        let repository = json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRepository", "metadata": { "name": "busy" },
            "spec": { "repository": { "url": format!("file://{}", self.source.path().display()) }, "pollInterval": "1s" },
        });
        let repositories = Api::<TerraformRepository>::namespaced(client.clone(), "default");
        repositories.create(&post, &serde_json::from_value(repository).unwrap()).await.unwrap();
        let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
        for name in LAYERS {
            let layer = json!({
                "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": name },
                "spec": { "repository": { "name": "busy" }, "branch": "main", "path": name, "remediationStrategy": { "autoApply": true },
                    // Every run stays, or one would be forgotten while the test reads its log.
                    "runHistoryPolicy": { "runs": 100 } },
            });
            layers.create(&post, &serde_json::from_value(layer).unwrap()).await.unwrap();
        }
    }
}

/// Processes that were started with its data directory, or the place of its pods' files, in their command line or environment.
/// O(processes of the machine).
fn processes_of(terrane: &Terrane) -> BTreeSet<u32> {
    let places = [terrane.data(), terrane.pods()];
    let wanted = places.each_ref().map(|place| place.to_str().unwrap().as_bytes());
    let mentions = |path: String| {
        let holds = |content: &[u8], text: &[u8]| content.windows(text.len()).any(|window| window == text);
        fs::read(path).is_ok_and(|content| wanted.iter().any(|text| holds(&content, text)))
    };
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id())
        .filter(|pid| mentions(format!("/proc/{pid}/cmdline")) || mentions(format!("/proc/{pid}/environ")))
        .collect()
}

async fn datastore_of(terrane: &Terrane) -> datastore::Client {
    let token = TokenSource::File(terrane.data().join("controller-token"));
    datastore::Client::new(&format!("http://{}", terrane.service().await), token).unwrap()
}

async fn log_of(datastore: &datastore::Client, run: &TerraformRun, number: u32) -> Vec<u8> {
    let attempt = Attempt::new(run.uid().unwrap(), number).unwrap();
    let pieces: Vec<_> = datastore.log_get(&attempt, 0).await.unwrap().try_collect().await.unwrap();
    pieces.concat()
}

/// Whether an attempt that ended so has no log because its pod never ran: it was deleted before a node had it, or, of a plan, `terrane up` was
/// killed before it was made.
fn has_nothing_to_log(action: Action, reason: &str) -> bool {
    reason == "PodDeleted" || (reason == "PodGone" && action == Action::Plan)
}

/// Every attempt that ended has its result, and its log as the runner wrote it.
async fn nothing_is_lost(terrane: &Terrane, client: &Client) {
    let datastore = datastore_of(terrane).await;
    let runs = Api::<TerraformRun>::namespaced(client.clone(), "default");
    let all = runs.list(&ListParams::default()).await.unwrap().items;
    let mut logs = 0;
    for run in &all {
        let status = run.status.as_ref().unwrap();
        for attempt in &status.attempts {
            if attempt.finished_at.is_none() {
                let state = status.state.unwrap();
                assert!(!state.is_terminal(), "{} is {state:?} in mid-attempt", run.name_any());
                continue;
            }
            let reason = attempt.reason.as_deref().unwrap_or("none");
            assert!(reason != "OutcomeUnknown" && reason != "RunnerDied", "{}: {reason}", run.name_any());
            let Some(digest) = &attempt.log_digest else {
                assert!(
                    has_nothing_to_log(run.spec.action, reason),
                    "{} attempt {} ended with {reason} and has no log",
                    run.name_any(),
                    attempt.number
                );
                continue;
            };
            let log = log_of(&datastore, run, attempt.number).await;
            assert_eq!(&Sha256::of(&log), digest, "{} attempt {}", run.name_any(), attempt.number);
            logs += 1;
        }
    }
    assert!(logs >= 2 * LAYERS.len(), "only {logs} logs in {} runs", all.len());
}

#[allow(clippy::disallowed_methods, reason = "a run is repeated with the seed that it printed")]
fn choose_seed() -> u64 {
    std::env::var("TERRANE_TEST_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap())
}

#[tokio::test]
async fn however_often_it_is_killed_every_apply_happens_once_and_nothing_is_lost() {
    let seed = choose_seed();
    println!("TERRANE_TEST_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut busy = Busy::new();
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    busy.declare(&client).await;
    let mut seen_at_work = false;
    for kill in 0..KILLS {
        busy.change(LAYERS[random.random_range(0..LAYERS.len())]);
        if kill > 0 {
            if random.random_ratio(1, KILLED_YOUNG) {
                terrane.launch(&[]);
                // Not a wait for anything, here and below: the moment of death is the point.
                tokio::time::sleep(Duration::from_millis(random.random_range(YOUTH_MILLISECONDS))).await;
            } else {
                terrane.start(&[]).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(LIFE_MILLISECONDS))).await;
        terrane.signal(Signal::KILL);
        terrane.ended().await;
        seen_at_work |= !processes_of(&terrane).is_empty();
    }
    assert!(seen_at_work, "no pod was ever at work when it was killed");
    let client = terrane.start(&[]).await;
    for layer in LAYERS {
        let newest = busy.newest(layer);
        layer_until(&client, layer, "applied at its newest commit", |layer| {
            let status = layer.status.as_ref();
            let applied = status.and_then(|status| status.revision.applied.as_ref());
            is("Ready")(layer) && applied.is_some_and(|commit| commit.as_str() == newest)
        })
        .await;
    }
    let counts = busy.ledger.counts();
    println!("{KILLS} kills, {KILLS} commits, {} applies", counts.len());
    let repeated: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).collect();
    assert!(repeated.is_empty(), "applied more than once: {repeated:?}");
    for (layer, value) in &busy.values {
        assert!(counts.contains_key(&format!("{layer} {value}")), "{layer} {value} is not in {counts:?}");
    }
    nothing_is_lost(&terrane, &client).await;

    terrane.signal(Signal::TERM);
    assert_eq!(terrane.ended().await.code(), Some(0));
    until("no process of it is left", || std::future::ready(processes_of(&terrane).is_empty().then_some(())))
        .await;
}

/// A resource that is made at once, and then one whose creation waits at the gate.
fn two_steps(gate: &Gate) -> String {
    let slow = gate.code().replacen("{\n", "{\n  depends_on = [terraform_data.first]\n", 1);
    format!("resource \"terraform_data\" \"first\" {{\n  input = \"made\"\n}}\n\n{slow}")
}

fn environment_of(pid: u32) -> Vec<String> {
    let content = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    content.split(|byte| *byte == 0).map(|variable| String::from_utf8_lossy(variable).into_owned()).collect()
}

fn program_of(pid: u32) -> Option<String> {
    Some(fs::read_link(format!("/proc/{pid}/exe")).ok()?.file_name()?.to_str()?.to_owned())
}

fn parent_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

fn all_processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The runner of a run, and the tool that it runs.
fn runner_and_tool(run: &TerraformRun) -> (u32, u32) {
    let mark = format!("TERRANE_RUN_UID={}", run.uid().unwrap());
    let is_runner = |pid: &u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = command.split(|byte| *byte == 0);
        words.nth(1) == Some(b"runner") && environment_of(*pid).contains(&mark)
    };
    let runner = all_processes().find(is_runner).expect("the run's runner");
    let is_tool = |pid: &u32| {
        parent_of(*pid) == Some(runner)
            && program_of(*pid).is_some_and(|name| name == "terraform" || name == "tofu")
    };
    (runner, all_processes().find(is_tool).expect("the runner's tool"))
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

async fn state_of(datastore: &datastore::Client, run: &TerraformRun) -> String {
    let id = StateId::new(run.spec.state.as_str()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let mut file = tokio::fs::File::create(&path).await.unwrap();
    datastore.state_get(&id, &mut file).await.unwrap().expect("a state");
    tokio::io::AsyncWriteExt::flush(&mut file).await.unwrap();
    fs::read_to_string(path).unwrap()
}

fn has_ended(run: &TerraformRun) -> bool {
    run.spec.action == Action::Apply
        && run.status.as_ref().and_then(|status| status.state).is_some_and(RunState::is_terminal)
}

fn plans_applied(runs: &[TerraformRun], layer: &str) -> Vec<Sha256> {
    let of_layer = runs.iter().filter(|run| run.spec.layer.name.as_str() == layer);
    of_layer.filter_map(|run| run.spec.artifact.as_ref().map(|artifact| artifact.sha256.clone())).collect()
}

/// The id of the lock of a layer's state, and who has it.
fn lock_of(terrane: &Terrane, layer: &str) -> (String, String) {
    let output = terrane.command(&["state", "locks", layer, "-o", "json"]);
    let locks: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let word = |field: &str| locks[0][field].as_str().unwrap_or_else(|| panic!("{locks}")).to_owned();
    (word("id"), word("by"))
}

#[tokio::test]
async fn a_runner_that_is_stopped_a_tool_that_is_killed_and_a_datastore_that_is_away_in_mid_apply() {
    let mut terrane = Terrane::new();
    let client = terrane.start(ROOM).await;
    let (stopped, killed, alone) = (Gate::new(), Gate::new(), Gate::new());
    let (freed, orphaned) = (Gate::new(), Gate::new());
    let mut sources = Vec::new();
    for (name, gate) in [
        ("stopped", &stopped),
        ("killed", &killed),
        ("alone", &alone),
        ("freed", &freed),
        ("orphaned", &orphaned),
    ] {
        sources.push(declare_layer(&client, name, &two_steps(gate)).await);
    }
    for gate in [&stopped, &killed, &alone] {
        gate.visitors().await;
    }
    let at_work = |run: &TerraformRun| run.spec.action == Action::Apply;
    let run_stopped = run_until(&client, "stopped", "its apply runs", at_work).await;
    let run_killed = run_until(&client, "killed", "its apply runs", at_work).await;
    let datastore = datastore_of(&terrane).await;

    // The runner is told to stop: the tool saves what it did, and everything is reported.
    let (runner, _) = runner_and_tool(&run_stopped);
    signal(runner, Signal::TERM);
    let ended = run_until(&client, "stopped", "its apply has ended", has_ended).await;
    let status = ended.status.as_ref().unwrap();
    assert_eq!(status.result.as_ref().unwrap().reason, "Interrupted", "{:?}", status.result);
    let [attempt] = status.attempts.as_slice() else { panic!("{:?}", status.attempts) };
    let log = log_of(&datastore, &ended, 0).await;
    assert_eq!(Some(Sha256::of(&log)), attempt.log_digest);
    assert!(String::from_utf8_lossy(&log).contains("Asked to stop"), "{}", String::from_utf8_lossy(&log));
    let state = state_of(&datastore, &ended).await;
    assert!(state.contains("\"first\""), "what was made before the stop is in the state: {state}");
    let locks = terrane.command(&["state", "locks", "stopped"]);
    let locks = String::from_utf8(locks.stdout).unwrap();
    assert!(locks.contains("the state of stopped is not locked"), "{locks}");

    // While the tool works nobody takes its lock away.
    let (held, by) = lock_of(&terrane, "killed");
    let refused = terrane.command(&["state", "unlock", "killed", &held]);
    let said = String::from_utf8(refused.stderr).unwrap();
    let worker = format!("run default/{} is still at work on it", run_killed.name_any());
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("is locked by {by} since ")) && said.contains(&worker), "{said}");
    assert_eq!(lock_of(&terrane, "killed").0, held, "the lock is still there");

    // The tool is killed: the layer says so and plans anew.
    let (_, tool) = runner_and_tool(&run_killed);
    signal(tool, Signal::KILL);
    let ended = run_until(&client, "killed", "its apply has ended", has_ended).await;
    let result = ended.status.as_ref().unwrap().result.clone().unwrap();
    assert_eq!(result.reason, "Interrupted", "{result:?}");
    assert!(result.message.contains("was killed by signal 9 from outside"), "{result:?}");
    layer_until(&client, "killed", "it says so", |layer| {
        layer
            .status
            .as_ref()
            .and_then(|status| status.why.as_ref())
            .is_some_and(|why| why.contains("signal 9"))
    })
    .await;

    // Runners that die with their tools leave their locks. A person may take one away now, and the next apply takes the other over.
    let mut orphans = Vec::new();
    for (name, gate) in [("freed", &freed), ("orphaned", &orphaned)] {
        gate.visitors().await;
        let run = run_until(&client, name, "its apply runs", at_work).await;
        assert!(terrane.command(&["suspend", name]).status.success());
        let (held, _) = lock_of(&terrane, name);
        let (runner, tool) = runner_and_tool(&run);
        signal(runner, Signal::KILL);
        // It may have noticed already that nobody listens to it any more.
        let _ = kill_process(Pid::from_raw(i32::try_from(tool).unwrap()).unwrap(), Signal::KILL);
        gate.open();
        let ended = run_until(&client, name, "its apply has ended", has_ended).await;
        assert_eq!(ended.status.as_ref().unwrap().state, Some(RunState::Failed));
        assert_eq!(lock_of(&terrane, name).0, held, "{name}: the lock is left");
        orphans.push(held);
    }
    let released = terrane.command(&["state", "unlock", "freed", &orphans[0]]);
    assert!(released.status.success(), "{}", String::from_utf8_lossy(&released.stderr));
    for (name, gate) in [("freed", &freed), ("orphaned", &orphaned)] {
        assert!(terrane.command(&["resume", name]).status.success());
        assert!(terrane.command(&["sync", name]).status.success());
        until("the next apply has begun", || std::future::ready((gate.arrived() > 1).then_some(()))).await;
        gate.open();
        layer_until(&client, name, "applied after its runner died", is("Ready")).await;
        let locks = String::from_utf8(terrane.command(&["state", "locks", name]).stdout).unwrap();
        assert!(locks.contains("is not locked"), "{name}: {locks}");
    }

    // The datastore goes away with everything else, and the apply ends meanwhile.
    let run_alone = run_until(&client, "alone", "its apply runs", at_work).await;
    let (runner, tool) = runner_and_tool(&run_alone);
    terrane.signal(Signal::KILL);
    terrane.ended().await;
    alone.open();
    until("the provisioner has ended", || std::future::ready((!alone.is_waited_at()).then_some(()))).await;
    assert!(Path::new(&format!("/proc/{runner}")).exists() && Path::new(&format!("/proc/{tool}")).exists());
    let client = terrane.start(ROOM).await;
    let datastore = datastore_of(&terrane).await;
    let ended = run_until(&client, "alone", "its apply has ended", has_ended).await;
    assert_eq!(ended.uid(), run_alone.uid());
    let status = ended.status.as_ref().unwrap();
    assert_eq!(status.state, Some(RunState::Succeeded), "{:?}", status.result);
    let log = log_of(&datastore, &ended, 0).await;
    assert!(String::from_utf8_lossy(&log).contains("Apply complete!"), "{}", String::from_utf8_lossy(&log));
    assert_eq!(Some(Sha256::of(&log)), status.attempts.first().unwrap().log_digest);
    assert!(state_of(&datastore, &ended).await.contains("\"slow\""));

    // Those that were broken off are planned and applied anew, never by the plan of before.
    for (name, gate, broken) in [("stopped", &stopped, &run_stopped), ("killed", &killed, &run_killed)] {
        let next = run_until(&client, name, "its next apply runs", |run| {
            run.spec.action == Action::Apply && run.uid() != broken.uid()
        })
        .await;
        assert_ne!(next.spec.artifact, broken.spec.artifact);
        until("the next apply has begun", || std::future::ready((gate.arrived() > 1).then_some(()))).await;
        gate.open();
        layer_until(&client, name, "applied in the end", is("Ready")).await;
        let runs = Api::<TerraformRun>::namespaced(client.clone(), "default");
        let plans = plans_applied(&runs.list(&ListParams::default()).await.unwrap().items, name);
        let distinct: BTreeSet<&Sha256> = plans.iter().collect();
        assert_eq!(distinct.len(), plans.len(), "{name}: a plan was applied twice");
    }
    terrane.signal(Signal::TERM);
    assert_eq!(terrane.ended().await.code(), Some(0));
}
