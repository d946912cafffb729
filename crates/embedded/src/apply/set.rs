//! Sets of field paths: what a manager owns. A set is a tree, as `fieldsV1` is; set operations walk two trees at once.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::path::{Malformed, Path, PathElement};
use super::place::{Items, Place, Shape};

/// A set of field paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    branches: BTreeMap<PathElement, Branch>,
}

/// What a set holds at and below one path element. A branch that holds nothing is not kept, so equal sets are equal trees.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Branch {
    /// Whether the path that ends here is in the set.
    member: bool,
    below: FieldSet,
}

/// How many levels of `fieldsV1` are read. Objects are bounded to fewer, see `apply::MAX_DEPTH`.
const MAX_DEPTH: usize = 120;

impl FieldSet {
    pub fn new() -> Self {
        Self::default()
    }

    /// A set of paths of plain field names, such as `[&["status"], &["metadata", "labels"]]`.
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Self::new();
        for path in paths {
            set.insert(&path.iter().map(|name| PathElement::field(*name)).collect::<Vec<_>>());
        }
        set
    }

    pub fn is_empty(&self) -> bool {
        self.branches.is_empty()
    }

    /// The whole object is nobody's: an empty path adds nothing.
    pub fn insert(&mut self, path: &[PathElement]) {
        let Some((first, rest)) = path.split_first() else { return };
        // Looking up before inserting spares a copy of the element in the common case.
        let branch = match self.branches.get_mut(first) {
            Some(branch) => branch,
            None => self.branches.entry(first.clone()).or_default(),
        };
        match rest {
            [] => branch.member = true,
            rest => branch.below.insert(rest),
        }
    }

    pub fn has(&self, path: &[PathElement]) -> bool {
        match path {
            [] => false,
            [last] => self.branches.get(last).is_some_and(|branch| branch.member),
            [first, rest @ ..] => self.branches.get(first).is_some_and(|branch| branch.below.has(rest)),
        }
    }

    pub(super) fn has_element(&self, element: &PathElement) -> bool {
        self.branches.get(element).is_some_and(|branch| branch.member)
    }

    /// What lies below an element, `None` if nothing does.
    pub(super) fn below(&self, element: &PathElement) -> Option<&FieldSet> {
        self.branches.get(element).map(|branch| &branch.below).filter(|below| !below.is_empty())
    }

    /// O(n log m).
    pub fn union(&self, other: &FieldSet) -> FieldSet {
        let mut out = self.clone();
        out.extend(other);
        out
    }

    fn extend(&mut self, other: &FieldSet) {
        for (element, branch) in &other.branches {
            match self.branches.get_mut(element) {
                Some(own) => {
                    own.member |= branch.member;
                    own.below.extend(&branch.below);
                }
                None => {
                    self.branches.insert(element.clone(), branch.clone());
                }
            }
        }
    }

    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        self.filter_map(|element, branch| {
            let other = other.branches.get(element)?;
            Some(Branch {
                member: branch.member && other.member,
                below: branch.below.intersection(&other.below),
            })
        })
    }

    /// The paths of this set that are not in the other. A path stays although a shorter one is taken away.
    pub fn difference(&self, other: &FieldSet) -> FieldSet {
        self.filter_map(|element, branch| match other.branches.get(element) {
            None => Some(branch.clone()),
            Some(other) => Some(Branch {
                member: branch.member && !other.member,
                below: branch.below.difference(&other.below),
            }),
        })
    }

    /// The paths of this set that neither are in the other nor lead below one that is.
    pub fn difference_below(&self, other: &FieldSet) -> FieldSet {
        self.filter_map(|element, branch| match other.branches.get(element) {
            None => Some(branch.clone()),
            Some(other) if other.member => None,
            Some(other) => {
                Some(Branch { member: branch.member, below: branch.below.difference_below(&other.below) })
            }
        })
    }

    fn filter_map(&self, keep: impl Fn(&PathElement, &Branch) -> Option<Branch>) -> FieldSet {
        let kept = self.branches.iter().filter_map(|(element, branch)| {
            let branch = keep(element, branch)?;
            (branch.member || !branch.below.is_empty()).then(|| (element.clone(), branch))
        });
        FieldSet { branches: kept.collect() }
    }

    /// With every declared field that leads to a member a member too. The server does not record such fields as owned, yet
    /// who owns all that is in one also decides whether it exists.
    pub(super) fn with_declared_parents(&self, place: &Place<'_>) -> FieldSet {
        let branches = self.branches.iter().map(|(element, branch)| {
            let (child, declared) = place.at(element);
            let member = branch.member || (declared && !branch.below.is_empty());
            (element.clone(), Branch { member, below: branch.below.with_declared_parents(&child) })
        });
        FieldSet { branches: branches.collect() }
    }

    /// With what lies within values that the schema now takes as one replaced by those values. A schema may have changed since
    /// the set was written.
    pub(super) fn with_atomics_whole(&self, place: &Place<'_>) -> FieldSet {
        let branches = self.branches.iter().map(|(element, branch)| {
            let (child, _) = place.at(element);
            let whole = match child.expected() {
                Shape::Map => child.is_atomic_map() && !child.is_free_form(),
                Shape::List => matches!(child.items(), Items::Atomic),
                Shape::Scalar => false,
            };
            let branch = if whole && !branch.below.is_empty() {
                Branch { member: true, below: FieldSet::new() }
            } else {
                Branch { member: branch.member, below: branch.below.with_atomics_whole(&child) }
            };
            (element.clone(), branch)
        });
        FieldSet { branches: branches.collect() }
    }

    /// Every path, those that end at a level before those that lead on from it: the order in which conflicts are listed.
    pub fn paths(&self) -> Vec<Path> {
        let mut out = Vec::new();
        self.collect_paths(&mut Vec::new(), &mut out);
        out
    }

    fn collect_paths(&self, prefix: &mut Vec<PathElement>, out: &mut Vec<Path>) {
        for (element, branch) in &self.branches {
            if branch.member {
                out.push(Path(prefix.iter().chain([element]).cloned().collect()));
            }
        }
        for (element, branch) in &self.branches {
            prefix.push(element.clone());
            branch.below.collect_paths(prefix, out);
            prefix.pop();
        }
    }

    /// As `fieldsV1`. A member with members below it says so with `"."`.
    pub fn to_value(&self) -> Value {
        let fields = self.branches.iter().map(|(element, branch)| {
            let Value::Object(below) = branch.below.to_value() else {
                return (element.to_wire(), Value::Null);
            };
            let dot = branch.member && !below.is_empty();
            let dot = dot.then(|| (".".to_owned(), Value::Object(Map::new())));
            (element.to_wire(), Value::Object(dot.into_iter().chain(below).collect()))
        });
        Value::Object(fields.collect())
    }

    /// Reads `fieldsV1`.
    pub fn from_value(value: &Value) -> Result<FieldSet, Malformed> {
        Ok(Self::read(value, 0)?.below)
    }

    fn read(value: &Value, depth: usize) -> Result<Branch, Malformed> {
        if depth > MAX_DEPTH {
            return Err(Malformed::TooDeep(MAX_DEPTH));
        }
        let fields = match value {
            Value::Object(fields) => fields,
            Value::Null => return Ok(Branch { member: true, below: FieldSet::new() }),
            other => return Err(Malformed::NotAnObject(other.to_string())),
        };
        let mut out = Branch::default();
        for (key, value) in fields {
            if key == "." {
                out.member = true;
            } else if let Some(element) = PathElement::from_wire(key)? {
                let branch = Self::read(value, depth + 1)?;
                // Two spellings of one element, such as `v:1` and `v:1.0`, are one.
                let own = out.below.branches.entry(element).or_default();
                own.member |= branch.member;
                own.below.extend(&branch.below);
            }
        }
        out.member |= out.below.is_empty();
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    pub(crate) fn set() -> impl Strategy<Value = FieldSet> {
        let scalar = prop_oneof![
            any::<i64>().prop_map(Value::from),
            "[a-c<&\"]{0,2}".prop_map(Value::from),
            any::<bool>().prop_map(Value::from)
        ];
        let element = prop_oneof![
            "[a-d]".prop_map(PathElement::field),
            prop::collection::btree_map("[a-c]", scalar.clone(), 1..3)
                .prop_map(|fields| PathElement::key(fields.into_iter().collect())),
            scalar.prop_map(|value| PathElement::Value(super::super::path::Json(value))),
            (0..3_i64).prop_map(PathElement::Index),
        ];
        prop::collection::vec(prop::collection::vec(element, 1..4), 0..8).prop_map(|paths| {
            let mut set = FieldSet::new();
            paths.iter().for_each(|path| set.insert(path));
            set
        })
    }

    proptest! {
        #[test]
        fn written_sets_read_back_the_same(set in set()) {
            prop_assert_eq!(FieldSet::from_value(&set.to_value()).unwrap(), set);
        }

        #[test]
        fn set_operations_agree_with_their_meaning(a in set(), b in set()) {
            let union = a.union(&b);
            let both = a.intersection(&b);
            let only = a.difference(&b);
            for Path(path) in union.paths() {
                prop_assert_eq!(union.has(&path), a.has(&path) || b.has(&path));
                prop_assert_eq!(both.has(&path), a.has(&path) && b.has(&path));
                prop_assert_eq!(only.has(&path), a.has(&path) && !b.has(&path));
                let covered = (1..=path.len()).any(|length| b.has(&path[..length]));
                prop_assert_eq!(a.difference_below(&b).has(&path), a.has(&path) && !covered);
            }
            prop_assert_eq!(only.union(&both), a);
        }
    }

    #[test]
    fn fields_are_written_in_the_order_of_kube() {
        let wire = json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {
                "f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:image": {}}},
                "f:finalizers": {"v:\"x\"": {}},
            },
        });
        let set = FieldSet::from_value(&wire).unwrap();
        assert_eq!(set.to_value().to_string(), wire.to_string());
        let unordered =
            json!({"i:0": {}, "v:1": {}, "k:{\"b\":1,\"a\":2}": {}, "f:z": {}, "f:a": {}, "x:1": {}});
        let set = FieldSet::from_value(&unordered).unwrap();
        assert_eq!(
            set.to_value().to_string(),
            r#"{"f:a":{},"f:z":{},"k:{\"a\":2,\"b\":1}":{},"v:1":{},"i:0":{}}"#
        );
    }

    #[test]
    fn members_come_before_what_lies_deeper() {
        let set = FieldSet::of_fields(&[&["a", "b", "c"], &["a"], &["b"], &["a", "d"]]);
        let paths: Vec<String> = set.paths().iter().map(Path::to_string).collect();
        assert_eq!(paths, [".a", ".b", ".a.d", ".a.b.c"]);
    }

    #[test]
    fn hostile_fields_are_refused() {
        let mut deep = json!({});
        for _ in 0..1000 {
            deep = json!({"f:a": deep});
        }
        assert_eq!(FieldSet::from_value(&deep), Err(Malformed::TooDeep(MAX_DEPTH)));
        assert!(FieldSet::from_value(&json!({"f:a": []})).is_err());
        assert!(FieldSet::from_value(&json!("x")).is_err());
        assert_eq!(FieldSet::from_value(&json!({"f:a": null})).unwrap(), FieldSet::of_fields(&[&["a"]]));
    }
}
