//! Certificates that this program makes for a part of its own, where nobody else gives it one. Where they are kept is not known here.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

const TEN_YEARS: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// For clocks that are behind.
const ONE_DAY: Duration = Duration::from_secs(24 * 3600);

/// All of it in PEM.
pub(crate) struct Certified {
    pub(crate) chain: String,
    pub(crate) key: String,
    /// Who signed it, and will sign nothing else: its key is forgotten.
    pub(crate) authority: String,
}

/// A server's certificate for these names, by an authority of its own.
pub(crate) fn certify(names: &[String]) -> Result<Certified, rcgen::Error> {
    let called = names.first().map_or("terrane", String::as_str);
    let mut params = CertificateParams::default();
    describe(&mut params, format!("authority of {called}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let mut params = CertificateParams::new(names)?;
    describe(&mut params, "terrane".to_owned());
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &authority)?;
    Ok(Certified { chain: certificate.pem(), key: key.serialize_pem(), authority: authority.pem() })
}

fn describe(params: &mut CertificateParams, called: String) {
    let now = SystemTime::now();
    params.not_before = (now - ONE_DAY).into();
    params.not_after = (now + TEN_YEARS).into();
    params.distinguished_name.push(DnType::CommonName, called);
}
