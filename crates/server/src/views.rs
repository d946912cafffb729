//! What is shown of objects. Each field is chosen here: nothing of an object reaches an answer because it was added to the object.
//! Values of variables and of hooks' outputs are in none of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::condition;
use api::layer::{LayerState, PlanRef, RunRef};
use api::run::{Action, Mode, PlanSummary, RunState, TriggerKind};
use api::{TerraformApproval, TerraformLayer, TerraformRepository, TerraformRun};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition as Known, Time};
use kube::ResourceExt;
use serde::Serialize;
use utoipa::ToSchema;

use crate::cache::{Key, View, Viewed};
use crate::paging::Ordered;
use crate::text::{Moment, Text, Texts};
use crate::tfstacks::views::{StackSummary, Template};

/// A word of an enum as the resource spells it.
fn word<T: Serialize>(value: T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        Ok(_) | Err(_) => String::new(),
    }
}

fn moment(time: &Time) -> String {
    time.0.to_string()
}

pub(crate) fn created(object: &impl ResourceExt) -> Option<String> {
    object.creation_timestamp().as_ref().map(moment)
}

/// One question and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: String,
    message: String,
    /// Since when.
    since: String,
}

fn conditions(known: &[Known]) -> Vec<Condition> {
    let view = |known: &Known| Condition {
        kind: known.type_.clone(),
        status: known.status.clone(),
        reason: known.reason.clone(),
        message: known.message.clone(),
        since: moment(&known.last_transition_time),
    };
    known.iter().map(view).collect()
}

/// How many resources a plan would change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Changes {
    add: u32,
    change: u32,
    destroy: u32,
    outputs: u32,
    scripts: u32,
}

impl From<PlanSummary> for Changes {
    fn from(summary: PlanSummary) -> Self {
        let PlanSummary { add, change, destroy, outputs, scripts } = summary;
        Self { add, change, destroy, outputs, scripts }
    }
}

/// A plan, by the digest that an approval names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Plan {
    /// The run that made it: its plan is at `/api/v1/namespaces/NAMESPACE/runs/RUN/plan`.
    run: String,
    attempt: u32,
    /// The sha256 of its bytes: what an approval names.
    sha256: String,
    changes: Changes,
    made_at: String,
    /// From when on it is too old to be applied; absent once it is applied, or where it has nothing to apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
}

impl From<&PlanRef> for Plan {
    fn from(plan: &PlanRef) -> Self {
        Self {
            run: plan.run.clone(),
            attempt: plan.attempt,
            sha256: plan.sha256.to_string(),
            changes: plan.summary.into(),
            made_at: moment(&plan.made_at),
            expires: plan.expires.as_ref().map(moment),
        }
    }
}

/// A run, in one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunLine {
    pub(crate) name: String,
    action: String,
    mode: String,
    commit: String,
    date: String,
    /// How it ended, or `running`.
    result: String,
}

impl From<&RunRef> for RunLine {
    fn from(run: &RunRef) -> Self {
        Self {
            name: run.name.clone(),
            action: run.action.as_str().to_owned(),
            mode: run.mode.as_str().to_owned(),
            commit: run.commit.to_string(),
            date: moment(&run.date),
            result: run.result.clone(),
        }
    }
}

/// A layer in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LayerSummary {
    pub(crate) namespace: String,
    pub(crate) name: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<String, String>,
    /// Empty, and `branch` too, where the code is an image.
    pub(crate) repository: String,
    pub(crate) branch: String,
    /// The image that it is pinned to, with its digest, where the code is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<String>,
    pub(crate) path: String,
    /// `Idle`, `PlanNeeded` or `ApplyNeeded`; empty until it was looked at.
    pub(crate) state: String,
    /// The reason for the state, in words.
    pub(crate) why: String,
    /// The relevant commit is applied, or needs no change.
    pub(crate) ready: bool,
    /// The infrastructure differs from what was applied.
    pub(crate) drifted: bool,
    /// It cannot go on by itself.
    pub(crate) failed: bool,
    pub(crate) suspended: bool,
    /// It is being deleted.
    pub(crate) deleting: bool,
    /// What the last plan would change, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_result: Option<String>,
    /// The relevant commit, short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) commit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_run: Option<RunLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) created_at: Option<String>,
    /// Where it is a stack.
    #[serde(skip)]
    pub(crate) stack: Option<Arc<StackSummary>>,
    /// Where it is a template.
    #[serde(skip)]
    pub(crate) template: Option<Arc<Template>>,
}

