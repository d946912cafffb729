//! When the world is looked at again, and what is done when it has moved.

use crate::world::{World, adds, by_hand, changes, world};
use api::condition;
use api::layer::{Drift, DriftMode, LayerState, OnDrift};
use api::run::{Action, Mode, PlanSummary, TriggerKind};
use std::time::Duration;

/// A layer that was applied, at the moment when its next look at the world is due.
fn due(world: World, drift: Drift) -> World {
    let mut world = world;
    world.layer.spec.drift = Some(drift);
    world.step();
    world.succeed(adds(1));
    world.step();
    if world.active().is_none() {
        let plan = world.plan_sha256();
        world.say(api::approval::Decision::Approve, &plan);
        world.step();
    }
    world.succeed(adds(0));
    let settled = world.step();
    assert_eq!(world.status().state, Some(LayerState::Idle), "{:?}", world.status().why);
    world.wait(&settled);
    world
}

fn drift(on_drift: Option<OnDrift>, mode: Option<DriftMode>) -> Drift {
    Drift { interval: None, mode, on_drift }
}

fn is_drifted(world: &World) -> bool {
    condition::is_true(&world.status().conditions, "Drifted")
}

fn last(world: &World) -> (Action, Mode) {
    let spec = &world.runs.last().unwrap().spec;
    (spec.action, spec.mode)
}

#[test]
fn the_default_follows_auto_apply() {
    for (start, starts_apply) in [(world().auto_apply(), true), (world(), false)] {
        let mut world = due(start, Drift::default());
        world.step();
        assert_eq!(last(&world), (Action::Plan, Mode::Normal));
        world.succeed_finding(changes(1), by_hand());
        world.step();
        assert!(is_drifted(&world));
        let action = last(&world).0;
        assert_eq!(action == Action::Apply, starts_apply, "{:?}", world.status().why);
    }
}

#[test]
fn reported_drift_waits_for_a_person_even_with_auto_apply() {
    let mut world = due(world().auto_apply(), drift(Some(OnDrift::Report), None));
    world.step();
    world.succeed_finding(changes(1), by_hand());
    world.step();
    let status = world.status();
    assert_eq!(status.state, Some(LayerState::ApplyNeeded));
    let why = status.why.clone().unwrap();
    assert_eq!(
        why,
        "drifted, local_file.motd differs in content; to decide: terrane drift db --revert or --accept"
    );
    let found = status.drift.clone().unwrap();
    assert_eq!((found.total, found.resources), (1, by_hand().resources));
    assert_eq!(condition::find(&status.conditions, "Ready").unwrap().status, "False");

    let plan = world.plan_sha256();
    world.say(api::approval::Decision::Approve, &plan);
    world.step();
    assert_eq!(last(&world), (Action::Apply, Mode::Normal));
    world.succeed(adds(0));
    world.step();
    assert!(!is_drifted(&world));
    assert_eq!(world.status().drift, None);
}

#[test]
fn new_code_is_no_drift_and_needs_its_own_permission() {
    let mut world = due(world(), drift(Some(OnDrift::Revert), None));
    world.push('b');
    world.step();
    world.succeed(changes(1));
    world.step();
    assert!(!is_drifted(&world));
    assert_eq!(world.status().state, Some(LayerState::ApplyNeeded));
    assert!(world.status().why.as_ref().unwrap().starts_with("autoApply is off"));
}

#[test]
fn drift_is_reverted_where_the_layer_says_so_though_new_code_waits() {
    let mut world = due(world(), drift(Some(OnDrift::Revert), None));
    world.step();
    world.succeed_finding(changes(1), by_hand());
    world.step();
    let apply = world.runs.last().unwrap();
    assert_eq!((apply.spec.action, apply.spec.trigger.kind), (Action::Apply, TriggerKind::Auto));
    assert_eq!(apply.spec.trigger.reason, "drift is reverted");
}

#[test]
fn accepted_drift_goes_into_the_state_and_changes_nothing_else() {
    let mut world = due(world().auto_apply(), drift(Some(OnDrift::Accept), None));
    world.step();
    assert_eq!(last(&world), (Action::Plan, Mode::RefreshOnly));
    world.succeed_finding(PlanSummary::default(), by_hand());
    world.step();
    assert!(is_drifted(&world));
    assert_eq!(last(&world), (Action::Apply, Mode::RefreshOnly));
    let plan = world.plan_sha256();
    assert_eq!(world.runs.last().unwrap().spec.artifact.as_ref().unwrap().sha256, plan);
    world.succeed(adds(0));
    let settled = world.step();
    assert_eq!(world.status().why.as_deref(), Some("in sync with aaaaaaa"));
    assert!(!is_drifted(&world));
    world.wait(&settled);
    world.step();
    assert_eq!(last(&world), (Action::Plan, Mode::RefreshOnly), "and it is looked for again");
}

