//! Keys come and go, and bytes change behind our back: cases for every place.

use std::fs;

use api::run::Action;
use api::text::Sha256;
use bytes::Bytes;
use datastore::client::LockChange;
use datastore::service::{Keyring, add_newest_key, reseal, uses};
use datastore::{Artefact, StateId};
use reqwest::StatusCode;

use crate::harness::{Harness, description, identity, state_text};

fn lock(id: &str) -> Bytes {
    Bytes::from(format!("{{\"ID\":\"{id}\"}}"))
}

pub(crate) async fn a_new_key_seals_and_older_ones_open_until_everything_is_sealed_anew(harness: Harness) {
    let attempt = harness.describe(&description("team", "run-1", Action::Apply, 3, "net")).await;
    let bundle = harness.dir.path().join("bundle");
    // Larger than one part.
    let content: Vec<u8> = b"some bundle ".iter().copied().cycle().take(9 * 1024 * 1024).collect();
    fs::write(&bundle, &content).unwrap();
    let sha256 = Sha256::of(&content);
    harness.client("controller").bundle_put(&sha256, &bundle).await.unwrap();
    let runner = harness.client("team/run-1/1");
    runner.artefact_put(&attempt, Artefact::Plan, Bytes::from_static(b"plan")).await.unwrap();
    let id = StateId::new(identity("net").as_str()).unwrap();
    let file = harness.dir.path().join("state");
    fs::write(&file, state_text("l", 1, 10)).unwrap();
    runner.state_lock(&id, LockChange::Take, lock("A"), Some(3)).await.unwrap();
    runner.state_put(&id, &file, Some("A"), Some(3)).await.unwrap();

    let old = Keyring::load(&harness.keys()).unwrap().infos().remove(0);
    let new = add_newest_key(&harness.keys()).unwrap();
    let harness = harness.restarted().await;
    let (runner, controller) = (harness.client("team/run-1/1"), harness.client("controller"));
    assert_eq!(controller.artefact_get(&attempt, Artefact::Plan, 100).await.unwrap().unwrap(), "plan");
    runner.artefact_put(&attempt, Artefact::Result, Bytes::from_static(b"{}")).await.unwrap();
    let before = uses(&harness.store).await.unwrap();
    assert_eq!((before[&old.id], before[&new.id]), (6, 1), "{before:?}");

    // Without the old key, what it seals cannot be read, and the answer says which key is missing.
    let hidden = harness.dir.path().join("hidden");
    fs::rename(old.file.as_ref().unwrap(), &hidden).unwrap();
    let harness = harness.restarted().await;
    let controller = harness.client("controller");
    let refused = controller.artefact_get(&attempt, Artefact::Plan, 100).await.unwrap_err().to_string();
    assert!(refused.contains(&format!("encrypted with key {}", old.id)), "{refused}");
    assert_eq!(controller.artefact_get(&attempt, Artefact::Result, 100).await.unwrap().unwrap(), "{}");
    let refused = reseal(&harness.store, Keyring::load(&harness.keys()).unwrap()).await.unwrap_err();
    assert!(refused.to_string().contains(&old.id), "{refused}");
    // It comes back, and is found without a restart.
    fs::rename(&hidden, old.file.as_ref().unwrap()).unwrap();
    assert_eq!(controller.artefact_get(&attempt, Artefact::Plan, 100).await.unwrap().unwrap(), "plan");

    let outcome = reseal(&harness.store, Keyring::load(&harness.keys()).unwrap()).await.unwrap();
    assert_eq!((outcome.objects, outcome.changed), (7, 6));
    let again = reseal(&harness.store, Keyring::load(&harness.keys()).unwrap()).await.unwrap();
    assert_eq!((again.objects, again.changed), (7, 0));
    assert_eq!(uses(&harness.store).await.unwrap().into_keys().collect::<Vec<_>>(), [new.id]);
    fs::remove_file(old.file.as_ref().unwrap()).unwrap();
    let harness = harness.restarted().await;
    let (runner, controller) = (harness.client("team/run-1/1"), harness.client("controller"));
    let mut copy = tokio::fs::File::create(harness.dir.path().join("copy")).await.unwrap();
    controller.bundle_get(&sha256, &mut copy).await.unwrap();
    assert!(fs::read(harness.dir.path().join("copy")).unwrap() == content);
    assert_eq!(controller.artefact_get(&attempt, Artefact::Plan, 100).await.unwrap().unwrap(), "plan");
    fs::write(&file, state_text("l", 2, 10)).unwrap();
    runner.state_put(&id, &file, Some("A"), Some(3)).await.unwrap();
    let mut state = Vec::new();
    controller.state_get(&id, &mut state).await.unwrap();
    assert_eq!(state, state_text("l", 2, 10).as_bytes());
}

