//! How a role is reached over the network: in clear on loopback alone, or where something in front of it encrypts, or with a
//! certificate of its own. Tokens never travel in clear.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, bail};
use axum::Router;
use clap::Args;
use embedded::serve::Certificates;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[derive(Args, Debug, Clone, Default)]
pub(crate) struct Encryption {
    /// Listen on an address of the network in clear: something in front of it encrypts (a mesh, a proxy), as tokens must not travel
    /// in clear
    #[arg(long, conflicts_with = "tls_cert")]
    behind_tls: bool,
    /// The certificate shown to callers: a PEM file, leaf first, read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of that certificate: a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl Encryption {
    /// With a certificate that this process has made or found by itself.
    pub(crate) const fn with_certificate(chain: PathBuf, key: PathBuf) -> Self {
        Self { behind_tls: false, tls_cert: Some(chain), tls_key: Some(key) }
    }
}

/// A port that is open, and what its connections are wrapped in.
pub(crate) struct Door {
    listener: TcpListener,
    certificates: Option<Certificates>,
}

impl Door {
    pub(crate) async fn open(address: SocketAddr, encryption: Encryption) -> anyhow::Result<Self> {
        let certificates = match (encryption.tls_cert, encryption.tls_key) {
            (Some(chain), Some(key)) => Some(Certificates { chain, key }),
            (Some(_), None) | (None, Some(_)) => bail!("--tls-cert and --tls-key are given together"),
            (None, None) if address.ip().to_canonical().is_loopback() || encryption.behind_tls => None,
            (None, None) => bail!(
                "--listen {address} would take tokens in clear from the network; give --tls-cert and --tls-key, choose a loopback address, or say --behind-tls where something in front of it encrypts"
            ),
        };
        let listener = embedded::serve::bind(address, "--listen").await?;
        Ok(Self { listener, certificates })
    }

    pub(crate) fn address(&self) -> anyhow::Result<SocketAddr> {
        self.listener.local_addr().context("find the address of the HTTP service")
    }

    /// What an address on this machine begins with.
    pub(crate) const fn scheme(&self) -> &'static str {
        match self.certificates {
            Some(_) => "https",
            None => "http",
        }
    }

    /// Serves until Ctrl-C or SIGTERM. Clients repeat what breaks off then.
    pub(crate) async fn serve(self, service: Router) -> anyhow::Result<()> {
        let (mut interrupt, mut terminate) = (
            signal(SignalKind::interrupt()).context("listen for Ctrl-C")?,
            signal(SignalKind::terminate()).context("listen for SIGTERM")?,
        );
        let stop = CancellationToken::new();
        let serving = async {
            match self.certificates {
                Some(certificates) => {
                    embedded::serve::serve_with(self.listener, certificates, service, stop.clone())
                        .await
                        .context("the HTTP service")
                }
                None => axum::serve(self.listener, service).await.context("the HTTP service"),
            }
        };
        tokio::select! {
            ended = serving => match ended {
                Ok(()) => bail!("the HTTP service ended"),
                Err(error) => Err(error),
            },
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    }
}
