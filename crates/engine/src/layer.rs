//! What a layer needs next: nothing, a plan, an apply, or to wait, and always why.
//!
//! The runs are the truth, the status is only what people read: everything that decides is derived from the layer's runs, the
//! relevant commit and the approvals. A run's name follows from the wish behind it, so deciding twice makes one run.

use api::approval::Decision as Word;
use api::condition::{self, Truth};
use api::layer::{LayerState, PlanRef, Revisions, RunRef};
use api::run::{Action, Artifact, LayerRef, PlanSummary, RunState, Trigger, TriggerKind};
use api::text::{CommitId, ObjectName, Sha256, Workspace};
use api::{
    TerraformApproval, TerraformLayer, TerraformLayerStatus, TerraformRepository, TerraformRun,
    TerraformRunSpec, annotation, label,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use kube::core::ObjectMeta;

use crate::names::{self, Wish};
use crate::{Read, Settings, Wake, later};

#[derive(Debug, Clone)]
pub struct Observed<'a> {
    pub now: Timestamp,
    pub layer: &'a TerraformLayer,
    pub repository: Read<&'a TerraformRepository>,
    pub source: Read<Result<Source, String>>,
    /// The runs of this incarnation of the layer.
    pub runs: &'a [TerraformRun],
    pub approvals: &'a [TerraformApproval],
    pub settings: &'a Settings,
}

/// What the layer's branch holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub head: CommitId,
    /// The last commit that touches the layer.
    pub relevant: CommitId,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub effects: Vec<Effect>,
    pub status: TerraformLayerStatus,
    pub wake: Wake,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    CreateRun(Box<TerraformRun>),
}

pub fn decide(seen: &Observed<'_>) -> Decision {
    let history = History::of(seen);
    let need = need(seen, &history);
    let effects = match &need.step {
        Step::Start(run) => vec![Effect::CreateRun(run.clone())],
        Step::Hold => Vec::new(),
    };
    Decision { status: status(seen, &history, &need), effects, wake: need.wake }
}

/// The layer's runs, sorted into the questions asked of them. O(runs kept for the layer).
struct History<'a> {
    newest_first: Vec<&'a TerraformRun>,
    active: Option<&'a TerraformRun>,
    plan: Option<Plan<'a>>,
    /// The apply of that plan, if it was started.
    apply: Option<&'a TerraformRun>,
}

/// The newest plan that succeeded.
struct Plan<'a> {
    run: &'a TerraformRun,
    attempt: u32,
    sha256: &'a Sha256,
    summary: PlanSummary,
    made_at: Timestamp,
}

impl<'a> History<'a> {
    fn of(seen: &Observed<'a>) -> Self {
        let mut newest_first: Vec<&TerraformRun> = seen.runs.iter().collect();
        newest_first.sort_by_cached_key(|run| {
            let created = run.metadata.creation_timestamp.as_ref().map(|t| t.0);
            std::cmp::Reverse((
                finished_at(run).unwrap_or(Timestamp::MAX),
                created,
                run.metadata.name.clone(),
            ))
        });
        let active = newest_first.iter().copied().find(|run| !is_terminal(run));
        let plan = newest_first.iter().copied().find_map(Plan::of);
        let apply = plan.as_ref().and_then(|plan| {
            newest_first.iter().copied().find(|run| {
                run.spec.artifact.as_ref().is_some_and(|artifact| &artifact.sha256 == plan.sha256)
            })
        });
        Self { newest_first, active, plan, apply }
    }

    fn named(&self, name: &str) -> Option<&'a TerraformRun> {
        self.newest_first.iter().copied().find(|run| run.metadata.name.as_deref() == Some(name))
    }
}

impl<'a> Plan<'a> {
    fn of(run: &'a TerraformRun) -> Option<Self> {
        let status = run.status.as_ref()?;
        if run.spec.action != Action::Plan || status.state != Some(RunState::Succeeded) {
            return None;
        }
        let result = status.result.as_ref()?;
        Some(Self {
            run,
            attempt: status.attempts.last()?.number,
            sha256: result.plan_sha256.as_ref()?,
            summary: result.summary?,
            made_at: status.finished_at.as_ref()?.0,
        })
    }
}

