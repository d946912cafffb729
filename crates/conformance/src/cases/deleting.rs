//! Deletion: preconditions, finalizers, grace, propagation, collections, garbage.

use anyhow::Result;
use serde_json::{Value, json};

use crate::Scope;
use crate::scope::{MERGE, config_map, names, pod, revision, text};

cases!("deleting": precondition_uid, precondition_revision, finalizer_holds, finalizers_cannot_be_added_late, foreground, background, orphan, bad_propagation, both_orphan_forms, collection, collection_by_label, pod_grace, pod_no_grace, negative_grace, owner_gone_already, second_owner_keeps, bad_owner_reference, two_controllers, bad_finalizer, options_of_wrong_kind);

async fn made(s: &Scope) -> Result<(String, Value)> {
    let ns = s.namespace().await?;
    let made = s.post(&format!("{ns}/configmaps"), &config_map("a")).await?.code(201)?;
    Ok((ns, made))
}

fn owned(name: &str, owner: &Value) -> Value {
    let mut object = config_map(name);
    object["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true}]);
    object
}

async fn precondition_uid(s: Scope) -> Result<()> {
    let (ns, made) = made(&s).await?;
    let message = format!(
        "Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition (other) does not match the UID in record ({}). The object might have been deleted and then recreated",
        text(&made, "/metadata/uid")
    );
    s.delete_with(&format!("{ns}/configmaps/a"), &json!({"preconditions": {"uid": "other"}}))
        .await?
        .refused(409, "Conflict", &message)?;
    s.delete_with(&format!("{ns}/configmaps/a"), &json!({"preconditions": {"uid": made["metadata"]["uid"]}}))
        .await?
        .code(200)?;
    Ok(())
}

async fn precondition_revision(s: Scope) -> Result<()> {
    let (ns, made) = made(&s).await?;
    let message = format!(
        "Operation cannot be fulfilled on ConfigMap \"a\": the ResourceVersion in the precondition (1) does not match the ResourceVersion in record ({}). The object might have been modified",
        revision(&made)
    );
    s.delete_with(&format!("{ns}/configmaps/a"), &json!({"preconditions": {"resourceVersion": "1"}}))
        .await?
        .refused(409, "Conflict", &message)?;
    Ok(())
}

async fn finalizer_holds(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let mut held = config_map("a");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    s.post(&format!("{ns}/configmaps"), &held).await?.code(201)?;
    let path = format!("{ns}/configmaps/a");
    let going = s.delete(&path).await?.code(200)?;
    same!(going["kind"], "ConfigMap");
    same!(going["metadata"]["deletionGracePeriodSeconds"], 0);
    holds!(going["metadata"]["deletionTimestamp"].is_string(), "{going}");
    let again = s.delete(&path).await?.code(200)?;
    same!(again["metadata"]["deletionTimestamp"], going["metadata"]["deletionTimestamp"]);
    s.patch(&path, MERGE, &json!({"metadata": {"finalizers": []}})).await?.code(200)?;
    s.get(&path).await?.refused(404, "NotFound", "configmaps \"a\" not found")?;
    Ok(())
}

async fn finalizers_cannot_be_added_late(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let mut held = config_map("a");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    s.post(&format!("{ns}/configmaps"), &held).await?.code(201)?;
    let path = format!("{ns}/configmaps/a");
    s.delete(&path).await?.code(200)?;
    s.patch(&path, MERGE, &json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}})).await?
        .refused(422, "Invalid", "ConfigMap \"a\" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"example.com/more\"}")?;
    s.patch(&path, MERGE, &json!({"metadata": {"finalizers": null}})).await?.ok()?;
    Ok(())
}

async fn foreground(s: Scope) -> Result<()> {
    let (ns, owner) = made(&s).await?;
    let mut child = owned("b", &owner);
    child["metadata"]["finalizers"] = json!(["example.com/hold"]);
    s.post(&format!("{ns}/configmaps"), &child).await?.code(201)?;
    let going = s
        .delete_with(&format!("{ns}/configmaps/a"), &json!({"propagationPolicy": "Foreground"}))
        .await?
        .code(200)?;
    same!(going["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    s.until(&format!("{ns}/configmaps/b"), |a| {
        a.json().is_ok_and(|o| o["metadata"]["deletionTimestamp"].is_string())
    })
    .await?;
    s.get(&format!("{ns}/configmaps/a")).await?.code(200)?;
    s.patch(&format!("{ns}/configmaps/b"), MERGE, &json!({"metadata": {"finalizers": null}})).await?.ok()?;
    s.until_gone(&format!("{ns}/configmaps/a")).await
}

