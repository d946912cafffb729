//! What a job needs next, from the job and its pods. Pure.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::ResourceExt;
use kube::api::ObjectMeta;

use crate::isolation::fnv1a;

pub(super) const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
pub(super) const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
pub(super) const JOB_NAME: &str = "batch.kubernetes.io/job-name";
const OUR_NAME: &str = "kubernetes.io/job-controller";
const DEFAULT_BACKOFF_LIMIT: i32 = 6;
const FIRST_PAUSE_SECONDS: i64 = 10;
const LONGEST_PAUSE_SECONDS: i64 = 600;
/// Letters that make no words, as Kubernetes uses them in names.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

#[derive(Debug)]
pub(super) struct Observed<'a> {
    pub(super) now: Timestamp,
    pub(super) job: &'a Job,
    /// The pods that the job controls, in any state.
    pub(super) pods: &'a [Pod],
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    Create(Box<Pod>),
    Delete(Box<Pod>),
    /// It is counted, or will be: it may go.
    Release(Box<Pod>),
    DeleteJob,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Decision {
    /// To be written before anything else is done; the actions then come from the next look.
    pub(super) status: Option<JobStatus>,
    pub(super) actions: Vec<Action>,
    pub(super) wake: Option<Timestamp>,
}

impl Decision {
    fn wake_at(&mut self, time: Timestamp) {
        self.wake = Some(self.wake.map_or(time, |wake| wake.min(time)));
    }
}

pub(super) fn is_ours(pod: &Pod, uid: &str) -> bool {
    pod.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.uid == uid)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pods {
    Active,
    Succeeded,
    Failed,
}

fn classify(pod: &Pod) -> Pods {
    match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some("Succeeded") => Pods::Succeeded,
        Some("Failed") => Pods::Failed,
        // A pod that is being deleted does no more work for the job.
        _ if pod.metadata.deletion_timestamp.is_some() => Pods::Failed,
        _ => Pods::Active,
    }
}

fn is_tracked(pod: &Pod) -> bool {
    pod.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

/// Why a job is over, in Kubernetes' words.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    kind: &'static str,
    interim: &'static str,
    reason: &'static str,
    message: String,
}

impl Outcome {
    fn failed(reason: &'static str, message: &str) -> Outcome {
        Outcome { kind: "Failed", interim: "FailureTarget", reason, message: message.to_owned() }
    }
}

pub(super) fn decide(observed: &Observed<'_>) -> Decision {
    let mut decision = Decision::default();
    let (Some(spec), job) = (&observed.job.spec, observed.job) else { return decision };
    if spec.managed_by.as_deref().is_some_and(|name| name != OUR_NAME) {
        return decision;
    }
    let before = job.status.clone().unwrap_or_default();
    if let Some(finished) = finish_time(&before) {
        decide_expiry(observed, finished, &mut decision);
        release_counted(observed, &before, &mut decision);
        return decision;
    }
    let mut status = before.clone();
    count(observed, &mut status);
    let counting = status.uncounted_terminated_pods.clone().unwrap_or_default();
    let waiting = |uids: &Option<Vec<String>>| uids.as_ref().map_or(0, Vec::len);
    let succeeded = total(status.succeeded, waiting(&counting.succeeded));
    let failed = total(status.failed, waiting(&counting.failed));
    let active: Vec<&Pod> = observed.pods.iter().filter(|pod| classify(pod) == Pods::Active).collect();
    let ready = active.iter().filter(|pod| is_ready(pod)).count();
    let terminating = observed
        .pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_some() && !is_terminal(pod))
        .count();
    status.active = count_of(active.len());
    status.ready = Some(i32::try_from(ready).unwrap_or(i32::MAX));
    status.terminating = Some(i32::try_from(terminating).unwrap_or(i32::MAX));
    let suspended = spec.suspend == Some(true);
    if status.start_time.is_none() && !suspended {
        status.start_time = Some(Time(whole_seconds(observed.now)));
    }
    let outcome = interim(&before)
        .or_else(|| decide_outcome(observed, &status, (succeeded, failed, active.len()), &mut decision));
    match &outcome {
        Some(outcome) => {
            set_condition(
                &mut status,
                outcome.interim,
                "True",
                outcome.reason,
                &outcome.message,
                observed.now,
            );
            let all_counted = waiting(&counting.succeeded) + waiting(&counting.failed) == 0;
            if active.is_empty() && terminating == 0 && all_counted {
                set_condition(
                    &mut status,
                    outcome.kind,
                    "True",
                    outcome.reason,
                    &outcome.message,
                    observed.now,
                );
                if outcome.kind == "Complete" {
                    status.completion_time = Some(Time(whole_seconds(observed.now)));
                }
            }
        }
        None => set_suspension(&mut status, suspended, observed.now),
    }
    release_counted(observed, &before, &mut decision);
    if job.metadata.deletion_timestamp.is_none() {
        if outcome.is_some() || suspended {
            decision.actions.extend(active.iter().map(|pod| Action::Delete(Box::new((*pod).clone()))));
        } else {
            decide_pods(observed, (succeeded, failed, &active), &mut decision);
        }
    }
    decision.status = (status != before).then_some(status);
    decision
}

