//! The tools, terraform and OpenTofu, alone or run by Terragrunt, as typed subprocesses: which one is wanted, what it says, what its plan means.
//! Downloading tools does not happen here, and nothing here knows the datastore.

pub mod choice;
pub mod diagnostics;
pub mod difference;
pub mod plan;
pub mod plan_file;
pub mod process;
pub mod terragrunt;
mod tool;
pub mod versions;

pub use tool::{Error, Planned, Report, Tool};
