//! What the HTTP service says of itself, held to what it does: schemathesis tries every operation of the document, with what it allows and
//! with what it does not, and a client that is generated from the document is used as a program would use it.

use std::fs;
use std::process::Command;

use testkit::tools::tool;

use crate::PATIENTLY;
use crate::people::{Doors, finished};

/// The same seed makes the same requests. Most of them are about objects that there are.
const SETTINGS: &str = r#"
seed = 1
[warnings]
fail-on = ["unresolvable_reference"]
[generation]
max-examples = 4
[parameters]
"path.namespace" = "default"
"path.id" = "STACK"
"path.host" = "gitea"
[[operations]]
include-path-regex = "/layers/"
parameters = { "path.name" = "network" }
[[operations]]
include-path-regex = "/runs/"
parameters = { "path.name" = "RUN" }
[[operations]]
include-path-regex = "/(repositories|webhooks)/"
parameters = { "path.name" = "demo" }
"#;
/// A request that fits the document can still name what is not there, or a page that was never given: a document cannot say that.
const UNTELLABLE: &str = "positive_data_acceptance";
/// Logs that are followed go on until their run ends, and a link to log in is there for one try.
const ENDLESS: &str = "(/log/events|/logs/events|^/login)$";

#[tokio::test(flavor = "multi_thread")]
async fn the_document_says_what_the_service_does() {
    let doors = Doors::open().await;
    doors.run(&["wait", "network", "--for=condition=Ready", PATIENTLY]).with_code(0);
    doors.run(&["wait", "database", "--for=condition=IsLastRelevantCommitPlanned", PATIENTLY]).with_code(0);
    let scopes = ["token", "create", "described", "--scope", "read,write,approve,state", "--expires", "1h"];
    let token = doors.run(&scopes).with_code(0).out.trim().to_owned();
    let stack = by_a_generated_client(&doors, &token);
    by_what_it_describes(&doors, &token, &stack);
    doors.close().await;
}

/// The stack that it has made and not deleted.
fn by_a_generated_client(doors: &Doors, token: &str) -> String {
    let here = doors.scratch();
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let generate = ["generate", "--path", document, "--output-path", "terrane", "--meta", "none"];
    let made = Command::new(tool("openapi-python-client").unwrap()).args(generate).current_dir(here).output();
    finished(made.unwrap()).with_code(0);
    let tour = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doors/client_tour.py");
    let mut python = Command::new(tool("python-with-clients").unwrap());
    let done =
        python.args([tour, &doors.service, token]).current_dir(here).env("no_proxy", "127.0.0.1").output();
    let done = finished(done.unwrap())
        .with_code(0)
        .says("layers: ['app', 'broken'] of more: True\n")
        .says("plan: 3 to add\n")
        .says("text: True\nsync: 202\nruns: True\nqueue: True\n")
        .says("refused: True 422 ['#/variables/name']\n")
        .says("created: succeeded\nmachines: ['by-a-client-1']\ndeleted: True\n");
    done.out.lines().find_map(|line| line.strip_prefix("stack: ")).unwrap().to_owned()
}

fn by_what_it_describes(doors: &Doors, token: &str, stack: &str) {
    let here = doors.scratch();
    let runs = doors.run(&["get", "runs", "-o", "json"]).with_code(0).json();
    let names = runs.as_array().unwrap().iter().map(|run| run["metadata"]["name"].as_str().unwrap());
    let run = names.into_iter().find(|name| name.starts_with("network-plan")).unwrap();
    let settings = SETTINGS.replace("RUN", run).replace("STACK", stack);
    fs::write(here.join("schemathesis.toml"), settings).unwrap();
    let document = format!("{}/openapi.json", doors.service);
    let mut schemathesis = Command::new(tool("schemathesis").unwrap());
    // On the command line of a test that alone knows this token.
    let header = format!("Authorization: Bearer {token}");
    schemathesis.args(["run", &document, "--header", &header, "--no-color", "--exclude-checks", UNTELLABLE]);
    schemathesis.args(["--exclude-path-regex", ENDLESS]).current_dir(here).env("no_proxy", "127.0.0.1");
    finished(schemathesis.output().unwrap()).with_code(0).says("Stateful");
}
