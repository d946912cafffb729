//! A job is carried through its life by applying what is decided, as an API would.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;
use serde_json::{Value, json};

/// A job and its pods, as the API has them.
struct World {
    now: i64,
    job: Job,
    pods: Vec<Pod>,
    deleted: bool,
}

impl World {
    fn new(spec: Value) -> World {
        let mut job = json!({
            "metadata": {"name": "j", "namespace": "ns", "uid": "job-uid"},
            "spec": {"completions": 1, "template": {"spec": {"restartPolicy": "Never", "containers": []}}}
        });
        for (key, value) in spec.as_object().unwrap() {
            job["spec"][key] = value.clone();
        }
        World { now: 1000, job: serde_json::from_value(job).unwrap(), pods: Vec::new(), deleted: false }
    }

    fn decide(&self) -> Decision {
        decide(&Observed { now: Timestamp::from_second(self.now).unwrap(), job: &self.job, pods: &self.pods })
    }

    /// Applies decisions until there is nothing more to do; gives the last.
    fn settle(&mut self) -> Decision {
        for _ in 0..50 {
            let decision = self.decide();
            if let Some(status) = decision.status.clone() {
                self.job.status = Some(status);
                continue;
            }
            if decision.actions.is_empty() {
                return decision;
            }
            for action in decision.actions {
                match action {
                    Action::Create(mut pod) => {
                        pod.metadata.uid = Some(pod.name_any());
                        self.pods.push(*pod);
                    }
                    Action::Delete(pod) => {
                        let found =
                            self.pods.iter_mut().find(|other| other.name_any() == pod.name_any()).unwrap();
                        found.metadata.deletion_timestamp =
                            Some(Time(Timestamp::from_second(self.now).unwrap()));
                        set_phase(found, "Failed", self.now);
                    }
                    Action::Release(pod) => {
                        let found =
                            self.pods.iter_mut().find(|other| other.name_any() == pod.name_any()).unwrap();
                        found.metadata.finalizers = None;
                    }
                    Action::DeleteJob => {
                        self.deleted = true;
                        return Decision::default();
                    }
                }
            }
            self.pods
                .retain(|pod| pod.metadata.deletion_timestamp.is_none() || pod.metadata.finalizers.is_some());
        }
        panic!("it never settles: {:?}", self.decide());
    }

    fn active(&self) -> usize {
        self.pods.iter().filter(|pod| classify(pod) == Pods::Active).count()
    }

    fn end_all(&mut self, phase: &str) {
        let now = self.now;
        for pod in self.pods.iter_mut().filter(|pod| classify(pod) == Pods::Active) {
            set_phase(pod, phase, now);
        }
    }

    fn status(&self) -> Value {
        serde_json::to_value(self.job.status.as_ref().unwrap()).unwrap()
    }

    fn conditions(&self) -> Vec<String> {
        let conditions = self.job.status.as_ref().unwrap().conditions.clone().unwrap_or_default();
        conditions
            .iter()
            .map(|c| format!("{}={} {}", c.type_, c.status, c.reason.as_deref().unwrap()))
            .collect()
    }
}

