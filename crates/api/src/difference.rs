//! In what the infrastructure differs from what a layer wants, small enough to stand in a status. Values that the code marks as
//! sensitive never get here: whoever fills this in masks them first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Resources named one by one.
pub const RESOURCES: usize = 10;
/// Attributes named for one resource.
pub const ATTRIBUTES: usize = 10;
/// Characters of one value.
pub const VALUE: usize = 100;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Differences {
    /// How many resources differ; more than are named when there are many.
    pub total: u32,
    /// The resources that differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub resources: Vec<Difference>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// The resource, as the tool names it.
    #[schemars(length(max = 512))]
    pub address: String,
    /// What became of the resource.
    pub how: How,
    /// Empty unless the resource has changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub attributes: Vec<AttributeDifference>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// It is there, with other attributes.
    Changed,
    /// It is wanted and not there.
    Missing,
    /// It is there and not wanted.
    Unwanted,
}

/// Values as JSON, cut where they are long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttributeDifference {
    /// The name of the attribute.
    #[schemars(length(max = 256))]
    pub name: String,
    /// The value that code and state expect, as JSON; masked where it is sensitive.
    pub expected: String,
    /// The value that the infrastructure has, as JSON; masked where it is sensitive.
    pub found: String,
}

impl Differences {
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// For one line: the first resource with its attributes, and how many more there are.
    pub fn words(&self) -> String {
        let Some(first) = self.resources.first() else { return format!("{} differ", counted(self.total)) };
        let names: Vec<&str> = first.attributes.iter().map(|attribute| attribute.name.as_str()).collect();
        let how = match first.how {
            How::Changed if names.is_empty() => "has changed".to_owned(),
            How::Changed => format!("differs in {}", names.join(", ")),
            How::Missing => "is missing".to_owned(),
            How::Unwanted => "is not in the code".to_owned(),
        };
        match self.total.saturating_sub(1) {
            0 => format!("{} {how}", first.address),
            more => format!("{} {how}, and {} more", first.address, counted(more)),
        }
    }
}

fn counted(resources: u32) -> String {
    if resources == 1 { "1 resource".to_owned() } else { format!("{resources} resources") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_names_the_first_and_counts_the_rest() {
        let attribute = |name: &str| AttributeDifference {
            name: name.to_owned(),
            expected: "1".to_owned(),
            found: "2".to_owned(),
        };
        let changed = Difference {
            address: "a.b".to_owned(),
            how: How::Changed,
            attributes: vec![attribute("x"), attribute("y")],
        };
        let missing = Difference { address: "a.c".to_owned(), how: How::Missing, attributes: Vec::new() };
        for (total, resources, expected) in [
            (1, vec![changed.clone()], "a.b differs in x, y"),
            (2, vec![missing.clone(), changed], "a.c is missing, and 1 resource more"),
            (12, vec![missing], "a.c is missing, and 11 resources more"),
        ] {
            assert_eq!(Differences { total, resources }.words(), expected);
        }
    }
}
