//! Terraform and OpenTofu as typed subprocesses: which program and version, its commands, its plan. Knows nothing of runs.

pub mod code;
pub mod job;
pub mod plan;
pub mod program;
pub mod version;

pub use job::{Ended, Job};
pub use program::Program;
pub use version::Constraint;