impl From<&TerraformLayer> for LayerSummary {
    fn from(layer: &TerraformLayer) -> Self {
        let status = layer.status.clone().unwrap_or_default();
        let is_true = |kind| condition::is_true(&status.conditions, kind);
        Self {
            namespace: layer.namespace().unwrap_or_default(),
            name: layer.name_any(),
            labels: layer.labels().clone(),
            repository: layer.spec.repository_name().map(ToString::to_string).unwrap_or_default(),
            branch: layer.spec.branch.as_ref().map(ToString::to_string).unwrap_or_default(),
            image: status.image.as_ref().map(ToString::to_string),
            path: layer.spec.path.to_string(),
            state: status.state.map(word::<LayerState>).unwrap_or_default(),
            why: status.why.clone().unwrap_or_default(),
            ready: is_true("Ready"),
            drifted: is_true("Drifted"),
            failed: is_true("Stalled"),
            suspended: layer.spec.suspend,
            deleting: layer.metadata.deletion_timestamp.is_some(),
            last_result: status.last_result.clone(),
            commit: status.revision.short.clone(),
            last_run: status.last_run.as_ref().map(RunLine::from),
            created_at: created(layer),
            stack: StackSummary::of(layer).map(Arc::new),
            template: Template::of(layer).map(Arc::new),
        }
    }
}

impl Viewed for TerraformLayer {
    type View = LayerSummary;

    fn view(self) -> LayerSummary {
        (&self).into()
    }
}

impl View for LayerSummary {
    fn key(&self) -> Key {
        (self.namespace.as_str().into(), self.name.as_str().into())
    }
}

impl Ordered for LayerSummary {
    const FIELDS: &'static [&'static str] = &["namespace", "state", "repository", "createdAt", "lastRun"];

    fn field(&self, field: &str) -> String {
        match field {
            "namespace" => self.namespace.clone(),
            "state" => self.state.clone(),
            "repository" => self.repository.clone(),
            "createdAt" => self.created_at.clone().unwrap_or_default(),
            "lastRun" => self.last_run.as_ref().map(|run| run.date.clone()).unwrap_or_default(),
            _ => self.name.clone(),
        }
    }
}

/// A variable of a layer, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VariableName {
    name: String,
    /// `value`, or the Secret or ConfigMap that it comes from.
    from: String,
    sensitive: bool,
}

/// Which commits a layer is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Commits {
    /// The head of the branch.
    #[serde(skip_serializing_if = "Option::is_none")]
    branch: Option<String>,
    /// The last one that touches the layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    relevant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    planned: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    applied: Option<String>,
}

/// A resource that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Difference {
    address: String,
    /// `changed`, `missing` or `unwanted`.
    how: String,
}

/// What was found to differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Drift {
    run: String,
    found_at: String,
    total: u32,
    resources: Vec<Difference>,
}

/// A layer with all that is shown of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Layer {
    #[serde(flatten)]
    summary: LayerSummary,
    uid: String,
    /// What `If-Match` takes, as the header `ETag` says too.
    version: String,
    workspace: String,
    auto_apply: Option<bool>,
    /// `Orphan` or `Destroy`.
    deletion_policy: String,
    variables: Vec<VariableName>,
    commits: Commits,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<Plan>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drift: Option<Drift>,
    /// Newest first.
    runs: Vec<RunLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_check: Option<String>,
    consecutive_failures: u32,
    conditions: Vec<Condition>,
}

