//! The credentials of a repository: the Secret it names, else the one of its namespace whose `url` covers the repository's URL. Those of an
//! image: the Secret that its layer names. Secrets of other namespaces are never read for either.

use std::collections::BTreeMap;

use api::image::REGISTRY_SECRET;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use sources::Credentials;
use sources::oci::Logins;

use crate::source::{ImageAt, Place};

/// Secrets of this type serve every repository of their namespace whose URL lies at or below their key `url`.
const TYPE: &str = "terrane.dev/repository";

/// Read at each use: a Secret that was put right works at the next try, and none is kept in memory.
pub(crate) async fn read(client: &Client, place: &Place) -> Result<Credentials, String> {
    let secrets = Api::<Secret>::namespaced(client.clone(), &place.namespace);
    let failed = |error: kube::Error| format!("could not read the Secrets of {}: {error}", place.namespace);
    let found = match &place.secret {
        Some(name) => {
            let found = secrets.get_opt(name).await.map_err(failed)?;
            Some(found.ok_or_else(|| {
                format!(
                    "Secret {name}, named in spec.repository.credentials, does not exist in namespace {}; create it there",
                    place.namespace
                )
            })?)
        }
        None => {
            // O(Secrets of this type in the namespace).
            let list =
                secrets.list(&ListParams::default().fields(&format!("type={TYPE}"))).await.map_err(failed)?;
            longest_match(list.items, place.url.as_str())
        }
    };
    let Some(secret) = found else { return Ok(Credentials::default()) };
    let name = secret.name_any();
    let mut data: BTreeMap<String, Vec<u8>> =
        secret.data.unwrap_or_default().into_iter().map(|(key, ByteString(value))| (key, value)).collect();
    if let Some(key) = &place.ssh_key {
        let named = data.remove(key);
        let named =
            named.ok_or_else(|| format!("Secret {name} has no key {key}; add it, or name another"))?;
        data.insert("ssh-privatekey".to_owned(), named);
    }
    Credentials::from_secret(&data).map_err(|why| format!("Secret {name}: {why}"))
}

/// How to log in to the registry of an image; as nobody, where its layer names no Secret and its namespace has none for all. Read at each
/// use, too.
pub(crate) async fn read_logins(client: &Client, at: &ImageAt) -> Result<Logins, String> {
    let (named, namespace) = (at.credentials.as_ref(), at.namespace.as_str());
    let name = named.map_or(REGISTRY_SECRET, |named| named.secret_name.as_str());
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let found = secrets.get_opt(name).await;
    let found = found.map_err(|error| format!("could not read the Secrets of {namespace}: {error}"))?;
    if found.is_none() && named.is_none() {
        return Ok(Logins::default());
    }
    let secret = found.ok_or_else(|| {
        format!("Secret {name}, which logs in to the registry, does not exist in namespace {namespace}; create it there")
    })?;
    let data: BTreeMap<String, Vec<u8>> =
        secret.data.unwrap_or_default().into_iter().map(|(key, ByteString(value))| (key, value)).collect();
    let logins = match named.and_then(|named| named.key.as_ref()) {
        Some(key) => {
            let content = data.get(key.as_str());
            Logins::parse(
                content.ok_or_else(|| format!("Secret {name} has no key {key}; add it, or name another"))?,
            )
        }
        None => Logins::from_secret(&data),
    };
    logins.map_err(|why| format!("Secret {name}: {why}"))
}

/// The Secret whose `url` covers the most of the repository's URL; of equals the first by name, so that the answer does not change.
fn longest_match(secrets: Vec<Secret>, url: &str) -> Option<Secret> {
    secrets
        .into_iter()
        .filter_map(|secret| {
            let ByteString(prefix) = secret.data.as_ref()?.get("url")?;
            let prefix = std::str::from_utf8(prefix).ok()?.trim();
            let length = prefix.trim_end_matches('/').len();
            sources::covers(prefix, url).then_some((length, secret))
        })
        .max_by(|(a, one), (b, other)| a.cmp(b).then_with(|| other.name_any().cmp(&one.name_any())))
        .map(|(_, secret)| secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, url: &str) -> Secret {
        let data = BTreeMap::from([("url".to_owned(), ByteString(url.as_bytes().to_vec()))]);
        let metadata = kube::api::ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
        Secret { metadata, data: Some(data), ..Default::default() }
    }

    #[test]
    fn the_longest_url_wins_and_a_stranger_never() {
        let all = vec![
            secret("host", "https://forge.example\n"),
            secret("team", "https://forge.example/team/"),
            secret("same-team", "https://forge.example/team"),
            secret("other", "https://other.example"),
            Secret::default(),
        ];
        let chosen = |url| longest_match(all.clone(), url).map(|secret| secret.name_any());
        assert_eq!(chosen("https://forge.example/team/app.git").as_deref(), Some("same-team"));
        assert_eq!(chosen("https://forge.example/teams/app.git").as_deref(), Some("host"));
        assert_eq!(chosen("https://forge.example.evil.test/team/app.git"), None);
    }
}
