//! What can be typed.

use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU64};
use std::path::{Path, PathBuf};

use api::text::ObjectName;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::area::Area;
use crate::backend_files::BackendFiles;
use crate::commands::{
    apply, backends, certificate, datastore, describe, diff, drift, events, git_server, history, login, logs,
    outputs, plan, server, state, suspend, token, tools, version, wait,
};
use crate::image_builds::{ClusterBuilds, ImageBuilds};
use crate::image_pods::ClusterImagePods;
use crate::image_sources::ImageSources;
use crate::plan_limits::PlanLimits;
use crate::runner_overrides::RunnerOverrides;
use crate::signs::Figures;
use crate::source_limits::SourceLimits;
use crate::surroundings::Surroundings;

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
    /// Run the controllers against the Kubernetes API of the kubeconfig; of several, one acts and the others stand by, or each acts for some shards
    Controller(Controller),
    /// Keep artefacts and states for the controllers and runners of the Kubernetes API of the kubeconfig
    Datastore(datastore::Options),
    /// Serve logs, plans, outputs and states to people, by the rights that the Kubernetes API gives them
    Server(server::Options),
    /// Run pods as processes on this machine, for any Kubernetes API
    Node(Node),
    /// Make a certificate and keep it in a Secret, unless one is there
    Certificate(certificate::Options),
    /// Serve a directory of files as a Git repository over https, to read
    GitServer(git_server::Options),
    /// Show layers, runs, repositories or approvals
    Get(Get),
    /// Tell everything about one layer, run or repository
    Describe(describe::Options),
    /// Ask for a plan of a layer, or a look at a repository, without waiting for it
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
    /// Stop a run: one that waits never starts, one that runs is asked to stop and may save its state
    Cancel(Cancel),
    /// Print the log of a run, or of the latest run of a layer
    Logs(logs::Options),
    /// List what happened to a layer and its runs
    Events(events::Options),
    /// List the runs of a layer, who decided about them, and what was written down before infrastructure could be changed
    History(history::Options),
    /// Wait until a condition holds
    Wait(wait::Options),
    /// Start nothing more for layers, or look at repositories no more; what runs goes on
    Suspend(suspend::Options),
    /// Let suspended layers and repositories go on
    Resume(suspend::Options),
    /// Show where the infrastructure was found to differ, accept or revert it; shows exit 0 without drift, 2 with drift, 1 on error
    Drift(drift::Options),
    /// Show the outputs of a layer
    Outputs(outputs::Options),
    /// Look at the state of a layer, and repair it
    State(state::Options),
    /// List, install and remove the terraform, tofu and terragrunt that runs use
    Tools(tools::Options),
    /// List the backends that layers can keep their states in, and what each wants to be told
    Backends(backends::Options),
    /// Print a link that logs you in to the HTTP service of `terrane up` once
    Login(login::Options),
    /// Make, list and revoke tokens by which programs use the HTTP service of `terrane up`
    Token(token::Options),
    /// Carry out one attempt of a run; started by the run controller, in a pod
    #[command(hide = true)]
    Runner(Runner),
    /// Put this program, what it needs to run and the tools of this image into a directory; for a runner in a container of another image
    #[command(hide = true)]
    Carry(Carry),
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
    /// Where the HTTP service listens (artefacts, health, metrics); runners have an address of their own that stays
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Do not serve /metrics, which anybody who reaches the service may read
    #[arg(long)]
    pub no_metrics: bool,
    /// Where the Kubernetes API listens; others can reach it only with a certificate that they trust
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7443")]
    pub api_listen: SocketAddr,
    /// Keep artefacts and states in this bucket instead of the data directory: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or
    /// az://CONTAINER/PREFIX; credentials come from the environment, and the keys stay in the data directory
    #[arg(long, value_name = "URL", env = "TERRANE_STORE")]
    pub store: Option<::datastore::service::Bucket>,
    /// How many runner pods may work at the same time; 0 sets no limit [default: twice the cores, at least 4]
    #[arg(long, value_name = "COUNT")]
    pub max_runner_pods: Option<u32>,
    /// The certificate shown to other machines: a PEM file, leaf first, read again when it changes
    #[arg(long, value_name = "FILE")]
    pub api_tls_cert: Option<PathBuf>,
    /// The key of that certificate: a PEM file
    #[arg(long, value_name = "FILE")]
    pub api_tls_key: Option<PathBuf>,
    /// Where the administrator's kubeconfig is written; in the data directory if not said
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Let pods of this image run the programs below a directory of this machine; can be given again
    #[arg(long = "image", value_name = "NAME=DIR", value_parser = image_root)]
    pub images: Vec<ImageRoot>,
    /// A Secret of the layer's namespace whose keys become variables of its runners, where it exists, such as AWS_ACCESS_KEY_ID
    #[arg(long, value_name = "NAME")]
    pub runner_secret_env: Option<ObjectName>,
    /// Read repositories below one URL from another place, such as a mirror; the longest FROM that fits wins, and the
    /// repository's credentials are used there. May be given several times
    #[arg(long, value_name = "FROM=TO")]
    pub git_rewrite: Vec<sources::Rewrite>,
    #[command(flatten)]
    pub source_limits: SourceLimits,
    #[command(flatten)]
    pub image_sources: ImageSources,
    #[command(flatten)]
    pub plan_limits: PlanLimits,
    #[command(flatten)]
    pub image_builds: ImageBuilds,
    #[command(flatten)]
    pub downloads: tools::Downloads,
    #[command(flatten)]
    pub registries: crate::provider_service::Registries,
    /// Where runs get providers from: a directory as `terraform providers mirror` fills it, or an https URL of a network mirror
    #[arg(long, value_name = "DIR|URL", env = "TERRANE_PROVIDER_MIRROR")]
    pub provider_mirror: Option<String>,
    #[command(flatten)]
    pub backend_files: BackendFiles,
    #[command(flatten)]
    pub runner_overrides: RunnerOverrides,
    #[command(flatten)]
    pub surroundings: Surroundings,
    /// Leave Terraforms to metacontroller, and answer its /sync and /finalize here; nobody is asked who they are
    #[arg(long, value_name = "ADDRESS")]
    pub metacontroller_listen: Option<SocketAddr>,
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
    /// The authority that signed the datastore's certificate, for the controllers and for runners: a PEM file, read at the start.
    /// Without it, those that each machine trusts
    #[arg(long, value_name = "FILE", env = "TERRANE_DATASTORE_CA")]
    pub datastore_ca: Option<PathBuf>,
    /// The file with this controller's token for the datastore, read again for each request
    #[arg(long, value_name = "FILE", env = "TERRANE_TOKEN_FILE")]
    pub token_file: PathBuf,
    /// The image that runners run in
    #[arg(long, value_name = "IMAGE", env = "TERRANE_RUNNER_IMAGE")]
    pub runner_image: String,
    /// The ServiceAccount of runners, in the namespace of their layer
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub runner_service_account: String,
    /// A Secret of the layer's namespace whose keys become variables of its runners, where it exists, such as AWS_ACCESS_KEY_ID
    #[arg(long, value_name = "NAME")]
    pub runner_secret_env: Option<ObjectName>,
    /// A Secret of the layer's namespace whose keys become files of /etc/terrane/credentials in its runners, where it exists; a file
    /// called credentials is shown to the tools of AWS
    #[arg(long, value_name = "NAME")]
    pub runner_secret_files: Option<ObjectName>,
    /// How often repositories are looked at that say nothing of it themselves
    #[arg(long, value_name = "SECONDS", default_value = "60")]
    pub poll_interval: NonZeroU64,
    /// Where mirrors of repositories are kept; a cache that can be emptied while nothing runs
    #[arg(long, value_name = "DIR", default_value = "/var/cache/terrane/git")]
    pub git_dir: PathBuf,
    /// How many runner pods may work at the same time, over all repositories; 0 sets no limit
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub max_runner_pods: u32,
    #[command(flatten)]
    pub area: Area,
    /// Divide the namespaces into so many parts by the hash of their names, each with a leader of its own, so that several controllers act
    /// at the same time; the same number for all of them, as many as there may be controllers
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = shard_count)]
    pub shards: NonZeroU16,
    /// Read file:// repositories and Git servers on this machine too
    #[arg(long)]
    pub allow_local_sources: bool,
    /// Ask no Git server, registry or receiver of notifications at a private address (RFC 1918, unique local, shared by carriers and their
    /// like), unless --git-rewrite or --registry-rewrite leads there
    #[arg(long, conflicts_with = "allow_local_sources")]
    pub deny_private_addresses: bool,
    /// Read repositories below one URL from another place, such as a mirror; may be given several times
    #[arg(long, value_name = "FROM=TO")]
    pub git_rewrite: Vec<sources::Rewrite>,
    #[command(flatten)]
    pub source_limits: SourceLimits,
    #[command(flatten)]
    pub image_sources: ImageSources,
    #[command(flatten)]
    pub plan_limits: PlanLimits,
    #[command(flatten)]
    pub image_pods: ClusterImagePods,
    #[command(flatten)]
    pub image_builds: ClusterBuilds,
    /// Where runs get providers from: a directory of the runner's image, or an https URL of a network mirror
    #[arg(long, value_name = "DIR|URL", env = "TERRANE_PROVIDER_MIRROR")]
    pub provider_mirror: Option<String>,
    /// A store of tools and providers that runners can read, such as that of `terrane datastore --tools` on a shared volume or on the
    /// machine of a process node; without it they fetch what they need from the datastore
    #[arg(long, value_name = "DIR", env = "TERRANE_TOOLS_DIR")]
    pub tools_dir: Option<PathBuf>,
    #[command(flatten)]
    pub backend_files: BackendFiles,
    #[command(flatten)]
    pub runner_overrides: RunnerOverrides,
    #[command(flatten)]
    pub surroundings: Surroundings,
    /// Leave Terraforms to metacontroller, and answer its /sync and /finalize here; nobody is asked who they are, so let nobody else reach
    /// it. The same for all controllers of a cluster
    #[arg(long, value_name = "ADDRESS")]
    pub metacontroller_listen: Option<SocketAddr>,
}

