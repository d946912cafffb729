//! How a layer ends: its runs first, then its infrastructure where it says so, then itself.

use crate::world::{World, adds, commit, destroys, wakes_at, world};
use api::annotation;
use api::approval::Decision as Word;
use api::condition::{self, Truth};
use api::layer::DeletionPolicy;
use api::run::{Action, Mode, PlanSummary, TriggerKind};
use engine::Read;
use engine::layer::{Effect, Refusal};
use proptest::prelude::*;
use std::time::Duration;

/// A layer that was applied at commit `a` and is now being deleted.
fn deleted(policy: DeletionPolicy) -> World {
    let mut world = world().auto_apply();
    world.layer.spec.deletion_policy = Some(policy);
    world.step();
    world.succeed(adds(1));
    world.step();
    world.succeed(adds(0));
    world.step();
    world.pass(Duration::from_secs(60));
    world.delete();
    world
}

fn last(world: &World) -> (Action, Mode) {
    let spec = &world.runs.last().unwrap().spec;
    (spec.action, spec.mode)
}

fn why(world: &World) -> &str {
    world.status().why.as_deref().unwrap_or_default()
}

#[test]
fn the_finalizer_comes_before_the_first_run() {
    let mut world = world();
    let first = world.step();
    assert_eq!(first.effects[0], Effect::AddFinalizer);
    assert!(matches!(first.effects[1], Effect::CreateRun(_)));
    assert!(!world.decide().effects.contains(&Effect::AddFinalizer));
}

#[test]
fn by_default_the_infrastructure_stays_and_runs_go_with_the_layer() {
    let mut world = deleted(DeletionPolicy::Orphan);
    world.layer.spec.deletion_policy = None;
    world.step();
    assert!(world.gone);
    assert!(world.runs.is_empty());
}

#[test]
fn destroy_plans_applies_and_only_then_lets_go_without_repository_or_source() {
    let mut world = deleted(DeletionPolicy::Destroy);
    world.repository = None;
    world.source = Read::Absent;
    world.step();
    assert_eq!(last(&world), (Action::Plan, Mode::Destroy));
    let plan = world.runs.last().unwrap().clone();
    assert_eq!(plan.spec.trigger.kind, TriggerKind::Deletion);
    assert_eq!(plan.spec.layer.revision, commit('a'));
    assert!(plan.spec.bundle.is_some(), "the files of the last apply");
    world.succeed(destroys(1));
    world.step();
    assert_eq!(last(&world), (Action::Apply, Mode::Destroy));
    assert_eq!(world.runs.last().unwrap().spec.bundle, plan.spec.bundle);
    assert!(!world.gone);
    assert!(world.decide().effects.is_empty());
    assert_eq!(
        why(&world),
        "applying 0 to add, 0 to change, 1 to destroy: the layer is being deleted and its deletionPolicy is Destroy"
    );
    world.succeed(adds(0));
    world.step();
    assert!(world.gone);
}

#[test]
fn an_empty_state_needs_no_apply() {
    let mut world = deleted(DeletionPolicy::Destroy);
    world.step();
    world.succeed(PlanSummary::default());
    world.step();
    assert!(world.gone);
}

#[test]
fn a_run_at_work_is_waited_for_and_one_that_waits_itself_is_dropped() {
    for policy in [DeletionPolicy::Orphan, DeletionPolicy::Destroy] {
        let mut world = world().auto_apply();
        world.layer.spec.deletion_policy = Some(policy);
        world.step();
        world.succeed(adds(1));
        world.step();
        assert_eq!(world.active_action(), Some(Action::Apply));
        world.delete();
        world.step();
        assert!(!world.gone, "{policy:?}");
        assert_eq!(why(&world), "being deleted; waiting for the running apply to end");
        world.succeed(adds(0));
        world.step();
        assert_eq!(world.gone, policy == DeletionPolicy::Orphan);

        let mut early = crate::world::world();
        early.layer.spec.deletion_policy = Some(policy);
        early.step();
        early.delete();
        early.step();
        assert!(early.runs.is_empty(), "a plan that never began is dropped");
    }
}

