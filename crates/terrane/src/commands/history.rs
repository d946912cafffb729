//! `terrane history`: the runs of a layer, the decisions about them, and what was written down before infrastructure could be
//! changed, newest first.

use std::collections::BTreeMap;

use anyhow::Context;
use api::approval::Decision;
use api::audit::Record;
use api::run::TriggerKind;
use api::{TerraformApproval, TerraformLayer, TerraformRun};
use clap::Args;
use jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde::Serialize;

use super::service::Service;
use super::{Connection, find, get, render};
use crate::arguments::{Output, Reach};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The layer
    layer: String,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    reach: Reach,
}

/// One thing that happened.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    at: Option<Timestamp>,
    /// plan, apply, approve or reject.
    what: String,
    /// The run or the approval.
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
    /// The first digits of the plan that was made, applied or decided on.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<String>,
    by: String,
    result: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<i64>,
    /// What was written down before each attempt that could change infrastructure; it is kept when its run is not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    audit: Vec<Record>,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let connection = super::connection(&options.reach).await?;
    let (client, namespace) = (connection.client.clone(), connection.namespace.as_str());
    let name = options.layer.as_str();
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), namespace);
    let is_there =
        layers.get_opt(name).await.with_context(|| format!("read layer {namespace}/{name}"))?.is_some();
    let records = audit(&connection, name).await?;
    if !is_there && records.is_empty() {
        // Says which name was meant.
        super::layer(&client, namespace, name).await?;
    }
    let runs = find::runs_of(&client, namespace, name).await?;
    let approvals = Api::<TerraformApproval>::namespaced(client, namespace)
        .list(&ListParams::default().fields(&format!("spec.layer={name}")))
        .await
        .context("list the approvals")?;
    let entries = told(&runs, &approvals.items, records);
    if entries.is_empty() && matches!(options.output, Output::Table | Output::Wide) {
        eprintln!("nothing was done about layer {namespace}/{name} yet");
        return Ok(());
    }
    if !is_there {
        eprintln!("layer {namespace}/{name} is gone; this is what was written down about it");
    }
    print(options.output, &entries, Timestamp::now())
}

/// What was written down before infrastructure could be changed, oldest first.
async fn audit(connection: &Connection, layer: &str) -> anyhow::Result<Vec<Record>> {
    let service = Service::find(connection).await?;
    let answer = service.get(&[connection.namespace.as_str(), "layers", layer, "history"]).await?;
    answer.json().await.with_context(|| format!("read the history of {}/{layer}", connection.namespace))
}

/// Newest first. Records belong to the run they are about; where that is gone, they speak for it.
/// O(n log n) in runs, approvals and records.
fn told(runs: &[TerraformRun], approvals: &[TerraformApproval], records: Vec<Record>) -> Vec<Entry> {
    let mut of_runs: BTreeMap<String, Vec<Record>> = BTreeMap::new();
    for record in records {
        of_runs.entry(record.entry.run_uid.clone()).or_default().push(record);
    }
    let mut entries: Vec<Entry> = runs
        .iter()
        .map(|run| {
            let audit = run.uid().and_then(|uid| of_runs.remove(&uid)).unwrap_or_default();
            Entry { audit, ..of_run(run) }
        })
        .collect();
    entries.extend(of_runs.into_values().filter_map(of_records));
    entries.extend(approvals.iter().map(of_approval));
    entries.sort_by_cached_key(|entry| {
        let second = entry.at.map(Timestamp::as_second);
        std::cmp::Reverse((second, step(&entry.what), entry.name.clone()))
    });
    entries
}

/// Times are whole seconds: what happens within one is told in the order in which one leads to the other.
fn step(what: &str) -> u8 {
    match what {
        "plan" => 0,
        "approve" | "reject" => 1,
        _ => 2,
    }
}

fn print(output: Output, entries: &[Entry], now: Timestamp) -> anyhow::Result<()> {
    let mut header = vec!["AGE", "WHAT", "COMMIT", "PLAN", "BY", "TOOK", "RESULT", "NAME"];
    if output == Output::Wide {
        header.extend(["ALLOWED", "BECAUSE", "FENCE"]);
    }
    let cells = |entry: &Entry| {
        let mut cells = vec![
            entry.at.map_or_else(get::dash, |at| get::age(at, now)),
            entry.what.clone(),
            entry.commit.clone().map_or_else(get::dash, |commit| commit.chars().take(7).collect()),
            entry.plan.clone().unwrap_or_else(get::dash),
            entry.by.clone(),
            entry.seconds.map_or_else(get::dash, |seconds| format!("{seconds}s")),
            entry.result.clone(),
            entry.name.clone(),
        ];
        if output == Output::Wide {
            let last = entry.audit.last();
            cells.push(last.map_or_else(get::dash, |record| whole_second(record.at)));
            cells.push(last.map_or_else(get::dash, |record| record.entry.reason.clone()));
            cells.push(last.map_or_else(get::dash, |record| record.entry.fence.to_string()));
        }
        cells
    };
    render::rows(output, entries, &header, cells, |entry| entry.name.clone())
}

