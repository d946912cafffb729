//! The datastore: bundles, plans, logs, results and states, encrypted at rest, behind a small HTTP service. The client
//! and the service are features of one crate, so that they cannot disagree about names; a runner links the client only.

#[cfg(feature = "client")]
pub mod client;
pub mod key;
#[cfg(feature = "service")]
pub mod service;

#[cfg(feature = "client")]
pub use client::Client;
pub use key::{Artefact, Attempt, RunUid, StateId, Subject};

/// Names of headers that both ends use.
pub mod header {
    /// The sha256 of the body, in hex: demanded of every upload, sent with every download.
    pub const SHA256: &str = "terrane-sha256";
    /// The fence of the run that writes a state.
    pub const FENCE: &str = "terrane-fence";
    /// The person for whom Terrane itself changes a state; believed only from Terrane.
    pub const FOR_USER: &str = "terrane-for-user";
    /// Up to which byte a log is stored.
    pub const LOG_END: &str = "terrane-log-end";
    /// Which version of a state was read or written.
    pub const STATE_VERSION: &str = "terrane-state-version";
}

/// Why a request was refused; the body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Refusal {
    pub message: String,
}
