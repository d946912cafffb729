//! `terrane outputs`: what a layer's root module gives out. Sensitive values are masked unless asked for.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::Value;

use super::render;
use super::service::{Call, Service};
use crate::arguments::{Output, Reach};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The layer
    layer: String,
    /// Only this output: its bare value, or with -o json or yaml its value as such
    name: Option<String>,
    /// Show sensitive values too; needs the right to read the state
    #[arg(long)]
    sensitive: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    reach: Reach,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let connection = super::connection(&options.reach).await?;
    let (namespace, layer) = (connection.namespace.as_str(), options.layer.as_str());
    super::layer(&connection.client, namespace, layer).await?;
    let service = Service::find(&connection).await?;
    let path = [namespace, "layers", layer, "outputs"];
    let query: &[(&str, &str)] = if options.sensitive { &[("sensitive", "true")] } else { &[] };
    let answer = service.send(Call { query, ..Call::get(&path) }).await?;
    let outputs: BTreeMap<String, Value> = answer.json().await.context("read the outputs")?;
    let value = |output: &Value| output.get("value").cloned().unwrap_or_default();
    if let Some(name) = &options.name {
        let Some(output) = outputs.get(name) else {
            let known: Vec<&str> = outputs.keys().map(String::as_str).collect();
            bail!("layer {namespace}/{layer} has no output {name}; it has: {}", list(&known));
        };
        return print_one(options.output, name, &value(output));
    }
    match options.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&outputs)?),
        Output::Yaml => print!("{}", serde_saphyr::to_string(&outputs)?),
        Output::Name => outputs.keys().for_each(|name| println!("{name}")),
        Output::Table | Output::Wide if outputs.is_empty() => {
            eprintln!("layer {namespace}/{layer} has no outputs")
        }
        Output::Table | Output::Wide => {
            let rows = outputs.iter().map(|(name, output)| vec![name.clone(), bare(&value(output))]);
            println!("{}", render::table(&["NAME", "VALUE"], rows).trim_fmt());
        }
    }
    Ok(())
}

fn print_one(output: Output, name: &str, value: &Value) -> anyhow::Result<()> {
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(value)?),
        Output::Yaml => print!("{}", serde_saphyr::to_string(value)?),
        Output::Name => println!("{name}"),
        Output::Table | Output::Wide => println!("{}", bare(value)),
    }
    Ok(())
}

/// A text without its quotes, anything else as JSON: what scripts expect.
fn bare(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
