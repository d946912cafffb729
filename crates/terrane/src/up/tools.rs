//! Where the runners of this machine find tools and providers: the store that `terrane up` keeps for them, and the administrator's
//! mirror. Both are outside of every pod's reach to write.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::Router;
use datastore::service::Reviewer;
use node::isolation::Isolation;
use tofu::installed::{Catalogue, Found};

use crate::arguments::Up;
use crate::commands::tools::{default_keys, store_directory};
use crate::controllers_role::{provider_mirror, tools_directory};
use crate::{provider_service, tool_service};

/// How soon a tool that was upgraded is written down again.
const LOOK_AGAIN: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct Places {
    store: PathBuf,
    providers: Option<String>,
}

impl Places {
    pub(super) fn find(options: &Up, data: &Path, isolation: &Isolation) -> anyhow::Result<Self> {
        let providers = options.provider_mirror.as_deref().map(|mirror| checked(mirror, isolation));
        Ok(Self { store: store_directory(data, isolation), providers: providers.transpose()? })
    }

    /// Where runners read what is known of tools.
    pub(super) fn store(&self) -> &Path {
        &self.store
    }

    /// What pods that are confined by path must be shown.
    pub(super) fn readable(&self) -> Vec<PathBuf> {
        let mirror = self.providers.iter().filter(|mirror| !is_url(mirror)).map(PathBuf::from);
        std::iter::once(self.store.clone()).chain(mirror).collect()
    }

    /// What runners are told.
    pub(super) fn environment(&self) -> Vec<(String, String)> {
        let mirror = self.providers.iter().map(|mirror| provider_mirror(mirror));
        std::iter::once(tools_directory(&self.store)).chain(mirror).collect()
    }

    pub(super) fn service(
        &self,
        options: &Up,
        data: &Path,
        reviewer: Arc<dyn Reviewer>,
    ) -> anyhow::Result<Router> {
        let (store, source) = tool_service::open(&self.store, &options.downloads, &default_keys(data))?;
        let registries = options.registries.options(&options.downloads);
        let providers = provider_service::router(&self.store, registries, reviewer.clone())?;
        Ok(tool_service::router(store, source, reviewer).merge(providers))
    }
}

/// Writes down for runners which versions the installed tools have, and looks again now and then: who upgrades a tool does not tell us.
/// What is not written down yet, or not any more, runners ask the tools themselves.
pub(super) async fn keep_catalogue(store: PathBuf, directories: Vec<PathBuf>) {
    let mut known = Catalogue::read(&store);
    loop {
        match known.renew(&directories).await {
            Found::Same => {}
            Found::Other => {
                if let Err(error) = known.write(&store) {
                    tracing::warn!(%error, store = %store.display(), "the versions of installed tools could not be written down; each run asks for them");
                }
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn is_url(mirror: &str) -> bool {
    mirror.starts_with("https://")
}

/// Said at start rather than by every run.
fn checked(mirror: &str, isolation: &Isolation) -> anyhow::Result<String> {
    if is_url(mirror) {
        return Ok(mirror.to_owned());
    }
    let directory = std::path::absolute(mirror).with_context(|| format!("find {mirror}"))?;
    if !directory.is_dir() {
        bail!(
            "--provider-mirror {mirror} is neither a directory of this machine nor an https URL; the tools accept no other"
        );
    }
    let reachable = node::config::others_can_reach(&directory)
        .with_context(|| format!("--provider-mirror {mirror}: look who may enter it"))?;
    match isolation {
        Isolation::Users(_) if !reachable => bail!(
            "--provider-mirror {mirror}: pods have users of their own here, and others may not enter that directory; \
             let them, or choose another"
        ),
        Isolation::Users(_) | Isolation::Landlock | Isolation::None { .. } => {
            Ok(directory.display().to_string())
        }
    }
}
