//! What a server says about itself: groups, resources, schemas, version, health.

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};

use crate::{Call, Scope};

cases!("discovery": legacy_core_versions, legacy_groups, group_document, core_resources, batch_resources, unknown_group, unknown_version,
    aggregated_core, aggregated_groups, openapi_index, openapi_core, openapi_v2, openapi_v2_protobuf, version, health, unknown_path, terrane_group);

const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

fn find<'a>(list: &'a Value, key: &str, name: &str) -> &'a Value {
    list.as_array().into_iter().flatten().find(|item| item[key] == name).unwrap_or(&Value::Null)
}

async fn legacy_core_versions(s: Scope) -> Result<()> {
    let found = s.get("/api").await?.code(200)?;
    same!(found["kind"], "APIVersions");
    same!(found["versions"], json!(["v1"]));
    Ok(())
}

async fn legacy_groups(s: Scope) -> Result<()> {
    let found = s.get("/apis").await?.code(200)?;
    same!(found["kind"], "APIGroupList");
    for (group, version) in [
        ("batch", "v1"),
        ("coordination.k8s.io", "v1"),
        ("events.k8s.io", "v1"),
        ("rbac.authorization.k8s.io", "v1"),
        ("networking.k8s.io", "v1"),
        ("authentication.k8s.io", "v1"),
        ("authorization.k8s.io", "v1"),
        ("apiextensions.k8s.io", "v1"),
    ] {
        same!(find(&found["groups"], "name", group)["preferredVersion"]["version"], version);
    }
    Ok(())
}

async fn group_document(s: Scope) -> Result<()> {
    let found = s.get("/apis/batch").await?.code(200)?;
    same!(found["kind"], "APIGroup");
    same!(found["versions"], json!([{"groupVersion": "batch/v1", "version": "v1"}]));
    same!(found["preferredVersion"], json!({"groupVersion": "batch/v1", "version": "v1"}));
    Ok(())
}

async fn core_resources(s: Scope) -> Result<()> {
    let found = s.get("/api/v1").await?.code(200)?;
    same!(found["kind"], "APIResourceList");
    same!(found["groupVersion"], "v1");
    let pods = find(&found["resources"], "name", "pods");
    same!(pods["kind"], "Pod");
    same!(pods["namespaced"], true);
    same!(pods["singularName"], "pod");
    same!(pods["shortNames"], json!(["po"]));
    same!(pods["categories"], json!(["all"]));
    same!(
        pods["verbs"],
        json!(["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"])
    );
    same!(find(&found["resources"], "name", "namespaces")["namespaced"], false);
    same!(find(&found["resources"], "name", "pods/status")["verbs"], json!(["get", "patch", "update"]));
    same!(find(&found["resources"], "name", "serviceaccounts/token")["kind"], "TokenRequest");
    same!(find(&found["resources"], "name", "configmaps")["shortNames"], json!(["cm"]));
    Ok(())
}

async fn batch_resources(s: Scope) -> Result<()> {
    let found = s.get("/apis/batch/v1").await?.code(200)?;
    same!(found["groupVersion"], "batch/v1");
    same!(find(&found["resources"], "name", "jobs")["categories"], json!(["all"]));
    same!(find(&found["resources"], "name", "jobs/status")["verbs"], json!(["get", "patch", "update"]));
    Ok(())
}

async fn unknown_group(s: Scope) -> Result<()> {
    same!(s.get("/apis/nowhere.example.com").await?.code, 404);
    same!(s.get("/apis/nowhere.example.com/v1").await?.code, 404);
    let answer = s.get("/apis/nowhere.example.com/v1/things").await?;
    same!(answer.code, 404);
    same!(answer.text(), "404 page not found\n");
    Ok(())
}

async fn unknown_version(s: Scope) -> Result<()> {
    let answer = s.get("/apis/batch/v9/jobs").await?;
    same!(answer.code, 404);
    let answer = s.get("/api/v1/unicorns").await?;
    answer.refused(404, "NotFound", "the server could not find the requested resource")?;
    Ok(())
}

async fn aggregated_core(s: Scope) -> Result<()> {
    let answer = s.call(Call::new(Method::GET, "/api").accept(AGGREGATED)).await?;
    same!(
        answer.header("content-type"),
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    );
    let found = answer.code(200)?;
    same!(found["kind"], "APIGroupDiscoveryList");
    let pods = find(&found["items"][0]["versions"][0]["resources"], "resource", "pods");
    same!(pods["responseKind"], json!({"group": "", "version": "", "kind": "Pod"}));
    same!(pods["scope"], "Namespaced");
    let status = find(&pods["subresources"], "subresource", "status");
    same!(status["responseKind"], json!({"group": "", "version": "", "kind": "Pod"}));
    let token = find(
        &find(&found["items"][0]["versions"][0]["resources"], "resource", "serviceaccounts")["subresources"],
        "subresource",
        "token",
    )
    .clone();
    same!(
        token["responseKind"],
        json!({"group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest"})
    );
    same!(find(&pods["subresources"], "subresource", "status")["verbs"], json!(["get", "patch", "update"]));
    Ok(())
}

