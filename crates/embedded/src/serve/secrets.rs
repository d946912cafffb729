//! What the server proves itself and others with: the CA, the key that signs service-account tokens, the administrator's token.
//! Made once and kept in the data directory; the server's own certificate lives in memory only.

use std::path::Path;
use std::time::SystemTime;

use jiff::{SignedDuration, Timestamp};
use rand::RngCore as _;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use serde::{Deserialize, Serialize};

use super::files::{self, read_private, write_private};
use crate::auth::tokens::{KeyError, Tokens};

const AUTHORITY: &str = "ca.json";
const SIGNING_KEY: &str = "service-account.key";
const ADMINISTRATOR: &str = "administrator.token";

/// What this machine calls the server.
pub(super) const OWN_NAMES: [&str; 4] = ["localhost", "127.0.0.1", "::1", "kubernetes.default.svc"];

const DAY: SignedDuration = SignedDuration::from_hours(24);
const AUTHORITY_DAYS: i32 = 3650;
/// An authority this close to its end is replaced at start: the kubeconfig is written anew then anyway.
const AUTHORITY_RENEWED_DAYS: i32 = 365;
const SERVER_DAYS: i32 = 90;
/// The server's certificate is replaced when this much of it is left.
const SERVER_RENEWED_DAYS: i32 = 30;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Files(#[from] files::Error),
    #[error("a certificate cannot be made: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("{path} is damaged ({why}): move it away, and a new one is made")]
    Damaged { path: String, why: String },
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// The CA as it is kept: one file, so that certificate and key always belong together.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    name: String,
    certificate: String,
    key: String,
    not_after: Timestamp,
}

/// The CA that the kubeconfig and every namespace's ConfigMap carry.
pub(super) struct Authority {
    pub(super) certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate for this server and its key, DER.
pub(super) struct ServerCertificate {
    pub(super) certificate: Vec<u8>,
    pub(super) key: Vec<u8>,
    not_after: Timestamp,
}

impl ServerCertificate {
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        now + DAY * SERVER_RENEWED_DAYS > self.not_after
    }
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages =
        vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

impl Authority {
    pub(super) fn load_or_make(directory: &Path, now: Timestamp) -> Result<Self, Error> {
        let path = directory.join(AUTHORITY);
        let damaged = |why: String| Error::Damaged { path: path.display().to_string(), why };
        let kept = match read_private(&path)? {
            Some(text) => {
                Some(serde_json::from_str::<Kept>(&text).map_err(|error| damaged(error.to_string()))?)
            }
            None => None,
        };
        let kept = match kept.filter(|kept| now + DAY * AUTHORITY_RENEWED_DAYS < kept.not_after) {
            Some(kept) => kept,
            None => {
                let kept = make_authority(now)?;
                let text = serde_json::to_string(&kept).map_err(|error| damaged(error.to_string()))?;
                write_private(&path, &text)?;
                kept
            }
        };
        let key = KeyPair::from_pem(&kept.key).map_err(|error| damaged(error.to_string()))?;
        let issuer = Issuer::new(authority_params(&kept.name), key);
        Ok(Authority { certificate_pem: kept.certificate, issuer })
    }

    /// A certificate that this CA signs for the names that this machine has for itself.
    pub(super) fn server_certificate(&self, now: Timestamp) -> Result<ServerCertificate, Error> {
        let mut params = CertificateParams::new(OWN_NAMES.map(str::to_owned).to_vec())?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "terrane");
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let not_after = now + DAY * SERVER_DAYS;
        params.not_before = SystemTime::from(now - DAY).into();
        params.not_after = SystemTime::from(not_after).into();
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(ServerCertificate { certificate: certificate.der().to_vec(), key: key.serialize_der(), not_after })
    }
}

fn make_authority(now: Timestamp) -> Result<Kept, Error> {
    // A name of its own, so that a client that still has an older one is not led astray.
    let name = format!("terrane-ca@{}", now.as_second());
    let not_after = now + DAY * AUTHORITY_DAYS;
    let mut params = authority_params(&name);
    params.not_before = SystemTime::from(now - DAY).into();
    params.not_after = SystemTime::from(not_after).into();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let certificate = params.self_signed(&key)?;
    Ok(Kept { name, certificate: certificate.pem(), key: key.serialize_pem(), not_after })
}

/// The key that signs service-account tokens. One that is lost makes every token made with it worthless.
pub(super) fn tokens(directory: &Path) -> Result<Tokens, Error> {
    let path = directory.join(SIGNING_KEY);
    let private = match read_private(&path)? {
        Some(pem) => pem,
        None => {
            let pem = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?.serialize_pem();
            write_private(&path, &pem)?;
            pem
        }
    };
    let key = KeyPair::from_pem(&private)
        .map_err(|error| Error::Damaged { path: path.display().to_string(), why: error.to_string() })?;
    Ok(Tokens::new(&private, &key.public_key_pem())?)
}

/// The administrator's token: 256 bits that nobody chose.
pub(super) fn administrator_token(directory: &Path) -> Result<String, Error> {
    let path = directory.join(ADMINISTRATOR);
    if let Some(token) = read_private(&path)? {
        let token = token.trim().to_owned();
        // An empty file must never become an empty password.
        if token.len() < 32 {
            let why = "the token is too short".to_owned();
            return Err(Error::Damaged { path: path.display().to_string(), why });
        }
        return Ok(token);
    }
    let mut bytes = [0; 32];
    rand::rng().fill_bytes(&mut bytes);
    let token = hex::encode(bytes);
    write_private(&path, &token)?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn secrets_are_made_once() {
        let directory = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let token = administrator_token(directory.path()).unwrap();
        assert_eq!(token.len(), 64);
        assert_eq!(administrator_token(directory.path()).unwrap(), token);
        let authority = Authority::load_or_make(directory.path(), now).unwrap().certificate_pem;
        assert_eq!(Authority::load_or_make(directory.path(), now).unwrap().certificate_pem, authority);
        tokens(directory.path()).unwrap();
        tokens(directory.path()).unwrap();
        let renewed = Authority::load_or_make(directory.path(), now + DAY * (AUTHORITY_DAYS - 200)).unwrap();
        assert_ne!(renewed.certificate_pem, authority, "an authority near its end is replaced");
        std::fs::write(directory.path().join(ADMINISTRATOR), "").unwrap();
        let error = administrator_token(directory.path()).unwrap_err().to_string();
        assert!(
            error.ends_with("is damaged (the token is too short): move it away, and a new one is made"),
            "{error}"
        );
    }

    #[test]
    fn the_servers_certificate_is_replaced_before_it_ends() {
        let directory = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let certificate =
            Authority::load_or_make(directory.path(), now).unwrap().server_certificate(now).unwrap();
        assert!(!certificate.is_due(now + DAY * 59));
        assert!(certificate.is_due(now + DAY * 61));
    }
}
