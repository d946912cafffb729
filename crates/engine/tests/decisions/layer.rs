//! What a layer needs next, in small worlds.

use std::time::Duration;

use crate::world::{World, adds, commit, world};
use api::approval::Decision as Word;
use api::condition;
use api::layer::LayerState;
use api::run::{Action, PlanSummary, RunState, TriggerKind};
use api::{TerraformLayerStatus, annotation};
use engine::Read;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::json;

/// What a person and the API would see after one decision.
struct Expect<'a> {
    state: LayerState,
    why: &'a str,
    starts: Option<Action>,
}

#[track_caller]
fn check(world: &mut World, expect: Expect<'_>) {
    let before = world.runs.len();
    let decision = world.step();
    let started = (world.runs.len() > before).then(|| world.runs.last().unwrap().spec.action);
    let why = decision.status.why.clone().unwrap_or_default();
    assert_eq!(decision.status.state, Some(expect.state), "{why}");
    assert!(why.contains(expect.why), "{why:?} should contain {:?}", expect.why);
    assert_eq!(started, expect.starts, "{why}");
}

fn ready(world: &World) -> String {
    let conditions = &world.layer.status.as_ref().unwrap().conditions;
    condition::find(conditions, "Ready").unwrap().status.clone()
}

#[test]
fn a_new_layer_is_planned() {
    let mut world = world();
    check(
        &mut world,
        Expect {
            state: LayerState::PlanNeeded,
            why: "new commit aaaaaaa touches db",
            starts: Some(Action::Plan),
        },
    );
    check(&mut world, Expect { state: LayerState::PlanNeeded, why: "planning aaaaaaa", starts: None });
    assert_eq!(ready(&world), "False");
}

#[test]
fn what_keeps_a_pod_from_starting_is_told_by_the_layer() {
    for (reason, stalled) in [("PodRefused", true), ("PodNotStarting", true), ("PodUnschedulable", false)] {
        let mut world = world();
        world.step();
        let now = world.now;
        let run = world.active().unwrap();
        let status = run.status.get_or_insert_default();
        status.state = Some(RunState::Running);
        let conditions = &mut status.conditions;
        condition::set(conditions, "Ready", condition::Truth::False, reason, "exceeded quota", None, now);
        let why = "planning aaaaaaa has to wait: exceeded quota";
        check(&mut world, Expect { state: LayerState::PlanNeeded, why, starts: None });
        let conditions = &world.status().conditions;
        assert_eq!(condition::find(conditions, "Ready").unwrap().reason, reason);
        assert_eq!(condition::find(conditions, "Stalled").is_some(), stalled, "{reason}");
        let status = world.active().unwrap().status.as_mut().unwrap();
        let conditions = &mut status.conditions;
        condition::set(conditions, "Ready", condition::Truth::False, "Running", "under way", None, now);
        check(&mut world, Expect { state: LayerState::PlanNeeded, why: "planning aaaaaaa", starts: None });
        assert!(condition::find(&world.status().conditions, "Stalled").is_none());
    }
}

#[test]
fn a_plan_without_changes_is_not_applied() {
    let mut world = world().auto_apply();
    world.step();
    world.succeed(PlanSummary::default());
    check(&mut world, Expect { state: LayerState::Idle, why: "in sync with aaaaaaa", starts: None });
    assert_eq!(ready(&world), "True");
}

#[test]
fn auto_apply_applies_the_plan_once() {
    let mut world = world().auto_apply();
    world.step();
    world.succeed(adds(2));
    check(
        &mut world,
        Expect { state: LayerState::ApplyNeeded, why: "2 to add", starts: Some(Action::Apply) },
    );
    let plan = world.plan_sha256();
    assert_eq!(world.runs.last().unwrap().spec.artifact.as_ref().unwrap().sha256, plan);
    world.succeed(adds(0));
    check(&mut world, Expect { state: LayerState::Idle, why: "in sync", starts: None });
}

#[test]
fn without_auto_apply_a_person_is_waited_for_and_only_this_plan_is_applied() {
    let mut world = world();
    world.step();
    world.succeed(adds(3));
    check(&mut world, Expect { state: LayerState::ApplyNeeded, why: "3 to add", starts: None });
    world.say(Word::Approve, &api::text::Sha256::of(b"another plan"));
    check(&mut world, Expect { state: LayerState::ApplyNeeded, why: "autoApply is off", starts: None });
    let plan = world.plan_sha256();
    world.say(Word::Approve, &plan);
    check(
        &mut world,
        Expect { state: LayerState::ApplyNeeded, why: "approved by jane", starts: Some(Action::Apply) },
    );
    assert_eq!(world.runs.last().unwrap().spec.trigger.by.as_deref(), Some("jane"));
}

