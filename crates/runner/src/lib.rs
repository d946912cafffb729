//! One attempt of a run, from its description to its result. A runner has no rights but those of its attempt's token,
//! and no Kubernetes client; everything it learns and leaves goes through the datastore.

mod attempt;
mod backend;
mod build;
mod ending;
mod generated;
mod hooks;
pub mod image;
mod inputs;
mod kept;
mod log;
mod mask;
mod outputs;
mod providers;
mod proxy;
mod scripts;
mod state;
mod toolbox;
pub mod unpack;

use std::ffi::OsString;
use std::future::Future;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::attempt::{Description, Outcome, Reason};
use api::run::Action;
use api::text::{Sha256, Span};
use datastore::client::{self, TokenSource};
use datastore::{Artefact, Attempt, Client, StateId};
use jiff::Timestamp;
use secrecy::SecretString;
use tofu::process::{Surroundings, Wish};
use tokio::sync::watch;

pub use log::Echo;

use attempt::{Places, Work};
use ending::{Ending, Logged};
use inputs::{Given, Reading};
use log::Log;
use mask::Mask;

const DESCRIPTION_LIMIT: u64 = 1024 * 1024;
/// Between two questions whether there is room for the result.
const ROOM_AGAIN: Duration = Duration::from_secs(2);

/// What a runner is started with.
#[derive(Debug)]
pub struct RunnerOptions {
    /// Such as `http://127.0.0.1:9000`.
    pub datastore_url: String,
    /// The only authority to believe about its certificate, in PEM; without one, those of the machine.
    pub datastore_authority: Option<String>,
    /// Read again for each request, because it is renewed in place.
    pub token_file: PathBuf,
    pub run_uid: String,
    pub attempt: u32,
    /// Must be the same absolute path for all attempts of a layer.
    pub work_dir: PathBuf,
    /// Where tools are looked for; also the PATH they see.
    pub search_path: Vec<PathBuf>,
    /// The store of downloaded tools that all runners of this machine read; not every machine has one.
    pub tools: Option<PathBuf>,
    /// A directory with providers, or the https address of a mirror of them, that the administrator named.
    pub provider_mirror: Option<String>,
    /// kaniko's executor, which only images for builds have. It takes the whole file system for its own.
    pub kaniko: Option<PathBuf>,
    /// Where the objects are that the layer's inputs refer to, in their order.
    pub inputs: Vec<PathBuf>,
    /// What the pod gives to the tool: variables, credentials of providers.
    pub environment: Vec<(OsString, OsString)>,
    /// Values that must not appear in the log.
    pub secrets: Vec<SecretString>,
    /// How long the tool may take to stop.
    pub grace: Duration,
    /// How long an absent datastore is waited for.
    pub patience: Duration,
    /// How long a plan may take, from its start, where its description does not say it; one that hangs is stopped then. An apply has all the
    /// time that it needs, unless its description says otherwise: one that is stopped leaves its work half done.
    pub plan_limit: Span,
    pub echo: Echo,
}

/// Why nothing could be reported. Whoever started the runner sees it on standard error only.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the description of the attempt could not be fetched: {0}")]
    Description(client::Error),
    #[error("the attempt {0} has no description in the datastore")]
    NoDescription(Attempt),
    #[error("the description cannot be understood: {0}")]
    Malformed(String),
    #[error("the working directory {path} cannot be prepared: {source}")]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("the loopback address for the state cannot be opened: {0}")]
    Loopback(std::io::Error),
    #[error("the operating system gave no randomness: {0}")]
    Randomness(String),
    #[error("the log could not be stored: {0}")]
    Log(client::Error),
    #[error("the result could not be stored: {0}")]
    Result(client::Error),
}

/// Runs the attempt until it ends or SIGTERM or SIGINT asks to stop. Exits with 0 when it succeeded, 1 when it failed
/// and that was reported, 2 when it could not be reported, 3 when the datastore has no room for that.
pub async fn run(options: RunnerOptions) -> ExitCode {
    match run_until(options, terminated()).await {
        Ok(Outcome { reason: Reason::Succeeded, .. }) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            tracing::error!(%error, "the attempt could not be reported");
            let is_full = matches!(&error, Error::Result(cause) if cause.is_full());
            let code = if is_full { api::attempt::EXIT_DATASTORE_FULL } else { 2 };
            ExitCode::from(u8::try_from(code).unwrap_or(2))
        }
    }
}

