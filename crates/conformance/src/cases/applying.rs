//! Server-side apply and the managed fields of every write.

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};

use crate::scope::{APPLY, MERGE, causes, pod, revision, text};
use crate::{Answer, Call, Scope};

cases!("apply": creates, without_manager, owns_what_it_names, again_changes_nothing, conflict, force_takes_over, dropped_field_goes, two_managers_share, lists_by_key, atomic_list_is_owned_whole,
    status_is_apart, with_uid_of_nobody, stale_revision, yaml, bad_body, wrong_name, strict, dry_run, managed_fields_refused, update_is_tracked, manager_from_user_agent, clear_managed_fields, manager_too_long, conflicts_of_two, custom_resource, update_takes_a_field_away);

async fn apply(s: &Scope, path: &str, parameters: &str, body: &Value) -> Result<Answer> {
    s.patch(&format!("{path}?{parameters}"), APPLY, body).await
}

fn map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

async fn place(s: &Scope) -> Result<String> {
    Ok(format!("{}/configmaps/a", s.namespace().await?))
}

/// `[manager, operation, subresource, fields]` of each entry.
fn owners(object: &Value) -> Vec<Value> {
    let entries = object["metadata"]["managedFields"].as_array();
    entries
        .into_iter()
        .flatten()
        .map(|e| json!([e["manager"], e["operation"], e["subresource"], e["fieldsV1"]]))
        .collect()
}

async fn creates(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    let answer = apply(&s, &path, "fieldManager=one", &map(json!({"k": "1"}))).await?;
    let made = answer.code(201)?;
    same!(made["data"], json!({"k": "1"}));
    same!(owners(&made), [json!(["one", "Apply", null, {"f:data": {"f:k": {}}}])]);
    let entry = &made["metadata"]["managedFields"][0];
    same!((&entry["apiVersion"], &entry["fieldsType"]), (&json!("v1"), &json!("FieldsV1")));
    holds!(entry["time"].is_string(), "{entry}");
    Ok(())
}

async fn without_manager(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    s.patch(&path, APPLY, &map(json!({}))).await?.refused(
        422,
        "Invalid",
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
    )?;
    Ok(())
}

async fn owns_what_it_names(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    let mut body = map(json!({"k": "1"}));
    body["metadata"]["labels"] = json!({"x": "1"});
    body["metadata"]["annotations"] = json!({"e.com/y": "1"});
    let made = apply(&s, &path, "fieldManager=one", &body).await?.code(201)?;
    same!(
        owners(&made),
        [
            json!(["one", "Apply", null, {"f:data": {"f:k": {}}, "f:metadata": {"f:annotations": {"f:e.com/y": {}}, "f:labels": {"f:x": {}}}}])
        ]
    );
    Ok(())
}

async fn again_changes_nothing(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    let first = apply(&s, &path, "fieldManager=one", &map(json!({"k": "1"}))).await?.code(201)?;
    let second = apply(&s, &path, "fieldManager=one", &map(json!({"k": "1"}))).await?.code(200)?;
    same!(revision(&second), revision(&first));
    Ok(())
}

async fn conflict(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    apply(&s, &path, "fieldManager=one", &map(json!({"k": "1"}))).await?.code(201)?;
    let status = apply(&s, &path, "fieldManager=two", &map(json!({"k": "2"}))).await?.refused(
        409,
        "Conflict",
        "Apply failed with 1 conflict: conflict with \"one\": .data.k",
    )?;
    same!(causes(&status), [json!(["FieldManagerConflict", "conflict with \"one\"", ".data.k"])]);
    Ok(())
}

async fn conflicts_of_two(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    apply(&s, &path, "fieldManager=one", &map(json!({"k": "1", "m": "1"}))).await?.code(201)?;
    apply(&s, &path, "fieldManager=two", &map(json!({"l": "1"}))).await?.code(200)?;
    let status = apply(&s, &path, "fieldManager=three", &map(json!({"k": "2", "l": "2", "m": "2"}))).await?
        .refused(409, "Conflict", "Apply failed with 3 conflicts: conflicts with \"one\":\n- .data.k\n- .data.m\nconflicts with \"two\":\n- .data.l")?;
    same!(causes(&status).len(), 3);
    Ok(())
}

async fn update_takes_a_field_away(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    apply(&s, &path, "fieldManager=one", &map(json!({"k": "1", "l": "1"}))).await?.code(201)?;
    let now = s
        .patch(&format!("{path}?fieldManager=edit"), MERGE, &json!({"data": {"k": "2"}}))
        .await?
        .code(200)?;
    same!(
        owners(&now),
        [
            json!(["one", "Apply", null, {"f:data": {"f:l": {}}}]),
            json!(["edit", "Update", null, {"f:data": {"f:k": {}}}])
        ]
    );
    let answer = apply(&s, &path, "fieldManager=one", &map(json!({"k": "1", "l": "1"}))).await?;
    let message = text(&answer.json()?, "/message");
    holds!(message.starts_with("Apply failed with 1 conflict: conflict with \"edit\" using v1"), "{message}");
    Ok(())
}

