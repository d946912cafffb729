//! Keeping what the code gives out, and what its script prints as such, where the layer wants it written. The values are encrypted in the
//! datastore, and in no log but where a script itself prints them.

use std::collections::BTreeMap;

use api::outputs::{Output, Outputs};
use api::run::Mode;
use api::text::VariableName;
use datastore::Artefact;
use datastore::key::OUTPUTS_LIMIT;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::attempt::{Ready, Work};
use crate::mask::Mask;

/// Outputs that a script may print.
const PRINTED_LIMIT: usize = 256;

/// What `show -json` says of a plan, as far as it is about the state before it.
#[derive(Deserialize)]
struct Shown {
    #[serde(default)]
    prior_state: Option<State>,
}

#[derive(Deserialize)]
struct State {
    #[serde(default)]
    values: Option<Values>,
}

#[derive(Deserialize)]
struct Values {
    #[serde(default)]
    outputs: Outputs,
}

impl Work<'_> {
    fn keeps_outputs(&self) -> bool {
        self.description.outputs && self.description.mode != Mode::Destroy
    }

    /// After an apply: what the tool shows and, over it, what a script has printed. What was applied stays applied, so a failure here is told
    /// in the log and leaves no outputs.
    pub(crate) async fn keep_outputs(&self, ready: &Ready, printed: Outputs) {
        if !self.keeps_outputs() {
            return;
        }
        let read = ready.tool.output_json(&ready.dir, &ready.surroundings, &mut self.to_log()).await;
        let shown = match read {
            Ok(Some(document)) => serde_json::from_slice::<Outputs>(&document)
                .map_err(|_| "those of the tool cannot be understood".to_owned()),
            Ok(None) => Err("the tool does not show them".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let kept = match shown {
            Ok(shown) => self.store(&shown.into_iter().chain(printed).collect()).await,
            Err(why) if printed.is_empty() => Err(why),
            Err(why) => {
                self.log.line(&format!("Only the outputs that the script has printed are kept: {why}"));
                self.store(&printed).await
            }
        };
        if let Err(why) = kept {
            self.log.line(&format!("The outputs are not kept: {why}"));
        }
    }

    /// What the last line of a script gives out; a line that was meant so and is refused is told in the log.
    pub(crate) fn printed_outputs(&self, name: &str, last: &Result<String, usize>) -> Outputs {
        if !self.keeps_outputs() {
            return Outputs::new();
        }
        let found = match last {
            Ok(line) if !line.trim_start().starts_with('{') => return Outputs::new(),
            Ok(line) => printed(line, self.log.mask()),
            Err(length) => Err(format!("it has {length} bytes, which is too long")),
        };
        found.unwrap_or_else(|why| {
            self.log.line(&format!("The last line of {name} is not kept as outputs: {why}"));
            Outputs::new()
        })
    }

    /// After a plan without changes: what the state says is what the code gives out.
    pub(crate) async fn keep_planned_outputs(&self, document: &[u8]) {
        if !self.keeps_outputs() {
            return;
        }
        let stored = match serde_json::from_slice::<Shown>(document) {
            Ok(shown) => {
                let values = shown.prior_state.and_then(|state| state.values);
                self.store(&values.map(|values| values.outputs).unwrap_or_default()).await
            }
            Err(_) => Err("the tool's plan cannot be understood".to_owned()),
        };
        if let Err(why) = stored {
            self.log.line(&format!("The outputs are not kept: {why}"));
        }
    }

    async fn store(&self, outputs: &Outputs) -> Result<(), String> {
        let content = serde_json::to_vec(outputs).map_err(|_| "they cannot be written as JSON".to_owned())?;
        if u64::try_from(content.len()).unwrap_or(u64::MAX) > OUTPUTS_LIMIT {
            return Err(format!("they are larger than {OUTPUTS_LIMIT} bytes"));
        }
        let stored = self.client.artefact_put(self.attempt, Artefact::Outputs, content.into()).await;
        stored.map_err(|error| error.to_string())
    }
}

/// One output as the tool itself writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shaped {
    value: Box<RawValue>,
    sensitive: bool,
    #[serde(default, rename = "type")]
    _type: IgnoredAny,
}