fn total(counted: Option<i32>, waiting: usize) -> i32 {
    counted.unwrap_or(0).saturating_add(i32::try_from(waiting).unwrap_or(i32::MAX))
}

fn count_of(number: usize) -> Option<i32> {
    (number > 0).then(|| i32::try_from(number).unwrap_or(i32::MAX))
}

fn is_terminal(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Moves pods through the two steps of counting: announced while they carry the finalizer, counted once they do not.
fn count(observed: &Observed<'_>, status: &mut JobStatus) {
    let announced = status.uncounted_terminated_pods.clone().unwrap_or_default();
    let mut next = UncountedTerminatedPods::default();
    let tracked: BTreeSet<&str> = observed
        .pods
        .iter()
        .filter(|pod| is_tracked(pod))
        .filter_map(|pod| pod.metadata.uid.as_deref())
        .collect();
    for (uids, counter, kept) in [
        (announced.succeeded, &mut status.succeeded, &mut next.succeeded),
        (announced.failed, &mut status.failed, &mut next.failed),
    ] {
        for uid in uids.into_iter().flatten() {
            if tracked.contains(uid.as_str()) {
                kept.get_or_insert_default().push(uid);
            } else {
                *counter = Some(counter.unwrap_or(0).saturating_add(1));
            }
        }
    }
    for pod in observed.pods.iter().filter(|pod| is_tracked(pod)) {
        let Some(uid) = pod.metadata.uid.clone() else { continue };
        let list = match classify(pod) {
            Pods::Active => continue,
            Pods::Succeeded => &mut next.succeeded,
            Pods::Failed => &mut next.failed,
        };
        let list = list.get_or_insert_default();
        if !list.contains(&uid) {
            list.push(uid);
        }
    }
    let empty = next.succeeded.is_none() && next.failed.is_none();
    status.uncounted_terminated_pods = (!empty || status.uncounted_terminated_pods.is_some()).then_some(next);
}

/// Pods whose announcement the API already has.
fn release_counted(observed: &Observed<'_>, stored: &JobStatus, decision: &mut Decision) {
    let announced = stored.uncounted_terminated_pods.clone().unwrap_or_default();
    let uids: BTreeSet<String> = announced.succeeded.into_iter().chain(announced.failed).flatten().collect();
    let over = finish_time(stored).is_some();
    let released = observed.pods.iter().filter(|pod| is_tracked(pod)).filter(|pod| {
        let announced = pod.metadata.uid.as_ref().is_some_and(|uid| uids.contains(uid));
        announced || (over && classify(pod) != Pods::Active)
    });
    decision.actions.extend(released.map(|pod| Action::Release(Box::new(pod.clone()))));
}

fn condition<'a>(status: &'a JobStatus, kind: &str) -> Option<&'a JobCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind && condition.status == "True")
}

fn finish_time(status: &JobStatus) -> Option<Timestamp> {
    let ended = condition(status, "Complete").or_else(|| condition(status, "Failed"))?;
    ended.last_transition_time.as_ref().map(|time| time.0)
}

