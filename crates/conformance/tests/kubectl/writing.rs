//! create, patch, replace, label, annotate and delete.

use anyhow::Result;
use serde_json::{Value, json};

use crate::program::{Kubectl, layer, map, pod, same};

cases!("write": create_from_file, create_existing, create_dry_run, create_generated_name, create_namespace, create_config_map, create_secret, create_account, create_role,
    create_role_binding, create_token, create_job, run_pod, patch_merge, patch_json, patch_strategic, patch_custom_strategic, patch_nothing, patch_status, replace, replace_stale, replace_by_force,
    label, annotate, delete_one, delete_missing, delete_by_label, delete_dry_run, delete_waits_for_finalizers, delete_without_waiting, delete_namespace);

async fn data(k: &Kubectl, wanted: Value) -> Result<()> {
    let found = k.run("get configmap a -o json").await?.json()?;
    same(&found["data"], &wanted)
}

async fn create_from_file(k: Kubectl) -> Result<()> {
    k.with("create", &map("a", json!({"v": "1"}))).await?.prints("configmap/a created\n")?;
    k.with("create", &layer("l")).await?.prints("terraformlayer.terrane.dev/l created\n")?;
    let both =
        json!({"apiVersion": "v1", "kind": "List", "items": [map("b", json!({})), map("c", json!({}))]});
    k.with("create", &both).await?.prints("configmap/b created\nconfigmap/c created\n")
}

async fn create_existing(k: Kubectl) -> Result<()> {
    k.create(&map("a", json!({}))).await?;
    let wanted =
        "Error from server (AlreadyExists): error when creating \"STDIN\": configmaps \"a\" already exists\n";
    k.with("create", &map("a", json!({}))).await?.fails(1, wanted)
}

async fn create_dry_run(k: Kubectl) -> Result<()> {
    let output = k.with("create --dry-run=server", &map("a", json!({}))).await?;
    output.prints("configmap/a created (server dry run)\n")?;
    k.run("get configmap a --ignore-not-found").await?.prints("")
}

async fn create_generated_name(k: Kubectl) -> Result<()> {
    let mut object = map("", json!({}));
    object["metadata"] = json!({"generateName": "made-"});
    k.with("create", &object).await?.has(&["configmap/made-", " created\n"])
}

async fn create_namespace(k: Kubectl) -> Result<()> {
    k.run(&format!("create namespace {}-two", k.name())).await?.prints("namespace/NS-two created\n")?;
    k.run(&format!("get namespace {}-two -o jsonpath={{.status.phase}}", k.name())).await?.prints("Active")
}

async fn create_config_map(k: Kubectl) -> Result<()> {
    k.run("create configmap a --from-literal=v=1").await?.prints("configmap/a created\n")?;
    data(&k, json!({"v": "1"})).await
}

async fn create_secret(k: Kubectl) -> Result<()> {
    k.run("create secret generic s --from-literal=p=word").await?.prints("secret/s created\n")?;
    k.run("get secret s -o jsonpath={.data.p},{.type}").await?.prints("d29yZA==,Opaque")?;
    k.run("get secret s")
        .await
        .and_then(|output| same(output.table()?, [vec!["NAME", "TYPE", "DATA"], vec!["s", "Opaque", "1"]]))?;
    k.run("describe secret s").await?.has(&["Type:  Opaque\n", "p:  4 bytes\n"])
}

async fn create_account(k: Kubectl) -> Result<()> {
    k.run("create serviceaccount robot").await?.prints("serviceaccount/robot created\n")?;
    k.run("get serviceaccount robot -o name").await?.prints("serviceaccount/robot\n")
}

async fn create_role(k: Kubectl) -> Result<()> {
    let output = k.run("create role reader --verb=get --verb=list --resource=configmaps").await?;
    output.prints("role.rbac.authorization.k8s.io/reader created\n")?;
    let found = k.run("get role reader -o json").await?.json()?;
    same(
        &found["rules"],
        &json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]),
    )
}

async fn create_role_binding(k: Kubectl) -> Result<()> {
    k.run("create role reader --verb=get --resource=configmaps").await?.ok()?;
    let output = k.run("create rolebinding read --role=reader --user=jane").await?;
    output.prints("rolebinding.rbac.authorization.k8s.io/read created\n")?;
    k.run("auth can-i get configmaps --as=jane").await?.prints("yes\n")
}

async fn create_token(k: Kubectl) -> Result<()> {
    let output = k.run("create token default").await?;
    same(output.ok()?.trim().split('.').count(), 3)
}

async fn create_job(k: Kubectl) -> Result<()> {
    k.run("create job j --image=example.com/image:1").await?.prints("job.batch/j created\n")?;
    k.run("get job j -o jsonpath={.spec.template.spec.restartPolicy}").await?.prints("Never")
}

