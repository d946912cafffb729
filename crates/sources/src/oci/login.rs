//! How to log in to registries: what `docker login` wrote, and what a registry asks for.

use std::collections::BTreeMap;

use api::image::{DOCKER_HUB, ImagePlace};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::SecretString;
use serde::Deserialize;

/// The key of a Secret of type `kubernetes.io/dockerconfigjson`.
pub const DOCKER_CONFIG_KEY: &str = ".dockerconfigjson";
/// The keys that a Docker `config.json` is looked for under, in this order, where none is named.
pub const DOCKER_CONFIG_KEYS: [&str; 2] = [DOCKER_CONFIG_KEY, "config.json"];
/// More than any such file holds.
const LARGEST: usize = 1024 * 1024;

/// The accounts of a docker `config.json`, by registry.
#[derive(Debug, Clone, Default)]
pub struct Logins(BTreeMap<String, Login>);

#[derive(Debug, Clone)]
pub(crate) enum Login {
    Password {
        user: String,
        password: SecretString,
    },
    /// A token that is exchanged for others.
    Refresh(SecretString),
    /// A token that is sent as it is.
    Bearer(SecretString),
}

/// Says nothing of what it holds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidLogins(String);

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    auths: BTreeMap<String, Account>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Account {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

impl Logins {
    /// Of the data of a Secret.
    pub fn from_secret(data: &BTreeMap<String, Vec<u8>>) -> Result<Self, InvalidLogins> {
        let content = DOCKER_CONFIG_KEYS.iter().find_map(|key| data.get(*key));
        let content = content.ok_or_else(|| {
            InvalidLogins(format!(
                "it has no key {DOCKER_CONFIG_KEY}; make it with kubectl create secret docker-registry, or from the config.json of docker login"
            ))
        })?;
        Self::parse(content)
    }

    /// Of a docker `config.json`.
    pub fn parse(content: &[u8]) -> Result<Self, InvalidLogins> {
        let bad = |why: &str| InvalidLogins(format!("its docker configuration {why}"));
        if content.len() > LARGEST {
            return Err(bad("is larger than 1 MiB"));
        }
        // What the parser would say shows what it read.
        let config: Config =
            serde_json::from_slice(content).map_err(|_| bad("is no JSON object with auths"))?;
        let mut logins = BTreeMap::new();
        for (registry, account) in config.auths {
            let key = normal(&registry);
            match account.login() {
                Ok(Some(login)) => drop(logins.insert(key, login)),
                // Kept by a credential helper of the machine that it comes from.
                Ok(None) => {}
                Err(why) => return Err(bad(&format!("has an entry for {key} that cannot be used: {why}"))),
            }
        }
        Ok(Self(logins))
    }

    /// Each account with the registry, or the part of one, that it is for.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &Login)> {
        self.0.iter().map(|(entry, login)| (entry.as_str(), login))
    }

    /// The account for all of a registry.
    pub(crate) fn of_host(&self, host: &str) -> Option<&Login> {
        self.0.get(host)
    }

    /// The account for an image: that of the longest entry at its host.
    pub(crate) fn of(&self, place: &ImagePlace) -> Option<&Login> {
        let whole = place.to_string();
        let covers = |entry: &str| {
            whole == entry || whole.strip_prefix(entry).is_some_and(|rest| rest.starts_with('/'))
        };
        self.0
            .iter()
            .filter(|(entry, _)| covers(entry))
            .max_by_key(|(entry, _)| entry.len())
            .map(|(_, login)| login)
    }
}

impl Account {
    fn login(self) -> Result<Option<Login>, &'static str> {
        if let Some(token) = self.registrytoken {
            return Ok(Some(Login::Bearer(token.into())));
        }
        if let Some(token) = self.identitytoken {
            return Ok(Some(Login::Refresh(token.into())));
        }
        if let Some(auth) = self.auth.filter(|auth| !auth.is_empty()) {
            let decoded = STANDARD.decode(auth.trim()).map_err(|_| "auth is no base64")?;
            let text = String::from_utf8(decoded).map_err(|_| "auth is no text")?;
            let (user, password) =
                text.split_once(':').ok_or("auth has no colon between user and password")?;
            return Ok(Some(Login::Password {
                user: user.to_owned(),
                password: password.trim_end_matches('\0').into(),
            }));
        }
        match (self.username, self.password) {
            (Some(user), Some(password)) => Ok(Some(Login::Password { user, password: password.into() })),
            (Some(_), None) => Err("it has a username and no password"),
            (None, _) => Ok(None),
        }
    }
}

/// `https://index.docker.io/v1/` is Docker Hub, and other entries are a host, perhaps with a path.
fn normal(registry: &str) -> String {
    let bare =
        registry.strip_prefix("https://").or_else(|| registry.strip_prefix("http://")).unwrap_or(registry);
    let bare = bare.trim_end_matches('/');
    let bare = bare.strip_suffix("/v1").or_else(|| bare.strip_suffix("/v2")).unwrap_or(bare);
    match bare {
        "index.docker.io" | "registry-1.docker.io" => DOCKER_HUB.to_owned(),
        other => other.to_ascii_lowercase(),
    }
}

