//! When a repository is looked at, and what its status says about what was seen.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::condition::{self, Truth};
use api::repository::{BranchStatus, LayerCounts, RepositoryState, SyncStatus};
use api::text::{CommitId, RefName};
use api::{TerraformLayer, TerraformRepository, TerraformRepositoryStatus, annotation};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{Settings, Wake, later, schedule, webhook};

/// What one look at the remote found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    pub at: Timestamp,
    /// Or why the remote could not be read.
    pub found: Result<Heads, String>,
    /// The newest wish of a webhook that a look which succeeded was begun for.
    pub answers: Option<Timestamp>,
    /// The value of the sync annotation that this look was begun for.
    pub asked: Option<String>,
}

/// Where the branches and tags of a repository stand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heads {
    /// The branch that the repository's HEAD points to.
    pub default_branch: Option<RefName>,
    /// Commit by full ref.
    pub refs: BTreeMap<String, CommitId>,
}

#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    pub now: Timestamp,
    pub repository: &'a TerraformRepository,
    /// The branches and tags that layers follow.
    pub wanted: &'a BTreeSet<RefName>,
    /// How the layers that use it are doing now.
    pub layers: LayerCounts,
    /// The newest look since this process started.
    pub look: Option<&'a Look>,
    /// A look is under way.
    pub looking: bool,
    /// Spreads the polls of many repositories: a share of the interval, from 0 to 1.
    pub jitter: f64,
    pub settings: &'a Settings,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub effects: Vec<Effect>,
    pub status: TerraformRepositoryStatus,
    pub wake: Wake,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Ask the remote for its refs, once for all branches. It answers this wish of a webhook, and this value of the sync annotation, if
    /// there is one.
    Look { answers: Option<Timestamp>, asked: Option<String> },
}

pub fn decide(seen: &Observed<'_>) -> Decision {
    let spec = &seen.repository.spec;
    let jittered = schedule::jittered(interval(seen), seen.jitter);
    let wish = webhook::wish(seen.repository);
    let asked = asked(seen);
    let due = seen.look.map_or(seen.now, |look| {
        // A look that is further ahead than any poll was made by a clock that was wrong, and holds nobody up.
        let is_ahead = look.at > later(seen.now, jittered);
        let polled = if is_ahead { seen.now } else { later(look.at, jittered) };
        let due = webhook::due(look, wish, seen.now).map_or(polled, |hinted| hinted.min(polled));
        asked.as_ref().map_or(due, |_| seen.now)
    });

    let (effects, wake) = if spec.suspend {
        (Vec::new(), Wake::OnChange)
    } else if seen.looking {
        // The end of the look wakes us.
        (Vec::new(), Wake::OnChange)
    } else if due <= seen.now {
        (vec![Effect::Look { answers: webhook::answerable(wish, seen.now), asked }], Wake::OnChange)
    } else {
        (Vec::new(), Wake::At(due))
    };
    let mut status = status(seen);
    // Layers change all the time. They are counted once a poll, so that a round of one of them costs no write here.
    if !effects.is_empty() {
        status.layers = Some(seen.layers);
    }
    Decision { effects, status, wake }
}

/// The wish of a person for a look, as long as no look has answered it. One that failed answers it too: the status says why, and the poll
/// goes on.
fn asked(seen: &Observed<'_>) -> Option<String> {
    let wish = seen.repository.metadata.annotations.as_ref()?.get(annotation::SYNC)?;
    let told = seen.repository.status.as_ref().and_then(|status| status.last_sync.as_ref());
    let found = seen.look.and_then(|look| look.asked.as_ref());
    (told != Some(wish) && found != Some(wish)).then(|| wish.clone())
}

/// How these layers are doing. O(layers).
pub fn count<'a>(layers: impl IntoIterator<Item = &'a TerraformLayer>) -> LayerCounts {
    let mut counts = LayerCounts::default();
    for layer in layers {
        let status = layer.status.as_ref();
        let holds = |kind| {
            status
                .and_then(|status| condition::find(&status.conditions, kind))
                .is_some_and(|condition| condition.status == Truth::True.as_str())
        };
        let failed = holds("Stalled") || status.is_some_and(|status| status.consecutive_failures > 0);
        counts.total += 1;
        counts.ready += u32::from(holds("Ready"));
        counts.drifted += u32::from(holds("Drifted"));
        counts.failed += u32::from(failed);
    }
    counts
}

fn interval(seen: &Observed<'_>) -> Duration {
    let wished = seen.repository.spec.poll_interval.map(|span| span.get());
    wished.unwrap_or(seen.settings.poll_interval).max(Duration::from_secs(1))
}

/// Looks that may fail in a row before what is known counts as too old.
const MISSED_LOOKS: u32 = 2;

/// Whether nothing was seen for longer than the poll interval explains; nothing to say before the first look of this process.
fn too_old(seen: &Observed<'_>, before: &TerraformRepositoryStatus) -> Option<bool> {
    match seen.look? {
        Look { found: Ok(_), .. } => Some(false),
        Look { found: Err(_), at, .. } => {
            let failing = condition::find(&before.conditions, "HasLastSyncFailed")
                .filter(|condition| condition.status == Truth::True.as_str())
                .map_or(*at, |condition| condition.last_transition_time.0);
            Some(later(failing, interval(seen).saturating_mul(MISSED_LOOKS)) <= *at)
        }
    }
}

