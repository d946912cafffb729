//! A writer that is held in the middle of a write: nobody who reads notices.

use std::time::Duration;

use futures::FutureExt;
use http_body_util::BodyExt;
use tower::ServiceExt;

use super::*;
use crate::auth::{Authorizer, Identity, as_identity};

#[tokio::test]
async fn reads_do_not_wait_for_writes() {
    let place = Place::new();
    let gate = Gate::default();
    let store = place.open_with(Options { gate: gate.clone(), ..Options::default() });
    let authorizer = Arc::new(Authorizer::new(store.clone()));
    let router = crate::http::router(store.clone(), crate::http::Options::new(authorizer));
    let router = as_identity(router, Identity::administrator());
    let namespace = json!({"metadata": {"name": "default"}}).to_string();
    let create_namespace =
        http::Request::post("/api/v1/namespaces").body(axum::body::Body::from(namespace)).unwrap();
    assert_eq!(router.clone().oneshot(create_namespace).await.unwrap().status(), 201);
    write(&store, create(&pod("a"), 0)).await;

    let held = gate.0.lock().await;
    let mut stuck = Box::pin(one(&store, create(&pod("b"), 0)));
    assert!((&mut stuck).now_or_never().is_none(), "it is with the writer");
    let reads = async {
        for path in ["/api/v1/namespaces/default", "/api/v1/namespaces", "/api/v1/namespaces?watch=1"] {
            let request = http::Request::get(path).body(axum::body::Body::empty()).unwrap();
            let answer = router.clone().oneshot(request).await.unwrap();
            assert_eq!(answer.status(), 200, "{path}");
            let first = answer.into_body().frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(String::from_utf8_lossy(&first).contains("\"default\""), "{path}");
        }
        assert!(store.snapshot().get(&pod("a")).is_some());
        assert!(store.snapshot().get(&pod("b")).is_none(), "what is not written is not seen");
        let mut watch = store.watch(&pods(), 0).unwrap();
        assert_eq!(watch.next().await.unwrap().len(), 1);
    };
    tokio::time::timeout(Duration::from_secs(60), reads).await.expect("a read waits for the writer");
    assert!((&mut stuck).now_or_never().is_none(), "the writer was held all the time");
    drop(held);
    stuck.await.unwrap();
    assert!(store.snapshot().get(&pod("b")).is_some());
}
