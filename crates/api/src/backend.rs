//! Where a state really is. The backend that the tool resolved is reduced to what tells one state from another; credentials have
//! no place here, because all of this is stored and shown.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::Sha256;

/// What stands for a backend where the datastore keeps the state.
const HERE: &str = "terrane";
/// How much of the words is shown; the digest is of all.
const WORDS_LIMIT: usize = 512;

/// A backend that the code names itself, in its canonical form: the same state has the same form, whatever way it was configured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Backend {
    /// Such as `s3`.
    pub kind: String,
    /// What tells its states apart, workspace included.
    pub settings: BTreeMap<String, String>,
}

impl Backend {
    pub fn identity(&self) -> StateIdentity {
        StateIdentity { sha256: self.sha256(), backend: self.to_string() }
    }

    /// Each part stands behind its length, so that no part can be taken for another.
    pub fn sha256(&self) -> Sha256 {
        let parts = self.settings.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
        let mut bytes = Vec::new();
        for part in ["backend", self.kind.as_str()].into_iter().chain(parts) {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(part.as_bytes());
        }
        Sha256::of(&bytes)
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = self.kind.clone();
        for (name, value) in &self.settings {
            words.push_str(&format!(" {name}={value}"));
        }
        f.write_str(&words.chars().filter(|c| !c.is_control()).take(WORDS_LIMIT).collect::<String>())
    }
}

/// One state, whichever layers resolve to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StateIdentity {
    /// Whoever changes the state holds the lock of this name.
    pub sha256: Sha256,
    /// The backend in words, without credentials; `terrane` for a state that Terrane keeps itself.
    pub backend: String,
}

impl StateIdentity {
    /// A state that the datastore keeps, by its key there.
    pub fn kept_here(key: Sha256) -> Self {
        Self { sha256: key, backend: HERE.to_owned() }
    }

    /// Whether the datastore keeps it. No backend of the tools is called so.
    pub fn is_kept_here(&self) -> bool {
        self.backend == HERE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(settings: &[(&str, &str)]) -> Backend {
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Backend { kind: "s3".to_owned(), settings: settings.collect() }
    }

    #[test]
    fn one_state_has_one_identity_and_another_state_another() {
        let one = backend(&[("bucket", "b"), ("key", "k")]);
        assert_eq!(one.sha256(), backend(&[("key", "k"), ("bucket", "b")]).sha256());
        assert_eq!(one.to_string(), "s3 bucket=b key=k");
        for other in
            [&[("bucket", "b")][..], &[("bucket", "b"), ("key", "kk")], &[("bucket", "bkey"), ("key", "k")]]
        {
            assert_ne!(one.sha256(), backend(other).sha256(), "{other:?}");
        }
        let elsewhere = Backend { kind: "gcs".to_owned(), ..one.clone() };
        assert_ne!(one.sha256(), elsewhere.sha256());
        assert!(!one.identity().is_kept_here());
        assert!(StateIdentity::kept_here(one.sha256()).is_kept_here());
    }
}
