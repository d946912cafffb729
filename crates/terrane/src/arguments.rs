//! What can be typed.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

#[derive(Parser, Debug)]
#[command(
    name = "terrane",
    version,
    about = "Keeps infrastructure equal to its code",
    propagate_version = true,
    max_term_width = 100
)]
pub(crate) struct Arguments {
    /// Say more; twice for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Which log lines appear on standard error; `-v` shows more of one command
    #[arg(long, global = true, value_enum, default_value_t = LogLevel::Info, env = "TERRANE_LOG_LEVEL")]
    pub log_level: LogLevel,
    /// How log lines on standard error look
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, env = "TERRANE_LOG_FORMAT")]
    pub log_format: LogFormat,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run everything on this machine: a Kubernetes API, a node that runs pods as processes, and the controllers
    Up(Up),
    /// Run the controllers against the Kubernetes API of the kubeconfig; of several, one acts and the others stand by
    Controller(Controller),
    /// Keep artefacts and states for the controllers and runners of the Kubernetes API of the kubeconfig
    Datastore(Datastore),
    /// Show layers, runs, repositories or approvals
    Get(Get),
    /// Plan a layer now
    #[command(visible_alias = "reconcile")]
    Sync(Sync),
    /// Allow the newest plan of a layer to be applied, by the digest of its bytes
    Approve(Approve),
    /// Forbid the newest plan of a layer to be applied
    Reject(Approve),
    /// Stop a run: one that waits never starts, one that runs is asked to stop and may save its state
    Cancel(Cancel),
    /// Carry out one attempt of a run; started by the run controller, in a pod
    #[command(hide = true)]
    Runner(Runner),
    /// Say which version this is
    Version,
    /// Print a completion script for a shell
    Completion { shell: clap_complete::Shell },
    #[command(hide = true)]
    Shim(Shim),
}

#[derive(Args, Debug)]
pub(crate) struct Up {
    /// Where everything is kept
    #[arg(long, value_name = "DIR", default_value = ".terrane", env = "TERRANE_DATA_DIR")]
    pub data_dir: PathBuf,
    /// Where the HTTP service listens (artefacts, health, metrics)
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Where the Kubernetes API listens
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7443")]
    pub api_listen: SocketAddr,
    /// How many runner pods may work at the same time; 0 sets no limit [default: twice the cores, at least 4]
    #[arg(long, value_name = "COUNT")]
    pub max_runner_pods: Option<u32>,
    /// Make a Git repository with a few layers to play with, and follow it
    #[arg(long)]
    pub demo: bool,
}

/// What the controllers are told, wherever they run.
#[derive(Args, Debug)]
pub(crate) struct Controller {
    /// Where health and metrics are served
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    pub listen: SocketAddr,
    /// Where the datastore is, for the controllers and for runners
    #[arg(long, value_name = "URL", env = "TERRANE_DATASTORE_URL")]
    pub datastore_url: String,
    /// The file with this controller's token for the datastore, read again for each request
    #[arg(long, value_name = "FILE", env = "TERRANE_TOKEN_FILE")]
    pub token_file: PathBuf,
    /// The image that runners run in
    #[arg(long, value_name = "IMAGE", env = "TERRANE_RUNNER_IMAGE")]
    pub runner_image: String,
    /// The ServiceAccount of runners, in the namespace of their layer
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub runner_service_account: String,
    /// Where mirrors of repositories are kept; a cache that can be emptied while nothing runs
    #[arg(long, value_name = "DIR", default_value = "/var/cache/terrane/git")]
    pub git_dir: PathBuf,
    /// How many runner pods may work at the same time, over all repositories; 0 sets no limit
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub max_runner_pods: u32,
    /// Read file:// repositories and Git servers on this machine too
    #[arg(long)]
    pub allow_local_sources: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Datastore {
    /// Where it listens
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Listen on an address of the network: something in front of it encrypts (a mesh, a proxy), as tokens must not travel in clear
    #[arg(long)]
    pub behind_tls: bool,
    /// Where artefacts and states are kept, encrypted
    #[arg(long, value_name = "DIR", default_value = "/var/lib/terrane/artefacts")]
    pub directory: PathBuf,
    /// Where the keys are kept; the first one is made. Whoever has these and the artefacts can read everything
    #[arg(long, value_name = "DIR", default_value = "/var/lib/terrane/keys")]
    pub keys: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct Cancel {
    /// A run, or a layer whose run is to stop
    pub name: String,
    #[command(flatten)]
    pub target: Target,
}

#[derive(Args, Debug)]
pub(crate) struct Target {
    /// The namespace; without one, that of the kubeconfig's context
    #[arg(short, long)]
    pub namespace: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Get {
    #[arg(value_enum)]
    pub kind: Kind,
    /// Only this one
    pub name: Option<String>,
    #[command(flatten)]
    pub target: Target,
    /// Of all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Only objects with these labels
    #[arg(short = 'l', long)]
    pub selector: Option<String>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    #[value(alias = "layer", alias = "tfl")]
    Layers,
    #[value(alias = "run", alias = "tfrun")]
    Runs,
    #[value(alias = "repository", alias = "tfr")]
    Repositories,
    #[value(alias = "approval", alias = "tfa")]
    Approvals,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Wide,
    Json,
    Yaml,
    Name,
}

#[derive(Args, Debug)]
pub(crate) struct Sync {
    /// The layer
    pub layer: String,
    #[command(flatten)]
    pub target: Target,
}

#[derive(Args, Debug)]
pub(crate) struct Approve {
    /// The layer
    pub layer: String,
    /// Only if the newest plan has this sha256, in full or its first digits
    #[arg(long, value_name = "SHA256")]
    pub plan: Option<String>,
    /// Why, for those who read the history
    #[arg(long)]
    pub reason: Option<String>,
    #[command(flatten)]
    pub target: Target,
}

#[derive(Args, Debug)]
pub(crate) struct Runner {
    #[arg(long, env = "TERRANE_DATASTORE_URL")]
    pub datastore_url: String,
    #[arg(long, env = "TERRANE_TOKEN_FILE")]
    pub token_file: PathBuf,
    #[arg(long, env = "TERRANE_RUN_UID")]
    pub run_uid: String,
    #[arg(long, env = "TERRANE_ATTEMPT")]
    pub attempt: u32,
    #[arg(long, env = "TERRANE_WORK_DIR")]
    pub work_dir: PathBuf,
    /// How long the tool may take to stop when the pod is told to
    #[arg(long, env = "TERRANE_GRACE_SECONDS")]
    pub grace_seconds: u64,
}

#[derive(Args, Debug)]
pub(crate) struct Shim {
    /// The directory of one start of one container
    pub directory: PathBuf,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        super::Arguments::command().debug_assert();
    }
}
