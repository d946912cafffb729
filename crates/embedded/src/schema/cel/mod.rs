//! Validation rules: `x-kubernetes-validations`.

use serde_json::Value;

use super::error::FieldError;
use super::node::{Node, Rule};

/// A rule ready to be evaluated.
pub(crate) struct Compiled {
    pub(super) rule: Rule,
}

pub(crate) fn compile(_node: &Node, rule: &Rule) -> Compiled {
    Compiled { rule: rule.clone() }
}

pub(super) fn has_rules(node: &Node) -> bool {
    node.rules().iter().any(|compiled| compiled.rule.rule.is_empty())
}

pub(super) fn check(_node: &Node, _new: &Value, _old: Option<&Value>) -> Vec<FieldError> {
    Vec::new()
}

pub(super) fn field_path(_schema: super::props::Props<'_>, path: &str) -> Option<String> {
    Some(path.to_owned())
}

pub(super) fn compile_faults(_schema: super::props::Props<'_>, _node: &Node, _path: &str) -> Vec<FieldError> {
    Vec::new()
}

pub(super) fn check_default(_node: &Node, _default: &Value, _path: &str) -> Vec<FieldError> {
    Vec::new()
}
