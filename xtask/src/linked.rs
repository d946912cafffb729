//! What a crate must not be linked with, whatever other crates are.

use std::process::Command;

/// The names of all crates that one is linked with, by the features that it asks for itself.
fn linked_with(name: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--package", name, "--edges", "normal", "--prefix", "none"])
        .args(["--format", "{p}"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn the_runner_has_no_client_of_kubernetes() {
    let crates = linked_with("runner");
    assert!(crates.iter().any(|name| name == "datastore"), "it does all it does through this: {crates:?}");
    for client in ["kube-client", "kube-runtime", "controllers", "engine"] {
        assert!(!crates.iter().any(|name| name == client), "the runner is linked with {client}");
    }
}