/// What is to be done, and what a person is told about it.
struct Need {
    state: LayerState,
    reason: &'static str,
    why: String,
    standing: Standing,
    step: Step,
    wake: Wake,
}

enum Step {
    Start(Box<TerraformRun>),
    Hold,
}

/// What kstatus says of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    InSync,
    /// Terrane works, or will by itself.
    Working,
    /// A person is waited for.
    Waiting,
    /// Nothing will happen before something changes.
    Stuck,
    /// Not known yet.
    Unknown,
}

fn need(seen: &Observed<'_>, history: &History<'_>) -> Need {
    if let Some(run) = history.active {
        return at_work(run);
    }
    if seen.layer.spec.suspend {
        let state = seen.layer.status.as_ref().and_then(|s| s.state).unwrap_or(LayerState::Idle);
        return hold(
            state,
            "Suspended",
            "suspended; set spec.suspend to false to go on",
            Standing::Waiting,
            Wake::OnChange,
        );
    }
    let repository = match seen.repository {
        Read::Present(repository) => repository,
        Read::Absent => {
            let why = format!("repository {} not found in this namespace", seen.layer.spec.repository.name);
            return hold(LayerState::PlanNeeded, "RepositoryMissing", why, Standing::Stuck, Wake::OnChange);
        }
        Read::Unknown => return unknown("the repository could not be read"),
    };
    let source = match &seen.source {
        Read::Present(Ok(source)) => source,
        Read::Present(Err(why)) => {
            return hold(
                LayerState::PlanNeeded,
                "SourceUnavailable",
                why.clone(),
                Standing::Stuck,
                Wake::OnChange,
            );
        }
        Read::Absent => {
            let why = format!(
                "waiting for branch {} of {} to be seen",
                seen.layer.spec.branch, seen.layer.spec.repository.name
            );
            return hold(LayerState::PlanNeeded, "SourceUnseen", why, Standing::Unknown, Wake::OnChange);
        }
        Read::Unknown => return unknown("looking at the repository's newest commit"),
    };
    if let Some(wish) = manual(seen, history) {
        let reason = "asked for by hand".to_owned();
        let trigger = Trigger { kind: TriggerKind::Manual, by: None, reason: reason.clone() };
        return start_plan(seen, source, &wish, trigger, 0, reason);
    }
    match &history.plan {
        Some(plan) if plan.run.spec.layer.revision == source.relevant => {
            after_plan(seen, repository, source, history, plan)
        }
        newest => {
            let token = newest.as_ref().map(|plan| after(plan.run)).unwrap_or_default();
            let reason = format!("new commit {} touches {}", source.relevant.short(), seen.layer.spec.path);
            let wish = PlanWish { token, kind: TriggerKind::Commit, reason, preceding: 0 };
            plan_or_pause(seen, repository, source, history, wish)
        }
    }
}

/// A plan under the wish `token`. One that failed for good is tried again at the next drift check: each such check is a wish of
/// its own, named after the failure before it. Bounded by the runs that are kept.
fn plan_or_pause(
    seen: &Observed<'_>,
    repository: &TerraformRepository,
    source: &Source,
    history: &History<'_>,
    plan: PlanWish,
) -> Need {
    let PlanWish { mut token, kind, reason, preceding } = plan;
    let mut failed = None;
    for _ in 0..=history.newest_first.len() {
        match history.named(&name(seen, Action::Plan, &source.relevant, None, &token)) {
            Some(run) => {
                failed = Some(run);
                token = after(run);
            }
            None => break,
        }
    }
    let trigger = Trigger { kind, by: None, reason: reason.clone() };
    let Some(run) = failed else { return start_plan(seen, source, &token, trigger, preceding, reason) };
    let again = later(finished_at(run).unwrap_or(seen.now), drift_interval(seen, repository));
    if seen.now >= again {
        return start_plan(seen, source, &token, trigger, preceding, reason);
    }
    let why = format!(
        "{}; a new commit or the annotation {} tries again: {}",
        gave_up(run),
        annotation::SYNC,
        result_message(run)
    );
    hold(LayerState::PlanNeeded, "GaveUp", why, Standing::Stuck, Wake::At(again))
}

