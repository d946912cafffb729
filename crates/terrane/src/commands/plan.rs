//! `terrane plan`: a plan now, waited for and shown.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use api::layer::PlanRef;
use api::{TerraformLayer, TerraformRun, annotation, condition};
use clap::Args;
use kube::{Api, ResourceExt};

use super::diff::{self, Form, Shown};
use super::progress::Progress;
use super::service::Service;
use super::sync::Wish;
use super::watching::{self, Seen, within};
use super::{Connection, find, logs, sync};
use crate::arguments::Reach;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The layer
    layer: String,
    /// Print the log while it is planned
    #[arg(short, long)]
    follow: bool,
    /// How long to wait for the plan
    #[arg(long, value_parser = watching::duration, default_value = "15m")]
    timeout: Duration,
    /// How to print the plan
    #[arg(short, long, value_enum, default_value_t = Form::Short)]
    output: Form,
    #[command(flatten)]
    reach: Reach,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    let connection = super::connection(&options.reach).await?;
    let service = Service::find(&connection).await?;
    let name = options.layer.as_str();
    let what = format!("a plan of {}/{name}", connection.namespace);
    let planned = within(options.timeout, &what, "--timeout waits longer", async {
        let run = asked(&connection, name, Wish::Plan).await?;
        if options.follow {
            logs::follow(&connection, &service, &run, 0).await
        } else {
            ended(&connection, &run).await
        }
    })
    .await?;
    let Some(plan) = plan_of(&planned) else {
        bail!(
            "the plan of {}/{name} failed: {}; `terrane logs run/{}` has the whole story",
            connection.namespace,
            find::outcome(&planned),
            planned.name_any()
        );
    };
    let layer = super::layer(&connection.client, &connection.namespace, name).await?;
    let tool = find::tool_of(&planned, plan.attempt);
    diff::show(&service, &layer, Shown { plan: &plan, tool }, options.output).await?;
    Ok(diff::code(&plan))
}

/// A plan that is asked for, once it has ended.
pub(super) async fn made(connection: &Connection, name: &str, wish: Wish) -> anyhow::Result<TerraformRun> {
    let run = asked(connection, name, wish).await?;
    ended(connection, &run).await
}

/// Asks for a plan, and says which run answers.
async fn asked(connection: &Connection, name: &str, wish: Wish) -> anyhow::Result<String> {
    let (_, text) = sync::ask(&connection.client, &connection.namespace, name, wish).await?;
    answering(connection, name, wish, &text).await
}

/// The plan that a run made.
pub(super) fn plan_of(run: &TerraformRun) -> Option<PlanRef> {
    let status = run.status.as_ref().filter(|_| find::has_succeeded(run))?;
    let result = status.result.as_ref()?;
    Some(PlanRef {
        run: run.name_any(),
        attempt: status.attempts.last()?.number,
        sha256: result.plan_sha256.clone()?,
        summary: result.summary?,
        made_at: status.finished_at.clone()?,
        expires: None,
    })
}

/// The run that answers a wish.
async fn answering(connection: &Connection, name: &str, wish: Wish, text: &str) -> anyhow::Result<String> {
    let api = Api::<TerraformLayer>::namespaced(connection.client.clone(), &connection.namespace);
    let mut progress = Progress::new(format!("{name}: asked for a plan"));
    watching::until(api, name, &mut progress, |layer| {
        let status = layer.with_context(|| format!("layer {name} was deleted"))?.status.unwrap_or_default();
        if wish.acted_on(&status) == Some(text) {
            return Ok(Seen::Enough(()));
        }
        let ready = condition::find(&status.conditions, "Ready");
        let why = status.why.unwrap_or_default();
        // Nothing can be planned as long as this is so; other reasons may be about the time before the wish.
        if ready.is_some_and(|c| matches!(c.reason.as_str(), "RepositoryMissing" | "SourceUnavailable")) {
            bail!("layer {}/{name} cannot be planned: {why}", connection.namespace);
        }
        Ok(Seen::Waiting(format!("{name}: {why}")))
    })
    .await?;
    let token = wish.token(text);
    let runs = find::runs_of(&connection.client, &connection.namespace, name).await?;
    let found = runs.iter().find(|run| run.annotations().get(annotation::TOKEN) == Some(&token));
    found.map(|run| run.name_any()).with_context(|| {
        format!("the plan of {name} has ended and its run is gone already; `terrane history {name}` lists what is kept")
    })
}

/// Waits until a run has ended.
pub(super) async fn ended(connection: &Connection, run: &str) -> anyhow::Result<TerraformRun> {
    let api = Api::<TerraformRun>::namespaced(connection.client.clone(), &connection.namespace);
    let mut progress = Progress::new(format!("{run}: running"));
    watching::until(api, run, &mut progress, |seen| {
        let seen = seen.with_context(|| format!("run {}/{run} was deleted", connection.namespace))?;
        Ok(if find::has_ended(&seen) {
            Seen::Enough(seen)
        } else {
            Seen::Waiting(format!("{run}: {}", find::waits_for(&seen)))
        })
    })
    .await
}
