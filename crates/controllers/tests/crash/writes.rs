//! How much the controllers write, exactly. A write more than what stands here needs a reason, and an entry in the table.

use std::collections::BTreeMap;

use testkit::faults::{Faults, Seam};

use crate::{checks, without_faults};

/// The controllers' writes to the API that were done, by verb and target. O(events).
pub fn counted(faults: &Faults, processes: &[&str]) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    for event in faults.history() {
        let ours = event.site.seam == Seam::Api && processes.contains(&event.site.actor.as_str());
        // What a repository's branches hold is written once a commit, and how its layers are doing once a poll at most, whatever their
        // number.
        let counts_here = !checks::is_tale(&event) && !event.site.target.starts_with("terraformrepositories");
        if ours && event.is_write() && event.is_done() && counts_here {
            *counts.entry((event.site.verb.clone(), event.site.target.clone())).or_default() += 1;
        }
    }
    counts
}

/// A new layer whose plan is applied by itself.
const PLAN_AND_APPLY: &[(&str, &str, usize, &str)] = &[
    ("PATCH", "terraformlayers", 1, "its finalizer, before its first run"),
    ("PUT", "terraformlayers/status", 3, "planning; the plan, and applying it; in sync"),
    ("POST", "terraformruns", 2, "the plan, the apply"),
    ("PUT", "terraformruns/status", 4, "of each: the intent before its pod, the result"),
    ("POST", "leases", 1, "the lock of the state; it is never given back"),
    ("POST", "pods", 2, "of each run: its pod"),
    ("PATCH", "pods", 1, "the apply's result is recorded: its finalizer goes"),
    ("DELETE", "pods", 2, "of each run: its pod is not needed any more"),
];

/// A new layer whose plan waits for a person.
const PLAN_ONLY: &[(&str, &str, usize, &str)] = &[
    ("PATCH", "terraformlayers", 1, "its finalizer, before its first run"),
    ("PUT", "terraformlayers/status", 2, "planning; the plan, and that it waits"),
    ("POST", "terraformruns", 1, "the plan"),
    ("PUT", "terraformruns/status", 2, "the intent before its pod, the result"),
    ("POST", "pods", 1, "its pod"),
    ("DELETE", "pods", 1, "its pod is not needed any more"),
];

#[test]
fn a_plan_and_its_apply_cost_exactly_these_writes() {
    let (trials, outcomes) = without_faults();
    for (name, table) in [("plan and apply", PLAN_AND_APPLY), ("plan only", PLAN_ONLY)] {
        let lived = trials.iter().zip(outcomes).find(|(trial, _)| trial.workload.name == name);
        let found = &lived.expect("a workload of that name").1.written;
        let expected: BTreeMap<(String, String), usize> = table
            .iter()
            .map(|(verb, target, count, _)| (((*verb).to_owned(), (*target).to_owned()), *count))
            .collect();
        assert_eq!(found, &expected, "{name}: the table says what each is for");
    }
}
