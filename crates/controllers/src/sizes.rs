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
    pub(crate) fn forget(&self, layer: &impl ResourceExt) {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use datastore::client::TokenSource;
    use datastore::service::{Keyring, Options, router};
    use datastore::{Artefact, Attempt};
    use serde_json::{Value, json};
    use testkit::callers::ByName;

    use super::*;

    fn object<K: serde::de::DeserializeOwned>(kind: &str, uid: &str, spec: Value, state: &str) -> K {
        let (version, metadata) = ("terrane.dev/v1alpha1", json!({ "name": uid, "uid": uid }));
        let status = json!({ "state": state });
        let object = json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec, "status": status });
        serde_json::from_value(object).unwrap()
    }

    fn run(uid: &str, state: &str) -> TerraformRun {
        let spec = json!({
            "layer": { "name": "db", "uid": "layer-1", "revision": "a".repeat(40) }, "action": "plan",
            "state": "b".repeat(64), "trigger": { "kind": "commit", "reason": "new commit" },
        });
        object("TerraformRun", uid, spec, state)
    }

    #[tokio::test]
    async fn finished_runs_are_measured_once_and_those_at_work_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let service = router(Options {
            objects: object_store::memory::InMemory::new().into(),
            keys: Keyring::load_or_create(place.path()).unwrap(),
            reviewer: Arc::new(ByName),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let mut serving = tokio::task::JoinSet::new();
        serving.spawn(async move { axum::serve(listener, service).await });
        let datastore =
            datastore::Client::new(&base, TokenSource::Fixed("controller".to_owned().into())).unwrap();
        for uid in ["run-1", "run-2"] {
            let description = json!({
                "namespace": "default", "layer": "db", "layerUid": "layer-1", "run": uid, "runUid": uid, "attempt": 0, "fence": 0,
                "action": "plan", "revision": "a".repeat(40), "bundle": "c".repeat(64), "path": "db", "workspace": "default",
                "state": "b".repeat(64),
            });
            let attempt = Attempt::new(uid, 0).unwrap();
            let spec = description.to_string().into();
            datastore.artefact_put(&attempt, Artefact::Spec, spec).await.unwrap();
            datastore.artefact_put(&attempt, Artefact::Plan, vec![0; 1000].into()).await.unwrap();
        }
        let spec = json!({ "repository": { "name": "code" }, "branch": "main", "path": "db" });
        let layer: TerraformLayer = object("TerraformLayer", "layer-1", spec, "Idle");
        let runs = [run("run-1", "Succeeded"), run("run-2", "Running")];
        let sizes = Sizes::default();
        let first = sizes.observe(&layer, &runs, &datastore).await;
        assert_eq!(first.keys().collect::<Vec<_>>(), ["run-1"]);
        assert!(first.values().all(|size| *size > 1000), "{first:?}");

        datastore.run_delete(&RunUid::new("run-1").unwrap()).await.unwrap();
        assert_eq!(sizes.observe(&layer, &runs, &datastore).await, first, "nobody asked again");
        sizes.forget(&layer);
        let anew = sizes.observe(&layer, &runs, &datastore).await;
        assert_eq!(anew.into_iter().collect::<Vec<_>>(), [("run-1".to_owned(), 0)]);

        serving.shutdown().await;
        sizes.forget(&layer);
        let impatient = datastore.with_patience(std::time::Duration::ZERO);
        assert!(
            sizes.observe(&layer, &runs, &impatient).await.is_empty(),
            "what cannot be measured is left out"
        );
    }
}
