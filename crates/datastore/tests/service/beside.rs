//! Two services on the same objects, as replicas are: whichever is asked, there is one lock, one state and one log.

use api::run::Action;
use bytes::Bytes;
use datastore::StateId;
use datastore::client::{Client, Error, LockChange};
use futures::TryStreamExt;
use reqwest::StatusCode;

use crate::harness::{Harness, description, identity, state_text};

fn lock(id: &str) -> Bytes {
    Bytes::from(format!("{{\"ID\":\"{id}\",\"Operation\":\"OperationTypeApply\"}}"))
}

fn is_locked(error: &Error) -> bool {
    matches!(error, Error::Refused { status: StatusCode::LOCKED, .. })
}

fn is_behind(error: &Error) -> bool {
    matches!(error, Error::Conflict(message) if message.contains("serial"))
}

pub(crate) async fn many_race_for_a_lock_over_two_services_and_one_wins(harness: Harness) {
    harness.describe(&description("team", "a", Action::Apply, 1, "s")).await;
    let beside = harness.beside().await;
    let services = [harness.client("team/a/1"), beside.client("team/a/1")];
    let id = StateId::new(identity("s").as_str()).unwrap();
    // More than once: by the second time each service remembers something, and one of them what is no longer so.
    for round in 0..4 {
        let tries = (0..12).map(|number| {
            let (service, id) = (services[number % 2].clone(), id.clone());
            let name = format!("{round}-{number}");
            async move {
                let outcome = service.state_lock(&id, LockChange::Take, lock(&name), Some(1)).await;
                (name, outcome)
            }
        });
        let mut winners = Vec::new();
        for (name, outcome) in futures::future::join_all(tries).await {
            match outcome {
                Ok(()) => winners.push(name),
                Err(lost) => assert!(is_locked(&lost), "{lost}"),
            }
        }
        let [winner] = winners.as_slice() else { panic!("round {round}: {winners:?} hold it") };
        let releasing = &services[round % 2];
        releasing.state_lock(&id, LockChange::Release, lock(winner), Some(1)).await.unwrap();
    }
}

pub(crate) async fn many_race_to_write_a_state_over_two_services_and_one_wins(harness: Harness) {
    harness.describe(&description("team", "a", Action::Apply, 1, "s")).await;
    let beside = harness.beside().await;
    let services = [harness.client("team/a/1"), beside.client("team/a/1")];
    let id = StateId::new(identity("s").as_str()).unwrap();
    services[0].state_lock(&id, LockChange::Take, lock("A"), Some(1)).await.unwrap();
    for serial in 1..=3 {
        let tries = (0..8_usize).map(|number| {
            let (service, id) = (services[number % 2].clone(), id.clone());
            let text = state_text("l", serial, number);
            let file = harness.dir.path().join(format!("state-{number}"));
            std::fs::write(&file, &text).unwrap();
            async move { (text, service.state_put(&id, &file, Some("A"), Some(1)).await) }
        });
        let mut written = Vec::new();
        for (text, outcome) in futures::future::join_all(tries).await {
            match outcome {
                Ok(_) => written.push(text),
                Err(lost) => assert!(is_behind(&lost), "{lost}"),
            }
        }
        let [winner] = written.as_slice() else { panic!("serial {serial} was written so: {written:?}") };
        for service in &services {
            assert_eq!(read(service, &id).await, *winner);
        }
    }
    let versions: serde_json::Value =
        harness.get(&format!("/v1/state/{id}/versions")).await.json().await.unwrap();
    assert_eq!(versions.as_array().unwrap().len(), 3, "{versions}");
}

async fn read(service: &Client, id: &StateId) -> String {
    let mut content = Vec::new();
    service.state_get(id, &mut content).await.unwrap();
    String::from_utf8(content).unwrap()
}

pub(crate) async fn what_one_service_did_to_a_state_the_other_knows(harness: Harness) {
    harness.describe(&description("team", "a", Action::Apply, 1, "s")).await;
    let beside = harness.beside().await;
    let services = [harness.client("team/a/1"), beside.client("team/a/1")];
    let id = StateId::new(identity("s").as_str()).unwrap();
    let file = harness.dir.path().join("state");
    for serial in 1..=4_u64 {
        let [one, other] = if serial % 2 == 1 { [0, 1] } else { [1, 0] };
        let (one, other) = (&services[one], &services[other]);
        let name = format!("lock-{serial}");
        one.state_lock(&id, LockChange::Take, lock(&name), Some(1)).await.unwrap();
        let refused = other.state_lock(&id, LockChange::Take, lock("rival"), Some(1)).await.unwrap_err();
        assert!(is_locked(&refused), "{refused}");
        std::fs::write(&file, state_text("l", serial, 0)).unwrap();
        other.state_put(&id, &file, Some(&name), Some(1)).await.unwrap();
        // The first remembers the lock before that write.
        std::fs::write(&file, state_text("l", serial, 1)).unwrap();
        let late = one.state_put(&id, &file, Some(&name), Some(1)).await.unwrap_err();
        assert!(is_behind(&late), "{late}");
        assert_eq!(read(one, &id).await, state_text("l", serial, 0));
        other.state_lock(&id, LockChange::Release, lock(&name), Some(1)).await.unwrap();
        one.state_lock(&id, LockChange::Release, lock(&name), Some(1)).await.expect("it is free already");
        let unlocked = one.state_put(&id, &file, Some(&name), Some(1)).await.unwrap_err();
        assert!(unlocked.to_string().contains("not locked"), "{unlocked}");
    }
}

/// The first took a piece and its answer was lost; by the next try the runner has more to say.
pub(crate) async fn a_log_goes_on_at_another_service_behind_what_the_first_stored(harness: Harness) {
    let attempt = harness.describe(&description("team", "run-1", Action::Plan, 0, "s")).await;
    let beside = harness.beside().await;
    let (one, other) = (harness.client("team/run-1/1"), beside.client("team/run-1/1"));
    let append = async |service: &Client, offset, text: &'static str| {
        service.log_append(&attempt, offset, Bytes::from_static(text.as_bytes())).await
    };
    assert_eq!(append(&one, 0, "hello ").await.unwrap(), 6);
    assert_eq!(append(&other, 6, "wor").await.unwrap(), 9);
    assert_eq!(append(&one, 6, "wor").await.unwrap(), 9, "the same again");
    assert_eq!(append(&other, 9, "ld").await.unwrap(), 11);
    let more = append(&one, 9, "ld, and more").await;
    assert!(matches!(more, Err(Error::LogEnd { end: 11 })), "{more:?}");
    assert_eq!(append(&one, 11, ", and more").await.unwrap(), 21);
    let another = append(&other, 11, ", and less").await;
    assert!(matches!(another, Err(Error::Conflict(_))), "other bytes: {another:?}");
    let text: Vec<Bytes> =
        beside.client("controller").log_get(&attempt, 0).await.unwrap().try_collect().await.unwrap();
    assert_eq!(text.concat(), b"hello world, and more");
}
