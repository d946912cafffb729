//! What is said of a run in each of its states.

use api::attempt::Reason;
use api::condition;
use api::run::{Action, RunState};
use engine::Read;
use engine::queue::{Limit, Slot};

use crate::run::{Scene, scene};

/// The five that its users know, and the three of every object.
const CONDITIONS: [&str; 8] = [
    "HasStatus",
    "HasReachedRetryLimit",
    "HasSucceeded",
    "IsRunning",
    "IsInFailureGracePeriod",
    "Ready",
    "Reconciling",
    "Stalled",
];
const GENERATION: i64 = 4;

/// A letter for each: true, false, or not there.
#[track_caller]
fn check(scene: &Scene, state: RunState, truths: &str) {
    let status = scene.status();
    assert_eq!(status.state, Some(state));
    assert_eq!(status.observed_generation, Some(GENERATION));
    let letter = |kind| {
        let Some(found) = condition::find(&status.conditions, kind) else { return "-" };
        assert_eq!(found.observed_generation, Some(GENERATION), "{kind}");
        match found.status.as_str() {
            "True" => "T",
            "False" => "F",
            other => panic!("{kind} is {other}"),
        }
    };
    assert_eq!(CONDITIONS.map(letter).concat(), truths, "{state:?}: {CONDITIONS:?}");
}

fn full() -> Read<Slot> {
    Read::Present(Slot::Full(Limit::Overall { most: 1 }))
}

#[test]
fn each_state_of_a_run_has_its_conditions() {
    let mut run = scene(Action::Plan);
    run.run.metadata.generation = Some(GENERATION);
    run.run.spec.max_retries = 1;
    assert!(run.status().conditions.is_empty(), "nothing is said of what was not looked at");
    run.slot = full();
    run.step();
    check(&run, RunState::Initial, "TFFFFFT-");
    run.slot = Read::Present(Slot::Free);
    run.step();
    check(&run, RunState::Running, "TFFTFFT-");
    run.ends(Reason::ToolFailed);
    run.step();
    check(&run, RunState::FailureGracePeriod, "TFFFTFT-");
    run.now = engine::later(run.now, run.settings.retry.max);
    run.slot = full();
    run.outcome = Read::Unknown;
    run.step();
    check(&run, RunState::Retrying, "TFFFFFT-");
    run.slot = Read::Present(Slot::Free);
    run.step();
    check(&run, RunState::Running, "TFFTFFT-");
    run.ends(Reason::ToolFailed);
    run.step();
    check(&run, RunState::Failed, "TTFFFF-T");

    let mut good = scene(Action::Plan);
    good.run.metadata.generation = Some(GENERATION);
    good.step();
    good.ends(Reason::Succeeded);
    good.step();
    check(&good, RunState::Succeeded, "TFTFFT--");

    // It began to change things, so it is not tried again, whatever the limit.
    let mut apply = scene(Action::Apply);
    apply.run.metadata.generation = Some(GENERATION);
    apply.step();
    apply.step();
    apply.ends(Reason::ToolFailed);
    apply.step();
    check(&apply, RunState::Failed, "TFFFFF-T");
}
