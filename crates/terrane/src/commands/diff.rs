//! `terrane diff`: the newest plan of a layer, one line a change.

use std::process::ExitCode;

use anyhow::{Context, bail};
use api::layer::PlanRef;
use api::{TerraformLayer, TerraformRun, condition};
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use kube::{Api, ResourceExt};
use serde_json::{Map, Value, json};
use tofu::plan::{AttributeChange, Change, Plan};

use super::service::{Call, Service};
use super::{find, get, render};
use crate::arguments::Reach;

/// What `plan` and `diff` say with their exit code when something would change.
const CHANGES: u8 = 2;
/// Values longer than this are cut: the whole is in the tool's own words.
const VALUE_WIDTH: usize = 40;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The layer
    layer: String,
    /// How to print the plan
    #[arg(short, long, value_enum, default_value_t = Form::Short)]
    output: Form,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// One line for each change
    Short,
    /// As the tool prints it
    Wide,
    /// The whole plan, sensitive values masked, with its run and tool under `terrane`
    Json,
    Yaml,
    /// The sha256 of the plan
    Name,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    let connection = super::connection(&options.reach).await?;
    let namespace = connection.namespace.as_str();
    let layer = super::layer(&connection.client, namespace, &options.layer).await?;
    let Some(plan) = layer.status.as_ref().and_then(|status| status.plan.clone()) else {
        let why = layer
            .status
            .and_then(|status| status.why)
            .unwrap_or_else(|| "it was not looked at yet".to_owned());
        bail!("layer {namespace}/{0} has no plan yet: {why}; `terrane plan {0}` makes one", options.layer);
    };
    let service = Service::find(&connection).await?;
    let run = Api::<TerraformRun>::namespaced(connection.client.clone(), namespace)
        .get_opt(&plan.run)
        .await
        .with_context(|| format!("read run {namespace}/{}, which made the plan", plan.run))?;
    let tool = run.as_ref().and_then(|run| find::tool_of(run, plan.attempt));
    if !plan.summary.has_changes() || !is_applied(&layer) {
        show(&service, &layer, Shown { plan: &plan, tool }, options.output).await?;
        return Ok(code(&plan));
    }
    // What the newest plan would change is changed already.
    match options.output {
        Form::Short => println!(
            "Plan {} of {}{} is applied. No changes.",
            plan.sha256.short(),
            options.layer,
            tool.map(|tool| format!(", made by {tool},")).unwrap_or_default()
        ),
        Form::Wide | Form::Json | Form::Yaml | Form::Name => {
            show(&service, &layer, Shown { plan: &plan, tool }, options.output).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn is_applied(layer: &TerraformLayer) -> bool {
    layer.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, "IsApplyUpToDate"))
}

pub(super) fn code(plan: &PlanRef) -> ExitCode {
    if plan.summary.has_changes() { ExitCode::from(CHANGES) } else { ExitCode::SUCCESS }
}

/// A plan, and the tool that made it where that is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown<'a> {
    pub(super) plan: &'a PlanRef,
    pub(super) tool: Option<&'a str>,
}

/// Prints a plan of a layer.
pub(super) async fn show(
    service: &Service,
    layer: &TerraformLayer,
    shown: Shown<'_>,
    form: Form,
) -> anyhow::Result<()> {
    let namespace = layer.namespace().unwrap_or_default();
    match form {
        Form::Name => println!("{}", shown.plan.sha256),
        Form::Wide => {
            print!("{}", fetch(service, &namespace, shown.plan, "plan").await?);
        }
        Form::Json => {
            println!("{}", serde_json::to_string_pretty(&document(service, &namespace, shown).await?)?)
        }
        Form::Yaml => print!("{}", serde_saphyr::to_string(&document(service, &namespace, shown).await?)?),
        Form::Short => {
            let read = read(service, &namespace, shown.plan).await?;
            print!("{}", short(layer, shown, &read, Timestamp::now()));
        }
    }
    Ok(())
}

/// The plan as the tool writes it, which says the version and not whose it is; that, and where the plan is kept, stands under a name
/// that no tool uses.
async fn document(service: &Service, namespace: &str, shown: Shown<'_>) -> anyhow::Result<Value> {
    let text = fetch(service, namespace, shown.plan, "plan.json").await?;
    let mut plan: Map<String, Value> = serde_json::from_str(&text).context("read the plan in JSON")?;
    let PlanRef { run, attempt, sha256, made_at, summary: _, expires: _ } = shown.plan;
    plan.insert(
        "terrane".to_owned(),
        json!({"run": run, "attempt": attempt, "sha256": sha256, "madeAt": made_at, "tool": shown.tool}),
    );
    Ok(Value::Object(plan))
}