async fn run_pod(k: Kubectl) -> Result<()> {
    k.run("run p --image=example.com/image:1 --restart=Never").await?.prints("pod/p created\n")?;
    k.run("get pod p -o jsonpath={.metadata.labels.run},{.spec.restartPolicy}").await?.prints("p,Never")
}

async fn patch_merge(k: Kubectl) -> Result<()> {
    k.create(&map("a", json!({"v": "1", "w": "2"}))).await?;
    let patch = r#"{"data": {"v": null, "x": "3"}}"#;
    k.words(&["patch", "cm", "a", "--type=merge", "-p", patch]).await?.prints("configmap/a patched\n")?;
    data(&k, json!({"w": "2", "x": "3"})).await
}

async fn patch_json(k: Kubectl) -> Result<()> {
    k.create(&map("a", json!({"v": "1"}))).await?;
    let patch = r#"[{"op": "test", "path": "/data/v", "value": "1"}, {"op": "add", "path": "/data/x", "value": "3"}]"#;
    k.words(&["patch", "cm", "a", "--type=json", "-p", patch]).await?.prints("configmap/a patched\n")?;
    data(&k, json!({"v": "1", "x": "3"})).await?;
    let wrong = r#"[{"op": "remove", "path": "/data/nope"}]"#;
    k.words(&["patch", "cm", "a", "--type=json", "-p", wrong])
        .await?
        .fails(1, "The request is invalid: the server rejected our request due to an error in our request\n")
}

async fn patch_strategic(k: Kubectl) -> Result<()> {
    k.create(&pod("p")).await?;
    let patch = r#"{"spec": {"containers": [{"name": "main", "image": "example.com/image:2"}]}}"#;
    k.words(&["patch", "pod", "p", "-p", patch]).await?.prints("pod/p patched\n")?;
    k.run("get pod p -o jsonpath={.spec.containers[*].image}").await?.prints("example.com/image:2")
}

async fn patch_custom_strategic(k: Kubectl) -> Result<()> {
    k.create(&layer("l")).await?;
    let patch = r#"{"spec": {"branch": "next"}}"#;
    let wanted = "error: application/strategic-merge-patch+json is not supported by terrane.dev/v1alpha1, Kind=TerraformLayer: the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml\n";
    k.words(&["patch", "tfl", "l", "-p", patch]).await?.fails(1, wanted)
}