#[test]
fn an_acceptance_that_fails_is_planned_anew_and_gives_up_like_any_apply() {
    let mut world = due(world().auto_apply().max_retries(0), drift(Some(OnDrift::Accept), None));
    world.step();
    world.succeed_finding(PlanSummary::default(), by_hand());
    world.step();
    world.fail("ToolFailed");
    let gave_up = world.step();
    assert!(world.status().why.as_ref().unwrap().starts_with("gave up after 1 failed applies"));
    world.wait(&gave_up);
    world.step();
    assert_eq!(last(&world), (Action::Plan, Mode::RefreshOnly));
}

#[test]
fn a_refreshing_look_reports_or_leads_to_a_plan_that_reverts() {
    let looks = Some(DriftMode::RefreshOnly);
    let mut reporting = due(world(), drift(None, looks));
    reporting.step();
    assert_eq!(last(&reporting), (Action::Plan, Mode::RefreshOnly));
    reporting.succeed_finding(PlanSummary::default(), by_hand());
    let told = reporting.step();
    assert_eq!(reporting.status().state, Some(LayerState::Idle));
    assert!(is_drifted(&reporting));
    assert!(reporting.active().is_none());
    reporting.wait(&told);
    reporting.step();
    assert_eq!(last(&reporting), (Action::Plan, Mode::RefreshOnly));
    reporting.succeed(PlanSummary::default());
    reporting.step();
    assert!(!is_drifted(&reporting), "it went away by itself");

    let mut reverting = due(world().auto_apply(), drift(None, looks));
    reverting.step();
    reverting.succeed_finding(PlanSummary::default(), by_hand());
    reverting.step();
    assert_eq!(last(&reverting), (Action::Plan, Mode::Normal));
    reverting.pass(Duration::from_secs(1));
    reverting.succeed_finding(changes(1), by_hand());
    reverting.step();
    assert_eq!(last(&reverting), (Action::Apply, Mode::Normal));
}

#[test]
fn the_repository_speaks_where_the_layer_is_silent() {
    let mut start = world();
    start.repository.as_mut().unwrap().spec.drift = Some(drift(Some(OnDrift::Revert), None));
    let mut world = due(start, Drift::default());
    world.step();
    world.succeed_finding(changes(1), by_hand());
    world.step();
    assert_eq!(last(&world).0, Action::Apply);
}

#[test]
fn looks_are_spread_by_the_layers_own_share() {
    let mut waits = Vec::new();
    for uid in ["00000000-layer", "80000000-layer", "ffffffff-layer"] {
        let mut start = world().auto_apply();
        start.layer.metadata.uid = Some(uid.into());
        let applied_at = start.now;
        let world = due(start, Drift::default());
        waits.push(world.now.duration_since(applied_at).as_secs());
    }
    assert_eq!(waits, [1800, 1890, 1980]);
}

#[test]
fn a_look_that_fails_is_repeated_at_the_next_check_only() {
    let mut world = due(world().auto_apply(), Drift::default());
    for _ in 0..3 {
        world.step();
        assert_eq!(world.active_action(), Some(Action::Plan));
        world.fail("ToolFailed");
        let paused = world.step();
        assert!(world.active().is_none(), "{:?}", world.status().why);
        assert!(condition::is_true(&world.status().conditions, "Stalled"));
        world.wait(&paused);
    }
}

/// Drift that was reported, and a look at it that a person asked for.
fn looked_at(start: World) -> World {
    let mut world = due(start, drift(Some(OnDrift::Report), None));
    world.step();
    world.succeed_finding(changes(1), by_hand());
    world.step();
    assert!(is_drifted(&world));
    world.pass(Duration::from_secs(1));
    world.annotate(api::annotation::LOOK, "one");
    world.step();
    assert_eq!(last(&world), (Action::Plan, Mode::RefreshOnly));
    assert_eq!(world.runs.last().unwrap().spec.trigger.kind, TriggerKind::Manual);
    world.pass(Duration::from_secs(1));
    world.succeed_finding(PlanSummary::default(), by_hand());
    world.step();
    assert_eq!(world.status().last_look.as_deref(), Some("one"));
    assert!(world.active().is_none(), "a look alone decides nothing: {:?}", world.status().why);
    assert!(is_drifted(&world));
    world
}

fn look_sha256(world: &World) -> api::text::Sha256 {
    let look = world.runs.iter().rev().find(|run| run.spec.mode == Mode::RefreshOnly).unwrap();
    look.status.as_ref().unwrap().result.as_ref().unwrap().plan_sha256.clone().unwrap()
}

fn accepted(start: World) -> World {
    let mut world = looked_at(start);
    let look = look_sha256(&world);
    world.say(api::approval::Decision::Approve, &look);
    world.step();
    assert_eq!(last(&world), (Action::Apply, Mode::RefreshOnly));
    let run = world.runs.last().unwrap();
    assert_eq!(run.spec.artifact.as_ref().unwrap().sha256, look);
    assert_eq!(run.spec.trigger.kind, TriggerKind::Approval);
    world.pass(Duration::from_secs(1));
    world.succeed(adds(0));
    world
}

