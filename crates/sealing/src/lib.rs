//! The one cipher of data at rest: XChaCha20-Poly1305. What is sealed, and under which nonce, is the datastore's matter.
//!
//! It is a crate of its own so that tests can have it optimised and the rest of the datastore quickly compiled: the cipher is
//! generic, its code is made where it is used, and without optimisation it is a hundred times slower.

use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::{Aead, AeadInOut, KeyInit, Payload};

pub const KEY_SIZE: usize = 32;
pub const NONCE_SIZE: usize = 24;
/// How much longer than its content a sealed text is.
pub const TAG_SIZE: usize = 16;

pub struct Cipher(XChaCha20Poly1305);

impl std::fmt::Debug for Cipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cipher")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

impl Cipher {
    pub fn new(key: &[u8; KEY_SIZE]) -> Self {
        Self(XChaCha20Poly1305::new(key.into()))
    }

    /// Seals what `content` holds where it lies, and appends the tag; with [`TAG_SIZE`] bytes of room left nothing is copied. Refused is
    /// only what is longer than the cipher can take. A nonce must never serve twice under one key.
    #[inline(never)]
    pub fn seal(
        &self,
        nonce: &[u8; NONCE_SIZE],
        content: &mut Vec<u8>,
        associated: &[u8],
    ) -> Result<(), Refused> {
        self.0.encrypt_in_place(nonce.into(), associated, content).map_err(|_| Refused)
    }

    /// Refused is everything that was not sealed with this key, this nonce and these associated data.
    #[inline(never)]
    pub fn open(
        &self,
        nonce: &[u8; NONCE_SIZE],
        sealed: &[u8],
        associated: &[u8],
    ) -> Result<Vec<u8>, Refused> {
        self.0.decrypt(nonce.into(), Payload { msg: sealed, aad: associated }).map_err(|_| Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_key_nonce_and_associated_data_open_it() {
        let (cipher, nonce) = (Cipher::new(&[1; KEY_SIZE]), [2; NONCE_SIZE]);
        let mut sealed = b"content".to_vec();
        assert_eq!(cipher.seal(&nonce, &mut sealed, b"place"), Ok(()));
        assert_eq!(sealed.len(), b"content".len() + TAG_SIZE);
        assert_eq!(cipher.open(&nonce, &sealed, b"place").as_deref(), Ok(&b"content"[..]));
        assert_eq!(cipher.open(&nonce, &sealed, b"elsewhere"), Err(Refused));
        assert_eq!(cipher.open(&[3; NONCE_SIZE], &sealed, b"place"), Err(Refused));
        assert_eq!(Cipher::new(&[4; KEY_SIZE]).open(&nonce, &sealed, b"place"), Err(Refused));
    }
}