/// An outcome that was announced stands, whatever the pods do afterwards.
fn interim(status: &JobStatus) -> Option<Outcome> {
    let (kind, interim, found) = match condition(status, "SuccessCriteriaMet") {
        Some(found) => ("Complete", "SuccessCriteriaMet", found),
        None => ("Failed", "FailureTarget", condition(status, "FailureTarget")?),
    };
    let reason = match found.reason.as_deref() {
        Some("CompletionsReached") => "CompletionsReached",
        Some("DeadlineExceeded") => "DeadlineExceeded",
        Some("UnsupportedCompletionMode") => "UnsupportedCompletionMode",
        Some(_) | None => "BackoffLimitExceeded",
    };
    Some(Outcome { kind, interim, reason, message: found.message.clone().unwrap_or_default() })
}

fn decide_outcome(
    observed: &Observed<'_>,
    status: &JobStatus,
    (succeeded, failed, active): (i32, i32, usize),
    decision: &mut Decision,
) -> Option<Outcome> {
    let spec = observed.job.spec.as_ref()?;
    if spec.completion_mode.as_deref() == Some("Indexed") {
        return Some(Outcome::failed(
            "UnsupportedCompletionMode",
            "This controller runs jobs of completionMode NonIndexed only",
        ));
    }
    let limit = spec.backoff_limit.unwrap_or(DEFAULT_BACKOFF_LIMIT);
    let restarts: i32 = match spec.template.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) {
        Some("OnFailure") => {
            observed.pods.iter().filter(|pod| classify(pod) == Pods::Active).map(restarts_of).sum()
        }
        Some(_) | None => 0,
    };
    if failed > limit || (restarts > 0 && restarts >= limit) {
        return Some(Outcome::failed("BackoffLimitExceeded", "Job has reached the specified backoff limit"));
    }
    if let (Some(seconds), Some(started), false) =
        (spec.active_deadline_seconds, &status.start_time, spec.suspend == Some(true))
    {
        let deadline = started.0.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
        if deadline <= observed.now {
            return Some(Outcome::failed(
                "DeadlineExceeded",
                "Job was active longer than specified deadline",
            ));
        }
        decision.wake_at(deadline);
    }
    let complete = match spec.completions {
        Some(wanted) => succeeded >= wanted,
        // Without a number the first success says that the work is done, and the others finish what they have.
        None => succeeded > 0 && active == 0,
    };
    complete.then(|| Outcome {
        kind: "Complete",
        interim: "SuccessCriteriaMet",
        reason: "CompletionsReached",
        message: "Reached expected number of succeeded pods".to_owned(),
    })
}

fn restarts_of(pod: &Pod) -> i32 {
    let status = pod.status.as_ref();
    let all = status.into_iter().flat_map(|status| {
        status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten())
    });
    all.map(|container| container.restart_count).sum()
}

/// Creates what is missing, after a pause that doubles with each failure, and removes what is too much.
fn decide_pods(
    observed: &Observed<'_>,
    (succeeded, failed, active): (i32, i32, &[&Pod]),
    decision: &mut Decision,
) {
    let Some(spec) = &observed.job.spec else { return };
    let parallelism = spec.parallelism.unwrap_or(1);
    let wanted = match spec.completions {
        Some(completions) => parallelism.min(completions.saturating_sub(succeeded)),
        None if succeeded > 0 => i32::try_from(active.len()).unwrap_or(i32::MAX).min(parallelism),
        None => parallelism,
    };
    let wanted = usize::try_from(wanted).unwrap_or(0);
    if active.len() > wanted {
        let mut newest: Vec<&&Pod> = active.iter().collect();
        newest.sort_by_key(|pod| {
            std::cmp::Reverse(pod.metadata.creation_timestamp.as_ref().map(|time| time.0))
        });
        let extra = newest.into_iter().take(active.len() - wanted);
        decision.actions.extend(extra.map(|pod| Action::Delete(Box::new((**pod).clone()))));
        return;
    }
    if active.len() == wanted {
        return;
    }
    if let Some(ready_at) = pause_until(observed, failed)
        && ready_at > observed.now
    {
        decision.wake_at(ready_at);
        return;
    }
    let names: BTreeSet<String> = observed.pods.iter().map(ResourceExt::name_any).collect();
    let begun = i64::from(succeeded) + i64::from(failed) + i64::try_from(active.len()).unwrap_or(0);
    let fresh = (begun..).map(|number| pod_name(observed.job, number)).filter(|name| !names.contains(name));
    for name in fresh.take(wanted - active.len()) {
        decision.actions.push(Action::Create(Box::new(build_pod(observed.job, name))));
    }
}

