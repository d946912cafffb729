//! The node, the runner and the tool in one, played quickly but through the real doors: pods are followed through the API, the
//! description is read from the datastore and the result written there by its own client. What really happened to the
//! infrastructure is kept here, beyond the reach of the controllers: the checks believe this and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use api::attempt::Description;
use api::backend::Backend;
use api::image::PinnedImage;
use api::label;
use api::run::{Action, Mode};
use api::text::{CommitId, ImageDigest, Sha256};
use axum::Router;
use datastore::client::LockChange;
use datastore::{Artefact, Attempt, StateId};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use testkit::faults::{Faults, InProcess};

use crate::clock;
use crate::world::datastore_client;

/// How an execution ends, as the workload has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Succeed,
    /// The tool says no.
    Fail,
    /// The runner is gone without a word.
    Die,
    /// The node says that the pod failed, but the process lives on and writes when nobody expects it any more.
    Haunt,
    /// Works until its pod is told to stop, and stops then.
    Linger,
    /// The same for the first execution of all; others succeed.
    LingerIfFirst,
}

/// One execution of the tool.
#[derive(Debug, Clone)]
pub struct Exec {
    pub description: Description,
    pub pod_uid: String,
    /// Where in the recorded history it started and ended.
    pub start: usize,
    pub end: Option<usize>,
    /// Reported by the runner and accepted by the datastore.
    pub reported: Option<Report>,
    /// The plan that it made.
    pub plan: Option<Sha256>,
    /// The image that it made, or found in the registry.
    pub image: Option<PinnedImage>,
    /// The state as it was when this started.
    pub base: Base,
    /// When it started, and the plan that it made was there.
    pub began_at: Timestamp,
    pub planned_at: Option<Timestamp>,
}

/// What a plan is made from: lineage and serial of a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    pub lineage: String,
    pub serial: u64,
}

#[derive(Debug, Clone)]
pub struct Report {
    pub exit_code: i32,
    pub reason: &'static str,
    pub log: Sha256,
}

/// What an execution leaves behind when it succeeds.
#[derive(Debug, Clone)]
enum Made {
    Nothing,
    Plan { sha256: Sha256, changes: u32 },
    Image(PinnedImage),
}

/// One state and what it stands for.
#[derive(Debug, Clone, Default)]
pub struct Truth {
    pub serial: u64,
    /// Nothing is there before the first apply and after a destroy.
    pub applied: Option<CommitId>,
    /// What the layer gave to the code that is applied.
    pub given: Option<Sha256>,
    pub drifted: bool,
}

enum Process {
    Running(usize),
    Ended,
}

pub struct Stage {
    client: kube::Client,
    datastore: Router,
    faults: Faults,
    verdict: fn(Action, usize) -> Verdict,
    processes: BTreeMap<String, Process>,
    zombies: Vec<usize>,
    /// Something works that ends only when somebody says so.
    pub awaits_people: bool,
    pub execs: Vec<Exec>,
    pub truths: BTreeMap<String, Truth>,
    /// A stand-in for the registry that builds push to: what was pushed under each name. What pushes to a real one, and looks first
    /// whether it is there, is tried with a real one elsewhere.
    pub pushed: BTreeMap<String, BTreeSet<ImageDigest>>,
    scratch: tempfile::TempDir,
}

/// Code below this path names a backend, always the same one.
pub const ELSEWHERE: &str = "elsewhere/";

fn own_backend(description: &Description) -> Option<Backend> {
    let settings = [("bucket".to_owned(), "states".to_owned())].into();
    let backend = Backend { kind: "s3".to_owned(), settings };
    description.path.as_str().starts_with(ELSEWHERE).then_some(backend)
}

/// Where the state of an execution really is, whatever the controllers believe.
pub fn place(description: &Description) -> Sha256 {
    own_backend(description).map_or_else(|| description.state.clone(), |backend| backend.sha256())
}

/// What a build of these files comes to.
pub fn built_of(revision: &CommitId, bundle: &str) -> ImageDigest {
    ImageDigest::new(format!("sha256:{}", Sha256::of(format!("{revision} {bundle}").as_bytes()))).unwrap()
}

fn given(description: &Description) -> Option<Sha256> {
    description.inputs.as_ref().map(|given| given.digest.clone())
}

const LOG: &[u8] = b"done\n";