#[test]
fn a_rejection_beats_an_approval_and_auto_apply() {
    let mut world = world().auto_apply();
    world.step();
    world.succeed(adds(1));
    let plan = world.plan_sha256();
    world.say(Word::Approve, &plan);
    world.say(Word::Reject, &plan);
    check(&mut world, Expect { state: LayerState::ApplyNeeded, why: "rejected by jane", starts: None });
}

#[test]
fn an_annotation_approves_by_digest() {
    let mut world = world();
    world.step();
    world.succeed(adds(1));
    let plan = world.plan_sha256();
    world.annotate(annotation::APPROVE, plan.as_str());
    check(
        &mut world,
        Expect { state: LayerState::ApplyNeeded, why: "author not proved", starts: Some(Action::Apply) },
    );
}

#[test]
fn a_failed_apply_is_followed_by_a_plan_after_a_pause_that_grows_and_never_by_itself() {
    let mut world = world().auto_apply().max_retries(2);
    world.step();
    world.succeed(adds(1));
    world.step();
    world.fail("ToolFailed");
    let mut pauses = Vec::new();
    for _ in 0..2 {
        let decision = world.step();
        assert!(decision.effects.is_empty());
        let at = crate::world::wakes_at(decision.wake).expect("a time for the next plan");
        pauses.push(at.duration_since(world.now).as_secs());
        world.now = at;
        check(
            &mut world,
            Expect { state: LayerState::PlanNeeded, why: "apply before failed", starts: Some(Action::Plan) },
        );
        assert_eq!(world.runs.last().unwrap().spec.trigger.kind, TriggerKind::Failure);
        world.succeed(adds(1));
        check(&mut world, Expect { state: LayerState::ApplyNeeded, why: "", starts: Some(Action::Apply) });
        world.fail("ToolFailed");
    }
    assert_eq!(pauses, [15, 30]);
    check(
        &mut world,
        Expect {
            state: LayerState::PlanNeeded,
            why: "gave up after 3 failed applies; a new commit or terrane sync ",
            starts: None,
        },
    );
    let conditions = &world.layer.status.as_ref().unwrap().conditions;
    assert!(condition::is_true(conditions, "Stalled"));
    let applied: Vec<_> =
        world.runs.iter().filter_map(|run| run.spec.artifact.as_ref().map(|a| a.sha256.clone())).collect();
    let distinct: std::collections::BTreeSet<_> = applied.iter().collect();
    assert_eq!(applied.len(), distinct.len(), "a plan was applied twice");
}

#[test]
fn plans_that_end_in_the_same_second_are_told_apart_by_the_commit_that_is_relevant_now() {
    // Names are hashes: among several commits some sort before the first and some after it.
    for letter in 'b'..='f' {
        let mut world = world();
        world.step();
        world.succeed(adds(1));
        world.push(letter);
        world.step();
        assert_eq!(world.active().unwrap().spec.layer.revision, commit(letter));
        world.succeed(adds(1));
        check(&mut world, Expect { state: LayerState::ApplyNeeded, why: "terrane approve db", starts: None });
    }
}

#[test]
fn a_commit_that_comes_back_after_it_was_overtaken_is_planned_at_once() {
    let mut world = world();
    world.step();
    world.push('b');
    world.fail("Superseded");
    world.step();
    assert_eq!(world.active().unwrap().spec.layer.revision, commit('b'));
    world.push('a');
    world.fail("Superseded");
    world.step();
    assert_eq!(world.active().expect("a plan of the commit that is back").spec.layer.revision, commit('a'));
}

#[test]
fn a_failed_plan_waits_for_a_commit_a_person_or_the_next_check() {
    let mut world = world();
    world.step();
    world.fail("ToolFailed");
    check(
        &mut world,
        Expect { state: LayerState::PlanNeeded, why: "it ended with ToolFailed", starts: None },
    );
    world.annotate(annotation::SYNC, "1");
    check(
        &mut world,
        Expect { state: LayerState::PlanNeeded, why: "asked for by hand", starts: Some(Action::Plan) },
    );
    world.fail("ToolFailed");
    world.step();
    world.pass(Duration::from_secs(3600));
    check(&mut world, Expect { state: LayerState::PlanNeeded, why: "", starts: Some(Action::Plan) });
    world.fail("ToolFailed");
    world.push('b');
    check(
        &mut world,
        Expect { state: LayerState::PlanNeeded, why: "new commit bbbbbbb", starts: Some(Action::Plan) },
    );
}

