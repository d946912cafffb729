//! What a repository's own limit of runners does to its runs.

use api::condition;
use api::run::Action;
use engine::Read;
use engine::queue::{Busy, Limit, Slot, admit};
use engine::run::waiting;

use crate::run::scene;

#[test]
fn a_repositorys_own_limit_holds_for_its_runs_alone_and_beside_the_limit_of_all() {
    let of_repository = |most| Limit::Repository { name: "db".into(), most };
    // The repository's limit, that of all, runners at work for it and for others, and what the run waits for.
    for (own, overall, here, elsewhere, expected) in [
        (0, 0, 9, 9, None),
        (1, 0, 0, 9, None),
        (1, 0, 1, 0, Some(of_repository(1))),
        (2, 0, 1, 9, None),
        (2, 0, 2, 0, Some(of_repository(2))),
        (2, 5, 1, 4, Some(Limit::Overall { most: 5 })),
        (2, 5, 2, 0, Some(of_repository(2))),
        (9, 5, 5, 0, Some(Limit::Overall { most: 5 })),
    ] {
        let mut scene = scene(Action::Plan);
        scene.world.repository.as_mut().unwrap().spec.max_concurrent_runner_pods = own;
        let one = waiting(&scene.view()).unwrap();
        let mut other = one.repository.clone();
        other.name = "other".into();
        let busy = Busy::from([(Some(one.repository.clone()), here), (Some(other), elsewhere)]);
        let slot = admit(&one.run, std::slice::from_ref(&one), &busy, overall, scene.now);
        assert_eq!(
            slot,
            expected.clone().map_or(Slot::Free, Slot::Full),
            "{own} {overall} {here} {elsewhere}"
        );
        scene.slot = Read::Present(slot);
        let does = scene.step();
        let ready = condition::find(&scene.status().conditions, "Ready").cloned().unwrap();
        match expected {
            None => assert!(does.contains(&"create pod"), "{does:?}"),
            Some(limit) => {
                assert_eq!(does, ["set status"]);
                assert_eq!((ready.reason.as_str(), ready.message), ("Queued", limit.to_string()));
            }
        }
    }
}
