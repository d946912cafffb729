//! Schemas as a whole, in tables: what goes in, what comes out, in kube-apiserver's words.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod hostile;
mod objects;
mod recorded;
mod schemas;
mod values;

use std::sync::Arc;

use serde_json::{Value, json};

use super::{FieldError, Node};

/// A schema whose `spec` has the given properties.
fn spec(properties: Value) -> Value {
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}})
}

fn node(schema: Value) -> Arc<Node> {
    Node::parse(&schema).unwrap_or_else(|errors| panic!("{schema}: {:?}", texts(&errors)))
}

fn texts(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}
