//! Which tool a directory of code wants, and in which version: what the layer says, the version files beside the code,
//! `required_version` inside it; the same for Terragrunt. Reads files; starts nothing. docs/tools.md has the order for people.

use std::path::{Path, PathBuf};

use api::tool::{Program, Tool};
use sources::hcl::{self, Backend, Outline};

use crate::versions::{self, Constraint};

/// Where Terragrunt's settings are looked for: the layer's own file, and the usual name of one that others include.
const TERRAGRUNT_FILES: [&str; 2] = ["terragrunt.hcl", "root.hcl"];
/// How a wish of the resources is named in messages.
const SPEC: &str = "the layer or its repository";
/// Version files are a line long.
const VERSION_FILE_LIMIT: u64 = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{place} asks for a version that cannot be understood: {source}")]
    Constraint { place: String, source: versions::Error },
    #[error("could not read {path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path} is no version file: it is longer than {VERSION_FILE_LIMIT} bytes, or no text")]
    NoVersionFile { path: PathBuf },
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

/// What Terragrunt's own files say about versions, with the place of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TerragruntFiles {
    pub own: Option<Said>,
    /// About the tool that Terragrunt runs.
    pub tool: Option<Said>,
}

/// A version, and where it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub place: String,
    pub version: String,
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

/// Joins all wishes. What the layer or its repository says wins over version files; `required_version` always counts, because
/// the tool itself insists on it. Version files are looked for from the layer's directory up to the root of the bundle.
pub fn wanted(
    tool: Option<Tool>,
    version: Option<&str>,
    root: &Path,
    layer: &Path,
    code: &Code,
) -> Result<Wanted, Error> {
    let mut wanted = Wanted { tool, ..Wanted::default() };
    if let Some(version) = version {
        wanted.require(SPEC, version)?;
    }
    if tool.is_none() || version.is_none() {
        let looked_for: &[Program] = match tool {
            None => &[Program::Opentofu, Program::Terraform],
            Some(Tool::Terraform) => &[Program::Terraform],
            Some(Tool::Opentofu) => &[Program::Opentofu],
        };
        if let Some((program, said)) = nearest_version_file(root, layer, looked_for)? {
            wanted.tool = match program {
                Program::Terraform => Some(Tool::Terraform),
                Program::Opentofu => Some(Tool::Opentofu),
                // Never looked for here.
                Program::Terragrunt => wanted.tool,
            };
            if let Some(said) = said.filter(|_| version.is_none()) {
                wanted.require(&said.place, &said.version)?;
            }
        }
    }
    if wanted.tool.is_none() && code.is_opentofu {
        wanted.tool = Some(Tool::Opentofu);
    }
    for required in &code.required_versions {
        wanted.require("required_version", required)?;
    }
    Ok(wanted)
}

/// The wish for Terragrunt itself, in the same order: the resources, the nearest version file; and its own
/// `terragrunt_version_constraint` always, because Terragrunt insists on it. The tool below it stays out of this.
pub fn wanted_terragrunt(
    version: Option<&str>,
    root: &Path,
    layer: &Path,
    files: &TerragruntFiles,
) -> Result<Wanted, Error> {
    let mut wanted = Wanted::default();
    if let Some(version) = version {
        wanted.require(SPEC, version)?;
    } else if let Some((_, Some(said))) = nearest_version_file(root, layer, &[Program::Terragrunt])? {
        wanted.require(&said.place, &said.version)?;
    }
    if let Some(said) = &files.own {
        wanted.require(&said.place, &said.version)?;
    }
    Ok(wanted)
}

