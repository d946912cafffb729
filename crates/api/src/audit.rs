//! What is written down before infrastructure may be changed: who let which plan of which commit be applied, and under which rule.
//! A record is made before the start it is about, and never changes.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::run::{Action, TriggerKind};
use crate::text::{CommitId, Sha256};

/// One attempt that may change infrastructure, about to start. It holds no time of its own: told twice, it is the same entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub namespace: String,
    pub layer: String,
    pub layer_uid: String,
    pub run: String,
    pub run_uid: String,
    pub attempt: u32,
    pub action: Action,
    pub state: Sha256,
    pub fence: u64,
    pub revision: CommitId,
    /// The bytes that may be applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_sha256: Option<Sha256>,
    /// The rule that allowed it: `auto` where the layer applies its plans by itself, `approval` where a person did.
    pub trigger: TriggerKind,
    /// Who allowed it, where it was a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    pub reason: String,
}

/// An entry as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// When the datastore wrote it down.
    pub at: Timestamp,
    #[serde(flatten)]
    pub entry: Entry,
}
