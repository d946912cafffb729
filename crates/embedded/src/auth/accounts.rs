//! What a new pod gets from the service account that it runs as: its name, its secrets for pulling images, and a volume with a token, the
//! certificate to trust and the namespace, at the place where every client library looks for them.

use serde_json::{Map, Value, json};

use super::{Refusal, Resource};
use crate::kinds::meta;
use crate::schema::wording::quoted;
use crate::store::{Collection, Key, Snapshot};

const DEFAULT_ACCOUNT: &str = "default";
const VOLUME_PREFIX: &str = "kube-api-access-";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// An hour and a bit: the bit tells a token that was given unasked from one that a pod projects itself.
const TOKEN_SECONDS: i64 = 3607;

/// Completes a new pod: the account is `default` if it names none. One that does not exist is refused, but for `default` itself, which a
/// new namespace gets a moment later.
pub fn complete(snapshot: &Snapshot, resource: Resource<'_>, object: &mut Value) -> Result<(), Refusal> {
    if (resource.group, resource.resource, resource.subresource) != ("", "pods", "") {
        return Ok(());
    }
    let pod = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    let named = spec.get("serviceAccountName").and_then(Value::as_str).filter(|name| !name.is_empty());
    let name = named.unwrap_or(DEFAULT_ACCOUNT).to_owned();
    let key = Key::new(Collection::new("", "serviceaccounts"), resource.namespace, &name);
    let account = snapshot.get(&key).map(|stored| stored.value());
    if account.is_none() && name != DEFAULT_ACCOUNT {
        let why = format!(
            "error looking up service account {}/{name}: serviceaccount {} not found",
            resource.namespace,
            quoted(&name)
        );
        return Err(Refusal::forbidden_object("", "pods", &pod, &why));
    }
    spec.insert("serviceAccountName".to_owned(), name.as_str().into());
    spec.insert("serviceAccount".to_owned(), name.into());
    let account = account.unwrap_or_default();
    let wish = |of: Option<&Value>| of.and_then(Value::as_bool);
    let automount = wish(spec.get("automountServiceAccountToken"))
        .or_else(|| wish(account.get("automountServiceAccountToken")))
        .unwrap_or(true);
    if automount {
        mount_token(spec);
    }
    if let (Some(secrets @ Value::Array(_)), None) =
        (account.get("imagePullSecrets"), spec.get("imagePullSecrets"))
    {
        spec.insert("imagePullSecrets".to_owned(), secrets.clone());
    }
    Ok(())
}

/// A container that mounts something at that place already keeps it.
fn mount_token(spec: &mut Map<String, Value>) {
    let volumes = spec.get("volumes").and_then(Value::as_array).into_iter().flatten();
    let given = volumes
        .filter_map(|volume| volume.get("name")?.as_str())
        .find(|name| name.starts_with(VOLUME_PREFIX))
        .map(str::to_owned);
    let name = given.clone().unwrap_or_else(|| meta::generated_name(VOLUME_PREFIX));
    let mut mounted = false;
    for list in ["initContainers", "containers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
            let Some(mounts) = mounts.as_array_mut() else { continue };
            if mounts.iter().any(|mount| mount.get("mountPath") == Some(&MOUNT_PATH.into())) {
                continue;
            }
            mounts.push(json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH}));
            mounted = true;
        }
    }
    if given.is_some() || !mounted {
        return;
    }
    let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
    if let Some(volumes) = volumes.as_array_mut() {
        volumes.push(json!({"name": name, "projected": {"defaultMode": 0o644, "sources": [
            {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [
                {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
            ]}},
        ]}}));
    }
}
