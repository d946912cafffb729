//! The binary: roles and the command line. The only place that reads flags and the environment.

mod area;
mod arguments;
mod backend_files;
mod certifying;
mod commands;
mod controllers_role;
mod definitions;
mod demo;
mod environment;
mod exposition;
mod image_builds;
mod image_pods;
mod image_sources;
mod kubernetes;
mod listening;
mod local_node;
mod metacontroller;
mod plan_limits;
mod provider_service;
mod runner_overrides;
mod signs;
mod source_limits;
mod stored;
mod surroundings;
mod tool_service;
mod traffic;
mod up;

use std::ffi::OsString;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use arguments::{Arguments, Command, Invocation};

/// Controllers hold a fleet for months and change a little of it all the time. The system's allocator keeps what was freed between what is
/// still held; this one gives it back (settings: `.cargo/config.toml`).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // The shim is started once for every container, by the node alone: it needs neither the command line that people have, nor
    // logging, nor an async runtime of ours.
    if let Some(directory) = shim_directory(std::env::args_os().skip(1)) {
        return node::shim::main([directory]);
    }
    let invocation = arguments::invocation(std::env::args_os().next().as_deref());
    if invocation == Invocation::KubectlCompletion {
        let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
        return match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(commands::completion::answer_kubectl(words)),
            Err(_) => ExitCode::FAILURE,
        };
    }
    silence_without_readers();
    let arguments = arguments::parse(invocation);
    if let Command::Shim(shim) = arguments.command {
        return node::shim::main([shim.directory.into_os_string()]);
    }
    start_logging(&arguments);
    let runtime = match runtime(&arguments.command).enable_all().build().context("start the async runtime") {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    match std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(dispatch(arguments)))) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => fail(&error),
        Err(panic) => match panic.downcast_ref::<String>() {
            Some(said) if is_without_readers(said) => ExitCode::from(BY_SIGPIPE),
            Some(_) | None => std::panic::resume_unwind(panic),
        },
    }
}

/// A runner waits for its tool, nearly all the time: more threads would only wake each other, and take what the tool could use.
fn runtime(command: &Command) -> tokio::runtime::Builder {
    match command {
        Command::Runner(_) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    }
}

/// The status that shells give to a program that ended by SIGPIPE.
const BY_SIGPIPE: u8 = 128 + 13;

/// `terrane history | head` ends when `head` has seen enough, as every program in a pipe does, and not with the words of a panic.
fn silence_without_readers() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.payload_as_str().is_some_and(is_without_readers) {
            others(panic);
        }
    }));
}

fn is_without_readers(panic: &str) -> bool {
    panic.starts_with("failed printing to stdout") && panic.contains("Broken pipe")
}

/// The one argument of a shim that was called as the node calls it.
fn shim_directory(mut arguments: impl Iterator<Item = OsString>) -> Option<OsString> {
    let is_shim = arguments.next()? == "shim";
    let directory = arguments.next()?;
    let is_path = Path::new(&directory).is_absolute();
    (is_shim && is_path && arguments.next().is_none()).then_some(directory)
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {}", one_sentence(error));
    ExitCode::FAILURE
}

/// Some errors tell their cause themselves, others leave that to whoever prints them. Nothing is said twice.
fn one_sentence(error: &anyhow::Error) -> String {
    let mut sentence = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if sentence.is_empty() {
            sentence = cause;
        } else if !sentence.contains(&cause) {
            sentence = format!("{sentence}: {cause}");
        }
    }
    sentence
}

