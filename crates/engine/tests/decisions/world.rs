//! A small world for decisions: one repository, one layer, its runs, and a clock that a test moves.

use api::approval::{Decision as Word, TerraformApprovalSpec};
use api::attempt::{Outcome, PlanOutcome, Reason};
use api::difference::{AttributeDifference, Difference, Differences, How};
use api::run::{Action, Attempt, PlanSummary, RunResult, RunState};
use api::template::Declared;
use api::text::{CommitId, Sha256};
use api::{
    LAYER_FINALIZER, TerraformApproval, TerraformLayer, TerraformLayerStatus, TerraformRepository,
    TerraformRun, TerraformRunStatus,
};
use engine::layer::{self, Effect, Source};
use engine::manifests::{RunnerSecrets, RunnerSettings};
use engine::outputs::{self, Standing};
use engine::{Read, Settings, Wake, image, later};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub struct World {
    pub now: Timestamp,
    pub layer: TerraformLayer,
    pub repository: Option<TerraformRepository>,
    pub source: Read<Result<Source, String>>,
    /// What was decided about the image, where the code is one.
    pub image: Option<image::Decision>,
    pub declared: Read<Result<Vec<Declared>, String>>,
    pub inputs: Read<Result<Option<Sha256>, String>>,
    pub runs: Vec<TerraformRun>,
    pub approvals: Vec<TerraformApproval>,
    /// What runs take in the datastore, by uid.
    pub sizes: BTreeMap<String, u64>,
    /// Where the layer's outputs are.
    pub outputs: outputs::Outcome,
    /// What the API answers to a run.
    pub refused: Option<layer::Refusal>,
    pub settings: Settings,
    /// The layer was let go.
    pub gone: bool,
    made: u32,
    /// Writes of runs; each gives a newer version, as the API's do.
    written: u64,
}

pub fn commit(letter: char) -> CommitId {
    CommitId::new(letter.to_string().repeat(40)).unwrap()
}

pub fn settings() -> Settings {
    Settings::new(RunnerSettings {
        image: "terrane.dev/local".into(),
        service_account: "default".into(),
        datastore_url: "http://127.0.0.1:1".into(),
        path: None,
        environment: Vec::new(),
        secrets: RunnerSecrets::default(),
    })
}

/// A layer `db` on branch main whose newest commit is `a…`.
pub fn world() -> World {
    let object = |kind: &str, spec| {
        json!({ "apiVersion": "terrane.dev/v1alpha1", "kind": kind, "spec": spec,
                "metadata": { "name": "db", "namespace": "default", "uid": format!("uid-{kind}"), "generation": 1 } })
    };
    let layer =
        object("TerraformLayer", json!({ "repository": { "name": "db" }, "branch": "main", "path": "db" }));
    let repository = object("TerraformRepository", json!({ "repository": { "url": "file:///srv/db" } }));
    World {
        now: Timestamp::from_second(1_800_000_000).unwrap(),
        layer: serde_json::from_value(layer).unwrap(),
        repository: Some(serde_json::from_value(repository).unwrap()),
        source: Read::Present(Ok(Source { head: commit('a'), relevant: commit('a'), left: None })),
        image: None,
        declared: Read::Absent,
        inputs: Read::Present(Ok(None)),
        runs: Vec::new(),
        approvals: Vec::new(),
        sizes: BTreeMap::new(),
        outputs: outputs::Outcome { places: BTreeSet::new(), standing: Standing::NotAsked },
        refused: None,
        settings: settings(),
        gone: false,
        made: 0,
        written: 0,
    }
}

impl World {
    pub fn auto_apply(mut self) -> Self {
        self.layer.spec.remediation_strategy = serde_json::from_value(json!({ "autoApply": true })).unwrap();
        self
    }

    pub fn max_retries(mut self, retries: u32) -> Self {
        let on_error = serde_json::from_value(json!({ "maxRetries": retries })).unwrap();
        self.layer.spec.remediation_strategy.get_or_insert_default().on_error = Some(on_error);
        self
    }

    pub fn annotated(mut self, key: &str, value: &str) -> Self {
        self.annotate(key, value);
        self
    }

    pub fn annotate(&mut self, key: &str, value: &str) {
        self.layer.metadata.annotations.get_or_insert_default().insert(key.into(), value.into());
    }

