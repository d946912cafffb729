//! `terrane history`: the runs of a layer and the decisions about them, newest first.

use anyhow::Context;
use api::approval::Decision;
use api::run::TriggerKind;
use api::{TerraformApproval, TerraformRun};
use clap::Args;
use jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde::Serialize;

use super::{find, get, render};
use crate::arguments::{Output, Target};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The layer
    layer: String,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    target: Target,
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
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let (client, namespace) = super::connect(&options.target).await?;
    super::layer(&client, &namespace, &options.layer).await?;
    let runs = find::runs_of(&client, &namespace, &options.layer).await?;
    let approvals = Api::<TerraformApproval>::namespaced(client, &namespace)
        .list(&ListParams::default())
        .await
        .context("list the approvals")?;
    let decided =
        approvals.items.iter().filter(|word| word.spec.layer.as_str() == options.layer).map(of_approval);
    let mut entries: Vec<Entry> = runs.iter().map(of_run).chain(decided).collect();
    entries.sort_by(|a, b| (b.at, &b.name).cmp(&(a.at, &a.name)));
    if entries.is_empty() && matches!(options.output, Output::Table | Output::Wide) {
        eprintln!("nothing was done about layer {namespace}/{} yet", options.layer);
        return Ok(());
    }
    let now = Timestamp::now();
    let header = ["AGE", "WHAT", "COMMIT", "PLAN", "BY", "TOOK", "RESULT", "NAME"];
    let cells = |entry: &Entry| {
        vec![
            entry.at.map_or_else(get::dash, |at| get::age(at, now)),
            entry.what.clone(),
            entry.commit.clone().map_or_else(get::dash, |commit| commit.chars().take(7).collect()),
            entry.plan.clone().unwrap_or_else(get::dash),
            entry.by.clone(),
            entry.seconds.map_or_else(get::dash, |seconds| format!("{seconds}s")),
            entry.result.clone(),
            entry.name.clone(),
        ]
    };
    render::rows(options.output, &entries, &header, cells, |entry| entry.name.clone())
}

fn of_run(run: &TerraformRun) -> Entry {
    let status = run.status.clone().unwrap_or_default();
    let started = status.attempts.first().map(|attempt| attempt.started_at.0);
    let ended = status.finished_at.as_ref().map(|time| time.0);
    let made = status.result.as_ref().and_then(|result| result.plan_sha256.as_ref());
    let applied = run.spec.artifact.as_ref().map(|artifact| &artifact.sha256);
    let trigger = &run.spec.trigger;
    let by = trigger.by.clone().unwrap_or_else(|| match trigger.kind {
        TriggerKind::Approval => "approval (author not proved)".to_owned(),
        TriggerKind::Manual => "a person's sync".to_owned(),
        TriggerKind::Commit | TriggerKind::Drift | TriggerKind::Failure | TriggerKind::Auto => {
            format!("{:?}", trigger.kind).to_lowercase()
        }
    });
    let state = status.state.map(|state| format!("{state:?}")).unwrap_or_else(get::dash);
    Entry {
        at: started.or_else(|| run.creation_timestamp().map(|time| time.0)),
        what: run.spec.action.as_str().to_owned(),
        name: run.name_any(),
        commit: Some(run.spec.layer.revision.to_string()),
        plan: applied.or(made).map(|sha256| sha256.short().to_owned()),
        by,
        result: status.result.map_or(state, |result| result.message),
        seconds: started.zip(ended).map(|(from, to)| to.duration_since(from).as_secs()),
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
    }
}
