//! What a Repo needs: its repository, its layer, and a Job for each attempt at a commit; and what it says about them. When something is
//! planned and applied is the layer's business alone.

use std::collections::BTreeMap;
use std::time::Duration;

use api::condition::{self, Truth};
use api::repo::{RepoRevisions, RepoRun, RepoStatus};
use api::repository::Location;
use api::text::{LayerPath, ObjectName, PathGlob, RefName};
use api::{Repo, TerraformLayer, TerraformRepository, TerraformRun};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::Resource;
use serde_json::{Value, json};

use super::child::{build_child, build_patch, is_ours, may_change};
use super::job::{build_job, is_of, is_over, job_status};
use super::ready::{Progress, Ready, in_the_way, of_layer, unreadable};
use super::rounds::{Round, Standing, rounds};
use crate::{Settings, Wake, later};

#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    pub now: Timestamp,
    pub repo: &'a Repo,
    /// The objects that bear the Repo's name, whoever made them.
    pub repository: Option<&'a TerraformRepository>,
    pub layer: Option<&'a TerraformLayer>,
    /// The runs of this incarnation of the layer.
    pub runs: &'a [TerraformRun],
    /// Those of [`shown`] that are there, by name.
    pub jobs: &'a BTreeMap<String, Job>,
    pub settings: &'a Settings,
}

/// In this order; the status is written after them.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    CreateRepository(Box<TerraformRepository>),
    CreateLayer(Box<TerraformLayer>),
    /// Put the fields right that the Repo sets; against the version that was seen.
    PatchRepository(Value),
    PatchLayer(Value),
    /// Make the Job, and then say what its status says.
    CreateJob(Box<Job>),
    /// Say what its status says, of the Job as it was seen.
    ReportJob(Box<Job>),
}

/// What the API would not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub part: Part,
    pub why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Repository,
    Layer,
    Job,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// In the API's own words.
    Said(String),
    /// It keeps nobody's Jobs but its own: `managedBy` would be dropped, and a Job would start pods.
    NotManaged,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub status: RepoStatus,
    pub wake: Wake,
}

/// Between two tries at what the API refuses: a quota, or rights, change without a word to us.
const REFUSED: Duration = Duration::from_secs(60);

/// Every commit counts, wherever it changes something: whoever wants fewer plans names a directory, and declares a layer for it.
const EVERYTHING: &str = "**";

/// The names of the Jobs that a decision rests on.
pub fn shown(repo: &Repo, layer: Option<&TerraformLayer>, runs: &[TerraformRun]) -> Vec<String> {
    due(repo, layer, runs).iter().map(|round| round.job_name(repo)).collect()
}

pub fn decide(seen: &Observed<'_>) -> Vec<Effect> {
    if seen.repo.metadata.deletion_timestamp.is_some() {
        // What it made goes with it.
        return Vec::new();
    }
    let children = keep_repository(seen).into_iter().chain(keep_layer(seen));
    let jobs = due(seen.repo, seen.layer, seen.runs);
    children.chain(jobs.iter().filter_map(|round| show(seen, round))).collect()
}

fn keep_repository(seen: &Observed<'_>) -> Option<Effect> {
    let spec = &seen.repo.spec;
    let wanted = Location { url: spec.url.clone(), credentials: spec.credentials.clone() };
    // Null takes a field away, and is none of a new object's.
    let location = json!({ "url": wanted.url, "credentials": wanted.credentials });
    let fields = json!({ "repository": location, "pollInterval": spec.interval });
    let Some(found) = seen.repository else {
        let made = build_child(
            &seen.repo.metadata,
            &seen.repo.controller_owner_ref(&())?,
            "TerraformRepository",
            &fields,
        );
        return serde_json::from_value(made).ok().map(Box::new).map(Effect::CreateRepository);
    };
    let is_right = found.spec.repository == wanted && found.spec.poll_interval == spec.interval;
    (!is_right && may_change(&seen.repo.metadata, &found.metadata))
        .then(|| Effect::PatchRepository(build_patch(&found.metadata, &fields)))
}

