//! What a layer says of a branch that was rewritten or is gone, and that nothing is taken away for it.

use api::condition;
use api::layer::LayerState;
use api::run::{Action, PlanSummary};
use api::text::CommitId;
use engine::news;
use serde_json::json;

use crate::world::{World, adds, commit, world};

/// What is said of the branch after one decision: the reason, and whether it is news.
fn told(world: &mut World) -> (Option<String>, bool) {
    let before = world.layer.status.clone().unwrap_or_default().conditions;
    world.step();
    let after = &world.status().conditions;
    let found = condition::find(after, "IsBranchIntact");
    let is_news = news::lost(&before, after).count() > 0;
    (found.map(|told| format!("{} {}: {}", told.status, told.reason, told.message)), is_news)
}

fn in_place() -> World {
    let mut world = world().auto_apply();
    world.step();
    world.succeed(adds(1));
    world.step();
    world.succeed(adds(0));
    world.step();
    assert_eq!(world.status().state, Some(LayerState::Idle));
    world
}

fn moves(world: &mut World, letter: char, left: Option<CommitId>) {
    world.push(letter);
    let engine::Read::Present(Ok(source)) = &mut world.source else { panic!("a source") };
    source.left = left;
}

/// What the repository says of its branch.
fn branch_is(world: &mut World, missing: bool, unreadable: bool) {
    let sync = if missing { "failed" } else { "success" };
    let failed = if unreadable { "True" } else { "False" };
    let status = json!({
        "branches": [{ "name": "main", "latestRev": "a".repeat(40), "lastSyncStatus": sync }],
        "conditions": [{ "type": "HasLastSyncFailed", "status": failed, "reason": "X", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" }],
    });
    world.repository.as_mut().unwrap().status = Some(serde_json::from_value(status).unwrap());
}

#[test]
fn a_rewritten_branch_is_told_once_planned_as_any_other_and_forgotten_when_it_goes_on() {
    let mut world = in_place();
    moves(&mut world, 'b', Some(commit('a')));
    let words = "False HistoryRewritten: the history of branch main was rewritten: aaaaaaa was its newest commit and is no part of it any more, now it is at bbbbbbb";
    assert_eq!(told(&mut world), (Some(words.to_owned()), true));
    assert_eq!(world.active_action(), Some(Action::Plan));
    // Once the layer is told of the new head, nobody asks whether it goes on from the old one.
    moves(&mut world, 'b', None);
    assert_eq!(told(&mut world), (Some(words.to_owned()), false));
    world.succeed(PlanSummary::default());
    assert_eq!(told(&mut world), (Some(words.to_owned()), false), "it stays to be read");
    moves(&mut world, 'c', None);
    assert_eq!(told(&mut world), (None, false));
}

#[test]
fn a_branch_that_is_gone_is_told_and_what_is_applied_stays() {
    let mut world = in_place();
    let runs = world.runs.len();
    branch_is(&mut world, true, true);
    assert_eq!(
        told(&mut world),
        (None, false),
        "a repository that cannot be read says nothing of its branches"
    );
    branch_is(&mut world, true, false);
    let (words, is_news) = told(&mut world);
    assert!(words.unwrap().starts_with("False BranchGone: branch main is not in the repository any more"));
    assert!(is_news);
    assert_eq!((world.status().state, world.runs.len()), (Some(LayerState::Idle), runs));
    assert!(!told(&mut world).1);
    branch_is(&mut world, false, false);
    assert_eq!(told(&mut world), (None, false));
}

#[test]
fn a_tag_that_moved_elsewhere_or_is_gone_is_told_as_a_tag() {
    let mut world = in_place();
    world.layer.spec.branch = Some("refs/tags/v1".parse().unwrap());
    moves(&mut world, 'b', Some(commit('a')));
    let words = "False HistoryRewritten: tag v1 was moved: it was at aaaaaaa, and now it is at bbbbbbb, which that is no part of";
    assert_eq!(told(&mut world), (Some(words.to_owned()), true));
    assert_eq!(world.active_action(), Some(Action::Plan));
    moves(&mut world, 'b', None);
    branch_is(&mut world, true, false);
    world.repository.as_mut().unwrap().status.as_mut().unwrap().branches[0].name = "refs/tags/v1".to_owned();
    let (words, _) = told(&mut world);
    assert!(words.unwrap().starts_with("False BranchGone: tag v1 is not in the repository any more"));
}
