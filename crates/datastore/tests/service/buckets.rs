//! What only a bucket can do to us: be away, carry out a request and lose the answer, ignore what it was told.

use std::net::SocketAddr;

use api::run::Action;
use api::text::Sha256;
use bytes::Bytes;
use datastore::client::LockChange;
use datastore::service::{Place, PlaceError};
use datastore::{Artefact, StateId};
use futures::TryStreamExt;
use testkit::s3::{Gate, Passage, S3Server};

use crate::harness::{Harness, description, identity, state_text};

fn lock(id: &str) -> Bytes {
    Bytes::from(format!("{{\"ID\":\"{id}\",\"Operation\":\"OperationTypeApply\"}}"))
}

#[tokio::test]
async fn a_store_that_is_away_is_never_taken_for_one_that_has_nothing() {
    let server = S3Server::shared().await;
    let gate = Gate::new(server.address()).await.unwrap();
    let harness = Harness::on_s3_at(server, gate.address()).await;
    let attempt = harness.describe(&description("team", "run-1", Action::Apply, 3, "net")).await;
    let (runner, controller) = (harness.client("team/run-1/1"), harness.client("controller"));
    let id = StateId::new(identity("net").as_str()).unwrap();
    let file = harness.dir.path().join("state");
    std::fs::write(&file, state_text("l", 1, 10)).unwrap();
    runner.state_lock(&id, LockChange::Take, lock("A"), Some(3)).await.unwrap();
    runner.state_put(&id, &file, Some("A"), Some(3)).await.unwrap();
    runner.artefact_put(&attempt, Artefact::Plan, Bytes::from_static(b"plan")).await.unwrap();
    runner.log_append(&attempt, 0, Bytes::from_static(b"line\n")).await.unwrap();

    gate.set(Passage::Shut);
    let (put, exists, got, state, locked) = tokio::join!(
        runner.artefact_put(&attempt, Artefact::Result, Bytes::from_static(b"{}")),
        controller.artefact_exists(&attempt, Artefact::Plan),
        controller.artefact_get(&attempt, Artefact::Plan, 100),
        async {
            let mut content = Vec::new();
            controller.state_get(&id, &mut content).await
        },
        runner.state_lock(&id, LockChange::Take, lock("B"), Some(3)),
    );
    for error in [put.err(), exists.err(), got.err(), state.err(), locked.err()] {
        let error = error.expect("nothing succeeds without the store, and nothing is 'not found'");
        assert!(error.is_transient(), "{error}");
    }

    gate.set(Passage::Open);
    runner.artefact_put(&attempt, Artefact::Result, Bytes::from_static(b"{}")).await.unwrap();
    assert_eq!(controller.artefact_get(&attempt, Artefact::Plan, 100).await.unwrap().unwrap(), "plan");
    let log = controller.log_get(&attempt, 0).await.unwrap().try_collect::<Vec<Bytes>>().await.unwrap();
    assert_eq!(log.concat(), b"line\n");
    let refused = runner.state_lock(&id, LockChange::Take, lock("B"), Some(3)).await.unwrap_err();
    assert!(!refused.is_transient(), "the lock outlived the outage: {refused}");
    runner.state_lock(&id, LockChange::Release, lock("A"), Some(3)).await.unwrap();
}

