//! `docs/seeds.md` names a test for each promise. What it names exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The names of all functions of the Rust files below a directory. O(bytes of the tree).
fn functions(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let names = text.lines().filter_map(|line| line.split_once("fn ")).map(|(_, rest)| {
                rest.chars()
                    .take_while(|letter| letter.is_alphanumeric() || *letter == '_')
                    .collect::<String>()
            });
            found.extend(names);
        }
    }
}

/// What stands between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn every_promise_is_shown_by_a_test_that_exists_or_says_not_yet() {
    let mut tests = BTreeSet::new();
    for directory in ["crates", "xtask"] {
        functions(&root().join(directory), &mut tests);
    }
    let table = fs::read_to_string(root().join("docs/seeds.md")).unwrap();
    let promises = table.split("## What differs").next().unwrap();
    let rows: Vec<Vec<&str>> = promises
        .lines()
        .filter(|line| line.starts_with('|') && !line.starts_with("| ---") && !line.starts_with("| promise"))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    assert!(rows.len() > 60, "there are more than 60 promises, and {} rows", rows.len());
    for row in rows {
        let [promise, place, shown] = row[..] else { panic!("three columns, not {row:?}") };
        let named: Vec<&str> = quoted(shown).collect();
        assert!(!named.is_empty() || place.contains("**not yet**"), "{promise}: what shows it?");
        for name in named {
            let exists = if name.contains('/') { root().join(name).exists() } else { tests.contains(name) };
            assert!(exists, "{promise}: there is no {name}");
        }
    }
}