fn keep_layer(seen: &Observed<'_>) -> Option<Effect> {
    let repository = ObjectName::new(seen.repo.metadata.name.as_deref()?).ok()?;
    let branch = branch(seen)?;
    let path = seen.repo.spec.path.clone().or_else(|| LayerPath::new(".").ok())?;
    let trigger_paths = [PathGlob::new(EVERYTHING).ok()?];
    let fields = json!({
        "repository": { "name": repository }, "branch": branch, "path": path, "triggerPaths": trigger_paths,
        "remediationStrategy": { "autoApply": true },
    });
    let Some(found) = seen.layer else {
        // While the name of its repository is taken there is nothing to follow.
        seen.repository.filter(|repository| is_ours(&seen.repo.metadata, &repository.metadata))?;
        let made = build_child(
            &seen.repo.metadata,
            &seen.repo.controller_owner_ref(&())?,
            "TerraformLayer",
            &fields,
        );
        return serde_json::from_value(made).ok().map(Box::new).map(Effect::CreateLayer);
    };
    let spec = &found.spec;
    let applies = spec.remediation_strategy.as_ref().and_then(|strategy| strategy.auto_apply) == Some(true);
    let is_right = spec.repository_name() == Some(&repository)
        && spec.branch.as_ref() == Some(&branch)
        && spec.path == path
        && spec.trigger_paths == trigger_paths
        && applies;
    (!is_right && may_change(&seen.repo.metadata, &found.metadata))
        .then(|| Effect::PatchLayer(build_patch(&found.metadata, &fields)))
}

fn branch(seen: &Observed<'_>) -> Option<RefName> {
    let door = &seen.repo.metadata;
    super::branch::followed(door, seen.repo.spec.branch.as_ref(), seen.repository, seen.layer)
}

/// The attempts that the status does not know the end of, oldest first. What it knows the end of has had its Job, and somebody may have
/// deleted that since.
fn due<'a>(repo: &Repo, layer: Option<&TerraformLayer>, runs: &'a [TerraformRun]) -> Vec<Round<'a>> {
    let mut all = attempts(repo, layer, runs);
    let known = repo.status.as_ref().and_then(|status| status.run.as_ref());
    let Some(known) = known else { return all };
    match all.iter().position(|round| round.plan_name() == known.plan) {
        None => all,
        Some(at) => all.split_off(if known.state.is_terminal() { at + 1 } else { at }),
    }
}

fn attempts<'a>(repo: &Repo, layer: Option<&TerraformLayer>, runs: &'a [TerraformRun]) -> Vec<Round<'a>> {
    let Some(layer) = layer.filter(|layer| is_ours(&repo.metadata, &layer.metadata)) else {
        return Vec::new();
    };
    rounds(runs, layer.status.as_ref().and_then(|status| status.revision.relevant.as_ref()))
}

fn show(seen: &Observed<'_>, round: &Round<'_>) -> Option<Effect> {
    let status = job_status(round);
    match seen.jobs.get(&round.job_name(seen.repo)) {
        None => {
            let job = Job { status: Some(status), ..build_job(seen.repo, round, seen.settings)? };
            Some(Effect::CreateJob(Box::new(job)))
        }
        Some(found) if !is_of(found, round) || is_over(found) || found.status.as_ref() == Some(&status) => {
            None
        }
        Some(found) => Some(Effect::ReportJob(Box::new(Job { status: Some(status), ..found.clone() }))),
    }
}

/// What the status says after the effects, of which some were refused.
pub fn report(seen: &Observed<'_>, refused: &[Refused]) -> Report {
    let before = seen.repo.status.clone().unwrap_or_default();
    if seen.repo.metadata.deletion_timestamp.is_some() {
        return Report { status: before, wake: Wake::OnChange };
    }
    let generation = seen.repo.metadata.generation;
    let all = attempts(seen.repo, seen.layer, seen.runs);
    let newest = all.last();
    let layer = seen.layer.filter(|layer| is_ours(&seen.repo.metadata, &layer.metadata));
    let known = layer.and_then(|layer| layer.status.as_ref()).map(|status| &status.revision);
    let seen_last = known.and_then(|known| known.relevant.clone()).or_else(|| before.revision.seen.clone());
    let jobs_refused = refused.iter().find(|refused| refused.part == Part::Job);
    let mut status = RepoStatus {
        observed_generation: generation,
        branch: branch(seen).or_else(|| before.branch.clone()),
        revision: RepoRevisions {
            short: seen_last.as_ref().map(|commit| commit.short().to_owned()),
            seen: seen_last,
            running: newest
                .filter(|round| !round.state().is_terminal())
                .map(|round| round.revision().clone()),
            applied: known
                .and_then(|known| known.applied.clone())
                .or_else(|| before.revision.applied.clone()),
        },
        run: newest.map(|round| told(seen, round, jobs_refused.is_some())).or_else(|| before.run.clone()),
        skipped: before.skipped.clone(),
        conditions: before.conditions.clone(),
    };
    skip(seen, &all, &before, &mut status);
    let ready = ready(seen, refused);
    let conditions = &mut status.conditions;
    ready.tell(conditions, generation, seen.now);
    if let Some((truth, reason, message)) = jobs(seen, jobs_refused) {
        condition::set(conditions, JOBS_SHOWN, truth, reason, message, generation, seen.now);
    }
    let wake = if refused.is_empty() { Wake::OnChange } else { Wake::At(later(seen.now, REFUSED)) };
    Report { status, wake }
}

/// Whether each attempt has a Job.
const JOBS_SHOWN: &str = "JobsShown";

