//! The process node as a role: `terrane node` on its own against any Kubernetes API, or a part of `terrane up`.

use std::path::PathBuf;

use anyhow::{Context, bail};
use kube::Client;
use node::config::{Jobs, Schedule, ShimCommand};
use node::images::{Image, Images};
use node::isolation::Isolation;
use node::records::LogLimits;
use node::{Config, Node};
use tokio::signal::unix::{SignalKind, signal};

use crate::{arguments, commands, environment};

/// What differs between the two.
pub(crate) struct Settings<'a> {
    pub(crate) name: String,
    pub(crate) state: PathBuf,
    pub(crate) pods: &'a arguments::Pods,
    pub(crate) schedule: Schedule,
    pub(crate) jobs: Jobs,
}

pub(crate) fn open(settings: Settings<'_>) -> anyhow::Result<(Node, Isolation)> {
    let isolation = Isolation::detect(&settings.state);
    let pods = node::config::pods_directory(&settings.state, &isolation);
    let program = std::env::current_exe().context("find this program")?;
    let beside = node::config::program_directory(&program, &pods, &isolation)
        .context("give pods a copy of this program")?;
    let path = environment::search_path();
    let programs = std::iter::once(beside).chain(std::env::split_paths(&path)).collect();
    let mut images = Images::new(programs);
    for image in &settings.pods.images {
        images = images.with(&image.name, find_image(image, &isolation)?);
    }
    let node = Node::open(Config {
        name: settings.name,
        state: settings.state,
        pods,
        shim: ShimCommand { program, args: vec!["shim".into()] },
        isolation: isolation.clone(),
        images,
        schedule: settings.schedule,
        jobs: settings.jobs,
        max_pods: settings.pods.max_pods,
        log: LogLimits::default(),
    })?;
    Ok((node, isolation))
}

/// Said at start rather than by every pod that uses it.
fn find_image(image: &arguments::ImageRoot, isolation: &Isolation) -> anyhow::Result<Image> {
    let arguments::ImageRoot { name, root } = image;
    let found = root
        .canonicalize()
        .with_context(|| format!("--image {name}={}: there is no such directory", root.display()))?;
    if !found.is_dir() {
        bail!("--image {name}={}: it is not a directory", root.display());
    }
    let reachable = node::config::others_can_reach(&found)
        .with_context(|| format!("--image {name}={}: look who may enter it", root.display()))?;
    match isolation {
        Isolation::Users(_) if !reachable => bail!(
            "--image {name}={}: pods have users of their own here, and others may not enter that directory; \
             let them, or choose another",
            root.display()
        ),
        Isolation::Users(_) | Isolation::Landlock | Isolation::None { .. } => Ok(Image::at(found)),
    }
}

/// A name that a Node may have.
pub(crate) fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_lowercase();
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "local".to_owned() } else { name.to_owned() }
}

/// `terrane node`: serves until it is told to stop. What its pods run goes on, and the next start takes it up again.
pub(crate) async fn run(options: arguments::Node) -> anyhow::Result<()> {
    let data = std::path::absolute(&options.data_dir)
        .with_context(|| format!("find {}", options.data_dir.display()))?;
    let config = commands::configuration().await?;
    let (api, client) = (config.cluster_url.clone(), Client::try_from(config).context("use the kubeconfig")?);
    let name = options.name.unwrap_or_else(hostname);
    let (node, isolation) = open(Settings {
        name: name.clone(),
        state: data.join("node"),
        pods: &options.pods,
        schedule: if options.bind_unscheduled {
            Schedule::BindUnscheduled
        } else {
            Schedule::LeaveToScheduler
        },
        jobs: if options.run_jobs { Jobs::Control } else { Jobs::LeaveToController },
    })?;
    println!("node {name} runs pods of {api}, data in {}", data.display());
    if let Isolation::None { because } = isolation {
        println!("warning: pods are not kept apart on this machine: {because}");
    }
    let listen = |kind| signal(kind).context("listen for signals");
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    tokio::select! {
        ended = node.run(client) => {
            ended.context("the process node")?;
            bail!("the process node ended")
        }
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}
