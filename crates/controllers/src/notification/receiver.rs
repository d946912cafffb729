//! Where a notification goes: what its Secret says. Addresses are secrets as well, for who knows one can write there; so nothing here
//! shows one.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::TerraformNotification;
use api::notification::Endpoint;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};
use reqwest::Url;
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use sources::Addresses;

use crate::Context;
use crate::error::{Error, doing};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    Webhook,
    Slack,
    Teams,
}

impl Channel {
    pub(crate) const ALL: [Self; 3] = [Self::Webhook, Self::Slack, Self::Teams];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Slack => "slack",
            Self::Teams => "teams",
        }
    }
}

pub(crate) struct Receiver {
    channel: Channel,
    url: SecretString,
    pub(super) host: String,
    pub(super) port: u16,
    /// Whether it is spoken to in clear, which is done on this machine alone.
    pub(super) in_clear: bool,
    /// What a webhook is signed with.
    pub(super) key: Option<SecretSlice<u8>>,
    /// Whom to believe about its certificate, in PEM, where that is no public authority.
    pub(super) authority: Option<Vec<u8>>,
}

impl Receiver {
    pub(crate) fn channel(&self) -> Channel {
        self.channel
    }

    pub(super) fn url(&self) -> &str {
        self.url.expose_secret()
    }

    #[cfg(test)]
    pub(super) fn at(url: &str) -> Result<Self, String> {
        let data = BTreeMap::from([("url".to_owned(), url.as_bytes().to_vec())]);
        Self::new(Channel::Webhook, &data, Addresses::NotOwn)
    }

    /// In words without any of the values.
    fn new(channel: Channel, data: &BTreeMap<String, Vec<u8>>, rule: Addresses) -> Result<Self, String> {
        let text = data.get("url").ok_or("has no key `url`; it is the address")?;
        let text = std::str::from_utf8(text).map_err(|_| "has a `url` that is not text")?.trim();
        let url = Url::parse(text).map_err(|error| format!("has a `url` that is none: {error}"))?;
        let host = url.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_own = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        let in_clear = match url.scheme() {
            "https" => false,
            "http" if is_own && rule == Addresses::OwnToo => true,
            "http" => return Err("has a `url` that begins with http; only https is used".to_owned()),
            _ => return Err("has a `url` that does not begin with https".to_owned()),
        };
        let port = url.port_or_known_default().unwrap_or(443);
        let key = data.get("key").filter(|_| channel == Channel::Webhook);
        if key.is_some_and(Vec::is_empty) {
            return Err("has a `key` that is empty; webhooks are signed with it".to_owned());
        }
        let authority = data.get("ca.crt").cloned();
        let is_authority =
            |pem: &Vec<u8>| reqwest::Certificate::from_pem_bundle(pem).is_ok_and(|found| !found.is_empty());
        if !authority.iter().all(is_authority) {
            return Err("has a `ca.crt` without a certificate in PEM".to_owned());
        }
        let key = key.map(|key| key.clone().into());
        Ok(Self { channel, url: text.to_owned().into(), host, port, in_clear, key, authority })
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("channel", &self.channel).finish_non_exhaustive()
    }
}

fn endpoint(notification: &TerraformNotification) -> Option<(Channel, &Endpoint)> {
    let to = &notification.spec.to;
    let webhook = to.webhook.as_ref().map(|endpoint| (Channel::Webhook, endpoint));
    let slack = to.slack.as_ref().map(|endpoint| (Channel::Slack, endpoint));
    let teams = to.teams.as_ref().map(|endpoint| (Channel::Teams, endpoint));
    webhook.or(slack).or(teams)
}

/// Why there is none that can be told is said in words.
pub(super) async fn read(
    context: &Context,
    notification: &TerraformNotification,
) -> Result<Result<Receiver, String>, Error> {
    let Some((channel, endpoint)) = endpoint(notification) else {
        return Ok(Err("spec.to names nobody".to_owned()));
    };
    let (name, namespace) = (&endpoint.secret_name, notification.namespace().unwrap_or_default());
    let secrets = Api::<Secret>::namespaced(context.client.clone(), &namespace);
    let found = match secrets.get_opt(name.as_str()).await {
        Ok(found) => found,
        Err(kube::Error::Api(answer)) if answer.code == 403 => {
            let why = format!(
                "Secret {name} may not be read: the administrator of this Terrane has not made namespace {namespace} a tenant"
            );
            return Ok(Err(why));
        }
        Err(error) => return Err(doing("read the notification's Secret")(error)),
    };
    let Some(secret) = found else {
        let why = format!(
            "Secret {name} does not exist in namespace {namespace}; make it, with the address as `url`"
        );
        return Ok(Err(why));
    };
    let data = secret.data.unwrap_or_default();
    let data = data.into_iter().map(|(key, ByteString(value))| (key, value)).collect();
    Ok(Receiver::new(channel, &data, context.outbox.addresses())
        .map_err(|why| format!("Secret {name} {why}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn receiver(channel: Channel, data: &[(&str, &str)], rule: Addresses) -> Result<Receiver, String> {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect();
        Receiver::new(channel, &data, rule)
    }

    #[test]
    fn a_secret_that_cannot_be_used_is_told_without_its_values() {
        let cases: [(&[(&str, &str)], &str); 7] = [
            (&[], "has no key `url`; it is the address"),
            (&[("url", "hunter2")], "has a `url` that is none: relative URL without a base"),
            (&[("url", "ftp://hunter2.example")], "has a `url` that does not begin with https"),
            (&[("url", "http://hunter2.example")], "has a `url` that begins with http; only https is used"),
            (&[("url", "http://127.0.0.1/hunter2")], "has a `url` that begins with http; only https is used"),
            (
                &[("url", "https://a.example"), ("key", "")],
                "has a `key` that is empty; webhooks are signed with it",
            ),
            (
                &[("url", "https://a.example"), ("ca.crt", "hunter2")],
                "has a `ca.crt` without a certificate in PEM",
            ),
        ];
        for (data, why) in cases {
            assert_eq!(receiver(Channel::Webhook, data, Addresses::NotOwn).unwrap_err(), why);
        }
    }

    #[test]
    fn this_machine_is_spoken_to_in_clear_where_it_is_allowed() {
        let at = |url| receiver(Channel::Slack, &[("url", url)], Addresses::OwnToo);
        assert!(at("http://127.0.0.1:8080/x").unwrap().in_clear);
        assert!(at("http://[::1]:8080/x").unwrap().in_clear);
        assert!(at("http://hooks.example/x").is_err());
        let found = at(" https://hooks.example/services/T/B/hunter2\n").unwrap();
        assert_eq!((found.host.as_str(), found.port, found.in_clear), ("hooks.example", 443, false));
        assert!(!format!("{found:?}").contains("hunter2"));
    }
}
