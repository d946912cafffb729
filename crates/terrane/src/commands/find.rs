//! Finding runs: of a layer, by name, the newest.

use anyhow::{Context, bail};
use api::TerraformRun;
use api::run::RunState;
use jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

/// The runs of a layer, newest first: those that have not ended, then by when they ended. O(runs of the layer).
pub(super) async fn runs_of(
    client: &Client,
    namespace: &str,
    layer: &str,
) -> anyhow::Result<Vec<TerraformRun>> {
    let params = ListParams::default().fields(&format!("spec.layer.name={layer}"));
    let mut runs = Api::<TerraformRun>::namespaced(client.clone(), namespace)
        .list(&params)
        .await
        .with_context(|| format!("list the runs of {namespace}/{layer}"))?
        .items;
    sort_newest_first(&mut runs);
    Ok(runs)
}

/// Times are whole seconds, in which a plan and its apply may both begin and end: the apply is the newer one. O(n log n).
fn sort_newest_first(runs: &mut [TerraformRun]) {
    runs.sort_by_cached_key(|run| {
        let ended = run.status.as_ref().and_then(|status| status.finished_at.as_ref()).map(|time| time.0);
        let created = run.creation_timestamp().map(|time| time.0);
        let rank = (ended.unwrap_or(Timestamp::MAX), created, run.spec.action.mutates());
        std::cmp::Reverse((rank, run.name_any()))
    });
}

/// What is meant by a name: `run/NAME` is a run; else the latest run of the layer NAME, else the run NAME.
pub(super) async fn run_meant(client: &Client, namespace: &str, name: &str) -> anyhow::Result<TerraformRun> {
    let api = Api::<TerraformRun>::namespaced(client.clone(), namespace);
    let reading = || format!("read run {namespace}/{name}");
    if let Some(run) = name.strip_prefix("run/") {
        return match api.get_opt(run).await.with_context(reading)? {
            Some(found) => Ok(found),
            None => bail!("run {namespace}/{run} not found; `terrane get runs -n {namespace}` lists them"),
        };
    }
    let layer = name.strip_prefix("layer/").unwrap_or(name);
    if let Some(run) = runs_of(client, namespace, layer).await?.into_iter().next() {
        return Ok(run);
    }
    if let Some(run) = api.get_opt(name).await.with_context(reading)? {
        return Ok(run);
    }
    super::layer(client, namespace, layer).await?;
    bail!("layer {namespace}/{layer} has no run yet; `terrane plan {layer}` starts one")
}

/// What a run that has not ended does or waits for.
pub(super) fn waits_for(run: &TerraformRun) -> String {
    let conditions = run.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    match api::condition::find(conditions, "Ready") {
        Some(ready) if !ready.message.is_empty() => ready.message.clone(),
        _ => "waiting to start".to_owned(),
    }
}

pub(super) fn has_ended(run: &TerraformRun) -> bool {
    run.status.as_ref().and_then(|status| status.state).is_some_and(RunState::is_terminal)
}

pub(super) fn has_succeeded(run: &TerraformRun) -> bool {
    run.status.as_ref().and_then(|status| status.state) == Some(RunState::Succeeded)
}

/// The tool of an attempt and its version. O(attempts of one run).
pub(super) fn tool_of(run: &TerraformRun, attempt: u32) -> Option<&str> {
    let attempts = &run.status.as_ref()?.attempts;
    attempts.iter().find(|made| made.number == attempt)?.tool.as_deref()
}

/// What came of a run, for people.
pub(super) fn outcome(run: &TerraformRun) -> String {
    let result = run.status.as_ref().and_then(|status| status.result.as_ref());
    result.map_or_else(|| "it has no result yet".to_owned(), |result| result.message.clone())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn run(name: &str, action: &str, created: u32, ended: Option<u32>) -> TerraformRun {
        let at = |second: u32| format!("2026-01-01T00:00:{second:02}Z");
        let run = json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRun",
            "metadata": { "name": name, "creationTimestamp": at(created) },
            "spec": {
                "layer": { "name": "db", "uid": "u", "revision": "a".repeat(40) }, "action": action,
                "state": "b".repeat(64), "trigger": { "kind": "commit", "reason": "new commit" },
            },
            "status": { "finishedAt": ended.map(at) },
        });
        serde_json::from_value(run).unwrap()
    }

    #[test]
    fn what_has_not_ended_is_newest_and_an_apply_is_newer_than_the_plan_of_the_same_second() {
        let mut runs = [
            run("db-plan-1", "plan", 1, Some(5)),
            run("db-plan-2", "plan", 7, Some(7)),
            run("db-apply-2", "apply", 7, Some(7)),
            run("db-plan-3", "plan", 2, None),
            run("db-apply-0", "apply", 3, Some(4)),
        ];
        sort_newest_first(&mut runs);
        let names: Vec<String> = runs.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["db-plan-3", "db-apply-2", "db-plan-2", "db-plan-1", "db-apply-0"]);
    }
}
