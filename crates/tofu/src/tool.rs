//! An installed tool and its commands. Each command is one process; what it prints goes to the caller line by line.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use api::run::Mode;
use api::text::ToolArgument;
use api::tool::Tool as ToolKind;
use semver::Version;
use serde::Deserialize;
use tokio::sync::watch;

use crate::choice::Wanted;
use crate::diagnostics::Collector;
use crate::garbage;
use crate::installed::Catalogue;
use crate::process::{self, Ended, Lines, Stream, Surroundings, Wish};
use crate::terragrunt::Terragrunt;
use crate::versions::{Constraint, parse_version};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}", missing(.wanted, .found))]
    Missing { wanted: Box<Wanted>, found: Vec<String> },
    #[error("{}", missing_terragrunt(.constraint, .found))]
    MissingTerragrunt { constraint: Constraint, found: Vec<String> },
    #[error(transparent)]
    Process(#[from] process::Error),
}

/// For people: what was asked for and by whom, and what there is instead.
fn missing(wanted: &Wanted, found: &[String]) -> String {
    let tool = match wanted.tool {
        Some(tool) => tool.program(),
        None => "neither terraform nor tofu",
    };
    let asked = if wanted.places.is_empty() {
        String::new()
    } else {
        format!(" in {} (asked for by {})", wanted.constraint, wanted.places.join(" and "))
    };
    let installed = if found.is_empty() {
        "none is installed".to_owned()
    } else {
        format!("installed: {}", found.join(", "))
    };
    let verb = if wanted.tool.is_some() { "is not installed" } else { "is installed" };
    format!(
        "{tool}{asked} {verb}; {installed}. Install it where the runner looks for programs, or change what is asked for"
    )
}

fn missing_terragrunt(constraint: &Constraint, found: &[String]) -> String {
    let installed = if found.is_empty() {
        "none is installed".to_owned()
    } else {
        format!("installed: {}", found.join(", "))
    };
    format!(
        "the layer is run by terragrunt, but {constraint} of it is not there; {installed}. Install it where the runner looks for programs, or set terragrunt.enabled to false"
    )
}

/// How much of what a command prints is kept in memory: more than any plan or state that the tools can still work with.
const CAPTURED_LIMIT: usize = 512 * 1024 * 1024;

/// A program that was found and asked for its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    pub kind: ToolKind,
    pub path: PathBuf,
    pub version: Version,
    /// What runs the tool, where it is not run directly.
    pub wrapper: Option<Terragrunt>,
}

impl std::fmt::Display for Tool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind.program(), self.version)?;
        match &self.wrapper {
            Some(terragrunt) => write!(f, " run by terragrunt {}", terragrunt.version),
            None => Ok(()),
        }
    }
}

/// How a command ended, and the first thing it complained about.
#[derive(Clone, Debug)]
pub struct Report {
    pub ended: Ended,
    pub complaints: Collector,
}

impl Report {
    pub fn succeeded(&self) -> bool {
        self.ended.code == Some(0)
    }
}

/// Whether `init` may still choose providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderChoice {
    Open,
    /// The lock file is that of a plan: an apply refuses any other, be it only longer.
    Settled,
}

/// What `init` makes of a backend that an earlier one settled on in the same directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Past {
    Kept,
    /// It is as if there had been none: no state is ever moved.
    Forgotten,
}

/// From here on `init` can be told to leave the lock file as it is.
const KEEPS_LOCK_FILES: Version = Version::new(1, 1, 0);

/// What a plan found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planned {
    NoChanges,
    Changes,
    Failed,
}

impl Tool {
    /// The highest installed version that satisfies the wish. Programs may carry their version in their name
    /// (`terraform-1.5.7`). Where either tool will do, terraform is preferred.
    pub async fn find(
        wanted: &Wanted,
        directories: &[PathBuf],
        known: &Catalogue,
        surroundings: &Surroundings,
    ) -> Result<Self, Error> {
        let kinds = match wanted.tool {
            Some(kind) => vec![kind],
            None => vec![ToolKind::Terraform, ToolKind::Opentofu],
        };
        let mut found = Vec::new();
        for kind in kinds {
            let mut best: Option<Self> = None;
            for path in candidates(kind.program(), directories) {
                let Some(version) = known_version(&path, known, surroundings).await else { continue };
                let tool = Self { kind, path, version, wrapper: None };
                found.push(tool.to_string());
                if wanted.constraint.is_satisfied_by(&tool.version)
                    && best.as_ref().is_none_or(|best| best.version < tool.version)
                {
                    best = Some(tool);
                }
            }
            if let Some(best) = best {
                return Ok(best);
            }
        }
        Err(Error::Missing { wanted: Box::new(wanted.clone()), found })
    }

