//! A provider registry as the tools speak to it: service discovery, the description of a package, its signed checksums, the package.
//! Only registries that the administrator named are asked, and only over https: a run chooses the address of a provider, and must not
//! choose whom this process talks to. Nothing is unpacked or kept here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::provider::Address;
use api::text::Sha256;
use api::tool::Trust;
use reqwest::Url;
use semver::Version;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::super::http::{Http, Schemes};
use super::super::release::{checksum, shown};
use super::super::{Error, Platform};
use crate::signature::{self, Certificate};

const DOCUMENT_LIMIT: u64 = 1024 * 1024;
const SIGNATURE_LIMIT: u64 = 64 * 1024;
/// How long a registry that did not answer is left alone: meanwhile runs go their own way at once.
const REST: Duration = Duration::from_secs(60);

/// What an administrator says about registries.
#[derive(Debug, Clone, Default)]
pub struct RegistryOptions {
    /// Such as `registry.terraform.io`; no others are asked.
    pub hosts: Vec<String>,
    /// A PEM file with authorities that servers are believed by, beside those of the system.
    pub authority: Option<PathBuf>,
}

/// The registries that providers are shared from.
#[derive(Debug)]
pub struct Registry {
    http: Http,
    hosts: Vec<String>,
    resting: Mutex<BTreeMap<String, (Instant, String)>>,
}

/// A package whose right bytes are known.
#[derive(Debug)]
pub(super) struct Vetted {
    pub(super) url: String,
    pub(super) sha256: Sha256,
    pub(super) trust: Trust,
}

#[derive(Deserialize)]
struct Discovery {
    #[serde(rename = "providers.v1")]
    providers: Option<String>,
}

#[derive(Deserialize)]
struct Description {
    filename: String,
    download_url: String,
    shasums_url: String,
    shasums_signature_url: String,
    #[serde(default)]
    signing_keys: SigningKeys,
}

#[derive(Deserialize, Default)]
struct SigningKeys {
    #[serde(default)]
    gpg_public_keys: Vec<SigningKey>,
}

#[derive(Deserialize)]
struct SigningKey {
    ascii_armor: String,
}

impl Registry {
    pub fn new(options: RegistryOptions) -> Result<Self, Error> {
        let http = Http::new(Schemes::HttpsAlone, options.authority.as_deref())?;
        Ok(Self { http, hosts: options.hosts, resting: Mutex::default() })
    }

    /// Finds out which bytes are right, before any of them is fetched: those that the registry's own keys have signed for.
    pub(super) async fn vet(
        &self,
        address: &Address,
        version: &Version,
        platform: Platform,
    ) -> Result<Vetted, Error> {
        let host = address.host();
        if !self.hosts.iter().any(|named| named == host) {
            return Err(Error::Registry { host: host.to_owned() });
        }
        self.ensure_awake(host)?;
        let vetted = self.describe(address, version, platform).await;
        if let Err(Error::Broken { detail, .. }) = &vetted {
            let until = Instant::now() + REST;
            self.resting().insert(host.to_owned(), (until, detail.clone()));
        }
        vetted
    }

    fn resting(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, (Instant, String)>> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ensure_awake(&self, host: &str) -> Result<(), Error> {
        match self.resting().get(host) {
            Some((until, detail)) if Instant::now() < *until => {
                Err(Error::Resting { host: host.to_owned(), detail: detail.clone() })
            }
            Some(_) | None => Ok(()),
        }
    }

    async fn describe(
        &self,
        address: &Address,
        version: &Version,
        platform: Platform,
    ) -> Result<Vetted, Error> {
        let start = url(&format!("https://{}/.well-known/terraform.json", address.host()))?;
        let discovery: Discovery = self.document(&start).await?;
        let missing = || protocol(&start, "it offers no providers.v1");
        let base = joined(&start, &discovery.providers.ok_or_else(missing)?)?;
        let path = format!(
            "{}/{}/{version}/download/linux/{}",
            address.namespace(),
            address.kind(),
            platform.arch()
        );
        let place = url(&format!("{}/{path}", base.as_str().trim_end_matches('/')))?;
        let description: Description = self.document(&place).await?;
        let sums_url = joined(&place, &description.shasums_url)?;
        let signature_url = joined(&place, &description.shasums_signature_url)?;
        let keys = certificates(&description.signing_keys);
        let unvouched =
            |detail: String| Error::Unvouched { provider: format!("{address} {version}"), detail };
        if keys.is_empty() {
            return Err(unvouched("its registry names no key that can be used here".to_owned()));
        }
        let sums = self.http.fetch_small(sums_url.as_str(), DOCUMENT_LIMIT).await?;
        let signature = self.http.fetch_small(signature_url.as_str(), SIGNATURE_LIMIT).await?;
        let key = signature::verify(&sums, &signature, &keys).map_err(|source| match source {
            // Not wrong, only beyond what is read here: the tool reads more.
            signature::Error::Unsupported(_) => unvouched(format!("its signature: {source}")),
            source @ (signature::Error::Malformed(_)
            | signature::Error::UnknownKey { .. }
            | signature::Error::Wrong { .. }
            | signature::Error::KeyNotValid { .. }) => {
                Error::Signature { url: shown(signature_url.as_str()), source }
            }
        })?;
        let file = description.filename;
        let sha256 = checksum(&String::from_utf8_lossy(&sums), &file)
            .ok_or_else(|| Error::NotListed { file, url: shown(sums_url.as_str()) })?;
        let url = joined(&place, &description.download_url)?.to_string();
        Ok(Vetted { url, sha256, trust: Trust::Signature { key: key.to_string() } })
    }

    async fn document<T: DeserializeOwned>(&self, url: &Url) -> Result<T, Error> {
        let content = self.http.fetch_small(url.as_str(), DOCUMENT_LIMIT).await?;
        serde_json::from_slice(&content).map_err(|error| protocol(url, &error.to_string()))
    }

    pub(super) async fn fetch(&self, vetted: &Vetted, to: &Path) -> Result<(), Error> {
        self.http.fetch_file(&vetted.url, &vetted.sha256, to, &mut |_, _| {}).await
    }
}

/// Keys of kinds that are not accepted are left out.
fn certificates(keys: &SigningKeys) -> Vec<Certificate> {
    let read =
        |key: &SigningKey| signature::read_certificates(key.ascii_armor.as_bytes()).unwrap_or_default();
    keys.gpg_public_keys.iter().flat_map(read).collect()
}

fn url(text: &str) -> Result<Url, Error> {
    Url::parse(text).map_err(|error| Error::Protocol { url: shown(text), detail: error.to_string() })
}

/// What one document says about the place of another.
fn joined(from: &Url, to: &str) -> Result<Url, Error> {
    from.join(to).map_err(|error| protocol(from, &error.to_string()))
}

fn protocol(url: &Url, detail: &str) -> Error {
    Error::Protocol { url: shown(url.as_str()), detail: detail.to_owned() }
}
