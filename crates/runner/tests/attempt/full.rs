//! A datastore that has no room: the attempt ends soon and says so, and a state waits until there is some. Here it is played; a disk
//! that is really full is tested with all roles together.

use super::*;

const SAID: &str = "the datastore is full: free some space";

async fn world() -> World {
    World::new(&[("envs/prod/main.tf", SIMPLE), ("modules/m/main.tf", MODULE)]).await
}

#[tokio::test]
async fn a_plan_without_room_for_it_is_told_at_once_and_one_without_room_for_its_log_stands() {
    let world = world().await;
    *world.full.lock().unwrap() = Some(("PUT", "/plan".to_owned()));
    let refused = world.plan("plan-1").await;
    assert_eq!(refused.reason, Reason::DatastoreFull);
    assert!(refused.message.starts_with("the plan could not be stored: "), "{}", refused.message);
    assert!(refused.message.contains(SAID), "{}", refused.message);
    assert_eq!(world.turned_away.load(Ordering::SeqCst), 1, "it is not tried again and again");

    *world.full.lock().unwrap() = Some(("POST", "/log".to_owned()));
    let description = world.description("plan-2", Action::Plan, 0);
    world.describe(&description).await;
    let outcome = run_until(world.options("plan-2"), std::future::pending()).await.unwrap();
    assert_eq!(outcome.reason, Reason::Succeeded);
    let words = "Plan: 1 to add, 0 to change, 0 to destroy. 1 output changes. Its log is cut short: ";
    assert!(outcome.message.starts_with(words), "{}", outcome.message);
    assert!(outcome.message.contains(SAID), "{}", outcome.message);

    *world.full.lock().unwrap() = Some(("PUT", "/result".to_owned()));
    world.describe(&world.description("plan-3", Action::Plan, 0)).await;
    let silent = run_until(world.options("plan-3"), std::future::pending()).await;
    assert!(matches!(&silent, Err(runner::Error::Result(error)) if error.is_full()), "{silent:?}");
}

#[tokio::test]
async fn a_state_and_the_release_of_its_lock_wait_until_there_is_room() {
    let world = world().await;
    let plan = planned(&world.plan("plan-1").await);
    let id = state_id();
    world.describe(&world.apply_of("apply-1", 1, "plan-1", plan)).await;
    *world.full.lock().unwrap() = Some(("POST", format!("/v1/state/{id}")));
    let room = async {
        until(|| world.turned_away.load(Ordering::SeqCst) >= 2).await;
        *world.full.lock().unwrap() = Some(("DELETE", format!("/v1/state/{id}/lock")));
        let before = world.turned_away.load(Ordering::SeqCst);
        until(|| world.turned_away.load(Ordering::SeqCst) > before).await;
        assert!(world.state().await.is_some(), "the state itself is stored");
        *world.full.lock().unwrap() = None;
    };
    let running = world.run_with(world.options("apply-1"), std::future::pending());
    let (apply, ()) = tokio::join!(running, room);
    assert_eq!(apply.reason, Reason::Succeeded, "{}", apply.message);
    assert!(world.state().await.is_some());
    let log = world.log_of("apply-1").await;
    for words in [
        format!(
            "The new state is kept here until it can be stored: the datastore refused to write state {id}: {SAID}"
        ),
        format!(
            "The state stays locked until its release can be stored: the datastore refused to unlock state {id}: {SAID}"
        ),
    ] {
        assert!(log.contains(&words), "{log}");
    }
}
