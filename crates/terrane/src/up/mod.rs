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
mod tools;

use std::future::Future;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::Router;
use controllers::{Metrics, Namespaces};
use datastore::client::TokenSource;
use datastore::service::{FirstKey, Keyring, KubeReviewer, Place};
use embedded::auth::Identity;
use embedded::serve::{Listen, Server};
use engine::leader::Terms;
use engine::manifests::{RunnerSecrets, RunnerSettings};
use node::isolation::Isolation;
use secrecy::ExposeSecret;
use sources::{Addresses, FileUrls, GitOptions};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::arguments::Up;
use crate::commands::tools::default_keys;
use crate::controllers_role::{Candidacy, ControllersRole, Offices};
use crate::listening::serve_for_ever;
use crate::signs::{self, Duty};
use crate::stored::Stored;
use crate::{demo, environment, local_node, metacontroller};

/// Nobody can follow while this process is down, as the API is down with it: renewing seldom writes less.
const TERMS: Terms = Terms {
    duration: Duration::from_secs(60),
    trust: Duration::from_secs(40),
    period: Duration::from_secs(10),
};

pub(crate) async fn run(options: Up) -> anyhow::Result<()> {
    // Before anything is begun: whoever asks for the end during the start gets an orderly one.
    let signals = stop::Signals::catch().context("listen for Ctrl-C")?;
    let data = absolute(&options.data_dir)?;
    let listener = listen(options.listen, &data).await?;
    let for_metacontroller = listen_for_metacontroller(options.metacontroller_listen).await?;
    let node_state = data.join("node");
    let mut server = start_api(&options, &data, &node_state).await?;
    let administrator = server.client(Identity::administrator());
    rights::install(&administrator).await?;
    let for_runners = runner_address::listen(&data, &node_state).await?;

    let tools = tools::Places::find(&options, &data, &Isolation::detect(&node_state))?;
    let node = local_node::open(local_node::Options {
        name: None,
        state: &node_state,
        images: &options.images,
        readable: tools.readable(),
        schedule: node::config::Schedule::BindUnscheduled,
        jobs: node::config::Jobs::Control,
        admission: node::config::Admission::Everything,
        max_pods: node::config::DEFAULT_MAX_PODS,
    })?;
    let node_client = server.client(Identity::system());
    let reviewer = Arc::new(KubeReviewer::new(server.client(rights::datastore())));
    let (service, stored) = http_service(&options, &data, reviewer.clone()).await?;
    let service = service.merge(tools.service(&options, &data, reviewer)?);
    let token_file = data.join("controller-token");
    let tokens = [
        token::Kept { account: api::CONTROLLER_ACCOUNT, file: token_file.clone() },
        token::Kept { account: api::SERVER_ACCOUNT, file: data.join("server-token") },
    ];
    token::renew(&administrator, &tokens).await?;
    let context =
        controllers(&options, &data, &tools, &for_runners, server.client(rights::controller()), &token_file)?;
    // The data directory belongs to one `up` at a time, so a term that a crash ended is our own and can be followed at once.
    let candidacy = Candidacy::new(&context.client, "terrane-up", TERMS, NonZeroU16::MIN);
    let deliveries = server::Deliveries::default();
    let signs = signs::Signs {
        deliveries: deliveries.clone(),
        stored: Some(stored.clone()),
        ..context.signs(None, Duty::MustLead)
    };
    let signs = signs::router(signs, options.metrics());
    let people =
        people::people(&administrator, &server, &listener, &data.join("server-token"), deliveries).await?;
    let for_people = service.clone().merge(signs).merge(people.router);

    let demo = if options.demo { Some(demo::prepare(&data, &node.isolation).await?) } else { None };
    if let Some(demo) = &demo {
        demo::declare(&administrator, demo).await?;
    }
    report::introduce(&report::Places {
        data: &options.data_dir,
        service: listener.local_addr().context("find the address of the HTTP service")?,
        link: people.link.expose_secret(),
        kubeconfig: server.kubeconfig(),
        demo: demo.as_ref(),
        isolation: &node.isolation,
        keys: &options.downloads.keys(&default_keys(&options.data_dir)),
    });

    let stop_work = CancellationToken::new();
    let programs = std::env::split_paths(&environment::search_path()).collect();
    let catalogue = tools::keep_catalogue(tools.store().to_owned(), programs);
    let work = async {
        tokio::select! {
            error = server.ended() => Err(error).context("the Kubernetes API"),
            ended = ending("the process node", node.node.run(node_client)) => ended,
            ended = serve_for_ever(listener, for_people, "the HTTP service") => ended,
            ended = serve_for_ever(for_runners, service, "the HTTP service for runners") => ended,
            ended = metacontroller::serve(for_metacontroller, context.client.clone(), Arc::clone(&context.settings)) => ended,
            () = people.keeping => bail!("the HTTP service no longer follows what changes"),
            () = token::keep(&administrator, &tokens) => bail!("the tokens for the datastore are no longer renewed"),
            () = stored.keep() => bail!("what the datastore keeps is no longer counted"),
            () = catalogue => bail!("installed tools are no longer looked at"),
            ended = report::follow(&administrator) => ended.context("report on layers"),
            ended = async {
                context.lead(candidacy, stop_work.clone()).await?;
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

async fn listen_for_metacontroller(address: Option<SocketAddr>) -> anyhow::Result<Option<TcpListener>> {
    if let Some(address) = address.filter(|address| !address.ip().is_loopback()) {
        bail!(
            "--metacontroller-listen {address} would answer whoever is in the network; choose a loopback address"
        );
    }
    metacontroller::listen(address).await
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

async fn http_service(
    options: &Up,
    data: &Path,
    reviewer: Arc<KubeReviewer>,
) -> anyhow::Result<(Router, Stored)> {
    let place = match &options.store {
        Some(bucket) => Place::Bucket(bucket.clone()),
        None => Place::Directory(data.join("artefacts")),
    };
    let objects = place.open(environment::texts()).await.context("open the artefacts")?;
    let keys = Keyring::open(&data.join("keys"), &objects, FirstKey::Made)
        .await
        .context("open the keys of the artefacts")?;
    let stored = Stored::new(&place, objects.clone());
    let parts = datastore::service::Options { objects, keys, reviewer };
    Ok((datastore::service::router(parts), stored))
}

fn controllers(
    options: &Up,
    data: &Path,
    tools: &tools::Places,
    for_runners: &TcpListener,
    client: kube::Client,
    token_file: &Path,
) -> anyhow::Result<ControllersRole> {
    let address = for_runners.local_addr().context("find the address for runners")?;
    let datastore_url = format!("http://{address}");
    let datastore = datastore::Client::new(&datastore_url, TokenSource::File(token_file.to_owned()))
        .context("prepare the datastore's client")?;
    let images = options.image_sources.options(data.join("images"), Addresses::OwnToo, options.source_limits);
    let git = GitOptions {
        // On one's own machine its own files and servers are meant to be read.
        file_urls: FileUrls::Allowed,
        addresses: Addresses::OwnToo,
        search_path: environment::search_path(),
        rewrites: options.git_rewrite.clone(),
        limits: options.source_limits.limits(),
        ..GitOptions::new(data.join("git"))
    };
    let mut settings = engine::Settings::new(RunnerSettings {
        image: api::LOCAL_IMAGE.to_owned(),
        service_account: "default".to_owned(),
        datastore_url,
        path: None,
        environment: tools.environment(),
        secrets: RunnerSecrets {
            environment: options.runner_secret_env.as_ref().map(ToString::to_string),
            files: None,
        },
    });
    settings.max_runner_pods = options.max_runner_pods.unwrap_or_else(default_runner_pods);
    settings.image_interval = options.image_sources.interval();
    settings.plan_expiry = options.plan_limits.expiry();
    settings.builds = options.image_builds.settings(&options.image_sources, Addresses::OwnToo);
    settings.backends = options.backend_files.read()?;
    settings.allow(options.runner_overrides.read()?);
    settings.told = options.surroundings.told(engine::door::surroundings::Whose::All);
    Ok(ControllersRole {
        client,
        namespaces: Namespaces::All,
        terraforms: metacontroller::keeper_of_terraforms(options.metacontroller_listen),
        datastore,
        git,
        images,
        settings: Arc::new(settings),
        metrics: Metrics::default(),
        offices: Offices::default(),
    })
}

/// The tools wait for the network about half of their time, and each takes some 60 MB.
fn default_runner_pods() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cores * 2).unwrap_or(u32::MAX).max(4)
}