async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::warn!("signals cannot be received; the attempt can only be killed");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

/// Runs the attempt until it ends or `stop` asks to stop; returns what was reported.
pub async fn run_until(options: RunnerOptions, stop: impl Future<Output = ()>) -> Result<Outcome, Error> {
    let started_at = Timestamp::now();
    let attempt = Attempt::new(options.run_uid.as_str(), options.attempt)
        .map_err(|error| Error::Malformed(error.to_string()))?;
    let token = TokenSource::File(options.token_file.clone());
    let client = Client::believing(&options.datastore_url, token, options.datastore_authority.as_deref())
        .map_err(Error::Description)?
        .with_patience(options.patience);
    let mut description = fetch_description(&client, &attempt).await?;
    let snapshot = kept::fetch(&client, &description).await?;
    let Reading { given, mut secrets } = match &snapshot {
        Some(snapshot) => {
            snapshot.prevail(&mut description);
            let files = kept::files(&options.work_dir, &description.layer_uid);
            Reading::undoing(description.inputs.as_ref(), &options.inputs, snapshot, &files)
        }
        None => Reading::of(description.inputs.as_ref(), &options.inputs),
    };
    secrets.extend(description.build.iter().flat_map(|order| build::secrets(order, &options.inputs)));
    let description = description;
    let prepared = Prepared::new(&options, &description, &secrets).await?;
    let log = Arc::clone(&prepared.log);
    let (wish, stop_wish) = watch::channel(Wish::GoOn);

    let password = SecretString::from(random_word()?);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.map_err(Error::Loopback)?;
    let address = listener.local_addr().map_err(Error::Loopback)?;
    let state =
        StateId::new(description.state.as_str()).map_err(|error| Error::Malformed(error.to_string()))?;
    let refused_lock = proxy::RefusedLock::default();
    let proxy = proxy::router(proxy::Proxy {
        client: client.clone(),
        state,
        fence: description.action.mutates().then_some(description.fence),
        spool: prepared.places.spool.clone(),
        patience: options.patience,
        password: password.clone(),
        log: Arc::clone(&log),
        refused_lock: refused_lock.clone(),
    });
    let backend_variables = proxy::variables(address, &password)
        .into_iter()
        .map(|(name, value)| (OsString::from(name), OsString::from(value)))
        .collect();

    let mut tool = None;
    let work = Work {
        description: &description,
        attempt: &attempt,
        client: &client,
        log: &log,
        places: &prepared.places,
        surroundings: Surroundings {
            environment: environment(&options, &prepared.places, &description, given.as_ref().ok()),
            // Never the same twice: whoever carries it is killed at the end.
            mark: format!("{attempt}/{}", random_word()?),
            stop: stop_wish,
            grace: options.grace,
            whole: log.mask().patterns(),
        },
        search_path: &options.search_path,
        tools: options.tools.as_deref(),
        provider_mirror: options.provider_mirror.as_deref(),
        kaniko: options.kaniko.as_deref(),
        mounted: &options.inputs,
        backend_variables,
        refused_lock,
        given,
        own: Given::default(),
        image: None,
    };
    let limit = limit(&description, options.plan_limit);
    let overdue = AtomicBool::new(false);
    // The log travels and the state is served while the tool works; the attempt is over when its work is and its log
    // is stored.
    let working = async {
        let mut ending = work.run(&mut tool).await;
        if let Some(limit) = limit
            && overdue.load(Ordering::Relaxed)
            && ending.reason == Reason::Interrupted
        {
            ending.reason = Reason::TimedOut;
            ending.message = format!("{}: {}", too_long(description.action, limit), ending.message);
        }
        match ending.logged {
            Logged::Yes => {}
            Logged::NotYet => log.line(&ending.message),
        }
        (ending, log.close())
    };
    let serving = async { axum::serve(listener, proxy).await };
    let stopping = async {
        tokio::select! {
            () = stop => log.line("Asked to stop; waiting for the tool to end."),
            limit = time_is_up(limit) => {
                overdue.store(true, Ordering::Relaxed);
                let words = too_long(description.action, limit);
                log.line(&format!("It {words}; waiting for the tool to end."));
            }
        }
        wish.send_replace(Wish::Stop);
        std::future::pending::<()>().await
    };
    let worked = async { tokio::join!(working, log.send(&client, &attempt, options.patience)) };
    let ((ending, log_sha256), log_sent) = tokio::select! {
        done = worked => done,
        () = stopping => unreachable_ending(),
        _ = serving => unreachable_ending(),
    };
    let waited_from = std::time::Instant::now();
    let mut ending = ending;
    match log_sent {
        Ok(()) => {}
        // What the attempt came to is known, and more important than the rest of its log.
        Err(error) if error.is_full() => {
            let end = ending.message.trim_end_matches('.').len();
            ending.message.truncate(end);
            ending.message.push_str(&format!(". Its log is cut short: {error}"));
        }
        Err(error) => return Err(Error::Log(error)),
    }
    let patience = match description.action {
        // A plan can be made again, and somebody should know why there is none.
        Action::Plan | Action::Build => Duration::ZERO,
        Action::Apply => options.patience,
    };
    let reporting = async {
        loop {
            let reported =
                report(&client, &attempt, &description, &ending, &log_sha256, started_at, &tool).await;
            match reported {
                Err(Error::Result(error)) if error.is_full() && waited_from.elapsed() < patience => {
                    tracing::warn!(%error, "the result waits for room in the datastore");
                    tokio::time::sleep(ROOM_AGAIN).await;
                }
                other => break other,
            }
        }
    };
    match description.action {
        // Nothing of a plan is needed any more, reported or not: removing a large repository takes as long as reporting does.
        Action::Plan | Action::Build => {
            let root = prepared.places.root.clone();
            let cleaning = tokio::task::spawn_blocking(move || clean(&root));
            let (outcome, _) = tokio::join!(reporting, cleaning);
            outcome
        }
        // What an apply leaves is all there is of it until it is reported.
        Action::Apply => {
            let outcome = reporting.await?;
            clean(&prepared.places.root);
            Ok(outcome)
        }
    }
}