impl From<&TerraformLayer> for Layer {
    fn from(layer: &TerraformLayer) -> Self {
        let status = layer.status.clone().unwrap_or_default();
        let spec = &layer.spec;
        let variables = spec.variables.iter().map(|variable| {
            let place = variable.value_from.as_ref().and_then(|from| from.place());
            let is_secret =
                place.as_ref().is_some_and(|(object, _)| object.kind == api::inputs::Kind::Secret);
            VariableName {
                name: variable.name.to_string(),
                from: place.map_or_else(|| "value".to_owned(), |(object, key)| format!("{object} key {key}")),
                sensitive: variable.sensitive || is_secret,
            }
        });
        let text = |commit: &Option<api::text::CommitId>| commit.as_ref().map(ToString::to_string);
        let revision = &status.revision;
        Self {
            summary: layer.into(),
            uid: layer.uid().unwrap_or_default(),
            version: layer.resource_version().unwrap_or_default(),
            workspace: spec.workspace.as_ref().map_or_else(|| "default".to_owned(), ToString::to_string),
            auto_apply: spec.remediation_strategy.as_ref().and_then(|strategy| strategy.auto_apply),
            deletion_policy: word(spec.deletion_policy.unwrap_or(api::layer::DeletionPolicy::Orphan)),
            variables: variables.collect(),
            commits: Commits {
                branch: text(&revision.branch),
                relevant: text(&revision.relevant),
                planned: text(&revision.planned),
                applied: text(&revision.applied),
            },
            plan: status.plan.as_ref().map(Plan::from),
            drift: status.drift.as_ref().map(|drift| Drift {
                run: drift.run.clone(),
                found_at: moment(&drift.found_at),
                total: drift.total,
                resources: drift
                    .resources
                    .iter()
                    .map(|one| Difference { address: one.address.clone(), how: word(one.how) })
                    .collect(),
            }),
            runs: status.latest_runs.iter().map(RunLine::from).collect(),
            next_check: status.next_check.as_ref().map(moment),
            consecutive_failures: status.consecutive_failures,
            conditions: conditions(&status.conditions),
        }
    }
}

/// A run in a list. There are many more of them than of anything else, so they are kept small.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunSummary {
    #[schema(value_type = String)]
    pub(crate) namespace: Text,
    #[schema(value_type = String)]
    pub(crate) name: Text,
    #[schema(value_type = String)]
    pub(crate) layer: Text,
    /// `plan` or `apply`.
    #[schema(value_type = String)]
    pub(crate) action: Action,
    /// `normal`, `destroy` or `refreshOnly`.
    #[schema(value_type = String)]
    pub(crate) mode: Mode,
    #[schema(value_type = String)]
    pub(crate) commit: Text,
    /// `Initial`, `Running`, `FailureGracePeriod`, `Retrying`, `Succeeded` or `Failed`.
    #[schema(value_type = String)]
    pub(crate) state: RunState,
    /// What led to it.
    #[schema(value_type = String)]
    pub(crate) trigger: TriggerKind,
    #[schema(value_type = String)]
    pub(crate) reason: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) by: Option<Text>,
    /// What came of it, in words; while it waits, for what.
    #[schema(value_type = String)]
    pub(crate) message: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) created_at: Option<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) finished_at: Option<Moment>,
    /// Where the queue orders by it. Most runs have ended and do not wait.
    #[serde(skip)]
    pub(crate) waiting: Option<Box<engine::queue::Waiting>>,
    /// A runner works for it.
    #[serde(skip)]
    pub(crate) at_work: bool,
}

/// The reason of a run that waits for a free runner.
const QUEUED: &str = "Queued";

impl From<&TerraformRun> for RunSummary {
    fn from(run: &TerraformRun) -> Self {
        let status = run.status.as_ref();
        let state = status.and_then(|status| status.state).unwrap_or(RunState::Initial);
        let ready = status.and_then(|status| condition::find(&status.conditions, "Ready"));
        let is_open = !state.is_terminal();
        let is_queued = is_open && ready.is_some_and(|ready| ready.reason == QUEUED);
        let result = status.and_then(|status| status.result.as_ref());
        let message = result.map(|result| &*result.message).or(ready.map(|ready| &*ready.message));
        let attempt = status.and_then(|status| status.attempts.last());
        let spec = &run.spec;
        Self {
            namespace: run.namespace().unwrap_or_default().into(),
            name: run.name_any().into(),
            layer: spec.layer.name.as_str().into(),
            action: spec.action,
            mode: spec.mode,
            commit: spec.layer.revision.as_str().into(),
            state,
            trigger: spec.trigger.kind,
            reason: spec.trigger.reason.as_str().into(),
            by: spec.trigger.by.as_deref().map(Text::from),
            message: message.unwrap_or_default().into(),
            created_at: run.metadata.creation_timestamp.as_ref().map(Moment::from),
            finished_at: status.and_then(|status| status.finished_at.as_ref()).map(Moment::from),
            waiting: is_queued
                .then(|| Box::new(engine::queue::Waiting::new(run, "", 0, engine::queue::Holds::Nothing))),
            at_work: is_open && attempt.is_some_and(|attempt| attempt.finished_at.is_none()),
        }
    }
}

