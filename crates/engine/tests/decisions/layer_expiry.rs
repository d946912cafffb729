//! How long a plan may be applied, and what becomes of one that is older.

use crate::world::{World, adds, by_hand, changes, commit, destroys, world};
use api::approval::Decision as Word;
use api::condition;
use api::layer::{DeletionPolicy, Drift, LayerState, OnDrift};
use api::run::{Action, Mode, PlanSummary, TerraformRunSpec, TriggerKind};
use engine::later;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A layer that is looked at once a week: its plans expire before they are made anew anyway.
fn weekly(mut world: World) -> World {
    world.layer.spec.drift = Some(Drift { interval: Some("168h".parse().unwrap()), ..Drift::default() });
    world
}

/// The same, with a plan that has just been made and has not been looked at.
fn planned(world: World) -> World {
    let mut world = weekly(world);
    world.step();
    world.succeed(adds(1));
    world
}

fn last(world: &World) -> &TerraformRunSpec {
    &world.runs.last().unwrap().spec
}

fn applies(world: &World) -> usize {
    world.runs.iter().filter(|run| run.spec.action == Action::Apply).count()
}

fn answer(world: &World, at: usize) -> Option<&str> {
    let status = world.approvals[at].status.as_ref()?;
    Some(condition::find(&status.conditions, "Ready")?.reason.as_str())
}

#[test]
fn a_fresh_plan_is_applied_and_its_apply_says_until_when() {
    let mut world = planned(world());
    let made = world.now;
    let waiting = world.step();
    let plan = waiting.status.plan.as_ref().unwrap();
    assert_eq!(plan.expires, Some(Time(later(made, DAY))));
    let why = waiting.status.why.unwrap();
    assert!(why.ends_with("terrane approve db, before 2027-01-16 08:00 UTC"), "{why}");
    world.pass(DAY - Duration::from_secs(1));
    world.say(Word::Approve, &world.plan_sha256());
    let decision = world.step();
    assert_eq!(last(&world).action, Action::Apply);
    assert_eq!(last(&world).artifact.as_ref().unwrap().expires, Some(Time(later(made, DAY))));
    assert_eq!(decision.status.plan.unwrap().expires, None, "nobody waits for it any more");
}

#[test]
fn what_the_administrator_says_counts() {
    let mut world = planned(world().auto_apply());
    world.settings.plan_expiry = HOUR;
    world.pass(HOUR);
    world.step();
    assert_eq!(last(&world).action, Action::Plan);
}

#[test]
fn an_expired_plan_is_made_anew_where_it_would_be_applied_by_itself() {
    let mut world = planned(world().auto_apply());
    world.pass(DAY);
    let decision = world.step();
    assert_eq!((last(&world).action, last(&world).trigger.kind), (Action::Plan, TriggerKind::Drift));
    let why = decision.status.why.unwrap();
    let expected = "the plan before expired at 2027-01-16 08:00 UTC and was not applied (autoApply is on)";
    assert!(why.ends_with(expected), "{why}");
    world.succeed(adds(1));
    world.step();
    assert_eq!(last(&world).action, Action::Apply);
    assert_eq!((world.runs.len(), applies(&world)), (3, 1), "once, and only the new one is applied");
}

#[test]
fn an_approval_of_an_expired_plan_leads_to_a_new_plan_that_waits_for_a_word_of_its_own() {
    let mut world = planned(world());
    world.step();
    world.pass(DAY);
    world.say(Word::Approve, &world.plan_sha256());
    world.step();
    assert_eq!(last(&world).action, Action::Plan);
    assert!(last(&world).trigger.reason.ends_with("(approved by jane)"));
    assert_eq!(answer(&world, 0), Some("PlanExpired"));
    world.succeed(adds(1));
    assert_eq!(world.step().status.state, Some(LayerState::ApplyNeeded));
    world.step();
    assert_eq!(answer(&world, 0), Some("PlanExpired"), "why it came to nothing stays");
    assert_eq!(
        (world.runs.len(), applies(&world)),
        (2, 0),
        "what was said of the old one is not for this one"
    );
    world.say(Word::Approve, &world.plan_sha256());
    world.step();
    assert_eq!(applies(&world), 1);
}

#[test]
fn the_same_by_the_annotation() {
    let mut world = planned(world());
    world.annotate(api::annotation::APPROVE, world.plan_sha256().as_str());
    world.pass(DAY);
    world.step();
    world.succeed(adds(1));
    world.step();
    assert_eq!((world.runs.len(), applies(&world)), (2, 0));
}

