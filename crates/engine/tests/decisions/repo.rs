//! What a Repo makes and says: with the layer's own decisions underneath, and as a table of what it may meet.

use std::collections::BTreeMap;
use std::time::Duration;

use api::repo::{RepoRunState, RepoStatus};
use api::repository::TerraformRepositoryStatus;
use api::text::RefName;
use api::{Repo, TerraformLayer, condition, label};
use engine::Wake;
use engine::door::repo::{Effect, Observed, Part, Refused, Report, Why, decide, report, shown};
use engine::layer::Source;
use engine::{Read, later};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::world::{World, adds, commit, world};

const UID: &str = "uid-repo";

/// A Repo `db`, with the world that its repository and layer live in.
struct Scene {
    repo: Repo,
    world: World,
    has_layer: bool,
    jobs: BTreeMap<String, Job>,
    /// What the API answers to a Job.
    refuses_jobs: Option<Why>,
}

fn repo(spec: Value) -> Repo {
    serde_json::from_value(json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "Repo", "spec": spec,
        "metadata": { "name": "db", "namespace": "default", "uid": UID, "generation": 1 },
    }))
    .unwrap()
}

fn scene() -> Scene {
    let repo = repo(json!({ "url": "file:///srv/db" }));
    let mut world = world().auto_apply();
    world.repository = None;
    Scene { repo, world, has_layer: false, jobs: BTreeMap::new(), refuses_jobs: None }
}

impl Scene {
    fn observed(&self) -> Observed<'_> {
        Observed {
            now: self.world.now,
            repo: &self.repo,
            repository: self.world.repository.as_ref(),
            layer: self.layer(),
            runs: &self.world.runs,
            jobs: &self.jobs,
            settings: &self.world.settings,
        }
    }

    fn layer(&self) -> Option<&TerraformLayer> {
        Some(&self.world.layer).filter(|_| self.has_layer)
    }

    /// Does what the decision says, as the API would, and writes what the report says.
    fn step(&mut self) -> (Vec<Effect>, Report) {
        let effects = decide(&self.observed());
        let mut refused = Vec::new();
        let (mut repository, mut layer, mut jobs) = (None, None, BTreeMap::new());
        for effect in &effects {
            match effect {
                Effect::CreateRepository(made) => repository = Some(made.as_ref().clone()),
                Effect::CreateLayer(made) => layer = Some(made.as_ref().clone()),
                Effect::CreateJob(job) => match &self.refuses_jobs {
                    Some(why) => refused.push(Refused { part: Part::Job, why: why.clone() }),
                    None => drop(jobs.insert(job.name_any(), job.as_ref().clone())),
                },
                Effect::ReportJob(job) => drop(jobs.insert(job.name_any(), job.as_ref().clone())),
                Effect::PatchRepository(patch) => {
                    let mut found = serde_json::to_value(self.world.repository.clone().unwrap()).unwrap();
                    merge(&mut found["spec"], &patch["spec"]);
                    repository = Some(serde_json::from_value(found).unwrap());
                }
                Effect::PatchLayer(patch) => {
                    let mut found = serde_json::to_value(&self.world.layer).unwrap();
                    merge(&mut found["spec"], &patch["spec"]);
                    layer = Some(serde_json::from_value(found).unwrap());
                }
            }
        }
        let report = report(&self.observed(), &refused);
        if let Some(mut made) = repository {
            made.metadata.generation = Some(made.metadata.generation.unwrap_or(0) + 1);
            self.world.repository = Some(made);
        }
        if let Some(mut made) = layer {
            made.metadata.generation = Some(made.metadata.generation.unwrap_or(0) + 1);
            made.metadata.uid.get_or_insert_with(|| "uid-layer".to_owned());
            self.world.layer = made;
            self.has_layer = true;
        }
        self.jobs.extend(jobs);
        self.repo.status = Some(report.status.clone());
        (effects, report)
    }

    /// The repository is looked at.
    fn look(&mut self, default_branch: Option<&str>) {
        let repository = self.world.repository.as_mut().unwrap();
        let status = repository.status.insert(TerraformRepositoryStatus::default());
        status.observed_generation = repository.metadata.generation;
        status.default_branch = default_branch.map(|name| RefName::new(name).unwrap());
        let (truth, now) = (condition::Truth::True, self.world.now);
        condition::set(&mut status.conditions, "Ready", truth, "Synced", "seen", None, now);
    }

    /// From nothing to a layer that has just begun to plan its first commit.
    fn begun() -> Self {
        let mut scene = scene();
        scene.step();
        scene.look(Some("main"));
        scene.step();
        scene.work();
        scene
    }

    /// The layer takes its turn, and then the Repo.
    fn work(&mut self) -> RepoStatus {
        self.world.step_untold();
        let (_, report) = self.step();
        let again = decide(&self.observed());
        assert!(again.is_empty(), "nothing is left to do: {again:#?}");
        let said = engine::door::repo::report(&self.observed(), &[]).status;
        if self.refuses_jobs.is_none() {
            assert_eq!(said, report.status, "and nothing to say");
        }
        report.status
    }

    /// Its plan finds something and is applied.
    fn apply(&mut self) -> RepoStatus {
        self.world.succeed(adds(1));
        self.work();
        self.world.succeed(adds(0));
        self.work()
    }

    fn push(&mut self, letter: char) {
        self.world.pass(Duration::from_secs(60));
        self.world.push(letter);
    }

    fn ready(&self) -> (&str, &str, &str) {
        let ready = self.condition("Ready").unwrap();
        (&ready.status, &ready.reason, &ready.message)
    }

    fn condition(&self, kind: &str) -> Option<&Condition> {
        condition::find(&self.repo.status.as_ref()?.conditions, kind)
    }

    fn run(&self) -> (RepoRunState, char, bool) {
        let run = self.repo.status.as_ref().unwrap().run.as_ref().unwrap();
        (run.state, run.revision.as_str().chars().next().unwrap(), run.job.is_some())
    }

    /// What each Job says, oldest commit first: its last condition, or how many work.
    fn jobs(&self) -> Vec<(char, String)> {
        let said = |job: &Job| {
            let status = job.status.clone().unwrap();
            let end = status.conditions.unwrap_or_default().pop();
            let end = end.map(|end| format!("{} {}", end.type_, end.reason.unwrap_or_default()));
            end.unwrap_or_else(|| format!("{} active", status.active.unwrap_or(0)))
        };
        let mut jobs: Vec<_> = self
            .jobs
            .values()
            .map(|job| (job.name_any().strip_prefix("db-").unwrap().chars().next().unwrap(), said(job)))
            .collect();
        jobs.sort();
        jobs
    }
}

