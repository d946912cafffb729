//! Requests to the datastore: an input is a request line, headers, an empty line and a body. Whoever asks is refused or served;
//! the service never fails of its own, and never forgets that somebody else's things are theirs.

use std::sync::Arc;

use api::text::Sha256;
use axum::body::Body;
use datastore::key::Key;
use datastore::service::{Keyring, Options, Reviewer, router};
use testkit::callers::ByName;
use tower::ServiceExt;

use super::fuzz;

/// What an input says, as far as it is a request at all.
pub(super) fn request(input: &[u8]) -> Option<http::Request<Body>> {
    let end = input.windows(2).position(|window| window == b"\n\n").unwrap_or(input.len());
    let (head, body) = input.split_at(end);
    let body = body.get(2..).unwrap_or_default();
    let mut lines = head.split(|byte| *byte == b'\n');
    let mut first = lines.next()?.split(|byte| *byte == b' ');
    let mut request = http::Request::builder().method(first.next()?).uri(first.next()?);
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at(colon);
        request = request.header(name, value.get(1..)?.trim_ascii());
    }
    // An honest digest lets the body be read further than a wrong one would.
    if request.headers_ref()?.get("terrane-sha256").is_some_and(|value| value == "true") {
        let digest = http::HeaderValue::from_str(Sha256::of(body).as_str()).ok()?;
        request.headers_mut()?.insert("terrane-sha256", digest);
    }
    request.body(Body::from(body.to_vec())).ok()
}

#[test]
fn datastore() {
    let place = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let objects = object_store::memory::InMemory::new().into();
    let keys = Keyring::load_or_create(place.path()).unwrap();
    let service = router(Options { objects, keys, reviewer: Arc::new(ByName) });
    fuzz("datastore", |input| {
        if let Some(path) = std::str::from_utf8(input).ok().and_then(|text| text.split(' ').nth(1))
            && let Some(key) = Key::from_path(path)
        {
            assert_eq!(key.path(), path);
        }
        let Some(request) = request(input) else { return };
        let bearer = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        let token = bearer.and_then(|text| text.strip_prefix("Bearer ")).map(str::trim).unwrap_or_default();
        let known = runtime.block_on(ByName.review(token)).is_ok();
        let is_health = request.uri().path() == "/healthz";
        let shown = format!("{} {}", request.method(), request.uri());
        runtime.block_on(async {
            let answer = service.clone().oneshot(request).await.unwrap();
            let status = answer.status();
            assert!(!status.is_server_error(), "{shown}: {status}");
            assert!(known || is_health || !status.is_success(), "{shown}: {status} to nobody");
            // A log that is followed has no end, so a part of the body must do.
            let mut body = answer.into_body().into_data_stream();
            let first = futures::StreamExt::next(&mut body);
            let _ = tokio::time::timeout(std::time::Duration::from_millis(1), first).await;
        });
    });
}
