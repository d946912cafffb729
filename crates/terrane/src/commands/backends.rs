//! `terrane backends`: where layers can keep their states, and what each place wants to be told.

use anyhow::bail;
use api::backends::{Definition, FieldType};
use api::similar::similar;
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::render;
use crate::arguments::Output;
use crate::backend_files::BackendFiles;

#[derive(Args, Debug)]
#[command(after_help = "\
A layer asks for one by spec.backend, with its name as provider and its fields beside it. Those of an administrator are shown where
--backends names their directory: what `terrane up` or `terrane controller` was started with.")]
pub(crate) struct Options {
    /// Only this one, with its fields
    pub name: Option<String>,
    #[command(flatten)]
    pub files: BackendFiles,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    #[serde(flatten)]
    definition: Definition,
    /// Whether it comes with Terrane.
    built_in: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let known = api::backends::Backends::default();
    let all = options.files.read()?;
    let built_in = |definition: &Definition| known.all().any(|known| known == definition);
    let mut rows: Vec<Row> = all
        .all()
        .map(|definition| Row { definition: definition.clone(), built_in: built_in(definition) })
        .collect();
    if let Some(name) = &options.name {
        rows.retain(|row| row.definition.name.as_str() == name);
        if rows.is_empty() {
            match similar(all.all().map(|definition| definition.name.to_string()), name) {
                Some(meant) => bail!("there is no backend {name}; did you mean {meant}?"),
                None => bail!("there is no backend {name}; `terrane backends` lists them"),
            }
        }
    }
    let is_for_people = matches!(options.output, Output::Table | Output::Wide);
    match rows.as_slice() {
        [only] if options.name.is_some() && is_for_people => tell(&only.definition, options.output),
        rows => render::rows(
            options.output,
            rows,
            &["NAME", "BACKEND", "FROM", "ABOUT"],
            |row| {
                let from = if row.built_in { "terrane" } else { "file" };
                let Definition { name, backend, about, .. } = &row.definition;
                vec![name.to_string(), backend.to_string(), from.to_owned(), about.clone()]
            },
            |row| row.definition.name.to_string(),
        ),
    }
}

/// What one of them wants to be told.
fn tell(definition: &Definition, output: Output) -> anyhow::Result<()> {
    println!("{}: {}\n", definition.name, definition.about);
    let fields: Vec<_> = definition.fields.iter().collect();
    render::rows(
        output,
        &fields,
        &["FIELD", "TYPE", "DEFAULT", "ABOUT"],
        |(name, field)| {
            let kind = match field.kind {
                FieldType::Text => "text",
                FieldType::Number => "number",
                FieldType::Bool => "bool",
                FieldType::List => "list",
                FieldType::Map => "map",
            };
            let default = match (&field.default, field.required) {
                (_, true) => "required".to_owned(),
                (None, false) => "-".to_owned(),
                (Some(Value::String(text)), false) => text.clone(),
                (Some(other), false) => other.to_string(),
            };
            vec![name.to_string(), kind.to_owned(), default, field.about.clone()]
        },
        |(name, _)| name.to_string(),
    )?;
    if !definition.credentials.is_empty() {
        println!("\nKeys of the Secret that credentials.secretName names, as far as they are needed:");
        for credential in &definition.credentials {
            let variable = credential.variable().map(|name| name.to_string()).unwrap_or_default();
            match (credential.file, variable == credential.key.as_str()) {
                (true, _) => println!("  {} (as a file, by {variable})", credential.key),
                (false, true) => println!("  {}", credential.key),
                (false, false) => println!("  {} (by {variable})", credential.key),
            }
        }
    }
    Ok(())
}
