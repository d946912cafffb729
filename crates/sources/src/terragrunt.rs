//! What a unit of Terragrunt rests on beside its own directory: the files it includes or reads, the module it takes its code from,
//! the units whose outputs it uses. Nothing is evaluated: texts that look like paths, and the few functions that people build paths
//! with, are followed as far as they lead to something in the tree. What only an evaluation could tell is not found.
//!
//! The bytes are untrusted and read inside the controller: the scan is total and linear in the input.

use std::collections::BTreeSet;

use crate::hcl::Scanner;
use crate::objects::{Entry, Kind};

/// What makes a directory a unit.
pub(crate) const CONFIGURATIONS: [&str; 2] = ["terragrunt.hcl", "terragrunt.hcl.json"];
/// Files of one unit that are read; real ones have a handful.
const FILE_LIMIT: usize = 200;
/// Texts of one unit's files that are followed.
const TEXT_LIMIT: usize = 20_000;
/// Directories of included files that a text is tried with; real units have one or two.
const INCLUDE_LIMIT: usize = 16;
const NESTING_LIMIT: usize = 64;

/// What was found beside a unit's own directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Files and directories that matter.
    pub paths: BTreeSet<String>,
    /// Those of them that hold code of the tool.
    pub modules: BTreeSet<String>,
}

/// The files of a commit, in the order of their paths.
#[derive(Debug)]
pub struct Tree<'a>(pub &'a [Entry]);

impl Tree<'_> {
    fn file(&self, path: &str) -> Option<&Entry> {
        let at = self.0.binary_search_by(|entry| entry.path.as_slice().cmp(path.as_bytes())).ok()?;
        self.0.get(at).filter(|entry| match entry.kind {
            Kind::File | Kind::Executable => true,
            Kind::Symlink | Kind::Submodule => false,
        })
    }

    fn has_directory(&self, path: &str) -> bool {
        let prefix = format!("{path}/");
        let at = self.0.partition_point(|entry| entry.path.as_slice() < prefix.as_bytes());
        self.0.get(at).is_some_and(|entry| entry.path.starts_with(prefix.as_bytes()))
    }

    /// The configuration of the unit in a directory.
    pub(crate) fn unit(&self, directory: &str) -> Option<String> {
        CONFIGURATIONS.iter().map(|name| joined(directory, name)).find(|path| self.file(path).is_some())
    }
}

/// Follows a unit's configuration. `read` gives the content of a file by its object. O(texts · included directories²), each within its
/// limit.
pub fn follow<E>(
    tree: &Tree<'_>,
    unit: &str,
    mut read: impl FnMut(&str) -> Result<Vec<u8>, E>,
) -> Result<Found, E> {
    let mut found = Found::default();
    let mut texts: Vec<(String, Text)> = Vec::new();
    let mut known: BTreeSet<String> = tree.unit(unit).into_iter().collect();
    let mut waiting: Vec<String> = known.iter().cloned().collect();
    let mut parents = BTreeSet::new();
    let mut looked_at = 0;
    while !waiting.is_empty() {
        for path in std::mem::take(&mut waiting) {
            let Some(entry) = tree.file(&path) else { continue };
            let directory = parent(&path).to_owned();
            let more = scan(&read(&entry.object)?, TEXT_LIMIT.saturating_sub(texts.len()));
            texts.extend(more.into_iter().map(|text| (directory.clone(), text)));
        }
        let mut parents_now: BTreeSet<String> = known
            .iter()
            .map(|path| parent(path).to_owned())
            .filter(|dir| dir != unit && is_above(dir, unit))
            .collect();
        while parents_now.len() > INCLUDE_LIMIT {
            parents_now.pop_last();
        }
        // A parent's directory is known only once it was followed, so texts that need one are looked at again.
        if parents_now != parents {
            (parents, looked_at) = (parents_now, 0);
        }
        for (directory, text) in texts.get(looked_at..).unwrap_or_default() {
            for target in targets(tree, unit, directory, &parents, text) {
                match target {
                    Target::File(path) => {
                        found.paths.insert(path.clone());
                        let is_configuration = path.ends_with(".hcl") || path.ends_with(".hcl.json");
                        if is_configuration && known.len() < FILE_LIMIT && known.insert(path.clone()) {
                            waiting.push(path);
                        }
                    }
                    // Another unit: its code shows here only through its outputs.
                    Target::Directory(path) if tree.unit(&path).is_some() => drop(found.paths.insert(path)),
                    Target::Directory(path) => {
                        found.modules.insert(path.clone());
                        found.paths.insert(path);
                    }
                }
            }
        }
        looked_at = texts.len();
    }
    Ok(found)
}