impl Stage {
    pub fn new(
        client: kube::Client,
        datastore: Router,
        faults: Faults,
        verdict: fn(Action, usize) -> Verdict,
    ) -> Result<Self> {
        Ok(Self {
            client,
            datastore,
            faults,
            verdict,
            processes: BTreeMap::new(),
            zombies: Vec::new(),
            awaits_people: false,
            execs: Vec::new(),
            truths: BTreeMap::new(),
            pushed: BTreeMap::new(),
            scratch: tempfile::tempdir()?,
        })
    }

    /// One thing happens to one pod, or nothing is left to happen.
    pub async fn step(&mut self) -> Result<bool> {
        self.awaits_people = false;
        let pods = Api::<Pod>::all(self.client.clone());
        let ours = ListParams::default().labels(&format!("{}=terrane", label::MANAGED_BY));
        for pod in pods.list(&ours).await?.items {
            let uid = pod.uid().unwrap_or_default();
            match self.processes.get(&uid) {
                None => self.begin(&pod, uid).await?,
                Some(Process::Running(exec)) if self.lingers(&pod, *exec) => {
                    self.awaits_people = true;
                    continue;
                }
                Some(Process::Running(exec)) => self.finish(&pod, uid, *exec).await?,
                Some(Process::Ended) => continue,
            }
            return Ok(true);
        }
        Ok(false)
    }

    async fn begin(&mut self, pod: &Pod, uid: String) -> Result<()> {
        let attempt = attempt_of(pod)?;
        let runner = self.runner(pod)?;
        let bytes = runner.artefact_get(&attempt, Artefact::Spec, 1 << 20).await?;
        let bytes = bytes.with_context(|| format!("pod {} has no description", pod.name_any()))?;
        let description: Description = serde_json::from_slice(&bytes)?;
        if description.action.mutates() {
            ensure!(
                description.backend == own_backend(&description).map(|backend| backend.sha256()),
                "another state"
            );
            let id = StateId::new(description.state.as_str())?;
            let info = json!({ "ID": lock_id(&description) }).to_string();
            runner.state_lock(&id, LockChange::Take, info.into(), Some(description.fence)).await?;
            let plan = description.plan.clone().context("an apply without a plan")?;
            let source = Attempt::new(plan.run_uid.as_str(), plan.attempt)?;
            let bytes = runner.artefact_get(&source, Artefact::Plan, 1 << 20).await?.context("no plan")?;
            ensure!(Sha256::of(&bytes) == plan.sha256, "the plan's bytes are not the approved ones");
            let made: Value = serde_json::from_slice(&bytes)?;
            let is_old = plan.expires.is_some_and(|expires| clock::now() >= expires);
            if is_old || made["serial"] != json!(self.base(&description).serial) {
                self.report(&runner, &attempt, &description, "Stale", &Made::Nothing).await?;
                self.processes.insert(uid, Process::Ended);
                return self.phase(pod, "Failed", 1).await;
            }
        }
        let (start, base) = (self.faults.recorded(), self.base(&description));
        self.execs.push(Exec {
            base,
            description,
            pod_uid: uid.clone(),
            start,
            end: None,
            reported: None,
            plan: None,
            image: None,
            began_at: clock::now(),
            planned_at: None,
        });
        self.processes.insert(uid, Process::Running(self.execs.len() - 1));
        self.bind(pod).await?;
        self.phase(pod, "Running", 0).await
    }

    fn base(&mut self, description: &Description) -> Base {
        let place = place(description);
        let truth = self.truths.entry(place.to_string()).or_default();
        Base { lineage: place.short().to_owned(), serial: truth.serial }
    }

    /// How this execution ends, or will.
    pub fn verdict(&self, at: usize) -> Verdict {
        let description = &self.execs[at].description;
        let same = |exec: &&Exec| {
            exec.description.action == description.action && exec.description.layer == description.layer
        };
        match (self.verdict)(description.action, self.execs[..at].iter().filter(same).count()) {
            Verdict::LingerIfFirst if at == 0 => Verdict::Linger,
            Verdict::LingerIfFirst => Verdict::Succeed,
            other => other,
        }
    }

    fn lingers(&self, pod: &Pod, at: usize) -> bool {
        self.verdict(at) == Verdict::Linger && pod.metadata.deletion_timestamp.is_none()
    }

