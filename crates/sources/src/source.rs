//! What is asked of git for whom: a repository's URL, how to log in, and the tenant that asks. Also the two rules on URLs that
//! people rely on: which Secret belongs to a URL, and where an administrator's rewrite leads.

use api::text::GitUrl;

use crate::credentials::Credentials;

#[derive(Clone, Debug)]
pub struct Source {
    pub url: GitUrl,
    /// Mirrors are not shared between tenants: who knows a commit's id must still be able to log in to read it.
    pub tenant: String,
    pub credentials: Credentials,
}

impl Source {
    pub fn anonymous(url: GitUrl) -> Self {
        Self { url, tenant: String::new(), credentials: Credentials::default() }
    }
}

/// Whether a repository lies at a URL or below it. `https://forge.example/team` covers `https://forge.example/team/app.git`
/// but not `https://forge.example/team-b/app.git`.
pub fn covers(prefix: &str, url: &str) -> bool {
    rest_below(prefix, url).is_some()
}

/// What follows the prefix in a URL that lies at it or below it.
fn rest_below<'a>(prefix: &str, url: &'a str) -> Option<&'a str> {
    let bare = prefix.trim_end_matches('/');
    let ends_a_part = bare.ends_with(':');
    let rest = strip_prefix_with_any_host_case(bare, url)?;
    let at_boundary = ends_a_part || rest.is_empty() || rest == ".git" || rest.starts_with(['/', ':']);
    at_boundary.then_some(rest)
}

/// Host names do not know case, paths do; a prefix never ends within a host that goes on, because the caller looks at what follows.
fn strip_prefix_with_any_host_case<'a>(prefix: &str, url: &'a str) -> Option<&'a str> {
    let (head, rest) = url.split_at_checked(prefix.len())?;
    let host_end = |text: &str| {
        let start = text.find("://").map_or(0, |at| at + 3);
        let from_start = text.get(start..).unwrap_or_default();
        start + from_start.find(['/', ':']).unwrap_or(from_start.len())
    };
    let end = host_end(prefix);
    let host_same = prefix.get(..end)?.eq_ignore_ascii_case(head.get(..end)?);
    let path_same = prefix.get(end..) == head.get(end..);
    (!prefix.is_empty() && host_same && path_same).then_some(rest)
}

/// An administrator's word that repositories below one URL are read from another place, such as a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    from: String,
    to: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a rewrite; write FROM=TO with two URLs, such as https://forge.example/=https://mirror.example/forge/"
)]
pub struct InvalidRewrite(String);

impl std::str::FromStr for Rewrite {
    type Err = InvalidRewrite;

    fn from_str(text: &str) -> Result<Self, InvalidRewrite> {
        let bad = || InvalidRewrite(text.to_owned());
        let (from, to) = text.split_once('=').ok_or_else(bad)?;
        let url = |text: &str| GitUrl::new(format!("{}/x", text.trim_end_matches('/'))).is_ok();
        let scp = |text: &str| text.ends_with(':') && GitUrl::new(format!("{text}x")).is_ok();
        if (url(from) || scp(from)) && (url(to) || scp(to)) {
            Ok(Self { from: from.to_owned(), to: to.to_owned() })
        } else {
            Err(bad())
        }
    }
}

/// Where a repository is read from: the longest rewrite that covers its URL wins. O(rewrites).
pub(crate) fn rewritten(url: &GitUrl, rewrites: &[Rewrite]) -> GitUrl {
    rewrites
        .iter()
        .filter_map(|rewrite| rest_below(&rewrite.from, url.as_str()).map(|rest| (rewrite, rest)))
        .max_by_key(|(rewrite, _)| rewrite.from.len())
        .and_then(|(rewrite, rest)| {
            let rest = rest.trim_start_matches(['/', ':']);
            let base = rewrite.to.trim_end_matches('/');
            let place = match () {
                () if rest.is_empty() || rest == ".git" || base.ends_with(':') => format!("{base}{rest}"),
                () => format!("{base}/{rest}"),
            };
            GitUrl::new(place).ok()
        })
        .unwrap_or_else(|| url.clone())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_url_covers_what_lies_below_it_and_nothing_beside_it() {
        for prefix in [
            "https://forge.example",
            "https://FORGE.example/",
            "https://forge.example/team",
            "https://forge.example/team/app",
        ] {
            assert!(covers(prefix, "https://forge.example/team/app.git"), "{prefix}");
        }
        for prefix in [
            "https://forge.exam",
            "https://forge.example/te",
            "https://forge.example/Team",
            "https://forge.example/team/app/x",
            "http://forge.example",
            "https://forge.example:8443",
            "",
            "/",
        ] {
            assert!(!covers(prefix, "https://forge.example/team/app.git"), "{prefix}");
        }
        assert!(!covers("https://forge.example", "https://forge.example.evil.test/team"));
        assert!(covers("git@forge.example:team", "git@forge.example:team/app"));
        assert!(covers("git@forge.example:", "git@forge.example:team/app"));
        assert!(covers("git@forge.example", "git@forge.example:team/app"));
        assert!(!covers("git@forge.example:tea", "git@forge.example:team/app"));
    }

    #[test]
    fn the_longest_rewrite_wins_and_keeps_the_rest_of_the_path() {
        let rewrites: Vec<Rewrite> = [
            "https://forge.example/=https://mirror.example/forge/",
            "https://forge.example/team=file:///srv/team",
            "git@forge.example:=https://mirror.example/",
            "https://other.example=git@mirror.example:",
        ]
        .map(|text| text.parse().unwrap())
        .to_vec();
        let to = |url: &str| rewritten(&GitUrl::new(url).unwrap(), &rewrites).to_string();
        assert_eq!(to("https://forge.example/a/b.git"), "https://mirror.example/forge/a/b.git");
        assert_eq!(to("https://forge.example/team/b"), "file:///srv/team/b");
        assert_eq!(to("https://forge.example/team.git"), "file:///srv/team.git");
        assert_eq!(to("git@forge.example:a/b"), "https://mirror.example/a/b");
        assert_eq!(to("https://other.example/a"), "git@mirror.example:a");
        assert_eq!(to("https://third.example/a"), "https://third.example/a");
    }

    #[test]
    fn a_rewrite_that_is_none_is_told() {
        for bad in
            ["https://a.example", "=https://b.example", "x=y", "https://u:p@a.example/=https://b.example/"]
        {
            assert!(bad.parse::<Rewrite>().is_err(), "{bad}");
        }
    }
}
