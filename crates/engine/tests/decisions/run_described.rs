//! What an attempt is told: with what it was planned, how long it may take, until when its plan counts; and that what was told once stands.

use api::attempt::{Description, Reason};
use api::run::{Action, RunState};
use api::text::Sha256;
use engine::Read;
use engine::queue::Slot;
use engine::run::{Decision, Effect};
use serde_json::json;

use crate::run::{Scene, full, scene};

pub(crate) fn description_of(decision: &Decision) -> Description {
    let put = decision.effects.iter().find_map(|effect| match effect {
        Effect::PutDescription(description) => Some(description),
        _ => None,
    });
    put.expect("it describes the attempt").as_ref().clone()
}

#[test]
fn an_attempt_that_was_described_before_a_crash_goes_on_as_it_was_described() {
    for action in [Action::Plan, Action::Apply] {
        let mut scene = scene(action);
        if action == Action::Apply {
            scene.step();
        }
        let stored = description_of(&scene.decide());
        let status = scene.world.layer.status.as_mut().unwrap();
        status.script = Some(Sha256::of(b"run meanwhile"));
        assert_ne!(description_of(&scene.decide()), stored, "another script is the last that ran");

        scene.described = Read::Present(stored.clone());
        let steps = scene.step();
        assert!(!steps.contains(&"put description"), "{steps:?}");
        assert!(steps.ends_with(&["set status", "create pod"]), "{steps:?}");
        assert_eq!(
            scene.status().attempts[0].description,
            stored.digest(),
            "the intent names what is stored"
        );
    }
}

#[test]
fn a_run_is_described_with_what_it_was_planned_with_and_does_not_begin_once_the_layer_has_another() {
    for action in [Action::Plan, Action::Apply] {
        let mut scene = scene(action);
        let setup = scene.run.spec.setup.clone().unwrap();
        if action == Action::Apply {
            scene.step();
        }
        let described = description_of(&scene.decide());
        assert_eq!((described.path, described.tool), (setup.path, setup.tool));

        let choice = json!({ "enabled": true, "version": "1.9.0" });
        scene.world.layer.spec.opentofu = serde_json::from_value(choice).unwrap();
        assert_eq!(scene.step(), ["set status"], "nothing was started");
        let result = scene.status().result.unwrap();
        assert_eq!(result.reason, "Superseded");
        assert_eq!(
            result.message,
            "the layer changed before it started: tool from what the code asks for to tofu 1.9.0; the layer goes on with that"
        );
    }
}

#[test]
fn an_apply_whose_plan_expired_while_it_waited_never_starts() {
    let mut scene = scene(Action::Apply);
    scene.slot = full();
    scene.step();
    let expires = scene.run.spec.artifact.as_ref().unwrap().expires.clone().unwrap();
    scene.slot = Read::Present(Slot::Free);
    scene.now = expires.0;
    assert_eq!(scene.step(), ["set status"]);
    let result = scene.status().result.unwrap();
    assert_eq!(result.reason, "Stale");
    assert_eq!(
        result.message,
        "the plan expired at 2027-01-16 08:00 UTC before it could be applied; nothing was changed"
    );

    // In time, its runner is told, and looks again.
    let mut scene = self::scene(Action::Apply);
    scene.step();
    assert_eq!(description_of(&scene.decide()).plan.unwrap().expires, Some(expires.0));
    // One from before it was said does not expire.
    scene.run.spec.artifact.as_mut().unwrap().expires = None;
    scene.now = engine::later(expires.0, std::time::Duration::from_secs(1));
    assert!(scene.step().ends_with(&["set status", "create pod"]));
}

