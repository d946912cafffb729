//! How a role is reached over the network: in clear on loopback alone, or where something in front of it encrypts, or with a
//! certificate of its own. Tokens never travel in clear.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

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
    /// When told to stop, go on serving new callers for so many seconds, with /readyz saying no: where something sends callers here by it
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    linger: u64,
}

impl Encryption {
    /// With a certificate that this process has made or found by itself.
    pub(crate) const fn with_certificate(chain: PathBuf, key: PathBuf) -> Self {
        Self { behind_tls: false, tls_cert: Some(chain), tls_key: Some(key), linger: 0 }
    }
}

/// A port that is open, and what its connections are wrapped in.
pub(crate) struct Door {
    listener: TcpListener,
    certificates: Option<Certificates>,
    linger: Duration,
}

impl Door {
    pub(crate) async fn open(address: SocketAddr, encryption: Encryption) -> anyhow::Result<Self> {
        let linger = Duration::from_secs(encryption.linger);
        let certificates = match (encryption.tls_cert, encryption.tls_key) {
            (Some(chain), Some(key)) => Some(Certificates { chain, key }),
            (Some(_), None) | (None, Some(_)) => bail!("--tls-cert and --tls-key are given together"),
            (None, None) if address.ip().to_canonical().is_loopback() || encryption.behind_tls => None,
            (None, None) => bail!(
                "--listen {address} would take tokens in clear from the network; give --tls-cert and --tls-key, choose a loopback address, or say --behind-tls where something in front of it encrypts"
            ),
        };
        let listener = embedded::serve::bind(address, "--listen").await?;
        Ok(Self { listener, certificates, linger })
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

    /// Serves until Ctrl-C or SIGTERM: then `draining` is told at once, new callers are served for as long as was asked for, and requests
    /// under way may finish. A second signal ends it at once; clients repeat what breaks off then.
    pub(crate) async fn serve(self, service: Router, draining: &Draining) -> anyhow::Result<()> {
        let (mut interrupt, mut terminate) = (
            signal(SignalKind::interrupt()).context("listen for Ctrl-C")?,
            signal(SignalKind::terminate()).context("listen for SIGTERM")?,
        );
        let mut told = async || {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        let stop = CancellationToken::new();
        let serving = async {
            match self.certificates {
                Some(certificates) => {
                    embedded::serve::serve_with(self.listener, certificates, service, stop.clone(), FAREWELL)
                        .await
                        .context("the HTTP service")
                }
                None => {
                    embedded::serve::serve_in_clear(self.listener, service, stop.clone(), FAREWELL).await;
                    Ok(())
                }
            }
        };
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            ended = &mut serving => return ended.and_then(|()| bail!("the HTTP service ended")),
            () = told() => draining.0.cancel(),
        }
        let farewell = async {
            // Whoever sends callers here needs a moment to see that it should not.
            tokio::select! {
                ended = &mut serving => return ended,
                () = tokio::time::sleep(self.linger) => stop.cancel(),
            }
            match tokio::time::timeout(FAREWELL, serving).await {
                Ok(ended) => ended,
                Err(_) => {
                    tracing::warn!("requests were still under way after {FAREWELL:?}, and broke off");
                    Ok(())
                }
            }
        };
        tokio::select! {
            ended = farewell => ended,
            () = told() => Ok(()),
        }
    }
}

/// For requests under way when a role is told to stop. Well below the time that Kubernetes gives a pod.
const FAREWELL: Duration = Duration::from_secs(20);

/// Serves in clear for as long as the process works, with the limits that each caller has: `service` in words.
pub(crate) async fn serve_for_ever(
    listener: TcpListener,
    router: Router,
    service: &'static str,
) -> anyhow::Result<()> {
    embedded::serve::serve_in_clear(listener, router, CancellationToken::new(), Duration::ZERO).await;
    bail!("{service} ended")
}

/// Whether a role was told to stop and only finishes what it is doing. Cheap to clone; all clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Draining(CancellationToken);

impl Draining {
    pub(crate) fn has_begun(&self) -> bool {
        self.0.is_cancelled()
    }
}
