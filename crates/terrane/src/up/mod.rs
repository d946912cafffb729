//! `terrane up`: every role in one process, on one data directory.
//!
//! Each role is a future; one `select!` owns them all, and when one ends the process ends and says which. What pods run then goes
//! on under its shims and is adopted by the next start.

mod logs;
mod people;
mod report;
mod rights;
mod runner_address;
mod stop;
mod token;

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use axum::Router;
use axum::routing::get;
use controllers::Desk;
use datastore::client::TokenSource;
use datastore::service::{Keyring, KubeReviewer};
use embedded::auth::Identity;
use embedded::serve::{Listen, Server};
use engine::manifests::RunnerSettings;
use jiff::Timestamp;
use sources::{Addresses, FileUrls, Git, GitOptions};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::arguments::Up;
use crate::{demo, environment, local_node};

pub(crate) async fn run(options: Up) -> anyhow::Result<()> {
    // Before anything is begun: whoever asks for the end during the start gets an orderly one.
    let signals = stop::Signals::catch().context("listen for Ctrl-C")?;
    let data = absolute(&options.data_dir)?;
    let listener = listen(options.listen, &data).await?;
    let node_state = data.join("node");
    let mut server = start_api(&options, &data, &node_state).await?;
    let administrator = server.client(Identity::administrator());
    rights::install(&administrator).await?;
    let for_runners = runner_address::listen(&data, &node_state).await?;

    let node = local_node::open(local_node::Options {
        name: None,
        state: &node_state,
        images: &options.images,
        schedule: node::config::Schedule::BindUnscheduled,
        jobs: node::config::Jobs::Control,
        max_pods: node::config::DEFAULT_MAX_PODS,
    })?;
    let node_client = server.client(Identity::system());
    let service = http_service(&data, server.client(rights::datastore()))?;
    let token_file = data.join("controller-token");
    token::renew(&administrator, &token_file).await?;
    let context =
        controllers(&options, &data, &for_runners, server.client(rights::controller()), &token_file)?;
    let for_people = service.clone().merge(
        people::router(&administrator, server.client(people::identity()), &listener, &token_file).await?,
    );

    let demo = if options.demo { Some(demo::prepare(&data, &node.isolation).await?) } else { None };
    if let Some(demo) = &demo {
        demo::declare(&administrator, demo).await?;
    }
    report::introduce(&report::Places {
        data: &options.data_dir,
        service: listener.local_addr().context("find the address of the HTTP service")?,
        kubeconfig: server.kubeconfig(),
        demo: demo.as_ref(),
        isolation: &node.isolation,
    });

    let stop_work = CancellationToken::new();
    let work = async {
        tokio::select! {
            error = server.ended() => Err(error).context("the Kubernetes API"),
            ended = ending("the process node", node.node.run(node_client)) => ended,
            ended = ending("the HTTP service", serve(listener, for_people)) => ended,
            ended = ending("the HTTP service for runners", serve(for_runners, service)) => ended,
            () = token::keep(&administrator, &token_file) => bail!("the controllers' token is no longer renewed"),
            ended = report::follow(&administrator) => ended.context("report on layers"),
            ended = async {
                controllers::run(context, stop_work.clone()).await?;
                // Told to stop: the rest goes on until running attempts have ended.
                std::future::pending::<anyhow::Result<()>>().await
            } => ended.context("the controllers"),
        }
    };
    let outcome = tokio::select! {
        ended = work => ended,
        () = stop::wished(signals, &stop_work, &administrator) => Ok(()),
    };
    server.stop().await;
    outcome
}

/// A role that ends without an error has ended all the same.
async fn ending<E>(role: &'static str, future: impl Future<Output = Result<(), E>>) -> anyhow::Result<()>
where
    E: std::error::Error + Send + Sync + 'static,
{
    match future.await {
        Ok(()) => bail!("{role} ended"),
        Err(error) => Err(error).context(role),
    }
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("find {}", path.display()))
}

async fn listen(address: SocketAddr, data: &Path) -> anyhow::Result<TcpListener> {
    if !address.ip().is_loopback() {
        bail!(
            "--listen {address} would serve artefacts to the network without TLS; choose a loopback address"
        );
    }
    match embedded::serve::bind(address, "--listen").await {
        Ok(listener) => Ok(listener),
        Err(taken) => {
            // The port is most often taken by the `up` that has the data directory too, and another port would not help then.
            embedded::serve::ensure_unused(data)?;
            Err(taken.into())
        }
    }
}

async fn start_api(options: &Up, data: &Path, node_state: &Path) -> anyhow::Result<Server> {
    let server = embedded::serve::Options {
        listen: Listen::new(options.api_listen, options.api_tls_cert.clone(), options.api_tls_key.clone())?,
        kubeconfig: options.kubeconfig.as_deref().map(absolute).transpose()?,
        definitions: api::custom_resources(),
        logs: Some(Arc::new(logs::NodeLogs::new(node_state))),
        ..embedded::serve::Options::new(data)
    };
    Ok(Server::start(server).await?)
}

fn http_service(data: &Path, client: kube::Client) -> anyhow::Result<Router> {
    let objects =
        datastore::service::Options::local_objects(&data.join("artefacts")).context("open the artefacts")?;
    let keys = Keyring::load_or_create(&data.join("keys")).context("open the keys of the artefacts")?;
    let reviewer = Arc::new(KubeReviewer::new(client));
    let artefacts = datastore::service::router(datastore::service::Options { objects, keys, reviewer });
    Ok(artefacts.route("/readyz", get(async || "ok")))
}

async fn serve(listener: TcpListener, service: Router) -> std::io::Result<()> {
    axum::serve(listener, service).await
}

fn controllers(
    options: &Up,
    data: &Path,
    for_runners: &TcpListener,
    client: kube::Client,
    token_file: &Path,
) -> anyhow::Result<controllers::Context> {
    let address = for_runners.local_addr().context("find the address for runners")?;
    let datastore_url = format!("http://{address}");
    let datastore = datastore::Client::new(&datastore_url, TokenSource::File(token_file.to_owned()))
        .context("prepare the datastore's client")?;
    let git = Git::new(GitOptions {
        // On one's own machine its own files and servers are meant to be read.
        file_urls: FileUrls::Allowed,
        addresses: Addresses::OwnToo,
        search_path: environment::search_path(),
        rewrites: options.git_rewrite.clone(),
        ..GitOptions::new(data.join("git"))
    })?;
    let settings = engine::Settings::new(RunnerSettings {
        image: api::LOCAL_IMAGE.to_owned(),
        service_account: "default".to_owned(),
        datastore_url,
        path: None,
    });
    Ok(controllers::Context {
        desk: Arc::new(Desk::new(client.clone(), git, datastore.clone(), Timestamp::now)),
        client,
        datastore,
        settings: Arc::new(settings),
        now: Timestamp::now,
        alarm: Arc::new(controllers::Timer),
    })
}
