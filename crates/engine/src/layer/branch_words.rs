//! What a layer says about its branch or tag, where that is not what it was: rewritten, or gone.

use api::condition::{self, Truth};
use api::repository::SyncStatus;
use api::text::CommitId;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{Observed, Read};

/// Whether the branch holds all that it held; only a branch that does not is worth a word.
pub const BRANCH_INTACT: &str = "IsBranchIntact";
const GONE: &str = "BranchGone";
const REWRITTEN: &str = "HistoryRewritten";
/// What the full name of a tag begins with; branches are known by their short one.
const TAGS: &str = "refs/tags/";

/// `before` is where the branch was when the layer was last told of. A rewritten history is told until the branch goes on from there.
pub(super) fn tell(seen: &Observed<'_>, before: Option<&CommitId>, conditions: &mut Vec<Condition>) {
    let (Some(branch), None, Read::Present(Ok(source))) = (&seen.layer.spec.branch, seen.image, &seen.source)
    else {
        return;
    };
    let mut set = |reason: &str, words: &str| {
        let generation = seen.layer.metadata.generation;
        condition::set(conditions, BRANCH_INTACT, Truth::False, reason, words, generation, seen.now);
    };
    let tag = branch.as_str().strip_prefix(TAGS);
    if is_gone(seen, branch.as_str()) {
        let followed = tag.map_or_else(|| format!("branch {branch}"), |tag| format!("tag {tag}"));
        let words = format!(
            "{followed} is not in the repository any more; what is applied stays, and nothing new comes until it is back or spec.branch names another"
        );
        set(GONE, &words);
        return;
    }
    if let Some(left) = &source.left {
        let (left, head) = (left.short(), source.head.short());
        let words = match tag {
            Some(tag) => format!(
                "tag {tag} was moved: it was at {left}, and now it is at {head}, which that is no part of"
            ),
            None => format!(
                "the history of branch {branch} was rewritten: {left} was its newest commit and is no part of it any more, now it is at {head}"
            ),
        };
        set(REWRITTEN, &words);
        return;
    }
    let is_told = condition::find(conditions, BRANCH_INTACT).is_some_and(|told| told.reason == REWRITTEN);
    if !is_told || before != Some(&source.head) {
        condition::clear(conditions, BRANCH_INTACT);
    }
}

/// The repository was read, and the branch was not there.
fn is_gone(seen: &Observed<'_>, branch: &str) -> bool {
    let Read::Present(repository) = seen.repository else { return false };
    let Some(status) = &repository.status else { return false };
    let is_missing = |known: &api::repository::BranchStatus| {
        known.name == branch && known.last_sync_status == SyncStatus::Failed
    };
    !condition::is_true(&status.conditions, "HasLastSyncFailed") && status.branches.iter().any(is_missing)
}
