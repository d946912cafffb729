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
    /// How log lines on standard error look
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, env = "TERRANE_LOG_FORMAT")]
    pub log_format: LogFormat,
    #[command(subcommand)]
    pub command: Command,
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
    /// Show layers, runs, repositories or approvals
    Get(Get),
    /// Plan a layer now
    #[command(visible_alias = "reconcile")]
    Sync(Sync),
    /// Allow the newest plan of a layer to be applied, by the digest of its bytes
    Approve(Approve),
    /// Forbid the newest plan of a layer to be applied
    Reject(Approve),
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
    /// Where the HTTP service listens (artefacts, health)
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Where the Kubernetes API listens
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7443")]
    pub api_listen: SocketAddr,
    /// Read repositories below one URL from another place, such as a mirror; the longest FROM that fits wins, and the
    /// repository's credentials are used there. May be given several times
    #[arg(long, value_name = "FROM=TO")]
    pub git_rewrite: Vec<sources::Rewrite>,
    /// Make a Git repository with a few layers to play with, and follow it
    #[arg(long)]
    pub demo: bool,
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
