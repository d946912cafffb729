//! Every verb that takes `-o json` prints one document by it, and so by `-o yaml`. Which verbs those are, the program's own help says: a
//! new one that nobody runs here fails.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::PATIENTLY;
use crate::harness::{BINARY, Gate, declare_layer};
use crate::people::{Done, Doors, finished};

/// Only the demo's `network`, `database` and `app` are asked for, and no run is under way that the verbs before have not waited for.
pub async fn every_verb(doors: &Doors) {
    doors.run(&["token", "create", "shaped"]).with_code(0);
    let verbs = verbs(&[]);
    assert!(verbs.len() > 25, "{verbs:?}");
    for words in &verbs {
        for form in ["json", "yaml"] {
            let printed = printed(doors, words, form).await;
            let document: Value = match form {
                "json" => printed.json(),
                _ => serde_saphyr::from_str(&printed.out)
                    .unwrap_or_else(|error| panic!("{words} in yaml: {error}: {printed:#?}")),
            };
            let is_document = document.is_object() || document.is_array();
            assert!(is_document, "{words} in {form} prints {document}");
        }
    }
    several(doors);
}

/// The words of each verb that takes `-o json`, as help lists them.
fn verbs(words: &[&str]) -> Vec<String> {
    let help = finished(Command::new(BINARY).args(words).arg("-h").output().unwrap()).with_code(0).out;
    let mut found = Vec::new();
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in listed.take_while(|line| !line.is_empty()) {
        // What does not begin in the third column goes on with the description before it.
        let Some(line) = line.strip_prefix("  ").filter(|line| !line.starts_with(' ')) else { continue };
        let name = line.split_whitespace().next().unwrap();
        if name != "help" {
            found.extend(verbs(&[words, &[name]].concat()));
        }
    }
    let option = help.split_once("-o, --output").map(|(_, rest)| rest.split("\n  -").next().unwrap());
    if option.is_some_and(|text| text.contains("json")) {
        found.push(words.join(" "));
    }
    found
}

/// Runs a verb, with whatever it needs.
async fn printed(doors: &Doors, verb: &str, form: &str) -> Done {
    let words: Vec<&str> = verb.split(' ').collect();
    let run = |more: &[&str]| doors.run(&[&words[..], more, &["-o", form]].concat());
    let file = doors.scratch().join("shaped.tfstate");
    let store = doors.scratch().join("store");
    match verb {
        "get" => run(&["layers"]).with_code(0),
        "describe" => run(&["database"]).with_code(0),
        "sync" => run(&["app", "--known"]).with_code(0),
        "plan" | "diff" => of_plan(run(&["database"])),
        "drift" => of_plan(run(&["network"])),
        "apply" => run(&["database", PATIENTLY]).with_code(0),
        "approve" | "reject" => {
            // Each person has one word on each plan.
            of_plan(doors.run(&["plan", "database", PATIENTLY]));
            run(&["database"]).with_code(0)
        }
        "cancel" => {
            let (gate, name) = (Gate::new(), format!("held-{form}"));
            let _source = declare_layer(&doors.client, &name, &gate.code()).await;
            gate.visitors().await;
            let canceled = run(&[&name]).with_code(0);
            doors.run(&["suspend", &name]).with_code(0);
            gate.open();
            canceled
        }
        "events" | "history" => run(&["network"]).with_code(0),
        "wait" => run(&["database", "--for=condition=IsLastRelevantCommitPlanned", PATIENTLY]).with_code(0),
        "suspend" | "resume" => run(&["app"]).with_code(0),
        "outputs" => run(&["network"]).with_code(0),
        "state list" | "state versions" | "state locks" => run(&["database"]).with_code(0),
        "state show" => run(&["database", "terraform_data.db[0]"]).with_code(0),
        "state push" => {
            let mut content = doors.run(&["state", "pull", "database"]).with_code(0).json();
            content["serial"] = json!(content["serial"].as_u64().unwrap() + 1);
            fs::write(&file, content.to_string()).unwrap();
            run(&["database", file.to_str().unwrap()]).with_code(0)
        }
        "state rollback" => run(&["database", "1"]).with_code(0),
        "state unlock" => {
            crate::hold(doors, "database", "held-2").await;
            run(&["database", "held-2"]).with_code(0)
        }
        "tools list" | "tools install" | "tools prune" => {
            fs::create_dir_all(&store).unwrap();
            fs::write(store.join("terraform-1.0.0"), "#!/bin/sh\n").unwrap();
            let place = ["--store", store.to_str().unwrap()];
            let what: &[&str] = if verb == "tools install" { &["terraform", "1.0.0"] } else { &[] };
            run(&[what, &place].concat()).with_code(0)
        }
        "backends" | "token list" | "version" => run(&[]).with_code(0),
        unknown => panic!("{unknown} takes -o json, and nobody has tried what it prints: run it here"),
    }
}

/// Without changes, or with them.
fn of_plan(done: Done) -> Done {
    let code = done.code;
    assert!([0, 2].contains(&code), "{done:#?}");
    done
}

/// What is about several objects is one document too, and what says less than an object can be used as well.
fn several(doors: &Doors) {
    let suspended = doors.run(&["suspend", "app", "repository/demo", "-o", "json"]).with_code(0).json();
    let kinds: Vec<&Value> = suspended.as_array().unwrap().iter().map(|object| &object["kind"]).collect();
    assert_eq!(kinds, ["TerraformLayer", "TerraformRepository"]);
    doors.run(&["sync", "repository", "demo"]).with_code(1).complains("repository default/demo is suspended");
    let resumed = doors.run(&["resume", "repository", "demo", "-o", "json"]).with_code(0).json();
    assert_eq!((&resumed["kind"], resumed["spec"].get("suspend")), (&json!("TerraformRepository"), None));
    let named = doors.run(&["resume", "app", "layer/database", "-o", "name"]).with_code(0).out;
    assert_eq!(named, "terraformlayers/app\nterraformlayers/database\n");
    let cidr = doors.run(&["outputs", "network", "cidr", "-o", "json"]).with_code(0).json();
    assert_eq!(cidr, "10.0.1.0/24");
    let gone = ["wait", "repository/none", "--for=delete", "-o", "json"];
    let gone = doors.run(&gone).with_code(0).json();
    let expected = (&json!("TerraformRepository"), &json!("none"), &json!("default"));
    assert_eq!((&gone["kind"], &gone["metadata"]["name"], &gone["metadata"]["namespace"]), expected);
    doors
        .run(&["state", "pull", "database", "-o", "json"])
        .with_code(2)
        .complains("unexpected argument '-o'");
}
