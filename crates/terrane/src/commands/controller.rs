//! `terrane controller`: the controllers alone, against any Kubernetes API. Several can run; one acts, the others stand by, or each acts
//! for some of several shards.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use api::text::Sha256;
use axum::Router;
use axum::routing::get;
use controllers::Metrics;
use datastore::client::TokenSource;
use engine::leader::Terms;
use engine::manifests::{RunnerSecrets, RunnerSettings};
use rand::TryRngCore;
use sources::{Addresses, FileUrls, GitOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::arguments::Controller;
use crate::controllers_role::{
    Candidacy, ControllersRole, Offices, datastore_authority, provider_mirror, read_authority,
    tools_directory,
};
use crate::definitions::Definitions;
use crate::listening::serve_for_ever;
use crate::signs::{self, Duty};
use crate::{environment, kubernetes, metacontroller};

pub(crate) async fn run(options: Controller) -> anyhow::Result<()> {
    let client = kubernetes::role_client().await?;
    let address = options.listen;
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("listen on {address}; if something else does already, choose another address with --listen")
    })?;
    let for_metacontroller = metacontroller::listen(options.metacontroller_listen).await?;
    let role = role(&options, client.clone())?;
    ensure_believed(&role.datastore).await?;
    let identity = identity()?;
    let candidacy = || Candidacy::new(&client, &identity, Terms::default(), options.shards);
    let definitions = Definitions::new(client.clone());
    let signs = role.signs(Some(definitions.clone()), Duty::MayStandBy);
    let service =
        Router::new().route("/healthz", get(async || "ok")).merge(signs::router(signs, signs::Figures::Open));
    let stop = CancellationToken::new();
    tracing::info!(address = %listener.local_addr().unwrap_or(address), "serving health and metrics");
    tokio::select! {
        ended = serve_for_ever(listener, service, "the HTTP service") => ended,
        ended = metacontroller::serve(for_metacontroller, client.clone(), Arc::clone(&role.settings)) => ended,
        ended = lead(&role, candidacy, &definitions, &stop) => ended.context("the controllers"),
        () = told_twice(&stop) => {
            tracing::warn!("told to stop twice: ended at once; another controller follows when the Lease runs out");
            Ok(())
        }
    }
}

/// Stands for election as long as the cluster's definitions are those that this version needs.
async fn lead(
    role: &ControllersRole,
    candidacy: impl Fn() -> Candidacy,
    definitions: &Definitions,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    while stop.run_until_cancelled(definitions.await_whole()).await.is_some() {
        let term = stop.child_token();
        let mut leading = pin!(role.lead(candidacy(), term.clone()));
        tokio::select! {
            ended = &mut leading => return ended,
            () = definitions.await_lack() => term.cancel(),
        }
        // What is under way ends as if the process were told to, and another process may lead.
        leading.await?;
    }
    Ok(())
}

fn role(options: &Controller, client: kube::Client) -> anyhow::Result<ControllersRole> {
    let token = TokenSource::File(options.token_file.clone());
    let authority = read_authority(options.datastore_ca.as_deref())?;
    let datastore = datastore::Client::believing(&options.datastore_url, token, authority.as_deref())
        .context("prepare the datastore's client")?;
    let (file_urls, addresses) = if options.allow_local_sources {
        (FileUrls::Allowed, Addresses::OwnToo)
    } else if options.deny_private_addresses {
        (FileUrls::default(), Addresses::NotPrivate)
    } else {
        (FileUrls::default(), Addresses::default())
    };
    let git_dir = std::path::absolute(&options.git_dir)
        .with_context(|| format!("find {}", options.git_dir.display()))?;
    let images = options.image_sources.options(git_dir.join("images"), addresses, options.source_limits);
    let git = GitOptions {
        file_urls,
        addresses,
        search_path: environment::search_path(),
        rewrites: options.git_rewrite.clone(),
        limits: options.source_limits.limits(),
        ..GitOptions::new(git_dir)
    };
    let mut settings = engine::Settings::new(RunnerSettings {
        image: options.runner_image.clone(),
        service_account: options.runner_service_account.clone(),
        datastore_url: options.datastore_url.clone(),
        path: None,
        environment: authority
            .map(datastore_authority)
            .into_iter()
            .chain(options.provider_mirror.iter().map(|mirror| provider_mirror(mirror)))
            .chain(options.tools_dir.iter().map(|directory| tools_directory(directory)))
            .collect(),
        secrets: RunnerSecrets {
            environment: options.runner_secret_env.as_ref().map(ToString::to_string),
            files: options.runner_secret_files.as_ref().map(ToString::to_string),
        },
    });
    settings.max_runner_pods = options.max_runner_pods;
    settings.poll_interval = Duration::from_secs(options.poll_interval.get());
    settings.image_interval = options.image_sources.interval();
    settings.plan_expiry = options.plan_limits.expiry();
    let namespaces = options.area.namespaces();
    settings.builds = options.image_builds.settings(&options.image_sources, addresses, &namespaces)?;
    settings.image_pods = options.image_pods.settings(
        &options.image_sources,
        &options.runner_image,
        options.provider_mirror.as_deref(),
    );
    settings.backends = options.backend_files.read()?;
    settings.allow(options.runner_overrides.read()?);
    settings.told = options.surroundings.told(engine::door::surroundings::Whose::Nobodys);
    Ok(ControllersRole {
        client,
        namespaces,
        terraforms: metacontroller::keeper_of_terraforms(options.metacontroller_listen),
        datastore,
        git,
        images,
        settings: Arc::new(settings),
        metrics: Metrics::default(),
        offices: Offices::default(),
    })
}

/// A datastore that is away may come; one that nobody believes is a wrong flag, which is better said now than by every layer.
async fn ensure_believed(datastore: &datastore::Client) -> anyhow::Result<()> {
    let nothing = Sha256::of(b"is it the datastore?");
    let asked = datastore.clone().with_patience(Duration::ZERO).bundle_exists(&nothing).await;
    match asked {
        Err(error @ datastore::client::Error::Distrusted { .. }) => Err(error.into()),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Of this process alone, also among pods with the same host name.
fn identity() -> anyhow::Result<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut random = [0_u8; 4];
    rand::rngs::OsRng.try_fill_bytes(&mut random).context("ask the system for randomness")?;
    Ok(format!("{}_{}_{}", host.trim(), std::process::id(), hex::encode(random)))
}

/// The first signal lets the reconciles under way end and hands the Lease over; the second ends everything at once.
async fn told_twice(stop: &CancellationToken) {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        // Without handlers a signal ends the process at once, which is safe too.
        return std::future::pending().await;
    };
    for _ in 0..2 {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        stop.cancel();
    }
}
