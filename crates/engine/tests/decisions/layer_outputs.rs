//! What a layer needs and says where its outputs are to be written.

use crate::world::{World, adds, world};
use api::condition;
use api::run::{Action, Mode, PlanSummary, TriggerKind};
use engine::Wake;
use engine::layer::gives_outputs;
use engine::outputs::{Giver, Outcome, Refusal, Standing, asked, without_looking};
use serde_json::json;

fn applied(mut world: World) -> World {
    world.step();
    world.succeed(adds(1));
    world.step();
    assert_eq!(world.active_action(), Some(Action::Apply));
    world.succeed(PlanSummary::default());
    world
}

fn ask(world: &mut World) {
    world.layer.spec.write_outputs_to = serde_json::from_value(json!([{ "secret": "db" }])).unwrap();
    world.layer.metadata.generation = Some(2);
}

fn stand(world: &mut World, standing: Standing) {
    world.outputs = Outcome { places: asked(&world.layer), standing };
}

fn asking() -> World {
    let mut world = world().auto_apply();
    ask(&mut world);
    world.outputs = without_looking(&world.layer).unwrap();
    world
}

fn told(world: &World, kind: &str) -> (String, String) {
    let condition = condition::find(&world.status().conditions, kind).unwrap();
    (condition.status.clone(), condition.reason.clone())
}

fn pair(truth: &str, reason: &str) -> (String, String) {
    (truth.to_owned(), reason.to_owned())
}

#[test]
fn runs_keep_outputs_where_they_are_asked_for_and_the_newest_in_place_gives_them() {
    let mut world = asking();
    assert_eq!(gives_outputs(&world.observed()), Giver::Nobody);
    let first = world.step();
    assert_eq!(json!(first.status.output_targets), json!([{ "secret": "db" }]), "before anything is written");
    assert_eq!(first.wake, Wake::OnChange, "nothing is in place to be written");
    assert_eq!(told(&world, "OutputsWritten"), pair("False", "Waiting"));
    stand(&mut world, Standing::Waiting);
    assert_eq!(&world.decide().status, world.status(), "the second look says nothing new");
    world.succeed(adds(1));
    assert_eq!(gives_outputs(&world.observed()), Giver::Nobody, "a plan with changes is not in place");
    world.step();
    world.succeed(PlanSummary::default());
    assert!(world.runs.iter().all(|run| run.spec.outputs));
    let apply = world.runs.last().unwrap().metadata.clone();
    let giver = Giver::Run { name: apply.name.unwrap(), uid: apply.uid.unwrap(), attempt: 0 };
    assert_eq!(gives_outputs(&world.observed()), giver);
}

#[test]
fn what_a_script_printed_is_given_by_its_run_and_not_by_a_plan_that_found_it_done() {
    let mut world = applied(asking());
    let script = |world: &mut World, word: &str| {
        let status = world.runs.last_mut().unwrap().status.as_mut().unwrap();
        status.result.as_mut().unwrap().script = Some(api::text::Sha256::of(word.as_bytes()));
    };
    script(&mut world, "deploy");
    let apply = world.runs.last().unwrap().metadata.name.clone().unwrap();
    let giver = |world: &World| match gives_outputs(&world.observed()) {
        Giver::Run { name, .. } => name,
        other => panic!("{other:?}"),
    };
    assert_eq!(giver(&world), apply);
    for round in 0..8 {
        world.pass(std::time::Duration::from_secs(60));
        world.annotate(api::annotation::SYNC, &round.to_string());
        world.step();
        world.succeed(PlanSummary::default());
        script(&mut world, "deploy");
        world.step();
        assert_eq!(giver(&world), apply, "it is kept as long as it gives");
    }
    // Another script was never run: there is only what the tool says.
    script(&mut world, "another");
    assert_ne!(giver(&world), apply);
}

