//! The client that measures: one kept connection a caller, HTTP/1.1 over TLS, answers read whole but not parsed. The same for both
//! servers, and lean enough that the server is what is measured.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, ServerName};
use secrecy::ExposeSecret;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// Where a server is, and how to reach it as its administrator.
#[derive(Clone)]
pub struct Target {
    address: SocketAddr,
    authorization: HeaderValue,
    host: HeaderValue,
    /// None where it speaks plain HTTP, which it only does on this machine.
    tls: Option<TlsConnector>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Target {
    /// What a kubeconfig says.
    pub fn new(config: &kube::Config) -> Result<Self> {
        let authority = config.cluster_url.authority().context("the address of the API has no host")?;
        let address =
            authority.as_str().parse().context("the address of the API is not one of this machine")?;
        let token = config.auth_info.token.as_ref().context("the kubeconfig has no token")?;
        let mut authorization = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret()))
            .context("the token cannot be sent")?;
        authorization.set_sensitive(true);
        let mut roots = RootCertStore::empty();
        for der in config.root_cert.iter().flatten() {
            roots.add(CertificateDer::from(der.clone())).context("the CA of the kubeconfig")?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("choosing the version of TLS")?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            address,
            authorization,
            host: HeaderValue::from_str(authority.as_str()).context("the host cannot be sent")?,
            tls: Some(TlsConnector::from(Arc::new(tls))),
        })
    }

    /// Another server of this machine, without TLS, for the same person.
    pub fn plain(&self, url: &str) -> Result<Self> {
        let authority = url.strip_prefix("http://").with_context(|| format!("{url} is not plain HTTP"))?;
        Ok(Self {
            address: authority.parse().with_context(|| format!("{url} is not of this machine"))?,
            host: HeaderValue::from_str(authority).context("the host cannot be sent")?,
            tls: None,
            ..self.clone()
        })
    }

    /// One connection, kept open.
    pub async fn connect(&self) -> Result<Connection> {
        let stream = TcpStream::connect(self.address)
            .await
            .with_context(|| format!("connecting to {}", self.address))?;
        stream.set_nodelay(true).context("preparing the connection")?;
        match &self.tls {
            None => self.speak(stream).await,
            Some(tls) => {
                let name = ServerName::IpAddress(self.address.ip().into());
                self.speak(tls.connect(name, stream).await.context("agreeing on TLS")?).await
            }
        }
    }

    async fn speak(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Connection> {
        let (sender, connection) = handshake(TokioIo::new(stream)).await.context("speaking HTTP")?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // A connection that breaks is told by the request that was under way.
            let _ = connection.await;
        });
        Ok(Connection { sender, target: self.clone(), _driver: driver })
    }
}

/// An open connection; one request at a time.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    target: Target,
    _driver: JoinSet<()>,
}

impl Connection {
    /// Sends a request and gives the answer as it starts.
    pub async fn open(&mut self, method: Method, path: &str, body: Body) -> Result<http::Response<Incoming>> {
        self.open_with(method, path, &HeaderMap::new(), body).await
    }

    async fn open_with(
        &mut self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<http::Response<Incoming>> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.target.host)
            .header(header::AUTHORIZATION, &self.target.authorization)
            .header(header::ACCEPT, "application/json");
        if let Some(kind) = body.content_type() {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        let mut request = request.body(Full::new(body.into_bytes())).context("building a request")?;
        request.headers_mut().extend(headers.clone());
        self.sender.ready().await.context("waiting for the connection")?;
        self.sender.send_request(request).await.with_context(|| format!("asking for {path}"))
    }

    /// Delivers something with headers of its own, which must be taken.
    pub async fn deliver(&mut self, path: &str, headers: &HeaderMap, body: Vec<u8>) -> Result<()> {
        let answer = self.open_with(Method::POST, path, headers, Body::Json(body.into())).await?;
        let status = answer.status();
        let words = answer.into_body().collect().await.with_context(|| format!("reading {path}"))?.to_bytes();
        ensure!(
            status.is_success(),
            "{path} was answered with {status}: {}",
            String::from_utf8_lossy(&words)
        );
        Ok(())
    }

    /// Sends a request and reads the whole answer.
    pub async fn ask(&mut self, method: Method, path: &str, body: Body) -> Result<(StatusCode, Bytes)> {
        let answer = self.open(method, path, body).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await.with_context(|| format!("reading {path}"))?;
        Ok((status, body.to_bytes()))
    }

    /// Sends a request that must succeed.
    pub async fn must(&mut self, method: Method, path: &str, body: Body) -> Result<Bytes> {
        let (status, answer) = self.ask(method.clone(), path, body).await?;
        if !status.is_success() {
            bail!("{method} {path} was answered with {status}: {}", String::from_utf8_lossy(&answer));
        }
        Ok(answer)
    }

    /// Opens a stream of lines.
    pub async fn stream(&mut self, path: &str) -> Result<Lines> {
        let answer = self.open(Method::GET, path, Body::None).await?;
        ensure!(answer.status().is_success(), "GET {path} was answered with {}", answer.status());
        Ok(Lines { body: answer.into_body(), held: Vec::new() })
    }
}

/// What a request carries.
#[derive(Debug, Clone)]
pub enum Body {
    None,
    Json(Bytes),
    MergePatch(Bytes),
}

impl Body {
    fn content_type(&self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Json(_) => Some("application/json"),
            Self::MergePatch(_) => Some("application/merge-patch+json"),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::None => Bytes::new(),
            Self::Json(bytes) | Self::MergePatch(bytes) => bytes,
        }
    }
}

/// The lines of an answer that goes on.
#[derive(Debug)]
pub struct Lines {
    body: Incoming,
    held: Vec<u8>,
}

impl Lines {
    /// Calls `each` with every whole line of the next piece; `false` at the end of the answer.
    pub async fn next(&mut self, mut each: impl FnMut(&[u8])) -> Result<bool> {
        let Some(frame) = self.body.frame().await else { return Ok(false) };
        let Ok(piece) = frame.context("reading a watch")?.into_data() else { return Ok(true) };
        self.held.extend_from_slice(&piece);
        let whole = self.held.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let rest = self.held.split_off(whole);
        for line in self.held.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            each(line);
        }
        self.held = rest;
        Ok(true)
    }
}
