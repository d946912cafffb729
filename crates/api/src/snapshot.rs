//! What an apply worked with, kept so that it can be undone when the layer's Secrets, ConfigMaps, variables and backend are gone or are
//! others by then. It holds values of Secrets: it is an artefact that the datastore seals, and only a destroy of the same layer reads it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::attempt::Description;
use crate::inputs::{Contents, Inputs, Kind, Object};
use crate::text::{LayerPath, ObjectName, Workspace};
use crate::tool::{Choice, Tool};

/// `runs/<uid>/<attempt>/inputs`: written by the runner of an apply before it begins.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    path: LayerPath,
    workspace: Workspace,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tool: Option<Tool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tool_version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    terragrunt: Option<Choice>,
    #[serde(default)]
    pub inputs: Inputs,
    #[serde(default)]
    objects: Vec<Held>,
}

/// An object with its data, each value in hex.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Held {
    kind: Kind,
    name: ObjectName,
    data: BTreeMap<String, String>,
}

impl Snapshot {
    pub fn of(description: &Description, contents: &Contents) -> Self {
        let held = |(object, data): (&Object, &BTreeMap<String, Vec<u8>>)| Held {
            kind: object.kind,
            name: object.name.clone(),
            data: data.iter().map(|(key, value)| (key.clone(), hex::encode(value))).collect(),
        };
        Self {
            path: description.path.clone(),
            workspace: description.workspace.clone(),
            tool: description.tool,
            tool_version: description.tool_version.clone(),
            terragrunt: description.terragrunt.clone(),
            inputs: description.inputs.as_ref().map(|given| given.inputs.clone()).unwrap_or_default(),
            objects: contents.iter().map(held).collect(),
        }
    }

    /// What the objects held. A value that is damaged is left out, and missed by whoever compares digests.
    pub fn contents(&self) -> Contents {
        let data = |held: &Held| {
            let values =
                held.data.iter().filter_map(|(key, value)| Some((key.clone(), hex::decode(value).ok()?)));
            values.collect()
        };
        let object = |held: &Held| Object { kind: held.kind, name: held.name.clone() };
        self.objects.iter().map(|held| (object(held), data(held))).collect()
    }

    /// Where and with which tool it was done, whatever the layer says by now.
    pub fn prevail(&self, description: &mut Description) {
        description.path = self.path.clone();
        description.workspace = self.workspace.clone();
        description.tool = self.tool;
        description.tool_version = self.tool_version.clone();
        description.terragrunt = self.terragrunt.clone();
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Snapshot(…)")
    }
}