enum Target {
    File(String),
    Directory(String),
}

/// A text of a configuration, as far as it can be understood.
type Text = Vec<Piece>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Plain(String),
    /// `find_in_parent_folders("NAME")`.
    Parent(String),
    /// `dirname` of it.
    DirectoryOfParent(String),
    /// The directory of the unit, or of the file that says it.
    Unit,
    Repository,
    /// The directory of an included file.
    Include,
    /// From there to the unit.
    FromInclude,
    Unknown,
}

/// What a text can mean: of its own file or of the unit, below each of the included files.
fn targets(
    tree: &Tree<'_>,
    unit: &str,
    directory: &str,
    parents: &BTreeSet<String>,
    text: &Text,
) -> Vec<Target> {
    let needs_include = text.iter().any(|piece| matches!(piece, Piece::Include | Piece::FromInclude));
    let includes: Vec<&str> =
        if needs_include { parents.iter().map(String::as_str).collect() } else { vec![""] };
    let mut found = Vec::new();
    for base in BTreeSet::from([directory, unit]) {
        for include in &includes {
            let Some(path) = resolve(tree, unit, base, include, text) else { continue };
            if tree.file(&path).is_some() {
                found.push(Target::File(path));
            } else if leads_somewhere(text) && !path.is_empty() && path != unit && tree.has_directory(&path) {
                found.push(Target::Directory(path));
            }
        }
    }
    found
}

/// A single name is hardly ever meant as a directory; a path is.
fn leads_somewhere(text: &Text) -> bool {
    match text.as_slice() {
        [Piece::Plain(plain)] => plain.starts_with("./") || plain.starts_with("../"),
        [] | [Piece::Parent(_)] => false,
        [
            Piece::DirectoryOfParent(_)
            | Piece::Unit
            | Piece::Repository
            | Piece::Include
            | Piece::FromInclude
            | Piece::Unknown,
        ] => false,
        [_, ..] => true,
    }
}

fn resolve(tree: &Tree<'_>, unit: &str, base: &str, include: &str, text: &Text) -> Option<String> {
    let mut path = String::new();
    for (at, piece) in text.iter().enumerate() {
        match piece {
            Piece::Plain(plain) if at == 0 && plain.starts_with('/') => return None,
            Piece::Plain(plain) => path.push_str(plain),
            Piece::Unknown => return None,
            Piece::FromInclude => path.push_str(below(unit, include)?),
            Piece::Parent(_)
            | Piece::DirectoryOfParent(_)
            | Piece::Unit
            | Piece::Repository
            | Piece::Include
                if at != 0 =>
            {
                return None;
            }
            Piece::Unit => path = format!("/{base}"),
            Piece::Repository => path = "/".to_owned(),
            Piece::Include => path = format!("/{include}"),
            Piece::Parent(name) => path = format!("/{}", find_above(tree, base, name)?),
            Piece::DirectoryOfParent(name) => path = format!("/{}", parent(&find_above(tree, base, name)?)),
        }
    }
    // Getters take more behind a question mark; two slashes only say where a copy starts.
    let path = path.split('?').next().unwrap_or_default();
    match path.strip_prefix('/') {
        Some(absolute) => normal("", absolute),
        None => normal(base, path),
    }
}

/// Looks for a name from the directory above upwards, as Terragrunt does.
fn find_above(tree: &Tree<'_>, directory: &str, name: &str) -> Option<String> {
    let mut at = directory;
    while !at.is_empty() {
        at = parent(at);
        let path = joined(at, name);
        if tree.file(&path).is_some() || tree.has_directory(&path) {
            return Some(path);
        }
    }
    None
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

fn joined(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

fn below<'a>(path: &'a str, directory: &str) -> Option<&'a str> {
    if directory.is_empty() { Some(path) } else { path.strip_prefix(directory)?.strip_prefix('/') }
}

fn is_above(directory: &str, path: &str) -> bool {
    below(path, directory).is_some()
}

