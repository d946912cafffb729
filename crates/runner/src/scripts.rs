//! A script of the layer's own in the place of the tool's apply. Its plan is a small document: which script, with which code and inputs, by
//! one digest, and what the tool planned beside it. Those are the bytes that are approved, and that an apply is started by at most once.

use std::path::{Path, PathBuf};

use api::attempt::Reason;
use api::outputs::Outputs;
use api::run::{Mode, PlanSummary};
use api::text::Sha256;
use serde::{Deserialize, Serialize};

use crate::attempt::{Ready, Work};
use crate::ending::{Ending, Step, disk};
use crate::hooks::{Command, failure};

/// The layer's script for what this attempt is about.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) command: Command,
    pub(crate) digest: Sha256,
}

/// What is stored in the place of a plan file.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Document {
    version: u32,
    mode: Mode,
    script: Sha256,
    /// The tool's own plan, which is of no further use: the script makes its own, if it wants one.
    beside: Sha256,
}

const VERSION: u32 = 1;
/// More than any such document holds.
const DOCUMENT_LIMIT: u64 = 64 * 1024;

impl Work<'_> {
    /// Writes what is to be approved in the place of the tool's plan, and counts the script where it is to be run: for code or inputs that
    /// it was not run for, for whatever the tool would change, and always to destroy.
    pub(crate) async fn plan_script(
        &self,
        script: &Script,
        tools: &Path,
        summary: &mut PlanSummary,
    ) -> Step<PathBuf> {
        let is_done = self.description.script.as_ref() == Some(&script.digest);
        let is_to_run = match self.description.mode {
            Mode::Destroy => true,
            Mode::Normal | Mode::RefreshOnly => !is_done || summary.has_changes(),
        };
        summary.scripts = u32::from(is_to_run);
        let beside = datastore::client::file_digest(tools).await.map_err(disk)?;
        let document =
            Document { version: VERSION, mode: self.description.mode, script: script.digest.clone(), beside };
        let content = serde_json::to_vec(&document).map_err(|error| Ending::bad_input(error.to_string()))?;
        let path = self.places.private.join("script-plan");
        std::fs::write(&path, content).map_err(disk)?;
        Ok(path)
    }

    /// What was approved must be this very script, with this code and these inputs.
    pub(crate) fn check_script(&self, script: &Script, plan: &Path) -> Step<()> {
        use std::io::Read;
        let mut content = Vec::new();
        let file = std::fs::File::open(plan).map_err(disk)?;
        file.take(DOCUMENT_LIMIT).read_to_end(&mut content).map_err(disk)?;
        let is_it = serde_json::from_slice::<Document>(&content).is_ok_and(|document| {
            document.version == VERSION
                && document.mode == self.description.mode
                && document.script == script.digest
        });
        if is_it {
            return Ok(());
        }
        let words = "what was planned is not this script with this code and these inputs; nothing was run, a new plan is needed";
        Err(Ending::failed(Reason::Stale, words))
    }

    /// Runs the script to its end, and takes down what it gives out.
    pub(crate) async fn run_script(&self, script: &Script, ready: &Ready) -> Step<(String, Outputs)> {
        self.check_wish()?;
        let name = match self.description.mode {
            Mode::Destroy => "scripts.destroy",
            Mode::Normal | Mode::RefreshOnly => "scripts.apply",
        };
        self.log.line(&format!("Script {name}:"));
        let surroundings = self.told(name, ready)?;
        let said = self.command(&script.command, name, ready, surroundings, Reason::ScriptFailed).await?;
        let rescued = self.rescue_state(ready).await;
        let Some(words) = failure(&said) else {
            return Ok((format!("{name} is done."), self.printed_outputs(name, &said.last)));
        };
        let reason = if said.ended.interrupted && said.overdue.is_none() {
            Reason::Interrupted
        } else {
            Reason::ScriptFailed
        };
        let rescued = rescued.map(|words| format!(". {words}")).unwrap_or_default();
        let mut ending = Ending::failed(reason, format!("{name} {words}; the log says more{rescued}"));
        ending.exit_code = said.ended.code.unwrap_or_else(|| 128 + said.ended.signal.unwrap_or(0));
        Err(ending)
    }
}
