//! Where the HTTP service is announced, and which rights it asks for. The command line finds the service by these names, the
//! service checks by them, and roles are written with them.

/// The ConfigMap in [`crate::SYSTEM_NAMESPACE`] that says where the HTTP service is. Everybody who is logged in may read it.
pub const ANNOUNCEMENT: &str = "terrane-service";
/// The key of the address, such as `http://127.0.0.1:8080`.
pub const URL: &str = "url";
/// The key of the certificate authority in PEM; absent where the address is plain HTTP on loopback.
pub const AUTHORITY: &str = "ca.crt";

/// The key that is there where the service has sessions and tokens of its own: on one machine.
pub const SESSIONS: &str = "sessions";

/// The Secret of a namespace with what webhooks of its repositories are signed with: a key for each repository, named like it. It is the only
/// one that the HTTP service may read, so its name is fixed.
pub const WEBHOOK_SECRETS: &str = "terrane-webhooks";

/// Subresources that exist only as rights: `get terraformruns/log`, and so on.
pub mod subresource {
    /// Of a run: the log of its attempts.
    pub const LOG: &str = "log";
    /// Of a run: the plan it made, for people and as redacted JSON.
    pub const PLAN: &str = "plan";
    /// Of a layer: its outputs, sensitive ones masked.
    pub const OUTPUTS: &str = "outputs";
    /// Of a layer: its state with every secret in it. `get` reads it and sensitive outputs, `update` changes it and its lock.
    pub const STATE: &str = "state";
}