#[tokio::test]
async fn what_was_done_without_an_answer_is_done_once() {
    let server = S3Server::shared().await;
    let gate = Gate::new(server.address()).await.unwrap();
    let harness = Harness::on_s3_at(server, gate.address()).await;
    let attempt = harness.describe(&description("team", "run-1", Action::Apply, 3, "net")).await;
    let (runner, controller) = (harness.client("team/run-1/1"), harness.client("controller"));
    let id = StateId::new(identity("net").as_str()).unwrap();
    let file = harness.dir.path().join("state");
    std::fs::write(&file, state_text("l", 1, 10)).unwrap();
    let bundle = harness.dir.path().join("bundle");
    let content = vec![7u8; 9 * 1024 * 1024];
    std::fs::write(&bundle, &content).unwrap();
    let sha256 = Sha256::of(&content);

    // Whether the first try succeeds is up to the retries below; the second must, and find what the first left.
    macro_rules! losing {
        ($method:literal, $operation:expr) => {
            gate.set(Passage::LoseAnswerTo(concat!($method, " ").to_owned()));
            let first = $operation.await;
            assert_eq!(gate.passage(), Passage::Open, "an answer was lost");
            if let Err(error) = first {
                assert!(error.is_transient(), "{error}");
            }
            $operation.await.unwrap();
        };
    }
    losing!("PUT", runner.artefact_put(&attempt, Artefact::Plan, Bytes::from_static(b"plan")));
    losing!("PUT", runner.log_append(&attempt, 0, Bytes::from_static(b"line\n")));
    losing!("PUT", runner.state_lock(&id, LockChange::Take, lock("A"), Some(3)));
    losing!("PUT", runner.state_put(&id, &file, Some("A"), Some(3)));
    losing!("PUT", runner.state_lock(&id, LockChange::Release, lock("A"), Some(3)));
    losing!("PUT", controller.bundle_put(&sha256, &bundle));
    let other = Sha256::of(b"none");
    assert!(!controller.bundle_exists(&other).await.unwrap());

    std::fs::write(&bundle, vec![8u8; 9 * 1024 * 1024]).unwrap();
    let second = Sha256::of(&vec![8u8; 9 * 1024 * 1024]);
    losing!("POST", controller.bundle_put(&second, &bundle));
    let run = datastore::RunUid::new("run-1").unwrap();
    losing!("POST", controller.run_delete(&run));

    let steps = testkit::s3::files_below(&harness.objects.join("states").join(id.as_str()).join("steps"));
    assert_eq!(steps.len(), 3, "a lock, a write, an unlock: {steps:?}");
    let versions: serde_json::Value =
        harness.get(&format!("/v1/state/{id}/versions")).await.json().await.unwrap();
    assert_eq!(versions.as_array().unwrap().len(), 1, "{versions}");
}

/// A server that answers every request in the same way.
async fn answering(status: u16, body: &'static str) -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let status = reqwest::StatusCode::from_u16(status).unwrap();
    let service = axum::Router::new().fallback(move || async move { (status, [("etag", "\"1\"")], body) });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    #[allow(clippy::disallowed_methods)] // A test's server ends with the test.
    let task = tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
    (address, task)
}

#[tokio::test]
async fn a_store_that_cannot_be_trusted_is_refused_at_the_start() {
    let server = S3Server::shared().await;
    let place = |url: &str| Place::Bucket(url.parse().unwrap());

    let (careless, task) = answering(200, "").await;
    let refused = place("s3://bucket/x").open(server.environment(careless)).await.unwrap_err();
    task.abort();
    assert!(matches!(refused, PlaceError::Unconditional { .. }), "{refused}");
    let text = refused.to_string();
    assert!(
        text.contains("s3://bucket/x does not keep what is there") && text.contains("If-None-Match"),
        "{text}"
    );

    let skewed = "<Error><Code>RequestTimeTooSkewed</Code></Error>";
    let (late, task) = answering(403, skewed).await;
    let refused = place("s3://bucket/x").open(server.environment(late)).await.unwrap_err().to_string();
    task.abort();
    assert!(refused.contains("the clock of this machine differs too much"), "{refused}");

    let plain = server.environment(server.address()).into_iter().filter(|(name, _)| name != "AWS_ALLOW_HTTP");
    let plain = place(&server.url("x")).open(plain).await.unwrap_err().to_string();
    assert!(plain.contains("AWS_ALLOW_HTTP=true"), "{plain}");

    let missing = place("s3://no-such-bucket/x").open(server.environment(server.address())).await;
    let missing = missing.unwrap_err().to_string();
    assert!(missing.contains("make the bucket first"), "{missing}");

    let mut wrong = server.environment(server.address());
    let secret = wrong.iter_mut().find(|(name, _)| name == "AWS_SECRET_ACCESS_KEY").unwrap();
    secret.1 = "a-guess-at-the-secret".to_owned();
    let denied = place(&server.url("x")).open(wrong).await.unwrap_err().to_string();
    assert!(denied.contains("cannot be used") && !denied.contains("a-guess-at-the-secret"), "{denied}");
}
