//! The variables and the environment of a layer as they are now: what its references lead to, and the digest of that. Values are read,
//! digested and dropped.

use api::inputs::{Contents, Data, DigestKey, Inputs, Kind, Object};
use api::text::Sha256;
use api::{SYSTEM_NAMESPACE, TerraformLayer, TerraformRepository};
use engine::Read;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::Context;
use crate::error::{Error, doing};

/// The Secret of the system's namespace that digests are made with. Whoever deletes it makes each layer with inputs plan anew.
const KEY_SECRET: &str = "terrane-digest-key";
const KEY: &str = "key";

/// The digest of what the layer gives to its code, or what is missing of it. O(objects that the layer refers to).
pub(crate) async fn observe(
    layer: &TerraformLayer,
    repository: Option<&TerraformRepository>,
    context: &Context,
) -> Result<Read<Result<Option<Sha256>, String>>, Error> {
    let settings = &context.settings;
    let inputs = match layer.inputs(repository, &settings.backends, &settings.overrides) {
        Ok(inputs) => inputs,
        Err(unusable) => return Ok(Read::Present(Err(unusable.to_string()))),
    };
    if inputs.is_empty() {
        return Ok(Read::Present(Ok(None)));
    }
    let contents = match read(&inputs, &layer.namespace().unwrap_or_default(), context).await? {
        Ok(contents) => contents,
        Err(why) => return Ok(Read::Present(Err(why))),
    };
    let key = key_of(&layer.uid().unwrap_or_default(), context).await?;
    Ok(Read::Present(inputs.digest(&key, &contents).map(Some).map_err(|missing| missing.to_string())))
}

/// What digests of one layer's inputs are made with.
pub(crate) async fn key_of(layer_uid: &str, context: &Context) -> Result<DigestKey, Error> {
    let key = context.digest_key.get_or_try_init(|| fetch_key(context)).await?;
    Ok(key.of_layer(layer_uid))
}

async fn read(
    inputs: &Inputs,
    namespace: &str,
    context: &Context,
) -> Result<Result<Contents, String>, Error> {
    let mut contents = Contents::new();
    for object in inputs.objects().into_keys() {
        match read_one(&object, namespace, context).await {
            Ok(Some(data)) => drop(contents.insert(object, data)),
            // Told with the rest, by whoever knows what was asked of it.
            Ok(None) => {}
            // It is for a person to see who can give the right.
            Err(kube::Error::Api(answer)) if answer.code == 403 => {
                return Ok(Err(format!("{object} cannot be read: {}", answer.message)));
            }
            Err(error) => return Err(doing("read what the layer's variables come from")(error)),
        }
    }
    Ok(Ok(contents))
}

async fn read_one(object: &Object, namespace: &str, context: &Context) -> Result<Option<Data>, kube::Error> {
    let bytes = |data: Option<std::collections::BTreeMap<String, ByteString>>| {
        data.into_iter().flatten().map(|(key, ByteString(value))| (key, value))
    };
    let (client, name) = (context.client.clone(), object.name.as_str());
    Ok(match object.kind {
        Kind::Secret => {
            let found = Api::<Secret>::namespaced(client, namespace).get_opt(name).await?;
            found.map(|secret| bytes(secret.data).collect())
        }
        Kind::ConfigMap => {
            let found = Api::<ConfigMap>::namespaced(client, namespace).get_opt(name).await?;
            found.map(|map| {
                let text = map.data.into_iter().flatten().map(|(key, value)| (key, value.into_bytes()));
                text.chain(bytes(map.binary_data)).collect()
            })
        }
    })
}

/// The key as it is kept; the first who needs it makes it. Of two who do so at once one is refused, and takes the other's.
async fn fetch_key(context: &Context) -> Result<DigestKey, Error> {
    let secrets = Api::<Secret>::namespaced(context.client.clone(), SYSTEM_NAMESPACE);
    let reading = || doing("read the key of digests");
    if let Some(found) = secrets.get_opt(KEY_SECRET).await.map_err(reading())? {
        return kept(found);
    }
    let mut bytes = [0; DigestKey::LENGTH];
    (context.random)(&mut bytes).map_err(Error::Randomness)?;
    let text = String::from(DigestKey::new(bytes));
    let secret = json!({
        "metadata": { "name": KEY_SECRET, "labels": { api::label::MANAGED_BY: "terrane" } },
        "immutable": true, "type": "Opaque", "stringData": { KEY: text },
    });
    let secret = serde_json::from_value(secret).map_err(|error| Error::BadKey(error.to_string()))?;
    match secrets.create(&PostParams::default(), &secret).await {
        Ok(_) => Ok(DigestKey::new(bytes)),
        Err(kube::Error::Api(answer)) if answer.reason == "AlreadyExists" => {
            kept(secrets.get(KEY_SECRET).await.map_err(reading())?)
        }
        Err(error) => Err(doing("make the key of digests")(error)),
    }
}

fn kept(secret: Secret) -> Result<DigestKey, Error> {
    let bad = || Error::BadKey(format!("delete Secret {KEY_SECRET} in {SYSTEM_NAMESPACE}: it holds no key"));
    let ByteString(bytes) = secret.data.unwrap_or_default().remove(KEY).ok_or_else(bad)?;
    let text = String::from_utf8(bytes).map_err(|_| bad())?;
    DigestKey::try_from(text).map_err(|_| bad())
}
