//! What other files say of the images is what is made here: the locks of both architectures. Nothing is built for it.
#![allow(clippy::unwrap_used)]

use std::fs;

use super::debian::{self, Group};
use super::{Architecture, lock_path, workspace};

/// Group and name of each.
fn packages(architecture: Architecture) -> Vec<(Group, String)> {
    let lock = fs::read_to_string(lock_path(workspace().unwrap(), architecture)).unwrap();
    let packages = debian::parse_lock(&lock).unwrap();
    packages.into_iter().map(|package| (package.group, package.name)).collect()
}

#[test]
fn both_architectures_have_the_same_packages() {
    let [amd64, arm64] = [Architecture::Amd64, Architecture::Arm64].map(packages);
    assert_eq!(amd64, arm64);
}
