//! TLS of the port: the generated certificate for this machine, the given one for others, each replaced without a restart.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::listen::Certificates;
use super::secrets::{self, Authority, ServerCertificate};

/// How often certificates are looked at: whether ours is due, whether the given files have changed.
const LOOK: Duration = Duration::from_secs(60 * 60);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} is no PEM file with a {what}: {source}", path.display())]
    Pem { path: PathBuf, what: &'static str, source: rustls::pki_types::pem::Error },
    #[error("the certificate in {} and the key in {} do not work together: {source}", chain.display(), key.display())]
    Mismatch { chain: PathBuf, key: PathBuf, source: rustls::Error },
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
    #[error(transparent)]
    Secrets(#[from] secrets::Error),
}

/// How connections of a port are encrypted.
pub(super) trait Encryption: Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// For a connection that came in on loopback, or on an address that others reach.
    fn wrap(
        &self,
        came: Came,
        stream: TcpStream,
    ) -> impl Future<Output = io::Result<(Self::Stream, Spoken)>> + Send;
}

/// What both sides speak from the first byte on. Nobody has to be waited for to find out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spoken {
    Http1,
    Http2,
}

/// Not at all: on loopback, or where something in front does.
pub(super) struct InClear;

impl Encryption for InClear {
    type Stream = TcpStream;

    fn wrap(
        &self,
        _came: Came,
        stream: TcpStream,
    ) -> impl Future<Output = io::Result<(TcpStream, Spoken)>> + Send {
        std::future::ready(Ok((stream, Spoken::Http1)))
    }
}

async fn encrypted(accepting: tokio_rustls::Accept<TcpStream>) -> io::Result<(TlsStream<TcpStream>, Spoken)> {
    let stream = accepting.await?;
    let spoken = match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => Spoken::Http2,
        Some(_) | None => Spoken::Http1,
    };
    Ok((stream, spoken))
}

/// One certificate from files, read again when they change.
pub(super) struct FromFiles {
    provider: Arc<CryptoProvider>,
    files: Certificates,
    served: Arc<Served>,
    acceptor: TlsAcceptor,
}

impl FromFiles {
    pub(super) fn read(files: Certificates) -> Result<Self, Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let served = Served::new(read_key(&provider, &files)?);
        let acceptor = acceptor(&provider, Arc::new(Given(Arc::clone(&served))))?;
        Ok(Self { provider, files, served, acceptor })
    }

    /// For ever. Files that cannot be read any more leave the certificate that was read before.
    pub(super) async fn keep_fresh(&self) {
        loop {
            tokio::time::sleep(LOOK).await;
            reread(&self.provider, &self.files, &self.served);
        }
    }
}

impl Encryption for FromFiles {
    type Stream = TlsStream<TcpStream>;

    fn wrap(
        &self,
        _came: Came,
        stream: TcpStream,
    ) -> impl Future<Output = io::Result<(Self::Stream, Spoken)>> + Send {
        encrypted(self.acceptor.accept(stream))
    }
}

/// Both faces of the port.
pub(super) struct Tls {
    provider: Arc<CryptoProvider>,
    authority: Authority,
    own: ArcSwap<ServerCertificate>,
    own_served: Arc<Served>,
    given: Option<(Certificates, Arc<Served>)>,
    own_acceptor: TlsAcceptor,
    given_acceptor: Option<TlsAcceptor>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("given", &self.given.is_some()).finish_non_exhaustive()
    }
}

/// A certificate that can be replaced while it is served.
struct Served(ArcSwap<CertifiedKey>);

impl Served {
    fn new(key: CertifiedKey) -> Arc<Self> {
        Arc::new(Served(ArcSwap::from_pointee(key)))
    }
}

/// Chooses by the name that the client asks for: ours for the names in our certificate and for a bare address, the given one for
/// all others.
struct ByName {
    own: Arc<Served>,
    given: Option<Arc<Served>>,
}

