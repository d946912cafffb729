//! Which tool a directory of code wants, and in which version: what the layer says, the version files beside the code,
//! `required_version` inside it. Reads files; starts nothing.

use std::path::{Path, PathBuf};

use api::tool::Tool;
use sources::hcl::{self, Backend, Outline};

use crate::versions::{self, Constraint};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{place} asks for a version that cannot be understood: {source}")]
    Constraint { place: String, source: versions::Error },
    #[error("could not read {path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
}

/// A wish for a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// `None` when either will do.
    pub tool: Option<Tool>,
    pub constraint: Constraint,
    /// Where the wish stands, for messages.
    pub places: Vec<String>,
}

/// What the code of a root module says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Code {
    pub backend: Option<Backend>,
    pub required_versions: Vec<String>,
    /// There are files that only OpenTofu reads.
    pub is_opentofu: bool,
}

/// Scans the configuration files directly in `dir`.
pub fn read_code(dir: &Path) -> Result<Code, Error> {
    let io = |source| Error::Io { path: dir.to_owned(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        if let Ok(name) = entry.map_err(io)?.file_name().into_string()
            && hcl::is_configuration(&name)
        {
            names.push(name);
        }
    }
    // Override files come last, as the tools read them.
    names.sort_by_key(|name| (is_override(name), name.clone()));
    let mut outline = Outline::default();
    let mut is_opentofu = false;
    for name in names {
        is_opentofu |= name.ends_with(".tofu") || name.ends_with(".tofu.json");
        let path = dir.join(&name);
        let content = std::fs::read(&path).map_err(|source| Error::Io { path, source })?;
        outline.merge(hcl::outline(&name, &content));
    }
    Ok(Code { backend: outline.backend, required_versions: outline.required_versions, is_opentofu })
}

fn is_override(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default();
    stem == "override" || stem.ends_with("_override")
}

/// Joins all wishes. What the layer says wins over version files; `required_version` always counts, because the tool
/// itself insists on it. Version files are looked for from the layer's directory up to the root of the bundle.
pub fn wanted(
    tool: Option<Tool>,
    version: Option<&str>,
    root: &Path,
    layer: &Path,
    code: &Code,
) -> Result<Wanted, Error> {
    let mut wanted = Wanted { tool, ..Wanted::default() };
    if let Some(version) = version {
        wanted.add("the layer", version)?;
    }
    if tool.is_none() || version.is_none() {
        for directory in layer.ancestors().take_while(|directory| directory.starts_with(root)) {
            if wanted.add_version_files(directory, root, version.is_none())? {
                break;
            }
        }
    }
    if wanted.tool.is_none() && code.is_opentofu {
        wanted.tool = Some(Tool::Opentofu);
    }
    for required in &code.required_versions {
        wanted.add("required_version", required)?;
    }
    Ok(wanted)
}

impl Wanted {
    fn add(&mut self, place: &str, version: &str) -> Result<(), Error> {
        let constraint =
            version.parse().map_err(|source| Error::Constraint { place: place.to_owned(), source })?;
        self.constraint = std::mem::take(&mut self.constraint).and(constraint);
        self.places.push(place.to_owned());
        Ok(())
    }

    /// Whether this directory settled the question.
    fn add_version_files(
        &mut self,
        directory: &Path,
        root: &Path,
        with_version: bool,
    ) -> Result<bool, Error> {
        let files = [
            (".opentofu-version", Some(Tool::Opentofu)),
            (".terraform-version", Some(Tool::Terraform)),
            (".tool-versions", None),
        ];
        for (name, tool) in files {
            let path = directory.join(name);
            let text = match std::fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(source) => return Err(Error::Io { path, source }),
            };
            let found = match tool {
                Some(tool) => {
                    text.lines().map(str::trim).find(|line| is_content(line)).map(|line| (tool, line))
                }
                None => tool_versions(&text),
            };
            let Some((tool, version)) = found else { continue };
            if self.tool.is_some_and(|wanted| wanted != tool) {
                continue;
            }
            self.tool = Some(tool);
            // "latest" and its relatives ask for no version in particular; what is installed decides.
            if with_version && !version.starts_with("latest") && !version.starts_with("min-required") {
                let place = path.strip_prefix(root).unwrap_or(&path).display().to_string();
                self.add(&place, version)?;
            }
            return Ok(true);
        }
        Ok(false)
    }
}

