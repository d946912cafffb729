//! apply on the client's and on the server's side, and diff.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::program::{Kubectl, layer, map, same};

cases!("apply": creates_and_changes, drops_what_is_gone, custom_resource, remembers_the_last, without_create_annotation, server_side, server_side_conflict, server_side_by_force, server_side_custom, dry_run, diff_of_nothing,
    diff_of_changes, diff_of_new, diff_server_side);

async fn creates_and_changes(k: Kubectl) -> Result<()> {
    k.with("apply", &map("a", json!({"v": "1"}))).await?.prints("configmap/a created\n")?;
    k.with("apply", &map("a", json!({"v": "1"}))).await?.prints("configmap/a unchanged\n")?;
    k.with("apply", &map("a", json!({"v": "2"}))).await?.prints("configmap/a configured\n")?;
    k.run("get cm a -o jsonpath={.data.v}").await?.prints("2")
}

async fn drops_what_is_gone(k: Kubectl) -> Result<()> {
    k.with("apply", &map("a", json!({"v": "1", "w": "1"}))).await?.ok()?;
    k.words(&["patch", "cm", "a", "-p", r#"{"data": {"other": "1"}}"#]).await?.ok()?;
    k.with("apply", &map("a", json!({"v": "1"}))).await?.prints("configmap/a configured\n")?;
    k.run("get cm a -o jsonpath={.data}").await?.prints("{\"other\":\"1\",\"v\":\"1\"}")
}

async fn custom_resource(k: Kubectl) -> Result<()> {
    k.with("apply", &layer("l")).await?.prints("terraformlayer.terrane.dev/l created\n")?;
    k.with("apply", &layer("l")).await?.prints("terraformlayer.terrane.dev/l unchanged\n")?;
    let mut next = layer("l");
    next["spec"]["branch"] = json!("next");
    k.with("apply", &next).await?.prints("terraformlayer.terrane.dev/l configured\n")?;
    k.run("get tfl l -o jsonpath={.spec.branch},{.metadata.generation}").await?.prints("next,2")
}

async fn remembers_the_last(k: Kubectl) -> Result<()> {
    k.with("apply", &map("a", json!({"v": "1"}))).await?.ok()?;
    let last = k.run("apply view-last-applied cm a -o json").await?.json()?;
    same(&last["data"], &json!({"v": "1"}))
}

async fn without_create_annotation(k: Kubectl) -> Result<()> {
    k.create(&map("a", json!({"v": "1"}))).await?;
    let output = k.with("apply", &map("a", json!({"v": "2"}))).await?;
    output.prints("configmap/a configured\n")?;
    let wanted = "Warning: resource configmaps/a is missing the kubectl.kubernetes.io/last-applied-configuration annotation which is required by kubectl apply. kubectl apply should only be used on resources created declaratively by either kubectl create --save-config or kubectl apply. The missing annotation will be patched automatically.\n";
    output.fails(0, wanted)
}

async fn server_side(k: Kubectl) -> Result<()> {
    let wanted = "configmap/a serverside-applied\n";
    k.with("apply --server-side", &map("a", json!({"v": "1"}))).await?.prints(wanted)?;
    k.with("apply --server-side", &map("a", json!({"w": "1"}))).await?.prints(wanted)?;
    k.run("get cm a -o jsonpath={.data}").await?.prints("{\"w\":\"1\"}")?;
    let path = "jsonpath={.metadata.managedFields[*].manager},{.metadata.managedFields[*].operation}";
    k.run(&format!("get cm a --show-managed-fields -o {path}")).await?.prints("kubectl,Apply")
}

async fn server_side_conflict(k: Kubectl) -> Result<()> {
    k.with("apply --server-side --field-manager=one", &map("a", json!({"v": "1"}))).await?.ok()?;
    let output = k.with("apply --server-side --field-manager=two", &map("a", json!({"v": "2"}))).await?;
    output.fails(
        1,
        "error: Apply failed with 1 conflict: conflict with \"one\": .data.v\nPlease review the fields above--they currently have other managers. Here\nare the ways you can resolve this warning:\n* If you intend to manage all of these fields, please re-run the apply\n  command with the `--force-conflicts` flag.\n* If you do not intend to manage all of the fields, please edit your\n  manifest to remove references to the fields that should keep their\n  current managers.\n* You may co-own fields by updating your manifest to match the existing\n  value; in this case, you'll become the manager if the other manager(s)\n  stop managing the field (remove it from their configuration).\nSee https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts\n",
    )
}

async fn server_side_by_force(k: Kubectl) -> Result<()> {
    k.with("apply --server-side --field-manager=one", &map("a", json!({"v": "1"}))).await?.ok()?;
    let line = "apply --server-side --field-manager=two --force-conflicts";
    k.with(line, &map("a", json!({"v": "2"}))).await?.prints("configmap/a serverside-applied\n")?;
    k.run("get cm a -o jsonpath={.data.v}").await?.prints("2")
}

async fn server_side_custom(k: Kubectl) -> Result<()> {
    let wanted = "terraformlayer.terrane.dev/l serverside-applied\n";
    k.with("apply --server-side", &layer("l")).await?.prints(wanted)?;
    k.with("apply --server-side", &layer("l")).await?.prints(wanted)?;
    k.run("get tfl l -o jsonpath={.metadata.generation}").await?.prints("1")
}

async fn dry_run(k: Kubectl) -> Result<()> {
    let output = k.with("apply --dry-run=server", &map("a", json!({}))).await?;
    output.prints("configmap/a created (server dry run)\n")?;
    let output = k.with("apply --server-side --dry-run=server", &map("a", json!({}))).await?;
    output.prints("configmap/a serverside-applied (server dry run)\n")?;
    k.run("get cm a --ignore-not-found").await?.prints("")
}

async fn diff_of_nothing(k: Kubectl) -> Result<()> {
    k.with("apply", &map("a", json!({"v": "1"}))).await?.ok()?;
    k.with("diff", &map("a", json!({"v": "1"}))).await?.prints("")
}

async fn diff_of_changes(k: Kubectl) -> Result<()> {
    k.with("apply", &map("a", json!({"v": "1"}))).await?.ok()?;
    let output = k.with("diff", &map("a", json!({"v": "2"}))).await?;
    same(output.code, 1)?;
    ensure!(output.stdout.contains("\n-  v: \"1\"\n+  v: \"2\"\n"), "{output:?}");
    k.run("get cm a -o jsonpath={.data.v}").await?.prints("1")
}

async fn diff_of_new(k: Kubectl) -> Result<()> {
    let output = k.with("diff", &layer("l")).await?;
    same(output.code, 1)?;
    ensure!(output.stdout.contains("\n+kind: TerraformLayer\n"), "{output:?}");
    k.run("get tfl l --ignore-not-found").await?.prints("")
}

async fn diff_server_side(k: Kubectl) -> Result<()> {
    k.with("apply --server-side", &map("a", json!({"v": "1"}))).await?.ok()?;
    k.with("diff --server-side", &map("a", json!({"v": "1"}))).await?.prints("")?;
    let output = k.with("diff --server-side", &map("a", json!({"v": "2"}))).await?;
    same(output.code, 1)?;
    ensure!(output.stdout.contains("\n-  v: \"1\"\n+  v: \"2\"\n"), "{output:?}");
    Ok(())
}
