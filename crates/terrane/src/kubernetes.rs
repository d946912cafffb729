//! How this process finds the Kubernetes API: that of the pod it runs in, or of the kubeconfig.

use anyhow::Context;

/// The API of a role, as it runs in a pod of a cluster or on somebody's machine.
pub(crate) async fn role_config() -> anyhow::Result<kube::Config> {
    config("run in a pod of the cluster, or set KUBECONFIG").await
}

/// A client of [`role_config`].
pub(crate) async fn role_client() -> anyhow::Result<kube::Client> {
    client(role_config().await?)
}

/// The API that is configured; `otherwise` says what to do where none is.
pub(crate) async fn config(otherwise: &str) -> anyhow::Result<kube::Config> {
    kube::Config::infer().await.with_context(|| format!("no Kubernetes API is configured; {otherwise}"))
}

pub(crate) fn client(config: kube::Config) -> anyhow::Result<kube::Client> {
    kube::Client::try_from(config).context("use the kubeconfig")
}
