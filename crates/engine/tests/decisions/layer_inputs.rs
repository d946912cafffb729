//! What a layer needs when its variables or its environment change, or are not there.

use crate::world::{World, adds, destroys, world};
use api::condition;
use api::layer::{DeletionPolicy, LayerState};
use api::run::{Action, Mode, PlanSummary, RunResult, TerraformRun, TriggerKind};
use api::text::Sha256;
use engine::Read;
use serde_json::json;

fn given(word: &str) -> Read<Result<Option<Sha256>, String>> {
    Read::Present(Ok(Some(Sha256::of(word.as_bytes()))))
}

fn last(world: &World) -> &TerraformRun {
    world.runs.last().unwrap()
}

/// A layer whose commit is applied with the inputs `one`.
fn applied() -> World {
    applied_with("one")
}

fn applied_with(word: &str) -> World {
    let mut world = world().auto_apply();
    world.inputs = given(word);
    world.step();
    world.succeed(adds(1));
    world.step();
    assert_eq!(world.active_action(), Some(Action::Apply));
    world.succeed(PlanSummary::default());
    let decision = world.step();
    assert_eq!(decision.status.state, Some(LayerState::Idle));
    world
}

#[test]
fn runs_carry_the_digest_and_an_apply_that_of_its_plan() {
    let world = applied();
    let digest = Some(Sha256::of(b"one"));
    assert_eq!(world.status().inputs, digest);
    assert!(world.runs.iter().all(|run| run.spec.inputs == digest));
}

#[test]
fn other_inputs_lead_to_a_plan_of_the_same_commit_that_is_no_drift() {
    let mut world = applied();
    world.inputs = given("two");
    let decision = world.step();
    assert_eq!(last(&world).spec.trigger.kind, TriggerKind::Inputs);
    assert_eq!(last(&world).spec.layer.revision, world.runs[0].spec.layer.revision);
    assert!(
        decision.status.why.unwrap().contains("variables, environment, backend or arguments have changed")
    );
    world.succeed(adds(1));
    let decision = world.step();
    assert_eq!(world.active_action(), Some(Action::Apply), "autoApply counts, as for new code");
    assert!(decision.status.drift.is_none());
    assert!(!condition::is_true(&decision.status.conditions, "Drifted"));
    world.succeed(PlanSummary::default());
    assert_eq!(world.step().status.state, Some(LayerState::Idle));
    let runs = world.runs.len();
    // Back to what was there before: the world is not, so that is planned too.
    world.inputs = given("one");
    world.step();
    assert_eq!(world.runs.len(), runs + 1);
}

#[test]
fn runs_of_one_commit_that_end_in_the_same_second_are_told_apart_by_their_inputs() {
    // Names are hashes: of some of these pairs the first sorts before the second, of others behind it.
    let words = ["one", "two", "three", "four"];
    for (first, second) in words.iter().flat_map(|first| words.iter().map(move |second| (first, second))) {
        if first == second {
            continue;
        }
        let mut world = applied_with(first);
        world.inputs = given(second);
        world.step();
        world.succeed(adds(1));
        world.step();
        assert_eq!(world.active_action(), Some(Action::Apply), "{first}, {second}: the new plan is applied");
        assert_eq!(last(&world).spec.inputs, Some(Sha256::of(second.as_bytes())));
        world.succeed(PlanSummary::default());
        assert_eq!(world.step().status.state, Some(LayerState::Idle), "{first}, {second}");
        let runs = world.runs.len();
        // Back again, still within that second: what is there is the last that was applied.
        world.inputs = given(first);
        world.step();
        assert_eq!(world.runs.len(), runs + 1, "{first}, {second}: the former inputs are planned");
        assert_eq!(world.active_action(), Some(Action::Plan));
    }
}

#[test]
fn a_plan_that_waits_for_a_person_is_made_anew_when_the_inputs_change() {
    let mut world = world();
    world.inputs = given("one");
    world.step();
    world.succeed(adds(1));
    assert_eq!(world.step().status.state, Some(LayerState::ApplyNeeded));
    let approved = world.plan_sha256();
    world.say(api::approval::Decision::Approve, &approved);
    world.inputs = given("two");
    world.step();
    assert_eq!(world.active_action(), Some(Action::Plan), "the approved plan is of other inputs");
    assert_eq!(last(&world).spec.trigger.kind, TriggerKind::Inputs);
}

