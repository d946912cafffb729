//! What the code itself asks for: version files beside it, `required_version` in it, and whether it names a backend.

use std::io::Read;
use std::path::Path;

use api::tool::Tool;
use sources::hcl::{Outline, is_configuration, outline};

use crate::version::Constraint;

/// More than any real version file holds.
const VERSION_FILE_LIMIT: u64 = 4096;
const CONFIGURATION_LIMIT: u64 = 4 * 1024 * 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requirements {
    /// The tool that a version file names.
    pub tool: Option<Tool>,
    pub constraints: Vec<Constraint>,
    /// The code says where its state is kept.
    pub has_backend: bool,
}

/// Reads the root module in `dir`; version files are looked for there and in each directory above it, up to `root`.
/// What cannot be understood is left out: the tool reports it with line numbers.
pub fn requirements(root: &Path, dir: &Path) -> Requirements {
    let mut found = Requirements::default();
    // O(depth) directories, each with three small files.
    for level in dir.ancestors().take_while(|level| level.starts_with(root)) {
        if version_files(level, &mut found) {
            break;
        }
    }
    let outline = root_module(dir);
    found.constraints.extend(outline.required_versions.iter().filter_map(|text| text.parse().ok()));
    found.has_backend = outline.backend.is_some();
    found
}

/// Whether one of them was found here.
fn version_files(dir: &Path, found: &mut Requirements) -> bool {
    let files = [(".terraform-version", Tool::Terraform), (".opentofu-version", Tool::Opentofu)];
    for (name, tool) in files {
        if let Some(constraint) =
            read(&dir.join(name), VERSION_FILE_LIMIT).and_then(|text| text.trim().parse().ok())
        {
            found.tool = Some(tool);
            found.constraints.push(constraint);
            return true;
        }
    }
    let Some(text) = read(&dir.join(".tool-versions"), VERSION_FILE_LIMIT) else { return false };
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let tool = match words.next() {
            Some("terraform") => Tool::Terraform,
            Some("opentofu") => Tool::Opentofu,
            Some(_) | None => continue,
        };
        if let Some(constraint) = words.next().and_then(|word| word.parse().ok()) {
            found.tool = Some(tool);
            found.constraints.push(constraint);
            return true;
        }
    }
    false
}

fn root_module(dir: &Path) -> Outline {
    let mut whole = Outline::default();
    // O(files of the root module).
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| is_configuration(name)) else { continue };
        if let Some(text) = read(&entry.path(), CONFIGURATION_LIMIT) {
            whole.merge(outline(name, text.as_bytes()));
        }
    }
    whole
}

fn read(path: &Path, limit: u64) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(limit).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    #[test]
    fn the_nearest_version_file_and_the_code_are_heard() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("envs/prod");
        fs::create_dir_all(&dir).unwrap();
        fs::write(root.path().join(".tool-versions"), "nodejs 20\nopentofu 1.8.1\n").unwrap();
        fs::write(
            dir.join("main.tf"),
            "terraform {\n  required_version = \">= 1.5\"\n  backend \"s3\" {}\n}\n",
        )
        .unwrap();
        let found = requirements(root.path(), &dir);
        assert_eq!(found.tool, Some(Tool::Opentofu));
        let texts: Vec<String> = found.constraints.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["1.8.1", ">= 1.5"]);
        assert!(found.has_backend);

        fs::write(dir.join(".terraform-version"), "1.9.8\n").unwrap();
        let found = requirements(root.path(), &dir);
        assert_eq!(found.tool, Some(Tool::Terraform));
    }

    #[test]
    fn broken_code_asks_for_nothing() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("main.tf"), b"terraform { required_version = \"\xff\xfe").unwrap();
        fs::write(root.path().join(".terraform-version"), "latest").unwrap();
        assert_eq!(requirements(root.path(), root.path()), Requirements::default());
    }
}