async fn patch_nothing(k: Kubectl) -> Result<()> {
    k.create(&map("a", json!({"v": "1"}))).await?;
    let output = k.words(&["patch", "cm", "a", "-p", r#"{"data": {"v": "1"}}"#]).await?;
    output.prints("configmap/a patched (no change)\n")
}

async fn patch_status(k: Kubectl) -> Result<()> {
    k.create(&layer("l")).await?;
    let patch = r#"{"status": {"state": "Idle"}, "spec": {"branch": "next"}}"#;
    let output = k.words(&["patch", "tfl", "l", "--subresource=status", "--type=merge", "-p", patch]).await?;
    output.prints("terraformlayer.terrane.dev/l patched\n")?;
    k.run("get tfl l -o jsonpath={.status.state},{.spec.branch}").await?.prints("Idle,main")
}

async fn replace(k: Kubectl) -> Result<()> {
    k.create(&map("a", json!({"v": "1"}))).await?;
    k.with("replace", &map("a", json!({"w": "2"}))).await?.prints("configmap/a replaced\n")?;
    data(&k, json!({"w": "2"})).await?;
    let wanted = "Error from server (NotFound): error when replacing \"STDIN\": configmaps \"b\" not found\n";
    k.with("replace", &map("b", json!({}))).await?.fails(1, wanted)
}

async fn replace_stale(k: Kubectl) -> Result<()> {
    k.create(&map("a", json!({"v": "1"}))).await?;
    let mut old = k.run("get configmap a -o json").await?.json()?;
    // What kubectl printed has the namespace masked.
    old["metadata"].as_object_mut().map(|metadata| metadata.remove("namespace"));
    k.with("replace", &map("a", json!({"v": "2"}))).await?.ok()?;
    let wanted = "Error from server (Conflict): error when replacing \"STDIN\": Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again\n";
    k.with("replace", &old).await?.fails(1, wanted)
}

async fn replace_by_force(k: Kubectl) -> Result<()> {
    k.create(&map("a", json!({"v": "1"}))).await?;
    let old = k.run("get configmap a -o jsonpath={.metadata.uid}").await?;
    let output = k.with("replace --force", &map("a", json!({"v": "2"}))).await?;
    output.prints("configmap \"a\" deleted from NS namespace\nconfigmap/a replaced\n")?;
    let new = k.run("get configmap a -o jsonpath={.metadata.uid}").await?;
    same(old.ok()? == new.ok()?, false)
}

async fn label(k: Kubectl) -> Result<()> {
    k.create(&map("a", json!({}))).await?;
    k.run("label cm a tier=web").await?.prints("configmap/a labeled\n")?;
    k.run("label cm a tier=web").await?.prints("configmap/a not labeled\n")?;
    let wanted = "error: 'tier' already has a value (web), and --overwrite is false\n";
    k.run("label cm a tier=db").await?.fails(1, wanted)?;
    k.run("label cm a tier=db --overwrite").await?.prints("configmap/a labeled\n")?;
    k.run("label cm a tier-").await?.prints("configmap/a unlabeled\n")?;
    k.run("get cm a -o jsonpath={.metadata.labels}").await?.prints("{\"app\":\"x\"}")
}

async fn annotate(k: Kubectl) -> Result<()> {
    k.create(&layer("l")).await?;
    k.run("annotate tfl l example.com/n=1").await?.prints("terraformlayer.terrane.dev/l annotated\n")?;
    k.run("get tfl l -o jsonpath={.metadata.annotations}").await?.prints("{\"example.com/n\":\"1\"}")?;
    k.run("annotate tfl l example.com/n-").await?.prints("terraformlayer.terrane.dev/l annotated\n")?;
    k.run("get tfl l -o jsonpath={.metadata.annotations}").await?.prints("")
}

async fn delete_one(k: Kubectl) -> Result<()> {
    k.create(&map("a", json!({}))).await?;
    k.run("delete configmap a").await?.prints("configmap \"a\" deleted from NS namespace\n")?;
    k.run("get configmap a --ignore-not-found").await?.prints("")
}

async fn delete_missing(k: Kubectl) -> Result<()> {
    let wanted = "Error from server (NotFound): configmaps \"a\" not found\n";
    k.run("delete configmap a").await?.fails(1, wanted)?;
    k.run("delete configmap a --ignore-not-found").await?.prints("")
}

async fn delete_by_label(k: Kubectl) -> Result<()> {
    k.create(&map("a", json!({}))).await?;
    k.create(&map("b", json!({}))).await?;
    let output = k.run("delete configmaps -l app=x").await?;
    output
        .prints("configmap \"a\" deleted from NS namespace\nconfigmap \"b\" deleted from NS namespace\n")?;
    k.run("delete configmaps -l app=x").await?.prints("No resources found\n")
}

async fn delete_dry_run(k: Kubectl) -> Result<()> {
    k.create(&map("a", json!({}))).await?;
    let output = k.run("delete configmap a --dry-run=server").await?;
    output.prints("configmap \"a\" deleted from NS namespace (server dry run)\n")?;
    k.run("get configmap a -o name").await?.prints("configmap/a\n")
}

fn held(name: &str) -> Value {
    let mut object = map(name, json!({}));
    object["metadata"]["finalizers"] = json!(["example.com/held"]);
    object
}

async fn let_go(k: &Kubectl) -> Result<()> {
    let path = format!("{}/configmaps/a", k.path());
    k.scope.until(&path, |answer| answer.text().contains("deletionTimestamp")).await?;
    let patch = r#"{"metadata": {"finalizers": null}}"#;
    k.words(&["patch", "cm", "a", "--type=merge", "-p", patch]).await?.ok().map(drop)
}

async fn delete_waits_for_finalizers(k: Kubectl) -> Result<()> {
    k.create(&held("a")).await?;
    let (output, ()) = tokio::try_join!(k.run("delete configmap a"), let_go(&k))?;
    output.prints("configmap \"a\" deleted from NS namespace\n")?;
    k.run("get configmap a --ignore-not-found").await?.prints("")
}

async fn delete_without_waiting(k: Kubectl) -> Result<()> {
    k.create(&held("a")).await?;
    let output = k.run("delete configmap a --wait=false").await?;
    output.prints("configmap \"a\" deleted from NS namespace\n")?;
    k.run("get configmap a -o name").await?.prints("configmap/a\n")?;
    let output = k.run("delete configmap a --timeout=1s").await?;
    output.fails(1, "error: timed out waiting for the condition on configmaps/a\n")?;
    let_go(&k).await
}

async fn delete_namespace(k: Kubectl) -> Result<()> {
    k.create(&map("a", json!({}))).await?;
    k.run(&format!("delete namespace {}", k.name())).await?.prints("namespace \"NS\" deleted\n")?;
    let wanted = "Error from server (NotFound): namespaces \"NS\" not found\n";
    k.run(&format!("get namespace {}", k.name())).await?.fails(1, wanted)
}