#[test]
fn a_destroy_that_fails_keeps_the_layer_tries_again_and_can_be_overridden() {
    let mut world = deleted(DeletionPolicy::Destroy);
    world.layer.spec.remediation_strategy.as_mut().unwrap().on_error =
        serde_json::from_value(serde_json::json!({ "maxRetries": 1 })).unwrap();
    world.step();
    for round in 0..2 {
        world.succeed(destroys(1));
        world.step();
        assert_eq!(last(&world), (Action::Apply, Mode::Destroy));
        world.fail("ToolFailed");
        let paused = world.step();
        assert!(!world.gone);
        let stalled = condition::is_true(&world.status().conditions, "Stalled");
        assert_eq!(stalled, round == 1, "{}", why(&world));
        world.wait(&paused);
        if round == 0 {
            world.step();
            assert_eq!(last(&world), (Action::Plan, Mode::Destroy));
        }
    }
    assert!(why(&world).ends_with("set deletionPolicy to Orphan to let the layer go and keep what it made"));

    let mut again = deleted(DeletionPolicy::Destroy);
    again.step();
    again.fail("ToolFailed");
    again.step();
    assert!(condition::is_true(&again.status().conditions, "Stalled"));
    again.annotate(annotation::SYNC, "now");
    again.step();
    assert_eq!(last(&again), (Action::Plan, Mode::Destroy));
    again.fail("ToolFailed");
    again.step();
    again.layer.spec.deletion_policy = Some(DeletionPolicy::Orphan);
    again.step();
    assert!(again.gone);
}

#[test]
fn a_rejected_or_suspended_destroy_waits() {
    let mut rejected = deleted(DeletionPolicy::Destroy);
    rejected.step();
    rejected.succeed(destroys(1));
    let plan = rejected.plan_sha256();
    rejected.say(Word::Reject, &plan);
    rejected.step();
    assert!(why(&rejected).starts_with("the plan was rejected by jane"));
    assert_eq!(last(&rejected).0, Action::Plan);

    let mut suspended = deleted(DeletionPolicy::Destroy);
    suspended.layer.spec.suspend = true;
    suspended.step();
    assert!(why(&suspended).contains("suspended"));
    assert!(!suspended.gone);
}

#[test]
fn a_layer_that_was_never_seen_says_how_to_let_it_go() {
    let mut world = world();
    world.layer.spec.deletion_policy = Some(DeletionPolicy::Destroy);
    world.source = Read::Unknown;
    world.step();
    world.delete();
    world.step();
    assert!(!world.gone);
    assert!(why(&world).contains("no commit of it was ever seen"), "{}", why(&world));
    world.layer.spec.deletion_policy = Some(DeletionPolicy::Orphan);
    world.step();
    assert!(world.gone);
}

#[test]
fn deleted_in_the_foreground_its_runs_belong_to_nobody() {
    let mut world = deleted(DeletionPolicy::Destroy);
    world.layer.metadata.finalizers.as_mut().unwrap().push("foregroundDeletion".into());
    world.step();
    assert_eq!(world.runs.last().unwrap().metadata.owner_references, None);
}

