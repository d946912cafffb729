//! What a tool complains about, read from its text output: the first error with its place, and the few errors that
//! mean something particular to us. Total: whatever is printed, there is an answer.

/// The first error a tool printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostic {
    pub summary: String,
    /// File and line, where the tool names them.
    pub place: Option<(String, u32)>,
    pub detail: String,
}

/// Errors that lead to another reason than "the tool failed".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    StalePlan,
    StateLocked,
    Other,
}

/// Collects the first error while lines pass by.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    first: Option<Diagnostic>,
    inside: bool,
    locked: bool,
    stale: bool,
}

const DETAIL_LIMIT: usize = 600;

impl Collector {
    pub fn line(&mut self, line: &str) {
        let line = line.trim_start_matches(['╷', '│', '╵', '|', ' ']).trim_end();
        if let Some(summary) = line.strip_prefix("Error: ") {
            self.locked |= summary.contains("acquiring the state lock");
            self.stale |= summary.contains("Saved plan is stale") || summary.contains("plan does not match");
            self.inside = self.first.is_none();
            if self.inside {
                self.first = Some(Diagnostic { summary: summary.trim().to_owned(), ..Diagnostic::default() });
            }
            return;
        }
        // Terragrunt repeats everything below such a line.
        if line.starts_with("Warning: ") || line.ends_with("occurred:") {
            self.inside = false;
        }
        let Some(diagnostic) = self.first.as_mut().filter(|_| self.inside) else { return };
        if let Some(place) = place_of(line) {
            diagnostic.place.get_or_insert(place);
        } else if is_prose(line) && diagnostic.detail.len() < DETAIL_LIMIT {
            if !diagnostic.detail.is_empty() {
                diagnostic.detail.push(' ');
            }
            diagnostic.detail.push_str(line);
        }
    }

    /// Terragrunt has errors that look like any other line: the last one says why it ended.
    pub fn last_words(&mut self, line: &str) {
        let summary = line.trim_start_matches("* ").trim();
        if self.first.is_none() && !summary.is_empty() {
            self.first = Some(Diagnostic { summary: summary.to_owned(), ..Diagnostic::default() });
        }
    }

    pub fn first(&self) -> Option<&Diagnostic> {
        self.first.as_ref()
    }

    pub fn meaning(&self) -> Meaning {
        if self.locked {
            Meaning::StateLocked
        } else if self.stale {
            Meaning::StalePlan
        } else {
            Meaning::Other
        }
    }
}

impl Diagnostic {
    /// One line: what, where, why.
    pub fn message(&self) -> String {
        let mut text = self.summary.clone();
        if let Some((file, line)) = &self.place {
            text.push_str(&format!(" ({file}:{line})"));
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text.chars().filter(|c| !c.is_control()).take(1000).collect()
    }
}

/// `on main.tf line 3, in resource "x" "y":`
fn place_of(line: &str) -> Option<(String, u32)> {
    let rest = line.strip_prefix("on ")?;
    let (file, rest) = rest.split_once(" line ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((file.to_owned(), digits.parse().ok()?))
}

/// Neither a quoted line of source (`3:   x = y`) nor a drawing.
fn is_prose(line: &str) -> bool {
    let numbered = line.split_once(':').is_some_and(|(number, _)| {
        !number.is_empty() && number.trim().bytes().all(|byte| byte.is_ascii_digit())
    });
    !line.is_empty() && !numbered && line.chars().any(char::is_alphanumeric) && !line.starts_with("with ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn collect(text: &str) -> Collector {
        let mut collector = Collector::default();
        text.lines().for_each(|line| collector.line(line));
        collector
    }

    #[test]
    fn the_first_error_is_told_with_its_place() {
        let collector = collect(
            "╷\n│ Warning: Old thing\n│ \n│   on a.tf line 1:\n╵\n╷\n│ Error: Reference to undeclared input variable\n│ \n│   on main.tf line 12, in resource \"terraform_data\" \"x\":\n│   12:   input = var.nope\n│ \n│ An input variable with the name \"nope\" has not been declared. This variable\n│ can be declared with a variable \"nope\" {} block.\n╵\n╷\n│ Error: Second\n╵\n",
        );
        assert_eq!(
            collector.first().unwrap().message(),
            "Reference to undeclared input variable (main.tf:12): An input variable with the name \"nope\" has not been declared. This variable can be declared with a variable \"nope\" {} block."
        );
        assert_eq!(collector.meaning(), Meaning::Other);
    }

    #[test]
    fn a_held_lock_and_a_stale_plan_are_recognised() {
        assert_eq!(
            collect("│ Error: Error acquiring the state lock\n│ \n│ Error message: HTTP remote state already locked").meaning(),
            Meaning::StateLocked
        );
        assert_eq!(collect("Error: Saved plan is stale\n").meaning(), Meaning::StalePlan);
    }

    #[test]
    fn errors_of_terragrunt_are_told_once() {
        let both = "Error: Unsupported attribute\n  on /w/terragrunt.hcl line 1:\n   1: inputs = { a = local.nope }\nThis object does not have an attribute named \"nope\".\nerror occurred:\n\n* /w/terragrunt.hcl:1,21-26: Unsupported attribute; This object\n";
        assert_eq!(
            collect(both).first().unwrap().message(),
            "Unsupported attribute (/w/terragrunt.hcl:1): This object does not have an attribute named \"nope\"."
        );
        let mut plain = collect("error occurred:\n\n* stat /w/nowhere: no such file or directory\n");
        plain.last_words("* stat /w/nowhere: no such file or directory");
        assert_eq!(plain.first().unwrap().message(), "stat /w/nowhere: no such file or directory");
        plain.last_words("later");
        assert_eq!(plain.first().unwrap().summary, "stat /w/nowhere: no such file or directory");
    }

    #[test]
    fn silence_gives_no_diagnostic() {
        assert_eq!(collect("Plan: 1 to add\n").first(), None);
    }
}
