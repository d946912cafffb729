//! What logs in to a registry, beside a pod that is in another namespace than its run: copied right before the pod is made, and deleted before
//! the pod is. Nothing of it is kept in memory or told anywhere.

use std::collections::BTreeMap;

use api::TerraformRun;
use api::inputs::Keys;
use engine::run::{LoginCopy, pod_namespace};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use sources::oci::DOCKER_CONFIG_KEYS;

use super::builds;
use crate::Context;
use crate::error::{Error, doing};

/// A Secret that is not there is not copied: the runner says what is missing. A copy that is there was made by an earlier, interrupted round.
pub(super) async fn put(copy: &LoginCopy, run: &TerraformRun, context: &Context) -> Result<(), Error> {
    let namespace = run.namespace().unwrap_or_default();
    let here = Api::<Secret>::namespaced(context.client.clone(), &namespace);
    let found = here.get_opt(copy.secret.as_str()).await.map_err(doing("read the Secret of a registry"))?;
    let Some(found) = found else { return Ok(()) };
    let data = needed(found.data.unwrap_or_default(), &copy.keys);
    if data.is_empty() {
        return Ok(());
    }
    let there = copy.copy.namespace().unwrap_or_default();
    let there = Api::<Secret>::namespaced(context.client.clone(), &there);
    let whole = Secret { data: Some(data), ..copy.copy.clone() };
    match there.create(&PostParams::default(), &whole).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.reason == "AlreadyExists" => Ok(()),
        Err(error) => Err(doing("copy the Secret of a registry to the builder's pod")(error)),
    }
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
    let namespace = pod_namespace(run);
    if builds(&context.settings) != Some(namespace) || run.namespace().as_deref() == Some(namespace) {
        return Ok(());
    }
    let secrets = Api::<Secret>::namespaced(context.client.clone(), namespace);
    match secrets.delete(pod, &DeleteParams::default()).await {
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
}