fn is_content(line: &str) -> bool {
    !line.is_empty() && !line.starts_with('#')
}

fn tool_versions(text: &str) -> Option<(Tool, &str)> {
    text.lines().map(str::trim).filter(|line| is_content(line)).find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let tool = match words.next()? {
            "terraform" => Tool::Terraform,
            "opentofu" | "tofu" => Tool::Opentofu,
            _ => return None,
        };
        Some((tool, words.next()?))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Fixture(tempfile::TempDir);

    impl Fixture {
        fn new(files: &[(&str, &str)]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            for (name, content) in files {
                let path = dir.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, content).unwrap();
            }
            Self(dir)
        }

        fn wanted(&self, tool: Option<Tool>, version: Option<&str>) -> Result<Wanted, Error> {
            let layer = self.0.path().join("envs/prod");
            let code = read_code(&layer).unwrap();
            wanted(tool, version, self.0.path(), &layer, &code)
        }
    }

    #[test]
    fn the_nearest_version_file_counts_and_required_version_always() {
        let fixture = Fixture::new(&[
            (".terraform-version", "1.3.0\n"),
            ("envs/.opentofu-version", "# why\n1.8.2\n"),
            ("envs/prod/main.tf", "terraform {\n required_version = \">= 1.6\"\n}"),
        ]);
        let wanted = fixture.wanted(None, None).unwrap();
        assert_eq!(wanted.tool, Some(Tool::Opentofu));
        assert_eq!(wanted.constraint.to_string(), "1.8.2, >= 1.6");
        assert_eq!(wanted.places, ["envs/.opentofu-version", "required_version"]);

        let layer = fixture.wanted(Some(Tool::Terraform), Some("~> 1.5")).unwrap();
        assert_eq!(layer.constraint.to_string(), "~> 1.5, >= 1.6");

        let same_tool = fixture.wanted(Some(Tool::Terraform), None).unwrap();
        assert_eq!(same_tool.constraint.to_string(), "1.3.0, >= 1.6", "the other tool's file does not count");
    }

    #[test]
    fn tool_versions_and_latest_are_understood() {
        let fixture =
            Fixture::new(&[(".tool-versions", "nodejs 20\nterraform 1.5.7\n"), ("envs/prod/a.tf", "")]);
        let wanted = fixture.wanted(None, None).unwrap();
        assert_eq!((wanted.tool, wanted.constraint.to_string().as_str()), (Some(Tool::Terraform), "1.5.7"));
        let latest = Fixture::new(&[(".terraform-version", "latest"), ("envs/prod/a.tofu", "")]);
        let wanted = latest.wanted(None, None).unwrap();
        assert_eq!(
            (wanted.tool, wanted.constraint.to_string().as_str()),
            (Some(Tool::Terraform), "any version")
        );
        let files = Fixture::new(&[("envs/prod/a.tofu", "")]);
        assert_eq!(files.wanted(None, None).unwrap().tool, Some(Tool::Opentofu));
    }

    #[test]
    fn a_version_that_cannot_be_read_is_told_with_its_place() {
        let fixture = Fixture::new(&[(".terraform-version", "one"), ("envs/prod/a.tf", "")]);
        assert_eq!(
            fixture.wanted(None, None).unwrap_err().to_string(),
            ".terraform-version asks for a version that cannot be understood: \"one\" is not a version constraint such as \"1.9.8\", \">= 1.5, < 2\" or \"~> 1.9\""
        );
    }
}