pub(crate) async fn what_was_changed_swapped_or_rolled_back_behind_our_back_is_refused(harness: Harness) {
    let attempt = harness.describe(&description("team", "run-1", Action::Apply, 3, "net")).await;
    let (runner, controller) = (harness.client("team/run-1/1"), harness.client("controller"));
    runner.artefact_put(&attempt, Artefact::Plan, Bytes::from_static(b"plan")).await.unwrap();
    runner.artefact_put(&attempt, Artefact::PlanText, Bytes::from_static(b"text")).await.unwrap();
    let of = |name: &str| format!("runs/run-1/1/{name}");
    let sealed = harness.stored(&of("plan")).await;
    for at in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[at] ^= 1 << (at % 8);
        harness.overwrite(&of("plan"), &changed).await;
        let read = controller.artefact_get(&attempt, Artefact::Plan, 100).await;
        assert!(read.is_err(), "byte {at} was changed, and {read:?} was read");
    }
    harness.overwrite(&of("plan"), &sealed).await;
    assert_eq!(controller.artefact_get(&attempt, Artefact::Plan, 100).await.unwrap().unwrap(), "plan");
    let text = harness.stored(&of("plan.txt")).await;
    harness.overwrite(&of("plan"), &text).await;
    harness.overwrite(&of("plan.txt"), &sealed).await;
    for artefact in [Artefact::Plan, Artefact::PlanText] {
        let read = controller.artefact_get(&attempt, artefact, 100).await;
        assert!(read.is_err(), "{artefact:?} was swapped, and {read:?} was read");
    }

    let id = StateId::new(identity("net").as_str()).unwrap();
    let file = harness.dir.path().join("state");
    runner.state_lock(&id, LockChange::Take, lock("A"), Some(3)).await.unwrap();
    for serial in [1, 2] {
        fs::write(&file, state_text("l", serial, 10)).unwrap();
        runner.state_put(&id, &file, Some("A"), Some(3)).await.unwrap();
    }
    let path = format!("/v1/state/{id}");
    let step = |number: u64| format!("states/{id}/steps/{number:020}");
    let (second, third) = (harness.stored(&step(2)).await, harness.stored(&step(3)).await);
    // The step of the first version in the place of the second's.
    harness.overwrite(&step(3), &second).await;
    assert_eq!(harness.get(&path).await.status(), StatusCode::INTERNAL_SERVER_ERROR);
    // The last step gone, as if it had never been.
    harness.remove(&step(3)).await;
    let rolled_back = harness.get(&path).await;
    assert_eq!(rolled_back.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let message = rolled_back.text().await.unwrap();
    assert!(message.contains("rolled back or damaged"), "{message}");
    // Nor is anything built upon it, by whoever remembers what it said.
    let unlocked = runner.state_lock(&id, LockChange::Release, lock("A"), Some(3)).await;
    let message = unlocked.unwrap_err().to_string();
    assert!(message.contains("rolled back or damaged"), "{message}");
    assert!(!harness.names(&format!("states/{id}/steps")).await.contains(&step(4)));
    harness.overwrite(&step(3), &third).await;
    assert_eq!(harness.get(&path).await.status(), StatusCode::OK);
    // The content gone: to the tools 404 would mean that nothing exists yet.
    let content = Sha256::of(state_text("l", 2, 10).as_bytes());
    harness.remove(&format!("states/{id}/content/{content}")).await;
    let gone = harness.get(&path).await;
    assert_eq!(gone.status(), StatusCode::INTERNAL_SERVER_ERROR);
}
