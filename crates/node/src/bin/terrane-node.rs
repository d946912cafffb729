//! The process node as a program of its own, for this crate's tests and for work on it. The product's binary offers
//! the same entries.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use node::config::{self, Admission, Config, Jobs, Schedule, ShimCommand};
use node::images::Images;
use node::isolation::Isolation;
use node::records::LogLimits;

const USAGE: &str = "usage: terrane-node shim <attempt directory>\n       terrane-node run <node name> <state directory>   (with KUBECONFIG set)";

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next().as_deref().and_then(std::ffi::OsStr::to_str) {
        Some("shim") => node::shim::main(args),
        Some("run") => match run(args.collect()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("terrane-node: {error}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn run(args: Vec<OsString>) -> Result<(), Box<dyn std::error::Error>> {
    let [name, state] = <[OsString; 2]>::try_from(args).map_err(|_| USAGE)?;
    let state = PathBuf::from(state);
    let isolation = Isolation::detect(&state);
    if let Isolation::None { because } = &isolation {
        eprintln!("terrane-node: pods are not kept apart: {because}");
    }
    let program = std::env::current_exe()?;
    let pods = config::pods_directory(&state, &isolation);
    std::fs::create_dir_all(&pods)?;
    let programs = config::program_directory(&program, "terrane-node", &pods, &isolation)?;
    let node = node::Node::open(Config {
        name: name.into_string().map_err(|_| "the name of a node is text")?,
        shim: ShimCommand { program, args: vec!["shim".into()] },
        images: Images::new(vec![programs]),
        readable: Vec::new(),
        schedule: Schedule::LeaveToScheduler,
        jobs: Jobs::LeaveToController,
        admission: Admission::Everything,
        max_pods: config::DEFAULT_MAX_PODS,
        log: LogLimits::default(),
        state,
        pods,
        isolation,
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = kube::Client::try_default().await?;
        Ok(node.run(client).await?)
    })
}
