//! get in all its forms, and describe.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::program::{Kubectl, layer, map, pod, same};

cases!("get": plain, nothing, missing, unknown_type, wide, pods, json, list_json, yaml, jsonpath, names, custom_columns, sorted, by_label, by_field,
    by_field_of_pods, unknown_field_label, in_chunks, everywhere, by_category, by_short_name, follows, follows_events, describes, describes_custom, describes_pod);

async fn two(k: &Kubectl) -> Result<()> {
    k.create(&map("a", json!({"v": "1"}))).await?;
    k.create(&map("b", json!({"v": "2", "w": "3"}))).await
}

async fn plain(k: Kubectl) -> Result<()> {
    two(&k).await?;
    let output = k.run("get configmaps a b").await?;
    same(output.table()?, [vec!["NAME", "DATA"], vec!["a", "1"], vec!["b", "2"]])
}

async fn nothing(k: Kubectl) -> Result<()> {
    k.run("get secrets").await?.fails(0, "No resources found in NS namespace.\n")
}

async fn missing(k: Kubectl) -> Result<()> {
    let wanted = "Error from server (NotFound): configmaps \"nope\" not found\n";
    k.run("get configmap nope").await?.fails(1, wanted)?;
    k.run("get configmap nope --ignore-not-found").await?.fails(0, "")
}

async fn unknown_type(k: Kubectl) -> Result<()> {
    k.run("get nopes").await?.fails(1, "error: the server doesn't have a resource type \"nopes\"\n")
}

async fn wide(k: Kubectl) -> Result<()> {
    k.create(&layer("l")).await?;
    let status = r#"{"status": {"state": "Idle", "conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}"#;
    k.words(&["patch", "tfl", "l", "--subresource=status", "--type=merge", "-p", status]).await?.ok()?;
    let output = k.run("get terraformlayers").await?;
    same(output.table()?, [vec!["NAME", "STATE", "CHANGES", "WHY", "COMMIT"], vec!["l", "Idle"]])?;
    let output = k.run("get terraformlayers -o wide").await?;
    // The age stands last only in the narrow table's reading; here the column of lesser priority does not move it.
    same(
        output.table()?,
        [vec!["NAME", "STATE", "CHANGES", "WHY", "COMMIT", "READY"], vec!["l", "Idle", "True"]],
    )
}

async fn pods(k: Kubectl) -> Result<()> {
    k.create(&pod("p")).await?;
    let output = k.run("get pods").await?;
    same(output.table()?, [vec!["NAME", "READY", "STATUS", "RESTARTS"], vec!["p", "0/1", "Pending", "0"]])?;
    let wide = k.run("get pods -o wide").await?;
    wide.has(&["NODE", "NOMINATED NODE", "READINESS GATES", "<none>"])
}

async fn json(k: Kubectl) -> Result<()> {
    two(&k).await?;
    let found = k.run("get configmap a -o json").await?.json()?;
    same(&found["data"], &json!({"v": "1"}))?;
    same(&found["apiVersion"], &json!("v1"))?;
    same(&found["kind"], &json!("ConfigMap"))?;
    same(&found["metadata"]["managedFields"], &json!(null))?;
    let shown = k.run("get configmap a -o json --show-managed-fields").await?.json()?;
    same(&shown["metadata"]["managedFields"][0]["manager"], &json!("kubectl-create"))
}

async fn list_json(k: Kubectl) -> Result<()> {
    two(&k).await?;
    let found = k.run("get configmaps -l app=x -o json").await?.json()?;
    same(&found["kind"], &json!("List"))?;
    same(&found["items"][0]["kind"], &json!("ConfigMap"))?;
    same(&found["items"][1]["metadata"]["name"], &json!("b"))
}

async fn yaml(k: Kubectl) -> Result<()> {
    two(&k).await?;
    let output = k.run("get configmap b -o yaml").await?;
    let wanted =
        "apiVersion: v1\ndata:\n  v: \"2\"\n  w: \"3\"\nkind: ConfigMap\nmetadata:\n  creationTimestamp: \"";
    ensure!(output.ok()?.starts_with(wanted), "{output:?}");
    output.has(&["\n  labels:\n    app: x\n  name: b\n  namespace: NS\n  resourceVersion: \"", "\n  uid: "])
}

async fn jsonpath(k: Kubectl) -> Result<()> {
    two(&k).await?;
    k.run("get configmap b -o jsonpath={.data.w}").await?.prints("3")?;
    k.run("get configmaps -l app=x -o jsonpath={.items[*].metadata.name}").await?.prints("a b")
}

async fn names(k: Kubectl) -> Result<()> {
    two(&k).await?;
    k.run("get configmaps -l app=x -o name").await?.prints("configmap/a\nconfigmap/b\n")?;
    k.create(&layer("l")).await?;
    k.run("get tfl -o name").await?.prints("terraformlayer.terrane.dev/l\n")
}

async fn custom_columns(k: Kubectl) -> Result<()> {
    two(&k).await?;
    let output = k.run("get configmaps -l app=x -o custom-columns=N:.metadata.name,W:.data.w").await?;
    output.prints("N     W\na     <none>\nb     3\n")
}

