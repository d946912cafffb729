//! Deliveries of webhooks in the shapes that Git hosts document, one a file of `fuzz/corpus/webhook`: a line with the kind of host, headers,
//! an empty line, the body. They are signed by whoever uses them.

use std::path::Path;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};

#[derive(Debug, Clone)]
pub struct Delivery {
    pub host: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Delivery {
    /// The one that is kept under this name.
    pub fn named(name: &str) -> Result<Self, String> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/webhook").join(name);
        let bytes = std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        Self::parse(&bytes).ok_or_else(|| format!("{} is no delivery", file.display()))
    }

    /// What the bytes say, as far as they are a delivery at all.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(2).position(|window| window == b"\n\n").unwrap_or(bytes.len());
        let (head, body) = bytes.split_at(end);
        let mut lines = head.split(|byte| *byte == b'\n');
        let host = std::str::from_utf8(lines.next()?).ok()?.to_owned();
        let mut headers = HeaderMap::new();
        for line in lines {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (name, value) = line.split_at(colon);
            let value = HeaderValue::from_bytes(value.get(1..)?.trim_ascii()).ok()?;
            headers.append(HeaderName::from_bytes(name).ok()?, value);
        }
        Some(Self { host, headers, body: body.get(2..).unwrap_or_default().to_vec() })
    }

    /// The header by which its host proves that it knows the secret.
    pub fn proof(&self, secret: &str) -> Option<(&'static str, String)> {
        let signature = || {
            let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
            let digits = hmac::sign(&key, &self.body);
            digits.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        Some(match self.host.as_str() {
            "github" => ("x-hub-signature-256", format!("sha256={}", signature())),
            "gitea" => ("x-gitea-signature", signature()),
            "bitbucket" => ("x-hub-signature", format!("sha256={}", signature())),
            "gitlab" => ("x-gitlab-token", secret.to_owned()),
            "azuredevops" => ("authorization", format!("Basic {}", BASE64_STANDARD.encode(secret))),
            _ => return None,
        })
    }

    /// The same, proved with a secret.
    pub fn proved(mut self, secret: &str) -> Option<Self> {
        let (name, value) = self.proof(secret)?;
        self.headers.insert(name, HeaderValue::from_str(&value).ok()?);
        Some(self)
    }
}
