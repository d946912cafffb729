//! Which versions a constraint allows, in the dialect of Masterminds: `~1.0.0`, `^1.2`, `1.x`, `>=1, <2`, `1.2 - 1.4`, joined by `||`.
//!
//! Parts that a bound leaves out, or writes as `x`, may be anything. A pre-release is allowed only by an alternative that names one.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use api::text::ImageTag;
use semver::{BuildMetadata, Prerelease, Version};

/// More than anybody writes, and little enough to compare with every tag of a registry.
const LONGEST: usize = 256;
const BOUNDS: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    text: String,
    /// A version is allowed when all bounds of one of these allow it.
    alternatives: Vec<Vec<Bound>>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a constraint on versions: {why}; write such as ~1.0.0, ^1.2, 1.x, or >=1.2, <2")]
pub struct InvalidConstraint {
    text: String,
    why: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Tilde,
    Caret,
}

/// Longer ones first, so that `>=` is not read as `>`.
const OPERATORS: [(&str, Operator); 12] = [
    (">=", Operator::GreaterOrEqual),
    ("=>", Operator::GreaterOrEqual),
    ("<=", Operator::LessOrEqual),
    ("=<", Operator::LessOrEqual),
    ("!=", Operator::NotEqual),
    ("~>", Operator::Tilde),
    ("=", Operator::Equal),
    (">", Operator::Greater),
    ("<", Operator::Less),
    ("~", Operator::Tilde),
    ("^", Operator::Caret),
    ("", Operator::Equal),
];

#[derive(Debug, Clone, PartialEq, Eq)]
struct Bound {
    operator: Operator,
    version: Partial,
}

/// A version of which the end may be left open.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Partial {
    major: Option<u64>,
    minor: Option<u64>,
    patch: Option<u64>,
    pre: Prerelease,
}

impl Constraint {
    pub fn allows(&self, version: &Version) -> bool {
        self.alternatives.iter().any(|bounds| {
            let names_one = bounds.iter().any(|bound| !bound.version.pre.is_empty());
            (version.pre.is_empty() || names_one) && bounds.iter().all(|bound| bound.allows(version))
        })
    }
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Constraint {
    type Err = InvalidConstraint;

    fn from_str(text: &str) -> Result<Self, InvalidConstraint> {
        let bad = |why| InvalidConstraint { text: text.chars().take(LONGEST).collect(), why };
        if text.len() > LONGEST {
            return Err(bad("it is too long"));
        }
        let alternatives = text.split("||").map(alternative).collect::<Result<Vec<_>, _>>().map_err(bad)?;
        if alternatives.iter().map(Vec::len).sum::<usize>() > BOUNDS {
            return Err(bad("it has too many bounds"));
        }
        Ok(Self { text: text.trim().to_owned(), alternatives })
    }
}

/// Bounds that all hold, separated by commas or spaces; or a range with a hyphen between two spaces.
fn alternative(text: &str) -> Result<Vec<Bound>, &'static str> {
    let mut bounds = Vec::new();
    for part in text.split(',') {
        match part.split_once(" - ") {
            Some((low, high)) => {
                let bound =
                    |operator, text: &str| Ok::<_, &str>(Bound { operator, version: partial(text.trim())? });
                bounds.push(bound(Operator::GreaterOrEqual, low)?);
                bounds.push(bound(Operator::LessOrEqual, high)?);
            }
            None => spaced(part, &mut bounds)?,
        }
    }
    Ok(bounds)
}

/// Bounds with spaces between them, and perhaps after their operators.
fn spaced(text: &str, bounds: &mut Vec<Bound>) -> Result<(), &'static str> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err("a bound is missing");
    }
    while !rest.is_empty() {
        let (word, operator) =
            OPERATORS.into_iter().find(|(word, _)| rest.starts_with(word)).unwrap_or(("", Operator::Equal));
        let after = rest.get(word.len()..).unwrap_or_default().trim_start();
        let end = after.find(char::is_whitespace).unwrap_or(after.len());
        let (version, next) = after.split_at(end);
        bounds.push(Bound { operator, version: partial(version)? });
        rest = next.trim_start();
    }
    Ok(())
}

