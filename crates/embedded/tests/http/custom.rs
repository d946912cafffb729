//! Custom resources: schema, defaults, status, versions, and a schema that changes under stored objects.

use serde_json::json;

use crate::harness::{Api, WIDGETS, widget, widgets};

#[tokio::test]
async fn objects_are_defaulted_validated_and_pruned() {
    let api = Api::start().await;
    api.define(&widgets()).await;
    let mut sent = widget("a", 3);
    sent["spec"]["extra"] = 1.into();
    sent["status"] = json!({"phase": "x"});
    let answer = api.post(WIDGETS, &sent).await;
    assert_eq!(answer.warnings(), ["299 - \"unknown field \\\"spec.extra\\\"\""]);
    let created = answer.object();
    assert_eq!(created["spec"], json!({"size": 3, "color": "red"}));
    assert_eq!((created.get("status"), &created["metadata"]["generation"]), (None, &json!(1)));
    let (code, message) = api.post(&format!("{WIDGETS}?fieldValidation=Strict"), &sent).await.refusal();
    assert_eq!(code, 400);
    assert_eq!(
        message,
        "Widget in version \"v1\" cannot be handled as a Widget: strict decoding error: unknown field \"spec.extra\""
    );
    let (code, message) = api.post(WIDGETS, &widget("b", 10)).await.refusal();
    assert_eq!(code, 422);
    assert_eq!(
        message,
        "Widget.example.dev \"b\" is invalid: spec.size: Invalid value: 10: spec.size in body should be less than or equal to 9"
    );
}

#[tokio::test]
async fn status_and_spec_are_written_apart_and_only_the_spec_counts() {
    let api = Api::start().await;
    api.define(&widgets()).await;
    api.post(WIDGETS, &widget("a", 3)).await.object();
    let path = format!("{WIDGETS}/a");
    let main = api
        .patch(&path, "merge-patch+json", &json!({"status": {"phase": "x"}, "spec": {"size": 4}}))
        .await
        .object();
    assert_eq!(
        (main.get("status"), &main["spec"]["size"], &main["metadata"]["generation"]),
        (None, &json!(4), &json!(2))
    );
    let patch = json!({"status": {"phase": "x"}, "spec": {"size": 5}, "metadata": {"labels": {"a": "b"}}});
    let status = api.patch(&format!("{path}/status"), "merge-patch+json", &patch).await.object();
    assert_eq!((&status["status"]["phase"], &status["spec"]["size"]), (&json!("x"), &json!(4)));
    assert_eq!((&status["metadata"]["generation"], status["metadata"].get("labels")), (&json!(2), None));
    let labelled =
        api.patch(&path, "merge-patch+json", &json!({"metadata": {"labels": {"a": "b"}}})).await.object();
    assert_eq!(labelled["metadata"]["generation"], 2);
}

#[tokio::test]
async fn an_update_needs_a_revision() {
    let api = Api::start().await;
    api.define(&widgets()).await;
    api.post(WIDGETS, &widget("a", 3)).await.object();
    let (code, message) = api.put(&format!("{WIDGETS}/a"), &widget("a", 4)).await.refusal();
    assert_eq!(code, 422);
    assert_eq!(
        message,
        "widgets.example.dev \"a\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update"
    );
}

#[tokio::test]
async fn all_served_versions_show_the_same_object() {
    let api = Api::start().await;
    let mut definition = widgets();
    let mut second = definition["spec"]["versions"][0].clone();
    second["name"] = "v2".into();
    second["storage"] = false.into();
    definition["spec"]["versions"].as_array_mut().unwrap().push(second);
    api.define(&definition).await;
    api.post(WIDGETS, &widget("a", 3)).await.object();
    let path = WIDGETS.replace("/v1/", "/v2/");
    let shown = api.get(&format!("{path}/a")).await.object();
    assert_eq!((&shown["apiVersion"], &shown["spec"]["size"]), (&json!("example.dev/v2"), &json!(3)));
    let list = api.get(&path).await.object();
    assert_eq!(
        (&list["apiVersion"], &list["items"][0]["apiVersion"]),
        (&json!("example.dev/v2"), &json!("example.dev/v2"))
    );
    let mut other = widget("b", 4);
    other["apiVersion"] = "example.dev/v2".into();
    api.post(&path, &other).await.object();
    assert_eq!(api.get(&format!("{WIDGETS}/b")).await.object()["apiVersion"], "example.dev/v1");
}

#[tokio::test]
async fn a_default_that_comes_later_shows_in_what_was_stored_before() {
    let api = Api::start().await;
    api.define(&widgets()).await;
    api.post(WIDGETS, &widget("a", 3)).await.object();
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.dev";
    let mut definition = api.get(path).await.object();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["shape"] =
        json!({"type": "string", "default": "round"});
    api.put(path, &definition).await.object();
    assert_eq!(api.get(&format!("{WIDGETS}/a")).await.object()["spec"]["shape"], "round");
    assert_eq!(api.get(WIDGETS).await.object()["items"][0]["spec"]["shape"], "round");
}

#[tokio::test]
async fn a_definition_is_served_once_established_and_refused_when_wrong() {
    let api = Api::start().await;
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    api.post(path, &widgets()).await.object();
    assert_eq!(api.get(WIDGETS).await.code, 404);
    let mut wrong = widgets();
    wrong["metadata"]["name"] = "other".into();
    let (code, message) = api.post(path, &wrong).await.refusal();
    assert_eq!(code, 422);
    assert_eq!(
        message,
        "CustomResourceDefinition.apiextensions.k8s.io \"other\" is invalid: metadata.name: Invalid value: \"other\": must be spec.names.plural+\".\"+spec.group"
    );
}
