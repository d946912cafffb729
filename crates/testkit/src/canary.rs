//! Looks for secrets where none may be. A canary is a random text put in where a secret goes in; afterwards everything that came
//! out is searched for it, in the forms in which programs pass bytes on.

use std::io::Read;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};
use memchr::memmem;

/// How deep packed content is unpacked.
const DEPTH: u32 = 3;
/// More than anything in a test packs.
const UNPACKED_LIMIT: u64 = 64 * 1024 * 1024;

/// A secret, and every form in which it could be seen.
#[derive(Debug)]
pub struct Canary {
    /// Where it went in.
    pub source: String,
    /// The secret itself.
    pub value: String,
    forms: Vec<(&'static str, Vec<u8>)>,
}

impl Canary {
    /// A new secret: 48 characters that mean nothing anywhere, and differ in every encoding.
    pub fn random(source: &str) -> Self {
        let letter = |byte: u8| char::from(b'a' + byte % 26);
        let value: String = rand::random::<[u8; 48]>().into_iter().map(letter).collect();
        Self::known(source, &value)
    }

    /// A secret that something else made.
    pub fn known(source: &str, value: &str) -> Self {
        Self { source: source.to_owned(), value: value.to_owned(), forms: forms(value.as_bytes()) }
    }

    /// In which form it is in these bytes, if it is: as they are, without line ends and colours, or unpacked.
    pub fn found_in(&self, bytes: &[u8]) -> Option<&'static str> {
        self.found_within(bytes, DEPTH)
    }

    fn found_within(&self, bytes: &[u8], depth: u32) -> Option<&'static str> {
        let plain = |bytes: &[u8]| {
            self.forms.iter().find(|(_, form)| memmem::find(bytes, form).is_some()).map(|(name, _)| *name)
        };
        if let Some(form) = plain(bytes).or_else(|| plain(&without_decoration(bytes))) {
            return Some(form);
        }
        let deeper = depth.checked_sub(1)?;
        unpacked(bytes).iter().find_map(|content| self.found_within(content, deeper))
    }
}

fn forms(value: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let each =
        |format: fn(u8) -> String| value.iter().map(|byte| format(*byte)).collect::<String>().into_bytes();
    let mut forms = vec![
        ("raw", value.to_vec()),
        ("hex", each(|byte| format!("{byte:02x}"))),
        ("upper-case hex", each(|byte| format!("{byte:02X}"))),
        ("percent-encoded", each(|byte| format!("%{byte:02x}"))),
        ("upper-case percent-encoded", each(|byte| format!("%{byte:02X}"))),
        ("JSON escapes", each(|byte| format!("\\u{byte:04x}"))),
        ("shell escapes", each(|byte| format!("\\x{byte:02x}"))),
        ("UTF-16", value.iter().flat_map(|byte| [*byte, 0]).collect()),
        ("reversed", value.iter().rev().copied().collect()),
    ];
    // What stands before it decides how it falls into groups of three bytes; characters that it shares with its neighbours say nothing.
    for before in 0..3usize {
        let mut padded = vec![0u8; before];
        padded.extend_from_slice(value);
        let whole = padded.len() * 8 / 6;
        let first = (before * 8).div_ceil(6);
        for (name, encoded) in [
            ("base64", BASE64_STANDARD_NO_PAD.encode(&padded)),
            ("base64 for URLs", BASE64_URL_SAFE_NO_PAD.encode(&padded)),
        ] {
            forms.push((name, encoded.into_bytes().get(first..whole).unwrap_or_default().to_vec()));
        }
    }
    forms
}

/// Without line ends, and without the sequences that colour a terminal.
fn without_decoration(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes.iter().copied();
    while let Some(byte) = rest.next() {
        match byte {
            b'\n' | b'\r' => {}
            0x1b => {
                // Up to the letter that ends it.
                rest.by_ref().skip(1).find(u8::is_ascii_alphabetic);
            }
            other => plain.push(other),
        }
    }
    plain
}

