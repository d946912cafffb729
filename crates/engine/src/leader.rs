//! Which of several controllers acts: the holder of one Lease, or of the Lease of a shard (see [`crate::shard`]). Its `leaseTransitions` counts the terms, so a later term always has
//! the higher number. Time on another machine's clock is never trusted: a holder is gone when its Lease has not changed for a
//! whole duration on *our* clock.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use jiff::Timestamp;

use crate::shard;

/// The name of the controllers' Lease in the system namespace.
pub const LEASE: &str = "terrane-controller";

/// How the times of an election relate: the holder stops acting before anyone else may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// How long a Lease must stand still before another takes it.
    pub duration: Duration,
    /// How long after its last renewal the holder still writes; well below `duration`.
    pub trust: Duration,
    /// How often the holder renews and the others look.
    pub period: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(12),
            trust: Duration::from_secs(8),
            period: Duration::from_secs(2),
        }
    }
}

/// The Lease as this candidate saw it last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sight {
    pub holder: Option<String>,
    pub term: u32,
    /// For how long it has not changed, on our own clock.
    pub unchanged: Duration,
    /// How long the holder said that it must stand still: holders may have other terms than ours.
    pub promised: Duration,
    /// Who holds fewer shards and would have this one.
    pub asked_by: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Write the Lease with this term and start to act once the write was accepted.
    Take { term: u32 },
    /// It is ours: write it again.
    Renew { term: u32 },
    /// Someone else acts.
    Wait,
}

/// Whether this candidate already acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Candidate,
    Leader,
}

/// `identity` belongs to one process at a time, so a Lease that names it while we do not act is our own from before a crash.
pub fn decide(identity: &str, standing: Standing, sight: Option<&Sight>, terms: &Terms) -> Step {
    let Some(sight) = sight else { return Step::Take { term: 1 } };
    let next = sight.term.saturating_add(1);
    match (sight.holder.as_deref(), standing) {
        // Given away: whoever asked for it goes first.
        (None | Some(""), Standing::Candidate)
            if sight.is_asked_for_beside(identity) && sight.unchanged < terms.period * COURTESY =>
        {
            Step::Wait
        }
        (None | Some(""), Standing::Candidate) => Step::Take { term: next },
        (Some(holder), Standing::Candidate) if holder == identity => Step::Take { term: next },
        (Some(_), Standing::Candidate) if sight.unchanged >= terms.duration.max(sight.promised) => {
            Step::Take { term: next }
        }
        (Some(holder), Standing::Leader) if holder == identity => Step::Renew { term: sight.term },
        // Released or taken behind our back: the term is over.
        (_, Standing::Candidate | Standing::Leader) => Step::Wait,
    }
}

/// For how many periods a Lease that was given away is left to whoever asked for it.
const COURTESY: u32 = 3;

impl Sight {
    /// Whether somebody else than this candidate would have it.
    pub fn is_asked_for_beside(&self, identity: &str) -> bool {
        self.asked_by.as_deref().is_some_and(|asking| asking != identity)
    }
}

/// What a Lease says, which has not changed for so long.
pub fn view(lease: &Lease, unchanged: Duration) -> Sight {
    let spec = lease.spec.as_ref();
    let holder = spec.and_then(|spec| spec.holder_identity.clone()).filter(|holder| !holder.is_empty());
    let term = spec.and_then(|spec| spec.lease_transitions).unwrap_or_default();
    let promised = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
    Sight {
        holder,
        term: u32::try_from(term).unwrap_or_default(),
        unchanged,
        promised: Duration::from_secs(u64::try_from(promised).unwrap_or_default()),
        asked_by: shard::asked_by(lease).map(str::to_owned),
    }
}

/// The Lease that a holder writes.
pub fn held(
    before: Option<&LeaseSpec>,
    identity: &str,
    step: Held,
    terms: &Terms,
    now: Timestamp,
) -> LeaseSpec {
    let (term, acquired) = match step {
        Held::Taken { term } => (term, Some(MicroTime(now))),
        Held::Renewed { term } => (term, before.and_then(|spec| spec.acquire_time.clone())),
    };
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: i32::try_from(terms.duration.as_secs()).ok(),
        acquire_time: acquired,
        renew_time: Some(MicroTime(now)),
        lease_transitions: i32::try_from(term).ok(),
        ..LeaseSpec::default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    Taken { term: u32 },
    Renewed { term: u32 },
}

