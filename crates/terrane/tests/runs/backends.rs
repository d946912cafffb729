//! A layer that says itself where its state is kept, by the real binary and the real tool: a backend that an administrator defined, what is
//! said of one that cannot be used, and a state that moves only when a person moves it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use api::TerraformLayer;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use testkit::process::Scratch;

use crate::harness::{Terrane, declare_path, declare_repository, is, layer_until, why};
use crate::told;

const CODE: &str = "resource \"terraform_data\" \"x\" { input = \"one\" }\n";

const DEFINITION: &str = r#"
name: shelf
about: A directory of this machine.
backend: local
fields:
  shelf: { about: The directory., required: true }
settings:
  path: "{shelf}/{layer.namespace}-{layer.name}.tfstate"
"#;

async fn ask_for(client: &Client, backend: Value) {
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    let patch = Patch::Merge(json!({ "spec": { "backend": backend } }));
    layers.patch("app", &PatchParams::default(), &patch).await.unwrap();
}

fn everybodys(directory: &std::path::Path, name: &str) -> std::path::PathBuf {
    let shelf = directory.join(name);
    fs::create_dir(&shelf).unwrap();
    // Each runner has a user of its own.
    for path in [directory, shelf.as_path()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    shelf.canonicalize().unwrap()
}

#[tokio::test]
async fn a_layer_keeps_its_state_where_it_says_and_takes_nothing_along_by_itself() {
    let scratch = Scratch::new("terrane-backends-").unwrap();
    let definitions = scratch.path().join("definitions");
    fs::create_dir(&definitions).unwrap();
    fs::write(definitions.join("shelf.yaml"), DEFINITION).unwrap();
    let shelf = everybodys(scratch.path(), "shelf");
    let mut terrane = Terrane::new();
    let flag = definitions.display().to_string();
    let client = terrane.start(&["--backends", &flag]).await;
    let listed = told(terrane.command(&["backends", "--backends", &flag, "-o", "json"]));
    let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
    let of = |name: &str| listed.iter().find(|row| row["name"] == name).unwrap()["builtIn"].clone();
    assert_eq!((of("shelf"), of("s3")), (json!(false), json!(true)));

    let _source = declare_repository(&client, "code", &[("app/main.tf", CODE)]).await;
    declare_path(&client, "code", "app", "app").await;
    layer_until(&client, "app", "applied", is("Ready")).await;
    let state = told(terrane.command(&["state", "pull", "app"]));

    // What cannot be meant starts nothing, and says what could be.
    ask_for(&client, json!({ "provider": "shelv", "shelf": shelf })).await;
    let words = "spec.backend: there is no backend shelv; did you mean shelf? `terrane backends` lists them";
    layer_until(&client, "app", words, |layer| why(layer) == words).await;
    ask_for(&client, json!({ "provider": "shelf", "shelf": 7 })).await;
    let words = "spec.backend: field shelf of shelf must be text, and is a number; put it in quotes";
    layer_until(&client, "app", words, |layer| why(layer) == words).await;

    // In the new place there is no state: nobody makes everything a second time.
    ask_for(&client, json!({ "provider": "shelf", "shelf": shelf })).await;
    let file = shelf.join("default-app.tfstate");
    let words = format!(
        "its state was kept by terrane, and is now looked for in local path={}, where there is none; move the state there and run terrane sync app, or begin anew: terrane approve app",
        file.display()
    );
    layer_until(&client, "app", "it waits for a person", |layer| why(layer) == words).await;
    assert!(!file.exists());

    // A person moves it, and it is gone on with.
    fs::write(&file, &state).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    told(terrane.command(&["sync", "app"]));
    let layer = layer_until(&client, "app", "in sync with the state that was moved", is("Ready")).await;
    let identity = layer.status.unwrap().state_identity.unwrap();
    assert_eq!(identity.backend, format!("local path={}", file.display()));
    crate::end(terrane).await;
}

#[tokio::test]
async fn what_the_codes_own_backend_keeps_is_told_and_its_outputs_can_be_had() {
    let scratch = Scratch::new("terrane-backends-").unwrap();
    let file = everybodys(scratch.path(), "shelf").join("own.tfstate");
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    let code = format!(
        r#"
terraform {{
  backend "local" {{
    path = "{}"
  }}
}}

output "size" {{
  value = 7
}}

output "password" {{
  value     = "hunter2"
  sensitive = true
}}
"#,
        file.display()
    );
    let _source = declare_repository(&client, "code", &[("app/main.tf", code.as_str())]).await;
    declare_path(&client, "code", "app", "app").await;
    layer_until(&client, "app", "applied", is("Ready")).await;
    assert!(file.exists(), "the state is where the code says");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();

    let refused = |words: &[&str]| {
        let output = terrane.command(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{words:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let truth = format!(
        "error: the state of layer default/app is kept by local path={} and not by Terrane; ",
        file.display()
    );
    let pushed = file.to_str().unwrap();
    for (words, advice) in [
        (&["outputs", "app"][..], "spec.writeOutputsTo has runs keep them"),
        (&["state", "list", "app"], "`terraform state pull`"),
        (&["state", "show", "app", "a.b"], "`terraform state pull`"),
        (&["state", "pull", "app"], "`terraform state pull`"),
        (&["state", "push", "app", pushed], "`terraform state push`"),
        (&["state", "rollback", "app", "1"], "`terraform state pull`"),
        (&["state", "versions", "app"], "that backend knows"),
        (&["state", "locks", "app"], "`terraform force-unlock ID`"),
        (&["state", "unlock", "app", "x"], "`terraform force-unlock ID`"),
    ] {
        let said = refused(words);
        assert!(said.starts_with(&truth) && said.contains(advice), "{words:?}: {said}");
    }

    // What a run keeps for a Secret can be shown too, by the rule that holds for every output.
    let patch = Patch::Merge(json!({ "spec": { "writeOutputsTo": [{ "secret": "app" }] } }));
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), "default");
    layers.patch("app", &PatchParams::default(), &patch).await.unwrap();
    layer_until(&client, "app", "its outputs are written", is("OutputsWritten")).await;
    let shown: Value =
        serde_json::from_str(&told(terrane.command(&["outputs", "app", "-o", "json"]))).unwrap();
    assert_eq!(
        (&shown["size"]["value"], &shown["password"]["value"]),
        (&json!(7), &json!("(sensitive value)"))
    );
    let shown = told(terrane.command(&["outputs", "app", "password", "--sensitive"]));
    assert_eq!(shown, "hunter2\n");
    crate::end(terrane).await;
}
