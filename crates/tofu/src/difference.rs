//! From a plan to the differences that people are told of. Pure; the plan's own masks are already on its values.

use api::difference::{ATTRIBUTES, AttributeDifference, Difference, Differences, How, RESOURCES, VALUE};
use api::run::Mode;
use serde_json::Value;

use crate::plan::{AttributeChange, Change, Plan};

/// More than any address needs.
const ADDRESS: usize = 512;
const NAME: usize = 256;

/// What differs, cut to what a status can hold. A plan that only refreshes says what moved since the last apply; any other what is
/// not as the code wants it. `clean` takes known secrets out of a text. O(changes).
pub fn differences(plan: &Plan, mode: Mode, clean: &dyn Fn(&str) -> String) -> Differences {
    let (list, sides) = match mode {
        Mode::Normal | Mode::Destroy => (&plan.changes, Sides::FoundToWanted),
        Mode::RefreshOnly => (&plan.drift, Sides::KnownToFound),
    };
    Differences {
        total: u32::try_from(list.len()).unwrap_or(u32::MAX),
        resources: list.iter().take(RESOURCES).map(|change| difference(change, sides, clean)).collect(),
    }
}

/// What `before` and `after` of a change mean.
#[derive(Clone, Copy)]
enum Sides {
    FoundToWanted,
    KnownToFound,
}

fn difference(change: &Change, sides: Sides, clean: &dyn Fn(&str) -> String) -> Difference {
    let has = |wanted: &str| change.actions.iter().any(|action| action == wanted);
    let how = match (has("create"), has("delete"), sides) {
        (true, false, Sides::FoundToWanted) | (false, true, Sides::KnownToFound) => How::Missing,
        (false, true, Sides::FoundToWanted) | (true, false, Sides::KnownToFound) => How::Unwanted,
        (true, true, _) | (false, false, _) => How::Changed,
    };
    let attributes = match how {
        // All of it is there or not; naming every attribute says nothing.
        How::Missing | How::Unwanted => Vec::new(),
        How::Changed => change
            .attributes
            .iter()
            .filter(|attribute| !attribute.known_after_apply)
            .take(ATTRIBUTES)
            .map(|attribute| attribute_difference(attribute, sides, clean))
            .collect(),
    };
    Difference { address: cut(&change.address, ADDRESS), how, attributes }
}

fn attribute_difference(
    attribute: &AttributeChange,
    sides: Sides,
    clean: &dyn Fn(&str) -> String,
) -> AttributeDifference {
    let text = |value: &Value| cut(&clean(&value.to_string()), VALUE);
    let (expected, found) = match sides {
        Sides::FoundToWanted => (&attribute.after, &attribute.before),
        Sides::KnownToFound => (&attribute.before, &attribute.after),
    };
    AttributeDifference { name: cut(&attribute.name, NAME), expected: text(expected), found: text(found) }
}

fn cut(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    text.chars().take(limit.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use serde_json::json;

    use super::*;

    fn change(actions: &[&str], before: Value, after: Value) -> Change {
        Change {
            address: "a.b".to_owned(),
            actions: actions.iter().map(|&action| action.to_owned()).collect(),
            attributes: vec![AttributeChange {
                name: "content".to_owned(),
                before,
                after,
                known_after_apply: false,
            }],
        }
    }

    #[test]
    fn both_kinds_of_plan_say_what_is_expected_and_what_is_found() {
        let plan = Plan {
            changes: vec![
                change(&["update"], json!("by hand"), json!("by code")),
                change(&["create"], json!(null), json!("x")),
                change(&["delete"], json!("x"), json!(null)),
            ],
            drift: vec![
                change(&["update"], json!("by code"), json!("by hand")),
                change(&["delete"], json!("x"), json!(null)),
            ],
            ..Plan::default()
        };
        for (mode, hows) in [
            (Mode::Normal, &[How::Changed, How::Missing, How::Unwanted][..]),
            (Mode::RefreshOnly, &[How::Changed, How::Missing][..]),
        ] {
            let found = differences(&plan, mode, &|text| text.to_owned());
            assert_eq!(found.resources.iter().map(|r| r.how).collect::<Vec<_>>(), hows, "{mode:?}");
            let attribute = &found.resources[0].attributes[0];
            assert_eq!(
                (attribute.expected.as_str(), attribute.found.as_str()),
                ("\"by code\"", "\"by hand\"")
            );
        }
    }

    #[test]
    fn what_is_long_is_cut_and_what_is_secret_is_cleaned() {
        let long = "x".repeat(10_000);
        let plan = Plan {
            changes: std::iter::repeat_n(change(&["update"], json!("token CANARY"), json!(long)), 30)
                .collect(),
            ..Plan::default()
        };
        let found = differences(&plan, Mode::Normal, &|text| text.replace("CANARY", "***"));
        assert_eq!((found.total, found.resources.len()), (30, RESOURCES));
        let attribute = &found.resources[0].attributes[0];
        assert_eq!(attribute.found, "\"token ***\"");
        assert_eq!(attribute.expected.chars().count(), VALUE);
        assert!(serde_json::to_vec(&found).unwrap().len() < 32 * 1024);
    }
}