/// The Lease of a holder that goes in order: free at once for the next, the count of terms kept.
pub fn released(before: &LeaseSpec) -> LeaseSpec {
    LeaseSpec { holder_identity: None, acquire_time: None, renew_time: None, ..before.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(holder: Option<&str>, term: u32, unchanged: u64) -> Sight {
        Sight {
            holder: holder.map(str::to_owned),
            term,
            unchanged: Duration::from_secs(unchanged),
            promised: Duration::ZERO,
            asked_by: None,
        }
    }

    #[test]
    fn a_term_begins_only_when_the_one_before_is_over_and_has_a_higher_number() {
        let terms = Terms::default();
        let cases = [
            (Standing::Candidate, None, Step::Take { term: 1 }),
            (Standing::Candidate, Some(sight(None, 4, 0)), Step::Take { term: 5 }),
            (Standing::Candidate, Some(sight(Some("other"), 4, 11)), Step::Wait),
            (Standing::Candidate, Some(sight(Some("other"), 4, 12)), Step::Take { term: 5 }),
            (Standing::Candidate, Some(sight(Some("me"), 4, 0)), Step::Take { term: 5 }),
            (Standing::Leader, Some(sight(Some("me"), 5, 2)), Step::Renew { term: 5 }),
            (Standing::Leader, Some(sight(Some("other"), 6, 0)), Step::Wait),
            (Standing::Leader, Some(sight(Some("other"), 6, 99)), Step::Wait),
            (Standing::Leader, Some(sight(None, 5, 0)), Step::Wait),
        ];
        for (standing, seen, expected) in cases {
            assert_eq!(decide("me", standing, seen.as_ref(), &terms), expected, "{standing:?} {seen:?}");
        }
    }

    #[test]
    fn a_holder_with_longer_terms_than_ours_is_given_them() {
        let seen =
            |unchanged| Sight { promised: Duration::from_secs(60), ..sight(Some("other"), 4, unchanged) };
        let terms = Terms::default();
        assert_eq!(decide("me", Standing::Candidate, Some(&seen(59)), &terms), Step::Wait);
        assert_eq!(decide("me", Standing::Candidate, Some(&seen(60)), &terms), Step::Take { term: 5 });
    }

    #[test]
    fn a_lease_that_was_given_away_is_first_of_all_for_whoever_asked() {
        let terms = Terms::default();
        let given =
            |by: &str, unchanged| Sight { asked_by: Some(by.to_owned()), ..sight(None, 4, unchanged) };
        let decided = |sight| decide("me", Standing::Candidate, Some(&sight), &terms);
        assert_eq!(decided(given("me", 0)), Step::Take { term: 5 });
        assert_eq!(decided(given("other", 5)), Step::Wait);
        assert_eq!(decided(given("other", 6)), Step::Take { term: 5 }, "the other one is not coming");
    }

    #[test]
    fn the_holder_stops_before_another_may_start() {
        let terms = Terms::default();
        assert!(terms.trust + terms.period < terms.duration, "room for a slow clock");
        assert!(terms.duration + terms.period < Duration::from_secs(15), "another acts within 15 seconds");
        assert!(terms.period * 3 < terms.trust, "a lost renewal or two ends no term");
    }

    #[test]
    fn a_released_lease_keeps_its_count() {
        let terms = Terms::default();
        let now = Timestamp::UNIX_EPOCH;
        let taken = held(None, "me", Held::Taken { term: 7 }, &terms, now);
        let renewed = held(Some(&taken), "me", Held::Renewed { term: 7 }, &terms, now);
        assert_eq!(renewed, taken);
        let lease = Lease { spec: Some(released(&renewed)), ..Lease::default() };
        let seen = view(&lease, Duration::ZERO);
        assert_eq!((seen.holder, seen.term, seen.promised), (None, 7, terms.duration));
    }
}
