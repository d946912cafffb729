//! The embedded API alone, with Terrane's kinds: what a real kube-apiserver with etcd is compared with.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use embedded::serve::{Listen, Options, Server};
use tokio::signal::unix::{SignalKind, signal};

/// Serves until SIGTERM.
pub async fn run(data: PathBuf, address: SocketAddr) -> Result<()> {
    let options = Options {
        listen: Listen::new(address, None, None)?,
        definitions: api::custom_resources(),
        ..Options::new(data)
    };
    let mut stop = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut server = Server::start(options).await?;
    let ended = tokio::select! {
        _ = stop.recv() => None,
        error = server.ended() => Some(error),
    };
    server.stop().await;
    ended.map_or(Ok(()), |error| Err(error.into()))
}
