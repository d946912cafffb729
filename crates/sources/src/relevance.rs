//! Which commit last mattered to a layer, for thousands of layers of one branch at once.
//!
//! The answer is the newest commit of the branch's own line (first parents; a merge counts as what it brought) that touches the
//! layer's footprint. It follows from the head alone, so it is the same whether it was found step by step or all at once. A new
//! head costs one look at what its commits changed: only layers whose footprint they touch are looked at again, because nothing
//! else can have changed their footprint.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use api::text::{CommitId, LayerPath, PathGlob};
use tokio::sync::Mutex;

use crate::error::Error;
use crate::footprint::{Footprint, FoundBy, Listing};
use crate::git::{Git, Mirror};
use crate::glob;

/// Commits whose changes are kept. Layers that were last touched before them are asked for one by one.
const RECENT: usize = 1_000;
/// Paths whose last change is kept; with more, everything is found anew.
const PATHS: usize = 500_000;
/// Heads that were left behind, and may still be asked for by who has not heard of the newest.
const OLDER: usize = 16;
/// A layer that did not ask for so many heads is forgotten: it is gone, or will be looked at again.
const FORGOTTEN: u64 = 64;

/// What a layer rests on, as its owner says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Interest {
    pub path: LayerPath,
    pub trigger_paths: Vec<PathGlob>,
}

/// What is known of one branch of one repository, as one tenant sees it. A cache: an empty one gives the same answers.
#[derive(Debug, Default)]
pub struct Relevance {
    index: Mutex<Index>,
}

#[derive(Debug, Default)]
struct Index {
    head: Option<CommitId>,
    older: VecDeque<CommitId>,
    recent: Arc<Recent>,
    listing: Option<Arc<Listing>>,
    known: HashMap<Interest, Known>,
    advances: u64,
}

#[derive(Debug)]
struct Known {
    footprint: Footprint,
    commit: CommitId,
    asked: u64,
}

/// A commit of the branch's line, and what it changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) commit: CommitId,
    pub(crate) first_parent: Option<CommitId>,
    pub(crate) paths: Vec<String>,
}

impl Relevance {
    /// The answer, if it is known already.
    pub async fn known(&self, head: &CommitId, interest: &Interest) -> Option<CommitId> {
        let mut index = self.index.lock().await;
        if index.head.as_ref() == Some(head) { index.find(interest) } else { None }
    }
}

impl Index {
    fn find(&mut self, interest: &Interest) -> Option<CommitId> {
        let known = self.known.get_mut(interest)?;
        known.asked = self.advances;
        Some(known.commit.clone())
    }
}

impl Git {
    /// The last commit, from `head` back, that touches what the layer rests on; a deleted file counts.
    pub async fn relevant(
        &self,
        mirror: &Mirror,
        head: &CommitId,
        interest: &Interest,
        relevance: &Relevance,
    ) -> Result<CommitId, Error> {
        let (listing, recent) = {
            let mut index = relevance.index.lock().await;
            if index.older.contains(head) {
                // Going back would cost everybody else what they know.
                drop(index);
                return Box::pin(self.relevant(mirror, head, interest, &Relevance::default())).await;
            }
            if index.head.as_ref() != Some(head) {
                self.advance(mirror, head, &mut index).await?;
            }
            if let Some(commit) = index.find(interest) {
                return Ok(commit);
            }
            let listing = match &index.listing {
                Some(listing) => Arc::clone(listing),
                None => Arc::clone(index.listing.insert(Arc::new(self.listing(mirror, head).await?))),
            };
            (listing, Arc::clone(&index.recent))
        };
        let footprint = self.footprint(mirror, head, &listing, interest).await?;
        let commit = match recent.newest(&footprint) {
            Some(commit) => commit.clone(),
            // A footprint that exists at `head` was touched by some commit before it, unless history is cut off.
            None => self
                .last_commit_touching(mirror, head, &footprint.pathspecs())
                .await?
                .unwrap_or_else(|| head.clone()),
        };
        let mut index = relevance.index.lock().await;
        if index.head.as_ref() == Some(head) {
            let asked = index.advances;
            index.known.insert(interest.clone(), Known { footprint, commit: commit.clone(), asked });
        }
        Ok(commit)
    }

