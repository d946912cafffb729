//! Detached OpenPGP signatures of checksum files, checked against public keys that an administrator trusts.
//!
//! A narrow part of the format on purpose: version 4, RSA from 2048 bits and Ed25519, SHA-2. Whatever else a key or a signature may
//! be is refused. The arithmetic is aws-lc's; only the format is read here. docs/adr/0005 says why it is not a library's.

mod certificate;
mod packets;

use aws_lc_rs::digest;
use aws_lc_rs::signature::{ED25519, RsaPublicKeyComponents, UnparsedPublicKey};
use aws_lc_rs::signature::{
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512,
};

use packets::{Cursor, dearmoured, packets, subpackets};

pub use certificate::{Certificate, read_certificates};

const SIGNATURE: u8 = 2;
const OVER_BYTES: u8 = 0x00;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("it cannot be read: {0}")]
    Malformed(&'static str),
    #[error("it uses {0}, which is not accepted")]
    Unsupported(&'static str),
    #[error("none of the trusted keys made it ({trusted})")]
    UnknownKey { trusted: String },
    #[error("it does not belong to the content: key {fingerprint}")]
    Wrong { fingerprint: Fingerprint },
    #[error("key {fingerprint} was not valid for it: {why}")]
    KeyNotValid { fingerprint: Fingerprint, why: &'static str },
}

/// The name of a key that cannot be chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 20]);

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02X}"))
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// Checks a detached signature over `content`. Returns the fingerprint of the certificate whose key made it.
pub fn verify(content: &[u8], signature: &[u8], trusted: &[Certificate]) -> Result<Fingerprint, Error> {
    let bytes = dearmoured(signature)?;
    let signatures: Vec<Signature> = packets(&bytes)?
        .into_iter()
        .filter(|packet| packet.tag == SIGNATURE)
        .map(|packet| Signature::read(packet.body))
        .collect::<Result<_, _>>()?;
    if signatures.is_empty() {
        return Err(Error::Malformed("it holds no signature"));
    }
    // Vendors change keys by signing with both for a while: one that is trusted is enough.
    let mut refused = None;
    for signature in &signatures {
        if signature.kind != OVER_BYTES {
            refused.get_or_insert(Error::Unsupported("a signature of another kind than over bytes"));
            continue;
        }
        for certificate in trusted {
            match certificate.check(signature, content) {
                None => {}
                Some(Ok(())) => return Ok(certificate.fingerprint()),
                Some(Err(error)) => refused = Some(error),
            }
        }
    }
    Err(refused.unwrap_or_else(|| {
        let names: Vec<String> = trusted.iter().map(|key| key.fingerprint().to_string()).collect();
        Error::UnknownKey {
            trusted: if names.is_empty() { "there are none".to_owned() } else { names.join(", ") },
        }
    }))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

/// A public key that can check signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    /// The packet's body, which binding signatures are made over.
    body: Vec<u8>,
    fingerprint: Fingerprint,
    created: u32,
    material: Material,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Material {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    Ed25519([u8; 32]),
    /// Keys of a certificate that encrypt, or that are of a kind that is not accepted.
    Other,
}

impl Key {
    fn read(body: &[u8]) -> Result<Self, Error> {
        /// The curve's object identifier, with its length.
        const CURVE: &[u8] = &[9, 0x2b, 0x06, 0x01, 0x04, 0x01, 0xda, 0x47, 0x0f, 0x01];
        let mut cursor = Cursor(body);
        if cursor.byte()? != 4 {
            return Err(Error::Unsupported("a key of another version than 4"));
        }
        let created = cursor.u32()?;
        let material = match cursor.byte()? {
            1 | 3 => {
                let n = cursor.integer()?.to_vec();
                Material::Rsa { n, e: cursor.integer()?.to_vec() }
            }
            22 if cursor.0.starts_with(CURVE) => {
                cursor.take(CURVE.len())?;
                match cursor.integer()?.split_first() {
                    Some((0x40, point)) => Material::Ed25519(
                        point.try_into().map_err(|_| Error::Malformed("a key of the wrong length"))?,
                    ),
                    Some(_) | None => return Err(Error::Malformed("a key of the wrong form")),
                }
            }
            27 => Material::Ed25519(cursor.array()?),
            _ => Material::Other,
        };
        let digest = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &framed(0x99, body));
        let fingerprint = digest.as_ref().try_into().map_err(|_| Error::Malformed("a key without a name"))?;
        Ok(Self { body: body.to_vec(), fingerprint: Fingerprint(fingerprint), created, material })
    }

    /// What signatures over keys hash for this one.
    fn framed(&self) -> Vec<u8> {
        framed(0x99, &self.body)
    }

    /// Whether the arithmetic says that this key signed the content.
    fn made(&self, signature: &Signature, content: &[u8]) -> bool {
        let message = [content, &signature.trailer].concat();
        match (&self.material, &signature.value) {
            (Material::Rsa { n, e }, Value::Rsa(value)) => {
                let parameters = match signature.hash {
                    Hash::Sha256 => &RSA_PKCS1_2048_8192_SHA256,
                    Hash::Sha384 => &RSA_PKCS1_2048_8192_SHA384,
                    Hash::Sha512 => &RSA_PKCS1_2048_8192_SHA512,
                };
                let Some(value) = padded(value, n.len()) else { return false };
                RsaPublicKeyComponents { n, e }.verify(parameters, &message, &value).is_ok()
            }
            (Material::Ed25519(point), Value::Ed25519(value)) => {
                let algorithm = match signature.hash {
                    Hash::Sha256 => &digest::SHA256,
                    Hash::Sha384 => &digest::SHA384,
                    Hash::Sha512 => &digest::SHA512,
                };
                let hashed = digest::digest(algorithm, &message);
                UnparsedPublicKey::new(&ED25519, point).verify(hashed.as_ref(), value).is_ok()
            }
            (
                Material::Rsa { .. } | Material::Ed25519(_) | Material::Other,
                Value::Rsa(_) | Value::Ed25519(_),
            ) => false,
        }
    }
}

fn framed(mark: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap_or(u16::MAX).to_be_bytes();
    [&[mark][..], &length, body].concat()
}

/// The zeros that a number lost at its front.
fn padded(number: &[u8], length: usize) -> Option<Vec<u8>> {
    let missing = length.checked_sub(number.len())?;
    Some([vec![0; missing], number.to_vec()].concat())
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Signature {
    kind: u8,
    hash: Hash,
    created: u32,
    /// Seconds after the creation of the key that it is about.
    key_lifetime: Option<u32>,
    /// What the key that it is about may do.
    flags: Option<u8>,
    /// The signing key, as the signature names it; only a hint, and never trusted.
    issuer: Option<[u8; 8]>,
    /// A signature of the other key, inside this one.
    embedded: Option<Vec<u8>>,
    /// What is hashed after the content.
    trailer: Vec<u8>,
    value: Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Rsa(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl Signature {
    fn read(body: &[u8]) -> Result<Self, Error> {
        let mut cursor = Cursor(body);
        let version = cursor.byte()?;
        if version != 4 {
            return Err(Error::Unsupported("a signature of another version than 4"));
        }
        let (kind, algorithm, hash) = (cursor.byte()?, cursor.byte()?, cursor.byte()?);
        let length = cursor.u16()?;
        let hashed = cursor.take(length)?;
        let length = cursor.u16()?;
        let unhashed = cursor.take(length)?;
        // The first bytes of the hash, for those who guess at keys; the signature itself covers all of them.
        cursor.take(2)?;
        let hash = match hash {
            8 => Hash::Sha256,
            9 => Hash::Sha384,
            10 => Hash::Sha512,
            _ => return Err(Error::Unsupported("a hash other than SHA-256, SHA-384 and SHA-512")),
        };
        let value = match algorithm {
            1 | 3 => Value::Rsa(cursor.integer()?.to_vec()),
            22 => {
                let halves = [cursor.integer()?, cursor.integer()?];
                let halves =
                    halves.map(|half| padded(half, 32).ok_or(Error::Malformed("a number is too long")));
                let [r, s] = halves;
                Value::Ed25519([r?, s?].concat())
            }
            27 => Value::Ed25519(cursor.array::<64>()?.to_vec()),
            _ => return Err(Error::Unsupported("a key other than RSA and Ed25519")),
        };
        let head = body.get(..6 + hashed.len()).unwrap_or_default();
        let size = u32::try_from(head.len()).unwrap_or(u32::MAX).to_be_bytes();
        let trailer = [head, &[4, 0xff], &size].concat();
        let mut signature = Self {
            kind,
            hash,
            created: 0,
            key_lifetime: None,
            flags: None,
            issuer: None,
            embedded: None,
            trailer,
            value,
        };
        signature.read_hashed(hashed)?;
        // Only hints and what proves itself are read from outside of what is signed.
        for (kind, content) in subpackets(unhashed)? {
            match kind & 0x7f {
                16 => signature.issuer = signature.issuer.or(content.try_into().ok()),
                32 => signature.embedded = signature.embedded.or_else(|| Some(content.to_vec())),
                _ => {}
            }
        }
        Ok(signature)
    }

    fn read_hashed(&mut self, area: &[u8]) -> Result<(), Error> {
        let number = |content: &[u8]| {
            content
                .try_into()
                .map(u32::from_be_bytes)
                .map_err(|_| Error::Malformed("a time of the wrong length"))
        };
        let mut created = None;
        for (kind, content) in subpackets(area)? {
            match kind & 0x7f {
                2 => created = Some(number(content)?),
                3 if number(content)? == 0 => {}
                3 => return Err(Error::Unsupported("a signature that ends by itself")),
                9 => self.key_lifetime = Some(number(content)?).filter(|lifetime| *lifetime > 0),
                16 => self.issuer = content.try_into().ok(),
                27 => self.flags = Some(content.first().copied().unwrap_or_default()),
                32 => self.embedded = Some(content.to_vec()),
                // Preferences, notes of the maker, the issuer's whole fingerprint, whether it can be revoked, why it was.
                4 | 5 | 7 | 11 | 12 | 21..=26 | 28..=31 | 33..=39 => {}
                _ if kind & 0x80 != 0 => {
                    return Err(Error::Unsupported("a setting that must be understood and is not"));
                }
                _ => {}
            }
        }
        self.created = created.ok_or(Error::Malformed("it does not say when it was made"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
