//! `terrane datastore`: artefacts and states alone, for the controllers and runners of any Kubernetes API. Callers are who the API
//! says they are.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use api::text::ObjectName;
use clap::{Args, Subcommand};
use datastore::service::{Bucket, FirstKey, KeySource, Keyring, KubeReviewer, Place, router};

use super::keys;
use super::tools::Downloads;
use crate::area::Area;
use crate::listening::{Door, Encryption};
use crate::provider_service::{self, Registries};
use crate::stored::Stored;
use crate::{environment, kubernetes, signs, tool_service};

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_value_name = "keys")]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    /// Where it listens
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    #[command(flatten)]
    encryption: Encryption,
    #[command(flatten)]
    proof: Proof,
    #[command(flatten)]
    kept: Kept,
    /// Take the keys that are there, and make none: where they come from elsewhere, such as a Secret. Without it the first one is made
    /// for a store that holds nothing yet
    #[arg(long)]
    existing_keys: bool,
    /// Where tools are kept that runners ask for and their image does not have
    #[arg(long, value_name = "DIR", default_value = "/var/lib/terrane/tools")]
    tools: PathBuf,
    #[command(flatten)]
    downloads: Downloads,
    #[command(flatten)]
    registries: Registries,
}

/// How callers are known.
#[derive(Args, Debug)]
struct Proof {
    #[command(flatten)]
    area: Area,
    /// The namespace of builds by kaniko, whose pods say by their labels whose they are. Only where an admission policy lets nobody but the
    /// controllers set these
    #[arg(long, value_name = "NAME")]
    build_namespace: Option<ObjectName>,
    /// With --namespaces, who signs the cluster's tokens, where the API server does not tell service accounts
    #[arg(long, value_name = "URL", requires = "issuer_keys", requires = "namespaces")]
    issuer: Option<String>,
    /// The keys of that issuer: a file with a JSON Web Key Set, read again every few minutes
    #[arg(long, value_name = "FILE", requires = "issuer")]
    issuer_keys: Option<PathBuf>,
}

impl Proof {
    /// TokenReviews are a right over the whole cluster; with namespaces of its own a datastore does without.
    fn reviewer(&self, client: kube::Client) -> KubeReviewer {
        self.judge(client).with_builds(self.build_namespace.as_ref().map(ToString::to_string))
    }

    fn judge(&self, client: kube::Client) -> KubeReviewer {
        let Some(namespaces) = self.area.named() else { return KubeReviewer::new(client) };
        let source = match (&self.issuer, &self.issuer_keys) {
            (Some(issuer), Some(keys)) => KeySource::File { issuer: issuer.clone(), keys: keys.clone() },
            (Some(_) | None, Some(_) | None) => KeySource::Api(client.clone()),
        };
        KubeReviewer::by_keys(client, source, namespaces)
    }
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
    /// Where the keys are kept. Whoever has these and the artefacts can read everything
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
    let door = Door::open(options.listen, options.encryption).await?;
    let client = kubernetes::role_client().await?;
    let place = options.kept.place();
    let objects = place.open(environment::texts()).await.context("open the artefacts")?;
    let first = if options.existing_keys { FirstKey::Refused } else { FirstKey::Made };
    let keys = Keyring::open(&options.kept.keys, &objects, first)
        .await
        .with_context(|| format!("open the keys in {}", options.kept.keys.display()))?;
    let reviewer = Arc::new(options.proof.reviewer(client.clone()));
    let default_keys = std::path::Path::new("/etc/terrane/tool-keys");
    let (store, source) = tool_service::open(&options.tools, &options.downloads, default_keys)?;
    let registries = options.registries.options(&options.downloads);
    let providers = provider_service::router(&options.tools, registries, reviewer.clone())?;
    let tools = tool_service::router(store, source, reviewer.clone()).merge(providers);
    let own = signs::Own::default();
    let stored = Stored::new(&place, objects.clone());
    let signs = signs::datastore_router(
        client,
        reviewer.clone(),
        place.clone(),
        objects.clone(),
        own.clone(),
        stored.clone(),
    );
    let parts = datastore::service::Options { objects, keys, reviewer };
    let service = own.traffic.count(router(parts).merge(tools)).merge(signs);
    tracing::info!(address = %door.address()?, scheme = door.scheme(), %place, "serving artefacts");
    tokio::select! {
        // Clients repeat what breaks off at the end, and what was answered is on disk.
        ended = door.serve(service, &own.draining) => ended,
        () = stored.keep() => bail!("what is kept is no longer counted"),
    }
}