#[test]
fn one_sync_text_is_one_plan_even_when_history_forgets_it() {
    let mut world = world().annotated(annotation::SYNC, "now");
    check(
        &mut world,
        Expect { state: LayerState::PlanNeeded, why: "asked for by hand", starts: Some(Action::Plan) },
    );
    world.succeed(PlanSummary::default());
    check(&mut world, Expect { state: LayerState::Idle, why: "in sync", starts: None });
    world.annotate(annotation::SYNC, "again");
    check(
        &mut world,
        Expect { state: LayerState::PlanNeeded, why: "asked for by hand", starts: Some(Action::Plan) },
    );
    world.succeed(PlanSummary::default());
    world.step();
    let newest = world.runs.pop().unwrap();
    world.runs = vec![newest];
    check(&mut world, Expect { state: LayerState::Idle, why: "in sync", starts: None });
}

#[test]
fn a_branch_that_returns_to_an_old_commit_is_planned_again() {
    let mut world = world();
    for letter in ['a', 'b', 'a', 'b'] {
        world.push(letter);
        check(
            &mut world,
            Expect { state: LayerState::PlanNeeded, why: "new commit", starts: Some(Action::Plan) },
        );
        world.succeed(PlanSummary::default());
        world.pass(Duration::from_secs(1));
    }
}

#[test]
fn drift_is_looked_for_found_and_put_right() {
    let mut world = world().auto_apply();
    world.step();
    world.succeed(adds(1));
    world.step();
    world.succeed(adds(0));
    let idle = world.step();
    world.now = crate::world::wakes_at(idle.wake).expect("a next check");
    check(
        &mut world,
        Expect {
            state: LayerState::PlanNeeded,
            why: "older than the drift interval",
            starts: Some(Action::Plan),
        },
    );
    world.succeed(PlanSummary { change: 1, ..PlanSummary::default() });
    check(
        &mut world,
        Expect { state: LayerState::ApplyNeeded, why: "1 to change", starts: Some(Action::Apply) },
    );
    assert!(condition::is_true(&world.layer.status.as_ref().unwrap().conditions, "Drifted"));
    world.succeed(adds(0));
    check(&mut world, Expect { state: LayerState::Idle, why: "in sync", starts: None });
    assert!(!condition::is_true(&world.layer.status.as_ref().unwrap().conditions, "Drifted"));
}

#[test]
fn nothing_is_started_on_what_is_not_known() {
    let mut unseen = world();
    unseen.source = Read::Unknown;
    check(&mut unseen, Expect { state: LayerState::PlanNeeded, why: "looking at", starts: None });
    assert_eq!(ready(&unseen), "Unknown");
    let mut broken = world();
    broken.source = Read::Present(Err("branch main: no such branch or tag".into()));
    check(&mut broken, Expect { state: LayerState::PlanNeeded, why: "no such branch", starts: None });
    let mut orphan = world();
    orphan.repository = None;
    check(
        &mut orphan,
        Expect { state: LayerState::PlanNeeded, why: "repository db not found", starts: None },
    );
}

#[test]
fn a_moment_of_not_knowing_is_no_news() {
    let mut world = world();
    check(
        &mut world,
        Expect { state: LayerState::PlanNeeded, why: "new commit", starts: Some(Action::Plan) },
    );
    world.succeed(adds(0));
    check(&mut world, Expect { state: LayerState::Idle, why: "in sync", starts: None });
    let before = world.layer.status.clone();
    world.source = Read::Unknown;
    check(&mut world, Expect { state: LayerState::Idle, why: "in sync", starts: None });
    assert_eq!(world.layer.status, before);
}

#[test]
fn a_suspended_layer_starts_nothing() {
    let mut world = world();
    world.layer.spec.suspend = true;
    check(&mut world, Expect { state: LayerState::Idle, why: "suspended", starts: None });
}

