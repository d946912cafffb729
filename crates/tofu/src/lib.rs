//! The tools, terraform and OpenTofu, alone or run by Terragrunt, as typed subprocesses: which one is wanted, where it comes from,
//! what it says, what its plan means. Nothing here knows the datastore.

pub mod choice;
pub mod diagnostics;
pub mod difference;
mod garbage;
pub mod installed;
pub mod lock_file;
pub mod plan;
pub mod plan_file;
pub mod process;
pub mod signature;
pub mod store;
pub mod terragrunt;
mod tool;
pub mod versions;

pub use tool::{Error, Past, Planned, ProviderChoice, Report, Tool};
