//! What a run needs next, step by step, and what must never happen whatever was read.

use crate::run_canceled::cancel;
use crate::world::{World, adds, outcome, settings, world};
use api::attempt::{Description, Outcome, Reason};
use api::audit::Entry;
use api::backend::Backend;
use api::inputs::DigestKey;
use api::run::{Action, RunState};
use api::text::Sha256;
use api::{TerraformRun, TerraformRunStatus};
use engine::queue::{Limit, Slot, Urgency};
use engine::run::{Decision, Effect, Lack, Lock, Observed, decide, is_at_rest, is_done_with, waiting};
use engine::{Read, Settings};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::json;

pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) run: TerraformRun,
    pub(crate) pod: Read<Pod>,
    pub(crate) outcome: Read<Outcome>,
    pub(crate) lock: Read<Lock>,
    pub(crate) bundle: Read<Result<Sha256, String>>,
    pub(crate) slot: Read<Slot>,
    pub(crate) described: Read<Description>,
    pub(crate) refused: Option<String>,
    pub(crate) lack: Option<Lack>,
    pub(crate) digest_key: DigestKey,
    pub(crate) settings: Settings,
    pub(crate) now: Timestamp,
    pub(crate) audit: Vec<Entry>,
}

pub(crate) fn scene(action: Action) -> Scene {
    let mut world = world().auto_apply();
    world.step();
    if action == Action::Apply {
        world.succeed(adds(1));
        world.step();
    }
    let run = world.runs.last().unwrap().clone();
    assert_eq!(run.spec.action, action);
    Scene {
        now: world.now,
        world,
        run,
        pod: Read::Absent,
        outcome: Read::Unknown,
        lock: Read::Absent,
        bundle: Read::Present(Ok(Sha256::of(b"bundle"))),
        slot: Read::Present(Slot::Free),
        described: Read::Unknown,
        refused: None,
        lack: None,
        digest_key: DigestKey::new([1; DigestKey::LENGTH]),
        settings: settings(),
        audit: Vec::new(),
    }
}

impl Scene {
    pub(crate) fn decide(&self) -> Decision {
        decide(&self.view())
    }

