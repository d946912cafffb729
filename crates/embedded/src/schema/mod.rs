//! Structural schemas as Kubernetes means them: reading them, and with them defaulting, pruning and validating objects. All of it
//! is pure: a schema and a value go in, a value or a list of faults comes out.

mod builtin;
mod cel;
mod correlate;
mod default;
mod error;
mod meta;
mod node;
mod openapi;
mod parse;
mod pattern;
mod props;
mod prune;
mod structural;
mod validate;
pub(crate) mod wording;

#[cfg(test)]
mod tests;

pub use builtin::{Definitions, Error};
pub use default::default;
pub use error::{ErrorKind, FieldError, aggregate};
pub use node::{ListType, MapType, Node, Prepared, Rule, Target, Type};
pub use parse::{SCHEMA_PATH, Subresource};
pub use prune::prune;
pub use validate::{malformed, validate, validate_status};