    async fn finish(&mut self, pod: &Pod, uid: String, at: usize) -> Result<()> {
        let attempt = attempt_of(pod)?;
        let runner = self.runner(pod)?;
        let description = self.execs[at].description.clone();
        let exit = match self.verdict(at) {
            Verdict::Succeed | Verdict::LingerIfFirst => {
                let made = match description.action {
                    Action::Apply => self.apply(&runner, &description).await?,
                    Action::Plan => self.plan(&runner, &attempt, &description).await?,
                    Action::Build => self.build(&description)?,
                };
                if description.outputs && !matches!(made, Made::Plan { changes: 1.., .. }) {
                    let commit = &description.revision;
                    let outputs = json!({
                        "commit": { "value": commit }, "hidden": { "sensitive": true, "value": format!("of {commit}") },
                    });
                    runner.artefact_put(&attempt, Artefact::Outputs, outputs.to_string().into()).await?;
                }
                let report = self.report(&runner, &attempt, &description, "Succeeded", &made).await?;
                self.execs[at].reported = Some(report);
                match made {
                    Made::Nothing => {}
                    Made::Plan { sha256, .. } => {
                        self.execs[at].plan = Some(sha256);
                        self.execs[at].planned_at = Some(clock::now());
                    }
                    Made::Image(image) => self.execs[at].image = Some(image),
                }
                0
            }
            failure @ (Verdict::Fail | Verdict::Linger) => {
                if description.action.mutates() {
                    self.unlock(&runner, &description).await?;
                }
                let reason = if failure == Verdict::Fail { "ToolFailed" } else { "Interrupted" };
                let report = self.report(&runner, &attempt, &description, reason, &Made::Nothing).await?;
                self.execs[at].reported = Some(report);
                1
            }
            Verdict::Die => {
                // It pushes, and nobody hears of it.
                if description.action == Action::Build {
                    self.build(&description)?;
                }
                137
            }
            Verdict::Haunt => {
                self.zombies.push(at);
                137
            }
        };
        self.execs[at].end = Some(self.faults.recorded());
        self.processes.insert(uid, Process::Ended);
        self.phase(pod, if exit == 0 { "Succeeded" } else { "Failed" }, exit).await
    }

    async fn plan(
        &mut self,
        runner: &datastore::Client,
        attempt: &Attempt,
        description: &Description,
    ) -> Result<Made> {
        let truth = self.truths.entry(place(description).to_string()).or_default();
        let differs = match description.mode {
            Mode::Destroy => truth.applied.is_some(),
            Mode::Normal | Mode::RefreshOnly => {
                truth.drifted
                    || truth.applied.as_ref() != Some(&description.revision)
                    || truth.given != given(description)
            }
        };
        let content =
            json!({ "state": description.state, "commit": description.revision, "serial": truth.serial,
                              "attempt": attempt.to_string() })
            .to_string();
        let sha256 = Sha256::of(content.as_bytes());
        runner.artefact_put(attempt, Artefact::Plan, content.into()).await?;
        Ok(Made::Plan { sha256, changes: u32::from(differs) })
    }

    /// What it makes follows from what it is made of.
    fn build(&mut self, description: &Description) -> Result<Made> {
        let order = description.build.as_ref().context("a build without an image to build")?;
        let image = order.image.pinned(built_of(&description.revision, description.bundle.as_str()));
        self.pushed.entry(order.image.to_string()).or_default().insert(image.digest.clone());
        Ok(Made::Image(image))
    }

    async fn apply(&mut self, runner: &datastore::Client, description: &Description) -> Result<Made> {
        let truth = self.truths.entry(place(description).to_string()).or_default();
        truth.serial += 1;
        truth.applied = match description.mode {
            Mode::Destroy => None,
            Mode::Normal | Mode::RefreshOnly => Some(description.revision.clone()),
        };
        truth.given = given(description);
        truth.drifted = false;
        let serial = truth.serial;
        self.write_state(runner, description, serial).await?;
        self.unlock(runner, description).await?;
        Ok(Made::Nothing)
    }

    async fn write_state(
        &self,
        runner: &datastore::Client,
        description: &Description,
        serial: u64,
    ) -> Result<()> {
        let file = self.scratch.path().join("state");
        let lineage = description.state.short();
        let state = json!({ "version": 4, "serial": serial, "lineage": lineage, "resources": [] });
        std::fs::write(&file, state.to_string())?;
        let id = StateId::new(description.state.as_str())?;
        Ok(runner.state_put(&id, &file, Some(&lock_id(description)), Some(description.fence)).await?)
    }

    async fn unlock(&self, runner: &datastore::Client, description: &Description) -> Result<()> {
        let id = StateId::new(description.state.as_str())?;
        let info = json!({ "ID": lock_id(description) }).to_string();
        Ok(runner.state_lock(&id, LockChange::Release, info.into(), Some(description.fence)).await?)
    }