fn merge(into: &mut Value, patch: &Value) {
    for (key, value) in patch.as_object().unwrap() {
        match value {
            Value::Null => drop(into.as_object_mut().unwrap().remove(key)),
            Value::Object(_) if into[key].is_object() => merge(&mut into[key], value),
            other => into[key] = other.clone(),
        }
    }
}

#[test]
fn a_url_becomes_a_repository_and_once_that_is_seen_a_layer() {
    let mut scene = scene();
    let (effects, _) = scene.step();
    let [Effect::CreateRepository(made)] = &effects[..] else { panic!("{effects:#?}") };
    assert_eq!(made.name_any(), "db");
    assert_eq!(made.owner_references()[0].uid, UID);
    assert_eq!(made.spec.repository.url.as_str(), "file:///srv/db");
    assert_eq!(scene.ready(), ("Unknown", "Progressing", "looking at file:///srv/db"));
    assert!(scene.condition("Reconciling").is_some());

    assert_eq!(scene.step().0, [], "the branch is not known yet");
    scene.look(Some("trunk"));
    let (effects, _) = scene.step();
    let [Effect::CreateLayer(made)] = &effects[..] else { panic!("{effects:#?}") };
    assert_eq!(
        (made.name_any(), made.spec.branch.as_ref().unwrap().as_str(), made.spec.path.as_str()),
        ("db".into(), "trunk", ".")
    );
    assert_eq!(made.spec.trigger_paths[0].as_str(), "**", "every commit counts");
    assert_eq!(made.spec.remediation_strategy.as_ref().unwrap().auto_apply, Some(true));
    assert_eq!(made.spec.deletion_policy, None, "what it made stays when the Repo goes");
    assert_eq!(
        (made.owner_references()[0].uid.as_str(), made.labels()[label::MANAGED_BY].as_str()),
        (UID, "terrane")
    );
    assert_eq!(scene.ready().0, "Unknown");
    assert_eq!(scene.step().0, []);
}

