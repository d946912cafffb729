//! The verbs of the command line. Each needs a kubeconfig and nothing else.

pub(crate) mod apply;
pub(crate) mod approve;
pub(crate) mod backends;
pub(crate) mod cancel;
pub(crate) mod carry;
pub(crate) mod certificate;
pub(crate) mod completion;
pub(crate) mod controller;
pub(crate) mod datastore;
pub(crate) mod describe;
pub(crate) mod diff;
pub(crate) mod drift;
pub(crate) mod events;
mod find;
mod fitting;
pub(crate) mod get;
pub(crate) mod git_server;
pub(crate) mod history;
mod keys;
pub(crate) mod login;
pub(crate) mod logs;
mod missing;
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
pub(crate) mod token;
pub(crate) mod tools;
pub(crate) mod version;
pub(crate) mod wait;
mod watching;

use anyhow::Context;
use api::{TerraformLayer, TerraformRepository};
use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use missing::missing;

use crate::arguments::{Reach, ServiceAccountName, Target};
use crate::kubernetes;

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
        (None, None) => kubernetes::config("set KUBECONFIG, for `terrane up` to DATA-DIR/kubeconfig").await?,
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
    Err(missing(&api, namespace, "layer", name).await)
}

/// One repository, or an error that names a similar one.
async fn repository(client: &Client, namespace: &str, name: &str) -> anyhow::Result<TerraformRepository> {
    let api = Api::<TerraformRepository>::namespaced(client.clone(), namespace);
    let found = api.get_opt(name).await;
    match found.with_context(|| format!("read repository {namespace}/{name}"))? {
        Some(repository) => Ok(repository),
        None => Err(missing(&api, namespace, "repository", name).await),
    }
}