fn told(seen: &Observed<'_>, round: &Round<'_>, is_refused: bool) -> RepoRun {
    let name = round.job_name(seen.repo);
    let known = seen.repo.status.as_ref().and_then(|status| status.run.as_ref());
    let known = known.filter(|known| known.plan == round.plan_name());
    let is_due = !known.is_some_and(|known| known.state.is_terminal());
    let is_shown = match seen.jobs.get(&name) {
        Some(found) => is_of(found, round),
        None if is_due => !is_refused,
        None => known.is_some_and(|known| known.job.is_some()),
    };
    RepoRun {
        revision: round.revision().clone(),
        state: round.state(),
        plan: round.plan_name().to_owned(),
        job: is_shown.then_some(name),
    }
}

/// A commit was skipped when it was never planned, or planned and never tried, before another took its place.
fn skip(seen: &Observed<'_>, all: &[Round<'_>], before: &RepoStatus, status: &mut RepoStatus) {
    let is_tried = |round: &&Round<'_>| round.apply.is_some() || round.standing != Standing::Superseded;
    for round in due(seen.repo, seen.layer, seen.runs) {
        let revision = round.revision();
        let is_left = all.last().is_some_and(|newest| newest.revision() != revision);
        let tried = all.iter().filter(is_tried).any(|other| other.revision() == revision);
        if is_left && !tried && before.revision.applied.as_ref() != Some(revision) {
            status.skipped.get_or_insert_default().add(revision);
        }
    }
    let is_same_branch = before.observed_generation == status.observed_generation;
    let Some(left) = before.revision.seen.as_ref().filter(|_| is_same_branch) else { return };
    let was_planned = seen.runs.iter().any(|run| &run.spec.layer.revision == left)
        || before.run.as_ref().is_some_and(|run| &run.revision == left)
        || before.revision.applied.as_ref() == Some(left);
    if status.revision.seen.as_ref() != Some(left) && !was_planned {
        status.skipped.get_or_insert_default().add(left);
    }
}

/// What to say of the Jobs, where there is something new to say.
fn jobs(seen: &Observed<'_>, refused: Option<&Refused>) -> Option<(Truth, &'static str, String)> {
    let due = due(seen.repo, seen.layer, seen.runs);
    let is_taken = |round: &&Round<'_>| {
        seen.jobs.get(&round.job_name(seen.repo)).is_some_and(|found| !is_of(found, round))
    };
    if let Some(taken) = due.iter().find(is_taken) {
        let name = taken.job_name(seen.repo);
        let message =
            format!("Job {name} is there and does not belong to run {}; delete it", taken.plan_name());
        return Some((Truth::False, "NameTaken", message));
    }
    match refused.map(|refused| &refused.why) {
        Some(Why::NotManaged) => {
            let message = "this cluster does not keep `managedBy` of a Job and would start pods for it, so there are none; \
                           `kubectl get terraformruns` shows the runs. Kubernetes 1.32 and later keep it";
            Some((Truth::False, "ClusterTooOld", message.to_owned()))
        }
        Some(Why::Said(words)) => {
            let message = format!("the API would not have the Job: {words}; the run goes on without it");
            Some((Truth::False, "Refused", message))
        }
        None if due.is_empty() => None,
        None => Some((Truth::True, "Shown", "each attempt at a commit has a Job".to_owned())),
    }
}

/// What the layer says, unless something keeps it from being there and up to date.
fn ready(seen: &Observed<'_>, refused: &[Refused]) -> Ready {
    let name = seen.repo.metadata.name.as_deref().unwrap_or_default();
    if let Some(in_the_way) = in_the_way(&seen.repo.metadata, "Repo", seen.repository, seen.layer) {
        return in_the_way;
    }
    for (part, kind) in [(Part::Repository, "TerraformRepository"), (Part::Layer, "TerraformLayer")] {
        let said = refused.iter().find(|refused| refused.part == part);
        if let Some(Refused { why: Why::Said(words), .. }) = said {
            let message = format!("the API would not have {kind} {name}: {words}");
            return Ready::new(Truth::False, "Refused", message, Progress::Stuck);
        }
    }
    if let Some(unreadable) = seen.repository.and_then(unreadable) {
        return unreadable;
    }
    let is_changed = decide(seen).iter().any(|effect| match effect {
        Effect::CreateRepository(_)
        | Effect::CreateLayer(_)
        | Effect::PatchRepository(_)
        | Effect::PatchLayer(_) => true,
        Effect::CreateJob(_) | Effect::ReportJob(_) => false,
    });
    let layer = seen.layer.filter(|_| !is_changed).and_then(of_layer);
    layer.unwrap_or_else(|| {
        let message = format!("looking at {}", seen.repo.spec.url);
        Ready::new(Truth::Unknown, "Progressing", message, Progress::Working)
    })
}
