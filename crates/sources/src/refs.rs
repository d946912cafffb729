//! What `ls-remote` says: branches, tags and the default branch, read by a total parser.

use std::collections::BTreeMap;

use api::text::{CommitId, RefName};

/// The heads of a repository at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refs {
    /// The branch that HEAD points to.
    pub default_branch: Option<String>,
    pub branches: BTreeMap<String, CommitId>,
    /// Tags, each with the commit it leads to (an annotated tag is followed).
    pub tags: BTreeMap<String, CommitId>,
}

impl Refs {
    /// Lines that are not understood are left out: a server may advertise more than we ask for. O(lines · log lines).
    pub fn parse(output: &[u8]) -> Self {
        let mut refs = Self::default();
        for line in output.split(|byte| *byte == b'\n') {
            let Ok(line) = std::str::from_utf8(line) else { continue };
            let Some((value, name)) = line.split_once('\t') else { continue };
            if let Some(target) = value.strip_prefix("ref: ") {
                if name == "HEAD" {
                    refs.default_branch = target.strip_prefix("refs/heads/").map(str::to_owned);
                }
                continue;
            }
            let Ok(commit) = CommitId::new(value) else { continue };
            if let Some(branch) = name.strip_prefix("refs/heads/") {
                refs.branches.insert(branch.to_owned(), commit);
            } else if let Some(tag) = name.strip_prefix("refs/tags/") {
                match tag.strip_suffix("^{}") {
                    // The peeled line is the commit; it follows the tag object's own line.
                    Some(peeled) => drop(refs.tags.insert(peeled.to_owned(), commit)),
                    None => drop(refs.tags.entry(tag.to_owned()).or_insert(commit)),
                }
            }
        }
        refs
    }

    /// The commit that a layer's `branch` means: a branch by its bare name, anything by its full ref.
    pub fn commit_of(&self, name: &RefName) -> Option<&CommitId> {
        let full = name.full();
        if let Some(branch) = full.strip_prefix("refs/heads/") {
            self.branches.get(branch)
        } else if let Some(tag) = full.strip_prefix("refs/tags/") {
            self.tags.get(tag)
        } else {
            None
        }
    }

    /// Nothing was ever pushed.
    pub fn is_empty(&self) -> bool {
        self.branches.is_empty() && self.tags.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn reads_branches_tags_and_the_default() {
        let (a, b, c) = ("a".repeat(40), "b".repeat(40), "c".repeat(40));
        let output = format!(
            "ref: refs/heads/main\tHEAD\n{a}\tHEAD\n{a}\trefs/heads/main\n{b}\trefs/heads/x/y\n\
             {c}\trefs/tags/v1\n{b}\trefs/tags/v1^{{}}\n{c}\trefs/tags/light\n{c}\trefs/pull/1/head\njunk\n"
        );
        let refs = Refs::parse(output.as_bytes());
        assert_eq!(refs.default_branch.as_deref(), Some("main"));
        assert_eq!(refs.commit_of(&"main".parse().unwrap()).unwrap().as_str(), a);
        assert_eq!(refs.commit_of(&"x/y".parse().unwrap()).unwrap().as_str(), b);
        assert_eq!(refs.commit_of(&"refs/tags/v1".parse().unwrap()).unwrap().as_str(), b);
        assert_eq!(refs.commit_of(&"refs/tags/light".parse().unwrap()).unwrap().as_str(), c);
        assert_eq!(refs.commit_of(&"refs/pull/1/head".parse().unwrap()), None);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..500)) {
            let refs = Refs::parse(&bytes);
            let lines = bytes.split(|byte| *byte == b'\n').count();
            proptest::prop_assert!(refs.branches.len() + refs.tags.len() <= lines);
        }
    }
}
