//! What can be typed.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::commands::{
    apply, describe, diff, drift, events, history, logs, outputs, plan, state, suspend, version, wait,
};

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
    /// Tell everything about one layer, run or repository
    Describe(describe::Options),
    /// Ask for a plan of a layer, without waiting for it
    #[command(visible_alias = "reconcile")]
    Sync(Sync),
    /// Plan a layer now, wait for it and show it; exits 0 without changes, 2 with changes, 1 on error
    Plan(plan::Options),
    /// Show the newest plan of a layer; exits 0 without changes, 2 with changes, 1 on error
    Diff(diff::Options),
    /// Approve the newest plan of a layer and follow its apply
    Apply(apply::Options),
    /// Allow the newest plan of a layer to be applied, by the digest of its bytes
    Approve(Approve),
    /// Forbid the newest plan of a layer to be applied
    Reject(Approve),
    /// Print the log of a run, or of the latest run of a layer
    Logs(logs::Options),
    /// List what happened to a layer and its runs
    Events(events::Options),
    /// List the runs of a layer and who decided about them
    History(history::Options),
    /// Wait until a condition holds
    Wait(wait::Options),
    /// Start nothing more for layers; what runs goes on
    Suspend(suspend::Options),
    /// Let suspended layers go on
    Resume(suspend::Options),
    /// Show where the infrastructure was found to differ from the state; exits 0 without drift, 2 with drift, 1 on error
    Drift(drift::Options),
    /// Show the outputs of a layer
    Outputs(outputs::Options),
    /// Look at the state of a layer, and repair it
    State(state::Options),
    /// Carry out one attempt of a run; started by the run controller, in a pod
    #[command(hide = true)]
    Runner(Runner),
    /// Say which version this is
    Version(version::Options),
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
    /// Make a Git repository with a few layers to play with, and follow it
    #[arg(long)]
    pub demo: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Target {
    /// The namespace; without one, that of the kubeconfig's context
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// The kubeconfig file; without one, as kubectl finds it
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; without one, the current
    #[arg(long)]
    pub context: Option<String>,
}

/// For verbs that change or show one object.
#[derive(Args, Debug)]
pub(crate) struct Shape {
    /// Print the object instead of a sentence
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Json,
    Yaml,
    Name,
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
    /// Go on with a line for every change
    #[arg(short, long)]
    pub watch: bool,
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
    #[command(flatten)]
    pub shape: Shape,
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
    #[command(flatten)]
    pub shape: Shape,
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

/// What the program was called, which says who calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Invocation {
    Terrane,
    /// As `kubectl-terrane`, which is how kubectl starts `kubectl terrane`: help speaks of itself so.
    KubectlPlugin,
    /// By kubectl, for words to offer.
    KubectlCompletion,
}

pub(crate) fn invocation(program: Option<&std::ffi::OsStr>) -> Invocation {
    let name = program.map(std::path::Path::new).and_then(|path| path.file_name());
    match name.and_then(|name| name.to_str()) {
        Some("kubectl-terrane") => Invocation::KubectlPlugin,
        Some(crate::commands::completion::PROGRAM) => Invocation::KubectlCompletion,
        _ => Invocation::Terrane,
    }
}

/// Reads what was typed; answers `--help` and mistakes itself, and ends the program then.
pub(crate) fn parse(invocation: Invocation) -> Arguments {
    use clap::{CommandFactory as _, FromArgMatches as _};
    let name = match invocation {
        Invocation::KubectlPlugin => "kubectl terrane",
        Invocation::Terrane | Invocation::KubectlCompletion => "terrane",
    };
    let matches = Arguments::command().bin_name(name).get_matches();
    Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        super::Arguments::command().debug_assert();
    }
}