fn partial(text: &str) -> Result<Partial, &'static str> {
    let text = text.strip_prefix(['v', 'V']).unwrap_or(text);
    // What was built says nothing about which is newer.
    let text = text.split_once('+').map_or(text, |(version, _)| version);
    let (numbers, pre) = text.split_once('-').unwrap_or((text, ""));
    let pre = Prerelease::new(pre).map_err(|_| "a pre-release is no list of letters, digits and dots")?;
    let parts = numbers.split('.').map(part).collect::<Result<Vec<_>, _>>()?;
    let (major, minor, patch) = match parts.as_slice() {
        [major] => (*major, None, None),
        [major, minor] => (*major, *minor, None),
        [major, minor, patch] => (*major, *minor, *patch),
        _ => return Err("a version has more than three parts"),
    };
    if (major.is_none() && minor.is_some()) || (minor.is_none() && patch.is_some()) {
        return Err("a part follows one that may be anything");
    }
    if !pre.is_empty() && patch.is_none() {
        return Err("a pre-release needs all three parts of its version");
    }
    Ok(Partial { major, minor, patch, pre })
}

/// A number, or none where it may be anything.
fn part(text: &str) -> Result<Option<u64>, &'static str> {
    match text {
        "x" | "X" | "*" => Ok(None),
        "" => Err("a bound has no version"),
        _ => number(text).map(Some).ok_or("a part of a version is no number"),
    }
}

/// Without leading zeros, as versions are written.
fn number(text: &str) -> Option<u64> {
    let is_plain =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'));
    if is_plain { text.parse().ok() } else { None }
}

impl Partial {
    /// With zeros for what is left open.
    fn lowest(&self) -> Version {
        Version {
            major: self.major.unwrap_or(0),
            minor: self.minor.unwrap_or(0),
            patch: self.patch.unwrap_or(0),
            pre: self.pre.clone(),
            build: BuildMetadata::EMPTY,
        }
    }

    /// Whether the version begins with the parts that are said.
    fn covers(&self, version: &Version) -> bool {
        let same = |said: Option<u64>, found: u64| said.is_none_or(|said| said == found);
        same(self.major, version.major)
            && same(self.minor, version.minor)
            && same(self.patch, version.patch)
            && (self.patch.is_none() || self.pre == version.pre)
    }
}

impl Bound {
    fn allows(&self, version: &Version) -> bool {
        let bound = &self.version;
        let order = version.cmp_precedence(&bound.lowest());
        match self.operator {
            Operator::Equal => bound.covers(version) && order != Ordering::Less,
            Operator::NotEqual => !bound.covers(version),
            // `>1` is above all of 1, and `<=1` is up to the last of it.
            Operator::Greater => order == Ordering::Greater && !bound.covers(version),
            Operator::LessOrEqual => order != Ordering::Greater || bound.covers(version),
            Operator::GreaterOrEqual => order != Ordering::Less,
            Operator::Less => order == Ordering::Less,
            Operator::Tilde => order != Ordering::Less && stays_below(version, bound, Step::Minor),
            Operator::Caret => {
                let step = match (bound.major, bound.minor, bound.patch) {
                    (Some(0), Some(0), Some(_)) => Step::Patch,
                    (Some(0), Some(_), _) => Step::Minor,
                    _ => Step::Major,
                };
                order != Ordering::Less && stays_below(version, bound, step)
            }
        }
    }
}

/// The first part that must not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Major,
    Minor,
    Patch,
}

fn stays_below(version: &Version, bound: &Partial, step: Step) -> bool {
    let same = |said: Option<u64>, found: u64| said.is_none_or(|said| said == found);
    same(bound.major, version.major)
        && (step == Step::Major || same(bound.minor, version.minor))
        && (step != Step::Patch || same(bound.patch, version.patch))
}

/// The version that a tag means: `1.2.3`, `v1.2.3`, and also `1.2` and `1`, whose missing parts are zero. Other tags mean none.
pub fn version_of(tag: &str) -> Option<Version> {
    // What no registry may have as a tag must not win over what can be asked for.
    ImageTag::new(tag).ok()?;
    let bare = tag.strip_prefix(['v', 'V']).unwrap_or(tag);
    let (numbers, pre) = bare.split_once('-').unwrap_or((bare, ""));
    if bare.ends_with('-') {
        return None;
    }
    let parts = numbers.split('.').map(number).collect::<Option<Vec<_>>>()?;
    let (major, minor, patch) = match parts.as_slice() {
        [major] => (*major, 0, 0),
        [major, minor] => (*major, *minor, 0),
        [major, minor, patch] => (*major, *minor, *patch),
        _ => return None,
    };
    let pre = Prerelease::new(pre).ok()?;
    Some(Version { major, minor, patch, pre, build: BuildMetadata::EMPTY })
}

