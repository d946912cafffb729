//! What the layer says, else its repository, else the administrator.

use std::time::Duration;

use api::layer::{DeletionPolicy, Drift, DriftMode, OnDrift, RemediationStrategy, RunHistoryPolicy};
use api::run::Mode;
use api::{TerraformLayer, TerraformRepository};

use super::Observed;
use crate::schedule;

/// `None` while the repository cannot be read or is gone: then only the layer and the administrator speak.
fn repository<'a>(seen: &Observed<'a>) -> Option<&'a TerraformRepository> {
    seen.repository.as_ref().present().copied()
}

pub(super) fn auto_apply(seen: &Observed<'_>) -> bool {
    let of = |strategy: &Option<RemediationStrategy>| strategy.as_ref().and_then(|s| s.auto_apply);
    of(&seen.layer.spec.remediation_strategy)
        .or_else(|| of(&repository(seen)?.spec.remediation_strategy))
        .unwrap_or(false)
}

pub(super) fn max_retries(seen: &Observed<'_>) -> u32 {
    let of = |strategy: &Option<RemediationStrategy>| {
        strategy.as_ref().and_then(|s| s.on_error.as_ref()).and_then(|e| e.max_retries)
    };
    of(&seen.layer.spec.remediation_strategy)
        .or_else(|| of(&repository(seen)?.spec.remediation_strategy))
        .unwrap_or(seen.settings.max_retries)
}

fn drift<T>(seen: &Observed<'_>, of: impl Fn(&Drift) -> Option<T>) -> Option<T> {
    let layer = seen.layer.spec.drift.as_ref().and_then(&of);
    layer.or_else(|| repository(seen)?.spec.drift.as_ref().and_then(&of))
}

/// With the layer's own share of jitter, so that a fleet that was applied at once is not checked at once for ever.
pub(super) fn drift_interval(seen: &Observed<'_>) -> Duration {
    let interval =
        drift(seen, |drift| drift.interval).map_or(seen.settings.drift_interval, |span| span.get());
    let uid = seen.layer.metadata.uid.as_deref().unwrap_or_default();
    schedule::jittered(interval.max(Duration::from_secs(1)), schedule::share(uid))
}

pub(super) fn on_drift(seen: &Observed<'_>) -> OnDrift {
    let default = if auto_apply(seen) { OnDrift::Revert } else { OnDrift::Report };
    drift(seen, |drift| drift.on_drift).unwrap_or(default)
}

/// How the world is looked at. Only a refreshing plan can be accepted.
pub(super) fn drift_mode(seen: &Observed<'_>) -> Mode {
    match (on_drift(seen), drift(seen, |drift| drift.mode)) {
        (OnDrift::Accept, _) | (OnDrift::Report | OnDrift::Revert, Some(DriftMode::RefreshOnly)) => {
            Mode::RefreshOnly
        }
        (OnDrift::Report | OnDrift::Revert, Some(DriftMode::Plan) | None) => Mode::Normal,
    }
}

pub(super) fn deletion(seen: &Observed<'_>) -> DeletionPolicy {
    seen.layer.spec.deletion_policy.unwrap_or(DeletionPolicy::Orphan)
}

pub(super) fn runs_kept(seen: &Observed<'_>) -> usize {
    let of = |policy: &Option<RunHistoryPolicy>| policy.as_ref().and_then(|p| p.runs);
    let kept = of(&seen.layer.spec.run_history_policy)
        .or_else(|| of(&repository(seen)?.spec.run_history_policy))
        .unwrap_or(seen.settings.runs_kept);
    usize::try_from(kept).unwrap_or(usize::MAX)
}

pub(super) fn run_bytes(seen: &Observed<'_>) -> Option<u64> {
    bytes_kept(seen.layer, repository(seen))
}

/// How much finished runs may take, where anybody sets a limit: only then their sizes have to be known.
pub fn bytes_kept(layer: &TerraformLayer, repository: Option<&TerraformRepository>) -> Option<u64> {
    let of = |policy: &Option<RunHistoryPolicy>| policy.as_ref().and_then(|p| p.max_bytes);
    of(&layer.spec.run_history_policy)
        .or_else(|| of(&repository?.spec.run_history_policy))
        .map(|bytes| u64::try_from(bytes).unwrap_or_default())
}

pub(super) fn run_age(seen: &Observed<'_>) -> Option<Duration> {
    let of = |policy: &Option<RunHistoryPolicy>| policy.as_ref().and_then(|p| p.max_age);
    of(&seen.layer.spec.run_history_policy)
        .or_else(|| of(&repository(seen)?.spec.run_history_policy))
        .map(|span| span.get())
}
