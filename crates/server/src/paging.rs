//! Lists as people page through them: filtered by what the caller may see and asks for, in a chosen order, a page at a time. Where a page
//! begins is what the one before it ended with, so objects that come and go between two pages neither repeat nor hide others.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::cache::Key;
use crate::person::{Person, Right};
use crate::text::Text;
use crate::{Refusal, Service};

const MOST: usize = 500;
const USUAL: usize = 100;

/// Which page, in which order.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Paging {
    /// How many at most: 1 to 500, without it 100.
    #[param(minimum = 1, maximum = 500)]
    pub(crate) limit: Option<usize>,
    /// Where to go on: `next` of the page before, with the same filter and order.
    #[serde(rename = "continue")]
    pub(crate) resume: Option<String>,
    /// The field to order by; with a minus before it, from the end.
    pub(crate) sort: Option<String>,
}

/// One page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Page<T> {
    pub(crate) items: Vec<T>,
    /// How many match in all.
    pub(crate) total: usize,
    /// What `continue` is for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

/// The last one of a page.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Place(String, String, String);

/// What can be ordered by, beside the name.
pub(crate) trait Ordered {
    const FIELDS: &'static [&'static str];

    /// As text whose order is the order that is meant.
    fn field(&self, field: &str) -> String;
}

/// O(n log n) for n that match; only those of the page are copied.
pub(crate) fn page<V: Ordered + Clone>(
    mut found: Vec<(Key, Arc<V>)>,
    paging: &Paging,
) -> Result<Page<V>, Refusal> {
    let limit = paging.limit.unwrap_or(USUAL);
    if !(1..=MOST).contains(&limit) {
        return Err(Refusal::BadRequest(format!("limit must be a number from 1 to {MOST}")));
    }
    let sort = paging.sort.as_deref().filter(|sort| !sort.is_empty()).unwrap_or("name");
    let (field, backwards) = sort.strip_prefix('-').map_or((sort, false), |field| (field, true));
    if field != "name" && !V::FIELDS.contains(&field) {
        let known = V::FIELDS.join(", ");
        return Err(Refusal::BadRequest(format!("there is no order by {field}; there are name, {known}")));
    }
    let after: Option<Place> = match paging.resume.as_deref().filter(|resume| !resume.is_empty()) {
        None => None,
        Some(text) => Some(unpack(text).ok_or_else(|| {
            Refusal::BadRequest("continue must be what `next` of the page before says".to_owned())
        })?),
    };
    let place = |(namespace, name): &Key, view: &V| {
        let text = if field == "name" { name.to_string() } else { view.field(field) };
        Place(text, namespace.to_string(), name.to_string())
    };
    let in_order = |a: &Place, b: &Place| if backwards { b.cmp(a) } else { a.cmp(b) };
    let total = found.len();
    let mut placed: Vec<(Place, Arc<V>)> =
        found.drain(..).map(|(key, view)| (place(&key, &view), view)).collect();
    if let Some(after) = &after {
        placed.retain(|(place, _)| in_order(place, after) == Ordering::Greater);
    }
    placed.sort_unstable_by(|(a, _), (b, _)| in_order(a, b));
    let more = placed.len() > limit;
    placed.truncate(limit);
    let next = if more { placed.last().map(|(place, _)| pack(place)) } else { None };
    Ok(Page { items: placed.into_iter().map(|(_, view)| V::clone(&view)).collect(), total, next })
}

fn pack(place: &Place) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(place).unwrap_or_default())
}

fn unpack(text: &str) -> Option<Place> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}

impl Service {
    /// Leaves what the caller may list. One question for all namespaces, and where the answer is no, one for each namespace that has
    /// something: O(namespaces), and their answers are believed for a few seconds.
    pub(crate) async fn visible<V>(
        &self,
        person: &Person,
        resource: &'static str,
        mut found: Vec<(Key, Arc<V>)>,
    ) -> Result<Vec<(Key, Arc<V>)>, Refusal> {
        if self.recently_allows(person, listing(resource, "")).await? {
            return Ok(found);
        }
        let namespaces: BTreeSet<Text> = found.iter().map(|((namespace, _), _)| namespace.clone()).collect();
        let mut visible = BTreeSet::new();
        for namespace in namespaces {
            if self.recently_allows(person, listing(resource, &namespace)).await? {
                visible.insert(namespace);
            }
        }
        found.retain(|((namespace, _), _)| visible.contains(namespace));
        Ok(found)
    }
}

