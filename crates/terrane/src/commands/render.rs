//! How answers look: objects as they are, sentences, counts, tables.

use api::run::PlanSummary;
use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use kube::{Resource, ResourceExt};
use serde::Serialize;

use super::fitting::fit;
use crate::arguments::{Format, Output};

/// Prints an object in the wished form, or a sentence about it.
pub(super) fn object<K>(
    format: Option<Format>,
    object: &K,
    sentence: impl FnOnce() -> String,
) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Serialize,
{
    deed(format, object, &name_of(object), sentence)
}

/// As `-o name` prints it.
pub(super) fn name_of<K: Resource<DynamicType = ()>>(object: &K) -> String {
    format!("{}/{}", K::plural(&()), object.name_any())
}

/// Prints what was done in the wished form, or a sentence about it. `name` is what `-o name` prints.
pub(super) fn deed(
    format: Option<Format>,
    deed: &impl Serialize,
    name: &str,
    sentence: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    match format {
        None => println!("{}", sentence()),
        Some(Format::Json) => println!("{}", serde_json::to_string_pretty(deed)?),
        Some(Format::Yaml) => print!("{}", serde_saphyr::to_string(deed)?),
        Some(Format::Name) => println!("{name}"),
    }
    Ok(())
}

/// The same of several, which are one document.
pub(super) fn deeds<T: Serialize>(
    format: Option<Format>,
    deeds: &[T],
    name: impl Fn(&T) -> String,
    sentence: impl Fn(&T) -> String,
) -> anyhow::Result<()> {
    match format {
        None => deeds.iter().for_each(|one| println!("{}", sentence(one))),
        Some(Format::Json) => println!("{}", serde_json::to_string_pretty(deeds)?),
        Some(Format::Yaml) => print!("{}", serde_saphyr::to_string(&deeds)?),
        Some(Format::Name) => deeds.iter().for_each(|one| println!("{}", name(one))),
    }
    Ok(())
}

/// Prints rows that are no objects of the API: as a table, or as they are. `name` is what `-o name` prints.
pub(super) fn rows<T: Serialize>(
    output: Output,
    rows: &[T],
    header: &[&str],
    cells: impl Fn(&T) -> Vec<String>,
    name: impl Fn(&T) -> String,
) -> anyhow::Result<()> {
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(rows)?),
        Output::Yaml => print!("{}", serde_saphyr::to_string(&rows)?),
        Output::Name => rows.iter().for_each(|row| println!("{}", name(row))),
        Output::Table => {
            let mut lines: Vec<Vec<String>> = rows.iter().map(cells).collect();
            fit(header, &mut lines);
            println!("{}", table(header, lines.into_iter()).trim_fmt());
        }
        Output::Wide => println!("{}", table(header, rows.iter().map(cells)).trim_fmt()),
    }
    Ok(())
}

pub(super) fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().map(|&name| name.to_owned()));
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// In the tools' own words.
pub(super) fn counts(summary: PlanSummary) -> String {
    let outputs = match summary.outputs {
        0 => String::new(),
        1 => ", 1 output changes".to_owned(),
        more => format!(", {more} outputs change"),
    };
    let script = if summary.scripts > 0 { ", a script to run" } else { "" };
    format!(
        "{} to add, {} to change, {} to destroy{outputs}{script}",
        summary.add, summary.change, summary.destroy
    )
}