impl Up {
    pub(crate) fn metrics(&self) -> Figures {
        if self.no_metrics { Figures::Closed } else { Figures::Open }
    }
}

#[derive(Args, Debug)]
pub(crate) struct Cancel {
    /// A run, or a layer whose run is to stop
    pub name: String,
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub shape: Shape,
}

/// An image name, and the directory of this machine that it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageRoot {
    pub name: String,
    pub directory: PathBuf,
}

fn image_root(text: &str) -> Result<ImageRoot, String> {
    let (name, directory) = match text.split_once('=') {
        Some((name, directory)) if !name.is_empty() => (name, Path::new(directory)),
        Some(_) | None => return Err("say NAME=DIRECTORY, as in example.org/tool=/opt/tool".to_owned()),
    };
    if !directory.is_absolute() {
        return Err(format!("{} is no absolute path", directory.display()));
    }
    if !directory.is_dir() {
        return Err(format!("{} is no directory of this machine", directory.display()));
    }
    Ok(ImageRoot { name: name.to_owned(), directory: directory.to_owned() })
}

/// Each shard renews a Lease of its own every two seconds.
fn shard_count(text: &str) -> Result<NonZeroU16, String> {
    match text.parse::<NonZeroU16>() {
        Ok(count) if count.get() <= MOST_SHARDS => Ok(count),
        Ok(_) | Err(_) => Err(format!("say a number from 1 to {MOST_SHARDS}")),
    }
}