fn status(seen: &Observed<'_>) -> TerraformRepositoryStatus {
    let before = seen.repository.status.clone().unwrap_or_default();
    let generation = seen.repository.metadata.generation;
    let mut status = TerraformRepositoryStatus { observed_generation: generation, ..before.clone() };
    if let Some(Look { asked: Some(asked), .. }) = seen.look {
        status.last_sync = Some(asked.clone());
    }
    status.branches = match seen.look {
        None => before.branches.clone(),
        // O(wanted · known branches); both are the branches layers of this one repository follow.
        Some(look) => seen.wanted.iter().map(|name| branch(name, look, &before.branches)).collect(),
    };
    status.default_branch = match seen.look {
        Some(Look { found: Ok(heads), .. }) => heads.default_branch.clone(),
        // What was seen before counts as long as nobody named another repository.
        Some(Look { found: Err(_), .. }) | None => {
            before.default_branch.clone().filter(|_| before.observed_generation == generation)
        }
    };
    status.state = Some(match seen.look {
        Some(Look { found: Ok(_), .. }) => RepositoryState::Synced,
        Some(Look { found: Err(_), .. }) | None => before.state.unwrap_or(RepositoryState::SyncNeeded),
    });

    let missing: Vec<&str> = status
        .branches
        .iter()
        .filter(|b| b.last_sync_status == SyncStatus::Failed)
        .map(|b| b.name.as_str())
        .collect();
    let (truth, reason, message) = match seen.look {
        _ if seen.repository.spec.suspend => {
            (Truth::False, "Suspended", "suspended; set spec.suspend to false to go on".to_owned())
        }
        None => (Truth::Unknown, "NotLooked", "not looked at yet".to_owned()),
        Some(Look { found: Err(message), .. }) => (Truth::False, "Unreadable", message.clone()),
        Some(Look { found: Ok(_), .. }) if !missing.is_empty() => {
            (Truth::False, "BranchMissing", format!("the repository has no {}", missing.join(", ")))
        }
        Some(Look { found: Ok(heads), .. }) if heads.refs.is_empty() => {
            (Truth::False, "Empty", "the repository has no commits yet".to_owned())
        }
        Some(Look { found: Ok(_), .. }) => {
            (Truth::True, "Synced", format!("{} followed by layers", branches(status.branches.len())))
        }
    };
    let failed = matches!(seen.look, Some(Look { found: Err(_), .. }));
    let mut set = |kind, truth, reason: &str, message: &str| {
        condition::set(&mut status.conditions, kind, truth, reason, message, generation, seen.now);
    };
    set("Ready", truth, reason, &message);
    if seen.look.is_some() {
        let word = if failed { "Unreadable" } else { "Synced" };
        set(
            "HasLastSyncFailed",
            Truth::from(failed),
            word,
            if failed { &message } else { "the last look succeeded" },
        );
    }
    if let Some(too_old) = too_old(seen, &before) {
        let (word, message) = if too_old {
            ("LooksFail", message.as_str())
        } else {
            ("Recent", "looked at within the poll interval")
        };
        set("IsLastSyncTooOld", too_old.into(), word, message);
    }
    // Before the first look there is work to do; a repository that cannot be used needs a change from outside.
    let reconciling = truth == Truth::Unknown;
    let stalled = truth == Truth::False && !seen.repository.spec.suspend;
    for (kind, holds) in [("Reconciling", reconciling), ("Stalled", stalled)] {
        if holds {
            let message = message.as_str();
            condition::set(&mut status.conditions, kind, Truth::True, reason, message, generation, seen.now);
        } else {
            condition::clear(&mut status.conditions, kind);
        }
    }
    status
}

fn branches(count: usize) -> String {
    if count == 1 { "1 branch".to_owned() } else { format!("{count} branches") }
}

/// `lastSyncDate` moves only when commit or result do, so that a poll that finds nothing new writes nothing.
fn branch(name: &RefName, look: &Look, before: &[BranchStatus]) -> BranchStatus {
    let known = before.iter().find(|b| b.name == name.as_str());
    let (latest_rev, last_sync_status, message) = match &look.found {
        Ok(heads) => match heads.refs.get(&name.full()) {
            Some(commit) => (Some(commit.clone()), SyncStatus::Success, None),
            None => (
                known.and_then(|b| b.latest_rev.clone()),
                SyncStatus::Failed,
                Some("no such branch or tag".to_owned()),
            ),
        },
        Err(message) => (known.and_then(|b| b.latest_rev.clone()), SyncStatus::Failed, Some(message.clone())),
    };
    let next =
        BranchStatus { name: name.to_string(), latest_rev, last_sync_date: None, last_sync_status, message };
    let unchanged = known.is_some_and(|b| BranchStatus { last_sync_date: None, ..b.clone() } == next);
    let date = if unchanged { known.and_then(|b| b.last_sync_date.clone()) } else { Some(Time(look.at)) };
    BranchStatus { last_sync_date: date, ..next }
}
