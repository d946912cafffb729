//! Strings that cannot hold a bad value. Each has one rule, which the code checks when it is made and the CRD's schema repeats word for
//! word, so that the API server refuses what the code would refuse: an object that was accepted can be read.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use regex::Regex;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a text was refused: which kind of text, what it was, what is expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not {expected}")]
pub struct Error {
    pub value: String,
    pub expected: &'static str,
}

/// The expressions of one kind of text, compiled when first used. One that does not compile accepts nothing.
#[derive(Debug)]
struct Rule {
    form: Option<Regex>,
    never: Option<Regex>,
}

impl Rule {
    fn new(form: &str, never: Option<&str>) -> Self {
        Self { form: Regex::new(form).ok(), never: never.and_then(|never| Regex::new(never).ok()) }
    }

    fn accepts(&self, value: &str) -> bool {
        let is_bad = |never: &Regex| never.is_match(value);
        self.form.as_ref().is_some_and(|form| form.is_match(value))
            && !self.never.as_ref().is_some_and(is_bad)
    }
}

/// The schema of a text: what its rule says, in the words of the API server, which counts characters and not bytes.
fn schema(expected: &str, max: usize, form: &str, never: Option<&str>) -> Schema {
    let mut schema = json_schema!({ "type": "string", "minLength": 1, "maxLength": max, "pattern": form });
    if let Some(never) = never {
        let rule = serde_json::json!({
            "rule": format!("!self.matches('{never}')"), "message": format!("must be {expected}"),
        });
        schema.insert("x-kubernetes-validations".to_owned(), serde_json::json!([rule]));
    }
    schema
}

/// Declares a checked string: what it looks like (`form`) and what must not be found in it (`never`). Both are written so that Go's
/// and Rust's expressions mean the same: no `\s`, `\w` or `\d`.
macro_rules! text {
    ($(#[$meta:meta])* $name:ident, $expected:literal, max $max:literal, form $form:literal $(, never $never:literal)?) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            const NEVER: Option<&'static str> = {
                let never: Option<&'static str> = None;
                $(let never = { let _ = never; Some($never) };)?
                never
            };

            pub fn new(value: impl Into<String>) -> Result<Self, Error> {
                static RULE: OnceLock<Rule> = OnceLock::new();
                let value = value.into();
                let rule = RULE.get_or_init(|| Rule::new($form, Self::NEVER));
                // Bytes first: they are at least as many as characters, and there may be very many.
                if value.len() <= 4 * $max && value.chars().count() <= $max && rule.accepts(&value) {
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
                schema($expected, $max, $form, Self::NEVER)
            }
        }
    };
}

text!(
    /// A sha256 in lower-case hex.
    Sha256, "a sha256 in 64 lower-case hex digits", max 64, form "^[0-9a-f]{64}$"
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
    /// A full commit id, sha1 or sha256; of code that is an image, the digits of its digest.
    CommitId, "a commit id of 40 or 64 lower-case hex digits", max 64, form "^([0-9a-f]{40}|[0-9a-f]{64})$"
);

impl CommitId {
    pub fn short(&self) -> &str {
        self.0.get(..7).unwrap_or(&self.0)
    }
}

text!(
    /// The name of a Kubernetes object (an RFC 1123 subdomain).
    ObjectName, "an object name: lower-case letters, digits, '-' and '.', starting and ending with a letter or digit",
    max 253, form "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
);

text!(
    /// A branch, or a full ref such as `refs/tags/v1`. Never starts with a dash, so it can never be read as an option.
    RefName, "a branch name, or a full ref such as refs/tags/v1",
    max 244,
    form "^[A-Za-z0-9_][A-Za-z0-9_+@#=-]*([.][A-Za-z0-9_+@#=-]+)*(/[A-Za-z0-9_+@#=-]+([.][A-Za-z0-9_+@#=-]+)*)*$",
    never "[.]lock(/|$)"
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
    max 1024, form "^[A-Za-z0-9_.][A-Za-z0-9_. +@=,/-]*$",
    never "(^|/)([.][.]|[.]git)(/|$)|^[.]/|/[.](/|$)|//"
);

impl LayerPath {
    /// The path without a trailing slash; empty for the repository's root.
    pub fn trimmed(&self) -> &str {
        if self.0 == "." { "" } else { self.0.trim_end_matches('/') }
    }
}

