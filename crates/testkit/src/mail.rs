//! A real mail server on loopback, which asks for TLS and a login, and keeps what it takes. Mails to `nobody@…` it refuses for good, those to
//! `later@…` for now.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::process::{Guarded, Scratch};
use crate::tls;
use crate::tools::tool;

const START_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
const SERVER: &str = include_str!("mail_server.py");

/// A running server. It stops, and its files go, when this is dropped or the test process ends.
#[derive(Debug)]
pub struct MailServer {
    authority: String,
    ports: Ports,
    // Dropped in this order: first what uses the directory.
    process: Guarded,
    scratch: Scratch,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Ports {
    starttls: u16,
    login: u16,
    tls: u16,
}

impl MailServer {
    pub async fn start(username: &str, password: &str) -> Result<Self> {
        let program = tool("python-with-aiosmtpd")?;
        let scratch = Scratch::new("terrane-mail-")?;
        let issued = tls::issue()?;
        let place = |name: &str| scratch.path().join(name);
        let login = serde_json::to_string(&[username, password]).context("writing the login")?;
        let files = [
            ("server.py", SERVER),
            ("server.crt", issued.certificate.as_str()),
            ("server.key", issued.key.as_str()),
            ("login.json", login.as_str()),
        ];
        for (name, content) in files {
            fs::write(place(name), content).with_context(|| format!("writing {name}"))?;
        }
        let arguments = files.map(|(name, _)| place(name));
        let mut process = Guarded::start(&program, &arguments, place("server.log"))?;
        let limit = Instant::now() + START_LIMIT;
        let ports = loop {
            process.ensure_running()?;
            if let Some(first) = said(&scratch).into_iter().next() {
                break serde_json::from_value(first).context("reading the ports of the mail server")?;
            }
            ensure!(Instant::now() < limit, "the mail server did not start:\n{}", process.log_tail());
            tokio::time::sleep(POLL).await;
        };
        Ok(Self { authority: issued.authority, ports, process, scratch })
    }

    /// Who vouches for it, in PEM.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Where it asks to be spoken to in private before anything else.
    pub fn starttls(&self) -> String {
        format!("smtp+starttls://localhost:{}", self.ports.starttls)
    }

    /// The same, where only the mechanism `LOGIN` is known.
    pub fn starttls_by_login(&self) -> String {
        format!("smtp+starttls://localhost:{}", self.ports.login)
    }

    /// Where everything is private from the first byte on.
    pub fn tls(&self) -> String {
        format!("smtps://localhost:{}", self.ports.tls)
    }

    /// Every mail that it took, oldest first: `from`, `to`, `headers` by their names in small letters, `text`, and more.
    pub fn mails(&self) -> Vec<Value> {
        said(&self.scratch).into_iter().skip(1).collect()
    }

    /// What it printed last, for a test that waited in vain.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }
}

/// The whole lines of JSON among what was printed.
fn said(scratch: &Scratch) -> Vec<Value> {
    let log = fs::read_to_string(scratch.path().join("server.log")).unwrap_or_default();
    let lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
}