fn pause_until(observed: &Observed<'_>, failed: i32) -> Option<Timestamp> {
    let times = u32::try_from(failed).ok()?.checked_sub(1)?;
    let ended = observed.pods.iter().filter(|pod| classify(pod) == Pods::Failed).filter_map(|pod| {
        let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
        let ends = statuses
            .iter()
            .filter_map(|status| status.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref());
        ends.map(|time| time.0).max()
    });
    let seconds = FIRST_PAUSE_SECONDS.saturating_mul(2_i64.saturating_pow(times)).min(LONGEST_PAUSE_SECONDS);
    ended.max()?.checked_add(SignedDuration::from_secs(seconds)).ok()
}

/// Derived from the job and how many pods came before, so that the same wish is the same pod.
fn pod_name(job: &Job, number: i64) -> String {
    let uid = job.metadata.uid.as_deref().unwrap_or_default();
    let mut hash = fnv1a(format!("{uid}/{number}").as_bytes());
    let letters = ALPHABET.len() as u64;
    let suffix: String = (0..5)
        .filter_map(|_| {
            let letter = ALPHABET.get(usize::try_from(hash % letters).ok()?).copied()?;
            hash /= letters;
            Some(char::from(letter))
        })
        .collect();
    let stem: String = job.name_any().chars().take(57).collect();
    format!("{stem}-{suffix}")
}

fn build_pod(job: &Job, name: String) -> Pod {
    let uid = job.metadata.uid.clone().unwrap_or_default();
    let template = job.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let metadata = template.metadata.unwrap_or_default();
    let mut labels = metadata.labels.unwrap_or_default();
    for (key, value) in [
        (CONTROLLER_UID, uid.clone()),
        (JOB_NAME, job.name_any()),
        ("controller-uid", uid.clone()),
        ("job-name", job.name_any()),
    ] {
        labels.insert(key.to_owned(), value);
    }
    Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: job.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: metadata.annotations,
            finalizers: Some(vec![FINALIZER.to_owned()]),
            owner_references: Some(vec![OwnerReference {
                api_version: "batch/v1".to_owned(),
                kind: "Job".to_owned(),
                name: job.name_any(),
                uid,
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}

fn decide_expiry(observed: &Observed<'_>, finished: Timestamp, decision: &mut Decision) {
    let ttl = observed.job.spec.as_ref().and_then(|spec| spec.ttl_seconds_after_finished);
    let Some(ttl) = ttl.filter(|_| observed.job.metadata.deletion_timestamp.is_none()) else { return };
    let expires = finished.checked_add(SignedDuration::from_secs(i64::from(ttl))).unwrap_or(Timestamp::MAX);
    if expires <= observed.now {
        decision.actions.push(Action::DeleteJob);
    } else {
        decision.wake_at(expires);
    }
}

fn set_suspension(status: &mut JobStatus, suspended: bool, now: Timestamp) {
    let known = status.conditions.iter().flatten().any(|condition| condition.type_ == "Suspended");
    match (suspended, known) {
        (true, _) => {
            status.start_time = None;
            set_condition(status, "Suspended", "True", "JobSuspended", "Job suspended", now);
        }
        (false, true) => set_condition(status, "Suspended", "False", "JobResumed", "Job resumed", now),
        (false, false) => {}
    }
}

fn set_condition(
    status: &mut JobStatus,
    kind: &str,
    value: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let conditions = status.conditions.get_or_insert_default();
    if conditions.iter().any(|old| old.type_ == kind && old.status == value) {
        return;
    }
    conditions.retain(|old| old.type_ != kind);
    let now = Time(whole_seconds(now));
    conditions.push(JobCondition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_probe_time: Some(now.clone()),
        last_transition_time: Some(now),
    });
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
