//! What only a bucket can do to us: be away, carry out a request and lose the answer, ignore what it was told.

use std::net::SocketAddr;

use api::run::Action;
use api::text::Sha256;
use bytes::Bytes;
use datastore::client::LockChange;
use datastore::service::{Place, PlaceError};
use datastore::{Artefact, StateId};
use futures::TryStreamExt;
use testkit::azure::AzureServer;
use testkit::google::GoogleServer;
use testkit::s3::{Gate, Passage, S3Server};

use crate::harness::{Harness, description, identity, state_text};

fn lock(id: &str) -> Bytes {
    Bytes::from(format!("{{\"ID\":\"{id}\",\"Operation\":\"OperationTypeApply\"}}"))
}

/// Objects in a bucket of S3, reached through a gate.
async fn s3() -> (Harness, Gate) {
    let server = S3Server::shared().await;
    let gate = Gate::new(server.address()).await.unwrap();
    (Harness::on_s3_at(server, gate.address()).await, gate)
}

async fn azure() -> (Harness, Gate) {
    let server = AzureServer::shared().await;
    let gate = Gate::new(server.address()).await.unwrap();
    (Harness::on_azure_at(server, gate.address()).await, gate)
}

async fn google() -> (Harness, Gate) {
    let server = GoogleServer::start().await.unwrap();
    let gate = Gate::new(server.address()).await.unwrap();
    (Harness::on_google_at(server, gate.address()).await, gate)
}

#[tokio::test]
async fn a_store_that_is_away_is_never_taken_for_one_that_has_nothing() {
    for (harness, gate) in [s3().await, azure().await, google().await] {
        is_away(harness, gate).await;
    }
}

async fn is_away(harness: Harness, gate: Gate) {
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

/// Whether the first try succeeds is up to the retries below; the second must, and find what the first left.
macro_rules! losing {
    ($gate:ident, $method:literal, $operation:expr) => {
        $gate.set(Passage::LoseAnswerTo(concat!($method, " ").to_owned()));
        let first = $operation.await;
        assert_eq!($gate.passage(), Passage::Open, "an answer was lost");
        if let Err(error) = first {
            assert!(error.is_transient(), "{error}");
        }
        $operation.await.unwrap();
    };
}

#[tokio::test]
async fn what_was_done_without_an_answer_is_done_once() {
    for (harness, gate) in [azure().await, google().await] {
        loses_answers(&harness, &gate).await;
    }
    let (harness, gate) = s3().await;
    loses_answers(&harness, &gate).await;
    // Only S3 asks by POST both to begin a large object and to delete many.
    let controller = harness.client("controller");
    let (bundle, content) = (harness.dir.path().join("bundle"), vec![8u8; 9 * 1024 * 1024]);
    std::fs::write(&bundle, &content).unwrap();
    let sha256 = Sha256::of(&content);
    losing!(gate, "POST", controller.bundle_put(&sha256, &bundle));
    let run = datastore::RunUid::new("run-1").unwrap();
    losing!(gate, "POST", controller.run_delete(&run));
}

async fn loses_answers(harness: &Harness, gate: &Gate) {
    let attempt = harness.describe(&description("team", "run-1", Action::Apply, 3, "net")).await;
    let (runner, controller) = (harness.client("team/run-1/1"), harness.client("controller"));
    let id = StateId::new(identity("net").as_str()).unwrap();
    let file = harness.dir.path().join("state");
    std::fs::write(&file, state_text("l", 1, 10)).unwrap();
    let bundle = harness.dir.path().join("bundle");
    let content = vec![7u8; 9 * 1024 * 1024];
    std::fs::write(&bundle, &content).unwrap();
    let sha256 = Sha256::of(&content);

    losing!(gate, "PUT", runner.artefact_put(&attempt, Artefact::Plan, Bytes::from_static(b"plan")));
    losing!(gate, "PUT", runner.log_append(&attempt, 0, Bytes::from_static(b"line\n")));
    losing!(gate, "PUT", runner.state_lock(&id, LockChange::Take, lock("A"), Some(3)));
    losing!(gate, "PUT", runner.state_put(&id, &file, Some("A"), Some(3)));
    losing!(gate, "PUT", runner.state_lock(&id, LockChange::Release, lock("A"), Some(3)));
    losing!(gate, "PUT", controller.bundle_put(&sha256, &bundle));
    let other = Sha256::of(b"none");
    assert!(!controller.bundle_exists(&other).await.unwrap());

    let steps = harness.names(&format!("states/{id}/steps")).await;
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

/// What a client finds in its environment to reach a server by way of an address.
type Settings<'a> = &'a dyn Fn(SocketAddr) -> Vec<(String, String)>;

#[tokio::test]
async fn a_store_that_cannot_be_trusted_is_refused_at_the_start() {
    let (s3, azure) = (S3Server::shared().await, AzureServer::shared().await);
    let google = GoogleServer::start().await.unwrap();
    let place = |url: &str| Place::Bucket(url.parse().unwrap());
    let clouds: [(String, &str, Settings<'_>, SocketAddr); 3] = [
        (s3.url("x"), "AWS", &|at| s3.environment(at), s3.address()),
        (azure.url("x"), "AZURE", &|at| azure.environment(at), azure.address()),
        (google.url("x"), "GOOGLE", &|at| google.environment(at), google.address()),
    ];
    for (url, variables, environment, address) in clouds {
        let (careless, task) = answering(200, "").await;
        let refused = place(&url).open(environment(careless)).await.unwrap_err();
        task.abort();
        assert!(matches!(refused, PlaceError::Unconditional { .. }), "{refused}");
        let text = refused.to_string();
        assert!(text.contains(&format!("{url} does not keep what is there")), "{text}");
        assert!(text.contains("If-None-Match"), "{text}");

        let insecure = format!("{variables}_ALLOW_HTTP");
        let plain = environment(address).into_iter().filter(|(name, _)| *name != insecure);
        let plain = place(&url).open(plain).await.unwrap_err().to_string();
        assert!(plain.contains(&format!("{insecure}=true")), "{plain}");

        let (scheme, _) = url.split_once("://").unwrap();
        let missing = place(&format!("{scheme}://no-such-bucket/x")).open(environment(address)).await;
        let missing = missing.unwrap_err().to_string();
        assert!(missing.contains("make the bucket first"), "{missing}");

        // Base64, as Azure's keys are.
        let guess = "YS1ndWVzcy1hdC10aGUtc2VjcmV0";
        let mut wrong = environment(address);
        let secret = wrong.iter_mut().find(|(name, _)| {
            ["AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "GOOGLE_BEARER_TOKEN"].contains(&&**name)
        });
        secret.unwrap().1 = guess.to_owned();
        let denied = place(&url).open(wrong).await.unwrap_err().to_string();
        assert!(denied.contains("cannot be used") && !denied.contains(guess), "{denied}");
    }

    let skewed = "<Error><Code>RequestTimeTooSkewed</Code></Error>";
    let (late, task) = answering(403, skewed).await;
    let refused = place("s3://bucket/x").open(s3.environment(late)).await.unwrap_err().to_string();
    task.abort();
    assert!(refused.contains("the clock of this machine differs too much"), "{refused}");
}
