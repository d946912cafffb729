//! `terrane carry DIRECTORY`: puts this program where a container of another image finds it, with what it needs to run there and the tools of
//! this image. That container's own libraries may be of any kind, or none at all.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::arguments::Carry;
use crate::environment;

/// By one name for each kind of machine: a pod names it.
const LOADER: &str = "ld.so";
const TOOLS: [&str; 3] = ["terraform", "tofu", "terragrunt"];

pub(crate) fn run(options: &Carry) -> anyhow::Result<()> {
    let directory = &options.directory;
    let program = std::env::current_exe().context("find this program")?;
    let libraries =
        loaded(&fs::read_to_string("/proc/self/maps").context("read what this program has loaded")?);
    let loader = libraries.iter().find(|path| is_loader(path)).context(
        "this program has no loader, so it cannot be started by one; use it as it was built for Terrane's images",
    )?;
    copy(&program, &directory.join("terrane"))?;
    for library in libraries.iter().filter(|path| **path != program) {
        copy(library, &directory.join("lib").join(file_name(library)?))?;
    }
    let link = directory.join("lib").join(LOADER);
    // A pod whose sandbox was lost starts from the beginning, in the same directory.
    drop(fs::remove_file(&link));
    symlink(file_name(loader)?, &link).with_context(|| format!("write {}", link.display()))?;
    for (name, path) in tools_on(&environment::search_path()) {
        // One that cannot be had is missed by the layers that need it, and says so there.
        if let Err(error) = copy(&path, &tools(directory).join(name)) {
            tracing::warn!("{error:#}");
        }
    }
    if let Some(authorities) = authorities_here() {
        copy(authorities, &directory.join(AUTHORITIES))?;
    }
    Ok(())
}

/// The tools that were carried, for an image that has none.
pub(crate) fn tools(directory: &Path) -> PathBuf {
    directory.join("bin")
}

/// The authorities that were carried, for an image that knows none.
pub(crate) fn authorities(directory: &Path) -> Option<PathBuf> {
    let carried = directory.join(AUTHORITIES);
    (authorities_here().is_none() && carried.exists()).then_some(carried)
}

const AUTHORITIES: &str = "authorities.crt";

/// Where the usual systems keep those that they believe.
fn authorities_here() -> Option<&'static Path> {
    let usual = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
    ];
    usual.map(Path::new).into_iter().find(|path| path.exists())
}

/// The tools of a search path, those that have their version in their names too; the first of each name. O(files in its directories).
fn tools_on(search_path: &OsStr) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let directories = std::env::split_paths(search_path).filter_map(|directory| fs::read_dir(directory).ok());
    for file in directories.flat_map(|files| files.flatten()) {
        let Ok(name) = file.file_name().into_string() else { continue };
        let is_tool = TOOLS
            .iter()
            .any(|tool| name.strip_prefix(tool).is_some_and(|rest| rest.is_empty() || rest.starts_with('-')));
        if is_tool && file.path().is_file() {
            found.entry(name).or_insert_with(|| file.path());
        }
    }
    found
}

/// The files that a process has mapped, by what `/proc` says. O(lines).
fn loaded(maps: &str) -> BTreeSet<PathBuf> {
    let paths = maps.lines().filter_map(|line| line.find('/').and_then(|at| line.get(at..)));
    paths.filter(|path| path.contains(".so")).map(PathBuf::from).collect()
}

fn is_loader(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("ld-"))
}

fn file_name(path: &Path) -> anyhow::Result<&Path> {
    let name = path.file_name().map(Path::new);
    name.with_context(|| format!("{} is no file", path.display()))
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let place = to.parent().unwrap_or(to);
    fs::create_dir_all(place).with_context(|| format!("make {}", place.display()))?;
    let length = fs::metadata(from).with_context(|| format!("read {}", from.display()))?.len();
    let copied =
        fs::copy(from, to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    ensure!(copied == length, "{} changed while it was copied", from.display());
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_found_by_their_names_and_the_first_of_a_name_counts() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["terraform", "tofu-1.9.0", "terraform.bak", "git"] {
            fs::write(first.path().join(name), "").unwrap();
        }
        for name in ["terraform", "terragrunt"] {
            fs::write(second.path().join(name), "").unwrap();
        }
        let missing = first.path().join("missing");
        let path = std::env::join_paths([first.path(), &missing, second.path()]).unwrap();
        let found: Vec<_> = tools_on(&path).into_values().collect();
        let expected = [
            first.path().join("terraform"),
            second.path().join("terragrunt"),
            first.path().join("tofu-1.9.0"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn libraries_are_read_from_what_is_mapped() {
        let maps = "55e0-55f0 r--p 00000000 08:01 12 /usr/local/bin/terrane\n\
                    7f00-7f10 r-xp 00002000 08:01 13 /usr/lib/x86_64-linux-gnu/libc.so.6\n\
                    7f20-7f30 r--p 00000000 08:01 14 /usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2\n\
                    7f20-7f30 rw-p 00030000 08:01 14 /usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2\n\
                    7ffd-7ffe rw-p 00000000 00:00 0 [stack]\n7f40-7f50 rw-p 00000000 00:00 0\n";
        let found = loaded(maps);
        let names: Vec<_> = found.iter().map(|path| path.display().to_string()).collect();
        let directory = "/usr/lib/x86_64-linux-gnu";
        assert_eq!(names, [format!("{directory}/ld-linux-x86-64.so.2"), format!("{directory}/libc.so.6")]);
        assert_eq!(found.iter().filter(|path| is_loader(path)).count(), 1);
    }
}
