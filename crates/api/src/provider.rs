//! Providers: their addresses, and what a runner asks the datastore about them and is told.

use serde::{Deserialize, Serialize};

use crate::text::Sha256;

/// Where a provider is published: `HOST/NAMESPACE/TYPE`, as a dependency lock file has it. Its parts are safe as names of
/// directories and as parts of a URL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    host: String,
    namespace: String,
    kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address of a provider, such as registry.terraform.io/hashicorp/local")]
pub struct Malformed(String);

/// Longer than any name that a registry gives.
const PART_LIMIT: usize = 64;
/// What DNS allows, and a port.
const HOST_LIMIT: usize = 260;

impl Address {
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let malformed = || Malformed(text.chars().take(2 * HOST_LIMIT).collect());
        let mut parts = text.split('/');
        let (Some(host), Some(namespace), Some(kind), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(malformed());
        };
        if is_host(host) && is_part(namespace) && is_part(kind) {
            Ok(Self { host: host.to_owned(), namespace: namespace.to_owned(), kind: kind.to_owned() })
        } else {
            Err(malformed())
        }
    }

    /// With its port, if it has one.
    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// What resources of it begin with.
    pub fn kind(&self) -> &str {
        &self.kind
    }
}

/// A name of the network, with a port or without.
pub fn is_host(text: &str) -> bool {
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, port.parse::<u16>().is_ok_and(|port| port > 0)),
        None => (text, true),
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    port && text.len() <= HOST_LIMIT && name.split('.').all(is_label)
}

fn is_part(text: &str) -> bool {
    text.len() <= PART_LIMIT
        && text.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte))
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.host, self.namespace, self.kind)
    }
}

impl TryFrom<String> for Address {
    type Error = Malformed;

    fn try_from(text: String) -> Result<Self, Malformed> {
        Self::parse(&text)
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

/// What a runner asks the datastore for: one provider in one version, for the machine that the runner works on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    pub address: Address,
    pub version: String,
    /// Such as `linux_amd64`.
    pub platform: String,
    /// What the lock file allows: `h1:` and `zh:` hashes. With none of them, what the registry vouches for is enough.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hashes: Vec<String>,
}

/// What the datastore says to that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    Ready(Package),
    /// It is not shared; the tool may fetch it for this run alone, and judges it itself.
    Declined {
        message: String,
    },
    /// What the registry delivers is not what it vouches for, or not what the lock file allows: nobody may use it.
    Untrusted {
        message: String,
    },
}

/// A provider that can be had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Package {
    /// Of the archive.
    pub sha256: Sha256,
    /// Of the archive's files, as lock files have it.
    pub h1: String,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_address_has_three_parts_that_lead_nowhere_else() {
        for good in
            ["registry.terraform.io/hashicorp/local", "localhost:8443/a/b", "10.0.0.1/x-y/z_1", "h/0/1"]
        {
            assert_eq!(Address::parse(good).unwrap().to_string(), good);
        }
        let long = format!("h/{}/c", "x".repeat(65));
        for bad in [
            "", "a/b", "a/b/c/d", "../b/c", "a/../c", "a/b/..", ".a/b/c", "a./b/c", "a:0/b/c", "a:x/b/c",
            "a:/b/c", "A/b/c", "a/B/c", "a/b/c?", "a@b/c/d", "a/-b/c", "a/_b/c", "-a/b/c", "a//c", "a/b/c\n",
            &long,
        ] {
            assert!(Address::parse(bad).is_err(), "{bad:?}");
        }
        assert!(serde_json::from_str::<Address>("\"a/b/../c\"").is_err());
    }
}
