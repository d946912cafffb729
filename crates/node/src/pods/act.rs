//! Does what was decided about one pod. It chooses nothing; each effect can be repeated after a crash at any point.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod};
use rustix::process::Signal;

use super::decide::{Blocked, View, every_container};
use super::{Shared, observe};
use crate::config::commons_directory;
use crate::env::{self, Environment};
use crate::images::{self, Image};
use crate::isolation::{Confinement, Isolation, readable};
use crate::mounts::Mounts;
use crate::process::{self, Process};
use crate::records::{
    self, Attempt, AttemptDir, Exit, Fallback, How, Intent, Launch, PodRecord, Termination,
};
use crate::shim;
use crate::sources::{Needed, Sources};
use crate::volumes::{self, PodDirectory};

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Records(#[from] records::Error),
    #[error("could not start a shim with {}: {source}", program.display())]
    Shim { program: PathBuf, source: io::Error },
    #[error("the shim ended before it could start the container ({status}): see {}", log.display())]
    ShimEnded { status: std::process::ExitStatus, log: PathBuf },
    #[error("could not look after the processes of container {container:?}: {source}")]
    Process { container: String, source: io::Error },
    #[error("processes of container {container:?} do not end although they were killed: {pids:?}")]
    WillNotDie { container: String, pids: Vec<i32> },
}

const CONFIG_RETRY: SignedDuration = SignedDuration::from_secs(2);
const IMAGE_RETRY: SignedDuration = SignedDuration::from_secs(10);
/// How long a shim may take before another one is tried, and how often it is looked for.
const TAKE_UP: Duration = Duration::from_secs(2);
const FIRST_LOOK: Duration = Duration::from_millis(2);
const LAST_LOOK: Duration = Duration::from_millis(32);
const SETTLE_PAUSE: Duration = Duration::from_millis(20);
const SETTLE_ROUNDS: usize = 250;

/// Why a container did not start, before there was anything to run.
enum Obstacle {
    Blocked(Blocked),
    /// The program cannot be executed: that counts as an attempt that failed.
    StartError(String),
    Error(Error),
}

impl<E: Into<Error>> From<E> for Obstacle {
    fn from(error: E) -> Obstacle {
        Obstacle::Error(error.into())
    }
}

fn blocked(reason: &'static str, message: String, now: Timestamp, after: SignedDuration) -> Obstacle {
    Obstacle::Blocked(Blocked { reason, message, retry_at: now.checked_add(after).unwrap_or(now) })
}

/// Writes an attempt down and launches it; `Some` says why it has to wait.
pub(super) async fn start(
    shared: &Shared,
    pod: &Pod,
    record: &PodRecord,
    container: &str,
    (number, backoff): (u32, u32),
    before: Option<&Blocked>,
) -> Result<Option<Blocked>, Error> {
    let spec = pod.spec.as_ref();
    let Some(container) = spec.into_iter().flat_map(every_container).find(|found| found.name == container)
    else {
        return Ok(None);
    };
    let attempt = shared.records.attempt(&record.uid, &container.name, number);
    let intent = |boot_id: String| Intent {
        boot_id,
        image: container.image.clone().unwrap_or_default(),
        image_id: container.image.clone().unwrap_or_default(),
        backoff,
    };
    let boot_id =
        process::boot_id().map_err(|source| Error::Process { container: container.name.clone(), source })?;
    match build_launch(shared, pod, record, container, before).await {
        Ok(launch) => {
            attempt.prepare(&intent(boot_id), &launch)?;
            launch_shim(shared, &attempt).await?;
        }
        Err(Obstacle::Blocked(blocked)) => return Ok(Some(blocked)),
        Err(Obstacle::StartError(message)) => {
            let now = Timestamp::now();
            attempt.put_exit_of(
                &intent(boot_id),
                &Exit { how: How::NotStarted, started_at: None, finished_at: now, message },
            )?;
        }
        Err(Obstacle::Error(error)) => return Err(error),
    }
    // The attempt before is kept for its log; older ones are not.
    for old in shared.records.attempts(&record.uid, &container.name)? {
        if old.saturating_add(1) < number {
            shared.records.attempt(&record.uid, &container.name, old).remove()?;
        }
    }
    Ok(None)
}

