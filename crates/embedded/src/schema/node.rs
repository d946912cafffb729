//! The schema as data: one [`Node`] per place in an object. How it is parsed, and what is done with it, lives beside this file.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use regex::Regex;
use serde_json::Value;

use super::cel;
use super::pattern;

/// One place in an object. Shared, because the schemas of built-in kinds refer to one another, some of them to themselves.
#[derive(Debug, Clone, Default)]
pub struct Node {
    pub kind: Option<Type>,
    pub description: Option<String>,
    pub properties: BTreeMap<String, Arc<Node>>,
    /// The schema of a map's values. `properties` and this exclude each other.
    pub additional: Option<Arc<Node>>,
    /// `additionalProperties: false`: no other field may be present.
    pub additional_forbidden: bool,
    pub items: Option<Arc<Node>>,
    pub required: Vec<String>,
    pub default: Option<Value>,
    pub nullable: bool,
    pub format: Option<String>,
    pub pattern: Option<String>,
    pub enumeration: Vec<Value>,
    pub minimum: Option<f64>,
    pub maximum: Option<f64>,
    pub exclusive_minimum: bool,
    pub exclusive_maximum: bool,
    pub multiple_of: Option<f64>,
    pub min_length: Option<u64>,
    pub max_length: Option<u64>,
    pub min_items: Option<u64>,
    pub max_items: Option<u64>,
    pub unique_items: bool,
    pub min_properties: Option<u64>,
    pub max_properties: Option<u64>,
    pub all_of: Vec<Arc<Node>>,
    pub any_of: Vec<Arc<Node>>,
    pub one_of: Vec<Arc<Node>>,
    pub not: Option<Arc<Node>>,
    /// `x-kubernetes-int-or-string`.
    pub int_or_string: bool,
    /// `x-kubernetes-preserve-unknown-fields`.
    pub preserve_unknown: bool,
    /// `x-kubernetes-embedded-resource`.
    pub embedded_resource: bool,
    pub list_type: ListType,
    pub list_map_keys: Vec<String>,
    pub map_type: MapType,
    /// `x-kubernetes-patch-merge-key`, of built-in kinds only.
    pub patch_merge_key: Option<String>,
    /// `x-kubernetes-patch-strategy` (comma-separated), of built-in kinds only.
    pub patch_strategies: Vec<String>,
    /// `x-kubernetes-validations`.
    pub validations: Vec<Rule>,
    /// The name of a built-in type this place refers to, such as `io.k8s.api.core.v1.Container`: set instead of the other
    /// fields where the type is part of a cycle, and looked up when it is reached.
    pub reference: Option<Arc<str>>,
    /// Where `reference` leads. Empty for every other node.
    pub target: Target,
    /// What is prepared once per node, when it is first needed: its pattern and its rules.
    pub prepared: Prepared,
}

impl Node {
    /// The node that a reference leads to; `None` for a node that is no reference, or whose definitions are gone.
    pub fn follow(&self) -> Option<Arc<Node>> {
        self.reference.as_ref()?;
        self.target.0.get()?.upgrade()
    }

    pub(crate) fn regex(&self) -> Option<&Regex> {
        let text = self.pattern.as_deref()?;
        self.prepared.regex.get_or_init(|| pattern::compile(text).ok()).as_ref()
    }

    /// The rules of this place, ready to run. A node stands in one place, so it does not matter who asks first.
    pub(super) fn rules(&self, place: cel::Place) -> &[cel::Compiled] {
        self.prepared.rules.get_or_init(|| cel::compile(self, place))
    }

    pub(super) fn has_rules(&self, find_out: impl FnOnce() -> bool) -> bool {
        *self.prepared.has_rules.get_or_init(find_out)
    }
}

/// The far end of a reference, filled in when the definition that it names is complete.
#[derive(Clone, Default)]
pub struct Target(pub(crate) Arc<OnceLock<Weak<Node>>>);

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "Target" } else { "-" })
    }
}

/// The compiled forms of a node's pattern and rules. A copy of a node starts without them, because the copy may be changed.
#[derive(Default)]
pub struct Prepared {
    regex: OnceLock<Option<Regex>>,
    rules: OnceLock<Vec<cel::Compiled>>,
    has_rules: OnceLock<bool>,
}

impl Clone for Prepared {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Prepared")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Type {
    /// The type that a schema calls so.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "object" => Some(Self::Object),
            "array" => Some(Self::Array),
            "string" => Some(Self::String),
            "integer" => Some(Self::Integer),
            "number" => Some(Self::Number),
            "boolean" => Some(Self::Boolean),
            _ => None,
        }
    }
}

/// `x-kubernetes-list-type`: how server-side apply sees a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListType {
    #[default]
    Atomic,
    Set,
    Map,
}

/// `x-kubernetes-map-type`: whether an object is owned field by field or as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MapType {
    #[default]
    Granular,
    Atomic,
}

/// One entry of `x-kubernetes-validations`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub rule: String,
    pub message: Option<String>,
    pub message_expression: Option<String>,
    pub reason: Option<String>,
    pub field_path: Option<String>,
    pub optional_old_self: bool,
}
