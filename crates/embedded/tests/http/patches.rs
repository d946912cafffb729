//! The four kinds of patch.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::harness::{Api, MAPS, PODS, WIDGETS, config_map, pod, widget, widgets};

#[tokio::test]
async fn kube_applies_server_side_and_conflicts_name_the_owner() {
    let api = Api::start().await;
    let maps: kube::Api<ConfigMap> = kube::Api::default_namespaced(api.client());
    let config = |value: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": value}});
    let created = maps.patch("a", &PatchParams::apply("one"), &Patch::Apply(config("1"))).await.unwrap();
    let again = maps.patch("a", &PatchParams::apply("one"), &Patch::Apply(config("1"))).await.unwrap();
    assert_eq!(again.metadata.resource_version, created.metadata.resource_version);
    let refused = maps.patch("a", &PatchParams::apply("two"), &Patch::Apply(config("2"))).await.unwrap_err();
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert_eq!(
        (status.code, status.message.as_str()),
        (409, "Apply failed with 1 conflict: conflict with \"one\": .data.k")
    );
    let forced =
        maps.patch("a", &PatchParams::apply("two").force(), &Patch::Apply(config("2"))).await.unwrap();
    assert_eq!(forced.data.unwrap()["k"], "2");
    let less = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let removed = maps.patch("a", &PatchParams::apply("two"), &Patch::Apply(less)).await.unwrap();
    assert_eq!(removed.data, None);
}

#[tokio::test]
async fn lists_keyed_by_name_have_owners_by_element() {
    let api = Api::start().await;
    api.define(&widgets()).await;
    let part = |name: &str| json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1, "parts": [{"name": name}]}});
    api.patch(&format!("{WIDGETS}/w?fieldManager=one"), "apply-patch+yaml", &part("a")).await.object();
    let both =
        api.patch(&format!("{WIDGETS}/w?fieldManager=two"), "apply-patch+yaml", &part("b")).await.object();
    assert_eq!(both["spec"]["parts"], json!([{"name": "a"}, {"name": "b"}]));
    let (code, message) = api
        .patch(&format!("{WIDGETS}/x?fieldManager=one"), "apply-patch+yaml", &widget("y", 1))
        .await
        .refusal();
    assert_eq!(
        (code, message.as_str()),
        (400, "the name of the object (y) does not match the name on the URL (x)")
    );
}

#[tokio::test]
async fn json_and_merge_patches_change_and_are_refused() {
    let api = Api::start().await;
    api.post(MAPS, &config_map("a")).await.object();
    let path = format!("{MAPS}/a");
    let patch = json!([{"op": "test", "path": "/data/a", "value": "1"}, {"op": "add", "path": "/data/b", "value": "2"}]);
    assert_eq!(
        api.patch(&path, "json-patch+json", &patch).await.object()["data"],
        json!({"a": "1", "b": "2"})
    );
    let failed =
        api.patch(&path, "json-patch+json", &json!([{"op": "test", "path": "/data/a", "value": "9"}])).await;
    assert_eq!(
        failed.refusal(),
        (422, "the server rejected our request due to an error in our request".to_owned())
    );
    let merged = api.patch(&path, "merge-patch+json", &json!({"data": {"a": null}})).await.object();
    assert_eq!(merged["data"], json!({"b": "2"}));
    let stale = api.patch(&path, "merge-patch+json", &json!({"metadata": {"resourceVersion": "1"}})).await;
    assert_eq!((stale.code.as_u16(), stale.reason().as_str()), (409, "Conflict"));
    assert_eq!(api.patch(&path, "foo", &json!({})).await.code, 415);
    assert_eq!(api.patch(&format!("{path}?force=true"), "merge-patch+json", &json!({})).await.code, 422);
    assert_eq!(api.patch(&path, "apply-patch+yaml", &config_map("a")).await.code, 422);
}

#[tokio::test]
async fn a_strategic_patch_merges_containers_by_name_and_is_for_built_in_kinds() {
    let api = Api::start().await;
    api.post(PODS, &pod("p")).await.object();
    let image = json!({"spec": {"containers": [{"name": "main", "image": "other:1"}]}});
    let patched = api.patch(&format!("{PODS}/p"), "strategic-merge-patch+json", &image).await.object();
    assert_eq!(patched["spec"]["containers"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&patched["spec"]["containers"][0]["image"], &patched["metadata"]["generation"]),
        (&json!("other:1"), &json!(2))
    );
    api.define(&widgets()).await;
    api.post(WIDGETS, &widget("a", 1)).await.object();
    let (code, message) =
        api.patch(&format!("{WIDGETS}/a"), "strategic-merge-patch+json", &json!({})).await.refusal();
    assert_eq!(code, 415);
    assert_eq!(
        message,
        "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    );
}

#[tokio::test]
async fn patches_that_race_all_count() {
    let api = Api::start().await;
    api.post(MAPS, &config_map("a")).await.object();
    let path = format!("{MAPS}/a");
    let keys: Vec<String> = (0..16).map(|n| format!("k{n}")).collect();
    let patches = keys.iter().map(|key| {
        let (api, path) = (&api, &path);
        async move { api.patch(path, "merge-patch+json", &json!({"data": {key: "1"}})).await.object() }
    });
    futures::future::join_all(patches).await;
    let data = api.get(&path).await.object()["data"].clone();
    assert_eq!(data.as_object().unwrap().len(), 17);
}
