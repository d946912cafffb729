//! One attempt, step by step: code, tool, backend, `init`, then a plan or an apply. Every way it can end is an
//! `Ending`, with a reason and words for people; reporting it is not done here.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::attempt::{Description, PlanOutcome, PlanSource, Reason};
use api::backend::Backend;
use api::difference::Differences;
use api::hooks::Moment;
use api::image::ImageFiles;
use api::run::{Action, Mode, PlanSummary};
use api::text::Sha256;
use datastore::client;
use datastore::{Artefact, Attempt, Client};
use tofu::choice::{Code, TerragruntFiles, read_code, read_terragrunt, wanted, wanted_terragrunt};
use tofu::diagnostics::Meaning;
use tofu::difference::differences;
use tofu::plan_file::base_state;
use tofu::process::{Stream, Surroundings, Wish};
use tofu::terragrunt::{self, Terragrunt};
use tofu::{Past, Planned, ProviderChoice, Report, Tool};

use crate::ending::{Ending, Logged, Step, disk, fetch_failed, how, process_failed, store_failed};
use crate::hooks::Outputs;
use crate::image::{self, Unpacked};
use crate::inputs::Given;
use crate::log::Log;
use crate::providers::keep_providers_of_plan;
use crate::proxy::RefusedLock;
use crate::scripts::Script;
use crate::toolbox::{NotFound, Toolbox};
use crate::unpack::{directory_within, layer_directory, unpack};

/// The readable plan is cut after this many bytes.
const PLAN_TEXT_LIMIT: usize = 16 * 1024 * 1024;
/// Our backend, laid over code that has none.
const BACKEND_FILE: &str = "terrane_backend_override.tf.json";
const BACKEND: &str = "{\"terraform\": {\"backend\": {\"http\": {}}}}\n";

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
    /// kaniko's executor, in an image that has it.
    pub(crate) kaniko: Option<&'a Path>,
    /// Where the pod mounted what it was given, in its order.
    pub(crate) mounted: &'a [PathBuf],
    pub(crate) backend_variables: Vec<(OsString, OsString)>,
    pub(crate) refused_lock: RefusedLock,
    /// What the layer gives to its code, or why that cannot be used; taken by the first step.
    pub(crate) given: Step<Given>,
    /// The same, once it is taken.
    pub(crate) own: Given,
    /// The image that the code is, once it is unpacked.
    pub(crate) image: Option<Unpacked>,
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

    pub(crate) fn plan(&self) -> PathBuf {
        self.private.join("plan")
    }
}

/// Code that is ready to be planned or applied.
pub(crate) struct Ready {
    pub(crate) tool: Tool,
    /// Where the tool is started: the layer's directory.
    pub(crate) dir: PathBuf,
    /// Where the tool works: the same, unless Terragrunt has put the code elsewhere.
    pub(crate) work_dir: PathBuf,
    pub(crate) surroundings: Surroundings,
    pub(crate) keeps_state_here: bool,
}