/// A path without detours, or nothing when it leaves the repository.
pub(crate) fn normal(directory: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The texts of a configuration in either syntax, and what is searched for above it.
fn scan(content: &[u8], most: usize) -> Vec<Text> {
    let mut scanner = Scanner::new(content);
    let mut texts = Vec::new();
    while let Some(byte) = scanner.peek() {
        if texts.len() >= most {
            break;
        }
        if scanner.skip_comment() || scanner.skip_heredoc() {
            continue;
        }
        match byte {
            b'"' => texts.push(quoted(&mut scanner)),
            _ if byte.is_ascii_alphabetic() => {
                let name = scanner.identifier();
                if name == SEARCH && scanner.peek() == Some(b'(') {
                    texts.push(vec![searched(&argument_of(scanner.rest()))]);
                }
            }
            _ => scanner.at += 1,
        }
    }
    texts
}

const SEARCH: &str = "find_in_parent_folders";
/// What is searched for when nothing is named.
const SEARCHED: &str = "terragrunt.hcl";

fn searched(name: &Option<String>) -> Piece {
    Piece::Parent(name.clone().unwrap_or_else(|| SEARCHED.to_owned()))
}

/// The first argument of a call whose parenthesis comes next, if it is plain text.
fn argument_of(rest: &[u8]) -> Option<String> {
    let inside = rest.strip_prefix(b"(")?.trim_ascii_start().strip_prefix(b"\"")?;
    let end = inside.iter().position(|byte| matches!(byte, b'"' | b'\n' | b'$' | b'\\'))?;
    (inside.get(end) == Some(&b'"'))
        .then(|| String::from_utf8_lossy(inside.get(..end).unwrap_or_default()).into_owned())
}

/// A quoted text with its templates.
fn quoted(scanner: &mut Scanner<'_>) -> Text {
    let mut text = Vec::new();
    let mut plain = Vec::new();
    let keep = |plain: &mut Vec<u8>, text: &mut Text| {
        if !plain.is_empty() {
            text.push(Piece::Plain(String::from_utf8_lossy(&std::mem::take(plain)).into_owned()));
        }
    };
    scanner.at += 1;
    while let Some(byte) = scanner.peek() {
        match byte {
            b'"' => {
                scanner.at += 1;
                break;
            }
            b'\n' => break,
            b'\\' => {
                plain.extend(scanner.rest().get(1));
                scanner.at += 2;
            }
            b'$' | b'%' if scanner.rest().get(1) == Some(&b'{') => {
                keep(&mut plain, &mut text);
                text.push(meaning(&template(scanner), 0));
            }
            other => {
                plain.push(other);
                scanner.at += 1;
            }
        }
    }
    keep(&mut plain, &mut text);
    text
}

/// Consumes `${…}` and gives what is inside. Quotes inside may be escaped, as in JSON.
fn template(scanner: &mut Scanner<'_>) -> String {
    scanner.at += 2;
    let start = scanner.at;
    let mut depth = 1usize;
    let mut is_quoted = false;
    while let Some(byte) = scanner.peek() {
        match byte {
            b'"' => is_quoted = !is_quoted,
            b'{' if !is_quoted => depth += 1,
            b'}' if !is_quoted => depth -= 1,
            b'\n' => break,
            _ => {}
        }
        scanner.at += 1;
        if depth == 0 || depth > NESTING_LIMIT {
            break;
        }
    }
    let inside = scanner.between(start, scanner.at);
    let inside = inside.strip_suffix(b"}").unwrap_or(inside);
    String::from_utf8_lossy(inside).replace('\\', "")
}

fn meaning(expression: &str, nesting: usize) -> Piece {
    let expression = expression.trim();
    let Some((name, rest)) = expression.split_once('(') else { return Piece::Unknown };
    let Some(arguments) = rest.strip_suffix(')') else { return Piece::Unknown };
    match name.trim() {
        SEARCH => searched(&argument_of(format!("({arguments}").as_bytes())),
        "dirname" if nesting == 0 => match meaning(arguments, 1) {
            Piece::Parent(name) => Piece::DirectoryOfParent(name),
            Piece::Plain(_)
            | Piece::DirectoryOfParent(_)
            | Piece::Unit
            | Piece::Repository
            | Piece::Include
            | Piece::FromInclude
            | Piece::Unknown => Piece::Unknown,
        },
        "get_terragrunt_dir" | "get_original_terragrunt_dir" => Piece::Unit,
        "get_repo_root" | "get_path_to_repo_root" => Piece::Repository,
        "get_parent_terragrunt_dir" | "path_relative_from_include" => Piece::Include,
        "path_relative_to_include" => Piece::FromInclude,
        _ => Piece::Unknown,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prop_assert;
    use std::collections::BTreeMap;

    type Files = BTreeMap<&'static str, &'static str>;

    fn followed(files: &Files, unit: &str) -> Vec<String> {
        let entry = |path: &&str| Entry {
            kind: Kind::File,
            object: (*path).to_owned(),
            size: 0,
            path: path.as_bytes().to_vec(),
        };
        let entries: Vec<Entry> = files.keys().map(entry).collect();
        let read =
            |object: &str| Ok::<_, std::convert::Infallible>(files.get(object).unwrap().as_bytes().to_vec());
        let found = follow(&Tree(&entries), unit, read).unwrap();
        assert!(found.modules.is_subset(&found.paths));
        found
            .paths
            .iter()
            .map(|path| if found.modules.contains(path) { format!("{path}*") } else { path.clone() })
            .collect()
    }

    #[test]
    fn everything_that_a_usual_layout_rests_on_is_found() {
        let files = Files::from([
            (
                "root.hcl",
                "locals { common = yamldecode(file(\"${get_repo_root()}/common.yaml\")) }\nremote_state { backend = \"s3\" }",
            ),
            ("common.yaml", ""),
            ("README.md", ""),
            (
                "_env/app.hcl",
                "terraform { source = \"${get_repo_root()}/modules//app?ref=1\" }\ninputs = { x = file(\"${dirname(find_in_parent_folders(\"root.hcl\"))}/_env/text\") }",
            ),
            ("_env/text", ""),
            ("live/region.hcl", ""),
            (
                "live/prod/app/terragrunt.hcl",
                r#"
                include "root" { path = find_in_parent_folders("root.hcl") }
                include "env" {
                  path = "${dirname(find_in_parent_folders("root.hcl"))}/_env/app.hcl"
                }
                # include "no" { path = "../../../README.md" }
                locals { region = read_terragrunt_config(find_in_parent_folders("region.hcl")) }
                dependency "vpc" { config_path = "../vpc" }
                dependencies { paths = ["../db"] }
                generate "x" { contents = <<EOF
                  file("../../../README.md")
                EOF
                }
            "#,
            ),
            ("live/prod/vpc/terragrunt.hcl", "terraform { source = \"../../../modules/vpc\" }"),
            ("live/prod/db/terragrunt.hcl", ""),
            ("modules/app/main.tf", ""),
            ("modules/vpc/main.tf", ""),
        ]);
        assert_eq!(
            followed(&files, "live/prod/app"),
            [
                "_env/app.hcl",
                "_env/text",
                "common.yaml",
                "live/prod/db",
                "live/prod/vpc",
                "live/region.hcl",
                "modules/app*",
                "root.hcl"
            ]
        );
        assert_eq!(followed(&files, "live/prod/vpc"), ["modules/vpc*"]);
        assert!(followed(&files, "live/prod/db").is_empty());
    }

    #[test]
    fn a_path_through_the_included_file_is_found_from_both_sides() {
        let files = Files::from([
            (
                "live/terragrunt.hcl",
                "terraform { source = \"${get_parent_terragrunt_dir()}/../modules/${path_relative_to_include()}\" }",
            ),
            ("live/app/terragrunt.hcl", "include { path = find_in_parent_folders() }"),
            ("modules/app/main.tf", ""),
            ("modules/other/main.tf", ""),
        ]);
        assert_eq!(followed(&files, "live/app"), ["live/terragrunt.hcl", "modules/app*"]);
        let files = Files::from([
            (
                "app/terragrunt.hcl.json",
                r#"{"include": {"path": "${find_in_parent_folders(\"root.hcl\")}"}, "terraform": {"source": "../mod"}}"#,
            ),
            ("mod/main.tf", ""),
            (
                "root.hcl",
                "inputs = { a = \"${local.unknown}/../mod\", b = \"/etc/passwd\", c = \"../../../outside\" }",
            ),
        ]);
        assert_eq!(followed(&files, "app"), ["mod*", "root.hcl"]);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_scanned_without_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..2000)) {
            prop_assert!(scan(&bytes, 7).len() <= 7);
        }

        #[test]
        fn texts_and_templates_are_scanned_without_panic(text in "(find_in_parent_folders|get_repo_root|[a-z./]{1,3}|[{}()\"$%\\\\\n#<]){0,120}") {
            prop_assert!(scan(text.as_bytes(), 7).len() <= 7);
        }
    }
}