const MOST_SHARDS: u16 = 64;

fn readable(text: &str) -> Result<PathBuf, String> {
    let directory = Path::new(text);
    if directory.is_absolute() && directory.is_dir() {
        Ok(directory.to_owned())
    } else {
        Err(format!("{text} is no absolute path of a directory of this machine"))
    }
}

/// Run pods as processes on this machine, for any Kubernetes API
///
/// Registers this machine as a Node and runs the pods that are bound to it, as a kubelet does but without containers: each
/// container is a process with the environment and the volumes that its pod names. As root every pod has a user of its own,
/// otherwise Landlock keeps pods apart. There is nothing to pull: the image terrane.dev/local means this machine's own programs,
/// and --image maps other names to directories.
///
/// The kubeconfig needs the rights of a kubelet (the ClusterRole system:node). `terrane up` has such a node already.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  A node of the cluster that kubectl uses, under this machine's name:
      terrane node
  A second node on this machine, for an API that has neither scheduler nor job controller:
      terrane node --name second --data-dir .second --kubeconfig api.yaml --bind-unscheduled --control-jobs")]
pub(crate) struct Node {
    /// How to reach the API; without it, KUBECONFIG, ~/.kube/config, or the account of the pod this runs in
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; without it, the current one
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// The name of the Node; without it, that of this machine
    #[arg(long, value_name = "NAME")]
    pub name: Option<ObjectName>,
    /// Where records and logs of pods are kept; one directory for each node
    #[arg(long, value_name = "DIR", default_value = ".terrane-node")]
    pub data_dir: PathBuf,
    /// Let pods of this image run the programs below a directory of this machine; can be given again
    #[arg(long = "image", value_name = "NAME=DIR", value_parser = image_root)]
    pub images: Vec<ImageRoot>,
    /// Let pods that are confined by path read this directory too, such as a store of tools or a mirror of providers; can be given
    /// again
    #[arg(long = "readable", value_name = "DIR", value_parser = readable)]
    pub readable: Vec<PathBuf>,
    /// How many pods may run at a time; the others wait
    #[arg(long, value_name = "COUNT", default_value_t = node::config::DEFAULT_MAX_PODS)]
    pub max_pods: usize,
    /// Bind every pod without a node to this one: for an API that has no scheduler
    #[arg(long)]
    pub bind_unscheduled: bool,
    /// Make the Node without the taint terrane.dev/process-node:NoSchedule, which keeps away pods that are meant for containers;
    /// runners of the image terrane.dev/local tolerate it
    #[arg(long)]
    pub no_taint: bool,
    /// Make the pods of Jobs: for an API that has no job controller
    #[arg(long)]
    pub control_jobs: bool,
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

/// For verbs that ask the HTTP service.
#[derive(Args, Debug)]
pub(crate) struct Reach {
    #[command(flatten)]
    pub target: Target,
    /// For a kubeconfig with a client certificate, which the HTTP service cannot check: ask it as this ServiceAccount (of the
    /// namespace, or NAMESPACE/NAME), by a token of ten minutes that the API gives to whoever may create serviceaccounts/token
    #[arg(long, value_name = "NAME", env = "TERRANE_SERVICE_ACCOUNT", value_parser = service_account)]
    pub service_account: Option<ServiceAccountName>,
}

/// A ServiceAccount; without a namespace, of the one that is worked in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceAccountName {
    pub namespace: Option<ObjectName>,
    pub name: ObjectName,
}

