//! A mirror of released programs for tests: archives, checksums and a vendor that signs them, over http on loopback; over https it
//! is also a registry of providers. It can also break off, or never end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use futures::StreamExt;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::tls::{Tls, certificate};

/// How a file is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    Whole,
    /// The connection ends after half of it.
    CutOff,
    /// Half of it arrives, and then nothing.
    Hanging,
}

#[derive(Debug, Default)]
struct Shelf {
    files: BTreeMap<String, (Bytes, Delivery)>,
    requests: Vec<String>,
}

/// Serves files by their path.
#[derive(Debug)]
pub struct Mirror {
    address: SocketAddr,
    /// In PEM, where it speaks https.
    authority: Option<String>,
    shelf: Arc<Mutex<Shelf>>,
    /// Ends with this value.
    _task: tokio::task::JoinSet<()>,
}

impl Mirror {
    pub async fn start() -> Result<Self> {
        Self::start_with(None).await
    }

    /// The same over https, by a certificate that only its own authority vouches for.
    pub async fn start_https() -> Result<Self> {
        Self::start_with(Some(certificate()?)).await
    }

    async fn start_with(encryption: Option<(String, TlsAcceptor)>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listening for a mirror")?;
        let address = listener.local_addr()?;
        let shelf = Arc::new(Mutex::new(Shelf::default()));
        let service = Router::new().fallback(serve).with_state(Arc::clone(&shelf));
        let (authority, acceptor) = encryption.unzip();
        let mut task = tokio::task::JoinSet::new();
        task.spawn(async move {
            // It ends with its task; an error here is a test that finds nobody.
            let _ = match acceptor {
                Some(acceptor) => axum::serve(Tls { listener, acceptor }, service).await,
                None => axum::serve(listener, service).await,
            };
        });
        Ok(Self { address, authority, shelf, _task: task })
    }

    pub fn url(&self) -> String {
        match self.authority {
            Some(_) => format!("https://{}", self.host()),
            None => format!("http://{}", self.address),
        }
    }

    /// As it stands in the addresses of providers.
    pub fn host(&self) -> String {
        format!("localhost:{}", self.address.port())
    }

    /// The certificate of the authority that signed the server's, in PEM; empty without https.
    pub fn authority(&self) -> &str {
        self.authority.as_deref().unwrap_or_default()
    }

