//! What becomes of people's words on plans.

use crate::world::{World, adds, world};
use api::approval::Decision as Word;
use api::condition;
use api::text::Sha256;
use engine::layer::Effect;

/// A layer whose plan waits for a person.
fn planned() -> World {
    let mut world = world();
    world.step();
    world.succeed(adds(1));
    world.step();
    world
}

/// Status, reason and message of the condition `Ready` of one approval.
fn answer(world: &World, at: usize) -> Option<(&str, &str, &str)> {
    let status = world.approvals[at].status.as_ref()?;
    let ready = condition::find(&status.conditions, "Ready")?;
    Some((ready.status.as_str(), ready.reason.as_str(), ready.message.as_str()))
}

fn answers_of(world: &World) -> usize {
    world.decide().effects.iter().filter(|effect| matches!(effect, Effect::AnswerApproval(_))).count()
}

#[test]
fn an_approval_is_ready_with_the_apply_that_it_allows_and_stays_so() {
    let mut world = planned();
    let plan = world.plan_sha256();
    world.say(Word::Approve, &plan);
    world.step();
    let apply = world.runs.last().unwrap().metadata.name.clone().unwrap();
    assert_eq!(answer(&world, 0), Some(("True", "Applied", &*format!("the plan is applied by run {apply}"))));
    assert_eq!(answers_of(&world), 0, "one write");
    world.succeed(adds(0));
    world.step();
    world.push('b');
    world.step();
    world.runs.retain(|run| run.spec.artifact.is_none());
    assert_eq!(answers_of(&world), 0, "what has had its effect is not answered anew");
}

#[test]
fn an_apply_that_is_there_answers_a_word_that_no_controller_lived_to_answer() {
    let mut world = planned();
    let plan = world.plan_sha256();
    world.say(Word::Approve, &plan);
    world.step();
    world.approvals[0].status = None;
    world.step();
    assert_eq!(answer(&world, 0).map(|(status, reason, _)| (status, reason)), Some(("True", "Applied")));
}

#[test]
fn a_word_on_a_plan_that_is_gone_says_where_the_newest_is() {
    let mut world = planned();
    let old = world.plan_sha256();
    world.push('b');
    world.step();
    world.say(Word::Approve, &old);
    world.step();
    assert_eq!(answer(&world, 0), None, "as long as it is the newest that there is");
    world.succeed(adds(2));
    world.step();
    let message = "layer db has another plan by now, or none; its newest is shown by: terrane diff db";
    assert_eq!(answer(&world, 0), Some(("False", "PlanGone", message)));
    assert!(condition::is_true(&world.approvals[0].status.as_ref().unwrap().conditions, "Stalled"));
    world.say(Word::Reject, &Sha256::of(b"never made"));
    world.step();
    assert_eq!(answer(&world, 1), Some(("False", "PlanGone", message)));
    assert_eq!(answers_of(&world), 0);
}

#[test]
fn a_rejection_is_ready_at_once_and_an_approval_beside_it_says_whose_it_is() {
    let mut world = planned();
    let plan = world.plan_sha256();
    world.say(Word::Reject, &plan);
    world.say(Word::Approve, &plan);
    world.step();
    assert_eq!(answer(&world, 0), Some(("True", "Rejected", "the plan is not applied")));
    assert_eq!(answer(&world, 1), Some(("False", "Rejected", "the plan was rejected by jane")));
    world.approvals.remove(0);
    world.step();
    assert_eq!(answer(&world, 0).map(|(status, reason, _)| (status, reason)), Some(("True", "Applied")));
    let conditions = &world.approvals[0].status.as_ref().unwrap().conditions;
    assert!(!condition::is_true(conditions, "Stalled"));
}

#[test]
fn a_rejection_after_the_apply_has_begun_is_too_late() {
    let mut world = planned().auto_apply();
    world.step();
    let plan = world.plan_sha256();
    world.say(Word::Reject, &plan);
    world.step();
    assert_eq!(answer(&world, 0).map(|(status, reason, _)| (status, reason)), Some(("False", "TooLate")));
}

#[test]
fn a_word_that_may_yet_have_its_effect_waits() {
    let mut world = planned();
    let plan = world.plan_sha256();
    world.layer.spec.suspend = true;
    world.say(Word::Approve, &plan);
    world.step();
    assert_eq!(answer(&world, 0), None);
    world.layer.spec.suspend = false;
    world.step();
    assert_eq!(answer(&world, 0).map(|(status, ..)| status), Some("True"));
}
