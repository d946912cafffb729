//! What logs in to a registry, where a pod or its node cannot have it from the layer's own Secret: a pod that is in another namespace than its run,
//! and a node, whose kubelet reads Secrets of one type alone. It is copied right before the pod is made, and deleted before the pod is. Nothing
//! of it is kept in memory or told anywhere.

use std::collections::BTreeMap;

use api::TerraformRun;
use api::inputs::Keys;
use engine::manifests::{DOCKER_CONFIG_KEY, DOCKER_CONFIG_TYPE};
use engine::names;
use engine::run::{LoginCopy, pod_namespace};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::{Api, ResourceExt};
use sources::oci::{DOCKER_CONFIG_KEYS, Logins};

use super::builds;
use crate::Context;
use crate::error::{Error, doing};

/// A Secret that is not there is not copied: the runner says what is missing. A copy that is there was made by an earlier, interrupted round.
pub(super) async fn put(copy: &LoginCopy, run: &TerraformRun, context: &Context) -> Result<(), Error> {
    let namespace = run.namespace().unwrap_or_default();
    let here = Api::<Secret>::namespaced(context.client.clone(), &namespace);
    let found = here.get_opt(copy.secret.as_str()).await.map_err(doing("read the Secret of a registry"))?;
    let Some(found) = found else { return Ok(()) };
    let data = if copy.copy.type_.as_deref() == Some(DOCKER_CONFIG_TYPE) {
        pulled(found, &copy.keys)
    } else {
        needed(found.data.unwrap_or_default(), &copy.keys)
    };
    if data.is_empty() {
        return Ok(());
    }
    let there = copy.copy.namespace().unwrap_or_default();
    let there = Api::<Secret>::namespaced(context.client.clone(), &there);
    let whole = Secret { data: Some(data), ..copy.copy.clone() };
    match there.create(&PostParams::default(), &whole).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.reason == "AlreadyExists" => Ok(()),
        Err(error) => Err(doing("copy the Secret of a registry for a pod")(error)),
    }
}

/// What a kubelet reads, where it cannot read it of the Secret itself. The API takes nothing else than a configuration under that key; whoever
/// logs in with something else is told so where that is tried.
fn pulled(secret: Secret, keys: &Keys) -> BTreeMap<String, ByteString> {
    if matches!(keys, Keys::All) && secret.type_.as_deref() == Some(DOCKER_CONFIG_TYPE) {
        return BTreeMap::new();
    }
    let mut data = needed(secret.data.unwrap_or_default(), keys);
    // In this order, as the controller looks for it.
    let content = DOCKER_CONFIG_KEYS.iter().find_map(|key| data.remove(*key));
    let content = content.or_else(|| data.pop_first().map(|(_, content)| content));
    let content = content.filter(|ByteString(content)| Logins::parse(content).is_ok());
    content.into_iter().map(|content| (DOCKER_CONFIG_KEY.to_owned(), content)).collect()
}

/// No more than a builder reads.
fn needed(data: BTreeMap<String, ByteString>, keys: &Keys) -> BTreeMap<String, ByteString> {
    let is_needed = |key: &String| match keys {
        Keys::All => DOCKER_CONFIG_KEYS.contains(&key.as_str()),
        Keys::Only(keys) => keys.iter().any(|wanted| wanted.as_str() == key),
    };
    data.into_iter().filter(|(key, _)| is_needed(key)).collect()
}