fn service_account(text: &str) -> Result<ServiceAccountName, String> {
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, text),
    };
    let checked = |name: &str| ObjectName::new(name).map_err(|error| error.to_string());
    Ok(ServiceAccountName { namespace: namespace.map(checked).transpose()?, name: checked(name)? })
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
    #[value(alias = "repo", alias = "tfrepo")]
    Repos,
    #[value(alias = "terraform", alias = "tfw")]
    Terraforms,
    #[value(alias = "notification", alias = "tfn")]
    Notifications,
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
#[command(after_help = "\
The repository is looked at first, so that what was pushed a moment ago is planned.
What follows is up to the layer, as after any plan: with autoApply it is applied, else it waits for `terrane approve`.
`terrane plan` asks for the same, waits and shows the plan.
`terrane sync repository/NAME` has a repository looked at now; what its layers make of what is found is up to them.
Without this command, and of the commit that is known: kubectl annotate tfl NAME --overwrite terrane.dev/sync=\"$(date)\"
A repository: kubectl annotate tfr NAME --overwrite terrane.dev/sync=\"$(date)\"")]
pub(crate) struct Sync {
    /// A layer, KIND/NAME of a layer or a repository, or a KIND that a NAME follows
    pub object: String,
    /// The name, where a kind stands before it
    pub name: Option<String>,
    /// Plan the newest commit that is known, without a look at the repository
    #[arg(long)]
    pub known: bool,
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
    /// The only authority to believe about the datastore's certificate, in PEM
    #[arg(long, value_name = "PEM", env = "TERRANE_DATASTORE_AUTHORITY")]
    pub datastore_authority: Option<String>,
    #[arg(long, env = "TERRANE_TOKEN_FILE")]
    pub token_file: PathBuf,
    #[arg(long, env = "TERRANE_RUN_UID")]
    pub run_uid: String,
    #[arg(long, env = "TERRANE_ATTEMPT")]
    pub attempt: u32,
    #[arg(long, env = "TERRANE_WORK_DIR")]
    pub work_dir: PathBuf,
    /// The store of downloaded tools, where runners of this machine see one
    #[arg(long, env = "TERRANE_TOOLS_DIR")]
    pub tools_dir: Option<PathBuf>,
    #[arg(long, env = "TERRANE_PROVIDER_MIRROR")]
    pub provider_mirror: Option<String>,
    /// kaniko's executor, in an image that has it
    #[arg(long, value_name = "FILE", env = "TERRANE_KANIKO")]
    pub kaniko: Option<PathBuf>,
    /// Where `terrane carry` put this program, in a container of an image that is not the runners' own
    #[arg(long, value_name = "DIR", env = "TERRANE_CARRIED")]
    pub carried: Option<PathBuf>,
    /// How long the tool may take to stop when the pod is told to
    #[arg(long, env = "TERRANE_GRACE_SECONDS")]
    pub grace_seconds: u64,
}

