//! Which kinds the API serves: the built-in table and those that CustomResourceDefinitions add. How a kind is stored, changed or shown over
//! HTTP lives in `http`.

mod builtin;
mod cause;
mod crd;
pub mod format;
pub mod meta;
pub mod openapi;
pub mod protobuf;
mod registry;
pub mod strategy;
pub mod typed;

use std::sync::Arc;

use serde_json::Value;

use crate::schema::Node;
use crate::store::Collection;

pub use builtin::{BUILTIN_GROUPS, Builtin};
pub use cause::Cause;
pub use crd::Definition;
pub use openapi::BuiltinSchemas;
pub use registry::{Kinds, Registry};

/// One resource in one version, as discovery tells it and as requests are checked against it.
#[derive(Debug)]
pub struct Kind {
    pub group: Arc<str>,
    pub version: Arc<str>,
    pub kind: Arc<str>,
    pub list_kind: Arc<str>,
    pub plural: Arc<str>,
    pub singular: Arc<str>,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub scope: Scope,
    pub verbs: &'static [&'static str],
    pub subresources: Vec<Subresource>,
    /// `v1`, `terrane.dev/v1alpha1`.
    pub api_version: Arc<str>,
    /// Where its objects are stored. Two kinds may share it: the versions of a custom resource, and the two sorts of events.
    pub collection: Collection,
    /// The apiVersion that stored objects carry.
    pub storage_version: Arc<str>,
    pub schema: Arc<Node>,
    /// The OpenAPI definition of a built-in kind; empty for custom resources.
    pub definition: &'static str,
    pub columns: Vec<Column>,
    /// Fields that a selector may name beside `metadata.name` and `metadata.namespace`.
    pub selectable: Vec<String>,
    pub origin: Origin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Cluster,
    Namespaced,
}

/// Where a kind comes from.
#[derive(Debug, Clone)]
pub enum Origin {
    Builtin(Builtin),
    Custom(Arc<Definition>),
}

#[derive(Debug, Clone)]
pub struct Subresource {
    pub name: &'static str,
    /// The kind that it answers with, where that is not the parent's.
    pub kind: Option<(&'static str, &'static str, &'static str)>,
    pub verbs: &'static [&'static str],
}

/// One column of the Table that `kubectl get` prints.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    pub name: String,
    pub kind: String,
    pub format: String,
    pub description: String,
    pub priority: i32,
    /// Of custom resources: where the value is found.
    pub path: Option<String>,
}

impl Kind {
    pub fn builtin(&self) -> Option<Builtin> {
        match &self.origin {
            Origin::Builtin(builtin) => Some(*builtin),
            Origin::Custom(_) => None,
        }
    }

    pub fn is_namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Whether `status` is written through its own path only.
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }

    /// `pods`, or `terraformlayers.terrane.dev`.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_string()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// Whether the object says it is of this kind; what it leaves out is filled in.
    pub fn stamp(&self, object: &mut serde_json::Map<String, Value>) {
        object.insert("apiVersion".to_owned(), Value::from(&*self.api_version));
        object.insert("kind".to_owned(), Value::from(&*self.kind));
    }
}

/// The texts of a list, where it is one.
fn strings(value: Option<&Value>) -> Vec<String> {
    value
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}