/// Why a plan is wished for, and under which token.
struct PlanWish {
    token: String,
    kind: TriggerKind,
    reason: String,
    preceding: u32,
}

/// The relevant commit is planned: is there something to apply, and may it be?
fn after_plan(
    seen: &Observed<'_>,
    repository: &TerraformRepository,
    source: &Source,
    history: &History<'_>,
    plan: &Plan<'_>,
) -> Need {
    let interval = drift_interval(seen, repository);
    let drift = |since: Timestamp, run: &TerraformRun| -> Option<Need> {
        if seen.now < later(since, interval) {
            return None;
        }
        let reason = "the last look at the infrastructure is older than the drift interval".to_owned();
        let wish = PlanWish { token: after(run), kind: TriggerKind::Drift, reason, preceding: 0 };
        Some(plan_or_pause(seen, repository, source, history, wish))
    };
    let in_sync = |since: Timestamp| {
        let next = later(since, interval);
        hold(
            LayerState::Idle,
            "InSync",
            format!("in sync with {}", source.relevant.short()),
            Standing::InSync,
            Wake::At(next),
        )
    };
    if !plan.summary.has_changes() {
        return drift(plan.made_at, plan.run).unwrap_or_else(|| in_sync(plan.made_at));
    }
    match history.apply {
        Some(apply) if has_succeeded(apply) => {
            let at = finished_at(apply).unwrap_or(seen.now);
            drift(at, apply).unwrap_or_else(|| in_sync(at))
        }
        Some(apply) => after_failed_apply(seen, repository, source, history, apply),
        None => match permit(seen, repository, plan) {
            Permit::Now(trigger) => start_apply(seen, plan, trigger),
            Permit::Wait { reason, why } => drift(plan.made_at, plan.run).unwrap_or_else(|| {
                hold(
                    LayerState::ApplyNeeded,
                    reason,
                    why,
                    Standing::Waiting,
                    Wake::At(later(plan.made_at, interval)),
                )
            }),
        },
    }
}

/// The same apply is never started again: the world is planned anew, after a pause that grows, so plan, apply, fail cannot spin.
fn after_failed_apply(
    seen: &Observed<'_>,
    repository: &TerraformRepository,
    source: &Source,
    history: &History<'_>,
    apply: &TerraformRun,
) -> Need {
    let failures = apply.spec.preceding_failures.saturating_add(1);
    let finished = finished_at(apply).unwrap_or(seen.now);
    let limit = max_retries(seen, repository);
    let exhausted = failures > limit;
    let pause =
        if exhausted { drift_interval(seen, repository) } else { seen.settings.retry.pause(failures) };
    let again = later(finished, pause);
    if seen.now >= again {
        let reason = format!("the apply before failed ({})", result_reason(apply));
        let preceding = if exhausted { 0 } else { failures };
        let wish = PlanWish { token: after(apply), kind: TriggerKind::Failure, reason, preceding };
        return plan_or_pause(seen, repository, source, history, wish);
    }
    let (reason, why, standing) = if exhausted {
        (
            "GaveUp",
            format!(
                "gave up after {failures} failed applies; a new commit or the annotation {} tries again: {}",
                annotation::SYNC,
                result_message(apply)
            ),
            Standing::Stuck,
        )
    } else {
        (
            "ApplyFailed",
            format!("apply failed, planning anew at {}: {}", clock(again), result_message(apply)),
            Standing::Working,
        )
    };
    hold(LayerState::PlanNeeded, reason, why, standing, Wake::At(again))
}

