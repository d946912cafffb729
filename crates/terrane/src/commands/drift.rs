//! `terrane drift`: where the infrastructure was found to differ, and a person's word about it: into the state with it, or back to
//! what the code says. Either word is about the bytes of one plan.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use api::approval::Decision;
use api::difference::{Difference, How};
use api::layer::{DriftStatus, PlanRef, TerraformLayerStatus};
use api::run::{Action, Mode};
use api::text::Sha256;
use api::{TerraformLayer, TerraformRun, condition};
use clap::Args;
use jiff::Timestamp;
use kube::{Api, ResourceExt};
use serde::Serialize;

use super::approve::{self, Word};
use super::service::Service;
use super::sync::Wish;
use super::watching::{self, within};
use super::{Connection, apply, find, get, logs, plan, render};
use crate::arguments::{Format, Reach};

#[derive(Args, Debug)]
#[command(after_help = "\
A word about drift is a word about the bytes of one plan: a plan that only refreshes is accepted, a plan towards the code reverts.
Where the drift was found by the other kind, one is made first, and the word holds only if it finds the same.")]
pub(crate) struct Options {
    /// The layer
    layer: String,
    /// Write what was found into the state, so that it is no drift any more; the infrastructure stays as it is
    #[arg(long, conflicts_with = "revert")]
    accept: bool,
    /// Make the infrastructure what the code says
    #[arg(long)]
    revert: bool,
    /// Only if the drift was found by the plan with this sha256, in full or its first digits
    #[arg(long, value_name = "SHA256")]
    plan: Option<String>,
    /// Why, for those who read the history
    #[arg(long)]
    reason: Option<String>,
    /// Do not ask, even when something is destroyed
    #[arg(short, long)]
    yes: bool,
    /// How long to wait until it is done; it goes on when the wait does not
    #[arg(long, value_parser = watching::duration, default_value = "1h")]
    timeout: Duration,
    /// Print what drifted, or the run that did something about it, as data; name prints addresses, or that run
    #[arg(short, long, value_enum)]
    output: Option<Format>,
    #[command(flatten)]
    reach: Reach,
}

const DRIFTED: u8 = 2;

/// What a person wants done about drift.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remedy {
    Accept,
    Revert,
}

impl Remedy {
    /// The kind of plan that does it.
    const fn mode(self) -> Mode {
        match self {
            Self::Accept => Mode::RefreshOnly,
            Self::Revert => Mode::Normal,
        }
    }

    const fn wish(self) -> Wish {
        match self {
            Self::Accept => Wish::Look,
            Self::Revert => Wish::Plan,
        }
    }
}

/// What `-o json` prints.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    namespace: &'a str,
    layer: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    looked_at: Option<Timestamp>,
    total: u32,
    resources: &'a [Difference],
    /// The run that found it, its plan, and how it looked.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<&'a Sha256>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<Mode>,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    let connection = super::connection(&options.reach).await?;
    let layer = super::layer(&connection.client, &connection.namespace, &options.layer).await?;
    match (options.accept, options.revert) {
        (true, _) => decide(&connection, &layer, Remedy::Accept, &options).await,
        (false, true) => decide(&connection, &layer, Remedy::Revert, &options).await,
        (false, false) => show(&connection, &layer, &options).await,
    }
}

async fn show(
    connection: &Connection,
    layer: &TerraformLayer,
    options: &Options,
) -> anyhow::Result<ExitCode> {
    let (namespace, name) = (connection.namespace.as_str(), options.layer.as_str());
    let status = layer.status.clone().unwrap_or_default();
    let Some(looked_at) = looked_at(&status) else {
        bail!("layer {namespace}/{name} was not compared with its code yet; `terrane plan {name}` does");
    };
    let run = match &status.drift {
        Some(drift) => found_by(connection, drift).await?,
        None => None,
    };
    let plan = run.as_ref().and_then(plan::plan_of);
    let resources = status.drift.as_ref().map_or(&[][..], |drift| drift.resources.as_slice());
    let total = status.drift.as_ref().map_or(0, |drift| drift.total);
    let report = Report {
        namespace,
        layer: name,
        looked_at: Some(looked_at),
        total,
        resources,
        run: status.drift.as_ref().map(|drift| drift.run.as_str()),
        plan: plan.as_ref().map(|plan| &plan.sha256),
        mode: run.as_ref().map(|run| run.spec.mode),
    };
    match options.output {
        Some(Format::Json) => println!("{}", serde_json::to_string_pretty(&report)?),
        Some(Format::Yaml) => print!("{}", serde_saphyr::to_string(&report)?),
        Some(Format::Name) => resources.iter().for_each(|difference| println!("{}", difference.address)),
        None => print!("{}", told(&report, Timestamp::now())),
    }
    Ok(if total == 0 { ExitCode::SUCCESS } else { ExitCode::from(DRIFTED) })
}

