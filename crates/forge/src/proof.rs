//! How a delivery proves that whoever sent it knows the repository's secret. All comparisons take the same time whatever is wrong, and
//! nothing of a body is read but its bytes.

use aws_lc_rs::{constant_time, digest, hmac};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderName, header};
use secrecy::{ExposeSecret, SecretBox, SecretSlice};

use crate::Host;

/// Shorter secrets can be guessed.
pub const SHORTEST: usize = 16;
/// One that is current, and the one before or after it.
pub const MOST: usize = 2;

/// The current secrets of one repository.
#[derive(Debug)]
pub struct Secrets(Vec<SecretSlice<u8>>);

/// Why what was written down as a secret is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    #[error("it is empty")]
    Empty,
    #[error("one of its lines is shorter than {SHORTEST} bytes, which can be guessed")]
    Short,
    #[error(
        "it has more than {MOST} lines; each line is a secret, and there can be the current one and another while they change"
    )]
    Many,
}

impl Secrets {
    /// One secret a line; ends of lines and empty lines do not count.
    pub fn read(text: &[u8]) -> Result<Self, Unusable> {
        let lines: Vec<&[u8]> = text
            .split(|byte| *byte == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
            .filter(|line| !line.is_empty())
            .collect();
        if lines.is_empty() {
            return Err(Unusable::Empty);
        }
        if lines.len() > MOST {
            return Err(Unusable::Many);
        }
        if lines.iter().any(|line| line.len() < SHORTEST) {
            return Err(Unusable::Short);
        }
        Ok(Self(lines.into_iter().map(|line| SecretBox::from(line.to_vec())).collect()))
    }
}

/// What the headers of a delivery bring forward.
#[derive(Debug)]
pub enum Proof {
    /// HMAC-SHA256 over the whole body.
    Signature([u8; 32]),
    /// HMAC-SHA256 over an id, a time and the body, with dots between them, as Standard Webhooks have it. There may be several, by several
    /// secrets.
    Standard { before: Vec<u8>, given: Vec<[u8; 32]> },
    /// The secret itself: GitLab's token, or user name and password with a colon between them.
    Word(SecretSlice<u8>),
}

/// Why the headers prove nothing, whatever the secret is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Missing(String);

const HUB_SHA256: HeaderName = HeaderName::from_static("x-hub-signature-256");
const HUB: HeaderName = HeaderName::from_static("x-hub-signature");
const GITEA: HeaderName = HeaderName::from_static("x-gitea-signature");
const FORGEJO: HeaderName = HeaderName::from_static("x-forgejo-signature");
const GITLAB: HeaderName = HeaderName::from_static("x-gitlab-token");
const STANDARD_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const STANDARD_ID: HeaderName = HeaderName::from_static("webhook-id");
const STANDARD_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
/// What a secret of Standard Webhooks begins with; the key follows, in base64.
const STANDARD_SECRET: &[u8] = b"whsec_";
/// Signatures that one delivery can bring.
const MOST_SIGNATURES: usize = 4;

impl Proof {
    pub fn read(host: Host, headers: &HeaderMap) -> Result<Self, Missing> {
        match host {
            Host::GitHub => signature(headers, &HUB_SHA256),
            Host::Bitbucket => signature(headers, &HUB),
            Host::Gitea => {
                let first = [HUB_SHA256, GITEA, FORGEJO].into_iter().find(|name| headers.contains_key(name));
                signature(headers, &first.unwrap_or(GITEA))
            }
            // Where there is a signature, the token beside it proves nothing more.
            Host::GitLab if headers.contains_key(&STANDARD_SIGNATURE) => standard(headers),
            Host::GitLab => {
                let value = only(headers, &GITLAB)?;
                Ok(Self::Word(SecretBox::from(value.to_vec())))
            }
            Host::AzureDevOps => {
                let value = only(headers, &header::AUTHORIZATION)?;
                let scheme = value.get(..6).unwrap_or_default();
                let encoded = value.get(6..).unwrap_or_default().trim_ascii();
                let word = BASE64_STANDARD.decode(encoded).ok();
                match word.filter(|_| scheme.eq_ignore_ascii_case(b"basic ")) {
                    Some(word) => Ok(Self::Word(SecretBox::from(word))),
                    None => Err(Missing("the header authorization is no basic authentication".to_owned())),
                }
            }
        }
    }

    /// Whether it can be checked before the body is there.
    pub const fn is_in_headers(&self) -> bool {
        matches!(self, Self::Word(_))
    }

    /// Whether it was made with one of these secrets. All are tried, so that the time does not tell which one it was.
    pub fn holds(&self, secrets: &Secrets, body: &[u8]) -> bool {
        secrets.0.iter().fold(false, |found, secret| found | self.is_made_with(secret, body))
    }

