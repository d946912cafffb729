//! The one cipher of data at rest: XChaCha20-Poly1305. What is sealed, and under which nonce, is not known here.
//!
//! A long nonce becomes a key and a short nonce by HChaCha20; the rest is ChaCha20-Poly1305, by the library that TLS uses too. It is
//! written in assembler, and so as fast in a build without optimisation.

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use chacha20::{R20, hchacha};
use zeroize::Zeroizing;

pub(super) const KEY_SIZE: usize = 32;
pub(super) const NONCE_SIZE: usize = 24;
/// How much longer than its content a sealed text is.
pub(super) const TAG_SIZE: usize = 16;
/// How much of a nonce goes into the key.
const KEY_PART: usize = 16;

pub(super) struct Cipher(Zeroizing<[u8; KEY_SIZE]>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused;

impl Cipher {
    pub(super) fn new(key: &[u8; KEY_SIZE]) -> Self {
        Self(Zeroizing::new(*key))
    }

    /// Seals what `content` holds where it lies, and appends the tag; with [`TAG_SIZE`] bytes of room left nothing is copied. Refused is
    /// only what is longer than the cipher can take. A nonce must never serve twice under one key.
    pub(super) fn seal(
        &self,
        nonce: &[u8; NONCE_SIZE],
        content: &mut Vec<u8>,
        associated: &[u8],
    ) -> Result<(), Refused> {
        let (key, nonce) = self.short(nonce)?;
        key.seal_in_place_append_tag(nonce, Aad::from(associated), content).map_err(|_| Refused)
    }

    /// Refused is everything that was not sealed with this key, this nonce and these associated data.
    pub(super) fn open(
        &self,
        nonce: &[u8; NONCE_SIZE],
        sealed: &[u8],
        associated: &[u8],
    ) -> Result<Vec<u8>, Refused> {
        let (key, nonce) = self.short(nonce)?;
        let mut content = sealed.to_vec();
        let size = key.open_in_place(nonce, Aad::from(associated), &mut content).map_err(|_| Refused)?.len();
        content.truncate(size);
        Ok(content)
    }

    /// Key and nonce of the cipher with the short nonce: the first part of the long one is in the key, the rest follows four zeros.
    fn short(&self, nonce: &[u8; NONCE_SIZE]) -> Result<(LessSafeKey, Nonce), Refused> {
        let (in_key, rest) = nonce.split_first_chunk::<KEY_PART>().ok_or(Refused)?;
        let long_key: &[u8; KEY_SIZE] = &self.0;
        let key = Zeroizing::new(<[u8; KEY_SIZE]>::from(hchacha::<R20>(long_key.into(), in_key.into())));
        let key = UnboundKey::new(&CHACHA20_POLY1305, &*key).map_err(|_| Refused)?;
        let mut short = [0; aws_lc_rs::aead::NONCE_LEN];
        for (to, from) in short.iter_mut().rev().zip(rest.iter().rev()) {
            *to = *from;
        }
        Ok((LessSafeKey::new(key), Nonce::assume_unique_for_key(short)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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
        assert_eq!(cipher.open(&nonce, b"short", b"place"), Err(Refused));
    }

    /// The example of the cipher's own description (draft-irtf-cfrg-xchacha, A.3.1): what is stored can be read by anybody who has the
    /// key, and by every version of this program.
    #[test]
    fn it_is_the_cipher_that_everybody_means_by_its_name() {
        let content = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it.";
        let key: [u8; KEY_SIZE] = std::array::from_fn(|at| 0x80 + u8::try_from(at).unwrap());
        let nonce: [u8; NONCE_SIZE] = std::array::from_fn(|at| 0x40 + u8::try_from(at).unwrap());
        let associated = hex::decode("50515253c0c1c2c3c4c5c6c7").unwrap();
        let mut sealed = content.to_vec();
        Cipher::new(&key).seal(&nonce, &mut sealed, &associated).unwrap();
        let (text, tag) = sealed.split_at(content.len());
        assert_eq!(hex::encode(&text[..16]), "bd6d179d3e83d43b9576579493c0e939");
        assert_eq!(hex::encode(tag), "c0875924c1c7987947deafd8780acf49");
    }
}