text!(
    /// A file inside a repository, relative, without `..`.
    FilePath, "the relative path of a file inside the repository, without '..' or a leading '/' or '-'",
    max 1024, form "^[A-Za-z0-9_.][A-Za-z0-9_. +@=,/-]*$",
    never "(^|/)([.][.]?|[.]git)(/|$)|//|/$"
);

text!(
    /// Paths inside a repository: a directory or file, or a pattern in which `*` stays within a directory and `**` does not.
    PathGlob, "a relative path or pattern inside the repository, without '..' or a leading '/'",
    max 1024, form "^[A-Za-z0-9_.*?][A-Za-z0-9_. +@=,/*?-]*$",
    never "(^|/)([.][.]|[.]git)(/|$)|^[.](/|$)|/[.](/|$)|//"
);

text!(
    /// A variable of a root module.
    VariableName, "a variable name of letters, digits, '_' and '-', starting with a letter or '_'", max 128,
    form "^[A-Za-z_][A-Za-z0-9_-]*$"
);

text!(
    /// A variable of the environment that a layer may set: none of those that the runner itself is told by.
    EnvironmentName, "the name of an environment variable: letters, digits and '_', not starting with a digit or TERRANE_", max 128,
    form "^[A-Za-z_][A-Za-z0-9_]*$",
    never "^TERRANE_"
);

text!(
    /// An image, as a pod names it.
    ImageName, "the name of an image, such as registry.example.org/runner:1", max 512,
    form "^[A-Za-z0-9][A-Za-z0-9._/:@-]*$"
);

text!(
    /// The name of an image without a tag, with or without its registry's host.
    ImageRepository, "the name of an image without a tag, such as team/code or registry.example.org/team/code", max 255,
    form "^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$"
);

text!(
    /// Whose registry an image is in: a word, or a host.
    RegistryProvider, "docker, ghcr, or the host of a registry", max 255,
    form "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?$"
);

text!(
    /// A tag of an image.
    ImageTag, "a tag of an image: letters, digits, '_', '.' and '-'", max 128, form "^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
);

text!(
    /// What an image is, whatever its tags say.
    ImageDigest, "the digest of an image: sha256: and 64 lower-case hex digits", max 71, form "^sha256:[0-9a-f]{64}$"
);

text!(
    /// An image that others are built on, by what it is.
    BaseImage, "an image by its digest, such as registry.example.org/team/base@sha256: and 64 lower-case hex digits", max 330,
    form "^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*@sha256:[0-9a-f]{64}$"
);

text!(
    /// Which versions are wanted.
    VersionConstraint, "a constraint on versions, such as ~1.0.0, ^1.2, 1.x or >=1.2, <2", max 256,
    form "^[0-9A-Za-z.,|<>=!~^*+ -]+$"
);

text!(
    /// Where a container sees a volume.
    MountPath, "an absolute path of letters, digits and ._~@+-, without '.' and '..' as parts", max 512,
    form "^(/[A-Za-z0-9._~@+-]+)+$",
    never "/[.][.]?(/|$)"
);

text!(
    /// One more argument of the tool: a flag, or a flag with its value.
    ToolArgument, "one argument of the tool in one word, such as -parallelism=5", max 256,
    form "^--?[a-z][a-z-]*(=[!-~]*)?$"
);

impl ToolArgument {
    /// The flag without its dashes, and its value.
    pub fn parts(&self) -> (&str, Option<&str>) {
        let flag = self.0.trim_start_matches('-');
        match flag.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (flag, None),
        }
    }
}

text!(
    /// What a hook's output is known by.
    OutputName, "a name of letters, digits, '_' and '-', starting with a letter", max 63,
    form "^[A-Za-z][A-Za-z0-9_-]*$"
);

text!(
    /// What a generated backend is known by.
    ProviderName, "the name of a backend: lower-case letters, digits, '_' and '-', starting with a letter", max 63,
    form "^[a-z][a-z0-9_-]*$"
);

text!(
    /// A field that a generated backend takes: none of those that every backend has.
    FieldName, "the name of a field: letters, digits and '_', starting with a letter, and neither provider nor credentials", max 63,
    form "^[A-Za-z][A-Za-z0-9_]*$",
    never "^(provider|credentials)$"
);

text!(
    /// A key in the data of a Secret or ConfigMap.
    DataKey, "a key of letters, digits, '_', '.' and '-'", max 253,
    form "^[A-Za-z0-9_.-]+$",
    never "^[.][.]?$"
);

text!(
    /// A workspace of the tool.
    Workspace, "a workspace name of letters, digits, '_', '.' and '-'", max 90,
    form "^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
);

