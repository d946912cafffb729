//! One delivery by a mail server: the conversation, from the connection to the answer behind the message.
//!
//! It is ours, and not `lettre`'s, for three things that version 0.11 does: it keeps what a server sent behind its answer to `STARTTLS` and
//! reads it after the handshake as if it had come encrypted, so that who stands in between can put words into the server's mouth; it
//! gives up a mail when one of its recipients is refused; and it reads a line without a limit. What is left of SMTP is little: eight
//! commands, one after the other, on the TLS that is here anyway. **Nothing may come that was not asked for**: bytes behind an answer
//! end the conversation, before the handshake and after it.
//!
//! **Encrypted or not at all.** `STARTTLS` is demanded, whatever the server says that it can. In clear only this machine is spoken to, without
//! a password.
//!
//! What a server says in its answers is told only once it has proved who it is, and then a few printable words of it: otherwise whoever may
//! write a notification could read in its status what somebody inside of the network says to strangers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use api::text::MailAddress;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engine::notification::Hope;
use rustls_platform_verifier::BuilderVerifierExt;
use secrecy::{ExposeSecret, SecretString};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::post::{NotTaken, PATIENCE, Taken};
use super::receiver::Receiver;
use super::reply::{self, Reply};

/// Refusals that are told one by one; of more the number is told.
const TOLD: usize = 3;

/// Whom mails go to, and what the server is asked with.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pub(super) from: MailAddress,
    pub(super) to: Vec<MailAddress>,
    pub(super) security: Security,
    pub(super) login: Option<Login>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Security {
    /// From the first byte on.
    Tls,
    /// After a few words in clear.
    StartTls,
    /// To this machine.
    None,
}

#[derive(Debug)]
pub(crate) struct Login {
    pub(super) username: SecretString,
    pub(super) password: SecretString,
}

/// What is sent, and who has it already.
pub(super) struct Parcel<'a> {
    pub(super) message: &'a str,
    pub(super) reached: &'a BTreeSet<MailAddress>,
}

pub(super) async fn send(
    receiver: &Receiver,
    mailbox: &Mailbox,
    addresses: &[SocketAddr],
    parcel: Parcel<'_>,
) -> Result<Taken, NotTaken> {
    let host = receiver.host.as_str();
    let tcp = connect(host, addresses).await?;
    // The name of a pod means nothing to anybody, and the standard has a form for who has none.
    let own = tcp.local_addr().map_err(|error| NotTaken::again(format!("{host} is gone again ({error})")))?;
    let own = match own {
        SocketAddr::V4(own) => format!("[{}]", own.ip()),
        SocketAddr::V6(own) => format!("[IPv6:{}]", own.ip()),
    };
    match mailbox.security {
        Security::None => {
            let mut talk = Talk::new(tcp, host);
            talk.greeting().await?;
            talk.hello(&own).await?;
            talk.hand_over(mailbox, parcel).await
        }
        Security::Tls => {
            let mut talk = Talk::new(encrypt(receiver, tcp).await?, host);
            talk.greeting().await?;
            let abilities = talk.hello(&own).await?;
            talk.log_in(mailbox.login.as_ref(), &abilities).await?;
            talk.hand_over(mailbox, parcel).await
        }
        Security::StartTls => {
            let mut talk = Talk::new(tcp, host);
            talk.greeting().await?;
            if talk.hello(&own).await?.can("STARTTLS").is_none() {
                return Err(NotTaken::again(format!(
                    "{host} offers no STARTTLS, and nothing is sent in clear"
                )));
            }
            talk.ask("STARTTLS", "STARTTLS", 220).await?;
            // What it could do before may have been said by somebody else.
            let mut talk = Talk::new(encrypt(receiver, talk.stream).await?, host);
            let abilities = talk.hello(&own).await?;
            talk.log_in(mailbox.login.as_ref(), &abilities).await?;
            talk.hand_over(mailbox, parcel).await
        }
    }
}

/// To the first of the addresses that answers; one that is silent leaves time for the others.
async fn connect(host: &str, addresses: &[SocketAddr]) -> Result<TcpStream, NotTaken> {
    let share = PATIENCE / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    let mut why = "it has no address".to_owned();
    for address in addresses {
        match tokio::time::timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => why = error.to_string(),
            Err(_) => why = "it does not answer".to_owned(),
        }
    }
    Err(NotTaken::again(format!("{host} cannot be reached ({why})")))
}