#[derive(Debug, Clone)]
enum Happening {
    Commit(u8),
    Sync(u8),
    Pass(u32),
    Succeed(u8),
    Fail,
    Approve,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        (0_u8..3).prop_map(Happening::Commit),
        (0_u8..3).prop_map(Happening::Sync),
        (0_u32..5000).prop_map(Happening::Pass),
        (0_u8..3).prop_map(Happening::Succeed),
        Just(Happening::Fail),
        Just(Happening::Approve),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn settles_never_runs_two_at_once_and_never_applies_a_plan_twice(auto in any::<bool>(), happenings in proptest::collection::vec(happening(), 0..40)) {
        let mut world = if auto { world().auto_apply() } else { world() };
        for what in happenings {
            match what {
                Happening::Commit(n) => world.push(char::from(b'a' + n)),
                Happening::Sync(n) => world.annotate(annotation::SYNC, &n.to_string()),
                Happening::Pass(secs) => world.pass(Duration::from_secs(secs.into())),
                Happening::Succeed(n) => if world.active().is_some() { world.succeed(adds(n.into())) },
                Happening::Fail => if world.active().is_some() { world.fail("ToolFailed") },
                Happening::Approve => if world.runs.iter().any(|r| r.status.as_ref().is_some_and(|s| s.result.as_ref().is_some_and(|r| r.plan_sha256.is_some()))) {
                    let plan = world.plan_sha256();
                    world.say(Word::Approve, &plan);
                },
            }
            world.step();
            let again = world.decide();
            prop_assert!(again.effects.is_empty(), "wants more after its own effects: {:?}", again.effects);
            let active = world.runs.iter().filter(|r| !r.status.as_ref().and_then(|s| s.state).is_some_and(|s| s.is_terminal())).count();
            prop_assert!(active <= 1);
            let mut applied: Vec<_> = world.runs.iter().filter_map(|r| r.spec.artifact.as_ref().map(|a| a.sha256.clone())).collect();
            applied.sort();
            let count = applied.len();
            applied.dedup();
            prop_assert_eq!(count, applied.len());
            // A second look writes nothing new.
            world.step();
            let settled = world.layer.status.clone();
            world.step();
            prop_assert_eq!(settled, world.layer.status.clone());
        }
    }
}

#[test]
fn a_new_layer_says_nothing_until_its_commit_is_known_or_a_moment_has_passed() {
    for source in [Read::Unknown, Read::Absent] {
        let mut world = world();
        world.layer.metadata.creation_timestamp = Some(Time(world.now));
        world.source = source;
        let first = world.step();
        assert_eq!(first.status, TerraformLayerStatus::default(), "nothing to write");
        world.wait(&first);
        let later = world.step();
        let ready = condition::find(&later.status.conditions, "Ready").unwrap();
        assert_eq!(ready.status, "Unknown", "it is never silent for long");
        assert!(later.status.why.is_some());
    }
}

#[test]
fn a_layer_says_what_was_applied_and_no_more_what_would_be() {
    let mut world = world().auto_apply();
    world.step();
    world.succeed(adds(2));
    world.step();
    assert_eq!(world.status().last_result.as_deref(), Some("Plan: 2 to create, 0 to update, 0 to delete"));
    world.succeed(adds(0));
    world.step();
    assert_eq!(world.status().last_result.as_deref(), Some("Applied: 2 created, 0 updated, 0 deleted"));
    assert_eq!(world.status().state, Some(LayerState::Idle));
}

#[test]
fn a_run_between_two_attempts_is_not_told_as_running() {
    let mut world = world();
    world.step();
    assert_eq!(world.status().last_run.as_ref().unwrap().result, "running");
    let message = "failed once, trying again at 10:00:00 UTC: no such provider\nand a page of details";
    let conditions =
        vec![json!({ "type": "Ready", "status": "False", "reason": "ToolFailed", "message": message,
                                  "lastTransitionTime": "2026-01-01T00:00:00Z" })];
    let status = json!({ "state": "FailureGracePeriod", "conditions": conditions });
    world.active().unwrap().status = serde_json::from_value(status).unwrap();
    world.step();
    let told = &world.status().last_run.as_ref().unwrap().result;
    assert_eq!(told, "failed once, trying again at 10:00:00 UTC: no such provider");
}

#[test]
fn a_page_of_errors_becomes_a_sentence() {
    let mut world = world().auto_apply().max_retries(0);
    world.step();
    world.fail("ToolFailed");
    let page = format!("Error: {}because of that\n{}", "no ".repeat(200), "line\n".repeat(500));
    let run = world.runs.last_mut().unwrap();
    run.status.as_mut().unwrap().result.as_mut().unwrap().message = page.clone();
    world.step();
    let why = world.status().why.clone().unwrap();
    assert!(
        why.contains("Error: no no") && why.ends_with("because of that") && why.chars().count() < 340,
        "{why}"
    );

    world.source = Read::Present(Err(page));
    world.step();
    let why = world.status().why.clone().unwrap();
    assert!(!why.contains('\n') && why.chars().count() < 340, "{why}");
}