/// When the world was last looked at.
fn looked_at(status: &TerraformLayerStatus) -> Option<Timestamp> {
    let newest = status.latest_runs.iter().find(|run| run.action == Action::Plan).map(|run| run.date.0);
    let planned = status.plan.as_ref().map(|plan| plan.made_at.0);
    let found = status.drift.as_ref().map(|drift| drift.found_at.0);
    planned.or(found)?;
    newest.max(planned).max(found)
}

/// The run that found the drift; it is kept as long as the drift is known.
async fn found_by(connection: &Connection, drift: &DriftStatus) -> anyhow::Result<Option<TerraformRun>> {
    Api::<TerraformRun>::namespaced(connection.client.clone(), &connection.namespace)
        .get_opt(&drift.run)
        .await
        .with_context(|| format!("read run {}/{}", connection.namespace, drift.run))
}

fn told(report: &Report<'_>, now: Timestamp) -> String {
    let name = report.layer;
    let looked = report.looked_at.map(|at| get::age(at, now)).unwrap_or_default();
    if report.total == 0 {
        return format!("{name}: no drift, looked {looked} ago\n");
    }
    let plan = report.plan.map(|sha256| format!(" by plan {}", sha256.short())).unwrap_or_default();
    let mut text = format!("{name}: {} drifted, found {looked} ago{plan}\n", report.total);
    for difference in report.resources {
        text.push_str(&lines(difference));
    }
    let named = u32::try_from(report.resources.len()).unwrap_or(u32::MAX);
    if let (Some(run), more @ 1..) = (report.run, report.total.saturating_sub(named)) {
        text.push_str(&format!("  and {more} more: terrane logs run/{run}\n"));
    }
    text.push_str(&format!(
        "Revert: terrane drift {name} --revert      Accept into the state: terrane drift {name} --accept\n"
    ));
    text
}

/// One resource: a line for it, and one for each attribute that differs.
fn lines(difference: &Difference) -> String {
    let (sign, how) = match difference.how {
        How::Changed => ("~", "changed"),
        How::Missing => ("-", "is missing"),
        How::Unwanted => ("+", "is not in the code"),
    };
    let mut text = format!("  {sign} {}   {how}\n", difference.address);
    for attribute in &difference.attributes {
        text.push_str(&format!(
            "      {}  expected {}, found {}\n",
            attribute.name, attribute.expected, attribute.found
        ));
    }
    text
}

async fn decide(
    connection: &Connection,
    layer: &TerraformLayer,
    remedy: Remedy,
    options: &Options,
) -> anyhow::Result<ExitCode> {
    let (namespace, name) = (connection.namespace.as_str(), options.layer.as_str());
    let what = format!("the end of the drift of {namespace}/{name}");
    let done = within(options.timeout, &what, "what was begun goes on; --timeout waits longer", async {
        let plan = plan_for(connection, layer, remedy, options).await?;
        if remedy == Remedy::Revert && plan.summary.destroy > 0 && !options.yes {
            apply::confirm(name, &plan)?;
        }
        let service = Service::find(connection).await?;
        let word = Word {
            decision: Decision::Approve,
            plan: None,
            reason: options.reason.clone().or_else(|| Some(default_reason(remedy).to_owned())),
        };
        approve::record(&connection.client, namespace, name, &plan.sha256, word).await?;
        let run = apply::started(connection, name, &plan).await?;
        match options.output {
            Some(_) => plan::ended(connection, &run).await,
            None => logs::follow(connection, &service, &run, 0).await,
        }
    })
    .await?;
    if !find::has_succeeded(&done) {
        bail!(
            "the drift of {namespace}/{name} was not {}: {}; `terrane describe {name}` says what happens next",
            participle(remedy),
            find::outcome(&done)
        );
    }
    render::object(options.output, &done, || format!("{name}: drift {}", participle(remedy)))?;
    Ok(ExitCode::SUCCESS)
}

const fn default_reason(remedy: Remedy) -> &'static str {
    match remedy {
        Remedy::Accept => "drift is accepted",
        Remedy::Revert => "drift is reverted",
    }
}

const fn participle(remedy: Remedy) -> &'static str {
    match remedy {
        Remedy::Accept => "accepted",
        Remedy::Revert => "reverted",
    }
}

