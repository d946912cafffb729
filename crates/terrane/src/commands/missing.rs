//! What is said about a name that is none: the similar one that was probably meant, or where the names are.

use std::fmt::Debug;

use api::similar::similar;
use kube::Api;
use kube::api::ListParams;
use serde::de::DeserializeOwned;

/// The error for an object that is not there. O(objects of the namespace), their names alone.
pub(super) async fn missing<K>(api: &Api<K>, namespace: &str, kind: &str, name: &str) -> anyhow::Error
where
    K: Clone + DeserializeOwned + Debug,
{
    // `TerraformRepository` to a machine, `repository` to a person, `repositories` to the command line.
    let word = kind.trim_start_matches("Terraform").to_lowercase();
    let plural = word.strip_suffix('y').map_or_else(|| format!("{word}s"), |stem| format!("{stem}ies"));
    // Whoever may not list is still told that it is not there.
    let known = api.list_metadata(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
    match similar(known.into_iter().filter_map(|object| object.metadata.name), name) {
        Some(meant) => anyhow::anyhow!("{word} {namespace}/{name} not found; did you mean {meant}?"),
        None => anyhow::anyhow!("{word} {namespace}/{name} not found; `terrane get {plural} -A` lists them"),
    }
}
