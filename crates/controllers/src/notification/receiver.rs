//! Where a notification goes: what its Secret says. Addresses are secrets as well, for who knows one can write there; so nothing here
//! shows one.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::TerraformNotification;
use api::notification::Mail;
use api::text::ObjectName;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};
use reqwest::Url;
use secrecy::{SecretSlice, SecretString};
use sources::Addresses;

use super::smtp::{Login, Mailbox, Security};
use crate::Context;
use crate::error::{Error, doing};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    Webhook,
    Slack,
    Teams,
    Email,
}

impl Channel {
    pub(crate) const ALL: [Self; 4] = [Self::Webhook, Self::Slack, Self::Teams, Self::Email];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Slack => "slack",
            Self::Teams => "teams",
            Self::Email => "email",
        }
    }
}

/// How it is told.
pub(super) enum Way {
    /// Signed with the key, if there is one.
    Webhook {
        url: SecretString,
        key: Option<SecretSlice<u8>>,
    },
    Slack {
        url: SecretString,
    },
    Teams {
        url: SecretString,
    },
    Mail(Mailbox),
}

pub(crate) struct Receiver {
    pub(super) way: Way,
    pub(super) host: String,
    pub(super) port: u16,
    /// Whether it is spoken to in clear, which is done on this machine alone.
    pub(super) in_clear: bool,
    /// Whom to believe about its certificate, in PEM, where that is no public authority.
    pub(super) authority: Option<Vec<u8>>,
}

impl Receiver {
    pub(crate) fn channel(&self) -> Channel {
        match &self.way {
            Way::Webhook { .. } => Channel::Webhook,
            Way::Slack { .. } => Channel::Slack,
            Way::Teams { .. } => Channel::Teams,
            Way::Mail(_) => Channel::Email,
        }
    }

    #[cfg(test)]
    pub(super) fn at(url: &str) -> Result<Self, String> {
        let data = BTreeMap::from([("url".to_owned(), url.as_bytes().to_vec())]);
        Self::new(To::Webhook, &data, Addresses::NotOwn)
    }

    /// In words without any of the values.
    pub(super) fn new(to: To<'_>, data: &BTreeMap<String, Vec<u8>>, rule: Addresses) -> Result<Self, String> {
        let text = text(data, "url")?.ok_or("has no key `url`; it is the address")?.trim();
        let url = Url::parse(text).map_err(|error| format!("has a `url` that is none: {error}"))?;
        let authority = data.get("ca.crt").cloned();
        let is_authority =
            |pem: &Vec<u8>| reqwest::Certificate::from_pem_bundle(pem).is_ok_and(|found| !found.is_empty());
        if !authority.iter().all(is_authority) {
            return Err("has a `ca.crt` without a certificate in PEM".to_owned());
        }
        let host = url.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_own = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        let may_be_in_clear = is_own && rule == Addresses::OwnToo;
        let (way, in_clear, usual_port) = match to {
            To::Webhook => {
                let (url, in_clear) = over_http(&url, text, may_be_in_clear)?;
                (Way::Webhook { url, key: key(data)? }, in_clear, HTTPS)
            }
            To::Slack => {
                let (url, in_clear) = over_http(&url, text, may_be_in_clear)?;
                (Way::Slack { url }, in_clear, HTTPS)
            }
            To::Teams => {
                let (url, in_clear) = over_http(&url, text, may_be_in_clear)?;
                (Way::Teams { url }, in_clear, HTTPS)
            }
            To::Mail(mail) => {
                let (mailbox, usual_port) = mailbox(mail, &url, data, may_be_in_clear)?;
                let in_clear = mailbox.security == Security::None;
                (Way::Mail(mailbox), in_clear, usual_port)
            }
        };
        let port = url.port_or_known_default().unwrap_or(usual_port);
        Ok(Self { way, host, port, in_clear, authority })
    }
}

const HTTPS: u16 = 443;

/// The address, and whether it is spoken to in clear.
fn over_http(url: &Url, text: &str, may_be_in_clear: bool) -> Result<(SecretString, bool), String> {
    let in_clear = match url.scheme() {
        "https" => false,
        "http" if may_be_in_clear => true,
        "http" => return Err("has a `url` that begins with http; only https is used".to_owned()),
        _ => return Err("has a `url` that does not begin with https".to_owned()),
    };
    Ok((text.to_owned().into(), in_clear))
}

fn key(data: &BTreeMap<String, Vec<u8>>) -> Result<Option<SecretSlice<u8>>, String> {
    let key = data.get("key");
    if key.is_some_and(Vec::is_empty) {
        return Err("has a `key` that is empty; webhooks are signed with it".to_owned());
    }
    Ok(key.map(|key| key.clone().into()))
}

