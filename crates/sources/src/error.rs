//! What can go wrong with a source, told so that the owner of the repository knows what to do. Classifying git's
//! own words happens here and nowhere else; running git does not.

use std::time::Duration;

use crate::limits::readable;

/// Whether waiting can help. The controllers map this to a requeue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The other side or the network; the same request may succeed later.
    Transient,
    /// Somebody has to change a URL, a Secret or the repository first.
    Invalid,
    /// Our own machine: disk, process table, a git that is missing.
    Local,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{url} refused the credentials; check that the Secret of this repository is present, not expired, and may read it"
    )]
    Unauthorised { url: String },
    #[error(
        "{url} was not found; check the URL, and that the credentials may read it (forges answer \"not found\" to strangers)"
    )]
    NotFound { url: String },
    #[error("{url} could not be reached: {detail}; it is tried again")]
    Unreachable { url: String, detail: String },
    #[error(
        "the host key of {url} is not the one that is known; compare its fingerprint with the forge's and put it into known_hosts of the Secret"
    )]
    HostKey { url: String },
    #[error(
        "{url} answers with a redirect, which is not followed because it could lead to another host; use the final URL (often it only lacks the ending .git)"
    )]
    Redirect { url: String },
    #[error("{url} is not allowed here: {why}")]
    Forbidden { url: String, why: String },
    #[error("git took longer than {} s to {doing} {url} and was stopped; it is tried again", limit.as_secs())]
    Timeout { url: String, doing: &'static str, limit: Duration },
    #[error(
        "commit {commit} is no longer in {url}; the branch was probably rewritten, the next poll finds its new head"
    )]
    CommitMissing { url: String, commit: String },
    #[error(
        "{path} does not exist at commit {commit}; correct the layer's path, or push the missing directory"
    )]
    PathMissing { path: String, commit: String },
    #[error("{path} in commit {commit} cannot be bundled: {why}")]
    BadEntry { path: String, commit: String, why: String },
    #[error(
        "commit {commit} has more than {limit} files, which is the limit; take files out of the repository"
    )]
    TooManyFiles { commit: String, limit: u64 },
    #[error(
        "the files of commit {commit} take more than {}, which is the limit here; take large files out of the repository, or raise --max-bundle-size",
        readable(*.limit)
    )]
    TooLarge { commit: String, limit: u64 },
    #[error(
        "{url} takes more than {} with its history, which is the limit here; take large files out of its history, or raise --max-repository-size",
        readable(*.limit)
    )]
    RepositoryTooLarge { url: String, limit: u64 },
    #[error("the local mirror of {url} is damaged: {detail}; it is rebuilt")]
    DamagedMirror { url: String, detail: String },
    #[error("git could not {doing} {url}: {detail}")]
    Git { url: String, doing: &'static str, detail: String },
    #[error("could not {doing}: {source}")]
    Io { doing: &'static str, source: std::io::Error },
}

impl Error {
    pub fn class(&self) -> Class {
        match self {
            Self::Unreachable { .. }
            | Self::Timeout { .. }
            | Self::CommitMissing { .. }
            | Self::DamagedMirror { .. }
            | Self::Git { .. } => Class::Transient,
            Self::Unauthorised { .. }
            | Self::NotFound { .. }
            | Self::HostKey { .. }
            | Self::Redirect { .. }
            | Self::Forbidden { .. }
            | Self::PathMissing { .. }
            | Self::BadEntry { .. }
            | Self::TooManyFiles { .. }
            | Self::TooLarge { .. }
            | Self::RepositoryTooLarge { .. } => Class::Invalid,
            Self::Io { .. } => Class::Local,
        }
    }

    /// The word for a condition's `reason`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unauthorised { .. } => "AuthenticationFailed",
            Self::NotFound { .. } => "RepositoryNotFound",
            Self::Unreachable { .. } => "RepositoryUnreachable",
            Self::HostKey { .. } => "HostKeyMismatch",
            Self::Redirect { .. } => "RedirectRefused",
            Self::Forbidden { .. } => "UrlForbidden",
            Self::Timeout { .. } => "GitTimeout",
            Self::CommitMissing { .. } => "CommitMissing",
            Self::PathMissing { .. } => "PathMissing",
            Self::BadEntry { .. } => "UnsafeContent",
            Self::TooManyFiles { .. } | Self::TooLarge { .. } | Self::RepositoryTooLarge { .. } => {
                "SourceTooLarge"
            }
            Self::DamagedMirror { .. } => "MirrorDamaged",
            Self::Git { .. } => "GitFailed",
            Self::Io { .. } => "LocalFailure",
        }
    }

    pub(crate) fn io(doing: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}

