//! Encryption at rest: a stream of chunks under XChaCha20-Poly1305. Pure: bytes in, bytes out.
//!
//! A sealed object is a header of fixed size, then chunks. The nonce of a chunk is a random prefix, the chunk's number
//! and a flag for the last one, so chunks cannot be dropped, repeated, reordered or cut off. The associated data of
//! every chunk are the header and the object's key, so an object cannot be put in the place of another. Chunk 0 holds
//! the sha256 of the content, which makes "is this the same?" answerable without reading it all.

use std::collections::VecDeque;

use bytes::Bytes;
use rand::TryRngCore;

use super::cipher::{self, NONCE_SIZE, TAG_SIZE};
use super::keyring::{KeyId, Keyring};
use crate::key::Key;

const MAGIC: &[u8; 4] = b"TRN1";
const TENANT_SIZE: usize = 64;
const PREFIX_SIZE: usize = 19;
const HEADER_SIZE: usize = MAGIC.len() + size_of::<KeyId>() + TENANT_SIZE + PREFIX_SIZE;
const DIGEST_SIZE: usize = 32;
/// What stands before the content.
const PREAMBLE_SIZE: usize = HEADER_SIZE + DIGEST_SIZE + TAG_SIZE;
const CHUNK: usize = 64 * 1024;
const SEALED_CHUNK: usize = CHUNK + TAG_SIZE;
/// What stays below this gets no more memory than it needs.
const SMALL: usize = 4096;
/// Up to which byte an object must be read to know its key.
pub(crate) const KEY_ID_END: u64 = 12;

/// The id of the key that an object begins to name.
pub(crate) fn key_id(start: &[u8]) -> Option<KeyId> {
    start.strip_prefix(MAGIC)?.first_chunk().copied()
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "the stored object is not the one that was written: it was changed, cut short or moved; restore it from a backup"
    )]
    Damaged,
    #[error("the stored object is encrypted with key {0}, which is not among the keys given; add that key")]
    KeyMissing(String),
    #[error("the operating system gave no randomness")]
    Randomness,
    #[error("{0:?} is not a namespace")]
    Tenant(String),
    #[error("the object is larger than can be sealed")]
    TooLarge,
}

struct Cipher {
    cipher: cipher::Cipher,
    prefix: [u8; PREFIX_SIZE],
    associated: Vec<u8>,
    counter: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Inner,
    Last,
}

impl Cipher {
    fn new(key: &[u8; 32], prefix: [u8; PREFIX_SIZE], header: &[u8], name: &Key) -> Self {
        let mut associated = header.to_vec();
        for field in name.binding() {
            associated.extend_from_slice(&u32::try_from(field.len()).unwrap_or(u32::MAX).to_be_bytes());
            associated.extend_from_slice(field.as_bytes());
        }
        Self { cipher: cipher::Cipher::new(key), prefix, associated, counter: 0 }
    }

    fn next_nonce(&mut self, position: Position) -> Result<[u8; NONCE_SIZE], Error> {
        let counter = self.counter;
        self.counter = counter.checked_add(1).ok_or(Error::TooLarge)?;
        let flag = match position {
            Position::Inner => 0,
            Position::Last => 1,
        };
        let mut nonce = [0u8; NONCE_SIZE];
        let parts = self.prefix.into_iter().chain(counter.to_be_bytes()).chain([flag]);
        for (to, from) in nonce.iter_mut().zip(parts) {
            *to = from;
        }
        Ok(nonce)
    }

    /// Seals a chunk where it lies, and hands it over.
    fn seal(&mut self, mut chunk: Vec<u8>, position: Position, out: &mut Sealed) -> Result<(), Error> {
        let nonce = self.next_nonce(position)?;
        self.cipher.seal(&nonce, &mut chunk, &self.associated).map_err(|_| Error::TooLarge)?;
        out.push(chunk.into());
        Ok(())
    }

    fn open(&mut self, sealed: &[u8], position: Position, out: &mut Vec<u8>) -> Result<(), Error> {
        let nonce = self.next_nonce(position)?;
        let content = self.cipher.open(&nonce, sealed, &self.associated).map_err(|_| Error::Damaged)?;
        out.extend_from_slice(&content);
        Ok(())
    }
}