impl Default for Workspace {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

text!(
    /// Where a repository is: `https://`, `ssh://`, `git@host:path`, or `file:///` where the administrator allows it. Holds no credentials.
    GitUrl, "a repository URL (https://…, ssh://…, git@host:path or file:///…) without a password in it",
    max 2048,
    // Whatever stands before an '@' in the authority of https would be sent as a credential and shown in status and logs.
    form "^(https://[A-Za-z0-9\\[][^/@\\x00-\\x20\\x7f]*(/[^\\x00-\\x20\\x7f]*)?|ssh://([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9\\[][^/@\\x00-\\x20\\x7f]*(/[^\\x00-\\x20\\x7f]*)?|file:///[^-\\x00-\\x20\\x7f][^\\x00-\\x20\\x7f]*|[A-Za-z0-9][A-Za-z0-9_.-]*@[A-Za-z0-9][A-Za-z0-9_.-]*:[^-\\x00-\\x20\\x7f][^\\x00-\\x20\\x7f]*)$"
);

impl GitUrl {
    pub fn is_file(&self) -> bool {
        self.0.starts_with("file://")
    }
}

text!(
    /// Where a mail goes or comes from: of plain ASCII, without a name, quotes or comments. It can stand in a mail's head and in what a server
    /// is told as it is: there is no blank and no end of a line in it.
    MailAddress, "a mail address such as team@example.org: letters, digits and any of .!#$%&'*+/=?^_`{|}~- before the '@', a host behind it",
    max 254,
    form "^[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+([.][A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?([.][A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$"
);

impl MailAddress {
    /// What stands behind the '@'.
    pub fn domain(&self) -> &str {
        self.0.rsplit_once('@').map_or("", |(_, domain)| domain)
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
        json_schema!({
            "type": "string", "minLength": 2, "maxLength": 32, "pattern": "^([0-9]{1,9}(ms|s|m|h))+$",
            "x-kubernetes-validations": [{ "rule": "duration(self) <= duration('8784h')", "message": "must be at most a year" }],
        })
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
            &[
                "",
                "-upload-pack=x",
                "a..b",
                "a b",
                "main/",
                "x.lock",
                "a.lock/b",
                "a/.b",
                "a//b",
                "a@{1}",
                "a\nb",
                "main\n",
            ],
        );
    }

    #[test]
    fn paths_stay_inside_the_repository() {
        check::<LayerPath>(
            &[".", "envs/prod", "a b/c", "envs/prod/", ".hidden", "a.git/b", "a...b"],
            &[
                "", "/etc", "../x", "a/../b", "a//b", "a//", "./a", "a/.", "./", "-x", ".git", "a/.git/b",
                "a\0b",
            ],
        );
    }

    #[test]
    fn patterns_of_paths_stay_inside_the_repository() {
        check::<PathGlob>(
            &["vars/*.tfvars", "**/shared.yaml", "modules/", "a?.tf", "envs/prod"],
            &[
                "",
                ".",
                "./a",
                "/etc/*",
                "../*",
                "a/../*",
                "-x",
                ":(top)x",
                "a[b]",
                "a//b",
                ".git/config",
                "!x",
            ],
        );
    }

    #[test]
    fn addresses_of_mail_can_stand_in_a_head_and_in_a_command() {
        check::<MailAddress>(
            &["ann@example.org", "a.b+c@x", "o'neill_1=2@EXAMPLE.co.uk", "a@1.2.3.4"],
            &[
                "",
                "ann",
                "@example.org",
                "ann@",
                "ann@example.org\n",
                "ann@example.org\r\nRCPT TO:<eve@example.org>",
                "ann@example.org>",
                "<ann@example.org>",
                "Ann <ann@example.org>",
                "ann@example.org,eve@example.org",
                "ann b@example.org",
                "\"ann b\"@example.org",
                "ann(b)@example.org",
                ".ann@example.org",
                "ann..b@example.org",
                "ann@-example.org",
                "ann@example..org",
                "ann@[127.0.0.1]",
                "ann@eve@example.org",
                "änn@example.org",
            ],
        );
        assert_eq!(MailAddress::new("ann@example.org").unwrap().domain(), "example.org");
    }

    #[test]
    fn urls_hold_no_credentials_and_no_helpers() {
        check::<GitUrl>(
            &["https://host/a.git", "ssh://git@host:22/a", "git@host:a/b.git", "file:///srv/a"],
            &[
                "",
                "https:///a",
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
