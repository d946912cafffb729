//! What a delivery of a webhook leads to. It is a hint and nothing more: the remote is asked, and what it says counts. So a delivery that
//! comes twice, late or in another order than it was sent ends where one delivery ends.
//!
//! Two write here: the HTTP service notes a wish in the repository's status, the repository controller answers it by a look. The wish is
//! known by the time after which it may be answered, which only grows.

use std::time::Duration;

use api::TerraformRepository;
use api::repository::{SyncStatus, WebhookStatus};
use api::text::CommitId;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::later;
use crate::repository::Look;

/// Deliveries lead to no more than one write and one look in this time, whoever sends them and however often.
pub const SPACING: Duration = Duration::from_secs(10);
/// How far the clocks of the HTTP service and of the controllers may be apart without a delivery being missed.
const SKEW: Duration = Duration::from_secs(3);
/// No wish that clocks as good as that make is further away.
const FURTHEST: Duration = SPACING.saturating_add(SKEW.saturating_mul(2));
/// A remote that could not be read is asked again for a webhook after this, where the poll would take longer.
const AGAIN: Duration = Duration::from_secs(60);

/// What a delivery that was believed says: where branches and tags point now, by full ref. Nothing where one is gone.
#[derive(Debug, Clone, Copy)]
pub struct Delivery<'a> {
    pub host: &'a str,
    pub heads: &'a [(String, Option<CommitId>)],
}

/// What is written down of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Noted {
    /// All that it says is in the status already.
    Known,
    /// A look that has not begun yet will see it.
    Covered,
    /// This is to be written before the delivery is answered.
    Record(WebhookStatus),
}

/// O(refs of the delivery · branches that layers follow).
pub fn note(repository: &TerraformRepository, delivery: &Delivery<'_>, now: Timestamp) -> Noted {
    let status = repository.status.as_ref();
    let known = status.map_or(&[][..], |status| status.branches.as_slice());
    let is_known = |(reference, commit): &(String, Option<CommitId>)| {
        // Branches are known by their short name, tags by their full one.
        let name = reference.strip_prefix("refs/heads/").unwrap_or(reference);
        known.iter().any(|branch| {
            branch.name == name
                && branch.last_sync_status == SyncStatus::Success
                && commit.is_some()
                && branch.latest_rev == *commit
        })
    };
    if !delivery.heads.is_empty() && delivery.heads.iter().all(is_known) {
        return Noted::Known;
    }
    let before = wish(repository);
    // A wish that is further away than any of ours was made by a clock that was wrong, and holds nobody up.
    let before = before.filter(|before| *before <= later(now, FURTHEST));
    let look_after = match before {
        Some(before) if before > later(now, SKEW) => return Noted::Covered,
        Some(before) => later(before, SPACING).max(now),
        None => now,
    };
    Noted::Record(WebhookStatus {
        received_at: Time(now),
        look_after: Time(look_after),
        host: delivery.host.to_owned(),
    })
}

/// The wish that the repository's status holds.
pub(crate) fn wish(repository: &TerraformRepository) -> Option<Timestamp> {
    Some(repository.status.as_ref()?.webhook.as_ref()?.look_after.0)
}

/// The wish, if a look that begins now answers it: deliveries may still be added to one whose time has not come. Where the clock that
/// made it is ahead of ours by far, now is better than then.
pub(crate) fn answerable(wish: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    wish.filter(|wish| *wish <= now || *wish > later(now, FURTHEST))
}

/// When the remote is to be asked for a wish that no look has answered yet.
pub(crate) fn due(look: &Look, wish: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    let wish = wish.filter(|wish| look.answers != Some(*wish))?;
    let at = answerable(Some(wish), now).map_or(wish, |wish| wish.min(now));
    Some(if look.found.is_ok() { at } else { later(look.at, AGAIN).max(at) })
}
