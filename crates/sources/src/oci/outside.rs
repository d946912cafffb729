//! What a program that is not ours is told, so that it reaches the registries that we would: where a name is after the administrator's rewrites,
//! which hosts are spoken to in clear, and the accounts, as a docker configuration of their own.

use std::collections::{BTreeMap, BTreeSet};

use api::image::{BuiltImage, DOCKER_HUB, ImagePlace};
use api::text::ImageDigest;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use super::build::pushing;
use super::login::Login;
use super::registry::Target;
use super::{Error, Images, LOOK_LIMIT, Logins, within};

/// What Docker Hub is called by the programs that were made for it.
const HUB_HOST: &str = "index.docker.io";
const HUB_ACCOUNT: &str = "https://index.docker.io/v1/";

/// Registries, as another program is told of them.
#[derive(Debug)]
pub struct Outside {
    /// `host/path` of what is pushed.
    pub destination: String,
    /// `host/path` of what is kept between builds.
    pub cache: String,
    /// Hosts that the administrator has named with http.
    pub in_clear: BTreeSet<String>,
    /// `FROM=TO`, each for all images of one registry.
    pub mirrors: Vec<String>,
    /// Rewrites of a part of a registry, which only we understand.
    pub untold: Vec<String>,
}

impl Images {
    /// What a tag that is made of all inputs points to, if somebody has built it.
    pub async fn known(&self, image: &BuiltImage, logins: &Logins) -> Result<Option<ImageDigest>, Error> {
        let place = image.place();
        let look = async { self.session(&place, logins)?.known_digest(&image.tag).await.map_err(pushing) };
        within(LOOK_LIMIT, &place, look).await
    }

    /// What is kept between builds is below the image, where no other place is named.
    pub fn outside(&self, destination: &ImagePlace, cache: Option<&ImagePlace>) -> Result<Outside, Error> {
        let target = |place: &ImagePlace| Target::of(place, &self.options.rewrites, self.options.addresses);
        let (to, kept) = (target(destination)?, cache.map(target).transpose()?);
        let name = |target: &Target| format!("{}/{}", host_of(target), target.path);
        let mut outside = Outside {
            destination: name(&to),
            cache: kept.as_ref().map_or_else(|| format!("{}/cache", name(&to)), name),
            in_clear: BTreeSet::new(),
            mirrors: Vec::new(),
            untold: Vec::new(),
        };
        for target in std::iter::once(&to).chain(&kept) {
            if target.is_in_clear() {
                outside.in_clear.insert(host_of(target));
            }
        }
        for rewrite in &self.options.rewrites {
            let Some(host) = rewrite.whole_registry() else {
                outside.untold.push(rewrite.to_string());
                continue;
            };
            let target = target(&ImagePlace { host: host.to_owned(), path: String::new() })?;
            let from = if host == DOCKER_HUB { HUB_HOST } else { host };
            let to = format!("{}/{}", host_of(&target), target.path);
            outside.mirrors.push(format!("{from}={}", to.trim_end_matches('/')));
            if target.is_in_clear() {
                outside.in_clear.insert(host_of(&target));
            }
        }
        Ok(outside)
    }

    /// A docker `config.json` with these accounts under the names that an [`Outside`] gives, and nothing else: no helper, no proxy.
    pub fn docker_config(
        &self,
        outside: &Outside,
        destination: &ImagePlace,
        cache: Option<&ImagePlace>,
        logins: &Logins,
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        let mut accounts: BTreeMap<String, &Login> = BTreeMap::new();
        for (entry, login) in logins.entries() {
            let name = if entry == DOCKER_HUB { HUB_ACCOUNT } else { entry };
            accounts.insert(name.to_owned(), login);
        }
        for rewrite in &self.options.rewrites {
            let Some(host) = rewrite.whole_registry() else { continue };
            let place = ImagePlace { host: host.to_owned(), path: String::new() };
            let target = Target::of(&place, &self.options.rewrites, self.options.addresses)?;
            if let Some(login) = logins.of_host(host) {
                accounts.entry(host_of(&target)).or_insert(login);
            }
        }
        if let Some(login) = logins.of(destination) {
            let host = outside.destination.split('/').next().unwrap_or_default().to_owned();
            let account = if host == HUB_HOST { HUB_ACCOUNT.to_owned() } else { host };
            accounts.entry(account).or_insert(login);
            accounts.insert(outside.destination.clone(), login);
        }
        if let Some(login) = logins.of(cache.unwrap_or(destination)) {
            accounts.insert(outside.cache.clone(), login);
        }
        let auths: Map<String, Value> =
            accounts.into_iter().map(|(name, login)| (name, account(login))).collect();
        let config = serde_json::to_vec(&json!({ "auths": auths }));
        config.map(Zeroizing::new).map_err(|error| Error::Unusable {
            image: destination.to_string(),
            why: format!("its accounts cannot be written down: {error}"),
        })
    }
}