/// How a registry wants to be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

/// Reads a `WWW-Authenticate` header. Bearer wins where both are offered.
pub fn challenge(header: &str) -> Option<Challenge> {
    if header.len() > 8 * 1024 {
        return None;
    }
    let scheme_at = |scheme: &str| {
        let lower = header.to_ascii_lowercase();
        lower.match_indices(scheme).map(|(at, _)| at).find(|at| {
            let before = header.get(..*at).unwrap_or_default();
            before.is_empty() || before.ends_with([' ', ','])
        })
    };
    if let Some(at) = scheme_at("bearer ") {
        let mut parameters = parameters(header.get(at + "bearer ".len()..).unwrap_or_default());
        let realm = parameters.remove("realm")?;
        return Some(Challenge::Bearer {
            realm,
            service: parameters.remove("service"),
            scope: parameters.remove("scope"),
        });
    }
    scheme_at("basic").map(|_| Challenge::Basic)
}

/// `name="value"` or `name=value`, separated by commas, up to what is none of that.
fn parameters(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut rest = text.trim_start();
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim().to_ascii_lowercase();
        if name.is_empty() || name.contains([' ', '"', ',']) {
            break;
        }
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => match quoted.split_once('"') {
                Some((value, after)) => (value, after),
                None => break,
            },
            None => after.split_at(after.find(',').unwrap_or(after.len())),
        };
        found.entry(name).or_insert_with(|| value.trim().to_owned());
        rest = after.trim_start().strip_prefix(',').unwrap_or_default().trim_start();
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use secrecy::ExposeSecret;

    use super::*;

    fn place(host: &str, path: &str) -> ImagePlace {
        ImagePlace { host: host.to_owned(), path: path.to_owned() }
    }

    #[test]
    fn an_account_is_found_by_host_and_path_and_never_shown() {
        let auth = STANDARD.encode("jane:s3cret");
        let config = format!(
            r#"{{"auths": {{
                "https://index.docker.io/v1/": {{"auth": "{auth}"}},
                "ghcr.io": {{"username": "jane", "password": "other"}},
                "registry.example.org/team": {{"registrytoken": "t0ken"}},
                "registry.example.org": {{"identitytoken": "r3fresh"}},
                "helped.example.org": {{}}
            }}, "credsStore": "desktop"}}"#
        );
        let logins = Logins::parse(config.as_bytes()).unwrap();
        assert!(
            matches!(logins.of(&place("docker.io", "alustan/infrastructure")), Some(Login::Password { user, password }) if user == "jane" && password.expose_secret() == "s3cret")
        );
        assert!(matches!(logins.of(&place("ghcr.io", "a/b")), Some(Login::Password { .. })));
        assert!(matches!(logins.of(&place("registry.example.org", "team/code")), Some(Login::Bearer(_))));
        assert!(matches!(logins.of(&place("registry.example.org", "teams/code")), Some(Login::Refresh(_))));
        for stranger in ["helped.example.org", "ghcr.io.evil.test", "example.org"] {
            assert!(logins.of(&place(stranger, "a")).is_none(), "{stranger}");
        }
        let shown = format!("{logins:?}");
        for secret in ["s3cret", "other", "t0ken", "r3fresh", &auth] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }

    #[test]
    fn a_configuration_that_cannot_be_used_is_told_without_its_content() {
        let told = |text: &str| Logins::parse(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(told("s3cret"), "its docker configuration is no JSON object with auths");
        assert_eq!(
            told(r#"{"auths": {"ghcr.io": {"auth": "s3cret!"}}}"#),
            "its docker configuration has an entry for ghcr.io that cannot be used: auth is no base64"
        );
        let none = Logins::from_secret(&BTreeMap::new()).unwrap_err().to_string();
        assert!(none.contains("it has no key .dockerconfigjson"), "{none}");
    }

    #[test]
    fn challenges_are_read() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            Some(Challenge::Bearer {
                realm: realm.to_owned(),
                service: service.map(str::to_owned),
                scope: scope.map(str::to_owned),
            })
        };
        for (header, expected) in [
            (
                "Bearer realm=\"https://auth.docker.io/token\",service=\"registry.docker.io\",scope=\"repository:a/b:pull,push\"",
                bearer(
                    "https://auth.docker.io/token",
                    Some("registry.docker.io"),
                    Some("repository:a/b:pull,push"),
                ),
            ),
            ("bearer realm=https://a/t, service=x", bearer("https://a/t", Some("x"), None)),
            ("Basic realm=\"r\", Bearer realm=\"https://a/t\"", bearer("https://a/t", None, None)),
            ("Basic realm=\"Registry\"", Some(Challenge::Basic)),
            ("Bearer service=\"x\"", None),
            ("Negotiate", None),
            ("", None),
        ] {
            assert_eq!(challenge(header), expected, "{header}");
        }
    }
}