#[test]
fn how_long_an_attempt_may_take_is_said_by_the_layer_or_else_by_its_repository() {
    let timeouts = |value| serde_json::from_value(value).unwrap();
    let told = |scene: &Scene| description_of(&scene.decide()).timeout.map(|span| span.to_string());
    for (action, of_layer, of_repository) in [(Action::Plan, "1m", "2h"), (Action::Apply, "3m", "4h")] {
        let mut scene = scene(action);
        if action == Action::Apply {
            scene.step();
        }
        let before = description_of(&scene.decide());
        assert_eq!(before.timeout, None, "the runner knows what there is by default");
        let repository = scene.world.repository.as_mut().unwrap();
        repository.spec.timeouts = timeouts(json!({ "plan": "2h", "apply": "4h" }));
        assert_eq!(told(&scene).as_deref(), Some(of_repository));
        let other = if action == Action::Plan { "apply" } else { "plan" };
        scene.world.layer.spec.timeouts = timeouts(json!({ other: "1s" }));
        assert_eq!(told(&scene).as_deref(), Some(of_repository), "each field by itself");
        scene.world.layer.spec.timeouts = timeouts(json!({ "plan": "1m", "apply": "3m" }));
        assert_eq!(told(&scene).as_deref(), Some(of_layer));
        // What was described before a crash stands.
        scene.described = Read::Present(before.clone());
        assert!(scene.step().ends_with(&["set status", "create pod"]));
        assert_eq!(scene.status().attempts[0].description, before.digest());
    }
}

#[test]
fn a_run_that_took_too_long_fails_as_one_that_was_stopped() {
    for (action, next) in [(Action::Plan, RunState::FailureGracePeriod), (Action::Apply, RunState::Failed)] {
        let mut scene = scene(action);
        scene.step();
        if action == Action::Apply {
            scene.step();
        }
        scene.ends(Reason::TimedOut);
        scene.step();
        assert_eq!(scene.status().state, Some(next), "an apply that started is never repeated");
        assert_eq!(scene.status().attempts[0].reason.as_deref(), Some("TimedOut"));
    }
}

#[test]
fn a_run_from_before_it_was_written_down_begins_with_what_the_layer_says() {
    let mut scene = scene(Action::Plan);
    scene.run.spec.setup = None;
    scene.world.layer.spec.workspace = Some("blue".parse().unwrap());
    assert_eq!(description_of(&scene.decide()).workspace.as_str(), "blue");
    // The attempt was described before a crash, and the layer changed while nobody was there.
    let stored = description_of(&scene.decide());
    scene.world.layer.spec.workspace = None;
    scene.described = Read::Present(stored.clone());
    assert!(scene.step().ends_with(&["set status", "create pod"]));
    assert_eq!(scene.status().attempts[0].description, stored.digest());
}

#[test]
fn an_attempt_that_was_described_for_another_lock_never_starts() {
    let mut scene = scene(Action::Apply);
    scene.step();
    let stored = description_of(&scene.decide());
    scene.described = Read::Present(Description { fence: stored.fence + 1, ..stored });
    let steps = scene.step();
    assert_eq!(steps, ["set status"]);
    assert_eq!(scene.status().result.unwrap().reason, "DescribedOtherwise");
}

#[test]
fn a_run_is_told_what_it_is_given_by_reference_and_never_starts_with_something_else() {
    let mut scene = scene(Action::Plan);
    let digest = Some(Sha256::of(b"inputs"));
    let password =
        json!([{ "name": "p", "valueFrom": { "secretKeyRef": { "name": "db", "key": "password" } } }]);
    scene.world.layer.spec.variables = serde_json::from_value(password).unwrap();
    scene.run.spec.inputs = digest.clone();
    scene.world.layer.status.as_mut().unwrap().inputs = digest.clone();
    let decision = scene.decide();
    let given = description_of(&decision).inputs.unwrap();
    assert_eq!((Some(given.digest), given.key), (digest.clone(), scene.digest_key.clone()));
    let Some(Effect::CreatePod(pod)) = decision.effects.last() else { panic!("no pod") };
    let volumes = pod.spec.as_ref().unwrap().volumes.as_ref().unwrap();
    let secret = volumes.iter().find_map(|volume| volume.secret.as_ref()).unwrap();
    assert_eq!((secret.secret_name.as_deref(), secret.optional), (Some("db"), Some(true)));

    scene.world.layer.status.as_mut().unwrap().inputs = Some(Sha256::of(b"others"));
    assert_eq!(scene.step(), ["set status"]);
    assert_eq!(scene.status().result.unwrap().reason, "Superseded");
}
