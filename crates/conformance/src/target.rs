//! A server under test: a way to send requests to it, and its administrator's token.

use anyhow::{Context, Result};
use kube::{Client, Config};

/// One server. Requests carry their credentials themselves, so that a case can ask as anybody.
#[derive(Clone)]
pub struct Target {
    client: Client,
    token: String,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Target").finish_non_exhaustive()
    }
}

impl Target {
    /// A server behind a client that adds no credentials, such as a Router in process.
    pub fn new(client: Client, token: impl Into<String>) -> Self {
        Self { client, token: token.into() }
    }

    /// A server on a port.
    pub fn on_port(mut config: Config, token: impl Into<String>) -> Result<Self> {
        config.auth_info = kube::config::AuthInfo::default();
        // A repeated request would hide the first answer.
        config.default_retry = false;
        Ok(Self::new(Client::try_from(config).context("making a client without credentials")?, token))
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }
}