async fn build_launch(
    shared: &Shared,
    pod: &Pod,
    record: &PodRecord,
    container: &Container,
    before: Option<&Blocked>,
) -> Result<Launch, Obstacle> {
    let now = Timestamp::now();
    let config_error = |message: String| blocked("CreateContainerConfigError", message, now, CONFIG_RETRY);
    let image = shared.config.images.find(container).map_err(|missing| {
        // A kubelet tells the failure once and then that it is waiting to try again.
        match before.map(|before| before.reason) {
            Some("ErrImagePull" | "ImagePullBackOff") => {
                let image = container.image.as_deref().unwrap_or_default();
                let message =
                    format!("Back-off pulling image {image:?}: {}: {}", missing.reason, missing.message);
                blocked("ImagePullBackOff", message, now, SignedDuration::from_mins(5))
            }
            _ => blocked(missing.reason, missing.message, now, IMAGE_RETRY),
        }
    })?;
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let sources = Sources::fetch(&shared.client, namespace, &Needed::by_container(container))
        .await
        .map_err(|error| config_error(format!("could not read what the environment refers to: {error}")))?;
    let directory = PodDirectory { path: record.directory.clone(), owner: record.owner };
    let base = || image_environment(image, &directory);
    let resolve = |mounts: &Mounts| {
        env::resolve(base(), pod, container, &sources, mounts, &shared.facts)
            .map_err(|error| config_error(error.to_string()))
    };
    // A mount's subPathExpr may use the environment, and the environment may name mounts.
    let untranslated = resolve(&Mounts::default())?;
    let volume_error = |error: volumes::Error| config_error(error.to_string());
    let mounts = directory.mounts(pod, container, &untranslated).map_err(volume_error)?;
    let environment = resolve(&mounts)?;
    let wanted = container.working_dir.clone().filter(|wanted| !wanted.is_empty());
    let wanted = wanted.or_else(|| image.working_directory.as_ref().map(|path| path.display().to_string()));
    let working_directory = directory.working_directory(&mounts, wanted.as_deref()).map_err(volume_error)?;
    let line = images::command_line(container, image, &environment, &mounts, &working_directory).map_err(
        |error| match error {
            images::Error::NoCommand { .. } => {
                blocked("CreateContainerError", error.to_string(), now, IMAGE_RETRY)
            }
            images::Error::NotFound { .. } => Obstacle::StartError(error.to_string()),
        },
    )?;
    let termination = directory.reset_termination(&container.name).map_err(volume_error)?;
    Ok(Launch {
        program: line.program,
        argv0: line.argv0,
        args: line.args,
        env: environment.into_pairs(),
        directory: working_directory,
        confinement: confinement(shared, pod, image, &directory),
        log: shared.config.log,
        termination: Termination {
            path: termination,
            fallback: match container.termination_message_policy.as_deref() {
                Some("FallbackToLogsOnError") => Fallback::LogsOnError,
                Some(_) | None => Fallback::Nothing,
            },
        },
    })
}

/// What an image gives. Temporary files are among it because /tmp belongs to everybody on this machine.
fn image_environment(image: &Image, directory: &PodDirectory) -> Environment {
    let path: Vec<String> = image.path.iter().map(|path| path.display().to_string()).collect();
    let given = [
        ("PATH".to_owned(), path.join(":")),
        ("HOME".to_owned(), directory.home().display().to_string()),
        ("TMPDIR".to_owned(), directory.temporary().display().to_string()),
    ];
    given.into_iter().chain(image.env.clone()).collect()
}

fn confinement(shared: &Shared, pod: &Pod, image: &Image, directory: &PodDirectory) -> Confinement {
    match (&shared.config.isolation, directory.owner) {
        (Isolation::Users(_), Some(id)) => Confinement::User { id },
        (Isolation::Landlock, _) => {
            let root = (image.root != std::path::Path::new("/")).then(|| image.root.clone());
            let programs = image
                .path
                .iter()
                .cloned()
                .chain(root)
                .chain([shared.config.shim.program.clone()])
                .chain(shared.config.readable.iter().cloned());
            let private = [shared.config.state.as_path(), shared.config.pods.as_path()];
            let mut read = readable(programs, &private);
            read.push(directory.path.clone());
            let commons = commons_directory(&shared.config.pods);
            let write = directory.writable(pod).into_iter().chain(commons.is_dir().then_some(commons));
            Confinement::Landlock { read, write: write.collect() }
        }
        (Isolation::Users(_), None) | (Isolation::None { .. }, _) => Confinement::None,
    }
}

/// Starts a shim for what was written down, and gives it the time to take it up: until then the attempt looks as if it had none, and
/// would get another.
pub(super) async fn launch_shim(shared: &Shared, attempt: &AttemptDir) -> Result<(), Error> {
    let shim = &shared.config.shim;
    let fail = |source| Error::Shim { program: shim.program.clone(), source };
    let complaints = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(attempt.path().join("shim.log"))
        .map_err(fail)?;
    let started = tokio::process::Command::new(&shim.program)
        .args(&shim.args)
        .arg(attempt.path())
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(complaints)
        .spawn()
        .map_err(fail)?;
    await_shim(started, attempt).await
}

