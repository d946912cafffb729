//! One delivery: over HTTP here, to a mail server in `smtp`. The host is resolved once, its addresses are checked, and those very addresses
//! are connected to. Redirects are not followed, and nothing of an answer but its code is told: whoever may write a notification could
//! otherwise read in its status what somebody inside of the network answers.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use api::text::MailAddress;
use aws_lc_rs::hmac;
use engine::notification::Hope;
use http::header::{CONTENT_TYPE, USER_AGENT};
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use sources::{Addresses, NoAddress};

use super::outbox::Letter;
use super::receiver::{Receiver, Way};
use super::smtp::{self, Parcel};

/// For all of a delivery.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// What was taken.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// By whom it was not, and why, without a secret; empty where all took it.
    pub(super) except: String,
}

/// Why it was not taken, without a secret, and whether it may be another time.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotTaken {
    pub(super) why: String,
    pub(super) hope: Hope,
    /// Who has it all the same, and must not get it again.
    pub(super) reached: BTreeSet<MailAddress>,
}

pub(super) async fn deliver(letter: &Letter, rule: Addresses, now: Timestamp) -> Result<Taken, NotTaken> {
    within(PATIENCE, send(letter, rule, now)).await
}

pub(super) async fn within(
    patience: Duration,
    delivery: impl Future<Output = Result<Taken, NotTaken>>,
) -> Result<Taken, NotTaken> {
    let patient = tokio::time::timeout(patience, delivery).await;
    patient.unwrap_or_else(|_| Err(NotTaken::again(format!("it did not answer within {patience:?}"))))
}

async fn send(letter: &Letter, rule: Addresses, now: Timestamp) -> Result<Taken, NotTaken> {
    let receiver = &letter.receiver;
    let addresses = find(receiver, rule).await?;
    match &receiver.way {
        Way::Webhook { url, key } => {
            let headers = headers(letter, key.as_ref(), now);
            post(letter, url, headers, &addresses).await
        }
        Way::Slack { url } | Way::Teams { url } => post(letter, url, Vec::new(), &addresses).await,
        Way::Mail(mailbox) => {
            let parcel = Parcel { message: &letter.body, reached: &letter.reached };
            smtp::send(receiver, mailbox, &addresses, parcel).await
        }
    }
}

/// What a webhook is told beside the body.
fn headers(letter: &Letter, key: Option<&SecretSlice<u8>>, now: Timestamp) -> Vec<(&'static str, String)> {
    let timestamp = now.as_second().to_string();
    let mut headers =
        vec![("Terrane-Event", letter.event.to_owned()), ("Terrane-Delivery", letter.id.clone())];
    if let Some(key) = key {
        let signature = signature(key.expose_secret(), &timestamp, letter.body.as_bytes());
        headers.push(("Terrane-Signature", signature));
    }
    headers.push(("Terrane-Timestamp", timestamp));
    headers
}

async fn post(
    letter: &Letter,
    url: &SecretString,
    headers: Vec<(&'static str, String)>,
    addresses: &[SocketAddr],
) -> Result<Taken, NotTaken> {
    let http = client(&letter.receiver, addresses).map_err(|error| NotTaken::again(words(error)))?;
    let request = http.post(url.expose_secret()).header(CONTENT_TYPE, "application/json");
    let mut request = request.header(USER_AGENT, "terrane");
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let answer = request.body(letter.body.clone()).send().await;
    let code = answer.map_err(|error| NotTaken::again(words(error)))?.status();
    match code.as_u16() {
        200..=299 => Ok(Taken::default()),
        300..=399 => {
            Err(NotTaken::again(format!("it answered {}, and redirects are not followed", code.as_u16())))
        }
        // It understood, and does not want this one.
        400 | 410 | 413 | 415 | 422 => {
            let why = format!("it answered {}", code.as_u16());
            Err(NotTaken { why, hope: Hope::None, reached: BTreeSet::new() })
        }
        other => Err(NotTaken::again(format!("it answered {other}"))),
    }
}

async fn find(receiver: &Receiver, rule: Addresses) -> Result<Vec<SocketAddr>, NotTaken> {
    let found = sources::resolve(&receiver.host, receiver.port, rule).await.map_err(|why| {
        NotTaken::again(match why {
            NoAddress::Unresolved(error) => format!("its host cannot be resolved ({error})"),
            NoAddress::Refused(address) => {
                format!("its host has the address {address}, which is not a place for a receiver")
            }
        })
    })?;
    if receiver.in_clear && !found.iter().all(IpAddr::is_loopback) {
        return Err(NotTaken::again("it is spoken to in clear, and is not this machine".to_owned()));
    }
    Ok(found.into_iter().map(|address| SocketAddr::new(address, receiver.port)).collect())
}

fn client(receiver: &Receiver, addresses: &[SocketAddr]) -> reqwest::Result<reqwest::Client> {
    let mut http = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .resolve_to_addrs(&receiver.host, addresses);
    if let Some(pem) = &receiver.authority {
        http = http.tls_certs_only(reqwest::Certificate::from_pem_bundle(pem)?);
    } else if receiver.in_clear {
        // Nobody is asked for a certificate, so nobody has to be believed.
        http = http.tls_certs_only([]);
    }
    http.build()
}

/// Of the time and the body, so that one that was overheard cannot be sent again later as if it were new.
pub(super) fn signature(key: &[u8], timestamp: &str, body: &[u8]) -> String {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
    context.update(timestamp.as_bytes());
    context.update(b".");
    context.update(body);
    format!("sha256={}", hex::encode(context.sign()))
}

/// The error and its causes, without the address.
fn words(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut words = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(deeper) = cause {
        words = format!("{words}: {deeper}");
        cause = deeper.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of docs/notifications.md, which `openssl dgst -sha256 -hmac` gives too.
    #[test]
    fn a_signature_is_over_the_time_and_the_body() {
        let signed = signature(b"correct horse", "1763467200", br#"{"event":"Applied"}"#);
        assert_eq!(signed, "sha256=7ed22fdf3526e25f64aef8180ad1acb0f37b79c41bd067e3698ed7b72f63f9e6");
    }
}
