//! What a layer needs when its backend cannot be used, or leads to another state than the one that it changed.

use crate::world::{World, adds, destroys, world};
use api::backend::StateIdentity;
use api::condition;
use api::layer::{DeletionPolicy, LayerState};
use api::run::{Action, PlanSummary};
use api::text::Sha256;
use engine::Read;
use serde_json::json;
use std::time::Duration;

/// Lets the active plan end well, made on the state of this name.
fn plan_on(world: &mut World, place: &str, lineage: Option<&str>, summary: PlanSummary) {
    world.pass(Duration::from_secs(1));
    let name = world.active().unwrap().metadata.name.clone();
    world.succeed(summary);
    let run = world.runs.iter_mut().find(|run| run.metadata.name == name).unwrap();
    let result = run.status.as_mut().unwrap().result.as_mut().unwrap();
    let identity = StateIdentity { sha256: Sha256::of(place.as_bytes()), backend: place.to_owned() };
    result.state_identity = Some(identity);
    result.lineage = lineage.map(str::to_owned);
}

/// A layer that was applied on the state `s3 one`.
fn applied() -> World {
    let mut world = world().auto_apply();
    world.step();
    plan_on(&mut world, "s3 one", Some("l1"), adds(1));
    world.step();
    assert_eq!(world.active_action(), Some(Action::Apply));
    world.succeed(PlanSummary::default());
    assert_eq!(world.step().status.state, Some(LayerState::Idle));
    world
}

/// The same, planned again with another backend.
fn moved(lineage: Option<&str>) -> World {
    let mut world = applied();
    world.inputs = Read::Present(Ok(Some(Sha256::of(b"another backend"))));
    world.step();
    plan_on(&mut world, "pg two", lineage, adds(3));
    world
}

#[test]
fn a_backend_that_cannot_be_used_is_told_and_nothing_is_started() {
    for (backend, words) in [
        (
            json!({ "provider": "s3", "buckett": "b" }),
            "spec.backend: s3 has no field buckett; did you mean bucket?",
        ),
        (json!({ "provider": "s3", "key": "k" }), "spec.backend: s3 needs the field bucket: The bucket."),
        (
            json!({ "provider": "consul" }),
            "spec.backend: there is no backend consul; `terrane backends` lists them",
        ),
    ] {
        let mut world = world().auto_apply();
        world.layer.spec.backend = serde_json::from_value(backend).unwrap();
        // What the controller would have found; the decision does not rest on it.
        world.inputs = Read::Present(Ok(None));
        let decision = world.step();
        assert!(world.runs.is_empty());
        let ready = condition::find(&decision.status.conditions, "Ready").unwrap();
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "BackendRefused"));
        assert_eq!(ready.message, words);
        assert!(condition::is_true(&decision.status.conditions, "Stalled"));
        world.layer.spec.backend = None;
        world.step();
        assert_eq!(world.active_action(), Some(Action::Plan));
    }
}

#[test]
fn an_administrators_backend_is_one_like_the_others() {
    let mut world = world();
    world.layer.spec.backend = serde_json::from_value(json!({ "provider": "shelf", "path": "/s" })).unwrap();
    world
        .settings
        .backends
        .add("name: shelf\nabout: x\nbackend: local\nfields: { path: { about: x } }\n")
        .unwrap();
    world.step();
    assert_eq!(world.active_action(), Some(Action::Plan));
}

#[test]
fn a_state_that_did_not_come_along_is_not_begun_anew_without_a_person() {
    let mut world = moved(None);
    let decision = world.step();
    assert_eq!(world.active_action(), None, "autoApply is on, and was meant for the state that there was");
    assert_eq!(decision.status.state, Some(LayerState::ApplyNeeded));
    let ready = condition::find(&decision.status.conditions, "Ready").unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "StateMoved"));
    assert_eq!(
        ready.message,
        "its state was kept by s3 one, and is now looked for in pg two, where there is none; move the state there and run terrane sync db, or begin anew: terrane approve db"
    );
    // A person says that it is meant.
    let sha256 = world.plan_sha256();
    world.say(api::approval::Decision::Approve, &sha256);
    world.step();
    assert_eq!(world.active_action(), Some(Action::Apply));
    assert_eq!(
        world.runs.last().unwrap().spec.state,
        Sha256::of(b"pg two"),
        "and its lock is that of the new state"
    );
    world.succeed(PlanSummary::default());
    world.step();
    // From then on that is the state.
    world.push('b');
    world.step();
    plan_on(&mut world, "pg two", Some("l2"), adds(1));
    world.step();
    assert_eq!(world.active_action(), Some(Action::Apply));
}

#[test]
fn a_state_that_came_along_is_gone_on_with() {
    let mut world = moved(Some("l1"));
    world.step();
    assert_eq!(world.active_action(), Some(Action::Apply));
}

#[test]
fn another_state_in_the_new_place_is_not_touched_without_a_person() {
    let mut world = moved(Some("l9"));
    let why = world.step().status.why.unwrap();
    assert_eq!(world.active_action(), None);
    assert!(why.starts_with("its state was kept by s3 one, and in pg two there is another one; "), "{why}");
}

#[test]
fn a_destroy_that_looks_for_the_state_elsewhere_lets_nothing_go() {
    for (found, summary) in [(None, PlanSummary::default()), (Some("l9"), destroys(2))] {
        let mut world = applied();
        world.layer.spec.deletion_policy = Some(DeletionPolicy::Destroy);
        world.delete();
        world.step();
        plan_on(&mut world, "pg two", found, summary);
        let decision = world.step();
        assert!(!world.gone, "what s3 one knows is still there");
        assert_eq!(world.active_action(), None);
        let why = decision.status.why.unwrap();
        assert!(why.starts_with("being deleted, but its state was kept by s3 one, and "), "{why}");
        assert!(
            why.ends_with("set deletionPolicy to Orphan to let the layer go and keep what it made"),
            "{why}"
        );
        // Set back, it is planned again and goes.
        world.annotate(api::annotation::SYNC, "again");
        world.step();
        plan_on(&mut world, "s3 one", Some("l1"), PlanSummary::default());
        world.step();
        assert!(world.gone);
    }
}
