//! What installed tools say about their version, written down once by whoever looks after a machine and read by its runners.
//!
//! Asking a tool costs as much as planning with it does. What it said is believed for as long as its file is the same one, told by
//! everything that the file system says about it; a change of its content changes that. Only programs that say of themselves what
//! they were built from are written down: a version manager that stands in for a tool (a script, or a program of its own) answers
//! differently from directory to directory.
//!
//! Whoever may write the list decides which version others take a tool for, so that is never a runner's pod.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::tool::Program;
use semver::Version;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::process::{Surroundings, Wish};
use crate::tool::{candidates, version_of};
use crate::versions::parse_version;

/// The name of the list, in the directory that all runners of a machine read.
const NAME: &str = "installed.json";
/// More than any list holds.
const LIMIT: u64 = 1024 * 1024;
/// How much of a program is read at once while it is looked through.
const PIECE: usize = 1024 * 1024;

/// Versions by the resolved path of their program.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalogue {
    programs: BTreeMap<PathBuf, Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    file: Identity,
    /// Absent where the program is none that is believed; so that it is not looked through again.
    version: Option<String>,
}

/// What the file system says about a file. Whoever changes the content changes at least one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    fn of(file: &Metadata) -> Self {
        Self {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

/// Whether a look at the machine found something else than before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Same,
    Other,
}

impl Catalogue {
    /// The list in this directory. One that is missing or cannot be understood is empty: then every program is asked.
    pub fn read(directory: &Path) -> Self {
        let read = || -> io::Result<Self> {
            let mut text = Vec::new();
            File::open(directory.join(NAME))?.take(LIMIT).read_to_end(&mut text)?;
            serde_json::from_slice(&text).map_err(io::Error::other)
        };
        read().unwrap_or_default()
    }

    /// Readers see the old list or the new one, whole.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        let new = directory.join(format!(".{NAME}.new"));
        let mut file = File::create(&new)?;
        file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
        file.write_all(&text)?;
        std::fs::rename(new, directory.join(NAME))
    }

    /// What the program said when it was asked, if it is still the same file.
    pub fn version(&self, program: &Path) -> Option<Version> {
        parse_version(self.entry(program)?.version.as_deref()?)
    }

    fn entry(&self, program: &Path) -> Option<&Entry> {
        if self.programs.is_empty() {
            return None;
        }
        let resolved = program.canonicalize().ok()?;
        let file = Identity::of(&resolved.metadata().ok()?);
        self.programs.get(&resolved).filter(|entry| entry.file == file)
    }

    /// Looks at the programs in these directories and asks those that are new. O(files of the directories).
    pub async fn renew(&mut self, directories: &[PathBuf]) -> Found {
        let mut programs = BTreeMap::new();
        for program in Program::ALL {
            for path in candidates(program.name(), directories) {
                let Ok(resolved) = path.canonicalize() else { continue };
                if let Some(known) = self.entry(&path) {
                    programs.insert(resolved, known.clone());
                } else if let Some(entry) = look(program, &resolved).await {
                    programs.insert(resolved, entry);
                }
            }
        }
        let found = if self.programs == programs { Found::Same } else { Found::Other };
        self.programs = programs;
        found
    }
}

/// Asks a program, and sees that it was the same one all the time.
async fn look(program: Program, path: &Path) -> Option<Entry> {
    let file = Identity::of(&path.metadata().ok()?);
    let place = path.to_owned();
    let genuine = tokio::task::spawn_blocking(move || was_built_from(program, &place).unwrap_or(false));
    let version = if genuine.await.ok()? { ask(path).await } else { None };
    let after = Identity::of(&path.metadata().ok()?);
    (file == after).then_some(Entry { file, version: version.map(|version| version.to_string()) })
}

async fn ask(path: &Path) -> Option<Version> {
    let (_keep, stop) = watch::channel(Wish::GoOn);
    let environment = [("HOME", "/nonexistent"), ("CHECKPOINT_DISABLE", "1")];
    let surroundings = Surroundings {
        environment: environment.map(|(name, value)| (OsString::from(name), OsString::from(value))).into(),
        mark: format!("version of {}", path.display()),
        stop,
        grace: Duration::from_secs(5),
        whole: Arc::default(),
    };
    version_of(path, &surroundings).await
}

