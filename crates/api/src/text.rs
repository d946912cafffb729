//! Strings that cannot hold a bad value. Each checks the same rule twice: here when it is made, and in the CRD's schema by
//! pattern and length, so that the API server refuses what the code would refuse.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a text was refused: which kind of text, what it was, what is expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not {expected}")]
pub struct Error {
    pub value: String,
    pub expected: &'static str,
}

/// Declares a checked string. `pattern` is for the schema, `accepts` is the same rule in code.
macro_rules! text {
    ($(#[$meta:meta])* $name:ident, $expected:literal, max $max:literal, pattern $pattern:literal, accepts $accepts:expr) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            pub fn new(value: impl Into<String>) -> Result<Self, Error> {
                let value = value.into();
                let accepts: fn(&str) -> bool = $accepts;
                if value.len() <= $max && accepts(&value) {
                    Ok(Self(value))
                } else {
                    Err(Error { value, expected: $expected })
                }
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;
            fn from_str(value: &str) -> Result<Self, Error> {
                Self::new(value)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn inline_schema() -> bool {
                true
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "minLength": 1, "maxLength": $max, "pattern": $pattern })
            }
        }
    };
}

fn lower_hex(value: &str) -> bool {
    value.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

text!(
    /// A sha256 in lower-case hex.
    Sha256, "a sha256 in 64 lower-case hex digits", max 64, pattern "^[0-9a-f]{64}$",
    accepts |v| v.len() == 64 && lower_hex(v)
);

impl Sha256 {
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest;
        Self(hex::encode(sha2::Sha256::digest(bytes)))
    }

    /// The first twelve digits: enough to tell plans apart on a screen.
    pub fn short(&self) -> &str {
        self.0.get(..12).unwrap_or(&self.0)
    }
}

text!(
    /// A full commit id, sha1 or sha256.
    CommitId, "a commit id of 40 or 64 lower-case hex digits", max 64, pattern "^([0-9a-f]{40}|[0-9a-f]{64})$",
    accepts |v| (v.len() == 40 || v.len() == 64) && lower_hex(v)
);

impl CommitId {
    pub fn short(&self) -> &str {
        self.0.get(..7).unwrap_or(&self.0)
    }
}

text!(
    /// The name of a Kubernetes object (an RFC 1123 subdomain).
    ObjectName, "an object name: lower-case letters, digits, '-' and '.', starting and ending with a letter or digit",
    max 253, pattern "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
    accepts |v| {
        let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let bytes = v.as_bytes();
        edge(bytes.first()) && edge(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.'))
    }
);

text!(
    /// A branch, or a full ref such as `refs/tags/v1`. Never starts with a dash, so it can never be read as an option.
    RefName, "a branch name, or a full ref such as refs/tags/v1",
    max 244, pattern "^[A-Za-z0-9_][A-Za-z0-9_.+@#=/-]*$",
    accepts |v| {
        let first = v.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
        first
            && v.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.+@#=/-".contains(&b))
            && !["..", "//", "@{"].iter().any(|bad| v.contains(bad))
            && !v.ends_with('/') && !v.ends_with('.') && !v.ends_with(".lock")
    }
);

impl RefName {
    /// The ref as git stores it: a bare name is a branch.
    pub fn full(&self) -> String {
        if self.0.starts_with("refs/") { self.0.clone() } else { format!("refs/heads/{}", self.0) }
    }
}

text!(
    /// A directory inside a repository, relative, without `..`. `.` is the repository's root.
    LayerPath, "a relative path inside the repository, without '..' or a leading '/' or '-'",
    max 1024, pattern "^[A-Za-z0-9_.][A-Za-z0-9_. +@=,/-]*$",
    accepts |v| {
        v.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b"_.".contains(&b))
            && v.bytes().all(|b| b.is_ascii_alphanumeric() || b"_. +@=,/-".contains(&b))
            && (v == "." || v.trim_end_matches('/').split('/').all(|part| !matches!(part, "" | "." | ".." | ".git")))
    }
);

impl LayerPath {
    /// The path without a trailing slash; empty for the repository's root.
    pub fn trimmed(&self) -> &str {
        if self.0 == "." { "" } else { self.0.trim_end_matches('/') }
    }
}

text!(
    /// A workspace of the tool.
    Workspace, "a workspace name of letters, digits, '_', '.' and '-'", max 90, pattern "^[A-Za-z0-9_][A-Za-z0-9_.-]*$",
    accepts |v| v.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_')
        && v.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
);