    /// Whether all that was on the branch at `before` still is at `head`. O(commits between them).
    pub async fn goes_on(&self, mirror: &Mirror, before: &CommitId, head: &CommitId) -> Result<bool, Error> {
        Ok(self.line(mirror, before, Some(head), 1).await?.is_empty())
    }

    /// Brings what is known to a new head. O(changed paths · their depth + known layers · their footprint).
    async fn advance(&self, mirror: &Mirror, head: &CommitId, index: &mut Index) -> Result<(), Error> {
        let news = match &index.head {
            Some(old) => {
                let steps = self.line(mirror, head, Some(old), RECENT).await?;
                let goes_on = steps.last().is_some_and(|oldest| oldest.first_parent.as_ref() == Some(old));
                (goes_on && index.recent.files.len() < PATHS).then_some(steps)
            }
            None => None,
        };
        match news {
            Some(steps) => {
                let news = Recent::of(&steps, index.recent.next);
                let advances = index.advances;
                index.known.retain(|_, known| {
                    known.asked + FORGOTTEN >= advances && !news.changes(&known.footprint)
                });
                Arc::make_mut(&mut index.recent).add(news);
            }
            // The first look, a branch that was moved elsewhere, or more news than is worth following.
            None => {
                index.known.clear();
                index.recent = Arc::new(Recent::of(&self.line(mirror, head, None, RECENT).await?, 0));
            }
        }
        index.listing = None;
        index.advances += 1;
        if let Some(old) = index.head.replace(head.clone()) {
            index.older.push_front(old);
            index.older.truncate(OLDER);
        }
        // A branch that comes back to where it was is at its newest head again.
        index.older.retain(|older| older != head);
        Ok(())
    }
}

/// The last change of each path among the commits that were looked at.
#[derive(Debug, Clone, Default)]
struct Recent {
    files: HashMap<String, Change>,
    /// Something below the directory changed.
    directories: HashMap<String, Change>,
    next: u64,
}

#[derive(Debug, Clone)]
struct Change {
    /// Newer changes have higher numbers.
    order: u64,
    commit: CommitId,
}

impl Recent {
    /// Of commits, the newest first, that are all newer than those numbered below `first`. O(paths · their depth).
    fn of(steps: &[Step], first: u64) -> Self {
        let mut recent = Self { next: first, ..Self::default() };
        for step in steps.iter().rev() {
            let change = Change { order: recent.next, commit: step.commit.clone() };
            recent.next += 1;
            for path in &step.paths {
                let mut above = path.as_str();
                while let Some((directory, _)) = above.rsplit_once('/') {
                    recent.directories.insert(directory.to_owned(), change.clone());
                    above = directory;
                }
                recent.directories.insert(String::new(), change.clone());
                recent.files.insert(path.clone(), change.clone());
            }
        }
        recent
    }

    fn add(&mut self, newer: Self) {
        self.files.extend(newer.files);
        self.directories.extend(newer.directories);
        self.next = newer.next;
    }

    /// Whether a footprint, or what it was read from, can be another one now.
    fn changes(&self, footprint: &Footprint) -> bool {
        let moved = match footprint.found_by {
            FoundBy::Calls => false,
            FoundBy::Search => self.files.keys().any(|path| path.ends_with(".hcl")),
        };
        moved || self.newest(footprint).is_some()
    }

