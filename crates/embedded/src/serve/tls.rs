//! TLS of the port: the generated certificate for this machine, the given one for others, each replaced without a restart.

use std::fmt;
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
use tokio_rustls::TlsAcceptor;

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

/// The certificate of the moment.
struct Served(ArcSwap<CertifiedKey>);

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Served")
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
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
        let own_served = Arc::new(Served(ArcSwap::from_pointee(own_key(&provider, &own)?)));
        let given = match given {
            Some(files) => {
                let key = read_key(&provider, &files)?;
                Some((files, Arc::new(Served(ArcSwap::from_pointee(key)))))
            }
            None => None,
        };
        let own_acceptor = acceptor(&provider, &own_served)?;
        let given_acceptor = given.as_ref().map(|(_, served)| acceptor(&provider, served)).transpose()?;
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

    /// For a connection that came in at `loopback` or from elsewhere.
    pub(super) fn acceptor(&self, came: Came) -> TlsAcceptor {
        match (came, &self.given_acceptor) {
            (Came::FromElsewhere, Some(given)) => given.clone(),
            (Came::FromHere, _) | (Came::FromElsewhere, None) => self.own_acceptor.clone(),
        }
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
            match read_key(&self.provider, files) {
                Ok(key) => served.0.store(Arc::new(key)),
                Err(error) => tracing::warn!(%error, "the API goes on with the certificate that it has"),
            }
        }
        Ok(())
    }
}

/// Which of the two certificates a client can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    FromHere,
    FromElsewhere,
}

fn acceptor(provider: &Arc<CryptoProvider>, served: &Arc<Served>) -> Result<TlsAcceptor, Error> {
    let resolver: Arc<dyn ResolvesServerCert> = Arc::<Served>::clone(served);
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