async fn force_takes_over(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    apply(&s, &path, "fieldManager=one", &map(json!({"k": "1"}))).await?.code(201)?;
    let now = apply(&s, &path, "fieldManager=two&force=true", &map(json!({"k": "2"}))).await?.code(200)?;
    same!(now["data"]["k"], "2");
    same!(owners(&now), [json!(["two", "Apply", null, {"f:data": {"f:k": {}}}])]);
    Ok(())
}

async fn dropped_field_goes(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    apply(&s, &path, "fieldManager=one", &map(json!({"k": "1", "l": "1"}))).await?.code(201)?;
    let now = apply(&s, &path, "fieldManager=one", &map(json!({"k": "1"}))).await?.code(200)?;
    same!(now["data"], json!({"k": "1"}));
    Ok(())
}

async fn two_managers_share(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    apply(&s, &path, "fieldManager=one", &map(json!({"k": "1", "l": "1"}))).await?.code(201)?;
    apply(&s, &path, "fieldManager=two", &map(json!({"k": "1"}))).await?.code(200)?;
    let now = apply(&s, &path, "fieldManager=one", &map(json!({"l": "1"}))).await?.code(200)?;
    same!(now["data"], json!({"k": "1", "l": "1"}));
    let now = apply(&s, &path, "fieldManager=two", &map(json!({}))).await?.code(200)?;
    same!(now["data"], json!({"l": "1"}));
    Ok(())
}

async fn lists_by_key(s: Scope) -> Result<()> {
    let ns = s.pod_namespace().await?;
    let mut body = pod("a");
    body["spec"]["containers"] = json!([{"name": "x", "image": "i", "env": [{"name": "A", "value": "1"}], "ports": [{"containerPort": 80}]}]);
    let made = apply(&s, &format!("{ns}/pods/a"), "fieldManager=one", &body).await?.code(201)?;
    same!(
        owners(&made).first().cloned().unwrap_or_default()[3]["f:spec"],
        json!({"f:containers": {"k:{\"name\":\"x\"}": {".": {}, "f:name": {}, "f:image": {}, "f:env": {"k:{\"name\":\"A\"}": {".": {}, "f:name": {}, "f:value": {}}}, "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}}}}})
    );
    Ok(())
}

async fn atomic_list_is_owned_whole(s: Scope) -> Result<()> {
    s.namespace().await?;
    let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles/a", s.name());
    let role = |verb: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "a"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": [verb]}]});
    let made = apply(&s, &path, "fieldManager=one", &role("get")).await?.code(201)?;
    same!(owners(&made), [json!(["one", "Apply", null, {"f:rules": {}}])]);
    apply(&s, &path, "fieldManager=two", &role("list")).await?.refused(
        409,
        "Conflict",
        "Apply failed with 1 conflict: conflict with \"one\": .rules",
    )?;
    Ok(())
}

async fn status_is_apart(s: Scope) -> Result<()> {
    let ns = s.pod_namespace().await?;
    s.post(&format!("{ns}/pods?fieldManager=maker"), &pod("a")).await?.code(201)?;
    let body =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "status": {"message": "words"}});
    let now = apply(&s, &format!("{ns}/pods/a/status"), "fieldManager=kubelet", &body).await?.code(200)?;
    same!(now["status"]["message"], "words");
    let entry = owners(&now).into_iter().find(|entry| entry[0] == "kubelet").unwrap_or_default();
    same!(entry, json!(["kubelet", "Apply", "status", {"f:status": {"f:message": {}}}]));
    Ok(())
}

async fn with_uid_of_nobody(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    let mut body = map(json!({}));
    body["metadata"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
    apply(&s, &path, "fieldManager=one", &body).await?.refused(409, "Conflict", "Operation cannot be fulfilled on configmaps \"a\": uid mismatch: the provided object specified uid 11111111-2222-3333-4444-555555555555, and no existing object was found")?;
    Ok(())
}

async fn stale_revision(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    apply(&s, &path, "fieldManager=one", &map(json!({"k": "1"}))).await?.code(201)?;
    let mut body = map(json!({"k": "2"}));
    body["metadata"]["resourceVersion"] = json!("1");
    apply(&s, &path, "fieldManager=one", &body).await?.refused(409, "Conflict", "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again")?;
    Ok(())
}

async fn yaml(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    let made = s
        .call(
            Call::new(Method::PATCH, &format!("{path}?fieldManager=one")).body(
                APPLY,
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  k: |\n    text\n",
            ),
        )
        .await?
        .code(201)?;
    same!(made["data"], json!({"k": "text\n"}));
    Ok(())
}

async fn bad_body(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    let answer =
        s.call(Call::new(Method::PATCH, &format!("{path}?fieldManager=one")).body(APPLY, "a: b: c")).await?;
    same!(answer.code, 400);
    let message = text(&answer.json()?, "/message");
    holds!(message.starts_with("error decoding YAML: "), "{message}");
    Ok(())
}

async fn wrong_name(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    let mut body = map(json!({}));
    body["metadata"]["name"] = json!("b");
    apply(&s, &path, "fieldManager=one", &body).await?.refused(
        400,
        "BadRequest",
        "the name of the object (b) does not match the name on the URL (a)",
    )?;
    let body = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}});
    let answer = apply(&s, &path, "fieldManager=one", &body).await?;
    holds!(answer.code == 400 || answer.code == 500, "{answer}");
    Ok(())
}