#[test]
fn a_plan_that_failed_with_other_inputs_keeps_nobody_waiting() {
    let mut world = world().max_retries(0);
    world.inputs = given("one");
    world.step();
    world.fail("ToolFailed");
    let decision = world.step();
    assert!(decision.status.why.unwrap().contains("the plan failed"));
    world.inputs = given("two");
    world.step();
    assert_eq!(world.active_action(), Some(Action::Plan));
}

#[test]
fn what_is_missing_is_told_and_the_layer_goes_on_when_it_is_there() {
    let mut world = world().auto_apply();
    world.inputs = Read::Present(Err("Secret db does not exist in this namespace".to_owned()));
    let decision = world.step();
    assert!(world.runs.is_empty());
    let ready = condition::find(&decision.status.conditions, "Ready").unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "InputsMissing"));
    assert_eq!(ready.message, "Secret db does not exist in this namespace");
    assert!(condition::is_true(&decision.status.conditions, "Stalled"));
    world.inputs = given("one");
    world.step();
    assert_eq!(world.active_action(), Some(Action::Plan));
}

#[test]
fn what_vanishes_after_the_apply_is_told_and_starts_nothing() {
    let mut world = applied();
    let runs = world.runs.len();
    world.inputs = Read::Present(Err("Secret db does not exist in this namespace".to_owned()));
    let decision = world.step();
    assert_eq!(world.runs.len(), runs);
    assert_eq!(decision.status.inputs, Some(Sha256::of(b"one")), "the last that is known");
    world.inputs = given("one");
    assert_eq!(world.step().status.state, Some(LayerState::Idle), "the same value came back");
    assert_eq!(world.runs.len(), runs);
    world.inputs = Read::Unknown;
    world.step();
    assert_eq!(world.runs.len(), runs, "unknown starts nothing");
}

/// Being deleted, with its infrastructure.
fn deleted(mut world: World) -> World {
    world.layer.spec.deletion_policy = Some(DeletionPolicy::Destroy);
    world.delete();
    world
}

fn missing() -> Read<Result<Option<Sha256>, String>> {
    Read::Present(Err("Secret db does not exist in this namespace".to_owned()))
}

#[test]
fn a_destroy_undoes_the_last_apply_with_what_that_was_given() {
    for now in [missing(), given("three"), Read::Present(Ok(None)), Read::Unknown] {
        let mut world = deleted(applied());
        let apply = world.runs.iter().find(|run| run.spec.action == Action::Apply).unwrap().clone();
        world.inputs = now;
        // Gone or not is all the same.
        world.repository = None;
        world.source = Read::Absent;
        world.layer.spec.backend = serde_json::from_value(json!({ "provider": "no-such-thing" })).unwrap();
        world.step();
        let plan = last(&world).clone();
        assert_eq!((plan.spec.action, plan.spec.mode), (Action::Plan, Mode::Destroy));
        assert_eq!(plan.spec.inputs, Some(Sha256::of(b"one")));
        let undone = plan.spec.undoes.clone().unwrap();
        assert_eq!((Some(&undone.run_uid), undone.attempt), (apply.metadata.uid.as_ref(), 0));
        assert_eq!(undone.state, plan.spec.state);
        world.succeed(destroys(1));
        world.step();
        let destroy = last(&world);
        assert_eq!((destroy.spec.action, destroy.spec.mode), (Action::Apply, Mode::Destroy));
        assert_eq!((&destroy.spec.inputs, &destroy.spec.undoes), (&plan.spec.inputs, &plan.spec.undoes));
        world.succeed(PlanSummary::default());
        world.step();
        assert!(world.gone);
    }
}

#[test]
fn a_state_that_is_kept_here_is_found_where_the_last_apply_left_it() {
    let mut world = applied();
    let before = world.runs[0].spec.state.clone();
    let planned = result(&mut world, Action::Plan);
    planned.state_identity = Some(api::backend::StateIdentity::kept_here(before.clone()));
    world.layer.spec.path = "elsewhere".parse().unwrap();
    let mut world = deleted(world);
    world.step();
    assert_eq!(last(&world).spec.state, before, "and not where the new path would lead");
    assert_eq!(last(&world).spec.undoes.as_ref().unwrap().state, before);
}