/// Always the given one.
struct Given(Arc<Served>);

impl fmt::Debug for ByName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ByName")
    }
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Given")
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let served = match (hello.server_name(), &self.given) {
            (Some(name), Some(given)) if !secrets::OWN_NAMES.contains(&name) => given,
            _ => &self.own,
        };
        Some(served.0.load_full())
    }
}

impl ResolvesServerCert for Given {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.0.load_full())
    }
}

impl Tls {
    pub(super) fn new(
        authority: Authority,
        given: Option<Certificates>,
        now: Timestamp,
    ) -> Result<Self, Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let own = authority.server_certificate(now)?;
        let own_served = Served::new(own_key(&provider, &own)?);
        let given = match given {
            Some(files) => {
                let key = read_key(&provider, &files)?;
                Some((files, Served::new(key)))
            }
            None => None,
        };
        let given_served = given.as_ref().map(|(_, served)| Arc::clone(served));
        let by_name = ByName { own: Arc::clone(&own_served), given: given_served.clone() };
        let own_acceptor = acceptor(&provider, Arc::new(by_name))?;
        let given_acceptor =
            given_served.map(|served| acceptor(&provider, Arc::new(Given(served)))).transpose()?;
        Ok(Tls {
            provider,
            authority,
            own: ArcSwap::from_pointee(own),
            own_served,
            given,
            own_acceptor,
            given_acceptor,
        })
    }

    /// What this machine is to trust.
    pub(super) fn authority_pem(&self) -> &str {
        &self.authority.certificate_pem
    }

    /// Renews for ever. A given file that cannot be read any more leaves the certificate that was read before.
    pub(super) async fn keep_fresh(self: Arc<Self>) -> Result<(), Error> {
        loop {
            tokio::time::sleep(LOOK).await;
            self.refresh(Timestamp::now())?;
        }
    }

    fn refresh(&self, now: Timestamp) -> Result<(), Error> {
        if self.own.load().is_due(now) {
            let own = self.authority.server_certificate(now)?;
            self.own_served.0.store(Arc::new(own_key(&self.provider, &own)?));
            self.own.store(Arc::new(own));
        }
        if let Some((files, served)) = &self.given {
            reread(&self.provider, files, served);
        }
        Ok(())
    }
}

impl Tls {
    fn acceptor(&self, came: Came) -> &TlsAcceptor {
        match (came, &self.given_acceptor) {
            (Came::FromElsewhere, Some(given)) => given,
            (Came::FromHere, _) | (Came::FromElsewhere, None) => &self.own_acceptor,
        }
    }
}

impl Encryption for Tls {
    type Stream = TlsStream<TcpStream>;

    fn wrap(
        &self,
        came: Came,
        stream: TcpStream,
    ) -> impl Future<Output = io::Result<(Self::Stream, Spoken)>> + Send {
        encrypted(self.acceptor(came).accept(stream))
    }
}

fn reread(provider: &CryptoProvider, files: &Certificates, served: &Served) {
    match read_key(provider, files) {
        Ok(key) => served.0.store(Arc::new(key)),
        Err(error) => tracing::warn!(%error, "it goes on with the certificate that it has"),
    }
}

/// Which of the two certificates a client is likely to trust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    FromHere,
    FromElsewhere,
}

fn acceptor(
    provider: &Arc<CryptoProvider>,
    resolver: Arc<dyn ResolvesServerCert>,
) -> Result<TlsAcceptor, Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(resolver);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn own_key(provider: &CryptoProvider, own: &ServerCertificate) -> Result<CertifiedKey, Error> {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.key.clone()));
    let chain = vec![CertificateDer::from(own.certificate.clone())];
    Ok(CertifiedKey::from_der(chain, key, provider)?)
}