fn set_phase(pod: &mut Pod, phase: &str, now: i64) {
    let finished = Timestamp::from_second(now).unwrap().to_string();
    pod.status = serde_json::from_value(json!({"phase": phase, "containerStatuses": [{"name": "c", "image": "", "imageID": "",
        "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 1, "finishedAt": finished}}}]}))
    .unwrap();
}

#[test]
fn a_job_completes_when_enough_pods_have_succeeded() {
    let mut world = World::new(json!({"completions": 3, "parallelism": 2}));
    world.settle();
    assert_eq!(world.active(), 2);
    assert_eq!(world.status()["active"], 2);
    assert!(world.status()["startTime"].is_string());
    world.end_all("Succeeded");
    world.settle();
    assert_eq!((world.active(), &world.status()["succeeded"]), (1, &json!(2)));
    world.end_all("Succeeded");
    world.settle();
    assert_eq!(world.status()["succeeded"], 3);
    assert_eq!(
        world.conditions(),
        ["SuccessCriteriaMet=True CompletionsReached", "Complete=True CompletionsReached"]
    );
    assert!(world.status()["completionTime"].is_string());
    assert!(world.pods.iter().all(|pod| pod.metadata.finalizers.is_none()), "counted pods are free to go");
    assert_eq!(world.pods.len(), 3);
}

#[test]
fn pods_that_are_deleted_before_they_are_counted_are_counted_all_the_same() {
    let mut world = World::new(json!({}));
    world.settle();
    world.end_all("Succeeded");
    world.pods[0].metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    world.settle();
    assert!(world.pods.is_empty());
    assert_eq!(world.status()["succeeded"], 1);
    assert_eq!(world.conditions().len(), 2);
}

#[test]
fn failures_are_retried_after_a_growing_pause_up_to_the_limit() {
    let mut world = World::new(json!({"backoffLimit": 2}));
    world.settle();
    for pause in [10, 20] {
        world.end_all("Failed");
        let waiting = world.settle();
        assert_eq!(world.active(), 0);
        assert_eq!(waiting.wake, Some(Timestamp::from_second(world.now + pause).unwrap()));
        world.now += pause;
        world.settle();
        assert_eq!(world.active(), 1);
    }
    world.end_all("Failed");
    world.settle();
    assert_eq!(world.status()["failed"], 3);
    assert_eq!(
        world.conditions(),
        ["FailureTarget=True BackoffLimitExceeded", "Failed=True BackoffLimitExceeded"]
    );
    assert!(world.status()["completionTime"].is_null());
    let names: BTreeSet<String> = world.pods.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names.len(), 3, "each try has a name of its own");
}

#[test]
fn the_deadline_and_suspension_take_pods_away() {
    let mut late = World::new(json!({"activeDeadlineSeconds": 60}));
    let running = late.settle();
    assert_eq!(running.wake, Some(Timestamp::from_second(late.now + 60).unwrap()));
    late.now += 60;
    late.settle();
    assert_eq!(late.conditions(), ["FailureTarget=True DeadlineExceeded", "Failed=True DeadlineExceeded"]);
    assert_eq!(late.active(), 0);

    let mut suspended = World::new(json!({"suspend": true}));
    suspended.settle();
    assert_eq!(
        (suspended.active(), suspended.conditions()),
        (0, vec!["Suspended=True JobSuspended".to_owned()])
    );
    suspended.job.spec.as_mut().unwrap().suspend = Some(false);
    suspended.settle();
    assert_eq!(
        (suspended.active(), suspended.conditions()),
        (1, vec!["Suspended=False JobResumed".to_owned()])
    );
    suspended.job.spec.as_mut().unwrap().suspend = Some(true);
    suspended.settle();
    assert_eq!(suspended.active(), 0);
}

#[test]
fn a_finished_job_goes_when_its_time_is_over() {
    let mut world = World::new(json!({"ttlSecondsAfterFinished": 30}));
    world.settle();
    world.end_all("Succeeded");
    let waiting = world.settle();
    assert_eq!(waiting.wake, Some(Timestamp::from_second(world.now + 30).unwrap()));
    world.now += 30;
    world.settle();
    assert!(world.deleted);
}

#[test]
fn another_controllers_job_is_left_alone() {
    let world = World::new(json!({"managedBy": "example.org/mine"}));
    assert_eq!(world.decide(), Decision::default());
    let mut ours = World::new(json!({"managedBy": OUR_NAME}));
    ours.settle();
    assert_eq!(ours.active(), 1);
    let mut indexed = World::new(json!({"completionMode": "Indexed"}));
    indexed.settle();
    assert_eq!(indexed.conditions()[1], "Failed=True UnsupportedCompletionMode");
}

#[test]
fn a_job_without_a_number_ends_with_its_first_success() {
    let mut world = World::new(json!({"completions": null, "parallelism": 2}));
    world.settle();
    assert_eq!(world.active(), 2);
    let now = world.now;
    set_phase(&mut world.pods[0], "Succeeded", now);
    world.settle();
    assert_eq!(world.active(), 1, "the other one finishes its work and no new one begins");
    world.end_all("Succeeded");
    world.settle();
    assert_eq!(world.conditions()[1], "Complete=True CompletionsReached");
}