#[test]
fn a_person_accepts_drift_by_the_bytes_of_a_look_and_it_stays_accepted_until_new_code() {
    let mut world = accepted(world().auto_apply());
    for _ in 0..12 {
        let settled = world.step();
        let status = world.status();
        assert_eq!(status.state, Some(LayerState::Idle));
        assert_eq!(
            status.why.as_deref(),
            Some("in sync with aaaaaaa, but for drift that was accepted"),
            "however much history was forgotten"
        );
        assert!(!is_drifted(&world));
        assert_eq!(status.drift, None);
        for kind in ["Ready", "IsApplyUpToDate"] {
            assert!(condition::is_true(&status.conditions, kind), "{kind}");
        }
        world.wait(&settled);
        world.step();
        assert_eq!(last(&world), (Action::Plan, Mode::RefreshOnly), "only what moves after it is looked for");
        world.pass(Duration::from_secs(1));
        world.succeed(PlanSummary::default());
    }
    world.step();
    world.push('b');
    world.step();
    assert_eq!(last(&world), (Action::Plan, Mode::Normal));
    world.pass(Duration::from_secs(1));
    world.succeed(changes(1));
    world.step();
    assert_eq!(last(&world), (Action::Apply, Mode::Normal), "new code is applied as ever");
}

#[test]
fn what_was_accepted_is_not_taken_back_without_a_person() {
    let mut world = accepted(world().auto_apply());
    world.layer.spec.drift = Some(drift(Some(OnDrift::Revert), None));
    let settled = world.step();
    world.wait(&settled);
    world.step();
    world.pass(Duration::from_secs(1));
    world.succeed_finding(PlanSummary::default(), by_hand());
    world.step();
    assert!(world.active().is_none(), "{:?}", world.status().why);
    assert!(is_drifted(&world), "something else moved");

    world.pass(Duration::from_secs(1));
    world.annotate(api::annotation::SYNC, "two");
    world.step();
    assert_eq!(last(&world), (Action::Plan, Mode::Normal));
    world.pass(Duration::from_secs(1));
    world.succeed_finding(changes(2), by_hand());
    world.step();
    assert!(world.active().is_none(), "{:?}", world.status().why);
    let plan = world.plan_sha256();
    world.say(api::approval::Decision::Approve, &plan);
    world.step();
    assert_eq!(last(&world), (Action::Apply, Mode::Normal));
    world.pass(Duration::from_secs(1));
    world.succeed(adds(0));
    let settled = world.step();
    assert_eq!(world.status().why.as_deref(), Some("in sync with aaaaaaa"));
    world.wait(&settled);
    world.step();
    assert_eq!(last(&world), (Action::Plan, Mode::Normal), "code and world are equal again");
}

#[test]
fn a_rejected_look_and_a_look_at_new_code_that_waits_are_not_accepted() {
    let mut rejected = looked_at(world());
    let look = look_sha256(&rejected);
    rejected.say(api::approval::Decision::Approve, &look);
    rejected.say(api::approval::Decision::Reject, &look);
    rejected.step();
    assert!(rejected.active().is_none());

    let mut waiting = due(world(), Drift::default());
    waiting.push('b');
    waiting.step();
    waiting.succeed(changes(1));
    waiting.step();
    waiting.pass(Duration::from_secs(1));
    waiting.annotate(api::annotation::LOOK, "one");
    waiting.step();
    waiting.pass(Duration::from_secs(1));
    waiting.succeed_finding(PlanSummary::default(), by_hand());
    waiting.step();
    let look = look_sha256(&waiting);
    waiting.say(api::approval::Decision::Approve, &look);
    waiting.step();
    assert!(waiting.active().is_none(), "the plan of the new code would be stale after it");
    assert_eq!(waiting.status().state, Some(LayerState::ApplyNeeded));
}

#[test]
fn a_look_that_only_refreshed_is_accepted_by_a_person_though_the_order_is_to_report_or_revert() {
    for order in [OnDrift::Report, OnDrift::Revert] {
        let mut world = due(world(), drift(Some(OnDrift::Report), Some(DriftMode::RefreshOnly)));
        world.step();
        world.succeed_finding(PlanSummary::default(), by_hand());
        world.step();
        let why = world.status().why.clone().unwrap();
        assert_eq!(
            why,
            "drifted, local_file.motd differs in content; to decide: terrane drift db --revert or --accept"
        );
        world.layer.spec.drift = Some(drift(Some(order), Some(DriftMode::RefreshOnly)));
        let look = look_sha256(&world);
        world.say(api::approval::Decision::Approve, &look);
        world.step();
        assert_eq!(last(&world), (Action::Apply, Mode::RefreshOnly));
        world.pass(Duration::from_secs(1));
        world.succeed(adds(0));
        world.step();
        assert_eq!(world.status().why.as_deref(), Some("in sync with aaaaaaa"));
    }
}