/// Whom mails go to, and the port that such a server usually has.
fn mailbox(
    mail: &Mail,
    url: &Url,
    data: &BTreeMap<String, Vec<u8>>,
    may_be_in_clear: bool,
) -> Result<(Mailbox, u16), String> {
    let (security, usual_port) = match url.scheme() {
        "smtps" => (Security::Tls, 465),
        "smtp+starttls" => (Security::StartTls, 587),
        "smtp" if may_be_in_clear => (Security::None, 25),
        "smtp" => {
            let why = "has a `url` that begins with smtp; only smtps and smtp+starttls are used";
            return Err(why.to_owned());
        }
        _ => return Err("has a `url` that does not begin with smtps or smtp+starttls".to_owned()),
    };
    let is_more = url.query().is_some() || url.fragment().is_some() || !matches!(url.path(), "" | "/");
    if is_more || !url.username().is_empty() || url.password().is_some() {
        let why = "has a `url` with more than a host and a port; who logs in is in `username` and `password`";
        return Err(why.to_owned());
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err("has a `url` without a host".to_owned());
    }
    let login = login(data)?;
    if security == Security::None && login.is_some() {
        let why = "has a `username`, and a `url` that begins with smtp; no password is sent in clear";
        return Err(why.to_owned());
    }
    if mail.to.is_empty() || mail.to.len() > Mail::MOST {
        return Err(format!("is for {} addresses; a mail has between 1 and {}", mail.to.len(), Mail::MOST));
    }
    Ok((Mailbox { from: mail.from.clone(), to: mail.to.clone(), security, login }, usual_port))
}

/// What a server is logged in with, if it is.
fn login(data: &BTreeMap<String, Vec<u8>>) -> Result<Option<Login>, String> {
    let one = |name: &str| -> Result<Option<SecretString>, String> {
        let Some(text) = text(data, name)? else { return Ok(None) };
        if text.is_empty() || text.len() > LONGEST || text.contains(char::is_control) {
            return Err(format!("has a `{name}` that is empty, too long or of more than one line"));
        }
        Ok(Some(text.to_owned().into()))
    };
    match (one("username")?, one("password")?) {
        (Some(username), Some(password)) => Ok(Some(Login { username, password })),
        (None, None) => Ok(None),
        (Some(_), None) => Err("has a `username` and no `password`".to_owned()),
        (None, Some(_)) => Err("has a `password` and no `username`".to_owned()),
    }
}

/// What a username and a password may be long.
const LONGEST: usize = 1024;

/// Files that people make Secrets of end with a line's end.
fn text<'a>(data: &'a BTreeMap<String, Vec<u8>>, name: &str) -> Result<Option<&'a str>, String> {
    let Some(bytes) = data.get(name) else { return Ok(None) };
    let text = std::str::from_utf8(bytes).map_err(|_| format!("has a `{name}` that is not text"))?;
    Ok(Some(text.trim_end_matches(['\r', '\n'])))
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("channel", &self.channel()).finish_non_exhaustive()
    }
}

/// Who is meant, before the Secret says where.
#[derive(Debug, Clone, Copy)]
pub(super) enum To<'a> {
    Webhook,
    Slack,
    Teams,
    Mail(&'a Mail),
}

fn to(notification: &TerraformNotification) -> Option<(To<'_>, &ObjectName)> {
    let to = &notification.spec.to;
    let webhook = to.webhook.as_ref().map(|endpoint| (To::Webhook, &endpoint.secret_name));
    let slack = to.slack.as_ref().map(|endpoint| (To::Slack, &endpoint.secret_name));
    let teams = to.teams.as_ref().map(|endpoint| (To::Teams, &endpoint.secret_name));
    let email = to.email.as_ref().map(|mail| (To::Mail(mail), &mail.secret_name));
    webhook.or(slack).or(teams).or(email)
}

