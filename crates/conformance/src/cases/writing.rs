//! Merge, JSON and strategic-merge patches; dry runs; field validation; malformed bodies.

use anyhow::Result;
use http::Method;
use serde_json::json;

use crate::scope::{JSON_PATCH, MERGE, STRATEGIC, config_map, pod, revision, text};
use crate::{Answer, Call, Scope};

cases!("writing": merge, merge_stale_revision, merge_noop, json_patch, json_patch_test_fails, json_patch_bad_path, json_patch_malformed, strategic_merges_by_key, strategic_deletes, strategic_on_custom,
    unknown_patch_type, patch_missing, merge_malformed, status_patch, dry_run_create, dry_run_update_delete, dry_run_bad, strict_unknown, strict_duplicate, warn_unknown, ignore_unknown, bad_field_validation,
    malformed_json, empty_body, malformed_yaml, yaml_body, unsupported_media, wrong_type, too_large, deep_nesting, patch_renames, patch_changes_uid, not_an_object);

async fn made(s: &Scope) -> Result<String> {
    let ns = s.namespace().await?;
    s.post(&format!("{ns}/configmaps"), &json!({"metadata": {"name": "a"}, "data": {"a": "1", "b": "2"}}))
        .await?
        .code(201)?;
    Ok(format!("{ns}/configmaps/a"))
}

async fn merge(s: Scope) -> Result<()> {
    let path = made(&s).await?;
    let next = s.patch(&path, MERGE, &json!({"data": {"a": null, "c": "3"}})).await?.code(200)?;
    same!(next["data"], json!({"b": "2", "c": "3"}));
    Ok(())
}

async fn merge_stale_revision(s: Scope) -> Result<()> {
    let path = made(&s).await?;
    s.patch(&path, MERGE, &json!({"metadata": {"resourceVersion": "1"}, "data": {"x": "1"}})).await?
        .refused(409, "Conflict", "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again")?;
    Ok(())
}

async fn merge_noop(s: Scope) -> Result<()> {
    let path = made(&s).await?;
    let before = s.get(&path).await?.code(200)?;
    let after = s.patch(&path, MERGE, &json!({"data": {"a": "1"}})).await?.code(200)?;
    same!(revision(&after), revision(&before));
    Ok(())
}

async fn json_patch(s: Scope) -> Result<()> {
    let path = made(&s).await?;
    let next = s.patch(&path, JSON_PATCH, &json!([{"op": "test", "path": "/data/a", "value": "1"}, {"op": "remove", "path": "/data/a"}, {"op": "add", "path": "/data/c", "value": "3"}, {"op": "copy", "from": "/data/b", "path": "/data/d"}])).await?.code(200)?;
    same!(next["data"], json!({"b": "2", "c": "3", "d": "2"}));
    Ok(())
}

async fn json_patch_test_fails(s: Scope) -> Result<()> {
    let path = made(&s).await?;
    s.patch(&path, JSON_PATCH, &json!([{"op": "test", "path": "/data/a", "value": "9"}])).await?.refused(
        422,
        "Invalid",
        "the server rejected our request due to an error in our request",
    )?;
    Ok(())
}

async fn json_patch_bad_path(s: Scope) -> Result<()> {
    let path = made(&s).await?;
    s.patch(&path, JSON_PATCH, &json!([{"op": "remove", "path": "/data/none"}])).await?.refused(
        422,
        "Invalid",
        "the server rejected our request due to an error in our request",
    )?;
    Ok(())
}

async fn json_patch_malformed(s: Scope) -> Result<()> {
    let path = made(&s).await?;
    s.patch(&path, JSON_PATCH, &json!({"op": "remove"})).await?.refused(
        400,
        "BadRequest",
        "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
    )?;
    Ok(())
}

async fn strategic_merges_by_key(s: Scope) -> Result<()> {
    let ns = s.pod_namespace().await?;
    s.post(&format!("{ns}/pods"), &pod("a")).await?.code(201)?;
    let next = s
        .patch(
            &format!("{ns}/pods/a"),
            STRATEGIC,
            &json!({"spec": {"containers": [{"name": "main", "image": "example.com/image:2"}]}}),
        )
        .await?
        .code(200)?;
    same!(next["spec"]["containers"][0]["image"], "example.com/image:2");
    same!(next["spec"]["containers"][0]["imagePullPolicy"], "IfNotPresent");
    Ok(())
}

async fn strategic_deletes(s: Scope) -> Result<()> {
    let path = format!("{}/serviceaccounts/default", s.pod_namespace().await?);
    s.patch(&path, STRATEGIC, &json!({"secrets": [{"name": "s1"}, {"name": "s2"}]})).await?.code(200)?;
    let account = s
        .patch(&path, STRATEGIC, &json!({"secrets": [{"$patch": "delete", "name": "s1"}]}))
        .await?
        .code(200)?;
    same!(account["secrets"], json!([{"name": "s2"}]));
    Ok(())
}

