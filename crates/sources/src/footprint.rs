//! Which paths of a repository matter to a layer: its own directory, the local modules it calls at any depth, what its
//! Terragrunt configuration rests on, and the extra paths its owner names. From that follows the last commit that is relevant to it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use api::text::{CommitId, LayerPath};

use crate::error::Error;
use crate::git::{Git, Mirror};
use crate::hcl;
use crate::objects::{Entry, Kind, Objects};
use crate::terragrunt::{self, Tree, normal};

/// A layer that calls more local modules than this is scanned up to here; real ones call dozens.
const MODULE_LIMIT: usize = 2_000;
const FILE_LIMIT: u64 = 4 * 1024 * 1024;

/// Paths that matter to one layer at one commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Directories, without a trailing slash, and single files; the empty one is the whole repository.
    pub directories: BTreeSet<String>,
    /// Globs of git's kind (`**` crosses directories), and plain paths.
    pub patterns: Vec<String>,
}

impl Footprint {
    fn pathspecs(&self) -> Vec<String> {
        if self.directories.contains("") {
            return Vec::new();
        }
        let directories = self.directories.iter().map(|directory| format!(":(top,literal){directory}"));
        directories.chain(self.patterns.iter().map(|pattern| format!(":(top,glob){pattern}"))).collect()
    }
}

impl Git {
    /// The last commit, from `commit` back, that touches the layer; a deleted file counts.
    pub async fn relevant(
        &self,
        mirror: &Mirror,
        commit: &CommitId,
        path: &LayerPath,
        extra: &[String],
    ) -> Result<CommitId, Error> {
        let footprint = self.footprint(mirror, commit, path, extra).await?;
        let found = self.last_commit_touching(mirror, commit, &footprint.pathspecs()).await?;
        // A footprint that exists at `commit` was touched by some commit before it, unless history is cut off.
        Ok(found.unwrap_or_else(|| commit.clone()))
    }

    /// What matters to a layer. The cost grows with the files of the commit and the module files read.
    pub async fn footprint(
        &self,
        mirror: &Mirror,
        commit: &CommitId,
        path: &LayerPath,
        extra: &[String],
    ) -> Result<Footprint, Error> {
        let entries = self.tree(mirror, commit).await?;
        let layer = path.trimmed().to_owned();
        let prefix = format!("{layer}/");
        let exists =
            entries.iter().any(|entry| layer.is_empty() || entry.path.starts_with(prefix.as_bytes()));
        if !exists {
            return Err(Error::PathMissing { path: path.to_string(), commit: commit.to_string() });
        }
        let configuration = configuration_by_directory(&entries);
        let directories = self
            .with_objects(mirror, "read the modules of", move |objects| {
                let tree = Tree(&entries);
                let mut start = BTreeSet::from([layer.clone()]);
                let mut matters = BTreeSet::new();
                if tree.unit(&layer).is_some() {
                    let found =
                        terragrunt::follow(&tree, &layer, |object| objects.blob_prefix(object, FILE_LIMIT))?;
                    start.extend(found.modules);
                    matters = found.paths;
                }
                matters.extend(module_directories(objects, &configuration, start)?);
                Ok(matters)
            })
            .await?;
        Ok(Footprint { directories, patterns: extra.to_vec() })
    }
}

/// Configuration files of each directory, by name and object. O(files · log files).
fn configuration_by_directory(entries: &[Entry]) -> BTreeMap<String, Vec<(String, String)>> {
    let mut by_directory: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for entry in entries {
        let Ok(path) = std::str::from_utf8(&entry.path) else { continue };
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        match entry.kind {
            Kind::File | Kind::Executable if hcl::is_configuration(name) => by_directory
                .entry(directory.to_owned())
                .or_default()
                .push((name.to_owned(), entry.object.clone())),
            Kind::File | Kind::Executable | Kind::Symlink | Kind::Submodule => {}
        }
    }
    by_directory
}

/// Walks the calls of local modules breadth first; each directory is read once, so cycles end.
fn module_directories(
    objects: &mut Objects,
    configuration: &BTreeMap<String, Vec<(String, String)>>,
    start: BTreeSet<String>,
) -> Result<BTreeSet<String>, Error> {
    let mut queue: VecDeque<String> = start.iter().cloned().collect();
    let mut seen = start;
    while let Some(directory) = queue.pop_front() {
        for (name, object) in configuration.get(&directory).into_iter().flatten() {
            let content = objects.blob_prefix(object, FILE_LIMIT)?;
            for source in hcl::outline(name, &content).module_sources {
                let Some(module) = local_module(&directory, &source) else { continue };
                if seen.len() < MODULE_LIMIT && seen.insert(module.clone()) {
                    queue.push_back(module);
                }
            }
        }
    }
    Ok(seen)
}

/// The directory a local module source leads to, or nothing for a remote source or one that leaves the repository.
fn local_module(directory: &str, source: &str) -> Option<String> {
    if !source.starts_with("./") && !source.starts_with("../") && source != "." && source != ".." {
        return None;
    }
    normal(directory, source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_sources_lead_to_directories_and_others_nowhere() {
        let table = [
            ("envs/prod", "../../modules/net", Some("modules/net")),
            ("envs/prod", "./sub//inner", Some("envs/prod/sub/inner")),
            ("", "./a", Some("a")),
            ("a", "..", Some("")),
            ("a", "../../outside", None),
            ("a", "hashicorp/consul/aws", None),
            ("a", "git::https://host/x.git", None),
        ];
        for (directory, source, expected) in table {
            assert_eq!(local_module(directory, source).as_deref(), expected, "{directory} {source}");
        }
    }
}