    async fn report(
        &self,
        runner: &datastore::Client,
        attempt: &Attempt,
        description: &Description,
        reason: &'static str,
        made: &Made,
    ) -> Result<Report> {
        let (exit_code, log) = (i32::from(reason != "Succeeded"), Sha256::of(LOG));
        let at: Timestamp = clock::now();
        let mut outcome = json!({
            "runUid": description.run_uid, "attempt": description.attempt, "action": description.action,
            "reason": reason, "message": format!("the tool says {reason}"), "exitCode": exit_code,
            "startedAt": at, "finishedAt": at, "logSha256": log,
        });
        match made {
            Made::Nothing => {}
            Made::Plan { sha256, changes } => {
                outcome["plan"] = json!({
                    "sha256": sha256, "summary": { "add": 0, "change": changes, "destroy": 0 },
                    "backend": own_backend(description),
                });
            }
            Made::Image(image) => outcome["image"] = json!(image),
        }
        if description.action.mutates() && description.mode == Mode::Normal && reason == "Succeeded" {
            let inputs = description.inputs.iter().map(|given| &given.inputs);
            let environment = inputs.clone().flat_map(|inputs| &inputs.environment);
            let word =
                environment.filter(|one| one.name.as_str() == "word").find_map(|one| one.value.clone());
            let hooks = inputs.flat_map(|inputs| &inputs.hooks.after_apply);
            for to in hooks.filter_map(|hook| hook.output_to.as_ref()) {
                let printed = json!({ "outputs": { "commit": description.revision, "word": word } });
                outcome["hookOutputs"][to.as_str()] = printed;
            }
        }
        runner.log_append(attempt, 0, LOG.into()).await?;
        runner.artefact_put(attempt, Artefact::Result, outcome.to_string().into()).await?;
        Ok(Report { exit_code, reason, log })
    }

    /// What no node has taken yet never ran, as far as anybody knows.
    async fn bind(&self, pod: &Pod) -> Result<()> {
        let api = Api::<Pod>::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let name = pod.name_any();
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
            "target": { "apiVersion": "v1", "kind": "Node", "name": "stage" },
        });
        let post = PostParams::default();
        let _: Value = api.create_subresource("binding", &name, &post, &binding).await?;
        Ok(())
    }

    async fn phase(&self, pod: &Pod, phase: &str, exit: i32) -> Result<()> {
        let api = Api::<Pod>::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let mut status = json!({ "phase": phase });
        if phase != "Running" {
            status["containerStatuses"] = json!([{
                "name": "runner", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "terminated": { "exitCode": exit, "reason": "Completed" } },
            }]);
        }
        let patch = Patch::Merge(json!({ "status": status }));
        api.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await?;
        Ok(())
    }

    fn runner(&self, pod: &Pod) -> Result<datastore::Client> {
        let attempt = attempt_of(pod)?;
        self.runner_of(&attempt)
    }

    fn runner_of(&self, attempt: &Attempt) -> Result<datastore::Client> {
        let carrier = InProcess::new(self.datastore.clone(), self.faults.actor("runner"));
        datastore_client(carrier, format!("default/{attempt}"))
    }

    /// Processes that everyone believes dead write what they have. Whether they get through is for the checks.
    pub async fn haunt(&mut self) -> Result<()> {
        for at in std::mem::take(&mut self.zombies) {
            let description = self.execs[at].description.clone();
            let attempt = Attempt::new(description.run_uid.as_str(), description.attempt)?;
            let serial = self.truths.get(place(&description).as_str()).map_or(0, |truth| truth.serial) + 100;
            let runner = self.runner_of(&attempt)?;
            let _ = self.write_state(&runner, &description, serial).await;
        }
        Ok(())
    }

    pub fn drift(&mut self) {
        for truth in self.truths.values_mut() {
            truth.drifted = true;
        }
    }

    pub fn applies(&self) -> usize {
        self.execs.iter().filter(|exec| exec.description.action.mutates()).count()
    }
}

fn attempt_of(pod: &Pod) -> Result<Attempt> {
    let label = |name: &str| pod.labels().get(name).cloned().with_context(|| format!("no label {name}"));
    Ok(Attempt::new(label(label::RUN_UID)?, label(label::ATTEMPT)?.parse()?)?)
}

fn lock_id(description: &Description) -> String {
    format!("{}-{}", description.run_uid, description.attempt)
}
