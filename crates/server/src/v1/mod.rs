//! `/api/v1`: what a page, a program and the command line ask for.

pub(crate) mod approvals;
pub(crate) mod artefacts;
pub(crate) mod events;
pub(crate) mod history;
pub(crate) mod layers;
pub(crate) mod log_events;
pub(crate) mod queue;
pub(crate) mod repositories;
pub(crate) mod runs;
pub(crate) mod states;
pub(crate) mod unlock;
