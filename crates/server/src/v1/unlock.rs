//! Releasing a lock by hand: only when nothing of the run that took it can still be at work. An apply under a higher fence releases an
//! orphan by itself; this is for those who will not wait for one.

use std::sync::Arc;

use api::run::RunState;
use api::{SYSTEM_NAMESPACE, TerraformRun, label};
use axum::extract::State;
use axum::response::Response;
use datastore::client::Relay;
use engine::run::can_still_work;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use reqwest::Method;
use serde::Deserialize;
use serde_json::Value;
use utoipa::IntoParams;

use super::states::{Place, pass};
use crate::answers::Asked;
use crate::may::{May, UpdateState};
use crate::{Refusal, Service};

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Held {
    /// Which lock: one that was taken since is another's.
    id: String,
}

/// Release a lock by hand, when nothing of the run that took it can still be at work
#[utoipa::path(
    delete, operation_id = "releaseStateLock", tag = "states",
    path = "/api/v1/namespaces/{namespace}/layers/{name}/state/lock",
    params(("namespace" = String, Path), ("name" = String, Path), Held),
    responses((status = 200, description = "It is released")),
)]
pub(crate) async fn unlock(
    may: May<UpdateState>,
    State(service): State<Arc<Service>>,
    Asked(held): Asked<Held>,
) -> Result<Response, Refusal> {
    let May { person, namespace, name, .. } = may;
    let state = match service.state_kept_here(&namespace, &name).await? {
        Ok(state) => state,
        Err(place) => {
            return Err(Refusal::Conflict(service.held_elsewhere(&namespace, &name, &place).await?));
        }
    };
    if let Some(worker) = service.worker(&namespace, &state).await? {
        let lock = service.fetch(&person, format!("/v1/state/{state}/lock")).await?;
        let lock: Value = lock.json().await.unwrap_or_default();
        let word = |field: &str| lock.get(field).and_then(Value::as_str).unwrap_or("somebody").to_owned();
        return Err(Refusal::Conflict(format!(
            "the state of {namespace}/{name} is locked by {} since {}: {worker} is still at work on it, and releases it when it ends; `terrane cancel {name}` asks it to",
            word("by"),
            word("since"),
        )));
    }
    let body = serde_json::json!({ "ID": held.id }).to_string();
    let relay = Relay {
        method: Method::DELETE,
        path: format!("/v1/state/{state}/lock"),
        user: &person.name,
        sha256: None,
        body: Some(body.into()),
    };
    Ok(pass(service.datastore.relay(relay).await.map_err(|error| Refusal::datastore(&error))?).await)
}

impl Service {
    /// What there is to say of a lock that another backend keeps. Nobody is told to break one that a run of ours may hold.
    pub(super) async fn held_elsewhere(
        &self,
        namespace: &str,
        name: &str,
        place: &Place,
    ) -> Result<String, Refusal> {
        let advice = match self.worker(namespace, &place.sha256).await? {
            Some(worker) => format!("{worker} is at work on it; `terrane cancel {name}` asks it to stop"),
            None => "so are its locks: the log of a run that finds it locked says by whom, and `terraform force-unlock ID` in a checkout of its code releases one that was left behind".to_owned(),
        };
        Ok(place.says(&advice))
    }

    /// Who may change this state now, in words: a run that has not ended, or a pod of one that is gone.
    async fn worker(&self, namespace: &str, state: &api::text::Sha256) -> Result<Option<String>, Refusal> {
        if let Some(run) = self.mutating_run(namespace, state).await? {
            return Ok(Some(format!("run {namespace}/{run}")));
        }
        // The lease outlives its run, and says whose pods to look for.
        let lease = Api::<Lease>::namespaced(self.client.clone(), SYSTEM_NAMESPACE)
            .get_opt(&engine::names::lease(state))
            .await
            .map_err(|error| Refusal::api("read the state's lease", &error))?;
        let holder = lease.and_then(|lease| lease.spec?.holder_identity).filter(|holder| !holder.is_empty());
        let Some(holder) = holder else { return Ok(None) };
        let of_holder = ListParams::default().labels(&format!("{}={holder}", label::RUN_UID));
        let pods = Api::<Pod>::namespaced(self.client.clone(), namespace)
            .list(&of_holder)
            .await
            .map_err(|error| Refusal::api("list the pods of a run", &error))?;
        let working = pods.items.iter().find(|pod| can_still_work(pod));
        Ok(working.map(|pod| format!("pod {namespace}/{} of the run that took it", pod.name_any())))
    }

    /// A run that may change this state now. O(runs of the namespace).
    async fn mutating_run(
        &self,
        namespace: &str,
        state: &api::text::Sha256,
    ) -> Result<Option<String>, Refusal> {
        let runs = Api::<TerraformRun>::namespaced(self.client.clone(), namespace)
            .list(&ListParams::default())
            .await
            .map_err(|error| Refusal::api("list runs", &error))?;
        let found = runs.items.iter().find(|run| {
            let ended = run.status.as_ref().and_then(|s| s.state).is_some_and(RunState::is_terminal);
            run.spec.action.mutates() && run.spec.state == *state && !ended
        });
        Ok(found.map(|run| run.name_any()))
    }
}
