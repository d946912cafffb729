//! What an apply was given, kept for whoever undoes it: stored by the apply's runner before it begins, read by that of a destroy. Values of
//! Secrets are in it, so it goes nowhere but into the datastore, which seals it.

use std::path::{Path, PathBuf};

use api::attempt::{Description, Reason};
use api::run::Mode;
use api::snapshot::Snapshot;
use datastore::{Artefact, Attempt, Client};

use crate::Error;
use crate::attempt::{Places, Work};
use crate::ending::{Ending, Step, disk};
use crate::inputs::write_private;

/// More than Secrets and ConfigMaps of a layer hold.
const LIMIT: u64 = 64 * 1024 * 1024;

/// What the apply was given that this attempt undoes. Nothing where it undoes none, and where none was kept: of an apply that never began,
/// or by a version that kept nothing.
pub(crate) async fn fetch(client: &Client, description: &Description) -> Result<Option<Snapshot>, Error> {
    let Some(kept) = &description.kept else { return Ok(None) };
    let attempt = Attempt::new(kept.run_uid.as_str(), kept.attempt)
        .map_err(|error| Error::Malformed(error.to_string()))?;
    let found = client.artefact_get(&attempt, Artefact::Inputs, LIMIT).await.map_err(Error::Description)?;
    let Some(content) = found else { return Ok(None) };
    // The parser's words could hold a piece of a value.
    let malformed = |_| Error::Malformed(format!("what attempt {attempt} was given cannot be understood"));
    serde_json::from_slice(&content).map(Some).map_err(malformed)
}

/// Where files go that a pod would have mounted.
pub(crate) fn files(work_dir: &Path, layer_uid: &str) -> PathBuf {
    Places::new(work_dir, layer_uid).private.join("login")
}

impl Work<'_> {
    /// Keeps what this apply works with. Before it begins: what it will have made can be undone by whoever comes after a crash.
    pub(crate) async fn keep_inputs(&self) -> Step<()> {
        if self.description.mode == Mode::Destroy {
            return Ok(());
        }
        let snapshot = Snapshot::of(self.description, &self.own.contents);
        let content = serde_json::to_vec(&snapshot)
            .map_err(|_| Ending::bad_input("what the layer gives to its code cannot be written down"))?;
        let put = self.client.artefact_put(self.attempt, Artefact::Inputs, content.into()).await;
        put.map_err(|error| {
            let reason = if error.is_full() { Reason::DatastoreFull } else { Reason::ToolFailed };
            let message =
                format!("what a destroy will need could not be kept, so nothing was applied: {error}");
            Ending::failed(reason, message)
        })
    }

    /// Puts files where a pod would have mounted them.
    pub(crate) fn lay_login(&self) -> Step<()> {
        for (path, content) in &self.own.login_files {
            if let Some(directory) = path.parent() {
                std::fs::create_dir_all(directory).map_err(disk)?;
            }
            write_private(path, content).map_err(disk)?;
        }
        Ok(())
    }
}
