//! Who starts next where runner pods are limited. Only the order and the limits are here: what runs is counted by whoever asks.
//!
//! Repositories take turns, so that one with a thousand layers does not keep out one with a single layer. A person's wish goes
//! first and drift checks go last, until they have waited so long that they count as ordinary work: nothing starves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::run::{TerraformRun, TriggerKind};
use jiff::Timestamp;

use crate::later;

/// An object of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Named {
    pub namespace: String,
    pub name: String,
}

/// A run that could start now, were it not for the limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub run: Named,
    pub repository: Named,
    /// How many runners its repository may have; 0 means no limit of its own.
    pub most: u32,
    pub urgency: Urgency,
    pub since: Timestamp,
}

/// Earlier ones go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// It holds something that others wait for: the lock of a state, or an attempt that is written down.
    Holding,
    Manual,
    Usual,
    Drift,
}

/// Runner pods at work, by repository; `None` for pods that name none.
pub type Busy = BTreeMap<Option<Named>, u32>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slot {
    Free,
    Full(Limit),
}

/// What a run waits for. It says nothing that moves with time, so that it is written once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Limit {
    Overall { most: u32 },
    Repository { name: String, most: u32 },
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Limit::Overall { most } => write!(f, "queued: at most {most} runners work at the same time"),
            Limit::Repository { name, most } => {
                write!(f, "queued: at most {most} runners work for repository {name} at the same time")
            }
        }
    }
}

/// A drift check that has waited this long is ordinary work.
const DRIFT_PATIENCE: Duration = Duration::from_secs(30 * 60);

impl Waiting {
    pub fn new(run: &TerraformRun, repository: &str, most: u32, holds: Holds) -> Self {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let namespace = text(&run.metadata.namespace);
        let urgency = match (holds, run.spec.trigger.kind) {
            (Holds::Something, _) => Urgency::Holding,
            (Holds::Nothing, TriggerKind::Manual | TriggerKind::Approval | TriggerKind::Deletion) => {
                Urgency::Manual
            }
            (
                Holds::Nothing,
                TriggerKind::Commit
                | TriggerKind::Inputs
                | TriggerKind::Outputs
                | TriggerKind::Failure
                | TriggerKind::Auto,
            ) => Urgency::Usual,
            (Holds::Nothing, TriggerKind::Drift) => Urgency::Drift,
        };
        Self {
            repository: Named { namespace: namespace.clone(), name: repository.to_owned() },
            run: Named { namespace, name: text(&run.metadata.name) },
            most,
            urgency,
            since: run.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0),
        }
    }

    fn urgency_at(&self, now: Timestamp) -> Urgency {
        match self.urgency {
            Urgency::Drift if now >= later(self.since, DRIFT_PATIENCE) => Urgency::Usual,
            Urgency::Holding | Urgency::Manual | Urgency::Usual | Urgency::Drift => self.urgency,
        }
    }
}

/// Whether a run keeps others waiting while it waits itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    Something,
    Nothing,
}

/// The order of starts: by urgency, then in turns over the repositories, those with fewer runners at work first.
/// O(n log n) in what waits.
pub fn order<'a>(waiting: &'a [Waiting], busy: &Busy, now: Timestamp) -> Vec<&'a Waiting> {
    let mut oldest: Vec<&Waiting> = waiting.iter().collect();
    oldest.sort_by(|a, b| (a.urgency_at(now), a.since, &a.run).cmp(&(b.urgency_at(now), b.since, &b.run)));
    let mut turns: BTreeMap<&Named, u32> = BTreeMap::new();
    let mut ranked: Vec<(Urgency, u32, &Waiting)> = oldest
        .into_iter()
        .map(|one| {
            let turn = turns.entry(&one.repository).or_insert_with(|| at_work(busy, &one.repository));
            *turn = turn.saturating_add(1);
            (one.urgency_at(now), *turn, one)
        })
        .collect();
    // Stable: who came first stays first among equals.
    ranked.sort_by_key(|(urgency, turn, _)| (*urgency, *turn));
    ranked.into_iter().map(|(_, _, one)| one).collect()
}

