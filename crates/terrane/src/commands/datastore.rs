//! `terrane datastore`: artefacts and states alone, for the controllers and runners of any Kubernetes API. Callers are who the API
//! says they are.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use datastore::service::{Bucket, Keyring, KubeReviewer, Place, router};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::keys;
use super::tools::Downloads;
use crate::{environment, signs, tool_service};

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_value_name = "keys")]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    /// Where it listens
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Listen on an address of the network: something in front of it encrypts (a mesh, a proxy), as tokens must not travel in clear
    #[arg(long)]
    behind_tls: bool,
    #[command(flatten)]
    kept: Kept,
    /// Where tools are kept that runners ask for and their image does not have
    #[arg(long, value_name = "DIR", default_value = "/var/lib/terrane/tools")]
    tools: PathBuf,
    #[command(flatten)]
    downloads: Downloads,
}

/// Where everything is that a datastore keeps.
#[derive(Args, Debug)]
pub(super) struct Kept {
    /// Where artefacts and states are kept, encrypted
    #[arg(long, value_name = "DIR", default_value = "/var/lib/terrane/artefacts")]
    directory: PathBuf,
    /// Keep them in this bucket instead: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX; credentials come from
    /// the environment
    #[arg(long, value_name = "URL", env = "TERRANE_STORE", conflicts_with = "directory")]
    store: Option<Bucket>,
    /// Where the keys are kept; the first one is made. Whoever has these and the artefacts can read everything
    #[arg(long, value_name = "DIR", default_value = "/var/lib/terrane/keys")]
    pub(super) keys: PathBuf,
}

impl Kept {
    pub(super) fn place(&self) -> Place {
        match &self.store {
            Some(bucket) => Place::Bucket(bucket.clone()),
            None => Place::Directory(self.directory.clone()),
        }
    }
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Look at the keys that artefacts and states are encrypted with, and change them
    Keys(keys::Options),
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    if let Some(Command::Keys(options)) = options.command {
        return keys::run(options).await;
    }
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
    let place = options.kept.place();
    let objects = place.open(environment::texts()).await.context("open the artefacts")?;
    let keys = Keyring::load_or_create(&options.kept.keys)
        .with_context(|| format!("open the keys in {}", options.kept.keys.display()))?;
    let reviewer = Arc::new(KubeReviewer::new(client.clone()));
    let default_keys = std::path::Path::new("/etc/terrane/tool-keys");
    let (store, source) = tool_service::open(&options.tools, &options.downloads, default_keys)?;
    let tools = tool_service::router(store, source, reviewer.clone());
    let parts = datastore::service::Options { objects: Arc::clone(&objects), keys, reviewer };
    let service = router(parts).merge(tools).merge(signs::datastore_router(client, place.clone(), objects));
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("listen on {address}; if something else does already, choose another address with --listen")
    })?;
    tracing::info!(address = %listener.local_addr().unwrap_or(address), %place, "serving artefacts");
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
