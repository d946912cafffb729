//! Bundles: which go, and what keeps one.

use api::TerraformRun;
use api::bundle::{BELIEVED, Bundle, Bundles, RENEWED, UNUSED};
use api::text::Sha256;
use engine::bundles::Unneeded;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

const NOW: i64 = 1_700_000_000;

fn hours_ago(hours: i64) -> Timestamp {
    Timestamp::from_second(NOW).unwrap() - SignedDuration::from_hours(hours)
}

fn sha256(name: &str) -> Sha256 {
    Sha256::of(name.as_bytes())
}

fn kept(bundles: &[(&str, i64)]) -> Bundles {
    let bundle =
        |(name, hours): &(&str, i64)| Bundle { sha256: sha256(name), size: 10, used_at: hours_ago(*hours) };
    Bundles { at: hours_ago(0), bundles: bundles.iter().map(bundle).collect() }
}

/// A run that was told to work on one bundle, and whose attempts worked on others.
fn run(state: &str, spec: Option<&str>, attempts: &[&str]) -> TerraformRun {
    let attempt = |(number, name): (usize, &&str)| -> Value {
        json!({
            "number": number, "podName": "pod", "description": sha256("description"), "fence": 0, "bundle": sha256(name),
            "startedAt": "2023-01-01T00:00:00Z",
        })
    };
    let attempts: Vec<Value> = attempts.iter().enumerate().map(attempt).collect();
    serde_json::from_value(json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRun", "metadata": { "name": "run" },
        "spec": {
            "layer": { "name": "db", "uid": "layer-1", "revision": "a".repeat(40) }, "action": "plan", "bundle": spec.map(sha256),
            "state": "b".repeat(64), "trigger": { "kind": "commit", "reason": "new commit" },
        },
        "status": { "state": state, "attempts": attempts },
    }))
    .unwrap()
}

fn check(kept: &Bundles, runs: &[TerraformRun], expected: &[&str]) {
    let mut unneeded = Unneeded::of(kept);
    runs.iter().for_each(|run| unneeded.look_at(run));
    assert_eq!(unneeded.is_empty(), expected.is_empty());
    let gone: Vec<Sha256> = unneeded.gone().into_iter().map(|gone| gone.sha256).collect();
    assert_eq!(gone, expected.iter().map(|name| sha256(name)).collect::<Vec<_>>());
}

#[test]
fn a_bundle_goes_when_it_is_old_and_no_run_names_it() {
    let two = kept(&[("old", 49), ("older", 1_000), ("new", 47)]);
    check(&two, &[], &["older", "old"]);
    check(&kept(&[("just", 48)]), &[], &["just"]);
    check(&kept(&[]), &[], &[]);
    // By the datastore's clock, which may be behind whoever stored it.
    check(&kept(&[("tomorrow", -24)]), &[], &[]);
}

#[test]
fn whatever_became_of_a_run_it_keeps_what_it_names() {
    let all = kept(&[("told", 100), ("first", 100), ("second", 100), ("other", 100)]);
    for state in ["Initial", "Running", "FailureGracePeriod", "Retrying", "Succeeded", "Failed"] {
        check(&all, &[run(state, Some("told"), &["first", "second"])], &["other"]);
    }
    check(&all, &[run("Succeeded", None, &["first"]), run("Running", Some("other"), &[])], &{
        let mut left = ["told", "second"];
        left.sort_by_key(|name| sha256(name));
        left
    });
}

#[test]
fn a_run_that_names_nothing_yet_keeps_nothing_since_its_bundle_is_asked_for_before_it_is_named() {
    check(&kept(&[("old", 100)]), &[run("Initial", None, &[])], &["old"]);
}

#[test]
fn one_pass_deletes_a_bounded_number_and_the_longest_unused_first() {
    let names: Vec<String> = (0..1_200).map(|number| number.to_string()).collect();
    let bundles: Vec<(&str, i64)> = names.iter().map(String::as_str).zip(100..).collect();
    let gone = Unneeded::of(&kept(&bundles)).gone();
    let oldest: Vec<Sha256> = names.iter().rev().take(500).map(|name| sha256(name)).collect();
    assert_eq!(gone.into_iter().map(|gone| gone.sha256).collect::<Vec<_>>(), oldest);
}

/// A worst case in numbers: a use that is not written down because of an earlier one, an answer that is believed to its end, and only then
/// the name. The bundle could not have gone by a day.
#[test]
fn an_answer_is_not_believed_long_enough_to_outlive_its_bundle() {
    let last_written_use = hours_ago(0);
    let asked = last_written_use + RENEWED;
    let named = asked + BELIEVED;
    let first_chance_to_go = last_written_use + UNUSED;
    assert!(first_chance_to_go.duration_since(named) >= SignedDuration::from_hours(24));
}
