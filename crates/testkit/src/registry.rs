//! A real registry of images on loopback, and small images that are made on the spot and pushed to it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::process::{Guarded, Scratch};
use crate::s3::free_address;
use crate::tools::tool;

const START_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A running registry. It stops, and its files go, when this is dropped or the test process ends.
#[derive(Debug)]
pub struct Registry {
    address: SocketAddr,
    client: reqwest::Client,
    login: Option<(String, String)>,
    // Dropped in this order: first what uses the directory.
    _process: Guarded,
    _scratch: Scratch,
}

/// One file of an image.
#[derive(Debug, Clone, Copy)]
pub struct File<'a> {
    pub path: &'a str,
    pub content: &'a str,
    pub mode: u32,
}

/// What an image is made of: the files of each of its layers, and what its configuration says.
#[derive(Debug, Clone, Copy, Default)]
pub struct Image<'a> {
    pub layers: &'a [&'a [File<'a>]],
    pub working_directory: &'a str,
    pub environment: &'a [&'a str],
}

impl Registry {
    /// One that anybody may use.
    pub async fn start() -> Result<Self> {
        Self::begin(None).await
    }

    /// One that asks for a user and a password. `hash` is a line as `htpasswd -B` writes it for them.
    pub async fn guarded(user: &str, password: &str, hash: &str) -> Result<Self> {
        Self::begin(Some((user.to_owned(), password.to_owned(), hash.to_owned()))).await
    }