/// Deletes the copy that was made for the pod of this name, if there can be one.
pub(super) async fn delete(pod: &str, run: &TerraformRun, context: &Context) -> Result<(), Error> {
    let (own, namespace) = (run.namespace().unwrap_or_default(), pod_namespace(run));
    let is_apart = namespace != own;
    let name = match (is_apart, run.spec.in_image) {
        (true, _) if builds(&context.settings) == Some(namespace) => pod.to_owned(),
        (false, true) => names::pull_secret(pod),
        (true | false, _) => return Ok(()),
    };
    let secrets = Api::<Secret>::namespaced(context.client.clone(), namespace);
    let mut exactly_this = DeleteParams::default();
    if !is_apart {
        // Others make Secrets here, too, by whatever name.
        let found =
            secrets.get_metadata_opt(&name).await.map_err(doing("read the copy of a registry's Secret"))?;
        let is_ours = |found: &PartialObjectMeta<Secret>| {
            found.owner_references().iter().any(|owner| Some(&owner.uid) == run.uid().as_ref())
        };
        let Some(found) = found.filter(is_ours) else { return Ok(()) };
        exactly_this.preconditions = Some(Preconditions { uid: found.uid(), resource_version: None });
    }
    match secrets.delete(&name, &exactly_this).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
        Err(error) => Err(doing("delete the copied Secret of a registry")(error)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn no_more_than_a_builder_reads_is_copied() {
        let data = || {
            let key = |name: &str| (name.to_owned(), ByteString(name.as_bytes().to_vec()));
            BTreeMap::from([key(".dockerconfigjson"), key("config.json"), key("cloud-password")])
        };
        let names = |keys: &Keys| needed(data(), keys).into_keys().collect::<Vec<_>>();
        assert_eq!(names(&Keys::All), [".dockerconfigjson", "config.json"]);
        assert_eq!(names(&Keys::Only(["config.json".parse().unwrap()].into())), ["config.json"]);
        assert_eq!(names(&Keys::Only(["other".parse().unwrap()].into())), [""; 0]);
    }

    #[test]
    fn what_a_kubelet_cannot_read_is_put_where_it_can() {
        const CONFIG: &str = r#"{ "auths": { "registry.example": { "auth": "YTpi" } } }"#;
        let secret = |kind: Option<&str>, data: &[(&str, &str)]| Secret {
            type_: kind.map(str::to_owned),
            data: Some(
                data.iter()
                    .map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())))
                    .collect(),
            ),
            ..Secret::default()
        };
        let (docker, opaque) = (Some(DOCKER_CONFIG_TYPE), Some("Opaque"));
        let only = |key: &str| Keys::Only([key.parse().unwrap()].into());
        let other = r#"{ "auths": {} }"#;
        for (secret, keys, expected) in [
            // The node reads that one itself.
            (secret(docker, &[(".dockerconfigjson", CONFIG)]), Keys::All, None),
            (secret(opaque, &[(".dockerconfigjson", CONFIG)]), Keys::All, Some(CONFIG)),
            (secret(None, &[("config.json", CONFIG)]), Keys::All, Some(CONFIG)),
            (
                secret(opaque, &[("config.json", other), (".dockerconfigjson", CONFIG)]),
                Keys::All,
                Some(CONFIG),
            ),
            (
                secret(opaque, &[("dockerhub-cred", CONFIG), ("config.json", other)]),
                only("dockerhub-cred"),
                Some(CONFIG),
            ),
            // Of two in one Secret the layer names the one that the kubelet does not look at.
            (secret(docker, &[("mine", CONFIG), (".dockerconfigjson", other)]), only("mine"), Some(CONFIG)),
            (secret(opaque, &[("config.json", CONFIG)]), only("missing"), None),
            (secret(opaque, &[("dockerhub-cred", "no configuration")]), only("dockerhub-cred"), None),
            (secret(opaque, &[]), Keys::All, None),
        ] {
            let found: Vec<(String, String)> = pulled(secret, &keys)
                .into_iter()
                .map(|(key, ByteString(value))| (key, String::from_utf8(value).unwrap()))
                .collect();
            let expected = expected.map(|content| (DOCKER_CONFIG_KEY.to_owned(), content.to_owned()));
            assert_eq!(found, Vec::from_iter(expected));
        }
    }

    /// The copy is made of what is there, of the type that kubelets read, and goes with its pod; a stranger of the same name stays.
    #[tokio::test]
    async fn what_a_node_pulls_with_is_there_as_long_as_its_pod() {
        let directory = tempfile::tempdir().unwrap();
        let options = embedded::serve::Options {
            listen: embedded::serve::Listen::new("127.0.0.1:0".parse().unwrap(), None, None).unwrap(),
            definitions: api::custom_resources(),
            ..embedded::serve::Options::new(directory.path().join("data"))
        };
        let server = embedded::serve::Server::start(options).await.unwrap();
        let client = server.client(embedded::auth::Identity::administrator());
        let run: TerraformRun = serde_json::from_value(serde_json::json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRun",
            "metadata": { "name": "db-plan-1", "namespace": "default" },
            "spec": {
                "layer": { "name": "db", "uid": "layer-1", "revision": "a".repeat(40) }, "action": "plan", "inImage": true,
                "state": "b".repeat(64), "trigger": { "kind": "commit", "reason": "new commit" },
            },
        }))
        .unwrap();
        let runs = Api::<TerraformRun>::namespaced(client.clone(), "default");
        let run = runs.create(&PostParams::default(), &run).await.unwrap();
        let nobody = datastore::client::TokenSource::Fixed("nobody".to_owned().into());
        let datastore = datastore::Client::new("http://127.0.0.1:1", nobody).unwrap();
        let settings = engine::Settings::new(engine::manifests::RunnerSettings {
            image: "example.org/runner:1".to_owned(),
            service_account: "default".to_owned(),
            datastore_url: String::new(),
            path: None,
            environment: Vec::new(),
            secrets: engine::manifests::RunnerSecrets::default(),
        });
        let desk = crate::Desk::over(std::sync::Arc::new(crate::source::tests::Nobody), jiff::Timestamp::now);
        let (desk, settings) = (std::sync::Arc::new(desk), std::sync::Arc::new(settings));
        let context = Context::new(client.clone(), datastore, desk, settings, jiff::Timestamp::now);
        let secrets = Api::<Secret>::namespaced(client.clone(), "default");

        const CONFIG: &str = r#"{"auths":{"registry.example":{"auth":"YTpi"}}}"#;
        let login = testkit::objects::secret("login", [("dockerhub-cred", CONFIG)]);
        secrets.create(&PostParams::default(), &login).await.unwrap();
        let copy = LoginCopy {
            secret: "login".parse().unwrap(),
            keys: Keys::Only(["dockerhub-cred".parse().unwrap()].into()),
            copy: engine::manifests::pull_copy(&run, 0).unwrap(),
        };
        for _ in 0..2 {
            put(&copy, &run, &context).await.unwrap();
        }
        let copied = secrets.get("db-plan-1-0-pull").await.unwrap();
        assert_eq!(copied.type_.as_deref(), Some(DOCKER_CONFIG_TYPE));
        let ByteString(content) = &copied.data.unwrap()[DOCKER_CONFIG_KEY];
        assert_eq!(content, CONFIG.as_bytes());
        for _ in 0..2 {
            delete("db-plan-1-0", &run, &context).await.unwrap();
        }
        assert!(secrets.get_opt("db-plan-1-0-pull").await.unwrap().is_none());

        let stranger = testkit::objects::secret("db-plan-1-1-pull", [("theirs", "x")]);
        secrets.create(&PostParams::default(), &stranger).await.unwrap();
        delete("db-plan-1-1", &run, &context).await.unwrap();
        assert!(secrets.get_opt("db-plan-1-1-pull").await.unwrap().is_some());
        server.stop().await;
    }
}
