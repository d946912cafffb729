//! wait, for each thing that it can wait for.

use anyhow::Result;
use serde_json::json;

use crate::program::{Kubectl, layer, map};

cases!("wait": condition_that_holds, condition_that_comes, condition_that_never_comes, for_delete, for_delete_of_nothing, for_jsonpath, for_jsonpath_of_anything, for_create, established, missing);

const READY: &str = r#"{"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}"#;

async fn make_ready(k: &Kubectl) -> Result<()> {
    let words = ["patch", "tfl", "l", "--subresource=status", "--type=merge", "-p", READY];
    k.words(&words).await?.ok().map(drop)
}

async fn condition_that_holds(k: Kubectl) -> Result<()> {
    k.create(&layer("l")).await?;
    make_ready(&k).await?;
    let output = k.run("wait tfl/l --for=condition=Ready --timeout=90s").await?;
    output.prints("terraformlayer.terrane.dev/l condition met\n")
}

async fn condition_that_comes(k: Kubectl) -> Result<()> {
    k.create(&layer("l")).await?;
    let waiting = k.run("wait tfl/l --for=condition=Ready --timeout=90s");
    let (output, ()) = tokio::try_join!(waiting, make_ready(&k))?;
    output.prints("terraformlayer.terrane.dev/l condition met\n")
}

async fn condition_that_never_comes(k: Kubectl) -> Result<()> {
    k.create(&layer("l")).await?;
    let output = k.run("wait tfl/l --for=condition=Ready --timeout=1s").await?;
    output.fails(1, "error: timed out waiting for the condition on terraformlayers/l\n")
}

async fn for_delete(k: Kubectl) -> Result<()> {
    k.create(&map("a", json!({}))).await?;
    let waiting = k.run("wait cm/a --for=delete --timeout=90s");
    let deleting = async {
        // The wait must find the object, so it goes only after an answer that comes later than the wait's start.
        k.run("get cm a").await?.ok()?;
        k.run("delete cm a").await?.ok().map(drop)
    };
    let (output, ()) = tokio::try_join!(waiting, deleting)?;
    // A wait that starts late finds nothing, which is what it waits for too, and then prints nothing.
    if !output.ok()?.is_empty() {
        output.prints("configmap/a condition met\n")?;
    }
    k.run("get cm a --ignore-not-found").await?.prints("")
}

async fn for_delete_of_nothing(k: Kubectl) -> Result<()> {
    k.run("wait cm/a --for=delete --timeout=90s").await?.fails(0, "")
}

async fn for_jsonpath(k: Kubectl) -> Result<()> {
    k.create(&map("a", json!({"v": "1"}))).await?;
    let waiting = k.run("wait cm/a --for=jsonpath={.data.v}=2 --timeout=90s");
    let patch = ["patch", "cm", "a", "-p", r#"{"data": {"v": "2"}}"#];
    let changing = k.words(&patch);
    let (output, changed) = tokio::try_join!(waiting, changing)?;
    changed.ok()?;
    output.prints("configmap/a condition met\n")
}

async fn for_jsonpath_of_anything(k: Kubectl) -> Result<()> {
    k.create(&map("a", json!({"v": "1"}))).await?;
    let output = k.run("wait cm/a --for=jsonpath={.data.v} --timeout=90s").await?;
    output.prints("configmap/a condition met\n")
}

async fn for_create(k: Kubectl) -> Result<()> {
    let waiting = k.run("wait cm/a --for=create --timeout=90s");
    let object = map("a", json!({}));
    let (output, ()) = tokio::try_join!(waiting, k.create(&object))?;
    output.prints("configmap/a condition met\n")
}

async fn established(k: Kubectl) -> Result<()> {
    let output =
        k.run("wait crd/terraformlayers.terrane.dev --for=condition=Established --timeout=90s").await?;
    output.prints("customresourcedefinition.apiextensions.k8s.io/terraformlayers.terrane.dev condition met\n")
}

async fn missing(k: Kubectl) -> Result<()> {
    let output = k.run("wait cm/a --for=jsonpath={.data.v}=1 --timeout=90s").await?;
    output.fails(1, "Error from server (NotFound): configmaps \"a\" not found\n")
}
