//! Terragrunt, which prepares a directory and lets terraform or OpenTofu work there: whether a layer wants it, which one is
//! installed, and how it is told to behave without a person. Only one unit is ever run, never all of them.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use semver::Version;
use serde::Deserialize;

use crate::installed::Catalogue;
use crate::process::{self, Ended, Stream, Surroundings};
use crate::tool::{Error, Tool, candidates, known_version};
use crate::versions::Constraint;

const PROGRAM: &str = "terragrunt";
/// What makes a directory a unit of Terragrunt.
const CONFIGURATIONS: [&str; 2] = ["terragrunt.hcl", "terragrunt.hcl.json"];

/// Whether the directory is written for Terragrunt.
pub fn is_unit(dir: &Path) -> bool {
    CONFIGURATIONS.iter().any(|name| dir.join(name).is_file())
}

/// A Terragrunt that was found and asked for its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terragrunt {
    pub path: PathBuf,
    pub version: Version,
}

impl Terragrunt {
    /// The highest installed version that satisfies the constraint.
    pub async fn find(
        constraint: &Constraint,
        directories: &[PathBuf],
        known: &Catalogue,
        surroundings: &Surroundings,
    ) -> Result<Self, Error> {
        let mut found = Vec::new();
        let mut best: Option<Self> = None;
        for path in candidates(PROGRAM, directories) {
            let Some(version) = known_version(&path, known, surroundings).await else { continue };
            found.push(version.to_string());
            if constraint.is_satisfied_by(&version) && best.as_ref().is_none_or(|best| best.version < version)
            {
                best = Some(Self { path, version });
            }
        }
        best.ok_or_else(|| Error::MissingTerragrunt { constraint: constraint.clone(), found })
    }

    /// Asks no questions, repeats nothing by itself, hides nothing of what the tool says, and uses the tool that was chosen.
    /// `TG_NO_AUTO_RETRY` is what keeps an apply from being started twice.
    pub fn variables(&self, tool: &Tool) -> Vec<(OsString, OsString)> {
        let fixed = [
            ("TG_NON_INTERACTIVE", "true"),
            ("TG_NO_AUTO_RETRY", "true"),
            ("TG_NO_AUTO_PROVIDER_CACHE_DIR", "true"),
            ("TG_NO_COLOR", "true"),
            ("TG_NO_TIPS", "true"),
            ("TG_TF_FORWARD_STDOUT", "true"),
            // Then its errors look like those of the tools, and are read the same way.
            ("TG_LOG_CUSTOM_FORMAT", "%msg"),
        ];
        let fixed = fixed.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        fixed.into_iter().chain([("TG_TF_PATH".into(), tool.path.clone().into())]).collect()
    }

    /// The arguments by which it runs one command of the tool in one unit.
    pub(crate) fn wrap(arguments: Vec<OsString>) -> Vec<OsString> {
        ["run", "--"].into_iter().map(OsString::from).chain(arguments).collect()
    }

    /// The arguments by which it fetches the code and writes what it generates. It does so before it runs any program; the tool's
    /// own version is one that changes nothing and is surely there.
    pub(crate) fn preparation(tool: &Path) -> Vec<OsString> {
        ["exec".into(), "--".into(), tool.into(), "version".into()].into()
    }

    /// Where the tool will really work, once the code is there: below `.terragrunt-cache`, the same for every attempt of a layer.
    pub async fn working_directory(
        &self,
        unit: &Path,
        surroundings: &Surroundings,
    ) -> Result<Option<PathBuf>, Error> {
        #[derive(Deserialize)]
        struct Answer {
            working_dir: PathBuf,
        }
        let mut text = String::new();
        let mut keep = |stream: Stream, line: &str| {
            if stream == Stream::Out && text.len() < 64 * 1024 {
                text.push_str(line);
            }
        };
        let arguments = ["info", "print"].map(OsString::from);
        let ended: Ended = process::run(&self.path, &arguments, unit, surroundings, &mut keep).await?;
        let answer = serde_json::from_str::<Answer>(&text).ok().filter(|_| ended.code == Some(0));
        Ok(answer.map(|answer| answer.working_dir).filter(|dir| dir != unit && dir.is_dir()))
    }
}

/// Names that start a command line are compared with these.
pub(crate) fn is_command_of(worker: &OsStr, command_line: &[u8]) -> bool {
    use std::os::unix::ffi::OsStrExt;
    // A tool can be a script: then its interpreter comes first.
    command_line.split(|byte| *byte == 0).take(3).any(|argument| argument == worker.as_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_unit_is_known_by_its_file() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_unit(dir.path()));
        std::fs::create_dir(dir.path().join("terragrunt.hcl")).unwrap();
        assert!(!is_unit(dir.path()), "a directory of that name is none");
        std::fs::write(dir.path().join("terragrunt.hcl.json"), "{}").unwrap();
        assert!(is_unit(dir.path()));
    }

    #[test]
    fn a_tool_is_recognised_directly_and_behind_its_interpreter() {
        let worker = OsStr::new("/opt/terraform");
        for (line, expected) in [
            (&b"/opt/terraform\0apply\0"[..], true),
            (b"/bin/sh\0/opt/terraform\0apply\0", true),
            (b"/usr/bin/tflint\0--chdir\0.\0/opt/terraform\0", false),
            (b"/opt/terraform-docs\0", false),
            (b"", false),
        ] {
            assert_eq!(is_command_of(worker, line), expected, "{}", String::from_utf8_lossy(line));
        }
    }
}
