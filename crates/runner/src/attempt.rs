//! One attempt, step by step: code, tool, backend, `init`, then a plan or an apply. Every way it can end is an
//! `Ending`, with a reason and words for people; reporting it is not done here.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::attempt::{Description, PlanOutcome, PlanSource, Reason};
use api::difference::Differences;
use api::run::{Action, PlanSummary};
use api::text::Sha256;
use datastore::client::{self, LockChange};
use datastore::{Artefact, Attempt, Client, StateId};
use tofu::choice::{Code, read_code, wanted};
use tofu::diagnostics::Meaning;
use tofu::difference::differences;
use tofu::plan_file::{StateFacts, base_state};
use tofu::process::{Stream, Surroundings, Wish};
use tofu::{Planned, Report, Tool};

use crate::log::Log;
use crate::providers;
use crate::proxy::RefusedLock;
use crate::toolbox::Toolbox;
use crate::unpack::{layer_directory, unpack};

/// The readable plan is cut after this many bytes.
const PLAN_TEXT_LIMIT: usize = 16 * 1024 * 1024;
/// Our backend, laid over code that has none.
const BACKEND_FILE: &str = "terrane_backend_override.tf.json";
const BACKEND: &str = "{\"terraform\": {\"backend\": {\"http\": {}}}}\n";

/// How an attempt ended.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) reason: Reason,
    pub(crate) message: String,
    pub(crate) exit_code: i32,
    pub(crate) plan: Option<Box<PlanOutcome>>,
}

impl Ending {
    fn failed(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), exit_code: 1, plan: None }
    }

    fn bad_input(message: impl Into<String>) -> Self {
        Self::failed(Reason::BadInput, message)
    }
}

/// A step that cannot go on ends the attempt.
type Step<T> = Result<T, Ending>;

/// Everything the steps need.
pub(crate) struct Work<'a> {
    pub(crate) description: &'a Description,
    pub(crate) attempt: &'a Attempt,
    pub(crate) client: &'a Client,
    pub(crate) log: &'a Arc<Log>,
    pub(crate) places: &'a Places,
    /// Without the variables of our backend.
    pub(crate) surroundings: Surroundings,
    pub(crate) search_path: &'a [PathBuf],
    /// The store of downloaded tools, if there is one on this machine.
    pub(crate) tools: Option<&'a Path>,
    pub(crate) provider_mirror: Option<&'a str>,
    pub(crate) backend_variables: Vec<(OsString, OsString)>,
    pub(crate) refused_lock: RefusedLock,
}

/// Where things are on disk. The same for every attempt of a layer: an absolute path that differed between plan and
/// apply would show as a change.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub(crate) root: PathBuf,
    pub(crate) source: PathBuf,
    pub(crate) private: PathBuf,
    pub(crate) spool: PathBuf,
}

impl Places {
    pub(crate) fn new(work_dir: &Path, layer_uid: &str) -> Self {
        let root = work_dir.join(layer_uid);
        Self { source: root.join("source"), private: root.join("private"), spool: root.join("spool"), root }
    }

    fn plan(&self) -> PathBuf {
        self.private.join("plan")
    }
}

/// Code that is ready to be planned or applied.
struct Ready {
    tool: Tool,
    dir: PathBuf,
    surroundings: Surroundings,
    keeps_state_here: bool,
}