    pub(crate) fn view(&self) -> Observed<'_> {
        Observed {
            now: self.now,
            run: &self.run,
            layer: Read::Present(&self.world.layer),
            repository: self.world.repository.as_ref().map_or(Read::Absent, Read::Present),
            bundle: self.bundle.clone(),
            pod: self.pod.as_ref(),
            outcome: self.outcome.as_ref(),
            lock: self.lock.clone(),
            digest_key: Some(&self.digest_key),
            slot: self.slot.clone(),
            described: self.described.as_ref(),
            refused: self.refused.as_deref(),
            lack: self.lack.as_ref(),
            settings: &self.settings,
        }
    }

    /// Does what the decision says; the world answers as API and datastore would.
    pub(crate) fn step(&mut self) -> Vec<&'static str> {
        let decision = self.decide();
        decision.effects.into_iter().map(|effect| self.take_effect(effect)).collect()
    }

    pub(crate) fn take_effect(&mut self, effect: Effect) -> &'static str {
        match effect {
            Effect::TakeLock { .. } => {
                let fence = self.lock.as_ref().present().map_or(0, |lock| lock.fence) + 1;
                self.lock = Read::Present(Lock {
                    holder: self.run.metadata.uid.clone(),
                    fence,
                    holder_is_done: false,
                });
                "take lock"
            }
            Effect::PutDescription(_) => "put description",
            Effect::CopyLogin(_) => "copy login",
            Effect::Audit(entry) => {
                self.audit.push(*entry);
                "audit"
            }
            Effect::StopPod { .. } => {
                let Read::Present(pod) = &mut self.pod else { panic!("no pod to stop") };
                pod.metadata.deletion_timestamp = Some(Time(self.now));
                "stop pod"
            }
            Effect::SetStatus(status) => {
                let changed = self.run.status.as_ref() != Some(status.as_ref());
                self.run.status = Some(*status);
                if changed { "set status" } else { "keep status" }
            }
            Effect::CreatePod(pod) => {
                self.pod = Read::Present(*pod);
                "create pod"
            }
            Effect::DeletePod { .. } => {
                self.pod = Read::Absent;
                "delete pod"
            }
        }
    }

    pub(crate) fn pod_becomes(&mut self, phase: &str, exit_code: i32) {
        let Read::Present(pod) = &mut self.pod else { panic!("no pod") };
        let status = json!({ "phase": phase, "containerStatuses": [{
            "name": "runner", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": exit_code } } }] });
        pod.status = serde_json::from_value(status).unwrap();
    }

    pub(crate) fn ends(&mut self, reason: Reason) {
        self.pod_becomes(if reason == Reason::Succeeded { "Succeeded" } else { "Failed" }, 1);
        self.outcome = Read::Present(outcome(self.run.spec.action, reason, self.now));
    }

    pub(crate) fn status(&self) -> TerraformRunStatus {
        self.run.status.clone().unwrap_or_default()
    }

    pub(crate) fn state(&self) -> Option<RunState> {
        self.status().state
    }
}

#[test]
fn a_plan_needs_no_lock_and_records_its_intent_before_its_pod() {
    let mut scene = scene(Action::Plan);
    assert_eq!(scene.step(), ["put description", "set status", "create pod"]);
    assert_eq!(scene.status().attempts.len(), 1);
    assert_eq!(scene.state(), Some(RunState::Running), "the intent says so");
    scene.pod_becomes("Running", 0);
    assert_eq!(scene.step(), ["keep status"], "that its pod works is not worth a write");
    scene.ends(Reason::Succeeded);
    assert_eq!(scene.step(), ["set status", "delete pod"]);
    assert_eq!(scene.state(), Some(RunState::Succeeded));
    assert_eq!(scene.status().attempts[0].tool.as_deref(), Some("terraform 1.2.3"));
    assert!(scene.step().is_empty());
}

#[test]
fn a_run_is_at_rest_once_it_is_over_and_its_pod_is_gone() {
    let mut scene = scene(Action::Plan);
    let at_rest = |scene: &Scene| is_at_rest(&scene.run, &scene.decide());
    assert!(!at_rest(&scene), "it has not begun");
    scene.step();
    scene.pod_becomes("Running", 0);
    assert!(!at_rest(&scene), "it works");
    let pod = scene.pod.clone();
    scene.ends(Reason::Succeeded);
    scene.step();
    scene.pod = pod;
    assert!(!at_rest(&scene), "its pod is to go");
    scene.pod = Read::Unknown;
    assert!(!at_rest(&scene), "who knows of its pod?");
    scene.pod = Read::Absent;
    assert!(at_rest(&scene));
}

#[test]
fn an_apply_takes_the_lock_first_and_is_done_with_it_once_its_result_is_recorded() {
    let mut scene = scene(Action::Apply);
    assert_eq!(scene.step(), ["take lock"]);
    assert_eq!(scene.step(), ["put description", "audit", "set status", "create pod"]);
    assert_eq!(scene.status().attempts[0].fence, 1);
    assert!(!is_done_with(&scene.run, 1), "while it works");
    scene.ends(Reason::Succeeded);
    assert!(!is_done_with(&scene.run, 1), "while its result is not recorded");
    assert_eq!(scene.step(), ["set status", "delete pod"]);
    assert!(is_done_with(&scene.run, 1));
}

#[test]
fn a_run_that_took_the_lock_and_has_not_begun_is_not_done_with_it() {
    let mut scene = scene(Action::Apply);
    assert!(!is_done_with(&scene.run, 1), "nothing is on record");
    scene.step();
    scene.step();
    scene.ends(Reason::StateLocked);
    scene.step();
    assert_eq!(scene.state(), Some(RunState::FailureGracePeriod));
    assert!(is_done_with(&scene.run, 1), "another one may go first while it waits");
    assert!(!is_done_with(&scene.run, 2), "taken again, for an attempt that has not begun");
}

#[test]
fn each_attempt_of_an_apply_has_a_fence_of_its_own() {
    let mut scene = scene(Action::Apply);
    scene.step();
    scene.step();
    scene.ends(Reason::StateLocked);
    scene.step();
    scene.now = engine::later(scene.now, scene.settings.retry.max);
    scene.outcome = Read::Unknown;
    let again = scene.decide().effects;
    let uid = scene.run.metadata.uid.clone();
    assert!(
        matches!(again.as_slice(), [Effect::TakeLock { from, fence: 1, .. }] if *from == uid),
        "only if nobody took it meanwhile: {again:?}"
    );
    scene.step();
    scene.step();
    let fences: Vec<u64> = scene.status().attempts.iter().map(|attempt| attempt.fence).collect();
    assert_eq!(fences, [1, 2]);
    assert_eq!(scene.state(), Some(RunState::Running));
}

#[test]
fn a_plan_whose_pod_is_gone_gets_no_second_pod_for_the_same_attempt() {
    let mut reported = scene(Action::Plan);
    reported.step();
    reported.pod = Read::Absent;
    reported.outcome = Read::Unknown;
    assert!(reported.step().is_empty(), "a datastore that does not answer decides nothing");
    reported.outcome = Read::Present(outcome(Action::Plan, Reason::Succeeded, reported.now));
    assert_eq!(reported.step(), ["set status", "delete pod"]);
    assert_eq!(reported.state(), Some(RunState::Succeeded), "what it reported counts");

    let mut silent = scene(Action::Plan);
    silent.step();
    silent.pod = Read::Absent;
    silent.outcome = Read::Absent;
    assert!(silent.step().is_empty(), "whoever wrote the intent may be about to make it");
    silent.now = engine::later(silent.now, std::time::Duration::from_secs(10));
    assert_eq!(silent.step(), ["set status", "delete pod"]);
    assert_eq!(silent.state(), Some(RunState::FailureGracePeriod));
    assert_eq!(silent.status().attempts[0].reason.as_deref(), Some("PodGone"));
    silent.now = engine::later(silent.now, silent.settings.retry.max);
    assert_eq!(silent.step(), ["put description", "set status", "create pod"]);
    assert_eq!(silent.status().attempts[1].number, 1);
}

#[test]
fn an_apply_that_reported_is_never_run_again_though_its_pod_was_forgotten() {
    let mut scene = scene(Action::Apply);
    scene.step();
    scene.step();
    scene.pod = Read::Absent;
    scene.outcome = Read::Unknown;
    assert!(scene.step().is_empty(), "a datastore that does not answer decides nothing");
    scene.outcome = Read::Present(outcome(Action::Apply, Reason::Succeeded, scene.now));
    assert_eq!(scene.step(), ["set status", "delete pod"]);
    assert_eq!(scene.state(), Some(RunState::Succeeded));
}

#[test]
fn a_pod_that_is_gone_costs_a_plan_none_of_its_tries_and_is_not_made_for_ever() {
    let mut scene = scene(Action::Plan);
    scene.run.spec.max_retries = 1;
    let mut reasons = Vec::new();
    for gone in [true, false, false] {
        assert!(scene.step().contains(&"create pod"));
        if gone {
            scene.pod = Read::Absent;
            scene.outcome = Read::Absent;
        } else {
            scene.ends(Reason::ToolFailed);
        }
        scene.now = engine::later(scene.now, scene.settings.retry.max);
        scene.step();
        reasons = scene.status().attempts.into_iter().filter_map(|attempt| attempt.reason).collect();
        scene.now = engine::later(scene.now, scene.settings.retry.max);
    }
    assert_eq!(reasons, ["PodGone", "ToolFailed", "ToolFailed"]);
    assert_eq!(scene.state(), Some(RunState::Failed));
    assert!(api::condition::is_true(&scene.status().conditions, "HasReachedRetryLimit"));

    let mut cursed = self::scene(Action::Plan);
    cursed.run.spec.max_retries = 1;
    while !cursed.state().is_some_and(RunState::is_terminal) {
        cursed.step();
        cursed.pod = Read::Absent;
        cursed.outcome = Read::Absent;
        cursed.now = engine::later(cursed.now, cursed.settings.retry.max);
        assert!(cursed.status().attempts.len() <= 2);
    }
}

#[test]
fn a_pod_that_the_api_refuses_is_told_of_and_made_later_in_the_same_attempt() {
    for action in [Action::Plan, Action::Apply] {
        let mut scene = scene(action);
        while scene.status().attempts.is_empty() {
            scene.step();
        }
        scene.pod = Read::Absent;
        scene.outcome = Read::Absent;
        scene.refused = Some("exceeded quota: pods".into());
        assert_eq!(scene.step(), ["set status"]);
        let ready = api::condition::find(&scene.status().conditions, "Ready").cloned().unwrap();
        assert_eq!(ready.reason, "PodRefused");
        assert!(ready.message.ends_with("exceeded quota: pods"), "{}", ready.message);
        scene.refused = None;
        scene.slot = full();
        scene.step();
        scene.slot = Read::Present(Slot::Free);
        assert_eq!(scene.step(), ["set status", "create pod"], "the intent stands again before the pod");
        assert_eq!(scene.status().attempts.len(), 1);

        scene.pod = Read::Absent;
        scene.refused = Some("exceeded quota: pods".into());
        scene.step();
        scene.refused = None;
        cancel(&mut scene);
        scene.step();
        assert_eq!(scene.status().result.unwrap().message, "canceled by hand before its pod was made");
    }
}

#[test]
fn a_pod_whose_image_cannot_be_pulled_is_told_of_and_goes_when_another_image_is_named() {
    for action in [Action::Plan, Action::Apply] {
        let mut scene = scene(action);
        while scene.status().attempts.is_empty() {
            scene.step();
        }
        let Read::Present(pod) = &mut scene.pod else { panic!("no pod") };
        pod.spec.as_mut().unwrap().node_name = Some("node".into());
        let state = json!({ "waiting": { "reason": "ImagePullBackOff", "message": "Back-off" } });
        let container = json!({ "name": "runner", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state });
        pod.status =
            serde_json::from_value(json!({ "phase": "Pending", "containerStatuses": [container] })).unwrap();
        assert_eq!(scene.step(), ["set status"]);
        let ready = api::condition::find(&scene.status().conditions, "Ready").cloned().unwrap();
        assert_eq!(ready.reason, "PodNotStarting");
        assert_eq!(scene.step(), ["keep status"], "the kubelet's next try is no news");
        scene.settings.runner.image = "example.org/runner:2".into();
        assert_eq!(scene.step(), ["keep status", "stop pod"]);
        assert_eq!(scene.step(), ["keep status"], "it is told once");
    }
}

#[test]
fn a_datastore_that_takes_nothing_is_told_of_before_anything_begins_and_no_attempt_is_spent_on_it() {
    for action in [Action::Plan, Action::Apply] {
        for (lack, expected) in [
            (Lack::Room("the datastore is full".into()), ("DatastoreFull", "the datastore is full")),
            (Lack::Answer("it is away".into()), ("DatastoreUnavailable", "it is away")),
        ] {
            let mut scene = scene(action);
            if action == Action::Apply {
                assert_eq!(scene.step(), ["take lock"]);
            }
            scene.lack = Some(lack);
            assert_eq!(scene.step(), ["set status"]);
            assert!(scene.status().attempts.is_empty());
            let ready = api::condition::find(&scene.status().conditions, "Ready").cloned().unwrap();
            assert_eq!((ready.reason.as_str(), ready.message.as_str()), expected);
            scene.lack = None;
            while scene.status().attempts.is_empty() {
                scene.step();
            }
            assert_eq!(scene.status().attempts.len(), 1);
        }
    }
}

#[test]
fn a_lock_of_another_run_is_waited_for() {
    let mut scene = scene(Action::Apply);
    scene.lock = Read::Present(Lock { holder: Some("someone".into()), fence: 7, holder_is_done: false });
    assert_eq!(scene.step(), ["set status"]);
    assert_eq!(scene.step(), ["keep status"]);
    scene.lock = Read::Unknown;
    assert!(!scene.step().contains(&"create pod"));
    scene.lock = Read::Present(Lock { holder: None, fence: 7, holder_is_done: false });
    assert_eq!(scene.step(), ["take lock"]);
    scene.step();
    assert_eq!(scene.status().attempts[0].fence, 8);
}

#[test]
fn the_lock_of_a_run_that_is_done_is_taken_from_it_under_a_higher_fence() {
    let mut scene = scene(Action::Apply);
    scene.lock = Read::Present(Lock { holder: Some("dead".into()), fence: 7, holder_is_done: true });
    let taken = scene.decide().effects.into_iter().any(|effect| match effect {
        Effect::TakeLock { from, fence, .. } => (from.as_deref(), fence) == (Some("dead"), 7),
        _ => false,
    });
    assert!(taken, "from that run and no other, as it was seen");
    assert_eq!(scene.step(), ["take lock"]);
    scene.step();
    assert_eq!(scene.status().attempts[0].fence, 8);
}

#[test]
fn an_apply_that_started_is_never_repeated() {
    for reason in
        [Reason::ToolFailed, Reason::Stale, Reason::StateMoved, Reason::Interrupted, Reason::BadInput]
    {
        let mut scene = scene(Action::Apply);
        scene.step();
        scene.step();
        scene.ends(reason);
        scene.step();
        assert_eq!(scene.state(), Some(RunState::Failed), "{reason:?}");
    }
}

/// The apply of a plan whose runner found the state in this backend, in a layer of its own.
fn apply_on(path: &str, backend: Option<&Backend>) -> Scene {
    let mut plan = scene(Action::Plan);
    plan.world.layer.spec.path = path.parse().unwrap();
    plan.world.runs.clear();
    plan.world.step();
    plan.run = plan.world.runs.last().unwrap().clone();
    plan.step();
    plan.ends(Reason::Succeeded);
    if let Read::Present(outcome) = &mut plan.outcome {
        outcome.plan.as_mut().unwrap().backend = backend.cloned();
    }
    plan.step();
    let mut world = plan.world;
    world.runs = vec![plan.run];
    world.step();
    let run = world.runs.last().unwrap().clone();
    Scene { world, run, ..scene(Action::Apply) }
}

#[test]
fn layers_that_lead_to_one_state_contend_for_one_lock_and_others_do_not() {
    let file =
        Backend { kind: "local".into(), settings: [("path".into(), "/srv/one.tfstate".into())].into() };
    let lease = |scene: &Scene| match scene.decide().effects.as_slice() {
        [Effect::TakeLock { lease, .. }] => lease.clone(),
        other => panic!("{other:?}"),
    };
    let (mut left, mut right) = (apply_on("left", Some(&file)), apply_on("right", Some(&file)));
    assert_ne!(engine::layer::state_of(&left.world.layer), engine::layer::state_of(&right.world.layer));
    assert_eq!(lease(&left), lease(&right));
    let identity = right.world.status().state_identity.clone().unwrap();
    assert_eq!((identity.sha256, identity.backend.as_str()), (file.sha256(), "local path=/srv/one.tfstate"));

    right.run.metadata.uid = Some("right".into());
    assert_eq!(left.step(), ["take lock"]);
    right.lock = left.lock.clone();
    assert_eq!(right.step(), ["set status"], "the second one waits");
    assert_eq!(right.status().conditions.iter().find(|c| c.type_ == "Ready").unwrap().reason, "StateLocked");
    let told = left.decide().effects.into_iter().find_map(|effect| match effect {
        Effect::PutDescription(description) => Some(description),
        _ => None,
    });
    assert_eq!(told.unwrap().backend, Some(file.sha256()), "its runner checks that it is still so");

    let (here, there) = (apply_on("left", None), apply_on("right", None));
    assert_eq!(lease(&here), engine::names::lease(&engine::layer::state_of(&here.world.layer)));
    assert_ne!(lease(&here), lease(&there));
    assert_ne!(lease(&here), lease(&apply_on("left", Some(&file))));
}

#[test]
fn an_apply_that_was_refused_the_state_lock_is_tried_again() {
    let mut scene = scene(Action::Apply);
    scene.step();
    scene.step();
    scene.ends(Reason::StateLocked);
    scene.step();
    assert_eq!(scene.state(), Some(RunState::FailureGracePeriod));
}

#[test]
fn a_silent_end_is_unknown_for_an_apply_and_a_failure_for_a_plan() {
    let mut apply = scene(Action::Apply);
    apply.step();
    apply.step();
    apply.pod_becomes("Failed", 137);
    apply.outcome = Read::Unknown;
    assert!(apply.step().is_empty(), "a datastore that does not answer decides nothing");
    apply.outcome = Read::Absent;
    apply.step();
    assert_eq!(apply.status().result.unwrap().reason, "OutcomeUnknown");

    let mut plan = scene(Action::Plan);
    plan.step();
    plan.pod_becomes("Failed", 137);
    plan.outcome = Read::Absent;
    plan.step();
    assert_eq!(plan.state(), Some(RunState::FailureGracePeriod));
    assert!(plan.status().attempts[0].message.as_ref().unwrap().contains("exit code 137"));
}

#[test]
fn a_plan_that_finds_no_room_is_told_so_and_retried_with_a_result_and_without_one() {
    let mut told = scene(Action::Plan);
    told.step();
    told.ends(Reason::DatastoreFull);
    told.step();
    let mut silent = scene(Action::Plan);
    silent.step();
    silent.pod_becomes("Failed", api::attempt::EXIT_DATASTORE_FULL);
    silent.outcome = Read::Absent;
    silent.step();
    for scene in [told, silent] {
        assert_eq!(scene.state(), Some(RunState::FailureGracePeriod));
        assert_eq!(scene.status().attempts[0].reason.as_deref(), Some("DatastoreFull"));
    }

    // What an apply did is not known from this.
    let mut apply = scene(Action::Apply);
    apply.step();
    apply.step();
    apply.pod_becomes("Failed", api::attempt::EXIT_DATASTORE_FULL);
    apply.outcome = Read::Absent;
    apply.step();
    assert_eq!(apply.status().result.unwrap().reason, "OutcomeUnknown");
}

#[test]
fn a_plan_is_retried_to_the_limit_with_growing_pauses() {
    let mut scene = scene(Action::Plan);
    scene.run.spec.max_retries = 2;
    let mut tries = 0;
    while scene.state() != Some(RunState::Failed) {
        let pause = scene.settings.retry.max;
        scene.now = engine::later(scene.now, pause);
        if scene.step().contains(&"create pod") {
            tries += 1;
        }
        if let Read::Present(pod) = &scene.pod
            && pod.status.is_none()
        {
            scene.ends(Reason::ToolFailed);
        }
        assert!(tries <= 3);
    }
    assert_eq!(tries, 3);
    let status = scene.status();
    assert!(api::condition::is_true(&status.conditions, "HasReachedRetryLimit"));
    assert_eq!(status.retries, 2);
}

#[test]
fn a_pod_of_someone_else_under_our_name_is_not_taken_for_ours() {
    let mut scene = scene(Action::Plan);
    scene.step();
    let Read::Present(pod) = &mut scene.pod else { panic!() };
    pod.metadata.owner_references = None;
    pod.metadata.deletion_timestamp = Some(Time(scene.now));
    assert!(scene.step().is_empty(), "one that is being deleted is waited for");
    let Read::Present(pod) = &mut scene.pod else { panic!() };
    pod.metadata.deletion_timestamp = None;
    scene.step();
    assert_eq!(scene.status().result.unwrap().reason, "PodNameTaken");
}

#[test]
fn what_allowed_an_apply_is_written_down_before_its_intent() {
    let mut scene = scene(Action::Apply);
    scene.step();
    let again = scene.decide();
    scene.step();
    let [entry] = scene.audit.as_slice() else { panic!("{:?}", scene.audit) };
    assert_eq!(entry.trigger, api::run::TriggerKind::Auto);
    assert_eq!(entry.plan_sha256, Some(scene.world.plan_sha256()));
    assert_eq!((entry.fence, entry.attempt), (1, 0));
    assert_eq!(entry.revision, scene.run.spec.layer.revision);
    let repeated = again.effects.iter().any(|effect| effect == &Effect::Audit(Box::new(entry.clone())));
    assert!(repeated, "decided twice, it is the same entry");

    let mut plan = self::scene(Action::Plan);
    plan.step();
    assert!(plan.audit.is_empty(), "a plan changes nothing");
}

pub(crate) fn full() -> Read<Slot> {
    Read::Present(Slot::Full(Limit::Repository { name: "db".into(), most: 1 }))
}

#[test]
fn a_run_without_a_runner_queues_quietly_and_takes_no_lock_meanwhile() {
    let mut scene = scene(Action::Apply);
    scene.slot = full();
    assert_eq!(scene.step(), ["set status"]);
    let ready = api::condition::find(&scene.status().conditions, "Ready").cloned().unwrap();
    assert_eq!(ready.reason, "Queued");
    assert_eq!(ready.message, "queued: at most 1 runners work for repository db at the same time");
    scene.now = engine::later(scene.now, std::time::Duration::from_secs(600));
    assert_eq!(scene.step(), ["keep status"], "nothing that moves with time is written");
    scene.slot = Read::Unknown;
    assert!(scene.step().is_empty());
    scene.slot = Read::Present(Slot::Free);
    assert_eq!(scene.step(), ["take lock"]);
}

#[test]
fn an_attempt_written_down_before_a_crash_waits_for_room_too() {
    let mut scene = scene(Action::Apply);
    scene.step();
    scene.step();
    scene.pod = Read::Absent;
    scene.outcome = Read::Absent;
    assert_eq!(waiting(&scene.view()).unwrap().urgency, Urgency::Holding);
    scene.slot = full();
    assert_eq!(scene.step(), ["set status"]);
    assert!(!scene.decide().wants_runner());
    scene.slot = Read::Present(Slot::Free);
    assert!(scene.decide().wants_runner());
    assert_eq!(scene.step(), ["set status", "create pod"]);
}

#[test]
fn a_run_that_waited_while_the_layer_moved_on_is_superseded() {
    let mut scene = scene(Action::Plan);
    scene.slot = full();
    scene.step();
    scene.world.push('b');
    scene.world.layer.status = Some(scene.world.decide().status);
    assert_eq!(scene.step(), ["set status"]);
    let result = scene.status().result.unwrap();
    assert_eq!(result.reason, "Superseded");
    assert!(result.message.contains("bbbbbbb"), "{}", result.message);
}

fn read_lock(uid: Option<String>) -> impl Strategy<Value = Read<Lock>> {
    prop_oneof![
        Just(Read::Unknown),
        Just(Read::Absent),
        Just(Read::Present(Lock { holder: None, fence: 3, holder_is_done: false })),
        Just(Read::Present(Lock { holder: Some("someone".into()), fence: 3, holder_is_done: false })),
        Just(Read::Present(Lock { holder: uid, fence: 4, holder_is_done: false })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is read in between, a terminal state stays, a pod is made only under our own lock, and only one pod per attempt.
    #[test]
    fn unknown_reads_never_start_or_end_anything(
        apply in any::<bool>(),
        script in proptest::collection::vec((read_lock(Some("run-2".into())), 0_u8..6, any::<bool>()), 1..30),
    ) {
        let mut scene = scene(if apply { Action::Apply } else { Action::Plan });
        let mut ended = None;
        for (lock, event, hide_pod) in script {
            if apply { scene.lock = lock; }
            let hidden = hide_pod.then(|| std::mem::replace(&mut scene.pod, Read::Unknown));
            if let (Read::Present(_), 0..=2) = (&scene.pod, event) {
                scene.ends([Reason::Succeeded, Reason::ToolFailed, Reason::StateLocked][usize::from(event)]);
            }
            let holds = match &scene.lock { Read::Present(lock) => lock.holder == scene.run.metadata.uid, Read::Absent | Read::Unknown => false };
            let attempts = scene.status().attempts.len();
            let done = scene.step();
            if done.contains(&"put description") {
                prop_assert!(!apply || holds, "an attempt began without the lock");
                prop_assert_eq!(scene.status().attempts.len(), attempts + 1);
            }
            if hidden.is_some() {
                prop_assert!(!done.contains(&"create pod") || scene.status().attempts.len() == attempts + 1);
            }
            if let Some(hidden) = hidden && matches!(scene.pod, Read::Unknown) { scene.pod = hidden; }
            if let Some(ended) = &ended { prop_assert_eq!(ended, &scene.state()); }
            if scene.state().is_some_and(RunState::is_terminal) { ended = Some(scene.state()); }
            scene.now = engine::later(scene.now, scene.settings.retry.max);
        }
    }

    /// Wherever the clock jumps to, forth or back: a run does what there is to do and then waits, for a change or for a time that has not come.
    #[test]
    fn after_its_effects_a_run_wants_nothing_until_something_happens(
        apply in any::<bool>(),
        script in proptest::collection::vec((0_u8..8, -7200_i64..200_000), 1..20),
    ) {
        let mut scene = scene(if apply { Action::Apply } else { Action::Plan });
        scene.outcome = Read::Absent;
        for (event, passes) in script {
            scene.now += jiff::SignedDuration::from_secs(passes);
            match (&scene.pod, event) {
                (Read::Present(_), 0..=2) => {
                    scene.ends([Reason::Succeeded, Reason::ToolFailed, Reason::StateLocked][usize::from(event)]);
                }
                (Read::Present(_), 3) => scene.pod_becomes("Failed", 137),
                (Read::Present(_), 4) => scene.pod_becomes("Running", 0),
                _ => {}
            }
            for round in 0.. {
                let done = scene.step();
                if done.contains(&"create pod") { scene.outcome = Read::Absent; }
                if done.iter().all(|effect| *effect == "keep status") { break; }
                prop_assert!(round < 12, "it never comes to rest: {:?}", done);
            }
            if let engine::Wake::At(at) = scene.decide().wake {
                prop_assert!(at > scene.now, "it would be looked at again at once");
            }
        }
    }
}
