//! Which runs are forgotten, and that nothing still needed is.

use crate::world::{World, adds, world};
use api::annotation;
use api::layer::{LayerState, RunHistoryPolicy};
use api::run::{Action, PlanSummary};
use proptest::prelude::*;
use std::time::Duration;

fn keeping(runs: u32, max_age: Option<&str>) -> World {
    let mut world = world().auto_apply();
    world.layer.spec.run_history_policy = Some(RunHistoryPolicy {
        runs: Some(runs),
        max_age: max_age.map(|span| span.parse().unwrap()),
        max_bytes: None,
    });
    world
}

/// One round of a sync, whose plan finds nothing to do.
fn sync(world: &mut World, text: &str) {
    world.annotate(annotation::SYNC, text);
    world.step();
    world.pass(Duration::from_secs(60));
    world.succeed(PlanSummary::default());
    world.step();
}

#[test]
fn the_newest_runs_are_kept_and_what_the_layer_rests_on_stays() {
    let mut world = keeping(3, None);
    world.step();
    world.succeed(adds(1));
    world.step();
    world.pass(Duration::from_secs(60));
    world.succeed(adds(0));
    world.step();
    let applied = world.runs.last().unwrap().metadata.name.clone();
    for n in 0..6 {
        sync(&mut world, &n.to_string());
    }
    let names: Vec<_> = world.runs.iter().map(|run| run.metadata.name.clone()).collect();
    assert_eq!(names.len(), 4, "three newest and the last apply: {names:?}");
    assert!(names.contains(&applied));
    assert_eq!(world.status().state, Some(LayerState::Idle));
}

#[test]
fn the_repository_and_the_default_speak_where_the_layer_is_silent() {
    for (repository, expected) in [(Some(2), 3), (None, 6)] {
        let mut world = world().auto_apply();
        world.repository.as_mut().unwrap().spec.run_history_policy =
            repository.map(|runs| RunHistoryPolicy { runs: Some(runs), ..RunHistoryPolicy::default() });
        world.step();
        world.succeed(adds(1));
        world.step();
        world.succeed(adds(0));
        for n in 0..8 {
            sync(&mut world, &n.to_string());
        }
        assert_eq!(world.runs.len(), expected);
    }
}

#[test]
fn old_runs_go_by_age_at_their_time() {
    let mut world = keeping(100, Some("5m"));
    world.step();
    world.succeed(PlanSummary::default());
    sync(&mut world, "1");
    assert_eq!(world.runs.len(), 2);
    let decision = world.step();
    assert!(
        crate::world::wakes_at(decision.wake)
            .is_some_and(|at| at <= engine::later(world.now, Duration::from_secs(300)))
    );
    world.wait(&decision);
    world.step();
    assert_eq!(world.runs.len(), 1, "the newest plan stays at any age");
}

/// Six syncs whose runs take 100 bytes each, except for the first.
fn measured(max_bytes: Option<i64>, first: Option<u64>) -> World {
    let mut world = keeping(100, None);
    world.layer.spec.run_history_policy.as_mut().unwrap().max_bytes = max_bytes;
    world.step();
    world.succeed(PlanSummary::default());
    for n in 0..6 {
        sync(&mut world, &n.to_string());
    }
    world.sizes = world.runs.iter().map(|run| (run.metadata.uid.clone().unwrap(), 100)).collect();
    let oldest = world.runs.first().unwrap().metadata.uid.clone().unwrap();
    match first {
        Some(size) => world.sizes.insert(oldest, size),
        None => world.sizes.remove(&oldest),
    };
    world
}

#[test]
fn the_oldest_runs_go_until_the_rest_fits() {
    for (max_bytes, first, kept) in [
        (None, Some(100), 7),
        (Some(700), Some(100), 7),
        (Some(699), Some(100), 6),
        (Some(350), Some(100), 3),
        // What the layer rests on stays at any size.
        (Some(0), Some(100), 1),
        // A run that was not measured is not forgotten for its size.
        (Some(350), None, 4),
    ] {
        let mut world = measured(max_bytes, first);
        let newest = world.runs.last().unwrap().metadata.name.clone();
        world.step();
        assert_eq!(world.runs.len(), kept, "{max_bytes:?} {first:?}");
        assert_eq!(world.runs.last().unwrap().metadata.name, newest);
        assert!(world.step().effects.is_empty(), "after its effects nothing is wanted");
    }
}

#[test]
fn a_limit_of_the_repository_is_the_default_of_its_layers() {
    let mut world = measured(None, Some(100));
    world.repository.as_mut().unwrap().spec.run_history_policy =
        Some(RunHistoryPolicy { max_bytes: Some(250), ..RunHistoryPolicy::default() });
    assert_eq!(engine::layer::bytes_kept(&world.layer, world.repository.as_ref()), Some(250));
    world.step();
    assert_eq!(world.runs.len(), 2);
    world.layer.spec.run_history_policy.as_mut().unwrap().max_bytes = Some(1000);
    assert_eq!(engine::layer::bytes_kept(&world.layer, world.repository.as_ref()), Some(1000));
}

#[test]
fn a_layer_that_keeps_failing_keeps_its_pauses() {
    let mut world = keeping(0, None);
    for _ in 0..6 {
        world.step();
        assert_eq!(world.active_action(), Some(Action::Plan), "{:?}", world.status().why);
        world.fail("ToolFailed");
        let paused = world.step();
        assert!(world.active().is_none());
        world.pass(Duration::from_secs(60));
        world.step();
        assert!(world.active().is_none(), "the pause is forgotten with the runs: {:?}", world.status().why);
        assert!(world.runs.len() <= 2, "{}", world.runs.len());
        world.wait(&paused);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Forgetting changes nothing that is decided: a layer that keeps nothing does what one that keeps everything does.
    #[test]
    fn a_short_memory_decides_like_a_long_one(script in proptest::collection::vec((0_u8..5, 0_u8..3, 11_u32..4000), 1..40)) {
        let mut short = keeping(0, Some("10s"));
        let mut long = keeping(1000, None);
        for (turn, (what, n, pass)) in script.into_iter().enumerate() {
            // A text or commit that comes back after it was forgotten is news to a short memory, so none does.
            let commit = char::from(b"abcdef"[turn.min(5)]);
            for world in [&mut short, &mut long] {
                world.step();
                match what {
                    0 => world.push(commit),
                    1 => world.annotate(annotation::SYNC, &turn.to_string()),
                    2 if world.active().is_some() => world.succeed(adds(n.into())),
                    3 if world.active().is_some() => world.fail("ToolFailed"),
                    _ => {}
                }
                world.pass(Duration::from_secs(pass.into()));
                world.step();
                world.step();
            }
            prop_assert_eq!(&short.status().why, &long.status().why);
            prop_assert_eq!(short.status().state, long.status().state);
            let newest = |world: &World| world.runs.last().map(|run| run.metadata.name.clone());
            prop_assert_eq!(newest(&short), newest(&long));
        }
    }
}
