//! Providers for runners: what the store holds, and what it does not hold is fetched from the registries that the administrator
//! named, checked and kept. What cannot be vouched for is left to the tool of that one run; what is wrong is refused to everybody.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use api::provider::{Address, Answer, Package, Request};
use axum::Router;
use axum::extract::{Path as Parts, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use bytes::Bytes;
use clap::Args;
use datastore::service::Reviewer;
use semver::Version;
use tofu::store::Platform;
use tofu::store::providers::{DIRECTORY, Provider, ProviderStore, Registry, RegistryOptions};
use tokio::sync::Semaphore;

use crate::commands::tools::Downloads;
use crate::tool_service::{admit, asked, file, refusal, when_ready};

/// How many providers are fetched at a time.
const DOWNLOADS: usize = 4;

#[derive(Args, Debug, Clone)]
pub(crate) struct Registries {
    /// The registries that providers are fetched from, once for all runs; from others each run fetches for itself, and from all with
    /// `none`
    #[arg(
        long,
        value_name = "HOST,...",
        env = "TERRANE_PROVIDER_REGISTRIES",
        value_delimiter = ',',
        value_parser = host,
        default_value = "registry.terraform.io,registry.opentofu.org"
    )]
    provider_registries: Vec<String>,
}

/// Instead of a list of registries.
const NONE: &str = "none";

fn host(text: &str) -> Result<String, String> {
    if text == NONE || api::provider::is_host(text) {
        Ok(text.to_owned())
    } else {
        Err("say the name of a host, such as registry.terraform.io, without a scheme".to_owned())
    }
}

impl Registries {
    pub(crate) fn options(&self, downloads: &Downloads) -> RegistryOptions {
        let hosts = self.provider_registries.iter().filter(|host| *host != NONE).cloned().collect();
        RegistryOptions { hosts, authority: downloads.authority() }
    }
}

#[derive(Debug)]
struct ProviderService {
    store: ProviderStore,
    registry: Registry,
    reviewer: Arc<dyn Reviewer>,
    downloads: Semaphore,
}

/// A store of our own beside the tools, and the service for it.
pub(crate) fn router(
    tools: &Path,
    registries: RegistryOptions,
    reviewer: Arc<dyn Reviewer>,
) -> anyhow::Result<Router> {
    let root = directory(tools);
    let store = ProviderStore::open(&root)
        .with_context(|| format!("open the store of providers {}", root.display()))?;
    let registry = Registry::new(registries).context("prepare downloads of providers")?;
    let service = ProviderService { store, registry, reviewer, downloads: Semaphore::new(DOWNLOADS) };
    Ok(Router::new()
        .route("/v1/providers", post(ensure))
        .route("/v1/providers/{host}/{namespace}/{kind}/{version}/{platform}", get(fetch))
        .with_state(Arc::new(service)))
}

/// Where providers are, in a store of tools.
pub(crate) fn directory(tools: &Path) -> PathBuf {
    tools.join(DIRECTORY)
}

fn provider(address: Address, version: &str, platform: &str) -> Result<Provider, String> {
    let version = Version::parse(version).map_err(|error| format!("{version:?} is no version: {error}"))?;
    let platform = Platform::named(platform)
        .ok_or_else(|| format!("{platform:?} is no platform that providers are kept for"))?;
    Ok(Provider { address, version, platform })
}

impl ProviderService {
    async fn answer(&self, request: Request) -> Answer {
        let Request { address, version, platform, hashes } = request;
        let provider = match provider(address, &version, &platform) {
            Ok(provider) => provider,
            Err(message) => return Answer::Declined { message },
        };
        // It is never closed; if it were, more downloads at a time would be the only harm.
        let _turn = self.downloads.acquire().await;
        match self.store.ensure(&provider, &hashes, &self.registry).await {
            Ok(found) => Answer::Ready(Package { sha256: found.record.sha256, h1: found.record.h1 }),
            Err(error) if error.is_distrust() => {
                tracing::warn!(provider = %provider.address, %version, %error, "a provider was refused");
                Answer::Untrusted { message: error.to_string() }
            }
            Err(error) => {
                tracing::debug!(provider = %provider.address, %version, %error, "a provider is not shared");
                Answer::Declined { message: error.to_string() }
            }
        }
    }
}

async fn ensure(State(service): State<Arc<ProviderService>>, headers: HeaderMap, content: Bytes) -> Response {
    match asked(service.reviewer.as_ref(), &headers, &content).await {
        Ok(request) => when_ready(async move { service.answer(request).await }),
        Err(refused) => *refused,
    }
}

/// The archive itself, for runners that do not see the store.
async fn fetch(
    State(service): State<Arc<ProviderService>>,
    headers: HeaderMap,
    Parts([host, namespace, kind, version, platform]): Parts<[String; 5]>,
) -> Response {
    if let Err(refused) = admit(service.reviewer.as_ref(), &headers).await {
        return *refused;
    }
    // Only sound names are looked for: they can lead nowhere else.
    let named = Address::parse(&format!("{host}/{namespace}/{kind}"))
        .map_err(|error| error.to_string())
        .and_then(|address| provider(address, &version, &platform));
    match named.map(|provider| service.store.find(&provider)) {
        Ok(Some(package)) => file(&package.archive(), &package.record.sha256).await,
        Ok(None) => {
            let message = format!("the store does not hold {host}/{namespace}/{kind} {version}");
            refusal(StatusCode::NOT_FOUND, &message)
        }
        Err(message) => refusal(StatusCode::NOT_FOUND, &message),
    }
}