async fn background(s: Scope) -> Result<()> {
    let (ns, owner) = made(&s).await?;
    s.post(&format!("{ns}/configmaps"), &owned("b", &owner)).await?.code(201)?;
    s.delete_with(&format!("{ns}/configmaps/a"), &json!({"propagationPolicy": "Background"}))
        .await?
        .code(200)?;
    same!(s.get(&format!("{ns}/configmaps/a")).await?.code, 404);
    s.until_gone(&format!("{ns}/configmaps/b")).await
}

async fn orphan(s: Scope) -> Result<()> {
    let (ns, owner) = made(&s).await?;
    s.post(&format!("{ns}/configmaps"), &owned("b", &owner)).await?.code(201)?;
    s.delete(&format!("{ns}/configmaps/a?propagationPolicy=Orphan")).await?.code(200)?;
    s.until_gone(&format!("{ns}/configmaps/a")).await?;
    let child = s.get(&format!("{ns}/configmaps/b")).await?.code(200)?;
    same!(child["metadata"].get("ownerReferences"), None);
    Ok(())
}

async fn bad_propagation(s: Scope) -> Result<()> {
    let (ns, _) = made(&s).await?;
    s.delete_with(&format!("{ns}/configmaps/a"), &json!({"propagationPolicy": "Sideways"})).await?
        .refused(422, "Invalid", "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"Sideways\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"")?;
    Ok(())
}

async fn both_orphan_forms(s: Scope) -> Result<()> {
    let (ns, _) = made(&s).await?;
    let answer = s
        .delete_with(
            &format!("{ns}/configmaps/a"),
            &json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
        )
        .await?;
    answer.refused(422, "Invalid", "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Invalid value: \"Orphan\": orphanDependents and deletionPropagation cannot be both set")?;
    Ok(())
}

async fn collection(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    for name in ["a", "b"] {
        s.post(&format!("{ns}/secrets"), &json!({"metadata": {"name": name}})).await?.code(201)?;
    }
    let gone = s.delete(&format!("{ns}/secrets")).await?.code(200)?;
    same!(gone["kind"], "SecretList");
    same!(names(&gone), ["a", "b"]);
    same!(s.get(&format!("{ns}/secrets")).await?.code(200)?["items"], json!([]));
    Ok(())
}

async fn collection_by_label(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    for name in ["a", "b", "c"] {
        s.post(&format!("{ns}/secrets"), &json!({"metadata": {"name": name, "labels": {"l": name}}}))
            .await?
            .code(201)?;
    }
    s.delete(&format!("{ns}/secrets?labelSelector=l%20in%20%28a,b%29&fieldSelector=metadata.name%21%3Db"))
        .await?
        .code(200)?;
    same!(names(&s.get(&format!("{ns}/secrets")).await?.code(200)?), ["b", "c"]);
    Ok(())
}

async fn bound(s: &Scope) -> Result<String> {
    let ns = s.pod_namespace().await?;
    let mut body = pod("a");
    body["spec"]["nodeName"] = json!(format!("node-{}", s.name()));
    s.post("/api/v1/nodes", &json!({"metadata": {"name": format!("node-{}", s.name())}})).await?.code(201)?;
    s.post(&format!("{ns}/pods"), &body).await?.code(201)?;
    Ok(format!("{ns}/pods/a"))
}

async fn pod_grace(s: Scope) -> Result<()> {
    let path = bound(&s).await?;
    let going = s.delete(&path).await?.code(200)?;
    same!(going["metadata"]["deletionGracePeriodSeconds"], 30);
    let sooner = s.delete_with(&path, &json!({"gracePeriodSeconds": 5})).await?.code(200)?;
    same!(sooner["metadata"]["deletionGracePeriodSeconds"], 5);
    s.delete_with(&path, &json!({"gracePeriodSeconds": 0})).await?.code(200)?;
    s.until_gone(&path).await?;
    s.delete(&format!("/api/v1/nodes/node-{}", s.name())).await?.ok()?;
    Ok(())
}