/// What Terragrunt's files say, from the layer's directory up to the root: of each setting the nearest counts, as it does when the
/// layer's file includes those above it. O(depth of the layer).
pub fn read_terragrunt(root: &Path, layer: &Path) -> Result<TerragruntFiles, Error> {
    let mut found = TerragruntFiles::default();
    for directory in layer.ancestors().take_while(|directory| directory.starts_with(root)) {
        for name in TERRAGRUNT_FILES {
            let path = directory.join(name);
            if !path.is_file() {
                continue;
            }
            let content = std::fs::read(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
            let outline = hcl::outline(name, &content);
            let said = |setting: &str, version: String| Said {
                place: format!("{setting} in {}", path.strip_prefix(root).unwrap_or(&path).display()),
                version,
            };
            if let (None, Some(version)) = (&found.own, outline.terragrunt_version) {
                found.own = Some(said("terragrunt_version_constraint", version));
            }
            if let (None, Some(version)) = (&found.tool, outline.terraform_version) {
                found.tool = Some(said("terraform_version_constraint", version));
            }
        }
    }
    Ok(found)
}

impl Wanted {
    /// One more condition, with its place.
    pub fn require(&mut self, place: &str, version: &str) -> Result<(), Error> {
        let constraint =
            version.parse().map_err(|source| Error::Constraint { place: place.to_owned(), source })?;
        self.constraint = std::mem::take(&mut self.constraint).and(constraint);
        self.places.push(place.to_owned());
        Ok(())
    }
}

/// The nearest version file that is about one of these programs, from the layer's directory up to the root, and what it says; a
/// word such as `latest` asks for no version in particular. O(depth of the layer).
fn nearest_version_file(
    root: &Path,
    layer: &Path,
    programs: &[Program],
) -> Result<Option<(Program, Option<Said>)>, Error> {
    for directory in layer.ancestors().take_while(|directory| directory.starts_with(root)) {
        let own = programs.iter().map(|program| (Some(*program), own_version_file(*program)));
        for (program, name) in own.chain([(None, ".tool-versions")]) {
            let path = directory.join(name);
            let Some(text) = read_version_file(&path)? else { continue };
            let said = match program {
                Some(program) => first_word(&text).map(|version| (program, version)),
                None => tool_versions(&text, programs),
            };
            let Some((program, version)) = said else { continue };
            let place = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            let said = names_a_version(version).then(|| Said { place, version: version.to_owned() });
            return Ok(Some((program, said)));
        }
    }
    Ok(None)
}

const fn own_version_file(program: Program) -> &'static str {
    match program {
        Program::Terraform => ".terraform-version",
        Program::Opentofu => ".opentofu-version",
        Program::Terragrunt => ".terragrunt-version",
    }
}

fn read_version_file(path: &Path) -> Result<Option<String>, Error> {
    use std::io::Read;
    let io = |source| Error::Io { path: path.to_owned(), source };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let mut content = Vec::new();
    file.take(VERSION_FILE_LIMIT + 1).read_to_end(&mut content).map_err(io)?;
    if u64::try_from(content.len()).unwrap_or(u64::MAX) > VERSION_FILE_LIMIT {
        return Err(Error::NoVersionFile { path: path.to_owned() });
    }
    String::from_utf8(content).map(Some).map_err(|_| Error::NoVersionFile { path: path.to_owned() })
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(|line| line.split_once('#').map_or(line, |(before, _)| before).trim())
        .filter(|line| !line.is_empty())
}

fn first_word(text: &str) -> Option<&str> {
    lines(text).next()
}

/// Of several lines the first about one of these programs, and of several versions in it the first, which is what asdf uses.
fn tool_versions<'a>(text: &'a str, programs: &[Program]) -> Option<(Program, &'a str)> {
    lines(text).find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let program = match words.next()? {
            "terraform" => Program::Terraform,
            "opentofu" | "tofu" => Program::Opentofu,
            "terragrunt" => Program::Terragrunt,
            _ => return None,
        };
        let version = words.next()?;
        programs.contains(&program).then_some((program, version))
    })
}

