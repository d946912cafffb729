//! Namespaces: what is in a new one, what a missing one refuses, how one goes.

use anyhow::Result;
use serde_json::json;

use crate::Scope;
use crate::scope::{MERGE, config_map, text};

cases!("namespaces": new_one, default_service_account, create_in_missing, terminating_refuses, deletion_cascades, bad_name, finalize_is_kept, delete_answers_object, label_of_name);

async fn new_one(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let found = s.get(&ns).await?.code(200)?;
    same!(found["status"], json!({"phase": "Active"}));
    same!(found["spec"], json!({"finalizers": ["kubernetes"]}));
    Ok(())
}

async fn label_of_name(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    same!(
        s.get(&ns).await?.code(200)?["metadata"]["labels"],
        json!({"kubernetes.io/metadata.name": s.name()})
    );
    let patched = s
        .patch(&ns, MERGE, &json!({"metadata": {"labels": {"kubernetes.io/metadata.name": null}}}))
        .await?
        .code(200)?;
    same!(patched["metadata"]["labels"]["kubernetes.io/metadata.name"], s.name());
    Ok(())
}

async fn default_service_account(s: Scope) -> Result<()> {
    let ns = s.pod_namespace().await?;
    let account = s.get(&format!("{ns}/serviceaccounts/default")).await?.code(200)?;
    same!(account["kind"], "ServiceAccount");
    s.delete(&format!("{ns}/serviceaccounts/default")).await?.ok()?;
    s.until(&format!("{ns}/serviceaccounts/default"), |a| {
        a.json().is_ok_and(|now| a.code == 200 && now["metadata"]["uid"] != account["metadata"]["uid"])
    })
    .await?;
    let roots = s.until(&format!("{ns}/configmaps/kube-root-ca.crt"), |a| a.code == 200).await?.json()?;
    holds!(text(&roots, "/data/ca.crt").contains("BEGIN CERTIFICATE"), "{roots}");
    same!(roots["metadata"]["managedFields"][0]["manager"], "kube-controller-manager");
    Ok(())
}

async fn create_in_missing(s: Scope) -> Result<()> {
    let missing = format!("/api/v1/namespaces/{}/configmaps", s.name());
    let status = s.post(&missing, &config_map("a")).await?.refused(
        404,
        "NotFound",
        &format!("namespaces \"{}\" not found", s.name()),
    )?;
    same!(status["details"], json!({"name": s.name(), "kind": "namespaces"}));
    same!(s.get(&missing).await?.code(200)?["items"], json!([]));
    Ok(())
}

async fn terminating_refuses(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let mut held = config_map("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    s.post(&format!("{ns}/configmaps"), &held).await?.code(201)?;
    s.delete(&ns).await?.code(200)?;
    let name = s.name();
    let message = format!(
        "configmaps \"new\" is forbidden: unable to create new content in namespace {name} because it is being terminated"
    );
    let status =
        s.post(&format!("{ns}/configmaps"), &config_map("new")).await?.refused(403, "Forbidden", &message)?;
    same!(
        status["details"]["causes"],
        json!([{"reason": "NamespaceTerminating", "message": format!("namespace {name} is being terminated"), "field": "metadata.namespace"}])
    );
    let waiting = s
        .until(&ns, |a| {
            a.text().contains("NamespaceFinalizersRemaining\",\"status\":\"True")
                || a.json().is_ok_and(|v| {
                    v["status"]["conditions"].as_array().is_some_and(|c| {
                        c.iter().any(|c| c["type"] == "NamespaceFinalizersRemaining" && c["status"] == "True")
                    })
                })
        })
        .await?
        .json()?;
    same!(waiting["status"]["phase"], "Terminating");
    s.patch(&format!("{ns}/configmaps/held"), MERGE, &json!({"metadata": {"finalizers": null}}))
        .await?
        .ok()?;
    s.until_gone(&ns).await
}

async fn deletion_cascades(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.post(&format!("{ns}/configmaps"), &config_map("a")).await?.code(201)?;
    s.post(&format!("{ns}/secrets"), &json!({"metadata": {"name": "b"}})).await?.code(201)?;
    s.delete(&ns).await?.code(200)?;
    s.until_gone(&ns).await?;
    same!(s.get(&format!("{ns}/configmaps/a")).await?.code, 404);
    same!(s.get(&format!("{ns}/secrets/b")).await?.code, 404);
    Ok(())
}

async fn bad_name(s: Scope) -> Result<()> {
    s.post("/api/v1/namespaces", &json!({"metadata": {"name": "a.b"}})).await?.refused(
        422,
        "Invalid",
        "Namespace \"a.b\" is invalid: metadata.name: Invalid value: \"a.b\": must not contain dots",
    )?;
    Ok(())
}

async fn finalize_is_kept(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let patched = s.patch(&ns, MERGE, &json!({"spec": {"finalizers": []}})).await?.code(200)?;
    same!(patched["spec"], json!({"finalizers": ["kubernetes"]}));
    Ok(())
}

async fn delete_answers_object(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let gone = s.delete(&ns).await?.code(200)?;
    same!(gone["kind"], "Namespace");
    same!(gone["status"]["phase"], "Terminating");
    holds!(gone["metadata"]["deletionTimestamp"].is_string(), "{gone}");
    s.until_gone(&ns).await
}