impl Viewed for TerraformRun {
    type View = RunSummary;

    fn view(self) -> RunSummary {
        (&self).into()
    }
}

impl View for RunSummary {
    fn key(&self) -> Key {
        (self.namespace.clone(), self.name.clone())
    }

    fn share(&mut self, texts: &mut Texts) {
        let Self { namespace, layer, commit, reason, by, message, .. } = self;
        for text in [namespace, layer, commit, reason, message].into_iter().chain(by) {
            texts.share(text);
        }
    }
}

impl Ordered for RunSummary {
    const FIELDS: &'static [&'static str] = &["namespace", "state", "layer", "createdAt", "finishedAt"];

    fn field(&self, field: &str) -> String {
        let moment = |moment: Option<Moment>| moment.map(|moment| moment.to_string()).unwrap_or_default();
        match field {
            "namespace" => self.namespace.to_string(),
            "state" => self.state.as_str().to_owned(),
            "layer" => self.layer.to_string(),
            "createdAt" => moment(self.created_at),
            "finishedAt" => moment(self.finished_at),
            _ => self.name.to_string(),
        }
    }
}

/// One attempt of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Attempt {
    /// Counted from 0; what `?attempt=` of logs and plans takes.
    number: u32,
    pod: String,
    started_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// The tool and its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<String>,
}

/// A run with all that is shown of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Run {
    #[serde(flatten)]
    summary: RunSummary,
    uid: String,
    version: String,
    /// Of an apply: the plan, by its run and the digest of its bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    applies: Option<Applied>,
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<Changes>,
    /// Of a plan: the digest that an approval names.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan_sha256: Option<String>,
    /// Why it ended as it did, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<String>,
    retries: u32,
    attempts: Vec<Attempt>,
    conditions: Vec<Condition>,
}

/// The plan that an apply applies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Applied {
    run: String,
    sha256: String,
}

impl From<&TerraformRun> for Run {
    fn from(run: &TerraformRun) -> Self {
        let status = run.status.clone().unwrap_or_default();
        let attempts = status.attempts.iter().map(|attempt| Attempt {
            number: attempt.number,
            pod: attempt.pod_name.clone(),
            started_at: moment(&attempt.started_at),
            finished_at: attempt.finished_at.as_ref().map(moment),
            exit_code: attempt.exit_code,
            reason: attempt.reason.clone(),
            message: attempt.message.clone(),
            tool: attempt.tool.clone(),
        });
        let result = status.result.as_ref();
        Self {
            summary: run.into(),
            uid: run.uid().unwrap_or_default(),
            version: run.resource_version().unwrap_or_default(),
            applies: run
                .spec
                .artifact
                .as_ref()
                .map(|plan| Applied { run: plan.run.to_string(), sha256: plan.sha256.to_string() }),
            changes: result.and_then(|result| result.summary).map(Changes::from),
            plan_sha256: result.and_then(|result| result.plan_sha256.as_ref()).map(ToString::to_string),
            result: result.map(|result| result.reason.clone()),
            retries: status.retries,
            attempts: attempts.collect(),
            conditions: conditions(&status.conditions),
        }
    }
}

/// A branch or tag that layers follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Branch {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
    /// `success` or `failed`.
    last_look: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// How the layers of a repository are doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LayerCounts {
    total: u32,
    ready: u32,
    drifted: u32,
    failed: u32,
}

/// The newest delivery of a webhook that had a repository looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Webhook {
    host: String,
    received_at: String,
}

/// A repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Repository {
    pub(crate) namespace: String,
    pub(crate) name: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) url: String,
    /// `SyncNeeded` or `Synced`; empty until it was looked at.
    pub(crate) state: String,
    pub(crate) ready: bool,
    /// What was found, or why it could not be read.
    pub(crate) message: String,
    branches: Vec<Branch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    layers: Option<LayerCounts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    webhook: Option<Webhook>,
    pub(crate) version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<String>,
}