/// Whether `run` is among those that may start now. `overall` of 0 means no limit. O(n log n) in what waits.
pub fn admit(run: &Named, waiting: &[Waiting], busy: &Busy, overall: u32, now: Timestamp) -> Slot {
    let mut busy = busy.clone();
    for one in order(waiting, &busy.clone(), now) {
        let limit = limit_of(one, &busy, overall);
        if &one.run == run {
            return limit.map_or(Slot::Free, Slot::Full);
        }
        if limit.is_none() {
            *busy.entry(Some(one.repository.clone())).or_default() += 1;
        }
    }
    Slot::Free
}

/// Who looks again when one more runner may be free: the first that its own repository has room for. Of a repository that is at its limit,
/// whose runner may be the one that ended, the first as well; `most` in all. O(n log n) in what waits.
pub fn next<'a>(waiting: &'a [Waiting], busy: &Busy, most: usize, now: Timestamp) -> Vec<&'a Waiting> {
    let mut looked_at = BTreeSet::new();
    let mut next = Vec::new();
    for one in order(waiting, busy, now) {
        if next.len() >= most {
            break;
        }
        if looked_at.insert(&one.repository) {
            next.push(one);
            if limit_of(one, busy, 0).is_none() {
                break;
            }
        }
    }
    next
}

fn at_work(busy: &Busy, repository: &Named) -> u32 {
    busy.get(&Some(repository.clone())).copied().unwrap_or_default()
}

