//! The state around an attempt: whether it is still the one that was planned on, and what is done when the tool could not save it.

use std::path::Path;

use api::attempt::Reason;
use api::backend::Backend;
use datastore::StateId;
use datastore::client::{self, LockChange};
use jiff::Timestamp;
use tofu::plan_file::{StateFacts, base_state};

use crate::attempt::{Ready, Work};
use crate::backend::{Around, local_file, settled};
use crate::ending::{Ending, Step, complaint, disk, fetch_failed, process_failed};

impl Work<'_> {
    /// The code's own backend as `init` settled it; none where the datastore keeps the state.
    pub(crate) fn settled_backend(&self, ready: &Ready) -> Step<Option<Backend>> {
        if ready.keeps_state_here {
            return Ok(None);
        }
        let around = Around {
            dir: &ready.work_dir,
            environment: &ready.surroundings.environment,
            workspace: self.description.workspace.as_str(),
        };
        let backend =
            settled(&around).map_err(|error| Ending::failed(Reason::ToolFailed, error.to_string()))?;
        self.check_laid(&backend)?;
        // Canonical, as the file's path is.
        let root = std::fs::canonicalize(&self.places.root).map_err(disk)?;
        match local_file(&backend) {
            Some(file) if file.starts_with(&root) => Err(Ending::bad_input(format!(
                "the state would be kept in {}, which is gone when the run ends; leave the backend out and Terrane keeps the state, or name a path outside of the repository",
                file.strip_prefix(&root).unwrap_or(file).display()
            ))),
            Some(_) | None => Ok(Some(backend)),
        }
    }

    /// The lock that this apply holds is that of the state it was planned on, and no other.
    pub(crate) fn check_backend(&self, backend: Option<&Backend>) -> Step<()> {
        if backend.map(Backend::sha256) == self.description.backend {
            return Ok(());
        }
        Err(Ending::failed(
            Reason::StateMoved,
            format!(
                "the state is not where it was when the plan was made: its backend is now {}; nothing was applied, a new plan is needed",
                backend.map_or("Terrane's own".to_owned(), Backend::to_string)
            ),
        ))
    }

    /// A plan is applied for as long as the controllers allow, however long its pod was on its way.
    pub(crate) fn check_age(&self) -> Step<()> {
        let expires = self.description.plan.as_ref().and_then(|plan| plan.expires);
        match expires.filter(|at| Timestamp::now() >= *at) {
            None => Ok(()),
            Some(at) => {
                let message = format!("the plan expired at {at}; nothing was applied, a new plan is needed");
                Err(Ending::failed(Reason::Stale, message))
            }
        }
    }

    /// A plan fits only the state it was made from.
    pub(crate) async fn check_fresh(&self, plan: &Path, ready: &Ready) -> Step<()> {
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
    pub(crate) async fn rescue_state(&self, ready: &Ready) -> Option<String> {
        let file = ready.work_dir.join("errored.tfstate");
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
}
