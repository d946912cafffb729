//! The table of what was measured, beside what must be reached.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// One measure.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    pub measure: String,
    pub ours: String,
    /// What it is compared with; empty where the measure stands alone.
    pub theirs: String,
    /// Ours to theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    pub must_reach: String,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Reached,
    Missed,
}

impl From<bool> for Outcome {
    fn from(reached: bool) -> Self {
        if reached { Self::Reached } else { Self::Missed }
    }
}

impl Outcome {
    fn text(self) -> &'static str {
        match self {
            Self::Reached => "yes",
            Self::Missed => "**no**",
        }
    }
}

/// The rows as a table of Markdown, aligned so that it reads well on a terminal too.
pub fn table(title: &str, theirs: &str, rows: &[Row]) -> String {
    let head = [title, "ours", theirs, "ratio", "must reach", "reached"].map(str::to_owned);
    let body = rows.iter().map(|row| {
        [
            row.measure.clone(),
            row.ours.clone(),
            row.theirs.clone(),
            row.ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
            row.must_reach.clone(),
            row.outcome.text().to_owned(),
        ]
    });
    let lines: Vec<[String; 6]> = std::iter::once(head).chain(body).collect();
    let mut widths = [3; 6];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        for (width, cell) in widths.iter().zip(line) {
            let _ = write!(text, "| {cell:<width$} ");
        }
        text.push_str("|\n");
        if number == 0 {
            for width in widths {
                let _ = write!(text, "| {} ", "-".repeat(width));
            }
            text.push_str("|\n");
        }
    }
    text
}

/// Keeps the table as Markdown and as JSON.
pub fn write(directory: &Path, name: &str, table: &str, rows: &[Row]) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    let json = serde_json::to_string_pretty(rows).context("writing the rows as JSON")? + "\n";
    for (extension, text) in [("md", table), ("json", &json)] {
        let path = directory.join(format!("{name}.{extension}"));
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_aligned_and_tells_a_miss() {
        let row = Row {
            measure: "creates".into(),
            ours: "10/s".into(),
            theirs: "5/s".into(),
            ratio: Some(2.0),
            must_reach: "≥ 3x".into(),
            outcome: Outcome::from(false),
        };
        let expected = "\
| measure | ours | theirs | ratio | must reach | reached |
| ------- | ---- | ------ | ----- | ---------- | ------- |
| creates | 10/s | 5/s    | 2.00  | ≥ 3x       | **no**  |
";
        assert_eq!(table("measure", "theirs", &[row]), expected);
    }
}
