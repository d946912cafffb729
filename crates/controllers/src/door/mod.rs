//! The front doors' loops, a folder a kind. They write repositories and layers, and copy their status back; none makes a pod.

pub(crate) mod repo;
pub(crate) mod terraform;

use k8s_openapi::NamespaceResourceScope;
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, doing, is_refusal};

fn api<K>(client: &Client, namespace: &str) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    Api::namespaced(client.clone(), namespace)
}

/// One of that name that is there already is looked at anew: it may be somebody else's.
async fn create<K>(api: &Api<K>, made: &K, what: &'static str) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    api.create(&PostParams::default(), made).await.map(drop).map_err(doing(what))
}

/// What the API will not have, in its own words; any other error is one.
fn refusal(kind: &'static str, name: &str, done: Result<(), Error>) -> Result<Option<String>, Error> {
    match done {
        Ok(()) => Ok(None),
        Err(Error::Api { doing, source }) => match &*source {
            kube::Error::Api(answer) if is_refusal(answer.code) => {
                tracing::warn!(kind, name, doing, why = answer.message, "the API would not have it");
                Ok(Some(answer.message.clone()))
            }
            _ => Err(Error::Api { doing, source }),
        },
        Err(error) => Err(error),
    }
}