/// Serving and stopping never end by themselves; if they did, the attempt would be of unknown outcome.
fn unreachable_ending() -> ((Ending, Sha256), Result<(), client::Error>) {
    let ending = Ending {
        reason: Reason::Interrupted,
        message: "the runner stopped serving the state".to_owned(),
        exit_code: 1,
        plan: None,
        script: None,
        image: None,
        hook_outputs: Default::default(),
        logged: Logged::NotYet,
    };
    ((ending, attempt::empty_digest()), Ok(()))
}

/// How long the attempt may take, if there is a limit.
fn limit(description: &Description, plan_limit: Span) -> Option<Span> {
    description.timeout.or(match description.action {
        Action::Plan | Action::Build => Some(plan_limit),
        Action::Apply => None,
    })
}

/// The limit, once it is reached.
async fn time_is_up(limit: Option<Span>) -> Span {
    match limit {
        Some(limit) => {
            tokio::time::sleep(limit.get()).await;
            limit
        }
        None => std::future::pending().await,
    }
}

fn too_long(action: Action, limit: Span) -> String {
    match action {
        Action::Plan | Action::Apply => {
            format!("took longer than the {limit} of spec.timeouts.{} and was stopped", action.as_str())
        }
        Action::Build => format!("took longer than {limit} and was stopped"),
    }
}

async fn fetch_description(client: &Client, attempt: &Attempt) -> Result<Description, Error> {
    let content = client
        .artefact_get(attempt, Artefact::Spec, DESCRIPTION_LIMIT)
        .await
        .map_err(Error::Description)?
        .ok_or_else(|| Error::NoDescription(attempt.clone()))?;
    let description: Description =
        serde_json::from_slice(&content).map_err(|error| Error::Malformed(error.to_string()))?;
    if description.run_uid != attempt.run_uid() || description.attempt != attempt.number() {
        return Err(Error::Malformed("it is about another attempt".to_owned()));
    }
    Ok(description)
}

/// Directories and the log, ready for use.
struct Prepared {
    places: Places,
    log: Arc<Log>,
    /// Held until the end: another attempt of the same layer uses the same directories.
    _turn: std::fs::File,
}