async fn pod_no_grace(s: Scope) -> Result<()> {
    let ns = s.pod_namespace().await?;
    s.post(&format!("{ns}/pods"), &pod("a")).await?.code(201)?;
    s.delete(&format!("{ns}/pods/a")).await?.code(200)?;
    // Nobody runs it, so nobody has to be waited for.
    s.get(&format!("{ns}/pods/a")).await?.refused(404, "NotFound", "pods \"a\" not found")?;
    Ok(())
}

async fn negative_grace(s: Scope) -> Result<()> {
    let path = bound(&s).await?;
    let going = s.delete_with(&path, &json!({"gracePeriodSeconds": -1})).await?.code(200)?;
    same!(going["metadata"]["deletionGracePeriodSeconds"], 1);
    s.delete_with(&path, &json!({"gracePeriodSeconds": 0})).await?.ok()?;
    s.delete(&format!("/api/v1/nodes/node-{}", s.name())).await?.ok()?;
    Ok(())
}

async fn owner_gone_already(s: Scope) -> Result<()> {
    let (ns, owner) = made(&s).await?;
    s.delete(&format!("{ns}/configmaps/a")).await?.ok()?;
    s.post(&format!("{ns}/configmaps"), &owned("b", &owner)).await?.code(201)?;
    s.until_gone(&format!("{ns}/configmaps/b")).await
}

async fn second_owner_keeps(s: Scope) -> Result<()> {
    let (ns, owner) = made(&s).await?;
    let other = s.post(&format!("{ns}/configmaps"), &config_map("c")).await?.code(201)?;
    let mut child = owned("b", &owner);
    let second = owned("x", &other)["metadata"]["ownerReferences"][0].clone();
    child["metadata"]["ownerReferences"] = json!([child["metadata"]["ownerReferences"][0], second]);
    s.post(&format!("{ns}/configmaps"), &child).await?.code(201)?;
    s.delete(&format!("{ns}/configmaps/a")).await?.ok()?;
    let left = s
        .until(&format!("{ns}/configmaps/b"), |a| {
            a.json().is_ok_and(|o| o["metadata"]["ownerReferences"].as_array().is_some_and(|o| o.len() == 1))
        })
        .await?
        .json()?;
    same!(left["metadata"]["ownerReferences"][0]["name"], "c");
    Ok(())
}

async fn bad_owner_reference(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let mut child = config_map("b");
    child["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "", "uid": ""}]);
    s.post(&format!("{ns}/configmaps"), &child).await?
        .refused(422, "Invalid", "ConfigMap \"b\" is invalid: [metadata.ownerReferences.name: Invalid value: \"\": must not be empty, metadata.ownerReferences.uid: Invalid value: \"\": must not be empty]")?;
    Ok(())
}

async fn two_controllers(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let mut child = config_map("b");
    let owner = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": name, "controller": true});
    child["metadata"]["ownerReferences"] = json!([owner("x"), owner("y")]);
    let answer = s.post(&format!("{ns}/configmaps"), &child).await?;
    same!(answer.code, 422);
    let message = text(&answer.json()?, "/message");
    holds!(message.contains("Only one reference can have Controller set to true. Found \"true\" in references for ConfigMap/x and ConfigMap/y"), "{message}");
    Ok(())
}

async fn bad_finalizer(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let mut body = config_map("b");
    body["metadata"]["finalizers"] = json!(["hold"]);
    s.post(&format!("{ns}/configmaps"), &body).await?
        .refused(422, "Invalid", "ConfigMap \"b\" is invalid: metadata.finalizers[0]: Invalid value: \"hold\": name is neither a standard finalizer name nor is it fully qualified")?;
    Ok(())
}

async fn options_of_wrong_kind(s: Scope) -> Result<()> {
    let (ns, _) = made(&s).await?;
    let answer = s
        .delete_with(&format!("{ns}/configmaps/a"), &json!({"apiVersion": "v1", "kind": "ConfigMap"}))
        .await?;
    same!(answer.code, 400);
    Ok(())
}