#[test]
fn a_branch_that_is_named_is_not_waited_for_and_one_that_nobody_names_is_main() {
    let mut named = scene();
    named.repo.spec.branch = RefName::new("release").ok();
    named.step();
    let (effects, _) = named.step();
    let [Effect::CreateLayer(made)] = &effects[..] else { panic!("{effects:#?}") };
    assert_eq!(made.spec.branch.as_ref().unwrap().as_str(), "release");

    let mut nameless = scene();
    nameless.step();
    nameless.look(None);
    nameless.step();
    assert_eq!(nameless.world.layer.spec.branch.as_ref().unwrap().as_str(), "main");
    // Another default branch is followed; one that is not known for a moment changes nothing.
    nameless.look(Some("trunk"));
    nameless.step();
    assert_eq!(nameless.world.layer.spec.branch.as_ref().unwrap().as_str(), "trunk");
    nameless.world.repository.as_mut().unwrap().status = None;
    assert_eq!(nameless.step().0, []);
}

#[test]
fn only_the_fields_that_it_sets_are_put_right() {
    let mut scene = Scene::begun();
    scene.world.layer.spec.suspend = true;
    scene.world.layer.spec.remediation_strategy.as_mut().unwrap().auto_apply = Some(false);
    scene.world.layer.metadata.resource_version = Some("7".into());
    let (effects, _) = scene.step();
    let [Effect::PatchLayer(patch)] = &effects[..] else { panic!("{effects:#?}") };
    assert_eq!(patch["metadata"], json!({ "resourceVersion": "7" }));
    assert!(scene.world.layer.spec.suspend, "others may say more");
    assert_eq!(scene.world.layer.spec.remediation_strategy.as_ref().unwrap().auto_apply, Some(true));

    scene.repo.spec.interval = "5m".parse().ok();
    scene.repo.spec.credentials = serde_json::from_value(json!({ "secretName": "login" })).unwrap();
    scene.repo.metadata.generation = Some(2);
    scene.step();
    let spec = |scene: &Scene| scene.world.repository.as_ref().unwrap().spec.clone();
    assert_eq!(spec(&scene).repository.credentials.unwrap().secret_name.as_str(), "login");
    assert_eq!(spec(&scene).poll_interval, "5m".parse().ok());
    (scene.repo.spec.interval, scene.repo.spec.credentials) = (None, None);
    scene.step();
    assert_eq!((spec(&scene).repository.credentials, spec(&scene).poll_interval), (None, None));
}

#[test]
fn a_commit_is_planned_applied_and_shown_by_one_job() {
    let mut scene = Scene::begun();
    assert_eq!(scene.run(), (RepoRunState::Pending, 'a', true));
    assert_eq!(scene.repo.status.as_ref().unwrap().revision.running, Some(commit('a')));
    let job = scene.jobs.values().next().unwrap();
    let spec = job.spec.clone().unwrap();
    assert_eq!((spec.managed_by.as_deref(), spec.suspend), (Some("terrane.dev/repo"), Some(true)));
    let plan = scene.world.runs[0].clone();
    assert_eq!(job.owner_references()[0].uid, plan.uid().unwrap());
    assert_eq!(Some(&job.name_any()), scene.repo.status.as_ref().unwrap().run.as_ref().unwrap().job.as_ref());

    scene.world.succeed(adds(1));
    scene.work();
    assert_eq!(
        (scene.run(), scene.jobs()),
        ((RepoRunState::Running, 'a', true), vec![('a', "0 active".into())])
    );
    scene.world.succeed(adds(0));
    let status = scene.work();
    assert_eq!(scene.jobs(), [('a', "Complete Applied".into())]);
    let job = scene.jobs.values().next().unwrap().status.clone().unwrap();
    let kinds: Vec<String> = job.conditions.unwrap().into_iter().map(|one| one.type_).collect();
    assert_eq!(kinds, ["SuccessCriteriaMet", "Complete"]);
    assert!(job.start_time.is_some() && job.completion_time >= job.start_time && job.active.is_none());
    assert_eq!(scene.run(), (RepoRunState::Succeeded, 'a', true));
    assert_eq!((status.revision.running, status.revision.applied), (None, Some(commit('a'))));
    assert_eq!(scene.ready().0, "True");
    assert!(scene.condition("Reconciling").is_none() && scene.condition("Stalled").is_none());
    assert_eq!(status.skipped, None);
}

#[test]
fn a_job_that_somebody_deleted_after_its_end_stays_away_and_one_at_work_comes_back() {
    let mut scene = Scene::begun();
    scene.jobs.clear();
    scene.step();
    assert_eq!(scene.jobs.len(), 1, "while the run goes on it is shown");
    scene.apply();
    scene.jobs.clear();
    assert!(shown(&scene.repo, scene.layer(), &scene.world.runs).is_empty());
    let (effects, report) = scene.step();
    assert_eq!((effects, report.wake), (vec![], Wake::OnChange));
    assert!(scene.run().2, "which Job it was is still known");
}

