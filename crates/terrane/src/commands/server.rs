//! `terrane server`: the HTTP service for people alone, against any Kubernetes API. It has no rights to give: who asks and what they
//! may is the API's to say.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, bail};
use api::SYSTEM_NAMESPACE;
use api::service::{ANNOUNCEMENT, AUTHORITY, URL};
use axum::Router;
use axum::routing::get;
use clap::Args;
use datastore::client::TokenSource;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::config::AuthInfo;
use kube::{Api, Client};
use serde_json::json;
use server::Reviews;

use crate::area::Area;
use crate::controllers_role::read_authority;
use crate::kubernetes;
use crate::listening::{Door, Encryption};
use crate::signs::{self, Figures};

/// Serve logs, plans, outputs and states to people, by the rights that the Kubernetes API gives them
///
/// Whoever asks sends the token of their kubeconfig; a TokenReview says who they are and a SubjectAccessReview what they may. The
/// command line finds the service by the ConfigMap terrane-service in terrane-system, which --public-url writes. Git hosts send
/// their webhooks to /webhooks.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Its ServiceAccount is terrane-server in terrane-system. It may create TokenReviews and SubjectAccessReviews, watch layers, runs and
repositories, and, with --public-url, patch the one ConfigMap. For webhooks it may get repositories and the Secret terrane-webhooks,
and patch the status of repositories. With --namespaces it creates LocalSubjectAccessReviews in those instead of both, and
asks the API with the caller's own token who that is. Its token for the datastore is one for the audience terrane-datastore.

Example:
      terrane server --listen 0.0.0.0:8443 --tls-cert tls.crt --tls-key tls.key --public-url https://terrane.example.com \\
          --public-ca ca.crt --datastore-url https://terrane-datastore.terrane-system.svc --token-file token")]
pub(crate) struct Options {
    /// Where it listens
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    #[command(flatten)]
    encryption: Encryption,
    #[command(flatten)]
    area: Area,
    /// Where the datastore is
    #[arg(long, value_name = "URL", env = "TERRANE_DATASTORE_URL")]
    datastore_url: String,
    /// The authority that signed the datastore's certificate: a PEM file, read at the start. Without it, those that this machine trusts
    #[arg(long, value_name = "FILE", env = "TERRANE_DATASTORE_CA")]
    datastore_ca: Option<PathBuf>,
    /// The file with this service's token for the datastore, read again for each request
    #[arg(long, value_name = "FILE", env = "TERRANE_TOKEN_FILE")]
    token_file: PathBuf,
    /// Do not serve /metrics, which anybody who reaches the service may read
    #[arg(long)]
    no_metrics: bool,
    /// Where people reach this service; the command line is told so through the API
    #[arg(long, value_name = "URL")]
    public_url: Option<reqwest::Url>,
    /// The certificate authority that people are to trust for that address, where their machines do not: a PEM file
    #[arg(long, value_name = "FILE", requires = "public_url")]
    public_ca: Option<PathBuf>,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let config = kubernetes::role_config().await?;
    let reviews = options.area.named().map_or(Reviews::Cluster, Reviews::Namespaces);
    let mut without = config.clone();
    without.auth_info = AuthInfo::default();
    let bare = kubernetes::client(without)?;
    let client = kubernetes::client(config)?;
    let token = TokenSource::File(options.token_file.clone());
    let authority = read_authority(options.datastore_ca.as_deref())?;
    let datastore = datastore::Client::believing(&options.datastore_url, token, authority.as_deref())
        .context("prepare the datastore's client")?;
    let announcement = announcement(&options).await?;
    let door = Door::open(options.listen, options.encryption).await?;
    let own = signs::Own::default();
    let figures = if options.no_metrics { Figures::Closed } else { Figures::Open };
    // What people change is written with their own token, over a connection that has no credentials by itself.
    let (for_people, keeping) = server::service(server::Options {
        client: client.clone(),
        bare,
        reviews,
        datastore: datastore.clone(),
        local: None,
        deliveries: own.traffic.deliveries(),
    });
    let service = Router::new()
        .route("/healthz", get(async || "ok"))
        .merge(signs::server_router(client.clone(), datastore.clone(), own.clone(), figures))
        .merge(own.traffic.count(for_people));
    if let Some(announcement) = announcement {
        announce(&client, announcement).await?;
    }
    tracing::info!(address = %door.address()?, scheme = door.scheme(), "serving people");
    tokio::select! {
        ended = door.serve(service, &own.draining) => ended,
        () = keeping => bail!("the HTTP service no longer follows what changes"),
    }
}

/// What the ConfigMap is to hold, if this service announces itself.
async fn announcement(options: &Options) -> anyhow::Result<Option<serde_json::Value>> {
    let Some(url) = &options.public_url else { return Ok(None) };
    if !matches!(url.scheme(), "https" | "http") {
        bail!("--public-url {url} is no address of the web; write https://HOST");
    }
    let url = url.as_str().trim_end_matches('/');
    let Some(file) = &options.public_ca else { return Ok(Some(json!({ URL: url }))) };
    let reading = || format!("read --public-ca {}", file.display());
    let pem = tokio::fs::read_to_string(file).await.with_context(reading)?;
    // Found out here, and not by the first person who asks.
    reqwest::Certificate::from_pem(pem.as_bytes()).with_context(reading)?;
    Ok(Some(json!({ URL: url, AUTHORITY: pem })))
}

/// Server-side apply: the same address at the next start writes nothing.
async fn announce(client: &Client, data: serde_json::Value) -> anyhow::Result<()> {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": ANNOUNCEMENT }, "data": data,
    });
    Api::<ConfigMap>::namespaced(client.clone(), SYSTEM_NAMESPACE)
        .patch(ANNOUNCEMENT, &PatchParams::apply("terrane-server").force(), &Patch::Apply(map))
        .await
        .with_context(|| format!("announce this service in ConfigMap {SYSTEM_NAMESPACE}/{ANNOUNCEMENT}"))?;
    Ok(())
}
