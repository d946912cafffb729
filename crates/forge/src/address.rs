//! Which repository a URL is about, however it is written: over https or ssh, with or without `.git`, a user, a port, in any case.

/// A repository on a host. Ports and users are left out: the same repository is served at several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Empty for files of the machine.
    host: String,
    path: String,
}

impl Address {
    /// Nothing where the text is no URL of a repository.
    pub fn read(url: &str) -> Option<Self> {
        if let Some(path) = url.strip_prefix("file://") {
            // The one place where case tells two repositories apart.
            return Self::from_parts(String::new(), tidy(path).to_owned());
        }
        let (authority, path) = match url.split_once("://") {
            Some((scheme, rest)) => {
                if !["https", "http", "ssh", "git"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
                    return None;
                }
                rest.split_once('/')?
            }
            // What has two colons is a helper of git's, and no host.
            None => url
                .split_once(':')
                .filter(|(authority, path)| !authority.contains('/') && !path.starts_with(':'))?,
        };
        let host = authority.rsplit('@').next()?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.split(']').next()?,
            None => host.split(':').next()?,
        };
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        if host.is_empty() {
            return None;
        }
        let (host, path) = of_azure(host, tidy(path).to_ascii_lowercase());
        Self::from_parts(host, path)
    }

    fn from_parts(host: String, path: String) -> Option<Self> {
        (!path.is_empty()).then_some(Self { host, path })
    }

    /// Whether the path ends in these parts, in any case: how a host that tells no URL names its repositories.
    pub fn ends_in(&self, tail: &str) -> bool {
        let (path, tail) = (self.path.to_ascii_lowercase(), tidy(tail).to_ascii_lowercase());
        !tail.is_empty()
            && path.strip_suffix(&tail).is_some_and(|before| before.is_empty() || before.ends_with('/'))
    }
}

fn tidy(path: &str) -> &str {
    let path = path.trim_matches('/');
    path.strip_suffix(".git").unwrap_or(path).trim_end_matches('/')
}

/// Azure DevOps writes one repository in four ways; all become `dev.azure.com`, `organisation/project/repository`.
fn of_azure(host: String, path: String) -> (String, String) {
    const AZURE: &str = "dev.azure.com";
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let joined = |organisation: &str, project: &str, repository: &str| {
        (AZURE.to_owned(), format!("{organisation}/{project}/{repository}"))
    };
    match (host.as_str(), parts.as_slice()) {
        ("ssh.dev.azure.com" | "vs-ssh.visualstudio.com", ["v3", organisation, project, repository]) => {
            joined(organisation, project, repository)
        }
        (AZURE, [organisation, project, "_git", repository]) => joined(organisation, project, repository),
        // The repository that has its project's name.
        (AZURE, [organisation, "_git", repository]) => joined(organisation, repository, repository),
        (old, parts) => {
            let Some(organisation) = old.strip_suffix(".visualstudio.com") else { return (host, path) };
            let parts = parts.strip_prefix(&["defaultcollection"]).unwrap_or(parts);
            match parts {
                [project, "_git", repository] => joined(organisation, project, repository),
                ["_git", repository] => joined(organisation, repository, repository),
                _ => (host, path),
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn one_repository_has_one_address() {
        let groups = [
            &[
                "https://forge.example/Team/infra.git",
                "https://FORGE.example/team/infra",
                "https://forge.example:8443/team/infra/",
                "http://user@forge.example/team/infra.git",
                "ssh://git@forge.example:2222/team/infra.git",
                "ssh://forge.example/team/infra",
                "git@forge.example:team/infra.git",
                "git@forge.example:/team/infra.git",
                "git://forge.example./team/infra.git",
            ][..],
            &["https://forge.example/team/infra2.git", "git@forge.example:team/infra2"],
            &["https://forge.example.evil.test/team/infra.git"],
            &["https://[2001:db8::1]:3000/team/infra.git", "ssh://git@[2001:DB8::1]/team/infra"],
            &[
                "https://dev.azure.com/Contoso/Net/_git/infra",
                "https://contoso@dev.azure.com/contoso/net/_git/infra",
                "git@ssh.dev.azure.com:v3/contoso/net/infra",
                "https://contoso.visualstudio.com/Net/_git/infra",
                "https://contoso.visualstudio.com/DefaultCollection/Net/_git/infra",
            ],
            &[
                "https://dev.azure.com/contoso/_git/net",
                "https://contoso.visualstudio.com/_git/net",
                "https://dev.azure.com/contoso/net/_git/net",
            ],
            &["file:///srv/code", "file:///srv/code/", "file:///srv/code.git"],
            &["file:///srv/Code"],
        ];
        for (number, group) in groups.iter().enumerate() {
            for (other_number, other) in groups.iter().enumerate() {
                for (one, two) in group.iter().flat_map(|one| other.iter().map(move |two| (one, two))) {
                    let same = Address::read(one).unwrap() == Address::read(two).unwrap();
                    assert_eq!(same, number == other_number, "{one} {two}");
                }
            }
        }
        for none in [
            "",
            "x",
            "https://",
            "https://host",
            "https:///a",
            "ftp://host/a",
            "ext::sh -c id",
            "/srv/a",
            "://a/b",
            "file://",
        ] {
            assert_eq!(Address::read(none), None, "{none}");
        }
    }

    #[test]
    fn a_tail_is_whole_parts() {
        let address = Address::read("https://bb.example/scm/PROJ/infra.git").unwrap();
        for (tail, expected) in [
            ("proj/infra", true),
            ("PROJ/infra", true),
            ("oj/infra", false),
            ("infra", true),
            ("proj", false),
            ("", false),
            ("/", false),
        ] {
            assert_eq!(address.ends_in(tail), expected, "{tail}");
        }
    }
}