#[test]
fn a_job_that_was_made_and_told_nothing_before_a_crash_is_told_later() {
    let mut scene = Scene::begun();
    scene.jobs.values_mut().for_each(|job| job.status = None);
    let (effects, _) = scene.step();
    assert!(matches!(&effects[..], [Effect::ReportJob(_)]), "{effects:#?}");
}

#[test]
fn each_attempt_has_a_job_and_a_failed_one_says_why() {
    let mut scene = Scene::begun();
    scene.world.succeed(adds(1));
    scene.work();
    scene.world.fail("ToolFailed");
    scene.work();
    assert_eq!(scene.jobs(), [('a', "Failed ToolFailed".into())]);
    assert_eq!(scene.run().0, RepoRunState::Failed);
    // The layer looks anew after a pause, for the same commit.
    let decision = scene.world.decide();
    scene.world.wait(&decision);
    scene.work();
    scene.apply();
    assert_eq!(scene.jobs(), [('a', "Complete Applied".into()), ('a', "Failed ToolFailed".into())]);
    assert_eq!(scene.repo.status.as_ref().unwrap().skipped, None, "it was tried");
}

#[test]
fn what_comes_during_an_apply_waits_and_only_the_newest_is_taken() {
    let mut scene = Scene::begun();
    scene.world.succeed(adds(1));
    scene.work();
    for letter in ['b', 'c'] {
        scene.push(letter);
        let status = scene.work();
        assert_eq!(
            (status.revision.seen, status.revision.running),
            (Some(commit(letter)), Some(commit('a')))
        );
    }
    scene.world.succeed(adds(0));
    scene.work();
    assert_eq!(scene.run().1, 'c');
    let status = scene.apply();
    assert_eq!(status.revision.applied, Some(commit('c')));
    let skipped = status.skipped.unwrap();
    assert_eq!((skipped.total, skipped.latest), (1, vec![commit('b')]));
    assert_eq!(scene.jobs(), [('a', "Complete Applied".into()), ('c', "Complete Applied".into())]);
}

#[test]
fn a_commit_that_was_planned_and_overtaken_is_skipped_and_its_job_says_so() {
    let mut scene = Scene::begun();
    scene.push('b');
    scene.world.succeed(adds(1));
    // The plan of `a` is there and a newer commit too, before anything was applied.
    scene.work();
    let status = scene.apply();
    assert_eq!(scene.jobs(), [('a', "Failed Superseded".into()), ('b', "Complete Applied".into())]);
    let skipped = status.skipped.unwrap();
    assert_eq!((skipped.total, skipped.latest), (1, vec![commit('a')]));
}

#[test]
fn no_more_than_ten_skipped_commits_are_named_and_all_are_counted() {
    let mut skipped = api::repo::Skipped::default();
    for letter in "0123456789abcd".chars() {
        skipped.add(&commit(letter));
        skipped.add(&commit(letter));
    }
    assert_eq!((skipped.total, skipped.latest.len()), (14, 10));
    assert_eq!(skipped.latest[0], commit('d'));
}

#[test]
fn a_look_for_drift_has_a_job_only_when_it_leads_to_something() {
    let mut scene = Scene::begun();
    scene.apply();
    for finds in [0, 1] {
        let decision = scene.world.decide();
        scene.world.wait(&decision);
        scene.work();
        assert_eq!(scene.jobs.len(), 1, "looking is no attempt");
        scene.world.succeed(adds(finds));
        scene.work();
    }
    assert_eq!((scene.jobs.len(), scene.run().0), (2, RepoRunState::Running));
    scene.world.succeed(adds(0));
    scene.work();
    assert_eq!(scene.run().0, RepoRunState::Succeeded);
}

#[test]
fn what_bears_the_name_and_belongs_to_somebody_else_is_left_alone() {
    let taken = |kind: &str| {
        let mut scene = Scene::begun();
        scene.apply();
        match kind {
            "TerraformRepository" => {
                scene.world.repository.as_mut().unwrap().metadata.owner_references = None;
                scene.repo.spec.interval = "5m".parse().ok();
            }
            _ => {
                scene.world.layer.metadata.owner_references = None;
                scene.repo.spec.path = "elsewhere".parse().ok();
            }
        }
        scene
    };
    for kind in ["TerraformRepository", "TerraformLayer"] {
        let mut scene = taken(kind);
        let (effects, _) = scene.step();
        assert_eq!(effects, [], "{kind}");
        let expected = format!(
            "{kind} db is there and does not belong to this Repo; delete it, or give the Repo another name"
        );
        assert_eq!(scene.ready(), ("False", "NameTaken", expected.as_str()));
        assert!(scene.condition("Stalled").is_some());
    }
    let mut scene = Scene::begun();
    scene.jobs.values_mut().for_each(|job| job.metadata.owner_references = None);
    let (effects, report) = scene.step();
    assert_eq!(effects, []);
    assert_eq!(report.status.run.unwrap().job, None);
    let jobs = scene.condition("JobsShown").unwrap();
    assert_eq!((jobs.status.as_str(), jobs.reason.as_str()), ("False", "NameTaken"));
    assert_eq!(scene.ready().1, "Planning", "the run itself goes on");
}