impl Default for Workspace {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

text!(
    /// Where a repository is: `https://`, `ssh://`, `git@host:path`, or `file:///` where the administrator allows it. Holds no credentials.
    GitUrl, "a repository URL (https://…, ssh://…, git@host:path or file:///…) without a password in it",
    max 2048, pattern "^(https://|ssh://|file:///|[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:)[^\\s\\x00-\\x1f-][^\\s\\x00-\\x1f]*$",
    accepts accepts_git_url
);

fn accepts_git_url(url: &str) -> bool {
    if url.bytes().any(|b| b.is_ascii_whitespace() || b.is_ascii_control()) {
        return false;
    }
    let starts_plainly = |rest: &str| rest.bytes().next().is_some_and(|b| b != b'-');
    if let Some(rest) = url.strip_prefix("https://") {
        // Whatever stands before an '@' in the authority would be sent as a credential and shown in status and logs.
        return starts_plainly(rest) && !rest.split('/').next().unwrap_or("").contains('@');
    }
    if let Some(rest) = url.strip_prefix("ssh://") {
        let user = rest.split('/').next().unwrap_or("").split_once('@').map(|(user, _)| user);
        let host = rest.split('/').next().unwrap_or("").rsplit('@').next().unwrap_or("");
        return starts_plainly(rest) && starts_plainly(host) && user.is_none_or(|user| !user.contains(':'));
    }
    if let Some(rest) = url.strip_prefix("file://") {
        return rest.starts_with('/') && !rest.starts_with("/-");
    }
    let Some((authority, path)) = url.split_once(':') else { return false };
    let Some((user, host)) = authority.split_once('@') else { return false };
    let word = |w: &str| {
        w.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
            && w.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
    };
    word(user) && word(host) && starts_plainly(path)
}

impl GitUrl {
    pub fn is_file(&self) -> bool {
        self.0.starts_with("file://")
    }
}

/// A span of time as people write it in Kubernetes: `30s`, `5m`, `1h30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(Duration);

/// A year: longer spans are mistakes, and would overflow date arithmetic further on.
const SPAN_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

impl Span {
    pub const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    pub const fn get(self) -> Duration {
        self.0
    }
}

impl FromStr for Span {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = || Error {
            value: text.to_owned(),
            expected: "a duration such as 30s, 5m or 1h30m, at most a year",
        };
        let mut total = Duration::ZERO;
        let mut rest = text;
        if rest.is_empty() {
            return Err(bad());
        }
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, tail) = rest.split_at(digits);
            let number: u64 = number.parse().map_err(|_| bad())?;
            let (unit, tail) = match tail {
                t if t.starts_with("ms") => (Duration::from_millis(number), t.get(2..)),
                t if t.starts_with('s') => (Duration::from_secs(number), t.get(1..)),
                t if t.starts_with('m') => (Duration::from_secs(number.saturating_mul(60)), t.get(1..)),
                t if t.starts_with('h') => (Duration::from_secs(number.saturating_mul(3600)), t.get(1..)),
                _ => return Err(bad()),
            };
            total = total.saturating_add(unit);
            rest = tail.unwrap_or("");
        }
        if total > SPAN_MAX { Err(bad()) } else { Ok(Self(total)) }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.subsec_millis();
        let secs = self.0.as_secs();
        let (hours, minutes, seconds) = (secs / 3600, secs / 60 % 60, secs % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        if seconds > 0 || (secs == 0 && millis == 0) {
            write!(f, "{seconds}s")?;
        }
        if millis > 0 {
            write!(f, "{millis}ms")?;
        }
        Ok(())
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "minLength": 2, "maxLength": 32, "pattern": "^([0-9]{1,9}(ms|s|m|h))+$" })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn check<T: FromStr>(good: &[&str], bad: &[&str]) {
        for text in good {
            assert!(text.parse::<T>().is_ok(), "{text:?} should be accepted");
        }
        for text in bad {
            assert!(text.parse::<T>().is_err(), "{text:?} should be refused");
        }
    }

    #[test]
    fn refs_cannot_be_options_or_ranges() {
        check::<RefName>(
            &["main", "release/1.2", "refs/tags/v1", "feature_x#3"],
            &["", "-upload-pack=x", "a..b", "a b", "main/", "x.lock", "a@{1}", "a\nb"],
        );
    }

    #[test]
    fn paths_stay_inside_the_repository() {
        check::<LayerPath>(
            &[".", "envs/prod", "a b/c", "envs/prod/"],
            &["", "/etc", "../x", "a/../b", "a//b", "-x", ".git", "a/.git/b", "a\0b"],
        );
    }

    #[test]
    fn urls_hold_no_credentials_and_no_helpers() {
        check::<GitUrl>(
            &["https://host/a.git", "ssh://git@host:22/a", "git@host:a/b.git", "file:///srv/a"],
            &[
                "",
                "https://user:secret@host/a",
                "https://token@host/a",
                "ssh://git:pw@host/a",
                "ssh://-oProxyCommand=x/a",
                "ext::sh -c id",
                "file://host/a",
                "-x@host:a",
                "git@host:-x",
                "http://host/a",
                "/srv/a",
            ],
        );
    }

    #[test]
    fn spans_read_and_write_the_same() {
        for text in ["30s", "5m", "1h30m", "250ms", "1h0m1s"] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.to_string().parse::<Span>().unwrap(), span);
        }
        check::<Span>(&["1s", "0s"], &["", "5", "1d", "-1s", "99999999999h", "1h junk"]);
    }

    #[test]
    fn digests_are_exact() {
        check::<Sha256>(&[Sha256::of(b"x").as_str()], &["", "abc", &"A".repeat(64), &"0".repeat(63)]);
        check::<CommitId>(&[&"0".repeat(40), &"a".repeat(64)], &["HEAD", &"0".repeat(41)]);
    }
}