const fn listing<'a>(resource: &'a str, namespace: &'a str) -> Right<'a> {
    Right { verb: "list", resource, subresource: None, namespace, name: "" }
}

/// Labels as kubectl selects them, joined by commas: `a=b`, `a!=b`, `a` and `!a`.
#[derive(Debug, Default)]
pub(crate) struct Selector(Vec<Term>);

#[derive(Debug)]
struct Term {
    key: String,
    value: Option<String>,
    is_wanted: bool,
}

impl Selector {
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        let terms = text.split(',').map(str::trim).filter(|term| !term.is_empty()).map(|term| {
            let (is_wanted, key, value) = if let Some((key, value)) = term.split_once("!=") {
                (false, key, Some(value))
            } else if let Some((key, value)) = term.split_once('=') {
                (true, key, Some(value.trim_start_matches('=')))
            } else if let Some(key) = term.strip_prefix('!') {
                (false, key, None)
            } else {
                (true, term, None)
            };
            let key = key.trim();
            if key.is_empty() || key.contains(['(', ')', ' ']) {
                return Err(Refusal::BadRequest(format!(
                    "{term} selects nothing; write KEY=VALUE, KEY!=VALUE, KEY or !KEY, joined by commas"
                )));
            }
            Ok(Term { key: key.to_owned(), value: value.map(|value| value.trim().to_owned()), is_wanted })
        });
        terms.collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn matches(&self, labels: &std::collections::BTreeMap<String, String>) -> bool {
        self.0.iter().all(|term| {
            let is_there = match (&term.value, labels.get(&term.key)) {
                (None, found) => found.is_some(),
                (Some(value), found) => found == Some(value),
            };
            is_there == term.is_wanted
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq)]
    struct Thing(String);

    impl Ordered for Thing {
        const FIELDS: &'static [&'static str] = &["colour"];

        fn field(&self, _: &str) -> String {
            self.0.clone()
        }
    }

    fn things() -> Vec<(Key, Arc<Thing>)> {
        [("b", "x", "red"), ("a", "y", "red"), ("a", "x", "blue"), ("c", "z", "green")]
            .map(|(namespace, name, colour)| {
                ((namespace.into(), name.into()), Arc::new(Thing(format!("{colour} {namespace}/{name}"))))
            })
            .into()
    }

    #[test]
    fn pages_follow_one_another_whatever_comes_and_goes_between_them() {
        for (sort, expected) in [
            ("name", ["blue a/x", "red b/x", "red a/y", "green c/z"]),
            ("-name", ["green c/z", "red a/y", "red b/x", "blue a/x"]),
            ("colour", ["blue a/x", "green c/z", "red a/y", "red b/x"]),
        ] {
            let mut paging = Paging { limit: Some(1), sort: Some(sort.to_owned()), resume: None };
            let mut seen = Vec::new();
            loop {
                // The one that was seen last is gone by the next page.
                let left = things().into_iter().filter(|(_, thing)| seen.last() != Some(&thing.0)).collect();
                let one = page::<Thing>(left, &paging).unwrap();
                seen.extend(one.items.into_iter().map(|thing| thing.0));
                match one.next {
                    Some(next) => paging.resume = Some(next),
                    None => break,
                }
            }
            assert_eq!(seen, expected, "{sort}");
        }
    }

    #[test]
    fn a_page_that_cannot_be_is_refused() {
        for (limit, sort, resume) in [
            (Some(0), None, None),
            (Some(501), None, None),
            (None, Some("size"), None),
            (None, None, Some("bm9uc2Vuc2U")),
            (None, None, Some("%%%")),
        ] {
            let paging = Paging { limit, sort: sort.map(str::to_owned), resume: resume.map(str::to_owned) };
            assert!(matches!(page::<Thing>(things(), &paging), Err(Refusal::BadRequest(_))), "{paging:?}");
        }
    }

    #[test]
    fn labels_are_selected_as_kubectl_does() {
        let labels =
            [("env", "prod"), ("team", "net")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        for (text, expected) in [
            ("", true),
            ("env=prod", true),
            ("env==prod,team=net", true),
            ("env=dev", false),
            ("env!=dev", true),
            ("team", true),
            ("!team", false),
            ("!other", true),
            ("other", false),
        ] {
            assert_eq!(Selector::parse(text).unwrap().matches(&labels), expected, "{text}");
        }
        assert!(Selector::parse("env in (a)").is_err());
        assert!(Selector::parse("=a").is_err());
    }
}