/// The outputs in a line: an object of values by name, or what `output -json` prints. One that holds a secret of the run is sensitive, whatever
/// the line says. O(line).
fn printed(line: &str, mask: &Mask) -> Result<Outputs, String> {
    let shaped = serde_json::from_str::<BTreeMap<String, Shaped>>(line).ok();
    let outputs: Outputs = match shaped {
        Some(shaped) => shaped
            .into_iter()
            .map(|(name, Shaped { value, sensitive, .. })| (name, Output { sensitive, value }))
            .collect(),
        None => serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(line)
            .map_err(|error| format!("it begins as a JSON object and is none: {error}"))?
            .into_iter()
            .map(|(name, value)| (name, Output { sensitive: false, value }))
            .collect(),
    };
    if outputs.len() > PRINTED_LIMIT {
        return Err(format!("it has {} outputs; at most {PRINTED_LIMIT} are kept", outputs.len()));
    }
    if let Some(wrong) = outputs.keys().find(|name| VariableName::new(name.as_str()).is_err()) {
        return Err(format!("{:?} is no name of an output", mask.line(wrong)));
    }
    let is_secret = |value: &RawValue| {
        let mut found = serde_json::from_str(value.get()).unwrap_or_default();
        let before = serde_json::Value::clone(&found);
        mask.json(&mut found);
        found != before || mask.line(value.get()) != value.get()
    };
    let marked = outputs.into_iter().map(|(name, Output { sensitive, value })| {
        let sensitive = sensitive || is_secret(&value);
        (name, Output { sensitive, value })
    });
    Ok(marked.collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use secrecy::SecretString;

    use super::*;

    #[test]
    fn a_last_line_gives_out_values_by_name_or_what_the_tool_would_print() {
        let mask = Mask::new(&[SecretString::from("swordfish-1234".to_owned())]);
        let read = |line: &str| {
            let outputs = printed(line, &mask)?;
            let one = |(name, output): (String, Output)| {
                format!("{name}={}{}", output.value.get(), if output.sensitive { " (sensitive)" } else { "" })
            };
            Ok::<_, String>(outputs.into_iter().map(one).collect::<Vec<_>>())
        };
        assert_eq!(read(r#"{"b": 1.50, "a": {"value": 2}}"#).unwrap(), [r#"a={"value": 2}"#, "b=1.50"]);
        let shaped =
            r#"{"a":{"sensitive":true,"type":"string","value":"x"},"b":{"sensitive":false,"value":[1]}}"#;
        assert_eq!(read(shaped).unwrap(), [r#"a="x" (sensitive)"#, "b=[1]"]);
        // What the run was given as a secret is one wherever it comes up.
        let secret =
            r#"{"url": "https://u:swordfish-1234@db", "deep": [{"x": "swordfish-1234"}], "open": "y"}"#;
        assert_eq!(
            read(secret).unwrap(),
            [
                r#"deep=[{"x": "swordfish-1234"}] (sensitive)"#,
                r#"open="y""#,
                r#"url="https://u:swordfish-1234@db" (sensitive)"#
            ]
        );
        assert!(read("{}").unwrap().is_empty());
        assert!(read("{ deploying").unwrap_err().contains("is none"));
        assert!(read(r#"{"@level": "info", "type": "outputs"}"#).unwrap_err().contains("@level"));
        assert!(!read(r#"{"swordfish-1234 ": 1}"#).unwrap_err().contains("swordfish"));
        let many: BTreeMap<String, u32> = (0..=256).map(|number| (format!("o{number}"), number)).collect();
        assert!(read(&serde_json::to_string(&many).unwrap()).unwrap_err().contains("257 outputs"));
    }
}
