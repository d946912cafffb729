//! The controllers as a role: what they need, and how they stand for election. `terrane up` and `terrane controller` differ only
//! in where these things come from.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use controllers::{Desk, Election, Leadership, Metrics, Namespaces};
use jiff::Timestamp;
use sources::{Git, GitOptions};
use tokio_util::sync::CancellationToken;

use crate::signs::{Duty, Signs};

pub(crate) struct ControllersRole {
    pub(crate) client: kube::Client,
    pub(crate) namespaces: Namespaces,
    pub(crate) datastore: datastore::Client,
    pub(crate) git: GitOptions,
    pub(crate) settings: Arc<engine::Settings>,
    pub(crate) metrics: Metrics,
}

impl ControllersRole {
    pub(crate) fn signs(&self, leadership: Leadership, duty: Duty) -> Signs {
        Signs {
            client: self.client.clone(),
            datastore: self.datastore.clone(),
            metrics: self.metrics.clone(),
            leadership,
            duty,
        }
    }

    /// Acts whenever it leads, until told to stop.
    pub(crate) async fn lead(self, election: Election, stop: CancellationToken) -> anyhow::Result<()> {
        let leadership = election.leadership();
        self.metrics.follow_leadership(leadership.clone());
        controllers::lead(election, || self.context(&leadership), stop).await
    }

    fn context(&self, leadership: &Leadership) -> anyhow::Result<controllers::Context> {
        let git = Git::new(self.git.clone())?;
        let client = leadership.guard(self.client.clone());
        let desk = Arc::new(Desk::new(client.clone(), git, self.datastore.clone(), Timestamp::now));
        let settings = Arc::clone(&self.settings);
        let context =
            controllers::Context::new(client, self.datastore.clone(), desk, settings, Timestamp::now);
        Ok(context.within(self.namespaces.clone()).with_metrics(self.metrics.clone()))
    }
}

/// How a runner is told where to get providers from.
pub(crate) fn provider_mirror(mirror: &str) -> (String, String) {
    ("TERRANE_PROVIDER_MIRROR".to_owned(), mirror.to_owned())
}

/// How a runner is told where the store of tools is.
pub(crate) fn tools_directory(directory: &Path) -> (String, String) {
    ("TERRANE_TOOLS_DIR".to_owned(), directory.display().to_string())
}

/// How a runner is told whom to believe about the datastore's certificate, which is no secret.
pub(crate) fn datastore_authority(pem: String) -> (String, String) {
    ("TERRANE_DATASTORE_AUTHORITY".to_owned(), pem)
}

/// The authority of `--datastore-ca`, in PEM.
pub(crate) fn read_authority(file: Option<&Path>) -> anyhow::Result<Option<String>> {
    let Some(file) = file else { return Ok(None) };
    let read = std::fs::read_to_string(file);
    read.map(Some).with_context(|| format!("read --datastore-ca {}", file.display()))
}
