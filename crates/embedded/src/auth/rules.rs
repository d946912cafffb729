//! What one RBAC rule allows, and whether some rules cover others. Pure: it knows no subjects and no store.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::rbac::v1::PolicyRule;

use super::refusal::quoted_list;
use super::{Attributes, Target};

const ALL: &str = "*";

/// Does this rule allow the request?
pub fn allows(rule: &PolicyRule, attributes: &Attributes<'_>) -> bool {
    if !has_or_all(&rule.verbs, attributes.verb) {
        return false;
    }
    match attributes.target {
        Target::Path(path) => list(&rule.non_resource_urls).iter().any(|url| path_matches(url, path)),
        Target::Resource(wanted) => {
            has_or_all(list(&rule.api_groups), wanted.group)
                && list(&rule.resources)
                    .iter()
                    .any(|resource| resource_matches(resource, wanted.resource, wanted.subresource))
                && names_match(list(&rule.resource_names), wanted.name)
        }
    }
}

fn list(field: &Option<Vec<String>>) -> &[String] {
    field.as_deref().unwrap_or_default()
}

fn has(set: &[String], wanted: &str) -> bool {
    set.iter().any(|item| item == wanted)
}

fn has_or_all(set: &[String], wanted: &str) -> bool {
    set.iter().any(|item| item == ALL || item == wanted)
}

/// `*` is everything, `pods/log` that subresource only, `*/scale` that subresource of everything.
fn resource_matches(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == ALL {
        return true;
    }
    if subresource.is_empty() {
        return rule == resource;
    }
    match rule.split_once('/') {
        Some((parent, child)) => child == subresource && (parent == ALL || parent == resource),
        None => false,
    }
}

fn names_match(names: &[String], wanted: &str) -> bool {
    names.is_empty() || has(names, wanted)
}

fn path_matches(rule: &str, path: &str) -> bool {
    rule == ALL || rule == path || (rule.ends_with(ALL) && path.starts_with(rule.trim_end_matches('*')))
}

/// The parts of `wanted` that no rule of `held` covers, each with one verb and one resource or path; empty when all is
/// covered. O(parts of `wanted` x rules of `held`).
pub fn uncovered(held: &[&PolicyRule], wanted: &[PolicyRule]) -> Vec<PolicyRule> {
    wanted.iter().flat_map(break_down).filter(|part| !held.iter().any(|rule| covers(rule, part))).collect()
}

fn break_down(rule: &PolicyRule) -> Vec<PolicyRule> {
    let one = |text: &String| Some(vec![text.clone()]);
    let mut parts = Vec::new();
    for group in list(&rule.api_groups) {
        for resource in list(&rule.resources) {
            for verb in &rule.verbs {
                let part = PolicyRule {
                    api_groups: one(group),
                    resources: one(resource),
                    verbs: vec![verb.clone()],
                    ..PolicyRule::default()
                };
                match list(&rule.resource_names) {
                    [] => parts.push(part),
                    names => parts.extend(
                        names.iter().map(|name| PolicyRule { resource_names: one(name), ..part.clone() }),
                    ),
                }
            }
        }
    }
    for url in list(&rule.non_resource_urls) {
        for verb in &rule.verbs {
            parts.push(PolicyRule {
                non_resource_urls: one(url),
                verbs: vec![verb.clone()],
                ..PolicyRule::default()
            });
        }
    }
    parts
}

/// Does `rule` cover `part`, a product of `break_down`?
fn covers(rule: &PolicyRule, part: &PolicyRule) -> bool {
    let covers_all =
        |set: &[String], wanted: &[String]| has(set, ALL) || wanted.iter().all(|item| has(set, item));
    let covers_resource = |wanted: &String| {
        let set = list(&rule.resources);
        has_or_all(set, wanted)
            || wanted.split_once('/').is_some_and(|(_, subresource)| has(set, &format!("*/{subresource}")))
    };
    let covers_path = |wanted: &String| {
        list(&rule.non_resource_urls).iter().any(|held| {
            held == wanted || (held.ends_with(ALL) && wanted.starts_with(held.trim_end_matches('*')))
        })
    };
    let held_names = list(&rule.resource_names);
    let names = list(&part.resource_names);
    covers_all(&rule.verbs, &part.verbs)
        && covers_all(list(&rule.api_groups), list(&part.api_groups))
        && list(&part.resources).iter().all(covers_resource)
        && list(&part.non_resource_urls).iter().all(covers_path)
        && (held_names.is_empty() || (!names.is_empty() && names.iter().all(|name| has(held_names, name))))
}

/// Groups, resources and names of a part.
type Place<'a> = (&'a [String], &'a [String], &'a [String]);

/// Missing parts for a person to read: one line for each resource with all its verbs, sorted.
pub fn describe(parts: &[PolicyRule]) -> String {
    let mut by_place: BTreeMap<Place<'_>, Vec<String>> = BTreeMap::new();
    let mut lines = BTreeSet::new();
    for part in parts {
        let paths = list(&part.non_resource_urls);
        if paths.is_empty() {
            let place = (list(&part.api_groups), list(&part.resources), list(&part.resource_names));
            by_place.entry(place).or_default().extend(part.verbs.iter().cloned());
        } else {
            lines.insert(line(&[], &[], paths, &[], &part.verbs));
        }
    }
    lines.extend(
        by_place.iter().map(|((groups, resources, names), verbs)| line(groups, resources, &[], names, verbs)),
    );
    Vec::from_iter(lines).join("\n")
}

fn line(
    groups: &[String],
    resources: &[String],
    paths: &[String],
    names: &[String],
    verbs: &[String],
) -> String {
    let fields = [
        ("APIGroups", groups),
        ("Resources", resources),
        ("NonResourceURLs", paths),
        ("ResourceNames", names),
        ("Verbs", verbs),
    ];
    let fields: Vec<String> = fields
        .iter()
        .filter(|(_, items)| !items.is_empty())
        .map(|(field, items)| format!("{field}:{}", quoted_list(items)))
        .collect();
    format!("{{{}}}", fields.join(", "))
}
