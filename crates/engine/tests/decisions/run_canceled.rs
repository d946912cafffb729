//! Runs that a person stops: before they start, at work, and by a word on their layer.

use crate::run::{Scene, scene};
use api::annotation;
use api::attempt::Reason;
use api::run::{Action, RunState};
use engine::Read;
use engine::run::is_done_with;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub(crate) fn cancel(scene: &mut Scene) {
    let annotations = scene.run.metadata.annotations.get_or_insert_default();
    annotations.insert(annotation::CANCEL.into(), "yes".into());
}

#[test]
fn a_run_canceled_before_it_started_never_starts_and_is_done_with_its_lock() {
    let mut waits = scene(Action::Apply);
    waits.step();
    cancel(&mut waits);
    assert_eq!(waits.step(), ["set status"]);
    assert!(is_done_with(&waits.run, 1));
    assert_eq!(waits.state(), Some(RunState::Failed));
    assert_eq!(waits.status().result.unwrap().reason, "Canceled");
    assert!(waits.step().is_empty());

    let mut written_down = scene(Action::Apply);
    written_down.step();
    written_down.step();
    written_down.pod = Read::Absent;
    written_down.outcome = Read::Absent;
    cancel(&mut written_down);
    assert_eq!(written_down.step(), ["set status", "delete pod"]);
    assert!(is_done_with(&written_down.run, 1));
    assert_eq!(written_down.status().result.unwrap().reason, "Canceled");
}

#[test]
fn a_running_attempt_is_asked_to_stop_once_and_its_own_word_counts() {
    for (reason, state, told) in [
        (Reason::Interrupted, RunState::Failed, "Canceled"),
        (Reason::ToolFailed, RunState::Failed, "Canceled"),
        (Reason::Succeeded, RunState::Succeeded, "Succeeded"),
    ] {
        for action in [Action::Plan, Action::Apply] {
            let mut scene = scene(action);
            while !matches!(scene.pod, Read::Present(_)) {
                scene.step();
            }
            let Read::Present(pod) = &mut scene.pod else { panic!() };
            pod.spec.as_mut().unwrap().node_name = Some("node".into());
            scene.step();
            cancel(&mut scene);
            assert_eq!(scene.step(), ["set status", "stop pod"]);
            assert_eq!(scene.step(), ["keep status"], "asked once");
            assert_eq!(scene.state(), Some(RunState::Running), "it may still save its state");
            scene.ends(reason);
            let done = scene.step();
            assert_eq!(done.first(), Some(&"set status"));
            assert_eq!(scene.state(), Some(state), "{reason:?} {action:?}");
            assert_eq!(scene.status().result.unwrap().reason, told);
        }
    }
}

#[test]
fn a_canceled_apply_that_ends_without_a_word_is_unknown_all_the_same() {
    let mut scene = scene(Action::Apply);
    scene.step();
    scene.step();
    let Read::Present(pod) = &mut scene.pod else { panic!() };
    pod.spec.as_mut().unwrap().node_name = Some("node".into());
    cancel(&mut scene);
    scene.step();
    scene.pod_becomes("Failed", 137);
    scene.outcome = Read::Absent;
    scene.step();
    assert_eq!(scene.status().result.unwrap().reason, "OutcomeUnknown");
}

#[test]
fn a_pod_deleted_before_it_had_a_node_never_ran() {
    let mut scene = scene(Action::Apply);
    scene.step();
    scene.step();
    let Read::Present(pod) = &mut scene.pod else { panic!() };
    pod.metadata.deletion_timestamp = Some(Time(scene.now));
    scene.outcome = Read::Absent;
    assert_eq!(scene.step(), ["set status", "delete pod"]);
    assert_eq!(
        scene.state(),
        Some(RunState::FailureGracePeriod),
        "nothing was changed: it may be tried again"
    );
    assert_eq!(scene.status().attempts[0].reason.as_deref(), Some("PodDeleted"));
}

#[test]
fn a_layer_can_name_the_run_to_cancel() {
    let mut scene = scene(Action::Plan);
    let name = scene.run.metadata.name.clone().unwrap();
    scene.world.annotate(annotation::CANCEL, "another-run");
    assert!(scene.decide().wants_runner());
    scene.world.annotate(annotation::CANCEL, &name);
    assert_eq!(scene.step(), ["set status"]);
    assert_eq!(scene.status().result.unwrap().reason, "Canceled");
}
