//! The tour of README.md on the demo, line by line, as a newcomer types it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::PATIENTLY;
use crate::harness::BINARY;
use crate::people::{Doors, finished};

/// What each line of the tour is for: how it ends, and what a newcomer finds in what it prints.
const LINES: &[(&str, i32, &[&str])] = &[
    ("terrane get layers", 0, &["network", "app", "motd", "database", "broken"]),
    ("terrane diff database", 2, &["3 to add"]),
    ("terrane apply database", 0, &["Apply complete!"]),
    ("terrane logs broken", 0, &["Missing required argument"]),
    ("terrane outputs network", 0, &["cidr"]),
    ("terrane history database", 0, &["apply", "terrane-admin"]),
    ("kubectl get terrane", 0, &["terraformlayer", "terraformrun", "terraformrepository"]),
    ("kubectl describe tfl broken", 0, &["Missing required argument"]),
];

#[tokio::test(flavor = "multi_thread")]
async fn the_tour_of_the_readme_does_what_it_says() {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    let (_, tour) = readme.split_once("    export KUBECONFIG=").expect("the tour begins so");
    let typed: Vec<&str> = tour.lines().skip(1).map_while(|line| line.strip_prefix("    ")).collect();
    let commands = typed.iter().map(|line| line.split('#').next().unwrap().trim());
    assert!(commands.eq(LINES.iter().map(|(command, ..)| *command)), "{typed:#?}");

    let doors = Doors::open().await;
    prints_what_the_readme_shows(&doors, &readme);
    for layer in ["network", "app", "motd"] {
        doors.run(&["wait", layer, "--for=condition=Ready", PATIENTLY]).with_code(0);
    }
    doors.run(&["wait", "database", "--for=condition=IsLastRelevantCommitPlanned", PATIENTLY]).with_code(0);
    doors.run(&["wait", "broken", "--for=condition=Stalled", PATIENTLY]).with_code(0);
    let program = Path::new(BINARY).parent().unwrap();
    let kubectl = testkit::tools::tool("kubectl").unwrap();
    let programs = format!("{}:{}", program.display(), kubectl.parent().unwrap().display());
    for (line, (_, code, says)) in typed.iter().zip(LINES) {
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", &format!("PATH=\"$PROGRAMS:$PATH\"\n{line}")]);
        shell.env("PROGRAMS", &programs).env("KUBECONFIG", doors.kubeconfig());
        let mut done = finished(shell.output().unwrap()).with_code(*code);
        for words in *says {
            done = done.says(words);
        }
    }
    doors.close().await;
}

/// Where things are, and what to try: the same lines, but for what each machine has of its own.
fn prints_what_the_readme_shows(doors: &Doors, readme: &str) {
    let (_, shown) = readme.split_once("`make up` prints where things are:\n\n").unwrap();
    let shown = shown.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    let shown: Vec<&str> = shown.filter_map(|line| line.strip_prefix("    ")).collect();
    let data = doors.data().display().to_string();
    let address = doors.service.strip_prefix("http://").unwrap();
    let printed = doors.printed();
    let block =
        printed.lines().skip_while(|line| !line.starts_with("  page ")).take_while(|line| *line != LAST);
    // Lines of the log may stand between them.
    let printed: Vec<String> = block
        .filter(|line| line.starts_with("  "))
        .map(|line| {
            let line = line.replace(&data, "/home/you/terrane/.terrane").replace(address, "127.0.0.1:8080");
            match line.split_once("?once=") {
                Some((before, word)) => format!("{before}?once=…{}", &word[word.find(' ').unwrap()..]),
                None => line,
            }
        })
        .collect();
    assert!(printed.iter().any(|line| line.starts_with("  tool     ")), "{printed:#?}");
    let own = |line: &str| line.contains(", found at ");
    let printed: Vec<&str> = printed.iter().map(String::as_str).filter(|line| !own(line)).collect();
    let shown: Vec<&str> = shown.into_iter().filter(|line| !own(line)).collect();
    assert_eq!(printed, shown);
}

/// What stands behind all that.
const LAST: &str = "Ctrl-C stops it; nothing is lost.";
