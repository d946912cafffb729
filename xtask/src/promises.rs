//! `docs/seeds.md` names a test for each promise. What it names exists, and is run as a test or called by one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What the Rust files of the tree have of tests.
#[derive(Default)]
struct Tests {
    /// Functions that a test program runs by themselves.
    marked: BTreeSet<String>,
    /// All words that a file of tests follows by a parenthesis, but for where a function is defined: what such a file calls.
    called: BTreeSet<String>,
    defined: BTreeSet<String>,
}

impl Tests {
    /// O(bytes of the tree).
    fn read(&mut self, directory: &Path) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                self.read(&path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let is_of_tests = path.components().any(|part| part.as_os_str() == "tests");
                self.read_file(&fs::read_to_string(&path).unwrap(), is_of_tests);
            }
        }
    }

    fn read_file(&mut self, text: &str, is_of_tests: bool) {
        let mut is_marked = false;
        for line in text.lines().map(str::trim) {
            if is_mark(line) {
                is_marked = true;
            } else if let Some(name) = defined(line) {
                if is_marked {
                    self.marked.insert(name.to_owned());
                }
                self.defined.insert(name.to_owned());
                is_marked = false;
            } else if is_of_tests && !line.starts_with("//") {
                self.called.extend(calls(line).map(str::to_owned));
            }
        }
    }

    /// A test, or a part of one that has a name of its own.
    fn have(&self, name: &str) -> bool {
        self.marked.contains(name) || (self.defined.contains(name) && self.called.contains(name))
    }
}

/// Whether the function below this line is a test.
fn is_mark(line: &str) -> bool {
    line == "#[test]" || line.starts_with("#[tokio::test")
}

/// The function whose definition begins on this line.
fn defined(line: &str) -> Option<&str> {
    let words = ["pub ", "pub(crate) ", "pub(super) ", "const ", "async "];
    let mut rest = line;
    while let Some(shorter) = words.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = shorter;
    }
    let rest = rest.strip_prefix("fn ")?;
    rest.get(..rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?)
}

/// What is called on this line.
fn calls(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices('(').filter_map(|(end, _)| {
        let before = line.get(..end)?;
        let start =
            before.rfind(|letter: char| !letter.is_alphanumeric() && letter != '_').map_or(0, |at| at + 1);
        before.get(start..).filter(|name| !name.is_empty())
    })
}

/// What stands between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn every_promise_is_shown_by_a_test_that_exists_or_says_not_yet() {
    let mut tests = Tests::default();
    for directory in ["crates", "xtask"] {
        tests.read(&root().join(directory));
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
            let exists = if name.contains('/') { root().join(name).exists() } else { tests.have(name) };
            assert!(exists, "{promise}: there is no test {name}");
        }
    }
}

#[test]
fn every_crate_has_tests_of_its_own() {
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let mut tests = Tests::default();
        tests.read(&entry.as_ref().unwrap().path());
        assert!(!tests.marked.is_empty(), "{} has no test", entry.unwrap().path().display());
    }
}

#[test]
fn the_targets_that_people_know_do_what_they_say() {
    for (target, does) in [
        ("setup", "tools/setup build up test lint"),
        ("build", "cargo build --release --locked --package terrane"),
        ("gen", "cargo xtask gen"),
        ("deploy", "upgrade --install terrane charts/terrane --namespace terrane-system"),
    ] {
        let mut make = std::process::Command::new("make");
        // Not as a part of the make that may run the tests.
        make.args(["--dry-run", target]).env_remove("MAKEFLAGS").env_remove("MAKELEVEL").current_dir(root());
        let told = make.output().unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        assert!(told.contains(does), "make {target} does not say {does}: {told}");
    }
}

#[test]
fn a_function_that_no_test_runs_shows_nothing() {
    let mut tests = Tests::default();
    let tested = "
        #[tokio::test(flavor = \"multi_thread\")]
        #[cfg(unix)]
        async fn is_a_test() { part(&1).await; }

        pub(crate) async fn part(of: &u8) {}
        fn is_never_called() {}
        // is_never_called() in words.
    ";
    tests.read_file(&tested.replace("{ part", "{\n part"), true);
    tests.read_file("fn is_of_the_program() {\n is_never_called(); }\n#[test]\nfn beside_it() {}", false);
    for shown in ["is_a_test", "part", "beside_it"] {
        assert!(tests.have(shown), "{shown}");
    }
    for other in ["is_never_called", "is_of_the_program", "is_nowhere"] {
        assert!(!tests.have(other), "{other}");
    }
}
