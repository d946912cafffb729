//! Which bundles go. A bundle is needed as long as a run names it: one that is to work on it, or one that did and that a later run may take
//! it from, as a destroy takes that of the last apply. What decisions rest on is never forgotten (`layer::retention`), so plans that wait
//! for an approval, kept applies and what they are undone with are runs that are there.
//!
//! A bundle is in the datastore before the run that names it. That is what its age is for: whoever is about to name one asks for it first,
//! which counts as a use (`api::bundle`).

use std::collections::BTreeMap;

use api::TerraformRun;
use api::bundle::{Bundles, UNUSED};
use api::text::Sha256;
use jiff::{SignedDuration, Timestamp};

/// Bundles deleted in one pass; the others go in the next ones.
const AT_ONCE: usize = 500;

/// Bundles that were not used for a while, less those that a run was seen to name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unneeded {
    /// None of them was used since. Whoever deletes one says so, and is refused if that has changed.
    pub since: Timestamp,
    bundles: BTreeMap<Sha256, (Timestamp, u64)>,
}

/// A bundle that goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    pub sha256: Sha256,
    pub size: u64,
}

impl Unneeded {
    /// Before any run was looked at. O(bundles).
    pub fn of(kept: &Bundles) -> Self {
        let unused = SignedDuration::try_from(UNUSED).unwrap_or(SignedDuration::MAX);
        let since = kept.at.checked_sub(unused).unwrap_or(Timestamp::MIN);
        let old = kept.bundles.iter().filter(|bundle| bundle.used_at <= since);
        let bundles = old.map(|bundle| (bundle.sha256.clone(), (bundle.used_at, bundle.size))).collect();
        Self { since, bundles }
    }

    /// Whether no bundle is left that could go: runs need not be looked at.
    pub fn is_empty(&self) -> bool {
        self.bundles.is_empty()
    }

    /// A run that is there keeps what it names, whatever its state. O(attempts of the run · log bundles).
    pub fn look_at(&mut self, run: &TerraformRun) {
        let attempts = run.status.iter().flat_map(|status| &status.attempts);
        for bundle in run.spec.bundle.iter().chain(attempts.filter_map(|attempt| attempt.bundle.as_ref())) {
            self.bundles.remove(bundle);
        }
    }

    /// What goes in this pass once each run was looked at, the longest unused first. O(bundles · log bundles).
    pub fn gone(self) -> Vec<Gone> {
        let mut all: Vec<_> = self.bundles.into_iter().collect();
        all.sort_by_key(|(_, (used_at, _))| *used_at);
        all.truncate(AT_ONCE);
        all.into_iter().map(|(sha256, (_, size))| Gone { sha256, size }).collect()
    }
}
