//! Requests that cannot be answered: each gets a problem that says why, and the service goes on.

use axum::body::Body;
use axum::http::Method;
use serde_json::json;
use server::credential::Scope;

use crate::ground::{Call, Ground};

#[tokio::test]
async fn what_cannot_be_answered_is_a_problem() {
    let ground = Ground::new().await;
    ground.layer("a", "net", json!({}), json!({})).await;
    let token = ground.token("all", &Scope::ALL, &[]).await;
    let approvals = "/api/v1/namespaces/a/layers/net/approvals";
    let post = || Call::post(approvals).bearer(&token);
    let as_json = || post().header("content-type", "application/json");
    let large = "x".repeat(1024 * 1024 + 1);
    let deep = "[".repeat(100_000);
    let mut wrong = Vec::new();
    for (call, expected) in [
        // Bodies.
        (post().body("{}"), 415),
        (post().header("content-type", "text/plain").body("{}"), 415),
        (post().header("content-type", "application/x-www-form-urlencoded").body("a=b"), 415),
        (as_json(), 400),
        (as_json().body("{"), 400),
        (as_json().body(deep), 422),
        (as_json().body("\u{0}"), 400),
        (as_json().body(vec![0xff, 0xfe]), 400),
        (as_json().body("[]"), 422),
        (as_json().body("null"), 422),
        (as_json().body(r#"{"planSha256":1}"#), 422),
        (as_json().body(large), 413),
        // Queries.
        (Call::get("/api/v1/layers?limit=many").bearer(&token), 400),
        (Call::get("/api/v1/layers?limit=-1").bearer(&token), 400),
        (Call::get("/api/v1/layers?limit=0").bearer(&token), 400),
        (Call::get("/api/v1/layers?sort=secrets").bearer(&token), 400),
        (Call::get("/api/v1/layers?continue=x").bearer(&token), 400),
        (Call::get("/api/v1/layers?drifted=perhaps").bearer(&token), 400),
        (Call::get("/api/v1/layers?label=in%20(a)").bearer(&token), 400),
        (Call::get("/api/v1/events?limit=100000").bearer(&token), 400),
        (Call::get("/api/v1/events?namespace=..").bearer(&token), 400),
        (Call::get("/api/v1/events?layer=net").bearer(&token), 400),
        (Call::get("/api/v1/namespaces/a/runs/x/log?offset=far").bearer(&token), 400),
        // Names and paths.
        (Call::get("/api/v1/namespaces/a/layers/nothing").bearer(&token), 404),
        (Call::get("/api/v1/namespaces/..%2F..%2Fb/layers/net").bearer(&token), 404),
        (Call::get("/api/v1/namespaces/a/layers/..").bearer(&token), 404),
        (Call::get("/api/v1/namespaces/a/layers/net%00").bearer(&token), 404),
        (Call::get("/api/v1/namespaces/a/layers/net%2Fstate").bearer(&token), 404),
        (Call::get("/api/v1/namespaces/A/layers/net").bearer(&token), 404),
        (Call::get("/api/v1/namespaces/a/layers/%FF").bearer(&token), 404),
        (Call::get("/api/v1/namespaces/a/layers/net/state/versions/first").bearer(&token), 404),
        (Call::get("/api/v1//layers").bearer(&token), 404),
        (Call::get("/api/v2/layers").bearer(&token), 404),
        (Call::get("/swagger/..%2F..%2Fetc%2Fpasswd"), 404),
        (Call::get("/nothing"), 404),
        // Methods.
        (Call::post("/api/v1/layers").bearer(&token), 405),
        (Call::new(Method::PATCH, approvals).bearer(&token), 405),
        (Call::post("/openapi.json"), 405),
    ] {
        let answer = ground.call(call).await;
        if answer.status.as_u16() == expected {
            answer.with(expected);
        } else {
            wrong.push((expected, answer));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    ground.call(Call::get("/api/v1/namespaces/a/layers/net").bearer(&token)).await.with(200);
}

/// A body that never ends is not waited for; one that breaks off is not taken for whole.
#[tokio::test]
async fn a_slow_body_and_one_that_breaks_off_are_given_up() {
    let ground = Ground::new().await;
    ground.layer("a", "net", json!({}), json!({})).await;
    let token = ground.token("all", &Scope::ALL, &[]).await;
    let post = || {
        Call::post("/api/v1/namespaces/a/layers/net/approvals")
            .bearer(&token)
            .header("content-type", "application/json")
    };
    let slow = futures::stream::pending::<Result<Vec<u8>, std::io::Error>>();
    ground.call(post().body(Body::from_stream(slow))).await.with(408);
    let broken = futures::stream::iter([
        Ok(b"{\"planSha256\":".to_vec()),
        Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset)),
    ]);
    ground.call(post().body(Body::from_stream(broken))).await.with(400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_at_once_are_all_answered() {
    let ground = Ground::new().await;
    ground.layer("a", "net", json!({}), json!({})).await;
    let token = ground.token("all", &Scope::ALL, &[]).await;
    let calls = (0..1000).map(|number| match number % 3 {
        0 => ground.call(Call::get("/api/v1/layers").bearer(&token)),
        1 => ground.call(Call::get("/api/v1/namespaces/a/layers/net").bearer(&token)),
        _ => ground.call(Call::get("/api/v1/namespaces/a/layers/net")),
    });
    let mut counts = std::collections::BTreeMap::<u16, usize>::new();
    for answer in futures::future::join_all(calls).await {
        *counts.entry(answer.status.as_u16()).or_default() += 1;
    }
    assert_eq!(counts, [(200, 667), (401, 333)].into());
}