/// What is packed in these bytes: gzip and zlib where they begin, and members of zip archives anywhere.
fn unpacked(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut take = |reader: &mut dyn Read| {
        let mut content = Vec::new();
        // Whatever could be read before an error is searched too.
        let _ = reader.take(UNPACKED_LIMIT).read_to_end(&mut content);
        if !content.is_empty() {
            found.push(content);
        }
    };
    for at in memmem::find_iter(bytes, &[0x1f, 0x8b, 0x08]) {
        take(&mut flate2::read::MultiGzDecoder::new(bytes.get(at..).unwrap_or_default()));
    }
    if matches!(bytes, [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..]) {
        take(&mut flate2::read::ZlibDecoder::new(bytes));
    }
    for at in memmem::find_iter(bytes, b"PK\x03\x04") {
        let Some(header) = bytes.get(at..).and_then(|rest| rest.first_chunk::<30>()) else { continue };
        let size = |low: u8, high: u8| usize::from(u16::from_le_bytes([low, high]));
        let [.., name_low, name_high, extra_low, extra_high] = *header;
        let start = at + header.len() + size(name_low, name_high) + size(extra_low, extra_high);
        take(&mut flate2::read::DeflateDecoder::new(bytes.get(start..).unwrap_or_default()));
    }
    found
}

/// The files below a directory that hold a canary, with which and how; a file that cannot be read is named too. O(bytes there).
pub fn search<'a>(directory: &Path, canaries: impl IntoIterator<Item = &'a Canary> + Clone) -> Vec<String> {
    let mut found = Vec::new();
    for path in crate::s3::files_below(directory) {
        let Ok(bytes) = std::fs::read(&path) else {
            // Sockets and what ended meanwhile have no content.
            continue;
        };
        for canary in canaries.clone() {
            if let Some(form) = canary.found_in(&bytes) {
                found.push(format!("{} holds {} ({form})", path.display(), canary.source));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;

    #[test]
    fn a_canary_is_found_in_every_form_and_nowhere_else() {
        let canary = Canary::random("test");
        let value = canary.value.as_bytes();
        for before in ["", "x", "xy", "xyz"] {
            let text = format!("{before}{}after", canary.value);
            assert_eq!(canary.found_in(text.as_bytes()), Some("raw"));
            let encoded = BASE64_STANDARD_NO_PAD.encode(&text);
            assert_eq!(canary.found_in(encoded.as_bytes()), Some("base64"), "{before}");
            let twice = BASE64_STANDARD_NO_PAD.encode(format!("{{\"a\":\"{encoded}\"}}"));
            assert_eq!(canary.found_in(twice.as_bytes()), None, "two layers of base64 are not claimed");
        }
        let (head, tail) = canary.value.split_at(20);
        assert_eq!(canary.found_in(format!("{head}\r\n{tail}").as_bytes()), Some("raw"));
        assert_eq!(canary.found_in(format!("{head}\u{1b}[31m{tail}").as_bytes()), Some("raw"));
        let hex: String = value.iter().map(|byte| format!("{byte:02X}")).collect();
        assert_eq!(canary.found_in(hex.as_bytes()), Some("upper-case hex"));
        let percent: String = value.iter().map(|byte| format!("%{byte:02x}")).collect();
        assert_eq!(canary.found_in(percent.as_bytes()), Some("percent-encoded"));

        let mut gzip = flate2::write::GzEncoder::new(b"before ".to_vec(), flate2::Compression::best());
        gzip.write_all(format!("some {} text", canary.value).as_bytes()).unwrap();
        assert_eq!(canary.found_in(&gzip.finish().unwrap()), Some("raw"));
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        zlib.write_all(value).unwrap();
        assert_eq!(canary.found_in(&zlib.finish().unwrap()), Some("raw"));
        let mut deflate = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
        deflate.write_all(&value.repeat(3)).unwrap();
        let mut member = b"PK\x03\x04".to_vec();
        member.extend_from_slice(&[0; 22]);
        member.extend_from_slice(&[6, 0, 0, 0]);
        member.extend_from_slice(b"tfplan");
        member.extend_from_slice(&deflate.finish().unwrap());
        assert_eq!(canary.found_in(&member), Some("raw"));

        assert_eq!(canary.found_in(Canary::random("other").value.as_bytes()), None);
        assert_eq!(canary.found_in(head.as_bytes()), None);
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("deep")).unwrap();
        std::fs::write(place.path().join("deep/file"), value).unwrap();
        std::fs::write(place.path().join("clean"), "nothing").unwrap();
        let found = search(place.path(), [&canary]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found.concat().contains("deep/file holds test (raw)"), "{found:?}");
    }
}
