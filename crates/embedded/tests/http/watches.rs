//! Watches.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use http::Request;
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{WatchEvent, WatchParams};
use kube::runtime::watcher;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::harness::{Api, MAPS, config_map};

/// Everything that a watch says until it ends.
async fn events(api: &Api, query: &str) -> Vec<Value> {
    let answer = api.get(&format!("{MAPS}?watch=1&{query}")).await;
    assert_eq!(answer.code, 200, "{}", answer.text);
    answer.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn told(events: &[Value]) -> Vec<(String, String)> {
    let name = |event: &Value| event["object"]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    events.iter().map(|event| (event["type"].as_str().unwrap().to_owned(), name(event))).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(how, name)| ((*how).to_owned(), (*name).to_owned())).collect()
}

#[tokio::test]
async fn a_watch_tells_the_state_then_the_changes() {
    let api = Api::start().await;
    api.post(MAPS, &config_map("a")).await.object();
    let maps: kube::Api<ConfigMap> = kube::Api::default_namespaced(api.client());
    let mut stream =
        maps.watch(&WatchParams::default().disable_bookmarks().timeout(10), "0").await.unwrap().boxed();
    let WatchEvent::Added(first) = stream.try_next().await.unwrap().unwrap() else {
        panic!("the state comes first")
    };
    assert_eq!(first.metadata.name.as_deref(), Some("a"));
    api.patch(&format!("{MAPS}/a"), "merge-patch+json", &json!({"data": {"b": "2"}})).await.object();
    let WatchEvent::Modified(changed) = stream.try_next().await.unwrap().unwrap() else {
        panic!("then what changes")
    };
    assert_eq!(changed.data.unwrap()["b"], "2");
    api.delete(&format!("{MAPS}/a"), &Value::Null).await.object();
    let WatchEvent::Deleted(gone) = stream.try_next().await.unwrap().unwrap() else {
        panic!("then that it is gone")
    };
    assert_ne!(gone.metadata.resource_version, changed.metadata.resource_version);
}

#[tokio::test]
async fn a_watch_resumes_where_a_list_ended_and_selects() {
    let api = Api::start().await;
    let start = api.get(MAPS).await.object()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let label = |value: &str| json!({"metadata": {"labels": {"x": value}}});
    api.post(MAPS, &config_map("a")).await.object();
    for value in ["1", "2", "1"] {
        api.patch(&format!("{MAPS}/a"), "merge-patch+json", &label(value)).await.object();
    }
    api.post(MAPS, &config_map("b")).await.object();
    api.delete(&format!("{MAPS}/a"), &Value::Null).await.object();
    let from = format!("timeoutSeconds=1&resourceVersion={start}");
    let all = events(&api, &from).await;
    let expected = [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("MODIFIED", "a"),
        ("MODIFIED", "a"),
        ("ADDED", "b"),
        ("DELETED", "a"),
    ];
    assert_eq!(told(&all), pairs(&expected));
    let selected = events(&api, &format!("{from}&labelSelector=x%3D1")).await;
    assert_eq!(told(&selected), pairs(&[("ADDED", "a"), ("DELETED", "a"), ("ADDED", "a"), ("DELETED", "a")]));
    assert_eq!(selected[1]["object"]["metadata"]["labels"]["x"], "1");
    assert_eq!(
        told(&events(&api, &format!("{from}&fieldSelector=metadata.name%3Db")).await),
        pairs(&[("ADDED", "b")])
    );
}

#[tokio::test]
async fn a_watch_that_always_has_events_ends_in_time() {
    let api = Api::start().await;
    // More than a watch is given at once, so that there are always some that wait for it.
    let names: Vec<String> = (0..1200).map(|number| format!("map-{number}")).collect();
    let maps: Vec<Value> = names.iter().map(|name| config_map(name)).collect();
    for answer in futures::future::join_all(maps.iter().map(|map| api.post(MAPS, map))).await {
        answer.object();
    }
    let path = format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion=1");
    let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
    let mut body = api.router.clone().oneshot(request).await.unwrap().into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let told = first.iter().filter(|byte| **byte == b'\n').count();
    assert!(told < names.len(), "all {told} came at once, so nothing is left to come late");
    // A watch of the same length that begins later and has nothing to tell: when it ends, the time of the first is over.
    assert!(events(&api, "timeoutSeconds=1&fieldSelector=metadata.name%3Dnothing").await.is_empty());
    assert!(body.frame().await.is_none(), "its time is over, whatever else there is to tell");
}

#[tokio::test]
async fn an_expired_revision_is_an_event_not_an_error() {
    let api = Api::start().await;
    for name in ["a", "b"] {
        api.post(MAPS, &config_map(name)).await.object();
    }
    let newest: u64 =
        api.get(MAPS).await.object()["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    api.store.compact(newest).await.unwrap();
    let events = events(&api, "timeoutSeconds=1&resourceVersion=1").await;
    assert_eq!(events.len(), 1);
    assert_eq!(
        (&events[0]["type"], &events[0]["object"]["code"], &events[0]["object"]["reason"]),
        (&json!("ERROR"), &json!(410), &json!("Expired"))
    );
    assert!(events[0]["object"]["message"].as_str().unwrap().starts_with("too old resource version: 1 ("));
}

#[tokio::test]
async fn bookmarks_come_when_asked_for() {
    let api = Api::with(|options| options.bookmark_interval = Duration::from_millis(50)).await;
    api.post(MAPS, &config_map("a")).await.object();
    let query =
        "timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let events = events(&api, query).await;
    assert_eq!(events[0]["type"], "ADDED");
    assert_eq!(events[1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert!(events.len() > 2 && events[2]["type"] == "BOOKMARK", "{events:?}");
    assert_eq!(
        (&events[2]["object"]["kind"], &events[2]["object"]["apiVersion"]),
        (&json!("ConfigMap"), &json!("v1"))
    );
}

#[tokio::test]
async fn kubes_watcher_streams_its_list() {
    let api = Api::start().await;
    api.post(MAPS, &config_map("a")).await.object();
    let maps: kube::Api<ConfigMap> = kube::Api::default_namespaced(api.client());
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let mut stream = watcher(maps.clone(), config).boxed();
        let mut seen = Vec::new();
        while let Some(event) = stream.try_next().await.unwrap() {
            match event {
                watcher::Event::InitApply(map) => seen.push(map.metadata.name.unwrap()),
                watcher::Event::InitDone => break,
                watcher::Event::Init | watcher::Event::Apply(_) | watcher::Event::Delete(_) => {}
            }
        }
        assert_eq!(seen, ["a"]);
    }
}

#[tokio::test]
async fn too_many_watches_are_told_to_come_back() {
    let api = Api::with(|options| options.max_watches = 1).await;
    let request = || Request::get(format!("{MAPS}?watch=1")).body(axum::body::Body::empty()).unwrap();
    api.post(MAPS, &config_map("a")).await.object();
    let mut first = api.router.clone().oneshot(request()).await.unwrap().into_body();
    first.frame().await.unwrap().unwrap();
    let refused = api.send(request()).await;
    assert_eq!((refused.code.as_u16(), &refused.headers["retry-after"]), (429, &"1".parse().unwrap()));
    drop(first);
    assert_eq!(api.router.clone().oneshot(request()).await.unwrap().status(), 200);
}