async fn strict(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    let mut body = map(json!({}));
    body["dat"] = json!({});
    let answer = apply(&s, &path, "fieldManager=one&fieldValidation=Strict", &body).await?;
    same!(
        text(&answer.json()?, "/message"),
        "failed to create typed patch object (/a; /v1, Kind=ConfigMap): .dat: field not declared in schema"
    );
    same!(answer.code, 500);
    Ok(())
}

async fn dry_run(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    apply(&s, &path, "fieldManager=one&dryRun=All", &map(json!({"k": "1"}))).await?.code(201)?;
    same!(s.get(&path).await?.code, 404);
    Ok(())
}

async fn managed_fields_refused(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    let made = apply(&s, &path, "fieldManager=one", &map(json!({"k": "1"}))).await?.code(201)?;
    apply(&s, &path, "fieldManager=one", &made).await?.refused(
        400,
        "BadRequest",
        "metadata.managedFields must be nil",
    )?;
    Ok(())
}

async fn update_is_tracked(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    let ns = path.trim_end_matches("/a");
    let made = s.post(&format!("{ns}?fieldManager=maker"), &map(json!({"k": "1"}))).await?.code(201)?;
    same!(owners(&made), [json!(["maker", "Update", null, {"f:data": {".": {}, "f:k": {}}}])]);
    let now =
        s.put(&format!("{path}?fieldManager=other"), &map(json!({"k": "2", "l": "1"}))).await?.code(200)?;
    same!(
        owners(&now),
        [
            json!(["maker", "Update", null, {"f:data": {}}]),
            json!(["other", "Update", null, {"f:data": {"f:k": {}, "f:l": {}}}])
        ]
    );
    Ok(())
}

async fn manager_from_user_agent(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    let agent = s.with_header("user-agent", "my-tool/v1.2 (linux)")?;
    let made = agent.post(path.trim_end_matches("/a"), &map(json!({"k": "1"}))).await?.code(201)?;
    same!(made["metadata"]["managedFields"][0]["manager"], "my-tool");
    Ok(())
}

async fn clear_managed_fields(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    apply(&s, &path, "fieldManager=one", &map(json!({"k": "1"}))).await?.code(201)?;
    let now = s.patch(&path, MERGE, &json!({"metadata": {"managedFields": [{}]}})).await?.code(200)?;
    same!(owners(&now), Vec::<Value>::new());
    let now = apply(&s, &path, "fieldManager=two&force=true", &map(json!({"l": "1"}))).await?.code(200)?;
    same!(
        owners(&now).iter().map(|e| e[0].clone()).collect::<Vec<_>>(),
        [json!("two"), json!("before-first-apply")]
    );
    Ok(())
}

async fn manager_too_long(s: Scope) -> Result<()> {
    let path = place(&s).await?;
    let name = "m".repeat(129);
    apply(&s, &path, &format!("fieldManager={name}"), &map(json!({}))).await?.refused(
        422,
        "Invalid",
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Too long: may not be more than 128 bytes",
    )?;
    Ok(())
}

async fn custom_resource(s: Scope) -> Result<()> {
    s.namespace().await?;
    let path = format!("/apis/terrane.dev/v1alpha1/namespaces/{}/terraformlayers/a", s.name());
    let layer = json!({"apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": {"name": "a"}, "spec": {"repository": {"name": "r"}, "branch": "main", "path": "x"}});
    let made = apply(&s, &path, "fieldManager=one", &layer).await?.code(201)?;
    same!(
        owners(&made),
        [
            json!(["one", "Apply", null, {"f:spec": {"f:branch": {}, "f:path": {}, "f:repository": {"f:name": {}}}}])
        ]
    );
    Ok(())
}
