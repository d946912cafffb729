//! Which paths of a repository matter to a layer: its own directory, the local modules it calls at any depth, what its
//! Terragrunt configuration rests on, and the paths its owner names. Which commit last touched them is the matter of
//! [`crate::relevance`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use api::text::{CommitId, PathGlob};

use crate::error::Error;
use crate::git::{Git, Mirror};
use crate::hcl;
use crate::objects::{Entry, Kind, Objects};
use crate::relevance::Interest;
use crate::terragrunt::{self, Tree, normal};

/// A layer that calls more local modules than this is scanned up to here; real ones call dozens.
const MODULE_LIMIT: usize = 2_000;
const FILE_LIMIT: u64 = 4 * 1024 * 1024;

/// Paths that matter to one layer at one commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// Directories, without a trailing slash, and single files; the empty one is the whole repository.
    pub(crate) directories: BTreeSet<String>,
    pub(crate) patterns: Vec<PathGlob>,
    pub(crate) found_by: FoundBy,
}

/// What a footprint was read from, and so what can change it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FoundBy {
    /// Calls of modules by path: only files within the footprint say more.
    #[default]
    Calls,
    /// Terragrunt looks for files in many places, so a file that appears outside the footprint can belong to it.
    Search,
}

impl Footprint {
    pub(crate) fn pathspecs(&self) -> Vec<String> {
        if self.directories.contains("") {
            return vec![":(top)".to_owned()];
        }
        let directories = self.directories.iter().map(|directory| format!(":(top,literal){directory}"));
        let patterns = self
            .patterns
            .iter()
            .map(|pattern| format!(":(top,glob){}", pattern.as_str().trim_end_matches('/')));
        directories.chain(patterns).collect()
    }
}

/// The files of a commit, for the footprints of many layers.
#[derive(Debug)]
pub(crate) struct Listing {
    entries: Vec<Entry>,
    configuration: BTreeMap<String, Vec<(String, String)>>,
}

impl Git {
    pub(crate) async fn listing(&self, mirror: &Mirror, commit: &CommitId) -> Result<Listing, Error> {
        let entries = self.tree(mirror, commit).await?;
        let configuration = configuration_by_directory(&entries);
        Ok(Listing { entries, configuration })
    }

    /// What matters to a layer. O(log files + module files read).
    pub(crate) async fn footprint(
        &self,
        mirror: &Mirror,
        commit: &CommitId,
        listing: &Arc<Listing>,
        interest: &Interest,
    ) -> Result<Footprint, Error> {
        let layer = interest.path.trimmed().to_owned();
        let prefix = format!("{layer}/");
        // Entries are in byte order, so what lies below a directory follows its name.
        let first = listing.entries.partition_point(|entry| entry.path.as_slice() < prefix.as_bytes());
        let below = listing.entries.get(first);
        let exists = layer.is_empty() || below.is_some_and(|entry| entry.path.starts_with(prefix.as_bytes()));
        if !exists {
            let path = interest.path.to_string();
            return Err(Error::PathMissing { path, commit: commit.to_string() });
        }
        let listing = Arc::clone(listing);
        let (directories, found_by) = self
            .with_objects(mirror, "read the modules of", move |objects| {
                let tree = Tree(&listing.entries);
                let mut start = BTreeSet::from([layer.clone()]);
                let mut matters = BTreeSet::new();
                let mut found_by = FoundBy::Calls;
                if tree.unit(&layer).is_some() {
                    let found =
                        terragrunt::follow(&tree, &layer, |object| objects.blob_prefix(object, FILE_LIMIT))?;
                    start.extend(found.modules);
                    matters = found.paths;
                    found_by = FoundBy::Search;
                }
                matters.extend(module_directories(objects, &listing.configuration, start)?);
                Ok((matters, found_by))
            })
            .await?;
        Ok(Footprint { directories, patterns: interest.trigger_paths.clone(), found_by })
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
