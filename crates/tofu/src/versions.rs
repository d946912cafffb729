//! Versions and constraints in Terraform's dialect. Pure. `~> 1.2` means "at least 1.2, below 2", and a pre-release
//! satisfies only a constraint that names one.

use std::fmt;
use std::str::FromStr;

use semver::Version;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not a version constraint such as \"1.9.8\", \">= 1.5, < 2\" or \"~> 1.9\"")]
pub struct Error {
    pub value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Pessimistic,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Condition {
    operator: Operator,
    version: Version,
    /// How many numbers were written; it decides what `~>` holds fixed.
    precision: usize,
}

/// Conditions that must all hold; none at all is satisfied by everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Constraint {
    conditions: Vec<Condition>,
    text: String,
}

/// Reads a version with or without a leading `v`; missing numbers are zero.
pub fn parse_version(text: &str) -> Option<Version> {
    parse_with_precision(text).map(|(version, _)| version)
}

fn parse_with_precision(text: &str) -> Option<(Version, usize)> {
    let text = text.trim();
    let text = text.strip_prefix('v').unwrap_or(text);
    let split = text.find(['-', '+']).unwrap_or(text.len());
    let (numbers, rest) = text.split_at(split);
    let mut parts = [0u64; 3];
    let mut count = 0usize;
    for number in numbers.split('.') {
        let well_formed = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let slot = parts.get_mut(count)?;
        *slot = well_formed.then(|| number.parse().ok()).flatten()?;
        count += 1;
    }
    let [major, minor, patch] = parts;
    let version = Version::parse(&format!("{major}.{minor}.{patch}{rest}")).ok()?;
    Some((version, count))
}

impl FromStr for Constraint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = || Error { value: text.to_owned() };
        let mut conditions = Vec::new();
        if text.len() > 1024 {
            return Err(bad());
        }
        for part in text.split(',').map(str::trim) {
            let (operator, rest) = [
                ("!=", Operator::NotEqual),
                (">=", Operator::GreaterOrEqual),
                ("<=", Operator::LessOrEqual),
                ("~>", Operator::Pessimistic),
                ("=", Operator::Equal),
                (">", Operator::Greater),
                ("<", Operator::Less),
            ]
            .into_iter()
            .find_map(|(sign, operator)| part.strip_prefix(sign).map(|rest| (operator, rest)))
            .unwrap_or((Operator::Equal, part));
            let (version, precision) = parse_with_precision(rest).ok_or_else(bad)?;
            conditions.push(Condition { operator, version, precision });
        }
        Ok(Self { conditions, text: text.trim().to_owned() })
    }
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.text.is_empty() { "any version" } else { &self.text })
    }
}

impl Constraint {
    pub fn is_satisfied_by(&self, version: &Version) -> bool {
        self.conditions.iter().all(|condition| condition.holds(version))
    }

    /// The one version that can satisfy it, where a condition names it in full.
    pub fn exact(&self) -> Option<&Version> {
        let named = self.conditions.iter().find(|condition| {
            condition.precision == 3
                && match condition.operator {
                    Operator::Equal => true,
                    Operator::NotEqual
                    | Operator::Greater
                    | Operator::GreaterOrEqual
                    | Operator::Less
                    | Operator::LessOrEqual
                    | Operator::Pessimistic => false,
                }
        });
        named.map(|condition| &condition.version).filter(|version| self.is_satisfied_by(version))
    }

    /// Both constraints at once.
    pub fn and(mut self, other: Self) -> Self {
        self.conditions.extend(other.conditions);
        self.text = match (self.text.is_empty(), other.text.is_empty()) {
            (true, _) => other.text,
            (false, true) => self.text,
            (false, false) => format!("{}, {}", self.text, other.text),
        };
        self
    }
}

impl Condition {
    fn holds(&self, version: &Version) -> bool {
        let order = version.cmp_precedence(&self.version);
        match self.operator {
            Operator::Equal => order.is_eq(),
            Operator::NotEqual => order.is_ne(),
            Operator::Greater => self.admits_prerelease(version) && order.is_gt(),
            Operator::GreaterOrEqual => self.admits_prerelease(version) && order.is_ge(),
            Operator::Less => self.admits_prerelease(version) && order.is_lt(),
            Operator::LessOrEqual => self.admits_prerelease(version) && order.is_le(),
            Operator::Pessimistic => {
                self.admits_prerelease(version) && order.is_ge() && self.same_beginning(version)
            }
        }
    }

    /// A pre-release is only meant by a condition that names a pre-release of the same version.
    fn admits_prerelease(&self, version: &Version) -> bool {
        let numbers = |version: &Version| (version.major, version.minor, version.patch);
        version.pre.is_empty() || (!self.version.pre.is_empty() && numbers(version) == numbers(&self.version))
    }

    /// All numbers but the last one written stay as they are.
    fn same_beginning(&self, version: &Version) -> bool {
        let pairs = [(version.major, self.version.major), (version.minor, self.version.minor)];
        pairs.iter().take(self.precision.saturating_sub(1)).all(|(left, right)| left == right)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn constraints_mean_what_terraform_means() {
        let table = [
            ("1.9.8", "1.9.8", true),
            ("1.9.8", "1.9.9", false),
            ("= 1.9", "1.9.0", true),
            ("!= 1.9.0", "1.9.0", false),
            (">= 1.5, < 2.0", "1.11.4", true),
            (">= 1.5, < 2.0", "2.0.0", false),
            ("~> 1.2", "1.2.0", true),
            ("~> 1.2", "1.9.9", true),
            ("~> 1.2", "2.0.0", false),
            ("~> 1.2", "1.1.9", false),
            ("~> 1.2.3", "1.2.9", true),
            ("~> 1.2.3", "1.3.0", false),
            ("~> 1.2.0", "1.3.0", false),
            ("~>1.2.3", "1.2.3", true),
            ("~> 1", "1.5.0", true),
            (">= 1.5", "1.6.0-beta1", false),
            (">= 1.6.0-alpha", "1.6.0-beta1", true),
            ("> 1.0", "v1.0.1", true),
            ("<= 1.4.6", "1.4.6", true),
        ];
        for (constraint, version, expected) in table {
            let constraint: Constraint = constraint.parse().unwrap();
            assert_eq!(
                constraint.is_satisfied_by(&parse_version(version).unwrap()),
                expected,
                "{constraint} against {version}"
            );
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in
            ["", "latest", ">=", "1.2.3.4", "~> x", "1..2", ">= 1.0,", "=> 1", "1.2-", &"1,".repeat(2000)]
        {
            assert!(bad.parse::<Constraint>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_exact_version_is_known_without_a_list() {
        for (constraint, exact) in [
            ("1.9.8", Some("1.9.8")),
            ("= v1.9.8", Some("1.9.8")),
            ("1.9.8, >= 1.5", Some("1.9.8")),
            ("1.9.8, < 1.5", None),
            ("~> 1.9", None),
            (">= 1.9.8", None),
        ] {
            let parsed: Constraint = constraint.parse().unwrap();
            assert_eq!(parsed.exact().map(ToString::to_string).as_deref(), exact, "{constraint}");
        }
        assert_eq!(Constraint::default().exact(), None);
    }

    #[test]
    fn constraints_add_up() {
        let both = "~> 1.5".parse::<Constraint>().unwrap().and("!= 1.6.0".parse().unwrap());
        assert_eq!(both.to_string(), "~> 1.5, != 1.6.0");
        assert!(!both.is_satisfied_by(&parse_version("1.6.0").unwrap()));
        assert_eq!(Constraint::default().to_string(), "any version");
    }
}
