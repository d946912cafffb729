//! Which program is used: the first on the search path whose version satisfies every constraint.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::tool::Tool;
use semver::Version;
use serde::Deserialize;

use crate::version::{Constraint, parse_version};

/// A tool that is asked for its version and does not answer is broken.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub tool: Tool,
    pub path: PathBuf,
    pub version: Version,
}

impl Program {
    /// As people say it: `terraform 1.11.4`.
    pub fn words(&self) -> String {
        format!("{} {}", self.tool.program(), self.version)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{wanted} is not installed; put it on the PATH of the runners")]
    NotInstalled { wanted: String },
    #[error(
        "no installed tool satisfies {wanted}; there is {found}; install a version that does, or loosen the constraint"
    )]
    NoneSatisfies { wanted: String, found: String },
}

/// Looks for `tool`, or for either when none is asked for.
pub async fn find(
    tool: Option<Tool>,
    constraints: &[Constraint],
    search_path: &OsStr,
) -> Result<Program, Error> {
    let candidates: &[Tool] = match tool {
        Some(Tool::Terraform) => &[Tool::Terraform],
        Some(Tool::Opentofu) => &[Tool::Opentofu],
        None => &[Tool::Terraform, Tool::Opentofu],
    };
    let mut found = Vec::new();
    // O(candidates · directories of the search path).
    for tool in candidates {
        for dir in std::env::split_paths(search_path) {
            let path = dir.join(tool.program());
            if !is_program(&path) {
                continue;
            }
            let Some(version) = ask_version(&path, search_path).await else { continue };
            let program = Program { tool: *tool, path, version };
            if constraints.iter().all(|constraint| constraint.allows(&program.version)) {
                return Ok(program);
            }
            found.push(program.words());
        }
    }
    let names: Vec<&str> = candidates.iter().map(|tool| tool.program()).collect();
    if found.is_empty() {
        return Err(Error::NotInstalled { wanted: names.join(" or ") });
    }
    let texts: Vec<String> = constraints.iter().map(|c| format!("\"{c}\"")).collect();
    Err(Error::NoneSatisfies { wanted: texts.join(" and "), found: found.join(", ") })
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[derive(Deserialize)]
struct VersionAnswer {
    terraform_version: String,
}

/// `version -json`, or the first line of `version` from tools that are too old for it.
async fn ask_version(path: &Path, search_path: &OsStr) -> Option<Version> {
    let json = output(path, &["version", "-json"], search_path).await?;
    if let Ok(answer) = serde_json::from_slice::<VersionAnswer>(&json) {
        return parse_version(&answer.terraform_version);
    }
    let text = output(path, &["version"], search_path).await?;
    let text = String::from_utf8_lossy(&text);
    parse_version(text.lines().next()?.split_whitespace().last()?)
}

async fn output(path: &Path, arguments: &[&str], search_path: &OsStr) -> Option<Vec<u8>> {
    let environment: [(&str, OsString); 2] =
        [("CHECKPOINT_DISABLE", "1".into()), ("PATH", search_path.to_owned())];
    let answer = tokio::process::Command::new(path)
        .args(arguments)
        .env_clear()
        .envs(environment)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(ANSWER_WITHIN, answer).await.ok()?.ok()?;
    output.status.success().then_some(output.stdout)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn fake(dir: &Path, name: &str, script: &str) {
        let path = dir.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[tokio::test]
    async fn the_first_that_satisfies_is_taken() {
        let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fake(old.path(), "terraform", "echo 'Terraform v0.12.31'");
        fake(new.path(), "terraform", "echo '{\"terraform_version\":\"1.9.8\"}'");
        let search = std::env::join_paths([old.path(), new.path()]).unwrap();
        let found = find(None, &["~> 1.5".parse().unwrap()], &search).await.unwrap();
        assert_eq!(found.words(), "terraform 1.9.8");
        let found = find(None, &[], &search).await.unwrap();
        assert_eq!(found.words(), "terraform 0.12.31");
        let error = find(None, &[">= 2".parse().unwrap()], &search).await.unwrap_err().to_string();
        assert!(error.contains("terraform 0.12.31, terraform 1.9.8"), "{error}");
    }

    #[tokio::test]
    async fn a_missing_or_broken_tool_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fake(dir.path(), "tofu", "exit 3");
        let error = find(None, &[], dir.path().as_os_str()).await.unwrap_err().to_string();
        assert_eq!(error, "terraform or tofu is not installed; put it on the PATH of the runners");
    }
}
