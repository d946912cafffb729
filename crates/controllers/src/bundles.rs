//! The sweep of bundles: the one thing in the datastore that no object of the API owns. The leader of the first shard lists those that were not
//! used for days, looks at every run there is, and deletes what none of them names (`engine::bundles`), a bounded number in each pass.
//!
//! It is safe without any lock. Whoever is about to name a bundle asks for it first, and the datastore writes that down as a use; the name
//! stands in the API long before that use is old (`api::bundle`). A deletion says since when the bundle was not used, as it was listed *before*
//! the runs were: the datastore refuses it if that has changed, however late it comes and whoever sends it, a controller that was overtaken
//! too. A list of runs that broke off, or with one in it that cannot be read, deletes nothing.

use std::time::Duration;

use api::TerraformRun;
use engine::bundles::Unneeded;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use crate::Context;
use crate::error::{Error, doing, storing};
use crate::scope::Namespaces;

/// From one pass to the next. The first one comes this long after a leader began: it has more urgent things to do.
const PAUSE: Duration = Duration::from_hours(1);
/// Runs in one answer of the API.
const PAGE: u32 = 500;

/// Sweeps again and again until told to stop.
pub(crate) async fn sweep(context: &Context, stop: &CancellationToken) {
    // One is enough for all shards. Whoever may not see all namespaces cannot know what the runs of the others name.
    if context.shard.index() != 0 || context.namespaces != Namespaces::All {
        return;
    }
    let sweeping = async {
        loop {
            tokio::time::sleep(PAUSE).await;
            if let Err(error) = sweep_once(&context.client, &context.datastore).await {
                tracing::warn!(%error, "bundles that no run needs could not be removed; it is tried again");
            }
        }
    };
    stop.run_until_cancelled(sweeping).await;
}