fn read_key(provider: &CryptoProvider, files: &Certificates) -> Result<CertifiedKey, Error> {
    let Certificates { chain, key } = files;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(chain).and_then(Iterator::collect);
    let certificates = certificates
        .and_then(
            |list| if list.is_empty() { Err(rustls::pki_types::pem::Error::NoItemsFound) } else { Ok(list) },
        )
        .map_err(|source| Error::Pem { path: chain.clone(), what: "certificate", source })?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|source| Error::Pem {
        path: key.clone(),
        what: "private key",
        source,
    })?;
    CertifiedKey::from_der(certificates, private, provider).map_err(|source| Error::Mismatch {
        chain: chain.clone(),
        key: key.clone(),
        source,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rustls::ClientConfig;
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
    use rustls::pki_types::{ServerName, UnixTime};
    use rustls::{DigitallySignedStruct, SignatureScheme};
    use tokio_rustls::TlsConnector;

    use super::*;

    /// Trusts everybody: these tests only look at which certificate is shown.
    #[derive(Debug)]
    struct Anybody(Arc<CryptoProvider>);

    impl ServerCertVerifier for Anybody {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, rustls::Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.signature_verification_algorithms.supported_schemes()
        }
    }

    /// The certificate that a client sees who asks for `name`.
    async fn seen(tls: &Tls, came: Came, name: &str) -> Vec<u8> {
        let verifier = Arc::new(Anybody(Arc::clone(&tls.provider)));
        let config = ClientConfig::builder_with_provider(Arc::clone(&tls.provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        let (client, server) = tokio::io::duplex(64 * 1024);
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let (client, _server) =
            tokio::join!(connector.connect(name, client), tls.acceptor(came).accept(server));
        let client = client.unwrap();
        client.get_ref().1.peer_certificates().unwrap().first().unwrap().to_vec()
    }

    fn given(directory: &std::path::Path) -> (Certificates, Vec<u8>) {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["terrane.example".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let files = Certificates { chain: directory.join("cert.pem"), key: directory.join("key.pem") };
        std::fs::write(&files.chain, certificate.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        (files, certificate.der().to_vec())
    }

    #[tokio::test]
    async fn this_machine_sees_our_certificate_and_others_the_given_one() {
        let directory = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let authority = || Authority::load_or_make(directory.path(), now).unwrap();
        let (files, theirs) = given(directory.path());
        let tls = Tls::new(authority(), Some(files.clone()), now).unwrap();
        let ours = tls.own.load().certificate.clone();
        for (came, name, expected) in [
            (Came::FromHere, "localhost", &ours),
            (Came::FromHere, "127.0.0.1", &ours),
            (Came::FromHere, "terrane.example", &theirs),
            (Came::FromElsewhere, "terrane.example", &theirs),
            (Came::FromElsewhere, "192.0.2.7", &theirs),
            (Came::FromElsewhere, "localhost", &theirs),
        ] {
            assert_eq!(&seen(&tls, came, name).await, expected, "{came:?} {name}");
        }
        // Renewed in place: the files by whoever made them, ours when it is due.
        let (_, renewed) = given(directory.path());
        tls.refresh(now + jiff::SignedDuration::from_hours(24 * 70)).unwrap();
        assert_eq!(seen(&tls, Came::FromElsewhere, "terrane.example").await, renewed);
        assert_ne!(seen(&tls, Came::FromHere, "localhost").await, ours);
        std::fs::write(&files.chain, "nonsense").unwrap();
        tls.refresh(now).unwrap();
        assert_eq!(
            seen(&tls, Came::FromElsewhere, "terrane.example").await,
            renewed,
            "goes on with what it had"
        );
        let error = Tls::new(authority(), Some(files.clone()), now).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("{} is no PEM file with a certificate", files.chain.display())),
            "{error}"
        );
        let alone = Tls::new(authority(), None, now).unwrap();
        let ours = alone.own.load().certificate.clone();
        assert_eq!(seen(&alone, Came::FromHere, "terrane.example").await, ours);
    }
}
