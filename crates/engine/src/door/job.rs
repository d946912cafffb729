//! The Job that shows a round to people who look at Jobs. It is never worked on as one: `managedBy` names Terrane, so that no job
//! controller touches it, and it is suspended, so that one which does not know that field makes no pod all the same.

use api::run::RunState;
use api::{JOB_MANAGER, Repo, label};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use serde_json::json;

use super::rounds::{Round, Standing, state_of};
use crate::Settings;
use crate::manifests::{RUNNER_PROGRAM, label_value};

/// As it is made; what it says is in its status. None of a run that is not from an API.
pub(super) fn build_job(repo: &Repo, round: &Round<'_>, settings: &Settings) -> Option<Job> {
    let job = json!({
        "metadata": {
            "name": round.job_name(repo),
            "namespace": repo.metadata.namespace,
            "labels": {
                label::MANAGED_BY: "terrane",
                label::LAYER: label_value(repo.metadata.name.as_deref()?),
                label::RUN: label_value(round.plan_name()),
            },
            // It goes with the run that it shows, whose time is up by the layer's history.
            "ownerReferences": [round.plan.controller_owner_ref(&())?],
        },
        "spec": {
            "managedBy": JOB_MANAGER,
            "suspend": true,
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": 0,
            // A Job has to have one. No pod is made from it.
            "template": { "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
                "containers": [{
                    "name": "runner",
                    "image": settings.runner.image,
                    "command": [RUNNER_PROGRAM, "runner"],
                    "securityContext": {
                        "allowPrivilegeEscalation": false,
                        "readOnlyRootFilesystem": true,
                        "capabilities": { "drop": ["ALL"] },
                    },
                }],
            } },
        },
    });
    serde_json::from_value(job).ok()
}

/// What the Job of a round says, within what an API accepts of a Job that is managed by somebody else: one that is over has begun, says
/// first that it is about to be over, and nothing of it works any more.
pub(super) fn job_status(round: &Round<'_>) -> JobStatus {
    let attempts = || round.runs().flat_map(|run| run.status.iter().flat_map(|status| &status.attempts));
    let failed = attempts().filter(|attempt| attempt.exit_code.is_some_and(|code| code != 0)).count();
    let at_work = round.runs().any(|run| match state_of(run) {
        RunState::Running | RunState::Retrying => true,
        RunState::Initial | RunState::FailureGracePeriod | RunState::Succeeded | RunState::Failed => false,
    });
    let is_over = round.state().is_terminal();
    let end = round.ended_at().map(whole_second);
    let mut status = JobStatus {
        start_time: round.plan.metadata.creation_timestamp.clone().map(|time| whole_second(time.0)),
        active: (at_work && !is_over).then_some(1),
        failed: i32::try_from(failed).ok().filter(|failed| *failed > 0),
        ..JobStatus::default()
    };
    let conditions: [(&str, &str, String); 2] = match &round.standing {
        Standing::Pending | Standing::Running => return status,
        Standing::Succeeded { message } => {
            status.succeeded = Some(1);
            status.completion_time = end.clone();
            [("SuccessCriteriaMet", "Applied", message.clone()), ("Complete", "Applied", message.clone())]
        }
        Standing::Failed { reason, message } => {
            [("FailureTarget", reason, message.clone()), ("Failed", reason, message.clone())]
        }
        Standing::Superseded => {
            let message = "a newer plan was made before this one was applied".to_owned();
            [("FailureTarget", SUPERSEDED, message.clone()), ("Failed", SUPERSEDED, message)]
        }
    };
    let conditions = conditions.into_iter().map(|(kind, reason, message)| JobCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_probe_time: end.clone(),
        last_transition_time: end.clone(),
    });
    status.conditions = Some(conditions.collect());
    status
}

const SUPERSEDED: &str = "Superseded";

/// Whether the Job says already that it is over, which is its last word.
pub(super) fn is_over(job: &Job) -> bool {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|one| ["Complete", "Failed"].contains(&one.type_.as_str()) && one.status == "True")
}

/// Whether it shows this run, rather than being somebody else's.
pub(super) fn is_of(job: &Job, round: &Round<'_>) -> bool {
    let owners = job.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| Some(&owner.uid) == round.plan.metadata.uid.as_ref())
}

/// An API keeps whole seconds of a Job's times.
fn whole_second(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}
