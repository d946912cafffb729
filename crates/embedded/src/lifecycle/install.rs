//! What a cluster has when it starts: its namespaces, the default roles, and the definitions that Terrane brings along. A second
//! start that finds them as they should be writes nothing.

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Error;
use super::api::Api;
use super::conditions;
use super::feed::{Feed, Scope, custom_resource_definitions};
use super::namespaces;
use crate::auth::admission;
use crate::auth::defaults::{self, Installed, Writers};
use crate::auth::{escalation, rules};
use crate::store::{Collection, Key, Store};

const NAMESPACES: [&str; 5] = ["default", "kube-system", "kube-public", "kube-node-lease", "terrane-system"];
/// Digest of what was installed, so that an unchanged definition is known without comparing defaults.
const INSTALLED: &str = "terrane.dev/installed-sha256";

/// Installs what is missing and brings up to date what is old.
pub(super) async fn install(
    store: &Store,
    api: &Api,
    definitions: &[CustomResourceDefinition],
) -> Result<(), Error> {
    for name in NAMESPACES {
        if store.snapshot().get(&Key::new(namespaces::collection(), "", name)).is_none() {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            api.create("/api/v1/namespaces", &namespace).await?;
        }
    }
    let installed: Vec<Installed> = definitions.iter().map(installed).collect();
    for role in defaults::cluster_roles(&installed) {
        install_role(store, api, role).await?;
    }
    for binding in defaults::cluster_role_bindings() {
        let key =
            Key::new(rbac("clusterrolebindings"), "", binding.metadata.name.as_deref().unwrap_or_default());
        if store.snapshot().get(&key).is_none() {
            api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &json!(binding)).await?;
        }
    }
    for definition in definitions {
        install_definition(store, api, definition).await?;
    }
    Ok(())
}

fn rbac(plural: &str) -> Collection {
    Collection::new(escalation::GROUP, plural)
}

fn installed(definition: &CustomResourceDefinition) -> Installed {
    let (group, plural) = (definition.spec.group.clone(), definition.spec.names.plural.clone());
    let writers = if (group.as_str(), plural.as_str()) == admission::APPROVALS {
        Writers::Admins
    } else {
        Writers::Editors
    };
    Installed { group, plural, writers }
}

/// Rules that are missing are added; what an administrator added stays, and `autoupdate: "false"` keeps hands off.
async fn install_role(store: &Store, api: &Api, role: ClusterRole) -> Result<(), Error> {
    let base = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let name = role.metadata.name.clone().unwrap_or_default();
    let Some(stored) = store.snapshot().get(&Key::new(rbac("clusterroles"), "", &name)) else {
        return api.create(base, &json!(role)).await;
    };
    let existing: ClusterRole = serde_json::from_slice(&stored.bytes())
        .map_err(|error| Error::Unreadable { object: stored.key.clone(), why: error.to_string() })?;
    let annotations = existing.metadata.annotations.clone().unwrap_or_default();
    if annotations.get(defaults::AUTOUPDATE).is_some_and(|value| value == "false") {
        return Ok(());
    }
    let held = existing.rules.clone().unwrap_or_default();
    let held: Vec<&PolicyRule> = held.iter().collect();
    let missing = rules::uncovered(&held, role.rules.as_deref().unwrap_or_default());
    if missing.is_empty() {
        return Ok(());
    }
    let rules = Some(held.into_iter().cloned().chain(missing).collect());
    api.replace(&format!("{base}/{name}"), &json!(ClusterRole { rules, ..existing })).await.map(|_| ())
}

async fn install_definition(
    store: &Store,
    api: &Api,
    definition: &CustomResourceDefinition,
) -> Result<(), Error> {
    let name = definition.metadata.name.as_deref().unwrap_or_default();
    let mut wanted = json!(definition);
    let digest = hex::encode(Sha256::digest(wanted.to_string()));
    let stored = store.snapshot().get(&Key::new(custom_resource_definitions(), "", name));
    if let Some(stored) = stored.map(|stored| stored.value()) {
        let annotation = stored.pointer("/metadata/annotations").and_then(|all| all.get(INSTALLED));
        let same = annotation.and_then(Value::as_str) == Some(&digest);
        if same && contains(stored.get("spec"), wanted.get("spec")) {
            return Ok(());
        }
    }
    if let Some(metadata) = wanted.get_mut("metadata").and_then(Value::as_object_mut) {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert(INSTALLED.to_owned(), digest.into());
        }
    }
    if let Some(object) = wanted.as_object_mut() {
        object.remove("status");
    }
    api.apply(&format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"), &wanted).await
}

/// Waits until each definition is established, or until one of them is refused.
pub(super) async fn wait_until_established(
    store: &Store,
    definitions: &[CustomResourceDefinition],
) -> Result<(), Error> {
    let mut feed = Feed::new(store.clone(), Scope::Only(vec![custom_resource_definitions()]));
    loop {
        // The first news is the state as it is; later ones only say that it changed.
        feed.next().await;
        let snapshot = store.snapshot();
        let mut waiting = false;
        for definition in definitions {
            let name = definition.metadata.name.as_deref().unwrap_or_default();
            let stored = snapshot.get(&Key::new(custom_resource_definitions(), "", name));
            let stored = stored.map(|stored| stored.value()).unwrap_or_default();
            match conditions::get(&stored, "Established") {
                Some(("True", _)) => {}
                _ => match conditions::get(&stored, "NamesAccepted") {
                    Some(("False", why)) => {
                        return Err(Error::NotEstablished { name: name.to_owned(), why: why.to_owned() });
                    }
                    _ => waiting = true,
                },
            }
        }
        if !waiting {
            return Ok(());
        }
    }
}

/// Is everything of `wanted` in `stored`? What the API filled in beside it does not count.
fn contains(stored: Option<&Value>, wanted: Option<&Value>) -> bool {
    match (stored, wanted) {
        (_, None | Some(Value::Null)) => true,
        (Some(Value::Object(stored)), Some(Value::Object(wanted))) => {
            wanted.iter().all(|(key, value)| contains(stored.get(key), Some(value)))
        }
        (Some(Value::Array(stored)), Some(Value::Array(wanted))) => {
            stored.len() == wanted.len()
                && stored.iter().zip(wanted).all(|(stored, wanted)| contains(Some(stored), Some(wanted)))
        }
        (stored, wanted) => stored == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_beside_what_is_wanted_do_not_count() {
        let stored = json!({"a": {"b": 1, "filled": true}, "list": [{"x": 1, "y": 2}]});
        let check = |wanted: Value, expected: bool| {
            assert_eq!(contains(Some(&stored), Some(&wanted)), expected, "{wanted}")
        };
        check(json!({"a": {"b": 1}}), true);
        check(json!({"list": [{"x": 1}], "absent": null}), true);
        check(json!({"a": {"b": 2}}), false);
        check(json!({"list": [{"x": 1}, {"x": 2}]}), false);
        check(json!({"c": 1}), false);
    }
}