/// What was sealed and not yet written, as it was made: a large object would be copied again and again in one growing piece.
#[derive(Debug, Default)]
pub(crate) struct Sealed {
    pieces: VecDeque<Bytes>,
    size: usize,
}

impl Sealed {
    fn push(&mut self, piece: Bytes) {
        self.size += piece.len();
        self.pieces.push_back(piece);
    }

    /// Exactly `size` bytes from the start, once there are more than that. Nothing is copied.
    pub(crate) fn part(&mut self, size: usize) -> Option<Vec<Bytes>> {
        if self.size <= size {
            return None;
        }
        let mut part = Vec::new();
        let mut missing = size;
        while missing > 0 {
            let mut piece = self.pieces.pop_front()?;
            if piece.len() > missing {
                self.pieces.push_front(piece.split_off(missing));
            }
            missing -= piece.len();
            part.push(piece);
        }
        self.size -= size;
        Some(part)
    }

    /// The first piece, as it was made.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        let piece = self.pieces.pop_front()?;
        self.size -= piece.len();
        Some(piece)
    }

    pub(crate) fn rest(self) -> Vec<Bytes> {
        self.pieces.into()
    }
}

/// Seals a stream of any length; holds at most one chunk.
pub(crate) struct Sealer {
    cipher: Cipher,
    pending: Vec<u8>,
}

impl Sealer {
    /// The preamble goes to `out` at once.
    pub(crate) fn new(
        keys: &Keyring,
        name: &Key,
        tenant: &str,
        sha256: &[u8; DIGEST_SIZE],
        out: &mut Sealed,
    ) -> Result<Self, Error> {
        let key = keys.newest();
        let mut prefix = [0u8; PREFIX_SIZE];
        rand::rngs::OsRng.try_fill_bytes(&mut prefix).map_err(|_| Error::Randomness)?;
        let mut header = Vec::with_capacity(HEADER_SIZE);
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&key.id);
        let too_long = tenant.len() >= TENANT_SIZE || tenant.bytes().any(|byte| byte == 0);
        if too_long {
            return Err(Error::Tenant(tenant.to_owned()));
        }
        header.extend_from_slice(tenant.as_bytes());
        header.resize(MAGIC.len() + size_of::<KeyId>() + TENANT_SIZE, 0);
        header.extend_from_slice(&prefix);
        let mut cipher = Cipher::new(&key.bytes, prefix, &header, name);
        out.push(header.into());
        cipher.seal(sha256.to_vec(), Position::Inner, out)?;
        Ok(Self { cipher, pending: Vec::new() })
    }

    pub(crate) fn push(&mut self, mut content: &[u8], out: &mut Sealed) -> Result<(), Error> {
        while !content.is_empty() {
            // A full chunk is sealed only when more follows, because the last one is marked.
            if self.pending.len() == CHUNK {
                self.cipher.seal(std::mem::take(&mut self.pending), Position::Inner, out)?;
            }
            let take = content.len().min(CHUNK - self.pending.len());
            let (head, tail) = content.split_at(take);
            // Room for the tag from the start: a chunk that grows by doubling would take twice its size.
            let room = if self.pending.len() + take > SMALL { SEALED_CHUNK } else { take + TAG_SIZE };
            self.pending.reserve_exact(room.saturating_sub(self.pending.len()));
            self.pending.extend_from_slice(head);
            content = tail;
        }
        Ok(())
    }

    /// Seals what is left; nothing may follow.
    pub(crate) fn finish(&mut self, out: &mut Sealed) -> Result<(), Error> {
        self.cipher.seal(std::mem::take(&mut self.pending), Position::Last, out)
    }
}

/// What stands before the content of a sealed object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Preamble {
    pub(crate) tenant: String,
    pub(crate) sha256: [u8; DIGEST_SIZE],
}

/// Opens a stream; gives out a chunk only after it proved whole.
pub(crate) struct Opener {
    cipher: Cipher,
    pending: Vec<u8>,
}

impl Opener {
    /// How many bytes [`Opener::new`] wants.
    pub(crate) const PREAMBLE: usize = PREAMBLE_SIZE;