/// Why there is none that can be told is said in words.
pub(super) async fn read(
    context: &Context,
    notification: &TerraformNotification,
) -> Result<Result<Receiver, String>, Error> {
    let Some((to, name)) = to(notification) else {
        return Ok(Err("spec.to names nobody".to_owned()));
    };
    let namespace = notification.namespace().unwrap_or_default();
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
    Ok(Receiver::new(to, &data, context.outbox.addresses()).map_err(|why| format!("Secret {name} {why}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
    use super::*;

    fn receiver(to: To<'_>, data: &[(&str, &str)], rule: Addresses) -> Result<Receiver, String> {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect();
        Receiver::new(to, &data, rule)
    }

    fn mail(to: &[&str]) -> Mail {
        let address = |text: &str| text.parse().unwrap();
        Mail {
            secret_name: "mail".parse().unwrap(),
            from: address("terrane@example.org"),
            to: to.iter().map(|to| address(to)).collect(),
        }
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
            assert_eq!(receiver(To::Webhook, data, Addresses::NotOwn).unwrap_err(), why);
        }
    }

    #[test]
    fn a_secret_of_a_mail_server_that_cannot_be_used_is_told_without_its_values() {
        let own = "smtp://127.0.0.1";
        let with_more =
            "has a `url` with more than a host and a port; who logs in is in `username` and `password`";
        let cases: [(&[(&str, &str)], &str); 11] = [
            (&[("url", "https://a.example")], "has a `url` that does not begin with smtps or smtp+starttls"),
            (
                &[("url", "smtp://hunter2.example")],
                "has a `url` that begins with smtp; only smtps and smtp+starttls are used",
            ),
            (&[("url", "smtps://me:hunter2@a.example")], with_more),
            (&[("url", "smtps://a.example/hunter2")], with_more),
            (&[("url", "smtps://a.example?hunter2")], with_more),
            (&[("url", "smtps://")], "has a `url` without a host"),
            (&[("url", "smtps://a.example"), ("username", "me")], "has a `username` and no `password`"),
            (&[("url", "smtps://a.example"), ("password", "hunter2")], "has a `password` and no `username`"),
            (
                &[("url", "smtps://a.example"), ("username", "me"), ("password", "hun\r\nter2")],
                "has a `password` that is empty, too long or of more than one line",
            ),
            (
                &[("url", own), ("username", "me"), ("password", "hunter2")],
                "has a `username`, and a `url` that begins with smtp; no password is sent in clear",
            ),
            (
                &[("url", "smtps://a.example"), ("ca.crt", "hunter2")],
                "has a `ca.crt` without a certificate in PEM",
            ),
        ];
        let mail = mail(&["ann@example.org"]);
        for (data, why) in cases {
            assert_eq!(receiver(To::Mail(&mail), data, Addresses::OwnToo).unwrap_err(), why);
        }
        assert!(receiver(To::Mail(&mail), &[("url", own)], Addresses::NotOwn).is_err());
    }

    #[test]
    fn a_mail_server_has_its_usual_port_and_is_spoken_to_in_private() {
        let several = mail(&["ann@example.org", "bob@example.org"]);
        let cases = [
            ("smtps://mail.example.org", ("mail.example.org", 465, Security::Tls)),
            ("smtps://mail.example.org:4650\n", ("mail.example.org", 4650, Security::Tls)),
            ("smtp+starttls://mail.example.org", ("mail.example.org", 587, Security::StartTls)),
            ("smtp+starttls://[2001:db8::1]:25", ("2001:db8::1", 25, Security::StartTls)),
            ("smtp://localhost", ("localhost", 25, Security::None)),
        ];
        for (url, expected) in cases {
            let login = [("url", url), ("username", "me\n"), ("password", "hunter2\n")];
            let data = if url.starts_with("smtp:") { &login[..1] } else { &login[..] };
            let found = receiver(To::Mail(&several), data, Addresses::OwnToo).unwrap();
            assert!(!format!("{found:?}").contains("hunter2"));
            assert_eq!(found.in_clear, expected.2 == Security::None);
            let Way::Mail(mailbox) = &found.way else { panic!("{url} is no mail server") };
            assert_eq!((found.host.as_str(), found.port, mailbox.security), expected, "{url}");
            assert_eq!(mailbox.to.len(), 2);
        }
        let many = vec!["ann@example.org"; 21];
        for to in [&[][..], &many[..]] {
            let why = receiver(To::Mail(&mail(to)), &[("url", "smtps://a.example")], Addresses::NotOwn);
            assert!(why.unwrap_err().ends_with("a mail has between 1 and 20"));
        }
    }

    #[test]
    fn this_machine_is_spoken_to_in_clear_where_it_is_allowed() {
        let at = |url| receiver(To::Slack, &[("url", url)], Addresses::OwnToo);
        assert!(at("http://127.0.0.1:8080/x").unwrap().in_clear);
        assert!(at("http://[::1]:8080/x").unwrap().in_clear);
        assert!(at("http://hooks.example/x").is_err());
        let found = at(" https://hooks.example/services/T/B/hunter2\n").unwrap();
        assert_eq!((found.host.as_str(), found.port, found.in_clear), ("hooks.example", 443, false));
        assert!(!format!("{found:?}").contains("hunter2"));
    }
}