    /// Publishes a version of a provider of the namespace `hashicorp`, as a registry does; its files are signed by the vendor.
    pub fn publish_provider(&self, kind: &str, version: &str, archive: Vec<u8>, vendor: &Vendor) {
        let (os, arch) = platform().split_once('_').unwrap_or_default();
        let file = format!("terraform-provider-{kind}_{version}_{os}_{arch}.zip");
        let sums = format!("{}  {file}\n", hex(digest(&SHA256, &archive).as_ref()));
        let base = format!("files/{kind}/{version}");
        let description = serde_json::json!({
            "protocols": ["5.0"], "os": os, "arch": arch, "filename": file,
            "download_url": format!("/{base}/{file}"),
            "shasums_url": format!("/{base}/SHA256SUMS"),
            "shasums_signature_url": format!("{}/{base}/SHA256SUMS.sig", self.url()),
            "shasum": hex(digest(&SHA256, &archive).as_ref()),
            "signing_keys": { "gpg_public_keys": [{ "key_id": "1", "ascii_armor": vendor.armoured() }] },
        });
        self.put(".well-known/terraform.json", r#"{"providers.v1": "/registry/v1/"}"#);
        self.put(
            &format!("registry/v1/hashicorp/{kind}/{version}/download/{os}/{arch}"),
            description.to_string(),
        );
        self.put(&format!("{base}/SHA256SUMS.sig"), vendor.sign(sums.as_bytes()));
        self.put(&format!("{base}/SHA256SUMS"), sums);
        self.put(&format!("{base}/{file}"), archive);
    }

    /// Publishes a version of Terragrunt as its vendor does: the program itself, its checksum, the signature of that.
    pub fn publish_terragrunt(&self, version: &str, program: Vec<u8>, vendor: &Vendor) {
        let file = format!("terragrunt_{}", platform());
        let sums = format!("{}  {file}\n", hex(digest(&SHA256, &program).as_ref()));
        let base = format!("terragrunt/{version}");
        self.put(&format!("{base}/SHA256SUMS.gpgsig"), vendor.sign(sums.as_bytes()));
        self.put(&format!("{base}/SHA256SUMS"), sums);
        self.put(&format!("{base}/{file}"), program);
    }

    /// Puts a file there, such as `terraform/1.9.8/terraform_1.9.8_SHA256SUMS`.
    pub fn put(&self, path: &str, content: impl Into<Bytes>) {
        self.put_as(path, content, Delivery::Whole);
    }

    pub fn put_as(&self, path: &str, content: impl Into<Bytes>, delivery: Delivery) {
        self.shelf().files.insert(format!("/{path}"), (content.into(), delivery));
    }

    /// What lies there; nothing if nothing does.
    pub fn content(&self, path: &str) -> Vec<u8> {
        let shelf = self.shelf();
        shelf.files.get(&format!("/{path}")).map(|(content, _)| content.to_vec()).unwrap_or_default()
    }

    /// How often a path that ends so was asked for.
    pub fn requests(&self, ending: &str) -> usize {
        self.shelf().requests.iter().filter(|path| path.ends_with(ending)).count()
    }

    /// Publishes a version of terraform as its vendor does: the archive, its checksum, the signature of that.
    pub fn publish_terraform(&self, version: &str, program: &[u8], vendor: &Vendor) {
        self.publish_archive(version, zip(&[("LICENSE.txt", b"text"), ("terraform", program)]), vendor);
    }

    pub fn publish_archive(&self, version: &str, archive: Vec<u8>, vendor: &Vendor) {
        let file = format!("terraform_{version}_{}.zip", platform());
        let sums = format!("{}  {file}\n", hex(digest(&SHA256, &archive).as_ref()));
        let base = format!("terraform/{version}");
        self.put(&format!("{base}/terraform_{version}_SHA256SUMS.sig"), vendor.sign(sums.as_bytes()));
        self.put(&format!("{base}/terraform_{version}_SHA256SUMS"), sums);
        self.put(&format!("{base}/{file}"), archive);
    }

    fn shelf(&self) -> std::sync::MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// In the vendors' words.
pub fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "linux_arm64",
        _ => "linux_amd64",
    }
}

async fn serve(State(shelf): State<Arc<Mutex<Shelf>>>, uri: Uri) -> Response {
    let found = {
        let mut shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
        shelf.requests.push(uri.path().to_owned());
        shelf.files.get(uri.path()).cloned()
    };
    let Some((content, delivery)) = found else { return StatusCode::NOT_FOUND.into_response() };
    let length = [(header::CONTENT_LENGTH, content.len())];
    let half = content.slice(..content.len() / 2);
    let first = futures::stream::iter([Ok::<_, std::io::Error>(half)]);
    match delivery {
        Delivery::Whole => content.into_response(),
        Delivery::CutOff => {
            let end = futures::stream::iter([Err(std::io::Error::other("cut off"))]);
            (length, Body::from_stream(first.chain(end))).into_response()
        }
        Delivery::Hanging => {
            (length, Body::from_stream(first.chain(futures::stream::pending()))).into_response()
        }
    }
}

