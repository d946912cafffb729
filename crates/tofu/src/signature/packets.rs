//! OpenPGP packets (RFC 9580, version 4 of keys and signatures) as far as detached signatures need them. Pure and total: every
//! length is checked, nothing recurses, and what is not understood is refused or skipped as the format allows.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Error;

/// A key file holds a few keys; a signature a few hundred bytes.
const INPUT_LIMIT: usize = 1024 * 1024;

/// The number of a packet's kind and its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packet<'a> {
    pub(super) tag: u8,
    pub(super) body: &'a [u8],
}

/// Reads bytes from the front.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (front, rest) = self.0.split_at_checked(count).ok_or(Error::Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(front)
    }

    /// A number of at most four bytes, the highest first.
    fn number(&mut self, bytes: usize) -> Result<usize, Error> {
        Ok(self.take(bytes)?.iter().fold(0, |sum, byte| (sum << 8) | usize::from(*byte)))
    }

    pub(super) fn byte(&mut self) -> Result<u8, Error> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.take(N)?.try_into().map_err(|_| Error::Malformed("it ends too early"))
    }

    pub(super) fn u16(&mut self) -> Result<usize, Error> {
        self.number(2)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// A number of any size: its length in bits, then its bytes.
    pub(super) fn integer(&mut self) -> Result<&'a [u8], Error> {
        let bits = self.u16()?;
        self.take(bits.div_ceil(8))
    }

    /// A length as new packets and subpackets write it.
    fn length(&mut self, of_subpacket: bool) -> Result<usize, Error> {
        let first = usize::from(self.byte()?);
        match first {
            0..=191 => Ok(first),
            255 => self.number(4),
            // Streamed packets are of no use in keys and signatures; in subpackets these numbers are ordinary lengths.
            224..=254 if !of_subpacket => Err(Error::Malformed("it has a packet in pieces")),
            _ => Ok(((first - 192) << 8) + usize::from(self.byte()?) + 192),
        }
    }
}

/// All packets of an input, in order. O(bytes).
pub(super) fn packets(input: &[u8]) -> Result<Vec<Packet<'_>>, Error> {
    let mut cursor = Cursor(input);
    let mut found = Vec::new();
    while !cursor.0.is_empty() {
        let header = cursor.byte()?;
        if header & 0x80 == 0 {
            return Err(Error::Malformed("it is no OpenPGP data"));
        }
        let (tag, length) = if header & 0x40 != 0 {
            (header & 0x3f, cursor.length(false)?)
        } else {
            let length = match header & 3 {
                0 => cursor.number(1)?,
                1 => cursor.number(2)?,
                2 => cursor.number(4)?,
                _ => return Err(Error::Malformed("it has a packet without a length")),
            };
            ((header >> 2) & 0xf, length)
        };
        found.push(Packet { tag, body: cursor.take(length)? });
    }
    Ok(found)
}

/// The kind and content of each subpacket of an area. The high bit of a kind says that it must be understood.
pub(super) fn subpackets(area: &[u8]) -> Result<Vec<(u8, &[u8])>, Error> {
    let mut cursor = Cursor(area);
    let mut found = Vec::new();
    while !cursor.0.is_empty() {
        let length = cursor.length(true)?;
        let mut body = Cursor(cursor.take(length)?);
        found.push((body.byte()?, body.0));
    }
    Ok(found)
}

/// The bytes of a file that may be armoured; several armoured blocks are one after the other.
pub(super) fn dearmoured(input: &[u8]) -> Result<Vec<u8>, Error> {
    if input.len() > INPUT_LIMIT {
        return Err(Error::Malformed("it is larger than a key or a signature can be"));
    }
    if input.first().is_some_and(|first| first & 0x80 != 0) {
        return Ok(input.to_vec());
    }
    let text = std::str::from_utf8(input).map_err(|_| Error::Malformed("it is no OpenPGP data"))?;
    let mut bytes = Vec::new();
    let mut lines = text.lines().map(str::trim);
    let mut blocks = 0;
    while let Some(line) = lines.next() {
        if !line.starts_with("-----BEGIN PGP ") {
            continue;
        }
        blocks += 1;
        // Headers such as a comment end with an empty line.
        for header in lines.by_ref() {
            if header.is_empty() {
                break;
            }
        }
        let mut content = String::new();
        let mut ended = false;
        for line in lines.by_ref() {
            if line.starts_with("-----END PGP ") {
                ended = true;
                break;
            }
            // The checksum of the armour adds nothing to a signature.
            if !line.starts_with('=') {
                content.push_str(line);
            }
        }
        if !ended {
            return Err(Error::Malformed("its armour has no end"));
        }
        bytes.extend(STANDARD.decode(content).map_err(|_| Error::Malformed("its armour is damaged"))?);
    }
    if blocks == 0 {
        return Err(Error::Malformed("it is no OpenPGP data"));
    }
    Ok(bytes)
}
