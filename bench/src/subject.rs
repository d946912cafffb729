//! The two servers that are measured: the embedded API in a process of its own, and a real kube-apiserver with etcd. Both write to
//! the same disk and answer after a write has reached it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use testkit::cluster::{Controllers, Disk, Options, RealCluster};
use testkit::process::{Guarded, Scratch};

use crate::client::{Body, Target};
use crate::objects;

/// Much longer than anything takes: it only ends a wait for something broken.
const LIMIT: Duration = Duration::from_secs(120);
/// Between two looks. What is measured by looking is at most this much too long.
const POLL: Duration = Duration::from_millis(5);

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Ours,
    Theirs,
}

/// A running server.
#[derive(Debug)]
pub enum Subject {
    Embedded(Embedded),
    Real(Box<RealCluster>),
}

impl Subject {
    /// Starts a server that holds nothing but the kinds that are measured.
    pub async fn start(side: Side, program: &Path) -> Result<Self> {
        let subject = match side {
            Side::Ours => Self::Embedded(Embedded::start(program).await?),
            Side::Theirs => {
                let options = Options { controllers: Controllers::Absent, disk: Disk::Durable };
                Self::Real(Box::new(RealCluster::start(options).await?))
            }
        };
        let target = subject.target().await?;
        if side == Side::Theirs {
            define_kinds(&target).await?;
        }
        let mut connection = target.connect().await?;
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": objects::NAMESPACE}});
        connection.must(Method::POST, "/api/v1/namespaces", Body::Json(namespace.to_string().into())).await?;
        Ok(subject)
    }

    pub async fn target(&self) -> Result<Target> {
        match self {
            Self::Embedded(server) => server.target().await,
            Self::Real(cluster) => Target::new(&cluster.config()?),
        }
    }

    /// Stops the server in order and starts it again; gives the time until it is ready and answers a list of layers.
    pub async fn restart(self) -> Result<(Self, Duration)> {
        let started;
        let again = match self {
            Self::Embedded(server) => {
                let stopped = server.stop().await?;
                started = Instant::now();
                Self::Embedded(stopped.start().await?)
            }
            Self::Real(cluster) => {
                let (cluster, took) = cluster.restart().await?;
                started = Instant::now().checked_sub(took).context("the clock started later than that")?;
                Self::Real(Box::new(cluster))
            }
        };
        wait_until_listed(&again.target().await?).await?;
        Ok((again, started.elapsed()))
    }

    /// Bytes of memory that the server's processes hold.
    pub fn resident_bytes(&self) -> Result<u64> {
        match self {
            Self::Embedded(server) => resident_bytes(server.process.pid()),
            Self::Real(cluster) => cluster.pids().into_iter().map(resident_bytes).sum(),
        }
    }
}

/// The embedded API, served by this program under another name.
#[derive(Debug)]
pub struct Embedded {
    // Fields are dropped in this order: first what uses the directory, then the directory.
    process: Guarded,
    place: Place,
}

/// What remains of the server while it is stopped.
#[derive(Debug)]
struct Place {
    program: PathBuf,
    /// The port that was free at the first start.
    port: u16,
    scratch: Scratch,
}

impl Embedded {
    async fn start(program: &Path) -> Result<Self> {
        let scratch = Scratch::new("terrane-bench-")?;
        let place = Place { program: program.to_owned(), port: 0, scratch };
        let mut server = place.start().await?;
        let config = server.place.config().await?;
        server.place.port = config.cluster_url.port_u16().context("the kubeconfig has no port")?;
        Ok(server)
    }

    async fn stop(self) -> Result<Place> {
        self.process.stop(LIMIT).await?;
        Ok(self.place)
    }

    async fn target(&self) -> Result<Target> {
        Target::new(&self.place.config().await?)
    }
}

impl Place {
    async fn start(self) -> Result<Embedded> {
        let data = self.data();
        let arguments = [
            "serve".to_owned(),
            format!("--data-dir={}", data.display()),
            format!("--listen=127.0.0.1:{}", self.port),
        ];
        let process = Guarded::start(&self.program, &arguments, self.scratch.path().join("serve.log"))?;
        let mut server = Embedded { process, place: self };
        let limit = Instant::now() + LIMIT;
        // The kubeconfig of a former start is right too: the port stays the same.
        loop {
            server.process.ensure_running()?;
            if let Ok(config) = server.place.config().await
                && is_ready(&Target::new(&config)?).await
            {
                return Ok(server);
            }
            ensure!(Instant::now() < limit, "the embedded API was not ready within {} s", LIMIT.as_secs());
            tokio::time::sleep(POLL).await;
        }
    }

    fn data(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    async fn config(&self) -> Result<kube::Config> {
        let kubeconfig = Kubeconfig::read_from(self.data().join("kubeconfig"))?;
        Ok(kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)
    }
}

async fn is_ready(target: &Target) -> bool {
    let answer = async {
        let mut connection = target.connect().await?;
        connection.must(Method::GET, "/readyz", Body::None).await
    };
    answer.await.is_ok_and(|answer| &*answer == b"ok")
}

/// A server may call itself ready before it serves custom resources.
async fn wait_until_listed(target: &Target) -> Result<()> {
    let limit = Instant::now() + LIMIT;
    let path = format!("{}?limit=1", objects::layers());
    loop {
        let mut connection = target.connect().await?;
        let (status, body) = connection.ask(Method::GET, &path, Body::None).await?;
        if status.is_success() && serde_json::from_slice::<Value>(&body)?.pointer("/items/0").is_some() {
            return Ok(());
        }
        ensure!(Instant::now() < limit, "layers were not listed within {} s: {status}", LIMIT.as_secs());
        tokio::time::sleep(POLL).await;
    }
}

/// Tells the real server of Terrane's kinds, and waits until it serves them.
async fn define_kinds(target: &Target) -> Result<()> {
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let mut connection = target.connect().await?;
    for definition in api::custom_resources() {
        let body = serde_json::to_vec(&definition).context("writing a definition")?;
        connection.must(Method::POST, DEFINITIONS, Body::Json(body.into())).await?;
    }
    let limit = Instant::now() + LIMIT;
    while !connection.ask(Method::GET, &objects::layers(), Body::None).await?.0.is_success() {
        ensure!(Instant::now() < limit, "the kinds were not served within {} s", LIMIT.as_secs());
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Processor time that a process has taken so far; its children's is their own.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    // The name of the program, in brackets, may hold anything; the fields follow it.
    let (_, fields) = stat.rsplit_once(')').context("the statistics of a process have no name")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let ticks = ticks.sum::<Result<u64, _>>().context("reading processor time")?;
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_millis(ticks * 1000 / per_second.max(1)))
}

pub fn resident_bytes(pid: u32) -> Result<u64> {
    status_bytes(pid, "VmRSS:")
}

/// A field of a process's status that is a size.
pub fn status_bytes(pid: u32, field: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix(field)).map(|rest| rest.trim_end_matches("kB"));
    match kib.map(str::trim).map(str::parse::<u64>) {
        Some(Ok(kib)) => Ok(kib * 1024),
        Some(Err(_)) | None => bail!("{path} does not tell {field}"),
    }
}
