//! In which words something is told: the template of the notification, or our own, and the form that each kind of receiver takes.

use api::notification::{Event, Template};
use serde_json::{Value, json};

use super::Fact;

/// What a text may be long, in characters: receivers refuse more, and a failed plan can say a lot.
const LONGEST: usize = 8 * 1024;
const LONGEST_TITLE: usize = 256;
/// What Slack takes of a header and of a section, and how many lines of a card people read in Teams.
const SLACK_HEADER: usize = 150;
const SLACK_SECTION: usize = 3000;
const TEAMS_LINES: usize = 40;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Words {
    pub title: String,
    pub text: String,
}

/// The names that a template may use.
const NAMES: [&str; 7] = ["event", "namespace", "layer", "message", "run", "revision", "at"];

/// What is wrong with a template.
pub fn check(template: Option<&Template>) -> Result<(), String> {
    let Some(template) = template else { return Ok(()) };
    for (field, text) in [("title", &template.title), ("text", &template.text)] {
        if let Some(text) = text {
            fill(text, |name| NAMES.contains(&name).then(String::new))
                .map_err(|why| format!("spec.template.{field} {why}"))?;
        }
    }
    Ok(())
}

/// A template that is wrong is not used.
pub fn words(fact: &Fact, template: Option<&Template>) -> Words {
    let value = |name: &str| {
        Some(match name {
            "event" => fact.event.as_str().to_owned(),
            "namespace" => fact.namespace.clone(),
            "layer" => fact.layer.clone(),
            "message" => fact.message.clone(),
            "run" => fact.run.clone().unwrap_or_default(),
            "revision" => fact.revision.clone().unwrap_or_default(),
            "at" => fact.at.to_string(),
            _ => return None,
        })
    };
    let said = |text: Option<&String>| text.and_then(|text| fill(text, value).ok());
    let title = said(template.and_then(|template| template.title.as_ref()));
    let text = said(template.and_then(|template| template.text.as_ref()));
    // A title is one line, whatever was put in.
    let title = plain(&title.unwrap_or_else(|| own_title(fact))).replace(['\n', '\t'], " ");
    Words {
        title: cut(&title, LONGEST_TITLE),
        text: cut(&plain(&text.unwrap_or_else(|| own_text(fact))), LONGEST),
    }
}

fn own_title(fact: &Fact) -> String {
    let what = match fact.event {
        Event::ApprovalNeeded => "a plan waits for approval",
        Event::Applied => "a plan was applied",
        Event::ApplyFailed => "an apply failed",
        Event::Destroyed => "everything was destroyed",
        Event::Drifted => "the infrastructure drifted",
        Event::PlanFailed => "a plan failed",
        Event::Stalled => "it goes no further by itself",
    };
    format!("{}/{}: {what}", fact.namespace, fact.layer)
}

fn own_text(fact: &Fact) -> String {
    let run = fact.run.iter().map(|run| format!("run {run}"));
    let commit = fact.revision.iter().map(|revision| format!("commit {revision}"));
    let message = Some(fact.message.clone()).filter(|message| !message.is_empty());
    message.into_iter().chain(run).chain(commit).collect::<Vec<_>>().join("\n")
}

/// Names in braces replaced, `{{` and `}}` as braces. What is put in is not looked at again. O(letters).
fn fill(text: &str, value: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut filled = String::new();
    let mut left = text.chars().peekable();
    while let Some(letter) = left.next() {
        match letter {
            '{' | '}' if left.next_if_eq(&letter).is_some() => filled.push(letter),
            '{' => {
                let name: String = left.by_ref().take_while(|letter| *letter != '}').collect();
                let names = NAMES.join(", ");
                filled.push_str(
                    &value(&name).ok_or_else(|| {
                        format!("asks for {{{name}}}; there are {names}, and {{{{ is a brace")
                    })?,
                );
            }
            '}' => return Err("has a brace that does not begin; }} is a brace".to_owned()),
            other => filled.push(other),
        }
    }
    Ok(filled)
}

/// Without what a terminal or a reader of text takes for an order: controls, and marks that turn the direction of writing.
fn plain(text: &str) -> String {
    let is_order = |letter: char| {
        (letter.is_control() && letter != '\n' && letter != '\t')
            || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().filter(|letter| !is_order(*letter)).collect()
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

impl Words {
    /// For a program.
    pub fn for_webhook(&self, fact: &Fact) -> Value {
        json!({
            "id": fact.id, "event": fact.event, "at": fact.at, "namespace": fact.namespace, "layer": fact.layer,
            "run": fact.run, "revision": fact.revision, "message": cut(&plain(&fact.message), LONGEST),
            "title": self.title, "text": self.text,
        })
    }

    /// As Slack has it, without markup: what a layer says can make no link and call nobody.
    pub fn for_slack(&self) -> Value {
        let escaped = self.title.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let plain =
            |text: &str, most| json!({ "type": "plain_text", "emoji": false, "text": cut(text, most) });
        let header = json!({ "type": "header", "text": plain(&self.title, SLACK_HEADER) });
        let section = json!({ "type": "section", "text": plain(&self.text, SLACK_SECTION) });
        // An empty text is refused.
        let blocks: Vec<Value> = if self.text.is_empty() { vec![header] } else { vec![header, section] };
        json!({ "text": escaped, "blocks": blocks })
    }

    /// A card of a Teams workflow, of runs of text: those have no markup, as blocks of text have.
    pub fn for_teams(&self) -> Value {
        let line = |text: &str, weight: &str| json!({ "type": "RichTextBlock", "inlines": [{ "type": "TextRun", "text": text, "weight": weight }] });
        let lines = self.text.lines().filter(|text| !text.trim().is_empty()).take(TEAMS_LINES);
        let body: Vec<Value> = [line(&self.title, "Bolder")]
            .into_iter()
            .chain(lines.map(|text| line(text, "Default")))
            .collect();
        let card = json!({
            "type": "AdaptiveCard", "version": "1.4", "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "body": body,
        });
        let attachment = json!({ "contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": null, "content": card });
        json!({ "type": "message", "attachments": [attachment] })
    }
}