async fn strategic_on_custom(s: Scope) -> Result<()> {
    s.namespace().await?;
    let path = format!("/apis/terrane.dev/v1alpha1/namespaces/{}/terraformlayers/none", s.name());
    s.patch(&path, STRATEGIC, &json!({})).await?
        .refused(415, "UnsupportedMediaType", "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml")?;
    Ok(())
}

async fn unknown_patch_type(s: Scope) -> Result<()> {
    let path = made(&s).await?;
    s.patch(&path, "application/x-odd", &json!({})).await?.refused(
        415,
        "UnsupportedMediaType",
        "415: Unsupported Media Type",
    )?;
    Ok(())
}

async fn patch_missing(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    for kind in [MERGE, JSON_PATCH, STRATEGIC] {
        let body = if kind == JSON_PATCH { json!([]) } else { json!({}) };
        s.patch(&format!("{ns}/configmaps/none"), kind, &body).await?.refused(
            404,
            "NotFound",
            "configmaps \"none\" not found",
        )?;
    }
    Ok(())
}

async fn merge_malformed(s: Scope) -> Result<()> {
    let path = made(&s).await?;
    let answer = s.call(Call::new(Method::PATCH, &path).body(MERGE, "{nope")).await?;
    answer.refused(
        400,
        "BadRequest",
        "error decoding patch: invalid character 'n' looking for beginning of object key string",
    )?;
    Ok(())
}

async fn status_patch(s: Scope) -> Result<()> {
    let ns = s.pod_namespace().await?;
    s.post(&format!("{ns}/pods"), &pod("a")).await?.code(201)?;
    let path = format!("{ns}/pods/a");
    let next = s.patch(&format!("{path}/status"), STRATEGIC, &json!({"spec": {"activeDeadlineSeconds": 5}, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})).await?.code(200)?;
    same!(next["status"]["phase"], "Running");
    holds!(next["spec"].get("activeDeadlineSeconds").is_none(), "{next}");
    let next = s.patch(&path, MERGE, &json!({"status": {"phase": "Failed"}})).await?.code(200)?;
    same!(next["status"]["phase"], "Running");
    Ok(())
}

async fn dry_run_create(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let made = s.post(&format!("{ns}/configmaps?dryRun=All"), &config_map("a")).await?.code(201)?;
    same!(text(&made, "/metadata/uid").len(), 36);
    holds!(made["metadata"].get("resourceVersion").is_none(), "{made}");
    same!(s.get(&format!("{ns}/configmaps/a")).await?.code, 404);
    Ok(())
}

async fn dry_run_update_delete(s: Scope) -> Result<()> {
    let path = made(&s).await?;
    let before = s.get(&path).await?.code(200)?;
    let next =
        s.patch(&format!("{path}?dryRun=All"), MERGE, &json!({"data": {"c": "3"}})).await?.code(200)?;
    same!(next["data"]["c"], "3");
    s.delete(&format!("{path}?dryRun=All")).await?.code(200)?;
    same!(s.get(&path).await?.code(200)?, before);
    Ok(())
}

async fn dry_run_bad(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.post(&format!("{ns}/configmaps?dryRun=Some"), &config_map("a")).await?
        .refused(422, "Invalid", "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"Some\"]: supported values: \"All\"")?;
    Ok(())
}

async fn strict_unknown(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.post(&format!("{ns}/configmaps?fieldValidation=Strict"), &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "colour": "x"}, "dat": {}})).await?
        .refused(400, "BadRequest", "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"metadata.colour\", unknown field \"dat\"")?;
    Ok(())
}

async fn strict_duplicate(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"1","k":"2"}}"#;
    s.call(Call::new(Method::POST, &format!("{ns}/configmaps?fieldValidation=Strict")).body("application/json", body)).await?
        .refused(400, "BadRequest", "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: duplicate field \"data.k\"")?;
    let kept = s
        .call(
            Call::new(Method::POST, &format!("{ns}/configmaps?fieldValidation=Ignore"))
                .body("application/json", body),
        )
        .await?
        .code(201)?;
    same!(kept["data"], json!({"k": "2"}));
    Ok(())
}

async fn warn_unknown(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let answer = s
        .post(
            &format!("{ns}/configmaps?fieldValidation=Warn"),
            &json!({"metadata": {"name": "a"}, "dat": {}}),
        )
        .await?;
    same!((answer.code, answer.warnings()), (201, vec!["299 - \"unknown field \\\"dat\\\"\""]));
    let plain = s.post(&format!("{ns}/configmaps"), &json!({"metadata": {"name": "b"}, "dat": {}})).await?;
    same!(plain.warnings(), ["299 - \"unknown field \\\"dat\\\"\""]);
    Ok(())
}