/// Version managers know words that leave the choice to them: `latest`, `latest:^1.5`, `latest-allowed`, `min-required`, `system`.
fn names_a_version(text: &str) -> bool {
    !(["latest", "min-required"].iter().any(|word| text.starts_with(word)) || text == "system")
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
    fn each_source_is_read_and_the_resources_win_over_files() {
        use Program::{Opentofu, Terraform, Terragrunt};
        // Files, what the resources say, and what is then wanted of which tool.
        type Case<'a> =
            (&'a [(&'a str, &'a str)], (Option<Tool>, Option<&'a str>), (Option<Program>, &'a str));
        let table: &[Case<'_>] = &[
            (&[], (None, None), (None, "any version")),
            (&[], (Some(Tool::Opentofu), Some("~> 1.8")), (Some(Opentofu), "~> 1.8")),
            (&[(".terraform-version", "v1.5.7")], (None, None), (Some(Terraform), "v1.5.7")),
            (&[(".opentofu-version", "1.8.2 # why")], (None, None), (Some(Opentofu), "1.8.2")),
            (&[(".tool-versions", "tofu 1.9.0 1.8.0")], (None, None), (Some(Opentofu), "1.9.0")),
            (
                &[(".tool-versions", "opentofu 1.9.0\nterraform 1.5.7")],
                (Some(Tool::Terraform), None),
                (Some(Terraform), "1.5.7"),
            ),
            (&[(".tool-versions", "terraform system")], (None, None), (Some(Terraform), "any version")),
            (&[(".terraform-version", "min-required")], (None, None), (Some(Terraform), "any version")),
            (&[(".terraform-version", "latest:^1.5")], (None, None), (Some(Terraform), "any version")),
            (&[(".terraform-version", "1.3.0")], (None, Some("1.4.0")), (Some(Terraform), "1.4.0")),
            (
                &[("envs/prod/.terraform-version", "1.3.0"), (".terraform-version", "1.2.0")],
                (None, None),
                (Some(Terraform), "1.3.0"),
            ),
            (
                &[("envs/prod/m.tf.json", r#"{"terraform": {"required_version": "< 2"}}"#)],
                (None, Some("1.4.0")),
                (None, "1.4.0, < 2"),
            ),
            (
                &[(".terragrunt-version", "0.50.0"), (".tool-versions", "terragrunt 0.49.0")],
                (None, None),
                (None, "any version"),
            ),
        ];
        for (files, (tool, version), (program, constraint)) in table {
            let fixture = Fixture::new(&[*files, &[("envs/prod/a.tf", "")]].concat());
            let wanted = fixture.wanted(*tool, *version).unwrap();
            assert_eq!(wanted.tool.map(Program::from), *program, "{files:?}");
            assert_eq!(wanted.constraint.to_string(), *constraint, "{files:?}");
        }
        type Files = &'static [(&'static str, &'static str)];
        let terragrunt: &[(Files, Option<&str>, &str)] = &[
            (&[], None, "any version"),
            (&[], Some("1.0.0"), "1.0.0"),
            (&[(".terragrunt-version", "0.50.1")], None, "0.50.1"),
            (&[(".terragrunt-version", "0.50.1")], Some("1.0.0"), "1.0.0"),
            (&[(".tool-versions", "terraform 1.5.7\nterragrunt 0.67.4")], None, "0.67.4"),
            (&[("envs/prod/terragrunt.hcl", "terragrunt_version_constraint = \"~> 0.60\"")], None, "~> 0.60"),
            (
                &[
                    ("root.hcl", "terragrunt_version_constraint = \">= 0.60\""),
                    (".terragrunt-version", "0.67.0"),
                ],
                None,
                "0.67.0, >= 0.60",
            ),
        ];
        for (files, version, constraint) in terragrunt {
            let fixture = Fixture::new(&[*files, &[("envs/prod/a.tf", "")]].concat());
            let (root, layer) = (fixture.0.path(), fixture.0.path().join("envs/prod"));
            let files_say = read_terragrunt(root, &layer).unwrap();
            let wanted = wanted_terragrunt(*version, root, &layer, &files_say).unwrap();
            assert_eq!(wanted.constraint.to_string(), *constraint, "{files:?}");
        }
        assert_eq!(own_version_file(Terragrunt), ".terragrunt-version");
    }

    #[test]
    fn the_nearest_terragrunt_file_that_says_something_counts() {
        let fixture = Fixture::new(&[
            (
                "root.hcl",
                "terraform_version_constraint = \">= 1.3\"\nterragrunt_version_constraint = \">= 0.1\"\n",
            ),
            ("envs/prod/terragrunt.hcl", "terragrunt_version_constraint = \">= 0.5\"\ninclude \"root\" {}\n"),
        ]);
        let found = read_terragrunt(fixture.0.path(), &fixture.0.path().join("envs/prod")).unwrap();
        let said =
            |place: &str, version: &str| Some(Said { place: place.to_owned(), version: version.to_owned() });
        assert_eq!(found.own, said("terragrunt_version_constraint in envs/prod/terragrunt.hcl", ">= 0.5"));
        assert_eq!(found.tool, said("terraform_version_constraint in root.hcl", ">= 1.3"));
    }

    #[test]
    fn a_file_that_is_no_version_file_is_told() {
        let long = "1".repeat(70_000);
        let fixture = Fixture::new(&[(".terraform-version", &long), ("envs/prod/a.tf", "")]);
        assert!(matches!(fixture.wanted(None, None), Err(Error::NoVersionFile { .. })));
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