impl Prepared {
    async fn new(
        options: &RunnerOptions,
        description: &Description,
        secrets: &[SecretString],
    ) -> Result<Self, Error> {
        let uid = Attempt::new(description.layer_uid.as_str(), 0)
            .map_err(|error| Error::Malformed(format!("the layer's uid: {error}")))?;
        let places = Places::new(&options.work_dir, uid.run_uid());
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Directory { path: path.clone(), source }
        };
        let turn_path = options.work_dir.join(format!("{}.lock", uid.run_uid()));
        private_dir(&options.work_dir).map_err(at(&options.work_dir))?;
        let turn = take_turn(turn_path.clone()).await.map_err(at(&turn_path))?;
        match std::fs::remove_dir_all(&places.root) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(at(&places.root)(error));
            }
            Ok(()) | Err(_) => {}
        }
        for dir in [
            places.source.clone(),
            places.spool.clone(),
            places.private.join("home"),
            places.private.join("tmp"),
        ] {
            private_dir(&dir).map_err(at(&dir))?;
        }
        let mask = Mask::new(options.secrets.iter().chain(secrets));
        let log_path = places.spool.join("log");
        let log = Log::new(&log_path, mask, options.echo).map_err(at(&log_path))?;
        Ok(Self { places, log: Arc::new(log), _turn: turn })
    }
}

/// Nothing of the attempt stays on this machine once it is reported.
fn clean(root: &Path) {
    if let Err(error) = std::fs::remove_dir_all(root) {
        tracing::warn!(%error, path = %root.display(), "the working directory could not be removed");
    }
}

fn private_dir(path: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

async fn take_turn(path: PathBuf) -> std::io::Result<std::fs::File> {
    tokio::task::spawn_blocking(move || {
        let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        file.lock()?;
        Ok(file)
    })
    .await
    .map_err(std::io::Error::other)?
}

/// The tool's whole environment: what the pod gives, and what makes it behave without a person.
fn environment(
    options: &RunnerOptions,
    places: &Places,
    description: &Description,
    given: Option<&Given>,
) -> Vec<(OsString, OsString)> {
    let path = std::env::join_paths(&options.search_path).unwrap_or_default();
    let defaults: [(&str, OsString); 7] = [
        ("PATH", path),
        ("HOME", places.private.join("home").into()),
        ("TMPDIR", places.private.join("tmp").into()),
        ("TF_IN_AUTOMATION", "1".into()),
        ("TF_INPUT", "0".into()),
        ("CHECKPOINT_DISABLE", "1".into()),
        // `terraform.workspace` cannot tell: the http backend knows no workspaces.
        ("TF_VAR_terrane_workspace", description.workspace.as_str().into()),
    ];
    // What the pod says comes later and wins, and the layer's own words come last.
    defaults
        .into_iter()
        .map(|(name, value)| (OsString::from(name), value))
        .chain(options.environment.iter().cloned())
        .chain(given.into_iter().flat_map(|given| given.environment.iter().cloned()))
        .collect()
}

async fn report(
    client: &Client,
    attempt: &Attempt,
    description: &Description,
    ending: &Ending,
    log_sha256: &Sha256,
    started_at: Timestamp,
    tool: &Option<String>,
) -> Result<Outcome, Error> {
    let outcome = Outcome {
        run_uid: description.run_uid.clone(),
        attempt: description.attempt,
        action: description.action,
        reason: ending.reason,
        message: ending.message.clone(),
        exit_code: ending.exit_code,
        started_at,
        finished_at: Timestamp::now(),
        tool: tool.clone(),
        plan: ending.plan.as_deref().cloned(),
        script: ending.script.clone(),
        image: ending.image.as_deref().cloned(),
        hook_outputs: ending.hook_outputs.clone(),
        log_sha256: log_sha256.clone(),
    };
    let content = serde_json::to_vec(&outcome).map_err(|error| Error::Malformed(error.to_string()))?;
    client.artefact_put(attempt, Artefact::Result, content.into()).await.map_err(Error::Result)?;
    Ok(outcome)
}

/// Nobody guesses it, and it never comes twice.
fn random_word() -> Result<String, Error> {
    use rand::TryRngCore;
    let mut bytes = [0u8; 24];
    rand::rngs::OsRng.try_fill_bytes(&mut bytes).map_err(|error| Error::Randomness(error.to_string()))?;
    Ok(hex::encode(bytes))
}