/// Sorts git's complaint into a class. The words are those of git in the C locale, of curl and of OpenSSH; what is
/// not recognised stays a `Git` error with its first telling line.
pub(crate) fn classify(url: &str, doing: &'static str, stderr: &str) -> Error {
    let text = stderr.to_ascii_lowercase();
    let has = |needles: &[&str]| needles.iter().any(|needle| text.contains(needle));
    let url_owned = url.to_owned();
    let detail = telling_line(stderr);
    if has(&["host key verification failed", "remote host identification has changed"]) {
        return Error::HostKey { url: url_owned };
    }
    if has(&[
        "authentication failed",
        "could not read username",
        "could not read password",
        "permission denied (",
        "the requested url returned error: 401",
        "the requested url returned error: 403",
        "invalid username or password",
        "access denied",
    ]) {
        return Error::Unauthorised { url: url_owned };
    }
    if has(&["the requested url returned error: 301", "the requested url returned error: 302"])
        || has(&["the requested url returned error: 307", "the requested url returned error: 308"])
        || has(&["unable to update url base from redirection"])
    {
        return Error::Redirect { url: url_owned };
    }
    if has(&["transport '", "is not allowed"]) && has(&["not allowed"]) {
        return Error::Forbidden { url: url_owned, why: detail };
    }
    if has(&["dubious ownership"]) {
        return Error::Forbidden {
            url: url_owned,
            why: "the directory belongs to another user of this machine".to_owned(),
        };
    }
    if has(&[
        "repository not found",
        "does not appear to be a git repository",
        "' not found",
        "the requested url returned error: 404",
        "no such file or directory",
        "does not exist",
    ]) {
        return Error::NotFound { url: url_owned };
    }
    if has(&[
        "not our ref",
        "couldn't find remote ref",
        "bad object",
        "not a valid object name",
        "unknown revision",
    ]) {
        return Error::CommitMissing { url: url_owned, commit: detail };
    }
    if has(&[
        "could not resolve host",
        "couldn't connect",
        "failed to connect",
        "connection refused",
        "connection timed out",
        "connection reset",
        "operation timed out",
        "network is unreachable",
        "no route to host",
        "early eof",
        "unexpected disconnect",
        "the requested url returned error: 429",
        "the requested url returned error: 5",
        "ssl",
        "certificate",
        "kex_exchange_identification",
        "connection closed by",
    ]) {
        return Error::Unreachable { url: url_owned, detail };
    }
    if has(&[
        "object file",
        "is corrupt",
        "loose object",
        "packfile",
        "not a git repository",
        "bad config",
        "inflate",
        "unable to read tree",
        "invalid index-pack output",
    ]) {
        return Error::DamagedMirror { url: url_owned, detail };
    }
    Error::Git { url: url_owned, doing, detail }
}

/// The line a person wants: the first that git marks as fatal or an error, else the last one with text. Bounded, and
/// without control characters, because it ends in a status.
fn telling_line(stderr: &str) -> String {
    let lines = || stderr.lines().map(str::trim).filter(|line| !line.is_empty());
    let chosen = lines()
        .find(|line| line.starts_with("fatal:") || line.starts_with("error:") || line.starts_with("ERROR:"))
        .or_else(|| lines().next_back())
        .unwrap_or("git said nothing");
    let chosen = chosen.trim_start_matches("fatal:").trim_start_matches("error:").trim();
    chosen.chars().filter(|c| !c.is_control()).take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gits_words_become_reasons() {
        let table = [
            ("fatal: Authentication failed for 'https://h/x.git/'", "AuthenticationFailed"),
            (
                "git@h: Permission denied (publickey).\nfatal: Could not read from remote repository.",
                "AuthenticationFailed",
            ),
            (
                "remote: Repository not found.\nfatal: repository 'https://h/x/' not found",
                "RepositoryNotFound",
            ),
            ("fatal: '/nowhere' does not appear to be a git repository", "RepositoryNotFound"),
            ("fatal: unable to access 'https://h/': Could not resolve host: h", "RepositoryUnreachable"),
            (
                "fatal: unable to access 'https://h/': The requested URL returned error: 503",
                "RepositoryUnreachable",
            ),
            (
                "Host key verification failed.\nfatal: Could not read from remote repository.",
                "HostKeyMismatch",
            ),
            ("fatal: transport 'ext' not allowed", "UrlForbidden"),
            (
                "fatal: unable to access 'https://h/x/': The requested URL returned error: 301",
                "RedirectRefused",
            ),
            ("error: object file ./objects/aa/bb is empty", "MirrorDamaged"),
            ("fatal: remote error: upload-pack: not our ref 0000", "CommitMissing"),
            ("fatal: something new", "GitFailed"),
        ];
        for (said, reason) in table {
            assert_eq!(classify("https://h/x.git", "read", said).reason(), reason, "{said}");
        }
    }

    #[test]
    fn a_telling_line_is_bounded_and_printable() {
        let long = format!("noise\nfatal: {}\u{1b}[31m", "x".repeat(5000));
        let line = telling_line(&long);
        assert!(line.chars().count() <= 300);
        assert!(!line.contains('\u{1b}'));
        assert_eq!(telling_line(""), "git said nothing");
    }
}
