//! The Secrets and ConfigMaps that hold outputs of layers: read, and changed as `engine` decides. Values pass through and are not kept;
//! what is remembered is which versions of the objects were found right.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::inputs::{Data, Kind, Object};
use api::{TerraformLayer, annotation, label, outputs::Outputs as Values};
use datastore::key::OUTPUTS_LIMIT;
use datastore::{Artefact, Attempt};
use engine::outputs::{
    Change, Decision, Found, Giver, Outcome, Standing, asked, decide, forbidden, key_list, labels, recorded,
    unkept, without_looking,
};
use k8s_openapi::ByteString;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::ObjectMeta;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Context;
use crate::error::{Error, doing, storing};

/// What was found the last time, by the uid of the layer. Holds one entry for each layer whose outputs are written somewhere.
#[derive(Debug, Default)]
pub struct Written(Mutex<HashMap<String, Look>>);

#[derive(Debug, Clone)]
struct Look {
    generation: Option<i64>,
    giver: Giver,
    /// None of an object that was not there.
    versions: BTreeMap<Object, Option<String>>,
    outcome: Outcome,
}

impl Written {
    /// Sees to it that the layer's outputs are where they are asked for. As long as nothing has changed, that is one request for the
    /// metadata of each object; else each is read, and what the run kept too. O(objects, and the bytes of what is read).
    pub(crate) async fn keep(
        &self,
        layer: &TerraformLayer,
        giver: Giver,
        context: &Context,
    ) -> Result<Outcome, Error> {
        if let Some(outcome) = without_looking(layer) {
            self.forget(layer);
            return Ok(outcome);
        }
        let namespace = layer.namespace().unwrap_or_default();
        let objects: BTreeSet<Object> = asked(layer).union(&recorded(layer)).cloned().collect();
        let uid = layer.uid().unwrap_or_default();
        let last = self.looks().get(&uid).cloned();
        if let Some(last) =
            last.filter(|last| last.giver == giver && last.generation == layer.metadata.generation)
            && last.versions.keys().eq(&objects)
            && is_unchanged(&last.versions, &namespace, context).await?
        {
            return Ok(last.outcome);
        }
        self.forget(layer);
        let refused = |refusal| Outcome { places: objects.clone(), standing: Standing::Refused(refusal) };
        let mut found = BTreeMap::new();
        for object in &objects {
            match read(object, &namespace, &context.client).await {
                Ok(Some(there)) => drop(found.insert(object.clone(), there)),
                Ok(None) => {}
                Err(kube::Error::Api(answer)) if answer.code == 403 => {
                    return Ok(refused(forbidden(object, &answer.message)));
                }
                Err(error) => return Err(doing("read where the layer's outputs are written")(error)),
            }
        }
        let values = match &giver {
            Giver::Nobody | Giver::Forgetful => Err(Standing::Waiting),
            // What is cleared needs no values.
            Giver::Run { .. } if asked(layer).is_empty() => Err(Standing::NotAsked),
            Giver::Run { name, uid, attempt } => {
                fetch(uid, *attempt, context).await?.ok_or_else(|| Standing::Refused(unkept(name)))
            }
        };
        let Decision { changes, outcome } = decide(layer, values.as_ref().map_err(Clone::clone), &found);
        let mut versions: BTreeMap<Object, Option<String>> = objects
            .iter()
            .map(|object| {
                (object.clone(), found.get(object).and_then(|there| there.metadata.resource_version.clone()))
            })
            .collect();
        for change in &changes {
            match apply(layer, change, &context.client).await {
                Ok((object, version)) => drop(versions.insert(object, version)),
                // The API, or a rule of this cluster, does not want it so.
                Err((object, kube::Error::Api(answer))) if [403, 413, 422].contains(&answer.code) => {
                    return Ok(refused(forbidden(&object, &answer.message)));
                }
                Err((_, error)) => return Err(doing("write the layer's outputs")(error)),
            }
            tracing::info!(layer = layer.name_any(), namespace, ?change, "wrote outputs");
        }
        if !changes.is_empty() {
            crate::door::terraform::wake_owner(layer, context);
        }
        let generation = layer.metadata.generation;
        let look = Look { generation, giver, versions, outcome: outcome.clone() };
        self.looks().insert(uid, look);
        Ok(outcome)
    }

    /// The layer is gone, or has nothing written.
    pub(crate) fn forget(&self, layer: &impl ResourceExt) {
        if let Some(uid) = layer.uid() {
            self.looks().remove(&uid);
        }
    }

    fn looks(&self) -> MutexGuard<'_, HashMap<String, Look>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn is_unchanged(
    versions: &BTreeMap<Object, Option<String>>,
    namespace: &str,
    context: &Context,
) -> Result<bool, Error> {
    for (object, known) in versions {
        let (client, name) = (context.client.clone(), object.name.as_str());
        let there = match object.kind {
            Kind::Secret => {
                Api::<Secret>::namespaced(client, namespace).get_metadata_opt(name).await.map(version_of)
            }
            Kind::ConfigMap => {
                Api::<ConfigMap>::namespaced(client, namespace).get_metadata_opt(name).await.map(version_of)
            }
        };
        if &there.map_err(doing("look at where the layer's outputs are written"))? != known {
            return Ok(false);
        }
    }
    Ok(true)
}