/// A zip file of executable files, not compressed.
pub fn zip(files: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in files {
        let mut crc = flate2::Crc::new();
        crc.update(content);
        let size = count(content.len()).to_le_bytes();
        let common = [
            &[20, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
            &crc.sum().to_le_bytes(),
            &size,
            &size,
            &short(name.len()).to_le_bytes(),
            &[0, 0],
        ]
        .concat();
        let at = count(bytes.len()).to_le_bytes();
        bytes.extend([&b"PK\x03\x04"[..], &common, name.as_bytes(), content].concat());
        let mode = (0o100_755u32 << 16).to_le_bytes();
        directory
            .extend([&b"PK\x01\x02\x14\x03"[..], &common, &[0; 6], &mode, &at, name.as_bytes()].concat());
    }
    let (at, entries) = (count(bytes.len()).to_le_bytes(), short(files.len()).to_le_bytes());
    let size = count(directory.len()).to_le_bytes();
    bytes.extend(directory);
    bytes.extend([&b"PK\x05\x06\0\0\0\0"[..], &entries, &entries, &size, &at, &[0, 0]].concat());
    bytes
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn short(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

/// Somebody who signs releases, with an Ed25519 key of OpenPGP.
pub struct Vendor {
    pair: Ed25519KeyPair,
    created: u32,
    lifetime: u32,
}

impl std::fmt::Debug for Vendor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vendor").field("created", &self.created).finish_non_exhaustive()
    }
}

/// When signatures of vendors are made.
const NOW: u32 = 1_700_000_000;

impl Vendor {
    pub fn new() -> Result<Self> {
        Self::with_lifetime(0)
    }

    /// A key that was made a thousand seconds before it signs, and was good for this long; 0 never ends.
    pub fn with_lifetime(lifetime: u32) -> Result<Self> {
        let pair = Ed25519KeyPair::generate().map_err(|_| anyhow::anyhow!("making a key"))?;
        Ok(Self { pair, created: NOW - 1000, lifetime })
    }

    fn key(&self) -> Vec<u8> {
        [&[4][..], &self.created.to_be_bytes(), &[27], self.pair.public_key().as_ref()].concat()
    }

    /// The public key as a file.
    pub fn certificate(&self) -> Vec<u8> {
        let (key, user) = (self.key(), b"Vendor <vendor@example.org>");
        let subject = [framed(&key), [&[0xb4][..], &count(user.len()).to_be_bytes(), user].concat()].concat();
        let about_key = [&[2, 27, 0x03][..], &[5, 9], &self.lifetime.to_be_bytes()].concat();
        let vouched = self.signature(0x13, &about_key, self.created, &subject);
        [packet(6, &key), packet(13, user), vouched].concat()
    }

    /// The public key as text.
    pub fn armoured(&self) -> String {
        let text = base64::prelude::BASE64_STANDARD.encode(self.certificate());
        format!("-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{text}\n-----END PGP PUBLIC KEY BLOCK-----\n")
    }

    /// A detached signature.
    pub fn sign(&self, content: &[u8]) -> Vec<u8> {
        self.signature(0, &[], NOW, content)
    }

    fn signature(&self, kind: u8, settings: &[u8], at: u32, content: &[u8]) -> Vec<u8> {
        let fingerprint = digest(&SHA1_FOR_LEGACY_USE_ONLY, &framed(&self.key()));
        let issuer = fingerprint.as_ref().get(12..).unwrap_or_default();
        let hashed = [&[5, 2][..], &at.to_be_bytes(), settings, &[9, 16], issuer].concat();
        let head = [&[4, kind, 27, 8][..], &short(hashed.len()).to_be_bytes(), &hashed].concat();
        let trailer = [&head[..], &[4, 0xff], &count(head.len()).to_be_bytes()].concat();
        let hash = digest(&SHA256, &[content, &trailer].concat());
        let value = self.pair.sign(hash.as_ref());
        let hint = hash.as_ref().get(..2).unwrap_or_default();
        packet(2, &[&head[..], &[0, 0], hint, value.as_ref()].concat())
    }
}

fn framed(key: &[u8]) -> Vec<u8> {
    [&[0x99][..], &short(key.len()).to_be_bytes(), key].concat()
}

fn packet(tag: u8, body: &[u8]) -> Vec<u8> {
    [&[0xc0 | tag, 255][..], &count(body.len()).to_be_bytes(), body].concat()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
