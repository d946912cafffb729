//! Tables.

use serde_json::json;

use crate::harness::{Api, PODS, WIDGETS, pod, widget, widgets};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

#[tokio::test]
async fn pods_and_custom_resources_have_their_columns() {
    let api = Api::start().await;
    api.post(PODS, &pod("p")).await.object();
    let table = api.get_as(PODS, TABLE).await.object();
    let columns: Vec<&str> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(
        columns,
        ["Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates"]
    );
    assert_eq!(
        table["rows"][0]["cells"].as_array().unwrap()[..4].to_vec(),
        [json!("p"), json!("0/1"), json!("Pending"), json!("0")]
    );
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    api.define(&widgets()).await;
    api.post(WIDGETS, &widget("w", 3)).await.object();
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    api.patch(&format!("{WIDGETS}/w/status"), "merge-patch+json", &status).await.object();
    let table = api.get_as(&format!("{WIDGETS}/w?includeObject=Object"), TABLE).await.object();
    assert_eq!(table["rows"][0]["cells"], json!(["w", 3, "True"]));
    assert_eq!(table["rows"][0]["object"]["kind"], "Widget");
}
