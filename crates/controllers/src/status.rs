//! Writing a status: always against the version that was read, so that a decision on old facts is refused.

use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, doing};

pub(crate) async fn replace<K>(api: &Api<K>, object: &K, what: &'static str) -> Result<K, Error>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    api.replace_status(&object.name_any(), &PostParams::default(), object).await.map_err(doing(what))
}
