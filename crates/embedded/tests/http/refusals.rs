//! Bad input: each gets the answer that a cluster gives, and nothing falls over.

use axum::body::Body;
use http::Request;
use http::header;
use serde_json::json;

use crate::harness::{Api, MAPS, PODS, config_map, pod};

#[tokio::test]
async fn bodies_that_are_no_objects_are_refused() {
    let api = Api::start().await;
    for (body, message) in [
        (
            "{",
            "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input ({)",
        ),
        (
            "x",
            "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: invalid character 'x' looking for beginning of value (78)",
        ),
    ] {
        let answer = api.send(Request::post(MAPS).body(Body::from(body)).unwrap()).await;
        assert_eq!(answer.refusal(), (400, message.to_owned()));
    }
    let yaml = Request::post(MAPS)
        .header(header::CONTENT_TYPE, "application/yaml")
        .body(Body::from("metadata: {name: yaml}"))
        .unwrap();
    assert_eq!(api.send(yaml).await.code, 201);
    let xml =
        Request::post(MAPS).header(header::CONTENT_TYPE, "application/xml").body(Body::from("<a/>")).unwrap();
    assert_eq!(api.send(xml).await.code, 415);
    let deep = Request::post(MAPS).body(Body::from("[".repeat(100_000))).unwrap();
    assert_eq!(api.send(deep).await.code, 400);
    let large = Request::post(MAPS).body(Body::from(vec![b' '; 3 * 1024 * 1024 + 1])).unwrap();
    assert_eq!(
        api.send(large).await.refusal(),
        (413, "Request entity too large: limit is 3145728".to_owned())
    );
}

#[tokio::test]
async fn objects_that_do_not_belong_are_refused() {
    let api = Api::start().await;
    for (object, code, message) in [
        (pod("p"), 422, "Pod \"p\" is invalid: spec.containers: Required value"),
        (
            json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}}),
            400,
            "ConfigMap in version \"v1\" cannot be handled as a Pod: converting (v1.ConfigMap) to (core.Pod): unknown conversion",
        ),
        (
            json!({"metadata": {"name": "a", "namespace": "other"}}),
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            json!({"metadata": {"name": 1}}),
            400,
            "Pod in version \"v1\" cannot be handled as a Pod: json: cannot unmarshal number into Go struct field ObjectMeta.metadata.name of type string",
        ),
    ] {
        let mut object = object;
        if let Some(spec) = object.get_mut("spec") {
            spec["containers"] = json!([]);
        }
        assert_eq!(api.post(PODS, &object).await.refusal(), (code, message.to_owned()));
    }
    let nowhere = api.post("/api/v1/namespaces/nowhere/configmaps", &config_map("a")).await.refusal();
    assert_eq!(nowhere, (404, "namespaces \"nowhere\" not found".to_owned()));
}

#[tokio::test]
async fn names_and_labels_are_checked() {
    let api = Api::start().await;
    let long = "a".repeat(254);
    let (code, message) = api.post(MAPS, &config_map(&long)).await.refusal();
    assert_eq!(
        (code, message),
        (
            422,
            format!(
                "ConfigMap {long:?} is invalid: metadata.name: Invalid value: {long:?}: must be no more than 253 characters"
            )
        )
    );
    let (code, message) = api.post(MAPS, &json!({"data": {}})).await.refusal();
    assert_eq!(
        (code, message.as_str()),
        (422, "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required")
    );
    let (code, _) =
        api.post(MAPS, &json!({"metadata": {"name": "a", "labels": {"k": "a b"}}})).await.refusal();
    assert_eq!(code, 422);
}

#[tokio::test]
async fn fields_given_twice_or_unknown_are_warned_of_or_refused() {
    let api = Api::start().await;
    let body = r#"{"metadata":{"name":"a"},"data":{"k":"1","k":"2"},"foo":1}"#;
    let send =
        |query: &str| api.send(Request::post(format!("{MAPS}{query}")).body(Body::from(body)).unwrap());
    let (code, message) = send("?fieldValidation=Strict").await.refusal();
    assert_eq!(code, 400);
    assert_eq!(
        message,
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: duplicate field \"data.k\", unknown field \"foo\""
    );
    let warned = send("?dryRun=All").await;
    assert_eq!(
        warned.warnings(),
        ["299 - \"duplicate field \\\"data.k\\\"\"", "299 - \"unknown field \\\"foo\\\"\""]
    );
    assert!(send("?dryRun=All&fieldValidation=Ignore").await.warnings().is_empty());
}

#[tokio::test]
async fn paths_that_lead_nowhere_say_so() {
    let api = Api::start().await;
    assert_eq!(api.get("/nothing").await.text, "404 page not found\n");
    assert_eq!(api.get("/apis/none.dev/v1/things").await.code, 404);
    assert_eq!(api.get("/api/v1/things").await.message(), "the server could not find the requested resource");
    assert_eq!(
        api.post(&format!("{MAPS}/a"), &json!({})).await.message(),
        "the server does not allow this method on the requested resource"
    );
    assert_eq!(api.get_as(MAPS, "text/html").await.code, 406);
}

#[tokio::test]
async fn services_are_there_to_be_read_and_refuse_to_be_written() {
    const SERVICES: &str = "/api/v1/namespaces/default/services";
    let api = Api::start().await;
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    let named = format!("{SERVICES}/s");
    let patch = |kind: &str| {
        let request = Request::patch(format!("{named}?fieldManager=t")).header(header::CONTENT_TYPE, kind);
        request.body(Body::from(service.to_string())).unwrap()
    };
    for (verb, request) in [
        ("create", Request::post(SERVICES).body(Body::from(service.to_string())).unwrap()),
        ("update", Request::put(&named).body(Body::from(service.to_string())).unwrap()),
        ("patch", patch("application/merge-patch+json")),
        ("patch", patch("application/apply-patch+yaml")),
        ("delete", Request::delete(&named).body(Body::empty()).unwrap()),
        ("deletecollection", Request::delete(SERVICES).body(Body::empty()).unwrap()),
    ] {
        let wanted = format!(
            "{verb} is not supported on services: none is kept here, because nothing would route to one; the containers of a pod are processes of this machine, reached at the ports that they open on it"
        );
        assert_eq!(api.send(request).await.refusal(), (405, wanted));
    }
    assert_eq!(api.get(SERVICES).await.object()["items"], json!([]));
}