/// The tag of the newest version that the constraint allows. Of tags that mean the same version the one that says most of it is taken
/// (`1.2.0` before `1.2`), then the one without `v`, then the first by its text: none of that depends on the registry's order.
pub fn newest<'a>(tags: impl IntoIterator<Item = &'a str>, constraint: &Constraint) -> Option<&'a str> {
    tags.into_iter()
        .filter_map(|tag| Some((version_of(tag)?, tag)))
        .filter(|(version, _)| constraint.allows(version))
        .max_by(|(one, a), (other, b)| {
            one.cmp_precedence(other).then_with(|| preference(b).cmp(&preference(a)))
        })
        .map(|(_, tag)| tag)
}

/// Less is better.
fn preference(tag: &str) -> (usize, bool, &str) {
    let numbers = tag.split('-').next().unwrap_or_default();
    let said = numbers.split('.').count();
    (3_usize.saturating_sub(said), tag.starts_with(['v', 'V']), tag)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn constraint(text: &str) -> Constraint {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn the_dialect_of_masterminds_is_understood() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("~1.0.0", &["1.0.0", "v1.0.7", "1.0"], &["1.1.0", "0.9.9", "2.0.0", "1.0.1-rc.1"]),
            ("~1.2", &["1.2.0", "1.2.9"], &["1.3.0", "1.1.9"]),
            ("~> 1", &["1.0.0", "1.9.0"], &["2.0.0"]),
            ("~1.x", &["1.0.0", "1.9.0"], &["2.0.0"]),
            ("^1.2", &["1.2.0", "1.99.0"], &["2.0.0", "1.1.0"]),
            ("^0.2.3", &["0.2.3", "0.2.9"], &["0.3.0", "0.2.2"]),
            ("^0.0.3", &["0.0.3"], &["0.0.4", "0.0.2"]),
            ("^0.0", &["0.0.0", "0.0.9"], &["0.1.0"]),
            ("^0", &["0.0.1", "0.9.0"], &["1.0.0"]),
            ("1.x", &["1.0.0", "1.7.3"], &["2.0.0", "0.9.0"]),
            ("1.2", &["1.2.0", "1.2.7"], &["1.3.0"]),
            ("v1.2.3", &["1.2.3", "v1.2.3"], &["1.2.4"]),
            ("*", &["0.0.0", "7.1.2"], &["1.0.0-alpha"]),
            (">=1, <2", &["1.0.0", "1.9.9"], &["2.0.0", "0.9.9"]),
            (">= 1.2 < 1.5 != 1.3", &["1.2.0", "1.4.9"], &["1.3.0", "1.3.5", "1.5.0"]),
            (">1", &["2.0.0"], &["1.0.0", "1.9.9"]),
            (">1.2", &["1.3.0"], &["1.2.0", "1.2.9"]),
            (">1.2.3", &["1.2.4"], &["1.2.3"]),
            ("<=1", &["1.9.9", "0.1.0"], &["2.0.0"]),
            ("=<1.2, =>1.1", &["1.2.9", "1.1.0"], &["1.3.0", "1.0.9"]),
            ("1.2 - 1.4.5", &["1.2.0", "1.4.5"], &["1.4.6", "1.1.9"]),
            ("1.2 - 1.4", &["1.4.9"], &["1.5.0"]),
            ("<1 || ^2.1", &["0.3.0", "2.1.0"], &["1.0.0", "2.0.9", "3.0.0"]),
            ("1.0.0-rc.1", &["1.0.0-rc.1"], &["1.0.0", "1.0.0-rc.2"]),
            (">=1.0.0-0, <2", &["1.0.0-alpha", "1.5.0-beta", "1.5.0"], &["2.0.0", "0.9.0-alpha"]),
            ("~1.0.0-0", &["1.0.0-rc.1", "1.0.3"], &["1.1.0"]),
            (">=1.0.0-0 || ^3", &["1.0.0-rc.1", "3.0.0"], &[]),
        ];
        for (text, allowed, refused) in cases {
            let constraint = constraint(text);
            for tag in *allowed {
                assert!(constraint.allows(&version_of(tag).unwrap()), "{text} allows {tag}");
            }
            for tag in *refused {
                assert!(!constraint.allows(&version_of(tag).unwrap()), "{text} refuses {tag}");
            }
        }
    }

    #[test]
    fn what_is_no_constraint_is_refused_with_a_reason() {
        for text in [
            "", " ", "latest", ">=", "1.2.3.4", "1,", "||", "1 ||", "x.1", "1.x.3", "~a", "1.2-rc", "01.2",
            "> > 1",
        ] {
            assert!(text.parse::<Constraint>().is_err(), "{text:?}");
        }
        let error = "latest".parse::<Constraint>().unwrap_err().to_string();
        let words = "\"latest\" is not a constraint on versions: a part of a version is no number; write such as ~1.0.0, ^1.2, 1.x, or >=1.2, <2";
        assert_eq!(error, words);
        assert!(">=1 ".repeat(65).parse::<Constraint>().is_err());
    }

    #[test]
    fn the_newest_tag_is_taken_and_ties_are_broken_by_the_rule() {
        let tags = ["latest", "1.0.0", "v1.0.10", "1.0.9", "1.1.0", "1.0.11-rc.1", "2024.01.01", "1.0"];
        assert_eq!(newest(tags, &constraint("~1.0.0")), Some("v1.0.10"));
        assert_eq!(newest(tags, &constraint("^3")), None);
        let too_long = format!("1.0.99-rc.{}", "1".repeat(128));
        assert_eq!(newest([too_long.as_str(), "1.0.0"], &constraint("~1.0.0-0")), Some("1.0.0"));
        for (tags, chosen) in [
            (["v1.2.0", "1.2.0", "1.2"], "1.2.0"),
            (["1.2", "v1.2", "v1.2.0"], "v1.2.0"),
            (["V1.2.0", "v1.2.0", "v1.2"], "V1.2.0"),
        ] {
            for turn in 0..3 {
                let mut turned = tags;
                turned.rotate_left(turn);
                assert_eq!(newest(turned, &constraint("*")), Some(chosen), "{turned:?}");
            }
        }
    }

    proptest! {
        /// Whatever the order of the list, the same tag is chosen, it is allowed, and none that is allowed is newer.
        #[test]
        fn the_choice_depends_on_the_tags_alone(
            mut tags in proptest::collection::vec("v?[0-3](\\.[0-3]){0,2}(-rc\\.[0-2])?|[a-z]{1,5}", 0..12),
            text in prop::sample::select(vec!["~1.0.0", "^1.2", "1.x", ">=1, <3", "*", "1 - 2", ">=1.0.0-0", "<1 || >2"]),
            turn in 0_usize..12,
        ) {
            let constraint = constraint(text);
            let chosen = newest(tags.iter().map(String::as_str), &constraint).map(str::to_owned);
            if let Some(chosen) = &chosen {
                let version = version_of(chosen).unwrap();
                prop_assert!(constraint.allows(&version));
                for other in tags.iter().filter_map(|tag| version_of(tag)).filter(|v| constraint.allows(v)) {
                    prop_assert!(other.cmp_precedence(&version) != Ordering::Greater);
                }
            } else {
                prop_assert!(!tags.iter().filter_map(|tag| version_of(tag)).any(|v| constraint.allows(&v)));
            }
            let length = tags.len().max(1);
            tags.rotate_left(turn % length);
            prop_assert_eq!(newest(tags.iter().map(String::as_str), &constraint).map(str::to_owned), chosen);
        }

        /// A caret allows whatever a tilde of the same version does, and both allow the version itself.
        #[test]
        fn a_caret_is_wider_than_a_tilde(major in 1_u64..5, minor in 0_u64..5, patch in 0_u64..5, tag in "[0-5]\\.[0-5]\\.[0-5]") {
            let said = format!("{major}.{minor}.{patch}");
            let (tilde, caret) = (constraint(&format!("~{said}")), constraint(&format!("^{said}")));
            let (own, other) = (version_of(&said).unwrap(), version_of(&tag).unwrap());
            prop_assert!(tilde.allows(&own) && caret.allows(&own));
            prop_assert!(!tilde.allows(&other) || caret.allows(&other));
        }

        #[test]
        fn no_text_is_too_much_for_it(text in "\\PC{0,40}", tag in "\\PC{0,20}") {
            if let (Ok(constraint), Some(version)) = (text.parse::<Constraint>(), version_of(&tag)) {
                constraint.allows(&version);
            }
        }
    }
}