fn version_of<K: Resource>(object: Option<K>) -> Option<String> {
    object.and_then(|object| object.meta().resource_version.clone())
}

/// What a run kept; nothing where it kept none.
async fn fetch(run_uid: &str, attempt: u32, context: &Context) -> Result<Option<Values>, Error> {
    let attempt = Attempt::new(run_uid, attempt).map_err(Error::BadUid)?;
    let content = context.datastore.artefact_get(&attempt, Artefact::Outputs, OUTPUTS_LIMIT).await;
    let content = content.map_err(storing("read what a run kept of the outputs"))?;
    // A parser's words could quote a value.
    Ok(content.and_then(|content| serde_json::from_slice(&content).ok()))
}

async fn read(object: &Object, namespace: &str, client: &Client) -> Result<Option<Found>, kube::Error> {
    let (client, name) = (client.clone(), object.name.as_str());
    let bytes = |data: Option<BTreeMap<String, ByteString>>| {
        data.into_iter().flatten().map(|(key, ByteString(value))| (key, value))
    };
    Ok(match object.kind {
        Kind::Secret => {
            let found = Api::<Secret>::namespaced(client, namespace).get_opt(name).await?;
            found.map(|secret| Found {
                metadata: secret.metadata,
                data: bytes(secret.data).collect(),
                immutable: secret.immutable == Some(true),
            })
        }
        Kind::ConfigMap => {
            let found = Api::<ConfigMap>::namespaced(client, namespace).get_opt(name).await?;
            found.map(|map| {
                let text = map.data.into_iter().flatten().map(|(key, value)| (key, value.into_bytes()));
                Found {
                    metadata: map.metadata,
                    data: text.chain(bytes(map.binary_data)).collect(),
                    immutable: map.immutable == Some(true),
                }
            })
        }
    })
}

/// The object and the version that it has then; none of one that is gone.
async fn apply(
    layer: &TerraformLayer,
    change: &Change,
    client: &Client,
) -> Result<(Object, Option<String>), (Object, kube::Error)> {
    let (Change::Create { object, .. }
    | Change::Update { object, .. }
    | Change::Delete { object, .. }
    | Change::Release { object, .. }) = change;
    let namespace = layer.namespace().unwrap_or_default();
    let version = match object.kind {
        Kind::Secret => apply_to::<Secret>(Api::namespaced(client.clone(), &namespace), layer, change).await,
        Kind::ConfigMap => {
            apply_to::<ConfigMap>(Api::namespaced(client.clone(), &namespace), layer, change).await
        }
    };
    version.map(|version| (object.clone(), version)).map_err(|error| (object.clone(), error))
}

async fn apply_to<K>(
    api: Api<K>,
    layer: &TerraformLayer,
    change: &Change,
) -> Result<Option<String>, kube::Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned,
{
    let patch = |object: &Object, content: Value| {
        let (api, name) = (api.clone(), object.name.to_string());
        async move {
            let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(content)).await;
            patched.map(|object| object.meta().resource_version.clone())
        }
    };
    match change {
        Change::Create { object, data } => {
            let keys = data.keys().cloned().collect();
            let metadata = ObjectMeta {
                name: Some(object.name.to_string()),
                labels: Some(labels(layer)),
                annotations: Some([(annotation::OUTPUT_KEYS.to_owned(), key_list(&keys))].into()),
                owner_references: layer.controller_owner_ref(&()).map(|owner| vec![owner]),
                ..ObjectMeta::default()
            };
            let made = json!({ "metadata": metadata, "data": encoded(object.kind, data) });
            let made = serde_json::from_value(made).map_err(kube::Error::SerdeError)?;
            let made: K = api.create(&PostParams::default(), &made).await?;
            Ok(made.meta().resource_version.clone())
        }
        Change::Update { object, version, set, remove, keys } => {
            let mut data = encoded(object.kind, set);
            data.extend(remove.iter().map(|key| (key.clone(), Value::Null)));
            let metadata = json!({
                "resourceVersion": version,
                "labels": labels(layer),
                "annotations": { annotation::OUTPUT_KEYS: key_list(keys) },
            });
            patch(object, json!({ "metadata": metadata, "data": data })).await
        }
        Change::Release { object, version, remove, owners } => {
            let data: BTreeMap<&String, Value> = remove.iter().map(|key| (key, Value::Null)).collect();
            let metadata = json!({
                "resourceVersion": version,
                "labels": { label::MANAGED_BY: null, label::LAYER: null },
                "annotations": { annotation::OUTPUT_KEYS: null },
                "ownerReferences": owners,
            });
            patch(object, json!({ "metadata": metadata, "data": data })).await
        }
        Change::Delete { object, uid, version } => {
            let exactly_this = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: Some(version.clone()),
                }),
                ..DeleteParams::default()
            };
            match api.delete(object.name.as_str(), &exactly_this).await {
                Ok(_) => Ok(None),
                Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(None),
                Err(error) => Err(error),
            }
        }
    }
}

fn encoded(kind: Kind, data: &Data) -> serde_json::Map<String, Value> {
    let value = |bytes: &Vec<u8>| match kind {
        Kind::Secret => json!(ByteString(bytes.clone())),
        Kind::ConfigMap => json!(String::from_utf8_lossy(bytes)),
    };
    data.iter().map(|(key, bytes)| (key.clone(), value(bytes))).collect()
}
