//! What is said of a layer in each of its states.

use api::condition;
use api::layer::LayerState;
use api::run::PlanSummary;
use engine::Read;

use crate::world::{World, adds, changes, world};

/// The three that its users know, and the three of every object.
const CONDITIONS: [&str; 6] = [
    "IsPlanArtifactUpToDate",
    "IsApplyUpToDate",
    "IsLastRelevantCommitPlanned",
    "Ready",
    "Reconciling",
    "Stalled",
];
const GENERATION: i64 = 7;

/// A letter for each: true, false, unknown, or not there.
#[track_caller]
fn check(world: &mut World, when: &str, state: LayerState, truths: &str) {
    world.layer.metadata.generation = Some(GENERATION);
    world.step();
    let status = world.status();
    let why = status.why.as_deref().unwrap_or_default();
    assert_eq!(status.state, Some(state), "{when}: {why}");
    assert_eq!(status.observed_generation, Some(GENERATION), "{when}");
    let letter = |kind| {
        let Some(found) = condition::find(&status.conditions, kind) else { return "-" };
        assert_eq!(found.observed_generation, Some(GENERATION), "{when}: {kind}");
        match found.status.as_str() {
            "True" => "T",
            "False" => "F",
            "Unknown" => "U",
            other => panic!("{kind} is {other}"),
        }
    };
    assert_eq!(CONDITIONS.map(letter).concat(), truths, "{when}: {why}: {CONDITIONS:?}");
}

#[test]
fn each_state_of_a_layer_has_its_conditions() {
    let mut unseen = world();
    unseen.source = Read::Unknown;
    check(&mut unseen, "its commit is not known", LayerState::PlanNeeded, "FFFU--");

    let mut broken = world();
    broken.source = Read::Present(Err("branch main: no such branch or tag".into()));
    check(&mut broken, "its branch is not there", LayerState::PlanNeeded, "FFFF-T");

    let mut world = world();
    check(&mut world, "it is planned", LayerState::PlanNeeded, "FFFFT-");
    world.succeed(adds(1));
    check(&mut world, "a person is waited for", LayerState::ApplyNeeded, "TFTF--");
    let mut world = world.auto_apply().max_retries(0);
    check(&mut world, "it is applied", LayerState::ApplyNeeded, "TFTFT-");
    world.succeed(adds(0));
    check(&mut world, "it is in place", LayerState::Idle, "TTTT--");
    let idle = world.decide();
    world.wait(&idle);
    check(&mut world, "its plan is older than the drift interval", LayerState::PlanNeeded, "FTTFT-");
    world.succeed(PlanSummary::default());
    check(&mut world, "nothing drifted", LayerState::Idle, "TTTT--");
    world.push('b');
    check(&mut world, "a commit came", LayerState::PlanNeeded, "FTFFT-");
    world.succeed(changes(1));
    check(&mut world, "the commit changes something", LayerState::ApplyNeeded, "TFTFT-");
    world.fail("ToolFailed");
    check(&mut world, "its apply failed for good", LayerState::PlanNeeded, "FFTF-T");
    world.push('c');
    check(&mut world, "the next commit", LayerState::PlanNeeded, "FFFFT-");
    world.fail("ToolFailed");
    check(&mut world, "its plan failed", LayerState::PlanNeeded, "FFFF-T");
    world.layer.spec.suspend = true;
    check(&mut world, "it is suspended as it is", LayerState::PlanNeeded, "FFFF--");
}
