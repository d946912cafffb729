//! Drift as a person meets it: seen, reverted, accepted, by the real tool and a provider that looks at the world.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use api::TerraformLayer;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::PATIENTLY;
use crate::harness::git;
use crate::people::Doors;

/// The layer `motd` of the demo, which the plan looks at and no provider.
pub async fn reverted(doors: &Doors) {
    let file = doors.data().join("demo-world/motd");
    doors.run(&["wait", "motd", "--for=condition=Ready", PATIENTLY]).with_code(0);
    let kept = fs::read_to_string(&file).unwrap();
    let report = json!({ "spec": { "drift": { "onDrift": "report", "interval": "1h" } } });
    Api::<TerraformLayer>::namespaced(doors.client.clone(), "default")
        .patch("motd", &PatchParams::default(), &Patch::Merge(report))
        .await
        .unwrap();
    doors.run(&["wait", "motd", "--for=condition=Ready", PATIENTLY]).with_code(0);
    doors.run(&["drift", "motd"]).with_code(0).says("motd: no drift");
    doors
        .run(&["drift", "motd", "--revert"])
        .with_code(1)
        .complains("no drift of layer default/motd is known");

    replace(&file, "by hand\n");
    doors.run(&["plan", "motd", PATIENTLY]).with_code(2);
    doors.run(&["wait", "motd", "--for=condition=Drifted", PATIENTLY]).with_code(0);
    let told = doors.run(&["drift", "motd"]).with_code(2).says("~ terraform_data.motd   changed");
    told.says("triggers_replace  expected").says("terrane drift motd --revert");
    let report = doors.run(&["drift", "motd", "-o", "json"]).with_code(2).json();
    assert_eq!((&report["total"], &report["mode"]), (&json!(1), &json!("normal")), "{report}");
    doors
        .run(&["drift", "motd", "--accept", PATIENTLY])
        .with_code(1)
        .complains("has not moved since its last apply");
    doors.run(&["drift", "motd", "--revert", "--plan", "none"]).with_code(1).complains("look at it again");
    doors.run(&["drift", "motd", "--revert"]).with_code(1).complains("then say --yes");
    assert_eq!(fs::read_to_string(&file).unwrap(), "by hand\n", "nothing was decided yet");
    let plan = report["plan"].as_str().unwrap();
    let reverted =
        doors.run(&["drift", "motd", "--revert", "--yes", PATIENTLY, "--plan", &plan[..12]]).with_code(0);
    reverted.says("Apply complete!").says("motd: drift reverted");
    assert_eq!(fs::read_to_string(&file).unwrap(), kept);
    doors.run(&["wait", "motd", "--for=condition=Drifted=False", PATIENTLY]).with_code(0);
}

/// A file of the `local` provider, which finds out what became of it.
pub async fn accepted(doors: &Doors) {
    let note = fs::canonicalize(doors.data().join("demo-world")).unwrap().join("note");
    declare_note(doors, &note).await;
    doors.run(&["wait", "note", "--for=condition=Ready", PATIENTLY]).with_code(0);
    assert_eq!(fs::read_to_string(&note).unwrap(), "by code\n");

    replace(&note, "by hand\n");
    doors.run(&["plan", "note", PATIENTLY]).with_code(2);
    doors.run(&["wait", "note", "--for=condition=Drifted", PATIENTLY]).with_code(0);
    doors.run(&["drift", "note"]).with_code(2).says("- local_file.note   is missing");
    let accepted = doors.run(&["drift", "note", "--accept", "--reason", "meant so", PATIENTLY]).with_code(0);
    accepted.says("note: drift accepted");
    assert_eq!(fs::read_to_string(&note).unwrap(), "by hand\n", "the world stays as it is");
    doors.run(&["wait", "note", "--for=condition=Ready", PATIENTLY]).with_code(0);
    doors.run(&["drift", "note"]).with_code(0).says("no drift");
    doors.run(&["get", "layers", "note"]).with_code(0).says("but for drift that was");
    doors.run(&["state", "list", "note"]).with_code(0).keeps_quiet_about("local_file");
    let history = doors.run(&["history", "note", "-o", "json"]).with_code(0).json();
    let written = |entry: &&Value| entry["audit"][0]["trigger"] == "approval";
    let acceptance =
        history.as_array().unwrap().iter().find(written).expect("the acceptance was written down");
    assert!(acceptance["audit"][0]["by"].as_str().unwrap().contains("admin"), "{acceptance}");
    doors.run(&["history", "note"]).with_code(0).says("meant so");

    // The code still wants the file; a person can have that too.
    doors.run(&["plan", "note", PATIENTLY]).with_code(2);
    doors.run(&["wait", "note", "--for=condition=Drifted", PATIENTLY]).with_code(0);
    doors.run(&["drift", "note", "--revert", PATIENTLY]).with_code(0).says("note: drift reverted");
    assert_eq!(fs::read_to_string(&note).unwrap(), "by code\n");
}

async fn declare_note(doors: &Doors, note: &Path) {
    let demo = doors.data().join("demo");
    let code = format!(
        "terraform {{\n  required_providers {{\n    local = {{ source = \"registry.terraform.io/hashicorp/local\" }}\n  }}\n}}\n\nresource \"local_file\" \"note\" {{\n  filename = {}\n  content  = \"by code\\n\"\n}}\n",
        json!(note)
    );
    // Where the tools look for providers before they ask the network.
    let plugins = demo.join("note/terraform.d/plugins");
    fs::create_dir_all(&plugins).unwrap();
    fs::write(demo.join("note/main.tf"), code).unwrap();
    let mirror = testkit::tools::provider_mirror().unwrap().join("registry.terraform.io");
    let copied = Command::new("cp").arg("-r").arg(mirror).arg(&plugins).status().unwrap();
    assert!(copied.success());
    git(&demo, &["add", "--all", "note"]);
    git(&demo, &["commit", "--quiet", "--message=Keep a note"]);
    let layer = json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": { "name": "note" },
        "spec": {
            "repository": { "name": "demo" }, "branch": "main", "path": "note",
            "remediationStrategy": { "autoApply": true }, "drift": { "onDrift": "report", "interval": "1h" },
        },
    });
    Api::<TerraformLayer>::namespaced(doors.client.clone(), "default")
        .create(&PostParams::default(), &serde_json::from_value(layer).unwrap())
        .await
        .unwrap();
}

/// Writes what everybody may write again: each pod has a user of its own.
fn replace(file: &Path, content: &str) {
    fs::remove_file(file).unwrap();
    fs::write(file, content).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o666)).unwrap();
}
