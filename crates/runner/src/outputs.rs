//! Keeping what the code gives out, where the layer wants it written. The values are encrypted in the datastore, and in no log.

use api::outputs::Outputs;
use api::run::Mode;
use datastore::Artefact;
use datastore::key::OUTPUTS_LIMIT;
use serde::Deserialize;

use crate::attempt::{Ready, Work};
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

    /// After an apply. What was applied stays applied, so a failure here is told in the log and leaves no outputs.
    pub(crate) async fn keep_outputs(&self, ready: &Ready) {
        if !self.keeps_outputs() {
            return;
        }
        let read = ready.tool.output_json(&ready.dir, &ready.surroundings, &mut self.to_log()).await;
        let why = match read {
            Ok(Some(document)) => match serde_json::from_slice::<Outputs>(&document) {
                Ok(outputs) => match self.store(&outputs).await {
                    Ok(()) => return,
                    Err(why) => why,
                },
                Err(_) => "they cannot be understood".to_owned(),
            },
            Ok(None) => "the tool does not show them".to_owned(),
            Err(error) => error.to_string(),
        };
        self.log.line(&format!("The outputs are not kept: {why}"));
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
