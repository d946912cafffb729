//! `terrane diff`: the newest plan of a layer, one line a change.

use std::process::ExitCode;

use anyhow::{Context, bail};
use api::layer::PlanRef;
use api::{TerraformLayer, condition};
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::Value;
use tofu::plan::{AttributeChange, Change, Plan};

use super::service::{Call, Service};
use super::{get, render};
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
    /// The whole plan, sensitive values masked
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
    if !plan.summary.has_changes() || !is_applied(&layer) {
        show(&service, namespace, &layer, &plan, options.output).await?;
        return Ok(code(&plan));
    }
    // What the newest plan would change is changed already.
    match options.output {
        Form::Short => println!("Plan {} of {} is applied. No changes.", plan.sha256.short(), options.layer),
        Form::Wide | Form::Json | Form::Yaml | Form::Name => {
            show(&service, namespace, &layer, &plan, options.output).await?;
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

/// Prints a plan of a layer.
pub(super) async fn show(
    service: &Service,
    namespace: &str,
    layer: &TerraformLayer,
    plan: &PlanRef,
    form: Form,
) -> anyhow::Result<()> {
    match form {
        Form::Name => println!("{}", plan.sha256),
        Form::Wide => {
            print!("{}", fetch(service, namespace, plan, "plan").await?);
        }
        Form::Json => {
            println!("{}", serde_json::to_string_pretty(&document(service, namespace, plan).await?)?)
        }
        Form::Yaml => print!("{}", serde_saphyr::to_string(&document(service, namespace, plan).await?)?),
        Form::Short => {
            let read = read(service, namespace, plan).await?;
            print!("{}", short(&layer.name_any(), layer, plan, &read, Timestamp::now()));
        }
    }
    Ok(())
}

async fn document(service: &Service, namespace: &str, plan: &PlanRef) -> anyhow::Result<Value> {
    let text = fetch(service, namespace, plan, "plan.json").await?;
    serde_json::from_str(&text).context("read the plan in JSON")
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

fn short(name: &str, layer: &TerraformLayer, reference: &PlanRef, plan: &Plan, now: Timestamp) -> String {
    let commit = layer.status.as_ref().and_then(|status| status.revision.planned.as_ref());
    let at = commit.map(|commit| format!(" at {}", commit.short())).unwrap_or_default();
    let mut text = format!(
        "Plan {} of {name}{at}, made {} ago\n",
        reference.sha256.short(),
        get::age(reference.made_at.0, now)
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
    use serde_json::json;

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