async fn dispatch(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let done = |()| ExitCode::SUCCESS;
    match arguments.command {
        Command::Up(options) => up::run(options).await.map(done),
        Command::Controller(options) => commands::controller::run(options).await.map(done),
        Command::Datastore(options) => commands::datastore::run(options).await.map(done),
        Command::Server(options) => commands::server::run(options).await.map(done),
        Command::Certificate(options) => commands::certificate::run(options).await.map(done),
        Command::GitServer(options) => commands::git_server::run(options).await.map(done),
        Command::Cancel(options) => commands::cancel::run(options).await.map(done),
        Command::Node(options) => commands::node::run(options).await.map(done),
        Command::Runner(options) => commands::runner::run(options).await,
        Command::Carry(options) => commands::carry::run(&options).map(done),
        Command::Get(options) => commands::get::run(options).await.map(done),
        Command::Sync(options) => commands::sync::run(options).await.map(done),
        Command::Approve(options) => {
            commands::approve::run(options, api::approval::Decision::Approve).await.map(done)
        }
        Command::Reject(options) => {
            commands::approve::run(options, api::approval::Decision::Reject).await.map(done)
        }
        Command::Describe(options) => commands::describe::run(options).await.map(done),
        Command::Plan(options) => commands::plan::run(options).await,
        Command::Diff(options) => commands::diff::run(options).await,
        Command::Apply(options) => commands::apply::run(options).await,
        Command::Logs(options) => commands::logs::run(options).await.map(done),
        Command::Events(options) => commands::events::run(options).await.map(done),
        Command::History(options) => commands::history::run(options).await.map(done),
        Command::Wait(options) => commands::wait::run(options).await.map(done),
        Command::Suspend(options) => {
            commands::suspend::run(options, commands::suspend::Wish::Suspend).await.map(done)
        }
        Command::Resume(options) => {
            commands::suspend::run(options, commands::suspend::Wish::Resume).await.map(done)
        }
        Command::Drift(options) => commands::drift::run(options).await,
        Command::Outputs(options) => commands::outputs::run(options).await.map(done),
        Command::State(options) => commands::state::run(options).await.map(done),
        Command::Tools(options) => commands::tools::run(options).await.map(done),
        Command::Backends(options) => commands::backends::run(&options).map(done),
        Command::Login(options) => commands::login::run(options).await.map(done),
        Command::Token(options) => commands::token::run(options).await.map(done),
        Command::Version(options) => commands::version::run(&options).map(done),
        Command::Completion { shell } => commands::completion::run(shell).map(done),
        Command::Shim(_) => Ok(ExitCode::FAILURE),
    }
}

fn start_logging(arguments: &Arguments) {
    use arguments::LogLevel;
    use tracing_subscriber::EnvFilter;
    let level = match (arguments.verbose, arguments.log_level) {
        (0, LogLevel::Error) => "error",
        (0, LogLevel::Warn) => "warn",
        (0, LogLevel::Info) => {
            "terrane=info,controllers=info,embedded=info,node=info,datastore=info,runner=info,sources=info,warn"
        }
        (1, _) | (0, LogLevel::Debug) => "debug,hyper=info,h2=info,rustls=info,tower=info",
        (_, _) => "trace",
    };
    let filter = EnvFilter::try_from_env("TERRANE_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let colour = std::io::IsTerminal::is_terminal(&std::io::stderr()) && !environment::wants_no_colour();
    match arguments.log_format {
        arguments::LogFormat::Text => logs.with_ansi(colour).with_target(false).compact().init(),
        arguments::LogFormat::Json => logs.json().flatten_event(true).init(),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    #[test]
    fn a_shim_is_what_the_node_calls_and_nothing_else() {
        let directory = |words: &[&str]| super::shim_directory(words.iter().map(Into::into));
        assert_eq!(directory(&["shim", "/state/pods/uid/main/0"]), Some("/state/pods/uid/main/0".into()));
        for other in [&["shim"][..], &["shim", "--help"], &["shim", "/a", "/b"], &["up", "/a"], &[]] {
            assert_eq!(directory(other), None, "{other:?}");
        }
    }

    #[test]
    fn an_error_is_one_sentence_that_says_nothing_twice() {
        let error = anyhow!("disk is read-only").context("x cannot be written: disk is read-only; choose y");
        assert_eq!(super::one_sentence(&error), "x cannot be written: disk is read-only; choose y");
        let error = Err::<(), _>(anyhow!("no such file")).context("read z").unwrap_err();
        assert_eq!(super::one_sentence(&error), "read z: no such file");
    }
}