/// What keeps a run from starting beside those at work, whoever else waits. `overall` of 0 means no limit.
pub fn limit_of(one: &Waiting, busy: &Busy, overall: u32) -> Option<Limit> {
    let total = busy.values().fold(0_u32, |sum, count| sum.saturating_add(*count));
    if one.most > 0 && at_work(busy, &one.repository) >= one.most {
        return Some(Limit::Repository { name: one.repository.name.clone(), most: one.most });
    }
    (overall > 0 && total >= overall).then_some(Limit::Overall { most: overall })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn named(name: &str) -> Named {
        Named { namespace: "default".into(), name: name.into() }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn waiting(run: &str, repository: &str, urgency: Urgency, since: i64) -> Waiting {
        Waiting { run: named(run), repository: named(repository), most: 0, urgency, since: at(since) }
    }

    fn names(waiting: &[Waiting], busy: &Busy, now: Timestamp) -> Vec<String> {
        order(waiting, busy, now).into_iter().map(|one| one.run.name.clone()).collect()
    }

    #[test]
    fn repositories_take_turns_and_the_less_busy_goes_first() {
        let all = [
            waiting("a1", "a", Urgency::Usual, 0),
            waiting("a2", "a", Urgency::Usual, 1),
            waiting("a3", "a", Urgency::Usual, 2),
            waiting("b1", "b", Urgency::Usual, 3),
        ];
        assert_eq!(names(&all, &Busy::new(), at(9)), ["a1", "b1", "a2", "a3"]);
        let busy = Busy::from([(Some(named("a")), 2)]);
        assert_eq!(names(&all, &busy, at(9)), ["b1", "a1", "a2", "a3"]);
    }

    #[test]
    fn a_persons_wish_goes_first_and_drift_last_until_it_has_waited_long() {
        let all = [
            waiting("drift", "a", Urgency::Drift, 0),
            waiting("commit", "a", Urgency::Usual, 60),
            waiting("manual", "a", Urgency::Manual, 120),
            waiting("holder", "b", Urgency::Holding, 180),
        ];
        assert_eq!(names(&all, &Busy::new(), at(200)), ["holder", "manual", "commit", "drift"]);
        assert_eq!(names(&all, &Busy::new(), at(1800)), ["holder", "manual", "drift", "commit"]);
    }

    #[test]
    fn a_full_repository_keeps_out_its_own_runs_only() {
        let mut first = waiting("a1", "a", Urgency::Usual, 0);
        first.most = 1;
        let all = [first, waiting("b1", "b", Urgency::Usual, 1)];
        let busy = Busy::from([(Some(named("a")), 1)]);
        let full = admit(&named("a1"), &all, &busy, 0, at(9));
        assert_eq!(full, Slot::Full(Limit::Repository { name: "a".into(), most: 1 }));
        assert_eq!(admit(&named("b1"), &all, &busy, 2, at(9)), Slot::Free);
        let full = admit(&named("b1"), &all, &busy, 1, at(9));
        assert_eq!(full, Slot::Full(Limit::Overall { most: 1 }));
    }

    #[test]
    fn the_free_slot_is_the_firsts() {
        let all = [waiting("a1", "a", Urgency::Usual, 0), waiting("b1", "b", Urgency::Usual, 1)];
        let busy = Busy::from([(None, 1)]);
        assert_eq!(admit(&named("a1"), &all, &busy, 2, at(9)), Slot::Free);
        assert_eq!(admit(&named("b1"), &all, &busy, 2, at(9)), Slot::Full(Limit::Overall { most: 2 }));
    }

    #[test]
    fn a_free_runner_is_offered_to_the_first_that_can_use_it_and_to_full_repositories() {
        let limited =
            |run, repository, since| Waiting { most: 1, ..waiting(run, repository, Urgency::Usual, since) };
        let all = [
            limited("a1", "a", 0),
            limited("a2", "a", 1),
            limited("b1", "b", 2),
            waiting("c1", "c", Urgency::Usual, 3),
            waiting("c2", "c", Urgency::Usual, 4),
            waiting("d1", "d", Urgency::Usual, 5),
        ];
        let woken = |busy: &Busy, most| -> Vec<String> {
            next(&all, busy, most, at(9)).into_iter().map(|one| one.run.name.clone()).collect()
        };
        assert_eq!(woken(&Busy::new(), 64), ["a1"]);
        let full = Busy::from([(Some(named("a")), 1), (Some(named("b")), 1), (Some(named("c")), 1)]);
        assert_eq!(woken(&full, 64), ["d1"]);
        let fuller = Busy::from([(Some(named("d")), 3), (Some(named("c")), 3), (Some(named("a")), 1)]);
        assert_eq!(woken(&fuller, 64), ["b1"]);
        let last = Busy::from([
            (Some(named("d")), 3),
            (Some(named("c")), 3),
            (Some(named("a")), 1),
            (Some(named("b")), 1),
        ]);
        assert_eq!(woken(&last, 64), ["a1", "b1", "c1"], "the runner that ended may be of a or of b");
        assert_eq!(woken(&last, 2), ["a1", "b1"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// However they come, as many are let in as there is room for, never more, and never past a repository's own limit.
        #[test]
        fn admits_exactly_what_there_is_room_for(
            runs in proptest::collection::vec((0_u8..4, 0_u8..4, 0_i64..4000), 0..40),
            busy in proptest::collection::vec((0_u8..4, 0_u32..3), 0..4),
            overall in 0_u32..12,
            most in 0_u32..4,
        ) {
            let all: Vec<Waiting> = runs.iter().enumerate().map(|(i, (repository, urgency, since))| {
                let urgency = [Urgency::Holding, Urgency::Manual, Urgency::Usual, Urgency::Drift][usize::from(*urgency)];
                Waiting { most, ..waiting(&format!("run-{i}"), &format!("r{repository}"), urgency, *since) }
            }).collect();
            let busy: Busy = busy.iter().map(|(repository, count)| (Some(named(&format!("r{repository}"))), *count)).collect();
            let admitted: Vec<&Waiting> =
                all.iter().filter(|one| admit(&one.run, &all, &busy, overall, at(5000)) == Slot::Free).collect();
            let total: u32 = busy.values().sum();
            if overall > 0 {
                prop_assert!(admitted.len() <= overall.saturating_sub(total) as usize);
            }
            for repository in 0..4 {
                let repository = named(&format!("r{repository}"));
                let own = admitted.iter().filter(|one| one.repository == repository).count();
                let before = at_work(&busy, &repository);
                if most > 0 { prop_assert!(own <= most.saturating_sub(before) as usize); }
                let wanted = all.iter().filter(|one| one.repository == repository).count();
                let left_out = wanted - own;
                let repository_has_room = most == 0 || before as usize + own < most as usize;
                let overall_has_room = overall == 0 || total as usize + admitted.len() < overall as usize;
                prop_assert!(left_out == 0 || !(repository_has_room && overall_has_room), "room was left unused");
            }
            prop_assert_eq!(order(&all, &busy, at(5000)).len(), all.len());
        }
    }
}
