//! The secrets by which deliveries prove themselves: in each namespace the one Secret that this service may read, with a key for each
//! repository. A Secret of any other name, or of another namespace than the repository's, is never asked for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::service::WEBHOOK_SECRETS;
use forge::proof::Secrets;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use crate::Refusal;
use crate::cache::Key;

/// How long a secret that was taken away is still believed, and a new one not yet. A flood of deliveries costs one read in this time.
const BELIEVED: Duration = Duration::from_secs(5);
/// The usable secrets of a namespace, by repository.
type Usable = Arc<HashMap<String, Arc<Secrets>>>;

#[derive(Debug, Default)]
pub(crate) struct Keys(Mutex<HashMap<String, (Usable, Instant)>>);

impl Keys {
    /// The secrets of a repository; nothing where it has none that can be used.
    pub(crate) async fn of(
        &self,
        client: &Client,
        (namespace, name): &Key,
    ) -> Result<Option<Arc<Secrets>>, Refusal> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&**namespace).cloned();
        if let Some((usable, at)) = known
            && at.elapsed() < BELIEVED
        {
            return Ok(usable.get(&**name).cloned());
        }
        let found = Api::<Secret>::namespaced(client.clone(), namespace).get_opt(WEBHOOK_SECRETS).await;
        let found = found.map_err(|error| {
            tracing::warn!(%namespace, %error, "could not read Secret {WEBHOOK_SECRETS}; webhooks of its repositories are refused");
            Refusal::Unavailable(
                "the Kubernetes API could not be asked for the secret of this webhook; send it again, or wait for the next poll".to_owned(),
            )
        })?;
        let usable = Arc::new(usable(namespace, found.unwrap_or_default()));
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What is believed no longer is not kept in memory either. O(namespaces that deliveries came for in the last seconds).
        all.retain(|_, (_, at)| at.elapsed() < BELIEVED);
        all.insert(namespace.to_string(), (Arc::clone(&usable), Instant::now()));
        Ok(usable.get(&**name).cloned())
    }
}

/// O(keys of the Secret).
fn usable(namespace: &str, secret: Secret) -> HashMap<String, Arc<Secrets>> {
    let mut usable = HashMap::new();
    for (name, ByteString(text)) in secret.data.unwrap_or_default() {
        match Secrets::read(&text) {
            Ok(secrets) => drop(usable.insert(name, Arc::new(secrets))),
            Err(why) => {
                tracing::warn!(
                    namespace,
                    repository = name,
                    "key of Secret {WEBHOOK_SECRETS} cannot be used: {why}"
                );
            }
        }
    }
    usable
}
