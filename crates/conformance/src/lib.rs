//! One suite for two servers: what a controller or kubectl can see of a Kubernetes API, as cases that pass on a real
//! kube-apiserver and must pass on the embedded API too, in process and over its port.
//!
//! A case knows nothing of the server it runs on. What is true is decided by the real one: a case that fails there is wrong.

#![allow(
    clippy::indexing_slicing,
    reason = "a JSON value answers null for what it has not; nothing else is indexed here"
)]

#[macro_use]
mod check;
pub mod cases;
pub mod gaps;
pub mod runner;
pub mod scope;
pub mod target;
pub mod watching;

pub use runner::Case;
pub use scope::{Answer, Call, Scope};
pub use target::Target;
