//! The client's side of the audit.

use api::audit::{Entry, Record};
use api::text::Sha256;

use super::{Client, Error, Limited, Upload};
use crate::key::Subject;

/// More than the records of any layer take.
const LIMIT: u64 = 64 * 1024 * 1024;

impl Client {
    /// Writes an entry down for good. Told twice, it stands there once.
    pub async fn audit_append(&self, entry: &Entry) -> Result<(), Error> {
        let doing = format!("write down that {}/{} is about to be changed", entry.namespace, entry.layer);
        let content = serde_json::to_vec(entry)
            .map_err(|error| Error::Io { doing: doing.clone(), source: std::io::Error::other(error) })?;
        let sha256 = Sha256::of(&content);
        let path =
            format!("/v1/audit/{}/{}/{}/{}", entry.namespace, entry.layer, entry.run_uid, entry.attempt);
        self.put(path, &doing, &sha256, Upload::Bytes(content.into())).await
    }

    /// Everything that was about to change a layer's infrastructure, oldest first.
    pub async fn audit_list(&self, subject: &Subject) -> Result<Vec<Record>, Error> {
        let doing = format!("read the history of {}/{}", subject.namespace(), subject.layer());
        let path = format!("/v1/audit/{}/{}", subject.namespace(), subject.layer());
        let mut content = Vec::new();
        let mut sink = Limited { inner: &mut content, left: LIMIT };
        self.download(path, &doing, None, &mut sink).await?;
        serde_json::from_slice(&content)
            .map_err(|error| Error::Io { doing, source: std::io::Error::other(error) })
    }
}