/// What the plan would do, from its JSON.
pub(super) async fn read(service: &Service, namespace: &str, plan: &PlanRef) -> anyhow::Result<Plan> {
    let text = fetch(service, namespace, plan, "plan.json").await?;
    Ok(tofu::plan::read(text.as_bytes())?.plan)
}

async fn fetch(service: &Service, namespace: &str, plan: &PlanRef, what: &str) -> anyhow::Result<String> {
    let attempt = plan.attempt.to_string();
    let path = [namespace, "runs", plan.run.as_str(), what];
    let call = Call { query: &[("attempt", &attempt)], ..Call::get(&path) };
    service
        .send(call)
        .await?
        .text()
        .await
        .with_context(|| format!("read the plan of run {namespace}/{}", plan.run))
}

fn short(layer: &TerraformLayer, shown: Shown<'_>, plan: &Plan, now: Timestamp) -> String {
    let (name, reference) = (layer.name_any(), shown.plan);
    let commit = layer.status.as_ref().and_then(|status| status.revision.planned.as_ref());
    let at = commit.map(|commit| format!(" at {}", commit.short())).unwrap_or_default();
    let mut text = format!(
        "Plan {} of {name}{at}, made {} ago{}\n",
        reference.sha256.short(),
        get::age(reference.made_at.0, now),
        shown.tool.map(|tool| format!(" by {tool}")).unwrap_or_default()
    );
    for change in &plan.changes {
        text.push_str(&lines(change));
    }
    for output in &plan.outputs {
        let actions: Vec<&str> = output.actions.iter().map(String::as_str).collect();
        text.push_str(&format!("  {} output {}\n", sign(&actions), output.name));
    }
    if reference.summary.has_changes() {
        text.push_str(&format!(
            "{}.      Approve: terrane approve {name}\n",
            render::counts(reference.summary)
        ));
    } else {
        text.push_str("No changes.\n");
    }
    text
}

/// One resource: a line for it, and one for each attribute of an update.
pub(super) fn lines(change: &Change) -> String {
    let actions: Vec<&str> = change.actions.iter().map(String::as_str).collect();
    let sign = sign(&actions);
    let doing = match actions.as_slice() {
        ["no-op" | "read"] | [] => return String::new(),
        [one] => (*one).to_owned(),
        _ => "replace".to_owned(),
    };
    let mut text = format!("  {sign} {}   {doing}\n", change.address);
    if doing == "update" || doing == "replace" {
        for attribute in &change.attributes {
            text.push_str(&format!("      {}\n", values(attribute)));
        }
    }
    text
}

fn values(attribute: &AttributeChange) -> String {
    let after =
        if attribute.known_after_apply { "(known after apply)".to_owned() } else { value(&attribute.after) };
    format!("{}  {} -> {after}", attribute.name, value(&attribute.before))
}

fn value(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= VALUE_WIDTH {
        return text;
    }
    let kept: String = text.chars().take(VALUE_WIDTH).collect();
    format!("{kept}…")
}

fn sign(actions: &[&str]) -> &'static str {
    match actions {
        ["create"] => "+",
        ["delete"] => "-",
        ["update"] => "~",
        [_, _] => "±",
        _ => " ",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_a_line_with_its_attributes() {
        let attribute = |after: Value, known_after_apply| AttributeChange {
            name: "content".to_owned(),
            before: json!("old"),
            after,
            known_after_apply,
        };
        let change = |actions: &[&str], attributes| Change {
            address: "a.b".to_owned(),
            actions: actions.iter().map(|&action| action.to_owned()).collect(),
            attributes,
        };
        for (change, expected) in [
            (change(&["create"], vec![attribute(json!("new"), false)]), "  + a.b   create\n"),
            (change(&["no-op"], Vec::new()), ""),
            (
                change(&["update"], vec![attribute(json!("new"), false)]),
                "  ~ a.b   update\n      content  \"old\" -> \"new\"\n",
            ),
            (
                change(&["delete", "create"], vec![attribute(Value::Null, true)]),
                "  ± a.b   replace\n      content  \"old\" -> (known after apply)\n",
            ),
        ] {
            assert_eq!(lines(&change), expected);
        }
    }
}