    async fn begin(guard: Option<(String, String, String)>) -> Result<Self> {
        let program = tool("docker-registry")?;
        let scratch = Scratch::new("terrane-registry-")?;
        let limit = Instant::now() + START_LIMIT;
        let login = guard.as_ref().map(|(user, password, _)| (user.clone(), password.clone()));
        let client = reqwest::Client::builder().no_proxy().build().context("making a client")?;
        // It cannot choose a free port itself, so another process may take the one chosen for it before it binds.
        loop {
            let address = free_address()?;
            let settings = scratch.path().join("config.yml");
            fs::write(&settings, configuration(scratch.path(), address, guard.as_ref())?)
                .context("writing the registry's settings")?;
            let arguments = ["serve".to_owned(), settings.display().to_string()];
            let mut process = Guarded::start(&program, &arguments, scratch.path().join("registry.log"))?;
            match wait_until_up(&client, &mut process, address, limit).await {
                Ok(()) => return Ok(Self { address, client, login, _process: process, _scratch: scratch }),
                Err(_) if process.log_tail().contains("address already in use") => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Pushes an image under a tag and says its digest.
    pub async fn push(&self, path: &str, tag: &str, image: Image<'_>) -> Result<String> {
        let mut layers = Vec::new();
        let mut inner = Vec::new();
        for files in image.layers {
            let archive = archive(files)?;
            inner.push(digest(&archive));
            let packed = packed(&archive)?;
            layers.push(json!({ "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest(&packed), "size": packed.len() }));
            self.push_blob(path, &packed).await?;
        }
        let config = json!({
            "architecture": "amd64", "os": "linux", "rootfs": { "type": "layers", "diff_ids": inner },
            "config": { "WorkingDir": image.working_directory, "Env": image.environment },
        })
        .to_string();
        self.push_blob(path, config.as_bytes()).await?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "layers": layers,
            "config": { "mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(config.as_bytes()), "size": config.len() },
        });
        self.push_manifest(path, tag, MANIFEST, &manifest).await
    }

    /// Pushes a list of images that are there already, each for a platform such as `linux/amd64`, and says its digest.
    pub async fn push_index(&self, path: &str, tag: &str, images: &[(&str, &str)]) -> Result<String> {
        let mut manifests = Vec::new();
        for (digest, platform) in images {
            let (os, architecture) = platform.split_once('/').context("a platform has a slash")?;
            let size = self.get(path, digest).await?.len();
            let platform = json!({ "os": os, "architecture": architecture });
            manifests
                .push(json!({ "mediaType": MANIFEST, "digest": digest, "size": size, "platform": platform }));
        }
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests });
        self.push_manifest(path, tag, INDEX, &index).await
    }

    /// Takes an image away, with every tag of it.
    pub async fn delete(&self, path: &str, digest: &str) -> Result<()> {
        let request = self.client.delete(self.url(path, &format!("manifests/{digest}")));
        self.send(request).await.map(drop)
    }

    /// The tags of an image; none where it has none.
    pub async fn tags(&self, path: &str) -> Result<Vec<String>> {
        let Ok(answer) = self.send(self.client.get(self.url(path, "tags/list"))).await else {
            return Ok(Vec::new());
        };
        let list: Value = answer.json().await.context("reading the tags")?;
        let tags = list.get("tags").and_then(Value::as_array).into_iter().flatten();
        Ok(tags.filter_map(Value::as_str).map(str::to_owned).collect())
    }

    /// The manifest of a tag or a digest, as JSON, and what its bytes come to.
    pub async fn manifest(&self, path: &str, reference: &str) -> Result<(Value, String)> {
        let content = self.get(path, reference).await?;
        Ok((serde_json::from_slice(&content).context("reading a manifest")?, digest(&content)))
    }

    pub async fn blob(&self, path: &str, digest: &str) -> Result<Vec<u8>> {
        let request = self.client.get(self.url(path, &format!("blobs/{digest}")));
        Ok(self.send(request).await?.bytes().await.context("reading a blob")?.to_vec())
    }

    async fn get(&self, path: &str, reference: &str) -> Result<Vec<u8>> {
        let request =
            self.client.get(self.url(path, &format!("manifests/{reference}"))).header("accept", MANIFEST);
        Ok(self.send(request).await?.bytes().await.context("reading a manifest")?.to_vec())
    }

    async fn push_manifest(
        &self,
        path: &str,
        tag: &str,
        media_type: &str,
        content: &Value,
    ) -> Result<String> {
        let content = content.to_string();
        let digest = digest(content.as_bytes());
        let request =
            self.client.put(self.url(path, &format!("manifests/{tag}"))).header("content-type", media_type);
        self.send(request.body(content)).await?;
        Ok(digest)
    }

    async fn push_blob(&self, path: &str, content: &[u8]) -> Result<()> {
        let begun = self.send(self.client.post(self.url(path, "blobs/uploads/"))).await?;
        let place = begun.headers().get("location").context("an upload has no place")?;
        let mut place =
            reqwest::Url::parse(place.to_str().context("a place is text")?).context("a place is a URL")?;
        place.query_pairs_mut().append_pair("digest", &digest(content));
        self.send(self.client.put(place).body(content.to_vec())).await.map(drop)
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response> {
        let request = match &self.login {
            Some((user, password)) => request.basic_auth(user, Some(password)),
            None => request,
        };
        let answer = request.send().await.context("asking the registry")?;
        ensure!(answer.status().is_success(), "the registry answers {}", answer.status());
        Ok(answer)
    }

    fn url(&self, path: &str, rest: &str) -> String {
        format!("http://{}/v2/{path}/{rest}", self.address)
    }
}

fn configuration(
    directory: &Path,
    address: SocketAddr,
    guard: Option<&(String, String, String)>,
) -> Result<String> {
    let mut settings = json!({
        "version": 0.1,
        "log": { "level": "warn" },
        "storage": { "filesystem": { "rootdirectory": directory.join("images") }, "delete": { "enabled": true } },
        "http": { "addr": address.to_string() },
    });
    if let Some((_, _, hash)) = guard {
        let accounts = directory.join("accounts");
        fs::write(&accounts, format!("{hash}\n")).context("writing the registry's accounts")?;
        let auth = json!({ "htpasswd": { "realm": "registry", "path": accounts } });
        settings.as_object_mut().context("settings are an object")?.insert("auth".to_owned(), auth);
    }
    // What is JSON is YAML too.
    Ok(settings.to_string())
}

async fn wait_until_up(
    client: &reqwest::Client,
    process: &mut Guarded,
    address: SocketAddr,
    limit: Instant,
) -> Result<()> {
    loop {
        process.ensure_running()?;
        if client.get(format!("http://{address}/v2/")).send().await.is_ok() {
            // Something else may have taken the port and answer in its place.
            return process.ensure_running();
        }
        ensure!(
            Instant::now() < limit,
            "docker-registry did not answer within {} s:\n{}",
            START_LIMIT.as_secs(),
            process.log_tail()
        );
        tokio::time::sleep(POLL).await;
    }
}

fn archive(files: &[File<'_>]) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for file in files {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(file.mode);
        header.set_mtime(0);
        header.set_size(u64::try_from(file.content.len()).context("a size")?);
        archive.append_data(&mut header, file.path, file.content.as_bytes()).context("packing a file")?;
    }
    archive.into_inner().context("packing files")
}

fn packed(bytes: &[u8]) -> Result<Vec<u8>> {
    use std::io::Write;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).context("packing a layer")?;
    encoder.finish().context("packing a layer")
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", api::text::Sha256::of(bytes))
}