impl Work<'_> {
    /// Runs the attempt. The name of the tool is known as soon as it is found, also when a later step fails.
    pub(crate) async fn run(mut self, tool_name: &mut Option<String>) -> Ending {
        match self.steps(tool_name).await {
            Ok(ending) | Err(ending) => ending,
        }
    }

    async fn steps(&mut self, tool_name: &mut Option<String>) -> Step<Ending> {
        let dir = self.fetch_code().await?;
        self.use_provider_mirror().await?;
        let ready = self.prepare(dir, tool_name).await?;
        self.init(&ready).await?;
        match (self.description.action, &self.description.plan) {
            (Action::Plan, _) => self.plan(&ready).await,
            (Action::Apply, Some(plan)) => self.apply(&ready, plan).await,
            (Action::Apply, None) => Err(Ending::bad_input("an apply was asked for without a plan to apply")),
        }
    }

    fn check_wish(&self) -> Step<()> {
        match *self.surroundings.stop.borrow() {
            Wish::GoOn => Ok(()),
            Wish::Stop => {
                Err(Ending::failed(Reason::Interrupted, "the attempt was stopped before the tool ran"))
            }
        }
    }

    async fn fetch_code(&self) -> Step<PathBuf> {
        self.check_wish()?;
        let bundle = &self.description.bundle;
        let path = self.places.private.join("bundle.tar");
        let mut file = tokio::fs::File::create(&path).await.map_err(disk)?;
        self.client.bundle_get(bundle, &mut file).await.map_err(fetch_failed)?;
        let source = self.places.source.clone();
        let unpacked = tokio::task::spawn_blocking(move || {
            let archive = std::io::BufReader::new(std::fs::File::open(&path)?);
            let result = unpack(archive, &source);
            std::fs::remove_file(&path)?;
            Ok::<_, std::io::Error>(result)
        });
        unpacked
            .await
            .map_err(|stopped| disk(std::io::Error::other(stopped)))?
            .map_err(disk)?
            .map_err(|error| Ending::bad_input(error.to_string()))?;
        let path = self.description.path.trimmed();
        layer_directory(&self.places.source, path).ok_or_else(|| {
            Ending::bad_input(format!(
                "{} is not a directory at commit {}; correct the layer's path, or push the missing directory",
                self.description.path,
                self.description.revision.short()
            ))
        })
    }

    /// Where programs are looked for.
    fn toolbox(&self) -> Toolbox<'_> {
        Toolbox {
            client: self.client,
            search_path: self.search_path,
            store: self.tools,
            private: &self.places.private,
        }
    }

    /// A configuration that the pod brings along wins: it may name a mirror of its own.
    async fn use_provider_mirror(&mut self) -> Step<()> {
        const VARIABLE: &str = "TF_CLI_CONFIG_FILE";
        let Some(mirror) = self.provider_mirror else { return Ok(()) };
        if self.surroundings.environment.iter().any(|(name, _)| name == VARIABLE) {
            return Ok(());
        }
        let configuration = providers::configuration(mirror).map_err(|error| {
            let message = format!("the mirror of providers {mirror} cannot be read by the runner: {error}");
            Ending::failed(Reason::ToolFailed, message)
        })?;
        let path = self.places.private.join("providers.tfrc");
        tokio::fs::write(&path, configuration).await.map_err(disk)?;
        self.surroundings.environment.push((VARIABLE.into(), path.into()));
        Ok(())
    }

    async fn prepare(&self, dir: PathBuf, tool_name: &mut Option<String>) -> Step<Ready> {
        self.check_wish()?;
        let code = read_code(&dir).map_err(|error| Ending::bad_input(error.to_string()))?;
        let wanted = wanted(
            self.description.tool,
            self.description.tool_version.as_deref(),
            &self.places.source,
            &dir,
            &code,
        )
        .map_err(|error| Ending::failed(Reason::ToolMissing, error.to_string()))?;
        let tool = self
            .toolbox()
            .tool(&wanted, &self.surroundings)
            .await
            .map_err(|not_found| Ending::failed(not_found.reason, not_found.message))?;
        *tool_name = Some(tool.to_string());
        self.log.line(&format!("{tool}, commit {}", self.description.revision));
        let mut surroundings = self.surroundings.clone();
        let keeps_state_here = uses_our_backend(&code);
        if keeps_state_here {
            tokio::fs::write(dir.join(BACKEND_FILE), BACKEND).await.map_err(disk)?;
            surroundings.environment.extend(self.backend_variables.iter().cloned());
        }
        Ok(Ready { tool, dir, surroundings, keeps_state_here })
    }

    async fn init(&self, ready: &Ready) -> Step<()> {
        self.check_wish()?;
        let report = ready.tool.init(&ready.dir, &ready.surroundings, &mut self.to_log()).await;
        self.expect_success(report, "init", ready)?;
        let workspace = self.description.workspace.as_str();
        // Our own backend has one state for each workspace, told apart by its identity.
        if !ready.keeps_state_here && workspace != "default" {
            let report = ready
                .tool
                .workspace_select(workspace, &ready.dir, &ready.surroundings, &mut self.to_log())
                .await;
            self.expect_success(report, "workspace select", ready)?;
        }
        Ok(())
    }

    async fn plan(&self, ready: &Ready) -> Step<Ending> {
        self.check_wish()?;
        let file = self.places.plan();
        let mut text = String::new();
        let mut lines = |stream: Stream, line: &str| {
            self.log.line(line);
            if stream == Stream::Out && text.len() + line.len() < PLAN_TEXT_LIMIT {
                text.push_str(&self.log.mask().line(line));
                text.push('\n');
            }
        };
        let (planned, report) = ready
            .tool
            .plan(self.description.mode, &file, &ready.dir, &ready.surroundings, &mut lines)
            .await
            .map_err(process_failed)?;
        match planned {
            Planned::NoChanges | Planned::Changes => {}
            Planned::Failed => return Err(self.tool_failed(&report, "plan", ready)),
        }
        let base = base_state(&file).map_err(|error| Ending::bad_input(error.to_string()))?;
        let shown = ready
            .tool
            .show_json(&file, &ready.dir, &ready.surroundings, &mut self.to_log())
            .await
            .map_err(process_failed)?;
        let (summary, differences, json) = match shown {
            Some(document) => {
                // Its own marks first; then the values we know to be secret, whether or not the code marks them.
                let mut shown =
                    tofu::plan::read(&document).map_err(|error| Ending::bad_input(error.to_string()))?;
                self.log.mask().json(&mut shown.redacted);
                let mask = self.log.mask();
                let found = differences(&shown.plan, self.description.mode, &|text| mask.line(text));
                (shown.plan.summary, found, Some(shown.redacted.to_string()))
            }
            // A tool too old to show a plan in JSON still says how much would change.
            None => (tofu::plan::summary_from_text(&text).unwrap_or_default(), Differences::default(), None),
        };
        let store = |error| store_failed(&error);
        let sha256 =
            self.client.artefact_put_file(self.attempt, Artefact::Plan, &file).await.map_err(store)?;
        if let Some(json) = json {
            self.client.artefact_put(self.attempt, Artefact::PlanJson, json.into()).await.map_err(store)?;
        }
        self.client.artefact_put(self.attempt, Artefact::PlanText, text.into()).await.map_err(store)?;
        Ok(Ending {
            reason: Reason::Succeeded,
            message: describe(&summary, &differences),
            exit_code: report.ended.code.unwrap_or(0),
            plan: Some(Box::new(PlanOutcome {
                sha256,
                summary,
                differences,
                lineage: base.lineage,
                serial: base.serial,
            })),
        })
    }

    async fn apply(&self, ready: &Ready, source: &PlanSource) -> Step<Ending> {
        let file = self.fetch_plan(source).await?;
        self.check_fresh(&file, ready).await?;
        self.check_wish()?;
        let mut last = String::new();
        let mut lines = |_: Stream, line: &str| {
            self.log.line(line);
            if line.starts_with("Apply complete!") || line.starts_with("Destroy complete!") {
                last = line.to_owned();
            }
        };
        let report = ready
            .tool
            .apply(&file, &ready.dir, &ready.surroundings, &mut lines)
            .await
            .map_err(process_failed)?;
        let rescued = self.rescue_state(ready).await;
        if report.succeeded() {
            let message = if last.is_empty() { "Apply complete.".to_owned() } else { last };
            return Ok(Ending { reason: Reason::Succeeded, message, exit_code: 0, plan: None });
        }
        let mut ending = self.tool_failed(&report, "apply", ready);
        if let Some(words) = rescued {
            ending.message = format!("{}. {words}", ending.message.trim_end_matches('.'));
        }
        Err(ending)
    }

    async fn fetch_plan(&self, source: &PlanSource) -> Step<PathBuf> {
        self.check_wish()?;
        let from = Attempt::new(source.run_uid.as_str(), source.attempt)
            .map_err(|error| Ending::bad_input(error.to_string()))?;
        let path = self.places.plan();
        let mut file = tokio::fs::File::create(&path).await.map_err(disk)?;
        self.client
            .artefact_get_file(&from, Artefact::Plan, &source.sha256, &mut file)
            .await
            .map_err(fetch_failed)?;
        drop(file);
        // What is handed to the tool is what lies on disk: that is what is compared with the approval.
        let found = client::file_digest(&path).await.map_err(disk)?;
        if found != source.sha256 {
            return Err(Ending::bad_input(format!(
                "the plan has the sha256 {found}, but {} was approved; nothing was applied",
                source.sha256
            )));
        }
        Ok(path)
    }

    /// A plan fits only the state it was made from.
    async fn check_fresh(&self, plan: &Path, ready: &Ready) -> Step<()> {
        let base = base_state(plan).map_err(|error| Ending::bad_input(error.to_string()))?;
        let current = self.current_state(ready).await?;
        if base == current {
            return Ok(());
        }
        let words = |facts: &StateFacts| match (&facts.lineage, facts.serial) {
            (Some(_), Some(serial)) => format!("serial {serial}"),
            (_, _) => "no state".to_owned(),
        };
        let how = if base.lineage.is_some() && current.lineage.is_some() && base.lineage != current.lineage {
            "the state was replaced by another one".to_owned()
        } else {
            format!("the plan was made from {}, now there is {}", words(&base), words(&current))
        };
        Err(Ending::failed(
            Reason::Stale,
            format!(
                "the state has changed since the plan was made ({how}); nothing was applied, a new plan is needed"
            ),
        ))
    }

    async fn current_state(&self, ready: &Ready) -> Step<StateFacts> {
        if ready.keeps_state_here {
            let id = self.state_id()?;
            let path = self.places.private.join("state");
            let mut file = tokio::fs::File::create(&path).await.map_err(disk)?;
            if self.client.state_get(&id, &mut file).await.map_err(fetch_failed)?.is_none() {
                return Ok(StateFacts::default());
            }
            let state = std::fs::File::open(&path).map_err(disk)?;
            let facts = StateFacts::read(state).map_err(|error| Ending::bad_input(error.to_string()));
            tokio::fs::remove_file(&path).await.map_err(disk)?;
            return facts;
        }
        let pulled = ready
            .tool
            .state_pull(&ready.dir, &ready.surroundings, &mut self.to_log())
            .await
            .map_err(process_failed)?
            .ok_or_else(|| {
                Ending::failed(Reason::ToolFailed, "the state could not be read to check the plan against it")
            })?;
        StateFacts::read(pulled.as_slice()).map_err(|error| Ending::bad_input(error.to_string()))
    }

    fn state_id(&self) -> Step<StateId> {
        StateId::new(self.description.state.as_str()).map_err(|error| Ending::bad_input(error.to_string()))
    }

    /// The tool leaves a state it could not save in a file. It is the only record of what was changed, so it is saved
    /// by all means; the words say how that went.
    async fn rescue_state(&self, ready: &Ready) -> Option<String> {
        let file = ready.dir.join("errored.tfstate");
        if !file.exists() {
            return None;
        }
        self.log.line("The tool could not save its state; saving it from errored.tfstate.");
        let saved = if ready.keeps_state_here {
            self.rescue_here(&file).await
        } else {
            match ready.tool.state_push(&file, &ready.dir, &ready.surroundings, &mut self.to_log()).await {
                Ok(report) if report.succeeded() => Ok(()),
                Ok(report) => Err(complaint(&report)),
                Err(error) => Err(error.to_string()),
            }
        };
        Some(match saved {
            Ok(()) => "The state that the tool could not save was saved afterwards".to_owned(),
            Err(why) => {
                let words = format!("The state that the tool could not save is lost: {why}");
                self.log.line(&words);
                words
            }
        })
    }

    async fn rescue_here(&self, file: &Path) -> Result<(), String> {
        let words = |error: &dyn std::fmt::Display| error.to_string();
        let id = StateId::new(self.description.state.as_str()).map_err(|error| words(&error))?;
        let lock = format!("rescue-{}-{}", self.attempt.run_uid(), self.attempt.number());
        let info = serde_json::json!({
            "ID": lock, "Operation": "rescue", "Who": format!("run {}", self.description.run)
        });
        let info = bytes::Bytes::from(info.to_string());
        let fence = Some(self.description.fence);
        let taken = self.client.state_lock(&id, LockChange::Take, info.clone(), fence).await;
        // The tool's own lock can still be there when even its release failed; its id is in the refusal.
        let lock = match taken {
            Ok(()) => lock,
            Err(client::Error::Refused { message, .. }) => {
                let held: serde_json::Value =
                    serde_json::from_str(&message).map_err(|error| words(&error))?;
                held.get("ID").and_then(serde_json::Value::as_str).ok_or(message.clone())?.to_owned()
            }
            Err(other) => return Err(words(&other)),
        };
        let saved = self.client.state_put(&id, file, Some(&lock), fence).await.map_err(|error| words(&error));
        let info = bytes::Bytes::from(serde_json::json!({ "ID": lock }).to_string());
        if let Err(error) = self.client.state_lock(&id, LockChange::Release, info, fence).await {
            self.log.line(&format!("The lock of the state could not be released: {error}"));
        }
        saved
    }

    fn expect_success(&self, report: Result<Report, tofu::Error>, command: &str, ready: &Ready) -> Step<()> {
        let report = report.map_err(process_failed)?;
        if report.succeeded() { Ok(()) } else { Err(self.tool_failed(&report, command, ready)) }
    }

    fn tool_failed(&self, report: &Report, command: &str, ready: &Ready) -> Ending {
        let program = ready.tool.kind.program();
        let ended = report.ended;
        let exit_code = ended.code.unwrap_or_else(|| 128 + ended.signal.unwrap_or(0));
        let words = report.complaints.first().map(tofu::diagnostics::Diagnostic::message);
        let words = words.map(|words| self.log.mask().line(&words));
        let (reason, message) = match (ended.interrupted, ended.signal, report.complaints.meaning()) {
            (true, _, _) => (
                Reason::Interrupted,
                format!("{program} {command} was stopped; it ended with {}", how(&ended)),
            ),
            (false, Some(signal), _) => (
                Reason::Interrupted,
                format!("{program} {command} was killed by signal {signal} from outside"),
            ),
            (false, None, Meaning::StateLocked) => (
                Reason::StateLocked,
                self.refused_lock
                    .words()
                    .or(words)
                    .unwrap_or_else(|| "the state is locked; nothing was changed".to_owned()),
            ),
            (false, None, Meaning::StalePlan) => (
                Reason::Stale,
                "the tool says that the plan is stale; nothing was applied, a new plan is needed".to_owned(),
            ),
            (false, None, Meaning::Other) => (
                Reason::ToolFailed,
                words.unwrap_or_else(|| {
                    format!("{program} {command} ended with {}; the log says more", how(&ended))
                }),
            ),
        };
        Ending { reason, message, exit_code, plan: None }
    }

    fn to_log(&self) -> impl FnMut(Stream, &str) + Send {
        let log = Arc::clone(self.log);
        move |_, line| log.line(line)
    }
}

