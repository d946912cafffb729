//! `make bench`: how fast and how large Terrane is, beside what it is compared with, in one table.
//!
//! This process is the client and the clock; every server that is measured is another process.

mod api_rows;
mod client;
mod cluster_rows;
mod door_rows;
mod engine_rows;
mod fleet;
mod measures;
mod objects;
mod product;
mod relevance_row;
mod report;
mod server;
mod state_rows;
mod subject;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use measures::Scale;
use subject::Side;

/// Measures Terrane beside what it is compared with.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure the Kubernetes API beside kube-apiserver with etcd.
    Api {
        /// Less of everything: a rough look.
        #[arg(long)]
        quick: bool,
        /// Directory that api.md and api.json are written to.
        #[arg(long)]
        results: Option<PathBuf>,
    },
    /// Measure the whole product: plans, applies, idle layers.
    Engine {
        /// The program `terrane`.
        #[arg(long, default_value = "target/release/terrane")]
        terrane: PathBuf,
        /// Less of everything: a rough look.
        #[arg(long)]
        quick: bool,
        /// Measure this part alone; may be said again for another.
        #[arg(long, value_name = "PART")]
        only: Vec<engine_rows::Part>,
        /// Directory that engine.md and engine.json are written to.
        #[arg(long)]
        results: Option<PathBuf>,
    },
    /// Measure the front doors: lists, stacks, webhooks, logs.
    Doors {
        /// The program `terrane`.
        #[arg(long, default_value = "target/release/terrane")]
        terrane: PathBuf,
        /// Less of everything: a rough look.
        #[arg(long)]
        quick: bool,
        /// Measure this part alone; may be said again for another.
        #[arg(long, value_name = "PART")]
        only: Vec<door_rows::Part>,
        /// Directory that doors.md and doors.json are written to.
        #[arg(long)]
        results: Option<PathBuf>,
    },
    /// Measure the controllers with many layers on kube-apiserver with etcd.
    Cluster {
        /// The program `terrane`.
        #[arg(long, default_value = "target/release/terrane")]
        terrane: PathBuf,
        /// The directory with the container images, as `make image` leaves them; without it their size is not told.
        #[arg(long)]
        images: Option<PathBuf>,
        /// Less of everything: a rough look.
        #[arg(long)]
        quick: bool,
        /// Directory that cluster.md and cluster.json are written to.
        #[arg(long)]
        results: Option<PathBuf>,
    },
    /// Take every measure of the embedded API once with tiny numbers, and print them.
    Smoke,
    /// Serve the embedded API: the process that is measured.
    #[command(hide = true)]
    Serve {
        #[arg(long)]
        data_dir: PathBuf,
        #[arg(long)]
        listen: SocketAddr,
    },
    /// Serve a datastore: the process that is measured.
    #[command(hide = true)]
    ServeDatastore {
        #[arg(long)]
        data_dir: PathBuf,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let outcome = runtime
        .context("starting the async runtime")
        .and_then(|runtime| runtime.block_on(run(arguments.command)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Result<()> {
    match command {
        Command::Api { quick, results } => {
            let scale = if quick { Scale::quick() } else { Scale::whole() };
            measure_api(&scale, results).await
        }
        Command::Engine { terrane, quick, only, results } => {
            let scale = if quick { engine_rows::Scale::quick() } else { engine_rows::Scale::whole() };
            let start = Instant::now();
            let say = |step: &str| eprintln!("{:>6.1} s  terrane up: {step}", start.elapsed().as_secs_f64());
            let rows =
                engine_rows::take(&terrane, &scale, &only, say).await.context("measuring terrane up")?;
            tell("engine", "Engine", "script", &rows, results)
        }
        Command::Doors { terrane, quick, only, results } => {
            let scale = if quick { door_rows::Scale::quick() } else { door_rows::Scale::whole() };
            let start = Instant::now();
            let say = |step: &str| eprintln!("{:>6.1} s  doors: {step}", start.elapsed().as_secs_f64());
            let rows = door_rows::take(&terrane, &scale, &only, say).await.context("measuring the doors")?;
            tell("doors", "Front doors", "", &rows, results)
        }
        Command::Cluster { terrane, images, quick, results } => {
            let scale = if quick { cluster_rows::Scale::quick() } else { cluster_rows::Scale::whole() };
            let start = Instant::now();
            let say = |step: &str| eprintln!("{:>6.1} s  cluster: {step}", start.elapsed().as_secs_f64());
            let rows = cluster_rows::take(&terrane, images.as_deref(), &scale, say)
                .await
                .context("measuring the controllers on a cluster")?;
            tell("cluster", "Cluster", "bare tool", &rows, results)
        }
        Command::Smoke => {
            let figures = take(Side::Ours, &Scale::tiny()).await?;
            println!("{figures:#?}");
            Ok(())
        }
        Command::Serve { data_dir, listen } => server::run(data_dir, listen).await,
        Command::ServeDatastore { data_dir } => state_rows::serve(data_dir).await,
    }
}

async fn measure_api(scale: &Scale, results: Option<PathBuf>) -> Result<()> {
    let ours = take(Side::Ours, scale).await?;
    let theirs = take(Side::Theirs, scale).await?;
    let rows = api_rows::rows(scale, &ours, &theirs);
    tell("api", "Kubernetes API", "kube-apiserver + etcd", &rows, results)
}

fn tell(name: &str, title: &str, theirs: &str, rows: &[report::Row], results: Option<PathBuf>) -> Result<()> {
    let table = report::table(title, theirs, rows);
    println!("{table}");
    results.map_or(Ok(()), |directory| report::write(&directory, name, &table, rows))
}

async fn take(side: Side, scale: &Scale) -> Result<measures::Figures> {
    let program = std::env::current_exe().context("finding this program")?;
    let name = match side {
        Side::Ours => "embedded API",
        Side::Theirs => "kube-apiserver + etcd",
    };
    let start = Instant::now();
    let say = |step: &str| eprintln!("{:>6.1} s  {name}: {step}", start.elapsed().as_secs_f64());
    measures::take(side, &program, scale, say).await.with_context(|| format!("measuring {name}"))
}