async fn encrypt(receiver: &Receiver, stream: TcpStream) -> Result<TlsStream<TcpStream>, NotTaken> {
    let host = receiver.host.as_str();
    let again = |why: String| NotTaken::again(format!("{host} cannot be spoken to in private: {why}"));
    let config = tls(receiver.authority.as_deref()).map_err(|error| again(error.to_string()))?;
    let name = ServerName::try_from(host.to_owned()).map_err(|error| again(error.to_string()))?;
    let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    connected.map_err(|error| again(error.to_string()))
}

/// Whom it believes: the authority of the Secret alone, or those that this machine believes, as for receivers over HTTP.
fn tls(authority: Option<&[u8]>) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = match authority {
        None => builder.with_platform_verifier()?,
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| rustls::Error::General(error.to_string()))?;
                roots.add(certificate)?;
            }
            builder.with_root_certificates(roots)
        }
    };
    Ok(builder.with_no_client_auth())
}

/// A conversation, one question and one answer after the other.
struct Talk<'a, S> {
    stream: S,
    host: &'a str,
    heard: Vec<u8>,
    /// What must not be told, whoever says it.
    secrets: Vec<String>,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Talk<'a, S> {
    fn new(stream: S, host: &'a str) -> Self {
        Self { stream, host, heard: Vec::new(), secrets: Vec::new() }
    }

    /// The server speaks first. Over STARTTLS it does not greet again.
    async fn greeting(&mut self) -> Result<(), NotTaken> {
        let reply = self.hear().await?;
        self.expect("the connection", &reply, 220)
    }

    async fn hello(&mut self, own: &str) -> Result<Reply, NotTaken> {
        self.ask(&format!("EHLO {own}"), "EHLO", 250).await
    }

    /// Only ever called on a connection that is encrypted.
    async fn log_in(&mut self, login: Option<&Login>, abilities: &Reply) -> Result<(), NotTaken> {
        let Some(Login { username, password }) = login else { return Ok(()) };
        let (username, password) = (username.expose_secret(), password.expose_secret());
        let ways = abilities.can("AUTH").unwrap_or_default();
        let plain = STANDARD.encode(format!("\0{username}\0{password}"));
        let (user, pass) = (STANDARD.encode(username), STANDARD.encode(password));
        self.secrets = vec![password.to_owned(), plain.clone(), pass.clone()];
        if ways.iter().any(|way| way == "PLAIN") {
            self.ask(&format!("AUTH PLAIN {plain}"), "AUTH", 235).await?;
        } else if ways.iter().any(|way| way == "LOGIN") {
            self.ask("AUTH LOGIN", "AUTH", 334).await?;
            self.ask(&user, "AUTH", 334).await?;
            self.ask(&pass, "AUTH", 235).await?;
        } else {
            let why = format!("{} takes no password by PLAIN or LOGIN", self.host);
            return Err(NotTaken::again(why));
        }
        Ok(())
    }

    /// Each recipient is asked for alone. Who is refused for good keeps no other waiting; who is refused for now is tried again, alone.
    async fn hand_over(&mut self, mailbox: &Mailbox, parcel: Parcel<'_>) -> Result<Taken, NotTaken> {
        let reply = self.say(&format!("MAIL FROM:<{}>", mailbox.from)).await?;
        self.letter_expects("MAIL FROM", &reply, 250)?;
        let mut reached = parcel.reached.clone();
        let (mut accepted, mut later, mut never) = (BTreeSet::new(), Vec::new(), Vec::new());
        for address in mailbox.to.iter().filter(|address| !parcel.reached.contains(*address)) {
            if accepted.contains(address) {
                continue;
            }
            let reply = self.say(&format!("RCPT TO:<{address}>")).await?;
            let words = || format!("{address} ({}{})", reply.code, self.excerpt(&reply));
            match reply.code {
                250..=259 => drop(accepted.insert(address.clone())),
                // It closes the connection, and that is about nobody in particular.
                421 => return Err(self.refused("RCPT TO", &reply, Hope::Some)),
                500..=599 => never.push(words()),
                _ => later.push(words()),
            }
        }
        if !accepted.is_empty() {
            let reply = self.say("DATA").await?;
            self.letter_expects("DATA", &reply, 354)?;
            let reply = self.say(&stuffed(parcel.message)).await?;
            self.letter_expects("the message", &reply, 250)?;
            reached.append(&mut accepted);
        }
        // It is taken, or is not, whatever is answered to that.
        drop(self.stream.write_all(b"QUIT\r\n").await);
        drop(self.stream.flush().await);
        let refused = |who: &[String]| format!("{} did not take it for {}", self.host, told(who));
        if !later.is_empty() {
            let why = refused(&[later, never].concat());
            return Err(NotTaken { why, hope: Hope::Some, reached });
        }
        if never.is_empty() {
            return Ok(Taken::default());
        }
        let why = refused(&never);
        if reached.is_empty() {
            Err(NotTaken { why, hope: Hope::None, reached })
        } else {
            Ok(Taken { except: why })
        }
    }

    /// Asks what is not about the letter: what is refused there may be put right, as with a wrong password.
    async fn ask(&mut self, line: &str, step: &str, expected: u16) -> Result<Reply, NotTaken> {
        let reply = self.say(line).await?;
        self.expect(step, &reply, expected)?;
        Ok(reply)
    }

    fn expect(&self, step: &str, reply: &Reply, expected: u16) -> Result<(), NotTaken> {
        if reply.code == expected {
            return Ok(());
        }
        let code = reply.code;
        Err(NotTaken::again(format!("{} answered {code} to {step}", self.host)))
    }

    /// The same about the letter: what a server refuses for good, it does not want.
    fn letter_expects(&self, step: &str, reply: &Reply, expected: u16) -> Result<(), NotTaken> {
        match reply.code {
            code if code == expected => Ok(()),
            // It wants to be logged in, or better: that is not about the letter.
            530 | 534 | 535 | 538 => Err(self.refused(step, reply, Hope::Some)),
            500..=599 => Err(self.refused(step, reply, Hope::None)),
            _ => Err(self.refused(step, reply, Hope::Some)),
        }
    }

    fn refused(&self, step: &str, reply: &Reply, hope: Hope) -> NotTaken {
        let why = format!("{} answered {} to {step}{}", self.host, reply.code, self.excerpt(reply));
        NotTaken { why, hope, reached: BTreeSet::new() }
    }

    fn excerpt(&self, reply: &Reply) -> String {
        let secrets: Vec<&str> = self.secrets.iter().map(String::as_str).collect();
        let words = reply.excerpt(&secrets);
        if words.is_empty() { words } else { format!(": {words}") }
    }

    async fn say(&mut self, line: &str) -> Result<Reply, NotTaken> {
        let broken = |error: std::io::Error, host| NotTaken::again(format!("{host} broke off ({error})"));
        let sent = async {
            // In one piece, as servers expect it of those who ask one thing at a time.
            self.stream.write_all(format!("{line}\r\n").as_bytes()).await?;
            self.stream.flush().await
        };
        sent.await.map_err(|error| broken(error, self.host))?;
        self.hear().await
    }

    async fn hear(&mut self) -> Result<Reply, NotTaken> {
        let host = self.host;
        loop {
            let found = reply::read(&self.heard);
            let found = found.map_err(|error| NotTaken::again(format!("{host} {error}")))?;
            if let Some((reply, used)) = found {
                if used < self.heard.len() {
                    let why = format!("{host} says more than it was asked, as if somebody spoke in between");
                    return Err(NotTaken::again(why));
                }
                self.heard.clear();
                return Ok(reply);
            }
            let mut piece = [0; 1024];
            match self.stream.read(&mut piece).await {
                Ok(0) => return Err(NotTaken::again(format!("{host} closed the connection"))),
                Ok(count) => self.heard.extend(piece.iter().take(count)),
                Err(error) => return Err(NotTaken::again(format!("{host} broke off ({error})"))),
            }
        }
    }
}

fn told(who: &[String]) -> String {
    let some = who.iter().take(TOLD).cloned().collect::<Vec<_>>().join(", ");
    match who.len().saturating_sub(TOLD) {
        0 => some,
        more => format!("{some} and {more} more"),
    }
}

/// A dot alone would end the message, so one more stands before each that begins a line. Every line gets the end that mail has, and the
/// last one is that dot.
fn stuffed(message: &str) -> String {
    let mut sent = String::with_capacity(message.len() + 16);
    for line in message.lines() {
        if line.starts_with('.') {
            sent.push('.');
        }
        // Alone, some servers take it for the end of a line.
        sent.push_str(&line.replace('\r', " "));
        sent.push_str("\r\n");
    }
    sent.push('.');
    sent
}

#[cfg(test)]
mod tests;
