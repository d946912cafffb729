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
    /// Run the pods of a Kubernetes API, of any cluster, as processes of this machine
    Node(Node),
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
    /// Where the HTTP service listens (artefacts, health); runners have an address of their own that stays
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Where the Kubernetes API listens
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7443")]
    pub api_listen: SocketAddr,
    /// Make a Git repository with a few layers to play with, and follow it
    #[arg(long)]
    pub demo: bool,
    #[command(flatten)]
    pub pods: Pods,
}

#[derive(Args, Debug)]
pub(crate) struct Node {
    /// What the node is called in the API; without it, the name of this machine
    #[arg(long)]
    pub name: Option<String>,
    /// Where records, logs and the files of pods are kept
    #[arg(long, value_name = "DIR", default_value = ".terrane", env = "TERRANE_DATA_DIR")]
    pub data_dir: PathBuf,
    /// Take pods that no node has: for an API without a scheduler
    #[arg(long)]
    pub bind_unscheduled: bool,
    /// Make the pods of Jobs: for an API without a job controller
    #[arg(long)]
    pub run_jobs: bool,
    #[command(flatten)]
    pub pods: Pods,
}

/// How pods run on this machine.
#[derive(Args, Debug)]
pub(crate) struct Pods {
    /// Let an image name, of any tag, mean the programs below a directory of this machine; can be repeated
    #[arg(long = "image", value_name = "NAME=DIR", value_parser = image_root)]
    pub images: Vec<ImageRoot>,
    /// How many pods may run at a time; others wait
    #[arg(long, value_name = "COUNT", default_value_t = node::config::DEFAULT_MAX_PODS)]
    pub max_pods: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageRoot {
    pub name: String,
    pub root: PathBuf,
}

fn image_root(text: &str) -> Result<ImageRoot, String> {
    match text.split_once('=') {
        Some((name, root)) if !name.is_empty() && !root.is_empty() => {
            Ok(ImageRoot { name: name.to_owned(), root: PathBuf::from(root) })
        }
        _ => Err("write it as NAME=DIR, such as example.org/tool=/opt/tool".to_owned()),
    }
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

    #[test]
    fn an_image_is_a_name_and_a_directory() {
        let given = super::image_root("example.org:5000/tool=/opt/a=b");
        let expected = super::ImageRoot { name: "example.org:5000/tool".to_owned(), root: "/opt/a=b".into() };
        assert_eq!(given, Ok(expected));
        for wrong in ["", "tool", "=/opt", "tool="] {
            assert!(super::image_root(wrong).is_err(), "{wrong}");
        }
    }
}
