//! Where code is, by one URL that may go on behind the repository: `https://github.com/team/infra/network` is the directory `network` of the
//! repository `team/infra`.

use api::text::{GitUrl, LayerPath};

/// A repository, and a directory in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) url: GitUrl,
    pub(super) path: LayerPath,
}

/// Forges whose repositories all have an owner and a name. Not gitlab.com, which has groups within groups.
const TWO_PARTS: [&str; 3] = ["github.com", "bitbucket.org", "codeberg.org"];
/// So many are tried, at most.
const MOST: usize = 4;

/// What a URL may mean, in the order in which it is to be tried. One that says where the repository ends, by `.git` or `//`, or that is on
/// a forge where all repositories have two parts, means one thing. Of any other the whole may be the repository, then all but the last
/// part, and so on; two parts are left. Files of this machine are always the whole.
pub(super) fn places(url: &GitUrl) -> Vec<Place> {
    let whole = || LayerPath::new(".").ok().map(|path| Place { url: url.clone(), path });
    let text = url.as_str();
    let Some((before, path)) = split(text) else { return whole().into_iter().collect() };
    let place = |repository: &str, directory: &str| {
        let url = GitUrl::new(format!("{before}{repository}")).ok()?;
        let directory = directory.trim_matches('/');
        let path = LayerPath::new(if directory.is_empty() { "." } else { directory }).ok()?;
        Some(Place { url, path })
    };
    let path = path.trim_end_matches('/');
    let marked = path.find(".git/").map(|at| at + ".git".len()).or_else(|| path.find("//"));
    if let Some((repository, directory)) = marked.and_then(|at| path.split_at_checked(at)) {
        return place(repository, directory).or_else(whole).into_iter().collect();
    }
    let ends: Vec<usize> = path.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0).collect();
    let cut = |at: usize| path.split_at_checked(at).and_then(|(repository, rest)| place(repository, rest));
    if TWO_PARTS.contains(&host(before).as_str()) {
        let second = ends.get(1).copied().unwrap_or(path.len());
        return cut(second).or_else(whole).into_iter().collect();
    }
    let shorter = ends.iter().skip(1).rev().filter_map(|at| cut(*at));
    whole().into_iter().chain(shorter).take(MOST).collect()
}

/// All up to the path, and the path; nothing of what has none that could be cut.
fn split(url: &str) -> Option<(&str, &str)> {
    if url.starts_with("file://") || url.contains(['?', '#']) {
        return None;
    }
    let start = match url.find("://") {
        Some(at) => at + "://".len() + url.get(at + "://".len()..)?.find('/')? + 1,
        None => url.find(':')? + 1,
    };
    url.split_at_checked(start)
}

fn host(before: &str) -> String {
    let authority = before.rsplit("://").next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    host.split([':', '/']).next().unwrap_or_default().to_ascii_lowercase()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn meant(url: &str) -> Vec<String> {
        let found = places(&GitUrl::new(url).unwrap());
        found.iter().map(|place| format!("{} {}", place.url, place.path)).collect()
    }

    #[test]
    fn what_follows_the_repository_is_a_directory() {
        for (url, expected) in [
            (
                "git@github.com:example/terraform-repo/terraform",
                &["git@github.com:example/terraform-repo terraform"][..],
            ),
            (
                "https://github.com/example/terraform-repo/terraform",
                &["https://github.com/example/terraform-repo terraform"],
            ),
            ("https://GitHub.com/example/infra/envs/prod/", &["https://GitHub.com/example/infra envs/prod"]),
            ("ssh://git@github.com:22/example/infra/envs", &["ssh://git@github.com:22/example/infra envs"]),
            ("https://github.com/example/infra", &["https://github.com/example/infra ."]),
            ("https://github.com/example/infra.git", &["https://github.com/example/infra.git ."]),
            ("https://git.example/infra.git/envs/prod", &["https://git.example/infra.git envs/prod"]),
            ("https://gitlab.com/a/b/c//envs", &["https://gitlab.com/a/b/c envs"]),
            ("https://git.example/a/b", &["https://git.example/a/b ."]),
            ("https://gitlab.com/a/b/c", &["https://gitlab.com/a/b/c .", "https://gitlab.com/a/b c"]),
            (
                "git@git.example:a/b/c/d",
                &["git@git.example:a/b/c/d .", "git@git.example:a/b/c d", "git@git.example:a/b c/d"],
            ),
            ("git@git.example:/a/b/c", &["git@git.example:/a/b/c .", "git@git.example:/a/b c"]),
            ("file:///srv/a/b/c", &["file:///srv/a/b/c ."]),
            ("https://git.example", &["https://git.example ."]),
        ] {
            assert_eq!(meant(url), expected, "{url}");
        }
        assert_eq!(meant("https://git.example/a/b/c/d/e/f/g").len(), MOST);
    }
}
