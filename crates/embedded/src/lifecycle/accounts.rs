//! What every namespace has without being asked: the `default` ServiceAccount, and the CA's certificate for whoever wants to
//! speak to this API from within.

use std::future::Future;
use std::sync::Arc;

use serde_json::{Value, json};

use super::Error;
use super::api::Api;
use super::namespaces;
use super::queue::{Outcome, Queue};
use super::reactor::Reactor;
use crate::store::{Change, Collection, Event, Key, Snapshot, Store};

const ACCOUNT: &str = "default";
const AUTHORITY: &str = "kube-root-ca.crt";

pub(super) struct Accounts {
    store: Store,
    api: Api,
    /// The certificate of the CA that signed the API's own, PEM.
    authority: Arc<str>,
}

pub(super) fn followed() -> Vec<Collection> {
    vec![namespaces::collection(), Collection::new("", "serviceaccounts"), Collection::new("", "configmaps")]
}

impl Accounts {
    pub(super) fn new(store: Store, api: Api, authority: Arc<str>) -> Self {
        Accounts { store, api, authority }
    }
}

impl Reactor for Accounts {
    const NAME: &'static str = "namespace defaults";

    fn start_over(&mut self, snapshot: &Snapshot, queue: &mut Queue<Key>) {
        snapshot
            .list(&namespaces::collection(), None, None)
            .for_each(|namespace| queue.add(namespace.key.clone()));
    }

    fn hear(&mut self, event: &Event, queue: &mut Queue<Key>) {
        let key = &event.object.key;
        if key.collection == namespaces::collection() {
            if event.change != Change::Deleted {
                queue.add(key.clone());
            }
        } else if matches!(
            (&*key.collection.plural, &*key.name),
            ("serviceaccounts", ACCOUNT) | ("configmaps", AUTHORITY)
        ) {
            queue.add(Key::new(namespaces::collection(), "", &key.namespace));
        }
    }

    fn look(&self, key: Key) -> impl Future<Output = Result<Outcome, Error>> + Send + 'static {
        let (snapshot, api, authority) =
            (self.store.snapshot(), self.api.clone(), Arc::clone(&self.authority));
        async move {
            let is_active = snapshot
                .get(&key)
                .is_some_and(|namespace| namespace.value().pointer("/metadata/deletionTimestamp").is_none());
            if is_active {
                ensure(&snapshot, &api, &key.name, &authority).await?;
            }
            Ok(Outcome::Done)
        }
    }
}

async fn ensure(snapshot: &Snapshot, api: &Api, namespace: &str, authority: &str) -> Result<(), Error> {
    let base = format!("/api/v1/namespaces/{namespace}");
    let account = Key::new(Collection::new("", "serviceaccounts"), namespace, ACCOUNT);
    if snapshot.get(&account).is_none() {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": namespace}});
        api.create(&format!("{base}/serviceaccounts"), &account).await?;
    }
    let wanted = json!({"ca.crt": authority});
    match snapshot.get(&Key::new(Collection::new("", "configmaps"), namespace, AUTHORITY)) {
        None => {
            let description = "Contains a CA bundle that can be used to verify the API server. No other usage is guaranteed across distributions of Kubernetes clusters.";
            let bundle = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "data": wanted,
                "metadata": {"name": AUTHORITY, "namespace": namespace, "annotations": {"kubernetes.io/description": description}},
            });
            api.create(&format!("{base}/configmaps"), &bundle).await
        }
        Some(stored) => {
            let mut bundle = stored.value();
            if bundle.get("data") == Some(&wanted) {
                return Ok(());
            }
            if let Some(object) = bundle.as_object_mut() {
                object.insert("data".to_owned(), Value::clone(&wanted));
            }
            api.replace(&format!("{base}/configmaps/{AUTHORITY}"), &bundle).await.map(|_| ())
        }
    }
}
