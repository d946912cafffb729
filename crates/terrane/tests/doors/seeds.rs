//! The manifests of seeds 000 and 001 by the words of their pages: the world that they name on this machine, and their tours.

use std::path::Path;
use std::process::Command;

use crate::harness::BINARY;
use crate::people::{Done, finished};

/// What the page of a seed says to run.
fn tour(seed: &str) -> Done {
    let program = Path::new(BINARY).parent().unwrap().display().to_string();
    let page = std::fs::read_to_string(example(&format!("{seed}/README.md"))).unwrap();
    let command = format!("examples/seeds/world {seed} examples/seeds/{seed}/tour.sh");
    assert!(page.contains(&format!("\n    {command}\n")), "{page}");
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("PATH=\"$PROGRAM:$PATH\" exec {command}")]).env("PROGRAM", program);
    shell.current_dir(example("../.."));
    finished(shell.output().unwrap()).with_code(0)
}

fn example(path: &str) -> String {
    format!("{}/../../examples/seeds/{path}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_tour_of_seed_000_deploys_and_destroys_both_manifests() {
    let done = tour("000");
    let completed = done.out.matches("in sync with ").count();
    assert_eq!(completed, 2, "{}", done.out);
    let done = done.says(r#"{"greeting":"value1 value2","password":"*** (sensitive; "#);
    let deleted = done.out.matches(r#"terraform.alustan.io "example-terraformconfig" deleted"#).count();
    assert_eq!(deleted, 2, "{}", done.out);
}

#[test]
fn the_tour_of_seed_001_deploys_and_destroys_its_manifest() {
    tour("001")
        .says("in sync with ")
        .says(r#""service_account_role_arn":"arn:aws:iam::111122223333:role/staging""#)
        .says(r#"{"outputs":{"EC2":[{"InstanceID":"i-1234567890abcdef0","#)
        .says(r#"terraform.alustan.io "staging-cluster" deleted"#);
}
