//! Wrong manifests: the words that a user reads are the same on both servers.

use anyhow::Result;
use serde_json::json;

use crate::program::{Kubectl, layer, map, pod};

cases!("wrong": unknown_field, unknown_field_of_built_in, wrong_type, wrong_type_of_built_in, missing_required, missing_required_of_pod, pattern, two_at_once, rule, bad_name, unknown_kind, unknown_version, unchecked, warned, apply_names_the_object, immutable);

async fn unknown_field(k: Kubectl) -> Result<()> {
    let mut object = layer("l");
    object["spec"]["brunch"] = json!("x");
    k.with("create", &object).await?.fails(
        1,
        "Error from server (BadRequest): error when creating \"STDIN\": TerraformLayer in version \"v1alpha1\" cannot be handled as a TerraformLayer: strict decoding error: unknown field \"spec.brunch\"\n",
    )
}

async fn unknown_field_of_built_in(k: Kubectl) -> Result<()> {
    let mut object = map("a", json!({}));
    object["dada"] = json!({});
    k.with("create", &object).await?.fails(
        1,
        "Error from server (BadRequest): error when creating \"STDIN\": ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"dada\"\n",
    )
}

async fn wrong_type(k: Kubectl) -> Result<()> {
    let mut object = layer("l");
    object["spec"]["suspend"] = json!("yes");
    k.with("create", &object).await?.fails(
        1,
        "The TerraformLayer \"l\" is invalid: \n* spec.suspend: Invalid value: \"string\": spec.suspend in body must be of type boolean: \"string\"\n* <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation\n",
    )
}

async fn wrong_type_of_built_in(k: Kubectl) -> Result<()> {
    k.with("create", &map("a", json!({"v": 1}))).await?.fails(
        1,
        "Error from server (BadRequest): error when creating \"STDIN\": ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ConfigMap.data of type string\n",
    )
}

async fn missing_required(k: Kubectl) -> Result<()> {
    let mut object = layer("l");
    object["spec"] = json!({"repository": {"name": "r"}, "branch": "main"});
    k.with("create", &object)
        .await?
        .fails(1, "The TerraformLayer \"l\" is invalid: \n* spec.path: Required value\n* <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation\n")
}

async fn missing_required_of_pod(k: Kubectl) -> Result<()> {
    let mut object = pod("p");
    object["spec"]["containers"] = json!([{"image": "example.com/image:1"}]);
    k.with("create", &object)
        .await?
        .fails(1, "The Pod \"p\" is invalid: spec.containers[0].name: Required value\n")
}

async fn pattern(k: Kubectl) -> Result<()> {
    let mut object = layer("l");
    object["spec"]["path"] = json!("/etc");
    k.with("create", &object).await?.fails(
        1,
        "The TerraformLayer \"l\" is invalid: spec.path: Invalid value: \"/etc\": spec.path in body should match '^[A-Za-z0-9_.][A-Za-z0-9_. +@=,/-]*$'\n",
    )
}

async fn two_at_once(k: Kubectl) -> Result<()> {
    let mut object = layer("l");
    object["spec"] = json!({"repository": {}, "branch": "main"});
    k.with("create", &object).await?.fails(
        1,
        "The TerraformLayer \"l\" is invalid: \n* spec.repository.name: Required value\n* spec.path: Required value\n* <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation\n",
    )
}

async fn rule(k: Kubectl) -> Result<()> {
    let mut object = layer("l");
    object["spec"]["terraform"] = json!({"enabled": true});
    object["spec"]["opentofu"] = json!({"enabled": true});
    k.with("create", &object).await?.fails(
        1,
        "The TerraformLayer \"l\" is invalid: spec: Invalid value: at most one of terraform and opentofu can be enabled\n",
    )
}

async fn bad_name(k: Kubectl) -> Result<()> {
    k.with("create", &map("A_b", json!({}))).await?.fails(
        1,
        "The ConfigMap \"A_b\" is invalid: metadata.name: Invalid value: \"A_b\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')\n",
    )
}

async fn unknown_kind(k: Kubectl) -> Result<()> {
    let object =
        json!({"apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLair", "metadata": {"name": "l"}});
    k.with("create", &object).await?.fails(
        1,
        "error: resource mapping not found for name: \"l\" namespace: \"\" from \"STDIN\": no matches for kind \"TerraformLair\" in version \"terrane.dev/v1alpha1\"\nensure CRDs are installed first\n",
    )
}

async fn unknown_version(k: Kubectl) -> Result<()> {
    let mut object = layer("l");
    object["apiVersion"] = json!("terrane.dev/v9");
    k.with("create", &object).await?.fails(
        1,
        "error: resource mapping not found for name: \"l\" namespace: \"\" from \"STDIN\": no matches for kind \"TerraformLayer\" in version \"terrane.dev/v9\"\nensure CRDs are installed first\n",
    )
}

async fn unchecked(k: Kubectl) -> Result<()> {
    let mut object = layer("l");
    object["spec"]["brunch"] = json!("x");
    k.with("create --validate=ignore", &object).await?.prints("terraformlayer.terrane.dev/l created\n")?;
    k.run("get tfl l -o jsonpath={.spec.brunch}").await?.prints("")
}

async fn warned(k: Kubectl) -> Result<()> {
    let mut object = layer("l");
    object["spec"]["brunch"] = json!("x");
    let output = k.with("create --validate=warn", &object).await?;
    output.prints("terraformlayer.terrane.dev/l created\n")?;
    output.fails(0, "Warning: unknown field \"spec.brunch\"\n")
}

async fn apply_names_the_object(k: Kubectl) -> Result<()> {
    let mut object = layer("l");
    k.with("apply", &object).await?.ok()?;
    object["spec"]["suspend"] = json!("yes");
    k.with("apply", &object).await?.fails(
        1,
        "The TerraformLayer \"l\" is invalid: \n* spec.suspend: Invalid value: \"string\": spec.suspend in body must be of type boolean: \"string\"\n* <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation\n",
    )
}

async fn immutable(k: Kubectl) -> Result<()> {
    let mut object = map("a", json!({"v": "1"}));
    object["immutable"] = json!(true);
    k.create(&object).await?;
    object["data"]["v"] = json!("2");
    k.with("replace", &object).await?.fails(
        1,
        "The ConfigMap \"a\" is invalid: data: Forbidden: field is immutable when `immutable` is set\n",
    )
}