enum Permit {
    Now(Trigger),
    Wait { reason: &'static str, why: String },
}

/// Who says that this plan, by its bytes, may be applied.
fn permit(seen: &Observed<'_>, repository: &TerraformRepository, plan: &Plan<'_>) -> Permit {
    let words = || seen.approvals.iter().filter(|a| &a.spec.plan_sha256 == plan.sha256);
    if let Some(reject) = words().find(|a| a.spec.decision == Word::Reject) {
        return Permit::Wait {
            reason: "Rejected",
            why: format!("the plan was rejected by {}", reject.spec.user),
        };
    }
    if auto_apply(seen, repository) {
        let reason = "autoApply is on".to_owned();
        return Permit::Now(Trigger { kind: TriggerKind::Auto, by: None, reason });
    }
    if let Some(approval) = words().find(|a| a.spec.decision == Word::Approve) {
        let reason = format!("approved by {}", approval.spec.user);
        return Permit::Now(Trigger {
            kind: TriggerKind::Approval,
            by: Some(approval.spec.user.clone()),
            reason,
        });
    }
    if annotated(seen.layer, annotation::APPROVE) == Some(plan.sha256.as_str()) {
        let reason = "approved by annotation, author not proved".to_owned();
        return Permit::Now(Trigger { kind: TriggerKind::Approval, by: None, reason });
    }
    let why =
        format!("autoApply is off; {}: terrane approve {}", words_of(plan.summary), name_of(seen.layer));
    Permit::Wait { reason: "WaitingForApproval", why }
}

fn at_work(run: &TerraformRun) -> Need {
    let short = run.spec.layer.revision.short();
    let (state, doing) = match run.spec.action {
        Action::Plan => (LayerState::PlanNeeded, "planning"),
        Action::Apply => (LayerState::ApplyNeeded, "applying"),
    };
    let run_state = run.status.as_ref().and_then(|s| s.state);
    let (reason, why) = match run_state {
        Some(RunState::FailureGracePeriod) => ("Retrying", format!("{doing} {short} {}", ready_message(run))),
        Some(
            RunState::Initial
            | RunState::Running
            | RunState::Retrying
            | RunState::Succeeded
            | RunState::Failed,
        )
        | None => ("Running", format!("{doing} {short}")),
    };
    hold(state, reason, why, Standing::Working, Wake::OnChange)
}

/// A wish of a person that no run answers yet. The annotation's text names the wish, so one text is one plan.
fn manual(seen: &Observed<'_>, history: &History<'_>) -> Option<String> {
    let text = annotated(seen.layer, annotation::SYNC)?;
    let answered = seen.layer.status.as_ref().and_then(|s| s.last_sync.as_deref()) == Some(text);
    let token = sync_token(text);
    let exists = history.newest_first.iter().any(|run| annotated_token(run) == Some(token.as_str()));
    (!answered && !exists).then_some(token)
}

fn sync_token(text: &str) -> String {
    format!("sync:{text}")
}

fn start_plan(
    seen: &Observed<'_>,
    source: &Source,
    token: &str,
    trigger: Trigger,
    preceding: u32,
    why: String,
) -> Need {
    let run = run(seen, Action::Plan, &source.relevant, None, token, trigger, preceding);
    Need {
        state: LayerState::PlanNeeded,
        reason: "Planning",
        why,
        standing: Standing::Working,
        step: run.map_or(Step::Hold, |run| Step::Start(Box::new(run))),
        wake: Wake::OnChange,
    }
}

fn start_apply(seen: &Observed<'_>, plan: &Plan<'_>, trigger: Trigger) -> Need {
    let why = format!("applying {}: {}", words_of(plan.summary), trigger.reason);
    let artifact = plan.run.metadata.name.as_deref().and_then(|name| {
        Some(Artifact {
            run: ObjectName::new(name).ok()?,
            run_uid: plan.run.metadata.uid.clone()?,
            attempt: plan.attempt,
            sha256: plan.sha256.clone(),
        })
    });
    let preceding = plan.run.spec.preceding_failures;
    let run = artifact.and_then(|artifact| {
        run(seen, Action::Apply, &plan.run.spec.layer.revision, Some(artifact), "", trigger, preceding)
    });
    Need {
        state: LayerState::ApplyNeeded,
        reason: "Applying",
        why,
        standing: Standing::Working,
        step: run.map_or(Step::Hold, |run| Step::Start(Box::new(run))),
        wake: Wake::OnChange,
    }
}

/// Which sync text a run answers; other runs have none.
const TOKEN_ANNOTATION: &str = "terrane.dev/token";

fn annotated_token(run: &TerraformRun) -> Option<&str> {
    run.metadata.annotations.as_ref()?.get(TOKEN_ANNOTATION).map(String::as_str)
}

fn run(
    seen: &Observed<'_>,
    action: Action,
    revision: &CommitId,
    artifact: Option<Artifact>,
    token: &str,
    trigger: Trigger,
    preceding: u32,
) -> Option<TerraformRun> {
    let layer = seen.layer;
    let repository = seen.repository.as_ref().present().copied()?;
    let sha256 = artifact.as_ref().map(|a| &a.sha256);
    let mut run = TerraformRun::new(
        &name(seen, action, revision, sha256, token),
        TerraformRunSpec {
            layer: LayerRef {
                name: ObjectName::new(name_of(layer)).ok()?,
                uid: layer.metadata.uid.clone()?,
                revision: revision.clone(),
            },
            action,
            state: state_of(layer),
            artifact,
            trigger,
            max_retries: max_retries(seen, repository),
            preceding_failures: preceding,
        },
    );
    run.metadata = ObjectMeta {
        namespace: layer.metadata.namespace.clone(),
        labels: Some(
            [(label::MANAGED_BY, "terrane"), (label::ACTION, action.as_str())]
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        ),
        annotations: token
            .starts_with("sync:")
            .then(|| [(TOKEN_ANNOTATION.to_owned(), token.to_owned())].into()),
        owner_references: Some(vec![layer.controller_owner_ref(&())?]),
        ..run.metadata
    };
    Some(run)
}

fn name(
    seen: &Observed<'_>,
    action: Action,
    revision: &CommitId,
    plan: Option<&Sha256>,
    token: &str,
) -> String {
    let layer_uid = seen.layer.metadata.uid.as_deref().unwrap_or_default();
    names::run(Wish { layer: name_of(seen.layer), layer_uid, action, revision, plan, token })
}

/// The state that a layer's runs are about.
pub fn state_of(layer: &TerraformLayer) -> Sha256 {
    names::state(
        layer.metadata.namespace.as_deref().unwrap_or_default(),
        layer.spec.repository.name.as_str(),
        layer.spec.path.trimmed(),
        layer.spec.workspace.as_ref().map_or("default", Workspace::as_str),
    )
}

fn status(seen: &Observed<'_>, history: &History<'_>, need: &Need) -> TerraformLayerStatus {
    let before = seen.layer.status.clone().unwrap_or_default();
    let generation = seen.layer.metadata.generation;
    let source = match &seen.source {
        Read::Present(Ok(source)) => Some(source),
        Read::Present(Err(_)) | Read::Absent | Read::Unknown => None,
    };
    let planned = history.plan.as_ref();
    let applied = history
        .newest_first
        .iter()
        .find(|run| run.spec.action == Action::Apply && has_succeeded(run))
        .map(|run| run.spec.layer.revision.clone());
    let clean =
        planned.filter(|plan| !plan.summary.has_changes()).map(|plan| plan.run.spec.layer.revision.clone());
    let runs: Vec<RunRef> = history.newest_first.iter().take(5).filter_map(|run| run_ref(run)).collect();
    let mut status = TerraformLayerStatus {
        observed_generation: generation,
        state: Some(need.state),
        why: Some(need.why.clone()),
        last_result: planned.map(|plan| burrito_words(plan.summary)).or(before.last_result),
        next_check: match need.wake {
            Wake::At(at) => Some(Time(whole_second(at))),
            Wake::OnChange => None,
        },
        revision: Revisions {
            branch: source.map(|s| s.head.clone()).or(before.revision.branch),
            relevant: source.map(|s| s.relevant.clone()).or(before.revision.relevant),
            short: source.map(|s| s.relevant.short().to_owned()).or(before.revision.short),
            planned: planned.map(|plan| plan.run.spec.layer.revision.clone()).or(before.revision.planned),
            applied: clean.or(applied).or(before.revision.applied),
        },
        plan: planned.map(|plan| PlanRef {
            run: plan.run.metadata.name.clone().unwrap_or_default(),
            attempt: plan.attempt,
            sha256: plan.sha256.clone(),
            summary: plan.summary,
            made_at: Time(plan.made_at),
        }),
        last_run: runs.first().cloned(),
        latest_runs: runs,
        last_sync: answered_sync(seen, history).or(before.last_sync),
        consecutive_failures: history
            .apply
            .filter(|run| has_failed(run))
            .map_or(0, |run| run.spec.preceding_failures + 1),
        conditions: before.conditions,
    };
    conditions(seen, history, need, &mut status);
    status
}

/// The sync text on the layer, once a run answers it.
fn answered_sync(seen: &Observed<'_>, history: &History<'_>) -> Option<String> {
    let text = annotated(seen.layer, annotation::SYNC)?;
    let token = sync_token(text);
    history
        .newest_first
        .iter()
        .any(|run| annotated_token(run) == Some(token.as_str()))
        .then(|| text.to_owned())
}

fn conditions(seen: &Observed<'_>, history: &History<'_>, need: &Need, status: &mut TerraformLayerStatus) {
    let generation = seen.layer.metadata.generation;
    let relevant = status.revision.relevant.clone();
    let planned_relevant = relevant.is_some() && status.revision.planned == relevant;
    let plan_fresh = planned_relevant && need.state != LayerState::PlanNeeded;
    let apply_done = history
        .plan
        .as_ref()
        .is_some_and(|plan| !plan.summary.has_changes() || history.apply.is_some_and(has_succeeded));
    // A plan that shows changes to a commit that was already in place is the world having moved, not the code.
    let drifted = history.plan.as_ref().filter(|plan| {
        plan.summary.has_changes()
            && !history.apply.is_some_and(has_succeeded)
            && seen.layer.status.as_ref().and_then(|s| s.revision.applied.as_ref())
                == Some(&plan.run.spec.layer.revision)
    });
    let drift_message =
        drifted.map(|plan| format!("the infrastructure differs from the code: {}", words_of(plan.summary)));
    let mut set = |kind, truth, reason: &str, message: &str| {
        condition::set(&mut status.conditions, kind, truth, reason, message, generation, seen.now);
    };
    set(
        "IsPlanArtifactUpToDate",
        plan_fresh.into(),
        if plan_fresh { "UpToDate" } else { need.reason },
        if plan_fresh { "the newest plan is within the drift interval" } else { &need.why },
    );
    set(
        "IsApplyUpToDate",
        apply_done.into(),
        if apply_done { "UpToDate" } else { "NotApplied" },
        if apply_done { "nothing is left to apply" } else { &need.why },
    );
    set(
        "IsLastRelevantCommitPlanned",
        planned_relevant.into(),
        if planned_relevant { "Planned" } else { "NotPlanned" },
        if planned_relevant { "the relevant commit is planned" } else { &need.why },
    );
    match &drift_message {
        Some(message) => set("Drifted", Truth::True, "Drifted", message),
        None => {
            set("Drifted", Truth::False, "NoDrift", "no difference is known that the code does not explain")
        }
    }
    let ready = match need.standing {
        Standing::InSync => Truth::True,
        Standing::Working | Standing::Waiting | Standing::Stuck => Truth::False,
        Standing::Unknown => Truth::Unknown,
    };
    set("Ready", ready, need.reason, &need.why);
    for (kind, standing) in [("Reconciling", Standing::Working), ("Stalled", Standing::Stuck)] {
        if need.standing == standing {
            condition::set(
                &mut status.conditions,
                kind,
                Truth::True,
                need.reason,
                need.why.as_str(),
                generation,
                seen.now,
            );
        } else {
            condition::clear(&mut status.conditions, kind);
        }
    }
}

fn run_ref(run: &TerraformRun) -> Option<RunRef> {
    let status = run.status.as_ref();
    Some(RunRef {
        name: run.metadata.name.clone()?,
        action: run.spec.action,
        commit: run.spec.layer.revision.clone(),
        date: status
            .and_then(|s| s.finished_at.clone())
            .or_else(|| run.metadata.creation_timestamp.clone())?,
        result: match status.and_then(|s| s.result.as_ref()) {
            Some(result) => result.message.clone(),
            None => "running".to_owned(),
        },
    })
}

fn auto_apply(seen: &Observed<'_>, repository: &TerraformRepository) -> bool {
    let of =
        |strategy: &Option<api::layer::RemediationStrategy>| strategy.as_ref().and_then(|s| s.auto_apply);
    of(&seen.layer.spec.remediation_strategy)
        .or_else(|| of(&repository.spec.remediation_strategy))
        .unwrap_or(false)
}

fn max_retries(seen: &Observed<'_>, repository: &TerraformRepository) -> u32 {
    let of = |strategy: &Option<api::layer::RemediationStrategy>| {
        strategy.as_ref().and_then(|s| s.on_error.as_ref()).and_then(|e| e.max_retries)
    };
    of(&seen.layer.spec.remediation_strategy)
        .or_else(|| of(&repository.spec.remediation_strategy))
        .unwrap_or(seen.settings.max_retries)
}

fn drift_interval(seen: &Observed<'_>, repository: &TerraformRepository) -> std::time::Duration {
    let of = |drift: &Option<api::layer::Drift>| drift.as_ref().and_then(|d| d.interval);
    of(&seen.layer.spec.drift)
        .or_else(|| of(&repository.spec.drift))
        .map_or(seen.settings.drift_interval, |span| span.get())
        .max(std::time::Duration::from_secs(1))
}

fn hold(
    state: LayerState,
    reason: &'static str,
    why: impl Into<String>,
    standing: Standing,
    wake: Wake,
) -> Need {
    Need { state, reason, why: why.into(), standing, step: Step::Hold, wake }
}

fn unknown(why: &str) -> Need {
    hold(LayerState::PlanNeeded, "Unknown", why, Standing::Unknown, Wake::OnChange)
}

fn annotated<'a>(layer: &'a TerraformLayer, key: &str) -> Option<&'a str> {
    layer.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn name_of(layer: &TerraformLayer) -> &str {
    layer.metadata.name.as_deref().unwrap_or_default()
}

