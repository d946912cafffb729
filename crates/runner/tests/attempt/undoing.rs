//! A destroy of what an apply made, when all that the apply was given is gone or is something else by then.

use api::attempt::{GivenInputs, Kept};
use api::backends::{BackendSpec, Backends, Facts};
use api::inputs::{Contents, DigestKey, Inputs};
use serde_json::{Value, json};
use testkit::canary::Canary;

use super::*;

/// Nothing of it can be destroyed without its variables, and what destroys it says what it was given.
const CODE: &str = r#"
variable "name" {}
variable "size" { type = number }
resource "terraform_data" "x" {
  input = "${var.name} ${var.size}"
  provisioner "local-exec" {
    when    = destroy
    command = "echo destroyed with $OWNER and $TOKEN: ${self.input}"
  }
}
"#;

fn inputs(state: &Path) -> Inputs {
    let facts = Facts { namespace: "team", name: "layer", path: "envs/prod", workspace: "default" };
    let asked: BackendSpec = serde_json::from_value(json!({ "provider": "local", "path": state })).unwrap();
    let given = json!({
        "variables": [
            { "name": "name", "valueFrom": { "secretKeyRef": { "name": "kept", "key": "name" } } },
            { "name": "size", "value": 3 },
        ],
        "environment": [
            { "name": "OWNER", "valueFrom": { "configMapKeyRef": { "name": "kept", "key": "owner" } } },
            { "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "kept", "key": "token" } }, "rotates": true },
        ],
    });
    let backend = Some(Backends::default().generate(&asked, facts).unwrap());
    Inputs { backend, ..serde_json::from_value(given).unwrap() }
}

const KEY: DigestKey = DigestKey::new([9; DigestKey::LENGTH]);

/// A directory for each object, as a kubelet mounts them; those of objects that are gone are empty.
fn mounted(objects: &[&[(&str, &str)]]) -> Vec<tempfile::TempDir> {
    let mount = |pairs: &&[(&str, &str)]| {
        let directory = tempfile::tempdir().unwrap();
        pairs.iter().for_each(|(key, value)| std::fs::write(directory.path().join(key), value).unwrap());
        directory
    };
    objects.iter().map(mount).collect()
}

fn digest(inputs: &Inputs, objects: &[&[(&str, &str)]]) -> Sha256 {
    let data = |pairs: &&[(&str, &str)]| {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect()
    };
    let contents: Contents = inputs.objects().into_keys().zip(objects.iter().map(data)).collect();
    inputs.digest(&KEY, &contents).unwrap()
}

async fn run(world: &World, description: Description, mounts: &[tempfile::TempDir]) -> Outcome {
    world.describe(&description).await;
    let options = RunnerOptions {
        inputs: mounts.iter().map(|mount| mount.path().to_owned()).collect(),
        ..world.options(&description.run_uid)
    };
    world.run_with(options, std::future::pending()).await
}

#[tokio::test]
async fn what_an_apply_was_given_is_kept_sealed_and_undoes_it() {
    let states = tempfile::tempdir().unwrap();
    let state = states.path().canonicalize().unwrap().join("state");
    let world = World::new(&[("envs/prod/main.tf", CODE)]).await;
    let secret = Canary::random("a value of a Secret that is kept");
    let then: [&[(&str, &str)]; 2] =
        [&[("name", &secret.value), ("token", "first-token")], &[("owner", "jane")]];
    let inputs = inputs(&state);
    let told = GivenInputs { digest: digest(&inputs, &then), inputs: inputs.clone(), key: KEY };
    let given = |description: Description, told: &GivenInputs| Description {
        inputs: Some(told.clone()),
        ..description
    };
    let mounts = mounted(&then);
    let plan = run(&world, given(world.description("plan-1", Action::Plan, 0), &told), &mounts).await;
    let apply = run(&world, given(world.apply_after("apply-1", 1, &plan), &told), &mounts).await;
    assert_eq!(apply.reason, Reason::Succeeded, "{}", apply.message);
    assert!(state.exists());
    // It is sealed where it lies.
    let found = testkit::canary::search(&world.dir.path().join("objects"), [&secret]);
    assert!(found.is_empty(), "{found:?}");

    // Everything is gone or something else: the objects, the variables, the path, the backend.
    let gone = mounted(&[&[]]);
    let other: Inputs = serde_json::from_value(json!({
        "variablesFrom": [{ "secretRef": { "name": "another" } }],
    }))
    .unwrap();
    let by_now = GivenInputs { inputs: other, ..told.clone() };
    let kept = |description: Description| Description {
        mode: Mode::Destroy,
        path: "envs/elsewhere".parse().unwrap(),
        kept: Some(Kept { run_uid: "apply-1".to_owned(), attempt: 1 }),
        ..given(description, &by_now)
    };
    let plan = run(&world, kept(world.description("destroy-1", Action::Plan, 0)), &gone).await;
    assert_eq!(plan.message, "Plan: 0 to add, 0 to change, 1 to destroy.");
    let apply = run(&world, kept(world.apply_after("destroy-2", 2, &plan)), &gone).await;
    assert_eq!(apply.reason, Reason::Succeeded, "{}", apply.message);
    let log = world.log_of("destroy-2").await;
    assert!(log.contains("destroyed with jane and ***: *** 3"), "{log}");
    for run in ["plan-1", "apply-1", "destroy-1", "destroy-2"] {
        assert_eq!(secret.found_in(world.log_of(run).await.as_bytes()), None, "the log of {run}");
    }
    let left: Value = serde_json::from_slice(&std::fs::read(&state).unwrap()).unwrap();
    assert_eq!(left["resources"], json!([]));
}

#[tokio::test]
async fn what_opens_doors_is_as_it_is_now_and_the_rest_as_it_was() {
    let states = tempfile::tempdir().unwrap();
    let state = states.path().canonicalize().unwrap().join("state");
    let world = World::new(&[("envs/prod/main.tf", CODE)]).await;
    let then: [&[(&str, &str)]; 2] =
        [&[("name", "first-name"), ("token", "first-token")], &[("owner", "jane")]];
    let inputs = inputs(&state);
    let told = GivenInputs { digest: digest(&inputs, &then), inputs: inputs.clone(), key: KEY };
    let given = |description: Description| Description { inputs: Some(told.clone()), ..description };
    let mounts = mounted(&then);
    let plan = run(&world, given(world.description("plan-1", Action::Plan, 0)), &mounts).await;
    run(&world, given(world.apply_after("apply-1", 1, &plan)), &mounts).await;

    let now = mounted(&[&[("name", "second-name"), ("token", "second-token")], &[("owner", "joe")]]);
    let kept = |description: Description| Description {
        mode: Mode::Destroy,
        kept: Some(Kept { run_uid: "apply-1".to_owned(), attempt: 1 }),
        ..given(description)
    };
    let plan = run(&world, kept(world.description("destroy-1", Action::Plan, 0)), &now).await;
    assert_eq!(plan.message, "Plan: 0 to add, 0 to change, 1 to destroy.");
    let apply = run(&world, kept(world.apply_after("destroy-2", 2, &plan)), &now).await;
    assert_eq!(apply.reason, Reason::Succeeded, "{}", apply.message);
    let log = world.log_of("destroy-2").await;
    assert!(log.contains("destroyed with joe and ***: *** 3"), "{log}");

    // What was kept and is not what this run is about is not used.
    let wrong = GivenInputs { digest: Sha256::of(b"another"), ..told.clone() };
    let refused =
        Description { inputs: Some(wrong), ..kept(world.description("destroy-3", Action::Plan, 0)) };
    let refused = run(&world, refused, &now).await;
    assert_eq!(refused.reason, Reason::BadInput, "{}", refused.message);
    assert!(
        refused.message.starts_with("what the last apply was given was not kept whole"),
        "{}",
        refused.message
    );
}