    pub fn push(&mut self, letter: char) {
        self.source =
            Read::Present(Ok(Source { head: commit(letter), relevant: commit(letter), left: None }));
    }

    pub fn pass(&mut self, span: Duration) {
        self.now = later(self.now, span);
    }

    pub fn observed(&self) -> layer::Observed<'_> {
        layer::Observed {
            now: self.now,
            layer: &self.layer,
            repository: self.repository.as_ref().map_or(Read::Absent, Read::Present),
            source: self.image.as_ref().map_or_else(|| self.source.clone(), |image| image.source.clone()),
            image: self.image.as_ref(),
            declared: &self.declared,
            inputs: self.inputs.clone(),
            runs: &self.runs,
            approvals: &self.approvals,
            sizes: &self.sizes,
            outputs: self.outputs.clone(),
            refused: self.refused.as_ref(),
            settings: &self.settings,
        }
    }

    pub fn decide(&self) -> layer::Decision {
        layer::decide(&self.observed())
    }

    /// Does what the decision says, as the API would: a run whose name exists is not made twice. What is said before a run is made
    /// is what is said once it is there, but for the wish of a person, which is acted on only then.
    pub fn step(&mut self) -> layer::Decision {
        let made = self.made;
        let decision = self.take_step();
        if self.made > made {
            let next = self.decide().status;
            let wishes = |status: &TerraformLayerStatus| (status.last_sync.clone(), status.last_look.clone());
            let same = wishes(&next) != wishes(&decision.status) || next == decision.status;
            assert!(same, "a run is told of once: {:#?} and then {next:#?}", decision.status);
        }
        decision
    }

    /// The same for a run that is not told of before it is there.
    pub fn step_untold(&mut self) -> layer::Decision {
        self.take_step()
    }

    fn take_step(&mut self) -> layer::Decision {
        let decision = self.decide();
        self.layer.status = Some(decision.status.clone());
        for effect in &decision.effects {
            let run = match effect {
                Effect::CreateRun(run) => run,
                // Whoever tests that answers it.
                Effect::LookAtImage { .. } => continue,
                Effect::DeleteRun(gone) => {
                    self.runs.retain(|run| run.metadata.uid.as_ref() != Some(&gone.uid));
                    continue;
                }
                Effect::AnswerApproval(answered) => {
                    let known =
                        self.approvals.iter_mut().find(|word| word.metadata.name == answered.metadata.name);
                    *known.expect("an approval") = answered.as_ref().clone();
                    continue;
                }
                Effect::AddFinalizer => {
                    assert!(self.layer.metadata.deletion_timestamp.is_none(), "the API refuses this");
                    self.layer.metadata.finalizers.get_or_insert_default().push(LAYER_FINALIZER.into());
                    continue;
                }
                Effect::RemoveFinalizer => {
                    self.layer.metadata.finalizers = None;
                    self.gone = true;
                    continue;
                }
            };
            if self.runs.iter().any(|known| known.metadata.name == run.metadata.name) {
                continue;
            }
            let mut run = run.as_ref().clone();
            self.made += 1;
            run.metadata.uid = Some(format!("run-{}", self.made));
            run.metadata.creation_timestamp = Some(Time(self.now));
            run.metadata.resource_version = Some(self.next_version());
            self.runs.push(run);
        }
        decision
    }

    fn next_version(&mut self) -> String {
        self.written += 1;
        self.written.to_string()
    }

    /// As `kubectl delete` does.
    pub fn delete(&mut self) {
        self.layer.metadata.deletion_timestamp = Some(Time(self.now));
    }

    /// Moves the clock to the moment that the last decision waits for.
    pub fn wait(&mut self, decision: &layer::Decision) {
        self.now = wakes_at(decision.wake).expect("a next look");
    }

    pub fn status(&self) -> &TerraformLayerStatus {
        self.layer.status.as_ref().expect("a status")
    }

    pub fn active(&mut self) -> Option<&mut TerraformRun> {
        self.runs
            .iter_mut()
            .find(|run| !run.status.as_ref().and_then(|s| s.state).is_some_and(RunState::is_terminal))
    }

    pub fn active_action(&mut self) -> Option<Action> {
        self.active().map(|run| run.spec.action)
    }

    /// Lets the active run end well; a plan gets bytes of its own.
    pub fn succeed(&mut self, summary: PlanSummary) {
        self.succeed_finding(summary, Differences::default());
    }

    /// The same, for a plan that found differences.
    pub fn succeed_finding(&mut self, summary: PlanSummary, differences: Differences) {
        let now = self.now;
        let made = self.made;
        let version = self.next_version();
        let run = self.active().expect("a run to finish");
        run.metadata.resource_version = Some(version);
        let plan = (run.spec.action == Action::Plan).then(|| Sha256::of(format!("plan {made}").as_bytes()));
        let summary = plan.is_some().then_some(summary);
        finish(run, RunState::Succeeded, "Succeeded", now, summary, plan);
        let result = run.status.as_mut().and_then(|status| status.result.as_mut()).expect("a result");
        result.differences = differences;
    }

    pub fn fail(&mut self, reason: &str) {
        let now = self.now;
        let version = self.next_version();
        let run = self.active().expect("a run to fail");
        run.metadata.resource_version = Some(version);
        finish(run, RunState::Failed, reason, now, None, None);
    }

    pub fn say(&mut self, decision: Word, sha256: &Sha256) {
        let name = format!("approval-{}", self.approvals.len());
        self.approvals.push(TerraformApproval::new(
            &name,
            TerraformApprovalSpec {
                layer: "db".parse().unwrap(),
                plan_sha256: sha256.clone(),
                user: "jane".into(),
                decision,
                reason: None,
            },
        ));
    }

    pub fn plan_sha256(&self) -> Sha256 {
        self.runs
            .iter()
            .rev()
            .find_map(|run| run.status.as_ref()?.result.as_ref()?.plan_sha256.clone())
            .expect("a plan")
    }
}