    fn is_made_with(&self, secret: &SecretSlice<u8>, body: &[u8]) -> bool {
        let secret = secret.expose_secret();
        match self {
            Self::Signature(given) => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
                hmac::verify(&key, body, given).is_ok()
            }
            Self::Standard { before, given } => {
                // A secret of another form is tried too, and fails: the time does not tell which forms there are.
                let encoded = secret.strip_prefix(STANDARD_SECRET);
                let key = encoded.and_then(|encoded| BASE64_STANDARD.decode(encoded).ok());
                let is_secret = key.as_ref().is_some_and(|key| key.len() >= SHORTEST);
                let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_deref().unwrap_or(secret));
                let mut context = hmac::Context::with_key(&key);
                context.update(before);
                context.update(body);
                let made = context.sign();
                given.iter().fold(false, |found, given| {
                    found | constant_time::verify_slices_are_equal(made.as_ref(), given).is_ok()
                }) & is_secret
            }
            Self::Word(given) => {
                // Digests are of one length, so that the time does not tell how long the secret is.
                let digest = |bytes: &[u8]| digest::digest(&digest::SHA256, bytes);
                let (given, secret) = (digest(given.expose_secret()), digest(secret));
                constant_time::verify_slices_are_equal(given.as_ref(), secret.as_ref()).is_ok()
            }
        }
    }
}

/// A header that must be there once: of two, nobody knows which one the host sent.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a [u8], Missing> {
    let mut all = headers.get_all(name).into_iter();
    match (all.next(), all.next()) {
        (Some(value), None) if !value.is_empty() => Ok(value.as_bytes()),
        (Some(_), Some(_)) => Err(Missing(format!("the header {name} is there more than once"))),
        (None | Some(_), _) => Err(Missing(format!("the header {name} is missing"))),
    }
}

/// `sha256=HEX`, or the digits alone as Gitea writes them. A signature by another algorithm is none.
fn signature(headers: &HeaderMap, name: &HeaderName) -> Result<Proof, Missing> {
    let value = only(headers, name)?;
    let digits = value.strip_prefix(b"sha256=").unwrap_or(value);
    let mut bytes = [0; 32];
    match hex::decode_to_slice(digits, &mut bytes) {
        Ok(()) => Ok(Proof::Signature(bytes)),
        Err(_) => Err(Missing(format!("the header {name} is no HMAC-SHA256 in hexadecimal digits"))),
    }
}

