//! What other files say of the images is what is made here: the locks of both architectures, and the Dockerfiles for those who prefer an engine.
//! Nothing is built for it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use super::debian::{self, Group};
use super::{Architecture, PROCESS, lock_path, workspace};

fn path(name: &str) -> PathBuf {
    workspace().unwrap().join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap()
}

/// Group and name of each.
fn packages(architecture: Architecture) -> Vec<(Group, String)> {
    let lock = fs::read_to_string(lock_path(workspace().unwrap(), architecture)).unwrap();
    let packages = debian::parse_lock(&lock).unwrap();
    packages.into_iter().map(|package| (package.group, package.name)).collect()
}

/// The words of each instruction, by the name of its stage; what comes before the first stage has the name "".
type Stages = BTreeMap<String, Vec<Vec<String>>>;

fn stages(dockerfile: &str) -> Stages {
    let lines = dockerfile.lines().filter(|line| !line.trim_start().starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let mut found = Stages::new();
    let mut stage = String::new();
    for line in joined.lines() {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match words.as_slice() {
            [] => continue,
            [from, _, named, name] if from == "FROM" && named == "AS" => stage = name.clone(),
            [..] => {}
        }
        found.entry(stage.clone()).or_default().push(words);
    }
    found
}

/// What is copied out of the directory that an image is built from.
fn copied(stages: &Stages) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for words in stages.values().flatten() {
        let [instruction, arguments @ ..] = words.as_slice() else { continue };
        let is_of_a_stage = arguments.iter().any(|word| word.starts_with("--from="));
        if !["COPY", "ADD"].contains(&instruction.as_str()) || is_of_a_stage {
            continue;
        }
        let places: Vec<&String> = arguments.iter().filter(|word| !word.starts_with("--")).collect();
        let [sources @ .., _target] = places.as_slice() else { panic!("{words:?} copies nothing") };
        found.extend(sources.iter().map(|source| (*source).clone()));
    }
    found
}

/// What a stage installs.
fn installed(stages: &Stages, stage: &str) -> Vec<String> {
    let words = stages[stage].iter().flatten().map(String::as_str);
    let after = words.skip_while(|word| *word != "install").skip(1).take_while(|word| *word != "&&");
    after.filter(|word| !word.starts_with('-')).map(str::to_owned).collect()
}

/// The rest of an instruction of a stage.
fn said(stages: &Stages, stage: &str, instruction: &str) -> Vec<String> {
    let all = stages[stage].iter().filter(|words| words.first().is_some_and(|word| word == instruction));
    all.map(|words| words[1..].join(" ")).collect()
}

#[test]
fn both_architectures_have_the_same_packages() {
    let [amd64, arm64] = [Architecture::Amd64, Architecture::Arm64].map(packages);
    assert_eq!(amd64, arm64);
}

#[test]
fn the_dockerfile_installs_what_the_images_are_made_of() {
    let stages = stages(&read("deploy/Dockerfile"));
    assert_eq!(installed(&stages, "base"), debian::BASE);
    assert_eq!(installed(&stages, "runner"), debian::RUNNER);
    let locked = packages(Architecture::Amd64);
    for (stage, group) in [("base", Group::Base), ("runner", Group::Runner)] {
        for name in installed(&stages, stage) {
            assert!(locked.contains(&(group, name.clone())), "the lock has no {name} for {group:?}");
        }
    }
    // The lock is of this Debian, and the program is made for its C library.
    assert_eq!(said(&stages, "base", "FROM"), ["debian:12-slim AS base"]);
    assert!(said(&stages, "build", "FROM")[0].contains("-bookworm"));
}

#[test]
fn the_dockerfile_starts_the_same_program_as_the_same_user() {
    let stages = stages(&read("deploy/Dockerfile"));
    assert_eq!(said(&stages, "base", "ENV"), [PROCESS.environment.join(" ")]);
    assert_eq!(said(&stages, "base", "WORKDIR"), [PROCESS.directory]);
    assert_eq!(said(&stages, "base", "ENTRYPOINT"), [format!("[\"{}\"]", PROCESS.entrypoint.join("\", \""))]);
    for stage in ["base", "runner"] {
        assert_eq!(said(&stages, stage, "USER").last().unwrap(), PROCESS.user, "{stage}");
    }
    for stage in ["runner", "controller"] {
        assert_eq!(said(&stages, stage, "FROM"), [format!("base AS {stage}")]);
        let program = format!("--from=build /src/target/release/terrane {}", PROCESS.entrypoint[0]);
        assert!(said(&stages, stage, "COPY").contains(&program), "{stage}");
    }
    assert!(said(&stages, "controller", "USER").is_empty(), "that of its base counts");
}

#[test]
fn the_dockerfile_takes_the_versions_that_are_pinned() {
    let pinned = said(&stages(&read("deploy/Dockerfile")), "", "ARG");
    let of = |name: &str, text: &str, before: &str| {
        let version = text.lines().find_map(|line| line.strip_prefix(before)).unwrap();
        format!("{name}={}", version.trim_matches('"'))
    };
    let rust = of("RUST_VERSION", &read("rust-toolchain.toml"), "channel = ");
    let tofu = of("OPENTOFU_VERSION", &read("tools/versions.env"), "OPENTOFU_VERSION=");
    assert_eq!(pinned, [rust, tofu]);
}

#[test]
fn what_dockerfiles_copy_exists() {
    for (dockerfile, context) in [("deploy/Dockerfile", "."), ("examples/Dockerfile", "examples/seeds/001")] {
        let copied = copied(&stages(&read(dockerfile)));
        assert!(!copied.is_empty(), "{dockerfile} copies nothing");
        for source in copied {
            let exists = path(context).join(&source).exists();
            assert!(exists, "{dockerfile} copies {source}, which is not in {context}");
        }
    }
}

/// cargo refuses to build a part of a workspace whose other parts are missing.
#[test]
fn the_dockerfile_copies_the_whole_workspace_and_what_is_compiled_in() {
    let copied = copied(&stages(&read("deploy/Dockerfile")));
    let manifest = read("Cargo.toml");
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = ")).unwrap();
    for member in members.trim_matches(['[', ']']).split(", ") {
        let directory = member.trim_matches('"').trim_end_matches("/*");
        assert!(copied.contains(directory), "{directory} is a member of the workspace and is not copied");
    }
    let demo = read("crates/terrane/src/demo.rs");
    let compiled_in: Vec<&str> = demo.split("\"../../../").skip(1).collect();
    assert!(!compiled_in.is_empty());
    for rest in compiled_in {
        assert!(copied.iter().any(|source| rest.starts_with(source.as_str())), "{rest:.60} is not copied");
    }
}