fn whole_second(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn of_run(run: &TerraformRun) -> Entry {
    let status = run.status.clone().unwrap_or_default();
    let started = status.attempts.first().map(|attempt| attempt.started_at.0);
    let ended = status.finished_at.as_ref().map(|time| time.0);
    let made = status.result.as_ref().and_then(|result| result.plan_sha256.as_ref());
    let applied = run.spec.artifact.as_ref().map(|artifact| &artifact.sha256);
    let trigger = &run.spec.trigger;
    let state = status.state.map(|state| format!("{state:?}")).unwrap_or_else(get::dash);
    Entry {
        at: started.or_else(|| run.creation_timestamp().map(|time| time.0)),
        what: run.spec.action.as_str().to_owned(),
        name: run.name_any(),
        commit: Some(run.spec.layer.revision.to_string()),
        plan: applied.or(made).map(|sha256| sha256.short().to_owned()),
        by: who(trigger.by.as_deref(), trigger.kind),
        result: status.result.map_or(state, |result| result.message),
        seconds: started.zip(ended).map(|(from, to)| to.duration_since(from).as_secs()),
        audit: Vec::new(),
    }
}

/// A run that is no longer kept, from what was written down before its attempts.
fn of_records(audit: Vec<Record>) -> Option<Entry> {
    let Record { at, entry } = audit.first()?;
    Some(Entry {
        at: Some(*at),
        what: entry.action.as_str().to_owned(),
        name: entry.run.clone(),
        commit: Some(entry.revision.to_string()),
        plan: entry.plan_sha256.as_ref().map(|sha256| sha256.short().to_owned()),
        by: who(entry.by.as_deref(), entry.trigger),
        result: format!("{}; its run is no longer kept", entry.reason),
        seconds: None,
        audit,
    })
}

fn who(by: Option<&str>, kind: TriggerKind) -> String {
    match (by, kind) {
        (Some(by), _) => by.to_owned(),
        (None, TriggerKind::Approval) => "approval (author not proved)".to_owned(),
        (None, TriggerKind::Manual) => "a person's sync".to_owned(),
        (
            None,
            TriggerKind::Commit
            | TriggerKind::Inputs
            | TriggerKind::Outputs
            | TriggerKind::Drift
            | TriggerKind::Failure
            | TriggerKind::Auto
            | TriggerKind::Deletion,
        ) => format!("{kind:?}").to_lowercase(),
    }
}

fn of_approval(approval: &TerraformApproval) -> Entry {
    let spec = &approval.spec;
    let what = match spec.decision {
        Decision::Approve => "approve",
        Decision::Reject => "reject",
    };
    Entry {
        at: approval.creation_timestamp().map(|time| time.0),
        what: what.to_owned(),
        name: approval.name_any(),
        commit: None,
        plan: Some(spec.plan_sha256.short().to_owned()),
        by: spec.user.clone(),
        result: spec.reason.clone().unwrap_or_default(),
        seconds: None,
        audit: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(run: &str, attempt: u32, at: &str) -> Record {
        serde_json::from_value(json!({
            "at": at, "namespace": "default", "layer": "db", "layerUid": "l", "run": format!("db-apply-{run}"), "runUid": run,
            "attempt": attempt, "action": "apply", "state": "a".repeat(64), "fence": 3, "revision": "b".repeat(40),
            "planSha256": "c".repeat(64), "trigger": "approval", "by": "anna", "reason": "approved by anna",
        }))
        .unwrap()
    }

    #[test]
    fn what_was_written_down_outlives_its_run_and_joins_the_one_that_is_kept() {
        let mut kept: TerraformRun = serde_json::from_value(json!({
            "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRun", "metadata": { "name": "db-apply-2", "uid": "2" },
            "spec": {
                "layer": { "name": "db", "uid": "l", "revision": "b".repeat(40) }, "action": "apply", "state": "a".repeat(64),
                "trigger": { "kind": "approval", "by": "anna", "reason": "approved by anna" },
            },
        }))
        .unwrap();
        kept.metadata.creation_timestamp = serde_json::from_value(json!("2026-01-02T00:00:00Z")).unwrap();
        let records = vec![
            record("1", 0, "2026-01-01T00:00:00Z"),
            record("2", 0, "2026-01-02T00:00:01Z"),
            record("2", 1, "2026-01-02T00:00:09Z"),
        ];
        let entries = told(&[kept], &[], records);
        let seen: Vec<(&str, &str, usize)> =
            entries.iter().map(|entry| (entry.name.as_str(), entry.by.as_str(), entry.audit.len())).collect();
        assert_eq!(seen, [("db-apply-2", "anna", 2), ("db-apply-1", "anna", 1)]);
        assert_eq!(entries[1].result, "approved by anna; its run is no longer kept");
        assert_eq!(entries[1].plan.as_deref(), Some("cccccccccccc"));
    }

    #[test]
    fn a_plan_its_approval_and_its_apply_are_told_in_that_order_though_all_are_of_one_second() {
        let spec = |action: &str| {
            json!({
                "layer": { "name": "db", "uid": "l", "revision": "b".repeat(40) }, "action": action, "state": "a".repeat(64),
                "trigger": { "kind": "commit", "reason": "new commit" },
            })
        };
        let of = |kind: &str, name: &str, spec: serde_json::Value| {
            let metadata = json!({ "name": name, "creationTimestamp": "2026-01-02T00:00:00Z" });
            json!({ "apiVersion": "terrane.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec })
        };
        let runs = ["plan", "apply"].map(|action| {
            serde_json::from_value(of("TerraformRun", &format!("db-{action}"), spec(action))).unwrap()
        });
        let word =
            json!({ "layer": "db", "planSha256": "c".repeat(64), "user": "anna", "decision": "approve" });
        let approval = serde_json::from_value(of("TerraformApproval", "db-zzz", word)).unwrap();
        let entries = told(&runs, &[approval], Vec::new());
        let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["db-apply", "db-zzz", "db-plan"], "the newest first");
    }
}
