//! The verbs of the command line. Each needs a kubeconfig and nothing else.

pub(crate) mod apply;
pub(crate) mod approve;
pub(crate) mod cancel;
pub(crate) mod completion;
pub(crate) mod controller;
pub(crate) mod datastore;
pub(crate) mod describe;
pub(crate) mod diff;
pub(crate) mod drift;
pub(crate) mod events;
mod find;
pub(crate) mod get;
pub(crate) mod history;
mod keys;
pub(crate) mod logs;
pub(crate) mod node;
pub(crate) mod outputs;
pub(crate) mod plan;
mod progress;
mod queue;
mod render;
pub(crate) mod runner;
pub(crate) mod server;
mod service;
pub(crate) mod state;
pub(crate) mod suspend;
pub(crate) mod sync;
pub(crate) mod tools;
pub(crate) mod version;
pub(crate) mod wait;
mod watching;

use anyhow::Context;
use api::TerraformLayer;
use http::HeaderValue;
use http::header::USER_AGENT;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt};

use crate::arguments::{Reach, ServiceAccountName, Target};

/// Who the command line is in `managedFields`: an API server takes the words before the slash.
const FIELD_MANAGER: HeaderValue = HeaderValue::from_static(concat!("terrane/", env!("CARGO_PKG_VERSION")));

/// The API that the kubeconfig names, and the namespace to work in.
pub(crate) struct Connection {
    client: Client,
    namespace: String,
    config: kube::Config,
    /// By whose token the HTTP service is asked, where the kubeconfig has none.
    service_account: Option<ServiceAccountName>,
}

async fn connect(target: &Target) -> anyhow::Result<(Client, String)> {
    let (config, namespace) = configure(target).await?;
    Ok((Client::try_from(config).context("use the kubeconfig")?, namespace))
}

async fn connection(reach: &Reach) -> anyhow::Result<Connection> {
    let (config, namespace) = configure(&reach.target).await?;
    let client = Client::try_from(config.clone()).context("use the kubeconfig")?;
    Ok(Connection { client, namespace, config, service_account: reach.service_account.clone() })
}

async fn configure(target: &Target) -> anyhow::Result<(kube::Config, String)> {
    let wish = KubeConfigOptions { context: target.context.clone(), ..KubeConfigOptions::default() };
    let mut config = match (&target.kubeconfig, &target.context) {
        (Some(file), _) => {
            let content = Kubeconfig::read_from(file)
                .with_context(|| format!("read the kubeconfig {}", file.display()))?;
            kube::Config::from_custom_kubeconfig(content, &wish)
                .await
                .with_context(|| format!("use the kubeconfig {}", file.display()))?
        }
        (None, Some(context)) => kube::Config::from_kubeconfig(&wish).await.with_context(|| {
            format!("use the context {context}; `kubectl config get-contexts` lists them")
        })?,
        (None, None) => kube::Config::infer().await.context(
            "no Kubernetes API is configured; set KUBECONFIG, for `terrane up` to DATA-DIR/kubeconfig",
        )?,
    };
    let namespace = target.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    config.headers.push((USER_AGENT, FIELD_MANAGER));
    Ok((with_tidy_token(config), namespace))
}

/// People's token files often end with a newline, which kubectl leaves out and the client's library does not. Files without one are
/// left to the library, which reads them again as they are renewed.
fn with_tidy_token(mut config: kube::Config) -> kube::Config {
    let user = &mut config.auth_info;
    if let (None, Some(file)) = (&user.token, &user.token_file)
        && let Ok(content) = std::fs::read_to_string(file)
        && content.trim() != content
    {
        user.token = Some(content.trim().to_owned().into());
    }
    config
}

/// One layer, or an error that names a similar one.
async fn layer(client: &Client, namespace: &str, name: &str) -> anyhow::Result<TerraformLayer> {
    let api = Api::<TerraformLayer>::namespaced(client.clone(), namespace);
    if let Some(layer) = api.get_opt(name).await.with_context(|| format!("read layer {namespace}/{name}"))? {
        return Ok(layer);
    }
    let all = api.list(&ListParams::default()).await.context("list the layers")?;
    let similar = all.items.iter().map(|layer| layer.name_any()).min_by_key(|known| distance(known, name));
    match similar.filter(|known| distance(known, name) <= 3) {
        Some(known) => anyhow::bail!("layer {namespace}/{name} not found; did you mean {known}?"),
        None => anyhow::bail!("layer {namespace}/{name} not found; `terrane get layers -A` lists them"),
    }
}

/// How many letters must change to make one name the other. O(a · b), names are short.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (y, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let change = diagonal + usize::from(x != *y);
            diagonal = *cell;
            left = change.min(left + 1).min(*cell + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn counts_letters_that_must_change() {
        for (a, b, expected) in
            [("", "", 0), ("abc", "", 3), ("databse", "database", 1), ("app", "db", 3), ("x", "x", 0)]
        {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }
}
