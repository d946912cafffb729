//! The HTTP service by its own router, on the embedded API: who is let in, what they are shown, and what becomes of requests that cannot be
//! answered.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod access;
mod bad_input;
mod crowds;
mod elsewhere;
mod empty_handed;
mod ground;
mod lists;
mod login;
mod outage;
mod replicas;
mod stacks;
mod webhooks;
mod wishes;