#[test]
fn without_jobs_the_runs_go_on_and_a_condition_says_so() {
    let cases =
        [(Why::NotManaged, "ClusterTooOld"), (Why::Said("exceeded quota: jobs".to_owned()), "Refused")];
    for (why, reason) in cases {
        let mut scene = scene();
        scene.refuses_jobs = Some(why);
        scene.step();
        scene.look(Some("main"));
        scene.step();
        scene.world.step_untold();
        let (_, report) = scene.step();
        assert_eq!(report.wake, Wake::At(later(scene.world.now, Duration::from_secs(60))));
        assert_eq!(scene.run(), (RepoRunState::Pending, 'a', false));
        let jobs = scene.condition("JobsShown").unwrap();
        assert_eq!((jobs.status.as_str(), jobs.reason.as_str()), ("False", reason));
        scene.world.succeed(adds(1));
        scene.world.step_untold();
        scene.world.succeed(adds(0));
        scene.world.step_untold();
        scene.step();
        assert_eq!((scene.run(), scene.ready().0), ((RepoRunState::Succeeded, 'a', false), "True"));
        assert_eq!(scene.step().1.wake, Wake::OnChange, "it is not tried for ever");
    }
}

#[test]
fn what_keeps_it_from_going_on_is_said_in_the_words_of_whom_it_concerns() {
    let refused = |part| [Refused { part, why: Why::Said("exceeded quota".to_owned()) }];
    let fresh = scene();
    let said = report(&fresh.observed(), &refused(Part::Repository));
    let ready = condition::find(&said.status.conditions, "Ready").unwrap();
    assert_eq!(
        (ready.reason.as_str(), ready.message.as_str()),
        ("Refused", "the API would not have TerraformRepository db: exceeded quota")
    );
    assert!(condition::is_true(&said.status.conditions, "Stalled"));
    assert_ne!(said.wake, Wake::OnChange, "nobody says when a quota grows");

    let mut unreadable = Scene::begun();
    unreadable.apply();
    let now = unreadable.world.now;
    let status = unreadable.world.repository.as_mut().unwrap().status.as_mut().unwrap();
    let (truth, words) = (condition::Truth::False, "connection refused");
    condition::set(&mut status.conditions, "Ready", truth, "Unreadable", words, None, now);
    unreadable.step();
    assert_eq!(unreadable.ready(), ("False", "Unreadable", "connection refused"));

    let mut changed = Scene::begun();
    changed.apply();
    changed.world.layer.metadata.generation = Some(9);
    changed.step();
    assert_eq!(changed.ready().0, "Unknown", "what the layer says is about an older spec");
}

#[test]
fn a_layer_that_goes_is_waited_for_and_a_repo_that_goes_does_nothing_more() {
    let mut scene = Scene::begun();
    scene.apply();
    scene.world.delete();
    scene.world.layer.spec.path = "elsewhere".parse().unwrap();
    assert_eq!(scene.step().0, []);
    assert_eq!(scene.ready().1, "BeingDeleted");
    scene.has_layer = false;
    scene.world.runs.clear();
    let (effects, _) = scene.step();
    assert!(matches!(&effects[..], [Effect::CreateLayer(_)]), "{effects:#?}");

    let mut going = Scene::begun();
    going.repo.metadata.deletion_timestamp = Some(Time(going.world.now));
    going.world.succeed(adds(1));
    let before = going.repo.status.clone();
    let (effects, report) = going.step();
    assert_eq!((effects, Some(report.status)), (vec![], before));
}

#[test]
fn a_commit_that_changes_nothing_of_the_infrastructure_has_a_job_too() {
    let mut scene = Scene::begun();
    scene.apply();
    scene.push('b');
    scene.world.source = Read::Present(Ok(Source { head: commit('b'), relevant: commit('b'), left: None }));
    scene.work();
    scene.world.succeed(adds(0));
    scene.work();
    assert_eq!(scene.jobs(), [('a', "Complete Applied".into()), ('b', "Complete Applied".into())]);
}
