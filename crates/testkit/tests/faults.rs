//! Each fault does what it says, once, at the request it names, and the history tells.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use futures::FutureExt;
use http::{Request, StatusCode};
use testkit::faults::{Actor, Fault, Faults, Passing, Refusal, Seam, Site, Tamper};
use tower::{Layer, ServiceExt};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// An API that counts what it is asked to make.
fn counting() -> (Router, Arc<AtomicUsize>) {
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let create =
        move || async move { (StatusCode::CREATED, count.fetch_add(1, Ordering::SeqCst).to_string()) };
    (Router::new().route(PODS, post(create).merge(get(async || "none"))), made)
}

fn creation(occurrence: usize) -> Site {
    Site {
        actor: "controllers".to_owned(),
        seam: Seam::Api,
        verb: "POST".to_owned(),
        target: "pods".to_owned(),
        occurrence,
    }
}

async fn create(actor: &Actor, api: &Router) -> Result<StatusCode, String> {
    let service = actor.layer(Seam::Api).layer(api.clone());
    let request = Request::post(PODS).body(Body::from("{\"kind\":\"Pod\"}")).unwrap();
    service.oneshot(request).await.map(|answer| answer.status()).map_err(|error| error.to_string())
}

/// Three requests, the second with a fault: what their caller sees, and how often the API made something.
async fn three(fault: Fault) -> (Vec<Result<StatusCode, String>>, usize, Faults) {
    let (api, made) = counting();
    let faults = Faults::new();
    faults.at(creation(1), fault);
    let actor = faults.actor("controllers");
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(create(&actor, &api).await);
    }
    assert_eq!(faults.fired(), [(creation(1), fault)]);
    (seen, made.load(Ordering::SeqCst), faults)
}

#[tokio::test]
async fn a_dropped_request_never_arrives() {
    let (seen, made, faults) = three(Fault::Drop).await;
    assert_eq!(made, 2);
    assert!(seen[0].is_ok() && seen[1].is_err() && seen[2].is_ok(), "{seen:?}");
    let statuses: Vec<_> = faults.history().iter().map(|event| event.status).collect();
    assert_eq!(statuses, [Some(201), None, Some(201)]);
}

#[tokio::test]
async fn a_lost_answer_belongs_to_a_request_that_was_executed() {
    let (seen, made, faults) = three(Fault::LoseReply).await;
    assert_eq!(made, 3);
    assert!(seen[1].as_ref().is_err_and(|error| error.contains("before the answer")), "{seen:?}");
    assert!(faults.history()[1].is_done());
}

#[tokio::test]
async fn a_repeated_request_arrives_twice() {
    let (seen, made, faults) = three(Fault::Repeat).await;
    assert_eq!((made, seen[1].clone()), (4, Ok(StatusCode::CREATED)));
    assert_eq!(faults.recorded(), 4);
}

#[tokio::test]
async fn a_delayed_request_arrives() {
    let (seen, made, _) = three(Fault::Delay(Duration::from_millis(1))).await;
    assert_eq!((made, seen[1].clone()), (3, Ok(StatusCode::CREATED)));
}

#[tokio::test]
async fn each_refusal_is_answered_and_nothing_is_done() {
    for refusal in Refusal::ALL {
        let (seen, made, _) = three(Fault::Refuse(refusal)).await;
        assert_eq!(made, 2);
        assert_eq!(seen[1].as_ref().map(|status| status.as_u16()), Ok(refusal.answer().0));
    }
}

#[tokio::test]
async fn nothing_of_a_dead_actor_arrives_and_its_successor_lives() {
    for (fault, expected) in [(Fault::CrashBefore, 0), (Fault::CrashAfter, 1)] {
        let (api, made) = counting();
        let faults = Faults::new();
        faults.at(creation(0), fault);
        let actor = faults.actor("controllers");
        tokio::select! {
            _ = create(&actor, &api) => panic!("a dead process got an answer"),
            () = actor.died() => {}
        }
        assert!(actor.is_dead());
        assert!(create(&actor, &api).now_or_never().is_none());
        assert_eq!(made.load(Ordering::SeqCst), expected, "{fault:?}");
        faults.idle().await;
        assert_eq!(create(&faults.actor("controllers"), &api).await, Ok(StatusCode::CREATED));
    }
}

#[tokio::test]
async fn nothing_of_an_actor_that_is_cut_off_arrives_until_it_is_mended() {
    let (api, made) = counting();
    let faults = Faults::new();
    faults.at(creation(0), Fault::Cut);
    let actor = faults.actor("controllers");
    for _ in 0..2 {
        assert!(create(&actor, &api).await.is_err());
    }
    assert!(actor.is_cut() && !actor.is_held());
    assert_eq!(made.load(Ordering::SeqCst), 0);
    assert_eq!(create(&faults.actor("people"), &api).await, Ok(StatusCode::CREATED));
    actor.mend();
    assert_eq!(create(&actor, &api).await, Ok(StatusCode::CREATED));
    assert!(faults.history().iter().all(|event| !event.held));
}

#[tokio::test]
async fn what_an_actor_sent_when_it_was_stopped_arrives_when_it_goes_on() {
    let (api, made) = counting();
    let faults = Faults::new();
    faults.at(creation(0), Fault::Hold);
    let actor = faults.actor("controllers");
    let (mut first, mut second) = (Box::pin(create(&actor, &api)), Box::pin(create(&actor, &api)));
    assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
    assert!(actor.is_held() && !actor.is_cut());
    // Nobody need wait for a process that stands still.
    faults.idle().await;
    assert_eq!(made.load(Ordering::SeqCst), 0);
    actor.mend();
    assert_eq!((first.await, second.await), (Ok(StatusCode::CREATED), Ok(StatusCode::CREATED)));
    assert_eq!(create(&actor, &api).await, Ok(StatusCode::CREATED));
    let held: Vec<bool> = faults.history().iter().map(|event| event.held).collect();
    assert_eq!(held, [true, true, false]);
    faults.idle().await;
}

#[tokio::test]
async fn others_and_other_requests_are_left_alone() {
    let (api, made) = counting();
    let faults = Faults::new();
    faults.at(creation(0), Fault::Drop);
    assert_eq!(create(&faults.actor("people"), &api).await, Ok(StatusCode::CREATED));
    let service = faults.actor("controllers").layer(Seam::Api).layer(api);
    let answer = service.oneshot(Request::get(PODS).body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!((answer.status(), made.load(Ordering::SeqCst)), (StatusCode::OK, 1));
    assert!(faults.fired().is_empty());
}

#[derive(Debug)]
struct Renamed;

impl Tamper for Renamed {
    fn request(&self, passing: &mut Passing) {
        passing.body = b"{\"kind\":\"Other\"}".to_vec();
    }

    fn answer(&self, _: &Passing, status: &mut StatusCode) {
        *status = StatusCode::IM_A_TEAPOT;
    }
}

#[tokio::test]
async fn a_tamper_changes_what_arrives_and_what_is_seen() {
    let (api, _) = counting();
    let faults = Faults::new();
    faults.tamper("controllers", Arc::new(Renamed));
    assert_eq!(create(&faults.actor("controllers"), &api).await, Ok(StatusCode::IM_A_TEAPOT));
    let event = &faults.history()[0];
    assert_eq!((event.sent["kind"].as_str(), event.status), (Some("Other"), Some(201)));
}