    pub(crate) fn new(keys: &Keyring, name: &Key, preamble: &[u8]) -> Result<(Self, Preamble), Error> {
        let (header, sealed) = preamble.split_at_checked(HEADER_SIZE).ok_or(Error::Damaged)?;
        let rest = header.strip_prefix(MAGIC).ok_or(Error::Damaged)?;
        let (id, rest) = rest.split_first_chunk::<8>().ok_or(Error::Damaged)?;
        let (tenant, rest) = rest.split_at_checked(TENANT_SIZE).ok_or(Error::Damaged)?;
        let (prefix, _) = rest.split_first_chunk::<PREFIX_SIZE>().ok_or(Error::Damaged)?;
        let key = keys.find(id).ok_or_else(|| Error::KeyMissing(hex::encode(id)))?;
        let mut cipher = Cipher::new(&key.bytes, *prefix, header, name);
        let mut digest = Vec::with_capacity(DIGEST_SIZE);
        cipher.open(sealed, Position::Inner, &mut digest)?;
        let tenant = tenant.split(|byte| *byte == 0).next().unwrap_or_default();
        let preamble = Preamble {
            tenant: String::from_utf8(tenant.to_vec()).map_err(|_| Error::Damaged)?,
            sha256: digest.try_into().map_err(|_| Error::Damaged)?,
        };
        Ok((Self { cipher, pending: Vec::with_capacity(SEALED_CHUNK) }, preamble))
    }

    pub(crate) fn push(&mut self, mut sealed: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        while !sealed.is_empty() {
            if self.pending.len() == SEALED_CHUNK {
                self.cipher.open(&self.pending, Position::Inner, out)?;
                self.pending.clear();
            }
            let take = sealed.len().min(SEALED_CHUNK - self.pending.len());
            let (head, tail) = sealed.split_at(take);
            self.pending.extend_from_slice(head);
            sealed = tail;
        }
        Ok(())
    }

    pub(crate) fn finish(mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        self.cipher.open(&self.pending, Position::Last, out)
    }
}

/// Opens a whole object that is in memory.
pub(crate) fn open_whole(keys: &Keyring, name: &Key, sealed: &[u8]) -> Result<(String, Vec<u8>), Error> {
    let (preamble, body) = sealed.split_at_checked(PREAMBLE_SIZE).ok_or(Error::Damaged)?;
    let (mut opener, preamble) = Opener::new(keys, name, preamble)?;
    let mut content = Vec::new();
    opener.push(body, &mut content)?;
    opener.finish(&mut content)?;
    Ok((preamble.tenant, content))
}

