//! The suite on the embedded API: in process, and over its TLS port. Only the known gaps may fail, and each of them must.

use std::path::Path;

use anyhow::Context;
use conformance::gaps::KNOWN_GAPS;
use conformance::{Target, cases, runner};
use embedded::serve::{Listen, Options, Server};
use kube::api::{DeleteParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use secrecy::ExposeSecret;

async fn start(directory: &Path) -> anyhow::Result<(Server, kube::Config, String)> {
    let options = Options {
        listen: Listen::new(([127, 0, 0, 1], 0).into(), None, None)?,
        definitions: api::custom_resources(),
        ..Options::new(directory.join("data"))
    };
    let server = Server::start(options).await?;
    forget_a_repository(&server).await?;
    let kubeconfig = Kubeconfig::read_from(server.kubeconfig())?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let token = config.auth_info.token.as_ref().context("the kubeconfig has no token")?;
    let token = token.expose_secret().to_owned();
    Ok((server, config, token))
}

/// So that there is something that a watch can come too late for.
async fn forget_a_repository(server: &Server) -> anyhow::Result<()> {
    let client = server.client(embedded::auth::Identity::administrator());
    let repositories: kube::Api<api::TerraformRepository> = kube::Api::namespaced(client, "default");
    repositories.create(&PostParams::default(), &testkit::objects::repository("forgotten")?).await?;
    repositories.delete("forgotten", &DeleteParams::default()).await?;
    server.compact().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_in_process() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let (server, _, token) = start(directory.path()).await?;
    let target = Target::new(kube::Client::new(server.front(), "default"), token);
    let outcome = runner::run(&target, &cases::all(), KNOWN_GAPS).await;
    server.stop().await;
    outcome
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_over_the_port() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let (server, config, token) = start(directory.path()).await?;
    let target = Target::on_port(config, token)?;
    let outcome = runner::run(&target, &cases::all(), KNOWN_GAPS).await;
    server.stop().await;
    outcome
}
