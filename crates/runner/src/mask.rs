//! Masking secrets in a log. The second line of defence: code that runs in a runner can always print a secret in a
//! shape that nobody looks for. The usual shapes are looked for: plain, base64 in each alignment, percent, JSON, hex.

use std::sync::Arc;

use base64::Engine;
use secrecy::{ExposeSecret, SecretString};

const HIDDEN: &str = "***";
/// Shorter values would hide ordinary words.
const SHORTEST: usize = 5;

/// Knows the secrets of one attempt. Shows none of them.
pub struct Mask {
    /// Longest first, so that a value is hidden whole before a shorter one inside it.
    patterns: Arc<[SecretString]>,
}

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mask({} patterns)", self.patterns.len())
    }
}

impl Mask {
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a SecretString>) -> Self {
        let mut patterns = Vec::new();
        for secret in secrets {
            let value = secret.expose_secret();
            // A log is masked line by line, so a value of several lines is looked for line by line too.
            for part in std::iter::once(value).chain(value.lines()).map(str::trim) {
                if part.len() >= SHORTEST {
                    patterns.extend(shapes(part));
                }
            }
        }
        patterns.retain(|pattern| pattern.len() >= SHORTEST);
        patterns.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        patterns.dedup();
        Self { patterns: patterns.into_iter().map(SecretString::from).collect() }
    }

    /// What is looked for, and so must come in one line.
    pub fn patterns(&self) -> Arc<[SecretString]> {
        Arc::clone(&self.patterns)
    }

    /// O(line · patterns).
    pub fn line(&self, line: &str) -> String {
        let mut text = line.to_owned();
        for pattern in self.patterns.iter() {
            if text.contains(pattern.expose_secret()) {
                text = text.replace(pattern.expose_secret(), HIDDEN);
            }
        }
        text
    }
}

impl Mask {
    /// The same in every text and number of a document, which stays a document. Its depth is bounded by its parser.
    pub fn json(&self, value: &mut serde_json::Value) {
        use serde_json::Value;
        match value {
            Value::String(text) => *text = self.line(text),
            Value::Number(number) => {
                let text = number.to_string();
                let masked = self.line(&text);
                if masked != text {
                    *value = Value::String(masked);
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.json(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.json(field)),
            Value::Null | Value::Bool(_) => {}
        }
    }
}

fn shapes(value: &str) -> Vec<String> {
    let mut shapes = vec![value.to_owned(), hex::encode(value), hex::encode_upper(value)];
    let quoted = serde_json::to_string(value).unwrap_or_default();
    shapes.push(quoted.trim_matches('"').to_owned());
    let mut percent = String::new();
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            percent.push(char::from(byte));
        } else {
            percent.push_str(&format!("%{byte:02X}"));
        }
    }
    shapes.push(percent);
    let engines =
        [base64::engine::general_purpose::STANDARD_NO_PAD, base64::engine::general_purpose::URL_SAFE_NO_PAD];
    for engine in &engines {
        for shift in 0..3usize {
            shapes.extend(base64_core(value, shift, engine));
        }
    }
    shapes
}

/// The characters that encode the value whatever stands before and after it, when it begins `shift` bytes into a group
/// of three.
fn base64_core(
    value: &str,
    shift: usize,
    engine: &base64::engine::general_purpose::GeneralPurpose,
) -> Option<String> {
    let mut bytes = vec![0u8; shift];
    bytes.extend_from_slice(value.as_bytes());
    let whole = bytes.len() - bytes.len() % 3;
    let encoded = engine.encode(bytes.get(..whole)?);
    let skip = [0, 2, 3].get(shift).copied()?;
    encoded.get(skip..).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_usual_shapes_are_hidden() {
        let secret = "s3cr3t/V\"alue+0123456789";
        let mask = Mask::new(&[SecretString::from(secret)]);
        let base = base64::engine::general_purpose::STANDARD;
        let mut lines = vec![
            format!("password={secret}!"),
            format!("json {}", serde_json::to_string(secret).unwrap()),
            format!("hex {}", hex::encode(secret)),
            "url s3cr3t%2FV%22alue%2B0123456789".to_owned(),
        ];
        for prefix in ["", "a", "ab", "user:"] {
            lines.push(format!("base64 {}", base.encode(format!("{prefix}{secret}tail"))));
        }
        for line in lines {
            let masked = mask.line(&line);
            assert!(masked.contains("***"), "{line} -> {masked}");
            assert!(!masked.contains(secret));
        }
        assert_eq!(mask.line("nothing here"), "nothing here");
    }

    #[test]
    fn a_masked_document_stays_a_document() {
        let mask = Mask::new(&[SecretString::from("1234567")]);
        let mut document = serde_json::json!({"a": [1_234_567, "x 1234567"], "b": {"c": 7}});
        mask.json(&mut document);
        assert_eq!(document, serde_json::json!({"a": ["***", "x ***"], "b": {"c": 7}}));
    }

    #[test]
    fn a_value_of_several_lines_is_hidden_line_by_line_and_short_ones_are_left() {
        let mask =
            Mask::new(&[SecretString::from("-----BEGIN KEY-----\nabcdefgh\n"), SecretString::from("on")]);
        assert_eq!(mask.line("got abcdefgh from it, on time"), "got *** from it, on time");
        assert!(!format!("{mask:?}").contains("abcdefgh"));
    }
}
