//! https on loopback for the servers of tests: an authority of their own, and a listener that encrypts.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

/// A certificate for `localhost` and `127.0.0.1`, its key, and the new authority that vouches for it, all in PEM.
pub(crate) struct Issued {
    pub(crate) authority: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
}

pub(crate) fn issue() -> Result<Issued> {
    let mut authority = CertificateParams::new(Vec::<String>::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let leaf = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?
        .signed_by(&key, &issuer)?;
    Ok(Issued { authority: issuer.pem(), certificate: leaf.pem(), key: key.serialize_pem() })
}

/// A new authority, in PEM, and a server's side with a certificate of it.
pub(crate) fn certificate() -> Result<(String, TlsAcceptor)> {
    let issued = issue()?;
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let config = tokio_rustls::rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(issued.certificate.as_bytes())?],
            PrivateKeyDer::from_pem_slice(issued.key.as_bytes())?,
        )?;
    Ok((issued.authority, TlsAcceptor::from(Arc::new(config))))
}

/// Connections that are encrypted before anybody sees them.
pub(crate) struct Tls {
    pub(crate) listener: TcpListener,
    pub(crate) acceptor: TlsAcceptor,
}

impl axum::serve::Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, address)) = self.listener.accept().await else { continue };
            // A client that does not trust us goes away here, as it should.
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}