async fn ignore_unknown(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let answer = s
        .post(
            &format!("{ns}/configmaps?fieldValidation=Ignore"),
            &json!({"metadata": {"name": "a"}, "dat": {}}),
        )
        .await?;
    same!((answer.code, answer.warnings().len()), (201, 0));
    holds!(answer.json()?.get("dat").is_none(), "{answer}");
    Ok(())
}

async fn bad_field_validation(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.post(&format!("{ns}/configmaps?fieldValidation=Maybe"), &config_map("a")).await?
        .refused(422, "Invalid", "CreateOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"Maybe\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"")?;
    Ok(())
}

async fn post_raw(s: &Scope, content_type: &str, body: impl Into<Vec<u8>>) -> Result<Answer> {
    let ns = s.namespace().await?;
    s.call(Call::new(Method::POST, &format!("{ns}/configmaps")).body(content_type, body)).await
}

async fn malformed_json(s: Scope) -> Result<()> {
    post_raw(&s, "application/json", "{\"metadata\": ").await?
        .refused(400, "BadRequest", "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input ({\"metadata\": )")?;
    Ok(())
}

async fn empty_body(s: Scope) -> Result<()> {
    post_raw(&s, "application/json", "").await?
        .refused(400, "BadRequest", "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)")?;
    Ok(())
}

async fn malformed_yaml(s: Scope) -> Result<()> {
    let answer = post_raw(&s, "application/yaml", "a: b: c").await?;
    same!(answer.code, 400);
    let message = text(&answer.json()?, "/message");
    holds!(
        message.starts_with("the object provided is unrecognized (must be of type ConfigMap): yaml: "),
        "{message}"
    );
    Ok(())
}

async fn yaml_body(s: Scope) -> Result<()> {
    let answer = post_raw(
        &s,
        "application/yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\ndata:\n  k: \"true\"\n",
    )
    .await?;
    same!(answer.code(201)?["data"], json!({"k": "true"}));
    Ok(())
}

async fn unsupported_media(s: Scope) -> Result<()> {
    post_raw(&s, "text/csv", "a,b").await?
        .refused(415, "UnsupportedMediaType", "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf")?;
    Ok(())
}

async fn wrong_type(s: Scope) -> Result<()> {
    post_raw(&s, "application/json", r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":5}}"#).await?
        .refused(400, "BadRequest", "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ConfigMap.data of type string")?;
    Ok(())
}

async fn too_large(s: Scope) -> Result<()> {
    let big = "x".repeat(3_200_000);
    let answer =
        post_raw(&s, "application/json", json!({"metadata": {"name": "a"}, "data": {"k": big}}).to_string())
            .await?;
    answer.refused(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728")?;
    let maps = format!("/api/v1/namespaces/{}/configmaps", s.name());
    s.post(&maps, &json!({"metadata": {"name": "a"}, "data": {"k": "x".repeat(1_048_577)}})).await?.refused(
        422,
        "Invalid",
        "ConfigMap \"a\" is invalid: []: Too long: may not be more than 1048576 bytes",
    )?;
    Ok(())
}

async fn deep_nesting(s: Scope) -> Result<()> {
    let deep =
        format!("{{\"metadata\":{{\"name\":\"a\"}},\"data\":{}{}}}", "[".repeat(20000), "]".repeat(20000));
    let answer = post_raw(&s, "application/json", deep).await?;
    same!(answer.code, 400);
    same!(text(&answer.json()?, "/reason"), "BadRequest");
    Ok(())
}

async fn patch_renames(s: Scope) -> Result<()> {
    let path = made(&s).await?;
    s.patch(&path, MERGE, &json!({"metadata": {"name": "b"}})).await?.refused(
        400,
        "BadRequest",
        "the name of the object (b) does not match the name on the URL (a)",
    )?;
    Ok(())
}

async fn patch_changes_uid(s: Scope) -> Result<()> {
    let path = made(&s).await?;
    s.patch(&path, MERGE, &json!({"metadata": {"uid": "other"}})).await?.refused(
        422,
        "Invalid",
        "ConfigMap \"a\" is invalid: metadata.uid: Invalid value: \"other\": field is immutable",
    )?;
    Ok(())
}

async fn not_an_object(s: Scope) -> Result<()> {
    post_raw(&s, "application/json", "[1, 2]").await?
        .refused(400, "BadRequest", "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" } (5b312c20325d)")?;
    Ok(())
}
