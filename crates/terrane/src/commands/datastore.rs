//! `terrane datastore`: artefacts and states alone, for the controllers and runners of any Kubernetes API. Callers are who the API
//! says they are.

use std::sync::Arc;

use anyhow::{Context, bail};
use datastore::service::{Keyring, KubeReviewer, Options, router};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::arguments::Datastore;
use crate::{signs, tool_service};

pub(crate) async fn run(options: Datastore) -> anyhow::Result<()> {
    let address = options.listen;
    if !address.ip().is_loopback() && !options.behind_tls {
        bail!(
            "--listen {address} would take tokens in clear from the network; choose a loopback address, or say --behind-tls where something in front of it encrypts"
        );
    }
    let config = kube::Config::infer()
        .await
        .context("no Kubernetes API is configured; run in a pod of the cluster, or set KUBECONFIG")?;
    let client = kube::Client::try_from(config).context("use the kubeconfig")?;
    let place = || options.directory.display().to_string();
    let objects = Options::local_objects(&options.directory).with_context(|| format!("open {}", place()))?;
    let keys = Keyring::load_or_create(&options.keys)
        .with_context(|| format!("open the keys in {}", options.keys.display()))?;
    let reviewer = Arc::new(KubeReviewer::new(client.clone()));
    let default_keys = std::path::Path::new("/etc/terrane/tool-keys");
    let (store, source) = tool_service::open(&options.tools, &options.downloads, default_keys)?;
    let service = router(Options { objects, keys, reviewer: reviewer.clone() })
        .merge(tool_service::router(store, source, reviewer))
        .merge(signs::datastore_router(client, options.directory.clone()));
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("listen on {address}; if something else does already, choose another address with --listen")
    })?;
    tracing::info!(address = %listener.local_addr().unwrap_or(address), directory = place(), "serving artefacts");
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt()).context("listen for Ctrl-C")?,
        signal(SignalKind::terminate()).context("listen for SIGTERM")?,
    );
    // Clients repeat what breaks off here, and what was answered is on disk.
    tokio::select! {
        ended = axum::serve(listener, service) => match ended {
            Ok(()) => bail!("the HTTP service ended"),
            Err(error) => Err(error).context("the HTTP service"),
        },
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}