/// What the vendors' builds say of their own main package, as the Go toolchain writes it into every program.
const fn main_package(program: Program) -> &'static str {
    match program {
        Program::Terraform => "path\tgithub.com/hashicorp/terraform\n",
        Program::Opentofu => "path\tgithub.com/opentofu/opentofu/cmd/tofu\n",
        Program::Terragrunt => "path\tgithub.com/gruntwork-io/terragrunt\n",
    }
}

/// Whether the file is a program and says that it was built from the tool's own source. O(size of the file).
fn was_built_from(program: Program, path: &Path) -> io::Result<bool> {
    const PROGRAM_START: &[u8] = b"\x7fELF";
    let wanted = main_package(program).as_bytes();
    let mut file = BufReader::with_capacity(PIECE, File::open(path)?);
    let mut line = Vec::new();
    let mut is_program = None;
    while file.read_until(b'\n', &mut line)? > 0 {
        if !*is_program.get_or_insert_with(|| line.starts_with(PROGRAM_START)) {
            return Ok(false);
        }
        if line.ends_with(wanted) {
            return Ok(true);
        }
        line.clear();
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn catalogue(path: &Path, version: &str) -> Catalogue {
        let resolved = path.canonicalize().unwrap();
        let file = Identity::of(&resolved.metadata().unwrap());
        let entry = Entry { file, version: Some(version.to_owned()) };
        Catalogue { programs: BTreeMap::from([(resolved, entry)]) }
    }

    #[test]
    fn what_was_said_counts_until_the_file_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("terraform");
        std::fs::write(&program, "one").unwrap();
        let link = dir.path().join("terraform-1.9.8");
        std::os::unix::fs::symlink(&program, &link).unwrap();
        let written = catalogue(&program, "1.9.8");
        written.write(dir.path()).unwrap();
        let read = Catalogue::read(dir.path());
        assert_eq!(read, written);
        assert_eq!(read.version(&link), Some(Version::new(1, 9, 8)), "the same file by another name");

        let same_time = program.metadata().unwrap().modified().unwrap();
        std::fs::write(&program, "two").unwrap();
        File::options().write(true).open(&program).unwrap().set_modified(same_time).unwrap();
        assert_eq!(read.version(&program), None, "as long and as old, and still another");
        std::fs::write(dir.path().join(NAME), "{").unwrap();
        assert_eq!(Catalogue::read(dir.path()), Catalogue::default());
    }

    #[tokio::test]
    async fn only_programs_that_say_what_they_were_built_from_are_asked() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            path
        };
        let script = write(
            "terraform",
            b"#!/bin/sh\necho 'Terraform v1.9.8'\n# path\tgithub.com/hashicorp/terraform\n",
        );
        let mut manager = b"\x7fELF".to_vec();
        manager.resize(PIECE * 2, 0);
        manager.extend_from_slice(b"path\tgithub.com/tofuutils/tenv\ndep\tgithub.com/hashicorp/terraform\n");
        let manager = write("terraform-1.9.7", &manager);
        let mut found = Catalogue::default();
        let directories = [dir.path().to_owned()];
        assert_eq!(found.renew(&directories).await, Found::Other, "two files were looked at");
        assert_eq!((found.version(&script), found.version(&manager)), (None, None));
        assert_eq!(found.renew(&directories).await, Found::Same);
    }

    #[test]
    fn words_across_two_pieces_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tofu");
        let wanted = main_package(Program::Opentofu);
        for before in [4, PIECE - wanted.len() / 2, PIECE - 1, PIECE, PIECE * 2 - 3] {
            let mut content = b"\x7fELF".to_vec();
            content.resize(before, 0);
            content.extend_from_slice(wanted.as_bytes());
            std::fs::write(&path, &content).unwrap();
            assert!(was_built_from(Program::Opentofu, &path).unwrap(), "after {before} bytes");
            assert!(!was_built_from(Program::Terraform, &path).unwrap());
        }
    }

    #[tokio::test]
    async fn an_installed_tool_is_asked_once() {
        let tool = testkit::tools::tool("terraform").unwrap();
        let directories = [tool.parent().unwrap().to_owned()];
        let mut found = Catalogue::default();
        assert_eq!(found.renew(&directories).await, Found::Other);
        assert!(found.version(&tool).is_some(), "{found:?}");
        assert_eq!(found.renew(&directories).await, Found::Same);
    }
}