fn finish(
    run: &mut TerraformRun,
    state: RunState,
    reason: &str,
    now: Timestamp,
    summary: Option<PlanSummary>,
    plan: Option<Sha256>,
) {
    let attempt = Attempt {
        number: 0,
        pod_name: "pod".into(),
        pod_namespace: None,
        description: Sha256::of(b"description"),
        fence: 1,
        bundle: Some(Sha256::of(b"bundle")),
        started_at: Time(now),
        finished_at: Some(Time(now)),
        exit_code: Some(0),
        reason: Some(reason.into()),
        message: None,
        tool: None,
        log_digest: None,
    };
    run.status = Some(TerraformRunStatus {
        state: Some(state),
        attempts: vec![attempt],
        finished_at: Some(Time(now)),
        result: Some(RunResult {
            reason: reason.into(),
            message: format!("it ended with {reason}"),
            summary,
            plan_sha256: plan,
            ..RunResult::default()
        }),
        ..TerraformRunStatus::default()
    });
}

/// One resource that was changed by hand.
pub fn by_hand() -> Differences {
    let content = AttributeDifference {
        name: "content".into(),
        expected: "\"by code\"".into(),
        found: "\"by hand\"".into(),
    };
    let motd = Difference { address: "local_file.motd".into(), how: How::Changed, attributes: vec![content] };
    Differences { total: 1, resources: vec![motd] }
}

pub fn changes(count: u32) -> PlanSummary {
    PlanSummary { change: count, ..PlanSummary::default() }
}

pub fn destroys(count: u32) -> PlanSummary {
    PlanSummary { destroy: count, ..PlanSummary::default() }
}

pub fn adds(count: u32) -> PlanSummary {
    PlanSummary { add: count, ..PlanSummary::default() }
}

pub fn outcome(action: Action, reason: Reason, now: Timestamp) -> Outcome {
    Outcome {
        run_uid: "run-1".into(),
        attempt: 0,
        action,
        reason,
        message: "as the runner says".into(),
        exit_code: i32::from(reason != Reason::Succeeded),
        started_at: now,
        finished_at: now,
        tool: Some("terraform 1.2.3".into()),
        plan: (action == Action::Plan).then(|| PlanOutcome {
            sha256: Sha256::of(b"plan"),
            summary: adds(1),
            differences: Differences::default(),
            lineage: None,
            serial: None,
            backend: None,
        }),
        script: None,
        image: None,
        hook_outputs: BTreeMap::new(),
        log_sha256: Sha256::of(b""),
    }
}

pub fn wakes_at(wake: Wake) -> Option<Timestamp> {
    match wake {
        Wake::At(at) => Some(at),
        Wake::OnChange => None,
    }
}