async fn sorted(k: Kubectl) -> Result<()> {
    k.create(&map("a", json!({"v": "2"}))).await?;
    k.create(&map("b", json!({"v": "1"}))).await?;
    k.run("get configmaps -l app=x --sort-by=.data.v -o name").await?.prints("configmap/b\nconfigmap/a\n")?;
    let output = k.run("get configmaps -l app=x --sort-by=.data.v --no-headers").await?;
    same(output.table()?, [vec!["b", "1"], vec!["a", "1"]])
}

async fn by_label(k: Kubectl) -> Result<()> {
    two(&k).await?;
    k.run("label configmap b tier=web").await?.ok()?;
    k.run("get configmaps -l tier -o name").await?.prints("configmap/b\n")?;
    k.run("get configmaps -l app=x,tier!=web -o name").await?.prints("configmap/a\n")?;
    k.run("get configmaps -l app=x -L tier --no-headers").await?.has(&["web\n"])?;
    k.words(&["get", "configmaps", "-l", "tier in (web,db)", "-o", "name"]).await?.prints("configmap/b\n")
}

async fn by_field(k: Kubectl) -> Result<()> {
    two(&k).await?;
    k.run("get configmaps --field-selector metadata.name=b -o name").await?.prints("configmap/b\n")?;
    k.run("get configmaps -l app=x --field-selector metadata.name!=b -o name").await?.prints("configmap/a\n")
}

async fn by_field_of_pods(k: Kubectl) -> Result<()> {
    k.create(&pod("p")).await?;
    k.run("get pods --field-selector status.phase=Pending -o name").await?.prints("pod/p\n")?;
    k.run("get pods --field-selector status.phase=Running -o name").await?.prints("")
}

async fn unknown_field_label(k: Kubectl) -> Result<()> {
    k.run("get configmaps --field-selector spec.x=1").await?.fails(
        1,
        "Error from server (BadRequest): Unable to find \"/v1, Resource=configmaps\" that match label selector \"\", field selector \"spec.x=1\": \"spec.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"\n",
    )
}

async fn in_chunks(k: Kubectl) -> Result<()> {
    two(&k).await?;
    k.create(&map("c", json!({}))).await?;
    let output = k.run("get configmaps -l app=x --chunk-size=1 -o name").await?;
    output.prints("configmap/a\nconfigmap/b\nconfigmap/c\n")
}

async fn everywhere(k: Kubectl) -> Result<()> {
    two(&k).await?;
    k.run(&format!("label configmap a case={}", k.name())).await?.ok()?;
    let output = k.run(&format!("get configmaps -A -l case={}", k.name())).await?;
    same(output.table()?, [vec!["NAMESPACE", "NAME", "DATA"], vec!["NS", "a", "1"]])
}

async fn by_category(k: Kubectl) -> Result<()> {
    k.create(&layer("l")).await?;
    k.run("get terrane -o name").await?.prints("terraformlayer.terrane.dev/l\n")
}

async fn by_short_name(k: Kubectl) -> Result<()> {
    two(&k).await?;
    k.create(&layer("l")).await?;
    k.run("get cm/a tfl/l -o name").await?.prints("configmap/a\nterraformlayer.terrane.dev/l\n")
}

async fn follows(k: Kubectl) -> Result<()> {
    two(&k).await?;
    let mut following = k.start("get configmap a -w -o jsonpath={.data.v},")?;
    following.until(|lines| lines.concat() == "1,").await?;
    k.words(&["patch", "configmap", "a", "-p", r#"{"data": {"v": "7"}}"#]).await?.ok()?;
    following.until(|lines| lines.concat() == "1,7,").await
}

async fn follows_events(k: Kubectl) -> Result<()> {
    two(&k).await?;
    let mut following = k.start("get configmaps -l app=x -w --output-watch-events --no-headers")?;
    following.until(|lines| lines.len() >= 2).await?;
    k.run("delete configmap a").await?.ok()?;
    following
        .until(|lines| {
            // kubectl aligns what it prints together, so only the words count.
            let words: Vec<Vec<&str>> =
                lines.iter().map(|line| line.split_whitespace().take(2).collect()).collect();
            words == [vec!["ADDED", "a"], vec!["ADDED", "b"], vec!["DELETED", "a"]]
        })
        .await
}

async fn describes(k: Kubectl) -> Result<()> {
    two(&k).await?;
    k.run("describe configmap a").await?.prints(
        "Name:         a\nNamespace:    NS\nLabels:       app=x\nAnnotations:  <none>\n\nData\n====\nv:\n----\n1\n\n\nBinaryData\n====\n\nEvents:  <none>\n",
    )
}

async fn describes_custom(k: Kubectl) -> Result<()> {
    k.create(&layer("l")).await?;
    k.run("describe tfl l").await?.has(&[
        "Name:         l\nNamespace:    NS\n",
        "API Version:  terrane.dev/v1alpha1\nKind:         TerraformLayer\n",
        "Spec:\n  Branch:  main\n  Path:    a\n  Repository:\n    Name:  r\n",
        "Events:    <none>\n",
    ])
}

async fn describes_pod(k: Kubectl) -> Result<()> {
    k.create(&pod("p")).await?;
    k.run("describe pod p").await?.has(&[
        "Name:             p\n",
        "Status:           Pending\n",
        "    Image:        example.com/image:1\n",
        "QoS Class:                   BestEffort\n",
    ])
}