#[derive(Args, Debug)]
pub(crate) struct Carry {
    pub directory: PathBuf,
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
    #![allow(clippy::unwrap_used)]
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_definition_is_sound() {
        super::Arguments::command().debug_assert();
    }

    #[test]
    fn the_chart_gives_flags_that_exist() {
        let rendered = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/tests/rendered");
        let mut calls = 0;
        for file in std::fs::read_dir(rendered).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            let mut lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
            while lines.any(|line| line == "args:") {
                let words = lines.by_ref().map_while(|line| line.strip_prefix("- "));
                let words: Vec<&str> = words.map(|word| word.trim_matches('"')).collect();
                let parsed = super::Arguments::try_parse_from(["terrane"].iter().chain(&words));
                assert!(parsed.is_ok(), "{words:?}: {:?}", parsed.err());
                calls += 1;
            }
        }
        assert_eq!(
            calls, 17,
            "three parts in each of five sets of values, and two certificates in one of them"
        );
    }

    /// Verbs that print no object, and so have no shapes to choose from.
    const WITHOUT_OBJECTS: &[(&str, &[&str])] = &[
        (
            "serves until it is told to stop",
            &["up", "controller", "datastore", "server", "node", "git-server"],
        ),
        ("is started by Terrane", &["runner", "carry", "shim"]),
        ("makes a Secret where there is none, at an install", &["certificate"]),
        (
            "looks after keys where they lie, and says what it did",
            &["datastore keys add", "datastore keys list", "datastore keys reseal"],
        ),
        ("prints a text as it is", &["logs", "completion", "state pull"]),
        ("prints a secret that is not shown again", &["login", "token create"]),
        ("takes away what is no object, and says so", &["token revoke"]),
    ];

    /// The words of every verb, and whether it takes `-o json`.
    fn verbs(command: &clap::Command, words: &str) -> Vec<(String, bool)> {
        let below = command.get_subcommands().filter(|verb| verb.get_name() != "help");
        let mut found: Vec<(String, bool)> =
            below.flat_map(|verb| verbs(verb, &format!("{words} {}", verb.get_name()))).collect();
        if command.is_subcommand_required_set() {
            return found;
        }
        let is_shape = |argument: &&clap::Arg| argument.get_long() == Some("output");
        let takes_json = command.get_arguments().find(is_shape).is_some_and(|argument| {
            argument.get_short() == Some('o')
                && argument.get_possible_values().iter().any(|value| value.get_name() == "json")
        });
        found.push((words.trim().to_owned(), takes_json));
        found
    }

    #[test]
    fn every_verb_that_prints_objects_prints_them_as_json() {
        let all = verbs(&super::Arguments::command(), "");
        let mut without: Vec<&str> =
            all.iter().filter(|(_, takes_json)| !takes_json).map(|(words, _)| words.as_str()).collect();
        let mut excepted: Vec<&str> = WITHOUT_OBJECTS.iter().flat_map(|(_, verbs)| *verbs).copied().collect();
        excepted.sort_unstable();
        without.sort_unstable();
        assert_eq!(without, excepted);
    }

    #[test]
    fn the_documents_name_verbs_that_exist() {
        let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let documents = ["docs", "docs/adr"].map(|place| root.join(place));
        let files = documents.iter().flat_map(|place| std::fs::read_dir(place).unwrap());
        let files = files
            .map(|file| file.unwrap().path())
            .filter(|file| file.extension().is_some_and(|end| end == "md"));
        let mut known = super::Arguments::command();
        known.build();
        let mut seen = 0;
        for file in files.chain([root.join("README.md"), root.join("CHANGELOG.md")]) {
            let text = std::fs::read_to_string(&file).unwrap();
            // As it is quoted in a sentence: what follows is a verb, unless it is a flag or stands for one.
            for words in text.split("`terrane ").skip(1) {
                let verb: String =
                    words.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
                if verb.is_empty() || verb.starts_with('-') {
                    continue;
                }
                assert!(known.find_subcommand(&verb).is_some(), "{} names `terrane {verb}`", file.display());
                seen += 1;
            }
        }
        assert!(seen > 100, "{seen}");
    }

    #[test]
    fn an_image_is_a_name_and_a_directory() {
        let given = super::image_root("example.org:5000/tool=/usr");
        let expected =
            super::ImageRoot { name: "example.org:5000/tool".to_owned(), directory: "/usr".into() };
        assert_eq!(given, Ok(expected));
        for wrong in ["", "tool", "=/usr", "tool=", "tool=usr", "tool=/usr/no/such/directory"] {
            assert!(super::image_root(wrong).is_err(), "{wrong}");
        }
    }
}