/// The plan that does what is wanted about the drift that is known, and nothing else.
async fn plan_for(
    connection: &Connection,
    layer: &TerraformLayer,
    remedy: Remedy,
    options: &Options,
) -> anyhow::Result<PlanRef> {
    let (namespace, name) = (connection.namespace.as_str(), options.layer.as_str());
    let status = layer.status.clone().unwrap_or_default();
    let Some(drift) = &status.drift else {
        bail!("no drift of layer {namespace}/{name} is known; `terrane plan {name}` looks for it");
    };
    if layer.spec.suspend {
        bail!(
            "layer {namespace}/{name} is suspended, so nothing is done about it; `terrane resume {name}` lets it go on"
        );
    }
    if condition::find(&status.conditions, "Ready").is_some_and(|ready| ready.reason == "WaitingForApproval")
    {
        bail!("layer {namespace}/{name} waits for a word on new code first: `terrane diff {name}` shows it");
    }
    let gone = || {
        format!(
            "run {namespace}/{} that found the drift is gone; `terrane plan {name}` looks anew",
            drift.run
        )
    };
    let found_by = found_by(connection, drift).await?.with_context(gone)?;
    let found = plan::plan_of(&found_by).with_context(gone)?;
    if let Some(wanted) = &options.plan
        && !found.sha256.as_str().starts_with(wanted.as_str())
    {
        bail!(
            "the drift of {namespace}/{name} was found by plan {}, not {wanted}; look at it again",
            found.sha256.short()
        );
    }
    if found_by.spec.mode == remedy.mode() {
        return Ok(found);
    }
    let made = plan::made(connection, name, remedy.wish()).await?;
    let Some(plan) = plan::plan_of(&made) else {
        bail!(
            "the infrastructure of {namespace}/{name} could not be looked at: {}; `terrane logs run/{}` has the whole story",
            find::outcome(&made),
            made.name_any()
        );
    };
    ensure_same(&found_by, &made, name)?;
    Ok(plan)
}

/// The word was given on what was known: it does not hold for anything else.
fn ensure_same(known: &TerraformRun, made: &TerraformRun, name: &str) -> anyhow::Result<()> {
    if known.spec.layer.revision != made.spec.layer.revision {
        bail!(
            "a new commit came for {name} in the meantime; `terrane diff {name}` shows what it would change"
        );
    }
    let differences = |run: &TerraformRun| {
        let result = run.status.as_ref().and_then(|status| status.result.as_ref());
        result.map(|result| result.differences.clone()).unwrap_or_default()
    };
    let (known, now) = (differences(known), differences(made));
    if now.is_empty() {
        bail!(
            "{name} has not moved since its last apply, or has moved back: there is nothing left to decide"
        );
    }
    let seen = |all: &api::difference::Differences| {
        let mut seen: Vec<(String, How)> =
            all.resources.iter().map(|one| (one.address.clone(), one.how)).collect();
        seen.sort_by(|a, b| a.0.cmp(&b.0));
        (all.total, seen)
    };
    if seen(&known) != seen(&now) {
        bail!(
            "another look at {name} found {} instead; look at it with `terrane drift {name}`, then say it again",
            now.words()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::difference::AttributeDifference;

    fn difference(how: How) -> Difference {
        let attributes = match how {
            How::Changed => vec![AttributeDifference {
                name: "content".to_owned(),
                expected: "\"a\"".to_owned(),
                found: "\"b\"".to_owned(),
            }],
            How::Missing | How::Unwanted => Vec::new(),
        };
        Difference { address: "local_file.x".to_owned(), how, attributes }
    }

    #[test]
    fn drift_is_told_by_resource_and_attribute_with_what_can_be_done() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let resources = [difference(How::Changed), difference(How::Missing)];
        let mut report = Report {
            namespace: "default",
            layer: "motd",
            looked_at: Some("2026-01-01T00:00:00Z".parse().unwrap()),
            total: 3,
            resources: &resources,
            run: Some("motd-plan-1"),
            plan: None,
            mode: None,
        };
        assert_eq!(
            told(&report, now),
            "motd: 3 drifted, found 1m ago\n  \
             ~ local_file.x   changed\n      content  expected \"a\", found \"b\"\n  \
             - local_file.x   is missing\n  \
             and 1 more: terrane logs run/motd-plan-1\n\
             Revert: terrane drift motd --revert      Accept into the state: terrane drift motd --accept\n"
        );
        report.total = 0;
        assert_eq!(told(&report, now), "motd: no drift, looked 1m ago\n");
    }
}
