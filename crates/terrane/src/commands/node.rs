//! `terrane node`: this machine as a node of any Kubernetes API, its pods run as processes.

use std::path::Path;

use anyhow::{Context, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use node::config::{Admission, Jobs, Schedule};
use node::isolation::Isolation;
use tokio::signal::unix::{SignalKind, signal};

use crate::arguments::Node;
use crate::{kubernetes, local_node};

/// The database of `terrane up`, which has a node of its own below the same directory.
const DATABASE: &str = "store.db";

pub(crate) async fn run(options: Node) -> anyhow::Result<()> {
    let data = std::path::absolute(&options.data_dir)
        .with_context(|| format!("find {}", options.data_dir.display()))?;
    if data.join(DATABASE).exists() {
        bail!(
            "{} belongs to `terrane up`, which runs a node of its own; choose another directory with --data-dir",
            data.display()
        );
    }
    let config = configure(options.kubeconfig.as_deref(), options.context.as_deref()).await?;
    let server = config.cluster_url.to_string();
    let client = Client::try_from(config).context("use the kubeconfig")?;
    let opened = local_node::open(local_node::Options {
        name: options.name.map(|name| name.as_str().to_owned()),
        state: &data.join("node"),
        images: &options.images,
        readable: options.readable,
        schedule: if options.bind_unscheduled {
            Schedule::BindUnscheduled
        } else {
            Schedule::LeaveToScheduler
        },
        jobs: if options.control_jobs { Jobs::Control } else { Jobs::LeaveToController },
        admission: if options.bind_unscheduled || options.no_taint {
            Admission::Everything
        } else {
            Admission::Tolerating { taint: api::PROCESS_NODE_TAINT.to_owned() }
        },
        max_pods: options.max_pods,
    })?;
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt()).context("listen for Ctrl-C")?,
        signal(SignalKind::terminate()).context("listen for the signal to stop")?,
    );
    introduce(&opened, &server, &data);
    tokio::select! {
        ended = opened.node.run(client) => match ended {
            Ok(()) => bail!("the node {} ended by itself", opened.name),
            Err(error) => Err(error).with_context(|| format!("the node {}", opened.name)),
        },
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

async fn configure(kubeconfig: Option<&Path>, context: Option<&str>) -> anyhow::Result<Config> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let Some(path) = kubeconfig else {
        if context.is_some() {
            return Config::from_kubeconfig(&options).await.context("use the kubeconfig");
        }
        return kubernetes::config("name a kubeconfig with --kubeconfig or KUBECONFIG").await;
    };
    let using = || format!("use the kubeconfig {}", path.display());
    let kubeconfig = Kubeconfig::read_from(path).with_context(using)?;
    Config::from_custom_kubeconfig(kubeconfig, &options).await.with_context(using)
}

fn introduce(opened: &local_node::Opened, server: &str, data: &Path) {
    println!("node {} of {server}   data in {}", opened.name, data.display());
    if let Isolation::None { because } = &opened.isolation {
        println!("  warning  pods are not kept apart on this machine: {because}");
    }
    println!("Ctrl-C stops it; what its pods run goes on and is taken up by the next start.");
}