    /// The program that is started.
    pub fn program(&self) -> &'static str {
        match &self.wrapper {
            Some(_) => "terragrunt",
            None => self.kind.program(),
        }
    }

    /// Lets Terragrunt fetch the code and write what it generates. A tool that works alone only says its version.
    pub async fn prepare(
        &self,
        dir: &Path,
        surroundings: &Surroundings,
        lines: Lines<'_>,
    ) -> Result<Report, Error> {
        let arguments = match &self.wrapper {
            Some(_) => Terragrunt::preparation(&self.path),
            None => vec!["version".into()],
        };
        self.run(arguments, dir, surroundings, lines).await
    }

    pub async fn init(
        &self,
        choice: ProviderChoice,
        past: Past,
        more: &[ToolArgument],
        dir: &Path,
        surroundings: &Surroundings,
        lines: Lines<'_>,
    ) -> Result<Report, Error> {
        let fixed = ["init", "-input=false", "-no-color"];
        let lock_file = match choice {
            ProviderChoice::Settled if self.version >= KEEPS_LOCK_FILES => Some("-lockfile=readonly"),
            ProviderChoice::Settled | ProviderChoice::Open => None,
        };
        let backend = match past {
            Past::Kept => None,
            Past::Forgotten => Some("-reconfigure"),
        };
        // Providers of a plan are settled, and the tool takes no wish for others then.
        let fits =
            |argument: &&ToolArgument| choice == ProviderChoice::Open || argument.parts().0 != "upgrade";
        let own = lock_file.into_iter().chain(backend).map(OsStr::new);
        let more = more.iter().filter(fits).map(|argument| OsStr::new(argument.as_str()));
        self.command(fixed, own.chain(more), dir, surroundings, lines).await
    }

    /// Selects a workspace, and makes it where it does not exist.
    pub async fn workspace_select(
        &self,
        name: &str,
        dir: &Path,
        surroundings: &Surroundings,
        lines: Lines<'_>,
    ) -> Result<Report, Error> {
        let name = OsStr::new(name);
        let selected =
            self.command(["workspace", "select", "-no-color"], [name], dir, surroundings, lines).await?;
        if selected.succeeded() {
            return Ok(selected);
        }
        self.command(["workspace", "new", "-no-color"], [name], dir, surroundings, lines).await
    }

    /// Deletes a workspace, which cannot be the selected one. The tool does so under the state's lock and only where it holds nothing.
    pub async fn workspace_delete(
        &self,
        name: &str,
        dir: &Path,
        surroundings: &Surroundings,
        lines: Lines<'_>,
    ) -> Result<Report, Error> {
        let default = OsStr::new("default");
        let left =
            self.command(["workspace", "select", "-no-color"], [default], dir, surroundings, lines).await?;
        if !left.succeeded() {
            return Ok(left);
        }
        let name = OsStr::new(name);
        self.command(["workspace", "delete", "-no-color"], [name], dir, surroundings, lines).await
    }

    /// Plans into a file, without the state's lock: a killed plan leaves none behind, and staleness is checked later.
    pub async fn plan(
        &self,
        mode: Mode,
        more: &[ToolArgument],
        file: &Path,
        dir: &Path,
        surroundings: &Surroundings,
        lines: Lines<'_>,
    ) -> Result<(Planned, Report), Error> {
        let mut out = OsString::from("-out=");
        out.push(file);
        let fixed = ["plan", "-input=false", "-no-color", "-lock=false", "-detailed-exitcode"];
        let kind = match mode {
            Mode::Normal => None,
            Mode::Destroy => Some(OsStr::new("-destroy")),
            Mode::RefreshOnly => Some(OsStr::new("-refresh-only")),
        };
        let own = kind.into_iter().chain([out.as_os_str()]);
        let more = more.iter().map(|argument| OsStr::new(argument.as_str()));
        let report = self.command(fixed, own.chain(more), dir, surroundings, lines).await?;
        let planned = match report.ended.code {
            Some(0) => Planned::NoChanges,
            Some(2) => Planned::Changes,
            Some(_) | None => Planned::Failed,
        };
        Ok((planned, report))
    }

    pub async fn apply(
        &self,
        more: &[ToolArgument],
        file: &Path,
        dir: &Path,
        surroundings: &Surroundings,
        lines: Lines<'_>,
    ) -> Result<Report, Error> {
        let fixed = ["apply", "-input=false", "-no-color", "-lock-timeout=0s"];
        // The plan comes last: what follows it would be another plan to the tool.
        let more = more.iter().map(|argument| OsStr::new(argument.as_str()));
        self.command(fixed, more.chain([file.as_os_str()]), dir, surroundings, lines).await
    }

    /// The plan in JSON, or nothing from a tool too old for it. It is one line, and can be long.
    pub async fn show_json(
        &self,
        file: &Path,
        dir: &Path,
        surroundings: &Surroundings,
        complaints: Lines<'_>,
    ) -> Result<Option<Vec<u8>>, Error> {
        self.captured(["show", "-json"], [file.as_os_str()], dir, surroundings, complaints).await
    }

    /// The outputs in JSON, sensitive ones in clear, or nothing when they cannot be read.
    pub async fn output_json(
        &self,
        dir: &Path,
        surroundings: &Surroundings,
        complaints: Lines<'_>,
    ) -> Result<Option<Vec<u8>>, Error> {
        self.captured(["output", "-json", "-no-color"], [], dir, surroundings, complaints).await
    }

    /// The current state of whatever backend the code has, or nothing when it cannot be read.
    pub async fn state_pull(
        &self,
        dir: &Path,
        surroundings: &Surroundings,
        complaints: Lines<'_>,
    ) -> Result<Option<Vec<u8>>, Error> {
        self.captured(["state", "pull"], [], dir, surroundings, complaints).await
    }

    pub async fn state_push(
        &self,
        file: &Path,
        dir: &Path,
        surroundings: &Surroundings,
        lines: Lines<'_>,
    ) -> Result<Report, Error> {
        self.command(["state", "push"], [file.as_os_str()], dir, surroundings, lines).await
    }

    async fn captured<const N: usize, const M: usize>(
        &self,
        fixed: [&str; N],
        more: [&OsStr; M],
        dir: &Path,
        surroundings: &Surroundings,
        complaints: Lines<'_>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let mut content = Vec::new();
        let mut whole = true;
        let report = self
            .command(fixed, more, dir, surroundings, &mut |stream, line| match stream {
                // Long lines arrive in pieces; JSON does not mind where a newline is dropped.
                Stream::Out if content.len() + line.len() <= CAPTURED_LIMIT => {
                    content.extend_from_slice(line.as_bytes());
                }
                Stream::Out => whole = false,
                Stream::Err => complaints(stream, line),
            })
            .await?;
        if !whole {
            complaints(Stream::Err, "What the tool printed is too large to be kept, and was left out.");
        }
        Ok((report.succeeded() && whole).then_some(content))
    }

    async fn command<'a, const N: usize>(
        &self,
        fixed: [&str; N],
        more: impl IntoIterator<Item = &'a OsStr>,
        dir: &Path,
        surroundings: &Surroundings,
        lines: Lines<'_>,
    ) -> Result<Report, Error> {
        let arguments: Vec<OsString> =
            fixed.into_iter().map(OsString::from).chain(more.into_iter().map(OsStr::to_owned)).collect();
        let arguments = match &self.wrapper {
            Some(_) => Terragrunt::wrap(arguments),
            None => arguments,
        };
        self.run(arguments, dir, surroundings, lines).await
    }

    /// Starts the program that is there to be started.
    async fn run(
        &self,
        arguments: Vec<OsString>,
        dir: &Path,
        surroundings: &Surroundings,
        lines: Lines<'_>,
    ) -> Result<Report, Error> {
        let mut complaints = Collector::default();
        let mut last_words = String::new();
        let mut lines = |stream: Stream, line: &str| {
            complaints.line(line);
            if stream == Stream::Err && !line.trim().is_empty() {
                last_words = line.to_owned();
            }
            lines(stream, line);
        };
        let ended = match &self.wrapper {
            Some(terragrunt) => {
                process::run_wrapper(&terragrunt.path, &self.path, &arguments, dir, surroundings, &mut lines)
                    .await?
            }
            None => {
                let mut surroundings = surroundings.clone();
                surroundings.environment.extend(garbage::variables(
                    &arguments,
                    dir,
                    &surroundings.environment,
                ));
                process::run(&self.path, &arguments, dir, &surroundings, &mut lines).await?
            }
        };
        if self.wrapper.is_some() && ended.code != Some(0) {
            complaints.last_words(&last_words);
        }
        Ok(Report { ended, complaints })
    }
}