impl From<&TerraformRepository> for Repository {
    fn from(repository: &TerraformRepository) -> Self {
        let status = repository.status.clone().unwrap_or_default();
        let ready = condition::find(&status.conditions, "Ready");
        Self {
            namespace: repository.namespace().unwrap_or_default(),
            name: repository.name_any(),
            labels: repository.labels().clone(),
            url: repository.spec.repository.url.to_string(),
            state: status.state.map(word).unwrap_or_default(),
            ready: condition::is_true(&status.conditions, "Ready"),
            message: ready.map(|ready| ready.message.clone()).unwrap_or_default(),
            branches: status
                .branches
                .iter()
                .map(|branch| Branch {
                    name: branch.name.clone(),
                    commit: branch.latest_rev.as_ref().map(ToString::to_string),
                    last_look: word(branch.last_sync_status),
                    message: branch.message.clone(),
                })
                .collect(),
            layers: status.layers.map(|counts| LayerCounts {
                total: counts.total,
                ready: counts.ready,
                drifted: counts.drifted,
                failed: counts.failed,
            }),
            webhook: status.webhook.map(|webhook| Webhook {
                host: webhook.host,
                received_at: webhook.received_at.0.to_string(),
            }),
            version: repository.resource_version().unwrap_or_default(),
            created_at: created(repository),
        }
    }
}

impl Viewed for TerraformRepository {
    type View = Repository;

    fn view(self) -> Repository {
        (&self).into()
    }
}

impl View for Repository {
    fn key(&self) -> Key {
        (self.namespace.as_str().into(), self.name.as_str().into())
    }
}

impl Ordered for Repository {
    const FIELDS: &'static [&'static str] = &["namespace", "state", "url", "createdAt"];

    fn field(&self, field: &str) -> String {
        match field {
            "namespace" => self.namespace.clone(),
            "state" => self.state.clone(),
            "url" => self.url.clone(),
            "createdAt" => self.created_at.clone().unwrap_or_default(),
            _ => self.name.clone(),
        }
    }
}

/// One person's word on one plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Approval {
    name: String,
    layer: String,
    plan_sha256: String,
    user: String,
    /// `approve` or `reject`.
    decision: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<String>,
}

impl From<&TerraformApproval> for Approval {
    fn from(approval: &TerraformApproval) -> Self {
        Self {
            name: approval.name_any(),
            layer: approval.spec.layer.to_string(),
            plan_sha256: approval.spec.plan_sha256.to_string(),
            user: approval.spec.user.clone(),
            decision: word(approval.spec.decision),
            reason: approval.spec.reason.clone(),
            created_at: created(approval),
        }
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Happened {
    pub(crate) namespace: String,
    /// `layer`, `run` or `repository`.
    pub(crate) kind: String,
    pub(crate) name: String,
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    severity: String,
    reason: String,
    message: String,
    count: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<String>,
}

impl From<&Event> for Happened {
    fn from(event: &Event) -> Self {
        let object = &event.involved_object;
        let kind = object.kind.as_deref().unwrap_or_default().trim_start_matches("Terraform");
        let series = event.series.as_ref();
        let at = series
            .and_then(|series| series.last_observed_time.as_ref().map(|time| time.0))
            .or_else(|| event.last_timestamp.as_ref().map(|time| time.0))
            .or_else(|| event.event_time.as_ref().map(|time| time.0))
            .or_else(|| event.creation_timestamp().map(|time| time.0));
        Self {
            namespace: object.namespace.clone().unwrap_or_default(),
            kind: kind.to_lowercase(),
            name: object.name.clone().unwrap_or_default(),
            severity: event.type_.clone().unwrap_or_default(),
            reason: event.reason.clone().unwrap_or_default(),
            message: event.message.clone().unwrap_or_default(),
            count: series.and_then(|series| series.count).or(event.count).unwrap_or(1),
            at: at.map(|at: Timestamp| at.to_string()),
        }
    }
}

/// A run that waits for a free runner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Queued {
    /// 1 is next.
    pub(crate) place: usize,
    pub(crate) namespace: String,
    pub(crate) run: String,
    pub(crate) layer: String,
    pub(crate) action: String,
    /// What it waits for, in words.
    pub(crate) waits_for: String,
    pub(crate) since: String,
}

/// Those that wait, in the order of their starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Queue {
    /// How many runs wait in all, also those that the caller may not see.
    pub(crate) waiting: usize,
    /// How many work.
    pub(crate) working: usize,
    pub(crate) items: Vec<Queued>,
}
