//! Runs that the API would not have: what a layer says, and that it costs no writes to ask again.

use std::time::Duration;

use crate::world::{World, wakes_at, world};
use api::condition;
use api::layer::DeletionPolicy;
use engine::layer::{Effect, Refusal};

fn refusing() -> World {
    let mut world = world();
    world.refused = Some(Refusal::Other("exceeded quota: runs, limited: 0".into()));
    world
}

fn reason(world: &World) -> &str {
    condition::find(&world.status().conditions, "Ready").unwrap().reason.as_str()
}

#[test]
fn a_refused_run_is_told_once_and_wished_for_again_without_a_word() {
    let mut world = refusing();
    let first = world.step();
    assert!(world.runs.is_empty());
    let why = world.status().why.clone().unwrap();
    assert!(why.starts_with("the API would not have run db-plan-"), "{why}");
    assert!(why.ends_with(": exceeded quota: runs, limited: 0"), "{why}");
    assert_eq!(reason(&world), "RunRefused");
    assert!(condition::is_true(&world.status().conditions, "Stalled"));
    assert!(world.status().latest_runs.is_empty(), "it is not there");
    let said = world.status().clone();
    let mut last = first;
    for _ in 0..3 {
        world.wait(&last);
        world.refused = None;
        let again = world.decide();
        assert_eq!(again.status, said, "nothing is written before the API has answered");
        assert!(matches!(again.effects[..], [Effect::CreateRun(_)]), "{:?}", again.effects);
        world.refused = refusing().refused;
        last = world.decide();
        assert_eq!((last.effects.as_slice(), &last.status), (&[][..], &said));
        assert_eq!(wakes_at(last.wake), Some(engine::later(world.now, Duration::from_secs(30))));
    }
}

#[test]
fn once_the_run_is_there_the_layer_says_so() {
    let mut world = refusing();
    world.step();
    world.refused = None;
    world.step_untold();
    assert_eq!(world.runs.len(), 1);
    world.step();
    assert_eq!(reason(&world), "Planning");
    assert_eq!(world.status().latest_runs.len(), 1);
    assert!(!condition::is_true(&world.status().conditions, "Stalled"));
}

#[test]
fn a_deletion_that_is_refused_its_run_says_how_to_get_out() {
    let mut world = refusing();
    world.layer.spec.deletion_policy = Some(DeletionPolicy::Destroy);
    world.step();
    world.delete();
    world.step();
    let why = world.status().why.clone().unwrap();
    let way_out = "; set deletionPolicy to Orphan to let the layer go and keep what it made";
    assert!(why.ends_with(&format!("limited: 0{way_out}")), "{why}");
    let said = world.status().clone();
    world.step();
    assert_eq!(world.status(), &said, "and does not say it twice");
}