fn after(run: &TerraformRun) -> String {
    format!("after:{}", run.metadata.name.as_deref().unwrap_or_default())
}

fn is_terminal(run: &TerraformRun) -> bool {
    run.status.as_ref().and_then(|s| s.state).is_some_and(RunState::is_terminal)
}

fn has_succeeded(run: &TerraformRun) -> bool {
    run.status.as_ref().and_then(|s| s.state) == Some(RunState::Succeeded)
}

fn has_failed(run: &TerraformRun) -> bool {
    run.status.as_ref().and_then(|s| s.state) == Some(RunState::Failed)
}

fn finished_at(run: &TerraformRun) -> Option<Timestamp> {
    run.status.as_ref()?.finished_at.as_ref().map(|t| t.0)
}

fn result_message(run: &TerraformRun) -> &str {
    run.status.as_ref().and_then(|s| s.result.as_ref()).map_or("", |r| r.message.as_str())
}

fn result_reason(run: &TerraformRun) -> &str {
    run.status.as_ref().and_then(|s| s.result.as_ref()).map_or("", |r| r.reason.as_str())
}

fn ready_message(run: &TerraformRun) -> &str {
    let conditions = run.status.as_ref().map_or(&[][..], |s| s.conditions.as_slice());
    condition::find(conditions, "Ready").map_or("", |c| c.message.as_str())
}

fn gave_up(run: &TerraformRun) -> String {
    match run.status.as_ref().map_or(0, |s| s.attempts.len()) {
        0 | 1 => "the plan failed".to_owned(),
        tries => format!("gave up after {tries} failed plans"),
    }
}

fn words_of(summary: PlanSummary) -> String {
    if summary.add + summary.change + summary.destroy == 0 {
        return "only outputs change".to_owned();
    }
    format!("{} to add, {} to change, {} to destroy", summary.add, summary.change, summary.destroy)
}

fn burrito_words(summary: PlanSummary) -> String {
    format!("Plan: {} to create, {} to update, {} to delete", summary.add, summary.change, summary.destroy)
}

fn clock(at: Timestamp) -> String {
    at.strftime("%H:%M:%S UTC").to_string()
}

/// Status holds whole seconds; a rounded value compares equal to what the API gives back.
fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
