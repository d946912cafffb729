//! What a layer needs when its path, its workspace or its tool changes, and the commit does not.

use crate::world::{World, adds, destroys, world};
use api::layer::{DeletionPolicy, LayerState, OnDrift};
use api::run::{Action, Mode, PlanSummary, TerraformRun, TriggerKind};
use serde_json::json;

fn last(world: &World) -> &TerraformRun {
    world.runs.last().unwrap()
}

/// In place, by a plan and an apply.
fn applied() -> World {
    let mut world = world().auto_apply();
    world.step();
    world.succeed(adds(1));
    world.step();
    world.succeed(PlanSummary::default());
    assert_eq!(world.step().status.state, Some(LayerState::Idle));
    world
}

/// A change of the layer or its repository, and what is said of it.
type Change = (fn(&mut World), &'static str);

/// Everything that counts.
fn changes() -> Vec<Change> {
    vec![
        (|world| world.layer.spec.path = "net".parse().unwrap(), "path from db to net"),
        (
            |world| world.layer.spec.workspace = Some("blue".parse().unwrap()),
            "workspace from default to blue",
        ),
        (
            |world| world.layer.spec.terraform = serde_json::from_value(json!({ "enabled": true })).unwrap(),
            "tool from what the code asks for to terraform",
        ),
        (
            |world| {
                let choice = json!({ "enabled": true, "version": "~> 1.9" });
                let repository = world.repository.as_mut().unwrap();
                repository.spec.opentofu = serde_json::from_value(choice).unwrap();
            },
            "tool from what the code asks for to tofu ~> 1.9",
        ),
        (
            |world| {
                world.layer.spec.terraform = serde_json::from_value(json!({ "version": "1.9.8" })).unwrap()
            },
            "tool from what the code asks for to version 1.9.8",
        ),
        (
            |world| {
                let repository = world.repository.as_mut().unwrap();
                repository.spec.terragrunt = serde_json::from_value(json!({ "enabled": true })).unwrap();
            },
            "terragrunt from where the code has it to on",
        ),
    ]
}

#[test]
fn another_path_workspace_or_tool_leads_to_a_plan_of_the_same_commit_that_says_what_changed() {
    for (change, words) in changes() {
        let mut world = applied();
        let runs = world.runs.len();
        change(&mut world);
        let decision = world.step();
        assert_eq!(world.runs.len(), runs + 1, "{words}");
        assert_eq!(last(&world).spec.trigger.kind, TriggerKind::Inputs, "{words}");
        let why = decision.status.why.unwrap();
        assert!(why.contains(&format!("the layer has changed: {words}")), "{why}");
        assert_eq!(decision.status.state, Some(LayerState::PlanNeeded));
        world.succeed(PlanSummary::default());
        assert_eq!(world.step().status.state, Some(LayerState::Idle), "{words}");
        assert_eq!(world.runs.len(), runs + 1, "it was planned once");
    }
}

#[test]
fn a_plan_that_waits_or_is_approved_is_not_applied_with_another_setup() {
    for (change, words) in changes() {
        let mut world = world();
        world.step();
        world.succeed(adds(1));
        assert_eq!(world.step().status.state, Some(LayerState::ApplyNeeded));
        world.say(api::approval::Decision::Approve, &world.plan_sha256());
        change(&mut world);
        world.step();
        assert_eq!(world.active_action(), Some(Action::Plan), "{words}");
        world.succeed(adds(1));
        world.step();
        assert!(
            world.runs.iter().all(|run| run.spec.action == Action::Plan),
            "{words}: nobody saw this plan"
        );
        world.say(api::approval::Decision::Approve, &world.plan_sha256());
        world.step();
        let plan = &world.runs[1].spec;
        assert_eq!(last(&world).spec.action, Action::Apply);
        assert_eq!(last(&world).spec.setup, plan.setup, "an apply has what its plan has");
    }
}

#[test]
fn what_was_planned_before_runs_said_so_is_not_planned_again() {
    let mut world = applied();
    for run in &mut world.runs {
        run.spec.setup = None;
    }
    let runs = world.runs.len();
    for (change, words) in changes() {
        change(&mut world);
        assert_eq!(world.step().status.state, Some(LayerState::Idle), "{words}");
        assert_eq!(world.runs.len(), runs);
    }
    let decision = world.decide();
    world.wait(&decision);
    world.step();
    assert_eq!(last(&world).spec.trigger.kind, TriggerKind::Drift, "it is looked at as ever");
    assert!(last(&world).spec.setup.is_some());
}

#[test]
fn a_path_is_the_same_with_a_slash_at_its_end() {
    let mut world = applied();
    let runs = world.runs.len();
    world.layer.spec.path = "db/".parse().unwrap();
    world.layer.spec.workspace = Some("default".parse().unwrap());
    world.layer.spec.terragrunt = serde_json::from_value(json!({})).unwrap();
    world.step();
    assert_eq!(world.runs.len(), runs);
}

#[test]
fn a_plan_that_failed_at_another_path_keeps_nobody_waiting() {
    let mut world = world().max_retries(0);
    world.layer.spec.path = "mistyped".parse().unwrap();
    world.step();
    world.fail("BadInput");
    assert!(world.step().status.why.unwrap().contains("the plan failed"));
    world.layer.spec.path = "db".parse().unwrap();
    world.step();
    assert_eq!(world.active_action(), Some(Action::Plan));
    world.fail("BadInput");
    // Back to the one that is known to fail.
    world.layer.spec.path = "mistyped".parse().unwrap();
    assert!(world.step().status.why.unwrap().contains("the plan failed"));
}

#[test]
fn what_another_tool_would_change_is_no_drift() {
    let mut world = applied();
    world.layer.spec.drift =
        Some(api::layer::Drift { on_drift: Some(OnDrift::Report), ..Default::default() });
    world.layer.spec.terraform = serde_json::from_value(json!({ "enabled": true })).unwrap();
    world.step();
    world.succeed(adds(1));
    let decision = world.step();
    assert_eq!(world.active_action(), Some(Action::Apply), "autoApply counts, as for new code");
    assert!(decision.status.drift.is_none());
}

#[test]
fn a_destroy_undoes_the_last_apply_where_that_was() {
    let mut world = applied();
    let before = world.runs[0].spec.setup.clone();
    assert!(before.is_some());
    for (change, _) in changes() {
        change(&mut world);
    }
    world.layer.spec.deletion_policy = Some(DeletionPolicy::Destroy);
    world.delete();
    world.step();
    assert_eq!((last(&world).spec.mode, &last(&world).spec.setup), (Mode::Destroy, &before));
    world.succeed(destroys(1));
    world.step();
    assert_eq!((last(&world).spec.action, &last(&world).spec.setup), (Action::Apply, &before));
}
