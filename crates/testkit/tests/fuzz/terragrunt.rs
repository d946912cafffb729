//! Files of Terragrunt as the controllers read them. An input is the files of one unit, each after a line `=== PATH`: the paths that the
//! tree holds beside them are always the same.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use sources::objects::{Entry, Kind};
use sources::terragrunt::{Found, Tree, follow};

use super::fuzz;

const UNIT: &str = "live/prod/app";
/// What is there to be found; nothing of it is read.
const AROUND: [&str; 6] = [
    "common.yaml",
    "live/prod/db/terragrunt.hcl",
    "live/prod/vpc/terragrunt.hcl.json",
    "modules/app/main.tf",
    "modules/vpc/main.tf",
    "secrets",
];

type Files = BTreeMap<String, Vec<u8>>;

/// The files that an input describes. What comes before the first heading is the unit's own.
fn files(input: &[u8]) -> Files {
    let mut files: Files = AROUND.iter().map(|path| ((*path).to_owned(), Vec::new())).collect();
    let mut path = format!("{UNIT}/terragrunt.hcl");
    files.insert(path.clone(), Vec::new());
    for line in input.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_prefix(b"=== ") {
            Some(name) => path = String::from_utf8_lossy(name.trim_ascii()).into_owned(),
            None => files.entry(path.clone()).or_default().extend_from_slice(line),
        }
    }
    files
}

fn found(files: &Files) -> (Found, Vec<String>) {
    let entry = |path: &String| {
        // A link is never followed, whatever it is called.
        let kind = if path == "secrets" { Kind::Symlink } else { Kind::File };
        Entry { kind, object: path.clone(), size: 0, path: path.as_bytes().to_vec() }
    };
    let entries: Vec<Entry> = files.keys().map(entry).collect();
    let mut read = Vec::new();
    let found = follow(&Tree(&entries), UNIT, |object| {
        read.push(object.to_owned());
        Ok::<_, Infallible>(files[object].clone())
    });
    let Ok(found) = found;
    (found, read)
}

/// Whatever a unit's files say, what is found is in the tree, and each file is read once.
#[test]
fn terragrunt() {
    fuzz("terragrunt", |input| {
        let files = files(input);
        let (found, read) = found(&files);
        assert_eq!(found, self::found(&files).0, "the same bytes mean the same");
        assert!(found.modules.is_subset(&found.paths));
        for path in &found.paths {
            let below = format!("{path}/");
            let is_there = files.contains_key(path) || files.keys().any(|file| file.starts_with(&below));
            assert!(is_there, "{path:?} is nowhere in the tree");
            assert!(path != UNIT && path != "secrets", "{path:?} does not count");
        }
        assert_eq!(read.iter().collect::<BTreeSet<_>>().len(), read.len(), "a file is read twice: {read:?}");
        assert!(read.len() <= 200, "{} files are read", read.len());
        assert!(read.iter().all(|path| path.ends_with(".hcl") || path.ends_with(".hcl.json")), "{read:?}");
        for name in ["terragrunt.hcl", "terragrunt.hcl.json"] {
            let once = sources::hcl::outline(name, input);
            assert_eq!(once, sources::hcl::outline(name, input), "the same bytes mean the same");
        }
    });
}