    /// The newest commit that touches a footprint. O(its directories), and O(files that changed) for each of its patterns.
    fn newest(&self, footprint: &Footprint) -> Option<&CommitId> {
        let named = footprint
            .directories
            .iter()
            .filter_map(|path| self.directories.get(path).or_else(|| self.files.get(path)));
        let matched = footprint.patterns.iter().flat_map(|pattern| {
            self.files
                .iter()
                .filter(|(path, _)| glob::covers(pattern.as_str(), path))
                .map(|(_, change)| change)
        });
        named.chain(matched).max_by_key(|change| change.order).map(|change| &change.commit)
    }
}

/// Reads `log -z --name-only --format=%x02%H %P`: a record for each commit, then its paths, the first after a line break.
pub(crate) fn parse_line(output: &[u8]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for record in output.split(|byte| *byte == 0).filter(|record| !record.is_empty()) {
        if let Some(step) = record.strip_prefix(b"\x02").and_then(parse_head) {
            steps.push(step);
        } else if let Some(step) = steps.last_mut() {
            let path =
                if step.paths.is_empty() { record.strip_prefix(b"\n").unwrap_or(record) } else { record };
            step.paths.push(String::from_utf8_lossy(path).into_owned());
        }
    }
    steps
}

fn parse_head(record: &[u8]) -> Option<Step> {
    let mut ids = std::str::from_utf8(record).ok()?.split_ascii_whitespace().map(CommitId::new);
    let commit = ids.next()?.ok()?;
    let first_parent = ids.next().transpose().ok()?;
    Some(Step { commit, first_parent, paths: Vec::new() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn id(letter: char) -> CommitId {
        CommitId::new(letter.to_string().repeat(40)).unwrap()
    }

    fn step(letter: char, paths: &[&str]) -> Step {
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        Step { commit: id(letter), first_parent: None, paths }
    }

    fn footprint(directories: &[&str], patterns: &[&str]) -> Footprint {
        Footprint {
            directories: directories.iter().map(|path| (*path).to_owned()).collect(),
            patterns: patterns.iter().map(|pattern| PathGlob::new(*pattern).unwrap()).collect(),
            found_by: FoundBy::Calls,
        }
    }

    #[test]
    fn a_history_is_read_with_merges_empty_commits_and_the_root() {
        let (a, b, c) = (id('a'), id('b'), id('c'));
        let output = format!("\x02{c} {b} {a}\0\nx/y\0z\0\x02{b} {a}\0\x02{a} \0\nx/y\0");
        let steps = parse_line(output.as_bytes());
        assert_eq!(
            steps,
            [
                Step {
                    commit: c,
                    first_parent: Some(b.clone()),
                    paths: vec!["x/y".to_owned(), "z".to_owned()]
                },
                Step { commit: b, first_parent: Some(a.clone()), paths: Vec::new() },
                Step { commit: a, first_parent: None, paths: vec!["x/y".to_owned()] },
            ]
        );
    }

    #[test]
    fn the_newest_change_of_a_footprint_wins() {
        let mut recent =
            Recent::of(&[step('b', &["net/main.tf"]), step('a', &["app/main.tf", "vars/x.json"])], 0);
        let app = footprint(&["app"], &["vars/*.json"]);
        assert_eq!(recent.newest(&app), Some(&id('a')));
        assert_eq!(recent.newest(&footprint(&["app", "net"], &[])), Some(&id('b')));
        assert_eq!(recent.newest(&footprint(&[""], &[])), Some(&id('b')));
        assert_eq!(recent.newest(&footprint(&["net/main.tf"], &[])), Some(&id('b')), "a single file");
        assert_eq!(recent.newest(&footprint(&["ap"], &[])), None);
        recent.add(Recent::of(&[step('c', &["vars/y.json"])], recent.next));
        assert_eq!(recent.newest(&app), Some(&id('c')));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            let records = bytes.split(|byte| *byte == 0).count();
            let steps = parse_line(&bytes);
            proptest::prop_assert!(steps.iter().map(|step| 1 + step.paths.len()).sum::<usize>() <= records);
        }
    }
}
