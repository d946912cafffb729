//! What finished runs take in the datastore, asked for once: nothing is added to a run that has ended. Which run goes for its size is
//! decided elsewhere.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::{TerraformLayer, TerraformRun};
use datastore::RunUid;
use engine::layer::is_terminal;
use kube::ResourceExt;

/// Sizes by the uid of the run, those by the uid of its layer. Holds no more than the runs that were last seen of each layer.
#[derive(Debug, Default)]
pub struct Sizes(Mutex<HashMap<String, BTreeMap<String, u64>>>);

impl Sizes {
    /// The sizes of the finished runs among these, which are all of the layer. One that cannot be measured now is left out, and is
    /// measured the next time: history that is kept a little longer is no reason to stop the layer. O(runs of the layer).
    pub(crate) async fn observe(
        &self,
        layer: &TerraformLayer,
        runs: &[TerraformRun],
        datastore: &datastore::Client,
    ) -> BTreeMap<String, u64> {
        let Some(layer_uid) = layer.uid() else { return BTreeMap::new() };
        let known = self.by_layer().get(&layer_uid).cloned().unwrap_or_default();
        let mut sizes = BTreeMap::new();
        for uid in runs.iter().filter(|run| is_terminal(run)).filter_map(ResourceExt::uid) {
            let size = match known.get(&uid) {
                Some(size) => Some(*size),
                None => measure(&uid, datastore).await,
            };
            sizes.extend(size.map(|size| (uid, size)));
        }
        self.by_layer().insert(layer_uid, sizes.clone());
        sizes
    }

    /// The layer is gone.
    pub(crate) fn forget(&self, layer: &TerraformLayer) {
        if let Some(uid) = layer.uid() {
            self.by_layer().remove(&uid);
        }
    }

    fn by_layer(&self) -> MutexGuard<'_, HashMap<String, BTreeMap<String, u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn measure(run: &str, datastore: &datastore::Client) -> Option<u64> {
    let uid = RunUid::new(run).ok()?;
    match datastore.run_size(&uid).await {
        Ok(size) => Some(size),
        Err(error) => {
            tracing::warn!(run, %error, "the run is not forgotten for its size until it can be measured");
            None
        }
    }
}