/// Until the container counts as started; not for ever, because a machine can be slow. A shim that ended without a word about its
/// container is an error, so that another one is tried after a pause and not at once. The shim's lock is not asked for: whoever asks has
/// it for a moment, and the shim would have to wait.
async fn await_shim(mut shim: tokio::process::Child, attempt: &AttemptDir) -> Result<(), Error> {
    let mut pause = FIRST_LOOK;
    let deadline = tokio::time::Instant::now() + TAKE_UP;
    while !attempt.has_begun()? && tokio::time::Instant::now() < deadline {
        tokio::select! {
            ended = shim.wait() => {
                return match (attempt.has_begun()?, ended) {
                    (false, Ok(status)) => {
                        Err(Error::ShimEnded { status, log: attempt.path().join("shim.log") })
                    }
                    // It was collected by somebody else, or has done its work.
                    (_, Err(_)) | (true, Ok(_)) => Ok(()),
                };
            }
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(LAST_LOOK),
        }
    }
    // The handle is dropped: a shim outlives its node, and the runtime collects it if it ends before.
    Ok(())
}

/// Ends what an attempt without a shim has left, and writes down that nobody saw how it ended.
pub(super) async fn settle(
    shared: &Shared,
    record: &PodRecord,
    container: &str,
    number: u32,
    views: &BTreeMap<String, View>,
) -> Result<(), Error> {
    let attempt = shared.records.attempt(&record.uid, container, number);
    // Held throughout: a shim that was about to begin finds the attempt over.
    let Some(_lock) = attempt.try_lock()? else { return Ok(()) };
    let Some(state) = attempt.state()? else {
        return Ok(attempt.remove()?);
    };
    if attempt.exit()?.is_some() {
        return Ok(());
    }
    let fail = |source| Error::Process { container: container.to_owned(), source };
    let message = if state.is_of_this_boot()? {
        let others = observe::shims(views);
        let mut rounds = 0;
        loop {
            let left = shim::leftovers(&state, record.owner, &others).map_err(fail)?;
            if left.is_empty() {
                break;
            }
            if rounds == SETTLE_ROUNDS {
                let pids = left.iter().map(|process| process.pid).collect();
                return Err(Error::WillNotDie { container: container.to_owned(), pids });
            }
            for process in left {
                process.signal(Signal::KILL).map_err(fail)?;
            }
            rounds += 1;
            tokio::time::sleep(SETTLE_PAUSE).await;
        }
        "The process that looked after the container was killed; how the container ended is not known"
    } else {
        "The machine was restarted while the container ran; how the container ended is not known"
    };
    attempt.forget_launch()?;
    attempt.put_exit(&Exit {
        how: How::Unknown,
        started_at: state.main.map(|main| main.at),
        finished_at: Timestamp::now(),
        message: message.to_owned(),
    })?;
    Ok(())
}

pub(super) fn main_process(views: &BTreeMap<String, View>, container: &str) -> Option<(Process, Process)> {
    match &views.get(container)?.current.as_ref()?.attempt {
        Attempt::Running { shim, main, .. } => Some((*shim, *main)),
        Attempt::Intended | Attempt::Starting { .. } | Attempt::Lost { .. } | Attempt::Exited(_) => None,
    }
}

/// `TERM` to the main process alone.
pub(super) fn terminate(views: &BTreeMap<String, View>, container: &str) -> Result<(), Error> {
    let Some((_, main)) = main_process(views, container) else { return Ok(()) };
    let sent = main.signal(Signal::TERM);
    sent.map(drop).map_err(|source| Error::Process { container: container.to_owned(), source })
}

/// The shim kills whatever descends from it until nothing does.
pub(super) fn kill(views: &BTreeMap<String, View>, container: &str) -> Result<(), Error> {
    let Some((shim, _)) = main_process(views, container) else { return Ok(()) };
    let sent = shim.signal(Signal::USR1);
    sent.map(drop).map_err(|source| Error::Process { container: container.to_owned(), source })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Or the next one would be started at once, and so on, as fast as the machine can.
    #[tokio::test]
    async fn a_shim_that_ends_without_a_word_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let records = records::Records::open(root.path()).unwrap();
        let attempt = records.attempt("uid", "main", 0);
        let shim = tokio::process::Command::new("false").spawn().unwrap();
        let error = await_shim(shim, &attempt).await.unwrap_err();
        assert!(matches!(&error, Error::ShimEnded { status, .. } if status.code() == Some(1)), "{error}");
    }
}