async fn aggregated_groups(s: Scope) -> Result<()> {
    let found = s.call(Call::new(Method::GET, "/apis").accept(AGGREGATED)).await?.code(200)?;
    let batch = found["items"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|item| item["metadata"]["name"] == "batch")
        .cloned()
        .unwrap_or_default();
    same!(batch["versions"][0]["version"], "v1");
    same!(batch["versions"][0]["freshness"], "Current");
    let jobs = find(&batch["versions"][0]["resources"], "resource", "jobs").clone();
    same!(jobs["singularResource"], "job");
    same!(jobs["responseKind"], json!({"group": "", "version": "", "kind": "Job"}));
    let terrane = found["items"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|item| item["metadata"]["name"] == "terrane.dev");
    let terrane = terrane.cloned().unwrap_or_default();
    let layers = find(&terrane["versions"][0]["resources"], "resource", "terraformlayers").clone();
    same!(
        layers["responseKind"],
        json!({"group": "terrane.dev", "version": "v1alpha1", "kind": "TerraformLayer"})
    );
    Ok(())
}

async fn openapi_index(s: Scope) -> Result<()> {
    // A definition's schema is published a moment after it is served.
    let found = s
        .until("/openapi/v3", |answer| answer.text().contains("apis/terrane.dev/v1alpha1"))
        .await?
        .code(200)?;
    for path in ["api/v1", "apis/batch/v1", "apis/terrane.dev/v1alpha1"] {
        let url = found["paths"][path]["serverRelativeURL"].as_str().unwrap_or_default();
        holds!(url.starts_with(&format!("/openapi/v3/{path}?hash=")), "{url}");
    }
    Ok(())
}

async fn openapi_core(s: Scope) -> Result<()> {
    let found = s.get("/openapi/v3/api/v1").await?.code(200)?;
    let pod = &found["components"]["schemas"]["io.k8s.api.core.v1.Pod"];
    same!(pod["x-kubernetes-group-version-kind"], json!([{"group": "", "kind": "Pod", "version": "v1"}]));
    holds!(found["paths"]["/api/v1/namespaces/{namespace}/pods"].is_object(), "no path for pods");
    Ok(())
}

async fn openapi_v2(s: Scope) -> Result<()> {
    let found = s.until("/openapi/v2", |answer| answer.text().contains("TerraformLayer")).await?.code(200)?;
    same!(found["swagger"], "2.0");
    let pod = &found["definitions"]["io.k8s.api.core.v1.Pod"];
    same!(pod["x-kubernetes-group-version-kind"], json!([{"group": "", "kind": "Pod", "version": "v1"}]));
    same!(pod["properties"]["spec"]["$ref"], "#/definitions/io.k8s.api.core.v1.PodSpec");
    let layer = &found["definitions"]["dev.terrane.v1alpha1.TerraformLayer"];
    same!(layer["properties"]["spec"]["properties"]["path"]["type"], "string");
    let patch = &found["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
    same!(patch["x-kubernetes-group-version-kind"], json!({"group": "", "kind": "Pod", "version": "v1"}));
    Ok(())
}

async fn openapi_v2_protobuf(s: Scope) -> Result<()> {
    let asked = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let answer = s.call(Call::new(Method::GET, "/openapi/v2").accept(asked)).await?;
    same!(
        (answer.code, answer.header("content-type")),
        (200, "application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
    );
    holds!(answer.body.starts_with(b"\x0a\x032.0"), "no document");
    Ok(())
}

async fn version(s: Scope) -> Result<()> {
    let found = s.get("/version").await?.code(200)?;
    same!(found["major"], "1");
    for key in
        ["minor", "gitVersion", "platform", "goVersion", "buildDate", "compiler", "gitCommit", "gitTreeState"]
    {
        holds!(found[key].is_string(), "{key}: {found}");
    }
    Ok(())
}

async fn health(s: Scope) -> Result<()> {
    for path in ["/healthz", "/livez", "/readyz"] {
        let answer = s.get(path).await?;
        same!((answer.code, answer.text()), (200, "ok".to_owned()));
    }
    Ok(())
}

async fn unknown_path(s: Scope) -> Result<()> {
    let answer = s.get("/no/such/path").await?;
    same!(answer.code, 404);
    let answer = s.get("/api/v2/pods").await?;
    same!(answer.code, 404);
    Ok(())
}

async fn terrane_group(s: Scope) -> Result<()> {
    let found = s.get("/apis/terrane.dev/v1alpha1").await?.code(200)?;
    let layers = find(&found["resources"], "name", "terraformlayers");
    same!(layers["shortNames"], json!(["tfl"]));
    same!(layers["categories"], json!(["terrane"]));
    same!(layers["kind"], "TerraformLayer");
    same!(
        layers["verbs"],
        json!(["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"])
    );
    same!(
        find(&found["resources"], "name", "terraformlayers/status")["verbs"],
        json!(["get", "patch", "update"])
    );
    Ok(())
}
