//! Links that work once, sessions, and pages of others that would use them.

use axum::http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use server::credential::{Grant, Kind};

use crate::ground::{COOKIE, Call, Ground, HOST};

const ME: &str = "/api/v1/session";

#[tokio::test]
async fn a_link_opens_one_session_whoever_else_tries() {
    let mut ground = Ground::new().await;
    let link = format!("/login?once={}", ground.link().await);
    let tries = futures::future::join_all((0..8).map(|_| ground.call(Call::get(&link)))).await;
    let (opened, refused): (Vec<_>, Vec<_>) = tries.into_iter().partition(|answer| answer.status == 303);
    assert_eq!((opened.len(), refused.len()), (1, 7));
    for answer in refused {
        assert!(matches!(answer.status.as_u16(), 401 | 429), "{answer:#?}");
        assert_eq!(answer.header("set-cookie"), "");
    }
    let cookie = opened[0].header("set-cookie");
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let cookie = cookie.split(';').next().unwrap();
    let me = ground.call(Call::get(ME).header("cookie", cookie)).await.with(200).json();
    assert_eq!((&me["user"], &me["by"]), (&json!("terrane-admin"), &json!("session")));
    // A restart ends no session.
    ground.restart();
    ground.call(Call::get(ME).header("cookie", cookie)).await.with(200);
    // Its end does, and it cannot be opened again.
    let csrf = me["csrf"].as_str().unwrap();
    let end = Call::new(Method::DELETE, ME)
        .header("cookie", cookie)
        .header("origin", &format!("http://{HOST}"))
        .header("x-terrane-csrf", csrf);
    let ended = ground.call(end).await.with(204);
    assert!(ended.header("set-cookie").contains("Max-Age=0"));
    ground.call(Call::get(ME).header("cookie", cookie)).await.with(401);
}

#[tokio::test]
async fn a_newer_link_and_time_end_a_link() {
    let ground = Ground::new().await;
    let old = ground.link().await;
    let new = ground.link().await;
    ground.call(Call::get(&format!("/login?once={old}"))).await.with(401);
    ground.call(Call::get(&format!("/login?once={new}"))).await.with(303);
    let past = ground.credentials.make_login("terrane-admin", Timestamp::now()).await.unwrap();
    let past = secrecy::ExposeSecret::expose_secret(&past).to_owned();
    ground.call(Call::get(&format!("/login?once={past}"))).await.with(401);
    ground.call(Call::get("/login")).await.with(400);
}

#[tokio::test]
async fn a_session_ends_by_itself_and_is_swept() {
    let ground = Ground::new().await;
    let now = Timestamp::now();
    let soon = Grant::everything("terrane-admin", now);
    let cookie = ground.credentials.make_session(&soon, now).await.unwrap();
    let cookie = format!("{COOKIE}={}", secrecy::ExposeSecret::expose_secret(&cookie));
    ground.call(Call::get(ME).header("cookie", &cookie)).await.with(401);
    assert_eq!(ground.credentials.list(Kind::Session).await.unwrap().len(), 1);
    let later = now + SignedDuration::from_hours(1);
    ground.credentials.make_session(&Grant::everything("terrane-admin", later), now).await.unwrap();
    assert_eq!(
        ground.credentials.list(Kind::Session).await.unwrap().len(),
        1,
        "the one that expired is gone"
    );
}

#[tokio::test]
async fn who_guesses_is_slowed_down_and_a_restart_does_not_forget_it() {
    let mut ground = Ground::new().await;
    let good = ground.link().await;
    for _ in 0..10 {
        ground.call(Call::get("/login?once=guess")).await.with(401);
    }
    let slowed = ground.call(Call::get("/login?once=guess")).await.with(429);
    let seconds: u64 = slowed.header("retry-after").parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
    ground.call(Call::get(&format!("/login?once={good}"))).await.with(429);
    ground.restart();
    ground.call(Call::get(&format!("/login?once={good}"))).await.with(429);
}

/// What a page of another origin can make a browser send, and what it cannot.
#[tokio::test]
async fn a_session_changes_something_only_from_its_own_page() {
    let ground = Ground::new().await;
    ground.layer("a", "thing", json!({}), json!({})).await;
    let cookie = ground.session().await;
    let me = ground.call(Call::get(ME).header("cookie", &cookie)).await.with(200).json();
    let csrf = me["csrf"].as_str().unwrap().to_owned();
    let suspend = "/api/v1/namespaces/a/layers/thing/suspend";
    let ours = format!("http://{HOST}");
    let call = |origin: Option<&str>, site: Option<&str>, token: Option<&str>| {
        let mut call = Call::post(suspend).header("cookie", &cookie);
        for (name, value) in [("origin", origin), ("sec-fetch-site", site), ("x-terrane-csrf", token)] {
            if let Some(value) = value {
                call = call.header(name, value);
            }
        }
        call
    };
    let token = Some(csrf.as_str());
    for (origin, site, token) in [
        (None, None, None),
        (None, None, token),
        (Some("http://evil.example"), None, token),
        (Some("http://evil.example"), Some("cross-site"), token),
        (Some("null"), None, token),
        (Some(""), None, token),
        (Some("http://127.0.0.1:8081"), None, token),
        (Some("http://127.0.0.1"), None, token),
        (Some("http://127.0.0.1:8080.evil.example"), None, token),
        (Some("http://localhost:8080"), None, token),
        (Some("ftp://127.0.0.1:8080"), None, token),
        (Some(&*ours), Some("cross-site"), token),
        (Some(&*ours), Some("same-site"), token),
        (Some(&*ours), Some("none"), token),
        (Some(&*ours), None, None),
        (Some(&*ours), None, Some("")),
        (Some(&*ours), None, Some("guess")),
        (Some(&*ours), Some("same-origin"), Some(&"0".repeat(64))),
    ] {
        let answer = ground.call(call(origin, site, token)).await;
        assert_eq!(answer.status.as_u16(), 403, "{origin:?} {site:?} {token:?}: {answer:#?}");
    }
    let layers = kube::Api::<api::TerraformLayer>::namespaced(ground.client.clone(), "a");
    assert!(!layers.get("thing").await.unwrap().spec.suspend, "nothing was changed");
    ground.call(call(Some(&ours), Some("same-origin"), token)).await.with(200);
    assert!(layers.get("thing").await.unwrap().spec.suspend);
    // Another session's word is none.
    let other = ground.session().await;
    let foreign =
        Call::post(suspend).header("cookie", &other).header("origin", &ours).header("x-terrane-csrf", &csrf);
    ground.call(foreign).await.with(403);
    // What only reads needs none of it, and no answer lets another origin read it.
    let answer = ground
        .call(Call::get("/api/v1/layers").header("cookie", &cookie).header("origin", "http://evil.example"));
    let answer = answer.await.with(200);
    assert_eq!(answer.header("access-control-allow-origin"), "");
    assert_eq!(answer.header("cross-origin-resource-policy"), "same-origin");
    let preflight = Call::new(Method::OPTIONS, suspend).header("origin", "http://evil.example");
    let preflight = ground.call(preflight.header("access-control-request-method", "POST")).await.with(405);
    assert_eq!(preflight.header("access-control-allow-origin"), "");
}