/// O(bundles), as names. If any of them is old also O(runs), a page at a time, and a request for each that goes.
async fn sweep_once(client: &Client, datastore: &datastore::Client) -> Result<(), Error> {
    let kept = datastore.bundle_list().await.map_err(storing("list the bundles"))?;
    let mut unneeded = Unneeded::of(&kept);
    drop(kept);
    let runs = Api::<TerraformRun>::all(client.clone());
    let mut page = ListParams::default().limit(PAGE);
    // All pages show the runs as they were at one moment.
    while !unneeded.is_empty() {
        let found = runs.list(&page).await.map_err(doing("list the runs that name bundles"))?;
        found.items.iter().for_each(|run| unneeded.look_at(run));
        match found.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => page = page.continue_token(&more),
            None => break,
        }
    }
    let since = unneeded.since;
    let (mut bundles, mut bytes) = (0_u64, 0_u64);
    for gone in unneeded.gone() {
        let deleted = datastore.bundle_delete(&gone.sha256, since).await;
        if deleted.map_err(storing("delete a bundle that no run needs"))? {
            bundles += 1;
            bytes = bytes.saturating_add(gone.size);
        }
    }
    if bundles > 0 {
        tracing::info!(bundles, bytes, "removed: files of commits and images that no run needs any more");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;
    use std::time::SystemTime;

    use api::text::Sha256;
    use datastore::service::{Keyring, Options, router};
    use embedded::auth::Identity;
    use embedded::serve::{Listen, Server};
    use kube::api::{Patch, PatchParams, PostParams};
    use serde_json::{Value, json};
    use testkit::callers::{ByName, Served, serve};
    use testkit::objects;

    use super::*;

    struct Ground {
        server: Server,
        datastore: Served,
        directory: tempfile::TempDir,
    }

    impl Ground {
        async fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let options = embedded::serve::Options {
                listen: Listen::new("127.0.0.1:0".parse().unwrap(), None, None).unwrap(),
                definitions: api::custom_resources(),
                ..embedded::serve::Options::new(directory.path().join("data"))
            };
            let server = Server::start(options).await.unwrap();
            let namespaces = Api::all(server.client(Identity::administrator()));
            for name in ["one", "two"] {
                namespaces.create(&PostParams::default(), &objects::namespace(name)).await.unwrap();
            }
            let service = router(Options {
                objects: Options::local_objects(&directory.path().join("objects")).unwrap(),
                keys: Keyring::load_or_create(&directory.path().join("keys")).unwrap(),
                reviewer: std::sync::Arc::new(ByName),
            });
            Self { server, datastore: serve(service).await.unwrap(), directory }
        }

        fn client(&self) -> Client {
            self.server.client(Identity::administrator())
        }

        fn object(&self, sha256: &Sha256) -> std::path::PathBuf {
            self.directory.path().join("objects/bundles").join(Path::new(sha256.as_str()))
        }

        /// Stores a bundle that was last used so long ago.
        async fn store(&self, name: &str, hours: u64) -> Sha256 {
            let (file, sha256) = (self.directory.path().join("bundle"), Sha256::of(name.as_bytes()));
            std::fs::write(&file, name).unwrap();
            self.datastore.client.bundle_put(&sha256, &file).await.unwrap();
            let object = std::fs::File::open(self.object(&sha256)).unwrap();
            object.set_modified(SystemTime::now() - Duration::from_hours(hours)).unwrap();
            sha256
        }

        async fn make_run(&self, namespace: &str, name: &str, bundle: Option<&Sha256>, status: &Value) {
            let runs = Api::<TerraformRun>::namespaced(self.client(), namespace);
            let run = json!({
                "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRun", "metadata": { "name": name },
                "spec": {
                    "layer": { "name": "db", "uid": "layer-1", "revision": "a".repeat(40) }, "action": "plan",
                    "state": "b".repeat(64), "trigger": { "kind": "commit", "reason": "new commit" }, "bundle": bundle,
                },
            });
            runs.create(&PostParams::default(), &serde_json::from_value(run).unwrap()).await.unwrap();
            let status = json!({ "status": status });
            runs.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
        }
    }

    fn worked_on(state: &str, bundle: &Sha256) -> Value {
        let attempt = json!({
            "number": 0, "podName": "pod", "description": "c".repeat(64), "fence": 0, "bundle": bundle,
            "startedAt": "2023-01-01T00:00:00Z",
        });
        json!({ "state": state, "attempts": [attempt] })
    }

    #[tokio::test]
    async fn what_no_run_names_goes_once_it_is_old_and_nothing_else_ever_does() {
        let ground = Ground::new().await;
        let young = ground.store("young", 40).await;
        let told = ground.store("told", 900).await;
        let worked = ground.store("worked", 900).await;
        let left = ground.store("left", 900).await;
        let unneeded = ground.store("unneeded", 60).await;
        ground.make_run("one", "waits", Some(&told), &json!({ "state": "Initial" })).await;
        ground.make_run("one", "works", None, &worked_on("Running", &worked)).await;
        // The last apply of a layer in another namespace: a destroy takes its files from it.
        ground.make_run("two", "applied", None, &worked_on("Succeeded", &left)).await;
        sweep_once(&ground.client(), &ground.datastore.client).await.unwrap();
        for kept in [&young, &told, &worked, &left] {
            assert!(ground.datastore.client.bundle_exists(kept).await.unwrap());
        }
        assert!(!ground.datastore.client.bundle_exists(&unneeded).await.unwrap());

        // Retention lets the run go, and then its bundle goes.
        let runs = Api::<TerraformRun>::namespaced(ground.client(), "two");
        runs.delete("applied", &Default::default()).await.unwrap();
        sweep_once(&ground.client(), &ground.datastore.client).await.unwrap();
        assert!(!ground.datastore.client.bundle_exists(&left).await.unwrap());
        assert!(ground.datastore.client.bundle_exists(&told).await.unwrap());
        ground.server.stop().await;
    }

    #[tokio::test]
    async fn runs_that_cannot_be_read_keep_everything() {
        let ground = Ground::new().await;
        let old = ground.store("old", 900).await;
        let Ground { server, datastore, .. } = &ground;
        let nobody = server.client(Identity::new("nobody", [""; 0]));
        assert!(sweep_once(&nobody, &datastore.client).await.is_err());
        assert!(datastore.client.bundle_exists(&old).await.unwrap());
        ground.server.stop().await;
    }
}