impl Work<'_> {
    /// Runs the attempt. The name of the tool is known as soon as it is found, also when a later step fails.
    pub(crate) async fn run(mut self, tool_name: &mut Option<String>) -> Ending {
        match self.steps(tool_name).await {
            Ok(ending) | Err(ending) => ending,
        }
    }

    async fn steps(&mut self, tool_name: &mut Option<String>) -> Step<Ending> {
        if self.description.action == Action::Build {
            // Apart, so that the many attempts that build nothing have no room for it.
            return Box::pin(self.build()).await;
        }
        self.own = std::mem::replace(&mut self.given, Ok(Given::default()))?;
        let script = self.own.script(self.description.mode, &self.description.bundle);
        let mut outputs = Outputs::new();
        self.lay_login()?;
        let dir = self.fetch_code().await?;
        self.use_provider_mirror().await?;
        let plan = match (self.description.action, &self.description.plan) {
            (Action::Plan | Action::Build, _) => None,
            (Action::Apply, Some(plan)) => Some(self.fetch_plan(plan).await?),
            (Action::Apply, None) => {
                return Err(Ending::bad_input("an apply was asked for without a plan to apply"));
            }
        };
        let mut ready = self.prepare(dir, tool_name).await?;
        self.give_variables(&ready).await?;
        let choice = match (&plan, &script) {
            (Some(plan), None) => keep_providers_of_plan(plan, &ready)?,
            (Some(_), Some(_)) | (None, _) => ProviderChoice::Open,
        };
        self.hooks(Moment::BeforeInit, &ready, &mut outputs).await?;
        self.share_providers(&mut ready).await?;
        self.init(&ready, choice).await?;
        self.hooks(Moment::AfterInit, &ready, &mut outputs).await?;
        let backend = self.settled_backend(&ready)?;
        let ending = match plan {
            None => self.plan(&ready, backend, script.as_ref(), &mut outputs).await?,
            Some(plan) => {
                self.check_backend(backend.as_ref())?;
                self.keep_inputs().await?;
                self.change(&ready, &plan, script.as_ref(), &mut outputs).await?
            }
        };
        self.leave_workspace(&ready, script.as_ref(), &ending).await?;
        Ok(Ending { script: script.map(|script| script.digest), hook_outputs: outputs, ..ending })
    }

    /// Applies the plan, by the tool or by the layer's script, between the hooks for that.
    async fn change(
        &self,
        ready: &Ready,
        plan: &Path,
        script: Option<&Script>,
        outputs: &mut Outputs,
    ) -> Step<Ending> {
        let (before, after) = match self.description.mode {
            Mode::Destroy => (Moment::BeforeDestroy, Moment::AfterDestroy),
            Mode::Normal | Mode::RefreshOnly => (Moment::BeforeApply, Moment::AfterApply),
        };
        self.check_age()?;
        match script {
            Some(script) => self.check_script(script, plan)?,
            None => self.check_fresh(plan, ready).await?,
        }
        self.hooks(before, ready, outputs).await?;
        let (ending, printed) = match script {
            Some(script) => {
                let (message, printed) = self.run_script(script, ready).await?;
                (Ending { exit_code: 0, ..Ending::failed(Reason::Succeeded, message) }, printed)
            }
            None => (self.apply(ready, plan).await?, api::outputs::Outputs::new()),
        };
        self.hooks(after, ready, outputs).await?;
        self.keep_outputs(ready, printed).await;
        Ok(ending)
    }

    /// Deletes the workspace that held what is now destroyed, where the layer wants that: after the apply, or after a plan that found
    /// nothing to destroy. A script leaves behind what only it knows of.
    async fn leave_workspace(&self, ready: &Ready, script: Option<&Script>, ending: &Ending) -> Step<()> {
        let workspace = self.description.workspace.as_str();
        let is_wanted = self.description.delete_workspace && script.is_none() && workspace != "default";
        let is_empty = ending.plan.as_ref().is_none_or(|plan| !plan.summary.has_changes());
        if !is_wanted || !is_empty || ready.keeps_state_here {
            return Ok(());
        }
        self.check_wish()?;
        let report =
            ready.tool.workspace_delete(workspace, &ready.dir, &ready.surroundings, &mut self.to_log()).await;
        self.expect_success(report, "workspace delete", ready)
    }

    pub(crate) fn check_wish(&self) -> Step<()> {
        match *self.surroundings.stop.borrow() {
            Wish::GoOn => Ok(()),
            Wish::Stop => {
                Err(Ending::failed(Reason::Interrupted, "the attempt was stopped before the tool ran"))
            }
        }
    }

    /// The files of the revision, packed as they are kept.
    pub(crate) async fn fetch_bundle(&self) -> Step<PathBuf> {
        self.check_wish()?;
        let path = self.places.private.join("bundle.tar");
        let mut file = tokio::fs::File::create(&path).await.map_err(disk)?;
        self.client.bundle_get(&self.description.bundle, &mut file).await.map_err(fetch_failed)?;
        Ok(path)
    }

    async fn fetch_code(&mut self) -> Step<PathBuf> {
        let path = self.fetch_bundle().await?;
        let source = self.places.source.clone();
        let is_image = self.description.image.is_some();
        let unpacked = tokio::task::spawn_blocking(move || {
            let archive = std::io::BufReader::new(std::fs::File::open(&path)?);
            let result = if is_image {
                let unpacked = image::unpack(archive, &source, image::Limits::default());
                unpacked.map(Some).map_err(|error| error.to_string())
            } else {
                unpack(archive, &source).map(|()| None).map_err(|error| error.to_string())
            };
            std::fs::remove_file(&path)?;
            Ok::<_, std::io::Error>(result)
        });
        let files = unpacked
            .await
            .map_err(|stopped| disk(std::io::Error::other(stopped)))?
            .map_err(disk)?
            .map_err(Ending::bad_input)?;
        let path = self.description.path.trimmed();
        if let Some(files) = files {
            return self.enter_image(files, path);
        }
        layer_directory(&self.places.source, path).ok_or_else(|| {
            Ending::bad_input(format!(
                "{} is not a directory at commit {}; correct the layer's path, or push the missing directory",
                self.description.path,
                self.description.revision.short()
            ))
        })
    }

    /// What the image says of itself counts before what runs in it; it takes nothing from what the pod and the layer give.
    fn enter_image(&mut self, files: ImageFiles, path: &str) -> Step<PathBuf> {
        let said = files.working_directory.clone();
        let unpacked = Unpacked::new(&self.places.source, files).ok_or_else(|| {
            Ending::bad_input(format!(
                "the image says that its working directory is {said}, which is no directory of it; correct it"
            ))
        })?;
        let dir = directory_within(&self.places.source, &unpacked.working_directory, path);
        let dir = dir.ok_or_else(|| {
            Ending::bad_input(format!(
                "{} is not a directory of {}, seen from its working directory {said}; correct the layer's path, or the image",
                self.description.path,
                self.code_name()
            ))
        })?;
        let known = self.surroundings.environment.iter().rev().find(|(name, _)| name == "PATH");
        let known = known.map(|(_, value)| value.clone()).unwrap_or_default();
        let path = std::env::split_paths(&known).chain(unpacked.search_path());
        let path = std::env::join_paths(path).unwrap_or(known);
        let given = std::mem::take(&mut self.surroundings.environment);
        let whole = unpacked.environment().into_iter().chain(given).chain([("PATH".into(), path)]);
        self.surroundings.environment = whole.collect();
        self.image = Some(unpacked);
        Ok(dir)
    }

    /// The code, as people know it.
    pub(crate) fn code_name(&self) -> String {
        match &self.description.image {
            Some(image) => format!("image {image}"),
            None => format!("commit {}", self.description.revision),
        }
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

    async fn prepare(&self, dir: PathBuf, tool_name: &mut Option<String>) -> Step<Ready> {
        self.check_wish()?;
        let code = read_code(&dir).map_err(|error| Ending::bad_input(error.to_string()))?;
        let mut tool = self.find_tool(&dir, &code).await?;
        tool.wrapper = self.find_terragrunt(&dir).await?;
        *tool_name = Some(tool.to_string());
        self.log.line(&format!("{tool}, {}", self.code_name()));
        let surroundings = self.surroundings.clone();
        let ready = Ready { tool, work_dir: dir.clone(), dir, surroundings, keeps_state_here: false };
        let (mut ready, code) = match ready.tool.wrapper.clone() {
            Some(terragrunt) => self.prepare_unit(ready, &terragrunt, tool_name).await?,
            None => (ready, code),
        };
        self.lay_backend(&ready, &code)?;
        ready.keeps_state_here = self.own.backend.is_none() && uses_our_backend(&code);
        if ready.keeps_state_here {
            tokio::fs::write(ready.work_dir.join(BACKEND_FILE), BACKEND).await.map_err(disk)?;
            ready.surroundings.environment.extend(self.backend_variables.iter().cloned());
        }
        Ok(ready)
    }

    async fn find_tool(&self, dir: &Path, code: &Code) -> Step<Tool> {
        let missing = |words: String| Ending::failed(Reason::ToolMissing, words);
        let mut wanted = wanted(
            self.description.tool,
            self.description.tool_version.as_deref(),
            &self.places.source,
            dir,
            code,
        )
        .map_err(|error| missing(error.to_string()))?;
        if self.runs_terragrunt(dir)
            && let Some(said) = self.terragrunt_files(dir)?.tool
        {
            wanted.require(&said.place, &said.version).map_err(|error| missing(error.to_string()))?;
        }
        self.toolbox().tool(&wanted, &self.surroundings).await.map_err(not_found)
    }

    /// Terragrunt runs the tool where the layer or its repository says so, or where the code is written for it.
    fn runs_terragrunt(&self, dir: &Path) -> bool {
        let said = self.description.terragrunt.as_ref().and_then(|choice| choice.enabled);
        said.unwrap_or_else(|| terragrunt::is_unit(dir))
    }

    fn terragrunt_files(&self, dir: &Path) -> Step<TerragruntFiles> {
        read_terragrunt(&self.places.source, dir).map_err(|error| Ending::bad_input(error.to_string()))
    }

    async fn find_terragrunt(&self, dir: &Path) -> Step<Option<Terragrunt>> {
        if !self.runs_terragrunt(dir) {
            return Ok(None);
        }
        let version = self.description.terragrunt.as_ref().and_then(|choice| choice.version.as_deref());
        let files = self.terragrunt_files(dir)?;
        let wanted = wanted_terragrunt(version, &self.places.source, dir, &files)
            .map_err(|error| Ending::failed(Reason::ToolMissing, error.to_string()))?;
        self.toolbox().terragrunt(&wanted, &self.surroundings).await.map(Some).map_err(not_found)
    }

    /// Lets Terragrunt put the code where the tool will work, and reads it there: what it fetched and generated says which backend
    /// and which version of the tool are meant.
    async fn prepare_unit(
        &self,
        mut ready: Ready,
        terragrunt: &Terragrunt,
        tool_name: &mut Option<String>,
    ) -> Step<(Ready, Code)> {
        ready.surroundings.environment.extend(terragrunt.variables(&ready.tool));
        let report = ready.tool.prepare(&ready.dir, &ready.surroundings, &mut self.to_log()).await;
        self.expect_success(report, "preparation", &ready)?;
        self.check_wish()?;
        ready.work_dir = terragrunt
            .working_directory(&ready.dir, &ready.surroundings)
            .await
            .map_err(process_failed)?
            .ok_or_else(|| {
                let words = "terragrunt does not say where the tool works; version 1.0 or newer is needed";
                Ending::failed(Reason::ToolFailed, words)
            })?;
        let code = read_code(&ready.work_dir).map_err(|error| Ending::bad_input(error.to_string()))?;
        let tool = self.find_tool(&ready.dir, &code).await?;
        if tool.path != ready.tool.path {
            ready.tool = Tool { wrapper: Some(terragrunt.clone()), ..tool };
            *tool_name = Some(ready.tool.to_string());
            ready.surroundings.environment.extend(terragrunt.variables(&ready.tool));
        }
        // From here on the unit's own `init` is ours; those of its dependencies are done.
        ready.surroundings.environment.push(("TG_NO_AUTO_INIT".into(), "true".into()));
        Ok((ready, code))
    }

    async fn init(&self, ready: &Ready, choice: ProviderChoice) -> Step<()> {
        self.check_wish()?;
        let past = match self.own.backend {
            Some(_) => Past::Forgotten,
            None => Past::Kept,
        };
        let more = &self.own.arguments.init;
        let report =
            ready.tool.init(choice, past, more, &ready.dir, &ready.surroundings, &mut self.to_log()).await;
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

    async fn plan(
        &self,
        ready: &Ready,
        backend: Option<Backend>,
        script: Option<&Script>,
        outputs: &mut Outputs,
    ) -> Step<Ending> {
        self.hooks(Moment::BeforePlan, ready, outputs).await?;
        self.check_wish()?;
        let file = self.places.plan();
        let mut text = Readable::default();
        let mut lines = |stream: Stream, line: &str| {
            self.log.line(line);
            if stream == Stream::Out {
                text.line(&self.log.mask().line(line));
            }
        };
        let more = &self.own.arguments.plan;
        let (planned, report) = ready
            .tool
            .plan(self.description.mode, more, &file, &ready.dir, &ready.surroundings, &mut lines)
            .await
            .map_err(process_failed)?;
        match planned {
            Planned::NoChanges | Planned::Changes => {}
            Planned::Failed => return Err(self.tool_failed(&report, "plan", ready)),
        }
        let text = text.0;
        self.hooks(Moment::AfterPlan, ready, outputs).await?;
        let base = base_state(&file).map_err(|error| Ending::bad_input(error.to_string()))?;
        // The plan is stored while the tool reads it again: neither changes it.
        let mut complaints = self.to_log();
        let storing = async {
            match script {
                // What is stored in its place says what the tool would change, which is not known yet.
                Some(_) => None,
                None => Some(self.client.artefact_put_file(self.attempt, Artefact::Plan, &file).await),
            }
        };
        let (stored, text_stored, shown) = tokio::join!(
            storing,
            self.client.artefact_put(self.attempt, Artefact::PlanText, text.clone().into()),
            ready.tool.show_json(&file, &ready.dir, &ready.surroundings, &mut complaints),
        );
        let shown = shown.map_err(process_failed)?;
        let (mut summary, differences, json) = match &shown {
            Some(document) => {
                // Its own marks first; then the values we know to be secret, whether or not the code marks them.
                let mut shown =
                    tofu::plan::read(document).map_err(|error| Ending::bad_input(error.to_string()))?;
                self.log.mask().json(&mut shown.redacted);
                let mask = self.log.mask();
                let found = differences(&shown.plan, self.description.mode, &|text| mask.line(text));
                (shown.plan.summary, found, Some(shown.redacted.to_string()))
            }
            None => (summary_in_words(planned, &text, ready.tool.program())?, Differences::default(), None),
        };
        let store = |error| store_failed(&error);
        let sha256 = match (stored, script) {
            (Some(stored), _) => stored.map_err(store)?,
            (None, None) => return Err(Ending::bad_input("the plan was not stored")),
            (None, Some(script)) => {
                let document = self.plan_script(script, &file, &mut summary).await?;
                self.client.artefact_put_file(self.attempt, Artefact::Plan, &document).await.map_err(store)?
            }
        };
        text_stored.map_err(store)?;
        if let Some(document) = shown.filter(|_| !summary.has_changes()) {
            self.keep_planned_outputs(&document).await;
        }
        let message = describe(&summary, &differences);
        // The end of the log travels beside the last artefact. Should that fail, the log says so as well.
        self.log.line(&message);
        self.log.hurry();
        if let Some(json) = json {
            self.client.artefact_put(self.attempt, Artefact::PlanJson, json.into()).await.map_err(store)?;
        }
        Ok(Ending {
            reason: Reason::Succeeded,
            message,
            exit_code: report.ended.code.unwrap_or(0),
            plan: Some(Box::new(PlanOutcome {
                sha256,
                summary,
                differences,
                lineage: base.lineage,
                serial: base.serial,
                backend,
            })),
            logged: Logged::Yes,
            ..Ending::failed(Reason::Succeeded, "")
        })
    }

    async fn apply(&self, ready: &Ready, file: &Path) -> Step<Ending> {
        self.check_wish()?;
        let mut last = String::new();
        let mut lines = |_: Stream, line: &str| {
            self.log.line(line);
            if is_the_tools_word(line) {
                last = line.to_owned();
            }
        };
        let report = ready
            .tool
            .apply(&self.own.arguments.apply, file, &ready.dir, &ready.surroundings, &mut lines)
            .await
            .map_err(process_failed)?;
        let rescued = self.rescue_state(ready).await;
        // Terragrunt can be told to take a failure for a success, or to skip the tool.
        let is_done = report.succeeded() && (ready.tool.wrapper.is_none() || !last.is_empty());
        if is_done {
            let (message, logged) = if last.is_empty() {
                ("Apply complete.".to_owned(), Logged::NotYet)
            } else {
                (last, Logged::Yes)
            };
            return Ok(Ending { exit_code: 0, logged, ..Ending::failed(Reason::Succeeded, message) });
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

    fn expect_success(&self, report: Result<Report, tofu::Error>, command: &str, ready: &Ready) -> Step<()> {
        let report = report.map_err(process_failed)?;
        if report.succeeded() { Ok(()) } else { Err(self.tool_failed(&report, command, ready)) }
    }

    fn tool_failed(&self, report: &Report, command: &str, ready: &Ready) -> Ending {
        let program = ready.tool.program();
        let ended = report.ended;
        let exit_code = ended.code.unwrap_or_else(|| 128 + ended.signal.unwrap_or(0));
        let words = report.complaints.first().map(tofu::diagnostics::Diagnostic::message);
        let here = format!("{}/", self.places.source.display());
        let words = words.map(|words| self.log.mask().line(&words).replace(&here, ""));
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
        Ending { exit_code, ..Ending::failed(reason, message) }
    }

    pub(crate) fn to_log(&self) -> impl FnMut(Stream, &str) + Send {
        let log = Arc::clone(self.log);
        move |_, line| log.line(line)
    }
}

/// The plan for people, up to a size; where it is cut it says so.
#[derive(Debug, Default)]
struct Readable(String);

impl Readable {
    fn line(&mut self, line: &str) {
        if self.0.len() > PLAN_TEXT_LIMIT {
            return;
        }
        self.0.push_str(line);
        self.0.push('\n');
        if self.0.len() > PLAN_TEXT_LIMIT {
            self.0.push_str("[the plan is cut here; the log may have more of it]\n");
        }
    }
}

fn not_found(why: NotFound) -> Ending {
    Ending::failed(why.reason, why.message)
}

fn uses_our_backend(code: &Code) -> bool {
    code.backend.is_none()
}

/// A tool too old to show a plan in JSON still says how much would change. One that found changes and says of none is not believed that
/// there are none: they would never be applied.
fn summary_in_words(planned: Planned, text: &str, program: &str) -> Step<PlanSummary> {
    let said = tofu::plan::summary_from_text(text).unwrap_or_default();
    match planned {
        Planned::Changes if !said.has_changes() => Err(Ending::failed(
            Reason::ToolFailed,
            format!(
                "{program} plan found changes, but {program} show could not say which, so nothing can be applied; the log says why"
            ),
        )),
        Planned::Changes | Planned::NoChanges | Planned::Failed => Ok(said),
    }
}

fn describe(summary: &PlanSummary, differences: &Differences) -> String {
    if summary.scripts > 0 {
        let tools = PlanSummary { scripts: 0, ..*summary };
        return format!("The script is to be run; by the tool: {}", describe(&tools, differences));
    }
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

/// The digest of nothing, for an attempt whose log could not even begin.
pub(crate) fn empty_digest() -> Sha256 {
    Sha256::of(b"")
}

/// Whether the tool itself says so when an apply has ended well; then nobody has to say it again.
fn is_the_tools_word(line: &str) -> bool {
    line.starts_with("Apply complete!") || line.starts_with("Destroy complete!")
}
