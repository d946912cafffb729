//! Structural schemas as Kubernetes means them: defaults, pruning, validation.

mod node;

pub use node::{ListType, MapType, Node, Rule, Type};