#[test]
fn without_our_finalizer_nothing_is_done() {
    let mut world = deleted(DeletionPolicy::Destroy);
    world.layer.metadata.finalizers = Some(vec!["someone.else/holds".into()]);
    assert!(world.step().effects.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever fails and however long it takes: with Destroy the layer goes only after a destroy that succeeded or found
    /// nothing, and with Orphan none is ever started.
    #[test]
    fn the_infrastructure_goes_exactly_when_asked(
        destroy in any::<bool>(),
        script in proptest::collection::vec((any::<bool>(), 0_u32..3, 0_u32..5000), 1..40),
    ) {
        let mut world = deleted(if destroy { DeletionPolicy::Destroy } else { DeletionPolicy::Orphan });
        let mut destroyed = false;
        for (succeeds, count, pass) in script {
            let had = world.runs.clone();
            world.step();
            if world.gone {
                prop_assert!(destroyed || !destroy, "let go too early");
                break;
            }
            prop_assert!(destroy || had.iter().all(|run| run.spec.mode != Mode::Destroy));
            prop_assert!(world.decide().effects.is_empty());
            match world.active_action() {
                Some(Action::Plan) if succeeds => {
                    destroyed |= count == 0;
                    world.succeed(destroys(count));
                }
                Some(Action::Apply) if succeeds => {
                    destroyed = true;
                    world.succeed(adds(0));
                }
                Some(_) => world.fail("ToolFailed"),
                None => {}
            }
            world.pass(Duration::from_secs(pass.into()));
        }
    }
}

/// The layer's namespace takes nothing new.
fn terminating(mut world: World) -> World {
    world.refused = Some(Refusal::NamespaceTerminating);
    world
}

#[test]
fn a_destroy_that_a_terminating_namespace_refuses_says_why_and_how_to_get_out() {
    let mut world = terminating(deleted(DeletionPolicy::Destroy));
    // The namespace's end takes all but what is held.
    world.runs.clear();
    world.repository = None;
    let refused = world.step();
    assert!(world.runs.is_empty() && !world.gone);
    assert_eq!(
        why(&world),
        "namespace default is being deleted and takes no new run, so what the layer made cannot be destroyed; set deletionPolicy to \
         Orphan to let the layer go and keep what it made: its state stays, and the same layer made again can destroy it"
    );
    let ready = condition::find(&world.status().conditions, "Ready").unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "NamespaceTerminating"));
    assert!(condition::is_true(&world.status().conditions, "Stalled"));
    assert!(wakes_at(refused.wake).is_some(), "it is looked at again");
    // A later look wishes for the same again and says nothing new, whatever the answer.
    let said = world.status().clone();
    world.refused = None;
    world.wait(&refused);
    let again = world.decide();
    assert!(matches!(again.effects[..], [Effect::CreateRun(_)]));
    assert_eq!(again.status, said);
    world.refused = Some(Refusal::NamespaceTerminating);
    assert_eq!(world.decide().status, said);
    world.layer.spec.deletion_policy = Some(DeletionPolicy::Orphan);
    world.step();
    assert!(world.gone);
}

#[test]
fn in_a_terminating_namespace_an_apply_is_waited_for_and_nothing_follows_it() {
    let mut world = world().auto_apply();
    world.step();
    world.succeed(adds(1));
    world.step();
    assert_eq!(world.active_action(), Some(Action::Apply));
    // The namespace's end stops the pod first; the layer is not deleted yet, and would plan anew.
    world = terminating(world);
    world.fail("Interrupted");
    let paused = world.step();
    assert!(why(&world).starts_with("apply failed, planning anew at "), "{}", why(&world));
    world.wait(&paused);
    let runs = world.runs.len();
    world.step();
    assert_eq!(world.runs.len(), runs);
    assert_eq!(why(&world), "namespace default is being deleted and takes no new run");
    world.delete();
    world.step();
    assert!(world.gone, "Orphan asks for no run");
}

#[test]
fn a_deletion_that_waits_for_what_cannot_start_says_what_keeps_it() {
    let mut world = world().auto_apply();
    world.step();
    world.succeed(adds(1));
    world.step();
    let now = world.now;
    let apply = world.active().unwrap();
    let status = apply.status.get_or_insert_default();
    let message = "the API would not have pod db: exceeded quota: none";
    condition::set(&mut status.conditions, "Ready", Truth::False, "PodRefused", message, None, now);
    world.delete();
    world.step();
    assert_eq!(
        why(&world),
        "being deleted; waiting for the apply under way, which cannot go on and can be canceled: the API would not have pod db: exceeded \
         quota: none"
    );
}
