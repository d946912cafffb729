//! Discovery and OpenAPI.

use kube::discovery::{Discovery, verbs};
use serde_json::json;

use crate::harness::{Api, widgets};

#[tokio::test]
async fn kube_discovers_built_in_and_custom_kinds_in_both_forms() {
    let api = Api::start().await;
    api.define(&widgets()).await;
    for discovery in [
        Discovery::new(api.client()).run().await.unwrap(),
        Discovery::new(api.client()).run_aggregated().await.unwrap(),
    ] {
        let group = discovery.get("example.dev").unwrap();
        let (resource, capabilities) = group.recommended_kind("Widget").unwrap();
        assert_eq!((resource.plural.as_str(), resource.api_version.as_str()), ("widgets", "example.dev/v1"));
        assert!(capabilities.supports_operation(verbs::WATCH));
        assert!(discovery.get("").unwrap().recommended_kind("Pod").is_some());
        assert!(discovery.get("batch").unwrap().recommended_kind("Job").is_some());
    }
}

#[tokio::test]
async fn openapi_documents_hold_what_they_refer_to() {
    let api = Api::start().await;
    api.define(&widgets()).await;
    let index = api.get("/openapi/v3").await.object();
    for path in ["api/v1", "apis/batch/v1", "apis/example.dev/v1"] {
        let url = index["paths"][path]["serverRelativeURL"].as_str().unwrap();
        let document = api.get(url).await.object();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let text = document.to_string();
        for reference in text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next())
        {
            assert!(schemas.contains_key(reference), "{path} refers to {reference}");
        }
    }
    let document = api.get("/openapi/v3/apis/example.dev/v1").await.object();
    let patch = &document["paths"]["/apis/example.dev/v1/namespaces/{namespace}/widgets/{name}"]["patch"];
    assert_eq!(
        patch["x-kubernetes-group-version-kind"],
        json!({"group": "example.dev", "version": "v1", "kind": "Widget"})
    );
    assert!(patch["parameters"].as_array().unwrap().iter().any(|p| p["name"] == "fieldValidation"));
}

#[tokio::test]
async fn health_and_version_answer() {
    let api = Api::start().await;
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(api.get(path).await.text, "ok");
    }
    let version = api.get("/version").await.object();
    assert_eq!(
        (&version["major"], &version["minor"], &version["gitVersion"]),
        (&json!("1"), &json!("36"), &json!("v1.36.3"))
    );
}