#[test]
fn a_plan_that_expires_while_it_waits_is_told_and_made_anew_at_the_next_look() {
    let mut world = planned(world());
    let waiting = world.step();
    world.wait(&waiting);
    let expired = world.step();
    let ready = condition::find(&expired.status.conditions, "Ready").unwrap();
    assert_eq!(ready.reason, "PlanExpired");
    assert!(
        ready.message.starts_with("the plan expired at 2027-01-16 08:00 UTC and is not applied any more")
    );
    assert!(ready.message.contains("terrane sync db makes another"), "{}", ready.message);
    assert_eq!(world.runs.len(), 1, "nobody asked for another");
    assert_eq!(world.decide().status, expired.status, "it is said once");
    world.wait(&expired);
    assert!(world.now > later(waiting.status.plan.unwrap().made_at.0, 7 * DAY - HOUR));
    world.step();
    assert_eq!((last(&world).action, last(&world).trigger.kind), (Action::Plan, TriggerKind::Drift));
}

#[test]
fn a_plan_that_is_made_anew_before_it_expires_says_nothing_of_that() {
    let mut world = world();
    world.step();
    world.succeed(adds(1));
    let waiting = world.step();
    let why = waiting.status.why.clone().unwrap();
    assert!(why.ends_with("terrane approve db"), "{why}");
    world.wait(&waiting);
    assert!(world.now < later(waiting.status.plan.unwrap().made_at.0, HOUR));
    world.step();
    assert_eq!(last(&world).trigger.kind, TriggerKind::Drift);
}

#[test]
fn a_rejected_plan_stays_rejected_however_old_it_is() {
    let mut world = planned(world().auto_apply());
    world.say(Word::Reject, &world.plan_sha256());
    let decision = world.step();
    world.pass(2 * DAY);
    assert_eq!(world.step().status.conditions, decision.status.conditions);
    assert_eq!(world.runs.len(), 1);
}

#[test]
fn a_clock_that_jumps_makes_no_more_than_one_plan() {
    // Forth, for good.
    let mut world = planned(world().auto_apply());
    world.pass(1000 * DAY);
    world.step();
    world.succeed(adds(1));
    world.step();
    assert_eq!((world.runs.len(), applies(&world)), (3, 1));

    // Back: it was made in the future, and nothing says that it is old.
    let mut world = planned(self::world().auto_apply());
    world.now = world.now.checked_sub(jiff::SignedDuration::from_hours(72)).unwrap();
    world.step();
    assert_eq!((world.runs.len(), applies(&world)), (2, 1));
}

#[test]
fn a_runner_whose_clock_is_late_makes_plans_that_can_be_applied() {
    let mut world = planned(world().auto_apply());
    let status = world.runs[0].status.as_mut().unwrap();
    let late = world.now.checked_sub(jiff::SignedDuration::from_hours(72)).unwrap();
    status.finished_at = Some(Time(late));
    status.attempts[0].finished_at = Some(Time(late));
    world.step();
    assert_eq!((world.runs.len(), applies(&world)), (2, 1));
}

#[test]
fn drift_that_was_found_long_ago_is_looked_for_again_before_it_is_accepted() {
    let mut world = weekly(world().auto_apply());
    world.layer.spec.drift.as_mut().unwrap().on_drift = Some(OnDrift::Accept);
    world.step();
    world.succeed(adds(1));
    world.step();
    world.succeed(PlanSummary::default());
    let settled = world.step();
    world.wait(&settled);
    world.step();
    world.succeed_finding(changes(0), by_hand());
    world.pass(DAY);
    world.step();
    assert_eq!((last(&world).action, last(&world).mode), (Action::Plan, Mode::RefreshOnly));
    world.succeed_finding(changes(0), by_hand());
    world.step();
    assert_eq!((last(&world).action, last(&world).mode), (Action::Apply, Mode::RefreshOnly));
}

#[test]
fn a_destroy_that_was_planned_long_ago_is_planned_again() {
    let mut world = planned(world().auto_apply());
    world.step();
    world.succeed(PlanSummary::default());
    world.step();
    world.layer.spec.deletion_policy = Some(DeletionPolicy::Destroy);
    world.delete();
    world.step();
    world.succeed(destroys(1));
    world.layer.spec.suspend = true;
    world.step();
    world.pass(3 * DAY);
    world.layer.spec.suspend = false;
    world.step();
    assert_eq!((last(&world).action, last(&world).mode), (Action::Plan, Mode::Destroy));
    assert_eq!(last(&world).layer.revision, commit('a'));
    world.succeed(destroys(1));
    world.step();
    assert_eq!((last(&world).action, last(&world).mode), (Action::Apply, Mode::Destroy));
}
