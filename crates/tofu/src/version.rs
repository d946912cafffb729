//! Version constraints in Terraform's dialect. It differs from that of other tools: `~> 1.2` allows 1.9, and a pre-release is
//! taken only by a constraint that names one.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use semver::{Prerelease, Version};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a version constraint; write for example 1.9.8, \">= 1.5, < 2.0\" or \"~> 1.9\"")]
pub struct Error {
    pub text: String,
}

/// All parts must hold, such as `>= 1.5, < 2.0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    operator: Operator,
    version: Version,
    /// How many numbers were written: `~> 1.2` and `~> 1.2.0` differ.
    written: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    Pessimistic,
}

impl Constraint {
    pub fn allows(&self, version: &Version) -> bool {
        self.parts.iter().all(|part| part.allows(version))
    }
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Constraint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = || Error { text: text.to_owned() };
        let parts: Option<Vec<Part>> = text.split(',').map(|part| Part::parse(part.trim())).collect();
        Ok(Self { text: text.trim().to_owned(), parts: parts.ok_or_else(bad)? })
    }
}

impl Part {
    fn parse(text: &str) -> Option<Self> {
        const OPERATORS: [(&str, Operator); 7] = [
            (">=", Operator::GreaterEqual),
            ("<=", Operator::LessEqual),
            ("!=", Operator::NotEqual),
            ("~>", Operator::Pessimistic),
            (">", Operator::Greater),
            ("<", Operator::Less),
            ("=", Operator::Equal),
        ];
        let (operator, rest) = OPERATORS
            .iter()
            .find_map(|(sign, operator)| Some((*operator, text.strip_prefix(sign)?)))
            .unwrap_or((Operator::Equal, text));
        let (version, written) = parse(rest.trim())?;
        Some(Self { operator, version, written })
    }

    fn allows(&self, version: &Version) -> bool {
        let order = version.cmp_precedence(&self.version);
        let comparable = comparable(version, &self.version);
        match self.operator {
            Operator::Equal => order == Ordering::Equal,
            Operator::NotEqual => order != Ordering::Equal,
            Operator::Greater => comparable && order == Ordering::Greater,
            Operator::GreaterEqual => comparable && order != Ordering::Less,
            Operator::Less => comparable && order == Ordering::Less,
            Operator::LessEqual => comparable && order != Ordering::Greater,
            Operator::Pessimistic => {
                comparable && order != Ordering::Less && {
                    let fixed = self.written.saturating_sub(1);
                    numbers(version).iter().zip(numbers(&self.version)).take(fixed).all(|(a, b)| *a == b)
                }
            }
        }
    }
}

/// A pre-release is compared only with a constraint on a pre-release of the same version.
fn comparable(version: &Version, bound: &Version) -> bool {
    match (version.pre.is_empty(), bound.pre.is_empty()) {
        (true, _) => true,
        (false, true) => false,
        (false, false) => numbers(version) == numbers(bound),
    }
}

fn numbers(version: &Version) -> [u64; 3] {
    [version.major, version.minor, version.patch]
}

/// A version of one to three numbers, with or without a leading `v`, and how many numbers were written.
fn parse(text: &str) -> Option<(Version, usize)> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let (base, pre) = text.split_once('-').map_or((text, None), |(base, pre)| (base, Some(pre)));
    let written: Option<Vec<u64>> = base.split('.').map(|n| n.parse().ok()).collect();
    let written = written.filter(|numbers| (1..=3).contains(&numbers.len()))?;
    let number = |index: usize| written.get(index).copied().unwrap_or_default();
    let mut version = Version::new(number(0), number(1), number(2));
    if let Some(pre) = pre {
        version.pre = Prerelease::new(pre).ok()?;
    }
    Some((version, written.len()))
}

/// What a tool says of itself.
pub fn parse_version(text: &str) -> Option<Version> {
    parse(text.trim()).map(|(version, _)| version)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(constraint: &str, allowed: &[&str], refused: &[&str]) {
        let constraint: Constraint = constraint.parse().unwrap();
        for version in allowed {
            assert!(
                constraint.allows(&parse_version(version).unwrap()),
                "{constraint} should allow {version}"
            );
        }
        for version in refused {
            assert!(
                !constraint.allows(&parse_version(version).unwrap()),
                "{constraint} should refuse {version}"
            );
        }
    }

    #[test]
    fn means_what_terraform_means() {
        check("~> 1.2", &["1.2.0", "1.9.9"], &["1.1.9", "2.0.0"]);
        check("~> 1.2.3", &["1.2.3", "1.2.9"], &["1.3.0", "1.2.2"]);
        check("~> 1", &["1.0.0", "2.5.0"], &["0.15.5"]);
        check(">= 1.5, < 2.0", &["1.5.0", "1.11.4"], &["1.4.9", "2.0.0"]);
        check("1.9.8", &["1.9.8"], &["1.9.7", "1.9.8-rc1"]);
        check("!= 1.9.8", &["1.9.7"], &["1.9.8"]);
        check("v1.9", &["1.9.0"], &["1.9.1"]);
        check(">= 1.0", &["1.9.0"], &["1.9.0-beta1"]);
        check(">= 1.9.0-beta1", &["1.9.0-beta2", "1.9.0", "1.10.0"], &["1.10.0-beta1"]);
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for text in ["", "latest", ">= ", "1.2.3.4", "~> x", "1.2,,", ">> 1"] {
            let error = text.parse::<Constraint>().unwrap_err().to_string();
            assert!(error.contains("~> 1.9"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,60}") {
            let _ = text.parse::<Constraint>();
        }

        #[test]
        fn pessimistic_keeps_all_but_the_last_number(a in 0_u64..9, b in 0_u64..9, c in 0_u64..9, x in 0_u64..9, y in 0_u64..9, z in 0_u64..9) {
            let constraint: Constraint = format!("~> {a}.{b}.{c}").parse().unwrap();
            prop_assert_eq!(constraint.allows(&Version::new(x, y, z)), x == a && y == b && z >= c);
        }
    }
}