/// Files that could be the tool, plain name first. O(files of the directories).
pub(crate) fn candidates(program: &str, directories: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for directory in directories {
        // On many machines /bin is /usr/bin: its programs would be asked twice.
        if directory.canonicalize().is_ok_and(|real| !seen.insert(real)) {
            continue;
        }
        let plain = directory.join(program);
        if plain.is_file() {
            found.push(plain);
        }
        let Ok(entries) = std::fs::read_dir(directory) else { continue };
        let mut versioned: Vec<PathBuf> = entries
            .flatten()
            .filter(|entry| {
                let name = entry.file_name();
                let rest = name.to_str().and_then(|name| name.strip_prefix(program));
                rest.and_then(|rest| rest.strip_prefix(['-', '_']))
                    .is_some_and(|rest| parse_version(rest).is_some())
            })
            .map(|entry| entry.path())
            .collect();
        versioned.sort();
        found.extend(versioned);
    }
    found
}

/// The version of a program, as it is known or as the program says.
pub(crate) async fn known_version(
    path: &Path,
    known: &Catalogue,
    surroundings: &Surroundings,
) -> Option<Version> {
    match known.version(path) {
        Some(version) => Some(version),
        None => version_of(path, surroundings).await,
    }
}

/// Asks a program for its version; a program that does not answer is none of ours.
pub(crate) async fn version_of(path: &Path, surroundings: &Surroundings) -> Option<Version> {
    #[derive(Deserialize)]
    struct Answer {
        terraform_version: String,
    }
    // Finding a tool is not interrupted: it takes a moment, and half an answer is worse.
    let (_keep, stop) = watch::channel(Wish::GoOn);
    let surroundings = Surroundings { stop, ..surroundings.clone() };
    let mut text = String::new();
    let arguments = [OsString::from("version"), OsString::from("-json")];
    let mut keep = |stream: Stream, line: &str| {
        if stream == Stream::Out && text.len() < 64 * 1024 {
            text.push_str(line);
            text.push('\n');
        }
    };
    let asked = process::run(path, &arguments, Path::new("/"), &surroundings, &mut keep);
    tokio::time::timeout(std::time::Duration::from_secs(30), asked).await.ok()?.ok()?;
    match serde_json::from_str::<Answer>(&text) {
        Ok(answer) => parse_version(&answer.terraform_version),
        // Terragrunt has no JSON for it ("terragrunt version v1.0.0"), and neither had terraform before 0.13.
        Err(_) => text
            .lines()
            .next()?
            .split_ascii_whitespace()
            .find_map(|word| word.strip_prefix('v').and_then(parse_version)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_directory_with_two_names_is_searched_once() {
        let root = tempfile::tempdir().unwrap();
        let (real, link) = (root.path().join("usr"), root.path().join("bin"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        for name in ["terraform", "terraform-1.5.7", "terraform-docs"] {
            std::fs::write(real.join(name), "").unwrap();
        }
        let found = candidates("terraform", &[link.clone(), root.path().join("none"), real]);
        assert_eq!(found, [link.join("terraform"), link.join("terraform-1.5.7")]);
    }
}