#[test]
fn a_layer_is_ready_when_its_outputs_are_written() {
    let mut world = applied(asking());
    stand(&mut world, Standing::Waiting);
    world.step();
    assert_eq!(told(&world, "Ready"), pair("False", "WritingOutputs"));
    stand(&mut world, Standing::Written("1 output in Secret db".to_owned()));
    world.step();
    assert_eq!(told(&world, "OutputsWritten"), pair("True", "Written"));
    assert_eq!(told(&world, "Ready").0, "True");
    // A look that failed takes nothing back.
    stand(&mut world, Standing::Unknown);
    assert_eq!(&world.decide().status, world.status());
    let refusal = Refusal { reason: "NotOurs", why: "Secret db is there already".to_owned() };
    stand(&mut world, Standing::Refused(refusal));
    let decision = world.step();
    assert_eq!(told(&world, "OutputsWritten"), pair("False", "NotOurs"));
    assert_eq!(told(&world, "Ready"), pair("False", "OutputsNotWritten"));
    assert!(condition::is_true(&decision.status.conditions, "Stalled"));
    assert!(decision.status.why.unwrap().contains("Secret db is there already"));
    assert!(matches!(decision.wake, Wake::At(_)), "drift is looked for all the same");
    stand(&mut world, Standing::Unknown);
    world.step();
    assert_eq!(told(&world, "Ready").0, "False", "nor gives it anything");
}

#[test]
fn a_layer_that_begins_to_ask_is_planned_once_and_no_more() {
    let mut world = applied(world().auto_apply());
    world.step();
    let runs = world.runs.len();
    assert_eq!(gives_outputs(&world.observed()), Giver::Forgetful);
    ask(&mut world);
    world.outputs = without_looking(&world.layer).unwrap();
    let decision = world.step();
    assert_eq!(decision.wake, Wake::At(world.now), "the status names the object now");
    assert_eq!(world.runs.len(), runs + 1);
    let plan = world.runs.last().unwrap();
    assert_eq!((plan.spec.trigger.kind, plan.spec.outputs), (TriggerKind::Outputs, true));
    world.succeed(PlanSummary::default());
    stand(&mut world, Standing::Refused(Refusal { reason: "OutputsUnknown", why: "none kept".to_owned() }));
    world.step();
    assert_eq!(world.runs.len(), runs + 1, "whatever came of it");
    world.layer.spec.write_outputs_to = Vec::new();
    world.outputs = Outcome { places: Default::default(), standing: Standing::NotAsked };
    world.step();
    assert!(condition::find(&world.status().conditions, "OutputsWritten").is_none());
    assert!(world.status().output_targets.is_empty());
    assert_eq!(told(&world, "Ready").0, "True");
}

#[test]
fn a_plan_that_waits_for_a_person_is_not_made_anew_and_its_apply_keeps_them() {
    let mut world = world();
    world.step();
    world.succeed(adds(1));
    world.step();
    ask(&mut world);
    stand(&mut world, Standing::Waiting);
    world.step();
    assert_eq!(world.active_action(), None);
    let sha256 = world.plan_sha256();
    world.say(api::approval::Decision::Approve, &sha256);
    world.step();
    let apply = world.runs.last().unwrap();
    assert_eq!((apply.spec.action, apply.spec.outputs), (Action::Apply, true));
}

#[test]
fn a_destroy_keeps_no_outputs_and_the_objects_stay_until_the_layer_is_gone() {
    let mut world = applied(asking());
    stand(&mut world, Standing::Written("1 output in Secret db".to_owned()));
    world.step();
    world.layer.spec.deletion_policy = Some(api::layer::DeletionPolicy::Destroy);
    world.delete();
    world.outputs = without_looking(&world.layer).unwrap();
    let decision = world.step();
    let plan = world.runs.last().unwrap();
    assert_eq!((plan.spec.mode, plan.spec.outputs), (Mode::Destroy, false));
    assert_eq!(json!(decision.status.output_targets), json!([{ "secret": "db" }]));
}