#[test]
fn a_destroy_that_failed_is_planned_again_with_the_same() {
    let mut world = deleted(applied());
    world.inputs = missing();
    world.step();
    world.succeed(destroys(1));
    world.step();
    world.fail("ToolFailed");
    let decision = world.step();
    world.wait(&decision);
    world.step();
    let again = last(&world);
    assert_eq!((again.spec.action, again.spec.mode), (Action::Plan, Mode::Destroy));
    assert_eq!(again.spec.inputs, Some(Sha256::of(b"one")));
    assert!(again.spec.undoes.is_some());
}

#[test]
fn who_asks_by_hand_destroys_with_what_the_layer_has_now() {
    let mut world = deleted(applied());
    world.step();
    world.fail("ToolFailed");
    world.step();
    world.inputs = given("put right");
    world.annotate(api::annotation::SYNC, "again");
    world.step();
    assert_eq!(last(&world).spec.inputs, Some(Sha256::of(b"put right")));
    assert_eq!(last(&world).spec.undoes, None);
    world.succeed(destroys(1));
    world.step();
    assert_eq!(last(&world).spec.inputs, Some(Sha256::of(b"put right")), "as its plan");

    let mut world = deleted(applied());
    world.inputs = missing();
    world.annotate(api::annotation::SYNC, "again");
    world.step();
    assert_eq!(last(&world).spec.inputs, Some(Sha256::of(b"one")), "as far as it can be had");
    assert!(last(&world).spec.undoes.is_some());
}

#[test]
fn a_layer_that_was_never_applied_waits_for_what_is_missing_and_says_how_to_go_without() {
    let mut world = world();
    world.inputs = given("one");
    world.step();
    world.succeed(adds(1));
    world.step();
    let mut world = deleted(world);
    world.inputs = missing();
    let why = world.step().status.why.unwrap();
    assert!(why.starts_with("Secret db does not exist"), "{why}");
    assert!(why.ends_with("set deletionPolicy to Orphan to let the layer go and keep what it made"), "{why}");
    assert!(!world.gone);
    world.inputs = given("three");
    world.step();
    assert_eq!(last(&world).spec.mode, Mode::Destroy);
    assert_eq!((&last(&world).spec.inputs, &last(&world).spec.undoes), (&Some(Sha256::of(b"three")), &None));
}

/// The result of the newest run of an action.
fn result(world: &mut World, action: Action) -> &mut RunResult {
    let run = world.runs.iter_mut().rev().find(|run| run.spec.action == action).unwrap();
    run.status.as_mut().unwrap().result.as_mut().unwrap()
}

#[test]
fn what_hooks_printed_and_which_script_was_run_is_told() {
    let mut world = applied();
    let hook = json!({ "afterApply": [{ "inline": "x", "outputTo": "kept" }] });
    world.layer.spec.hooks = serde_json::from_value(hook).unwrap();
    let script = Some(Sha256::of(b"script"));
    let printed = result(&mut world, Action::Apply);
    printed.script = script.clone();
    printed.hook_outputs = [("kept".to_owned(), json!({ "a": 1 })), ("unasked".to_owned(), json!({}))].into();
    world.step();
    assert_eq!(world.status().script, script);
    assert_eq!(json!(world.status().hook_outputs), json!({ "kept": { "a": 1 } }));
    world.runs.clear();
    world.step();
    assert_eq!(json!(world.status().hook_outputs), json!({ "kept": { "a": 1 } }), "the status remembers");
    assert_eq!(world.status().script, script);
}

#[test]
fn a_script_to_run_is_a_change_that_waits_for_a_word() {
    let mut world = world();
    world.step();
    world.succeed(PlanSummary { scripts: 1, ..PlanSummary::default() });
    let decision = world.step();
    assert_eq!(decision.status.state, Some(LayerState::ApplyNeeded));
    assert!(decision.status.why.unwrap().contains("a script to run: terrane approve"));
    assert_eq!(decision.status.last_result.as_deref(), Some("Plan: a script to run"));
}