fn host_of(target: &Target) -> String {
    let host = target.authority();
    if host == "registry-1.docker.io" { HUB_HOST.to_owned() } else { host }
}

fn account(login: &Login) -> Value {
    match login {
        Login::Password { user, password } => {
            let pair = Zeroizing::new(format!("{user}:{}", password.expose_secret()));
            json!({ "auth": STANDARD.encode(pair.as_bytes()) })
        }
        Login::Refresh(token) => json!({ "identitytoken": token.expose_secret() }),
        Login::Bearer(token) => json!({ "registrytoken": token.expose_secret() }),
    }
}

impl Logins {
    /// What must be shown to nobody.
    pub fn secrets(&self) -> Vec<SecretString> {
        let secret = |(_, login): (&str, &Login)| match login {
            Login::Password { password, .. } => password.clone(),
            Login::Refresh(token) | Login::Bearer(token) => token.clone(),
        };
        self.entries().map(secret).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::PathBuf;

    use super::super::ImageOptions;
    use super::*;

    fn images(rewrites: &[&str]) -> Images {
        let rewrites = rewrites.iter().map(|text| text.parse().unwrap()).collect();
        Images::new(ImageOptions { rewrites, ..ImageOptions::new(PathBuf::from("nowhere")) }).unwrap()
    }

    fn place(host: &str, path: &str) -> ImagePlace {
        ImagePlace { host: host.to_owned(), path: path.to_owned() }
    }

    fn logins() -> Logins {
        let config = json!({ "auths": {
            "registry.example.org": { "username": "jane", "password": "open-sesame" },
            "https://index.docker.io/v1/": { "identitytoken": "refresh-me" },
        }, "credsStore": "a-program" });
        Logins::parse(config.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn names_are_what_the_administrator_rewrites_them_to() {
        let images = images(&[
            "registry.example.org=http://198.18.77.1:5000/kept",
            "docker.io=https://mirror.example.org/hub",
            "ghcr.io/team=https://mirror.example.org/team",
        ]);
        let code = place("registry.example.org", "team/code");
        let told = images.outside(&code, None).unwrap();
        assert_eq!(told.destination, "198.18.77.1:5000/kept/team/code");
        assert_eq!(told.cache, "198.18.77.1:5000/kept/team/code/cache");
        assert_eq!(told.in_clear, BTreeSet::from(["198.18.77.1:5000".to_owned()]));
        assert_eq!(
            told.mirrors,
            ["registry.example.org=198.18.77.1:5000/kept", "index.docker.io=mirror.example.org/hub"]
        );
        assert_eq!(told.untold, ["ghcr.io/team=https://mirror.example.org/team"]);

        let config = images.docker_config(&told, &code, None, &logins()).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        let jane = json!({ "auth": "amFuZTpvcGVuLXNlc2FtZQ==" });
        let hub = json!({ "identitytoken": "refresh-me" });
        assert_eq!(
            config,
            json!({ "auths": {
                "registry.example.org": jane, "198.18.77.1:5000": jane, "198.18.77.1:5000/kept/team/code": jane,
                "198.18.77.1:5000/kept/team/code/cache": jane, "mirror.example.org": hub, "https://index.docker.io/v1/": hub,
            } })
        );
    }

    #[test]
    fn docker_hub_has_the_name_that_docker_gave_it() {
        let code = place(DOCKER_HUB, "team/code");
        let cache = place("registry.example.org", "kept");
        let images = images(&[]);
        let told = images.outside(&code, Some(&cache)).unwrap();
        assert_eq!(told.destination, "index.docker.io/team/code");
        assert_eq!(told.cache, "registry.example.org/kept");
        assert!(told.in_clear.is_empty() && told.mirrors.is_empty());
    }

    #[test]
    fn every_secret_of_the_accounts_is_known_to_be_one() {
        let mut found: Vec<String> =
            logins().secrets().iter().map(|secret| secret.expose_secret().to_owned()).collect();
        found.sort();
        assert_eq!(found, ["open-sesame", "refresh-me"]);
    }
}
