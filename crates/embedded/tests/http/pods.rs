//! What only pods have: binding and logs.

use std::sync::{Arc, Mutex};

use axum::body::Body;
use embedded::http::pod_log::{Error, LogAnswer};
use embedded::http::{LogOptions, PodLogs};
use serde_json::{Value, json};

use crate::harness::{Api, PODS, pod};

#[derive(Default)]
struct Recorded(Mutex<Vec<LogOptions>>);

impl PodLogs for Recorded {
    fn log(&self, pod: &Value, options: LogOptions) -> LogAnswer {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        let previous = options.previous;
        self.0.lock().unwrap().push(options);
        Box::pin(async move {
            if previous {
                return Err(Error::NotThere(format!(
                    "previous terminated container \"main\" in pod {name:?} not found"
                )));
            }
            Ok(Body::from("one\ntwo\n"))
        })
    }
}

#[tokio::test]
async fn a_pod_is_bound_once() {
    let api = Api::start().await;
    api.post(PODS, &pod("p")).await.object();
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    let answer = api.post(&format!("{PODS}/p/binding"), &binding).await;
    assert_eq!((answer.code.as_u16(), &answer.json()["status"]), (201, &json!("Success")));
    let bound = api.get(&format!("{PODS}/p")).await.object();
    assert_eq!(bound["spec"]["nodeName"], "n1");
    let scheduled = bound["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|c| c["type"] == "PodScheduled")
        .unwrap();
    assert_eq!(scheduled["status"], "True");
    let again = api.post(&format!("{PODS}/p/binding"), &binding).await.refusal();
    assert_eq!(
        again,
        (
            409,
            "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"n1\""
                .to_owned()
        )
    );
}

#[tokio::test]
async fn logs_come_from_the_node_with_the_options_that_were_given() {
    let logs = Arc::new(Recorded::default());
    let source = Arc::clone(&logs);
    let api = Api::with(|options| options.logs = Some(source)).await;
    let mut object = pod("p");
    object["spec"]["nodeName"] = "n".into();
    api.post(PODS, &object).await.object();
    let answer = api
        .get(&format!("{PODS}/p/log?follow=true&tailLines=5&timestamps=true&sinceTime=2026-01-01T00:00:00Z"))
        .await;
    assert_eq!(
        (answer.text.as_str(), &answer.headers["content-type"]),
        ("one\ntwo\n", &"text/plain".parse().unwrap())
    );
    let expected = LogOptions {
        container: "main".to_owned(),
        follow: true,
        previous: false,
        timestamps: true,
        tail_lines: Some(5),
        limit_bytes: None,
        since: Some("2026-01-01T00:00:00Z".parse().unwrap()),
    };
    assert_eq!(*logs.0.lock().unwrap(), [expected]);
    let (code, message) = api.get(&format!("{PODS}/p/log?previous=true")).await.refusal();
    assert_eq!(
        (code, message.as_str()),
        (400, "previous terminated container \"main\" in pod \"p\" not found")
    );
}

#[tokio::test]
async fn what_would_connect_with_a_container_is_refused_in_words() {
    let api = Api::start().await;
    api.post(PODS, &pod("p")).await.object();
    for subresource in ["exec", "attach", "portforward", "proxy"] {
        let answer = api.get(&format!("{PODS}/p/{subresource}?command=sh")).await;
        assert_eq!(answer.reason(), "MethodNotAllowed");
        let (code, message) = answer.refusal();
        assert_eq!(code, 405);
        assert!(message.starts_with(&format!("pods/{subresource} is not served: ")), "{message}");
    }
    let unknown = api.get(&format!("{PODS}/p/else")).await.refusal();
    assert_eq!(unknown, (404, "the server could not find the requested resource".to_owned()));
}

#[tokio::test]
async fn bad_log_options_are_refused() {
    let api = Api::start().await;
    let mut object = pod("p");
    object["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "side", "image": "i"}));
    object["spec"]["initContainers"] = json!([{"name": "init", "image": "i"}]);
    api.post(PODS, &object).await.object();
    for (query, code, message) in [
        (
            "",
            400,
            "a container name must be specified for pod p, choose one of: [main side] or one of the init containers: [init]",
        ),
        ("?container=x", 400, "container x is not valid for pod p"),
        (
            "?container=main&tailLines=-1",
            422,
            "PodLogOptions \"p\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0",
        ),
    ] {
        assert_eq!(api.get(&format!("{PODS}/p/log{query}")).await.refusal(), (code, message.to_owned()));
    }
    assert_eq!(api.get(&format!("{PODS}/p/log?container=main")).await.code, 204);
}