/// The size of the content inside a sealed object of `sealed` bytes.
pub(crate) fn content_size(sealed: u64) -> Option<u64> {
    let body = sealed.checked_sub(u64::try_from(PREAMBLE_SIZE).ok()?)?;
    let (chunk, tag) = (u64::try_from(SEALED_CHUNK).ok()?, u64::try_from(TAG_SIZE).ok()?);
    body.checked_sub(body.div_ceil(chunk).max(1).checked_mul(tag)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::key::{Artefact, Attempt};
    use zeroize::Zeroizing;

    fn ring(byte: u8) -> Keyring {
        Keyring::new(Zeroizing::new([byte; 32]), Vec::new())
    }

    fn name(run: &str, number: u32, artefact: Artefact) -> Key {
        Key::Artefact(Attempt::new(run, number).unwrap(), artefact)
    }

    fn seal(keys: &Keyring, name: &Key, tenant: &str, content: &[u8]) -> Vec<u8> {
        let mut out = Sealed::default();
        let mut sealer = Sealer::new(keys, name, tenant, &[7; 32], &mut out).unwrap();
        for piece in content.chunks(1000) {
            sealer.push(piece, &mut out).unwrap();
        }
        sealer.finish(&mut out).unwrap();
        out.rest().concat()
    }

    fn open(keys: &Keyring, name: &Key, sealed: &[u8]) -> Result<(Preamble, Vec<u8>), Error> {
        let (preamble, body) = sealed.split_at_checked(Opener::PREAMBLE).ok_or(Error::Damaged)?;
        let (mut opener, preamble) = Opener::new(keys, name, preamble)?;
        let mut out = Vec::new();
        for piece in body.chunks(777) {
            opener.push(piece, &mut out)?;
        }
        opener.finish(&mut out)?;
        Ok((preamble, out))
    }

    #[test]
    fn parts_have_exactly_their_size_and_come_to_the_whole() {
        let mut sealed = Sealed::default();
        for piece in [&b"abc"[..], b"defgh", b"ij"] {
            sealed.push(Bytes::from_static(piece));
        }
        let mut parts = Vec::new();
        while let Some(part) = sealed.part(4) {
            parts.push(part.concat());
        }
        assert_eq!(parts, [b"abcd", b"efgh"]);
        assert_eq!(sealed.rest().concat(), b"ij");
    }

    #[test]
    fn content_of_every_size_comes_back_and_its_size_is_known_from_outside() {
        let key = name("run", 1, Artefact::Plan);
        for size in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 5] {
            let content: Vec<u8> = (0..size).map(|i| u8::try_from(i % 251).unwrap()).collect();
            let sealed = seal(&ring(1), &key, "team-a", &content);
            let (preamble, opened) = open(&ring(1), &key, &sealed).unwrap();
            assert_eq!(opened, content);
            assert_eq!(preamble, Preamble { tenant: "team-a".to_owned(), sha256: [7; 32] });
            assert_eq!(content_size(sealed.len() as u64), Some(size as u64));
        }
    }

    #[test]
    fn any_changed_byte_is_found() {
        let key = name("run", 1, Artefact::Plan);
        let sealed = seal(&ring(1), &key, "team-a", &[42; 300]);
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(open(&ring(1), &key, &changed).is_err(), "byte {at}");
        }
        for length in 0..sealed.len() {
            assert!(open(&ring(1), &key, &sealed[..length]).is_err(), "cut to {length}");
        }
        let mut longer = sealed.clone();
        longer.push(0);
        assert!(open(&ring(1), &key, &longer).is_err());
    }

    #[test]
    fn chunks_cannot_be_dropped_swapped_or_cut_at_a_border() {
        let key = name("run", 1, Artefact::Plan);
        let sealed = seal(&ring(1), &key, "t", &vec![9; 3 * CHUNK]);
        let at = |n: usize| PREAMBLE_SIZE + n * SEALED_CHUNK;
        assert_eq!(open(&ring(1), &key, &sealed[..at(2)]).unwrap_err(), Error::Damaged);
        let mut dropped = sealed[..at(1)].to_vec();
        dropped.extend_from_slice(&sealed[at(2)..]);
        assert_eq!(open(&ring(1), &key, &dropped).unwrap_err(), Error::Damaged);
        let mut swapped = sealed[..at(0)].to_vec();
        swapped.extend_from_slice(&sealed[at(1)..at(2)]);
        swapped.extend_from_slice(&sealed[at(0)..at(1)]);
        swapped.extend_from_slice(&sealed[at(2)..]);
        assert_eq!(open(&ring(1), &key, &swapped).unwrap_err(), Error::Damaged);
    }

    #[test]
    fn an_object_opens_only_in_its_own_place_and_with_its_own_key() {
        let key = name("run", 1, Artefact::Plan);
        let sealed = seal(&ring(1), &key, "t", b"x");
        for other in [
            name("other", 1, Artefact::Plan),
            name("run", 2, Artefact::Plan),
            name("run", 1, Artefact::PlanJson),
        ] {
            assert_eq!(open(&ring(1), &other, &sealed).unwrap_err(), Error::Damaged);
        }
        assert!(matches!(open(&ring(2), &key, &sealed).unwrap_err(), Error::KeyMissing(_)));
        let rotated = Keyring::new(Zeroizing::new([2; 32]), vec![Zeroizing::new([1; 32])]);
        assert_eq!(open(&rotated, &key, &sealed).unwrap().1, b"x");
        let newer = seal(&rotated, &key, "t", b"y");
        assert!(open(&ring(1), &key, &newer).is_err(), "new writes use the newest key");
    }

    #[test]
    fn plaintext_is_never_taken_for_an_object() {
        assert_eq!(
            open(&ring(1), &name("run", 1, Artefact::Plan), &[b'{'; 500]).unwrap_err(),
            Error::Damaged
        );
    }
}