fn uses_our_backend(code: &Code) -> bool {
    code.backend.is_none()
}

fn how(ended: &tofu::process::Ended) -> String {
    match (ended.code, ended.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no exit code".to_owned(),
    }
}

fn complaint(report: &Report) -> String {
    report.complaints.first().map_or_else(|| how(&report.ended), tofu::diagnostics::Diagnostic::message)
}

fn describe(summary: &PlanSummary, differences: &Differences) -> String {
    if !summary.has_changes() {
        // A plan that only refreshes counts nothing as a change.
        return if differences.is_empty() {
            "No changes.".to_owned()
        } else {
            format!("Drift: {}.", differences.words())
        };
    }
    let outputs = match summary.outputs {
        0 => String::new(),
        1 => " 1 output changes.".to_owned(),
        more => format!(" {more} outputs change."),
    };
    format!(
        "Plan: {} to add, {} to change, {} to destroy.{outputs}",
        summary.add, summary.change, summary.destroy
    )
}

fn disk(error: std::io::Error) -> Ending {
    Ending::failed(Reason::ToolFailed, format!("the runner's own disk failed: {error}"))
}

fn process_failed(error: tofu::Error) -> Ending {
    Ending::failed(Reason::ToolFailed, error.to_string())
}

/// What could not be fetched is bad input, unless it was only out of reach.
fn fetch_failed(error: client::Error) -> Ending {
    if error.is_transient() {
        Ending::failed(Reason::ToolFailed, error.to_string())
    } else {
        Ending::bad_input(error.to_string())
    }
}

fn store_failed(error: &client::Error) -> Ending {
    Ending::failed(Reason::ToolFailed, format!("the plan could not be stored: {error}"))
}

/// The digest of nothing, for an attempt whose log could not even begin.
pub(crate) fn empty_digest() -> Sha256 {
    Sha256::of(b"")
}
