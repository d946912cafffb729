//! Bundles as the datastore tells of them: the files of a commit or of an image, kept under their digest for the runs that name them. And
//! the times by which one that nobody names any more is told from one that is about to be named.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::text::Sha256;

/// A bundle that was last used this long ago, and that no run names, goes.
pub const UNUSED: Duration = Duration::from_hours(48);
/// For how long the answer that a bundle is there is believed: whoever names it in a run later than that asks again.
pub const BELIEVED: Duration = Duration::from_hours(12);
/// A use is written down only when the last one is this old, since that costs as much as storing the bundle.
pub const RENEWED: Duration = Duration::from_hours(12);

// Whoever was told that a bundle is there has named it long before it could go. What is left is for clocks that differ, and for a process
// that stood still between the answer and the name.
const _: () = assert!(BELIEVED.as_secs() + RENEWED.as_secs() + 24 * 3600 <= UNUSED.as_secs());

/// All bundles that are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bundles {
    /// No later than the look at any of them, by the datastore's clock.
    pub at: Timestamp,
    pub bundles: Vec<Bundle>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bundle {
    pub sha256: Sha256,
    pub size: u64,
    /// When it was stored, or asked for by somebody about to name it. Off by up to [`RENEWED`].
    pub used_at: Timestamp,
}