/// `v1,BASE64`, several with a space between them. How old it is does not count: a delivery is a hint to look, however often it comes.
fn standard(headers: &HeaderMap) -> Result<Proof, Missing> {
    let value = only(headers, &STANDARD_SIGNATURE)?;
    let before = [only(headers, &STANDARD_ID)?, b".", only(headers, &STANDARD_TIMESTAMP)?, b"."].concat();
    let signatures = value.split(|byte| *byte == b' ').filter_map(|one| one.strip_prefix(b"v1,"));
    let given: Vec<[u8; 32]> = signatures
        .take(MOST_SIGNATURES)
        .filter_map(|encoded| BASE64_STANDARD.decode(encoded).ok()?.try_into().ok())
        .collect();
    if given.is_empty() {
        return Err(Missing(format!("the header {STANDARD_SIGNATURE} has no v1 signature in base64")));
    }
    Ok(Proof::Standard { before, given })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    /// The example of GitHub's documentation: its secret, its body, its signature.
    #[test]
    fn a_signature_that_github_documents_holds() {
        let secrets = Secrets::read(b"It's a Secret to Everybody").unwrap();
        let given = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let proof = Proof::read(Host::GitHub, &headers(&[("x-hub-signature-256", given)])).unwrap();
        assert!(proof.holds(&secrets, b"Hello, World!"));
        assert!(!proof.holds(&secrets, b"Hello, World"), "truncated");
        assert!(!proof.holds(&Secrets::read(b"It's a Secret to Nobody...").unwrap(), b"Hello, World!"));
        let both = Secrets::read(b"the next secret, not used yet\r\nIt's a Secret to Everybody\n").unwrap();
        assert!(proof.holds(&both, b"Hello, World!"), "while secrets change, both hold");
    }

    #[test]
    fn each_host_proves_itself_in_its_own_header_alone() {
        let digits = "0".repeat(64);
        let signed = format!("sha256={digits}");
        let basic = format!("Basic {}", BASE64_STANDARD.encode("terrane:a long password"));
        let all = [
            ("x-hub-signature-256", signed.as_str(), &[Host::GitHub, Host::Gitea][..]),
            ("x-gitea-signature", &digits, &[Host::Gitea]),
            ("x-forgejo-signature", &digits, &[Host::Gitea]),
            ("x-hub-signature", &signed, &[Host::Bitbucket]),
            ("x-gitlab-token", "a token of some length", &[Host::GitLab]),
            ("authorization", &basic, &[Host::AzureDevOps]),
        ];
        for (name, value, hosts) in all {
            for host in Host::ALL {
                let found = Proof::read(host, &headers(&[(name, value)]));
                assert_eq!(found.is_ok(), hosts.contains(&host), "{name} of {host}: {found:?}");
                let twice = Proof::read(host, &headers(&[(name, value), (name, value)]));
                assert!(twice.is_err(), "{name} of {host} twice");
                assert!(Proof::read(host, &headers(&[(name, "")])).is_err(), "{name} of {host}, empty");
            }
        }
        for wrong in [
            "sha1=".to_owned() + &digits[..40],
            digits[..63].to_owned(),
            "sha256=".to_owned() + &"g".repeat(64),
        ] {
            for (host, name) in [
                (Host::GitHub, "x-hub-signature-256"),
                (Host::Gitea, "x-gitea-signature"),
                (Host::Bitbucket, "x-hub-signature"),
            ] {
                assert!(Proof::read(host, &headers(&[(name, &wrong)])).is_err(), "{host}: {wrong}");
            }
        }
        assert!(Proof::read(Host::AzureDevOps, &headers(&[("authorization", "Bearer abc")])).is_err());
    }

    #[test]
    fn a_word_must_be_the_whole_secret() {
        let secrets = Secrets::read(b"terrane:a long password").unwrap();
        let azure = |text: &str| {
            let value = format!("basic {}", BASE64_STANDARD.encode(text));
            Proof::read(Host::AzureDevOps, &headers(&[("authorization", &value)])).unwrap()
        };
        let gitlab = |text| Proof::read(Host::GitLab, &headers(&[("x-gitlab-token", text)])).unwrap();
        for (text, expected) in [
            ("terrane:a long password", true),
            ("terrane:a long passwore", false),
            ("terrane:a long passwor", false),
            ("terrane:a long password ", false),
            ("terrane", false),
        ] {
            assert_eq!(azure(text).holds(&secrets, b"{}"), expected, "{text}");
            assert_eq!(gitlab(text).holds(&secrets, b""), expected, "{text}");
        }
        assert!(gitlab("x").is_in_headers() && !format!("{:?}", gitlab("x-secret")).contains("x-secret"));
    }

    /// The example of the specification of Standard Webhooks: its secret, its headers, its body, its signature.
    #[test]
    fn a_signature_as_standard_webhooks_document_it_holds() {
        let secrets = Secrets::read(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = br#"{"test": 2432232314}"#;
        let (id, at) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330");
        let signed = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        let read = |id: &str, at: &str, signature: &str| {
            let all = [("webhook-id", id), ("webhook-timestamp", at), ("webhook-signature", signature)];
            Proof::read(Host::GitLab, &headers(&all))
        };
        let proof = read(id, at, signed).unwrap();
        assert!(proof.holds(&secrets, body) && !proof.is_in_headers());
        assert!(!proof.holds(&secrets, b"{}"));
        assert!(!read("msg_other", at, signed).unwrap().holds(&secrets, body));
        assert!(!read(id, "1614265331", signed).unwrap().holds(&secrets, body));
        let other = format!("v1,{}", BASE64_STANDARD.encode([0; 32]));
        assert!(!read(id, at, &other).unwrap().holds(&secrets, body));
        let several = format!("v1a,abc {other} {signed}");
        assert!(
            read(id, at, &several).unwrap().holds(&secrets, body),
            "while secrets change, GitLab sends both"
        );
        let both = Secrets::read(b"a token of good length\nwhsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        assert!(proof.holds(&both, body));
        // A secret that is no key is not used as one, and neither is one that can be guessed.
        for text in ["a token of good length", "whsec_not base64 at all", "whsec_c2hvcnQga2V5IQ=="] {
            let key = BASE64_STANDARD.decode(text.trim_start_matches("whsec_"));
            let key = key.unwrap_or_else(|_| text.as_bytes().to_vec());
            let made = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), b"i.1.{}");
            let proof = read("i", "1", &format!("v1,{}", BASE64_STANDARD.encode(made))).unwrap();
            assert!(!proof.holds(&Secrets::read(text.as_bytes()).unwrap(), b"{}"), "{text}");
        }
        // A signature that is wrong is not made good by a token that is right.
        let token = [("x-gitlab-token", "a token of good length"), ("webhook-signature", other.as_str())];
        assert!(Proof::read(Host::GitLab, &headers(&token)).is_err(), "id and time are missing");
        let with = [token[0], token[1], ("webhook-id", "i"), ("webhook-timestamp", "1")];
        let proof = Proof::read(Host::GitLab, &headers(&with)).unwrap();
        assert!(!proof.holds(&Secrets::read(b"a token of good length").unwrap(), b"{}"));
        assert!(
            Proof::read(Host::GitLab, &headers(&[with[2], with[3], ("webhook-signature", "v2,x")])).is_err()
        );
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        for (text, why) in [
            (&b""[..], Unusable::Empty),
            (b"\n\r\n\n", Unusable::Empty),
            (b"only fifteen by", Unusable::Short),
            (b"a secret of good length\nshort", Unusable::Short),
            (b"a secret of good length\na secret of good length\na secret of good length", Unusable::Many),
        ] {
            assert_eq!(Secrets::read(text).err(), Some(why));
        }
    }
}
