//! `terrane apply`: the newest plan approved, and its apply followed to its end.

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use api::approval::Decision;
use api::layer::PlanRef;
use api::{TerraformApproval, TerraformLayer, TerraformRun, condition};
use clap::Args;
use kube::api::ListParams;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};

use super::approve::{self, Word};
use super::progress::Progress;
use super::service::Service;
use super::watching::{self, within};
use super::{Connection, find, logs, plan, render};
use crate::arguments::{Format, Reach};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The layer
    layer: String,
    /// Only if the newest plan has this sha256, in full or its first digits
    #[arg(long, value_name = "SHA256")]
    plan: Option<String>,
    /// Why, for those who read the history
    #[arg(long)]
    reason: Option<String>,
    /// Do not ask, even when something is destroyed
    #[arg(short, long)]
    yes: bool,
    /// How long to wait for the apply to end; it goes on when the wait does not
    #[arg(long, value_parser = watching::duration, default_value = "1h")]
    timeout: Duration,
    /// Print the run that applied it, or the layer where nothing is to be applied, instead of the log
    #[arg(short, long, value_enum)]
    output: Option<Format>,
    #[command(flatten)]
    reach: Reach,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    let connection = super::connection(&options.reach).await?;
    let (namespace, name) = (connection.namespace.as_str(), options.layer.as_str());
    let layer = super::layer(&connection.client, namespace, name).await?;
    let status = layer.status.clone().unwrap_or_default();
    let Some(plan) = status.plan else {
        bail!("layer {namespace}/{name} has no plan yet; `terrane plan {name}` makes one");
    };
    if let Some(wanted) = &options.plan
        && !plan.sha256.as_str().starts_with(wanted.as_str())
    {
        bail!(
            "the newest plan of {namespace}/{name} is {}, not {wanted}; look at it again",
            plan.sha256.short()
        );
    }
    if !plan.summary.has_changes() || condition::is_true(&status.conditions, "IsApplyUpToDate") {
        render::object(options.output, &layer, || {
            format!("{name}: nothing to apply, {}", status.why.unwrap_or_else(|| "no changes".to_owned()))
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    if layer.spec.suspend {
        bail!(
            "layer {namespace}/{name} is suspended, so nothing is applied; `terrane resume {name}` lets it go on"
        );
    }
    let service = Service::find(&connection).await?;
    permit(&connection, name, &plan, &options).await?;
    let applied = within(
        options.timeout,
        &format!("the end of the apply of {namespace}/{name}"),
        "it goes on; --timeout waits longer",
        async {
            let run = started(&connection, name, &plan).await?;
            match options.output {
                Some(_) => plan::ended(&connection, &run).await,
                None => logs::follow(&connection, &service, &run, 0).await,
            }
        },
    )
    .await?;
    if !find::has_succeeded(&applied) {
        bail!(
            "the apply of {namespace}/{name} failed: {}; `terrane describe {name}` says what happens next",
            find::outcome(&applied)
        );
    }
    // The log has said already what came of it.
    render::object(options.output, &applied, || {
        format!("{name}: applied at {}", applied.spec.layer.revision.short())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn applies(run: &TerraformRun, plan: &PlanRef) -> bool {
    run.spec.artifact.as_ref().is_some_and(|artifact| artifact.sha256 == plan.sha256)
}

/// The run that applies a plan, there already or still to come.
pub(super) async fn started(connection: &Connection, name: &str, plan: &PlanRef) -> anyhow::Result<String> {
    let mut progress = Progress::new(format!("{name}: waiting for the apply to start"));
    let runs = Api::<TerraformRun>::namespaced(connection.client.clone(), &connection.namespace);
    let of_layer = watcher::Config::default().fields(&format!("spec.layer.name={name}"));
    let run = watching::first(runs, of_layer, &mut progress, |run: &TerraformRun| applies(run, plan)).await?;
    Ok(run.name_any())
}

/// What people said about a plan. O(approvals of the namespace).
async fn words_on(
    connection: &Connection,
    name: &str,
    plan: &PlanRef,
) -> anyhow::Result<Vec<TerraformApproval>> {
    let mut approvals =
        Api::<TerraformApproval>::namespaced(connection.client.clone(), &connection.namespace)
            .list(&ListParams::default())
            .await
            .context("list the approvals")?
            .items;
    approvals.retain(|word| word.spec.layer.as_str() == name && word.spec.plan_sha256 == plan.sha256);
    Ok(approvals)
}

/// The newest plan of a layer, if it was approved a moment ago and its apply is still to come.
pub(super) async fn about_to_start(
    connection: &Connection,
    layer: &TerraformLayer,
) -> anyhow::Result<Option<PlanRef>> {
    let name = layer.name_any();
    let Some(plan) = layer.status.as_ref().and_then(|status| status.plan.clone()) else { return Ok(None) };
    let runs = find::runs_of(&connection.client, &connection.namespace, &name).await?;
    if layer.spec.suspend || runs.iter().any(|run| applies(run, &plan)) {
        return Ok(None);
    }
    let words = words_on(connection, &name, &plan).await?;
    let approved = !words.is_empty() && words.iter().all(|word| word.spec.decision == Decision::Approve);
    Ok(approved.then_some(plan))
}

/// Approves the plan, unless it is approved or under way already. What destroys is asked about once.
async fn permit(
    connection: &Connection,
    name: &str,
    plan: &PlanRef,
    options: &Options,
) -> anyhow::Result<()> {
    let namespace = connection.namespace.as_str();
    let runs = find::runs_of(&connection.client, namespace, name).await?;
    if runs.iter().any(|run| applies(run, plan)) {
        return Ok(());
    }
    let words = words_on(connection, name, plan).await?;
    if let Some(rejected) = words.iter().find(|word| word.spec.decision == Decision::Reject) {
        bail!(
            "the newest plan of {namespace}/{name} was rejected by {}; `terrane plan {name}` makes another",
            rejected.spec.user
        );
    }
    if words.iter().any(|word| word.spec.decision == Decision::Approve) {
        return Ok(());
    }
    if plan.summary.destroy > 0 && !options.yes {
        confirm(name, plan)?;
    }
    let word = Word {
        decision: Decision::Approve,
        plan: Some(plan.sha256.to_string()),
        reason: options.reason.clone(),
    };
    approve::decide(&connection.client, namespace, name, word).await?;
    Ok(())
}

pub(super) fn confirm(name: &str, plan: &PlanRef) -> anyhow::Result<()> {
    let counts = render::counts(plan.summary);
    if !std::io::stdin().is_terminal() {
        bail!("the plan of {name} destroys: {counts}; look at it with `terrane diff {name}`, then say --yes");
    }
    eprint!("Apply {counts} to {name}? Only yes is yes: ");
    std::io::stderr().flush().context("ask")?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).context("read the answer")?;
    if answer.trim() != "yes" {
        bail!("nothing was applied");
    }
    Ok(())
}
